package gitgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// baseObjects holds objects of upstream that were needed to judge a push, such as a
// .gitmodules that is unchanged in a new tree. They are kept as long as the gate lives, and
// are never scanned or sent.
type baseObjects struct {
	dir  string
	mu   sync.Mutex // held while objects are added
	has  map[string]bool
	size int64 // bytes fetched in all
}

// objects returns the object directory for git, or "" if there is none yet.
func (b *baseObjects) objects() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.has) == 0 {
		return ""
	}
	return filepath.Join(b.dir, "objects")
}

// Bounds of base objects, in bytes. They are needed because the content of a push decides
// what is fetched.
const (
	maxBase     = 256 << 20 // of one fetch
	maxBaseKept = 2 << 30   // of all fetches for a repository
)

// errNoBase means that upstream does not give out an object.
var errNoBase = errors.New("upstream does not have it")

// depth says what to fetch beside the named objects.
type depth uint8

const (
	exactly  depth = iota // nothing; for blobs
	oneDeep               // a commit's files, without its history
	treeOnly              // a commit's trees, without files if upstream can do that
)

// need fetches the objects of ids that are not here yet.
func (g *Gate) need(ctx context.Context, rp *repo, format string, ids []string, d depth) error {
	b := &rp.base
	b.mu.Lock()
	defer b.mu.Unlock()
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return b.has[id] })
	if len(ids) == 0 {
		return nil // all here, or nothing to ask for
	}
	if b.size >= maxBaseKept {
		return fmt.Errorf("%d bytes were asked of it for pushes already, which are all that are kept while the bottle runs", maxBaseKept)
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience*g.cfg.Limits.Idle)
	defer cancel()
	up, err := g.list(ctx, rp, uploadPack, 2)
	if err != nil {
		return err
	}
	if up.format != format {
		return fmt.Errorf("upstream's objects are of the format %s", up.format)
	}
	if b.has == nil {
		if err := makeRepository(b.dir, format); err != nil {
			return err
		}
		b.has = map[string]bool{}
	}
	req := wantObjects(up, ids, d)
	r, err := rp.up.call(ctx, uploadPack, up.v, bytes.NewReader(req), int64(len(req)))
	if err != nil {
		return &upstreamError{"fetch", timely(ctx, err)}
	}
	in := bound(r, maxBase, g.cfg.Limits.Idle, cancel)
	defer in.Close()
	c, err := start(ctx, g.cfg.Git, b.dir, g.cfg.Limits.Check, &counted{&fetchedPack{l: newLineReader(in)}, &b.size}, "store", strconv.Itoa(maxBase))
	if err != nil {
		return err
	}
	_, readErr := readAll(c, 16<<20)
	_ = c.Close()
	if fed := <-c.fed; fed != nil {
		return fmt.Errorf("%w: %w", errNoBase, fed)
	}
	if readErr != nil {
		return fmt.Errorf("%w: %w", errNoBase, readErr)
	}
	for _, id := range ids {
		b.has[id] = true
	}
	return nil
}

// wantObjects returns a fetch request for ids, without what leads to have.
func wantObjects(up *offer, ids []string, d depth, have ...string) []byte {
	var b []byte
	filter := d == treeOnly && (up.v == 0 && up.has("filter") || slices.ContainsFunc(up.lines, func(l string) bool {
		return strings.HasPrefix(l, "fetch=") && strings.Contains(l, "filter")
	}))
	if up.v == 2 {
		b = appendLine(b, "command=fetch\n")
		if slices.ContainsFunc(up.lines, func(l string) bool { return strings.HasPrefix(l, "object-format=") }) {
			b = appendLine(b, "object-format=", up.format, "\n")
		}
		b = append(b, "0001"...)
		b = appendLine(b, "no-progress\n")
		b = appendLine(b, "ofs-delta\n")
		for _, id := range ids {
			b = appendLine(b, "want ", id, "\n")
		}
	} else {
		caps := " side-band-64k ofs-delta no-progress"
		if filter {
			caps += " filter"
		}
		if up.format != "sha1" {
			caps += " object-format=" + up.format
		}
		for i, id := range ids {
			if i > 0 {
				caps = ""
			}
			b = appendLine(b, "want ", id, caps, "\n")
		}
	}
	if d != exactly {
		b = appendLine(b, "deepen 1\n")
	}
	if filter {
		b = appendLine(b, "filter blob:none\n")
	}
	if up.v != 2 {
		b = appendFlush(b)
	}
	for _, id := range have {
		b = appendLine(b, "have ", id, "\n")
	}
	b = appendLine(b, "done\n")
	if up.v == 2 {
		b = appendFlush(b)
	}
	return b
}

