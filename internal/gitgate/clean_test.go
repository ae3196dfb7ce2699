package gitgate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// release is a project of which successive versions are pushed.
type release struct {
	name     string // a Go module, "npm:" and a package, or "std" for parts of Go's library
	versions string
	// right lists what is found and rightly asked about, and how: examples of keys, broken
	// archives, and a bomb of zeros.
	right []string
}

var releases = []release{
	{"std", "archive bufio bytes compress crypto encoding image net strings text", []string{
		"tar/testdata/gnu-sparse-many-zeros.tar.bz2 request: the limit of output is reached",
		"tar/testdata/gnu-sparse-many-zeros.tar.bz2 asked: unreadable",
		"zip/testdata/test-badbase.zip asked: unreadable",
		"bzip2/testdata/fail-issue5747.bz2.base64 asked: unreadable",
		"gzip/testdata/issue6550.gz.base64 asked: unreadable",
		"tls/example_test.go request: private-key", "tls/example_test.go asked: private-key",
		"tls/testdata/example-key.pem request: private-key", "tls/testdata/example-key.pem asked: private-key",
		"x509/platform_root_key.pem request: private-key", "x509/platform_root_key.pem asked: private-key",
	}},
	{"golang.org/x/crypto", "v0.44.0 v0.45.0 v0.46.0 v0.47.0 v0.48.0 v0.49.0 v0.50.0 v0.51.0 v0.52.0 v0.53.0", []string{
		"acme/jws_test.go request: private-key", "acme/jws_test.go asked: private-key",
		"openpgp/clearsign/clearsign_test.go request: private-key", "openpgp/clearsign/clearsign_test.go asked: private-key",
		"openpgp/read_test.go request: private-key", "openpgp/read_test.go asked: private-key",
		"ssh/test/session_test.go request: private-key", "ssh/test/session_test.go asked: private-key",
		"ssh/testdata/keys.go request: private-key", "ssh/testdata/keys.go asked: private-key",
		"ssh/keys_test.go request: private-key", "ssh/keys_test.go asked: private-key",
	}},
	{"github.com/spf13/cobra", "v1.2.1 v1.3.0 v1.4.0 v1.5.0 v1.6.0 v1.6.1 v1.7.0 v1.8.0 v1.8.1 v1.9.1", nil},
	{"github.com/prometheus/client_golang", "v1.17.0 v1.18.0 v1.19.0 v1.19.1 v1.20.0 v1.20.5 v1.21.0 v1.21.1 v1.22.0 v1.23.0", nil},
	{"github.com/hashicorp/go-version", "v1.0.0 v1.1.0 v1.2.0 v1.2.1 v1.3.0 v1.4.0 v1.6.0 v1.7.0 v1.8.0 v1.9.0", nil},
	{"npm:express", "4.17.0 4.17.1 4.17.2 4.17.3 4.18.0 4.18.1 4.18.2 4.18.3 4.19.0 4.19.1", nil},
	{"npm:axios", "1.7.7 1.7.8 1.7.9 1.8.0 1.8.1 1.8.2 1.8.3 1.8.4 1.9.0 1.10.0", nil},
	{"npm:fastify", "5.2.0 5.2.1 5.2.2 5.3.0 5.3.1 5.3.2 5.3.3 5.4.0 5.5.0 5.6.0", nil},
	{"npm:lodash", "4.17.12 4.17.13 4.17.14 4.17.15 4.17.16 4.17.17 4.17.18 4.17.19 4.17.20 4.17.21", nil},
}

// TestCleanReleases pushes ten successive releases of each project through the gate, and
// sends each file as a request and as an answer. Nothing is asked and nothing refused,
// except what is rightly so. After them a key is pushed and sent, which must be found.
func TestCleanReleases(t *testing.T) {
	t.Parallel()
	for _, r := range releases {
		if r.name != "std" && os.Getenv("CARBOY_TEST_CLEAN") != "1" {
			t.Logf("releases of %s are NOT pushed, which takes long and the network: CARBOY_TEST_CLEAN=1", r.name)
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c := newCleanPushes(t)
			for _, what := range r.right {
				c.right[what] = true
			}
			versions := strings.Fields(r.versions)
			if testing.Short() {
				versions = versions[:2]
			}
			for _, v := range versions {
				c.replace(download(t, r.name, v))
				c.commit("release " + v)
				c.push(v)
			}
			c.control()
			for _, what := range r.right {
				if !c.found[what] && r.name != "std" && !testing.Short() { // std is of any version
					t.Error("not found any more:", what)
				}
			}
		})
	}
}

