package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/carboy/carboy/internal/testenv"
)

// kitchen holds a directory with a Dockerfile and other files, the home that it lies in,
// and a repository.
func kitchen(t *testing.T) (r Recipe, dir string) {
	t.Helper()
	home := t.TempDir()
	dir = filepath.Join(home, "boxes", "box")
	repo := filepath.Join(home, "repo")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Mkdir(repo, 0o755), os.WriteFile(dir+"/Dockerfile", []byte("FROM scratch\nCOPY . /x/\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	return Recipe{File: dir + "/Dockerfile", Repo: repo, Home: home}, dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestWhoseDockerfile: what a Dockerfile says is carried out outside of any bottle, so
// nobody but the user may have written it or what is beside it.
func TestWhoseDockerfile(t *testing.T) {
	for name, x := range map[string]struct {
		change func(t *testing.T, r *Recipe, dir string)
		want   string // empty: allowed
	}{
		"the user's own":       {func(*testing.T, *Recipe, string) {}, ""},
		"without a repository": {func(_ *testing.T, r *Recipe, _ string) { r.Repo = "" }, ""},
		"through a link of the user's": {func(t *testing.T, r *Recipe, dir string) {
			os.Symlink(dir, r.Home+"/link")
			r.File = r.Home + "/link/Dockerfile"
		}, ""},
		"beside the repository": {func(t *testing.T, r *Recipe, _ string) {
			put(t, r.Repo+"-not/Dockerfile", "FROM x")
			r.File = r.Repo + "-not/Dockerfile"
		}, ""},
		"in the repository": {func(t *testing.T, r *Recipe, _ string) {
			put(t, r.Repo+"/Dockerfile", "FROM x")
			r.File = r.Repo + "/Dockerfile"
		}, "an agent may have written it"},
		"deep in the repository": {func(t *testing.T, r *Recipe, _ string) {
			put(t, r.Repo+"/a/b/Dockerfile", "FROM x")
			r.File = r.Repo + "/a/b/Dockerfile"
		}, "an agent may have written it"},
		"a link into the repository": {func(t *testing.T, r *Recipe, dir string) {
			put(t, r.Repo+"/Dockerfile", "FROM x")
			os.Remove(r.File)
			os.Symlink(r.Repo+"/Dockerfile", r.File)
		}, "an agent may have written it"},
		"a linked directory": {func(t *testing.T, r *Recipe, dir string) {
			put(t, r.Repo+"/d/Dockerfile", "FROM x")
			os.Symlink(r.Repo+"/d", r.Home+"/link")
			r.File = r.Home + "/link/Dockerfile"
		}, "an agent may have written it"},
		"the repository beside it": {func(t *testing.T, r *Recipe, dir string) { r.Repo = dir + "/work"; os.Mkdir(r.Repo, 0o755) }, "an agent may have written it"},
		"a repository behind a link": {func(t *testing.T, r *Recipe, dir string) {
			os.Symlink(filepath.Dir(dir), r.Home+"/here")
			r.Repo = r.Home + "/here"
		}, "an agent may have written it"},
		"the home itself": {func(t *testing.T, r *Recipe, _ string) {
			put(t, r.Home+"/Dockerfile", "FROM x")
			r.File, r.Repo = r.Home+"/Dockerfile", ""
		}, "your home itself"},
		"others can write it":           {func(t *testing.T, r *Recipe, _ string) { os.Chmod(r.File, 0o666) }, "can be written to by others"},
		"others can write beside it":    {func(t *testing.T, r *Recipe, dir string) { os.Chmod(dir, 0o777) }, "can be written to by others"},
		"the group can write beside it": {func(t *testing.T, r *Recipe, dir string) { os.Chmod(dir, 0o775) }, "can be written to by others"},
		"a directory":                   {func(t *testing.T, r *Recipe, dir string) { os.Remove(r.File); os.Mkdir(r.File, 0o755) }, "not a regular file"},
		"a pipe":                        {func(t *testing.T, r *Recipe, dir string) { os.Remove(r.File); unix.Mkfifo(r.File, 0o600) }, "not a regular file"},
		"nothing":                       {func(t *testing.T, r *Recipe, dir string) { os.Remove(r.File) }, "no such file"},
		"by a name that is not whole":   {func(t *testing.T, r *Recipe, dir string) { r.File = "Dockerfile" }, "whole path"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dir := kitchen(t)
			x.change(t, &r, dir)
			err := r.Check()
			if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
	if os.Geteuid() == 0 {
		r, _ := kitchen(t)
		os.Chown(r.File, 1, 1)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), "can be written to by others") {
			t.Errorf("another user's: %v", err)
		}
	}
}

// sent is a context as an engine finds it.
func sent(t *testing.T, r Recipe) (names []string, sum [32]byte, err error) {
	t.Helper()
	root, name, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var b bytes.Buffer
	if sum, err = writeContext(t.Context(), &b, root, name); err != nil {
		return nil, sum, err
	}
	for in := tar.NewReader(&b); ; {
		h, err := in.Next()
		if err == io.EOF {
			return names, sum, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s says who owns it here", h.Name)
		}
		names = append(names, h.Name)
	}
}

func TestContext(t *testing.T) {
	r, dir := kitchen(t)
	put(t, dir+"/a/one", "1")
	put(t, dir+"/a/two", "2")
	put(t, dir+"/secret.env", "x")
	os.Symlink("/etc/passwd", dir+"/link")
	names, first, err := sent(t, r)
	if want := []string{"./", "Dockerfile", "a/", "a/one", "a/two", "link", "secret.env"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	differs := func(what string, want bool) {
		t.Helper()
		_, now, err := sent(t, r)
		if err != nil || (now != first) != want {
			t.Errorf("%s: the sum differs: %v, want %v (%v)", what, now != first, want, err)
		}
		first = now
	}
	os.Chtimes(dir+"/a/one", time.Now(), time.Now().Add(-time.Hour))
	differs("another time", false)
	os.Chmod(dir+"/a/one", 0o755)
	differs("another mode", true)
	put(t, dir+"/a/two", "3")
	differs("another content", true)
	os.Remove(dir + "/link")
	os.Symlink("/etc/shadow", dir+"/link")
	differs("another link", true)
	os.Rename(dir+"/a/two", dir+"/a/three")
	differs("another name", true)
	put(t, dir+"/.dockerignore", "*.env\na\n!a/one\nDockerfile\n")
	names, _, err = sent(t, r)
	if want := []string{"./", ".dockerignore", "Dockerfile", "a/one", "link"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("with .dockerignore: %q, %v", names, err)
	}
	put(t, dir+"/.dockerignore", "a\n")
	os.Chmod(dir+"/a", 0)
	if names, _, err = sent(t, r); err != nil || slices.Contains(names, "a/") {
		t.Errorf("what is left out is read: %q %v", names, err)
	}
	os.Chmod(dir+"/a", 0o755)
	put(t, dir+"/Dockerfile.dockerignore", "link\n")
	if names, _, err = sent(t, r); err != nil || slices.Contains(names, "link") || !slices.Contains(names, "a/") {
		t.Errorf("the Dockerfile's own: %q %v", names, err)
	}
	unix.Mkfifo(dir+"/pipe", 0o600)
	if _, _, err = sent(t, r); err == nil || !strings.Contains(err.Error(), "pipe is neither a file") {
		t.Errorf("a pipe: %v", err)
	}
	os.Remove(dir + "/pipe")
	put(t, dir+"/.dockerignore", "[\n")
	os.Remove(dir + "/Dockerfile.dockerignore")
	if _, _, err = sent(t, r); err == nil {
		t.Error("a .dockerignore that can't be read is passed over")
	}
}

// standIn is an engine of which the test says what it answers.
type standIn struct {
	path string
	mu   sync.Mutex
	// answer returns the engine's reply to a build, by the builder's version.
	answer map[string]string
	asked  []string // versions
	ctx    int      // bytes of the last context
	export []byte
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{path: dir + "/sock", answer: map[string]string{}}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }() // ends with the test
	t.Cleanup(func() { srv.Close(); <-done; os.RemoveAll(dir) })
	return s
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.URL.Path == "/_ping":
	case r.URL.Path == "/build" && r.Method == "POST":
		v := r.URL.Query().Get("version")
		s.asked = append(s.asked, v)
		b, _ := io.ReadAll(r.Body)
		s.ctx = len(b)
		for name := range r.Header {
			if strings.HasPrefix(name, "X-Registry") {
				http.Error(w, "credentials were sent", 500)
			}
		}
		if r.URL.Query().Has("buildargs") || r.URL.Query().Has("secrets") {
			http.Error(w, "variables were sent", 500)
		}
		io.WriteString(w, s.answer[v])
	case strings.HasSuffix(r.URL.Path, "/get"):
		w.Write(s.export)
	default:
		http.Error(w, `{"message":"no such page"}`, 404)
	}
}

func (s *standIn) env(name string) string {
	if name == "DOCKER_HOST" {
		return "unix://" + s.path
	}
	return ""
}

// saved returns docker save's output for a small image.
func saved(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "made", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
	io.WriteString(w, text)
	w.Close()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH})
	if err == nil {
		img, err = mutate.AppendLayers(img, l)
	}
	var out bytes.Buffer
	if err == nil {
		err = tarball.Write(nil, img, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

const (
	made    = `{"stream":"Step 1/1 : FROM scratch\n"}` + "\n" + `{"aux":{"ID":"sha256:1234"}}` + "\n" + `{"stream":"Successfully built 1234\n"}` + "\n"
	onlyKit = `{"errorDetail":{"message":"the --mount option requires BuildKit"},"error":"the --mount option requires BuildKit"}` + "\n"
)

// TestBuild: an image is built once for the same Dockerfile and the same files, and
// kept as any other.
func TestBuild(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	e := newStandIn(t)
	e.answer["1"], e.export = made, saved(t, "first")
	r, dir := kitchen(t)
	var said []string
	build := func() (*Image, error) {
		said = nil
		return s.Build(t.Context(), r, Options{Env: e.env}, func(l string) { said = append(said, l) })
	}
	img, err := build()
	if err != nil || img.Ref != "dockerfile:"+r.File || !slices.Equal(said, []string{"Step 1/1 : FROM scratch", "Successfully built 1234"}) {
		t.Fatalf("%+v %v %q", img, err, said)
	}
	if b, err := os.ReadFile(s.path("roots", img.Root, "fs", "made")); err != nil || string(b) != "first" {
		t.Errorf("%q %v", b, err)
	}
	if all, err := s.List(); err != nil || len(all) != 1 || all[0].Ref != img.Ref {
		t.Errorf("%+v %v", all, err)
	}
	e.export = saved(t, "second")
	if again, err := build(); err != nil || again.Digest != img.Digest || len(e.asked) != 1 {
		t.Errorf("the same was built again: %v %v %v", again, err, e.asked)
	}
	put(t, dir+"/new", "x")
	if again, err := build(); err != nil || again.Digest == img.Digest || len(e.asked) != 2 {
		t.Errorf("after a change it was not built: %v %v %v", again, err, e.asked)
	}
	// By its digest it is found without an engine.
	if got, err := s.Pull(t.Context(), r.Ref(), Options{Pin: img.Digest}); err != nil || got.Root != img.Root || got.Ref != r.Ref() {
		t.Errorf("%+v %v", got, err)
	}
	os.Remove(dir + "/new")
	if err := s.Remove(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := build(); err != nil || len(e.asked) != 3 {
		t.Errorf("what was removed was not built again: %v %v", err, e.asked)
	}
	if left, _ := os.ReadDir(s.path("builds", "tmp")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestEngineWords: only a build that says that it made something has; the newer builder
// is asked where the older one can't read a Dockerfile, and only there.
func TestEngineWords(t *testing.T) {
	kit := func(step string) string {
		vertex := protowire.AppendBytes(protowire.AppendTag(nil, 3, protowire.BytesType), []byte(step))
		vertex = protowire.AppendBytes(protowire.AppendTag(vertex, 5, protowire.BytesType), []byte{8, 1})
		log := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), []byte("of a program\n"))
		msg := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), vertex)
		msg = protowire.AppendBytes(protowire.AppendTag(msg, 3, protowire.BytesType), log)
		b, _ := json.Marshal(map[string]any{"id": "moby.buildkit.trace", "aux": msg})
		return string(b) + "\n"
	}
	for name, x := range map[string]struct {
		one, two string
		want     string // of the error; empty: none
		asked    string
		said     string
	}{
		"built":                 {one: made, asked: "1", said: "Successfully built"},
		"by BuildKit":           {one: onlyKit, two: kit("[1/2] COPY") + kit("[1/2] COPY") + kit("[internal] x") + `{"id":"moby.image.id","aux":{"ID":"sha256:12"}}`, asked: "1 2", said: "[1/2] COPY"},
		"by neither":            {one: onlyKit, two: kit("[1/2] RUN") + `{"error":"exit code: 3"}`, want: "exit code: 3; it said last: of a program", asked: "1 2"},
		"a failed step":         {one: `{"stream":"compiling\n"}` + "\n" + `{"error":"returned a non-zero code: 1"}`, want: "non-zero code: 1; it said last: compiling", asked: "1"},
		"failed after its id":   {one: made + `{"error":"no space left"}`, want: "no space left", asked: "1"},
		"nothing":               {one: "", want: "stopped before it had built anything", asked: "1"},
		"cut off":               {one: made[:20], want: "no message", asked: "1"},
		"no id":                 {one: `{"stream":"Successfully built 12"}`, want: "stopped before", asked: "1"},
		"an empty id":           {one: `{"aux":{"ID":""}}`, want: "stopped before", asked: "1"},
		"no messages":           {one: "<html>", want: "no message", asked: "1"},
		"a message without end": {one: `{"stream":"` + strings.Repeat("x", 3*maxEngineLine), want: "more than", asked: "1"},
		"what is no trace":      {one: onlyKit, two: `{"id":"moby.buildkit.trace","aux":"CgH/////"}` + "\n" + `{"id":"moby.buildkit.trace","aux":7}` + "\n", want: "stopped before", asked: "1 2"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newStandIn(t)
			e.answer["1"], e.answer["2"] = x.one, x.two
			eng, err := findEngine(t.Context(), e.env)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			err = eng.build(t.Context(), strings.NewReader("context"), "Dockerfile", "x:y", func(s string) { said = append(said, s) })
			if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want %q", err, x.want)
			}
			if got := strings.Join(e.asked, " "); got != x.asked || e.ctx != len("context") {
				t.Errorf("asked the builders %s with %d bytes, want %s", got, e.ctx, x.asked)
			}
			n := 0
			for _, s := range said {
				if strings.HasPrefix(s, x.said) {
					n++
				}
			}
			if x.said != "" && n != 1 {
				t.Errorf("it said %q", said)
			}
		})
	}
}