// fetchedPack is a Reader of the pack in an answer to a fetch.
type fetchedPack struct {
	l    *lineReader
	rest []byte
}

func (p *fetchedPack) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		k, line, err := p.l.next()
		switch {
		case err != nil:
			return 0, err
		case k != data || len(line) == 0:
		case line[0] == bandData:
			p.rest = line[1:]
		case line[0] == bandMessage:
		case line[0] == bandError:
			return 0, fmt.Errorf("it says %q", line[1:])
		case strings.HasPrefix(string(line), "ERR "):
			return 0, fmt.Errorf("it says %q", chomp(line[4:]))
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// checkMissing lets git check files that a tree names and the push lacks, under the names
// in the tree. A file that was pushed under another name could become .gitmodules by a
// later push.
func (q *quarantine) checkMissing(ctx context.Context, rp *repo, updates []RefUpdate) error {
	if len(q.missing) == 0 {
		return nil
	}
	slices.Sort(q.missing)
	q.missing = slices.Compact(q.missing)
	err := q.g.need(ctx, rp, q.format, q.missing, exactly)
	if errors.Is(err, errNoBase) {
		// An upstream of protocol version 0 may give out only the objects that references
		// name.
		err = q.g.need(ctx, rp, q.format, tips(rp, updates), oneDeep)
	}
	if err != nil {
		return refused("a tree names .gitmodules or .gitattributes that the push does not have (%s), and that upstream does not give out to be checked: %v. Push the file's commit as well", q.missing[0], err)
	}
	if len(q.faults) > 0 {
		return q.fsck(ctx, filepath.Join(rp.base.dir, "objects"))
	}
	c, err := start(ctx, q.g.cfg.Git, q.dir, q.g.cfg.Limits.Check, nil, "recheck", filepath.Base(q.pack), filepath.Join(rp.base.dir, "objects"))
	if err != nil {
		return err
	}
	out, readErr := readAll(c, 1<<20)
	if err := c.Close(); err != nil {
		return err
	}
	if readErr != nil {
		if _, err := complaints(c, readErr, q.format); err != nil {
			return err
		}
		return refused("upstream does not have a .gitattributes that a tree names")
	}
	// The first line is the pack's name. Any further line is an object that is still
	// missing.
	if strings.Count(strings.TrimSpace(string(out)), "\n") > 0 {
		return refused("upstream does not have a .gitmodules that a tree names")
	}
	return os.Remove(filepath.Join(q.dir, "recheck.idx"))
}

// tips returns the last known commits of upstream's branches. Those that the push changes
// come first.
func tips(rp *repo, updates []RefUpdate) []string {
	var ids []string
	add := func(id string) {
		if !isZero(id) && !slices.Contains(ids, id) && len(ids) < 8 {
			ids = append(ids, id)
		}
	}
	for _, u := range updates {
		add(u.Old)
	}
	if o := rp.offer.Load(); o != nil {
		for _, l := range o.lines {
			if id, name, _ := strings.Cut(l, " "); strings.HasPrefix(name, "refs/heads/") {
				add(id)
			}
		}
	}
	return ids
}
