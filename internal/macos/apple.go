package macos

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/macos/start"
)

// apple makes machines by Apple's container. What it says is in its documentation:
// https://github.com/apple/container/blob/main/docs/command-reference.md
type apple struct{}

// appleImage has a compiler's usual company: git, certificates and curl.
const appleImage = "docker.io/library/buildpack-deps:trixie-scm"

func (apple) program() start.Program { return start.Container }

func (apple) call(args ...string) Command { return Command{Program: start.Container, Args: args} }

func (a apple) services() (*Command, []Command) {
	is := a.call("system", "status")
	return &is, []Command{a.call("system", "start", "--enable-kernel-install")}
}

func (a apple) look() Command { return a.call("list", "--all", "--format", "json") }

// appleMachine is one element of the list. Versions before 1.1 say the state as a text.
type appleMachine struct {
	Configuration struct {
		ID       string            `json:"id"`
		Labels   map[string]string `json:"labels"`
		Platform struct {
			Architecture string `json:"architecture"`
		} `json:"platform"`
		Mounts []struct {
			Source      string   `json:"source"`
			Destination string   `json:"destination"`
			Options     []string `json:"options"`
		} `json:"mounts"`
	} `json:"configuration"`
	Status json.RawMessage `json:"status"`
}

func (a appleMachine) state() (string, error) {
	var text string
	if json.Unmarshal(a.Status, &text) == nil {
		return text, nil
	}
	var s struct {
		State *string `json:"state"`
	}
	if err := json.Unmarshal(a.Status, &s); err != nil || s.State == nil {
		return "", errors.New("status: neither a text nor an object with a state")
	}
	return *s.State, nil
}

func (apple) parse(out []byte) (*machine, error) {
	var all []json.RawMessage
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, notListed(start.Container, err)
	}
	m := &machine{state: absent}
	for _, raw := range all {
		// Others' containers may be described in ways that do not matter here.
		var name struct {
			Configuration struct {
				ID string `json:"id"`
			} `json:"configuration"`
		}
		if json.Unmarshal(raw, &name) != nil || name.Configuration.ID != machineName {
			continue
		}
		if m.state != absent {
			return nil, notListed(start.Container, errTwice)
		}
		var x appleMachine
		if err := json.Unmarshal(raw, &x); err != nil {
			return nil, notListed(start.Container, err)
		}
		says, err := x.state()
		if err != nil {
			return nil, notListed(start.Container, err)
		}
		if len(x.Configuration.Mounts) > maxShares {
			return nil, notListed(start.Container, fmt.Errorf("%d mounts", len(x.Configuration.Mounts)))
		}
		m.says, m.state = says, other
		switch says {
		case "running":
			m.state = running
		case "stopped":
			m.state = stopped
		}
		m.ours = x.Configuration.Labels[mark] != ""
		m.arch = goArch(x.Configuration.Platform.Architecture)
		var shares []share
		for _, s := range x.Configuration.Mounts {
			writable := true
			for _, o := range s.Options {
				writable = writable && o != "ro"
			}
			shares = append(shares, share{strings.TrimSuffix(s.Source, "/"), s.Destination, writable})
		}
		m.shares = sameplace(shares)
	}
	return m, nil
}

func (a apple) options() *Command { c := a.call("run", "--help"); return &c }

func (a apple) make(d design) []Command {
	args := []string{"run", "--detach", "--name", machineName, "--label", mark + "=1"}
	// Bottles need user namespaces of their own, in which proc can be mounted only where
	// nothing of it is hidden.
	for _, o := range [][2]string{{"--cap-add", "ALL"}, {"--masked-path", "NONE"}, {"--read-only-path", "NONE"}} {
		if d.has(o[0]) {
			args = append(args, o[0], o[1])
		}
	}
	if d.has("--init") {
		args = append(args, "--init")
	}
	args = append(args, "--cpus", fmt.Sprint(d.cpus), "--memory", fmt.Sprintf("%dG", d.gib))
	for _, s := range d.shares {
		args = append(args, "--volume", s+":"+s)
	}
	return []Command{a.call(append(args, cmp.Or(d.image, appleImage), "sleep", "infinity")...)}
}

func (apple) sharable(dir string) string {
	if strings.Contains(dir, ":") {
		return "container takes no colon in a directory's name"
	}
	return ""
}

func (a apple) begin() []Command  { return []Command{a.call("start", machineName)} }
func (a apple) stop() []Command   { return []Command{a.call("stop", machineName)} }
func (a apple) remove() []Command { return []Command{a.call("delete", "--force", machineName)} }

func (a apple) enter(words ...string) Command {
	return a.call(append([]string{"exec", "--interactive", "--user", "0", machineName}, words...)...)
}
