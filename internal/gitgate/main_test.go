package gitgate

import (
	"os"
	"testing"

	"github.com/carboy/carboy/internal/hostexec"
)

func TestMain(m *testing.M) {
	hostexec.Main()
	os.Exit(m.Run())
}
