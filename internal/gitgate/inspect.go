package gitgate

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

const (
	// smallObject bounds a commit or a tag, in bytes.
	smallObject = 1 << 20
	// heldObject bounds an object that is held whole and read by any free goroutine, in
	// bytes. maxHeld bounds all of these together. A larger object is read as a stream.
	heldObject = 8 << 20
	maxHeld    = 64 << 20
	maxTree    = 64 << 20 // bytes
	// maxFound ends a scan. A file of examples of keys has fewer, also if some commits change
	// it.
	maxFound = 500
	// maxNames bounds the remembered names of files, in bytes; each costs nameCost more.
	// They are remembered so that each is read once.
	maxNames = 256 << 20
	nameCost = 96
	// maxName bounds one name. No system has files with longer names.
	maxName = 4096
)

// found is a finding whose place is being looked for.
type found struct {
	Finding
	at       int64 // offset in the object
	length   int
	indirect bool // the value is not in the text as it is, but encoded or split
	known    bool // it is the value of a known secret
	// unsearched reports that the rest of the text was not even searched as it stands.
	unsearched bool
	ref        string
	path       string // not made visible
	code       []byte // all lines that it is on
	column     int    // of the finding, in code
	// objects lists all that git finds the same fault with, words what it says of the first.
	objects []string
	words   string
}

// inspection scans a push for secrets.
type inspection struct {
	g       *Gate
	rules   *scan.Rules
	secrets map[string]secret.Value // the secrets that rules looks for

	mu      sync.Mutex
	found   []found
	scanned int64
	names   map[string]string // names of files, each with a tree that has it
	links   map[string]string // ids of submodules' commits, as bytes, in the same way
	size    int               // bytes of both, with nameCost for each
}

func (g *Gate) newInspection() (*inspection, error) {
	values := g.secrets()
	rules, err := rulesOf(values, true)
	if err != nil {
		return nil, err
	}
	return &inspection{g: g, rules: rules, secrets: values, names: map[string]string{}, links: map[string]string{}}, nil
}

// rulesOf returns rules for the values, and with tokens also for texts that look like a
// secret.
func rulesOf(values map[string]secret.Value, tokens bool) (*scan.Rules, error) {
	cfg := scan.Config{Tokens: tokens}
	if values != nil {
		known, err := scan.NewWatchedSecrets(values)
		if err != nil {
			return nil, fmt.Errorf("prepare secrets: %w", err)
		}
		cfg.Watched = known
	}
	rules, err := scan.NewRules(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare rules: %w", err)
	}
	return rules, nil
}

// checkFetch refuses a fetch request that spells a secret: the bottle chooses the names and
// ids that upstream gets.
func (g *Gate) checkFetch(req []byte) error {
	if g.cfg.Secrets == nil {
		return nil
	}
	rules, err := rulesOf(g.secrets(), false)
	if err != nil {
		return err
	}
	found, err := rules.Check(scan.Options{Place: "request", Action: scan.Report, Coverage: g.coverage, Spare: g.spare}, req)
	for _, f := range found {
		if !f.Warning {
			return refused("nothing was asked of upstream: the request holds a secret (%s)", f.Secret)
		}
	}
	if err != nil {
		return refused("nothing was asked of upstream: the request cannot be scanned")
	}
	return nil
}

// secrets returns the values that can be looked for, or nil if there are none.
func (g *Gate) secrets() map[string]secret.Value {
	if g.cfg.Secrets == nil {
		return nil
	}
	values := map[string]secret.Value{}
	for name, v := range g.cfg.Secrets() {
		if scan.Fit(v) == nil {
			values[name] = v
		}
	}
	return values
}

