package supervise

import "fmt"

// KindBaselineUpdate is a baseline that a gate would compare with from then on.
const KindBaselineUpdate Kind = "baseline-update"

// BaselineUpdate replaces a gate's baseline.
type BaselineUpdate struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	File       string `json:"file"`
	// Verdict is the SHA-256 of the verdict whose phases did what is new; From and To
	// are those of the file as it is and as it would be. All in hexadecimal digits; From
	// is empty where there is none.
	Verdict string `json:"verdict,omitempty"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	// Signer is who will sign it, by name and key; or that nobody will.
	Signer string `json:"signer,omitempty"`
	// Before and After are the baseline as it is and as it would be, a line for each
	// thing that is allowed; lines that both have may be left out.
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
	if err := bounds(field{"before", p.Before, MaxPayload}, field{"after", p.After, MaxPayload}, field{"verdict", p.Verdict, 64},
		field{"from", p.From, 64}, field{"to", p.To, 64}, field{"signer", p.Signer, 512}); err != nil {
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
	d.Section("what phases may do")
	d.Change(p.Before, p.After)
	d.Section("gate")
	d.Field("gate", p.Gate)
	d.Field("repository", p.Repository)
	d.Field("verdict", p.Verdict)
	describeBaseline(d, p.File, p.From, p.To, p.Signer)
}

func describeBaseline(d *Detail, file, from, to, signer string) {
	d.Field("file", file)
	d.Field("its digest", from)
	d.Field("and then", to)
	d.Field("signed by", signer)
	d.Field("if approved", "it is written into the work tree, and counts once it is committed to the base")
}
