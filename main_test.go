package carboy

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	gitVictim()
	os.Exit(m.Run())
}
