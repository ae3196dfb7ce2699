package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// baselineSchema names the format of a baseline.
const baselineSchema = "carboy.dev/gate-baseline/v1"

// Baseline lists what phases are allowed to do: what they did on the approved base. It is
// a file of the repository, which people change by commits.
type Baseline struct {
	Schema  string   `json:"schema"`
	Entries []*Entry `json:"entries"`
	// Removed lists tests that a change renamed or removed, with a person's approval.
	Removed []RemovedTests `json:"gone,omitempty"`
	// Changed lists tests that a change edits, with a person's approval: as the base has
	// them they may fail, and they may have fewer assertions.
	Changed []RemovedTests `json:"changed,omitempty"`
	// Accepted records who approved the baseline and when; nil: whoever committed it.
	Accepted *Accepted `json:"accepted,omitempty"`

	digest string
}

// RemovedTests lists the tests that may be missing from a signal's report, or be other
// ones.
type RemovedTests struct {
	Signal string   `json:"signal"`
	Tests  []string `json:"tests"`
	// Files is the SHA-256 of the edited test files that the person was shown, in
	// hexadecimal digits. The approval is for no other edit of them.
	Files string `json:"test_files_sha256,omitempty"`
}

// Accepted is a person's approval of a baseline. A signature covers it with the rest of
// the file.
type Accepted struct {
	By string    `json:"by"` // the principal in allowed_signers; empty: not signed
	At time.Time `json:"at"`
	// Verdict and Previous are SHA-256 digests in hexadecimal digits: of the verdict that
	// the person looked at, and of the baseline's file before.
	Verdict  string `json:"verdict_sha256,omitempty"`
	Previous string `json:"previous_sha256,omitempty"`
}

const (
	// SignaturePath is the path of the baseline's signature: an SSHSIG over the file's
	// bytes.
	SignaturePath = BaselinePath + SignatureSuffix
	// SignatureSuffix ends the name of a signature.
	SignatureSuffix = ".sig"
	// Namespace is the SSHSIG namespace, which keeps these signatures apart from those of
	// mails, commits and plans.
	Namespace = "carboy-gate@carboy.dev"
)

// Entry lists what one signal's phase may do. It holds for one image and one set of
// lockfiles, since others bring other programs.
type Entry struct {
	Signal    string `json:"signal"`
	Image     string `json:"image"`     // its digest, or "host"
	Lockfiles string `json:"lockfiles"` // SHA-256 of them all
	// The operations that are allowed. "*" stands for numbers in names. Reads and writes
	// are directories, at most four levels deep.
	Execs     []string `json:"execs"`
	Shells    []string `json:"shells,omitempty"`
	Endpoints []string `json:"endpoints,omitempty"`
	Reads     []string `json:"reads"`
	Writes    []string `json:"writes,omitempty"`
	Rights    []string `json:"rights,omitempty"`
}

// maxBaseline is the largest baseline that is read, in bytes.
const maxBaseline = 8 << 20

// ParseBaseline reads a baseline. Unknown fields are an error.
func ParseBaseline(b []byte) (*Baseline, error) {
	if len(b) > maxBaseline {
		return nil, fmt.Errorf("baseline: more than %d bytes", maxBaseline)
	}
	var x Baseline
	if err := decode(b, &x, &x.Schema, baselineSchema); err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	seen := map[string]bool{}
	for i, e := range x.Entries {
		if e == nil || e.Signal == "" || e.Image == "" || e.Lockfiles == "" {
			return nil, fmt.Errorf("baseline: entries[%d] lacks its signal, image or lockfiles", i)
		}
		if seen[e.Signal] {
			return nil, fmt.Errorf("baseline: entries[%d]: signal %q is there twice", i, truncate(e.Signal, 60))
		}
		seen[e.Signal] = true
	}
	for i, g := range x.Removed {
		if g.Signal == "" || len(g.Tests) == 0 || seen["gone "+g.Signal] {
			return nil, fmt.Errorf("baseline: gone[%d] lacks its signal or tests, or repeats a signal", i)
		}
		seen["gone "+g.Signal] = true
	}
	for i, g := range x.Changed {
		if g.Signal == "" || len(g.Tests) == 0 || len(g.Files) != 2*sha256.Size {
			return nil, fmt.Errorf("baseline: changed[%d] lacks its signal, tests or test_files_sha256", i)
		}
	}
	sum := sha256.Sum256(b)
	x.digest = hex.EncodeToString(sum[:])
	return &x, nil
}

