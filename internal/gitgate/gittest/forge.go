package gittest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Forge serves GitLab's API for the deploy keys of one repository, whose path may be long.
// It lets exactly these keys into an ssh server.
type Forge struct {
	URL string // of the API

	t     testing.TB
	sshd  *SSH
	repo  string
	token string

	mu   sync.Mutex
	next int
	keys []ForgeKey
	down bool
}

// ForgeKey is a deploy key of a Forge.
type ForgeKey struct {
	ID    int    `json:"id"`
	Title string `json:"title"`
	Key   string `json:"key"`
}

// NewForge starts a Forge for the repository at path.
func NewForge(t testing.TB, s *SSH, path, token string) *Forge {
	f := &Forge{t: t, sshd: s, repo: url.PathEscape(strings.TrimSuffix(strings.Trim(path, "/"), ".git")), token: token}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.URL = srv.URL
	return f
}

// Keys returns the present deploy keys.
func (f *Forge) Keys() []ForgeKey {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys)
}

// Down makes all requests fail with 503, or ends that.
func (f *Forge) Down(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *Forge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api/v4/projects/"+f.repo+"/deploy_keys")
	switch {
	case f.down:
		http.Error(w, "down", http.StatusServiceUnavailable)
	case r.Header.Get("Private-Token") != f.token:
		http.Error(w, "{}", http.StatusUnauthorized)
	case !ok:
		http.Error(w, "{}", http.StatusNotFound)
	case r.Method == http.MethodGet:
		list := []ForgeKey{}
		if p := r.URL.Query().Get("page"); p == "" || p == "1" {
			list = f.keys
		}
		_ = json.NewEncoder(w).Encode(list)
	case r.Method == http.MethodPost:
		var k ForgeKey
		if err := json.NewDecoder(r.Body).Decode(&k); err != nil {
			http.Error(w, "{}", http.StatusUnprocessableEntity)
			return
		}
		f.next++
		k.ID = f.next
		f.keys = append(f.keys, k)
		f.permit()
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(k)
	case r.Method == http.MethodDelete:
		id, _ := strconv.Atoi(strings.TrimPrefix(rest, "/"))
		f.keys = slices.DeleteFunc(f.keys, func(k ForgeKey) bool { return k.ID == id })
		f.permit()
		w.WriteHeader(http.StatusNoContent)
	}
}

// permit lets the present keys into the server.
func (f *Forge) permit() {
	var b strings.Builder
	for _, k := range f.keys {
		b.WriteString("restrict " + k.Key + "\n")
	}
	if err := os.WriteFile(filepath.Join(f.sshd.Dir, "authorized"), []byte(b.String()), 0o600); err != nil {
		f.t.Error(err)
	}
}

// Git runs git on the host, in dir, and returns its output.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(out)
}

// TryGit is like Git, and may fail.
func TryGit(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = Env(nil)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Bare makes a bare repository with one commit on main, and returns its path. args are
// arguments of git init.
func Bare(t testing.TB, path string, args ...string) string {
	t.Helper()
	work := filepath.Join(t.TempDir(), "work")
	Git(t, "/", append([]string{"init", "-q", "-b", "main", work}, args...)...)
	Write(t, filepath.Join(work, "README"), "one\ntwo\n")
	Git(t, work, "add", ".")
	Git(t, work, "commit", "-qm", "first")
	Git(t, "/", "clone", "-q", "--bare", work, path)
	for _, c := range [][2]string{{"uploadpack.allowFilter", "true"}, {"receive.advertisePushOptions", "true"}, {"http.receivepack", "true"}, {"core.hooksPath", "hooks"}} {
		Git(t, path, "config", c[0], c[1])
	}
	return path
}

// Write writes a file.
func Write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
