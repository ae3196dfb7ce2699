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

	"github.com/carboy/carboy/internal/bottle"
)

// inputsSchema names the format of Inputs.
const inputsSchema = "carboy.dev/gate-inputs/v1"

// Inputs records everything that a verdict was seen to depend on. The verdict can be
// reused while all of it is unchanged.
type Inputs struct {
	Schema  string `json:"schema"`
	Verdict string `json:"verdict"` // the verdict's id
	// Given holds the inputs that the caller names: the catalog, the baseline, the build
	// of carboy, variables, the image.
	Given map[string]string `json:"given"`
	// Base and Change are the inputs from the two trees.
	Base   TreeInputs `json:"base"`
	Change TreeInputs `json:"change"`
	// Host maps files of this machine that phases read, listed or looked for in vain to
	// their fingerprints. It is empty where the phases ran on an image.
	Host map[string]string `json:"host"`
	// Network lists phases that had answers from outside. They run again, and must get
	// the same answers, end the same and leave the same files.
	Network []NetworkInput `json:"network,omitempty"`

	hostMissEarly *string
}

// NetworkInput records the answers that a phase had from outside, and its results.
type NetworkInput struct {
	Signal string `json:"signal"`
	On     string `json:"on"`
	Code   int    `json:"code"`
	// Answers maps method and URL to the statuses and SHA-256 of bodies.
	Answers map[string]string `json:"answers"`
	// Kept is a digest of the files that later signals get from it.
	Kept string `json:"kept"`
}

// TreeInputs records what was used of a tree: all names, modes, sizes and links, and the
// content of every file that was opened.
type TreeInputs struct {
	Listing string            `json:"listing"`
	Files   map[string]string `json:"files"`         // path: SHA-256, or "absent"
	All     string            `json:"all,omitempty"` // digest of the whole tree, where all of it was used
	// Differs is a digest of the names of files that differ from the base, where file
	// times showed which these are.
	Differs string `json:"differs,omitempty"`
}

// errNotCacheable means that a verdict may turn out different next time although
// everything that was seen is unchanged.
var errNotCacheable = errors.New("the verdict is not kept for later")

const absent = "absent"

// bottleDirs are directories that every bottle has for itself.
var bottleDirs = []string{"/proc", "/sys", "/dev", "/tmp", Workspace}

// settleTime is the time for which a file of the host must have been unchanged, so that
// its times reveal a later change.
const settleTime = 2 * time.Second

// Inputs collects what the verdict depended on. The caller names further inputs in given;
// homes are directories of the bottle that hold nothing of the host.
func (g *Gate) Inputs(ctx context.Context, v *Verdict, given map[string]string, homes ...string) (*Inputs, error) {
	in := &Inputs{Schema: inputsSchema, Verdict: v.ID, Given: given}
	for _, r := range v.Signals {
		if r.Outcome == Unavailable || r.Outcome == Escalated {
			return nil, fmt.Errorf("%w: signal %s is %s", errNotCacheable, r.Name, r.Outcome)
		}
	}
	fromBase, fromChange := map[string]bool{}, map[string]bool{}
	host := map[string]bool{}
	for _, p := range g.phases {
		switch {
		case !p.exited():
			return nil, fmt.Errorf("%w: %s did not end by itself", errNotCacheable, p.Signal)
		case !p.Observed.whole():
			return nil, fmt.Errorf("%w: the trace of %s has gaps", errNotCacheable, p.Signal)
		case p.Networked:
			n, err := g.networkInput(ctx, p)
			if err != nil {
				return nil, err
			}
			in.Network = append(in.Network, *n)
		}
		p.noteFiles(g.Base, fromBase, host, onBase, onOld)
		p.noteFiles(g.Change, fromChange, host, onChange, onOld)
		for _, l := range [][]string{p.Observed.Opened, p.Observed.Missed, p.Observed.Listed} {
			for _, f := range l {
				host[f] = true
			}
		}
	}
	var err error
	if in.Base, err = g.Base.treeInputs(ctx, fromBase); err != nil {
		return nil, err
	}
	if in.Change, err = g.Change.treeInputs(ctx, fromChange); err != nil {
		return nil, err
	}
	if len(g.Catalog.warmSignals()) > 0 {
		if in.Change.Differs, err = g.Change.differingDigest(ctx, g.Base); err != nil {
			return nil, err
		}
	}
	in.Host, err = g.hostInputs(host, homes)
	return in, err
}

// noteFiles adds the files that a phase used to files, which are those of t, and to host,
// if the phase ran on one of some trees. With the base's tests in the change, each file
// counts on both sides.
func (p *Phase) noteFiles(t *Tree, files, host map[string]bool, on ...string) {
	if tree, _, _ := strings.Cut(p.On, "-alone-"); !slices.Contains(on, tree) {
		return
	}
	for _, f := range p.Observed.TreeRead {
		files[f] = true
	}
	for _, f := range p.Observed.Handled {
		if path.IsAbs(f) {
			host[f] = true
			continue
		}
		files[f] = true
		t.below(f, func(x File) { files[x.Path] = true })
	}
}

// hostInputs returns the fingerprints of files of this machine and of the directories
// above them. A file that was changed since shortly before the gate began is an error:
// nobody can tell which content the phases read.
func (g *Gate) hostInputs(host map[string]bool, homes []string) (map[string]string, error) {
	in := map[string]string{}
	if g.Catalog.Image != "" {
		return in, nil
	}
	for f := range host {
		if below(f, "/etc") { // a file that did not change may be shown no more
			for _, d := range bottle.SettingsBy {
				host[d] = true
			}
			break
		}
	}
	for f := range host {
		if slices.ContainsFunc(append(homes, bottleDirs...), func(d string) bool { return below(f, d) }) {
			continue
		}
		// A symbolic link on the way belongs to its directory, so directories count too.
		for own := true; f != "/"; f, own = path.Dir(f), false {
			if _, ok := in[f]; ok || !own && host[f] {
				break
			}
			p, changed := fileFingerprint(f)
			if !own && strings.HasPrefix(stickyFingerprint(f), stickyPrefix) {
				p, changed = stickyFingerprint(f), time.Time{}
			}
			if changed.After(g.began.Add(-settleTime)) {
				return nil, fmt.Errorf("%w: %s was changed while the gate ran, or a moment before", errNotCacheable, f)
			}
			in[f] = p
		}
	}
	return in, nil
}

