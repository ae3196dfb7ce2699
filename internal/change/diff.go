package change

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"
	"github.com/carboy/carboy/internal/safetext"
)

// DiffOptions configures Set.Diff.
type DiffOptions struct {
	Colour bool
	// Paths selects files or directories; none is all.
	Paths []string
	// MaxFile is the size of the largest file whose lines are compared
	// (default 1 MiB), MaxBytes bounds the whole output (default 16 MiB).
	MaxFile, MaxBytes int64

	// Refs, from Set.Refs, are shown first.
	Refs []RefChange

	Stat bool // only the summary
	// Git also shows git's internal files (see Change.Bookkeeping), which are
	// otherwise only counted.
	Git bool
	// Ignored also shows ignored paths (see Change.Ignored), which are otherwise only
	// counted.
	Ignored bool
}

// DiffStat counts what a diff shows. Lines are counted up to where the diff
// was cut.
type DiffStat struct {
	Files, Added, Removed int // files; lines
	Binary, Protected     int // files
	Bookkeeping           int // git's internal files that were not shown
	Ignored               int // paths that were not shown
	Truncated             bool
}

const maxLine = 4096

// Diff writes the changes like a unified diff, ordered by path. Control
// characters in names and contents are escaped, so patch(1) cannot read it.
func (s *Set) Diff(w io.Writer, opts DiffOptions) (DiffStat, error) {
	if opts.MaxFile <= 0 {
		opts.MaxFile = 1 << 20
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 16 << 20
	}
	sel, ignored, err := s.Choose(opts.Paths, opts.Ignored)
	if err != nil {
		return DiffStat{}, fmt.Errorf("diff: %w", err)
	}
	d := &differ{s: s, opts: opts, w: bufio.NewWriter(w), left: opts.MaxBytes, stat: DiffStat{Ignored: ignored}}
	if fd, err := reopenRoot(s.Workspace); err == nil {
		d.host = &tree{fd}
		defer closeFd(fd)
	} else {
		d.note("the workspace cannot be opened, so old contents are not shown: " + err.Error())
	}
	for _, n := range s.Notes {
		d.note(n)
	}
	for i := range opts.Refs {
		d.ref(&opts.Refs[i])
	}
	for i := range s.Changes {
		c := &s.Changes[i]
		switch {
		case !sel[i]:
		case !opts.Git && c.Bookkeeping():
			d.stat.Bookkeeping++
		default:
			d.change(c)
		}
	}
	if n := d.stat.Ignored; n > 0 {
		d.note(fmt.Sprintf("not shown: %d ignored paths, which programs can make again; --ignored shows them", n))
	}
	if n := d.stat.Bookkeeping; n > 0 {
		d.note(fmt.Sprintf("not shown: %d paths of git's own, which are never copied; --git shows them", n))
	}
	if d.stat.Truncated {
		d.left = 1 << 10
		d.note(fmt.Sprintf("the diff is longer than %d bytes and was cut", opts.MaxBytes))
	}
	if err := d.w.Flush(); err != nil {
		return d.stat, fmt.Errorf("diff: %w", err)
	}
	return d.stat, nil
}

type differ struct {
	s    *Set
	opts DiffOptions
	host *tree
	w    *bufio.Writer
	left int64
	stat DiffStat
}

const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	cyan  = "\x1b[36m"
	amber = "\x1b[33m"
	reset = "\x1b[0m"
)

// line writes one line, which must not contain control characters.
func (d *differ) line(colour, text string) {
	if d.opts.Stat {
		return
	}
	if int64(len(text))+1 > d.left {
		d.stat.Truncated = true
		d.left = 0
		return
	}
	d.left -= int64(len(text)) + 1
	if d.opts.Colour && colour != "" {
		text = colour + text + reset
	}
	d.w.WriteString(text)
	d.w.WriteByte('\n')
}

func (d *differ) note(text string) { d.line(amber, "# "+safetext.String(text, maxLine)) }

func (d *differ) change(c *Change) {
	d.stat.Files++
	if len(c.Protected) > 0 {
		d.stat.Protected++
	}
	rel := string(c.Path)
	d.line(bold, "diff --carboy "+show("a/"+rel)+" "+show("b/"+rel))
	d.modes(c)
	for _, r := range c.Protected {
		d.note("protected (" + r.Rule + "): " + r.Why)
	}
	for _, why := range []string{c.Unlandable, c.Omitted} {
		if why != "" {
			d.note("does not land: " + why)
		}
	}
	if c.BaseMoved != "" {
		d.note("conflict: " + c.BaseMoved)
	}
	if c.HardLink != "" {
		d.note("the same file in the bottle as " + show(string(c.HardLink)))
	}
	d.content(c)
}

