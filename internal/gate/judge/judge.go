package judge

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// GateOptions names the change to judge and the catalog to judge it by.
type GateOptions struct {
	// Dir is the top of a git work tree; empty: the current directory.
	Dir string
	// Base is the approved revision. Empty means HEAD for a run and for the work tree,
	// else the merge base of the change and the main branch.
	Base string
	// Change is a revision, a run, or "." for the work tree; empty: HEAD.
	Change string
	// Catalog names a file outside of Dir; empty: the base's catalog.
	Catalog string
	// Again runs every phase, even if an earlier verdict still holds.
	Again bool
	// OnEvent is called with each event, one at a time. It may be nil.
	OnEvent func(gate.Event)

	own     *ownCatalog
	Granted []gate.Attempts
	// Exact rejects an earlier verdict on other trees, even if it did not depend on any
	// difference between them.
	Exact bool
	// Waits is called once if another gate works on the directory; this gate then waits
	// for it. If Waits is nil, the gate fails with ErrGateLocked.
	Waits func()
}

// ownCatalog is the catalog that gate init proposes. It counts as the user's until they
// commit it to the base.
type ownCatalog struct {
	catalog   *gate.Catalog
	recording bool
}

// Judged holds a verdict with the reason why no earlier verdict was used.
type Judged struct {
	*gate.Verdict
	// Miss says which input changed; empty for a cached verdict.
	Miss string
	// Dir holds the verdict and its evidence.
	Dir string
}

// Errors of gates.
var (
	// ErrGateLocked: another gate works on this directory.
	ErrGateLocked = exitcode.New(exitcode.AlreadyLocked, "another gate works on this directory")
	// ErrNoCatalog: nothing says what a change must show.
	ErrNoCatalog = errors.New("there is no catalog")
	// ErrNothingBefore: there is no commit before the change to compare it with.
	ErrNothingBefore = errors.New("nothing was committed before it")
	// ErrNoVerdict: there is no such verdict.
	ErrNoVerdict = errors.New("no such verdict")
	// ErrLedger: the gate's records differ from what the audit log says.
	ErrLedger = exitcode.New(exitcode.RecordChanged, "the gate's records are not what the audit log says")
)

// GateDir returns a path below the directory of all gates' state.
func (c *Judge) GateDir(elem ...string) string {
	return filepath.Join(append([]string{c.StateDir(), "gates"}, elem...)...)
}

