package carboy

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
	"github.com/carboy/carboy/internal/bottle/gvisor"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// GateOptions say what is judged, by what.
type GateOptions struct {
	// Dir is the top of a git work tree; empty: the current directory.
	Dir string
	// Base is the approved revision; empty: HEAD for a run and for the work tree, else
	// what the change has in common with main or master.
	Base string
	// Change is a revision, a run, or "." for the work tree; empty: HEAD.
	Change string
	// Catalog is a file of the user's, outside of Dir; empty: the one of the base.
	Catalog string
	// Again runs everything, also when a verdict of before still holds.
	Again bool
	// OnEvent is told what happens, one event at a time. Nil: nobody.
	OnEvent func(GateEvent)

	own     *ownJudge
	granted []gate.Attempts
	// exact takes no verdict of before that was about other trees, though it depended on
	// nothing in which they differ.
	exact bool
	// waits has the gate wait for another one on the directory, and is called once when
	// there is one. Nil: that is ErrGateLocked.
	waits func()
}

// ownJudge is a catalog that whoever begins a repository's gate has just written: it is
// the user's word, and becomes the base's by their commit.
type ownJudge struct {
	catalog   *gate.Catalog
	recording bool
}

// Judged is a verdict, and why nothing of before could be given for it.
type Judged struct {
	*gate.Verdict
	// Miss says which input changed; empty for a cached verdict.
	Miss string
	// Dir is where the verdict and its evidence lie.
	Dir string
}

// Errors of gates.
var (
	// ErrGateLocked: another gate works on this directory.
	ErrGateLocked = errors.New("another gate works on this directory")
	// ErrNoCatalog: nothing says what a change must show.
	ErrNoCatalog = errors.New("there is no catalog")
	// ErrNothingBefore: there is no commit before the change to compare it with.
	ErrNothingBefore = errors.New("nothing was committed before it")
	// ErrNoVerdict is returned for a verdict that is not there.
	ErrNoVerdict = errors.New("no such verdict")
	// ErrLedger: what is on record of a gate is not what was recorded.
	ErrLedger = errors.New("the gate's records are not what the audit log says")
)

// gateDir is where everything of gates lies.
func (c *Client) gateDir(elem ...string) string {
	return filepath.Join(append([]string{c.StateDir(), "gates"}, elem...)...)
}