// TestCleanHistories pushes the commits of the repositories that CARBOY_TEST_HISTORIES
// names: first the line of first parents without its last N commits, and then these, STEP
// at a time. CARBOY_TEST_COMMITS is "N STEP".
func TestCleanHistories(t *testing.T) {
	repos := strings.Fields(os.Getenv("CARBOY_TEST_HISTORIES"))
	if len(repos) == 0 {
		t.Log(`real histories are NOT pushed: CARBOY_TEST_HISTORIES="/path/of/a/repository …"`)
	}
	n, step := 300, 1
	_, _ = fmt.Sscan(os.Getenv("CARBOY_TEST_COMMITS"), &n, &step)
	for _, repo := range repos {
		t.Run(filepath.Base(filepath.Dir(repo)), func(t *testing.T) {
			c := newCleanPushes(t)
			git(t, c.w, "fetch", "-q", repo, "HEAD")
			line := strings.Fields(git(t, c.w, "rev-list", "--first-parent", "--reverse", "FETCH_HEAD"))
			for i := max(len(line)-n, 1) - 1; ; i = min(i+step, len(line)-1) {
				git(t, c.w, "reset", "-q", "--hard", line[i])
				c.push(line[i][:12])
				if i == len(line)-1 {
					break
				}
			}
			c.control()
		})
	}
}

// cleanPushes is a work tree whose commits go through a gate one after another.
type cleanPushes struct {
	t      *testing.T
	w, up  string
	pushed chan Event
	right  map[string]bool
	found  map[string]bool

	out, in *scan.Rules
	cover   *scan.Coverage
	sent    map[[32]byte]bool // contents that went as bodies
	count   struct{ pushes, commits, objects, bodies, refused, asked int }
	bytes   struct{ pushed, sent int64 }

	mu    sync.Mutex
	asked []Allow
}

func newCleanPushes(t *testing.T) *cleanPushes {
	t.Helper()
	secrets := map[string]secret.Value{}
	for i := range 5 {
		secrets[fmt.Sprint("secret", i)] = secret.NewString(rand.Text() + rand.Text())
	}
	watched, err := scan.NewWatchedSecrets(secrets)
	if err != nil {
		t.Fatal(err)
	}
	c := &cleanPushes{t: t, up: newUpstreamRepo(t), pushed: make(chan Event, 1), cover: scan.NewCoverage(), sent: map[[32]byte]bool{}, right: map[string]bool{}, found: map[string]bool{}}
	if c.out, err = scan.NewRules(scan.Config{Watched: watched, Tokens: true}); err == nil {
		c.in, err = scan.NewInjections()
	}
	if err != nil {
		t.Fatal(err)
	}
	_, url := newGate(t, Config{
		Repos:   []Repo{{Name: "app", URL: c.up}},
		Secrets: func() map[string]secret.Value { return secrets },
		Observe: func(e Event) {
			if e.Op == "push" {
				c.pushed <- e
			}
		},
		Ask: func(_ context.Context, a Allow) (string, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked = append(c.asked, a)
			return "me", nil
		},
	})
	c.w = cloneOf(t, url)
	t.Cleanup(func() {
		t.Logf("%d pushes, %d commits, %d objects of %d bytes; %d files of %d bytes as bodies; %d findings, %d asked, %d pushes refused",
			c.count.pushes, c.count.commits, c.count.objects, c.bytes.pushed, c.count.bodies, c.bytes.sent, len(c.found), c.count.asked, c.count.refused)
	})
	return c
}

