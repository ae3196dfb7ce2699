package bottles

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// backend is one of that name and version. It makes no bottles.
type backend struct {
	bottle.Backend
	name, build string
}

func (b backend) Name() string  { return b.name }
func (b backend) Build() string { return b.build }

// Processes go on only with what froze them. An older record has no backend's version.
func TestWhyNotLive(t *testing.T) {
	for _, x := range []struct {
		name string
		tune func(*store.Kept)
		want string // part of the reason; "": they go on
	}{
		{"the same", func(*store.Kept) {}, ""},
		{"an older record", func(k *store.Kept) { k.BackendBuild = "" }, ""},
		{"another backend", func(k *store.Kept) { k.Backend = "other" }, "the backend other, and this is fake"},
		{"another version of it", func(k *store.Kept) { k.BackendBuild = "v2" }, "fake v2, and this is v1"},
		{"another carboy", func(k *store.Kept) { k.Build = "new" }, "carboy new"},
		{"another processor", func(k *store.Kept) { k.Arch = "vax" }, "on vax"},
		{"files only", func(k *store.Kept) { k.Live, k.WhyNot = nil, "no room" }, "no room"},
	} {
		c := &Keeper{Host: &host.Host{Backend: backend{name: "fake", build: "v1"}, Build: "b"}}
		k := &store.Kept{Build: "b", Arch: runtime.GOARCH, Backend: "fake", BackendBuild: "v1", Live: []store.KeptPart{{Name: "x"}}, Thaw: json.RawMessage(`{}`)}
		x.tune(k)
		why, err := c.whyNotLive(&ResumeOptions{}, k, &Preflight{Backend: "fake", holder: c.Backend, Run: plan.Options{}})
		if err != nil || (why == "") != (x.want == "") || !strings.Contains(why, x.want) {
			t.Errorf("%s: %q, %v; want %q", x.name, why, err, x.want)
		}
	}
}

// TestBackendOf: what a person names for one command comes before the record of a bottle,
// that before the bottle's file, and that before the default.
func TestBackendOf(t *testing.T) {
	const needs = "this backend, which needs macOS"
	for _, x := range []struct {
		named, recorded, file string
		want, err             string
	}{
		{"", "", "", "fake", ""},
		{"", "", "gvisor", "gvisor", ""},
		{"", "gvisor", "", "gvisor", ""},
		{"", "gvisor", "macos-container", "gvisor", ""},
		{"fake", "gvisor", "macos-container", "fake", ""},
		{"fake", "macos-container", "", "fake", ""},
		{"", "macos-container", "gvisor", "", needs},
		{"", "", "macos-container", "", "dev.md:2: backend: macos-container: "},
		{"", "vmware", "", "", "\"vmware\" is not here"},
	} {
		dir := t.TempDir()
		files := map[string]string{"agents/a.md": "---\nbottle: dev\n---\n", "bottles/dev.md": "---\n---\n"}
		if x.file != "" {
			files["bottles/dev.md"] = "---\nbackend: " + x.file + "\n---\n"
		}
		for name, text := range files {
			name = filepath.Join(dir, "config", name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set, err := manifest.Open(manifest.Where{Config: filepath.Join(dir, "config"), Home: dir})
		if err != nil {
			t.Fatal(err)
		}
		e, err := set.Resolve("a", nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &Keeper{Host: &host.Host{Backend: backend{name: "fake"}, Opened: host.Options{Backend: x.named}}}
		b, err := c.backendOf(&StartOptions{Backend: x.recorded}, e)
		switch {
		case x.err == "" && (err != nil || b.Name() != x.want):
			t.Errorf("%+v: %v, %v", x, b, err)
		case x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)):
			t.Errorf("%+v: %v", x, err)
		}
	}
}