// Gate judges a change by every signal of the catalog, and runs each phase in a fresh
// bottle. When it returns, the verdict is in the audit log. A verdict other than a pass
// is not an error.
func (c *Judge) Gate(ctx context.Context, o GateOptions) (*Judged, error) {
	w, err := c.GateWork(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	miss := "it was not looked for"
	if w.newest != nil {
		var v *Judged
		if v, miss, err = w.Cached(ctx); err != nil {
			return nil, err
		}
		if v != nil {
			c.noteGiven(v.ID)
			return v, nil
		}
	}
	v, err := w.judge(ctx)
	if err != nil {
		return nil, err
	}
	j := &Judged{Verdict: v, Miss: miss, Dir: c.GateDir("verdicts", v.ID)}
	return j, nil
}

// GateWork holds a judgement in progress. The caller must close it.
type GateWork struct {
	C          *Judge
	O          *GateOptions
	dir        string
	Repo       *gate.Repository
	G          *gate.Gate
	conditions map[string]string
	homes      []string
	unlock     func()
	scratch    string
	exec       *hostexec.Runner
	runs       []store.ID
	mu         sync.Mutex
	// newest lists the files of kept inputs, and reads the newest. Nil: no earlier verdict
	// may be given.
	newest func() ([]string, *keptInputs)
}

func (w *GateWork) Close() {
	if w.scratch != "" {
		fault.RemoveTree(w.scratch)
	}
	for _, id := range w.runs {
		w.C.Store.Remove(context.Background(), id, store.RemoveOptions{Unlanded: true})
	}
	if w.exec != nil {
		w.exec.Close(context.Background())
	}
	if w.unlock != nil {
		w.unlock()
	}
}

func (c *Judge) GateWork(ctx context.Context, o *GateOptions) (_ *GateWork, err error) {
	w := &GateWork{C: c, O: o}
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
	if o.Dir == "" {
		o.Dir = "."
	}
	ws, err := store.ResolveWorkspace(o.Dir)
	if err != nil {
		return nil, err
	}
	w.dir = string(ws.Path)
	switch top, err := fault.WorkTree(w.dir); {
	case err != nil:
		return nil, err
	case top != w.dir:
		return nil, &fault.OptionError{Option: "--dir", Value: o.Dir, Reason: "is not the top of its repository, and a gate judges whole trees", Advice: "--dir " + top}
	}
	if w.exec, err = hostexec.New(hostexec.Options{Untrusted: []string{w.dir}}); err != nil {
		return nil, err
	}
	w.Repo = &gate.Repository{Dir: w.dir, Runner: w.exec}
	if w.unlock, err = c.awaitGateLock(ctx, w.dir, o.Waits); err != nil {
		return nil, err
	}
	c.SweepGates()
	w.G = &gate.Gate{Runner: w, Warm: w}
	if o.OnEvent != nil {
		w.G.Progress = o.OnEvent
	}
	if !o.Again && o.own == nil {
		w.newest = sync.OnceValues(w.newestInputs)
		go w.newest() // reads one file while git works
	}
	if err := w.findTrees(ctx); err != nil {
		return nil, err
	}
	if err := w.loadCatalog(ctx); err != nil {
		return nil, err
	}
	return w, w.setConditions()
}

// GateLock locks dir against other gates, or returns ErrGateLocked. The lock ends with
// the process.
func (c *Judge) GateLock(dir string) (func(), error) {
	if err := os.MkdirAll(c.GateDir("locks"), 0o700); err != nil {
		return nil, err
	}
	f, err := LockFile(c.GateDir("locks", ShortSum(dir)))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s: %w", dir, ErrGateLocked)
	}
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// LockFile creates and locks a file, or returns unix.EWOULDBLOCK if others hold the lock.
func LockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// ShortSum returns a short digest of s, for a file name.
func ShortSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

// NewScratch creates a directory for trees, if there is none yet. If carboy dies, the next
// gate removes it.
func (w *GateWork) NewScratch() error {
	if w.scratch != "" {
		return nil
	}
	top := w.C.GateDir("scratch")
	if err := os.MkdirAll(top, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(top, "g")
	if err != nil {
		return err
	}
	f, err := LockFile(dir + "/lock")
	if err != nil {
		return err
	}
	unlock := w.unlock
	w.scratch, w.unlock = dir, func() { f.Close(); unlock() }
	w.G.Scratch = dir + "/trees"
	return os.Mkdir(w.G.Scratch, 0o755)
}

// SweepGates removes the scratch directories of gates that died.
func (c *Judge) SweepGates() {
	dirs, _ := store.Glob(c.GateDir("scratch"), "g*")
	for _, d := range dirs {
		fi, err := os.Stat(d)
		if err != nil || time.Since(fi.ModTime()) < time.Minute {
			continue // a gate that has just created it has not locked it yet
		}
		if f, err := LockFile(d + "/lock"); err == nil {
			fault.RemoveTree(d)
			f.Close()
		}
	}
}

// findTrees finds the tree to judge and the tree to compare it with.
func (w *GateWork) findTrees(ctx context.Context) (err error) {
	if w.O.own != nil && !w.Repo.IsWorkTree(ctx) {
		w.G.Change, err = gate.DirTree("the directory", w.dir, nil)
		w.G.Base = w.G.Change
		return err
	}
	change := cmp.Or(w.O.Change, "HEAD")
	if err := w.resolve(ctx, change); err != nil {
		return err
	}
	commit, missing, err := w.changeCommit(ctx, change)
	if err != nil {
		return err
	}
	base := w.O.Base
	switch {
	case base != "":
	case w.O.own != nil || change == "." || missing != nil:
		base = "HEAD"
	default:
		if base, err = w.defaultBase(ctx, commit); err != nil {
			return err
		}
	}
	recording := w.O.own != nil && w.O.own.recording
	if !recording {
		load := []string{}
		if missing == nil {
			load = append(load, commit)
		}
		if err := w.loadCommits(ctx, base, load...); err != nil {
			return err
		}
	}
	if w.G.Change, err = w.changeTree(ctx, change, commit, missing); err != nil {
		return err
	}
	if recording {
		w.G.Base = w.G.Change
		return nil
	}
	if w.G.Base, err = w.Repo.Tree(ctx, base); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	// This reads all contents at once; later steps would ask git for them one by one.
	_, err = w.G.Change.Digest(ctx)
	if err == nil {
		_, err = w.G.Base.Digest(ctx)
	}
	return err
}

// resolve asks git, in one call, for all revisions that findTrees may need.
func (w *GateWork) resolve(ctx context.Context, change string) error {
	revs := []string{cmp.Or(w.O.Base, "HEAD")}
	if change != "." {
		revs = append(revs, change)
	}
	if w.O.Base == "" {
		revs = append(revs, mainLines...)
	}
	var hints gate.Hints
	if err := store.ReadJSON(w.C.GateDir("cache", ShortSum(w.dir), hintsFile), hintsKind, &hints); err == nil {
		w.Repo.SetHints(hints)
	}
	return w.Repo.Resolve(ctx, revs...)
}

// changeCommit returns the commit that change names. If it names none, since it is the
// work tree or a run, missing says why.
func (w *GateWork) changeCommit(ctx context.Context, change string) (commit string, missing, err error) {
	if change == "." {
		return "", gate.ErrNoRevision, nil
	}
	commit, missing = w.Repo.Commit(ctx, change)
	named := missing == nil || errors.Is(missing, gate.ErrAmbiguous)
	if named && change != "HEAD" && change != commit && !strings.HasPrefix(change, "refs/") {
		// A branch can have the name of a run, and would be judged in its place.
		if m, err := w.C.review.Find(ctx, change, w.dir); err == nil && string(m.Workspace.Path) == w.dir {
			if string(m.ID) != change {
				return "", nil, fmt.Errorf("change %q is a revision and a run (%s): write refs/… for the one, the whole id for the other: %w", change, m.ID, gate.ErrAmbiguous)
			}
			return "", gate.ErrNoRevision, nil
		}
	}
	if errors.Is(missing, gate.ErrAmbiguous) {
		return "", nil, fmt.Errorf("change: %w", missing)
	}
	return commit, missing, nil
}

// loadCommits reads the trees of base and of more commits from git, in one call.
func (w *GateWork) loadCommits(ctx context.Context, base string, more ...string) error {
	b, err := w.Repo.Commit(ctx, base)
	if w.O.Base == "" && base == "HEAD" && errors.Is(err, gate.ErrNoRevision) {
		return fmt.Errorf("HEAD has no commit: %w: %w", ErrNothingBefore, err)
	}
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	return w.Repo.Load(ctx, append([]string{b}, more...)...)
}

// changeTree returns the tree to judge, by what changeCommit returned for change.
func (w *GateWork) changeTree(ctx context.Context, change, commit string, missing error) (*gate.Tree, error) {
	if change == "." {
		return w.Repo.WorkTree(ctx)
	}
	if missing == nil {
		t, err := w.Repo.Tree(ctx, commit)
		if err == nil {
			t.Name = change
		}
		return t, err
	}
	t, err := w.runTree(ctx, change)
	if errors.Is(err, store.ErrNotFound) && errors.Is(missing, gate.ErrNoRevision) {
		return nil, fmt.Errorf("change %q is no revision and no run: %w", change, gate.ErrNoRevision)
	}
	return t, err
}

// mainLines lists the branches that a change may have left, if no base is named.
var mainLines = []string{"refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"}

// defaultBase returns the commit at which the change left the main branch, or the
// change's parent if there is no such branch.
func (w *GateWork) defaultBase(ctx context.Context, commit string) (string, error) {
	parent, err := w.Repo.Parent(ctx, commit)
	if err != nil {
		return "", fmt.Errorf("change: %w", err)
	}
	for _, name := range mainLines {
		main, err := w.Repo.Commit(ctx, name)
		if errors.Is(err, gate.ErrNoRevision) || main == commit {
			continue
		}
		if err != nil {
			return "", err
		}
		if main == parent {
			return main, nil
		}
		b, err := w.Repo.MergeBase(ctx, main, commit)
		if err != nil {
			// The parent would be wrong: nobody would judge the commits between it and
			// the main branch.
			return "", fmt.Errorf("where the change left %s: %w; name one with --base", name, err)
		}
		if b != commit {
			return b, nil
		}
	}
	if parent == "" {
		return "", fmt.Errorf("the change is the first commit: %w: %w", ErrNothingBefore, gate.ErrNoRevision)
	}
	return parent, nil
}

// runTree returns the work tree with the changes of a run applied.
func (w *GateWork) runTree(ctx context.Context, ref string) (*gate.Tree, error) {
	m, err := w.C.review.Find(ctx, ref, w.dir)
	if err != nil {
		return nil, err
	}
	if string(m.Workspace.Path) != w.dir {
		return nil, fmt.Errorf("run %s worked on %s: %w", m.ID, m.Workspace.Path, gate.ErrNoRevision)
	}
	set, err := w.C.review.Changes(m.ID)
	if err != nil {
		return nil, err
	}
	was, err := w.Repo.WorkTree(ctx)
	if err != nil {
		return nil, err
	}
	return gate.WithChanges("run "+string(m.ID), string(m.ID), was, set)
}

// loadCatalog reads the catalog and the baseline: the base's, or the user's own.
func (w *GateWork) loadCatalog(ctx context.Context) error {
	g := w.G
	var err error
	switch {
	case w.O.own != nil:
		g.Catalog, g.CatalogFrom, g.Recording = w.O.own.catalog, "user", w.O.own.recording
	case w.O.Catalog != "":
		if err := w.userCatalog(w.O.Catalog); err != nil {
			return err
		}
		side := strings.TrimSuffix(g.Catalog.File, filepath.Ext(g.Catalog.File)) + "-baseline.json"
		g.Baseline, g.BaselineBy, g.BaselineWhy, err = w.C.baselineIn(side, os.ReadFile)
		if err != nil || g.Baseline != nil || g.BaselineWhy != "" {
			return err
		}
	default:
		b, err := g.Base.Read(ctx, gate.CatalogPath)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s has no %s: %w", g.Base.Name, gate.CatalogPath, ErrNoCatalog)
		}
		if err != nil {
			return err
		}
		if g.Catalog, err = gate.ParseCatalog(gate.CatalogPath+" of "+g.Base.Name, b); err != nil {
			return err
		}
		g.CatalogFrom = "base"
	}
	g.Baseline, g.BaselineBy, g.BaselineWhy, err = w.C.baselineOf(ctx, g.Base)
	return err
}

// userCatalog reads a catalog outside of the repository. It refuses one inside, which the
// change could have written.
func (w *GateWork) userCatalog(file string) error {
	abs, err := filepath.Abs(file)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return err
	}
	if fault.Within(abs, w.dir) {
		return &fault.OptionError{Option: "--catalog", Value: file, Reason: "lies in what is judged, so that the change could have written it", Advice: "commit it to the base as " + gate.CatalogPath + ", or keep it in your configuration directory"}
	}
	b, err := os.ReadFile(abs)
	if err != nil {
		return err
	}
	w.G.Catalog, err = gate.ParseCatalog(abs, b)
	w.G.CatalogFrom = "user"
	return err
}

