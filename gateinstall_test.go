package carboy

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gomodule "golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	modzip "golang.org/x/mod/zip"

	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/testenv"
)

// registryHosts lists the hosts that gate init lets install phases reach.
var registryHosts = []string{"registry.npmjs.org", "proxy.golang.org", "sum.golang.org", "pypi.org", "files.pythonhosted.org"}

// registry is npm's, Go's and Python's, with one package in each: adder 1.0.0. Everything
// that a lockfile pins is exchanged for another thing once other is set.
type registry struct {
	other                  atomic.Bool
	npm, wheel, mod        [2][]byte // as it is pinned, and another
	integrity, sha, goSums string
}

func newRegistry(t testing.TB) *registry {
	t.Helper()
	r := &registry{}
	for i, sum := range []string{"a + b", "a - b"} {
		r.npm[i] = tarball(t, map[string]string{"package/package.json": `{"name":"adder","version":"1.0.0"}`, "package/index.js": "exports.add = (a, b) => " + sum + ";\n"})
		r.wheel[i] = zipped(t, map[string]string{
			"adder.py":                     "def add(a, b):\n    return " + sum + "\n",
			"adder-1.0.0.dist-info/WHEEL":  "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
			"adder-1.0.0.dist-info/RECORD": "adder.py,,\nadder-1.0.0.dist-info/WHEEL,,\nadder-1.0.0.dist-info/METADATA,,\nadder-1.0.0.dist-info/RECORD,,\n", "adder-1.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: adder\nVersion: 1.0.0\n",
		})
		dir := t.TempDir()
		for name, text := range map[string]string{"go.mod": goModOfAdder, "adder.go": "package adder\n\nfunc Add(a, b int) int { return " + sum + " }\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if err := modzip.CreateFromDir(&b, gomodule.Version{Path: "example.org/adder", Version: "v1.0.0"}, dir); err != nil {
			t.Fatal(err)
		}
		r.mod[i] = b.Bytes()
	}
	s5, s2 := sha512.Sum512(r.npm[0]), sha256.Sum256(r.wheel[0])
	r.integrity, r.sha = "sha512-"+base64.StdEncoding.EncodeToString(s5[:]), hex.EncodeToString(s2[:])
	file := filepath.Join(t.TempDir(), "adder.zip")
	if err := os.WriteFile(file, r.mod[0], 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := dirhash.HashZip(file, dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	mod, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(goModOfAdder)), nil })
	if err != nil {
		t.Fatal(err)
	}
	r.goSums = "example.org/adder v1.0.0 " + all + "\nexample.org/adder v1.0.0/go.mod " + mod + "\n"
	return r
}

const goModOfAdder = "module example.org/adder\n\ngo 1.21\n"

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	which := 0
	if r.other.Load() {
		which = 1
	}
	switch q.Host + q.URL.Path {
	case "registry.npmjs.org/adder/-/adder-1.0.0.tgz":
		w.Write(r.npm[which])
	case "pypi.org/simple/adder/":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!DOCTYPE html><a href=\"https://files.pythonhosted.org/packages/adder-1.0.0-py3-none-any.whl\">adder-1.0.0-py3-none-any.whl</a>")
	case "files.pythonhosted.org/packages/adder-1.0.0-py3-none-any.whl":
		w.Write(r.wheel[which])
	case "proxy.golang.org/example.org/adder/@v/v1.0.0.info":
		fmt.Fprint(w, `{"Version":"v1.0.0"}`)
	case "proxy.golang.org/example.org/adder/@v/v1.0.0.mod":
		fmt.Fprint(w, goModOfAdder)
	case "proxy.golang.org/example.org/adder/@v/v1.0.0.zip":
		w.Write(r.mod[which])
	default:
		http.NotFound(w, q)
	}
}

