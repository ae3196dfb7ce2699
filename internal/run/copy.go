package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/transfer"
)

// Files go through a tar that is started in the bottle as any other command there. What
// it says is the bottle's word; package transfer takes it so.

// CopyLimits bounds a copy; Copied reports what was copied.
type (
	CopyLimits = transfer.Bounds
	Copied     = transfer.Report
)

// ErrCopy means that the tar in the bottle failed.
var ErrCopy = errors.New("the copy failed in the bottle")

// CopyOut copies a file or directory out of a running bottle to dest, which is a
// directory or does not exist. It copies everything except what the report lists as
// left out, or nothing.
func (c *Runner) CopyOut(ctx context.Context, m store.Meta, inside, dest string, l CopyLimits) (Copied, error) {
	dir, base := path.Split(path.Clean(inside))
	if base == "" || base == "." || base == ".." || strings.ContainsRune(inside, 0) {
		return Copied{}, &fault.OptionError{Option: "path", Value: safetext.String(inside, 200), Reason: "has no name of its own", Advice: "name a file or directory below it"}
	}
	to, name := filepath.Split(filepath.Clean(dest))
	if fi, err := os.Stat(dest); err == nil && fi.IsDir() {
		to, name = dest, base
	} else if strings.HasSuffix(dest, "/") {
		return Copied{}, &fs.PathError{Op: "copy", Path: dest, Err: errors.Join(err, errors.New("is not a directory"))}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return Copied{}, err
	}
	defer r.Close()
	tar, err := c.startTar(ctx, m, []string{"tar", "-c", "-f", "-", "-C", cmp.Or(dir, "."), "--", "./" + base}, nil, w)
	if err != nil {
		w.Close()
		return Copied{}, err
	}
	in := &toItsEnd{r: r}
	rep, err := transfer.Out(tar.ctx, in, base, cmp.Or(to, "."), name, l, func() error {
		// What follows an archive's end fills its last block.
		if n, _ := io.CopyN(io.Discard, in, maxAfterEnd); n == maxAfterEnd {
			tar.kill()
			return fmt.Errorf("%w: more came after the archive's end", ErrCopy)
		}
		return tar.wait()
	})
	if err == nil {
		return rep, nil
	}
	tar.kill()
	r.Close()
	return rep, tar.cause(err, in.ended)
}

// maxAfterEnd bounds what is read after an archive's end, in bytes.
const maxAfterEnd = 1 << 20

// CopyIn copies a file or directory into a running bottle: below inside, if that is
// a directory or ends in a slash, else under that name. The bottle's user owns the copy.
func (c *Runner) CopyIn(ctx context.Context, m store.Meta, src, inside string, l CopyLimits) (Copied, error) {
	real, err := filepath.Abs(src)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return Copied{}, err
	}
	dir, name := path.Split(path.Clean(inside))
	isDir := strings.HasSuffix(inside, "/") || name == "" || name == "." || name == ".."
	if !isDir {
		if isDir, err = c.isDirInside(ctx, m, inside); err != nil {
			return Copied{}, err
		}
	}
	if isDir {
		dir, name = inside, filepath.Base(filepath.Clean(src))
		if name == "." || name == ".." || name == "/" {
			name = filepath.Base(real)
		}
	}
	if name == "/" || name == "" || strings.ContainsRune(inside, 0) {
		return Copied{}, &fault.OptionError{Option: "path", Value: safetext.String(inside, 200), Reason: "has no name of its own", Advice: "name what it is to be called"}
	}
	return c.unpackInside(ctx, m, cmp.Or(dir, "."), func(ctx context.Context, w io.Writer) (Copied, error) {
		return transfer.In(ctx, w, real, name, l)
	})
}

// isDirInside reports whether dir is a directory in the bottle. It archives dir without
// its content and drops the output: so the bottle needs no program but tar.
func (c *Runner) isDirInside(ctx context.Context, m store.Meta, dir string) (bool, error) {
	tar, err := c.startTar(ctx, m, []string{"tar", "-c", "-f", "-", "--no-recursion", "-C", dir, "."}, nil, nil)
	if err != nil {
		return false, err
	}
	err = tar.wait()
	var ended *tarError
	if errors.As(err, &ended) && ended.exit.Reason == receipt.Exited && !exitcode.NotStarted(ended.exit.Code) {
		return false, nil
	}
	return err == nil, err
}

