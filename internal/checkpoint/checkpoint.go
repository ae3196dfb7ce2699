// Package checkpoint keeps copies of a running bottle's files on disk, so that work
// outlives a carboy that is killed. Each copy holds the contents of those files only that
// have changed since the one before. Start reading at [Dir].
package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Dir is a directory of streams, each called by a number and suffix. The one with the
// highest number says which files there are; contents that it leaves out are in an earlier
// one. A stream is complete and on disk before it has its name.
//
// The bottle wrote what the streams hold, so they are read as hostile input. One process
// uses a Dir, in one goroutine.
type Dir struct {
	path string
	max  int64
}

const (
	suffix = ".tar"
	tmp    = "next"
	about  = "about.json"
)

// ErrFull means that a copy does not fit into the directory's bound.
var ErrFull = errors.New("copies of the files would take more than the bottle's disk limit")

// ErrNone means that no copy is there.
var ErrNone = errors.New("there is no copy of the files")

// Open returns the Dir at path, which holds at most max bytes.
func Open(path string, max int64) *Dir { return &Dir{path, max} }

// streams returns the numbers of the streams, ascending, and their sizes.
func (d *Dir) streams() (numbers []int, sizes map[int]int64, at time.Time, err error) {
	list, err := os.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, at, err
	}
	sizes = map[int]int64{}
	for _, e := range list {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		n, err := strconv.Atoi(name)
		if !ok || err != nil || n <= 0 {
			continue
		}
		fi, err := e.Info()
		if err != nil {
			return nil, nil, at, err
		}
		numbers, sizes[n] = append(numbers, n), fi.Size()
		if fi.ModTime().After(at) {
			at = fi.ModTime()
		}
	}
	slices.Sort(numbers)
	return numbers, sizes, at, nil
}

// Latest returns when the newest copy was begun, in UTC: what was written before is in it.
// The error is ErrNone if there is none.
func (d *Dir) Latest() (time.Time, error) {
	numbers, _, at, err := d.streams()
	if err == nil && len(numbers) == 0 {
		err = ErrNone
	}
	return at.UTC(), err
}

func (d *Dir) name(n int) string { return filepath.Join(d.path, strconv.Itoa(n)+suffix) }

// Add stores the stream that write writes, if write reports that it holds anything new.
// After an error the copies are what they were; whether the bottle takes the stream for
// stored is not known then, so the next one must be whole.
func (d *Dir) Add(ctx context.Context, write func(io.Writer) (fresh bool, err error)) error {
	numbers, sizes, _, err := d.streams()
	if err != nil {
		return err
	}
	n, used := 1, int64(0)
	for _, have := range numbers {
		n, used = have+1, used+sizes[have]
	}
	at := time.Now()
	size, err := d.write(d.name(n), at, used, write)
	if err != nil || size == 0 {
		return err
	}
	// What could not be merged now is merged with the next one.
	if err := d.merge(ctx, append(numbers, n), sizes, size, at); err != nil && !errors.Is(err, ErrFull) {
		return err
	}
	return nil
}

// Describe stores what copies need beside them; see Description.
func (d *Dir) Describe(text []byte) error {
	_, err := d.write(filepath.Join(d.path, about), time.Now(), 0, func(w io.Writer) (bool, error) {
		_, err := w.Write(text)
		return true, err
	})
	return err
}

// Description returns what Describe stored. The error is ErrNone if nothing was.
func (d *Dir) Description() ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(d.path, about))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	return b, err
}

// write stores what write writes as the file name, of the time at, if it reports that this
// is new. used bytes are there already. It returns the size, and 0 if nothing was new.
func (d *Dir) write(name string, at time.Time, used int64, write func(io.Writer) (bool, error)) (size int64, err error) {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return 0, err
	}
	next := filepath.Join(d.path, tmp)
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer os.Remove(next) // fails once it has its name
	w := &bounded{w: f, left: d.max - used}
	fresh, err := write(w)
	if err == nil && fresh {
		if err = os.Chtimes(next, at, at); err == nil {
			err = f.Sync()
		}
	}
	if err = errors.Join(err, f.Close()); err != nil || !fresh {
		return 0, err
	}
	if err := os.Rename(next, name); err != nil {
		return 0, err
	}
	return w.n, syncDir(d.path)
}

// merge makes one stream of the newest ones, as long as the one before them is not more
// than twice their size: so sizes fall from the first to the last, there are few, and a
// byte is written again a few times only.
func (d *Dir) merge(ctx context.Context, numbers []int, sizes map[int]int64, size int64, at time.Time) error {
	from := len(numbers) - 1
	for total := size; from > 0 && sizes[numbers[from-1]] <= 2*total; from-- {
		total += sizes[numbers[from-1]]
	}
	if from == len(numbers)-1 {
		return nil
	}
	var used int64
	for _, n := range sizes {
		used += n
	}
	last := numbers[len(numbers)-1]
	whole, err := d.whole(ctx, last)
	switch {
	case err != nil:
		return err
	case whole:
		from = 0 // nothing of the others is needed
	default:
		_, err := d.write(d.name(last), at, used+size, func(w io.Writer) (bool, error) { return true, d.join(ctx, numbers[from:], true, w) })
		if err != nil {
			return err
		}
	}
	for _, n := range numbers[from : len(numbers)-1] {
		if err := os.Remove(d.name(n)); err != nil {
			return err
		}
	}
	return nil
}

