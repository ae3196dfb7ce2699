// Package testenv keeps tests from being skipped silently.
//
// A test that needs something of the machine asks here. If it is missing, the
// test is skipped with a line that says what to install. With CARBOY_CI=1 in
// the environment, as .ci/run sets it, the test fails instead, so that a green
// run means that everything ran.
package testenv

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CI reports whether a missing requirement fails a test instead of skipping it.
func CI() bool { return os.Getenv("CARBOY_CI") == "1" }

// Exhaustive reports whether tests are to take large numbers of kills, files, processes and
// bytes, as .ci/full asks for with CARBOY_TEST_EXHAUSTIVE=1.
func Exhaustive() bool { return os.Getenv("CARBOY_TEST_EXHAUSTIVE") == "1" }

// Need returns the path of program. If it is missing, Need skips the test, or
// fails it under CI. install says how to get it, such as "apt-get install
// bubblewrap".
func Need(t testing.TB, program, install string) string {
	t.Helper()
	path := Look(program)
	if path == "" {
		Missing(t, program, install)
	}
	return path
}

// Look returns the path of program on PATH, or "". It does not use os/exec,
// which only hostexec may import.
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

// Missing skips the test because what is not there, or fails it under CI.
// install says how to get it.
func Missing(t testing.TB, what, install string) {
	t.Helper()
	if CI() {
		t.Fatalf("needs %s, and nothing may be skipped in CI: %s", what, install)
	}
	t.Skipf("SKIPPED: needs %s: %s", what, install)
}

// Root skips the test unless it runs as root. .ci/run runs the tests both ways,
// so this is a skip under CI too.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root: sudo go test (an ordinary user's run has the other half)")
	}
}

// Poll calls ok every few milliseconds until it returns true, for at most within.
// It reports whether ok did.
func Poll(within time.Duration, ok func() bool) bool {
	for end := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Patience returns the bound of a test's wait: usual, which is long, since it
// is reached only when something hangs. Mutation tests
// (internal/hostile/mutate) set CARBOY_TEST_PATIENCE to wait for less.
func Patience(usual time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CARBOY_TEST_PATIENCE")); err == nil && d > 0 {
		return min(d, usual)
	}
	return usual
}
