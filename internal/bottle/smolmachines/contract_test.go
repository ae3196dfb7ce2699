package smolmachines

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/loopback"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	standIn()
	bottletest.Main()
	testenv.OwnMounts()
	os.Exit(m.Run())
}

// newBackend returns a backend on a machine with the stand-in for smolvm, and the home
// directory of both.
func newBackend(t testing.TB) (Backend, string) {
	t.Helper()
	testenv.Root(t) // the stand-in for smolvm makes namespaces and mounts
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_DATA_HOME", "")
	t.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
	dir := filepath.Join(home, ".smolvm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(exe, filepath.Join(dir, standInName)); err != nil { // a copy has 60 MB
		b, err := os.ReadFile(exe)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, standInName), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat("/usr/lib/smolvm/" + standInName); err == nil {
		testenv.Missing(t, "a machine without smolvm", "apt-get remove smolvm: these tests use a stand-in")
	}
	return Backend{host: &host{
		goos: "linux", asRoot: true, getenv: os.Getenv, kvm: func() error { return nil },
		listeners: func() ([]loopback.Listener, error) { return nil, nil },
	}}, home
}

// TestContract holds the backend to the contract, on the program that stands in for smolvm.
func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the whole contract on a stand-in; -short leaves it out")
	}
	b, _ := newBackend(t)
	const cgroups = "the stand-in's machines have no control groups, which the real ones have"
	bottletest.RunWithout(t, func() bottle.Backend { return b }, map[string]string{
		"PauseStops": cgroups, "LimitPids": cgroups, "Memory": cgroups,
		"Posture": "nothing confines the process that runs a machine, which the backend's class says",
	})
}
