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

// warmSchema names the format of Warm.
const warmSchema = "carboy.dev/gate-warm/v1"

// Bounds of the caches of one base; variables for tests.
var (
	maxWarmFiles int64 = maxFiles
	maxWarmBytes int64 = 4 << 30
)

// Warm describes caches (a signal's "warm" directories) as the phases of a base left
// them, and the results of these phases. A later gate with the same base and key starts
// with both. Phases of a change read the caches; what they write there is discarded.
type Warm struct {
	Schema string `json:"schema"`
	// Key is the SHA-256 of everything that was known before the phases ran: base,
	// catalog, build, image, variables.
	Key string `json:"key"`
	// Verdict is the id of the verdict whose gate filled the caches, and whose record
	// holds this document.
	Verdict    string    `json:"verdict"`
	Repository string    `json:"repository"`
	At         time.Time `json:"at"`
	Paths      []string  `json:"paths"` // relative to the home inside, sorted
	Files      int       `json:"files"`
	Bytes      int64     `json:"bytes"`
	Digest     string    `json:"sha256"` // of all files of the caches
	// Phases are the phases of the base, in the order in which they filled the caches.
	// PhasesDigest covers their stored output, trace and written files.
	Phases       []WarmPhase `json:"phases"`
	PhasesDigest string      `json:"phases_sha256"`
	// Host maps files of this machine that the phases used to their fingerprints.
	Host map[string]string `json:"host"`

	dir string
	// Totals over all phases. A file that replaced another counts as well.
	tookFiles, tookBytes int64
}

// WarmPhase is a phase that filled caches.
type WarmPhase struct {
	*Phase
	Stdout int64 `json:"stdout_bytes"` // length of its output
	Stderr int64 `json:"stderr_bytes"`
}

