// Package testenv keeps tests from being skipped in silence.
//
// A test that needs something of the machine asks here. Where it is missing,
// the test is skipped with a line that says what to install; with CARBOY_CI=1
// in the environment, as .ci/run sets it, a missing thing is a failure, so
// that a green run means that everything ran.
package testenv

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CI reports whether a skip is a failure.
func CI() bool { return os.Getenv("CARBOY_CI") == "1" }

// Need returns the path of program. Where it is missing the test ends there:
// skipped, or failed under CI. install says how to get it, such as
// "apt-get install bubblewrap".
func Need(t testing.TB, program, install string) string {
	t.Helper()
	path := Look(program)
	if path == "" {
		Missing(t, program, install)
	}
	return path
}

// Look finds program on PATH, or nothing, without os/exec: only hostexec imports that.
func Look(program string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, program)
		fi, err := os.Stat(path)
		if err == nil && filepath.IsAbs(path) && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// Missing ends the test because what it needs is not there: skipped, or failed
// under CI. install says how to get it.
func Missing(t testing.TB, what, install string) {
	t.Helper()
	if CI() {
		t.Fatalf("needs %s, and nothing may be skipped in CI: %s", what, install)
	}
	t.Skipf("SKIPPED: needs %s: %s", what, install)
}

// Root ends the test unless it runs as root. .ci/run runs the tests both ways,
// so that this is a skip under CI too.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root: sudo go test (an ordinary user's run has the other half)")
	}
}

// Patience bounds a test's waits: usually long, since it is reached only when
// something hangs. Who turns a defence off on purpose (internal/hostile/mutate)
// sets CARBOY_TEST_PATIENCE to wait for less.
func Patience(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CARBOY_TEST_PATIENCE")); err == nil && d > 0 {
		return min(d, usual)
	}
	return usual
}
