package gate

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/change"
)

// WarmSchema names the format of what is kept of a base between gates.
const WarmSchema = "carboy.dev/gate-warm/v1"

// Bounds of the caches of one base; variables for tests.
var (
	maxWarmFiles int64 = MaxFiles
	maxWarmBytes int64 = 4 << 30
)

// Warm is what phases of the base, and no others, left in their caches (signals'
// `warm:`), and what these phases did. A later gate with the same base and key begins
// with both. Phases of a change read the caches; what they write there is gone with
// their bottles.
type Warm struct {
	Schema string `json:"schema"`
	// Key is the SHA-256 of all that carboy knew before the phases ran: base, catalog,
	// build, image, variables.
	Key string `json:"key"`
	// Verdict is of the gate that filled the caches, in whose record this document is.
	Verdict    string    `json:"verdict"`
	Repository string    `json:"repository"`
	At         time.Time `json:"at"`
	Paths      []string  `json:"paths"` // of the home inside, sorted
	Files      int       `json:"files"`
	Bytes      int64     `json:"bytes"`
	Digest     string    `json:"sha256"` // of all files of the caches
	// Phases are those of the base, in the order in which they filled the caches, and
	// PhasesDigest is of what is kept of them: output, trace, what they wrote.
	Phases       []WarmPhase `json:"phases"`
	PhasesDigest string      `json:"phases_sha256"`
	// Host are files of this machine that the phases used, as they were.
	Host map[string]string `json:"host"`

	dir string
	// What was taken, over all phases; what replaced another file counts, too.
	tookFiles, tookBytes int64
}

// WarmPhase is a phase that filled caches.
type WarmPhase struct {
	*Phase
	Stdout int64 `json:"stdout_bytes"` // all that it printed
	Stderr int64 `json:"stderr_bytes"`
}

