package ship

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
)

// Diff returns unified diffs from what runs to what a plan puts there: of the compose file,
// if the running one is known, and of each synced file that changes. It is "" if there is
// no difference. Secrets are redacted as in records. The text is from the repository and
// may contain control characters. The error says that the plan is invalid or its commit is
// not in this repository.
func (e *Engine) Diff(ctx context.Context, made []byte) (string, error) {
	p, _, err := plan.Decode(made)
	if err != nil {
		return "", &Error{Mismatch, "", err, "make a new plan"}
	}
	if p.Target.Absent {
		return "", nil
	}
	known := p.Previous.State == plan.PreviousKnown
	if !known && !slices.ContainsFunc(p.Changes, ofFile) {
		return "", nil
	}
	s, err := e.load(ctx, p.Module, p.Commit)
	if err != nil {
		return "", err
	}
	if !known {
		return fileDiffs(p, s, nil)
	}
	from := fmt.Sprintf("%s as it runs, of %.12s", s.module.Compose, p.Previous.Commit)
	out := diff(from, fmt.Sprintf("%s of %.12s", s.module.Compose, p.Commit), p.Previous.Compose, string(s.compose.Data))
	old, err := e.load(ctx, p.Module, p.Previous.Commit)
	if err != nil {
		old = nil // without it, the content there is not known
	}
	files, err := fileDiffs(p, s, old)
	return out + files, err
}

// ofFile reports whether a change is of a synced file.
func ofFile(c plan.Change) bool { return strings.HasPrefix(c.What, "file.") }

// fileDiffs returns the diffs of a plan's synced files that change. The host tells the
// digests of what is there; the contents are those of old, the module as it was applied,
// where that has such a file.
func fileDiffs(p *plan.Plan, s, old *source) (string, error) {
	obs, err := plan.Observe(p.Seen.Text)
	if err != nil {
		return "", &Error{Mismatch, p.Host.Name, err, "make a new plan"}
	}
	var out strings.Builder
	for _, c := range p.Changes {
		if !ofFile(c) || c.Action == plan.Adopt {
			continue
		}
		name := strings.TrimPrefix(c.What, "file.")
		path := "modules/" + p.Module + "/" + module.FilesDir + "/" + name
		now := s.text[path]
		var was []byte
		from := fmt.Sprintf("%s as it is there, of %.12s", path, p.Previous.Commit)
		have := obs.Files[name]
		if old != nil {
			was = old.text[path]
		}
		switch {
		case have == "-":
			was, from = nil, "/dev/null"
		case was == nil || plan.Digest(was) != have:
			was, from = nil, path+" is there with a content that is not known"
		}
		to := fmt.Sprintf("%s of %.12s", path, p.Commit)
		if binary(was) || binary(now) {
			fmt.Fprintf(&out, "--- %s\n+++ %s\nno text: %d bytes, then %d\n", from, to, len(was), len(now))
			continue
		}
		out.WriteString(diff(from, to, string(was), string(now)))
	}
	return out.String(), nil
}

func binary(b []byte) bool { return bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b) }

// diff returns a unified diff of two texts with their secrets redacted. A line is redacted
// by its place in the whole text, because what it is may have been said above. A secret
// that changes is still a change.
func diff(from, to, old, text string) string {
	lines := strings.SplitAfter(udiff.Unified(from, to, old, text), "\n")
	if len(lines) < 3 {
		return ""
	}
	was, is := redactText(old), redactText(text)
	var out strings.Builder
	out.WriteString(lines[0] + lines[1])
	var i, j int // the next lines of the texts
	for _, l := range lines[2:] {
		if l == "" {
			continue
		}
		sign := l[:1]
		switch sign {
		case "@":
			n := begins(l)
			i, j = n, j+n-i // what lies between is equal
			out.WriteString(l)
		case "-":
			out.WriteString(sign + was.line(i, l[1:]))
			i++
		case " ", "+":
			out.WriteString(sign + is.line(j, l[1:]))
			if j++; sign == " " {
				i++
			}
		default: // it says that a line break is missing
			out.WriteString(l)
		}
	}
	return out.String()
}

// begins returns the index of a hunk's first line in the old text, by its head such as
// "@@ -1,2 +3,4 @@".
func begins(head string) (n int) {
	fmt.Sscanf(head, "@@ -%d", &n)
	return max(0, n-1)
}

// redactedLines holds the lines of a text, and the same without secrets.
type redactedLines struct{ raw, shown []string }

func redactText(s string) (t redactedLines) {
	t.raw = strings.Split(s, "\n")
	r := newRedactor()
	for _, l := range t.raw {
		t.shown = append(t.shown, r.Line(l))
	}
	return t
}

// line returns a line of a diff without secrets, if it is the line at that index.
func (t redactedLines) line(at int, l string) string {
	if at >= len(t.raw) || strings.TrimSuffix(l, "\n") != t.raw[at] {
		return secret.NotShown + "\n"
	}
	return t.shown[at] + "\n"
}
