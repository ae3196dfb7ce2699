package change

import (
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/safetext"
)

// Summary describes the change of a reference in one line for people, without its name.
func (r *RefChange) Summary() string {
	short := func(id string) string {
		if id == "" {
			return "none"
		}
		if strings.HasPrefix(id, "refs/") {
			return show(id)
		}
		return id[:min(len(id), 10)]
	}
	s := short(r.Old) + " -> " + short(r.New)
	if r.Count > 0 {
		s += fmt.Sprintf(", %d commit", r.Count)
		if r.Count > 1 {
			s += "s"
		}
	}
	switch {
	case r.Fresh:
		s += ", a new repository"
	case r.Forward:
		s += ", fast-forward"
	case r.Old != "" && r.New != "" && len(r.Files) > 0:
		s += ", no fast-forward"
	}
	if r.CheckedOut && !r.Fresh {
		s += ", checked out"
	}
	return s
}

// Unseen returns the files whose content in the commit is not that of the work tree.
func (r *RefChange) Unseen() []RefFile {
	var out []RefFile
	for _, f := range r.Files {
		if f.Unseen {
			out = append(out, f)
		}
	}
	return out
}

// ref shows a reference.
func (d *differ) ref(r *RefChange) {
	d.line(bold, "reference "+show(r.ID())+" "+r.Summary())
	if why, _ := r.Held(&LandOptions{IncludeProtected: true}); why != "" {
		how := "stays behind"
		if r.Never == "" {
			how += " unless it is named"
		}
		d.note(how + ": " + why)
	}
	for _, p := range r.Protected {
		d.note("protected (" + p.Rule + "): " + p.Why)
	}
	for _, c := range r.Commits {
		d.line("", "  "+c.ID[:min(len(c.ID), 10)]+" "+safetext.String(string(c.Author), 100)+": "+safetext.String(string(c.Subject), 200))
	}
	if n := r.Count - len(r.Commits); n > 0 {
		d.line("", fmt.Sprintf("  and %d more", n))
	}
	for _, f := range r.Files {
		text := " " + f.Status + "  " + show(string(f.Path))
		switch {
		case f.mode == gitobject.ModeSubmodule:
			d.line(amber, text+"  (a submodule: it moves to "+f.id[:10]+", its own commits stay behind)")
		case f.Unseen:
			d.line(amber, text+"  (the work tree has other content)")
		default:
			d.line("", text)
		}
	}
	if n := r.FileCount - len(r.Files); n > 0 {
		d.note(fmt.Sprintf("and %d more files", n))
	}
	for line := range strings.Lines(string(r.Patch)) {
		text, _ := strings.CutSuffix(line, "\n")
		d.hunkLine(text)
	}
}
