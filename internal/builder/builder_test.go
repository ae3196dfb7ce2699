package builder

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	backends.Main()
	Main()
	testenv.OwnMounts()
	os.Exit(m.Run())
}

// site is a directory with a user's state and a build's context.
type site struct {
	t       *testing.T
	dir     string
	b       *Builder
	context string
	said    []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	s.context = filepath.Join(s.dir, "context")
	env := map[string]string{"HOME": s.dir, "XDG_STATE_HOME": s.dir + "/state", "XDG_RUNTIME_DIR": s.dir}
	h, err := host.Open(t.Context(), host.Options{Env: func(n string) string { return env[n] }, Log: slog.New(slog.DiscardHandler)}, backends.Default())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(h.Backend.Check(t.Context()), os.Mkdir(s.context, 0o755)); err != nil {
		t.Fatal(err)
	}
	s.b = &Builder{Runs: run.New(h, review.New(h), nil)}
	t.Cleanup(func() { s.b.Runs.Close(); h.Close() })
	return s
}

// write writes files of the context.
func (s *site) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.context, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		s.t.Fatal(err)
	}
}

// build builds the Dockerfile, and keeps what was said.
func (s *site) build(text string, tune func(*Options)) (*image.Image, error) {
	s.t.Helper()
	root, err := os.OpenRoot(s.context)
	if err != nil {
		s.t.Fatal(err)
	}
	defer root.Close()
	s.said = nil
	o := Options{Context: root, File: "Dockerfile", Ignore: "Dockerfile", Text: []byte(text), Say: func(p Progress) { s.said = append(s.said, p.String()) }}
	if tune != nil {
		tune(&o)
	}
	return s.b.Build(s.t.Context(), o)
}

func (s *site) mustBuild(text string, tune func(*Options)) *image.Image {
	s.t.Helper()
	img, err := s.build(text, tune)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, strings.Join(s.said, "\n"))
	}
	return img
}

// cached returns the number of steps that were not carried out again.
func (s *site) cached() (n int) {
	for _, l := range s.said {
		if strings.HasSuffix(l, " (cached)") {
			n++
		}
	}
	return n
}

// root returns the directory of an image.
func (s *site) root(img *image.Image) string {
	return filepath.Join(s.b.Runs.StateDir(), "images", "roots", img.Root, "fs")
}

func (s *site) wants(img *image.Image, name, want string) {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.root(img), name))
	if err != nil || string(b) != want {
		s.t.Errorf("%s: %q %v, want %q", name, b, err, want)
	}
}

func (s *site) missing(img *image.Image, name string) {
	s.t.Helper()
	if _, err := os.Lstat(filepath.Join(s.root(img), name)); !errors.Is(err, fs.ErrNotExist) {
		s.t.Errorf("%s is there: %v", name, err)
	}
}