// whole reports whether a stream has all contents.
func (d *Dir) whole(ctx context.Context, n int) (bool, error) {
	f, err := os.Open(d.name(n))
	if err != nil {
		return false, err
	}
	defer f.Close()
	whole := true
	err = each(ctx, f, func(e *entry, _ int64) { whole = whole && e.typ != same })
	return whole, err
}

// Write writes the newest copy, with all contents, to w: a tar archive, in which regular
// files have device numbers.
func (d *Dir) Write(ctx context.Context, w io.Writer) error {
	numbers, _, _, err := d.streams()
	if err == nil && len(numbers) == 0 {
		err = ErrNone
	}
	if err != nil {
		return err
	}
	return d.join(ctx, numbers, false, w)
}

// content locates a file's content: size bytes of f, from off on.
type content struct {
	f         *os.File
	off, size int64
}

// join writes the last of these streams with the contents that any of them has. With
// partly, contents may be missing, and their files stay unchanged ones.
func (d *Dir) join(ctx context.Context, numbers []int, partly bool, w io.Writer) error {
	have := map[uint64]content{}
	var last *os.File
	for _, n := range numbers {
		f, err := os.Open(d.name(n))
		if err != nil {
			return err
		}
		defer f.Close()
		err = each(ctx, f, func(e *entry, at int64) {
			if e.typ == regular {
				have[e.ino] = content{f, at, e.size}
			}
		})
		if err != nil {
			return fmt.Errorf("%s %w", f.Name(), err)
		}
		last = f
	}
	if _, err := last.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in, out := bufio.NewReaderSize(last, 256<<10), bufio.NewWriterSize(w, 256<<10)
	for {
		e, err := next(in)
		if err != nil {
			return fmt.Errorf("%s %w", last.Name(), err)
		}
		if e == nil {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := put(e, in, have, partly, out); err != nil {
			return fmt.Errorf("%s %w", last.Name(), err)
		}
	}
	if _, err := out.Write(make([]byte, 2*block)); err != nil {
		return err
	}
	return out.Flush()
}

// put writes one entry.
func put(e *entry, in io.Reader, have map[uint64]content, partly bool, out io.Writer) error {
	if e.typ != same {
		if _, err := out.Write(e.head); err != nil {
			return err
		}
		_, err := io.CopyN(out, in, padded(e.size))
		return noEOF(err)
	}
	c, ok := have[e.ino]
	switch {
	case !ok && partly:
		_, err := out.Write(e.head)
		return err
	case !ok || c.size != e.size:
		return fmt.Errorf("%w: the content of inode %d is missing", errMalformed, e.ino)
	}
	e.whole()
	if _, err := out.Write(e.head); err != nil {
		return err
	}
	n, err := io.Copy(out, io.NewSectionReader(c.f, c.off, padded(c.size)))
	if err == nil && n != padded(c.size) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// each calls do with each entry of a stream, and with where its content begins.
func each(ctx context.Context, f *os.File, do func(e *entry, at int64)) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	in := &seeker{f: f, r: bufio.NewReaderSize(f, 64<<10)}
	for n := 0; ; n++ {
		e, err := next(in)
		if err != nil || e == nil {
			return err
		}
		if n == maxEntries {
			return fmt.Errorf("%w: it has more than %d entries", errMalformed, maxEntries)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		length := padded(e.follows())
		if length > fi.Size()-in.at {
			return fmt.Errorf("%w: it is too short", errMalformed)
		}
		do(e, in.at)
		if err := in.skip(length); err != nil {
			return err
		}
	}
}

// seeker reads a file and knows where it is.
type seeker struct {
	f  *os.File
	r  *bufio.Reader
	at int64
}

func (s *seeker) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	s.at += int64(n)
	return n, err
}

func (s *seeker) skip(n int64) error {
	s.at += n
	if n <= int64(s.r.Buffered()) {
		_, err := s.r.Discard(int(n))
		return err
	}
	if _, err := s.f.Seek(s.at, io.SeekStart); err != nil {
		return err
	}
	s.r.Reset(s.f)
	return nil
}

// bounded fails with ErrFull when more than left bytes are written.
type bounded struct {
	w       io.Writer
	n, left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(len(p)) > b.left {
		return 0, ErrFull
	}
	n, err := b.w.Write(p)
	b.n, b.left = b.n+int64(n), b.left-int64(n)
	return n, err
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
