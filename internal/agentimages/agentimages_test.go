package agentimages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ulikunitz/xz"

	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/dockerfile"
)

// TestPinned: all that the images are made from has a version and a digest.
func TestPinned(t *testing.T) {
	if got := Names(); !slices.Equal(got, []string{"claude", "codex", "gemini", "opencode", "pi"}) {
		t.Errorf("%v", got)
	}
	text, err := files.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	l, err := parseLock(string(text))
	if err != nil || len(l.packages) < 50 || !strings.HasPrefix(l.packages[0].name, "base-files_") {
		t.Fatalf("%v", err)
	}
	for _, name := range Names() {
		b, err := files.ReadFile(name + "/package-lock.json")
		if err != nil {
			t.Fatal(err)
		}
		var lock struct {
			Packages map[string]struct{ Version, Integrity string }
		}
		if err := json.Unmarshal(b, &lock); err != nil || len(lock.Packages) < 2 {
			t.Errorf("%s: %v", name, err)
		}
		for at, p := range lock.Packages {
			if at != "" && (p.Version == "" || !strings.HasPrefix(p.Integrity, "sha512-")) {
				t.Errorf("%s: %s is not pinned", name, at)
			}
		}
		var o builder.Options
		done, err := Open(name, &o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dockerfile.Parse(o.File, o.Text); err != nil || !slices.Equal(o.Allow, []string{registry}) {
			t.Errorf("%s: %v, may reach %v", name, err, o.Allow)
		}
		done()
	}
	if _, err := Open("../x", new(builder.Options)); err == nil {
		t.Error("an agent of another directory")
	}
}

func TestParseLock(t *testing.T) {
	good := strings.Repeat("a", 64)
	for text, want := range map[string]string{
		"# a comment\n\nsnapshot 2026\ndeb pool/a_1_amd64.deb 10 " + good + "\n":      "",
		"npm npm 1.0.0 sha512-" + base64.StdEncoding.EncodeToString(make([]byte, 64)): "",
		"\ndeb pool/a.deb 10 abc\n":           "line 2: ",
		"deb pool/a.deb ten " + good:          "is not a size",
		"deb pool/a.deb 999999999999 " + good: "is not a size",
		"npm npm 1.0.0 sha1-abc":              "is not a SHA-512",
		"deb pool/a.deb 10":                   "is not understood",
		"rpm a b c":                           "is not understood",
		"npm npm 1.0.0 sha512-" + strings.Repeat("a", 8) + " another": "is not understood",
	} {
		if _, err := parseLock(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// archive returns a tar of files: a name that ends in a slash is a directory.
func archive(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		h := &tar.Header{Name: n, Typeflag: tar.TypeReg, Mode: 0o644, Uid: 501, Size: int64(len(n))}
		if strings.HasSuffix(n, "/") {
			h.Typeflag, h.Mode, h.Size = tar.TypeDir, 0o755, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, n[:h.Size])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// deb returns a package of Debian's.
func deb(t *testing.T, data []byte) []byte {
	t.Helper()
	var x bytes.Buffer
	w, err := xz.NewWriter(&x)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(data)
	w.Close()
	out := "!<arch>\n"
	for _, m := range []struct{ name, content string }{{"debian-binary", "2.0\n"}, {"control.tar.xz", "odd"}, {"data.tar.xz", x.String()}} {
		out += fmt.Sprintf("%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.content)) + m.content
		if len(m.content)%2 == 1 {
			out += "\n"
		}
	}
	return []byte(out)
}

// TestPackages makes a layer out of packages, and refuses what is not the pinned file.
func TestPackages(t *testing.T) {
	first := deb(t, archive(t, "./", "./usr/", "./usr/bin/", "./usr/bin/tool"))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(archive(t, "package/bin/node", "package/../../../../etc/passwd"))
	z.Close()
	var served map[string][]byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := served[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
		}
		w.Write(b)
	}))
	defer server.Close()
	sum, wide := sha256.Sum256(first), sha512.Sum512(packed.Bytes())
	l := &lock{packages: []pkg{
		{name: "tool", urls: []string{server.URL + "/gone", server.URL + "/tool.deb"}, size: int64(len(first)), sum: "sha256:" + hex.EncodeToString(sum[:])},
		{name: "node", urls: []string{server.URL + "/node.tgz"}, npm: true, sum: "sha512:" + hex.EncodeToString(wide[:])},
	}}
	make := func() ([]byte, error) {
		var b bytes.Buffer
		m := &maker{tmp: t.TempDir(), client: server.Client(), say: func(string) {}}
		_, err := m.layer(t.Context(), l, &b)
		return b.Bytes(), err
	}
	served = map[string][]byte{"/tool.deb": first, "/node.tgz": packed.Bytes()}
	layer, err := make()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
		if npm := strings.Contains(h.Name, "node_modules"); npm && h.Uid != 0 || !h.ModTime.Equal(builder.Epoch) {
			t.Errorf("%s: user %d, %v", h.Name, h.Uid, h.ModTime)
		}
	}
	if want := []string{"usr/", "usr/bin/", "usr/bin/tool", "usr/local/lib/node_modules/node/bin/node", "usr/local/lib/node_modules/node/etc/passwd"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if again, err := make(); err != nil || !bytes.Equal(again, layer) {
		t.Errorf("twice is not the same: %v", err)
	}
	for name, other := range map[string][]byte{
		"another":  append(slices.Clone(first[:len(first)-1]), first[len(first)-1]^1),
		"a part":   first[:len(first)-1],
		"nothing":  {},
		"and more": append(slices.Clone(first), 0),
	} {
		served["/tool.deb"] = other
		if _, err := make(); err == nil || !strings.Contains(err.Error(), "is not the file that is pinned") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDebData(t *testing.T) {
	for _, s := range []string{"", "!<arch>\n", "nothing of it", "!<arch>\n" + strings.Repeat(" ", 60), "!<arch>\n" + fmt.Sprintf("%-48s%-10d`\n", "x", 100)} {
		if _, err := debData(strings.NewReader(s)); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}
