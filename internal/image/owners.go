package image

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// An unpacked image belongs to whoever unpacked it. What its layers give to others than root
// is put into the bottle's upper layer before its first command, where owners are the kernel's
// inside: so a command may run as the user whom the image was made for.

// maxOwned bounds the files that are put there, and their bytes.
const (
	maxOwned      = 200_000
	maxOwnedBytes = 1 << 30
)

// Owners returns a file with what img gives to others than root, in the form of
// Bottle.ExportAll, or "" if that is nothing. root is the image's directory, dir that of Steps.
func (s *Store) Owners(ctx context.Context, img *Image, root, dir string) (string, error) {
	b, err := json.Marshal([]any{"owners", img.Root, img.Layers})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	file := filepath.Join(dir, hex.EncodeToString(sum[:]))
	fi, err := os.Stat(file)
	if err != nil {
		if err := s.writeOwners(ctx, img, root, file); err != nil {
			return "", fmt.Errorf("image %s: owners of its files: %w", img.Ref, err)
		}
		if fi, err = os.Stat(file); err != nil {
			return "", err
		}
	}
	if fi.Size() == 0 {
		return "", nil
	}
	return file, nil
}

// writeOwners writes that file, empty if there is nothing.
func (s *Store) writeOwners(ctx context.Context, img *Image, root, file string) error {
	layers, err := s.Layers(img)
	if err != nil {
		return err
	}
	entries, err := owned(ctx, layers)
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := os.CreateTemp(filepath.Dir(file), "owners-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	n, err := seed(dir, entries, f)
	if err == nil && n == 0 {
		err = f.Truncate(0)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// owned returns the entries of the layers that are not root's, by their clean names.
func owned(ctx context.Context, layers []v1.Layer) (map[string]*tar.Header, error) {
	out := map[string]*tar.Header{}
	for _, l := range layers {
		if err := ownedOf(ctx, l, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func ownedOf(ctx context.Context, l v1.Layer, out map[string]*tar.Header) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		// What a later layer deletes is not there any more, and what it brings back is
		// listed again.
		name := clean(h.Name)
		if h.Typeflag == tar.TypeLink {
			if to := out[clean(h.Linkname)]; to != nil {
				out[name] = to
				continue
			}
		}
		delete(out, name)
		if h.Uid|h.Gid != 0 && name != "" {
			if len(out) == maxOwned {
				return fmt.Errorf("more than %d files are not root's", maxOwned)
			}
			out[name] = h
		}
	}
}

// seed writes the entries in the form of Bottle.ExportAll. Their contents are taken from the
// unpacked image. It returns their number.
func seed(root *os.Root, entries map[string]*tar.Header, w io.Writer) (n int, err error) {
	t := tar.NewWriter(w)
	made := map[string]bool{}
	left := int64(maxOwnedBytes)
	for _, name := range slices.SortedFunc(maps.Keys(entries), parentsFirst) {
		ok, err := seedParents(root, t, made, name, entries)
		if err != nil {
			return n, err
		}
		if !ok || made[name] {
			continue
		}
		if ok, err = seedOne(root, t, name, entries[name], &left); err != nil {
			return n, err
		}
		if ok {
			made[name] = true
			n++
		}
	}
	return n, t.Close()
}

// parentsFirst orders names so that a directory comes before what is in it.
func parentsFirst(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), strings.Compare(a, b))
}

// seedParents writes the directories above an entry. It reports false if one is not a
// directory: a layer may name a file by a link.
func seedParents(root *os.Root, t *tar.Writer, made map[string]bool, name string, entries map[string]*tar.Header) (bool, error) {
	for i := range name {
		if name[i] != '/' || made[name[:i]] {
			continue
		}
		dir := name[:i]
		fi, err := root.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir() {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		h := &tar.Header{Typeflag: tar.TypeDir, Name: "./" + dir + "/", Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX}
		if fi.Mode()&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if own := entries[dir]; own != nil {
			h.Uid, h.Gid, h.Mode = own.Uid, own.Gid, own.Mode&0o7777
		}
		if err := t.WriteHeader(h); err != nil {
			return false, err
		}
		made[dir] = true
	}
	return true, nil
}

// seedOne writes an entry if the image has a file of that kind there.
func seedOne(root *os.Root, t *tar.Writer, name string, was *tar.Header, left *int64) (bool, error) {
	fi, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h := &tar.Header{Name: "./" + name, Mode: was.Mode & 0o7777, Uid: was.Uid, Gid: was.Gid, ModTime: fi.ModTime(), Format: tar.FormatPAX}
	switch {
	case fi.IsDir() && was.Typeflag == tar.TypeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fi.Mode()&fs.ModeSymlink != 0 && was.Typeflag == tar.TypeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = root.Readlink(name); err != nil {
			return false, err
		}
	case fi.Mode().IsRegular() && was.Typeflag == tar.TypeReg:
		h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	default:
		return false, nil
	}
	if *left -= h.Size; *left < 0 {
		return false, fmt.Errorf("more than %d bytes of it are not root's", int64(maxOwnedBytes))
	}
	if err := t.WriteHeader(h); err != nil || h.Size == 0 {
		return true, err
	}
	f, err := root.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = io.CopyN(t, f, h.Size)
	return true, err
}

// clean returns a name from the root, without what leads elsewhere; the root's is "".
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }
