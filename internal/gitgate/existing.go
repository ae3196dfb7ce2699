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

// maxOld bounds the findings that are looked up in upstream.
const maxOld = 20

// dropOld removes the findings that a push does not add: the same line is in the same file
// of the commit of upstream that the push builds on. If a step fails, the finding stays.
func (p *pushing) dropOld(ctx context.Context, fs []found) []found {
	var ask []*found
	for i := range fs {
		if f := &fs[i]; f.Where == "file" && f.within() {
			ask = append(ask, f)
		}
	}
	if len(ask) == 0 || len(ask) > maxOld || len(ask) < len(fs) {
		return fs // refused anyway
	}
	parents := p.history.outside(ask)
	if len(parents) == 0 || len(parents) > maxOld {
		return fs
	}
	g, format := p.g, p.req.format
	if err := g.need(ctx, p.rp, format, parents, treeOnly); err != nil {
		return fs
	}
	// Every path back from the finding must lead to a commit with the same line.
	want := map[string]bool{}
	at := map[*found][]string{}
	for _, f := range ask {
		for _, c := range p.history.outside([]*found{f}) {
			id, err := p.rp.base.blobAt(ctx, g, c, f.path, format)
			if err != nil || id == "" {
				return fs
			}
			at[f] = append(at[f], id)
			want[id] = true
		}
		if len(at[f]) == 0 {
			return fs
		}
	}
	if err := g.need(ctx, p.rp, format, sorted(want), exactly); err != nil {
		return fs
	}
	texts, err := p.rp.base.read(ctx, g, sorted(want))
	if err != nil {
		return fs
	}
	var left []found
	for _, f := range ask {
		for _, id := range at[f] {
			if !slices.ContainsFunc(bytes.Split(texts[id], []byte("\n")), func(l []byte) bool { return bytes.Equal(l, f.code) }) {
				left = append(left, *f)
				break
			}
		}
	}
	return left
}

// within reports whether all of the finding is on one line, as it is. Whoever knows that
// line knows the finding.
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
