package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const childEnv = "CARBOY_AUDIT_TEST_CHILD"

// TestMain lets the test binary be another process that appends.
func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		n, dir, _ := strings.Cut(spec, " ")
		count, _ := strconv.Atoi(n)
		if err := child(dir, count); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child appends count records and says each that is durable, once Append has returned.
func child(dir string, count int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	signal.Ignore(unix.SIGXFSZ) // a write beyond the limit on file size then fails, as on a full disk
	l, err := Open(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for i := range count {
		p, err := l.Append(ctx, event(i, i%2 == 0))
		if err != nil {
			return err
		}
		if p.Checkpoint != nil {
			fmt.Println(p.Seq)
		}
	}
	return l.Close()
}

func startChild(t *testing.T, dir string, count int) (*exec.Cmd, *bufio.Scanner, *bytes.Buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", childEnv, count, dir))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, bufio.NewScanner(out), &stderr
}

func TestAppendersInSeveralProcesses(t *testing.T) {
	const processes, each = 4, 40
	dir := filepath.Join(t.TempDir(), "audit")
	var wg sync.WaitGroup
	seen := make(chan int64, processes*each)
	for range processes {
		c, out, stderr := startChild(t, dir, each)
		wg.Go(func() {
			for out.Scan() {
				if n, err := strconv.ParseInt(out.Text(), 10, 64); err == nil {
					seen <- n
				}
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v: %s", err, stderr)
			}
		})
	}
	l, err := Open(ctx, dir) // and in several goroutines of this one
	if err != nil {
		t.Fatal(err)
	}
	for range processes {
		wg.Go(func() {
			for i := range each {
				if _, err := l.Append(ctx, event(i, false)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := l.Sync(ctx); err != nil {
		t.Error(err)
	}
	l.Close()
	close(seen)
	unique := map[int64]bool{}
	for n := range seen {
		unique[n] = true
	}
	r := verify(t, dir, VerifyOptions{})
	if !r.OK() || r.Records != 1+2*processes*each || r.Signed != r.Records || r.Repairs != 0 || len(unique) != processes*each/2 {
		t.Errorf("%d positions, %s", len(unique), r.JSON())
	}
}

// TestKillDuringAppend kills an appender at a random moment, ten times on the same log: no acknowledged record is
// lost, and every crash leaves a log that verifies after the next Open.
func TestKillDuringAppend(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 25
	}
	var dir string
	var signed []byte
	for i := range kills {
		if i%10 == 0 { // a fresh one now and then: verifying takes longer with each record
			dir, signed = filepath.Join(t.TempDir(), "audit"), nil
		}
		c, out, stderr := startChild(t, dir, 1<<30)
		if !out.Scan() {
			t.Fatalf("kill %d: child did not open the log: %s", i, stderr)
		}
		acked := int64(-1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			// After so many records, whatever they take on a busy machine, and then at any moment of the next ones.
			for steps := rand.N(6); ; steps-- {
				if steps == 0 {
					time.AfterFunc(rand.N(time.Millisecond), func() { c.Process.Signal(unix.SIGKILL) })
				}
				if !out.Scan() {
					break
				}
				if n, err := strconv.ParseInt(out.Text(), 10, 64); err == nil {
					acked = n
				}
			}
		}()
		<-done
		c.Wait()
		var o VerifyOptions
		if signed != nil {
			o.Anchors = [][]byte{signed}
		}
		if r := verify(t, dir, o); r.Status == Tampered || r.Signed <= acked {
			t.Fatalf("kill %d: record %d was acknowledged: %s", i, acked, r.JSON())
		}
		l, err := Open(ctx, dir)
		if err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		if signed, err = l.Sync(ctx); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		l.Close()
		if r := verify(t, dir, o); !r.OK() || r.Signed != r.Records {
			t.Fatalf("kill %d: %s", i, r.JSON())
		}
	}
}

var errInjected = errors.New("injected")

// faultDisk fails one call, or every call from one on as if the process had died there; a write then gets half-way.
type faultDisk struct {
	at    int // which call fails, from 0
	crash bool
	half  bool
	calls int
}

func (d *faultDisk) fails() bool {
	d.calls++
	return d.calls-1 == d.at || d.crash && d.calls-1 > d.at
}

func (d *faultDisk) WriteAt(f *os.File, p []byte, off int64) (int, error) {
	if d.fails() {
		if d.half && d.calls-1 == d.at {
			n, _ := f.WriteAt(p[:len(p)/2], off)
			return n, errInjected
		}
		return 0, errInjected
	}
	return f.WriteAt(p, off)
}

func (d *faultDisk) Truncate(f *os.File, size int64) error {
	if d.fails() {
		return errInjected
	}
	return f.Truncate(size)
}

func (d *faultDisk) Sync(f *os.File) error {
	if d.fails() {
		return errInjected
	}
	return nil
}

// TestEveryCallFails breaks each call that writes in turn: once (a full disk), or for good (a crash), whole or half-way.
// What Append acknowledged stays, what it refused did not happen unless it said that it can't tell, and the log can be
// opened again.
func TestEveryCallFails(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for _, half := range []bool{false, true} {
			for at := 0; ; at++ {
				d := &faultDisk{at: at, crash: crash, half: half}
				oneFault(t, d, fmt.Sprintf("call %d, crash %v, half %v", at, crash, half))
				if d.calls <= at {
					break
				}
			}
		}
	}
}

func oneFault(t *testing.T, d *faultDisk, name string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "audit")
	acked := map[int64]string{}
	var anchors [][]byte
	refused := map[string]bool{}
	l, err := open(ctx, dir, d, time.Now)
	if err == nil {
		for i := range 7 {
			e := event(i, i%2 == 1)
			p, err := l.Append(ctx, e)
			switch {
			case err == nil:
				acked[p.Seq] = e.Subject.s
				if p.Checkpoint != nil {
					anchors = append(anchors, p.Checkpoint)
				}
			case !strings.Contains(err.Error(), "state is unknown"):
				refused[e.Subject.s] = true
			}
		}
		l.Close()
	}
	if r, err := Verify(ctx, dir, VerifyOptions{Anchors: anchors}); err == nil && r.Status == Tampered {
		t.Errorf("%s: left %s", name, r.JSON())
	}
	if l, err = Open(ctx, dir); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if _, err := l.Append(ctx, event(99, true)); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	l.Close()
	if r := verify(t, dir, VerifyOptions{Anchors: anchors}); !r.OK() || r.Anchors != len(anchors) {
		t.Errorf("%s: %s", name, r.JSON())
	}
	f, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := newLines(f)
	for seq := int64(0); ; seq++ {
		line, whole, err := lines.next()
		if !whole || err != nil {
			break
		}
		r, err := parseRecord(line, seq)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want, ok := acked[seq]; ok && r.Subject != want {
			t.Errorf("%s: record %d is %q, acknowledged was %q", name, seq, r.Subject, want)
		}
		delete(acked, seq)
		if refused[r.Subject] && !d.crash {
			t.Errorf("%s: %q was refused and is there", name, r.Subject)
		}
	}
	if len(acked) > 0 {
		t.Errorf("%s: lost %v", name, acked)
	}
}

// TestFailedSyncEndsTheLog: the kernel reports lost pages once, so a second sync that succeeds proves nothing.
func TestFailedSyncEndsTheLog(t *testing.T) {
	dir, _ := fill(t, 3)
	d := &syncFails{}
	l, err := open(ctx, dir, d, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d.err = errInjected
	if _, err := l.Append(ctx, event(1, true)); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "state is unknown") {
		t.Error(err)
	}
	d.err = nil
	if _, err := l.Append(ctx, event(1, true)); !errors.Is(err, errInjected) {
		t.Errorf("went on after a failed sync: %v", err)
	}
	if l, err = Open(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, event(1, true)); err != nil {
		t.Error(err)
	}
	l.Close()
}

type syncFails struct {
	realDisk
	err error
}

func (d *syncFails) Sync(*os.File) error { return d.err }

// TestFullDisk appends until a real limit on file size ends it, as a disk that fills up does.
func TestFullDisk(t *testing.T) {
	dir, _ := fill(t, 3)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", childEnv, 1<<30, dir))
	var stderr bytes.Buffer
	c.Stdout, c.Stderr = io.Discard, &stderr
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(c.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 9999, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	if c.Wait() == nil || !strings.Contains(stderr.String(), unix.EFBIG.Error()) {
		t.Fatalf("the limit did not hold: %s", &stderr)
	}
	if r := verify(t, dir, VerifyOptions{}); !r.OK() {
		t.Errorf("the refused record left %s", r.JSON())
	}
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, event(1, true)); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if r := verify(t, dir, VerifyOptions{}); !r.OK() || r.Repairs != 0 {
		t.Errorf("%s", r.JSON())
	}
}
