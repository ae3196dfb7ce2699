package testenv

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
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

// A process that runs has not ended; one that was killed has, and one whose number is
// another's by now.
func TestEndsWithin(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	p, ok := ReadProcess(cmd.Process.Pid)
	if !ok || p.EndsWithin(time.Millisecond) {
		t.Errorf("it has ended: %+v", p)
	}
	former := p
	former.Start = "1"
	if !former.EndsWithin(0) {
		t.Error("a process runs whose number is another's")
	}
	cmd.Process.Kill()
	if !p.EndsWithin(Patience(time.Minute)) {
		t.Error("a killed process runs")
	}
	cmd.Wait()
	if !p.EndsWithin(0) {
		t.Error("a process runs that is gone")
	}
}
