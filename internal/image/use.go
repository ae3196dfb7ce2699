package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// Root is an image's directory, locked against removal.
type Root struct {
	Dir  string // read-only for the user
	lock *os.File
}

// Close releases the lock.
func (r *Root) Close() error { return r.lock.Close() }

// Use opens the directory of an image that Pull returned.
func (s *Store) Use(ctx context.Context, img *Image) (*Root, error) {
	if !isHex(img.Root) {
		return nil, fmt.Errorf("image %s: %q names no root", img.Ref, img.Root)
	}
	lock, err := s.lock(ctx, unix.LOCK_SH, "roots", img.Root, "lock")
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.Ref, err)
	}
	dir := s.path("roots", img.Root, "fs")
	if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
		lock.Close()
		return nil, fmt.Errorf("image %s has been removed meanwhile", img.Ref)
	}
	return &Root{dir, lock}, nil
}

// List returns the pulled images, newest first.
func (s *Store) List() ([]Image, error) {
	files, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, err
	}
	var all []Image
	for _, f := range files {
		hash, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || !isHex(hash) {
			continue
		}
		var img Image
		if err := store.ReadJSON(s.path("images", f.Name()), kind, &img); err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	slices.SortStableFunc(all, func(a, b Image) int { return cmp.Or(b.When.Compare(a.When), cmp.Compare(a.Digest, b.Digest)) })
	return all, nil
}

// Remove removes an image by its digest, and the layers that no other image
// needs. It succeeds if the image is absent. It returns ErrInUse, and removes
// nothing, if a bottle uses the image's directory.
func (s *Store) Remove(ctx context.Context, digest string) error {
	h, err := v1.NewHash(digest)
	if err != nil {
		return err
	}
	mutex, err := s.lock(ctx, unix.LOCK_EX, "lock")
	if err != nil {
		return err
	}
	defer mutex.Close()
	all, err := s.List()
	if err != nil {
		return err
	}
	var gone *Image
	roots, blobs := map[string]bool{}, map[string]bool{}
	for i, img := range all {
		if img.Digest == digest {
			gone = &all[i]
			continue
		}
		roots[img.Root] = true
		for _, l := range img.Layers {
			blobs[l] = true
		}
	}
	if gone == nil {
		return nil
	}
	if !roots[gone.Root] && isHex(gone.Root) {
		lock, err := s.tryLock(unix.LOCK_EX, "roots", gone.Root, "lock")
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("%s: %w", digest, errInUse)
		case err == nil:
			defer lock.Close()
			// In one step, so that nobody finds half of it.
			if err := os.Rename(s.path("roots", gone.Root), s.path("tmp", "gone-"+gone.Root)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if err := os.Remove(s.path("images", h.Hex+".json")); err != nil {
		return err
	}
	for _, l := range gone.Layers {
		if lh, err := v1.NewHash(l); err == nil && !blobs[l] {
			if err := os.Remove(s.path("blobs", lh.Hex)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return s.sweep()
}
