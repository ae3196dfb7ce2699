package carboy

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/run/plan"
)

func TestMountsThatWouldOpenWhatIsClosed(t *testing.T) {
	w := newWorld(t)
	base := filepath.Dir(w.ws)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(w.ws, "cache")); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]string{
		"a link out of the workspace":   w.ws + "/cache:/data:ro",
		"below such a link":             w.ws + "/cache/.:/data:ro",
		"over the workspace":            "/usr:" + w.ws,
		"above the workspace":           "/usr:" + base,
		"the state":                     w.c.StateDir() + ":/data:ro",
		"in the state":                  w.c.StateDir() + "/audit:/data:ro",
		"what holds the state":          base + ":/data:ro",
		"what holds it, through a link": link + ":/data:ro",
	} {
		var bad *fault.OptionError
		if r, _, err := w.sh("true", func(o *plan.Options) { o.Mounts = []string{m} }); !errors.As(err, &bad) || r != nil {
			t.Errorf("%s (%s): %v", name, m, err)
		}
	}
	other := t.TempDir()
	w.write("a", "1\n")
	if err := os.Mkdir(filepath.Join(w.ws, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.ok("echo x > sub/f; echo y > /data/g; echo z >> a", func(o *plan.Options) {
		o.Mounts = []string{other + ":" + w.ws + "/sub", other + ":/data", w.ws + "/sub:/own:ro"}
	})
	for name, want := range map[string]string{"f": "x\n", "g": "y\n"} {
		if b, err := os.ReadFile(filepath.Join(other, name)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if got := w.read("a"); got != "1\n" {
		t.Errorf("the workspace beside the mounts is not kept apart: %q", got)
	}
}
