package supervise

import "fmt"

// KindBaselineUpdate is a baseline that a gate would compare with from then on.
const KindBaselineUpdate Kind = "baseline-update"

// BaselineUpdate replaces a gate's baseline.
type BaselineUpdate struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	File       string `json:"file"`
	// Before and After are the baseline as it is and as it would be, whole.
	Before string `json:"before"`
	After  string `json:"after"`
}

// BaselineUpdateEffect writes the baseline.
type BaselineUpdateEffect = Effect[BaselineUpdate]

func init() { register[BaselineUpdate]() }

// Kind implements Payload.
func (BaselineUpdate) Kind() Kind { return KindBaselineUpdate }

// Check implements Payload.
func (p BaselineUpdate) Check() error {
	if p.Before == p.After {
		return fmt.Errorf("fields \"before\" and \"after\" are the same")
	}
	if err := bounds(field{"before", p.Before, MaxPayload}, field{"after", p.After, MaxPayload}); err != nil {
		return err
	}
	return needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"file", p.File, 4096})
}

// Bare implements Payload.
func (p BaselineUpdate) Bare() Payload { return p }

// Title implements Payload.
func (p BaselineUpdate) Title() string {
	return fmt.Sprintf("change the baseline of gate %s in %s", p.Gate, p.Repository)
}

// Warn implements Payload.
func (BaselineUpdate) Warn() string { return "what the new baseline has, no later run is refused for" }

// Describe implements Payload.
func (p BaselineUpdate) Describe(d *Detail) {
	d.Section("baseline")
	d.Field("gate", p.Gate)
	d.Field("repository", p.Repository)
	d.Field("file", p.File)
	d.Change(p.Before, p.After)
}
