package supervise

import "fmt"

// kindGateAttempts asks for more attempts for an agent that has used up its own.
const kindGateAttempts Kind = "gate-attempts"

// GateAttempts grants more attempts to one piece of work.
type GateAttempts struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	// Work is the work's id, and Step the SHA-256 of its last step, in hexadecimal digits.
	Work string `json:"work"`
	Step string `json:"step"`
	Made int    `json:"made"`
	More int    `json:"more"`
	// Failures say what still fails. They are only shown, and untrusted.
	Failures []string `json:"failures,omitempty"`
}

// GateAttemptsEffect lets the agent try again.
type GateAttemptsEffect = Effect[GateAttempts]

func init() { register[GateAttempts]() }

// MaxMoreAttempts bounds the attempts of one approval.
const MaxMoreAttempts = 10

// Kind implements Payload.
func (GateAttempts) Kind() Kind { return kindGateAttempts }

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
	d.section("attempts")
	d.field("gate", p.Gate)
	d.field("repository", p.Repository)
	d.field("work", p.Work)
	d.field("last step", p.Step)
	d.field("made", fmt.Sprint(p.Made))
	d.field("more", fmt.Sprint(p.More))
	describeFailures(d, p.Failures)
}

// Subjects implements Ruled. More attempts cost time and let nothing pass, so a rule may
// grant them for a repository.
func (p GateAttempts) Subjects() []Subject { return []Subject{{Repository: p.Repository}} }

// Needs implements Ruled.
func (GateAttempts) Needs() []string { return []string{"repository"} }
