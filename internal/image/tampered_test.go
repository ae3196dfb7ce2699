package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// files is a layout by the names of its files: index.json and blobs.
type files map[string]string

// document is an index, a manifest or a configuration.
type document map[string]any

func (f files) read(t *testing.T, name string) (d document) {
	t.Helper()
	if err := json.Unmarshal([]byte(f[name]), &d); err != nil {
		t.Fatal(name, err)
	}
	return d
}

func text(t *testing.T, d document) string {
	t.Helper()
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func blobOf(d any) string {
	algorithm, hex, _ := strings.Cut(d.(map[string]any)["digest"].(string), ":")
	return "blobs/" + algorithm + "/" + hex
}

// described puts content where a descriptor leads, under its true digest and size.
func (f files) described(d any, content string) {
	sum := sha256.Sum256([]byte(content))
	hex := hex.EncodeToString(sum[:])
	m := d.(map[string]any)
	m["digest"], m["size"] = "sha256:"+hex, len(content)
	f["blobs/sha256/"+hex] = content
}

// hops are the documents on the way to an image, and the names of their blobs.
type hops struct {
	f                         files
	index, nested, manifest   document
	nestedAt, manifestAt      string
	configAt, lowerAt, hereAt string
}

// sealed writes the documents again, each under the digest that the one above it then has: so
// the lowest differs from the digests above it by what a test did to it, and nothing else.
func (h *hops) sealed(t *testing.T) {
	h.f.described(h.nested["manifests"].([]any)[0], text(t, h.manifest))
	h.f.described(h.index["manifests"].([]any)[0], text(t, h.nested))
	h.f["index.json"] = text(t, h.index)
}

func (h *hops) layers() []any { return h.manifest["layers"].([]any) }
func (h *hops) config() any   { return h.manifest["config"] }

// tampered lists what somebody does to an image on its way. Each must be noticed.
var tampered = []struct {
	name string
	do   func(*testing.T, *hops)
	says string
}{
	{"the configuration's command", func(t *testing.T, h *hops) {
		h.f[h.configAt] = strings.Replace(h.f[h.configAt], "/bin/agent", "/bin/evil!", 1)
	}, "its configuration is not what its digest says"},
	{"a longer configuration", func(t *testing.T, h *hops) { h.f[h.configAt] += " " }, "its configuration is not"},
	{"a shorter configuration", func(t *testing.T, h *hops) { h.f[h.configAt] = h.f[h.configAt][:20] }, "its configuration is not"},
	{"another configuration, by the manifest", func(t *testing.T, h *hops) {
		h.f.described(h.config(), strings.Replace(h.f[h.configAt], "/bin/agent", "/bin/evil!", 1))
		h.f[h.manifestAt] = text(t, h.manifest)
	}, "its manifest is not what its digest says"},
	{"another manifest, by the index in the index", func(t *testing.T, h *hops) {
		h.f.described(h.config(), strings.Replace(h.f[h.configAt], "/bin/agent", "/bin/evil!", 1))
		h.f.described(h.nested["manifests"].([]any)[0], text(t, h.manifest))
		h.f[h.nestedAt] = text(t, h.nested)
	}, "its index is not what its digest says"},
	{"the configuration's size", func(t *testing.T, h *hops) {
		h.config().(map[string]any)["size"] = len(h.f[h.configAt]) + 1
		h.sealed(t)
	}, "its configuration is not"},
	{"the manifest's size", func(t *testing.T, h *hops) {
		h.nested["manifests"].([]any)[0].(map[string]any)["size"] = 7
		h.f.described(h.index["manifests"].([]any)[0], text(t, h.nested))
		h.f["index.json"] = text(t, h.index)
	}, "its manifest is not"},
	{"a layer's byte", func(t *testing.T, h *hops) {
		b := []byte(h.f[h.hereAt])
		b[len(b)/2] ^= 1
		h.f[h.hereAt] = string(b)
	}, "layer 2"},
	{"a layer's end", func(t *testing.T, h *hops) { h.f[h.hereAt] = h.f[h.hereAt][:30] }, "layer 2"},
	{"more behind a layer", func(t *testing.T, h *hops) { h.f[h.hereAt] += "more" }, "layer 2"},
	{"another layer in its place", func(t *testing.T, h *hops) { h.f[h.hereAt] = h.f[h.lowerAt] }, "layer 2"},
	{"another layer, by the manifest", func(t *testing.T, h *hops) {
		h.f.described(h.layers()[1], h.f[h.lowerAt])
		h.sealed(t)
	}, "not what the configuration's digest says"},
	{"the order of layers", func(t *testing.T, h *hops) {
		l := h.layers()
		l[0], l[1] = l[1], l[0]
		h.sealed(t)
	}, "not what the configuration's digest says"},
	{"a layer more", func(t *testing.T, h *hops) {
		h.manifest["layers"] = append(h.layers(), h.layers()[0])
		h.sealed(t)
	}, "3 layers, and its configuration knows 2"},
	{"a layer less", func(t *testing.T, h *hops) {
		h.manifest["layers"] = h.layers()[:1]
		h.sealed(t)
	}, "1 layers, and its configuration knows 2"},
	{"a layer's size", func(t *testing.T, h *hops) {
		h.layers()[1].(map[string]any)["size"] = len(h.f[h.hereAt]) - 1
		h.sealed(t)
	}, "layer 2"},
	{"a negative size", func(t *testing.T, h *hops) {
		h.layers()[1].(map[string]any)["size"] = -1
		h.sealed(t)
	}, "layer 2"},
	{"a size beyond what is taken", func(t *testing.T, h *hops) {
		h.layers()[1].(map[string]any)["size"] = 1 << 50
		h.sealed(t)
	}, "--max-bytes"},
	{"no configuration", func(t *testing.T, h *hops) { delete(h.f, h.configAt) }, ""},
	{"no manifest", func(t *testing.T, h *hops) { delete(h.f, h.manifestAt) }, ""},
	{"no index in the index", func(t *testing.T, h *hops) { delete(h.f, h.nestedAt) }, ""},
	{"no layer", func(t *testing.T, h *hops) { delete(h.f, h.hereAt) }, "layer 2"},
	{"a weak digest of a layer", func(t *testing.T, h *hops) {
		l := h.layers()[1].(map[string]any)
		h.f["blobs/md5/0123456789abcdef0123456789abcdef"] = h.f[h.hereAt]
		l["digest"] = "md5:0123456789abcdef0123456789abcdef"
		h.sealed(t)
	}, ""},
	{"a weak digest of the manifest", func(t *testing.T, h *hops) {
		h.f["blobs/md5/0123456789abcdef0123456789abcdef"] = h.f[h.manifestAt]
		h.nested["manifests"].([]any)[0].(map[string]any)["digest"] = "md5:0123456789abcdef0123456789abcdef"
		h.f.described(h.index["manifests"].([]any)[0], text(t, h.nested))
		h.f["index.json"] = text(t, h.index)
	}, ""},
	{"a digest that is a path", func(t *testing.T, h *hops) {
		h.config().(map[string]any)["digest"] = "sha256:../../../etc/passwd"
		h.sealed(t)
	}, ""},
	{"an index as a manifest", func(t *testing.T, h *hops) {
		h.f.described(h.nested["manifests"].([]any)[0], h.f[h.nestedAt])
		h.f.described(h.index["manifests"].([]any)[0], text(t, h.nested))
		h.f["index.json"] = text(t, h.index)
	}, "names no configuration"},
	{"text as a configuration", func(t *testing.T, h *hops) {
		h.f.described(h.config(), "no JSON")
		h.sealed(t)
	}, "its configuration can't be read"},
	{"text as a manifest", func(t *testing.T, h *hops) {
		h.f.described(h.nested["manifests"].([]any)[0], "no JSON")
		h.f.described(h.index["manifests"].([]any)[0], text(t, h.nested))
		h.f["index.json"] = text(t, h.index)
	}, ""},
	{"text as a layer", func(t *testing.T, h *hops) {
		h.f.described(h.layers()[1], "no tar")
		h.sealed(t)
	}, "layer 2"},
	{"an endless configuration", func(t *testing.T, h *hops) {
		h.f.described(h.config(), `{"a":"`+strings.Repeat("x", maxDocument)+`"}`)
		h.sealed(t)
	}, "at most"},
	{"an endless manifest", func(t *testing.T, h *hops) {
		h.manifest["annotations"] = map[string]any{"a": strings.Repeat("x", maxDocument)}
		h.sealed(t)
	}, "at most"},
	{"an endless index in the index", func(t *testing.T, h *hops) {
		h.nested["annotations"] = map[string]any{"a": strings.Repeat("x", maxDocument)}
		h.sealed(t)
	}, "at most"},
	{"an endless index", func(t *testing.T, h *hops) {
		h.index["annotations"] = map[string]any{"a": strings.Repeat("x", maxDocument)}
		h.sealed(t)
	}, "at most"},
	{"another machine", func(t *testing.T, h *hops) {
		h.f.described(h.config(), strings.Replace(h.f[h.configAt], platform.Architecture, "riscv64", 1))
		h.sealed(t)
	}, "riscv64"},
	{"an address of its own", func(t *testing.T, h *hops) {
		h.layers()[1].(map[string]any)["urls"] = []any{"https://evil.example/layer"}
		h.sealed(t)
	}, "outside of the registry"},
	{"a configuration that is a directory", func(t *testing.T, h *hops) {
		delete(h.f, h.configAt)
		h.f[h.configAt+"/x"] = ""
	}, ""},
}

// honest returns a layout whose index holds an index that holds an image of two layers.
func honest(t *testing.T) *hops {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	img := mutate.MediaType(imageOf(t, []e{{name: "bin/agent", body: "below"}}, []e{{name: "bin/agent", body: "here"}}), types.OCIManifestSchema1)
	if err := p.AppendIndex(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &platform}})); err != nil {
		t.Fatal(err)
	}
	h := &hops{f: files{}}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		h.f[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.index = h.f.read(t, "index.json")
	h.nestedAt = blobOf(h.index["manifests"].([]any)[0])
	h.nested = h.f.read(t, h.nestedAt)
	h.manifestAt = blobOf(h.nested["manifests"].([]any)[0])
	h.manifest = h.f.read(t, h.manifestAt)
	h.configAt, h.lowerAt, h.hereAt = blobOf(h.config()), blobOf(h.layers()[0]), blobOf(h.layers()[1])
	return h
}