// setConditions lists every input of a verdict beside the trees: build, configuration,
// user, machine and so on.
func (w *GateWork) setConditions() error {
	db, err := w.C.Advisories()
	if err != nil {
		return err
	}
	print, err := gate.DirFingerprint(db)
	if err != nil {
		return err
	}
	if print != "absent" {
		w.G.Database = db
	}
	id, err := plan.Whoami(w.dir)
	if err != nil {
		return err
	}
	w.homes = []string{id.User.Home}
	exe, err := buildDigest()
	if err != nil {
		return err
	}
	baseline := "none " + w.G.BaselineWhy
	if w.G.Baseline != nil {
		b, err := w.G.Baseline.Encode()
		if err != nil {
			return err
		}
		baseline = HexSum(b) + " " + w.G.BaselineBy
	}
	l := plan.DefaultLimits(w.C.StateDir())
	conf, err := json.Marshal(w.C.Config)
	if err != nil {
		return err
	}
	history := "not looked at"
	if slices.ContainsFunc(w.G.Catalog.Signals, func(s *gate.Signal) bool { return s.Kind.Name == "secrets" }) {
		history = w.G.Base.Commit + ".." + w.G.Change.Commit
	}
	// The verdict names the granted attempts, so it holds only for the same ones.
	granted, err := json.Marshal(w.O.Granted)
	if err != nil {
		return err
	}
	w.conditions = map[string]string{
		"history": history, "granted attempts": HexSum(granted),
		"carboy": w.C.Build + " " + exe, "catalog": w.G.Catalog.Digest + " " + w.G.CatalogFrom, "baseline": baseline,
		"advisories": print, "image": w.G.Catalog.Image + "@" + w.G.Catalog.ImageDigest,
		"engine":        w.C.Backend.Name() + " " + w.C.Backend.Build(),
		"machine":       fmt.Sprintf("%s %d %d", runtime.GOARCH, l.CPUs, l.Memory),
		"configuration": HexSum(conf), "user": fmt.Sprintf("%d %s", id.User.UID, id.User.Home),
		// A phase's variables come from the catalog and from these.
		"variable PATH": plan.ToolPath(w.C.Env("PATH")),
	}
	for _, name := range plan.PassEnv {
		if v := w.C.Env(name); v != "" {
			w.conditions["variable "+name] = v
		}
	}
	// Phases depend on all of these but four, which only the judging of their results uses.
	w.G.Shape = maps.Clone(w.conditions)
	for _, name := range []string{"history", "baseline", "advisories", "granted attempts"} {
		delete(w.G.Shape, name)
	}
	return nil
}