// Gate judges a change: every signal of the catalog, each phase in a fresh bottle. The
// verdict is on record when it returns; one that is no pass is no error.
func (c *Client) Gate(ctx context.Context, o GateOptions) (*Judged, error) {
	w, err := c.gateWork(ctx, &o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	miss := "it was not looked for"
	if w.newest != nil {
		var v *Judged
		if v, miss, err = w.cached(ctx); err != nil {
			return nil, err
		}
		if v != nil {
			c.gaveAgain(v.ID)
			return v, nil
		}
	}
	v, err := w.judge(ctx)
	if err != nil {
		return nil, err
	}
	j := &Judged{Verdict: v, Miss: miss, Dir: c.gateDir("verdicts", v.ID)}
	return j, nil
}

// gateWork is one judgement while it goes on.
type gateWork struct {
	c       *Client
	o       *GateOptions
	dir     string
	repo    *gate.Repository
	g       *gate.Gate
	given   map[string]string
	homes   []string
	unlock  func()
	scratch string
	exec    *hostexec.Runner
	runs    []store.ID
	mu      sync.Mutex
	// newest reads what the newest verdict that may hold still depended on.
	newest func() ([]string, *keptInputs)
}

func (w *gateWork) close() {
	if w.scratch != "" {
		removeTree(w.scratch)
	}
	for _, id := range w.runs {
		w.c.store.Remove(context.Background(), id, store.RemoveOptions{Unlanded: true})
	}
	if w.exec != nil {
		w.exec.Close(context.Background())
	}
	if w.unlock != nil {
		w.unlock()
	}
}

func (c *Client) gateWork(ctx context.Context, o *GateOptions) (_ *gateWork, err error) {
	w := &gateWork{c: c, o: o}
	defer func() {
		if err != nil {
			w.close()
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
	if w.exec, err = hostexec.New(hostexec.Options{Untrusted: []string{w.dir}}); err != nil {
		return nil, err
	}
	w.repo = &gate.Repository{Dir: w.dir, Runner: w.exec}
	if w.unlock, err = c.awaitGateLock(ctx, w.dir, o.waits); err != nil {
		return nil, err
	}
	c.sweepGates()
	w.g = &gate.Gate{Runner: w, Warm: w}
	if o.OnEvent != nil {
		w.g.Progress = o.OnEvent
	}
	if !o.Again && o.own == nil {
		w.newest = sync.OnceValues(w.newestInputs)
		go w.newest() // ends after a file was read; git works meanwhile
	}
	if err := w.trees(ctx); err != nil {
		return nil, err
	}
	if err := w.judges(ctx); err != nil {
		return nil, err
	}
	return w, w.decide()
}

// gateLock keeps two gates from working on one directory. Death unlocks.
func (c *Client) gateLock(dir string) (func(), error) {
	if err := os.MkdirAll(c.gateDir("locks"), 0o700); err != nil {
		return nil, err
	}
	f, err := lockFile(c.gateDir("locks", shortSum(dir)))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("%s: %w", dir, ErrGateLocked)
	}
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func lockFile(path string) (*os.File, error) {
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

func shortSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:12])
}

// newScratch makes a directory for trees, once; the next gate removes it when carboy dies.
func (w *gateWork) newScratch() error {
	if w.scratch != "" {
		return nil
	}
	top := w.c.gateDir("scratch")
	if err := os.MkdirAll(top, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(top, "g")
	if err != nil {
		return err
	}
	f, err := lockFile(dir + "/lock")
	if err != nil {
		return err
	}
	unlock := w.unlock
	w.scratch, w.unlock = dir, func() { f.Close(); unlock() }
	w.g.Scratch = dir + "/trees"
	return os.Mkdir(w.g.Scratch, 0o755)
}

// sweepGates removes what dead gates left.
func (c *Client) sweepGates() {
	dirs, _ := store.Glob(c.gateDir("scratch"), "g*")
	for _, d := range dirs {
		fi, err := os.Stat(d)
		if err != nil || time.Since(fi.ModTime()) < time.Minute {
			continue // one that is being made has no lock yet
		}
		if f, err := lockFile(d + "/lock"); err == nil {
			removeTree(d)
			f.Close()
		}
	}
}

// trees finds what is judged, and against what.
func (w *gateWork) trees(ctx context.Context) (err error) {
	change, base := w.o.Change, w.o.Base
	if change == "" {
		change = "HEAD"
	}
	if w.o.own != nil && !w.repo.Top(ctx) {
		w.g.Change, err = gate.DirTree("the directory", w.dir, nil)
		w.g.Base = w.g.Change
		return err
	}
	ask := []string{cmp.Or(base, "HEAD")}
	if change != "." {
		ask = append(ask, change)
	}
	if base == "" {
		ask = append(ask, mainLines...)
	}
	var hints gate.Hints
	if err := store.ReadJSON(w.c.gateDir("cache", shortSum(w.dir), hintsFile), hintsKind, &hints); err == nil {
		w.repo.Expect(hints)
	}
	if err := w.repo.Resolve(ctx, ask...); err != nil {
		return err
	}
	commit, cerr := "", gate.ErrNoRevision
	if change != "." {
		commit, cerr = w.repo.Commit(ctx, change)
	}
	if (cerr == nil || errors.Is(cerr, gate.ErrAmbiguous)) && change != "HEAD" && change != commit && !strings.HasPrefix(change, "refs/") {
		// A branch can be called like a run, and would be judged in its place.
		if m, err := w.c.Find(ctx, change, w.dir); err == nil && string(m.Workspace.Path) == w.dir {
			if string(m.ID) != change {
				return fmt.Errorf("change %q is a revision and a run (%s): write refs/… for the one, the whole id for the other: %w", change, m.ID, gate.ErrAmbiguous)
			}
			commit, cerr = "", gate.ErrNoRevision
		}
	}
	if errors.Is(cerr, gate.ErrAmbiguous) {
		return fmt.Errorf("change: %w", cerr)
	}
	if base == "" && (w.o.own != nil || change == "." || cerr != nil) {
		base = "HEAD"
	}
	if base == "" {
		if base, err = w.defaultBase(ctx, commit); err != nil {
			return err
		}
	}
	if w.o.own == nil || !w.o.own.recording {
		b, err := w.repo.Commit(ctx, base)
		if w.o.Base == "" && base == "HEAD" && errors.Is(err, gate.ErrNoRevision) {
			return fmt.Errorf("HEAD has no commit: %w: %w", ErrNothingBefore, err)
		}
		if err != nil {
			return fmt.Errorf("base: %w", err)
		}
		load := []string{b}
		if cerr == nil {
			load = append(load, commit)
		}
		if err := w.repo.Load(ctx, load...); err != nil {
			return err
		}
	}
	switch {
	case change == ".":
		if w.g.Change, err = w.repo.WorkTree(ctx); err != nil {
			return err
		}
	case cerr == nil:
		if w.g.Change, err = w.repo.Tree(ctx, commit); err != nil {
			return err
		}
		w.g.Change.Name = change
	default:
		if w.g.Change, err = w.runTree(ctx, change); err != nil {
			if errors.Is(err, store.ErrNotFound) && errors.Is(cerr, gate.ErrNoRevision) {
				return fmt.Errorf("change %q is no revision and no run: %w", change, gate.ErrNoRevision)
			}
			return errors.Join(err)
		}
	}
	if w.o.own != nil && w.o.own.recording {
		w.g.Base = w.g.Change
		return nil
	}
	if w.g.Base, err = w.repo.Tree(ctx, base); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	// All contents at once: what follows asks for some of them, one by one.
	_, err = w.g.Change.Digest(ctx)
	if err == nil {
		_, err = w.g.Base.Digest(ctx)
	}
	return err
}

// mainLines are what a change is compared with when nothing is named.
var mainLines = []string{"refs/remotes/origin/HEAD", "refs/heads/main", "refs/heads/master"}

// defaultBase is where the change left the main line.
func (w *gateWork) defaultBase(ctx context.Context, commit string) (string, error) {
	parent, err := w.repo.Parent(ctx, commit)
	if err != nil {
		return "", fmt.Errorf("change: %w", err)
	}
	for _, name := range mainLines {
		main, err := w.repo.Commit(ctx, name)
		if errors.Is(err, gate.ErrNoRevision) || main == commit {
			continue
		}
		if err != nil {
			return "", err
		}
		if main == parent {
			return main, nil
		}
		b, err := w.repo.MergeBase(ctx, main, commit)
		if err != nil {
			// Not the commit before it: what lies between that and the main line would
			// be judged by nobody.
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

// runTree is the work tree with what a run changed in it.
func (w *gateWork) runTree(ctx context.Context, ref string) (*gate.Tree, error) {
	m, err := w.c.Find(ctx, ref, w.dir)
	if err != nil {
		return nil, err
	}
	if string(m.Workspace.Path) != w.dir {
		return nil, fmt.Errorf("run %s worked on %s: %w", m.ID, m.Workspace.Path, gate.ErrNoRevision)
	}
	set, err := w.c.Changes(m.ID)
	if err != nil {
		return nil, err
	}
	was, err := w.repo.WorkTree(ctx)
	if err != nil {
		return nil, err
	}
	return gate.WithChanges("run "+string(m.ID), string(m.ID), was, set)
}

// judges finds what judges: of the approved base, or of the user's own.
func (w *gateWork) judges(ctx context.Context) error {
	g := w.g
	var err error
	switch {
	case w.o.own != nil:
		g.Catalog, g.CatalogFrom, g.Recording = w.o.own.catalog, "user", w.o.own.recording
	case w.o.Catalog != "":
		if err := w.userCatalog(w.o.Catalog); err != nil {
			return err
		}
		side := strings.TrimSuffix(g.Catalog.File, filepath.Ext(g.Catalog.File)) + "-baseline.json"
		g.Baseline, g.BaselineBy, g.BaselineWhy, err = w.c.baselineIn(side, os.ReadFile)
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
	g.Baseline, g.BaselineBy, g.BaselineWhy, err = w.c.baselineOf(ctx, g.Base)
	return err
}

// userCatalog reads a catalog of the user's. One that lies in what is judged could be
// the change's own.
func (w *gateWork) userCatalog(file string) error {
	abs, err := filepath.Abs(file)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return err
	}
	if within(abs, w.dir) {
		return &OptionError{Option: "--catalog", Value: file, Reason: "lies in what is judged, so that the change could have written it", Advice: "commit it to the base as " + gate.CatalogPath + ", or keep it in your configuration directory"}
	}
	b, err := os.ReadFile(abs)
	if err != nil {
		return err
	}
	w.g.Catalog, err = gate.ParseCatalog(abs, b)
	w.g.CatalogFrom = "user"
	return err
}

// decide names everything that carboy itself decides by.
func (w *gateWork) decide() error {
	db, err := w.c.advisories()
	if err != nil {
		return err
	}
	print, err := gate.DirPrint(db)
	if err != nil {
		return err
	}
	if print != "absent" {
		w.g.Database = db
	}
	id, err := whoami(w.dir)
	if err != nil {
		return err
	}
	w.homes = []string{id.user.Home}
	exe, err := buildDigest()
	if err != nil {
		return err
	}
	baseline := "none " + w.g.BaselineWhy
	if w.g.Baseline != nil {
		b, err := w.g.Baseline.Encode()
		if err != nil {
			return err
		}
		baseline = hexSum(b) + " " + w.g.BaselineBy
	}
	l := DefaultLimits(w.c.StateDir())
	conf, err := json.Marshal(w.c.config)
	if err != nil {
		return err
	}
	history := "not looked at"
	if slices.ContainsFunc(w.g.Catalog.Signals, func(s *gate.Signal) bool { return s.Kind.Name == "secrets" }) {
		history = w.g.Base.Commit + ".." + w.g.Change.Commit
	}
	// Whose attempts it is the verdict says, and must not say of others'.
	granted, err := json.Marshal(w.o.granted)
	if err != nil {
		return err
	}
	w.given = map[string]string{
		"history": history, "granted attempts": hexSum(granted),
		"carboy": w.c.build + " " + exe, "catalog": w.g.Catalog.Digest + " " + w.g.CatalogFrom, "baseline": baseline,
		"advisories": print, "image": w.g.Catalog.Image + "@" + w.g.Catalog.ImageDigest,
		"engine":        gvisor.Build(),
		"machine":       fmt.Sprintf("%s %d %d", runtime.GOARCH, l.CPUs, l.Memory),
		"configuration": hexSum(conf), "user": fmt.Sprintf("%d %s", id.user.UID, id.user.Home),
		// What a phase's variables are made of, beside the catalog.
		"variable PATH": toolPath(w.c.env("PATH")),
	}
	for _, name := range passEnv {
		if v := w.c.env(name); v != "" {
			w.given["variable "+name] = v
		}
	}
	// What phases begin with; the others are what judges look at.
	w.g.Shape = maps.Clone(w.given)
	for _, name := range []string{"history", "baseline", "advisories", "granted attempts"} {
		delete(w.g.Shape, name)
	}
	return nil
}

// advisories is where those of the user are, if there are any.
func (c *Client) advisories() (string, error) {
	dir, err := store.ConfigDir(c.opened.Config, c.env)
	return filepath.Join(dir, "osv"), err
}

// buildDigest tells this carboy from every other build, also where versions are the
// same: what its file is, and when it was changed.
var buildDigest = sync.OnceValues(func() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return "", fmt.Errorf("look at carboy itself: %w", err)
	}
	return fmt.Sprintf("%d:%d:%d:%d", st.Dev, st.Ino, st.Size, st.Ctim.Nano()), nil
})

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// judge runs the gate, and puts what it found on record.
func (w *gateWork) judge(ctx context.Context) (*gate.Verdict, error) {
	if err := w.newScratch(); err != nil {
		return nil, err
	}
	w.g.Redact = new(secret.Redactor)
	v, err := w.g.Run(ctx)
	if err != nil {
		return nil, err
	}
	v.Build, v.Repository, v.Granted = w.c.build, w.dir, w.o.granted
	dir := w.c.gateDir("verdicts", v.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	hold, err := waitVerdict(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer hold.Close()
	if err := w.keep(v); err != nil {
		return nil, err
	}
	var more []audit.Digest
	if w.o.own == nil {
		if inputs := w.remember(ctx, v); inputs != nil {
			v.Inputs = hexSum(inputs)
			if err := os.WriteFile(filepath.Join(dir, gate.InputsFile), inputs, 0o600); err != nil {
				return nil, err
			}
			more = append(more, audit.Digest{Of: inputsOf, Sum: sha256.Sum256(inputs)})
		}
	}
	kept, done := w.keepWarm(ctx, v)
	defer done()
	return v, w.c.recordVerdict(ctx, v, append(more, kept...)...)
}

const (
	verdictFile  = gate.VerdictFile
	proposedFile = gate.ProposedFile
	maxOutput    = 8 << 20 // of each stream of a phase that is read and kept
)

// keep moves what the phases left to where the verdict is, so that it stays as long.
func (w *gateWork) keep(v *gate.Verdict) error {
	dir := w.c.gateDir("verdicts", v.ID)
	if err := os.MkdirAll(filepath.Join(dir, gate.EvidenceDir), 0o700); err != nil {
		return err
	}
	// What a person would accept as the next baseline.
	if b, err := w.g.Record(context.Background()); err == nil {
		enc, err := b.Encode()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, proposedFile), enc, 0o600); err != nil {
			return err
		}
		v.Proposed = hexSum(enc)
	}
	for _, p := range v.Phases {
		to := filepath.Join(dir, p.EvidenceOf())
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		if p.Of != "" {
			if err := w.evidenceOf(p, to); err != nil {
				return err
			}
			continue
		}
		p.Evidence = map[string]string{}
		for _, name := range []string{store.ReceiptFile, store.TraceFile} {
			err := os.Rename(filepath.Join(w.c.store.RunDir(store.ID(p.Run)), name), filepath.Join(to, name))
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
			p.Evidence[name] = hexSum(b)
		}
	}
	return nil
}

// fileSum is the SHA-256 of a file of carboy's own, in hexadecimal digits.
func fileSum(ctx context.Context, name string) (string, error) {
	dir, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return gate.SumIn(ctx, dir, filepath.Base(name), math.MaxInt64-1)
}

// remember keeps what the verdict depended on, where it may be given again, and gives
// the text of that. It counts only together with the record of the verdict.
func (w *gateWork) remember(ctx context.Context, v *gate.Verdict) []byte {
	in, err := w.g.Inputs(ctx, v, w.given, w.homes...)
	if err != nil {
		w.c.log.Info("the verdict is not kept for later", "verdict", v.ID, "why", err)
		return nil
	}
	dir := w.c.gateDir("cache", shortSum(w.dir))
	file := filepath.Join(dir, v.ID+".json")
	b, err := store.Encode("gate-inputs", in)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = store.WriteFile(file, b, 0o600)
	}
	if err != nil {
		w.c.log.Info("the verdict is not kept for later", "verdict", v.ID, "why", err)
		return nil
	}
	if err := store.WriteJSON(filepath.Join(dir, hintsFile), hintsKind, w.repo.Hints()); err != nil {
		w.c.log.Info("the next gate asks git more often", "why", err)
	}
	w.forget(dir)
	return b
}

// inputsOf is what a verdict's inputs are called in its record.
const inputsOf = "inputs"

// What git was asked for when something was judged last is asked for at once.
const (
	hintsFile = "asked"
	hintsKind = "gate-asked"
)

// maxRemembered bounds the verdicts of a directory that may be given again.
const maxRemembered = 10

func (w *gateWork) forget(dir string) {
	files, _ := store.Glob(dir, "*.json")
	for len(files) > maxRemembered {
		os.Remove(files[0]) // the oldest: ids sort by time
		files = files[1:]
	}
}

// keptInputs are what a verdict depended on, as text too.
type keptInputs struct {
	gate.Inputs
	text []byte
	err  error
}

// readInputs gives nil where these can't be of a tree with that listing, which is seen
// long before they are understood.
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

// newestInputs are the files of inputs, the oldest first, and what is in the last; nil:
// there is none.
func (w *gateWork) newestInputs() ([]string, *keptInputs) {
	files, err := store.Glob(w.c.gateDir("cache", shortSum(w.dir)), "*.json")
	if err != nil || len(files) == 0 {
		return nil, nil
	}
	k := readInputs(files[len(files)-1], "")
	if k.err == nil {
		k.Early()
	}
	return files, k
}

// cached gives a verdict of before, when all that it depended on is as it was; else the
// input that is not, of the newest.
func (w *gateWork) cached(ctx context.Context) (*Judged, string, error) {
	files, newest := w.newest()
	miss := "nothing was judged here before"
	var listing string
	if len(files) > 1 {
		var err error
		if listing, err = w.g.Change.Listing(ctx); err != nil {
			return nil, "", err
		}
	}
	for i := range slices.Backward(files) {
		k := newest
		if i < len(files)-1 {
			if k = readInputs(files[i], listing); k == nil {
				continue
			}
		}
		in, b := &k.Inputs, k.text
		if k.err != nil {
			os.Remove(files[i])
			continue
		}
		why, err := in.Miss(ctx, w.g.Base, w.g.Change, w.given)
		if err != nil {
			return nil, "", err
		}
		if why != "" {
			if i == len(files)-1 {
				miss = why
			}
			continue
		}
		v, dir, err := w.c.Verdict(ctx, in.Verdict)
		if errors.Is(err, errUnrecorded) || errors.Is(err, ErrNoVerdict) { // carboy died before it was on record, or it was removed
			os.Remove(files[i])
			continue
		}
		if err != nil {
			if errors.Is(err, ErrLedger) {
				return nil, "", err
			}
			continue
		}
		// It is the judgement's word that these were all of its inputs.
		if err := w.c.onRecord(v.ID, inputsOf, b); err != nil {
			return nil, "", err
		}
		if len(in.Network) > 0 {
			if err := w.newScratch(); err != nil {
				return nil, "", err
			}
			if why, err = w.g.Again(ctx, in); err != nil {
				return nil, "", err
			}
			if why != "" {
				if i == len(files)-1 {
					miss = why
				}
				continue
			}
			// That took a while.
			if v, dir, err = w.c.Verdict(ctx, in.Verdict); errors.Is(err, ErrNoVerdict) {
				if i == len(files)-1 {
					miss = "its verdict was removed"
				}
				continue
			}
			if err != nil {
				return nil, "", err
			}
		}
		was := [2]gate.Side{v.Base, v.Change}
		if err := w.g.Sides(ctx, v); err != nil {
			return nil, "", err
		}
		// A person looked at one change. Another one, of which nothing counted that is
		// new, has the verdict, and not their word.
		if v.Base.Digest != was[0].Digest || v.Change.Digest != was[1].Digest || v.Change.Commit != was[1].Commit {
			if w.o.exact {
				if i == len(files)-1 {
					miss = "what was judged was not exactly this tree"
				}
				continue
			}
			v.Override = nil
		}
		v.Cached = true
		return &Judged{Verdict: v, Dir: dir}, "", nil
	}
	return nil, miss, nil
}

// Verdict reads one by its id, or by a prefix of one id only; "" is the one that Gate gave
// last. What is not what was recorded is ErrLedger.
func (c *Client) Verdict(ctx context.Context, ref string) (*gate.Verdict, string, error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, "", err
	}
	defer release()
	id, err := c.findVerdict(ref)
	if err != nil {
		return nil, "", err
	}
	v, err := c.readVerdict(id)
	return v, c.gateDir("verdicts", id), err
}

// Verdicts lists those on record, newest first, at most n. One that is not what was
// recorded is left out here; AuditVerify reports it.
func (c *Client) Verdicts(ctx context.Context, n int) ([]*gate.Verdict, error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	ids, err := c.verdicts()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	recorded := map[string]string{}
	err = c.auditRecords(func(r *audit.Record) {
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

// errUnrecorded is of a document that the audit log never had.
var errUnrecorded = fmt.Errorf("%w: nothing is on record", ErrLedger)

// auditRecords reads the log from its beginning. That the log itself is whole was seen
// when it was opened.
func (c *Client) auditRecords(f func(*audit.Record)) error {
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

// Run runs one phase.
func (w *gateWork) Run(ctx context.Context, j gate.Job) (*gate.Ended, error) {
	e, err := w.c.runPhase(ctx, RunOptions{
		Command: j.Command, Workspace: j.Tree, at: gate.Workspace, Mode: store.Overlay, Allow: j.Network, Env: append([]string{"CI=1"}, j.Env...),
		Image: j.Image, ImageDigest: j.ImageDigest, caches: j.Warm, take: j.Take,
		Limits: bottle.Limits{Timeout: j.Limits.Timeout, Memory: j.Limits.Memory, Disk: j.Limits.Disk, Pids: j.Limits.Pids},
	})
	if e != nil {
		w.mu.Lock()
		w.runs = append(w.runs, store.ID(e.Run))
		w.mu.Unlock()
	}
	return e, err
}

// runPhase runs a command in a bottle of its own, and collects all that is known of it.
// Its run stays on record.
func (c *Client) runPhase(ctx context.Context, o RunOptions) (*gate.Ended, error) {
	out, msg := &capped{max: maxOutput}, &capped{max: maxOutput}
	var net *fetched
	if len(o.Allow) > 0 {
		net = &fetched{seen: map[gate.Fetch]bool{}}
		o.told = net.told
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	o.Stdin, o.Stdout, o.Stderr = null, out, msg
	rec, err := c.Run(ctx, o)
	if rec == nil {
		return nil, err
	}
	e := &gate.Ended{
		Run: string(rec.ID), Code: rec.Exit.Code, Reason: string(rec.Exit.Reason), Error: rec.Exit.Error, Duration: rec.Duration,
		Isolation: string(rec.Isolation.Class), Engine: rec.Isolation.Backend + " " + rec.Isolation.Build, Networked: len(o.Allow) > 0,
		Stdout: out.output(), Stderr: msg.output(),
	}
	if rec.Exit.Reason == receipt.Signalled {
		e.Reason = string(receipt.Exited) // the command's own end, with a code that is not 0
	}
	if err != nil && rec.Exit.Error == "" {
		e.Error = err.Error()
	}
	if b, err := os.ReadFile(filepath.Join(c.store.RunDir(rec.ID), store.ReceiptFile)); err == nil {
		e.Receipt = hexSum(b)
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
	if r, err := c.Trace(rec.ID); err == nil {
		observe := gate.Observe
		if o.take != nil || len(o.caches) > 0 {
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
	if set, err := c.Changes(rec.ID); err == nil {
		e.Changes = set
	}
	return e, nil
}

// fetched collects what a phase was answered from outside.
type fetched struct {
	mu     sync.Mutex
	seen   map[gate.Fetch]bool
	unread string
}

// told takes one event of the gateway.
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

// all gives them in one order, and why there is more.
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

// capped keeps the beginning of what is written.
type capped struct {
	mu    sync.Mutex
	b     []byte
	total int64
	max   int
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += int64(len(p))
	c.b = append(c.b, p[:min(len(p), c.max-len(c.b))]...)
	return len(p), nil
}

func (c *capped) output() gate.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	return gate.Output{Bytes: c.b, Total: c.total}
}