// networkInput returns the answers that a phase had from outside, or ErrNotCacheable if
// not all are known.
func (g *Gate) networkInput(ctx context.Context, p *Phase) (*NetworkInput, error) {
	s := g.Catalog.Signal(p.Signal)
	not := func(why string) error {
		return fmt.Errorf("%w: %s could reach the network, and %s", errNotCacheable, p.Signal, why)
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
	n.Kept, err = g.keptDigest(ctx, s, p)
	return n, err
}

// keptDigest returns a digest of the files that later signals get from a phase.
func (g *Gate) keptDigest(ctx context.Context, s *Signal, p *Phase) (string, error) {
	if p.Code != 0 || len(s.Keep) == 0 {
		return "nothing", nil
	}
	t := g.Change
	if p.On == onBase {
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

// Rerun runs the phases of in.Network again and returns what differs from before; empty:
// nothing. A later Run uses their results.
func (g *Gate) Rerun(ctx context.Context, in *Inputs) (string, error) {
	g.prepare()
	for _, was := range in.Network {
		s, key := g.Catalog.Signal(was.Signal), was.Signal+" "+was.On
		if s == nil || was.On != onBase && was.On != onChange {
			return was.Signal + " is gone", nil
		}
		t := g.Change
		if was.On == onBase {
			t = g.Base
		}
		p := g.byKey[key]
		if p == nil {
			var err error
			if p, err = g.start(ctx, s, t, was.On, nil, nil); err != nil {
				return "", err
			}
			g.ranEarly[key], g.byKey[key] = p, p
		}
		on := was.Signal + " on the " + was.On
		if !p.exited() || !p.Observed.whole() {
			return "how " + on + " ends", nil
		}
		now, err := g.networkInput(ctx, p)
		if errors.Is(err, errNotCacheable) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
		for _, k := range slices.Sorted(maps.Keys(now.Answers)) {
			if _, ok := was.Answers[k]; !ok {
				return fmt.Sprintf("%s asked for %s, which it did not before", on, k), nil
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

func (t *Tree) treeInputs(ctx context.Context, opened map[string]bool) (in TreeInputs, err error) {
	if in.Listing, err = t.Listing(ctx); err != nil {
		return in, err
	}
	in.Files = map[string]string{}
	if t.allRead {
		in.All, err = t.Digest(ctx)
		return in, err
	}
	paths := slices.Concat(slices.Collect(maps.Keys(opened)), slices.Collect(maps.Keys(t.read)))
	sums, err := t.sumOf(ctx, paths)
	for _, p := range paths {
		in.Files[p] = absent
		if s, ok := sums[p]; ok {
			in.Files[p] = hex.EncodeToString(s[:])
		}
	}
	return in, err
}

// fileFingerprint returns a text that changes whenever the file changes, and the time of
// that change. Only root can set the kernel's change time back.
func fileFingerprint(p string) (string, time.Time) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return absent, time.Time{}
	}
	return fmt.Sprintf("%d:%d:%o:%d:%d:%d:%d", st.Dev, st.Ino, st.Mode, st.Uid, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), time.Unix(st.Ctim.Unix())
}

// stickyPrefix begins the fingerprint of a directory in which every user may create
// files. Other users' files come and go there, so its times do not count.
const stickyPrefix = "sticky "

func stickyFingerprint(p string) string {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Mode&unix.S_ISVTX == 0 || st.Mode&unix.S_IWOTH == 0 {
		return absent
	}
	return fmt.Sprintf("%s%d:%d:%o:%d", stickyPrefix, st.Dev, st.Ino, st.Mode, st.Uid)
}

// Miss says why a verdict cannot be reused; empty: it can. It checks all that the verdict
// depended on.
func (in *Inputs) Miss(ctx context.Context, base, change *Tree, given map[string]string) (string, error) {
	if in.Schema != inputsSchema {
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
		d, err := change.differingDigest(ctx, base)
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
	if early := in.hostMissEarly; early != nil {
		in.hostMissEarly = nil
		return *early, nil
	}
	return hostChange(in.Host), nil
}

// CheckHostEarly checks the host's files ahead of the next Miss, which uses the result. It may run
// while the trees are being read.
func (in *Inputs) CheckHostEarly() {
	why := hostChange(in.Host)
	in.hostMissEarly = &why
}

// hostChange names a file of this machine that changed; empty: none did.
func hostChange(host map[string]string) string {
	other := map[string]string{} // the new fingerprints
	for p, was := range host {
		now, _ := fileFingerprint(p)
		if strings.HasPrefix(was, stickyPrefix) {
			now = stickyFingerprint(p)
		}
		if now != was {
			other[p] = now
		}
	}
	// A file comes before its directory, which changes with it.
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

// DirFingerprint returns a fingerprint of a directory by the times of its files, for databases
// that are too large to read each time.
func DirFingerprint(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		s, _ := fileFingerprint(p)
		fmt.Fprintf(h, "%q %s\n", p, s)
		return nil
	})
	if errors.Is(err, os.ErrNotExist) {
		return absent, nil
	}
	return cmp.Or(hex.EncodeToString(h.Sum(nil)), absent), err
}
