package gitgate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// quarantine is a repository that holds only the objects of one push. It is never served.
// It is removed when the push is over, or by the next gate.
type quarantine struct {
	g      *Gate
	base   *baseObjects
	dir    string
	format string
	pack   string // path of the pack
	size   int64  // bytes of the pack
	count  int    // number of objects
	// missing lists objects, presumably upstream's, that must be checked under the names
	// that they have in the push.
	missing []string
	// faults lists what git finds in old histories.
	faults []fault
}

// makeRepository makes a bare repository, like git init.
func makeRepository(dir, format string) error {
	config := "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"
	if format == "sha256" {
		config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
	}
	for _, d := range []string{"objects/pack", "objects/info", "refs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{"config": config, "HEAD": "ref: refs/heads/none\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func newQuarantine(g *Gate, base *baseObjects, format string) (*quarantine, error) {
	dir, err := os.MkdirTemp(g.cfg.Dir, "push-")
	if err != nil {
		return nil, err
	}
	q := &quarantine{g: g, base: base, dir: dir, format: format}
	if err := makeRepository(dir, format); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return q, nil
}

// remove removes the quarantine and frees its place.
func (q *quarantine) remove() {
	_ = os.RemoveAll(q.dir)
	<-q.g.kept
}

// receive reads a pack to its end. git stores it and checks each object like
// receive.fsckObjects. also gets the same bytes.
func (q *quarantine) receive(ctx context.Context, r *bufio.Reader, also io.Writer) error {
	head, err := r.Peek(12)
	if err != nil || string(head[:4]) != "PACK" {
		return refused("no pack came with the push")
	}
	n := binary.BigEndian.Uint32(head[8:])
	if int64(n) > int64(q.g.cfg.Limits.Objects) {
		return refused("the push has %d objects, more than %d: push it in parts", n, q.g.cfg.Limits.Objects)
	}
	q.count = int(n)
	// git ends at the first fault. The copy lets it read the pack again.
	again, err := os.OpenFile(filepath.Join(q.dir, "incoming"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _, _ = again.Close(), os.Remove(again.Name()) }()
	args := []string{"index-pack", strconv.FormatInt(q.g.cfg.Limits.Pack, 10)}
	if dir := q.base.objects(); dir != "" {
		args = append(args, dir)
	}
	in := io.TeeReader(&counted{r, &q.size}, io.MultiWriter(also, again))
	err = q.store(ctx, in, args...)
	var old *oldFaultError
	if !errors.As(err, &old) {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	if err == nil {
		_, err = again.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = q.store(ctx, again, "store", args[1])
	}
	if err == nil {
		err = q.fsck(ctx, "")
	}
	if err == nil && len(q.faults) == 0 {
		err = old.error
	}
	return err
}

// store stores a pack with one of git's forms.
func (q *quarantine) store(ctx context.Context, in io.Reader, args ...string) error {
	c, err := start(ctx, q.g.cfg.Git, q.dir, q.g.cfg.Limits.Check, in, args...)
	if err != nil {
		return err
	}
	out, readErr := readAll(c, 1<<20)
	closeErr := c.Close()
	fed := <-c.fed
	name, rest, _ := strings.Cut(string(out), "\n")
	id, ok := strings.CutPrefix(name, "pack\t")
	if readErr != nil || closeErr != nil || !ok || !isID(id) || fed != nil {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case q.size > q.g.cfg.Limits.Pack, strings.Contains(fmt.Sprint(readErr), "pack exceeds maximum allowed size"):
			return refused("the push has more than %d bytes: push it in parts, and keep what is large out of git", q.g.cfg.Limits.Pack)
		}
		missing, err := complaints(c, readErr, q.format)
		if err != nil || !ok || !isID(id) || fed != nil {
			if err == nil {
				err = errors.Join(refused("the pack is broken"), fed)
			}
			return err
		}
		q.missing = missing
	}
	q.pack = filepath.Join(q.dir, "objects/pack/pack-"+id+".pack")
	fi, err := os.Stat(q.pack)
	if err != nil {
		return err
	}
	if fi.Size() != q.size {
		return refused("data follows the pack")
	}
	for _, s := range strings.Fields(rest) {
		if !isID(s) {
			return refused("data follows the pack")
		}
		q.missing = append(q.missing, s)
	}
	return nil
}

var (
	missingBlob = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^error: object ([0-9a-f]{40,64}): git(?:attributes|modules)Missing: `)
	})
	// complaint matches git's message about an object, with the name of the fault in
	// git-fsck: "error: object <id>: <fault>: <words>".
	complaint = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^error: object ([0-9a-f]{40,64}): ([A-Za-z0-9]+): (.*)$`)
	})
)