// WarmUsed says in a verdict which caches its phases began with.
type WarmUsed struct {
	Key    string `json:"key"`
	Digest string `json:"sha256"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	// Verdict is of the gate whose phases of the base filled them.
	Verdict string `json:"verdict"`
}

// WarmStore keeps caches between gates.
type WarmStore interface {
	// Find gives what is kept for a key, or nil. What is there and is not what was
	// recorded is an error.
	Find(ctx context.Context, key string) (*Warm, error)
}

// Where what is kept lies in its directory.
const (
	WarmFile   = "warm.json"
	warmFiles  = "files"  // one directory for each path, by its number
	WarmPhases = "phases" // one directory for each signal
)

// warms are the signals with caches.
func (c *Catalog) warms() (out []*Signal) {
	for _, s := range c.Signals {
		if len(s.Warm) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// warmed fills or finds the caches, once.
func (g *Gate) warmed(ctx context.Context) (*Warm, error) {
	g.warmOnce.Do(func() { g.warm, g.warmErr = g.warmUp(ctx) })
	return g.warm, g.warmErr
}

func (g *Gate) warmUp(ctx context.Context) (*Warm, error) {
	list := g.Catalog.warms()
	if g.Warm == nil || g.Base == g.Change || len(list) == 0 {
		return nil, nil
	}
	key, err := g.warmKey(ctx, list)
	if err != nil {
		return g.cold(ctx, err)
	}
	w, err := g.Warm.Find(ctx, key)
	if err != nil {
		return nil, err
	}
	if w != nil {
		for _, p := range w.Phases {
			g.sideRan(p.Phase)
		}
		return w, nil
	}
	return g.fill(ctx, key, list)
}

// cold goes on without caches, for a reason that the verdict gives.
func (g *Gate) cold(ctx context.Context, why error) (*Warm, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.warmWhy = why
	return nil, nil
}

// sideRan has a phase of the base stand ready for whoever asks for it.
func (g *Gate) sideRan(p *Phase) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ahead[p.Signal+" base"] = p
	g.filled = append(g.filled, p)
}

// warmKey is of everything that shapes the caches and is known before a phase has run.
func (g *Gate) warmKey(ctx context.Context, list []*Signal) (string, error) {
	h := sha256.New()
	base, err := g.Base.Digest(ctx)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s base %s catalog %s %s\n", WarmSchema, base, g.Catalog.Digest, g.CatalogFrom)
	for _, n := range slices.Sorted(maps.Keys(g.Shape)) {
		fmt.Fprintf(h, "%q %q\n", n, g.Shape[n])
	}
	for _, s := range list {
		for _, a := range s.After {
			if _, err := g.withKept(ctx, g.Base, a, "base"); err != nil {
				return "", err
			}
			g.mu.Lock()
			p := g.kept[a+" base"]
			g.mu.Unlock()
			sum, err := g.keptSum(ctx, g.Catalog.Signal(a), p)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s after %s %s\n", s.Name, a, sum)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fill runs the signals with caches on the base, one after the other, so that each
// begins with what those before it left. Where one does not end by itself, or what it
// left can't be taken, the change runs without caches.
func (g *Gate) fill(ctx context.Context, key string, list []*Signal) (*Warm, error) {
	w := &Warm{Schema: WarmSchema, Key: key, At: time.Now().UTC(), dir: filepath.Join(g.Scratch, "warm")}
	for _, s := range list {
		w.Paths = append(w.Paths, s.Warm...)
	}
	slices.Sort(w.Paths)
	w.Paths = slices.Compact(w.Paths)
	for i := range w.Paths {
		if err := os.MkdirAll(w.of(i), 0o755); err != nil {
			return nil, err
		}
	}
	for _, s := range list {
		var took bool
		var terr error
		take := func(home string, r io.Reader) error {
			took, terr = true, w.take(home, s.Warm, r)
			return terr
		}
		p, err := g.start(ctx, s, g.Base, "base", w, take)
		if err != nil {
			return nil, err
		}
		g.sideRan(p)
		switch {
		case !p.Own():
			return g.cold(ctx, fmt.Errorf("%s on the base did not end by itself: %s", s.Name, lostWhy(p)))
		case !p.Observed.Whole():
			return g.cold(ctx, fmt.Errorf("%s on the base: the trace has gaps (%s)", s.Name, gaps(p.Observed)))
		case p.Observed.Readers == nil:
			return g.cold(ctx, fmt.Errorf("%s on the base: which programs read the tree is not known, or is too much", s.Name))
		case terr != nil || !took:
			return g.cold(ctx, cmp.Or(terr, errors.New("what "+s.Name+" left in its caches was not taken out of its bottle")))
		}
		w.Phases = append(w.Phases, WarmPhase{p, p.Stdout.Total, p.Stderr.Total})
	}
	var err error
	if w.Digest, w.Files, w.Bytes, err = w.seal(ctx); err != nil {
		return g.cold(ctx, err)
	}
	g.fresh = w
	return w, nil
}

func (w *Warm) of(i int) string { return filepath.Join(w.dir, warmFiles, fmt.Sprint(i)) }

// WarmDir is where the caches lie that phases began with; empty: there are none.
func (g *Gate) WarmDir() string {
	if g.warm == nil {
		return ""
	}
	return g.warm.dir
}

// Dir is where it lies.
func (w *Warm) Dir() string { return w.dir }

// mounts are the directories of a signal's caches, by their paths in the home.
func (w *Warm) mounts(s *Signal) map[string]string {
	if w == nil || len(s.Warm) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, p := range s.Warm {
		out[p] = w.of(slices.Index(w.Paths, p))
	}
	return out
}

// used is what the verdict says.
func (w *Warm) used(verdict string) *WarmUsed {
	if w == nil {
		return nil
	}
	return &WarmUsed{w.Key, w.Digest, w.Files, w.Bytes, cmp.Or(w.Verdict, verdict)}
}

// take adds to the caches what a phase wrote to some of them: the upper layer of its
// bottle, in the form that bottles give it. Names and contents are the phase's own.
func (w *Warm) take(home string, paths []string, r io.Reader) error {
	root, err := os.OpenRoot(filepath.Join(w.dir, warmFiles))
	if err != nil {
		return err
	}
	defer root.Close()
	place := func(name string) (string, bool) {
		name = strings.TrimSuffix("/"+strings.TrimPrefix(name, "./"), "/")
		for _, p := range paths {
			if at := path.Join(home, p); below(name, at) {
				return path.Join(fmt.Sprint(slices.Index(w.Paths, p)), strings.TrimPrefix(name, at)), true
			}
		}
		return "", false
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what the bottle's caches have: %w", err)
		}
		at, ok := place(h.Name)
		if !ok {
			continue
		}
		top := !strings.Contains(at, "/")
		if _, rest, _ := strings.Cut(at, "/"); !top && badPath(rest) != "" || top && h.Typeflag != tar.TypeDir {
			return fmt.Errorf("the cache has %.200q, which %s", h.Name, cmp.Or(badPath(rest), "stands for the whole"))
		}
		size := h.Size
		if from, ok := place(h.Linkname); ok && h.Typeflag == tar.TypeLink { // copied in full
			fi, err := root.Lstat(from)
			if err != nil {
				return fmt.Errorf("keep %.200q of the cache: %w", h.Name, err)
			}
			size = fi.Size()
		}
		if w.tookFiles++; w.tookFiles > maxWarmFiles || size > MaxFileBytes {
			return fmt.Errorf("the caches have more than %d files, or one of more than %d bytes", maxWarmFiles, MaxFileBytes)
		}
		if w.tookBytes += size; w.tookBytes > maxWarmBytes {
			return fmt.Errorf("the caches have more than %d bytes", maxWarmBytes)
		}
		if err := put(root, at, h, tr, place); err != nil {
			return fmt.Errorf("keep %.200q of the cache: %w", h.Name, err)
		}
	}
}

// put writes one entry of an upper layer over what lies there.
func put(root *os.Root, at string, h *tar.Header, r io.Reader, place func(string) (string, bool)) error {
	opaque := h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] == "y"
	if fi, err := root.Lstat(at); err == nil && (opaque || h.Typeflag != tar.TypeDir || !fi.IsDir()) {
		if err := root.RemoveAll(at); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o100 != 0 {
		mode = 0o755
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(at, 0o755)
	case tar.TypeReg:
	case tar.TypeLink:
		from, ok := place(h.Linkname)
		if !ok {
			return errors.New("is a file outside of the caches, too")
		}
		f, err := root.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		r = f
	case tar.TypeSymlink:
		_, rest, _ := strings.Cut(at, "/")
		if why := (links{rest: h.Linkname}).leadsOut(rest); why != "" {
			return errors.New(why)
		}
		return root.Symlink(h.Linkname, at)
	default: // deleted, or of a kind that nobody keeps
		return nil
	}
	f, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.LimitReader(r, MaxFileBytes))
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// warmTime is of all files of caches: programs refresh a file's time when it has not
// been used for long, and each would be copied for that.
var warmTime = time.Date(2037, 12, 31, 0, 0, 0, 0, time.UTC)

// seal gives all files their time, and sums them up.
func (w *Warm) seal(ctx context.Context) (digest string, files int, bytes int64, err error) {
	root, err := os.OpenRoot(filepath.Join(w.dir, warmFiles))
	if err != nil {
		return "", 0, 0, err
	}
	defer root.Close()
	list, err := listAll(root)
	for _, e := range list {
		if e.info.Mode().IsRegular() && err == nil {
			err = root.Chtimes(e.path, warmTime, warmTime)
			bytes += e.info.Size()
			files++
		}
	}
	if err != nil {
		return "", 0, 0, err
	}
	digest, err = sumAll(ctx, root)
	return digest, files, bytes, err
}

type listed struct {
	path string
	info fs.FileInfo
}

// errKind is of what no cache has.
var errKind = errors.New("is no file, directory or link that is kept")

// listAll lists a directory with all below it. What is no file, directory or link is an
// error.
func listAll(root *os.Root) (out []listed, err error) {
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if t := fi.Mode().Type(); t != 0 && t != fs.ModeDir && t != fs.ModeSymlink {
			return fmt.Errorf("%q: %w", cut(p, 300), errKind)
		}
		if len(out) > 2*MaxFiles {
			return fmt.Errorf("%w: there are more than %d names", errKind, 2*MaxFiles)
		}
		out = append(out, listed{p, fi})
		return nil
	})
	return out, err
}

func sumDir(ctx context.Context, dir string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return sumAll(ctx, root)
}

// sumAll is one SHA-256 of a directory: all names, permissions, links and contents.
func sumAll(ctx context.Context, root *os.Root) (string, error) {
	list, err := listAll(root)
	if err != nil {
		return "", err
	}
	sums := make([][sha256.Size]byte, len(list))
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(runtime.GOMAXPROCS(0))
	const at1 = 64
	for from := 0; from < len(list); from += at1 {
		eg.Go(func() error {
			h, buf := sha256.New(), make([]byte, 64<<10)
			for i := from; i < min(from+at1, len(list)); i++ {
				if err := ctx.Err(); err != nil {
					return err
				}
				h.Reset()
				switch e := list[i]; e.info.Mode().Type() {
				case 0:
					f, err := root.Open(e.path)
					if err != nil {
						return err
					}
					_, err = io.CopyBuffer(h, struct{ io.Reader }{f}, buf)
					if err = errors.Join(err, f.Close()); err != nil {
						return err
					}
				case fs.ModeSymlink:
					to, err := root.Readlink(e.path)
					if err != nil {
						return err
					}
					io.WriteString(h, to)
				}
				h.Sum(sums[i][:0])
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return "", err
	}
	h := sha256.New()
	for i, e := range list {
		fmt.Fprintf(h, "%s %x %q\n", e.info.Mode(), sums[i], e.path)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Filled is what this gate's phases of the base left for later ones; nil: nothing.
// homes are as for Inputs. The caller moves it to where it stays, adds what is kept of
// the phases, and gives it to Seal.
func (g *Gate) Filled(v *Verdict, homes ...string) (*Warm, error) {
	if g.fresh == nil {
		return nil, nil
	}
	w := g.fresh
	host := map[string]bool{}
	for _, p := range w.Phases {
		for _, l := range [][]string{p.Observed.Opened, p.Observed.Missed, p.Observed.Listed} {
			for _, f := range l {
				host[f] = true
			}
		}
	}
	var err error
	w.Verdict, w.Repository = v.ID, v.Repository
	w.Host, err = g.hostInputs(host, homes)
	return w, err
}

// Seal is the document of what was moved to dir. It counts when its SHA-256 is on record.
func (w *Warm) Seal(ctx context.Context, dir string) ([]byte, error) {
	var err error
	if w.PhasesDigest, err = sumDir(ctx, filepath.Join(dir, WarmPhases)); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(w, "", "  ")
	return append(b, '\n'), err
}

// ErrWarmChanged is of caches that are not what was recorded.
var ErrWarmChanged = errors.New("a cache that was kept of the base is not what was recorded")

// ParseWarm reads the document.
func ParseWarm(b []byte) (*Warm, error) {
	var w Warm
	if err := decode(b, &w, &w.Schema, WarmSchema); err != nil {
		return nil, fmt.Errorf("read what is kept of a base: %w", err)
	}
	return &w, nil
}

// Open checks every byte of what is kept in dir against the document, and reads what
// its phases did. The document itself is the caller's to check. What is not as recorded
// is ErrWarmChanged; any other error says nothing of that.
func (w *Warm) Open(ctx context.Context, dir string) error {
	w.dir = dir
	for _, x := range []struct{ name, want string }{{warmFiles, w.Digest}, {WarmPhases, w.PhasesDigest}} {
		at := filepath.Join(dir, x.name)
		fi, err := os.Lstat(at)
		if err == nil && !fi.IsDir() {
			return fmt.Errorf("%s: %w: it is no directory", at, ErrWarmChanged)
		}
		var got string
		if err == nil {
			got, err = sumDir(ctx, at)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errKind) {
			err = fmt.Errorf("%w: %w", ErrWarmChanged, err)
		} else if err == nil && got != x.want {
			err = ErrWarmChanged
		}
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	for i, p := range w.Phases {
		if !signalName().MatchString(p.Signal) || p.On != "base" || p.Phase.Ended == nil {
			return fmt.Errorf("%s: phases[%d] is of no signal on the base: %w", dir, i, ErrWarmChanged)
		}
		if err := p.read(filepath.Join(dir, WarmPhases, p.Signal)); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		p.Phase.Of = w.Verdict
	}
	return nil
}

func (p *WarmPhase) read(dir string) (err error) {
	e := p.Phase.Ended
	e.Stdout.Total, e.Stderr.Total = p.Stdout, p.Stderr
	if e.Stdout.Bytes, err = os.ReadFile(filepath.Join(dir, "stdout")); err != nil {
		return err
	}
	if e.Stderr.Bytes, err = os.ReadFile(filepath.Join(dir, "stderr")); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(dir, "observed.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &e.Observed); err != nil {
		return fmt.Errorf("observed.json of %s: %w", p.Signal, err)
	}
	e.Changes, err = change.OpenSet(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return err
}

// Miss is a file of this machine that is not as it was when the caches were filled;
// empty: there is none.
func (w *Warm) Miss() string { return hostMiss(w.Host) }