// tools is a layer with a shell, some programs and what they load.
func tools(t *testing.T, more ...any) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	add := func(h *tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "cat", "id", "chown", "mkdir", "rm", "ls", "mknod", "ln"} {
		path := testenv.Need(t, name, "apt-get install coreutils dash")
		copyProgram(t, path, "bin/"+name, made, add)
	}
	for _, h := range []*tar.Header{
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
	} {
		add(h, nil)
	}
	add(&tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nagent:x:1234:1234::/home/agent:/bin/sh\n"))
	add(&tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nagent:x:1234:\nextra:x:77:agent\n"))
	add(&tar.Header{Name: "etc/old", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("old\n"))
	add(&tar.Header{Name: "home/agent/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 1234, Gid: 1234}, nil)
	add(&tar.Header{Name: "home/agent/own", Typeflag: tar.TypeReg, Mode: 0o600, Uid: 1234, Gid: 1234}, []byte("mine\n"))
	for _, m := range more {
		switch m := m.(type) {
		case *tar.Header:
			add(m, nil)
		case string: // a program
			copyProgram(t, m, "bin/"+filepath.Base(m), made, add)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Env: []string{"BASE=here"}, Cmd: []string{"sh"}, Labels: map[string]string{"base": "1"}}})
	if err == nil {
		img, err = mutate.AppendLayers(img, l)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir
}

// copyProgram adds a program of this machine, with its loader and libraries.
func copyProgram(t *testing.T, path, as string, made map[string]bool, add func(*tar.Header, []byte)) {
	t.Helper()
	if made[as] {
		return
	}
	made[as] = true
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	add(&tar.Header{Name: as, Typeflag: tar.TypeReg, Mode: 0o755}, content)
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, _ := io.ReadAll(p.Open())
			name := strings.TrimRight(string(b), "\x00")
			copyProgram(t, name, strings.TrimPrefix(name, "/"), made, add)
		}
	}
	libs, _ := f.ImportedLibraries()
	for _, lib := range libs {
		for _, dir := range []string{"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib64/", "/usr/lib64/", "/usr/lib/"} {
			if _, err := os.Stat(dir + lib); err == nil {
				copyProgram(t, dir+lib, dir[1:]+lib, made, add)
				break
			}
		}
	}
}

// TestBuild builds an image in stages, twice, and again after changes: what depends on a
// change is carried out again, and only that.
func TestBuild(t *testing.T) {
	s := newSite(t)
	base := tools(t)
	s.write("note", "from the context\n")
	s.write("more/a", "a\n")
	if err := errors.Join(os.Mkdir(s.context+"/more/open", 0o755), os.Chmod(s.context+"/more/open", fs.ModeSticky|0o777)); err != nil {
		t.Fatal(err)
	}
	s.write("more/b/c", "c\n")
	s.write("more/secret", "s\n")
	s.write(".dockerignore", "**/secret\n")
	text := `ARG BASE
FROM ${BASE} AS made
ARG WHO=nobody
WORKDIR /work
COPY note more/ ./in/
RUN cat in/note >out && echo "for $WHO" >>out && mkdir -p /srv/app && chown agent:extra /srv/app
RUN <<EOF
rm /etc/old
echo in /tmp >/tmp/made
EOF

FROM ${BASE} AS unused
RUN false

FROM made
ENV GREETING="hi $WHO" PATH=/bin
LABEL own="2"
COPY --from=made --chown=agent --chmod=640 /work/out /srv/app/
COPY --from=made /work/in /in
USER agent
WORKDIR /srv/app
RUN id >who && cat out >>who && cat /home/agent/own >>who && echo $GREETING $HOME >>who
VOLUME /data
EXPOSE 80
ENTRYPOINT ["cat"]
CMD ["/srv/app/who"]
`
	tune := func(o *Options) { o.Args = map[string]string{"BASE": base, "WHO": "you"} }
	img := s.mustBuild(text, tune)
	if n := s.cached(); n != 0 {
		t.Errorf("%d steps of the first build are said to be there", n)
	}
	s.wants(img, "work/out", "from the context\nfor you\n")
	s.wants(img, "srv/app/who", "uid=1234(agent) gid=1234(agent) groups=1234(agent),77(extra)\nfrom the context\nfor you\nmine\nhi /home/agent\n")
	s.wants(img, "in/note", "from the context\n")
	s.wants(img, "in/b/c", "c\n")
	s.wants(img, "tmp/made", "in /tmp\n")
	for _, name := range []string{"etc/old", "in/secret", "in/more", ".carboy", "etc/resolv.conf", "proc"} {
		s.missing(img, name)
	}
	if fi, err := os.Stat(s.root(img) + "/in/open"); err != nil || fi.Mode() != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("%v %v", fi, err)
	}
	c := img.Config
	if !slices.Equal(c.Env, []string{"BASE=here", "GREETING=hi ", "PATH=/bin"}) || c.User != "agent" || c.WorkingDir != "/srv/app" || !slices.Equal(c.Entrypoint, []string{"cat"}) || !slices.Equal(c.Cmd, []string{"/srv/app/who"}) || c.Labels["base"] != "1" || c.Labels["own"] != "2" {
		t.Errorf("%+v", c)
	}
	again := s.mustBuild(text, tune)
	if s.cached() != 3 || again.Digest != img.Digest {
		t.Errorf("the same again: %d steps were there, %s\n%s", s.cached(), again.Digest, strings.Join(s.said, "\n"))
	}
	s.write("more/secret", "another\n")
	if again := s.mustBuild(text, tune); s.cached() != 3 || again.Digest != img.Digest {
		t.Errorf("a file that is left out: %d steps were there, %s", s.cached(), again.Digest)
	}
	// By name.
	named := s.mustBuild(text, func(o *Options) { tune(o); o.Name = "box" })
	if got, err := plan.PullImage(t.Context(), s.b.Runs.Host, "built:box", plan.PullOptions{}); err != nil || got.Digest != img.Digest || named.Digest != img.Digest {
		t.Errorf("by name: %v %v", got, err)
	}
	if got, err := plan.PullImage(t.Context(), s.b.Runs.Host, img.Digest, plan.PullOptions{}); err != nil || got.Root != img.Root {
		t.Errorf("by digest: %v %v", got, err)
	}
	if _, err := plan.PullImage(t.Context(), s.b.Runs.Host, "built:other", plan.PullOptions{}); err == nil || !strings.Contains(err.Error(), "nothing was built under that name") {
		t.Errorf("by a name of nothing: %v", err)
	}
	if testing.Short() {
		return
	}
	s.write("note", "changed\n")
	other := s.mustBuild(text, tune)
	s.wants(other, "work/out", "changed\nfor you\n")
	if s.cached() != 0 || other.Digest == img.Digest {
		t.Errorf("a file: %d steps were there, %s", s.cached(), other.Digest)
	}
	s.write("note", "from the context\n")
	for name, c := range map[string]struct {
		tune   func(*Options)
		cached int
	}{
		"a host":      {func(o *Options) { o.Allow = []string{"example.com"} }, 0},
		"an argument": {func(o *Options) { o.Args["WHO"] = "them" }, 0},
	} {
		other := s.mustBuild(text, func(o *Options) { tune(o); c.tune(o) })
		if s.cached() != c.cached || (other.Digest == img.Digest) != (name == "a host") {
			t.Errorf("%s: %d steps were there, %s\n%s", name, s.cached(), other.Digest, strings.Join(s.said, "\n"))
		}
	}
	if again := s.mustBuild(text, func(o *Options) { tune(o); o.NoCache = true }); s.cached() != 0 || again.Digest != img.Digest {
		t.Errorf("without what is kept: %d steps were there, %s and not %s", s.cached(), again.Digest, img.Digest)
	}
}

// TestBuildFromNothing builds without a base image, and without a bottle's command.
func TestBuildFromNothing(t *testing.T) {
	s := newSite(t)
	s.write("x", "x\n")
	img := s.mustBuild("FROM scratch\nCOPY x /only/as\nCOPY x /dir/\nCMD [\"/only/as\"]\n", nil)
	s.wants(img, "only/as", "x\n")
	s.wants(img, "dir/x", "x\n")
	all, err := os.ReadDir(s.root(img))
	if err != nil || len(all) != 2 {
		t.Errorf("%v %v", all, err)
	}
}

// TestBuildForBottle: a bottle's own Dockerfile is built in bottles where no engine is, and
// not where the user names one.
func TestBuildForBottle(t *testing.T) {
	s := newSite(t)
	s.write("Dockerfile", "FROM scratch\nCOPY x /only/x\n")
	s.write("x", "x\n")
	images, err := plan.OpenImages(s.b.Runs.Host)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"XDG_RUNTIME_DIR": s.dir}
	build := func() (*image.Image, error) {
		return images.Build(t.Context(), image.Recipe{File: s.context + "/Dockerfile"}, image.Options{Env: func(n string) string { return env[n] }, Maker: s.b}, nil)
	}
	env["DOCKER_HOST"] = "unix://" + s.dir + "/none"
	if _, err := build(); err == nil || !strings.Contains(err.Error(), "nothing is here to build it") {
		t.Errorf("with an engine that is not there: %v", err)
	}
	delete(env, "DOCKER_HOST")
	img, err := build()
	if err != nil {
		t.Fatal(err)
	}
	s.wants(img, "only/x", "x\n")
	s.missing(img, "only/Dockerfile")
	again, err := build()
	if err != nil || again.Digest != img.Digest || again.Ref != "dockerfile:"+s.context+"/Dockerfile" {
		t.Errorf("again: %v %v", again, err)
	}
}