// Digest returns the SHA-256 of the file that the baseline was read from, in hexadecimal
// digits; empty for a baseline made in memory.
func (b *Baseline) Digest() string {
	if b == nil {
		return ""
	}
	return b.digest
}

// removedTests returns the tests that may be missing from a signal's report.
func (b *Baseline) removedTests(signal string) []string {
	if b != nil {
		for _, g := range b.Removed {
			if g.Signal == signal {
				return g.Tests
			}
		}
	}
	return nil
}

// WithRemovedTests returns a copy of b, which may be nil, that lets more tests of a signal be
// missing.
func (b *Baseline) WithRemovedTests(signal string, tests []string) *Baseline {
	out := &Baseline{Schema: baselineSchema, Entries: []*Entry{}}
	all := slices.Concat(b.removedTests(signal), tests)
	slices.Sort(all)
	if b != nil {
		out.Entries, out.Changed = b.Entries, b.Changed
		out.Removed = slices.DeleteFunc(slices.Clone(b.Removed), func(g RemovedTests) bool { return g.Signal == signal })
	}
	out.Removed = append(out.Removed, RemovedTests{Signal: signal, Tests: slices.Compact(all)})
	slices.SortStableFunc(out.Removed, func(a, b RemovedTests) int { return strings.Compare(a.Signal, b.Signal) })
	return out
}

// changedTests returns the tests of a signal that may be edited as the test files with a
// digest have them.
func (b *Baseline) changedTests(signal, files string) (out []string) {
	if b != nil {
		for _, g := range b.Changed {
			if g.Signal == signal && g.Files == files {
				out = append(out, g.Tests...)
			}
		}
	}
	return out
}

// WithChangedTests returns a copy of b, which may be nil, that lets tests of a signal be
// other ones, as the test files with a digest have them.
func (b *Baseline) WithChangedTests(signal string, tests []string, files string) *Baseline {
	out := &Baseline{Schema: baselineSchema, Entries: []*Entry{}}
	if b != nil {
		out.Entries, out.Removed, out.Changed = b.Entries, b.Removed, slices.Clone(b.Changed)
	}
	out.Changed = append(out.Changed, RemovedTests{signal, slices.Sorted(slices.Values(tests)), files})
	return out
}

// Lines returns all that the baseline allows, one operation a line, for people. Names are
// quoted, so none can end a line.
func (b *Baseline) Lines() (out []string) {
	if b == nil {
		return nil
	}
	for _, e := range b.Entries {
		out = append(out, fmt.Sprintf("%s image %q", e.Signal, e.Image), fmt.Sprintf("%s lockfiles %q", e.Signal, e.Lockfiles))
		for _, l := range []struct {
			name string
			list []string
		}{{"executes", e.Execs}, {"as a shell", e.Shells}, {"reaches", e.Endpoints}, {"reads", e.Reads}, {"writes", e.Writes}, {"asks for", e.Rights}} {
			for _, s := range l.list {
				out = append(out, fmt.Sprintf("%s %s %q", e.Signal, l.name, s))
			}
		}
	}
	for _, g := range b.Removed {
		for _, t := range g.Tests {
			out = append(out, fmt.Sprintf("%s goes on without test %q", g.Signal, t))
		}
	}
	for _, g := range b.Changed {
		for _, t := range g.Tests {
			out = append(out, fmt.Sprintf("%s takes another test %q, of test files %s", g.Signal, t, g.Files))
		}
	}
	return out
}

