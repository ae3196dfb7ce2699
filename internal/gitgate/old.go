package gitgate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
)

// maxOld are the findings of which it is asked whether upstream has them already.
const maxOld = 20

// dropOld leaves out what a push does not add: a line that stands in the same file, just
// as it is, in the commit of upstream's from which the push goes on. Whatever fails here
// leaves the finding where it is.
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
	// Every way back from the finding must lead to a commit with the same line.
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

// within reports whether all of what was found is in one line, to be seen there as it
// is: then whoever knows the line knows the finding.
func (f *found) within() bool {
	return f.Line > 0 && !f.indirect && f.Rule != "unreadable" && f.Rule != "pieces-of-secret" &&
		len(f.code) < maxLineText && f.length > 0 && f.column+f.length <= len(f.code)
}

// outside are the commits that were not pushed and from which those with the findings
// go on. A commit without any begins a history, to which everything is new.
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
			case len(c.parents) == 0:
				return nil
			}
			todo = append(todo, c.parents...)
		}
	}
	return sorted(out)
}

// read gives the objects of ids, of at most 64 MiB each.
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

// blobAt is the file at a path of a commit, or "".
func (b *baseObjects) blobAt(ctx context.Context, g *Gate, commit, path, format string) (string, error) {
	got, err := b.read(ctx, g, []string{commit})
	if err != nil {
		return "", err
	}
	id := parseCommit(got[commit]).tree
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
