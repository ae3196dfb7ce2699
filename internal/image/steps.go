package image

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// maxKept bounds what is kept of the steps of builds, in bytes.
const maxKept = 10 << 30

// Steps returns the directory in which builds keep what their steps have changed, by
// content. Nothing of it is removed until done is called; then the steps that were not used
// for longest are, beyond a bound.
func (s *Store) Steps(ctx context.Context) (dir string, done func(), err error) {
	lock, err := s.lock(ctx, unix.LOCK_SH, "steps", "lock")
	if err != nil {
		return "", nil, err
	}
	return s.path("steps"), func() {
		lock.Close()
		if lock, err := s.tryLock(unix.LOCK_EX, "steps", "lock"); err == nil {
			defer lock.Close()
			s.prune(maxKept)
		}
	}, nil
}

// prune removes what killed builds left, and the steps beyond a number of bytes.
func (s *Store) prune(most int64) {
	files, err := os.ReadDir(s.path("steps"))
	if err != nil {
		return // the next build tries again
	}
	type step struct {
		name string
		size int64
		used time.Time
	}
	var all []step
	for _, f := range files {
		fi, err := f.Info()
		switch {
		case err != nil || f.Name() == "lock":
		case isHex(f.Name()) && fi.Mode().IsRegular():
			all = append(all, step{f.Name(), fi.Size(), fi.ModTime()})
		default:
			os.RemoveAll(s.path("steps", f.Name()))
		}
	}
	slices.SortFunc(all, func(a, b step) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.name, b.name)) })
	for _, st := range all {
		if most -= st.size; most < 0 {
			os.Remove(s.path("steps", st.name))
		}
	}
}

// Recall returns the image that was built with a key, or nil.
func (s *Store) Recall(ref, key string) (*Image, error) {
	var was built
	err := store.ReadJSON(s.noteOf(key), builtKind, &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.pulled(ref, was.Digest)
}

// Remember notes which image was built with a key, which is made of letters and digits.
func (s *Store) Remember(key, digest string) error {
	if err := os.MkdirAll(s.path("builds"), 0o700); err != nil {
		return err
	}
	return store.WriteJSON(s.noteOf(key), builtKind, built{Schema: store.Schema(builtKind), Digest: digest})
}

func (s *Store) noteOf(key string) string {
	return s.path("builds", filepath.Base(key)+"-"+runtime.GOARCH+".json")
}

// FileLayer returns the layer that a file holds, whose digest the caller has computed.
func FileLayer(path, digest string) (v1.Layer, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToLayer(&blob{path, h})
}