// Encode returns the baseline as a file.
func (b *Baseline) Encode() ([]byte, error) {
	b.Schema = baselineSchema
	out, err := json.MarshalIndent(b, "", "  ")
	return append(out, '\n'), err
}

// entry returns the entry of a signal, or nil.
func (b *Baseline) entry(signal string) *Entry {
	if b == nil {
		return nil
	}
	for _, e := range b.Entries {
		if e.Signal == signal {
			return e
		}
	}
	return nil
}

var longDigits = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9]{3,}`) })

// generalize replaces what differs from run to run in a path: long numbers, and in the
// temporary directory and /proc all numbers.
func generalize(p string) string {
	if strings.HasPrefix(p, "/sys/fs/cgroup/") {
		return "/sys/fs/cgroup/*" // named after the run
	}
	if strings.HasPrefix(p, "/tmp/") || strings.HasPrefix(p, "/proc/") {
		p = anyDigits().ReplaceAllString(p, "*")
	} else {
		p = longDigits().ReplaceAllString(p, "*")
	}
	return p
}

var anyDigits = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9]+`) })

// readArea returns the directory, at most four levels deep, that stands for a file.
func readArea(p string) string {
	d := strings.Split(path.Dir(p), "/")
	return generalize(strings.Join(append(d[:min(len(d), 5)], ""), "/"))
}

// newEntry returns the entry that allows what a phase did.
func newEntry(signal, image, lockfiles string, o *Observed) *Entry {
	e := &Entry{Signal: signal, Image: image, Lockfiles: lockfiles, Execs: []string{}, Reads: []string{}}
	add := func(to *[]string, s string) { *to = append(*to, s) }
	for _, x := range o.Execs {
		name := generalize(x.Path)
		if x.Nameless {
			name = namelessPrefix + name
		}
		add(&e.Execs, name)
		if x.Shell {
			add(&e.Shells, name)
		}
	}
	for _, l := range o.Libraries {
		if strings.HasPrefix(l, namelessPrefix) {
			add(&e.Execs, generalize(l)) // code that no file holds
		}
	}
	for _, x := range o.Endpoints {
		if x.Errno == "" && x.What != "connect" && x.What != "send" || strings.HasPrefix(x.Address, "unix:") {
			continue // a server of its own, or a peer in the bottle
		}
		add(&e.Endpoints, x.What+" "+endpoint(x.Address))
	}
	for _, p := range slices.Concat(o.Opened, o.Missed, o.Listed) {
		add(&e.Reads, readArea(p))
	}
	for _, p := range o.Written {
		add(&e.Writes, readArea(p))
	}
	for _, r := range o.Rights {
		add(&e.Rights, strings.TrimSpace(r.What+" "+generalize(r.Detail)+" "+r.Errno))
	}
	for _, l := range []*[]string{&e.Execs, &e.Shells, &e.Endpoints, &e.Reads, &e.Writes, &e.Rights} {
		slices.Sort(*l)
		*l = slices.Compact(*l)
	}
	return e
}

// endpoint replaces the port of a loopback address, which the kernel may have chosen.
func endpoint(a string) string {
	if i := strings.LastIndexByte(a, ':'); i > 0 && strings.HasPrefix(a, "127.0.0.1") || strings.HasPrefix(a, "[::1]") {
		return a[:i] + ":*"
	}
	return a
}

// Drift lists operations of one kind that the baseline does not allow.
type Drift struct {
	What string   `json:"what"` // execs, shells, endpoints, reads, writes, rights
	New  []string `json:"new"`
}

func (e *Entry) drift(now *Entry) []Drift {
	var out []Drift
	for _, x := range []struct {
		what      string
		was, have []string
	}{
		{"execs", e.Execs, now.Execs}, {"shells", e.Shells, now.Shells}, {"endpoints", e.Endpoints, now.Endpoints},
		{"reads", e.Reads, now.Reads}, {"writes", e.Writes, now.Writes}, {"rights", e.Rights, now.Rights},
	} {
		var fresh []string
		for _, s := range x.have {
			if _, ok := slices.BinarySearch(x.was, s); !ok && !slices.Contains(x.was, s) {
				fresh = append(fresh, s)
			}
		}
		if len(fresh) > 0 {
			out = append(out, Drift{x.what, fresh})
		}
	}
	return out
}