func tarball(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zipped(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// outsideAs has a Client reach one server outside by some names, whatever address they
// have, with a certificate for them.
func (w *world) outsideAs(h http.Handler, names []string) {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	w.t.Cleanup(srv.Close)
	w.reach(srv, names...)
}

// TestGateInstalls: projects whose dependencies come from a registry are gated as gate
// init proposes: what the lockfile pins is installed with a route, and tested without
// one. What the registry has instead of it is installed by nobody.
func TestGateInstalls(t *testing.T) {
	r := newRegistry(t)
	for _, x := range []struct {
		name, program, hint string
		files               map[string]string
		install, tests      string // the signals
		refused             string // what the installer says of another package
	}{
		{"npm", "npm", "apt-get install npm", map[string]string{
			"package.json":      `{"name":"m","version":"1.0.0","scripts":{"test":"node --test"},"dependencies":{"adder":"1.0.0"}}`,
			"package-lock.json": `{"name":"m","version":"1.0.0","lockfileVersion":3,"requires":true,"packages":{"":{"name":"m","version":"1.0.0","dependencies":{"adder":"1.0.0"}},"node_modules/adder":{"version":"1.0.0","resolved":"https://registry.npmjs.org/adder/-/adder-1.0.0.tgz","integrity":"` + r.integrity + `"}}}`,
			"m.test.js":         "const test = require('node:test');\nconst assert = require('node:assert');\ntest('adds', () => assert.equal(require('adder').add(1, 2), 3));\n",
			".gitignore":        "node_modules\n",
		}, "npm-ci", "node-test", "EINTEGRITY"},
		{"pip", "py.test-3", "apt-get install python3-pip python3-pytest", map[string]string{
			"requirements.txt": "adder==1.0.0 \\\n    --hash=sha256:" + r.sha + "\n",
			"conftest.py":      "", "test_m.py": "from adder import add\n\ndef test_adds():\n    assert add(1, 2) == 3\n",
		}, "pip", "pytest", "DO NOT MATCH THE HASHES"},
		{"go", "go", "https://go.dev/dl", map[string]string{
			"go.mod": "module example.com/m\n\ngo 1.21\n\nrequire example.org/adder v1.0.0\n", "go.sum": r.goSums,
			"m.go": "package m\n\nimport _ \"example.org/adder\"\n", "m_test.go": "package m\n\nimport (\n\t\"testing\"\n\n\t\"example.org/adder\"\n)\n\nfunc TestAdd(t *testing.T) {\n\tif adder.Add(1, 2) != 3 {\n\t\tt.Fatal(1)\n\t}\n}\n",
		}, "modules", "go-test", "SECURITY ERROR"},
	} {
		if x.name != "npm" && os.Getenv("CARBOY_TEST_LANGUAGES") != "1" {
			t.Logf("dependencies by %s are NOT tested, which takes longer: CARBOY_TEST_LANGUAGES=1", x.name)
			continue
		}
		if _, err := os.Stat("/usr/lib/python3/dist-packages/pip"); x.name == "pip" && err != nil {
			t.Logf("dependencies by pip are NOT tested: %s", x.hint)
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			testenv.Need(t, x.program, x.hint)
			p := newProject(t, x.files)
			p.outsideAs(r, registryHosts)
			r.other.Store(false)
			b, err := p.c.GateInit(t.Context(), judge.GateOptions{Dir: p.ws})
			if err != nil {
				t.Fatal(err)
			}
			if b.Outcome != gate.Passed || len(b.LeftOut)+len(b.Notes) > 0 || judge.ResultOf(b.Verdict, x.install).Outcome != gate.Passed || judge.ResultOf(b.Verdict, x.tests).Outcome != gate.Passed {
				t.Fatalf("%s: left out: %q, notes %q", b.Outcome, b.LeftOut, b.Notes)
			}
			for _, ph := range b.Phases {
				if (ph.Signal == x.install) != (len(ph.Fetched) > 0) || ph.Networked != (ph.Signal == x.install) {
					t.Errorf("%s had %d answers from outside", ph.Signal, len(ph.Fetched))
				}
			}
			// The installer alone, which npm tries for minutes.
			f, err := judge.Proposals(p.ws)
			if err != nil {
				t.Fatal(err)
			}
			f.List = slices.DeleteFunc(f.List, func(q judge.Proposal) bool { return q.Name != x.install })
			own := filepath.Join(filepath.Dir(p.ws), "own.yaml")
			if err := os.WriteFile(own, []byte(strings.Replace(judge.CatalogText(f.Found, f.List), "[npm, ci,", "[npm, ci, --fetch-retries=0,", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			r.other.Store(true)
			j := p.judge(judge.GateOptions{Base: "HEAD", Catalog: own})
			var text bytes.Buffer
			j.Text(&text, true)
			if judge.ResultOf(j.Verdict, x.install).Outcome == gate.Passed || !strings.Contains(text.String(), x.refused) {
				t.Errorf("%v, want %q\n%s", notPassed(j.Verdict), x.refused, text.String())
			}
		})
	}
}
