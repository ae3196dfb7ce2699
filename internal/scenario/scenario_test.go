package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/receipt/receipttest"
	"github.com/carboy/carboy/internal/trace"
)

func TestParse(t *testing.T) {
	s, err := Parse("f", []byte(`
limits: {memory: 4GiB, pids: 1024}
scenarios:
  - name: a
    command: [./server, --check, --check]
    expected_exit_code: 3
    timeout: 10s
    network: [example.org:443]
    memory: 512MiB
    pids: 64
  - {name: b c, command: ["true"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := s.Scenarios[0], s.Scenarios[1]
	if s.Memory != 4<<30 || s.Pids != 1024 || a.Expected != 3 || a.Timeout != 10*time.Second || len(a.Command) != 3 || a.Network[0] != "example.org:443" || a.Memory != 512<<20 || a.Pids != 64 {
		t.Errorf("%+v", s)
	}
	if b.Timeout != defaultTimeout || defaultTimeout != 120*time.Second || b.Expected != 0 || b.Network != nil {
		t.Errorf("%+v", b)
	}
}

// Whatever is wrong is said with its place, all at once.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"scenarios: []": "no scenario",
		"{}":            "scenarios",
		"scenarios: [{name: a, command: sh -c x}]":                      "not a list",
		"scenarios: [{name: a, command: []}]":                           "names no program",
		"scenarios: [{name: a}]":                                        "command",
		"scenarios: [{command: [x]}]":                                   "name",
		"scenarios: [{name: a/b, command: [x]}]":                        "no name",
		"scenarios: [{name: a, command: [x]}, {name: a, command: [y]}]": "like the one in line 1",
		"scenarios: [{name: a, command: [x], expected_exit_code: 256}]": "expected_exit_code",
		"":            "needs scenarios",
		"# nothing\n": "needs scenarios",
		"scenarios: [{name: a, command: [x], timeout: 48h}]":                                            "longer than a day",
		"scenarios: [{name: a, command: [x], confidence: 1}]":                                           "confidence",
		"scenarios: [{name: a, command: [x], network: ['a b']}]":                                        "network",
		"{limits: {memory: 1GiB}, scenarios: [{name: a, command: [x], memory: 2GiB}]}":                  "more than limits allow",
		"scenarios: [{name: a, command: [x], skip: ''}]":                                                "gives no reason",
		"scenarios: [{name: a, command: [x], memory: 1MiB}]":                                            "below 64MiB",
		"scenarios: [" + strings.Repeat("{name: a, command: [x]}, ", 0) + "{name: 1, command: [true]}]": "name",
	} {
		_, err := Parse("scenarios.yaml", []byte(text))
		var d document.Error
		if !errors.As(err, &d) || !strings.Contains(err.Error(), want) || d[0].Line == 0 && !strings.Contains(text, "{}") {
			t.Errorf("%s: %v, want %q with its line", text, err, want)
		}
	}
	many := "scenarios:\n"
	for i := range maxScenarios + 1 {
		many += fmt.Sprintf("  - {name: n%d, command: [x]}\n", i)
	}
	if _, err := Parse("f", []byte(many)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d scenarios: %v", maxScenarios+1, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("scenarios: [{name: a, command: [x]}]"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse("f", b)
		if err != nil {
			return
		}
		if len(s.Scenarios) == 0 || len(s.Scenarios) > maxScenarios {
			t.Errorf("%d scenarios", len(s.Scenarios))
		}
		for _, x := range s.Scenarios {
			if x.Name == "" || len(x.Command) == 0 || x.Command[0] == "" || x.Timeout <= 0 || x.Timeout > maxTimeout {
				t.Errorf("%+v", x)
			}
		}
	})
}

// fake implements Runner without sandboxes.
type fake struct {
	mu      sync.Mutex
	running int
	memory  int64
	most    int
	mostMem int64
	do      func(context.Context, *Scenario, *Slices) (*Ended, error)
}

func (f *fake) Run(ctx context.Context, s *Scenario, seen *Slices) (*Ended, error) {
	f.mu.Lock()
	f.running++
	f.memory += s.Memory
	f.most, f.mostMem = max(f.most, f.running), max(f.mostMem, f.memory)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.memory -= s.Memory
		f.mu.Unlock()
	}()
	return f.do(ctx, s, seen)
}

var together = Together{Memory: 1000, Pids: 100, EachMemory: 100, EachPids: 10}

func one(name string) Scenario { return Scenario{Name: name, Command: []string{name}} }

// Each way to end has one outcome, and what came of one does not change the others.
func TestOutcomes(t *testing.T) {
	type want struct {
		outcome Outcome
		reason  Reason
	}
	ends := map[string]struct {
		e    *Ended
		err  error
		want want
	}{
		"well":        {&Ended{How: "exited"}, nil, want{Completed, ""}},
		"code":        {&Ended{How: "exited", Code: 1}, nil, want{failed, exitCode}},
		"signal":      {&Ended{How: "signalled", Signal: "SIGSEGV"}, nil, want{failed, signal}},
		"time":        {&Ended{How: "timeout", Hits: []string{"timeout"}}, nil, want{timedOut, ""}},
		"memory":      {&Ended{How: "memory", Hits: []string{"memory"}}, nil, want{failed, memLimit}},
		"output":      {&Ended{How: "output"}, nil, want{failed, outLimit}},
		"pids":        {&Ended{How: "pids"}, nil, want{failed, pidLimit}},
		"pids-time":   {&Ended{How: "timeout", Hits: []string{"timeout", "pids"}}, nil, want{failed, pidLimit}},
		"pids-well":   {&Ended{How: "exited", Hits: []string{"pids"}}, nil, want{failed, pidLimit}},
		"disk":        {&Ended{How: "exited", Code: 1, Hits: []string{"disk"}}, nil, want{failed, diskLimit}},
		"not-started": {&Ended{How: "failed", NotStarted: true, Error: "no such program"}, nil, want{failed, notStarted}},
		"sandbox":     {&Ended{How: "failed", Error: "the bottle died"}, nil, want{failed, broken}},
		"unknown":     {&Ended{How: "something new"}, nil, want{failed, broken}},
		"none":        {nil, nil, want{failed, broken}},
		"error":       {nil, errors.New("no room"), want{failed, broken}},
		"panic":       {nil, nil, want{failed, broken}},
	}
	set := &Set{}
	for _, name := range slices.Sorted(maps.Keys(ends)) {
		set.Scenarios = append(set.Scenarios, one(name))
	}
	net := one("net")
	net.Network = []string{"example.org"}
	large := one("large")
	large.Memory = 2000
	left := one("left-out")
	left.Skip = "it needs a camera"
	set.Scenarios = append(set.Scenarios, net, large, left)
	tg := together
	tg.NoNetwork = true
	events := 0
	results, _ := Run(t.Context(), set, tg, &fake{do: func(_ context.Context, s *Scenario, _ *Slices) (*Ended, error) {
		if s.Name == "panic" {
			panic("oh")
		}
		return ends[s.Name].e, ends[s.Name].err
	}}, nil, func(Event) { events++ })
	orders := map[int]bool{}
	for i, r := range results {
		w, ok := ends[r.Name]
		switch {
		case r.Name == "net":
			w.want = want{Skipped, offline}
		case r.Name == "large":
			w.want = want{Skipped, tooLarge}
		case r.Name == "left-out":
			w.want = want{Skipped, declared}
		case !ok || r.Name != set.Scenarios[i].Name:
			t.Errorf("result %d is of %q", i, r.Name)
		}
		if r.Outcome != w.want.outcome || r.Reason != w.want.reason {
			t.Errorf("%s: %s %s, want %s %s", r.Name, r.Outcome, r.Reason, w.want.outcome, w.want.reason)
		}
		if r.Outcome != Skipped && (r.Order == 0 || orders[r.Order]) {
			t.Errorf("%s ended as number %d", r.Name, r.Order)
		}
		orders[r.Order] = true
	}
	if want := 2*len(ends) + 3; events != want {
		t.Errorf("%d events, want %d", events, want)
	}
}

// What runs side by side fits into what all may have, and all of it is used.
func TestSideBySide(t *testing.T) {
	set := &Set{}
	for i := range 30 {
		s := one(fmt.Sprint("n", i))
		s.Memory, s.Pids = 400, 1
		if i%3 == 0 {
			s.Memory = 900
		}
		set.Scenarios = append(set.Scenarios, s)
	}
	// Two that fit together must be there at once, or neither ends.
	both := make(chan struct{})
	f := &fake{}
	f.do = func(ctx context.Context, s *Scenario, _ *Slices) (*Ended, error) {
		switch s.Name {
		case "n1":
			select {
			case <-both:
			case <-time.After(time.Minute):
				t.Error("n2 did not run beside n1")
			}
		case "n2":
			both <- struct{}{}
		}
		return &Ended{How: "exited"}, nil
	}
	results, _ := Run(t.Context(), set, together, f, nil, nil)
	for _, r := range results {
		if r.Outcome != Completed {
			t.Errorf("%+v", r)
		}
	}
	if f.mostMem > together.Memory || f.most < 2 {
		t.Errorf("%d bytes and %d scenarios at a time", f.mostMem, f.most)
	}
	tg := together
	tg.Runs = 1
	f = &fake{do: func(context.Context, *Scenario, *Slices) (*Ended, error) { return &Ended{How: "exited"}, nil }}
	if Run(t.Context(), set, tg, f, nil, nil); f.most != 1 {
		t.Errorf("%d at a time, want 1", f.most)
	}
}

// A canceled Run returns a result for each scenario.
func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	set := &Set{}
	for i := range 5 {
		s := one(fmt.Sprint("n", i))
		s.Memory = 900
		set.Scenarios = append(set.Scenarios, s)
	}
	results, _ := Run(ctx, set, together, &fake{do: func(ctx context.Context, s *Scenario, _ *Slices) (*Ended, error) {
		cancel()
		<-ctx.Done()
		return &Ended{How: "killed"}, nil
	}}, nil, nil)
	if results[0].Outcome != failed || results[0].Reason != canceled {
		t.Errorf("the one that ran: %+v", results[0])
	}
	for _, r := range results[1:] {
		if r.Outcome != Skipped || r.Reason != canceled {
			t.Errorf("one that did not: %+v", r)
		}
	}
}

func digest(c byte) string { return strings.Repeat(string(c), 32) }
func hexOf(c byte) string  { return strings.Repeat(fmt.Sprintf("%02x", c), 32) }

// seen holds a small trace.
func seen(shells Shells) *Slices {
	s := newSlices(shells)
	for _, f := range []trace.Fact{
		{Op: trace.Exec, Path: "/usr/bin/dash", Path2: "/bin/sh", Args: []string{"sh", "-c", "true"}, Digest: digest('s'), UID: 7, EUID: 7},
		{Op: trace.Exec, Path: "/tmp/notes.txt", Args: []string{"/usr/bin/lie", "-c", "x"}, Digest: digest('s'), Flags: trace.Mutable},
		{Op: trace.Exec, Path: "memfd:x", Digest: digest('m'), Flags: trace.Deleted | trace.Mutable},
		{Op: trace.Exec, Path: "/usr/bin/none", Errno: uint32(unix.ENOENT)},
		{Op: trace.Exec, Path: "/bin/busybox", Args: []string{"ls"}, Digest: digest('b')},
		{Op: trace.Exec, Path: "/bin/busybox", Args: []string{"busybox", "ash", "-c", "y"}, Digest: digest('b')},
		{Op: trace.Load, Path: "/lib/libc.so.6"},
		{Op: trace.Load, Path: "/tmp/lib.txt", Flags: trace.Mutable | trace.Claimed},
		{Op: trace.Open, Path: "/etc/passwd"},
		{Op: trace.Open, Path: "/etc/passwd"},
		{Op: trace.Open, Path: "/etc/ssl/certs/ca.crt"},
		{Op: trace.Open, Path: "/out", A: unix.O_WRONLY | unix.O_CREAT},
		{Op: trace.Open, Path: "/root/.ssh/key.pem", Errno: uint32(unix.ENOENT)},
		{Op: trace.Stat, Path: "/opt/tls.p12", Errno: uint32(unix.ENOENT)},
		{Op: trace.Socket, A: unix.AF_INET, B: unix.SOCK_STREAM},
		{Op: trace.Socket, A: unix.AF_PACKET, B: unix.SOCK_RAW, Errno: uint32(unix.EPERM)},
		{Op: trace.Connect, A: unix.AF_INET, Path: "10.0.0.1:443", Errno: uint32(unix.ECONNREFUSED)},
		{Op: trace.Accept, A: unix.AF_INET, Path: "127.0.0.1:80", Path2: "127.0.0.1:4000"},
		{Op: trace.Send, A: unix.AF_INET6, Path: "[::1]:53", Flags: trace.Claimed},
		{Op: trace.Chown, Path: "/x", Errno: uint32(unix.EPERM)},
		{Op: trace.Refused, Path: "bpf", Errno: uint32(unix.ENOSYS)},
		{Op: trace.Kill, A: 15, B: 9},
		{Op: trace.Kill, A: 9, B: 1, Errno: uint32(unix.EPERM)},
	} {
		s.Add(&f)
	}
	s.AddEndpoint(Endpoint{What: "name", Family: "dns", Address: "example.org", Verdict: "refused", Rule: "no-route", Count: 2})
	return s
}

var knownShells = Shells{hexOf('s'): "sh", hexOf('b'): "busybox"}

func TestSlices(t *testing.T) {
	l := seen(knownShells).lists()
	var names []string
	for _, b := range l.Binaries {
		names = append(names, fmt.Sprintf("%s %s %s %v %v", b.Path, b.Shell, b.SameAs, b.Nameless, b.Mutable))
	}
	want := []string{"/bin/busybox   false false", "/bin/busybox ash  false false", "/tmp/notes.txt sh /usr/bin/dash false true", "/usr/bin/dash sh /tmp/notes.txt false false", "memfd:x   true true"}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("binaries\n%q, want\n%q", names, want)
	}
	if len(l.Refused) != 1 || l.Refused[0].Errno != "ENOENT" {
		t.Errorf("refused %+v", l.Refused)
	}
	if len(l.Libraries) != 2 || l.Libraries[1].Path != "/tmp/lib.txt" || !l.Libraries[1].Claimed {
		t.Errorf("libraries %+v", l.Libraries)
	}
	if len(l.Files) != 2 || l.Files[0].Count != 2 {
		t.Errorf("files %+v", l.Files)
	}
	if len(l.Certs) != 3 || l.Certs[0].Errno != "" || l.Certs[1].Errno != "ENOENT" {
		t.Errorf("certificates %+v", l.Certs)
	}
	if len(l.Shells) != 3 || l.Shells[1].Path != "/tmp/notes.txt" || len(l.Shells[1].Args) != 3 {
		t.Errorf("shells %+v", l.Shells)
	}
	var ends []string
	for _, e := range l.Endpoints {
		ends = append(ends, strings.TrimSpace(fmt.Sprintf("%s %s %s %s%s", e.What, e.Family, e.Address, e.Errno, e.Verdict)))
	}
	if want := []string{"accept inet 127.0.0.1:4000", "connect inet 10.0.0.1:443 ECONNREFUSED", "name dns example.org refused", "send inet6 [::1]:53", "socket packet raw EPERM"}; !slices.Equal(ends, want) {
		t.Errorf("endpoints\n%q, want\n%q", ends, want)
	}
	if len(l.Privileges) != 3 || l.Privileges[0].What != "bpf" || l.Privileges[1].What != "chown" || l.Privileges[2].What != "kill" {
		t.Errorf("privileges %+v", l.Privileges)
	}
}

// A workload that touches more than the slices hold cannot hide that, nor take the
// room of another slice.
func TestSlicesAreBounded(t *testing.T) {
	s := newSlices(nil)
	for i := range maxEntries + 10 {
		s.Add(&trace.Fact{Op: trace.Open, Path: fmt.Sprint("/f", i)})
	}
	s.Add(&trace.Fact{Op: trace.Exec, Path: "/bin/late"})
	if l := s.lists(); len(l.Files) != maxEntries || len(l.Binaries) != 1 || s.cut() != 10 {
		t.Errorf("%d files, %d binaries, %d cut", len(l.Files), len(l.Binaries), s.cut())
	}
	if c := coverageOf([]Result{{Outcome: Completed, traced: true}}, s, false); c.Level != Low || len(c.Lowered) != 1 {
		t.Errorf("%+v", c)
	}
}

func TestCoverage(t *testing.T) {
	done := Result{Outcome: Completed, traced: true}
	lossy := done
	lossy.Dropped = 1
	untraced := Result{Outcome: Completed}
	n := func(k int, r Result) []Result { return slices.Repeat([]Result{r}, k) }
	for i, x := range []struct {
		results []Result
		start   bool
		want    Level
	}{
		{nil, false, unavailable},
		{n(3, Result{Outcome: Skipped}), false, unavailable},
		{n(1, untraced), false, unavailable},
		{n(1, done), true, Low},
		{n(1, Result{Outcome: failed, traced: true}), false, Low},
		{n(1, done), false, Medium},
		{n(4, done), false, Medium},
		{n(5, done), false, high},
		{append(n(5, done), lossy), false, Medium},
		{append(n(5, done), untraced), false, Medium},
		{append(n(5, done), Result{Outcome: failed}), false, high},
		{n(1, lossy), false, Low},
		{n(1, lossy), true, unavailable},
	} {
		if c := coverageOf(x.results, newSlices(nil), x.start); c.Level != x.want || (c.Level == unavailable) != (c.Level == levels[0]) {
			t.Errorf("%d: %s, want %s: %v", i, c.Level, x.want, c.Lowered)
		}
	}
}

func report(t *testing.T) *Report {
	t.Helper()
	set := &Set{Scenarios: []Scenario{one("a"), one("b")}}
	results, all := Run(t.Context(), set, together, &fake{do: func(_ context.Context, s *Scenario, to *Slices) (*Ended, error) {
		to.merge(seen(knownShells), 0)
		return &Ended{Run: "r", How: "exited", Facts: 20, Trace: hexOf('t'), Image: "sha256:" + hexOf('i'), Isolation: "user-kernel"}, nil
	}}, knownShells, nil)
	r := &Report{Build: "v1", Started: time.Unix(0, 0).UTC(), Target: Target{Kind: "image", Ref: "tar:x", Built: "sha256:" + hexOf('j')}}
	r.Fill(results, all, false)
	return r
}

// The documents match their schemas: every written field is in the schema, and no other
// field is.
func TestSchemas(t *testing.T) {
	r := report(t)
	if r.OK() || r.Target.Match == nil || *r.Target.Match {
		t.Errorf("another image was traced than was built, and the report is fine: %+v", r.Target)
	}
	for file, v := range map[string]any{"gate-trace.v1.json": r, "codegenie-trace.v1.json": r.Codegenie()} {
		schema, err := receipttest.Load("../../docs/schemas/" + file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		for _, p := range schema.Check(doc) {
			t.Errorf("%s: %s", file, p)
		}
		written, published := slices.Sorted(maps.Keys(doc)), slices.Sorted(maps.Keys(schema.Properties(schema.Root())))
		if !slices.Equal(written, published) {
			t.Errorf("%s: written are %v, published %v", file, written, published)
		}
		for _, name := range []string{"binaries_executed", "shared_libs_loaded", "cert_paths_read", "files_read_at_runtime", "shell_invocations", "network_endpoints_touched"} {
			at := doc
			if file == "gate-trace.v1.json" {
				at = doc["slices"].(map[string]any)
			}
			if l, ok := at[name].([]any); !ok || len(l) == 0 {
				t.Errorf("%s has no slice %s", file, name)
			} else if in := l[0].(map[string]any)["scenarios"]; fmt.Sprint(in) != "[a b]" {
				t.Errorf("%s: %s is of scenarios %v", file, name, in)
			}
		}
	}
}

// What comes from inside is made visible, and everything has its line.
func TestText(t *testing.T) {
	r := report(t)
	s := newSlices(nil)
	s.Add(&trace.Fact{Op: trace.Exec, Path: "/tmp/\x1b]0;owned\x07"})
	r.Slices.Binaries = append(r.Slices.Binaries, s.lists().Binaries...)
	var b strings.Builder
	if err := r.Text(&b, false); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"NOT what was traced", "coverage      medium (2 of 2 completed; 40 facts, 0 missing)", "/tmp/notes.txt  " + hexOf('s')[:16] + "  [is /usr/bin/dash, mutable]", "without a file", "10.0.0.1:443  ECONNREFUSED", "chown /x"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.ContainsRune(text, '\x1b') {
		t.Errorf("an escape reaches the terminal: %q", text)
	}
	if os.Getenv("SHOW") != "" {
		t.Log(text)
	}
}