// lockfileNames are the base names of files that pin what a project is built from.
var lockfileNames = []string{
	"go.mod", "go.sum", "go.work", "go.work.sum", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml",
	"requirements.txt", "poetry.lock", "Pipfile.lock", "uv.lock", "pdm.lock", "Cargo.lock",
}

func isLockfile(p string) bool { return slices.Contains(lockfileNames, path.Base(p)) }

// lockfilesDigest returns the SHA-256 over a tree's lockfiles, in hexadecimal digits.
func (t *Tree) lockfilesDigest(ctx context.Context) (string, error) {
	if err := t.hash(ctx); err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range t.Files {
		if isLockfile(f.Path) {
			t.noteRead(f.Path)
			fmt.Fprintf(h, "%x %s\x00", t.sums[f.Path], f.Path)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// differingLockfiles returns the lockfiles that differ between base and change.
func differingLockfiles(ctx context.Context, base, change *Tree) ([]string, error) {
	return differingFiles(ctx, base, change, isLockfile)
}

// differingBelow returns the files at, below or above some paths that differ between base
// and change.
func differingBelow(ctx context.Context, base, change *Tree, dirs []string) ([]string, error) {
	return differingFiles(ctx, base, change, func(p string) bool {
		return slices.ContainsFunc(dirs, func(d string) bool { return below(p, d) || below(d, p) })
	})
}

// differingFiles returns the files, of those that selected reports, that differ between base
// and change.
func differingFiles(ctx context.Context, base, change *Tree, selected func(string) bool) ([]string, error) {
	type content struct {
		mode FileMode
		sum  [sha256.Size]byte
	}
	both := map[string][2]content{}
	for i, t := range []*Tree{base, change} {
		if err := t.hash(ctx); err != nil {
			return nil, err
		}
		for _, f := range t.Files {
			if selected(f.Path) {
				t.noteRead(f.Path)
				s := both[f.Path]
				s[i] = content{f.Mode, t.sums[f.Path]}
				both[f.Path] = s
			}
		}
	}
	var out []string
	for p, s := range both {
		if s[0] != s[1] {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Drift returns what next has and b does not allow, by signal.
func (b *Baseline) Drift(next *Baseline) map[string][]Drift {
	out := map[string][]Drift{}
	for _, n := range next.Entries {
		e := b.entry(n.Signal)
		if e == nil {
			e = &Entry{}
		}
		if d := e.drift(n); len(d) > 0 {
			out[n.Signal] = d
		}
	}
	return out
}

// MergeBaselines returns a baseline that allows what either allows. Image and lockfiles
// are those of next.
func MergeBaselines(was, next *Baseline) *Baseline {
	out := &Baseline{Schema: baselineSchema, Entries: []*Entry{}}
	if was != nil {
		out.Removed, out.Changed = was.Removed, was.Changed
		for _, e := range was.Entries {
			if next.entry(e.Signal) == nil {
				out.Entries = append(out.Entries, e)
			}
		}
	}
	for _, n := range next.Entries {
		x := *n
		if e := was.entry(n.Signal); e != nil && e.Image == n.Image {
			for _, l := range []struct {
				to   *[]string
				from []string
			}{{&x.Execs, e.Execs}, {&x.Shells, e.Shells}, {&x.Endpoints, e.Endpoints}, {&x.Reads, e.Reads}, {&x.Writes, e.Writes}, {&x.Rights, e.Rights}} {
				*l.to = append(slices.Clone(*l.to), l.from...)
				slices.Sort(*l.to)
				*l.to = slices.Compact(*l.to)
			}
		}
		out.Entries = append(out.Entries, &x)
	}
	slices.SortFunc(out.Entries, func(a, b *Entry) int { return strings.Compare(a.Signal, b.Signal) })
	return out
}
