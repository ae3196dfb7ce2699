package gate

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/visible"
)

// TraceSchema names the format of a TraceReport.
const TraceSchema = "carboy.dev/gate-trace/v1"

// MaxScenarios bounds a file of scenarios.
const MaxScenarios = 100

// Scenario is one way to use what is traced.
type Scenario struct {
	Name     string
	Command  []string
	Expected int
	Timeout  time.Duration
	Network  []string
	// Skip is why it is not run; empty: it is.
	Skip string
}

// ParseScenarios reads a file of scenarios: a list of name, command,
// expected_exit_code, timeout, network and skip. The error is a document.Error.
func ParseScenarios(file string, data []byte) ([]Scenario, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	m := top.Mapping("version", "scenarios")
	if v := m.Need("version"); v.Present() && v.Int(0, 0, 1000) != 1 {
		v.Bad("is not a version that this carboy knows", "write version: 1")
	}
	list := m.Need("scenarios").List()
	if len(list) == 0 || len(list) > MaxScenarios {
		m.Get("scenarios").Bad(fmt.Sprintf("has %d scenarios, and may have 1 to %d", len(list), MaxScenarios), "")
		list = nil
	}
	var out []Scenario
	for _, v := range list {
		m := v.Mapping("name", "command", "expected_exit_code", "timeout", "network", "skip")
		s := Scenario{Name: m.Need("name").Text(), Expected: int(m.Get("expected_exit_code").Int(0, 0, 255)), Timeout: DefaultScenario, Network: m.Get("network").Strings(), Skip: m.Get("skip").Text()}
		if m.Get("name").Present() && (!signalName().MatchString(s.Name) || slices.ContainsFunc(out, func(x Scenario) bool { return x.Name == s.Name })) {
			m.Get("name").Bad("is no scenario's name, or is there twice", "small letters, digits and dashes, at most 40")
		}
		for _, a := range m.Need("command").List() {
			s.Command = append(s.Command, a.Text())
		}
		if m.Get("command").Present() && (len(s.Command) == 0 || s.Command[0] == "") {
			m.Get("command").Bad("is empty", "write the program and its arguments as a list")
		}
		if d := m.Get("timeout"); d.Present() {
			s.Timeout = d.Duration()
		}
		out = append(out, s)
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// DefaultScenario is how long a scenario may take unless it says.
const DefaultScenario = 120 * time.Second

// ScenarioResult is what became of a scenario. Outcome is completed, failed, timed_out
// or skipped; no other scenario's fate depends on it.
type ScenarioResult struct {
	Name    string        `json:"name"`
	Outcome string        `json:"outcome"`
	Reason  string        `json:"reason,omitempty"`
	Code    int           `json:"exit_code"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Slices  *Slices       `json:"slices,omitempty"`
	Trace   string        `json:"trace_sha256,omitempty"`
	Lost    uint64        `json:"lost"`
	Gaps    []string      `json:"gaps,omitempty"`
}

// Slices are what the kernel inside saw, by use. Paths are absolute.
type Slices struct {
	Binaries  []Exec     `json:"binaries_executed"`
	Libraries []string   `json:"shared_libs_loaded"`
	Certs     []string   `json:"cert_paths_read"`
	Files     []string   `json:"files_read_at_runtime"`
	Shells    []Exec     `json:"shell_invocations"`
	Network   []Endpoint `json:"network_endpoints_touched"`
	Sockets   []Socket   `json:"sockets"`
	Rights    []Right    `json:"rights_asked_for"`
}

// TraceReport is of all scenarios.
type TraceReport struct {
	Schema string `json:"schema"`
	Build  string `json:"build"`
	// Image is the digest of what was traced, and Pinned the one that was asked for.
	Image     string           `json:"image_digest,omitempty"`
	Pinned    string           `json:"image_digest_pinned,omitempty"`
	Isolation string           `json:"isolation"`
	Scenarios []ScenarioResult `json:"scenarios"`
	// Coverage is unavailable, low, medium or high: how many scenarios completed, less
	// one step where facts were lost.
	Coverage string `json:"coverage"`
	All      Slices `json:"slices"`
}

// Judge says what became of a scenario whose phase has ended; e is nil, with err, where
// none could be run.
func (s *Scenario) Judge(e *Ended, err error) ScenarioResult {
	r := ScenarioResult{Name: s.Name, Outcome: "failed"}
	switch {
	case s.Skip != "":
		r.Outcome, r.Reason = "skipped", s.Skip
		return r
	case e == nil:
		r.Reason = fmt.Sprint(err)
		return r
	}
	r.Code, r.Elapsed, r.Trace = e.Code, e.Duration, e.Trace
	switch {
	case e.Reason == "timeout":
		r.Outcome, r.Reason = "timed_out", fmt.Sprintf("after %s", e.Duration.Round(time.Millisecond))
	case e.Reason != "exited":
		r.Reason = strings.TrimSpace(e.Reason + " " + e.Error)
	case e.Code != s.Expected:
		r.Reason = fmt.Sprintf("exit code %d, expected %d", e.Code, s.Expected)
	default:
		r.Outcome = "completed"
	}
	if e.Observed == nil {
		r.Outcome, r.Reason = "failed", "nothing was recorded of it"
		return r
	}
	r.Lost, r.Gaps = e.Observed.Lost, e.Observed.Gaps
	r.Slices = slicesOf(e)
	return r
}

func slicesOf(e *Ended) *Slices {
	o := e.Observed
	s := &Slices{Binaries: append([]Exec{}, o.Execs...), Libraries: append([]string{}, o.Libraries...), Certs: append([]string{}, o.Certs...), Files: append([]string{}, o.Opened...),
		Shells: []Exec{}, Network: append(append([]Endpoint{}, o.Endpoints...), e.Asked...), Sockets: append([]Socket{}, o.Sockets...), Rights: append([]Right{}, o.Rights...)}
	for _, p := range o.TreeRead {
		s.Files = append(s.Files, path.Join(Workspace, p))
	}
	slices.Sort(s.Files)
	for _, x := range o.Execs {
		if x.Shell || shells[path.Base(x.Asked)] {
			s.Shells = append(s.Shells, x)
		}
	}
	return s
}

// Finish sums the scenarios up.
func (r *TraceReport) Finish() {
	r.Schema = TraceSchema
	done, lost := 0, false
	all := &r.All
	*all = Slices{Binaries: []Exec{}, Libraries: []string{}, Certs: []string{}, Files: []string{}, Shells: []Exec{}, Network: []Endpoint{}, Sockets: []Socket{}, Rights: []Right{}}
	for _, s := range r.Scenarios {
		if s.Outcome == "completed" {
			done++
		}
		lost = lost || s.Lost > 0 || len(s.Gaps) > 0
		if s.Slices == nil {
			continue
		}
		all.Binaries = unite(all.Binaries, s.Slices.Binaries, func(x Exec) Exec { x.Count = 0; return x })
		all.Shells = unite(all.Shells, s.Slices.Shells, func(x Exec) Exec { x.Count = 0; return x })
		all.Network = unite(all.Network, s.Slices.Network, func(x Endpoint) Endpoint { x.Count = 0; return x })
		all.Sockets = unite(all.Sockets, s.Slices.Sockets, func(x Socket) Socket { x.Count = 0; return x })
		all.Rights = unite(all.Rights, s.Slices.Rights, func(x Right) Right { x.Count, x.EUID = 0, nil; return x })
		for _, l := range []struct {
			to   *[]string
			from []string
		}{{&all.Libraries, s.Slices.Libraries}, {&all.Certs, s.Slices.Certs}, {&all.Files, s.Slices.Files}} {
			*l.to = append(*l.to, l.from...)
			slices.Sort(*l.to)
			*l.to = slices.Compact(*l.to)
		}
	}
	levels := []string{"unavailable", "low", "medium", "high"}
	n := 0
	switch {
	case done >= 5:
		n = 3
	case done >= 2, done == 1 && len(r.Scenarios) > 1:
		n = 2
	case done == 1:
		n = 1 // start-up alone
	}
	if lost && n > 0 {
		n--
	}
	r.Coverage = levels[n]
}

func unite[T comparable](have, more []T, key func(T) T) []T {
	for _, x := range more {
		if x = key(x); !slices.Contains(have, x) {
			have = append(have, x)
		}
	}
	return have
}

// Codegenie is the report in codegenie's form: the slices of all scenarios, by the same
// names, with what each scenario came to.
func (r *TraceReport) Codegenie() any {
	type scenario struct {
		Name   string `json:"name"`
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}
	list := []scenario{}
	for _, s := range r.Scenarios {
		list = append(list, scenario{s.Name, s.Outcome, s.Reason})
	}
	names := func(l []Exec) []string {
		out := []string{}
		for _, x := range l {
			out = append(out, x.Path)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	ends := []string{}
	for _, x := range r.All.Network {
		ends = append(ends, x.Address)
	}
	slices.Sort(ends)
	return map[string]any{"runtime_trace": map[string]any{
		"scenarios": list, "image_digest_traced": r.Image, "image_digest_built": r.Pinned, "trace_coverage_confidence": r.Coverage,
		"binaries_executed": names(r.All.Binaries), "shared_libs_loaded": r.All.Libraries, "cert_paths_read": r.All.Certs,
		"files_read_at_runtime": r.All.Files, "shell_invocations": names(r.All.Shells), "network_endpoints_touched": slices.Compact(ends),
	}}
}

// Text writes the report for people.
func (r *TraceReport) Text(w io.Writer) {
	for _, s := range r.Scenarios {
		fmt.Fprintf(w, "%-10s %s %s\n", s.Outcome, visible.String(s.Name, 60), visible.String(s.Reason, 300))
	}
	fmt.Fprintf(w, "coverage   %s\n", r.Coverage)
	for _, x := range r.All.Binaries {
		fmt.Fprintf(w, "executed   %s %.12s\n", visible.Path([]byte(x.Path)), x.Digest)
	}
	for _, x := range r.All.Network {
		fmt.Fprintf(w, "network    %s %s %s\n", visible.String(x.What, 40), visible.String(x.Address, 300), x.Errno)
	}
	for _, x := range r.All.Rights {
		fmt.Fprintf(w, "asked for  %s %s %s\n", x.What, visible.String(x.Detail, 300), x.Errno)
	}
	fmt.Fprintf(w, "read       %d files, %d libraries, %d certificates (--format json has them)\n", len(r.All.Files), len(r.All.Libraries), len(r.All.Certs))
}
