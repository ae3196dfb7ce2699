package supervise

import "fmt"

// KindApply is a plan that would be carried out on hosts.
const KindApply Kind = "apply"

// Apply carries out one plan.
type Apply struct {
	// Plan is the SHA-256 of the plan, in hexadecimal; Commit what it was made from.
	Plan   string      `json:"plan"`
	Stack  string      `json:"stack"`
	Commit string      `json:"commit"`
	Hosts  []string    `json:"hosts"`
	Steps  []ApplyStep `json:"steps"`
}

// ApplyStep is one thing that the plan does.
type ApplyStep struct {
	Host string `json:"host"`
	// Action is create, update, replace or delete; Object what it is done to.
	Action string `json:"action"`
	Object string `json:"object"`
	// Before and After are the object's declaration; may be empty.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// ApplyEffect carries out the plan.
type ApplyEffect = Effect[Apply]

func init() { register[Apply]() }

var applyActions = map[string]bool{"create": true, "update": true, "replace": true, "delete": true}

// Kind implements Payload.
func (Apply) Kind() Kind { return KindApply }

// Check implements Payload.
func (p Apply) Check() error {
	if err := needed(field{"plan", p.Plan, 64}, field{"stack", p.Stack, 256}, field{"commit", p.Commit, 64}); err != nil {
		return err
	}
	if len(p.Hosts) == 0 || len(p.Hosts) > 100 || len(p.Steps) > 1000 {
		return fmt.Errorf("%d hosts and %d steps, want 1 to 100 and at most 1000", len(p.Hosts), len(p.Steps))
	}
	for i, h := range p.Hosts {
		if err := needed(field{fmt.Sprintf("hosts[%d]", i), h, 256}); err != nil {
			return err
		}
	}
	for i, s := range p.Steps {
		if !applyActions[s.Action] {
			return fmt.Errorf("field \"steps[%d].action\" is %.40q", i, s.Action)
		}
		if err := needed(field{"host", s.Host, 256}, field{"object", s.Object, 1024}); err != nil {
			return fmt.Errorf("field \"steps[%d]\": %w", i, err)
		}
		if err := bounds(field{"before", s.Before, MaxPayload}, field{"after", s.After, MaxPayload}); err != nil {
			return fmt.Errorf("field \"steps[%d]\": %w", i, err)
		}
	}
	return nil
}

// Bare implements Payload.
func (p Apply) Bare() Payload { return p }

// Title implements Payload.
func (p Apply) Title() string {
	s := fmt.Sprintf("apply %s to %s", p.Stack, p.Hosts[0])
	if n := len(p.Hosts) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s + fmt.Sprintf(": %d steps", len(p.Steps))
}

// Warn implements Payload.
func (p Apply) Warn() string {
	n := 0
	for _, s := range p.Steps {
		if s.Action == "delete" || s.Action == "replace" {
			n++
		}
	}
	if n > 0 {
		return fmt.Sprintf("%d of the steps delete or replace something", n)
	}
	return ""
}

// Describe implements Payload.
func (p Apply) Describe(d *Detail) {
	d.Section("plan")
	d.Field("stack", p.Stack)
	d.Field("commit", p.Commit)
	d.Field("plan", p.Plan)
	for _, h := range p.Hosts {
		d.Field("host", h)
	}
	for i, s := range p.Steps {
		d.Section(fmt.Sprintf("step %d of %d", i+1, len(p.Steps)))
		d.Field("host", s.Host)
		d.Field(s.Action, s.Object)
		if s.Before != s.After {
			d.Change(s.Before, s.After)
		}
	}
}