// Advisories returns the directory of the user's vulnerability advisories, which may not
// exist.
func (c *Judge) Advisories() (string, error) {
	dir, err := store.ConfigDir(c.Opened.Config, c.Env)
	return filepath.Join(dir, "osv"), err
}

// buildDigest identifies this build of carboy, even among builds of the same version, by
// its file's inode, size and change time.
var buildDigest = sync.OnceValues(func() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return "", fmt.Errorf("look at carboy itself: %w", err)
	}
	return fmt.Sprintf("%d:%d:%d:%d", st.Dev, st.Ino, st.Size, st.Ctim.Nano()), nil
})

// HexSum returns the SHA-256 of b in hexadecimal digits.
func HexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// judge runs the gate, keeps the evidence, and records the verdict.
func (w *GateWork) judge(ctx context.Context) (*gate.Verdict, error) {
	if err := w.NewScratch(); err != nil {
		return nil, err
	}
	w.G.Redact = new(secret.Redactor)
	v, err := w.G.Run(ctx)
	if err != nil {
		return nil, err
	}
	v.Build, v.Repository, v.Granted = w.C.Build, w.dir, w.O.Granted
	dir := w.C.GateDir("verdicts", v.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	hold, err := WaitVerdict(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer hold.Close()
	if err := w.keepEvidence(v); err != nil {
		return nil, err
	}
	var more []audit.Digest
	if w.O.own == nil {
		if inputs := w.rememberInputs(ctx, v); inputs != nil {
			v.Inputs = HexSum(inputs)
			if err := os.WriteFile(filepath.Join(dir, gate.InputsFile), inputs, 0o600); err != nil {
				return nil, err
			}
			more = append(more, audit.Digest{Of: inputsOf, Sum: sha256.Sum256(inputs)})
		}
	}
	kept, done := w.keepWarm(ctx, v)
	defer done()
	return v, w.C.RecordVerdict(ctx, v, append(more, kept...)...)
}

const (
	VerdictFile  = gate.VerdictFile
	ProposedFile = gate.ProposedFile
	maxOutput    = 8 << 20 // bytes kept of each output stream of a phase
)

// keepEvidence moves the evidence of the phases to the directory of the verdict, so that
// both are kept equally long.
func (w *GateWork) keepEvidence(v *gate.Verdict) error {
	dir := w.C.GateDir("verdicts", v.ID)
	if err := os.MkdirAll(filepath.Join(dir, gate.EvidenceDir), 0o700); err != nil {
		return err
	}
	// The baseline that a person may accept.
	if b, err := w.G.RecordBaseline(context.Background()); err == nil {
		enc, err := b.Encode()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, ProposedFile), enc, 0o600); err != nil {
			return err
		}
		v.Proposed = HexSum(enc)
	}
	for _, p := range v.Phases {
		to := filepath.Join(dir, p.EvidenceOf())
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		if p.Of != "" {
			if err := w.copyEvidence(p, to); err != nil {
				return err
			}
			continue
		}
		p.Evidence = map[string]string{}
		for _, name := range []string{store.ReceiptFile, store.TraceFile} {
			err := os.Rename(filepath.Join(w.C.Store.RunDir(store.ID(p.Run)), name), filepath.Join(to, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if p.Evidence[name], err = fileSum(context.Background(), filepath.Join(to, name)); err != nil {
				return err
			}
		}
		obs, err := json.Marshal(p.Observed)
		if err != nil {
			return err
		}
		for name, b := range map[string][]byte{"stdout": p.Stdout.Bytes, "stderr": p.Stderr.Bytes, "observed.json": obs} {
			if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
				return err
			}
			p.Evidence[name] = HexSum(b)
		}
	}
	return nil
}

// fileSum returns the SHA-256 of a file in carboy's state, in hexadecimal digits.
func fileSum(ctx context.Context, name string) (string, error) {
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return gate.FileDigest(ctx, dir, filepath.Base(name), math.MaxInt64-1)
}

// rememberInputs keeps the inputs of a verdict for Cached, and returns their text. They count
// only if their digest is in the record of the verdict.
func (w *GateWork) rememberInputs(ctx context.Context, v *gate.Verdict) []byte {
	in, err := w.G.Inputs(ctx, v, w.conditions, w.homes...)
	if err != nil {
		w.C.Log.Info("the verdict is not kept for later", "verdict", v.ID, "why", err)
		return nil
	}
	dir := w.C.GateDir("cache", ShortSum(w.dir))
	file := filepath.Join(dir, v.ID+".json")
	b, err := store.Encode("gate-inputs", in)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = store.WriteFile(file, b, 0o600)
	}
	if err != nil {
		w.C.Log.Info("the verdict is not kept for later", "verdict", v.ID, "why", err)
		return nil
	}
	if err := store.WriteJSON(filepath.Join(dir, hintsFile), hintsKind, w.Repo.Hints()); err != nil {
		w.C.Log.Info("the next gate asks git more often", "why", err)
	}
	w.forgetOldest(dir)
	return b
}

