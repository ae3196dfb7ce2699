package gitgate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/secret"
)

const (
	// keptTrees are held while a push is read, in case something is found, and
	// maxHistory when it was, in bytes. Beyond that it is not said where.
	keptTrees  = 32 << 20
	maxHistory = 512 << 20
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
func (h *history) add(o object, b []byte) {
	switch o.kind {
	case "commit":
		h.commits[o.id] = parseCommit(b)
		h.order = append(h.order, o.id)
	case "tag":
		h.tags[o.id] = header(b, "object ")
	case "tree":
		if h.size += int64(len(b)); h.size > h.room {
			h.trees, h.partial = map[string][]byte{}, true
			return
		}
		h.trees[o.id] = b
	}
}

// readTrees reads the trees that there was no room for, where they are needed.
func (q *quarantine) readTrees(ctx context.Context, h *history) error {
	h.partial, h.size, h.room = false, 0, maxHistory
	return q.each(ctx, func(o object) error {
		if o.kind != "tree" || h.partial {
			return nil
		}
		b, err := io.ReadAll(o.body)
		h.add(o, b)
		return err
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

// places looks for objects in the commits that were pushed, oldest first.
func (h *history) places(want map[string]bool) map[string]place {
	got := map[string]place{}
	seen := map[string]bool{}
	var walk func(tree, commit, dir string, depth int)
	walk = func(tree, commit, dir string, depth int) {
		if seen[tree] || depth > 200 {
			return
		}
		seen[tree] = true
		if _, ok := got[tree]; !ok && want[tree] {
			got[tree] = place{commit, dir}
		}
		b, ours := h.trees[tree]
		if !ours {
			return
		}
		_ = eachEntry(b, h.format, func(mode string, name []byte, id string) error {
			path := dir + string(name)
			if mode == "40000" {
				walk(id, commit, path+"/", depth+1)
			} else if _, ok := got[id]; !ok && want[id] {
				got[id] = place{commit, path}
			}
			return nil
		})
	}
	for _, id := range h.oldest() {
		walk(h.commits[id].tree, id, "", 0)
	}
	return got
}

// refOf is the first of the references that leads to a commit or tag.
func (h *history) refOf(id string, updates []RefUpdate) string {
	for _, u := range updates {
		seen := map[string]bool{}
		todo := []string{u.New}
		for len(todo) > 0 {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if seen[at] {
				continue
			}
			seen[at] = true
			if at == id {
				return u.Name
			}
			if t, ok := h.tags[at]; ok {
				todo = append(todo, t)
			}
			todo = append(todo, h.commits[at].parents...)
		}
	}
	return ""
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
	places := h.places(want)
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
			f.Commit, f.File = at.commit, visiblePath(at.file)+f.File
		case f.Where == "blob":
			f.Where = "object"
			if ok {
				f.Where, f.Commit, f.File = "file", at.commit, visiblePath(at.file)
				f.path = at.file
			}
		}
		f.ref = h.refOf(f.Commit, p.req.updates)
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

// codeOf is a line as a person is shown it, who decides about it.
func codeOf(f *found) secret.Value { return secret.New(f.code) }
