package gitgate

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/gitgate/gittest"
)

func TestAdhocSpeed(t *testing.T) {
	if os.Getenv("ADHOC") == "" {
		t.Skip()
	}
	large := gittest.Large(t, 100)
	out, _ := exec.Command("du", "-sm", large).Output()
	t.Logf("%s", out)
	s := gittest.StartSSH(t, "AcceptEnv GIT_PROTOCOL")
	events := Config{}
	rec := record(&events)
	empty := func() string {
		d := t.TempDir() + "/e.git"
		git(t, ".", "init", "-q", "--bare", "-b", "trunk", d)
		return d
	}
	gateTo := func(path string) string {
		r := overSSHTo(s, path)
		cfg := Config{Repos: []Repo{r}, Observe: events.Observe}
		_, url := newGate(t, cfg)
		return url + "/app.git"
	}
	timeIt := func(args ...string) time.Duration {
		c := exec.Command("git", args...)
		c.Env = gittest.Env(s)
		start := time.Now()
		if b, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		return time.Since(start)
	}
	lg := gateTo(large)
	for range 2 {
		a := timeIt("clone", "-q", "--bare", s.URL(large), t.TempDir()+"/x")
		b := timeIt("clone", "-q", "--bare", lg, t.TempDir()+"/x")
		t.Logf("clone %v %v %.2f", a, b, float64(b)/float64(a))
	}
	for range 2 {
		e1, e2 := empty(), empty()
		g2 := gateTo(e2)
		a := timeIt("-C", large, "push", "-q", s.URL(e1), "trunk")
		b := timeIt("-C", large, "push", "-q", g2, "trunk")
		t.Logf("push %v %v %.2f (in gate %v)", a, b, float64(b)/float64(a), rec.last("push").Duration)
		gittest.GoOn(t, large, "trunk", 1+int(time.Now().UnixNano()%1e9))
		a = timeIt("-C", large, "push", "-q", s.URL(e1), "trunk")
		b = timeIt("-C", large, "push", "-q", g2, "trunk")
		t.Logf("small %v %v %.2f", a, b, float64(b)/float64(a))
	}
}
