package gitgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

const (
	// smallObject is held whole and read by whichever worker is free; a larger one is
	// read as it comes.
	smallObject = 1 << 20
	// maxFound ends a scan: nobody reads more.
	maxFound = 100
	// maxNames bounds the names of files that are remembered to be read once, in bytes,
	// of which each costs nameCost more.
	maxNames = 256 << 20
	nameCost = 96
	// maxName bounds one. No system has files of longer ones.
	maxName = 4096
)

// found is a finding on its way to where it stands.
type found struct {
	Finding
	at       int64 // offset in the object
	length   int
	indirect bool // it is not in the text as it stands there
	known    bool // a secret by value
	ref      string
	path     string // as it is
	code     []byte // the line
	column   int    // of what was found, in code
}

// inspection reads what a push would bring to upstream, for secrets.
type inspection struct {
	g     *Gate
	rules *scan.Rules

	mu      sync.Mutex
	found   []found
	scanned int64
	names   map[string]string // of files, with a tree that has it
	size    int               // of names, with what they cost
}

func (g *Gate) newInspection() (*inspection, error) {
	rules, err := g.rules(true)
	if err != nil {
		return nil, err
	}
	return &inspection{g: g, rules: rules, names: map[string]string{}}, nil
}

// rules are those of this moment's secrets, and with tokens of what looks like one.
func (g *Gate) rules(tokens bool) (*scan.Rules, error) {
	cfg := scan.Config{Tokens: tokens}
	if g.cfg.Secrets != nil {
		values := map[string]secret.Value{}
		for name, v := range g.cfg.Secrets() {
			if scan.Fit(v) == nil {
				values[name] = v
			}
		}
		known, err := scan.NewKnown(values)
		if err != nil {
			return nil, fmt.Errorf("prepare secrets: %w", err)
		}
		cfg.Known = known
	}
	rules, err := scan.NewRules(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare rules: %w", err)
	}
	return rules, nil
}

// asking refuses a request to fetch that spells a secret: upstream gets names and ids
// that the bottle chose.
func (g *Gate) asking(req []byte) error {
	if g.cfg.Secrets == nil {
		return nil
	}
	rules, err := g.rules(false)
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
		return refused("nothing was asked of upstream: the request can't be looked through")
	}
	return nil
}

// inspect reads every object that came, the names in its trees, and the names and
// options of the push.
func (p *pushing) inspect(ctx context.Context) ([]found, error) {
	in, err := p.g.newInspection()
	if err != nil {
		return nil, err
	}
	for _, u := range p.req.updates {
		if err := in.text(u.Name, found{Finding: Finding{Where: "reference", File: visible.String(u.Name, 300)}}); err != nil {
			return nil, err
		}
	}
	for _, o := range p.req.options {
		if err := in.text(o, found{Finding: Finding{Where: "option"}}); err != nil {
			return nil, err
		}
	}
	if p.q != nil {
		if err := p.q.settle(ctx, p.rp, p.req.updates); err != nil {
			return nil, err
		}
		p.history = newHistory(p.req.format)
		p.history.room = keptTrees
		if err := in.objects(ctx, p.q, p.history); err != nil {
			return nil, err
		}
		p.ev.Objects = p.q.count
		p.ev.Scanned = in.scanned
		if err := p.q.locate(ctx, in.found, p); err != nil {
			return nil, err
		}
		in.found = p.dropOld(ctx, in.found)
	}
	return in.found, nil
}

// errEnough ends a scan that found more than anybody reads.
var errEnough = errors.New("enough")

