package gitgate

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

// inlineAllow is what gitleaks takes on a line as leave to pass it over. Here it is
// leave to ask a person.
const inlineAllow = "gitleaks:allow"

// maxAsked are the findings that one push may ask about.
const maxAsked = 20

// decide refuses a push for what was found in it, unless a person allows all of it.
func (p *pushing) decide(ctx context.Context, fs []found) error {
	defer func() {
		for _, f := range fs {
			p.ev.Findings = append(p.ev.Findings, f.Finding)
		}
	}()
	var bad []*found
	var ask []*found
	for i := range fs {
		f := &fs[i]
		if f.mayBeAllowed() && p.g.cfg.Ask != nil && len(ask) < maxAsked {
			ask = append(ask, f)
		} else {
			bad = append(bad, f)
		}
	}
	// Nobody is asked about a push that can't go on anyway.
	if len(bad) > 0 {
		return p.refusal(bad)
	}
	for _, f := range ask {
		p.out.say("git gate: %s says %s: waiting for a person outside to decide", f.site(), inlineAllow)
		by, err := p.g.cfg.Ask(ctx, f.allow(p.rp.name))
		if err != nil {
			f.Allow = visible.String(err.Error(), 300)
			return refused("%s: %s was not approved: %s", f.site(), f.Rule, f.Allow)
		}
		f.Allow = "approved by " + visible.String(by, 300)
		p.out.say("git gate: %s: approved", f.site())
	}
	return nil
}

// mayBeAsked: only about what is on a line of a file, to be seen there as it is, and not
// one of the host's own secrets.
func (f *found) mayBeAsked() bool {
	return f.Where == "file" && f.Commit != "" && f.within() && !f.known
}

// mayBeAllowed: when the line says so.
func (f *found) mayBeAllowed() bool {
	return f.mayBeAsked() && bytes.Contains(f.code, []byte(inlineAllow))
}

// site says where it is, in the words of git's own messages.
func (f *found) site() string {
	short := f.Commit
	if len(short) > 12 {
		short = short[:12]
	}
	switch f.Where {
	case "file", "note":
		s := f.File
		if f.Line > 0 && f.Rule != "unreadable" {
			s += fmt.Sprintf(":%d", f.Line)
		}
		return fmt.Sprintf("%s in commit %s", s, short)
	case "commit", "tag":
		return fmt.Sprintf("the text of %s %s, line %d", f.Where, short, f.Line)
	case "name":
		if short == "" {
			return "a file's name"
		}
		return "a file's name in commit " + short
	case "reference":
		return "a reference's name"
	case "option":
		return "a push option"
	}
	return "object " + f.Object
}

func (f *found) what() string {
	s := f.Rule
	if s == "unreadable" {
		return "can't be read to its end (packed in itself too often, or encrypted)"
	}
	if f.Secret != "" {
		s += " " + f.Secret
	}
	if f.Transform != "" && f.Transform != "plain" {
		s += ", written as " + f.Transform
	}
	return s
}

func (p *pushing) refusal(bad []*found) error {
	var b strings.Builder
	b.WriteString("push refused, nothing was sent: a secret in what is pushed\n")
	seen := map[string]bool{}
	said, could := 0, false // that ask, and whether one could
	for _, f := range bad {
		if f.mayBeAllowed() {
			said++
		}
		could = could || f.mayBeAsked()
	}
	for _, f := range bad {
		line := "  " + f.site() + ": " + f.what() + "\n"
		if seen[line] {
			continue
		}
		seen[line] = true
		if len(seen) > 20 {
			b.WriteString("  …\n")
			break
		}
		b.WriteString(line)
	}
	b.WriteString("take it out of every commit that is pushed, the first that has it included (git commit --amend, git rebase -i), and push again")
	switch {
	case p.g.cfg.Ask == nil && said > 0:
		b.WriteString("\na line that says " + inlineAllow + " needs a person to approve it, and this bottle asks nobody")
	case p.g.cfg.Ask == nil:
	case said > 0:
		fmt.Fprintf(&b, "\nmore than %d lines say %s, which nobody is asked about in one push: push them in parts", maxAsked, inlineAllow)
	case could:
		b.WriteString("\nif a line only looks like a secret, say " + inlineAllow + " in a comment on it: a person outside is asked then")
	}
	return &RefusedError{b.String()}
}

// allow is what a person is asked about f.
func (f *found) allow(repo string) Allow {
	a := Allow{
		Repo: repo, Ref: visible.String(f.ref, 300), Commit: f.Commit, File: f.File, Line: f.Line, Rule: f.Rule,
		Code: secret.New(f.code),
	}
	from := min(f.column, len(f.code))
	to := min(from+max(f.length, 0), len(f.code))
	masked := bytes.Join([][]byte{f.code[:from], bytes.Repeat([]byte("*"), to-from), f.code[to:]}, nil)
	a.Text = visible.Bytes(masked, 500)
	return a
}
