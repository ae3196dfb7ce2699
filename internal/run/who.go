package run

import (
	"strings"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// who says in words whose run it is: its agent or its command, where it works, and on which
// branch.
func (s *Session) who() string {
	what := ""
	if s.o.Grant != nil {
		what = s.o.Grant.Agent
	}
	if what == "" {
		what = safetext.Fit(strings.Join(strings.Fields(strings.Join(s.o.Command, " ")), " "), 60, "…")
	}
	if s.Mode == store.None {
		return what
	}
	dir := string(s.Workspace.Path)
	what += " in " + safetext.Tilde(dir, s.c.Env("HOME"))
	if branch := branchOf(dir); branch != "" {
		what += ", branch " + branch
	}
	return what
}

// branchOf returns the branch that is checked out in a work tree, "" if none is.
func branchOf(dir string) string {
	r, err := hostexec.FindRepository(dir)
	if err != nil {
		return ""
	}
	name, ok := strings.CutPrefix(strings.TrimSpace(r.Head), "ref: refs/heads/")
	if !ok {
		return ""
	}
	return name
}
