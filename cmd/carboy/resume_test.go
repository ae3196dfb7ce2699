package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

const talks = `n=0; echo up; while read -r x; do n=$((n+1)); echo "$n: $x"; [ "$x" = end ] && exit 4; done; exit 9`

// A second terminal sees what is on the first one, and types there; it leaves, and
// the first one goes on. Frozen from a third, it goes on in a fourth.
func TestAttachFreezeResume(t *testing.T) {
	d := newDen(t, shellAgent(talks))
	s := terminalIn(t, d.home, "start", "waits", "-y")
	s.await("up")
	s.typed("first\n")
	s.await("1: first")
	other := terminalIn(t, d.home, "attach", "waits")
	other.await("1: first") // what was before
	other.typed("second\n")
	other.await("2: second")
	s.await("2: second")
	other.typed("~.")
	if code := other.end(); code != 0 {
		t.Errorf("attach ended with %d: %s", code, other.text())
	}
	s.typed("third\n")
	s.await("3: third")
	if out, msg, code := d.carboy("freeze", "waits"); code != 0 || !strings.Contains(msg, "is frozen") {
		t.Fatalf("%d %s%s", code, out, msg)
	}
	if code := s.end(); code != 125 || !strings.Contains(s.text(), "carboy resume waits") {
		t.Errorf("exit code %d: %s", code, s.text())
	}
	if _, msg, code := d.carboy("freeze", "waits"); code != 0 || !strings.Contains(msg, "was frozen already") {
		t.Errorf("again: %d %s", code, msg)
	}
	// It had a terminal, and needs one.
	if _, msg, code := d.carboy("resume", "waits"); code != 125 || !strings.Contains(msg, "terminal") {
		t.Errorf("%d %s", code, msg)
	}
	s = terminalIn(t, d.home, "resume", "waits")
	s.typed("fourth\n")
	s.await("4: fourth")
	s.typed("end\n")
	if code := s.end(); code != 4 {
		t.Errorf("exit code %d: %s", code, s.text())
	}
	if out, msg, code := d.carboy("attach", "waits"); code != 1 || !strings.Contains(msg, "not live") {
		t.Errorf("%d %s%s", code, out, msg)
	}
}

// fullScreen draws its terminal's size, and again when it changes, and names the keys that
// it gets, one by one. The size is drawn on the other screen, with the cursor hidden.
const fullScreen = `exec perl -e '$|=1; sub draw{ print "drawn ".` + "`stty size`" + ` } $SIG{WINCH}=\&draw;
system "stty raw -echo"; print "\e[?1049h\e[?25l"; draw();
while(1){ my $n=sysread(STDIN,my $k,1); next if !defined $n && $!{EINTR}; last unless $n; last if $k eq "q"; print "key-".ord($k)."."; }
print "\e[?25h\e[?1049l"; system "stty sane"; exit 6'`

// A program that has the whole screen is frozen: its terminal is as it was before. On the
// next one it has its screen and its keys again, and is told to draw.
func TestFreezeFullScreen(t *testing.T) {
	testenv.Need(t, "perl", "apt-get install perl")
	const there, back = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
	d := newDen(t, shellAgent(fullScreen))
	s := terminalIn(t, d.home, "start", "waits", "-y")
	s.await(there)
	s.await("drawn 40 100")
	s.typed("\r")
	s.await("key-13.") // and no new line, as of a terminal that reads lines

	other := terminalIn(t, d.home, "attach", "waits")
	other.await(there)
	other.await("drawn 40 100")
	other.typed("~.")
	if code := other.end(); code != 0 || !strings.Contains(other.text(), back) {
		t.Errorf("attach ended with %d: %q", code, other.text())
	}
	if strings.Contains(s.text(), back) {
		t.Errorf("attach closed the screen of the first terminal: %q", s.text())
	}
	if _, msg, code := d.carboy("freeze", "waits"); code != 0 {
		t.Fatalf("freeze: %d %s", code, msg)
	}
	if code := s.end(); code != 125 || !strings.Contains(s.text(), back) {
		t.Errorf("frozen: %d %q", code, s.text())
	}
	s = terminalOf(t, d.home, 90, []string{"TERM=xterm", "NO_COLOR=1"}, "resume", "waits")
	s.await(there)
	s.await("drawn 40 90")
	s.typed("\r")
	s.await("key-13.")
	s.typed("q")
	if code := s.end(); code != 6 || !strings.Contains(s.text(), back) {
		t.Errorf("resumed: %d %q", code, s.text())
	}
}

