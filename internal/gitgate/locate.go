package gitgate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/visible"
)

const (
	// keptTrees are held while a push is read, in case something is found, and
	// maxHistory when it was, in bytes. Beyond that it is not said where.
	keptTrees  = 32 << 20
	maxHistory = 512 << 20
	// maxParents are those of all commits of a push together. In a pack they cost next
	// to nothing.
	maxParents = 4_000_000
	// maxLineText bounds what of a line is held, in bytes.
	maxLineText = 64 << 10
	// maxCommits are named in an event.
	maxCommits = 1000
)

// history is what a push brought of commits, tags and trees.
type history struct {
	format  string
	commits map[string]commit
	tags    map[string]string // to what they name
	trees   map[string][]byte
	order   []string // commits, as they stand in the pack
	links   int      // parents of commits
	size    int64    // of trees, in bytes
	room    int64    // for them
	partial bool     // there was no room
}

type commit struct {
	tree    string
	parents []string
}

func newHistory(format string) *history {
	return &history{format: format, room: keptTrees, commits: map[string]commit{}, tags: map[string]string{}, trees: map[string][]byte{}}
}

// add takes an object's content, which it keeps if it is a tree: while there is room.
func (h *history) add(o object, b []byte) error {
	switch o.kind {
	case "commit":
		c := parseCommit(b)
		if h.links += len(c.parents); h.links > maxParents {
			return refused("the commits of the push have more than %d parents: push them in parts", maxParents)
		}
		h.commits[o.id] = c
		h.order = append(h.order, o.id)
	case "tag":
		h.tags[o.id] = header(b, "object ")
	case "tree":
		if h.size += int64(len(b)); h.size > h.room {
			h.trees, h.partial = map[string][]byte{}, true
			return nil
		}
		h.trees[o.id] = b
	}
	return nil
}

// readTrees reads the trees that there was no room for, where they are needed.
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

// header gives the value of the first line of the head that begins with key.
func header(b []byte, key string) string {
	for line := range bytes.Lines(b) {
		if len(line) <= 1 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return strings.TrimRight(string(v), "\n")
		}
	}
	return ""
}

func parseCommit(b []byte) commit {
	c := commit{tree: header(b, "tree ")}
	for line := range bytes.Lines(b) {
		if len(line) <= 1 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("parent ")); ok {
			c.parents = append(c.parents, strings.TrimRight(string(v), "\n"))
		}
	}
	return c
}

// oldest are the commits with parents before children.
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
			if s.next < len(c.parents) {
				s.next++
				stack = append(stack, step{c.parents[s.next-1], 0})
				continue
			}
			done[s.id] = true
			out = append(out, s.id)
			stack = stack[:len(stack)-1]
		}
	}
	return out
}

// place is where an object stands: the first commit that has it, and under what name.
type place struct{ commit, file string }

// dir is a directory of a tree on the way to an object. Its path is made only where
// something was found: it may be long, and lead to many.
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

// places looks for objects in the commits that were pushed, oldest first.
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
		walk(h.commits[id].tree, id, nil, 0)
	}
	return got
}

// refs are the first of the references that lead to each commit and tag, found in one
// walk: there can be many of all of them.
func (h *history) refs(updates []RefUpdate) map[string]string {
	of := map[string]string{}
	for _, u := range updates {
		todo := []string{u.New}
		for len(todo) > 0 {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if of[at] != "" {
				continue // and so do all that it leads to
			}
			of[at] = u.Name
			if t, ok := h.tags[at]; ok {
				todo = append(todo, t)
			}
			todo = append(todo, h.commits[at].parents...)
		}
	}
	return of
}

// locate says of each finding where it stands, and of the push which commits it has.
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
		case f.Where == "name" && ok:
			f.Commit, f.File = at.commit, visible.Path([]byte(at.file))+f.File
		case f.Where == "blob":
			f.Where = "object"
			if ok {
				f.Where, f.Commit, f.File = "file", at.commit, visible.Path([]byte(at.file))
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

// textLine is a line of an object: its number from 1, and what it says.
type textLine struct {
	number int
	text   []byte
}

// lines reads the lines on which findings are, by the findings' numbers.
func (q *quarantine) lines(ctx context.Context, fs []found) (map[int]textLine, error) {
	in := map[string][]int{}
	for i, f := range fs {
		if isID(f.Object) && f.Where != "name" {
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
			end := len(b)
			if n := bytes.IndexByte(b[at:], '\n'); n >= 0 {
				end = int(at) + n
			}
			text := b[begin:min(end, begin+maxLineText)]
			out[i] = textLine{1 + bytes.Count(b[:at], []byte("\n")), slices.Clone(text)}
			fs[i].column = int(at) - begin
		}
		return nil
	})
	return out, err
}
