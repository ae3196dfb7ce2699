package exitcode_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/exitcode"
)

// The manual must hold the current table.
func TestManualHoldsTheTable(t *testing.T) {
	const name = "../../docs/exit-codes.md"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), exitcode.Markdown()) {
		t.Errorf("%s does not hold the current table; it must contain:\n%s", name, exitcode.Markdown())
	}
}

func TestSignal(t *testing.T) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGKILL: 137, syscall.SIGTERM: 143} {
		if got := exitcode.Signal(sig); got != want {
			t.Errorf("Signal(%v) = %d, want %d", sig, got, want)
		}
	}
}
