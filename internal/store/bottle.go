package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bottle is the record of a named bottle, bottles/<slug>/meta.json. It says what was started. The state of the bottle is
// in the records of its runs only, so the two cannot disagree.
type Bottle struct {
	Schema    string    `json:"schema"`
	Slug      string    `json:"slug"`
	Label     string    `json:"label"`
	Color     string    `json:"color,omitempty"`
	Agent     string    `json:"agent"`
	Bottles   []string  `json:"bottles"`
	Workspace Workspace `json:"workspace"`
	Mode      Mode      `json:"mode"`
	Created   time.Time `json:"created"`
	Build     string    `json:"build,omitempty"`
	Backend   string    `json:"backend,omitempty"`   // the name; empty: gvisor
	Manifests Raw       `json:"manifests,omitempty"` // their directory; empty: the configuration's
	Args      []Raw     `json:"args,omitempty"`      // of a command that begins again with them
	Services  int       `json:"services,omitempty"`  // that began beside it
}

const (
	bottleKind = "bottle"
	bottlesDir = "bottles"
	maxSlug    = 40
	// maxSame bounds the number of bottles with the same label.
	maxSame = 1000
)

// ErrNoBottle is returned for a bottle that does not exist.
var ErrNoBottle = errors.New("no such bottle")

// SlugOf returns a name made from label: lower-case letters, digits and dashes, beginning with a letter. Run ids never
// begin with a letter, so a name is not an id.
func SlugOf(label string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(label) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	s := strings.Trim(b.String(), "-")
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "b-" + s
	}
	if len(s) > maxSlug {
		s = s[:maxSlug]
	}
	return strings.Trim(s, "-")
}

// ValidSlug reports whether s can be the name of a bottle.
func ValidSlug(s string) bool {
	if s == "" || len(s) > maxSlug+len("-1000") || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// CreateBottle creates the record of a bottle under an unused name: that of its label, else with -2, -3 and so on. It is
// atomic and durable.
func (s *Store) CreateBottle(ctx context.Context, b Bottle) (Bottle, error) {
	base := SlugOf(b.Label)
	err := s.locked(ctx, func() error {
		for n := 1; n <= maxSame; n++ {
			b.Slug = base
			if n > 1 {
				b.Slug = base + "-" + strconv.Itoa(n)
			}
			var st unix.Stat_t
			err := unix.Fstatat(s.bottles, b.Slug, &st, unix.AT_SYMLINK_NOFOLLOW)
			if errors.Is(err, unix.ENOENT) {
				b.Schema, b.Created = Schema(bottleKind), s.now()
				return s.buildBottle(&b)
			} else if err != nil {
				return err
			}
		}
		return fmt.Errorf("%d bottles are called %s", maxSame, strconv.Quote(base))
	})
	if err != nil {
		return Bottle{}, fmt.Errorf("create bottle: %w", err)
	}
	return b, nil
}

// buildBottle creates the directory under a temporary name and then renames it.
func (s *Store) buildBottle(b *Bottle) (err error) {
	data, err := Encode(bottleKind, b)
	if err != nil {
		return err
	}
	tmp := newPrefix + b.Slug
	if err := s.dropBottle(tmp); err != nil { // of one that died
		return err
	}
	if err := s.sys.Mkdirat(s.bottles, tmp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.dropBottle(tmp)
		}
	}()
	dir, err := s.sys.Openat(s.bottles, tmp, dirFlags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := replaceFile(s.sys, dir, metaFile, "."+metaFile+".tmp", data, 0o600); err != nil {
		return err
	}
	if err := s.sys.Renameat(s.bottles, tmp, s.bottles, b.Slug); err != nil {
		return err
	}
	tmp = b.Slug
	return s.sys.Fsync(s.bottles)
}

func (s *Store) dropBottle(name string) error {
	err := s.toTrash(s.bottles, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Bottle returns one record. The error is ErrNoBottle if there is none.
func (s *Store) Bottle(slug string) (b Bottle, err error) {
	if !ValidSlug(slug) {
		return b, fmt.Errorf("bottle %s: %w", strconv.Quote(slug), ErrNoBottle)
	}
	data, err := readAt(s.sys, s.bottles, slug+"/"+metaFile)
	if errors.Is(err, unix.ENOENT) {
		var st unix.Stat_t
		if unix.Fstatat(s.bottles, slug, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return b, fmt.Errorf("bottle %s: %w", slug, ErrNoBottle)
		}
	}
	if err == nil {
		err = Decode(metaFile, bottleKind, data, &b)
	}
	if err == nil && b.Slug != slug {
		err = fmt.Errorf("field \"slug\" is %q", b.Slug)
	}
	if err != nil {
		return Bottle{}, &CorruptError{ID: slug, File: s.dir + "/" + bottlesDir + "/" + slug + "/" + metaFile, Err: err}
	}
	return b, nil
}

// Bottles returns all records, sorted by name, and an error for each that cannot be read.
func (s *Store) Bottles(ctx context.Context) (list []Bottle, corrupt []*CorruptError, err error) {
	var names []string
	if err := s.readNames(s.bottles, ".", func(name string) error {
		if !strings.HasPrefix(name, newPrefix) {
			names = append(names, name)
		}
		return ctx.Err()
	}); err != nil {
		return nil, nil, fmt.Errorf("list bottles: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		b, err := s.Bottle(name)
		var bad *CorruptError
		switch {
		case errors.As(err, &bad):
			corrupt = append(corrupt, bad)
		case errors.Is(err, ErrNoBottle): // meanwhile removed, or no bottle's name
		case err != nil:
			return nil, nil, err
		default:
			list = append(list, b)
		}
	}
	return list, corrupt, nil
}

// RunsOf returns the records of b's runs, newest first, without those of an earlier bottle of the same name.
func (s *Store) RunsOf(ctx context.Context, b Bottle) ([]Meta, error) {
	l, err := s.List(ctx, Query{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(l.Runs, func(m Meta) bool {
		return m.Kind != KindBottle || m.Name != b.Slug || m.Created.Before(b.Created)
	}), nil
}

// RemoveBottle deletes the record of a bottle and reports whether it existed. It does not remove the bottle's runs.
func (s *Store) RemoveBottle(ctx context.Context, slug string) (was bool, err error) {
	if !ValidSlug(slug) {
		return false, nil
	}
	err = s.locked(ctx, func() error {
		err := s.toTrash(s.bottles, slug)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		was = err == nil
		return err
	})
	if err == nil {
		err = s.emptyTrash(ctx)
	}
	if err != nil {
		return was, fmt.Errorf("remove bottle %s: %w", slug, err)
	}
	return was, nil
}
