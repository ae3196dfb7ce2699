package gitgate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/safetext"
)

const (
	// keptTrees bounds the trees that are kept during the scan, in case something is found.
	// maxHistory bounds them afterwards. In bytes. Beyond that, the places of findings are
	// not reported.
	keptTrees  = 32 << 20
	maxHistory = 512 << 20
	// maxParents bounds the parents of all commits of a push. In a pack they cost next to
	// nothing.
	maxParents = 4_000_000
	// maxLineText bounds the part of a finding's lines that is held, in bytes.
	maxLineText = 64 << 10
	// maxCommits bounds the commits that an event names.
	maxCommits = 1000
)

// history holds the commits, tags and trees of a push.
type history struct {
	format  string
	commits map[string]gitobject.CommitHead
	tags    map[string]string // each with the object that it names
	trees   map[string][]byte
	order   []string // commits, in the order of the pack
	links   int      // number of parents of all commits
	size    int64    // bytes of trees
	room    int64    // maximum of size
	partial bool     // some trees had no room
}

func newHistory(format string) *history {
	return &history{format: format, room: keptTrees, commits: map[string]gitobject.CommitHead{}, tags: map[string]string{}, trees: map[string][]byte{}}
}

// add adds an object. It keeps the content of a tree, if there is room.
func (h *history) add(o object, b []byte) error {
	switch o.kind {
	case "commit":
		c := gitobject.ParseCommit(b)
		if h.links += len(c.Parents); h.links > maxParents {
			return refused("the commits of the push have more than %d parents: push them in parts", maxParents)
		}
		h.commits[o.id] = c
		h.order = append(h.order, o.id)
	case "tag":
		h.tags[o.id] = gitobject.TagTarget(b)
	case "tree":
		if h.size += int64(len(b)); h.size > h.room {
			h.trees, h.partial = map[string][]byte{}, true
			return nil
		}
		h.trees[o.id] = b
	}
	return nil
}

// readTrees reads the trees that had no room during the scan.
func (q *quarantine) readTrees(ctx context.Context, h *history) error {
	h.partial, h.size, h.room = false, 0, maxHistory
	return q.each(ctx, func(o object) error {
		if o.kind != "tree" || h.partial {
			return nil
		}
		b, err := io.ReadAll(o.body)
		if err != nil {
			return err
		}
		return h.add(o, b)
	})
}

// oldest returns the commits, parents before children.
func (h *history) oldest() []string {
	var out []string
	done := map[string]bool{}
	type step struct {
		id   string
		next int
	}
	for i := len(h.order) - 1; i >= 0; i-- {
		stack := []step{{h.order[i], 0}}
		for len(stack) > 0 {
			s := &stack[len(stack)-1]
			c, ours := h.commits[s.id]
			if !ours || done[s.id] {
				stack = stack[:len(stack)-1]
				continue
			}
			if s.next < len(c.Parents) {
				s.next++
				stack = append(stack, step{c.Parents[s.next-1], 0})
				continue
			}
			done[s.id] = true
			out = append(out, s.id)
			stack = stack[:len(stack)-1]
		}
	}
	return out
}

// place is the place of an object: the first commit that has it, and its path there.
type place struct{ commit, file string }

// dir is a directory of a tree. Its path is built only for a finding, since a path may be
// long and lead to many objects.
type dir struct {
	up   *dir
	name []byte
}

func (d *dir) path(name []byte) string {
	parts := [][]byte{name}
	for ; d != nil; d = d.up {
		parts = append(parts, d.name)
	}
	slices.Reverse(parts)
	return string(bytes.Join(parts, []byte("/")))
}

// places looks for objects in the pushed commits, oldest first.
func (h *history) places(want map[string]bool) map[string]place {
	got := map[string]place{}
	seen := map[string]bool{}
	var walk func(tree, commit string, in *dir, depth int)
	walk = func(tree, commit string, in *dir, depth int) {
		if seen[tree] || depth > 200 {
			return
		}
		seen[tree] = true
		if _, ok := got[tree]; !ok && want[tree] {
			got[tree] = place{commit, in.path(nil)}
		}
		b, ours := h.trees[tree]
		if !ours {
			return
		}
		_ = eachEntry(b, h.format, func(mode string, name []byte, id string) error {
			if mode == "40000" {
				walk(id, commit, &dir{in, name}, depth+1)
			} else if _, ok := got[id]; !ok && want[id] {
				got[id] = place{commit, in.path(name)}
			}
			return nil
		})
	}
	for _, id := range h.oldest() {
		walk(h.commits[id].Tree, id, nil, 0)
	}
	return got
}

