package gitgate

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// inlineAllow is the comment by which gitleaks ignores a line. Here it lets the gate ask a
// person.
const inlineAllow = "gitleaks:allow"

// maxAsked bounds the findings that one push may ask about.
const maxAsked = 20

// unreadable is the rule of package scan for what cannot be read to its end.
const unreadable = "unreadable"

// decide refuses a push because of its findings, unless a person allows all of them.
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
	// Do not ask a person about a push that is refused anyway.
	if len(bad) > 0 {
		return p.refusal(bad)
	}
	for _, f := range ask {
		why := "says " + inlineAllow
		if f.Rule == unreadable {
			why = f.what()
		}
		p.out.say("git gate: %s %s: waiting for a person outside to decide", f.site(), why)
		by, err := p.g.cfg.Ask(ctx, f.allow(p.rp.name))
		if err != nil {
			f.Allow = safetext.String(err.Error(), 300)
			return refused("%s: %s was not approved: %s", f.site(), f.Rule, f.Allow)
		}
		f.Allow = "approved by " + safetext.String(by, 300)
		p.out.say("git gate: %s: approved", f.site())
	}
	return nil
}

// mayBeAsked reports whether a person may be asked about f. The finding must be visible as
// it is on a line of a file, and must not be a secret of the host.
func (f *found) mayBeAsked() bool {
	return f.Where == "file" && f.Commit != "" && f.within() && !f.known
}

// mayBeAllowed reports whether f may be asked about and its line has the comment. A file
// that can't be read needs none.
func (f *found) mayBeAllowed() bool {
	return f.closed() || f.mayBeAsked() && bytes.Contains(f.code, []byte(inlineAllow))
}

// closed reports whether f is a file that can't be read to its end.
func (f *found) closed() bool {
	return f.Rule == unreadable && f.Where == "file" && f.Commit != "" && !f.unsearched
}

// site returns the place of f, in the form of git's own messages.
func (f *found) site() string {
	short := f.Commit
	if len(short) > 12 {
		short = short[:12]
	}
	switch f.Where {
	case "file", "note":
		s := f.File
		if f.Line > 0 && f.Rule != unreadable {
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
	if s == unreadable && f.Transform != "" {
		return "can't be read to its end (" + f.Transform + ")"
	}
	if s == unreadable {
		return "can't be read to its end (packed in itself too often)"
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
	seen := map[string]bool{}
	said, could := 0, false // findings whose line asks to be allowed; whether any may be asked about
	secrets := false
	for _, f := range bad {
		if f.mayBeAllowed() {
			said++
		}
		could = could || f.mayBeAsked()
		secrets = secrets || f.Rule != unreadable
	}
	if secrets {
		b.WriteString("push refused, nothing was sent: a secret in what is pushed\n")
	} else {
		b.WriteString("push refused, nothing was sent: a secret may be where nobody can look\n")
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
		b.WriteString("\na line that says " + inlineAllow + ", or a file that can't be read, needs a person to approve it, and this bottle asks nobody")
	case p.g.cfg.Ask == nil:
	case said > 0:
		fmt.Fprintf(&b, "\nmore than %d lines say %s, which nobody is asked about in one push: push them in parts", maxAsked, inlineAllow)
	case could:
		b.WriteString("\nif a line only looks like a secret, say " + inlineAllow + " in a comment on it: a person outside is asked then")
	}
	return &refusedError{b.String()}
}

// allow returns the question to a person about f.
func (f *found) allow(repo string) Allow {
	a := Allow{
		Repo: repo, Ref: safetext.String(f.ref, 300), Commit: f.Commit, File: f.File, Line: f.Line, Rule: f.Rule,
		Code: secret.New(f.code),
	}
	if f.Rule == unreadable {
		// The approval is for this content, of which nobody would read a line.
		a.Line, a.Code = max(f.Line, 1), secret.NewString(f.Object)
		a.Text = safetext.String(fmt.Sprintf("object %s: it %s", f.Object, f.what()), 500)
		return a
	}
	from := min(f.column, len(f.code))
	to := min(from+max(f.length, 0), len(f.code))
	masked := bytes.Join([][]byte{f.code[:from], bytes.Repeat([]byte("*"), to-from), f.code[to:]}, nil)
	a.Text = safetext.Bytes(masked, 500)
	return a
}
