package gitgate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// oldFaultError says that a pack has a fault that a person may let pass.
type oldFaultError struct{ error }

// fault holds one complaint of git about one object, by its name in git-fsck. It hurts
// nobody who clones the object.
type fault struct{ name, kind, object, words string }

// faultRule begins the rule of a finding that stands for all objects with one fault.
const faultRule = "git fsck "

// inObject matches what git fsck says of an object.
var inObject = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(error|warning) in ([a-z]+) ([0-9a-f]{40,64}): ([A-Za-z0-9]+): (.*)$`)
})

// fsck checks the stored objects, with those of base at hand. Faults of old histories are
// noted, and files that are not there. All others refuse the push.
func (q *quarantine) fsck(ctx context.Context, base string) error {
	args := []string{"fsck"}
	var ours map[string]bool
	var err error
	if base != "" { // its own faults are upstream's already
		args = append(args, base)
		ours = map[string]bool{}
		for _, id := range q.missing {
			ours[id] = true
		}
		err = q.run(ctx, nil, "list-objects", func(r io.Reader) error {
			all, err := io.ReadAll(r)
			for id := range strings.FieldsSeq(string(all)) {
				ours[id] = true
			}
			return err
		})
	}
	var c *command
	if err == nil {
		c, err = start(ctx, q.g.cfg.Git, q.dir, q.g.cfg.Limits.Check, nil, args...)
	}
	if err != nil {
		return err
	}
	// It lists objects that upstream has. Those of the pack were all read to be stored.
	_, failed := io.Copy(io.Discard, c)
	closed := c.Close()
	var fe *hostexec.FailedError
	if closed != nil || failed != nil && (!errors.As(failed, &fe) || fe.Outcome != hostexec.Exited) {
		return refused("git did not end its check of the objects: %v", errors.Join(failed, closed))
	}
	text, err := c.res.Stderr.Complete()
	if err != nil {
		return refused("git finds fault with too many objects: push them in parts")
	}
	return q.note(text, ours)
}

// note takes over what git fsck says of the objects in ours; nil: all, and files that are
// not there may be upstream's.
func (q *quarantine) note(text []byte, ours map[string]bool) error {
	q.faults, q.missing = nil, nil
	for line := range bytes.Lines(text) {
		s := strings.TrimRight(string(line), "\n")
		m := inObject().FindStringSubmatch(s)
		switch {
		case m == nil && strings.HasPrefix(s, "notice: "):
		case m == nil:
			return refused("git rejects the objects: %s", safetext.String(s, 300))
		case ours != nil && !ours[m[3]]:
		case ours == nil && (m[4] == "gitmodulesMissing" || m[4] == "gitattributesMissing"):
			q.missing = append(q.missing, m[3])
		case m[1] == "error":
			return refused("object %s is refused (%s): %s", m[3], m[4], safetext.String(m[5], 300))
		case hostexec.OldFault(m[4]):
			q.faults = append(q.faults, fault{m[4], m[2], m[3], m[5]})
		}
	}
	return nil
}

// faults returns a finding for each kind of fault in objects that upstream does not have.
func (p *pushing) faults(ctx context.Context) []found {
	fs := p.q.faults
	if len(fs) > 0 && len(fs) <= maxOld {
		var ids []string
		for _, f := range fs {
			ids = append(ids, f.object)
		}
		if p.g.need(ctx, p.rp, p.req.format, ids, treeOnly) == nil {
			old, _ := p.rp.base.read(ctx, p.g, ids)
			fs = slices.DeleteFunc(slices.Clone(fs), func(f fault) bool { return old[f.object] != nil })
		}
	}
	slices.SortStableFunc(fs, func(a, b fault) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.object, b.object))
	})
	var out []found
	for i, f := range fs {
		if i == 0 || fs[i-1].name != f.name {
			out = append(out, found{Finding: Finding{Rule: faultRule + f.name, Object: f.object, Commit: f.object, Where: f.kind}, words: f.words})
		}
		last := &out[len(out)-1]
		last.objects = append(last.objects, f.object)
	}
	return out
}

// isFault reports whether f stands for objects that git finds fault with.
func (f *found) isFault() bool { return strings.HasPrefix(f.Rule, faultRule) }

// faultyObjects says which objects f stands for.
func (f *found) faultyObjects() string {
	s := fmt.Sprintf("%s %s", f.Where, f.Object[:12])
	if f.File != "" {
		s += " (" + f.File + ")"
	}
	if n := len(f.objects) - 1; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}