// inspect reads every object of the push, the names in its trees, and the names and options
// of the request.
func (p *pushing) inspect(ctx context.Context) ([]found, error) {
	in := p.in
	// The secrets may have changed since the pack began to come in. Then read all of it
	// again.
	if in == nil || p.ahead.err != nil || !maps.EqualFunc(in.secrets, p.g.secrets(), secret.Value.Equal) {
		var err error
		if in, err = p.g.newInspection(); err != nil {
			return nil, err
		}
		p.ahead, p.history = nil, newHistory(p.req.format)
	}
	ids := slices.Clone(p.req.shallow)
	for _, u := range p.req.updates {
		ids = append(ids, u.Old, u.New)
		if err := in.text(u.Name, found{Finding: Finding{Where: "reference", File: safetext.String(u.Name, 300)}}); err != nil {
			return nil, err
		}
	}
	// Upstream gets them before it looks for the objects.
	if err := in.text(strings.Join(ids, "\n"), found{Finding: Finding{Where: "id"}}); err != nil {
		return nil, err
	}
	for _, o := range p.req.options {
		if err := in.text(o, found{Finding: Finding{Where: "option"}}); err != nil {
			return nil, err
		}
	}
	if p.q != nil {
		if err := p.q.checkMissing(ctx, p.rp, p.req.updates); err != nil {
			return nil, err
		}
		if err := in.objects(ctx, p.q, p.history, p.ahead); err != nil {
			return nil, err
		}
		in.found = append(in.found, p.faults(ctx)...)
		p.ev.Objects = p.q.count
		p.ev.Scanned = in.scanned
		if err := p.q.locate(ctx, in.found, p); err != nil {
			return nil, err
		}
		if len(in.found) < maxFound { // else some were not even looked for
			in.found = p.dropOld(ctx, in.found)
		}
	}
	return in.found, nil
}

// errEnough ends a scan with more findings than anybody reads.
var errEnough = errors.New("enough")

// readers is a set of goroutines, each of which reads the next object.
type readers struct {
	in    *inspection
	ctx   context.Context
	group *errgroup.Group
	jobs  chan job
	room  *semaphore.Weighted
	pool  sync.Pool
}

type job struct {
	object
	text *[]byte
}

// begin starts readers. They stop at end, or when ctx ends.
func (in *inspection) begin(ctx context.Context) *readers {
	w := &readers{
		in: in, jobs: make(chan job, 64), room: semaphore.NewWeighted(maxHeld),
		pool: sync.Pool{New: func() any { return new([]byte) }},
	}
	w.group, w.ctx = errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), 8) {
		w.group.Go(func() error { // ends with jobs, or with the first error
			for j := range w.jobs {
				if err := in.stream(bytes.NewReader(*j.text), j.object); err != nil {
					return err
				}
				w.drop(j.text)
			}
			return nil
		})
	}
	return w
}

// hold returns a buffer of n bytes, at most heldObject, and blocks until so many may be
// held.
func (w *readers) hold(n int64) (*[]byte, error) {
	if err := w.room.Acquire(w.ctx, n); err != nil {
		return nil, err
	}
	b := w.pool.Get().(*[]byte)
	if int64(cap(*b)) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b, nil
}

func (w *readers) drop(b *[]byte) {
	w.room.Release(int64(len(*b)))
	w.pool.Put(b)
}

