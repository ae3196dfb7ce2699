package supervise

import "fmt"

// kindBaselineUpdate asks to replace a gate's baseline.
const kindBaselineUpdate Kind = "baseline-update"

// BaselineUpdate replaces a gate's baseline.
type BaselineUpdate struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	File       string `json:"file"`
	// Verdict is the SHA-256 of the verdict with the new behaviour. From and To are the
	// SHA-256 of the file before and after; From is empty if there is no file. All are in
	// hexadecimal digits.
	Verdict string `json:"verdict,omitempty"`
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	// Signer is the name and key that will sign the file, or says that nobody will.
	Signer string `json:"signer,omitempty"`
	// Before and After are the baseline before and after, one line for each allowed thing.
	// Lines that both have may be left out.
	Before string `json:"before"`
	After  string `json:"after"`
}

// BaselineUpdateEffect writes the baseline.
type BaselineUpdateEffect = Effect[BaselineUpdate]

func init() { register[BaselineUpdate]() }

// Kind implements Payload.
func (BaselineUpdate) Kind() Kind { return kindBaselineUpdate }

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
func (BaselineUpdate) Warn() string {
	return "no later run is refused for anything in the new baseline"
}

// Describe implements Payload.
func (p BaselineUpdate) Describe(d *Detail) {
	d.section("what phases may do")
	d.change(p.Before, p.After)
	d.section("gate")
	d.field("gate", p.Gate)
	d.field("repository", p.Repository)
	d.field("verdict", p.Verdict)
	describeBaseline(d, p.File, p.From, p.To, p.Signer)
}

func describeBaseline(d *Detail, file, from, to, signer string) {
	d.field("file", file)
	d.field("its digest", from)
	d.field("and then", to)
	d.field("signed by", signer)
	d.field("if approved", "it is written into the work tree, and counts once it is committed to the base")
}