// unpackInside starts a tar in the bottle and unpacks what write writes.
func (c *Runner) unpackInside(ctx context.Context, m store.Meta, dir string, write func(context.Context, io.Writer) (Copied, error)) (Copied, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return Copied{}, err
	}
	defer w.Close()
	tar, err := c.startTar(ctx, m, []string{"tar", "-x", "-o", "-f", "-", "-C", dir}, r, nil)
	if err != nil {
		r.Close()
		return Copied{}, err
	}
	rep, err := write(tar.ctx, w)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		// Half of an archive would be unpacked as if it were all.
		tar.kill()
		w.Close()
		return rep, tar.cause(err, false)
	}
	w.Close()
	if terr := tar.wait(); terr != nil {
		return rep, terr
	}
	return rep, err
}

// tarInside runs a tar in a bottle.
type tarInside struct {
	ctx    context.Context // ends when tar fails
	cancel context.CancelCauseFunc
	signal chan os.Signal
	over   chan struct{}
	exit   receipt.Exit
	err    error
	said   sync.WaitGroup
	stderr firstBytes
	stop   func() bool
}

// tarError reports a tar that failed.
type tarError struct {
	exit   receipt.Exit
	stderr string
}

func (e *tarError) Error() string {
	switch {
	case exitcode.NotStarted(e.exit.Code):
		return "there is no tar in the bottle, by which files are copied: put one into its image, or have a command in it hand the file out (carboy exec RUN -- cat PATH)"
	case e.stderr != "":
		return "tar in the bottle ended with " + fmt.Sprint(e.exit.Code) + ": " + e.stderr
	}
	return "tar in the bottle ended with " + fmt.Sprint(e.exit.Code)
}

func (e *tarError) Unwrap() error { return ErrCopy }

// startTar starts a tar with one stream, in or out, and takes over that file.
func (c *Runner) startTar(ctx context.Context, m store.Meta, command []string, in, out *os.File) (*tarInside, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	er, ew, err := os.Pipe()
	if err != nil {
		null.Close()
		return nil, err
	}
	t := &tarInside{signal: make(chan os.Signal, 2), over: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.said.Go(func() { io.Copy(&t.stderr, er); er.Close() }) // ends with the command
	o := ExecOptions{Command: command, Stdin: in, Stdout: out, Stderr: ew, Interrupt: t.signal, files: true}
	if in == nil {
		o.Stdin = null
	}
	if out == nil {
		o.Stdout = null
	}
	// The end of ctx kills tar, and so closes its stream.
	t.stop = context.AfterFunc(ctx, t.kill)
	go func() { // ends with the command
		t.exit, t.err = c.Exec(ctx, m, o)
		// The other end of the stream now gets end of file or an error.
		for _, f := range []*os.File{in, out, ew, null} {
			if f != nil {
				f.Close()
			}
		}
		t.said.Wait()
		t.stop()
		close(t.over)
	}()
	return t, nil
}

// kill kills tar: the bottle makes a kill of the second interrupt.
func (t *tarInside) kill() {
	for range 2 {
		select {
		case t.signal <- syscall.SIGINT:
		default:
		}
	}
}

// wait blocks until tar has ended. It returns nil if tar succeeded.
func (t *tarInside) wait() error {
	<-t.over
	if t.err != nil {
		return t.err
	}
	if t.exit.Code == 0 && t.exit.Reason == receipt.Exited {
		return nil
	}
	return &tarError{t.exit, safetext.String(strings.TrimSpace(string(t.stderr.b)), 500)}
}

// cause returns the error to report for a copy that failed here with err: tar's own
// error if tar did not start or failed first, else err. before says that the stream had
// ended before err.
func (t *tarInside) cause(err error, before bool) error {
	terr := t.wait()
	var ended *tarError
	switch {
	case t.ctx.Err() != nil || terr == nil:
	case !errors.As(terr, &ended):
		return terr // it was never started, or its carboy died
	case exitcode.NotStarted(ended.exit.Code):
		return terr
	case before && ended.stderr != "":
		return terr
	}
	return err
}

// toItsEnd records whether the reader has returned io.EOF.
type toItsEnd struct {
	r     io.Reader
	ended bool
}

func (e *toItsEnd) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.ended = e.ended || err == io.EOF
	return n, err
}

// firstBytes keeps the first bytes written to it.
type firstBytes struct{ b []byte }

func (w *firstBytes) Write(p []byte) (int, error) {
	w.b = append(w.b, p[:min(len(p), 2000-len(w.b))]...)
	return len(p), nil
}
