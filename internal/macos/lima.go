package macos

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/carboy/carboy/internal/macos/start"
)

// lima makes machines by Lima, from version 2.0. What limactl says is in its
// documentation: https://lima-vm.io/docs/reference/limactl/
type lima struct{}

const limaTemplate = "template:debian-13"

func (lima) program() start.Program { return start.Limactl }

func (lima) call(args ...string) Command { return Command{Program: start.Limactl, Args: args} }

func (lima) services() (*Command, []Command) { return nil, nil }

func (l lima) look() Command { return l.call("list", "--format", "json") }

// limaMachine is one of the objects that the list has, one after the other.
type limaMachine struct {
	Status  string `json:"status"`
	Arch    string `json:"arch"`
	Message string `json:"message"`
	Config  struct {
		Message string `json:"message"`
		Mounts  []struct {
			Location   string  `json:"location"`
			MountPoint *string `json:"mountPoint"`
			Writable   *bool   `json:"writable"`
		} `json:"mounts"`
	} `json:"config"`
}

func (lima) parse(out []byte) (*machine, error) {
	m := &machine{state: absent}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return m, nil
		}
		if err != nil {
			return nil, notListed(start.Limactl, err)
		}
		var name struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(raw, &name) != nil || name.Name != machineName {
			continue
		}
		if m.state != absent {
			return nil, notListed(start.Limactl, errTwice)
		}
		var x limaMachine
		if err := json.Unmarshal(raw, &x); err != nil {
			return nil, notListed(start.Limactl, err)
		}
		if len(x.Config.Mounts) > maxShares {
			return nil, notListed(start.Limactl, fmt.Errorf("%d mounts", len(x.Config.Mounts)))
		}
		m.says, m.state = x.Status, other
		switch x.Status {
		case "Running":
			m.state = running
		case "Stopped":
			m.state = stopped
		}
		m.ours = strings.Contains(x.Message, mark) || strings.Contains(x.Config.Message, mark)
		m.arch = goArch(x.Arch)
		var shares []share
		for _, s := range x.Config.Mounts {
			to := ""
			if s.MountPoint != nil {
				to = *s.MountPoint
			}
			shares = append(shares, share{s.Location, to, s.Writable != nil && *s.Writable})
		}
		m.shares = sameplace(shares)
	}
}

func (lima) options() *Command { return nil }

func (l lima) make(d design) []Command {
	args := []string{"create", "--tty=false", "--name=" + machineName, fmt.Sprintf("--cpus=%d", d.cpus), fmt.Sprintf("--memory=%d", d.gib), "--containerd=none", `--set=.message="` + mark + `"`}
	if len(d.shares) == 0 {
		args = append(args, "--mount-none")
	}
	for _, s := range d.shares {
		args = append(args, "--mount-only="+s+":w")
	}
	return append([]Command{l.call(append(args, cmp.Or(d.image, limaTemplate))...)}, l.begin()...)
}

func (lima) sharable(dir string) string {
	if strings.ContainsAny(dir, ":,\"\n") {
		return "limactl takes no colon, comma, quote or new line in a directory's name"
	}
	return ""
}

func (l lima) begin() []Command { return []Command{l.call("start", "--tty=false", machineName)} }
func (l lima) stop() []Command  { return []Command{l.call("stop", machineName)} }
func (l lima) remove() []Command {
	return []Command{l.call("delete", "--tty=false", "--force", machineName)}
}

func (l lima) enter(words ...string) Command {
	return l.call(append([]string{"shell", "--tty=false", "--workdir=/", machineName, "sudo", "-n"}, words...)...)
}
