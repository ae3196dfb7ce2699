package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// InputsSchema names the format of what a verdict depended on.
const InputsSchema = "carboy.dev/gate-inputs/v1"

// Inputs are everything that a verdict was seen to depend on. It holds as long as all
// of them are as they were.
type Inputs struct {
	Schema  string `json:"schema"`
	Verdict string `json:"verdict"` // its id
	// Given are what carboy itself decided by, by name: the catalog, the baseline, the
	// build of carboy, variables, the image.
	Given map[string]string `json:"given"`
	// Base and Change are what of the trees counted.
	Base   TreeInputs `json:"base"`
	Change TreeInputs `json:"change"`
	// Host are files of this machine that phases read, listed or looked for in vain, by
	// path, as they were. Empty where the phases ran on an image.
	Host map[string]string `json:"host"`
	// Network are phases that had answers from outside. They alone run again, and must
	// be answered, end and leave the same.
	Network []NetworkInput `json:"network,omitempty"`

	early *string
}

// NetworkInput is what a phase had from outside, and what came of it.
type NetworkInput struct {
	Signal string `json:"signal"`
	On     string `json:"on"`
	Code   int    `json:"code"`
	// Answers are statuses and SHA-256 of bodies, by method and URL.
	Answers map[string]string `json:"answers"`
	// Kept sums up what later signals get of it.
	Kept string `json:"kept"`
}

// TreeInputs are what of a tree counted: all names, modes, sizes and links, and the
// content of every file that was opened.
type TreeInputs struct {
	Listing string            `json:"listing"`
	Files   map[string]string `json:"files"`         // path: SHA-256, or "absent"
	All     string            `json:"all,omitempty"` // of the whole tree, where all of it was looked at
	// Differs sums up which files are not the base's, where their times said so.
	Differs string `json:"differs,omitempty"`
}

// ErrNotCacheable is of a verdict that may be another one next time although
// everything that was seen is as it was.
var ErrNotCacheable = errors.New("the verdict is not kept for later")

const absent = "absent"

// private are directories that every bottle has for itself.
var private = []string{"/proc", "/sys", "/dev", "/tmp", Workspace}

// settled is how long a file of the host must have been unchanged to be told apart
// later by its times.
const settled = 2 * time.Second

// Inputs collects what the verdict depended on. given are named by the caller; homes
// are directories of the bottle that hold nothing of the host's.
func (g *Gate) Inputs(ctx context.Context, v *Verdict, given map[string]string, homes ...string) (*Inputs, error) {
	in := &Inputs{Schema: InputsSchema, Verdict: v.ID, Given: given}
	for _, r := range v.Signals {
		if r.Outcome == Unavailable || r.Outcome == Escalated {
			return nil, fmt.Errorf("%w: signal %s is %s", ErrNotCacheable, r.Name, r.Outcome)
		}
	}
	seen := map[string]map[string]bool{"base": {}, "change": {}}
	host := map[string]bool{}
	for _, p := range g.phases {
		switch {
		case !p.Own():
			return nil, fmt.Errorf("%w: %s did not end by itself", ErrNotCacheable, p.Signal)
		case !p.Observed.Whole():
			return nil, fmt.Errorf("%w: the trace of %s has gaps", ErrNotCacheable, p.Signal)
		case p.Networked:
			n, err := g.network(ctx, p)
			if err != nil {
				return nil, err
			}
			in.Network = append(in.Network, *n)
		}
		for _, f := range p.Observed.TreeRead {
			seen[p.On][f] = true
		}
		t, of := g.Change, seen[p.On]
		if p.On == "base" {
			t = g.Base
		}
		for _, f := range p.Observed.Handled {
			if path.IsAbs(f) {
				host[f] = true
				continue
			}
			of[f] = true
			t.below(f, func(x File) { of[x.Path] = true })
		}
		for _, l := range [][]string{p.Observed.Opened, p.Observed.Missed, p.Observed.Listed} {
			for _, f := range l {
				host[f] = true
			}
		}
	}
	var err error
	if in.Base, err = g.Base.inputs(ctx, seen["base"]); err != nil {
		return nil, err
	}
	if in.Change, err = g.Change.inputs(ctx, seen["change"]); err != nil {
		return nil, err
	}
	if len(g.Catalog.warms()) > 0 {
		if in.Change.Differs, err = g.Change.differing(ctx, g.Base); err != nil {
			return nil, err
		}
	}
	in.Host, err = g.hostInputs(host, homes)
	return in, err
}