// ways are the forms in which an image comes. Each returns the reference.
var ways = map[string]func(*testing.T, files) string{
	"layout": func(t *testing.T, f files) string {
		dir := t.TempDir()
		for name, content := range f {
			p := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return "oci:" + dir
	},
	"archive": func(t *testing.T, f files) string {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, content := range f {
			if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content)), Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
			io.WriteString(w, content)
		}
		w.Close()
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return "tar:" + file
	},
}

// An image that was changed at any place on its way is refused, and the next one is whole.
func TestTampered(t *testing.T) {
	for way, place := range ways {
		for _, c := range tampered {
			t.Run(way+"/"+c.name, func(t *testing.T) {
				s, h := newStore(t), honest(t)
				before := maps.Clone(h.f)
				c.do(t, h)
				if maps.Equal(before, h.f) {
					t.Fatal("nothing was changed")
				}
				img, err := s.Pull(t.Context(), place(t, h.f), Options{})
				if err == nil {
					t.Fatalf("it was taken: %+v", img)
				}
				if !strings.Contains(err.Error(), c.says) {
					t.Errorf("it says %q, and not %q", err, c.says)
				}
				img, err = s.Pull(t.Context(), place(t, before), Options{})
				if err != nil || img.Config.Cmd[0] != "/bin/agent" {
					t.Fatalf("then the honest image: %+v, %v", img, err)
				}
				if b, err := os.ReadFile(s.path("roots", img.Root, "fs/bin/agent")); string(b) != "here" {
					t.Errorf("the honest image holds %q, %v", b, err)
				}
			})
		}
	}
}