// inputsOf names the digest of a verdict's inputs in the audit log.
const inputsOf = "inputs"

// The hints file lists the objects that the last judgement asked git for. The next one
// asks for all of them in one call.
const (
	hintsFile = "asked"
	hintsKind = "gate-asked"
)

// maxRemembered bounds the verdicts of a directory that Cached can return.
const maxRemembered = 10

func (w *GateWork) forgetOldest(dir string) {
	files, _ := store.Glob(dir, "*.json")
	for len(files) > maxRemembered {
		os.Remove(files[0]) // the oldest: ids sort by time
		files = files[1:]
	}
}

// keptInputs holds the inputs of an earlier verdict, parsed and as text.
type keptInputs struct {
	gate.Inputs
	text []byte
	err  error
}

// readInputs reads the inputs in file. It returns nil if their text does not contain
// listing: that is much faster than parsing them.
func readInputs(file, listing string) *keptInputs {
	k := &keptInputs{}
	if k.text, k.err = store.ReadDocument(file); k.err != nil {
		return k
	}
	if !bytes.Contains(k.text, []byte(listing)) {
		return nil
	}
	k.err = store.Decode(file, "gate-inputs", k.text, &k.Inputs)
	return k
}

// newestInputs returns the files of kept inputs, the oldest first, and the contents of the
// last one. It returns nil if there is none.
func (w *GateWork) newestInputs() ([]string, *keptInputs) {
	files, err := store.Glob(w.C.GateDir("cache", ShortSum(w.dir)), "*.json")
	if err != nil || len(files) == 0 {
		return nil, nil
	}
	k := readInputs(files[len(files)-1], "")
	if k.err == nil {
		k.CheckHostEarly()
	}
	return files, k
}