func (d *differ) modes(c *Change) {
	now := gitMode(c.Type, c.Mode)
	switch {
	case c.Kind == Add:
		d.line(bold, "new "+noun(c.Type)+" mode "+now)
	case c.Kind == Delete:
		mode := gitMode(c.Type, 0)
		if c.Base != nil {
			mode = gitMode(c.Type, c.Base.Mode)
		}
		d.line(bold, "deleted "+noun(c.Type)+" mode "+mode)
	case c.Base != nil && gitMode(c.Base.Type, c.Base.Mode) != now:
		d.line(bold, "old mode "+gitMode(c.Base.Type, c.Base.Mode))
		d.line(bold, "new mode "+now)
	}
}

func noun(t Type) string {
	if t == Dir {
		return "directory"
	}
	return "file"
}

// gitMode formats type and permissions as git does, in octal, but with all
// permission bits, because all of them land.
func gitMode(t Type, mode uint32) string {
	m := map[Type]uint32{File: 0o100000, Dir: 0o040000, Symlink: 0o120000, Fifo: 0o010000, charDevice: 0o020000,
		blockDevice: 0o060000, Socket: 0o140000}[t]
	if t == Symlink {
		mode = 0
	}
	return fmt.Sprintf("%06o", m|mode)
}

func (d *differ) content(c *Change) {
	if c.Kind == Mode || d.stat.Truncated {
		return
	}
	before, why1 := d.before(c)
	after, why2 := d.after(c)
	if why1 != "" || why2 != "" {
		d.note(strings.TrimSpace(why1 + " " + why2))
		return
	}
	if before == nil && after == nil {
		return
	}
	if isBinary(before) || isBinary(after) {
		d.stat.Binary++
		d.line("", fmt.Sprintf("Binary content differs (%d bytes before, %d after)", len(before), len(after)))
		return
	}
	d.hunks(c, before, after)
}

// before returns the host's present content, nil if there is none, and why it
// cannot be shown.
func (d *differ) before(c *Change) ([]byte, string) {
	if c.Base == nil || d.host == nil {
		return nil, ""
	}
	switch c.Base.Type {
	case Symlink:
		return []byte(c.Base.Target), ""
	case File:
		f, st, err := d.host.openFile(string(c.Path))
		if isAbsent(err) {
			return nil, ""
		}
		if err != nil {
			return nil, "the host's file cannot be read: " + err.Error() + "."
		}
		defer f.Close()
		if st.Size > d.opts.MaxFile {
			return nil, fmt.Sprintf("The host's file is too large to show (%d bytes).", st.Size)
		}
		b, err := io.ReadAll(io.LimitReader(f, d.opts.MaxFile))
		if err != nil {
			return nil, "the host's file cannot be read: " + err.Error() + "."
		}
		return nonNil(b), ""
	}
	return nil, ""
}

// after is like before, for the bottle's content.
func (d *differ) after(c *Change) ([]byte, string) {
	if c.Kind == Delete {
		return nil, ""
	}
	switch c.Type {
	case Symlink:
		return []byte(c.Target), ""
	case File:
		if c.Omitted != "" {
			return nil, fmt.Sprintf("The content (%d bytes) was not kept.", c.Size)
		}
		if c.Size > d.opts.MaxFile {
			return nil, fmt.Sprintf("The bottle's file is too large to show (%d bytes).", c.Size)
		}
		r, err := d.s.Content(c)
		if err != nil {
			return nil, err.Error()
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, "the bottle's file cannot be read: " + err.Error() + "."
		}
		return nonNil(b), ""
	}
	return nil, ""
}

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// isBinary uses git's rule: a NUL near the beginning.
func isBinary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 }

func (d *differ) hunks(c *Change, before, after []byte) {
	rel := string(c.Path)
	from, to := show("a/"+rel), show("b/"+rel)
	if before == nil {
		from = "/dev/null"
	}
	if after == nil {
		to = "/dev/null"
	}
	edits := udiff.Lines(string(before), string(after))
	if len(edits) == 0 {
		return
	}
	d.line(bold, "--- "+from)
	d.line(bold, "+++ "+to)
	for _, h := range hunksOf(string(before), edits) {
		d.hunk(&h)
	}
}

func (d *differ) hunk(h *hunk) {
	d.hunkLine("@@ -" + span(h.from, h.old) + " +" + span(h.to, h.new) + " @@")
	for _, l := range h.lines {
		text, whole := strings.CutSuffix(l.text, "\n")
		d.hunkLine(string(l.kind) + text)
		if !whole {
			d.line("", "\\ No newline at end of file")
		}
	}
}

func (d *differ) hunkLine(line string) {
	colour := ""
	switch {
	case line == "":
	case line[0] == '+':
		d.stat.Added++
		colour = green
	case line[0] == '-':
		d.stat.Removed++
		colour = red
	case line[0] == '@':
		colour = cyan
	}
	if d.left <= 0 {
		d.stat.Truncated = true
		return
	}
	if line != "" {
		line = line[:1] + safetext.Lines(line[1:], maxLine)
	}
	d.line(colour, line)
}
