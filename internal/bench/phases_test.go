package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestCutLast(t *testing.T) {
	for in, want := range map[string]struct {
		name string
		n    int64
		ok   bool
	}{"shim: main 12": {"shim: main", 12, true}, "end 0": {"end", 0, true}, "12": {}, "": {}, "a b": {name: "a"}} {
		name, n, ok := cutLast(in)
		if name != want.name || n != want.n || ok != want.ok {
			t.Errorf("cutLast(%q) = %q, %d, %v", in, name, n, ok)
		}
	}
}

// A process of ours is found with what it started, and nobody else's.
func TestDescendants(t *testing.T) {
	c := exec.Command("/bin/sh", "-c", "sleep 60 & echo $!; wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	var line [32]byte
	n, err := out.Read(line[:])
	if err != nil {
		t.Fatal(err)
	}
	child := strings.TrimSpace(string(line[:n]))
	defer exec.Command("/bin/kill", child).Run()
	got, err := descendants(func(pid, parent int) bool { return pid == c.Process.Pid && parent == os.Getpid() })
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !slices.Contains(got, c.Process.Pid) {
		t.Errorf("descendants of %d: %v, want it and %s", c.Process.Pid, got, child)
	}
	if n, err := pss(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("own memory: %d, %v", n, err)
	}
}

// The split's text: shares in their order, and memory.
func TestSplitIsShown(t *testing.T) {
	r := &Report{Start: []Phase{{"main", 0.07}, {"little", 0.08}, {"root", 0.97}, {"end", 0.98}}, Idle: []Idle{{Peer: "runsc", PSS: 45 << 20, Processes: 5}, {Peer: "carboy", PSS: 50 << 20, Processes: 6, Own: 20 << 20}}}
	for _, want := range []string{"more): main 7 %, root 97 %, end 98 %.\n", "counted once): runsc 45 MiB in 5 processes; carboy 50 MiB in 6 processes (without the one that watches it 30 MiB)."} {
		if !strings.Contains(r.markdown(), want) {
			t.Errorf("no %q in:\n%s", want, r.markdown())
		}
	}
}
