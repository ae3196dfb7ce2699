package change

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Defaults of CollectOptions, and a bound that is not an option.
const (
	defaultMaxEntries = 1_000_000
	defaultMaxBytes   = 20 << 30

	maxPathBytes = 256 << 20
)

// CollectOptions configures Collect.
type CollectOptions struct {
	// Prefix is the workspace's absolute path inside the bottle; default:
	// the baseline's path.
	Prefix string
	// RunDir is the directory for the result, RunDir/upper; default: the
	// baseline's.
	RunDir string
	// Baseline is required.
	Baseline *Baseline
	// MaxBytes bounds the bytes stored, without holes. MaxLogical bounds the
	// sum of file sizes read (default: the larger of 64 GiB and 4 ×
	// MaxBytes). MaxEntries bounds the entries of the stream and of the set.
	MaxBytes, MaxLogical, MaxEntries int64
	// Policy decides which paths are protected.
	Policy Policy
	// Notes begin the set's notes.
	Notes []string
}

func (o *CollectOptions) fill() error {
	if o.Baseline == nil {
		return errors.New("collect changes: no baseline")
	}
	if o.Baseline.root < 0 {
		return errors.New("collect changes: the baseline is closed")
	}
	if o.Prefix == "" {
		o.Prefix = o.Baseline.ID.Path
	}
	if !filepath.IsAbs(o.Prefix) || filepath.Clean(o.Prefix) != o.Prefix || o.Prefix == "/" {
		return fmt.Errorf("collect changes: workspace path %s in the bottle is not absolute and clean", show(o.Prefix))
	}
	if o.RunDir == "" {
		o.RunDir = o.Baseline.runDir
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	if o.MaxLogical <= 0 {
		o.MaxLogical = max(64<<30, 4*o.MaxBytes)
	}
	if o.MaxEntries <= 0 {
		o.MaxEntries = defaultMaxEntries
	}
	return nil
}

// Collect reads the tar stream of the root's upper layer, stores the contents
// of the workspace's part and compares it with the host's directory as it is
// now. The set is written to RunDir/upper/changes.json and returned.
//
// With a *LimitError or ErrMalformed the set is returned too and holds what
// could be kept; Set.Incomplete says what is missing. With any other error
// the set is nil.
//
// The stream is read to its end, if the bounds allow, but never beyond the
// end of the archive.
func Collect(ctx context.Context, r io.Reader, opts CollectOptions) (*Set, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	up := filepath.Join(opts.RunDir, upperDir)
	if err := os.MkdirAll(up, 0o700); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	u, err := newUpperReader(opts, up)
	if err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	defer u.pack.f.Close()
	defer u.spool.f.Close()
	defer u.reserve.Close()
	if err := u.read(ctx, r); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	if err := u.spool.reset(); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	if err := u.pack.finish(); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	s, err := classify(ctx, u, opts)
	if err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	if err := u.reserve.Truncate(0); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	if err := writeJSON(filepath.Join(up, setFile), s); err != nil {
		return nil, fmt.Errorf("collect changes: %w", err)
	}
	switch {
	case u.torn != nil:
		return s, u.torn
	case u.limit != nil:
		return s, u.limit
	}
	return s, nil
}

func newUpperReader(opts CollectOptions, dir string) (*upperReader, error) {
	f, err := os.OpenFile(filepath.Join(dir, packFile), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	sp, err := nameless(dir)
	if err != nil {
		f.Close()
		return nil, err
	}
	reserve, err := nameless(dir)
	if err != nil {
		f.Close()
		sp.Close()
		return nil, err
	}
	return &upperReader{
		opts:    opts,
		prefix:  strings.TrimPrefix(opts.Prefix, "/"),
		outside: map[string]*upNode{},
		pack:    newPack(f, true),
		spool:   newPack(sp, false),
		reserve: reserve,
	}, nil
}

// nameless makes a file that ends with its descriptor.
func nameless(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
