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

// BaselineSchema names the format of a baseline.
const BaselineSchema = "carboy.dev/gate-baseline/v1"

// Baseline is what phases are allowed to do: what they did on the approved base. It
// is a file of the repository, and changes by commits that a person makes.
type Baseline struct {
	Schema  string   `json:"schema"`
	Entries []*Entry `json:"entries"`
	// Gone are tests that a change has renamed or removed, and a person let go.
	Gone []Gone `json:"gone,omitempty"`
	// Accepted says who let all of this be, and since when; nil: whoever committed it.
	Accepted *Accepted `json:"accepted,omitempty"`

	digest string
}

// Gone are tests that a signal may miss.
type Gone struct {
	Signal string   `json:"signal"`
	Tests  []string `json:"tests"`
}

// Accepted is a person's word for a baseline, which is signed with the rest of it.
type Accepted struct {
	By string    `json:"by"` // as in allowed_signers; empty: it is not signed
	At time.Time `json:"at"`
	// Verdict and Previous are SHA-256 digests in hexadecimal digits: of the verdict
	// that was looked at, and of the baseline's file before.
	Verdict  string `json:"verdict_sha256,omitempty"`
	Previous string `json:"previous_sha256,omitempty"`
}

const (
	// SignaturePath is where the baseline's signature is: an SSHSIG over its very bytes.
	SignaturePath = BaselinePath + SignatureSuffix
	// SignatureSuffix is of the name of a signature, beside its baseline.
	SignatureSuffix = ".sig"
	// Namespace separates these signatures from those for mails, commits and plans.
	Namespace = "carboy-gate@carboy.dev"
)

// Entry is what one signal's phase may do. It holds for one image and one set of
// lockfiles: with others, programs are others.
type Entry struct {
	Signal    string `json:"signal"`
	Image     string `json:"image"`     // its digest, or "host"
	Lockfiles string `json:"lockfiles"` // SHA-256 of them all
	// What may be executed, reached, read, written and asked for. Numbers in names
	// stand as "*"; files are areas: directories, at most four levels deep.
	Execs     []string `json:"execs"`
	Shells    []string `json:"shells,omitempty"`
	Endpoints []string `json:"endpoints,omitempty"`
	Reads     []string `json:"reads"`
	Writes    []string `json:"writes,omitempty"`
	Rights    []string `json:"rights,omitempty"`
}

// maxBaseline bounds the file, in bytes.
const maxBaseline = 8 << 20

// ParseBaseline reads a baseline strictly.
func ParseBaseline(b []byte) (*Baseline, error) {
	if len(b) > maxBaseline {
		return nil, fmt.Errorf("baseline: more than %d bytes", maxBaseline)
	}
	var x Baseline
	if err := decode(b, &x, &x.Schema, BaselineSchema); err != nil {
		return nil, fmt.Errorf("baseline: %w", err)
	}
	seen := map[string]bool{}
	for i, e := range x.Entries {
		if e == nil || e.Signal == "" || e.Image == "" || e.Lockfiles == "" {
			return nil, fmt.Errorf("baseline: entries[%d] lacks its signal, image or lockfiles", i)
		}
		if seen[e.Signal] {
			return nil, fmt.Errorf("baseline: entries[%d]: signal %q is there twice", i, cut(e.Signal, 60))
		}
		seen[e.Signal] = true
	}
	for i, g := range x.Gone {
		if g.Signal == "" || len(g.Tests) == 0 || seen["gone "+g.Signal] {
			return nil, fmt.Errorf("baseline: gone[%d] lacks its signal or tests, or has a signal of before", i)
		}
		seen["gone "+g.Signal] = true
	}
	sum := sha256.Sum256(b)
	x.digest = hex.EncodeToString(sum[:])
	return &x, nil
}

// Digest is the SHA-256 of the file that it was read from, in hexadecimal digits;
// empty for one that was made.
func (b *Baseline) Digest() string {
	if b == nil {
		return ""
	}
	return b.digest
}

// GoneTests are those that a signal may miss.
func (b *Baseline) GoneTests(signal string) []string {
	if b != nil {
		for _, g := range b.Gone {
			if g.Signal == signal {
				return g.Tests
			}
		}
	}
	return nil
}

// Without is b, or an empty baseline, with tests of a signal that may be gone.
func (b *Baseline) Without(signal string, tests []string) *Baseline {
	out := &Baseline{Schema: BaselineSchema, Entries: []*Entry{}}
	all := slices.Concat(b.GoneTests(signal), tests)
	slices.Sort(all)
	if b != nil {
		out.Entries = b.Entries
		out.Gone = slices.DeleteFunc(slices.Clone(b.Gone), func(g Gone) bool { return g.Signal == signal })
	}
	out.Gone = append(out.Gone, Gone{signal, slices.Compact(all)})
	slices.SortFunc(out.Gone, func(a, b Gone) int { return strings.Compare(a.Signal, b.Signal) })
	return out
}

// Lines are all that the baseline allows, one thing on each, for people. No name can
// end a line.
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
	for _, g := range b.Gone {
		for _, t := range g.Tests {
			out = append(out, fmt.Sprintf("%s goes on without test %q", g.Signal, t))
		}
	}
	return out
}

// Encode is the baseline as a file.
func (b *Baseline) Encode() ([]byte, error) {
	b.Schema = BaselineSchema
	out, err := json.MarshalIndent(b, "", "  ")
	return append(out, '\n'), err
}

