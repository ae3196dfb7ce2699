package bottles

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/host"
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
		why, err := c.whyNotLive(&ResumeOptions{}, k, &Preflight{Run: plan.Options{}})
		if err != nil || (why == "") != (x.want == "") || !strings.Contains(why, x.want) {
			t.Errorf("%s: %q, %v; want %q", x.name, why, err, x.want)
		}
	}
}
