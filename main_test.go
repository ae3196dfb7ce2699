package carboy

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	Main()
	gitVictim()
	issueVictim()
	os.Exit(m.Run())
}
