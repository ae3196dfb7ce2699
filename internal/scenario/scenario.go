// Package scenario runs a program in the scenarios that its owner wrote, each in a
// fresh sandbox, and combines the sandboxes' traces into one report: which programs
// ran, which libraries they loaded, which files, certificates, shells and endpoints
// they touched, and how complete that is.
//
// It promises that one scenario's fate stops none of the others, that each has exactly
// one of four outcomes, and that nothing which a workload prints is read: outcomes come
// from the sandbox's own end, slices from the kernel's facts and the gateway's records.
// What was lost on the way lowers the coverage and is counted.
//
// Who may write the scenarios is the caller's to decide: they judge, so they must not
// come from what is judged. Start reading at [Parse], then [Run] and [Slices].
package scenario

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
)

// FileName is the name of the file in an approved base.
const FileName = "scenarios.yaml"

// Bounds of a file.
const (
	maxScenarios = 200
	maxArguments = 1000
	maxRoutes    = 100
	maxTimeout   = 24 * time.Hour
	minMemory    = 64 << 20
)

// defaultTimeout bounds a scenario that sets no timeout.
const defaultTimeout = 120 * time.Second

// Set holds the content of a file of scenarios.
type Set struct {
	// Memory, in bytes, and Pids bound all scenarios that run in parallel; 0: the
	// caller's bounds.
	Memory, Pids int64
	Scenarios    []Scenario
}

// Scenario describes one use of a program. The zero value runs nothing.
type Scenario struct {
	Name    string
	Command []string // the program, looked up inside, and its arguments
	// Expected is the exit code of success.
	Expected int
	Timeout  time.Duration // 0: DefaultTimeout
	// Network lists routes, as carboy run --allow takes them. If it is empty, nothing is
	// reachable.
	Network []string
	// Skip says why the scenario is not run for now; empty: it is run.
	Skip string
	// Bounds of its sandbox, in bytes and numbers; 0: Set's, or the caller's.
	Memory, Pids, Disk, Output int64
}

var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$`) })

// Parse reads a file of scenarios. Messages call it name. The error is a document.Error
// that lists everything that is wrong.
func Parse(name string, data []byte) (*Set, error) {
	doc, v, err := document.Parse(name, data)
	if err != nil {
		return nil, err
	}
	s := &Set{}
	top := v.Mapping("limits", "scenarios")
	limits := top.Get("limits").Mapping("memory", "pids")
	s.Memory, s.Pids = memory(limits.Get("memory")), limits.Get("pids").Int(0, 1, 1<<22)
	list := top.Need("scenarios")
	seen := map[string]int{}
	for i, x := range list.List() {
		if i == maxScenarios {
			list.Bad(fmt.Sprintf("holds more than %d scenarios", maxScenarios), "split the file")
			break
		}
		one := parseOne(x)
		if at, ok := seen[one.Name]; ok && one.Name != "" {
			x.Bad(fmt.Sprintf("is called %q, like the one in line %d", one.Name, at), "give each a name of its own")
		}
		seen[one.Name] = x.Line()
		if one.Memory > s.Memory && s.Memory > 0 || one.Pids > s.Pids && s.Pids > 0 {
			x.Bad("needs more than limits allow to all together", "raise limits, or lower the scenario's own")
		}
		s.Scenarios = append(s.Scenarios, one)
	}
	if len(s.Scenarios) == 0 && list.Present() {
		list.Bad("holds no scenario", "write one: - {name: starts, command: [./server, --version]}")
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

func memory(v document.Value) int64 {
	n := v.Size()
	if n != 0 && n < minMemory {
		v.Bad("is below 64MiB", "a shell alone needs that much")
	}
	return n
}

func parseOne(v document.Value) Scenario {
	m := v.Mapping("name", "command", "expected_exit_code", "timeout", "network", "skip", "memory", "pids", "disk", "output")
	s := Scenario{
		Name: m.Need("name").Text(), Expected: int(m.Get("expected_exit_code").Int(0, 0, 255)), Timeout: m.Get("timeout").Duration(),
		Network: m.Get("network").Strings(), Memory: memory(m.Get("memory")), Pids: m.Get("pids").Int(0, 1, 1<<22),
		Disk: m.Get("disk").Size(), Output: m.Get("output").Size(), Skip: m.Get("skip").Text(),
	}
	if skip := m.Get("skip"); skip.Present() && s.Skip == "" {
		skip.Bad("gives no reason", "write why, or leave it out")
	}
	if s.Name != "" && !validName().MatchString(s.Name) {
		m.Get("name").Bad("is no name", "use letters, digits, spaces, dots, dashes and underscores, at most 64")
	}
	if s.Timeout > maxTimeout {
		m.Get("timeout").Bad("is longer than a day", "")
	}
	if s.Timeout == 0 {
		s.Timeout = defaultTimeout
	}
	if len(s.Network) > maxRoutes {
		m.Get("network").Bad(fmt.Sprintf("holds more than %d routes", maxRoutes), "")
		s.Network = nil
	}
	for _, r := range s.Network {
		if _, err := policy.ParseAllow(r); err != nil {
			m.Get("network").Bad(err.Error(), "write HOST or HOST:PORT")
		}
	}
	command := m.Need("command")
	if command.Present() && !command.IsList() {
		command.Bad("is not a list", `write one word each: [sh, -c, "make test"]`)
		return s
	}
	args := command.List()
	if len(args) > maxArguments {
		command.Bad(fmt.Sprintf("has more than %d words", maxArguments), "put them into a script")
		return s
	}
	for _, a := range args {
		w := a.Text()
		if strings.ContainsRune(w, 0) {
			a.Bad("holds a zero byte", "")
		}
		s.Command = append(s.Command, w)
	}
	if command.Present() && (len(args) == 0 || s.Command[0] == "") {
		command.Bad("names no program", "")
	}
	return s
}
