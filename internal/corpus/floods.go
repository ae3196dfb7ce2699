package corpus

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
)

// flood describes an attack on a resource. Its command first makes a small use of the
// same kind, which must work, and prints "control"; then it floods.
type flood struct {
	command []string
	tune    func(*carboy.RunOptions)
	// made reports whether there was a flood at all; nil: the judge reports that, too.
	made func(r *ran) bool
	// judge returns the reason why the flood counts as an escape, or "".
	judge func(r *ran) string
}

// memorySlack is allowed beyond a bottle's limit: memory of the kernel inside, and memory
// that is taken between two measurements.
const memorySlack = 256 * mib

// maxProcesses bounds the processes of the host that belong to one bottle: its own
// parts and one for each address space inside.
func maxProcesses(inside int) int { return 4*inside + 20 }

func shell(script string, args ...string) []string {
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// Judges are asked only about runs that left a receipt.

// typed judges a flood that must end for the reason want.
func typed(r *ran, want receipt.Reason, limit string) string {
	switch {
	case r.rec.Exit.Reason != want:
		return fmt.Sprintf("the run ended with %s, want %s", r.ended(), want)
	case limit != "" && !r.hit(limit):
		return "the receipt does not name the limit " + limit
	}
	return ""
}

// went judges a flood that may end in any way but a failure of carboy's own.
func went(r *ran) string {
	if r.rec.Exit.Reason == receipt.Failed || r.rec.Exit.Reason == "" {
		return "the run ended with " + r.ended()
	}
	return ""
}

// number returns the number that a flood printed after a word.
func number(r *ran, word string) int {
	for line := range strings.Lines(r.out) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), word+" "); ok {
			n, err := strconv.Atoi(v)
			if err == nil {
				return n
			}
		}
	}
	return -1
}

const me = attacker.Path + " "

func floodOf(id string) (flood, bool) {
	f, ok := processFloods()[id]
	if !ok {
		f, ok = spaceFloods()[id]
	}
	return f, ok
}

// processFloods returns the attacks with many processes, with what processes hold, and
// with processes that stay.
func processFloods() map[string]flood {
	return map[string]flood{
		"floods/fork-bomb": {
			command: shell("(/bin/true) && echo control; b() { b | b & }; b; i=0; while [ $i -lt 200 ]; do (:); i=$((i + 1)); done"),
			tune:    func(o *carboy.RunOptions) { o.Limits.Pids = 60 },
			made:    func(r *ran) bool { return r.hit("pids") },
			judge: func(r *ran) string {
				if s := went(r); s != "" {
					return s
				}
				// A container's own kernel counts no refusals: there the host's count must do.
				uncounted := r.rec.Isolation.Backend == "docker" && r.rec.Isolation.Class == bottle.IsolationUserKernel
				if p := r.rec.Processes; !r.hit("pids") && !uncounted && (p == nil || p.Total > 600) { // they end soon: not all at once
					return "the receipt does not name the limit pids"
				}
				if n := maxProcesses(60); r.peak.processes > n {
					return fmt.Sprintf("%d processes on the host for 60 inside", r.peak.processes)
				}
				return ""
			},
		},
		"floods/process-storm": {
			command: shell("(/bin/true) && echo control; exec " + me + "storm 10000"),
			made:    func(r *ran) bool { return number(r, "ended") == 10000 },
			judge: func(r *ran) string {
				if s := typed(r, receipt.Exited, ""); s != "" {
					return s
				}
				if r.peak.processes > maxProcesses(10) {
					return fmt.Sprintf("%d processes on the host", r.peak.processes)
				}
				return ""
			},
		},
		"floods/descriptors": {
			command: shell("cat </dev/null && echo control; exec " + me + "open-files"),
			tune:    func(o *carboy.RunOptions) { o.Limits.OpenFiles = 256 },
			judge: func(r *ran) string {
				if n := number(r, "opened"); n > 256 || n < 0 {
					return fmt.Sprintf("%d files were opened, of 256: %s", n, r.ended())
				}
				return typed(r, receipt.Exited, "")
			},
		},
		"floods/long-exec": {
			command: shell("/bin/true x && echo control; " + me + "long-exec; exit 0"),
			made:    func(r *ran) bool { return number(r, "ran") > 0 },
			judge:   went,
		},
		"floods/wall-clock": {
			command: shell("echo control; trap '' TERM INT HUP QUIT ALRM; (setsid sh -c \"trap '' TERM HUP; sleep 600\" &) ; while :; do :; done"),
			tune:    func(o *carboy.RunOptions) { o.Limits.Timeout = 700 * time.Millisecond },
			judge:   func(r *ran) string { return typed(r, receipt.Timeout, "timeout") },
		},
	}
}