// complaints returns the error of a failed check. If only .gitattributes files are missing,
// it returns their ids instead.
func complaints(c *command, failed error, format string) ([]string, error) {
	var fe *hostexec.FailedError
	if !errors.As(failed, &fe) {
		return nil, failed
	}
	if fe.Outcome != hostexec.Exited {
		return nil, refused("git did not end by itself (%s): the pack wants too much time or memory", fe.Outcome)
	}
	text, err := c.res.Stderr.Complete()
	if err != nil {
		return nil, refused("git reports too many faults in the objects")
	}
	var missing []string
	for line := range bytes.Lines(text) {
		s := strings.TrimRight(string(line), "\n")
		if m := missingBlob().FindStringSubmatch(s); m != nil && len(m[1]) == idLen(format) {
			missing = append(missing, m[1])
			continue
		}
		if s == "fatal: fsck error in pack objects" && len(missing) > 0 {
			continue
		}
		if m := complaint().FindStringSubmatch(s); m != nil {
			no := refused("object %s is refused (%s): %s", m[1], m[2], safetext.String(m[3], 300))
			if hostexec.OldFault(m[2]) {
				return nil, &oldFaultError{no}
			}
			return nil, no
		}
		if strings.HasPrefix(s, "fatal: ") {
			return nil, refused("git rejects the pack: %s", safetext.String(strings.TrimPrefix(s, "fatal: "), 300))
		}
	}
	if len(missing) == 0 {
		return nil, refused("git rejects the pack")
	}
	return missing, nil
}

// object is a git object.
type object struct {
	id, kind string
	size     int64
	// body is the content. It must be read before the next object.
	body io.Reader
}

// each calls f for all objects of the quarantine, in the order of the pack.
func (q *quarantine) each(ctx context.Context, f func(object) error) error {
	return q.run(ctx, nil, "cat-file", func(r io.Reader) error { return readObjects(r, f) })
}

// rest calls f for the objects that git has and that were not read ahead.
func (q *quarantine) rest(ctx context.Context, a *readAhead, f func(object) error) error {
	if a == nil || len(a.read) == 0 {
		return q.each(ctx, f)
	}
	var left bytes.Buffer
	listed, known := 0, 0
	err := q.run(ctx, nil, "list-objects", func(r io.Reader) error {
		s := bufio.NewScanner(r)
		for s.Scan() {
			if listed++; listed > q.count {
				return errors.New("git has more objects than the pack")
			}
			switch id := s.Text(); {
			case !isID(id) || len(id) != idLen(q.format):
				return errors.New("list objects: unexpected output of git")
			case a.has(id):
				known++
			default:
				left.WriteString(id + "\n")
			}
		}
		return s.Err()
	})
	switch {
	case err != nil:
		return err
	case known != len(a.read):
		return refused("the pack can be read in two ways")
	case known == listed:
		return nil
	}
	return q.run(ctx, &left, "read-objects", func(r io.Reader) error {
		err := readObjects(r, func(o object) error {
			known++
			return f(o)
		})
		if err == nil && known != listed {
			err = errors.New("git does not give out all objects of the pack")
		}
		return err
	})
}

// run runs git in the quarantine. f must read all of its output.
func (q *quarantine) run(ctx context.Context, in io.Reader, form string, f func(io.Reader) error) error {
	c, err := start(ctx, q.g.cfg.Git, q.dir, q.g.cfg.Limits.Check, in, form)
	if err != nil {
		return err
	}
	defer c.Close()
	return f(c)
}

// readObjects parses the output of cat-file --batch.
func readObjects(r io.Reader, f func(object) error) error {
	b := bufio.NewReaderSize(r, 256<<10)
	for {
		line, err := b.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read objects: %w", noEOF(err))
		}
		field := strings.Fields(string(line))
		if len(field) == 2 && field[1] == "missing" {
			continue
		}
		if len(field) != 3 || !isID(field[0]) {
			return errors.New("read objects: unexpected output of git")
		}
		n, err := strconv.ParseInt(field[2], 10, 64)
		if err != nil || n < 0 {
			return errors.New("read objects: unexpected output of git")
		}
		body := &io.LimitedReader{R: b, N: n}
		if err := f(object{field[0], field[1], n, body}); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return fmt.Errorf("read objects: %w", err)
		}
		if c, err := b.ReadByte(); err != nil || c != '\n' || body.N != 0 {
			return errors.New("read objects: one of them ends too early")
		}
	}
}