// Entry finds that of a signal, or nil.
func (b *Baseline) Entry(signal string) *Entry {
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

var digits = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9]{3,}`) })

// general takes out of a path what differs from run to run. Names in the temporary
// directory are a program's whim as far as they have digits.
func general(p string) string {
	if strings.HasPrefix(p, "/sys/fs/cgroup/") {
		return "/sys/fs/cgroup/*" // named after the run
	}
	if strings.HasPrefix(p, "/tmp/") || strings.HasPrefix(p, "/proc/") {
		p = regexpDigits1().ReplaceAllString(p, "*")
	} else {
		p = digits().ReplaceAllString(p, "*")
	}
	return p
}

var regexpDigits1 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9]+`) })

// area is the directory that stands for a file.
func area(p string) string {
	d := strings.Split(path.Dir(p), "/")
	return general(strings.Join(append(d[:min(len(d), 5)], ""), "/"))
}

// entryOf sums up what a phase did.
func entryOf(signal, image, lockfiles string, o *Observed) *Entry {
	e := &Entry{Signal: signal, Image: image, Lockfiles: lockfiles, Execs: []string{}, Reads: []string{}}
	add := func(to *[]string, s string) { *to = append(*to, s) }
	for _, x := range o.Execs {
		name := general(x.Path)
		if x.Nameless {
			name = nameless + name
		}
		add(&e.Execs, name)
		if x.Shell {
			add(&e.Shells, name)
		}
	}
	for _, l := range o.Libraries {
		if strings.HasPrefix(l, nameless) {
			add(&e.Execs, general(l)) // a program's code without a file that has it
		}
	}
	for _, x := range o.Endpoints {
		if x.Errno == "" && x.What != "connect" && x.What != "send" || strings.HasPrefix(x.Address, "unix:") {
			continue // a server of its own, or a peer inside
		}
		add(&e.Endpoints, x.What+" "+endpoint(x.Address))
	}
	for _, p := range slices.Concat(o.Opened, o.Missed, o.Listed) {
		add(&e.Reads, area(p))
	}
	for _, p := range o.Written {
		add(&e.Writes, area(p))
	}
	for _, r := range o.Rights {
		add(&e.Rights, strings.TrimSpace(r.What+" "+general(r.Detail)+" "+r.Errno))
	}
	for _, l := range []*[]string{&e.Execs, &e.Shells, &e.Endpoints, &e.Reads, &e.Writes, &e.Rights} {
		slices.Sort(*l)
		*l = slices.Compact(*l)
	}
	return e
}

// endpoint leaves out a port that the kernel chose: those of its own range.
func endpoint(a string) string {
	if i := strings.LastIndexByte(a, ':'); i > 0 && strings.HasPrefix(a, "127.0.0.1") || strings.HasPrefix(a, "[::1]") {
		return a[:i] + ":*"
	}
	return a
}

// Drift is what a phase did that its baseline does not allow.
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

// lockfileNames pin what a project is built from.
var lockfileNames = []string{
	"go.mod", "go.sum", "go.work", "go.work.sum", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml",
	"requirements.txt", "poetry.lock", "Pipfile.lock", "uv.lock", "pdm.lock", "Cargo.lock",
}

func isLockfile(p string) bool { return slices.Contains(lockfileNames, path.Base(p)) }

// lockfiles is the SHA-256 over a tree's lockfiles, in hexadecimal digits.
func (t *Tree) lockfiles(ctx context.Context) (string, error) {
	if err := t.hash(ctx); err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range t.Files {
		if isLockfile(f.Path) {
			t.note(f.Path)
			fmt.Fprintf(h, "%x %s\x00", t.sums[f.Path], f.Path)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// lockfilesThatDiffer are those that are not the same on both sides.
func lockfilesThatDiffer(ctx context.Context, base, change *Tree) ([]string, error) {
	return differ(ctx, base, change, isLockfile)
}

// differBelow are the files at or below some paths that are not the same on both sides.
func differBelow(ctx context.Context, base, change *Tree, dirs []string) ([]string, error) {
	return differ(ctx, base, change, func(p string) bool {
		return slices.ContainsFunc(dirs, func(d string) bool { return below(p, d) || below(d, p) })
	})
}

// differ are the files, of those that pick chooses, that are not the same on both sides.
func differ(ctx context.Context, base, change *Tree, pick func(string) bool) ([]string, error) {
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
			if pick(f.Path) {
				t.note(f.Path)
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

// Drift is what next has and b does not allow, by signal.
func (b *Baseline) Drift(next *Baseline) map[string][]Drift {
	out := map[string][]Drift{}
	for _, n := range next.Entries {
		e := b.Entry(n.Signal)
		if e == nil {
			e = &Entry{}
		}
		if d := e.drift(n); len(d) > 0 {
			out[n.Signal] = d
		}
	}
	return out
}

// MergeBaselines allows what either does. Image and lockfiles are those of next.
func MergeBaselines(was, next *Baseline) *Baseline {
	out := &Baseline{Schema: BaselineSchema, Entries: []*Entry{}}
	if was != nil {
		out.Gone = was.Gone
		for _, e := range was.Entries {
			if next.Entry(e.Signal) == nil {
				out.Entries = append(out.Entries, e)
			}
		}
	}
	for _, n := range next.Entries {
		x := *n
		if e := was.Entry(n.Signal); e != nil && e.Image == n.Image {
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