// Cached returns an earlier verdict if nothing that it depended on has changed. Otherwise
// it says which input of the newest verdict changed.
func (w *GateWork) Cached(ctx context.Context) (*Judged, string, error) {
	files, newest := w.newest()
	miss := "nothing was judged here before"
	var listing string
	if len(files) > 1 {
		var err error
		if listing, err = w.G.Change.Listing(ctx); err != nil {
			return nil, "", err
		}
	}
	for i, file := range slices.Backward(files) {
		k := newest
		if i < len(files)-1 {
			if k = readInputs(file, listing); k == nil {
				continue
			}
		}
		j, why, err := w.cachedBy(ctx, file, k)
		if j != nil || err != nil {
			return j, "", err
		}
		if why != "" && i == len(files)-1 {
			miss = why
		}
	}
	return nil, miss, nil
}

// cachedBy returns the verdict whose inputs k were kept in file, or says which input
// changed. It returns neither if the verdict can't be read, and removes file if it never
// can.
func (w *GateWork) cachedBy(ctx context.Context, file string, k *keptInputs) (_ *Judged, why string, err error) {
	if k.err != nil {
		os.Remove(file)
		return nil, "", nil
	}
	in := &k.Inputs
	if why, err = in.Miss(ctx, w.G.Base, w.G.Change, w.conditions); err != nil || why != "" {
		return nil, why, err
	}
	v, dir, err := w.C.Verdict(ctx, in.Verdict)
	if errors.Is(err, ErrUnrecorded) || errors.Is(err, ErrNoVerdict) { // carboy died before it recorded it, or it was removed
		os.Remove(file)
		return nil, "", nil
	}
	if errors.Is(err, ErrLedger) {
		return nil, "", err
	}
	if err != nil {
		return nil, "", nil
	}
	// Only the audit log proves that these are all inputs of the verdict.
	if err := w.C.onRecord(v.ID, inputsOf, k.text); err != nil {
		return nil, "", err
	}
	if len(in.Network) > 0 {
		if err := w.NewScratch(); err != nil {
			return nil, "", err
		}
		if why, err = w.G.Rerun(ctx, in); err != nil || why != "" {
			return nil, why, err
		}
		// Rerun takes a while: the verdict may have changed meanwhile.
		if v, dir, err = w.C.Verdict(ctx, in.Verdict); errors.Is(err, ErrNoVerdict) {
			return nil, "its verdict was removed", nil
		}
		if err != nil {
			return nil, "", err
		}
	}
	was := [2]gate.Side{v.Base, v.Change}
	if err := w.G.SetSides(ctx, v); err != nil {
		return nil, "", err
	}
	// A person approved one change. Another change with the same inputs gets the verdict,
	// but not the override.
	if v.Base.Digest != was[0].Digest || v.Change.Digest != was[1].Digest || v.Change.Commit != was[1].Commit {
		if w.O.Exact {
			return nil, "what was judged was not exactly this tree", nil
		}
		v.Override = nil
	}
	v.Cached = true
	return &Judged{Verdict: v, Dir: dir}, "", nil
}

