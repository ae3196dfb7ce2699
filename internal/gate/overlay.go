package gate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/secret"
)

// ChangeError means that no tree can hold a change. The agent that made it can make
// another.
type ChangeError struct{ *TreeError }

func (e *ChangeError) Unwrap() error { return e.TreeError }

// Failing is like [Verdict.Failing].
func (e *ChangeError) Failing() string {
	return "tree(" + safeOneLine(new(secret.Redactor), cmp.Or(e.Path, e.Why), 200) + ")"
}

// Feedback is like [Verdict.Feedback].
func (e *ChangeError) Feedback() string {
	red := new(secret.Redactor)
	at := ""
	if e.Path != "" {
		at = " " + safeOneLine(red, e.Path, 200) + ":"
	}
	return fmt.Sprintf("the change can't be judged as it is:%s %s\n", at, safeOneLine(red, e.Why, 300))
}

// WithChanges returns base with all changes of a run, except to git's own files. It
// refuses an incomplete set, since the missing changes could not be judged. That, and a
// change that no tree can hold, is a ChangeError.
func WithChanges(name, run string, base *Tree, set *change.Set) (*Tree, error) {
	t, err := withChanges(name, run, base, set)
	var bad *TreeError
	if errors.As(err, &bad) {
		return nil, &ChangeError{bad}
	}
	return t, err
}

func withChanges(name, run string, base *Tree, set *change.Set) (*Tree, error) {
	if len(set.Incomplete) > 0 {
		return nil, &TreeError{name, "", "its changes are incomplete: " + strings.Join(set.Incomplete, "; ")}
	}
	files := map[string]File{}
	for _, f := range base.Files {
		files[f.Path] = f
	}
	src := overlaySource{base.contents(), map[string]func() (io.ReadCloser, error){}}
	dirs := map[string]bool{}
	above := func(p string) {
		for p = path.Dir(p); !dirs[p] && p != "."; p = path.Dir(p) {
			dirs[p] = true
		}
	}
	for _, f := range base.Files {
		above(f.Path)
	}
	drop := func(p string) {
		delete(files, p)
		if !dirs[p] {
			return
		}
		for q := range files {
			if strings.HasPrefix(q, p+"/") {
				delete(files, q)
			}
		}
	}
	for i := range set.Changes {
		c := &set.Changes[i]
		p := string(c.Path)
		if strings.EqualFold(strings.SplitN(p, "/", 2)[0], ".git") {
			continue
		}
		if why := badPath(p); why != "" {
			return nil, &TreeError{name, p, why}
		}
		if c.Omitted != "" {
			return nil, &TreeError{name, p, "its content was not kept: " + c.Omitted}
		}
		switch {
		case c.Kind == change.Delete:
			drop(p)
		case c.Kind == change.Mode && c.Type == change.File:
			if f, ok := files[p]; ok {
				f.Mode = fileMode(c.Mode)
				files[p] = f
			}
		case c.Type == change.File:
			drop(p)
			above(p)
			files[p] = File{Path: p, Mode: fileMode(c.Mode), Size: c.Size}
			src.changed[p] = func() (io.ReadCloser, error) { return set.Content(c) }
		case c.Type == change.Symlink:
			drop(p)
			above(p)
			files[p] = File{Path: p, Mode: Link, Size: int64(len(c.Target))}
			to := string(c.Target)
			src.changed[p] = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(to)), nil }
		case c.Type == change.Dir && c.Kind == change.Retype:
			delete(files, p)
		case c.Type != change.Dir:
			return nil, &TreeError{name, p, "is a " + string(c.Type) + ", which a tree cannot hold"}
		}
	}
	t := &Tree{Name: name, Run: run, Files: slices.Collect(maps.Values(files)), src: src}
	return t.validate()
}

func fileMode(m uint32) FileMode {
	if m&0o100 != 0 {
		return executable
	}
	return regular
}

// below reports whether p is dir or lies in it.
func below(p, dir string) bool {
	return p == dir || dir == "." || strings.HasPrefix(p, dir+"/")
}

// matches reports whether one of some patterns covers p. Patterns are those of
// path.Match, and ** stands for any number of directories. A pattern also covers
// everything below what it names. A pattern without a slash applies to each element of
// the path.
func matches(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool { return match(pat, p) })
}

func match(pattern, p string) bool {
	if !strings.Contains(pattern, "/") {
		for _, e := range strings.Split(p, "/") {
			if ok, _ := path.Match(pattern, e); ok {
				return true
			}
		}
		return false
	}
	return matchParts(strings.Split(strings.Trim(pattern, "/"), "/"), strings.Split(p, "/"))
}

func matchParts(pat, p []string) bool {
	switch {
	case len(pat) == 0:
		return true // the rest lies below a match
	case pat[0] == "**":
		for i := 0; i <= len(p); i++ {
			if matchParts(pat[1:], p[i:]) {
				return true
			}
		}
		return false
	case len(p) == 0:
		return false
	}
	ok, err := path.Match(pat[0], p[0])
	return err == nil && ok && matchParts(pat[1:], p[1:])
}
