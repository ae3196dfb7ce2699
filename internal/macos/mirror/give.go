package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/carboy/carboy/internal/macos/frames"
)

// batch bounds the entries or positions in one frame.
const batch = 500

// Give sends what is in dir to [Receive], which asks for the content of what it lacks.
// keep, unless it is nil, says which entries are sent; told is called with the number of
// files and bytes that are needed, before they are sent.
func Give(ctx context.Context, p frames.Peer, dir string, keep func(Entry) (bool, error), told func(files int, bytes int64)) error {
	all, err := Scan(ctx, dir)
	if err != nil {
		return err
	}
	if keep != nil {
		all = slices.DeleteFunc(all, func(e Entry) bool {
			kept, kerr := keep(e)
			err = cmp.Or(err, kerr)
			return !kept
		})
	}
	if err != nil {
		return err
	}
	for part := range slices.Chunk(all, batch) {
		if err := p.SendJSON(frames.Entries, part); err != nil {
			return err
		}
	}
	if err := p.Send(frames.End, nil); err != nil {
		return err
	}
	var need []int
	if err := list(p, frames.Need, func(part []int) error {
		for _, n := range part {
			if n < 0 || n >= len(all) || all[n].Kind != File || len(need) == len(all) {
				return errors.New("the machine asks for a file that was not named")
			}
			need = append(need, n)
		}
		return nil
	}); err != nil {
		return err
	}
	var bytes int64
	for _, n := range need {
		bytes += all[n].Size
	}
	if told != nil {
		told(len(need), bytes)
	}
	if len(need) > 0 {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		for _, n := range need {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if err := p.SendJSON(frames.File, n); err != nil {
				return err
			}
			if err := sendFile(p, root, &all[n], false); err != nil {
				return err
			}
		}
	}
	_, err = frames.Expect(p, frames.Result)
	return err
}

// list calls f with each part of a list that arrives in frames of kind k.
func list[T any](p frames.Receiver, k frames.Kind, f func([]T) error) error {
	for {
		have, b, err := p.Recv()
		switch {
		case err != nil:
			return err
		case have == frames.Fail:
			return &frames.FailError{Text: string(b)}
		case have == frames.End:
			return nil
		case have != k:
			return fmt.Errorf("the other side sent %q within a list of %q", byte(have), byte(k))
		}
		var part []T
		if err := json.Unmarshal(b, &part); err != nil {
			return fmt.Errorf("the other side sent a list that is none: %w", err)
		}
		if err := f(part); err != nil {
			return err
		}
	}
}

// Owner owns what [Receive] makes.
type Owner struct{ UID, GID int }

// Receive makes dir equal to what [Give] sends, and returns what both sides have then. A
// file's content is replaced as a whole. If it fails, dir is partly made; the next Receive
// goes on.
func Receive(ctx context.Context, p frames.Peer, dir string, o Owner) ([]Entry, error) {
	var want []Entry
	if err := list(p, frames.Entries, func(part []Entry) error {
		for i := range part {
			if err := part[i].check(); err != nil {
				return err
			}
		}
		if want = append(want, part...); len(want) > maxEntries {
			return fmt.Errorf("more than %d paths", maxEntries)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	have, err := Scan(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &receiver{taker: taker{Taken: &Taken{}, p: p, root: root}, Owner: o, want: want}
	if err := r.prune(have); err != nil {
		return nil, err
	}
	need, err := r.shape(have)
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(need, batch) {
		if err := p.SendJSON(frames.Need, part); err != nil {
			return nil, err
		}
	}
	if err := p.Send(frames.End, nil); err != nil {
		return nil, err
	}
	for _, n := range need {
		if err := r.fill(n); err != nil {
			return nil, err
		}
	}
	if err := p.Send(frames.Result, nil); err != nil {
		return nil, err
	}
	now, err := Scan(ctx, dir)
	return agreed(want, now), err
}

// agreed returns what both sides have: want, with the dates by which the machine notices a
// change. What another command there has changed meanwhile is no part of it.
func agreed(want, now []Entry) []Entry {
	is := index(now)
	for i := range want {
		if n := is[want[i].Path]; same(n, &want[i]) {
			want[i].Touched = n.Touched
		}
	}
	return want
}

type receiver struct {
	taker
	Owner
	want []Entry
}

// prune removes what is not wanted, or is something else.
func (r *receiver) prune(have []Entry) error {
	wanted := index(r.want)
	for i := len(have) - 1; i >= 0; i-- { // what is in a directory comes after it
		if w := wanted[have[i].Path]; w != nil && w.Kind == have[i].Kind {
			continue
		}
		if err := r.root.RemoveAll(have[i].Path); err != nil {
			return err
		}
	}
	return nil
}

// shape makes directories, links and permissions, and returns the positions of files whose
// content is needed.
func (r *receiver) shape(have []Entry) (need []int, err error) {
	is := index(have)
	for i := range r.want {
		e := &r.want[i]
		old := is[e.Path]
		if old != nil && old.Kind != e.Kind {
			old = nil
		}
		switch {
		case e.Kind == File && (old == nil || old.Size != e.Size || old.Time != e.Time):
			need = append(need, i)
			continue
		case old != nil && same(old, e) && old.Mode == e.Mode:
			continue
		case e.Kind == File:
			err = r.root.Chmod(e.Path, fs.FileMode(e.Mode))
		default:
			err = r.write(r.root, e, false)
		}
		if err = errors.Join(err, r.own(e.Path)); err != nil {
			return nil, err
		}
	}
	return need, nil
}

func (r *receiver) fill(n int) error {
	b, err := frames.Expect(r.p, frames.File)
	if err != nil {
		return err
	}
	var at int
	if json.Unmarshal(b, &at) != nil || at != n {
		return errors.New("the other side sent another file than was needed")
	}
	e := &r.want[n]
	if err := r.write(r.root, e, false); err != nil {
		return err
	}
	return r.own(e.Path)
}

// own gives path to the owner. Only root can, and needs to.
func (r *receiver) own(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return r.root.Lchown(path, r.UID, r.GID)
}