// Verdict reads a verdict, and returns it with its directory. ref is its id or a unique
// prefix of that; "" means the verdict that Gate returned last. A text that differs from
// its record is ErrLedger.
func (c *Judge) Verdict(ctx context.Context, ref string) (*gate.Verdict, string, error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, "", err
	}
	defer release()
	id, err := c.findVerdict(ref)
	if err != nil {
		return nil, "", err
	}
	v, err := c.readVerdict(id)
	return v, c.GateDir("verdicts", id), err
}

// Verdicts returns the newest n verdicts on record, newest first. It leaves out those
// whose text differs from the record: AuditVerify reports them.
func (c *Judge) Verdicts(ctx context.Context, n int) ([]*gate.Verdict, error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ids, err := c.verdicts()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	recorded := map[string]string{}
	err = c.AuditRecords(func(r *audit.Record) {
		if r.Kind == audit.GateRemoved {
			delete(recorded, r.Subject)
		}
		for _, d := range r.Digests {
			if d.Of == verdictOf {
				recorded[r.Subject] = d.SHA256
			}
		}
	})
	if err != nil {
		return nil, err
	}
	var out []*gate.Verdict
	for _, id := range slices.Backward(ids) {
		if len(out) == n {
			break
		}
		b, err := c.verdictText(id, recorded[id])
		if err != nil {
			continue
		}
		if v, err := gate.ParseVerdict(b); err == nil {
			out = append(out, v)
		}
	}
	return out, err
}

// ErrUnrecorded means that the audit log has no record of a document.
var ErrUnrecorded = fmt.Errorf("%w: nothing is on record", ErrLedger)

// AuditRecords calls f with each record of gates, from the beginning of the audit log. The
// log's integrity was checked when it was opened.
func (c *Judge) AuditRecords(f func(*audit.Record)) error {
	b, err := os.ReadFile(c.AuditDir() + "/log")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(b) {
		if !bytes.Contains(line, []byte(`"gate.`)) {
			continue
		}
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		f(&r)
	}
	return nil
}

// Run implements gate.Runner: it runs one phase.
func (w *GateWork) Run(ctx context.Context, j gate.Job) (*gate.Ended, error) {
	e, err := w.C.runPhase(ctx, plan.Options{
		Command: j.Command, Workspace: j.Tree, At: gate.Workspace, Mode: store.Overlay, Allow: j.Network, Env: append([]string{"CI=1"}, j.Env...),
		Image: j.Image, ImageDigest: j.ImageDigest, Caches: j.Warm, Take: j.Take,
		Limits: bottle.Limits{Timeout: j.Limits.Timeout, Memory: j.Limits.Memory, Disk: j.Limits.Disk, Pids: j.Limits.Pids},
	})
	if e != nil {
		w.mu.Lock()
		w.runs = append(w.runs, store.ID(e.Run))
		w.mu.Unlock()
	}
	return e, err
}

