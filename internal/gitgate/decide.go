package gitgate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// inlineAllow is the comment by which gitleaks ignores a line. Here it lets the gate ask a
// person.
const inlineAllow = "gitleaks:allow"

// maxAsked bounds the questions to a person about one push.
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
	slices.SortStableFunc(fs, func(a, b found) int {
		return cmp.Or(strings.Compare(a.path, b.path), cmp.Compare(a.Line, b.Line), cmp.Compare(a.column, b.column))
	})
	var bad []*found
	var asks []*question
	about := map[string]*question{}
	for i := range fs {
		f := &fs[i]
		q := about[f.subject()]
		if !f.mayBeAllowed() || p.g.cfg.Ask == nil || q == nil && len(asks) == maxAsked {
			bad = append(bad, f)
			continue
		}
		if q == nil {
			q = &question{}
			asks, about[f.subject()] = append(asks, q), q
		}
		q.fs = append(q.fs, f)
	}
	// Do not ask a person about a push that is refused anyway.
	if len(bad) > 0 {
		return p.refusal(bad)
	}
	for _, q := range asks {
		f := q.fs[0]
		why := "says " + inlineAllow
		if f.Rule == unreadable || f.isFault() || f.long() {
			why = f.what()
		}
		p.out.say("git gate: %s %s: waiting for a person outside to decide", f.site(), why)
		by, err := p.g.cfg.Ask(ctx, q.allow(p.rp.name))
		said := "approved by " + safetext.String(by, 300)
		if err != nil {
			said = safetext.String(err.Error(), 300)
		}
		for _, f := range q.fs {
			f.Allow = said
		}
		if err != nil {
			return refused("%s: %s was not approved: %s", f.site(), f.Rule, said)
		}
		p.out.say("git gate: %s: approved", f.site())
	}
	return nil
}

// question groups the findings about which a person is asked at once: one line of a file
// in all commits that have it, all long findings in one file, one content that can't be
// read, or all objects with one fault.
type question struct{ fs []*found }

// subject returns what is the same in all findings of a question.
func (f *found) subject() string {
	switch {
	case f.Rule == unreadable:
		return f.Object
	case f.isFault():
		return f.Rule
	case f.long():
		return f.path
	}
	return f.path + "\n" + string(f.code)
}

// mayBeAsked reports whether a person may be asked about f. The finding must be visible as
// it is on a line of a file, and must not be a secret of the host.
func (f *found) mayBeAsked() bool {
	return f.Where == "file" && f.Commit != "" && f.within() && !f.known
}

// mayBeAllowed reports whether f may be asked about and its line has the comment. A file
// that can't be read needs none, nor do a long finding and a fault, which have no place for
// one.
func (f *found) mayBeAllowed() bool {
	return f.closed() || f.isFault() || f.mayBeAsked() && (f.long() || bytes.Contains(f.code, []byte(inlineAllow)))
}

// long reports whether f is on several lines, like a private key.
func (f *found) long() bool { return bytes.IndexByte(f.code, '\n') >= 0 }

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
	if f.isFault() {
		return f.faultyObjects()
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
	case "submodule":
		return "a submodule's commit in commit " + short
	case "reference":
		return "a reference's name"
	case "id":
		return "an id in the request"
	case "option":
		return "a push option"
	}
	return "object " + f.Object
}

func (f *found) what() string {
	s := f.Rule
	if f.isFault() {
		return s + ": " + safetext.String(f.words, 300)
	}
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
	secrets, faults := false, 0
	for _, f := range bad {
		if f.mayBeAllowed() {
			said++
		}
		could = could || f.mayBeAsked()
		secrets = secrets || f.Rule != unreadable && !f.isFault()
		if f.isFault() {
			faults++
		}
	}
	switch {
	case secrets:
		b.WriteString("push refused, nothing was sent: a secret in what is pushed\n")
	case faults == len(bad):
		b.WriteString("push refused, nothing was sent: git finds fault with what is pushed\n")
	default:
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
		b.WriteString("\na line that says " + inlineAllow + ", a key of several lines, a file that can't be read, or a fault, needs a person to approve it, and this bottle asks nobody")
	case p.g.cfg.Ask == nil:
	case said > 0:
		fmt.Fprintf(&b, "\na person is asked about %d lines and files in one push, and this one has more: push them in parts", maxAsked)
	case could:
		b.WriteString("\nif a line only looks like a secret, say " + inlineAllow + " in a comment on it: a person outside is asked then")
	}
	return &refusedError{b.String()}
}

// allow returns q for a person. An approval is for these contents.
func (q *question) allow(repo string) Allow {
	f := q.fs[0]
	a := Allow{
		Repo: repo, Ref: safetext.String(f.ref, 300), Commit: f.Commit, File: f.File, Line: f.Line, Rule: f.Rule,
		Code: secret.New(f.code),
	}
	switch {
	case f.Rule == unreadable: // nobody would read a line of it
		a.Line, a.Code = max(f.Line, 1), secret.NewString(f.Object)
		a.Text = safetext.String(fmt.Sprintf("object %s: it %s", f.Object, f.what()), 500)
	case f.isFault():
		a.Line, a.Code = 1, secret.NewString(strings.Join(f.objects, "\n"))
		a.File = f.faultyObjects()
		a.Text = safetext.String(f.words, 500)
	case f.long():
		var code []byte
		var at []string
		for _, f := range q.fs {
			if !bytes.Contains(code, f.code) { // the same in another commit
				code = append(append(code, f.code...), '\n')
				at = append(at, fmt.Sprintf("%d-%d", f.Line, f.Line+bytes.Count(f.code, []byte("\n"))))
			}
		}
		a.Code = secret.New(code)
		a.Text = safetext.String(fmt.Sprintf("%s lines %s", keyHead().Find(f.code), strings.Join(at, ", ")), 500)
	default:
		masked := bytes.Clone(f.code)
		for _, f := range q.fs {
			for i := f.column; i < min(f.column+f.length, len(masked)); i++ {
				masked[i] = '*'
			}
		}
		a.Text = safetext.Bytes(masked, 500)
	}
	return a
}

// keyHead matches the line that tells the kind of a key.
var keyHead = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----BEGIN [A-Z0-9 ]{0,40}-----`) })