// hostInputs are files of this machine as they are, with the directories above them.
// What was changed since the gate began, or a moment before, can't be told apart from
// what phases used.
func (g *Gate) hostInputs(host map[string]bool, homes []string) (map[string]string, error) {
	in := map[string]string{}
	if g.Catalog.Image != "" {
		return in, nil
	}
	for f := range host {
		if slices.ContainsFunc(append(homes, private...), func(d string) bool { return below(f, d) }) {
			continue
		}
		// A link on the way is part of its directory, so directories count too.
		for own := true; f != "/"; f, own = path.Dir(f), false {
			if _, ok := in[f]; ok || !own && host[f] {
				break
			}
			p, changed := print1(f)
			if !own && strings.HasPrefix(sticky(f), stickyMark) {
				p, changed = sticky(f), time.Time{}
			}
			if changed.After(g.began.Add(-settled)) {
				return nil, fmt.Errorf("%w: %s was changed while the gate ran, or a moment before", ErrNotCacheable, f)
			}
			in[f] = p
		}
	}
	return in, nil
}

// network is what a phase had from outside, where that is all known.
func (g *Gate) network(ctx context.Context, p *Phase) (*NetworkInput, error) {
	s := g.Catalog.Signal(p.Signal)
	not := func(why string) error {
		return fmt.Errorf("%w: %s could reach the network, and %s", ErrNotCacheable, p.Signal, why)
	}
	if !s.Kind.ByCode {
		return nil, not("more than its end and what it keeps is judged")
	}
	if p.Unread != "" {
		return nil, not(p.Unread)
	}
	for _, a := range s.After {
		if len(g.Catalog.Signal(a).Network) == 0 {
			return nil, not("begins with what " + a + " keeps, which could not")
		}
	}
	n := &NetworkInput{Signal: p.Signal, On: p.On, Code: p.Code, Answers: map[string]string{}}
	list := map[string][]string{}
	for _, f := range p.Fetched {
		list[f.Method+" "+f.URL] = append(list[f.Method+" "+f.URL], fmt.Sprintf("%d %s", f.Status, f.Digest))
	}
	for k, answers := range list {
		slices.Sort(answers)
		n.Answers[k] = strings.Join(slices.Compact(answers), ", ")
	}
	var err error
	n.Kept, err = g.keptSum(ctx, s, p)
	return n, err
}

// keptSum sums up what later signals get of a phase.
func (g *Gate) keptSum(ctx context.Context, s *Signal, p *Phase) (string, error) {
	if p.Code != 0 || len(s.Keep) == 0 {
		return "nothing", nil
	}
	t := g.Change
	if p.On == "base" {
		t = g.Base
	}
	t, err := g.withKept(ctx, t, s.Name, p.On)
	if err != nil {
		return "", err
	}
	of := &Tree{Name: t.Name, src: t.src, Files: slices.DeleteFunc(slices.Clone(t.Files), func(f File) bool {
		return !slices.ContainsFunc(s.Keep, func(k string) bool { return below(f.Path, k) })
	})}
	return of.Digest(ctx)
}

// Again runs the phases that had answers from outside, and says what is another than
// before; empty: nothing. A Run that follows goes on with what they left.
func (g *Gate) Again(ctx context.Context, in *Inputs) (string, error) {
	g.begin()
	for _, was := range in.Network {
		s, key := g.Catalog.Signal(was.Signal), was.Signal+" "+was.On
		if s == nil || was.On != "base" && was.On != "change" {
			return was.Signal + " is gone", nil
		}
		t := g.Change
		if was.On == "base" {
			t = g.Base
		}
		p := g.kept[key]
		if p == nil {
			var err error
			if p, err = g.start(ctx, s, t, was.On, nil, nil); err != nil {
				return "", err
			}
			g.ahead[key], g.kept[key] = p, p
		}
		on := was.Signal + " on the " + was.On
		if !p.Own() || !p.Observed.Whole() {
			return "how " + on + " ends", nil
		}
		now, err := g.network(ctx, p)
		if errors.Is(err, ErrNotCacheable) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
		for _, k := range slices.Sorted(maps.Keys(now.Answers)) {
			if _, ok := was.Answers[k]; !ok {
				return fmt.Sprintf("%s asked for %s, which it had not", on, k), nil
			}
		}
		for _, k := range slices.Sorted(maps.Keys(was.Answers)) {
			if now.Answers[k] != was.Answers[k] {
				return fmt.Sprintf("the network's answer to %s of %s", k, on), nil
			}
		}
		if now.Code != was.Code || now.Kept != was.Kept {
			return "what " + on + " keeps", nil
		}
	}
	return "", nil
}