// Somebody who does not read is let go, and the command is not held up.
func TestAttachedDoesNotRead(t *testing.T) {
	d := newDen(t, shellAgent(`echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; yes | head -c 20000000 | tail -c 9; echo; yes | head -c 20000000; exit 6`))
	cmd, over := d.begun("start", "waits", "--headless", "--prompt", "x")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	look := d.command("attach", "waits")
	look.Stdout = w
	if err := look.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil { // it is attached, and reads no more
		t.Fatal(err)
	}
	if _, msg, code := d.carboy("exec", "waits", "--", "touch", "/tmp/go"); code != 0 {
		t.Fatalf("%d %s", code, msg)
	}
	if code := d.await(cmd, over); code != 6 {
		t.Errorf("exit code %d", code)
	}
	_ = look.Process.Kill()
	_ = look.Wait()
}

// settled returns the list of bottles once none is called running: the inner processes of
// a carboy that was killed may hold its locks for a moment.
func (d *den) settled() string {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		out, _, _ := d.carboy("list", "--bottles")
		if !strings.Contains(out, "running") || time.Now().After(deadline) {
			return out
		}
	}
}

// Killed at any moment of a freeze or a resume, carboy leaves a bottle that can be
// resumed or says that nothing is kept; what was kept before is there still.
func TestS5KillFreezeResume(t *testing.T) {
	d := newDen(t, shellAgent(`echo kept >>~/memory; echo up; while :; do sleep 0.02; done`))
	bottles := filepath.Join(d.home, "state", "carboy", "bottles")
	frozen, least, step := 0, 0, 1
	if testing.Short() {
		step = 3
	}
	for i := 0; i < 16; i += step {
		verb := []string{"start", "waits", "--headless", "--prompt", "x"}
		cmd, over := d.begun(verb...)
		if i%2 == 1 { // killed while it is resumed
			least++
			if _, msg, code := d.carboy("freeze", "waits"); code != 0 {
				t.Fatalf("%d %s", code, msg)
			}
			d.await(cmd, over)
			cmd = d.command("resume", "waits")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(i) * 12 * time.Millisecond)
			_ = cmd.Process.Signal(unix.SIGKILL)
			_ = cmd.Wait()
			if out := d.settled(); !strings.Contains(out, "frozen") {
				t.Errorf("killed during a resume: %s", out)
			}
		} else {
			done := make(chan struct{})
			go func() { defer close(done); d.carboy("freeze", "waits") }()
			time.Sleep(time.Duration(i) * 12 * time.Millisecond)
			_ = cmd.Process.Signal(unix.SIGKILL)
			d.await(cmd, over)
			<-done
		}
		out := d.settled()
		switch {
		case strings.Contains(out, "frozen"):
			frozen++
			next := d.command("resume", "waits")
			var said bytes.Buffer
			next.Stderr = &said
			if err := next.Start(); err != nil {
				t.Fatal(err)
			}
			read := func() string {
				got, _, _ := d.carboy("exec", "waits", "--", "sh", "-c", "cat ~/memory")
				return got
			}
			for deadline := time.Now().Add(patience); read() != "kept\n"; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					_ = next.Process.Kill()
					_ = next.Wait()
					t.Fatalf("round %d: it does not go on: %s", i, said.String())
				}
			}
			if _, msg, code := d.carboy("destroy", "--unlanded", "waits"); code != 0 {
				t.Errorf("%d %s", code, msg)
			}
			_ = next.Wait()
		case strings.Contains(out, "over"):
			if _, msg, code := d.carboy("resume", "waits"); code != 125 || !strings.Contains(msg, "nothing of it is kept") {
				t.Errorf("round %d: %d %s", i, code, msg)
			}
			if _, msg, code := d.carboy("destroy", "--unlanded", "waits"); code != 0 {
				t.Errorf("%d %s", code, msg)
			}
		default:
			t.Errorf("round %d: %s", i, out)
		}
		if left, err := os.ReadDir(bottles); err != nil || len(left) > 0 {
			t.Fatalf("round %d: left: %v %v", i, left, err)
		}
	}
	if frozen < least {
		t.Errorf("%d bottles could be resumed, less than the %d that were frozen", frozen, least)
	}
}
