package supervise

import (
	"fmt"
	"strings"
	"time"
)

// kindApply asks to apply plans on hosts.
const kindApply Kind = "apply"

// Apply applies plans of one module and commit, one for each host. It is [Signed]: the
// queue shows and rejects it, and a signature approves it.
type Apply struct {
	Action string      `json:"action"` // apply, rollback or remove
	Module string      `json:"module"`
	Commit string      `json:"commit"`
	Plans  []ApplyPlan `json:"plans"`
	// Files are the paths of the plans. Missing says why the signatures so far are not
	// enough. Both are only shown.
	Files   []string `json:"files,omitempty"`
	Missing string   `json:"missing,omitempty"`
}

// ApplyPlan is the plan for one host.
type ApplyPlan struct {
	// Digest is the SHA-256 of the plan, in hexadecimal digits.
	Digest  string        `json:"digest"`
	Host    string        `json:"host"`
	Address string        `json:"address"`
	Expires time.Time     `json:"expires"`
	Changes []ApplyChange `json:"changes"`
	// Project is the name of the Compose project, and Root a directory of the host. Mounts
	// are the directories that the service sees. Back is the version that a failed apply
	// goes back to.
	Project string `json:"project,omitempty"`
	Root    string `json:"root,omitempty"`
	Mounts  string `json:"mounts,omitempty"`
	Back    string `json:"back,omitempty"`
}

// ApplyChange is one change on the host.
type ApplyChange struct {
	What        string `json:"what"`
	Action      string `json:"action"` // none, adopt, create, update, recreate or remove
	From        string `json:"from"`
	To          string `json:"to"`
	Why         string `json:"why,omitempty"`
	Destructive bool   `json:"destructive,omitempty"`
}

func init() { register[Apply]() }

// Bounds of one proposal.
const (
	maxPlans   = 32
	maxChanges = 512
)

// Kind implements Payload.
func (Apply) Kind() Kind { return kindApply }

// Check implements Payload.
func (p Apply) Check() error {
	if err := needed(field{"action", p.Action, 16}, field{"module", p.Module, 256}, field{"commit", p.Commit, 64}); err != nil {
		return err
	}
	if len(p.Plans) == 0 || len(p.Plans) > maxPlans || len(p.Files) > maxPlans {
		return fmt.Errorf("%d plans and %d files, want 1 to %d and at most as many", len(p.Plans), len(p.Files), maxPlans)
	}
	for i, x := range p.Plans {
		if err := needed(field{"digest", x.Digest, 64}, field{"host", x.Host, 256}); err != nil {
			return fmt.Errorf("field \"plans[%d]\": %w", i, err)
		}
		if len(x.Changes) > maxChanges {
			return fmt.Errorf("field \"plans[%d]\": %d changes, at most %d", i, len(x.Changes), maxChanges)
		}
		if err := bounds(field{"address", x.Address, 256}, field{"project", x.Project, 256}, field{"root", x.Root, 1024}, field{"mounts", x.Mounts, 4096}, field{"back", x.Back, 1024}); err != nil {
			return fmt.Errorf("field \"plans[%d]\": %w", i, err)
		}
		for j, c := range x.Changes {
			err := needed(field{"what", c.What, 1024}, field{"action", c.Action, 16})
			if err == nil {
				err = bounds(field{"from", c.From, 1024}, field{"to", c.To, 1024}, field{"why", c.Why, 1024})
			}
			if err != nil {
				return fmt.Errorf("field \"plans[%d].changes[%d]\": %w", i, j, err)
			}
		}
	}
	for _, f := range p.Files {
		if err := needed(field{"files", f, 4096}); err != nil {
			return err
		}
	}
	return bounds(field{"missing", p.Missing, 1024})
}

// Bare implements Payload.
func (p Apply) Bare() Payload {
	p.Files, p.Missing = nil, ""
	return p
}

// Title implements Payload.
func (p Apply) Title() string {
	s := fmt.Sprintf("%s %s to %s", p.Action, p.Module, p.Plans[0].Host)
	if n := len(p.Plans) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s + ", which a signature decides"
}

// Warn implements Payload.
func (p Apply) Warn() string {
	for _, x := range p.Plans {
		for _, c := range x.Changes {
			if c.Destructive {
				return "it destroys something on " + x.Host + " that can't be brought back"
			}
		}
	}
	return ""
}

// Describe implements Payload.
func (p Apply) Describe(d *Detail) {
	d.section("how this is decided")
	d.say("by a signature; approving it here does nothing, rejecting it here ends the waiting")
	d.field("sign", p.HowToSign())
	if p.Missing != "" {
		d.field("so far", p.Missing)
	}
	for i, x := range p.Plans {
		d.section(fmt.Sprintf("plan %d of %d", i+1, len(p.Plans)))
		d.field(p.Action, p.Module)
		d.field("commit", p.Commit)
		d.field("host", join(x.Host, x.Address))
		d.field("project", x.Project)
		d.field("remote_root", x.Root)
		d.field("mounts", x.Mounts)
		d.field("goes back to", x.Back)
		d.field("good until", x.Expires.Format(time.RFC3339))
		d.field("plan", x.Digest)
		var before, after strings.Builder
		for _, c := range x.Changes {
			if c.From != "" && c.From != "-" {
				fmt.Fprintf(&before, "%s: %s\n", c.What, c.From)
			}
			if c.To != "" && c.To != "-" {
				fmt.Fprintf(&after, "%s: %s\n", c.What, c.To)
			}
		}
		d.change(before.String(), after.String())
		for _, c := range x.Changes {
			destroys := ""
			if c.Destructive {
				destroys = "(destructive)"
			}
			d.field(c.Action, join(c.What, c.Why, destroys))
		}
	}
}

// HowToSign implements Signed.
func (p Apply) HowToSign() string {
	files := p.Files
	if len(files) == 0 {
		files = []string{"PLAN"}
	}
	var quoted []string
	for _, f := range files {
		quoted = append(quoted, shellWord(f))
	}
	s := "carboy ship approve " + strings.Join(quoted, " ") + " --as NAME --key FILE --purpose TEXT"
	if p.Warn() != "" {
		s += " --destructive"
	}
	return s
}

// shellWord quotes s for a shell.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