func (in *inspection) objects(ctx context.Context, q *quarantine, h *history) error {
	group, ctx := errgroup.WithContext(ctx)
	type job struct {
		object
		text *[]byte
	}
	jobs := make(chan job, 64)
	pool := sync.Pool{New: func() any { return new([]byte) }}
	for range min(runtime.GOMAXPROCS(0), 8) {
		group.Go(func() error { // ends with jobs, or with the first error
			for j := range jobs {
				err := in.stream(bytes.NewReader(*j.text), j.object)
				pool.Put(j.text)
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(jobs)
		left, count := in.g.cfg.Limits.Unpacked, 0
		return q.each(ctx, func(o object) error {
			if left -= o.size; left < 0 {
				return refused("the objects of the push have more than %d bytes: push it in parts", in.g.cfg.Limits.Unpacked)
			}
			if count++; count > q.count {
				return errors.New("git has more objects than the pack")
			}
			in.mu.Lock()
			in.scanned += o.size
			in.mu.Unlock()
			switch {
			case o.kind == "tree":
				return in.tree(o, h)
			case o.size > smallObject && o.kind != "blob":
				return refused("%s %s has more than %d bytes", o.kind, o.id, smallObject)
			case o.size > smallObject:
				return in.stream(o.body, o)
			}
			b := pool.Get().(*[]byte)
			if int64(cap(*b)) < o.size {
				*b = make([]byte, o.size)
			}
			*b = (*b)[:o.size]
			if _, err := io.ReadFull(o.body, *b); err != nil {
				return noEOF(err)
			}
			if o.kind != "blob" {
				if err := h.add(o, *b); err != nil {
					return err
				}
			}
			select {
			case jobs <- job{o, b}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	err := group.Wait()
	if err == nil {
		err = in.fileNames()
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// stream reads one object.
func (in *inspection) stream(r io.Reader, o object) error {
	return in.read(r, found{Finding: Finding{Object: o.id, Where: o.kind}})
}

// text reads a small text that is no object.
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
		Place: what.Where, Action: scan.Report, Coverage: in.g.coverage, Spare: in.g.spare,
		OnFinding: func(f scan.Finding) {
			if f.Warning {
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
		// What can't be read to its end does not leave. It is a finding, so that it
		// is told where.
		var limit *scan.LimitError
		var broken *scan.DecodeError
		var panicked *scan.PanicError
		if !errors.As(err, &limit) && !errors.As(err, &broken) && !errors.As(err, &panicked) {
			return err
		}
		one := what
		one.Rule, one.indirect = "unreadable", true
		in.mu.Lock()
		in.found = append(in.found, one)
		in.mu.Unlock()
	}
	return nil
}

// tree takes the names of a tree; they are read once each, however many trees have
// them.
func (in *inspection) tree(o object, h *history) error {
	if o.size > 64<<20 {
		return refused("tree %s has more than 64 MiB", o.id)
	}
	b := make([]byte, o.size)
	if _, err := io.ReadFull(o.body, b); err != nil {
		return noEOF(err)
	}
	if err := h.add(o, b); err != nil {
		return err
	}
	return eachEntry(b, h.format, func(_ string, name []byte, _ string) error {
		if _, ok := in.names[string(name)]; ok {
			return nil
		}
		if len(name) > maxName {
			return refused("tree %s has a name of more than %d bytes", o.id, maxName)
		}
		if in.size += len(name) + nameCost; in.size > maxNames {
			return refused("the push has too many names of files: push it in parts")
		}
		in.names[string(name)] = o.id
		return nil
	})
}

// fileNames reads the names that tree took.
func (in *inspection) fileNames() error {
	var all bytes.Buffer
	var at []string
	var ends []int64
	flush := func() error {
		first := len(in.found)
		err := in.read(bytes.NewReader(all.Bytes()), found{Finding: Finding{Where: "name"}})
		for i := first; i < len(in.found); i++ {
			f := &in.found[i]
			for j, end := range ends {
				if f.at < end {
					f.File, f.Object = visible.Path([]byte(at[j])), in.names[at[j]]
					break
				}
			}
			f.indirect = true // a name has no line
		}
		all.Reset()
		at, ends = at[:0], ends[:0]
		return err
	}
	for name := range in.names {
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

// eachEntry takes a tree apart: each entry is a mode, a space, a name, a zero byte and
// an id.
func eachEntry(b []byte, format string, f func(mode string, name []byte, id string) error) error {
	n := idLen(format) / 2
	for len(b) > 0 {
		space := bytes.IndexByte(b, ' ')
		zero := bytes.IndexByte(b, 0)
		if space < 0 || zero < space || len(b) < zero+1+n {
			return refused("a tree is broken")
		}
		if err := f(string(b[:space]), b[space+1:zero], fmt.Sprintf("%x", b[zero+1:zero+1+n])); err != nil {
			return err
		}
		b = b[zero+1+n:]
	}
	return nil
}
