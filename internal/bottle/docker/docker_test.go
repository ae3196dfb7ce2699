package docker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/bottle/docker/dockertest"
	"github.com/carboy/carboy/internal/bottle/gvisor"
	"github.com/carboy/carboy/internal/ociruntime"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	Main()
	gvisor.Main() // this program is the Engine's other runtime, too
	switch os.Args[0] {
	case victimName:
		victim()
	case memberName:
		member()
	}
	bottletest.Main()
	os.Exit(m.Run())
}

// withEngine starts an Engine for one test.
func withEngine(t *testing.T, options ...string) *dockertest.Engine {
	t.Helper()
	e := dockertest.Start(t, options...)
	t.Cleanup(func() { e.Stop(t) })
	return e
}

func TestContract(t *testing.T) {
	withEngine(t)
	bottletest.Run(t, func() bottle.Backend { return Backend{} })
}

// withKernel starts an Engine that has carboy's runtime, for one test.
func withKernel(t *testing.T) *dockertest.Engine {
	t.Helper()
	testenv.Root(t)
	link := filepath.Join(t.TempDir(), ociruntime.Program)
	exe, err := os.Executable()
	if err == nil {
		err = os.Symlink(exe, link)
	}
	if err != nil {
		t.Fatal(err)
	}
	return withEngine(t, "--add-runtime", ociruntime.Name+"="+link)
}

// TestContractKernel: with a kernel of the container's own, bottles keep the contract.
// TestKernelBottle tests the rest.
func TestContractKernel(t *testing.T) {
	if !testenv.Exhaustive() {
		t.Skip("SKIPPED: the contract with the Engine's other runtime takes minutes; -short leaves it out, and CARBOY_TEST_EXHAUSTIVE=1 runs it")
	}
	withKernel(t)
	bottletest.RunWithout(t, func() bottle.Backend { return Backend{} }, map[string]string{
		"LimitPids": "gVisor counts no refused processes",
		"Posture":   "one of its processes, the gofer, runs as root: it gives files to their owners",
		"pipes":     "gVisor keeps them in memory",
		"holes":     "gVisor does not tell programs where they are",
	})
}
