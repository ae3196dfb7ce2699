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

// ChangeError is a change that no tree can hold: whoever made it can make another one.
type ChangeError struct{ *TreeError }

func (e *ChangeError) Unwrap() error { return e.TreeError }

// Failing names what failed, as [Verdict.Failing] does.
func (e *ChangeError) Failing() string {
	return "tree(" + harmless(new(secret.Redactor), cmp.Or(e.Path, e.Why), 200) + ")"
}

// Feedback is what the model is told of it, as [Verdict.Feedback].
func (e *ChangeError) Feedback() string {
	red := new(secret.Redactor)
	at := ""
	if e.Path != "" {
		at = " " + harmless(red, e.Path, 200) + ":"
	}
	return fmt.Sprintf("the change can't be judged as it is:%s %s\n", at, harmless(red, e.Why, 300))
}

// WithChanges is base with what a run changed. Everything that would land is in it;
// git's own files are not. A set that is incomplete is refused, since what is missing
// could not be judged; that, and what no tree holds, is a ChangeError.
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
			return nil, &TreeError{name, p, "is a " + string(c.Type) + ", which no tree holds"}
		}
	}
	t := &Tree{Name: name, Run: run, Files: slices.Collect(maps.Values(files)), src: src}
	return t.finish()
}

func fileMode(m uint32) FileMode {
	if m&0o100 != 0 {
		return Executable
	}
	return Regular
}

// below reports whether p is dir or lies in it.
func below(p, dir string) bool {
	return p == dir || dir == "." || strings.HasPrefix(p, dir+"/")
}

// matches reports whether a file is meant by one of some patterns: as path.Match has
// it, where ** stands for any number of directories, what is named covers what lies
// below it, and a pattern without a slash is for the last element.
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
		return true // the rest lies below what is named
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
