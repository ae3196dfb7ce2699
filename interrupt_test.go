package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
)

// A person gets out of everything that hangs. These tests end by the test's own
// deadline when that is not so.

func TestInterruptBeforeTheCommand(t *testing.T) {
	w := newWorld(t)
	stop := make(chan os.Signal, 1)
	stop <- syscall.SIGINT
	r, out, err := w.sh("echo ran > /dev/stdout; echo ran > f", func(o *plan.Options) { o.Interrupt = stop })
	if !errors.Is(err, run.ErrInterrupted) || r == nil || r.Exit.Reason != receipt.Failed || strings.Contains(out, "ran") {
		t.Errorf("%v, receipt %+v, output %q", err, r, out)
	}
	w.ok("true") // and nothing of it is in the way
}

func TestInterruptOfAHungSandbox(t *testing.T) {
	w := newWorld(t)
	stop := make(chan os.Signal, 8)
	r, _, err := w.sh("sleep 600", func(o *plan.Options) {
		o.Interrupt = stop
		o.OnEvent = func(e plan.Event) {
			if e.Kind != "started" {
				return
			}
			if err := stopSandbox(); err != nil {
				t.Error(err)
			}
			for range 4 {
				stop <- syscall.SIGINT
			}
		}
	})
	if err == nil || r.Exit.Reason != receipt.Killed || r.Changes == nil || len(r.Changes.Incomplete) == 0 {
		t.Errorf("%v, receipt %+v", err, r)
	}
}

// stuck is a writer whose first Write does not return until it is let go.
type stuck struct{ in, out chan struct{} }

func (s *stuck) Write(b []byte) (int, error) {
	close(s.in)
	<-s.out
	return len(b), nil
}

func TestInterruptWithOutputThatNobodyReads(t *testing.T) {
	w := newWorld(t)
	stop := make(chan os.Signal)
	to := &stuck{in: make(chan struct{}), out: make(chan struct{})}
	defer close(to.out)
	over := make(chan struct{})
	defer close(over)
	go func() {
		<-to.in
		for { // as a person does, until it is over
			select {
			case stop <- syscall.SIGINT:
				time.Sleep(200 * time.Millisecond)
			case <-over:
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := w.c.Run(ctx, plan.Options{
		Command: []string{"sh", "-c", "trap '' INT; echo made > f; while :; do echo y; done"}, Workspace: w.ws, Stdout: to, Interrupt: stop,
	})
	if ctx.Err() != nil || r == nil || r.Exit.Reason != receipt.Killed {
		t.Errorf("%v, receipt %+v", err, r)
	}
}

// stopSandbox sends SIGSTOP to the sandbox below this process.
func stopSandbox() error {
	ents, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline"); strings.HasPrefix(string(b), "runsc-sandbox\x00") && ancestor(pid) == os.Getpid() {
			return syscall.Kill(pid, syscall.SIGSTOP)
		}
	}
	return errors.New("no sandbox found")
}

// ancestor is the process whose child's child pid is.
func ancestor(pid int) int {
	for range 2 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if pid, err = strconv.Atoi(f[1]); err != nil {
			return 0
		}
	}
	return pid
}
