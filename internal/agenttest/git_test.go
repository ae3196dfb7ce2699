package agenttest

import (
	"os/exec"
	"testing"

	"github.com/carboy/carboy/internal/testenv"
)

// repository makes dir a git repository, with a commit of its files.
func repository(t testing.TB, dir string) {
	t.Helper()
	git := testenv.Need(t, "git", "apt-get install git")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"config", "user.name", "A Person"}, {"config", "user.email", "person@example.com"},
		{"add", "."}, {"commit", "-q", "-m", "begin"},
	} {
		c := exec.Command(git, append([]string{"-C", dir}, args...)...)
		c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
}
