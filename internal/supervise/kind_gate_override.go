package supervise

import "fmt"

// kindGateOverride asks to override the verdict of a gate.
const kindGateOverride Kind = "gate-override"

// GateOverride lets one change go on in spite of one verdict.
type GateOverride struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	// Commit is the commit of the change, if it has one. Tree is the SHA-256 of its files.
	Commit string `json:"commit,omitempty"`
	Tree   string `json:"tree,omitempty"`
	// Verdict is the SHA-256 of the verdict, in hexadecimal digits, and ID its name.
	Verdict string `json:"verdict"`
	ID      string `json:"id,omitempty"`
	// Reason comes from the person who asks. The verdict keeps it.
	Reason string `json:"reason,omitempty"`
	// Failures say what failed. They are only shown, and untrusted.
	Failures []string `json:"failures,omitempty"`
}

// GateOverrideEffect lets the change go on.
type GateOverrideEffect = Effect[GateOverride]

func init() { register[GateOverride]() }

// maxFailures bounds the failures that are shown of a verdict.
const maxFailures = 200

// Kind implements Payload.
func (GateOverride) Kind() Kind { return kindGateOverride }

// Check implements Payload.
func (p GateOverride) Check() error {
	if err := needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"verdict", p.Verdict, 64}); err != nil {
		return err
	}
	if err := checkFailures(p.Failures); err != nil {
		return err
	}
	return bounds(field{"commit", p.Commit, 64}, field{"tree", p.Tree, 64}, field{"id", p.ID, 64}, field{"reason", p.Reason, MaxNote})
}

func checkFailures(list []string) error {
	if len(list) > maxFailures {
		return fmt.Errorf("%d failures, at most %d", len(list), maxFailures)
	}
	for _, f := range list {
		if err := bounds(field{"failures", f, 4096}); err != nil {
			return err
		}
	}
	return nil
}

// Bare implements Payload.
func (p GateOverride) Bare() Payload {
	p.Failures = nil
	return p
}

// Title implements Payload.
func (p GateOverride) Title() string {
	return fmt.Sprintf("pass gate %s in %s in spite of its verdict", p.Gate, p.Repository)
}

// Warn implements Payload.
func (GateOverride) Warn() string {
	return "the change passes although the gate refused it; its provenance says so"
}

// Describe implements Payload.
func (p GateOverride) Describe(d *Detail) {
	d.section("verdict that is set aside")
	d.field("gate", p.Gate)
	d.field("repository", p.Repository)
	d.field("commit", p.Commit)
	d.field("tree", p.Tree)
	d.field("verdict", join(p.ID, p.Verdict))
	d.field("reason", p.Reason)
	describeFailures(d, p.Failures)
}

func describeFailures(d *Detail, list []string) {
	if len(list) == 0 {
		return
	}
	d.section("what failed")
	for _, f := range list {
		d.quote(f)
	}
}
