package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// BenchmarkTrace measures the cost of a trace: the CPU time of a bottle with one as a
// multiple of one without, in pairs, the median of the rounds. The bottle's is
// that of all its processes, its start included; "with-reader" adds this process,
// which reads and parses.
//
//	go test ./internal/bottle/gvisor -run - -bench Trace -benchtime 5x
func BenchmarkTrace(b *testing.B) {
	for _, load := range []struct {
		name   string
		script string
		seed   func(testing.TB, string)
	}{
		{"300-true", `i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done`, nil},
		{"git-status", `git config --global --add safe.directory '*'; for i in 1 2 3 4 5 6 7 8; do git status > /dev/null; done`, seedRepository},
		{"stat", `exec python3 -c 'import os
for _ in range(40000): os.stat("d/e/f")'`, seedDeep},
		{"miss", `exec python3 -c 'import os
for _ in range(40000): os.path.exists("d/e/none")'`, seedDeep},
		{"open", `exec python3 -c 'import os
for _ in range(40000): os.close(os.open("d/e/f", 0))'`, seedDeep},
		{"write", `exec python3 -c 'import os
f = os.open("out", os.O_CREAT|os.O_RDWR)
for _ in range(60000): os.pwrite(f, b"x", 0)'`, nil},
		{"go-build", `cp -r . /tmp/m; cd /tmp/m; exec /usr/local/go/bin/go build -o /tmp/out .`, seedModule},
	} {
		b.Run(load.name, func(b *testing.B) {
			var bottles, all []float64
			facts := 0
			for b.Loop() {
				var with, without [2]float64
				// Which comes first changes from round to round.
				if len(all)%2 == 0 {
					without, _ = traceCost(b, load.script, load.seed, false)
					with, facts = traceCost(b, load.script, load.seed, true)
				} else {
					with, facts = traceCost(b, load.script, load.seed, true)
					without, _ = traceCost(b, load.script, load.seed, false)
				}
				b.Logf("%.2f with, %.2f without", with[0], without[0])
				bottles = append(bottles, with[0]/without[0])
				all = append(all, (with[0]+with[1])/(without[0]+without[1]))
			}
			slices.Sort(bottles)
			slices.Sort(all)
			b.ReportMetric(bottles[len(bottles)/2], "ratio")
			b.ReportMetric(all[len(all)/2], "with-reader")
			b.ReportMetric(float64(facts), "facts")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// traceCost runs script in a bottle and returns the CPU seconds of the bottle
// and of this process.
func traceCost(b testing.TB, script string, fill func(testing.TB, string), traced bool) (cost [2]float64, facts int) {
	tune := func(s *bottle.Spec) {
		if fill != nil {
			fill(b, s.Workspace.Source)
		}
		s.Limits.FileSize, s.Limits.Memory = 1<<30, 8<<30
		if cache, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
			s.Root.Entries = append(s.Root.Entries, bottle.Entry{Path: "/etc/ld.so.cache", Mode: 0o644, Content: cache})
		}
	}
	var m *made
	var r *factReader
	if traced {
		m, r = makeTraced(b, tune)
	} else {
		m = makeBottle(b, tune)
	}
	shim := m.b.(*box).cmd.Process.Pid
	before, self := bottleCPU(b, shim), selfCPU(b)
	if out, st := m.run("/bin/sh", "-c", "export HOME=/tmp GOFLAGS=-mod=mod GOTOOLCHAIN=local GOPROXY=off; "+script); st.ExitCode() != 0 {
		b.Fatal(out)
	}
	if err := m.b.Pause(m.ctx); err != nil {
		b.Fatal(err)
	}
	cost[0] = bottleCPU(b, shim) - before
	if traced {
		facts = len(r.all(b, m.b))
	}
	m.b.Close()
	cost[1] = selfCPU(b) - self
	return cost, facts
}

func selfCPU(t testing.TB) float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// bottleCPU is the CPU time of pid, of what lives below it and of what that has
// waited for, in seconds.
func bottleCPU(t testing.TB, pid int) float64 {
	t.Helper()
	ents, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent, ticks := map[int]int{}, map[int]float64{}
	for _, e := range ents {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(rest)
		parent[n], _ = strconv.Atoi(f[1])
		for _, x := range f[11:15] {
			v, _ := strconv.ParseFloat(x, 64)
			ticks[n] += v
		}
	}
	var sum float64
	for n := range parent {
		for up := n; up > 1; up = parent[up] {
			if up == pid {
				sum += ticks[n]
				break
			}
		}
	}
	return sum / 100
}

func seedDeep(t testing.TB, dir string) {
	if err := os.MkdirAll(filepath.Join(dir, "d/e"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "d/e/f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func seedRepository(t testing.TB, dir string) {
	for i := range 3000 {
		p := filepath.Join(dir, fmt.Sprintf("d%d/e%d", i%30, i%300))
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p, fmt.Sprint(i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"}} {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git: %v: %s", err, out)
		}
	}
}

func seedModule(t testing.TB, dir string) {
	for name, text := range map[string]string{
		"go.mod":  "module m\n\ngo 1.24\n",
		"main.go": "package main\n\nimport (\n\t\"encoding/json\"\n\t\"fmt\"\n)\n\nfunc main() { b, _ := json.Marshal(1); fmt.Println(string(b)) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
