package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/phases"
	"golang.org/x/sys/unix"
)

// Phase holds a point of `carboy run -- true`, and the share of the whole run until then.
type Phase struct {
	Reached string  `json:"reached"`
	Share   float64 `json:"share"` // median
}

// phases splits the start into shares. It is not part of the rounds, since its figures are
// shares of one peer's own time.
func (b *bench) phases(ctx context.Context) error {
	i := slices.IndexFunc(b.peers, func(p *peer) bool { return p.name == "carboy" })
	if i < 0 || !slices.ContainsFunc(b.loads, func(l load) bool { return l.name == "start" }) {
		return nil
	}
	p, file := b.peers[i], b.path("phases")
	shares := map[string][]float64{}
	for range 3 * b.o.rounds {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		c, err := p.command(ctx, load{bare: true}, []string{"true"})
		if err != nil {
			return err
		}
		c.Env = append(c.Env, phases.Variable+"="+file)
		begin := monotonic()
		out, err := c.CombinedOutput()
		whole := monotonic() - begin
		if err = errors.Join(err, p.after()); err != nil {
			return fmt.Errorf("split the start: %w: %s", err, tailOf(string(out)))
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			name, ns, ok := cutLast(strings.TrimSpace(string(line)))
			if !ok {
				return fmt.Errorf("split the start: line %q of %s", line, filepath.Base(file))
			}
			shares[name] = append(shares[name], float64(ns-begin)/float64(whole))
		}
	}
	for name, s := range shares {
		b.split = append(b.split, Phase{name, median(s)})
	}
	slices.SortFunc(b.split, func(x, y Phase) int {
		return strings.Compare(fmt.Sprintf("%09.6f", x.Share), fmt.Sprintf("%09.6f", y.Share))
	})
	return nil
}

func monotonic() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// cutLast splits a line at its last blank, before a number.
func cutLast(line string) (name string, n int64, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(line[i+1:], 10, 64)
	return line[:i], n, err == nil
}

// Idle holds the memory of something that waits.
type Idle struct {
	Peer string `json:"peer"`
	// PSS is the memory of all its processes; shared memory counts once.
	PSS       int64 `json:"pss_bytes"`
	Processes int   `json:"processes"`
	// Own is the part of a process outside the container that watches it.
	Own int64 `json:"own_bytes,omitempty"`
}

// idle measures the memory of living peers after a short idle time. Only root may read it.
func (b *bench) idle(ctx context.Context) error {
	if len(b.kept) == 0 {
		return nil
	}
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, p := range b.peers {
		k := b.kept[key{string(living), p.name}]
		if k == nil || k.processes == nil {
			continue
		}
		pids, err := k.processes()
		if err != nil {
			return err
		}
		x := Idle{Peer: p.name, Processes: len(pids)}
		for _, pid := range pids {
			n, err := pss(pid)
			if errors.Is(err, os.ErrPermission) {
				b.skip("memory of a waiting bottle: needs root")
				return nil
			}
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // ended meanwhile
			}
			if err != nil {
				return err
			}
			x.PSS += n
			if pid == k.own {
				x.Own = n
			}
		}
		b.idles = append(b.idles, x)
	}
	return nil
}

func pss(pid int) (int64, error) {
	x, err := rollup(pid)
	return x["Pss"], err
}

// rollup sums a process's memory by kind, in bytes.
func rollup(pid int) (map[string]int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return nil, err
	}
	x, err := sizes(string(text))
	if _, ok := x["Pss"]; !ok && err == nil {
		err = fmt.Errorf("process %d: no Pss", pid)
	}
	return x, err
}

// sizes reads lines of "Name: N kB"; others are left out.
func sizes(text string) (map[string]int64, error) {
	out := map[string]int64{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return nil, err
			}
			out[strings.TrimSuffix(f[0], ":")] = n << 10
		}
	}
	return out, nil
}

// descendants returns the processes that top selects, with all their descendants.
func descendants(top func(pid, parent int) bool) ([]int, error) {
	ents, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	parent := map[int]int{}
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statOf(pid); len(f) > 1 {
			parent[pid], _ = strconv.Atoi(f[1])
		}
	}
	var out []int
	for pid := range parent {
		for p, n := pid, 0; p > 1 && n < 64; p, n = parent[p], n+1 {
			if top(p, parent[p]) {
				out = append(out, pid)
				break
			}
		}
	}
	return out, nil
}

// statOf returns the fields of a process's stat after its name; none if it is gone.
func statOf(pid int) []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The name, in parentheses, may hold anything.
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// childrenCPU returns the processor time of all descendants of this process, and of those
// that they have waited for.
func childrenCPU() (time.Duration, error) {
	pids, err := descendants(func(_, parent int) bool { return parent == os.Getpid() })
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, pid := range pids {
		f := statOf(pid)
		if len(f) < 15 {
			continue // ended meanwhile
		}
		for _, x := range f[11:15] {
			n, err := strconv.ParseInt(x, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("process %d: times %q", pid, f[11:15])
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / 100, nil
}
