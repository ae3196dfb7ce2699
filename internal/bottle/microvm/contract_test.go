package microvm

import (
	"os"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	bottletest.Main()
	os.Exit(m.Run())
}

// needMachine skips the test unless a machine can run here. Without KVM the processor is
// emulated, which the test's log says.
func needMachine(t testing.TB) {
	t.Helper()
	if (Backend{}).Check(t.Context()) == nil {
		return
	}
	t.Setenv(EmulateEnv, "1")
	if err := (Backend{}).Check(t.Context()); err != nil {
		testenv.Missing(t, err.Error(), "apt-get install --no-install-recommends qemu-system-x86 linux-image-cloud-amd64, or unpack the latter's package and set "+KernelEnv)
	}
	t.Log("the processor is emulated here: this tests the contract, not the boundary")
}

func TestContract(t *testing.T) {
	needMachine(t)
	bottletest.Run(t, func() bottle.Backend { return Backend{} })
}