// TestBuildFails names the instruction, its last lines and what would help.
func TestBuildFails(t *testing.T) {
	s := newSite(t)
	s.write("x", "x\n")
	s.write("x.tar", "\x1f\x8bzip")
	s.write("plain", "\x1f\x8bzip")
	base := tools(t)
	for text, want := range map[string]string{
		"RUN echo to be seen >&2; echo \x1b[2Jtoo >&2; exit 3": "Dockerfile:2: RUN echo to be seen >&2; echo \\x1b[2Jtoo >&2; exit 3: ended with code 3; its last lines: to be seen | \\x1b[2Jtoo",
		"COPY nothing /":               "Dockerfile:2: COPY: \"nothing\"",
		"COPY no* /":                   "nothing is called",
		"COPY x x.tar /etc/passwd":     "must be a directory",
		"COPY --chown=nobody x /y":     "Dockerfile:2: COPY: the image has no user \"nobody\"",
		"COPY --chmod=u+x x /y":        "is not a mode",
		"COPY --from=nope x /y":        "--from=nope is no earlier stage",
		"COPY x /etc":                  "",
		"COPY x /etc/passwd/y":         "Dockerfile:2: COPY: ",
		"ADD plain /":                  "is an archive",
		"RUN [\"/none\"]":              "not found in the image",
		"USER other\nRUN id":           "the image has no user \"other\"",
		"ENV A=\"${B?is needed}\"":     "B is not set: is needed",
		"RUN --mount=type=cache id":    "the Docker Engine and BuildKit can",
		"FROM --platform=linux/s390 x": "is for the platform linux/s390",
		"RUN echo >/etc/.wh.passwd":    "can't be in an image",
	} {
		_, err := s.build("FROM "+base+"\n"+text+"\n", nil)
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := s.build("FROM scratch\nARG A\n", func(o *Options) { o.Args = map[string]string{"B": "1"} }); err == nil || !strings.Contains(err.Error(), "--build-arg B") {
		t.Errorf("an argument of nothing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.b.Build(ctx, Options{File: "D", Text: []byte("FROM " + base + "\nRUN id\n")}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestBuildContained: what a Dockerfile, its files and its base image say stays in the
// bottle. The control is the same step on what belongs to it.
func TestBuildContained(t *testing.T) {
	s := newSite(t)
	var b [16]byte
	rand.Read(b[:])
	token := hex.EncodeToString(b[:])
	secret := filepath.Join(s.dir, "secret")
	if err := os.WriteFile(secret, []byte(token), 0o644); err != nil {
		t.Fatal(err)
	}
	base := tools(t,
		&tar.Header{Name: s.dir[1:] + "/", Typeflag: tar.TypeDir, Mode: 0o755},
		&tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: s.dir},
		&tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("../", 20) + s.dir[1:]},
		&tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666},
	)
	s.write("x", "x\n")
	for name, to := range map[string]string{"absolute": secret, "relative": "../secret", "dir": "..", "inner": "x"} {
		if err := os.Symlink(to, filepath.Join(s.context, name)); err != nil {
			t.Fatal(err)
		}
	}
	// The context ends at its directory.
	for _, source := range []string{"absolute", "relative", "dir/secret", "../secret", "dir", "d*/secret"} {
		img, err := s.build("FROM scratch\nCOPY "+source+" /taken\n", nil)
		if err == nil {
			filepath.WalkDir(s.root(img), func(path string, d fs.DirEntry, err error) error {
				if got, _ := os.ReadFile(path); strings.Contains(string(got), token) {
					t.Errorf("COPY %s brought in %s", source, path)
				}
				return nil
			})
		}
	}
	s.wants(s.mustBuild("FROM scratch\nCOPY inner /taken\n", nil), "taken", "x\n")
	if err := unix.Mkfifo(filepath.Join(s.context, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.build("FROM scratch\nCOPY . /\n", nil); err == nil || !strings.Contains(err.Error(), "neither a file") {
		t.Errorf("a pipe: %v", err)
	}
	// An image's links lead into the image, and RUN sees nothing else.
	img := s.mustBuild("FROM "+base+"\nCOPY x /out/written\nCOPY x /up/written2\nRUN cat "+secret+" >/found; ls / /dev /proc/self/root "+s.dir+" >>/found; mknod /etc/sda b 8 0; echo control >/control; true\n", nil)
	for _, name := range []string{"written", "written2"} {
		if _, err := os.Lstat(filepath.Join(s.dir, name)); err == nil {
			t.Errorf("%s was written on the host", name)
		}
		s.wants(img, filepath.Join(s.dir[1:], name), "x\n")
	}
	s.wants(img, "control", "control\n")
	found, err := os.ReadFile(filepath.Join(s.root(img), "found"))
	if err != nil || strings.Contains(string(found), token) || strings.Contains(string(found), "secret") {
		t.Errorf("RUN found %q %v", found, err)
	}
	s.missing(img, "etc/sda")
	s.missing(img, "dev/sda")
}

// TestBuildNetwork: RUN reaches no host by default, and the error says which flag would open
// it. The control is a host that is allowed.
func TestBuildNetwork(t *testing.T) {
	curl := testenv.Need(t, "curl", "apt-get install curl")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fetched\n") }))
	defer server.Close()
	s := newSite(t)
	h := s.b.Runs.Host
	h.Opened.Resolver = fixed{}
	h.Opened.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}
	base := tools(t, curl)
	text := "FROM " + base + "\nRUN curl -sSf http://files.example.com/x >/got\n"
	_, err := s.build(text, nil)
	if err == nil || !strings.Contains(err.Error(), "files.example.com: name refused: no --allow names it") {
		t.Errorf("closed: %v", err)
	}
	if !testing.Short() {
		if _, err := s.build(text, func(o *Options) { o.Allow = []string{"other.example.com"} }); err == nil {
			t.Error("another host opens it")
		}
	}
	s.wants(s.mustBuild(text, func(o *Options) { o.Allow = []string{"files.example.com"} }), "got", "fetched\n")
}

// fixed resolves every name to one public address.
type fixed struct{}

func (fixed) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// TestLayer: what comes out of a bottle is cleaned, and what an image can't hold is refused.
func TestLayer(t *testing.T) {
	stream := func(hs ...tar.Header) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range hs {
			h.Format = tar.FormatPAX
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			w.Write(make([]byte, h.Size))
		}
		w.Close()
		return &b
	}
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4755, Size: 3}
	}
	list := func(in io.Reader) (string, error) {
		var b bytes.Buffer
		if _, err := layer(t.Context(), in, &b, 100); err != nil {
			return "", err
		}
		var names []string
		for r := tar.NewReader(&b); ; {
			h, err := r.Next()
			if err != nil {
				return strings.Join(names, " "), nil
			}
			if h.ModTime.After(Epoch) {
				t.Errorf("%s: %v", h.Name, h.ModTime)
			}
			names = append(names, h.Name)
		}
	}
	opaque := dir("./d/")
	opaque.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	for _, c := range []struct {
		in         io.Reader
		want, fail string
	}{
		{stream(dir("./"), dir("./a/"), file("./a/b")), "a/ a/b", ""},
		{stream(file("../../x"), file("./a/../../y")), "x y", ""},
		{stream(tar.Header{Name: "./gone", Typeflag: tar.TypeChar}, tar.Header{Name: "./a/gone", Typeflag: tar.TypeChar}), ".wh.gone a/.wh.gone", ""},
		{stream(opaque), "d/ d/.wh..wh..opq", ""},
		{stream(file("./.carboy/x"), file("./proc/x"), file("./etc/hosts"), dir("./tmp/.carboy/"), file("./k")), "k", ""},
		{stream(file("./a"), tar.Header{Name: "./b", Typeflag: tar.TypeLink, Linkname: "./a"}), "a b", ""},
		{stream(tar.Header{Name: "./p", Typeflag: tar.TypeFifo}, file("./k")), "k", ""},
		{stream(tar.Header{Name: "./b", Typeflag: tar.TypeLink, Linkname: "../../etc/shadow"}), "", "which is not there"},
		{stream(file("./a/.wh.b")), "", "can't be in an image"},
		{stream(tar.Header{Name: "./sda", Typeflag: tar.TypeBlock, Devmajor: 8}), "", "unknown type"},
		{stream(tar.Header{Name: "./null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}), "", "is a device"},
		{stream(tar.Header{Name: "./big", Typeflag: tar.TypeReg, Size: 101}), "", "more than an image may hold"},
	} {
		got, err := list(c.in)
		if got != c.want || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%q %v, want %q %q", got, err, c.want, c.fail)
		}
	}
}

func TestAccounts(t *testing.T) {
	users := [][]string{{"root", "x", "0", "0", "", "/root", ""}, {"agent", "x", "7", "8", "", "/home/agent", ""}, {"bad", "x", "-1", "8", "", "/", ""}}
	groups := [][]string{{"root", "x", "0", ""}, {"more", "x", "9", "other,agent"}}
	for spec, want := range map[string]account{
		"":           {home: "/root"},
		"0":          {home: "/root"},
		"agent":      {uid: 7, gid: 8, home: "/home/agent", groups: []int{9}},
		"7":          {uid: 7, gid: 8, home: "/home/agent", groups: []int{9}},
		"7:more":     {uid: 7, gid: 9, home: "/home/agent"},
		"55:66":      {uid: 55, gid: 66, home: "/"},
		"agent:root": {uid: 7, home: "/home/agent"},
	} {
		got, err := find(spec, users, groups)
		if err != nil || got.uid != want.uid || got.gid != want.gid || got.home != want.home || !slices.Equal(got.groups, want.groups) {
			t.Errorf("%q: %+v %v", spec, got, err)
		}
	}
	for _, spec := range []string{"none", "agent:none", "bad", "-1", "4294967295"} {
		if got, err := find(spec, users, groups); err == nil {
			t.Errorf("%q: %+v", spec, got)
		}
	}
}
