package gitgate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/gitobject"
)

// maxOld bounds the commits, and the files of them, that are looked up in upstream.
const maxOld = 20

// dropOld removes the findings that a push does not add: the same lines are in the same file
// of the commit of upstream that the push builds on. If a step fails, the finding stays.
func (p *pushing) dropOld(ctx context.Context, fs []found) []found {
	var ask []*found
	for i := range fs {
		switch f := &fs[i]; {
		case f.Where == "file" && f.within():
			ask = append(ask, f)
		case !f.closed() && !f.isFault():
			return fs // refused anyway
		}
	}
	if len(ask) == 0 {
		return fs
	}
	parents := p.history.outside(ask)
	if len(parents) == 0 || len(parents) > maxOld {
		return fs
	}
	g, format := p.g, p.req.format
	if err := g.need(ctx, p.rp, format, parents, treeOnly); err != nil {
		return fs
	}
	// Every path back from the finding must lead to a commit with the same lines.
	type file struct{ commit, path string }
	ids := map[file]string{}
	want := map[string]bool{}
	at := map[*found][]string{}
	for _, f := range ask {
		for _, c := range p.history.outside([]*found{f}) {
			id, ok := ids[file{c, f.path}]
			if !ok {
				if len(ids) == maxOld {
					return fs
				}
				var err error
				if id, err = p.rp.base.blobAt(ctx, g, c, f.path, format); err != nil {
					return fs
				}
				ids[file{c, f.path}] = id
			}
			at[f] = append(at[f], id)
			if id != "" {
				want[id] = true
			}
		}
	}
	if len(want) == 0 {
		return fs
	}
	if err := g.need(ctx, p.rp, format, sorted(want), exactly); err != nil {
		return fs
	}
	texts, err := p.rp.base.read(ctx, g, sorted(want))
	if err != nil {
		return fs
	}
	framed := func(b []byte) []byte { return slices.Concat([]byte("\n"), b, []byte("\n")) }
	for id, b := range texts {
		texts[id] = framed(b)
	}
	var left []found
	for i := range fs {
		f := &fs[i]
		isNew := func(id string) bool { return id == "" || !bytes.Contains(texts[id], framed(f.code)) }
		if len(at[f]) == 0 || slices.ContainsFunc(at[f], isNew) {
			left = append(left, *f)
		}
	}
	return left
}

// within reports whether all of the finding is on its lines, as it is. Whoever knows these
// knows the finding.
func (f *found) within() bool {
	return f.Line > 0 && !f.indirect && f.Rule != unreadable && f.Rule != "pieces-of-secret" &&
		len(f.code) < maxLineText && f.length > 0 && f.column+f.length <= len(f.code)
}

// outside returns the commits that were not pushed and that are parents of the pushed ones
// with findings. It returns none if a history begins in the push: all of that is new.
func (h *history) outside(fs []*found) []string {
	out := map[string]bool{}
	for _, f := range fs {
		seen := map[string]bool{}
		todo := []string{f.Commit}
		for len(todo) > 0 {
			id := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if seen[id] {
				continue
			}
			seen[id] = true
			c, ours := h.commits[id]
			switch {
			case !ours:
				out[id] = true
			case len(c.Parents) == 0:
				return nil
			}
			todo = append(todo, c.Parents...)
		}
	}
	return sorted(out)
}

// read returns the objects of ids, each of at most 64 MiB.
func (b *baseObjects) read(ctx context.Context, g *Gate, ids []string) (map[string][]byte, error) {
	out := map[string][]byte{}
	c, err := start(ctx, g.cfg.Git, b.dir, g.cfg.Limits.Check, strings.NewReader(strings.Join(ids, "\n")+"\n"), "read-objects")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = readObjects(c, func(o object) error {
		if o.size > 64<<20 {
			return errors.New("an object of more than 64 MiB")
		}
		var err error
		out[o.id], err = io.ReadAll(o.body)
		return err
	})
	return out, err
}

// blobAt returns the id of the file at a path of a commit, or "".
func (b *baseObjects) blobAt(ctx context.Context, g *Gate, commit, path, format string) (string, error) {
	got, err := b.read(ctx, g, []string{commit})
	if err != nil {
		return "", err
	}
	id := gitobject.ParseCommit(got[commit]).Tree
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if id == "" {
			return "", nil
		}
		got, err := b.read(ctx, g, []string{id})
		if err != nil {
			return "", err
		}
		tree := got[id]
		id = ""
		err = eachEntry(tree, format, func(mode string, name []byte, entry string) error {
			if string(name) == part && (mode == "40000") == (i < len(parts)-1) {
				id = entry
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return id, nil
}
