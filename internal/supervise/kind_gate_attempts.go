package supervise

import "fmt"

// KindGateAttempts is more attempts for an agent that has spent those it had.
const KindGateAttempts Kind = "gate-attempts"

// GateAttempts lets one piece of work go on.
type GateAttempts struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	// Work is the work's id, and Step the SHA-256 of its last step, in hexadecimal digits.
	Work string `json:"work"`
	Step string `json:"step"`
	Made int    `json:"made"`
	More int    `json:"more"`
	// Failures say what fails still: only shown, untrusted.
	Failures []string `json:"failures,omitempty"`
}

// GateAttemptsEffect has the agent try again.
type GateAttemptsEffect = Effect[GateAttempts]

func init() { register[GateAttempts]() }

// MaxMoreAttempts bounds what one approval grants.
const MaxMoreAttempts = 10

// Kind implements Payload.
func (GateAttempts) Kind() Kind { return KindGateAttempts }

// Check implements Payload.
func (p GateAttempts) Check() error {
	if p.More < 1 || p.More > MaxMoreAttempts || p.Made < 1 {
		return fmt.Errorf("%d attempts more than %d, want 1 to %d more", p.More, p.Made, MaxMoreAttempts)
	}
	if err := checkFailures(p.Failures); err != nil {
		return err
	}
	return needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"work", p.Work, 64}, field{"step", p.Step, 64})
}

// Bare implements Payload.
func (p GateAttempts) Bare() Payload {
	p.Failures = nil
	return p
}

// Title implements Payload.
func (p GateAttempts) Title() string {
	return fmt.Sprintf("%d more attempts at gate %s in %s", p.More, p.Gate, p.Repository)
}

// Warn implements Payload.
func (GateAttempts) Warn() string { return "" }

// Describe implements Payload.
func (p GateAttempts) Describe(d *Detail) {
	d.Section("attempts")
	d.Field("gate", p.Gate)
	d.Field("repository", p.Repository)
	d.Field("work", p.Work)
	d.Field("last step", p.Step)
	d.Field("made", fmt.Sprint(p.Made))
	d.Field("more", fmt.Sprint(p.More))
	describeFailures(d, p.Failures)
}

// Subjects implements Ruled: more attempts cost time, and let nothing pass.
func (p GateAttempts) Subjects() []Subject { return []Subject{{Repository: p.Repository}} }

// Needs implements Ruled.
func (GateAttempts) Needs() []string { return []string{"repository"} }
