package run

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

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
	where := dir
	if home := s.c.Env("HOME"); home != "" && (dir == home || strings.HasPrefix(dir, home+"/")) {
		where = "~" + dir[len(home):]
	}
	what += " in " + where
	if branch := branchOf(dir); branch != "" {
		what += ", branch " + branch
	}
	return what
}

// branchOf returns the branch that is checked out in a work tree, "" if none is.
func branchOf(dir string) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer root.Close()
	f, err := root.OpenFile(".git/HEAD", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 512))
	name, ok := strings.CutPrefix(strings.TrimSpace(string(b)), "ref: refs/heads/")
	if !ok {
		return ""
	}
	return name
}