// refs returns, for each commit and tag, the first reference that leads to it. It walks the
// history once, since there may be many references and commits.
func (h *history) refs(updates []RefUpdate) map[string]string {
	of := map[string]string{}
	for _, u := range updates {
		todo := []string{u.New}
		for len(todo) > 0 {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if of[at] != "" {
				continue // everything behind it is done too
			}
			of[at] = u.Name
			if t, ok := h.tags[at]; ok {
				todo = append(todo, t)
			}
			todo = append(todo, h.commits[at].Parents...)
		}
	}
	return of
}

// locate sets the place of each finding, and the commits of the push.
func (q *quarantine) locate(ctx context.Context, fs []found, p *pushing) error {
	h := p.history
	p.ev.New = len(h.order)
	p.ev.Commits = slices.Clone(h.order[:min(len(h.order), maxCommits)])
	if len(fs) == 0 {
		return nil
	}
	if h.partial {
		if err := q.readTrees(ctx, h); err != nil {
			return err
		}
	}
	want := map[string]bool{}
	for _, f := range fs {
		want[f.Object] = true
	}
	places, refs := h.places(want), h.refs(p.req.updates)
	lines, err := q.lines(ctx, fs)
	if err != nil {
		return err
	}
	for i := range fs {
		f := &fs[i]
		at, ok := places[f.Object]
		switch {
		case f.Where == "commit" || f.Where == "tag":
			f.Commit = f.Object
		case f.isFault() && ok:
			f.Commit, f.File = at.commit, safetext.Path([]byte(at.file))
		case (f.Where == "name" || f.Where == "submodule") && ok:
			f.Commit, f.File = at.commit, safetext.Path([]byte(at.file))+f.File
		case f.Where == "blob":
			f.Where = "object"
			if ok {
				f.Where, f.Commit, f.File = "file", at.commit, safetext.Path([]byte(at.file))
				f.path = at.file
			}
		}
		f.ref = refs[f.Commit]
		if strings.HasPrefix(f.ref, "refs/notes/") && f.Where == "file" {
			f.Where = "note"
		}
		if l, ok := lines[i]; ok {
			f.Line, f.code = l.number, l.text
		}
	}
	return nil
}

// textLine is all lines of a finding, and the number of the first from 1.
type textLine struct {
	number int
	text   []byte
}

// lines returns the lines of the findings, by index in fs.
func (q *quarantine) lines(ctx context.Context, fs []found) (map[int]textLine, error) {
	in := map[string][]int{}
	for i, f := range fs {
		if isID(f.Object) && f.Where != "name" && f.Where != "submodule" && !f.isFault() {
			in[f.Object] = append(in[f.Object], i)
		}
	}
	var ids bytes.Buffer
	for id := range in {
		fmt.Fprintln(&ids, id)
	}
	out := map[int]textLine{}
	c, err := start(ctx, q.g.cfg.Git, q.dir, q.g.cfg.Limits.Check, &ids, "read-objects")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = readObjects(c, func(o object) error {
		if o.size > 64<<20 {
			return nil
		}
		b, err := io.ReadAll(o.body)
		if err != nil {
			return err
		}
		for _, i := range in[o.id] {
			at := min(max(fs[i].at, 0), int64(len(b)))
			begin := bytes.LastIndexByte(b[:at], '\n') + 1
			last := min(at+int64(max(fs[i].length-1, 0)), int64(len(b)))
			end := len(b)
			if n := bytes.IndexByte(b[last:], '\n'); n >= 0 {
				end = int(last) + n
			}
			text := b[begin:min(end, begin+maxLineText)]
			out[i] = textLine{1 + bytes.Count(b[:at], []byte("\n")), slices.Clone(text)}
			fs[i].column = int(at) - begin
		}
		return nil
	})
	return out, err
}