// A registry, or what stands before it, changes one document of an image.
func TestTamperedRegistry(t *testing.T) {
	h := honest(t)
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	changed := "" // the end of the path whose content is changed
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if changed == "" || r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, changed) {
			inner.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, r)
		b := bytes.Replace(rec.Body.Bytes(), []byte("/bin/agent"), []byte("/bin/evil!"), 1)
		if bytes.Equal(b, rec.Body.Bytes()) {
			b[len(b)/2] ^= 1
		}
		maps.Copy(w.Header(), rec.Header())
		w.WriteHeader(rec.Code)
		w.Write(b)
	}))
	defer srv.Close()
	ref := strings.TrimPrefix(srv.URL, "http://") + "/team/box:1"
	for name, content := range h.f {
		if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok && name != h.nestedAt && name != h.manifestAt {
			upload(t, srv.URL+"/v2/team/box/blobs/uploads/?digest=sha256:"+hex, http.MethodPost, "", content)
		}
	}
	under := func(at string) string { return strings.TrimPrefix(at, "blobs/sha256/") }
	upload(t, srv.URL+"/v2/team/box/manifests/sha256:"+under(h.manifestAt), http.MethodPut, string(types.OCIManifestSchema1), h.f[h.manifestAt])
	upload(t, srv.URL+"/v2/team/box/manifests/1", http.MethodPut, string(types.OCIImageIndex), h.f[h.nestedAt])
	s := newStore(t)
	for name, at := range map[string]string{"manifest": h.manifestAt, "configuration": h.configAt, "layer": h.hereAt} {
		changed = under(at)
		if img, err := s.Pull(t.Context(), ref, Options{}); err == nil {
			t.Errorf("a changed %s was taken: %+v", name, img)
		}
	}
	changed = ""
	if img, err := s.Pull(t.Context(), ref, Options{}); err != nil || img.Config.Cmd[0] != "/bin/agent" {
		t.Fatalf("an honest image: %+v, %v", img, err)
	}
	changed = "1" // the index, which a pinned digest is for
	pin := "sha256:" + under(h.manifestAt)
	if _, err := newStore(t).Pull(t.Context(), ref, Options{Pin: "sha256:" + strings.Repeat("0", 64)}); err == nil {
		t.Error("another digest than the pinned one was taken")
	}
	changed = ""
	if _, err := newStore(t).Pull(t.Context(), ref, Options{Pin: pin}); err != nil {
		t.Error("the pinned image:", err)
	}
}

func upload(t *testing.T, url, method, kind, content string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		t.Fatal(method, url, res.Status)
	}
}
