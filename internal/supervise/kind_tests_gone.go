package supervise

import (
	"fmt"
	"strings"
)

// KindTestsGone is tests that a change renames or removes on purpose.
const KindTestsGone Kind = "tests-gone"

// TestsGone has a gate's baseline say that tests may be gone.
type TestsGone struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	Signal     string `json:"signal"`
	// Verdict is the SHA-256 of the verdict that misses them; From and To are those of
	// the baseline's file as it is and as it would be. All in hexadecimal digits; From is
	// empty where there is none.
	Verdict string   `json:"verdict"`
	File    string   `json:"file"`
	From    string   `json:"from,omitempty"`
	To      string   `json:"to"`
	Signer  string   `json:"signer"` // as of BaselineUpdate
	Tests   []string `json:"tests"`  // their ids, untrusted
}

// TestsGoneEffect writes the baseline.
type TestsGoneEffect = Effect[TestsGone]

func init() { register[TestsGone]() }

// MaxTestsGone bounds the tests of one proposal.
const MaxTestsGone = 500

// Kind implements Payload.
func (TestsGone) Kind() Kind { return KindTestsGone }

// Check implements Payload.
func (p TestsGone) Check() error {
	if len(p.Tests) == 0 || len(p.Tests) > MaxTestsGone {
		return fmt.Errorf("field \"tests\": %d tests, want 1 to %d", len(p.Tests), MaxTestsGone)
	}
	for _, t := range p.Tests {
		if err := needed(field{"tests", t, 1024}); err != nil {
			return err
		}
	}
	if err := bounds(field{"from", p.From, 64}); err != nil {
		return err
	}
	return needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"signal", p.Signal, 256}, field{"verdict", p.Verdict, 64},
		field{"file", p.File, 4096}, field{"to", p.To, 64}, field{"signer", p.Signer, 512})
}

// Bare implements Payload.
func (p TestsGone) Bare() Payload { return p }

// Title implements Payload.
func (p TestsGone) Title() string {
	s := fmt.Sprintf("%s in %s goes on without %s", p.Signal, p.Repository, p.Tests[0])
	if n := len(p.Tests) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Warn implements Payload.
func (TestsGone) Warn() string { return "what these tests have caught, nothing catches any more" }

// Describe implements Payload.
func (p TestsGone) Describe(d *Detail) {
	d.Section("tests that may be gone")
	d.Change(strings.Join(p.Tests, "\n"), "")
	d.Section("gate")
	d.Field("gate", p.Gate)
	d.Field("signal", p.Signal)
	d.Field("repository", p.Repository)
	d.Field("verdict", p.Verdict)
	describeBaseline(d, p.File, p.From, p.To, p.Signer)
}