// TestNoEngine: an error that says what to do, whatever stands where an engine should.
func TestNoEngine(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/file", "x")
	for host, want := range map[string]string{
		"unix://" + dir + "/none": "apt-get install docker.io",
		"unix://" + dir + "/file": "apt-get install docker.io",
		"tcp://127.0.0.1:2375":    "only sockets of this machine",
		"ssh://somebody@example":  "only sockets of this machine",
	} {
		for _, variable := range []string{"DOCKER_HOST", "BUILDKIT_HOST"} {
			env := func(name string) string { return map[string]string{variable: host}[name] }
			if _, err := findBuilder(t.Context(), env, ""); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s=%s: %v", variable, host, err)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := findEngine(ctx, newStandIn(t).env); err == nil {
		t.Error("an engine was asked though nobody waits")
	}
}

// TestEngineOfAnother: who listens decides what is built, so it is root or the user.
func TestEngineOfAnother(t *testing.T) {
	testenv.Root(t)
	dir, err := os.MkdirTemp("", "engine-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o777)
	listening := make(chan error)
	done := make(chan struct{})
	go func() {
		// The thread is another user's for good, so it ends with this goroutine.
		runtime.LockOSThread()
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 12345, 12345, 12345)
		if errno != 0 {
			listening <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/sock"}), unix.Listen(fd, 1))
		}
		listening <- err
		<-done
		unix.Close(fd)
	}()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	defer close(done)
	env := func(string) string { return "unix://" + dir + "/sock" }
	if _, err := findBuilder(t.Context(), env, ""); err == nil || strings.Count(err.Error(), "belongs to user 12345") != 2 {
		t.Error(err)
	}
}

// TestSpreadStaysInside: a context is written below its directory, whatever is in it.
func TestSpreadStaysInside(t *testing.T) {
	for name, hostile := range map[string]*tar.Header{
		"up":        {Name: "../out", Typeflag: tar.TypeReg},
		"absolute":  {Name: "/out", Typeflag: tar.TypeReg},
		"by a link": {Name: "link/out", Typeflag: tar.TypeReg},
		"a device":  {Name: "out", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		"hard link": {Name: "out", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
	} {
		dir := t.TempDir()
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range []*tar.Header{
			{Name: "link", Typeflag: tar.TypeSymlink, Linkname: dir},
			{Name: "deep/er/file", Typeflag: tar.TypeReg, Mode: 0o640},
			hostile,
		} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if err := spread(t.Context(), &b, dir+"/context"); err == nil {
			t.Errorf("%s: it was taken", name)
		}
		if _, err := os.Lstat(dir + "/out"); err == nil {
			t.Errorf("%s: it lies outside", name)
		}
		if fi, err := os.Stat(dir + "/context/deep/er/file"); err != nil || fi.Mode() != 0o640 {
			t.Errorf("%s: what came before is not there: %v", name, err)
		}
	}
}
