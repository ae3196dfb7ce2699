package supervise

import (
	"fmt"
	"strings"
)

// kindGitleaksAllow asks to let findings pass that a comment in the code marks as harmless.
const kindGitleaksAllow Kind = "gitleaks-allow"

// GitleaksAllow lets a push pass with findings that a comment in the code marks as
// harmless.
type GitleaksAllow struct {
	Repository string       `json:"repository"`
	Findings   []GitFinding `json:"findings"`
	// Refs are the references that the push would update. They are only shown.
	Refs []string `json:"refs,omitempty"`
}

// GitFinding is a finding at one place in one commit.
type GitFinding struct {
	Commit string `json:"commit"`
	File   string `json:"file"` // untrusted
	Line   int    `json:"line"` // from 1
	Rule   string `json:"rule"`
	// Value is the [Fingerprint] of the value that was found.
	Value string `json:"value"`
	// Code holds the lines around it, with the value masked. They are only shown, and
	// untrusted.
	Code []CodeLine `json:"code,omitempty"`
}

// CodeLine is a line of a file.
type CodeLine struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

// GitleaksAllowEffect lets the push go on.
type GitleaksAllowEffect = Effect[GitleaksAllow]

func init() { register[GitleaksAllow]() }

const (
	maxFindings = 64
	maxCode     = 11
)

// Kind implements Payload.
func (GitleaksAllow) Kind() Kind { return kindGitleaksAllow }

// Check implements Payload.
func (p GitleaksAllow) Check() error {
	if len(p.Findings) == 0 || len(p.Findings) > maxFindings || len(p.Refs) > maxFindings {
		return fmt.Errorf("%d findings and %d refs, want 1 to %d and at most as many", len(p.Findings), len(p.Refs), maxFindings)
	}
	if p.Repository == "" {
		return fmt.Errorf("field \"repository\": is missing")
	}
	for i, f := range p.Findings {
		if f.Commit == "" || f.Rule == "" || f.Value == "" || f.Line < 1 || len(f.Code) > maxCode {
			return fmt.Errorf("field \"findings[%d]\": commit, rule, value or line is missing, or more than %d lines of code", i, maxCode)
		}
		for _, c := range f.Code {
			if err := bounds(field{"code", c.Text, 1024}); err != nil {
				return fmt.Errorf("field \"findings[%d]\": %w", i, err)
			}
		}
		if err := bounds(field{"commit", f.Commit, 64}, field{"file", f.File, 4096}, field{"rule", f.Rule, 128}, field{"value", f.Value, 64}); err != nil {
			return fmt.Errorf("field \"findings[%d]\": %w", i, err)
		}
	}
	for _, r := range p.Refs {
		if err := bounds(field{"refs", r, 1024}); err != nil {
			return err
		}
	}
	return bounds(field{"repository", p.Repository, 256})
}

// Bare implements Payload.
func (p GitleaksAllow) Bare() Payload {
	out := GitleaksAllow{Repository: p.Repository}
	for _, f := range p.Findings {
		f.Code = nil
		out.Findings = append(out.Findings, f)
	}
	return out
}

// Title implements Payload.
func (p GitleaksAllow) Title() string {
	f := p.Findings[0]
	s := fmt.Sprintf("push to %s with %s in %s:%d", p.Repository, f.Rule, f.File, f.Line)
	if n := len(p.Findings) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

// Warn implements Payload.
func (p GitleaksAllow) Warn() string {
	if strings.HasPrefix(p.Findings[0].Rule, "git fsck ") {
		return "no secret: git finds fault with these objects, as it does in some old histories; others may refuse them"
	}
	return "if one of these is a secret, it is public to whoever can read " + p.Repository
}

// Describe implements Payload.
func (p GitleaksAllow) Describe(d *Detail) {
	d.section("push")
	d.field("repository", p.Repository)
	for _, r := range p.Refs {
		d.field("updates", r)
	}
	for i, f := range p.Findings {
		d.section(fmt.Sprintf("finding %d of %d", i+1, len(p.Findings)))
		d.field("rule", f.Rule)
		d.field("file", f.File)
		d.field("line", fmt.Sprint(f.Line))
		d.field("commit", f.Commit)
		d.field("fingerprint", f.Value)
		for _, c := range f.Code {
			d.code(c.Number, c.Text, c.Number == f.Line)
		}
	}
}

// Subjects implements Ruled.
func (p GitleaksAllow) Subjects() []Subject {
	var out []Subject
	for _, f := range p.Findings {
		out = append(out, Subject{Repository: p.Repository, Rule: f.Rule})
	}
	return out
}

// Needs implements Ruled.
func (GitleaksAllow) Needs() []string { return []string{"repository", "rule"} }