func (t *Tree) inputs(ctx context.Context, opened map[string]bool) (in TreeInputs, err error) {
	if in.Listing, err = t.Listing(ctx); err != nil {
		return in, err
	}
	in.Files = map[string]string{}
	if t.whole {
		in.All, err = t.Digest(ctx)
		return in, err
	}
	paths := slices.Concat(slices.Collect(maps.Keys(opened)), slices.Collect(maps.Keys(t.looks)))
	sums, err := t.sumOf(ctx, paths)
	for _, p := range paths {
		in.Files[p] = absent
		if s, ok := sums[p]; ok {
			in.Files[p] = hex.EncodeToString(s[:])
		}
	}
	return in, err
}

// print1 is a file of the host in a few words: what changes when anything of it does. A
// file's time of change is the kernel's, and set back by nobody but root.
func print1(p string) (string, time.Time) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return absent, time.Time{}
	}
	return fmt.Sprintf("%d:%d:%o:%d:%d:%d:%d", st.Dev, st.Ino, st.Mode, st.Uid, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), time.Unix(st.Ctim.Unix())
}

// stickyMark begins the print of a directory in which every user may make files, of
// which only what it is counts: others' files come and go there.
const stickyMark = "sticky "

func sticky(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&unix.S_ISVTX == 0 || st.Mode&unix.S_IWOTH == 0 {
		return absent
	}
	return fmt.Sprintf("%s%d:%d:%o:%d", stickyMark, st.Dev, st.Ino, st.Mode, st.Uid)
}

// Miss says why a verdict of before does not hold; empty: it does. It looks at all that
// the verdict depended on.
func (in *Inputs) Miss(ctx context.Context, base, change *Tree, given map[string]string) (string, error) {
	if in.Schema != InputsSchema {
		return "what was kept is of another carboy", nil
	}
	names := slices.Collect(maps.Keys(in.Given))
	for n := range given {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range slices.Compact(names) {
		if in.Given[n] != given[n] || given[n] == "" {
			return n + " changed", nil
		}
	}
	if in.Change.Differs != "" {
		d, err := change.differing(ctx, base)
		if err != nil || d != in.Change.Differs {
			return "which files are the base's", err
		}
	}
	for _, s := range []struct {
		name string
		was  TreeInputs
		t    *Tree
	}{{"change", in.Change, change}, {"base", in.Base, base}} {
		why, err := s.was.miss(ctx, s.t)
		if err != nil || why != "" {
			return strings.TrimSpace(why + " of the " + s.name), err
		}
	}
	if early := in.early; early != nil {
		in.early = nil
		return *early, nil
	}
	return hostMiss(in.Host), nil
}

// Early does what of the next Miss needs no tree, while somebody reads these.
func (in *Inputs) Early() {
	why := hostMiss(in.Host)
	in.early = &why
}

// hostMiss is a file of this machine that is not as it was.
func hostMiss(host map[string]string) string {
	other := map[string]string{} // as they are now
	for p, was := range host {
		now, _ := print1(p)
		if strings.HasPrefix(was, stickyMark) {
			now = sticky(p)
		}
		if now != was {
			other[p] = now
		}
	}
	// Files before the directories that they lie in: those change with them.
	byDepth := func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(b, "/"), strings.Count(a, "/")), cmp.Compare(a, b))
	}
	if len(other) == 0 {
		return ""
	}
	p := slices.MinFunc(slices.Collect(maps.Keys(other)), byDepth)
	switch absent {
	case host[p]:
		return p + " of this machine, which was looked for in vain, is there now"
	case other[p]:
		return p + " of this machine is gone"
	}
	return p + " of this machine changed"
}

func (in *TreeInputs) miss(ctx context.Context, t *Tree) (string, error) {
	l, err := t.Listing(ctx)
	if err != nil || l != in.Listing {
		return "the list of files", err
	}
	if in.All != "" {
		d, err := t.Digest(ctx)
		if err != nil || d == in.All {
			return "", err
		}
		return "a file", nil
	}
	paths := slices.Sorted(maps.Keys(in.Files))
	sums, err := t.sumOf(ctx, paths)
	if err != nil {
		return "", err
	}
	for _, p := range paths {
		now := absent
		if s, ok := sums[p]; ok {
			now = hex.EncodeToString(s[:])
		}
		if now != in.Files[p] {
			return "file " + p, nil
		}
	}
	return "", nil
}

// DirPrint sums up a directory's files by their times, for databases that are too large
// to read each time.
func DirPrint(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s, _ := print1(p)
		fmt.Fprintf(h, "%q %s\n", p, s)
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		return absent, nil
	}
	return cmp.Or(hex.EncodeToString(h.Sum(nil)), absent), err
}
