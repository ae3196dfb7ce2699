package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A bottle starts this program four times, so what packages do before main is
// paid four times: nothing of ours compiles patterns or fills tables there.
// Allocations are counted, not time: they are the same on every machine.
func TestCheapInit(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^$")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	c.Stderr = &trace
	if err := c.Run(); err != nil {
		t.Fatalf("%v: %s", err, trace.String())
	}
	const most = 300
	lines := regexp.MustCompile(`(?m)^init (github\.com/carboy/carboy\S*|main) @.* (\d+) allocs$`).FindAllStringSubmatch(trace.String(), -1)
	if len(lines) < 5 {
		t.Fatalf("the trace names only %d packages of ours:\n%.2000s", len(lines), trace.String())
	}
	for _, l := range lines {
		most := most
		if strings.Contains(l[1], "/internal/corpus") {
			most = 20 // most processes never attack anything
		}
		if n, _ := strconv.Atoi(l[2]); n > most && !strings.HasSuffix(l[1], "_test") {
			t.Errorf("%s allocates %d times before main, more than %d: make it when it is first used (sync.OnceValue)", l[1], n, most)
		}
	}
}