// WarmUsed identifies the caches that a verdict's phases started with.
type WarmUsed struct {
	Key    string `json:"key"`
	Digest string `json:"sha256"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	// Verdict is the id of the verdict whose gate filled them.
	Verdict string `json:"verdict"`
}

// WarmStore stores caches between gates.
type WarmStore interface {
	// Find returns the caches of a key, or nil. Caches that differ from their record are
	// an error.
	Find(ctx context.Context, key string) (*Warm, error)
}

// Names in the directory of a Warm.
const (
	WarmFile     = "warm.json"
	warmFilesDir = "files"  // one directory for each path, by its index in Paths
	WarmPhases   = "phases" // one directory for each signal
)

// warmSignals returns the signals with caches.
func (c *Catalog) warmSignals() (out []*Signal) {
	for _, s := range c.Signals {
		if len(s.Warm) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// baseCaches finds or fills the caches, once.
func (g *Gate) baseCaches(ctx context.Context) (*Warm, error) {
	g.warmOnce.Do(func() { g.warm, g.warmErr = g.warmUp(ctx) })
	return g.warm, g.warmErr
}

func (g *Gate) warmUp(ctx context.Context) (*Warm, error) {
	list := g.Catalog.warmSignals()
	if g.Warm == nil || g.Base == g.Change || len(list) == 0 {
		return nil, nil
	}
	key, err := g.warmKey(ctx, list)
	if err != nil {
		return g.withoutWarm(ctx, err)
	}
	w, err := g.Warm.Find(ctx, key)
	if err != nil {
		return nil, err
	}
	if w != nil {
		for _, p := range w.Phases {
			g.addBasePhase(p.Phase)
		}
		return w, nil
	}
	return g.fill(ctx, key, list)
}

// withoutWarm continues without caches, for a reason that the verdict gives.
func (g *Gate) withoutWarm(ctx context.Context, why error) (*Warm, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	g.warmWhy = why
	return nil, nil
}

// addBasePhase records a finished phase of the base, for the signal that will ask for it.
func (g *Gate) addBasePhase(p *Phase) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ranEarly[p.Signal+" base"] = p
	g.filled = append(g.filled, p)
}

// warmKey returns the digest of everything that shapes the caches and is known before a
// phase has run.
func (g *Gate) warmKey(ctx context.Context, list []*Signal) (string, error) {
	h := sha256.New()
	base, err := g.Base.Digest(ctx)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s base %s catalog %s %s\n", warmSchema, base, g.Catalog.Digest, g.CatalogFrom)
	for _, n := range slices.Sorted(maps.Keys(g.Shape)) {
		fmt.Fprintf(h, "%q %q\n", n, g.Shape[n])
	}
	for _, s := range list {
		for _, a := range s.After {
			if _, err := g.withKept(ctx, g.Base, a, onBase); err != nil {
				return "", err
			}
			g.mu.Lock()
			p := g.byKey[a+" base"]
			g.mu.Unlock()
			sum, err := g.keptDigest(ctx, g.Catalog.Signal(a), p)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s after %s %s\n", s.Name, a, sum)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fill runs the signals with caches on the base, one after the other, so that each starts
// with what the others left. If one does not end by itself, or its caches can't be
// stored, the change runs without caches.
func (g *Gate) fill(ctx context.Context, key string, list []*Signal) (*Warm, error) {
	w := &Warm{Schema: warmSchema, Key: key, At: time.Now().UTC(), dir: filepath.Join(g.Scratch, "warm")}
	for _, s := range list {
		w.Paths = append(w.Paths, s.Warm...)
	}
	slices.Sort(w.Paths)
	w.Paths = slices.Compact(w.Paths)
	for i := range w.Paths {
		if err := os.MkdirAll(w.filesDir(i), 0o755); err != nil {
			return nil, err
		}
	}
	for _, s := range list {
		var took bool
		var terr error
		take := func(home string, r io.Reader) error {
			took, terr = true, w.addUpperLayer(home, s.Warm, r)
			return terr
		}
		p, err := g.start(ctx, s, g.Base, onBase, w, take)
		if err != nil {
			return nil, err
		}
		g.addBasePhase(p)
		switch {
		case !p.exited():
			return g.withoutWarm(ctx, fmt.Errorf("%s on the base did not end by itself: %s", s.Name, endReason(p)))
		case !p.Observed.whole():
			return g.withoutWarm(ctx, fmt.Errorf("%s on the base: the trace has gaps (%s)", s.Name, gapsText(p.Observed)))
		case p.Observed.Readers == nil:
			return g.withoutWarm(ctx, fmt.Errorf("%s on the base: which programs read the tree is not known, or is too much", s.Name))
		case terr != nil || !took:
			return g.withoutWarm(ctx, cmp.Or(terr, errors.New("what "+s.Name+" left in its caches was not taken out of its bottle")))
		}
		w.Phases = append(w.Phases, WarmPhase{p, p.Stdout.Total, p.Stderr.Total})
	}
	var err error
	if w.Digest, w.Files, w.Bytes, err = w.seal(ctx); err != nil {
		return g.withoutWarm(ctx, err)
	}
	g.fresh = w
	return w, nil
}

func (w *Warm) filesDir(i int) string { return filepath.Join(w.dir, warmFilesDir, fmt.Sprint(i)) }

// WarmDir returns the directory of the caches that phases started with; empty: there are
// none.
func (g *Gate) WarmDir() string {
	if g.warm == nil {
		return ""
	}
	return g.warm.dir
}

// Dir returns the directory of the caches.
func (w *Warm) Dir() string { return w.dir }

// mounts maps paths in the home to the directories of a signal's caches.
func (w *Warm) mounts(s *Signal) map[string]string {
	if w == nil || len(s.Warm) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, p := range s.Warm {
		out[p] = w.filesDir(slices.Index(w.Paths, p))
	}
	return out
}

// usage returns the caches' description for a verdict.
func (w *Warm) usage(verdict string) *WarmUsed {
	if w == nil {
		return nil
	}
	return &WarmUsed{w.Key, w.Digest, w.Files, w.Bytes, cmp.Or(w.Verdict, verdict)}
}

// addUpperLayer adds a phase's writes to some of the caches. r is the upper layer of its
// bottle, as a tar. The phase controls its names and contents.
func (w *Warm) addUpperLayer(home string, paths []string, r io.Reader) error {
	root, err := os.OpenRoot(filepath.Join(w.dir, warmFilesDir))
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
		if w.tookFiles++; w.tookFiles > maxWarmFiles || size > maxFileBytes {
			return fmt.Errorf("the caches have more than %d files, or one of more than %d bytes", maxWarmFiles, maxFileBytes)
		}
		if w.tookBytes += size; w.tookBytes > maxWarmBytes {
			return fmt.Errorf("the caches have more than %d bytes", maxWarmBytes)
		}
		if err := writeEntry(root, at, h, tr, place); err != nil {
			return fmt.Errorf("keep %.200q of the cache: %w", h.Name, err)
		}
	}
}

// writeEntry writes one entry of an upper layer, replacing what is there.
func writeEntry(root *os.Root, at string, h *tar.Header, r io.Reader, place func(string) (string, bool)) error {
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
	default: // a whiteout, or a type that is not stored
		return nil
	}
	f, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, io.LimitReader(r, maxFileBytes))
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// warmTime is the time of all files in caches. Programs refresh the time of a file that
// they have not used for long, and each refresh would copy the file.
var warmTime = time.Date(2037, 12, 31, 0, 0, 0, 0, time.UTC)

// seal sets the times of all files, and returns their digest, number and bytes.
func (w *Warm) seal(ctx context.Context) (digest string, files int, bytes int64, err error) {
	root, err := os.OpenRoot(filepath.Join(w.dir, warmFilesDir))
	if err != nil {
		return "", 0, 0, err
	}
	defer root.Close()
	list, err := listRoot(root)
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
	digest, err = digestRoot(ctx, root)
	return digest, files, bytes, err
}

type dirEntry struct {
	path string
	info fs.FileInfo
}

// errUnsupportedType means that a cache holds something else than files, directories and
// links, or too many of them.
var errUnsupportedType = errors.New("is not a file, directory or link")

// listRoot lists a directory tree. Other types than files, directories and links are an
// error.
func listRoot(root *os.Root) (out []dirEntry, err error) {
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if t := fi.Mode().Type(); t != 0 && t != fs.ModeDir && t != fs.ModeSymlink {
			return fmt.Errorf("%q: %w", truncate(p, 300), errUnsupportedType)
		}
		if len(out) > 2*maxFiles {
			return fmt.Errorf("%w: there are more than %d names", errUnsupportedType, 2*maxFiles)
		}
		out = append(out, dirEntry{p, fi})
		return nil
	})
	return out, err
}

func digestDir(ctx context.Context, dir string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return digestRoot(ctx, root)
}

// digestRoot returns the SHA-256 of a directory tree: names, permissions, links and
// contents.
func digestRoot(ctx context.Context, root *os.Root) (string, error) {
	list, err := listRoot(root)
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

// FilledCaches returns the caches that this gate filled for later ones; nil: none. homes are as
// for Inputs. The caller moves them to their place, adds the stored files of the phases,
// and calls Seal.
func (g *Gate) FilledCaches(v *Verdict, homes ...string) (*Warm, error) {
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

// Encode returns the document of caches that were moved to dir. Open accepts it only if the
// caller has recorded its SHA-256.
func (w *Warm) Encode(ctx context.Context, dir string) ([]byte, error) {
	var err error
	if w.PhasesDigest, err = digestDir(ctx, filepath.Join(dir, WarmPhases)); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(w, "", "  ")
	return append(b, '\n'), err
}

// ErrWarmChanged means that stored caches differ from their record.
var ErrWarmChanged = errors.New("a cache that was kept of the base is not what was recorded")

// ParseWarm reads a document of Seal.
func ParseWarm(b []byte) (*Warm, error) {
	var w Warm
	if err := decode(b, &w, &w.Schema, warmSchema); err != nil {
		return nil, fmt.Errorf("read what is kept of a base: %w", err)
	}
	return &w, nil
}

// Open checks every byte below dir against the document, and loads the results of its
// phases. The caller checks the document itself. A difference is ErrWarmChanged; another
// error tells nothing about the caches.
func (w *Warm) Open(ctx context.Context, dir string) error {
	w.dir = dir
	for _, x := range []struct{ name, want string }{{warmFilesDir, w.Digest}, {WarmPhases, w.PhasesDigest}} {
		at := filepath.Join(dir, x.name)
		fi, err := os.Lstat(at)
		if err == nil && !fi.IsDir() {
			return fmt.Errorf("%s: %w: it is not a directory", at, ErrWarmChanged)
		}
		var got string
		if err == nil {
			got, err = digestDir(ctx, at)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errUnsupportedType) {
			err = fmt.Errorf("%w: %w", ErrWarmChanged, err)
		} else if err == nil && got != x.want {
			err = ErrWarmChanged
		}
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	for i, p := range w.Phases {
		if !signalName().MatchString(p.Signal) || p.On != onBase || p.Phase.Ended == nil {
			return fmt.Errorf("%s: phases[%d] is of no signal on the base: %w", dir, i, ErrWarmChanged)
		}
		if err := p.load(filepath.Join(dir, WarmPhases, p.Signal)); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		p.Phase.Of = w.Verdict
	}
	return nil
}

func (p *WarmPhase) load(dir string) (err error) {
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

// Miss names a file of this machine that changed since the caches were filled; empty:
// none did.
func (w *Warm) Miss() string { return hostChange(w.Host) }