// replace makes the work tree have exactly the files of fsys, and sends each as a body.
func (c *cleanPushes) replace(fsys fs.FS) {
	c.t.Helper()
	git(c.t, c.w, "rm", "-rqf", "--ignore-unmatch", ".")
	if err := os.CopyFS(c.w, fsys); err != nil {
		c.t.Fatal(err)
	}
	err := fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(fsys, path)
		if err == nil && !c.sent[sha256.Sum256(b)] {
			c.sent[sha256.Sum256(b)] = true
			c.count.bodies++
			c.bytes.sent += int64(len(b))
			for _, f := range c.send(b) {
				c.tell(path, f)
			}
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// send scans b as the body of a request and of an answer, as the gateway does by default,
// and returns the rules that would stop it.
func (c *cleanPushes) send(b []byte) (rules []string) {
	for way, r := range map[string]*scan.Rules{"request": c.out, "answer": c.in} {
		found, err := r.Check(scan.Options{Place: way, Action: scan.Report, Coverage: c.cover}, b)
		if err != nil {
			rules = append(rules, way+err.Error()[strings.LastIndexByte(err.Error(), ':'):])
		}
		for _, f := range found {
			if rule := way + ": " + f.Rule; !f.Warning && !slices.Contains(rules, rule) {
				rules = append(rules, rule)
			}
		}
	}
	return rules
}

// tell reports a finding that is not right.
func (c *cleanPushes) tell(file, what string) {
	c.found[file+" "+what] = true
	if !c.right[file+" "+what] {
		c.t.Errorf("found: %s %s", file, what)
	}
}

func (c *cleanPushes) commit(text string) {
	git(c.t, c.w, "add", "-Af")
	git(c.t, c.w, "commit", "-qm", text, "--allow-empty")
}

// push pushes the work tree's commit. What is refused goes to upstream directly.
func (c *cleanPushes) push(what string) {
	c.t.Helper()
	out, err := tryGit(c.t, c.w, "push", "-q", "origin", "+HEAD:refs/heads/clean")
	e := c.event(out)
	c.count.pushes++
	c.count.commits += e.New
	c.count.objects += e.Objects
	c.bytes.pushed += e.Scanned
	c.mu.Lock()
	c.count.asked += len(c.asked)
	c.asked = nil
	c.mu.Unlock()
	for _, f := range e.Findings {
		how := "asked: "
		if f.Allow == "" {
			how = "refused: "
		}
		if how += f.Rule; !c.found[f.File+" "+how] {
			c.t.Logf("%s: %s in %s %s:%d of %.12s (%s)", what, how, f.Where, f.File, f.Line, f.Commit, f.Transform)
			c.tell(f.File, how)
		}
	}
	if err == nil {
		return
	}
	c.count.refused++
	if e.Verdict != Refused || len(e.Findings) == 0 {
		c.t.Errorf("%s: %s: %s", what, e.Verdict, e.Reason)
	}
	git(c.t, c.w, "push", "-q", c.up, "+HEAD:refs/heads/clean")
}

// event returns what the gate says of a push that is over.
func (c *cleanPushes) event(out string) Event {
	c.t.Helper()
	select {
	case e := <-c.pushed:
		return e
	case <-time.After(testenv.Patience(time.Minute)):
		c.t.Fatalf("the gate saw no push:\n%s", out)
		return Event{}
	}
}

// control pushes and sends a key.
func (c *cleanPushes) control() {
	c.t.Helper()
	if rules := c.send([]byte("key = " + awsKey + "\n")); !slices.Equal(rules, []string{"request: aws-access-token"}) {
		c.t.Errorf("a key that is sent: %q", rules)
	}
	commitFile(c.t, c.w, "control.txt", awsKey+"\n")
	out, err := tryGit(c.t, c.w, "push", "-q", "origin", "+HEAD:refs/heads/clean")
	if e := c.event(out); err == nil || e.Verdict != Refused || len(e.Findings) != 1 {
		c.t.Errorf("a key that is pushed: %v %+v\n%s", err, e, out)
	}
}

// download returns the files of a version of a project.
func download(t *testing.T, name, version string) fs.FS {
	t.Helper()
	if name == "std" {
		program, err := filepath.EvalSymlinks(testenv.Need(t, "go", "https://go.dev/dl"))
		if err != nil {
			t.Fatal(err)
		}
		return os.DirFS(filepath.Join(filepath.Dir(program), "../src", version))
	}
	if pkg, ok := strings.CutPrefix(name, "npm:"); ok {
		return unpack(t, run(t, testenv.Need(t, "npm", "https://nodejs.org"), "pack", "--silent", pkg+"@"+version))
	}
	var m struct{ Dir string }
	out := run(t, testenv.Need(t, "go", "https://go.dev/dl"), "mod", "download", "-json", name+"@"+version)
	b, err := os.ReadFile(filepath.Join(out, "stdout"))
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil || m.Dir == "" {
		t.Fatalf("%s@%s: %v\n%s", name, version, err, b)
	}
	return os.DirFS(m.Dir)
}

// run runs a program in a new directory, which gets its output as stdout, and returns the
// directory.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var said bytes.Buffer
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Stdout, c.Stderr = dir, out, &said
	// npm's own list of whom to trust is not this machine's.
	c.Env = append(os.Environ(), "npm_config_cafile=/etc/ssl/certs/ca-certificates.crt")
	if err := c.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, said.Bytes())
	}
	return dir
}

// unpack unpacks the npm package in dir.
func unpack(t *testing.T, dir string) fs.FS {
	t.Helper()
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatal(packed, err)
	}
	f, err := os.Open(packed[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return os.DirFS(filepath.Join(dir, "package"))
		}
		if err != nil || !filepath.IsLocal(h.Name) {
			t.Fatal(h, err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, h.Name), string(b))
	}
}
