package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CorruptError says that a record exists but cannot be read. Lists skip and report such records. They are never deleted
// automatically, because their directories may hold somebody's work.
type CorruptError struct {
	ID   string // the directory's name
	File string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record of run %s: %s: %v", strconv.Quote(e.ID), strconv.Quote(e.File), e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// AmbiguousError says that several runs have a prefix.
type AmbiguousError struct {
	Ref        string
	Candidates []Summary // newest first, at most 10; only the id if the record is corrupt
	More       int       // number of further runs
}

func (e *AmbiguousError) Error() string {
	ids := make([]string, len(e.Candidates))
	for i, c := range e.Candidates {
		ids[i] = string(c.ID)
	}
	s := fmt.Sprintf("run %s is ambiguous: %s", strconv.Quote(e.Ref), strings.Join(ids, ", "))
	if e.More > 0 {
		s += fmt.Sprintf(" and %d more", e.More)
	}
	return s
}

// Query selects runs. The zero value selects all.
type Query struct {
	Limit     int        // maximum number of runs; 0: all
	Workspace *Workspace // only runs of this workspace; nil: all
}

// Listing is the result of List.
type Listing struct {
	Runs    []Meta          // newest first
	Corrupt []*CorruptError // newest first
	More    bool            // there may be more runs than Limit
}

// List returns the records of runs, newest first. Records that cannot be read are in Listing.Corrupt.
func (s *Store) List(ctx context.Context, q Query) (Listing, error) {
	var l Listing
	ids, odd, err := s.ids()
	if err != nil {
		return l, fmt.Errorf("list runs: %w", err)
	}
	for _, name := range odd {
		l.Corrupt = append(l.Corrupt, &CorruptError{ID: name, File: s.RunDir(ID(name)), Err: errors.New("its name is not a run id")})
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return l, err
		}
		if q.Limit > 0 && len(l.Runs) >= q.Limit {
			l.More = true
			break
		}
		m, err := s.Get(id)
		var corrupt *CorruptError
		switch {
		case errors.Is(err, ErrNotFound):
		case errors.As(err, &corrupt):
			l.Corrupt = append(l.Corrupt, corrupt)
		case err != nil:
			return l, fmt.Errorf("list runs: %w", err)
		case q.Workspace == nil || m.Workspace.same(*q.Workspace):
			l.Runs = append(l.Runs, m)
		}
	}
	return l, nil
}

// ids returns the ids of all runs, newest first, and other names in the directory, sorted.
func (s *Store) ids() (ids []ID, odd []string, err error) {
	err = s.readNames(s.runs, ".", func(name string) error {
		if id, err := ParseID(name); err == nil {
			ids = append(ids, id)
		} else if !strings.HasPrefix(name, newPrefix) {
			odd = append(odd, name)
		}
		return nil
	})
	slices.Sort(ids)
	slices.Reverse(ids)
	slices.Sort(odd)
	return ids, odd, err
}

// Find returns the run that ref names: an id, a unique prefix of an id (in upper or lower case), the name of a bottle for
// its newest run, or "" for the newest run of the workspace. The error is ErrNotFound (ErrNoRuns if ref is ""), an
// *AmbiguousError or a *CorruptError if that is not exactly one readable run.
func (s *Store) Find(ctx context.Context, ref string, ws Workspace) (Meta, error) {
	if ref == "" {
		l, err := s.List(ctx, Query{Limit: 1, Workspace: &ws})
		if err != nil {
			return Meta{}, err
		}
		if len(l.Runs) == 0 {
			return Meta{}, fmt.Errorf("workspace %s: %w", strconv.Quote(string(ws.Path)), ErrNoRuns)
		}
		return l.Runs[0], nil
	}
	if ValidSlug(ref) {
		return s.findNamed(ctx, ref)
	}
	if len(ref) > 26 {
		return Meta{}, fmt.Errorf("run %s…: %w", strconv.Quote(ref[:26]), ErrNotFound)
	}
	ids, _, err := s.ids()
	if err != nil {
		return Meta{}, fmt.Errorf("find run: %w", err)
	}
	ids = slices.DeleteFunc(ids, func(id ID) bool { return !strings.HasPrefix(string(id), strings.ToLower(ref)) })
	switch len(ids) {
	case 0:
		return Meta{}, fmt.Errorf("run %s: %w", strconv.Quote(ref), ErrNotFound)
	case 1:
		return s.Get(ids[0])
	}
	return Meta{}, s.ambiguous(ref, ids)
}

// findNamed returns the newest run of the bottle called name. Run ids never begin with a letter, so a name is not an id.
func (s *Store) findNamed(ctx context.Context, name string) (Meta, error) {
	l, err := s.List(ctx, Query{})
	if err != nil {
		return Meta{}, err
	}
	for _, m := range l.Runs {
		if m.Kind == KindBottle && m.Name == name {
			return m, nil
		}
	}
	return Meta{}, fmt.Errorf("run %s: %w", strconv.Quote(name), ErrNotFound)
}

func (s *Store) ambiguous(ref string, ids []ID) error {
	const shown = 10
	e := &AmbiguousError{Ref: ref, More: max(0, len(ids)-shown)}
	for _, id := range ids[:min(shown, len(ids))] {
		m, err := s.Get(id)
		if err != nil {
			m = Meta{ID: id}
		}
		e.Candidates = append(e.Candidates, m.Summary())
	}
	return e
}
