package supervise

import (
	"fmt"
	"strings"
)

// KindTestsGone asks to accept that a change renames, removes or edits tests.
const KindTestsGone Kind = "tests-gone"

// TestsGone adds missing or edited tests to a gate's baseline, so that they are accepted.
type TestsGone struct {
	Gate       string `json:"gate"`
	Repository string `json:"repository"`
	Signal     string `json:"signal"`
	// Verdict is the SHA-256 of the verdict that misses the tests. From and To are the
	// SHA-256 of the baseline's file before and after; From is empty if there is no file.
	// All are in hexadecimal digits.
	Verdict string   `json:"verdict"`
	File    string   `json:"file"`
	From    string   `json:"from,omitempty"`
	To      string   `json:"to"`
	Signer  string   `json:"signer"` // as in BaselineUpdate
	Tests   []string `json:"tests"`  // their ids, untrusted
	// Files is the SHA-256 of the edited test files, in hexadecimal digits; empty: the tests
	// are gone.
	Files string `json:"test_files,omitempty"`
	// Shown says how the tests differ and what they printed. It is only shown, and
	// untrusted.
	Shown []string `json:"shown,omitempty"`
}

// TestsGoneEffect writes the baseline.
type TestsGoneEffect = Effect[TestsGone]

func init() { register[TestsGone]() }

// maxTestsGone bounds the tests of one proposal.
const maxTestsGone = 500

// Kind implements Payload.
func (TestsGone) Kind() Kind { return KindTestsGone }

// Check implements Payload.
func (p TestsGone) Check() error {
	if len(p.Tests) == 0 || len(p.Tests) > maxTestsGone {
		return fmt.Errorf("field \"tests\": %d tests, want 1 to %d", len(p.Tests), maxTestsGone)
	}
	for _, t := range p.Tests {
		if err := needed(field{"tests", t, 1024}); err != nil {
			return err
		}
	}
	if err := bounds(field{"from", p.From, 64}, field{"test_files", p.Files, 64}); err != nil {
		return err
	}
	if err := checkFailures(p.Shown); err != nil {
		return err
	}
	return needed(field{"gate", p.Gate, 256}, field{"repository", p.Repository, 4096}, field{"signal", p.Signal, 256}, field{"verdict", p.Verdict, 64},
		field{"file", p.File, 4096}, field{"to", p.To, 64}, field{"signer", p.Signer, 512})
}

// Bare implements Payload.
func (p TestsGone) Bare() Payload {
	p.Shown = nil
	return p
}

// Title implements Payload.
func (p TestsGone) Title() string {
	what := "goes on without"
	if p.Files != "" {
		what = "takes another"
	}
	s := fmt.Sprintf("%s in %s %s %s", p.Signal, p.Repository, what, p.Tests[0])
	if n := len(p.Tests) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Warn implements Payload.
func (p TestsGone) Warn() string {
	if p.Files != "" {
		return "the change decides what these tests ask for, as shown"
	}
	return "nothing will catch any more what these tests caught"
}

// Describe implements Payload.
func (p TestsGone) Describe(d *Detail) {
	if p.Files != "" {
		d.section("tests that may be other ones")
		d.quote(strings.Join(p.Tests, "\n"))
	} else {
		d.section("tests that may be gone")
		d.change(strings.Join(p.Tests, "\n"), "")
	}
	d.section("gate")
	d.field("gate", p.Gate)
	d.field("signal", p.Signal)
	d.field("repository", p.Repository)
	d.field("verdict", p.Verdict)
	d.field("test files", p.Files)
	describeBaseline(d, p.File, p.From, p.To, p.Signer)
	if len(p.Shown) > 0 {
		d.section("how they differ, and what the base's printed")
		for _, s := range p.Shown {
			d.quote(s)
		}
	}
}