// runPhase runs a command in a fresh bottle, and collects its output, trace, network
// accesses and changes. Its run stays in the store.
func (c *Judge) runPhase(ctx context.Context, o plan.Options) (*gate.Ended, error) {
	out, msg := &Capped{Max: maxOutput}, &Capped{Max: maxOutput}
	var net *fetched
	if len(o.Allow) > 0 {
		net = &fetched{seen: map[gate.Fetch]bool{}}
		o.Told = net.told
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	o.Stdin, o.Stdout, o.Stderr = null, out, msg
	rec, err := c.runs.Run(ctx, o)
	if rec == nil {
		return nil, err
	}
	e := &gate.Ended{
		Run: string(rec.ID), Code: rec.Exit.Code, Reason: string(rec.Exit.Reason), Error: rec.Exit.Error, Duration: rec.Duration,
		Isolation: string(rec.Isolation.Class), Engine: rec.Isolation.Backend + " " + rec.Isolation.Build, Networked: len(o.Allow) > 0,
		Stdout: out.Output(), Stderr: msg.Output(),
	}
	if rec.Exit.Reason == receipt.Signalled {
		e.Reason = string(receipt.Exited) // the command's own end, with a code that is not 0
	}
	if err != nil && rec.Exit.Error == "" {
		e.Error = err.Error()
	}
	if b, err := os.ReadFile(filepath.Join(c.Store.RunDir(rec.ID), store.ReceiptFile)); err == nil {
		e.Receipt = HexSum(b)
	}
	if rec.Trace != nil {
		e.Trace = rec.Trace.Digest
	}
	if rec.Image != nil {
		e.ImageDigest = rec.Image.Digest
	}
	e.Fetched, e.Unread = net.all()
	for _, x := range rec.Network.Connections {
		e.Asked = append(e.Asked, gate.Endpoint{What: "connection " + string(x.Verdict), Address: fmt.Sprintf("%s:%d", x.Name, x.Port), Count: uint64(max(x.Count, 0))})
	}
	for _, x := range rec.Network.Names {
		e.Asked = append(e.Asked, gate.Endpoint{What: "name " + string(x.Verdict), Address: x.Name, Count: uint64(max(x.Count, 0))})
	}
	if r, err := c.review.Trace(rec.ID); err == nil {
		observe := gate.Observe
		if o.Take != nil || len(o.Caches) > 0 {
			observe = gate.ObserveReaders
		}
		e.Observed, err = observe(r)
		r.Close()
		if err != nil {
			return e, err
		}
		if rec.Trace != nil && rec.Trace.Incomplete != "" && len(e.Observed.Gaps) == 0 {
			e.Observed.Gaps = []string{rec.Trace.Incomplete}
		}
	}
	if why := rec.Isolation.WeakFacts(); why != "" {
		if e.Observed == nil {
			e.Observed = &gate.Observed{}
		}
		e.Observed.Gaps = append([]string{why}, e.Observed.Gaps...)
	}
	if set, err := c.review.Changes(rec.ID); err == nil {
		e.Changes = set
	}
	return e, nil
}

// fetched collects the answers that a phase got from the network.
type fetched struct {
	mu     sync.Mutex
	seen   map[gate.Fetch]bool
	unread string // why the answers are not complete; empty: they are
}

// told handles an event of the gateway.
func (n *fetched) told(ev gateway.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	not := func(format string, a ...any) { n.unread = cmp.Or(n.unread, fmt.Sprintf(format, a...)) }
	switch e := ev.(type) {
	case gateway.Request:
		f := gate.Fetch{Method: e.Method, URL: fmt.Sprintf("%s:%d%s", e.Name, e.Port, e.Path), Status: e.Status, Digest: e.Digest}
		switch {
		case !e.Allowed: // the routes alone said so
		case e.Reason != gateway.ReasonOK:
			not("an answer of %s did not come to its end: %s", e.Name, e.Reason)
		case e.Digest == "":
			not("what %s said was no answer to one request", e.Name)
		case len(n.seen) >= gate.MaxFetched && !n.seen[f]:
			not("it had more than %d answers", gate.MaxFetched)
		default:
			n.seen[f] = true
		}
	case gateway.Conn:
		switch {
		case !e.Allowed, e.Reason == gateway.ReasonOK && slices.Contains([]string{"http", "https", "h2"}, e.Protocol):
		case e.Reason == gateway.ReasonOK && e.Up+e.Down == 0: // nobody said anything
		default:
			not("what it said to %s was not read: %s", e.Name, cmp.Or(string(e.Reason), e.Protocol, "nothing was sent"))
		}
	case gateway.LimitHit:
		not("it met a limit: %s", e.Limit)
	}
}

// all returns the answers, sorted, and why they are not complete.
func (n *fetched) all() ([]gate.Fetch, string) {
	if n == nil {
		return nil, ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.seen), func(a, b gate.Fetch) int {
		return cmp.Or(cmp.Compare(a.URL, b.URL), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Status, b.Status), cmp.Compare(a.Digest, b.Digest))
	}), n.unread
}

// Capped keeps the first Max bytes that are written to it and counts the rest.
type Capped struct {
	mu    sync.Mutex
	b     []byte
	total int64
	Max   int
}

func (c *Capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(len(p))
	c.b = append(c.b, p[:min(len(p), c.Max-len(c.b))]...)
	return len(p), nil
}

func (c *Capped) Output() gate.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	return gate.Output{Bytes: c.b, Total: c.total}
}
