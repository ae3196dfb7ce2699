package testenv

import (
	"runtime"
	"strings"
	"testing"
)

// fake records how a test would have ended.
type fake struct {
	testing.TB
	end string
}

func (f *fake) Helper() {}
func (f *fake) Fatalf(format string, args ...any) {
	f.end = "failed: " + format
	runtime.Goexit()
}
func (f *fake) Skipf(format string, args ...any) {
	f.end = "skipped: " + format
	runtime.Goexit()
}

func need(program string) string {
	f := &fake{end: "went on"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Need(f, program, "apt-get install nothing")
	}()
	<-done
	return f.end
}

func TestNeed(t *testing.T) {
	const missing = "carboy-no-such-program"
	for _, c := range []struct{ ci, program, want string }{
		{"", missing, "skipped"},
		{"1", missing, "failed"},
		{"", "go", "went on"},
		{"1", "go", "went on"},
	} {
		t.Setenv("CARBOY_CI", c.ci)
		if got := need(c.program); !strings.HasPrefix(got, c.want) {
			t.Errorf("CARBOY_CI=%q, %s: %s, want %s", c.ci, c.program, got, c.want)
		}
	}
}
