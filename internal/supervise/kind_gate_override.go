package supervise

import "fmt"

// KindGateOverride is a gate's verdict that a person sets aside.
const KindGateOverride Kind = "gate-override"

// GateOverride lets one change pass a gate that refused it, or be tried more often.
type GateOverride struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	Commit     string `json:"commit"`
	// Verdict is the SHA-256 of the verdict that is set aside, in hexadecimal.
	Verdict string `json:"verdict"`
	// Attempts is how many attempts more there may be; 0: the verdict is set aside.
	Attempts int `json:"attempts,omitempty"`
	// Failures say what failed: only shown, untrusted.
	Failures []string `json:"failures,omitempty"`
}

// GateOverrideEffect lets the change pass.
type GateOverrideEffect = Effect[GateOverride]

func init() { register[GateOverride]() }

// Kind implements Payload.
func (GateOverride) Kind() Kind { return KindGateOverride }

// Check implements Payload.
func (p GateOverride) Check() error {
	if err := needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"commit", p.Commit, 64}, field{"verdict", p.Verdict, 64}); err != nil {
		return err
	}
	if p.Attempts < 0 || p.Attempts > 100 || len(p.Failures) > 200 {
		return fmt.Errorf("%d attempts and %d failures, at most 100 and 200", p.Attempts, len(p.Failures))
	}
	for _, f := range p.Failures {
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
	if p.Attempts > 0 {
		return fmt.Sprintf("%d more attempts at gate %s in %s", p.Attempts, p.Gate, p.Repository)
	}
	return fmt.Sprintf("pass gate %s in %s in spite of its verdict", p.Gate, p.Repository)
}

// Warn implements Payload.
func (p GateOverride) Warn() string {
	if p.Attempts > 0 {
		return ""
	}
	return "the change passes although the gate refused it; its provenance says so"
}

// Describe implements Payload.
func (p GateOverride) Describe(d *Detail) {
	d.Section("gate")
	d.Field("gate", p.Gate)
	d.Field("repository", p.Repository)
	d.Field("commit", p.Commit)
	d.Field("verdict", p.Verdict)
	if p.Attempts > 0 {
		d.Field("more attempts", fmt.Sprint(p.Attempts))
	}
	if len(p.Failures) > 0 {
		d.Section("what failed")
		for _, f := range p.Failures {
			d.Words(f)
		}
	}
}
