package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// e is an entry of a layer.
type e struct {
	name string
	kind byte   // 0: what the name says: a directory ends in /
	body string // of a file; the target of a link
	mode int64
}

func packed(t *testing.T, entries ...e) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, x := range entries {
		h := &tar.Header{Name: x.name, Typeflag: x.kind, Mode: x.mode, Format: tar.FormatPAX}
		switch {
		case x.kind == 0 && strings.HasSuffix(x.name, "/"):
			h.Typeflag = tar.TypeDir
		case x.kind == 0:
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(x.body))
		} else {
			h.Linkname = x.body
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, x.body)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layerOf(t *testing.T, raw []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func imageOf(t *testing.T, layers ...[]e) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: platform.Architecture, OS: "linux", Config: v1.Config{Env: []string{"A=b"}, Cmd: []string{"/bin/agent"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, entries := range layers {
		if img, err = mutate.AppendLayers(img, layerOf(t, packed(t, entries...))); err != nil {
			t.Fatal(err)
		}
	}
	return img
}

func layoutOf(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{refName: "thing:1"})); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tree shows a directory: what it holds, by path.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		switch d.Type() {
		case fs.ModeDir:
			m[rel] = "/"
		case fs.ModeSymlink:
			to, err := os.Readlink(p)
			m[rel] = "-> " + to
			return err
		case 0:
			b, err := os.ReadFile(p)
			m[rel] = string(b)
			return err
		default:
			m[rel] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func pulled(t *testing.T, s *Store, ref string, o Options) (*Image, map[string]string) {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Use(t.Context(), img)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return img, tree(t, r.Dir)
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, k := range slices.Sorted(func(yield func(string) bool) {
		for k := range got {
			if _, ok := want[k]; !ok && !yield(k) {
				return
			}
		}
		for k := range want {
			if !yield(k) {
				return
			}
		}
	}) {
		if got[k] != want[k] {
			t.Errorf("%s: %q, want %q", k, got[k], want[k])
		}
	}
}

// Layers lie over each other as the OCI image specification says.
func TestLayers(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers [][]e
		want   map[string]string
	}{
		{"plain", [][]e{{{name: "usr/"}, {name: "usr/bin/tool", body: "x"}}}, map[string]string{"usr": "/", "usr/bin": "/", "usr/bin/tool": "x"}},
		{"over", [][]e{{{name: "a", body: "1"}}, {{name: "a", body: "2"}}}, map[string]string{"a": "2"}},
		{"file over directory", [][]e{{{name: "a/b/c", body: "1"}}, {{name: "a", body: "2"}}}, map[string]string{"a": "2"}},
		{"directory over file", [][]e{{{name: "a", body: "1"}}, {{name: "a/"}, {name: "a/b", body: "2"}}}, map[string]string{"a": "/", "a/b": "2"}},
		{"directory over link", [][]e{{{name: "d/"}, {name: "a", kind: tar.TypeSymlink, body: "d"}}, {{name: "a/"}, {name: "a/b", body: "2"}}}, map[string]string{"d": "/", "a": "/", "a/b": "2"}},
		{"through an absolute link", [][]e{{{name: "run/"}, {name: "var/run", kind: tar.TypeSymlink, body: "/run"}}, {{name: "var/run/x", body: "1"}}}, map[string]string{"run": "/", "run/x": "1", "var": "/", "var/run": "-> /run"}},
		{"through a link that goes up", [][]e{{{name: "run/"}, {name: "var/run", kind: tar.TypeSymlink, body: "../../../../run"}}, {{name: "var/run/x", body: "1"}}}, map[string]string{"run": "/", "run/x": "1", "var": "/", "var/run": "-> ../../../../run"}},
		{"hard link", [][]e{{{name: "a", body: "1"}, {name: "b", kind: tar.TypeLink, body: "a"}}}, map[string]string{"a": "1", "b": "1"}},
		{"hard link, absolute, to a lower layer", [][]e{{{name: "d/a", body: "1"}}, {{name: "b", kind: tar.TypeLink, body: "/d/a"}}}, map[string]string{"d": "/", "d/a": "1", "b": "1"}},
		{"hard link to itself", [][]e{{{name: "a", body: "1"}, {name: "a", kind: tar.TypeLink, body: "a"}}}, map[string]string{"a": "1"}},
		{"whiteout", [][]e{{{name: "d/a", body: "1"}, {name: "d/b", body: "1"}}, {{name: "d/.wh.a"}}}, map[string]string{"d": "/", "d/b": "1"}},
		{"whiteout of a directory", [][]e{{{name: "d/a", body: "1"}}, {{name: ".wh.d"}}}, map[string]string{}},
		{"whiteout hides no own", [][]e{{{name: "a", body: "1"}}, {{name: "a", body: "2"}, {name: ".wh.a"}}}, map[string]string{"a": "2"}},
		{"whiteout of a directory that is made anew", [][]e{{{name: "d/old", body: "1"}}, {{name: "d/"}, {name: "d/new", body: "2"}, {name: ".wh.d"}}}, map[string]string{"d": "/", "d/new": "2"}},
		{"whiteout of the first name of an own link", [][]e{{{name: "a", body: "1"}}, {{name: "b", kind: tar.TypeLink, body: "a"}, {name: ".wh.a"}}}, map[string]string{"b": "1"}},
		{"whiteout of what is not there", [][]e{{{name: "a", body: "1"}}, {{name: ".wh.b"}, {name: "x/.wh.c"}}}, map[string]string{"a": "1"}},
		{"opaque", [][]e{{{name: "d/old", body: "1"}, {name: "d/e/old", body: "1"}}, {{name: "d/"}, {name: "d/new", body: "2"}, {name: "d/.wh..wh..opq"}}}, map[string]string{"d": "/", "d/new": "2"}},
		{"opaque first", [][]e{{{name: "d/old", body: "1"}}, {{name: "d/.wh..wh..opq"}, {name: "d/new", body: "2"}}}, map[string]string{"d": "/", "d/new": "2"}},
		{"notes of aufs", [][]e{{{name: "a", body: "1"}}, {{name: ".wh..wh.plnk/"}, {name: ".wh..wh.aufs"}}}, map[string]string{"a": "1"}},
		{"the root", [][]e{{{name: "./"}, {name: "./a", body: "1"}, {name: "/b", body: "2"}}}, map[string]string{"a": "1", "b": "2"}},
		{"a link to nothing", [][]e{{{name: "a", kind: tar.TypeSymlink, body: "/no/where"}}}, map[string]string{"a": "-> /no/where"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, got := pulled(t, newStore(t), layoutOf(t, imageOf(t, c.layers...)), Options{})
			same(t, got, c.want)
		})
	}
}

// What a layer must not do, beside the nearest thing that it may. Whatever happens,
// nothing outside of the store is touched.
func TestHostileLayers(t *testing.T) {
	long := strings.Repeat("d/", 2000) + "f"
	for _, c := range []struct {
		name   string
		bad    [][]e
		said   string // "": it is harmless, and in want
		want   map[string]string
		nearby [][]e
	}{
		{"upwards", [][]e{{{name: "../../outside", body: "x"}}}, "leads out", nil, [][]e{{{name: "..outside", body: "x"}}}},
		{"upwards in the middle", [][]e{{{name: "a/../../outside", body: "x"}}}, "leads out", nil, [][]e{{{name: "a/..b/outside", body: "x"}}}},
		{"absolute", [][]e{{{name: "/OUTSIDE/file", body: "x"}}}, "", nil, nil},
		{"through a link to the outside", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE"}, {name: "l/file", body: "x"}}}, "directory", nil, [][]e{{{name: "in/"}, {name: "l", kind: tar.TypeSymlink, body: "/in"}, {name: "l/file", body: "x"}}}},
		{"through a link of a lower layer", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE"}}, {{name: "l/file", body: "x"}}}, "directory", nil, nil},
		{"through a magic link", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "/proc/self/cwd"}, {name: "l/file", body: "x"}}}, "directory", nil, nil},
		{"link in the place of a file that is written", [][]e{{{name: "f", kind: tar.TypeSymlink, body: "OUTSIDE/victim"}, {name: "f", body: "x"}}}, "", map[string]string{"f": "x"}, nil},
		{"hard link to the outside", [][]e{{{name: "h", kind: tar.TypeLink, body: "OUTSIDE/victim"}}}, "links to", nil, [][]e{{{name: "a", body: "1"}, {name: "h", kind: tar.TypeLink, body: "a"}}}},
		{"hard link upwards", [][]e{{{name: "h", kind: tar.TypeLink, body: "../../../../../../../../../../../../etc/passwd"}}}, "links to", nil, nil},
		{"hard link through a link", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE"}, {name: "h", kind: tar.TypeLink, body: "l/victim"}}}, "links to", nil, nil},
		{"hard link to a link, then written", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE/victim"}, {name: "h", kind: tar.TypeLink, body: "l"}, {name: "h", body: "x"}}}, "", map[string]string{"h": "x"}, nil},
		{"hard link to a directory", [][]e{{{name: "d/"}, {name: "h", kind: tar.TypeLink, body: "d"}}}, "no file", nil, nil},
		{"hard link to the root", [][]e{{{name: "h", kind: tar.TypeLink, body: "/"}}}, "has a name", nil, nil},
		{"whiteout of the directory", [][]e{{{name: "a/b", body: "1"}}, {{name: "a/.wh.."}}}, "not its own", nil, [][]e{{{name: "a/b", body: "1"}}, {{name: "a/.wh.b"}}}},
		{"whiteout of what is above", [][]e{{{name: "a/b", body: "1"}}, {{name: ".wh..."}}}, "not its own", nil, [][]e{{{name: "a/b", body: "1"}}, {{name: ".wh....."}}}},
		{"whiteout of nothing", [][]e{{{name: ".wh."}}}, "not its own", nil, nil},
		{"whiteout through a link", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE"}}, {{name: "l/.wh.victim"}}}, "", map[string]string{"l": "-> OUTSIDE"}, nil},
		{"opaque through a link", [][]e{{{name: "l", kind: tar.TypeSymlink, body: "OUTSIDE"}}, {{name: "l/.wh..wh..opq"}}}, "", map[string]string{"l": "-> OUTSIDE"}, nil},
		{"device", [][]e{{{name: "dev/sda", kind: tar.TypeBlock}, {name: "dev/mem", kind: tar.TypeChar}, {name: "p", kind: tar.TypeFifo}, {name: "a", body: "1"}}}, "", map[string]string{"dev": "/", "a": "1"}, nil},
		{"device in the place of a file", [][]e{{{name: "a", body: "1"}}, {{name: "a", kind: tar.TypeChar}}}, "", map[string]string{}, nil},
		{"a file as root", [][]e{{{name: "/", kind: tar.TypeSymlink, body: "OUTSIDE"}}}, "root", nil, [][]e{{{name: "/"}, {name: "a", body: "1"}}}},
		{"unknown kind", [][]e{{{name: "a", kind: 'Z', body: ""}}}, "kind", nil, nil},
		{"deeper than a path", [][]e{{{name: long, body: "x"}}}, "", nil, nil},
		{"deeper and deeper by links", func() [][]e {
			layers := [][]e{{}}
			at := ""
			for i := range 8 {
				deep := at + strings.Repeat(strings.Repeat("d", 100)+"/", 12)
				layers[0] = append(layers[0], e{name: deep}, e{name: fmt.Sprintf("l%d", i), kind: tar.TypeSymlink, body: "/" + deep})
				at = fmt.Sprintf("l%d/", i)
			}
			return layers
		}(), "its directory is too deep", nil, nil},
		{"many entries", [][]e{slices.Repeat([]e{{name: "a", body: "1"}}, 5000)}, "larger", nil, [][]e{slices.Repeat([]e{{name: "a", body: "1"}}, 500)}},
		{"many bytes", [][]e{{{name: "a", body: strings.Repeat("0", 2<<20)}}, {{name: "b", body: strings.Repeat("0", 2<<20)}}, {{name: "c", body: strings.Repeat("0", 2<<20)}}}, "larger", nil, [][]e{{{name: "a", body: strings.Repeat("0", 2<<20)}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			outside := t.TempDir()
			victim := filepath.Join(outside, "victim")
			if err := os.WriteFile(victim, []byte("safe"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, l := range c.bad {
				for i := range l {
					l[i].name = strings.ReplaceAll(l[i].name, "/OUTSIDE", outside)
					l[i].body = strings.ReplaceAll(l[i].body, "OUTSIDE", outside)
				}
			}
			s := newStore(t)
			limits := Bounds{Entries: 2000, Bytes: 5 << 20}
			img, err := s.Pull(t.Context(), layoutOf(t, imageOf(t, c.bad...)), Options{Limits: limits})
			var bad *Error
			switch {
			case c.said == "" && err != nil && c.name != "deeper than a path":
				t.Errorf("refused: %v", err)
			case c.said != "" && (!errors.As(err, &bad) || !strings.Contains(err.Error(), c.said)):
				t.Errorf("got %v, want an error about %q", err, c.said)
			case err == nil && c.want != nil:
				r, err := s.Use(t.Context(), img)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				got := tree(t, r.Dir)
				for k, v := range c.want {
					if strings.ReplaceAll(v, "OUTSIDE", outside) != got[k] && v != got[k] {
						t.Errorf("%s: %q, want %q", k, got[k], v)
					}
				}
			}
			if b, err := os.ReadFile(victim); err != nil || string(b) != "safe" {
				t.Errorf("what lies outside: %q, %v", b, err)
			}
			if fi, err := os.Stat(victim); err != nil || fi.Mode().Perm() != 0o644 {
				t.Errorf("what lies outside: %v, %v", fi, err)
			}
			if got := tree(t, outside); len(got) != 1 {
				t.Errorf("outside there is %v", got)
			}
			left, err := os.ReadDir(s.path("tmp"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if err != nil {
				if roots, _ := os.ReadDir(s.path("roots")); len(roots) > 0 {
					t.Errorf("a root of an image that was refused: %v", roots)
				}
			}
			if c.nearby != nil {
				if _, err := s.Pull(t.Context(), layoutOf(t, imageOf(t, c.nearby...)), Options{Limits: limits}); err != nil {
					t.Errorf("the neighbour: %v", err)
				}
			}
		})
	}
}

// Modes that give others rights on the host, and such that would keep the owner out.
func TestModes(t *testing.T) {
	s := newStore(t)
	img, err := s.Pull(t.Context(), layoutOf(t, imageOf(t, []e{
		{name: "su", body: "x", mode: 0o6755}, {name: "shut", body: "x", mode: 0o1000}, {name: "tmp/", mode: 0o1777}, {name: "closed/", mode: 0o2001}, {name: "closed/in", body: "x", mode: 0o640},
	})), Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Use(t.Context(), img)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for name, want := range map[string]fs.FileMode{"su": 0o755, "shut": 0o400, "tmp": fs.ModeDir | fs.ModeSticky | 0o777, "closed": fs.ModeDir | 0o701, "closed/in": 0o640} {
		fi, err := os.Lstat(filepath.Join(r.Dir, name))
		if err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, want %v (%v)", name, fi.Mode(), want, err)
		}
	}
	if fi, err := os.Stat(s.dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the store: %v, %v", fi.Mode(), err)
	}
}

// The same image by each way that images come.
func TestSources(t *testing.T) {
	img := imageOf(t, []e{{name: "a", body: "1"}}, []e{{name: "b", body: "2"}})
	want := map[string]string{"a": "1", "b": "2"}
	dir := layoutOf(t, img)
	archive := filepath.Join(t.TempDir(), "oci.tar")
	writeTar(t, archive, dir, false)
	packedArchive := archive + ".gz"
	writeTar(t, packedArchive, dir, true)
	docker := filepath.Join(t.TempDir(), "docker.tar")
	tag, err := name.NewTag("example.com/thing:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	host := serve(t, registry.New())
	push(t, host+"/team/thing:1", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{
		dir, dir + ":thing:1", dir + ":1", "oci:" + dir, "oci:" + dir + ":thing:1", archive, "tar:" + archive + ":1", packedArchive,
		docker, docker + ":example.com/thing:1", host + "/team/thing:1", host + "/team/thing@" + digest.String(),
	} {
		t.Run(strings.NewReplacer("/", "_", dir, "layout").Replace(ref), func(t *testing.T) {
			s := newStore(t)
			got, files := pulled(t, s, ref, Options{})
			same(t, files, want)
			if got.Config.Env[0] != "A=b" || got.Config.Cmd[0] != "/bin/agent" || len(got.Layers) != 2 || got.Bytes != 2 {
				t.Errorf("%+v", got)
			}
			all, err := s.List()
			if err != nil || len(all) != 1 || all[0].Digest != got.Digest {
				t.Errorf("list: %+v, %v", all, err)
			}
			// Pinned, it needs its source no more.
			if again, err := s.Pull(t.Context(), "localhost:1/nobody/there", Options{Pin: got.Digest}); err != nil || again.Root != got.Root {
				t.Errorf("pinned: %v, %v", again, err)
			}
		})
	}
	for ref, said := range map[string]string{
		"":                               "no reference",
		dir + ":2":                       "holds no \"2\"",
		"tar:" + dir:                     "before a directory",
		"oci:" + archive:                 "before a directory",
		filepath.Join(dir, "nothing"):    "no such file",
		filepath.Join(dir, "oci-layout"): "no image can be read",
		"UPPER CASE":                     "neither",
		host + "/team/thing:2":           "does not give",
		host + "/team/thing@sha256:" + strings.Repeat("0", 64): "does not give",
		"/dev/null": "neither a file nor a directory",
	} {
		if _, err := newStore(t).Pull(t.Context(), ref, Options{}); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%q: %v, want %q", ref, err, said)
		}
	}
}

func writeTar(t *testing.T, file, dir string, zipped bool) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out io.Writer = f
	if zipped {
		z := gzip.NewWriter(f)
		defer z.Close()
		out = z
	}
	w := tar.NewWriter(out)
	defer w.Close()
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func push(t *testing.T, ref string, img v1.Image) {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
}

// A registry that wants a password: as docker and podman keep it, and no other.
func TestPasswords(t *testing.T) {
	reg := registry.New()
	push(t, serve(t, reg)+"/x:1", imageOf(t, []e{{name: "a", body: "1"}}))
	host := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "pass:word" {
			w.Header().Set("WWW-Authenticate", "Basic realm=x")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	for config, said := range map[string]string{
		`{"auths": {"HOST": {"auth": "bWU6cGFzczp3b3Jk"}}}`:                          "",
		`{"auths": {"HOST": {"auth": "bWU6cGFzczp3b3Jk"}}, "credsStore": "desktop"}`: "",
		`{"auths": {"HOST": {"auth": "bWU6d3Jvbmc="}}}`:                              "401",
		`{"auths": {"other.example": {"auth": "bWU6cGFzczp3b3Jk"}}}`:                 "401",
		`{"auths": {"HOST": {}}, "credsStore": "desktop"}`:                           "docker-credential-desktop, which carboy does not start",
		`{"credHelpers": {"HOST": "gcloud"}}`:                                        "docker-credential-gcloud",
		`{"auths": {"HOST": {"auth": "!"}}}`:                                         "base64",
		`{`:                                                                          "config.json",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(strings.ReplaceAll(config, "HOST", host)), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := newStore(t).Pull(t.Context(), host+"/x:1", Options{Env: func(k string) string {
			if k == "DOCKER_CONFIG" {
				return dir
			}
			return ""
		}})
		if said == "" && err != nil || said != "" && (err == nil || !strings.Contains(err.Error(), said)) {
			t.Errorf("%s: %v, want %q", config, err, said)
		}
		if err != nil && strings.Contains(err.Error(), "pass:word") {
			t.Errorf("the password is told: %v", err)
		}
	}
}

// A registry whose tag leads elsewhere tomorrow, and one that lies.
func TestPin(t *testing.T) {
	host := serve(t, registry.New())
	first, second := imageOf(t, []e{{name: "a", body: "1"}}), imageOf(t, []e{{name: "a", body: "evil"}})
	push(t, host+"/x:1", first)
	s := newStore(t)
	img, _ := pulled(t, s, host+"/x:1", Options{})
	push(t, host+"/x:1", second)
	if _, files := pulled(t, s, host+"/x:1", Options{Pin: img.Digest}); files["a"] != "1" {
		t.Errorf("pinned: %v", files)
	}
	if _, files := pulled(t, s, host+"/x:1", Options{}); files["a"] != "evil" {
		t.Errorf("not pinned: %v", files)
	}
	if _, err := newStore(t).Pull(t.Context(), host+"/x:1", Options{Pin: img.Digest}); err == nil || !strings.Contains(err.Error(), "was pinned") {
		t.Errorf("another machine: %v", err)
	}
	if _, err := s.Pull(t.Context(), host+"/x:1", Options{Pin: "sha256:../../x"}); err == nil {
		t.Error("a digest that is none is taken")
	}
}

// lying has bodies of blobs changed on their way.
type lying struct {
	http.Handler
	change func([]byte) []byte
}

func (l lying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		l.Handler.ServeHTTP(w, r)
		return
	}
	rec := httptest.NewRecorder()
	l.Handler.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	if bytes.HasPrefix(body, []byte{0x1f, 0x8b}) {
		body = l.change(body)
	}
	w.WriteHeader(rec.Code)
	w.Write(body)
}

func TestLyingSources(t *testing.T) {
	img := imageOf(t, []e{{name: "a", body: "1"}})
	reg := registry.New()
	push(t, serve(t, reg)+"/x:1", img)
	for name, change := range map[string]func([]byte) []byte{
		"changed": func(b []byte) []byte { c := slices.Clone(b); c[len(c)/2] ^= 1; return c },
		"cut":     func(b []byte) []byte { return b[:len(b)-3] },
		"longer":  func(b []byte) []byte { return append(slices.Clone(b), "more"...) },
		"empty":   func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			ref := serve(t, lying{reg, change}) + "/x:1"
			if _, err := s.Pull(t.Context(), ref, Options{}); err == nil {
				t.Fatal("taken")
			}
			same(t, tree(t, s.path("blobs")), nil)
			same(t, tree(t, s.path("roots")), nil)
			if _, err := s.Pull(t.Context(), serve(t, lying{reg, func(b []byte) []byte { return b }})+"/x:1", Options{}); err != nil {
				t.Errorf("the truth: %v", err)
			}
		})
	}
	t.Run("a layout", func(t *testing.T) {
		dir := layoutOf(t, img)
		layers, _ := img.Layers()
		h, _ := layers[0].Digest()
		file := filepath.Join(dir, "blobs", "sha256", h.Hex)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-1] ^= 1
		if err := os.WriteFile(file, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := newStore(t).Pull(t.Context(), dir, Options{}); err == nil || !strings.Contains(err.Error(), "digest") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the configuration's digest", func(t *testing.T) {
		cfg, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		cfg = cfg.DeepCopy()
		cfg.RootFS.DiffIDs[0].Hex = strings.Repeat("1", 64)
		layers, _ := img.Layers()
		bad, err := mutate.ConfigFile(img, cfg)
		if err != nil {
			t.Fatal(err)
		}
		_ = layers
		if _, err := newStore(t).Pull(t.Context(), layoutOf(t, bad), Options{}); err == nil || !strings.Contains(err.Error(), "configuration's digest") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a layer elsewhere", func(t *testing.T) {
		asked := false
		other := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
		l := static.NewLayer([]byte("x"), types.DockerForeignLayer)
		bad, err := mutate.Append(imageOf(t), mutate.Addendum{Layer: l, URLs: []string{"http://" + other + "/x"}, MediaType: types.DockerForeignLayer})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newStore(t).Pull(t.Context(), layoutOf(t, bad), Options{}); err == nil || !strings.Contains(err.Error(), "outside") || asked {
			t.Errorf("got %v; asked %t", err, asked)
		}
	})
	t.Run("what is kept", func(t *testing.T) {
		s := newStore(t)
		got, _ := pulled(t, s, layoutOf(t, img), Options{})
		if err := os.RemoveAll(s.path("roots", got.Root)); err != nil {
			t.Fatal(err)
		}
		blob := s.path("blobs", strings.TrimPrefix(got.Layers[0], "sha256:"))
		b, _ := os.ReadFile(blob)
		b[len(b)-1] ^= 1
		if err := os.WriteFile(blob, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Pull(t.Context(), layoutOf(t, img), Options{}); err == nil || !strings.Contains(err.Error(), "has changed") {
			t.Errorf("got %v", err)
		}
		if _, err := s.Pull(t.Context(), layoutOf(t, img), Options{}); err != nil {
			t.Errorf("the next time: %v", err)
		}
	})
}

// bomb is a layer that is small and unpacks to n zeros of one file.
func bomb(t *testing.T, n int64, coding string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	var z io.WriteCloser = gzip.NewWriter(&b)
	if coding == "zstd" {
		var err error
		if z, err = zstd.NewWriter(&b); err != nil {
			t.Fatal(err)
		}
	}
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: n, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, n); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestBombs(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd"} {
		for n, ok := range map[int64]bool{8 << 20: true, 64 << 20: false} {
			img, err := mutate.AppendLayers(imageOf(t), bomb(t, n, coding))
			if err != nil {
				t.Fatal(err)
			}
			_, err = newStore(t).Pull(t.Context(), layoutOf(t, img), Options{Limits: Bounds{Bytes: 16 << 20}})
			if ok != (err == nil) || !ok && !errors.Is(err, errLimit) {
				t.Errorf("%s of %d bytes: %v", coding, n, err)
			}
		}
	}
	// Behind the archive's end.
	raw := append(packed(t, e{name: "a", body: "1"}), make([]byte, 32<<20)...)
	img, err := mutate.AppendLayers(imageOf(t), layerOf(t, raw))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newStore(t).Pull(t.Context(), layoutOf(t, img), Options{Limits: Bounds{Bytes: 1 << 20, Entries: 100}}); !errors.Is(err, errLimit) {
		t.Errorf("behind the end: %v", err)
	}
	layers := make([][]e, 20)
	if _, err := newStore(t).Pull(t.Context(), layoutOf(t, imageOf(t, layers...)), Options{Limits: Bounds{Layers: 10}}); err == nil || !strings.Contains(err.Error(), "at most 10") {
		t.Errorf("20 layers: %v", err)
	}
}

// Several at once pull one image, and each has it whole.
func TestConcurrent(t *testing.T) {
	var entries []e
	for i := range 500 {
		entries = append(entries, e{name: fmt.Sprintf("d%d/f", i), body: "x"})
	}
	dir := layoutOf(t, imageOf(t, entries))
	base := filepath.Join(t.TempDir(), "images")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := Open(base)
			if err != nil {
				t.Error(err)
				return
			}
			img, err := s.Pull(t.Context(), dir, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			r, err := s.Use(t.Context(), img)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Close()
			if n := len(tree(t, r.Dir)); n != 1000 {
				t.Errorf("%d entries", n)
			}
		})
	}
	wg.Wait()
}

func TestRemove(t *testing.T) {
	s := newStore(t)
	base := []e{{name: "base", body: "1"}}
	one, _ := pulled(t, s, layoutOf(t, imageOf(t, base, []e{{name: "one", body: "1"}})), Options{})
	two, _ := pulled(t, s, layoutOf(t, imageOf(t, base, []e{{name: "two", body: "2"}})), Options{})
	r, err := s.Use(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), one.Digest); !errors.Is(err, errInUse) {
		t.Errorf("in use: %v", err)
	}
	same(t, tree(t, r.Dir), map[string]string{"base": "1", "one": "1"})
	r.Close()
	for range 2 {
		if err := s.Remove(t.Context(), one.Digest); err != nil {
			t.Errorf("not in use: %v", err)
		}
	}
	if _, err := s.Use(t.Context(), one); err == nil {
		t.Error("it is still there")
	}
	blobs, err := os.ReadDir(s.path("blobs"))
	if err != nil || len(blobs) != 2 {
		t.Errorf("%d layers, want the 2 of the other: %v", len(blobs), err)
	}
	if _, files := pulled(t, s, "nowhere.invalid/x", Options{Pin: two.Digest}); files["two"] != "2" {
		t.Errorf("the other: %v", files)
	}
}

// A pull that ended anywhere leaves nothing that a later one takes for whole.
func TestInterrupted(t *testing.T) {
	dir := layoutOf(t, imageOf(t, []e{{name: "a", body: strings.Repeat("x", 1<<20)}}, []e{{name: "b", body: "2"}}))
	s := newStore(t)
	for n := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := s.Pull(ctx, dir, Options{Progress: func(p Progress) {
			if p.Layer == n+1 {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("layer %d: %v", n+1, err)
		}
		same(t, tree(t, s.path("roots")), nil)
	}
	if err := os.MkdirAll(s.path("tmp", "root-killed", "fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, files := pulled(t, s, dir, Options{}); files["b"] != "2" {
		t.Errorf("got %v", files)
	}
	same(t, tree(t, s.path("tmp")), nil)
}

func FuzzLayer(f *testing.F) {
	for _, entries := range [][]e{
		{{name: "a/b", body: "x"}, {name: "l", kind: tar.TypeSymlink, body: "/a"}, {name: "l/c", body: "y"}, {name: "h", kind: tar.TypeLink, body: "a/b"}},
		{{name: "a/"}, {name: "a/.wh.b"}, {name: ".wh..wh..opq"}, {name: "../x", body: "y"}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, x := range entries {
			w.WriteHeader(&tar.Header{Name: x.name, Typeflag: x.kind, Linkname: x.body, Mode: 0o755})
		}
		w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		base := t.TempDir()
		dir := filepath.Join(base, "in")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		u, err := newUnpacker(dir, Bounds{Entries: 100, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer u.close()
		u.layer(bytes.NewReader(b), "")
		if got, err := os.ReadDir(base); err != nil || len(got) != 1 {
			t.Errorf("outside: %v, %v", got, err)
		}
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				t.Error(err)
			} else if fi, err := d.Info(); err == nil && fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
				t.Errorf("%s: %v", p, fi.Mode())
			}
			return nil
		})
	})
}