// spaceFloods returns the attacks on memory and disk, the kernel's included.
func spaceFloods() map[string]flood {
	return map[string]flood{
		"floods/memory": {
			command: shell("head -c 20000000 /dev/zero | tail -c 1 >/dev/null && echo control; exec " + me + "touch-memory"),
			tune:    func(o *carboy.RunOptions) { o.Limits.Memory = 200 * mib },
			judge:   func(r *ran) string { return typed(r, receipt.Memory, "memory") },
		},
		"floods/output": {
			command: shell("echo control; (yes >&2 &) ; exec yes"),
			tune:    func(o *carboy.RunOptions) { o.Limits.Output = 2 * mib },
			judge: func(r *ran) string {
				if n := len(r.out) + len(r.msg); n > 2*mib {
					return fmt.Sprintf("%d bytes were shown", n)
				}
				return typed(r, receipt.Output, "output")
			},
		},
		"floods/disk": {
			command: shell("head -c 1000000 /dev/zero > /tmp/small && echo control; i=0; while head -c 4000000 /dev/zero > /tmp/f$i 2>/dev/null; do i=$((i+1)); test $i -lt 100 || break; done; echo files $i; sleep 0.3; rm -f /tmp/f*; echo after > /tmp/after"),
			tune:    func(o *carboy.RunOptions) { o.Limits.Disk, o.Limits.FileSize = 32*mib, 32*mib },
			judge: func(r *ran) string {
				if n := number(r, "files"); n > 9 {
					return fmt.Sprintf("%d MB fit into 32 MiB", 4*n)
				}
				if r.rec.Exit.Reason == receipt.Killed {
					return typed(r, receipt.Killed, "disk") // a backend whose files have no limit of their own
				}
				return typed(r, receipt.Exited, "disk")
			},
		},
		"floods/sparse": {
			command: shell(me + "sparse 1000000 && echo control; " + me + "sparse 1099511627776 && echo made-a-terabyte; rm -f sparse"),
			judge: func(r *ran) string {
				if strings.Contains(r.out, "made-a-terabyte") {
					return "a file of a terabyte was made"
				}
				return typed(r, receipt.Exited, "")
			},
		},
		"floods/inodes": {
			command: shell("mkdir /tmp/n && cd /tmp/n && touch one && echo control; " + me + "make-inodes 20000; " + me + "deep 200; exit 0"),
			made: func(r *ran) bool {
				return number(r, "made") > 0 || r.rec.Exit.Reason == receipt.Memory
			},
			judge: went,
		},
		"floods/kernel-buffers": {
			command: shell("echo x | cat >/dev/null && echo control; exec " + me + "fill-pipes"),
			made: func(r *ran) bool {
				return strings.Contains(r.out, "holds ") || r.rec.Exit.Reason == receipt.Memory
			},
			tune:  func(o *carboy.RunOptions) { o.Limits.Memory, o.Limits.OpenFiles = 256*mib, 4096 },
			judge: went,
		},
	}
}

// floods runs each attack in a bottle of its own, and measures the host before, during
// and after it.
func floods(l *lab, chosen []attacker.Attack) error {
	for i, a := range chosen {
		if l.ctx.Err() != nil {
			return l.ctx.Err()
		}
		l.progress(i)
		f, ok := floodOf(a.ID)
		if !ok {
			return fmt.Errorf("%s has no flood", a.ID)
		}
		start := time.Now()
		v, err := l.flood(f)
		if err != nil {
			return err
		}
		v.took = time.Since(start)
		l.verdicts[a.ID] = v
	}
	return nil
}

func (l *lab) flood(f flood) (verdict, error) {
	before, disk := below(), onDisk(l.state)
	var limit int64
	r := l.bottle(true, func(o *carboy.RunOptions) {
		if f.tune != nil {
			f.tune(o)
		}
		limit = o.Limits.Memory
	}, f.command...)
	if r.rec == nil {
		return verdict{}, r.err
	}
	switch why := f.judge(r); {
	case !strings.Contains(r.out, "control\n"):
		return untried("what must work did not: %s %.200s", r.ended(), r.msg), nil
	case why != "":
		return escaped("%s", why), nil
	case f.made != nil && !f.made(r):
		return untried("there was no flood: %s %.200s", r.ended(), r.msg), nil
	case r.peak.memory > limit+memorySlack:
		return escaped("the bottle's processes held %d MiB, with a limit of %d", r.peak.memory/mib, limit/mib), nil
	}
	after := below()
	for end := time.Now().Add(settle); after.processes > before.processes && time.Now().Before(end); after = below() {
		time.Sleep(20 * time.Millisecond)
	}
	if after.processes > before.processes {
		return escaped("%d processes were left on the host", after.processes-before.processes), nil
	}
	if n := onDisk(l.state) - disk; n > 40*mib {
		return escaped("%d MiB were left on the host's disk", n/mib), nil
	}
	return contained("%s; at most %d processes and %d MiB on the host", r.ended(), r.peak.processes, r.peak.memory/mib), nil
}