// give passes a small object to a reader, and adds one that is no blob to the history.
func (w *readers) give(o object, b *[]byte, h *history) error {
	if o.kind != "blob" {
		if err := h.add(o, *b); err != nil {
			return err
		}
	}
	select {
	case w.jobs <- job{o, b}:
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// end blocks until all given objects are read, and returns the first error.
func (w *readers) end() error {
	close(w.jobs)
	return w.group.Wait()
}

// count counts an object as read.
func (in *inspection) count(o object) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.scanned += o.size
}

// small reports whether the object is held whole.
func (o object) small() bool {
	return o.size <= heldObject && (o.kind == "blob" || o.kind == "tree" || o.size <= smallObject)
}

// objects reads all objects of the quarantine that were not read ahead.
func (in *inspection) objects(ctx context.Context, q *quarantine, h *history, a *readAhead) error {
	w := in.begin(ctx)
	left, count := in.g.cfg.Limits.Unpacked-in.scanned, 0
	err := q.rest(w.ctx, a, func(o object) error {
		if left -= o.size; left < 0 {
			return refused("the objects of the push have more than %d bytes: push it in parts", in.g.cfg.Limits.Unpacked)
		}
		if count++; count > q.count {
			return errors.New("git has more objects than the pack")
		}
		in.count(o)
		switch {
		case o.kind == "tree" && o.size > maxTree:
			return refused("tree %s has more than %d bytes", o.id, maxTree)
		case o.kind == "tree":
			b := make([]byte, o.size)
			if _, err := io.ReadFull(o.body, b); err != nil {
				return noEOF(err)
			}
			return in.tree(o, h, b)
		case o.small():
		case o.kind != "blob":
			return refused("%s %s has more than %d bytes", o.kind, o.id, smallObject)
		default:
			return in.stream(o.body, o)
		}
		b, err := w.hold(o.size)
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(o.body, *b); err != nil {
			return noEOF(err)
		}
		return w.give(o, b, h)
	})
	// The error of a reader also ended the rest, so it is the cause.
	if first := w.end(); first != nil {
		err = first
	}
	if err == nil {
		err = in.remembered("name", in.names)
	}
	if err == nil {
		err = in.remembered("submodule", in.links)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// stream reads one object as a stream.
func (in *inspection) stream(r io.Reader, o object) error {
	return in.read(r, found{Finding: Finding{Object: o.id, Where: o.kind}})
}

// text reads a short text that is no object.
func (in *inspection) text(s string, what found) error {
	err := in.read(bytes.NewReader([]byte(s)), what)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (in *inspection) read(r io.Reader, what found) error {
	n := 0
	s := in.rules.NewScanner(scan.Options{
		Place: what.Where, Action: scan.Report, GoOn: true, Coverage: in.g.coverage, Spare: in.g.spare,
		OnFinding: func(f scan.Finding) {
			if f.Warning && f.Rule != unreadable {
				return
			}
			if n++; n > maxFound {
				return
			}
			one := what
			one.Rule, one.Secret, one.Transform = f.Rule, f.Secret, f.Transform
			one.at, one.length = f.Offset, f.Length
			one.indirect = f.Sealed || f.Transform != "" && f.Transform != "plain"
			one.known = f.Secret != ""
			in.mu.Lock()
			in.found = append(in.found, one)
			in.mu.Unlock()
		},
	})
	defer s.Close()
	_, err := io.Copy(io.Discard, scan.NewReader(r, s))
	in.mu.Lock()
	many := len(in.found) >= maxFound
	in.mu.Unlock()
	switch {
	case many:
		return errEnough
	case err != nil:
		// A text that cannot be read to its end must not leave. It becomes a finding, so
		// that its place is reported.
		var limit *scan.LimitError
		var broken *scan.DecodeError
		var panicked *scan.PanicError
		if !errors.As(err, &limit) && !errors.As(err, &broken) && !errors.As(err, &panicked) {
			return err
		}
		one := what
		one.Rule, one.indirect, one.unsearched = unreadable, true, true
		in.mu.Lock()
		in.found = append(in.found, one)
		in.mu.Unlock()
	}
	return nil
}

// tree adds the names in a tree, and the ids of submodules' commits, which git follows
// nowhere. Each is read once, however many trees have it.
func (in *inspection) tree(o object, h *history, b []byte) error {
	if err := h.add(o, b); err != nil {
		return err
	}
	return eachEntry(b, h.format, func(mode string, name []byte, id string) error {
		if mode == gitobject.ModeSubmodule {
			raw, err := hex.DecodeString(id)
			if err == nil {
				err = in.remember(in.links, raw, o)
			}
			if err != nil {
				return err
			}
		}
		return in.remember(in.names, name, o)
	})
}

func (in *inspection) remember(all map[string]string, name []byte, tree object) error {
	if _, ok := all[string(name)]; ok {
		return nil
	}
	if len(name) > maxName {
		return refused("tree %s has a name of more than %d bytes", tree.id, maxName)
	}
	if in.size += len(name) + nameCost; in.size > maxNames {
		return refused("the push has too many names of files: push it in parts")
	}
	all[string(name)] = tree.id
	return nil
}

// remembered reads names or links.
func (in *inspection) remembered(where string, names map[string]string) error {
	var all bytes.Buffer
	var at []string
	var ends []int64
	flush := func() error {
		first := len(in.found)
		err := in.read(bytes.NewReader(all.Bytes()), found{Finding: Finding{Where: where}})
		for i := first; i < len(in.found); i++ {
			f := &in.found[i]
			for j, end := range ends {
				if f.at < end {
					if f.Object = names[at[j]]; where == "name" {
						f.File = safetext.Path([]byte(at[j]))
					}
					break
				}
			}
			f.indirect = true // a name has no line
		}
		all.Reset()
		at, ends = at[:0], ends[:0]
		return err
	}
	for name := range names {
		all.WriteString(name)
		all.WriteByte('\n')
		at, ends = append(at, name), append(ends, int64(all.Len()))
		if all.Len() > 1<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// eachEntry calls f for each entry of a tree.
func eachEntry(b []byte, format string, f func(mode string, name []byte, id string) error) error {
	err := gitobject.EachEntry(b, idLen(format), func(mode string, name, id []byte) error { return f(mode, name, hex.EncodeToString(id)) })
	if err == gitobject.ErrTree {
		return refused("a tree is malformed")
	}
	return err
}
