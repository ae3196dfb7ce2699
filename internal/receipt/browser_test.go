package receipt

import (
	"bytes"
	"testing"

	"github.com/carboy/carboy/internal/browsertest"
)

func rendered(t *testing.T, r *Receipt) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// quiet fails the test when the page complained or asked for anything but itself.
func quiet(t *testing.T, p *browsertest.Tab) {
	t.Helper()
	p.Quiet(browsertest.FileOnly())
}
