package supervise

import "fmt"

// KindGateOverride is a gate's verdict that a person sets aside.
const KindGateOverride Kind = "gate-override"

// GateOverride lets one change go on against one verdict.
type GateOverride struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	// Commit is of the change, where it has one, and Tree the SHA-256 of its files.
	Commit string `json:"commit,omitempty"`
	Tree   string `json:"tree,omitempty"`
	// Verdict is the SHA-256 of the verdict, in hexadecimal digits, and ID its name.
	Verdict string `json:"verdict"`
	ID      string `json:"id,omitempty"`
	// Reason is whoever asks' word, which stands in the verdict from then on.
	Reason string `json:"reason,omitempty"`
	// Failures say what failed: only shown, untrusted.
	Failures []string `json:"failures,omitempty"`
}

// GateOverrideEffect lets the change go on.
type GateOverrideEffect = Effect[GateOverride]

func init() { register[GateOverride]() }

// maxFailures bounds what is shown of a verdict.
const maxFailures = 200

// Kind implements Payload.
func (GateOverride) Kind() Kind { return KindGateOverride }

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
	d.Section("verdict that is set aside")
	d.Field("gate", p.Gate)
	d.Field("repository", p.Repository)
	d.Field("commit", p.Commit)
	d.Field("tree", p.Tree)
	d.Field("verdict", join(p.ID, p.Verdict))
	d.Field("reason", p.Reason)
	describeFailures(d, p.Failures)
}

func describeFailures(d *Detail, list []string) {
	if len(list) == 0 {
		return
	}
	d.Section("what failed")
	for _, f := range list {
		d.Words(f)
	}
}
