package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// Bounds of a build context.
const (
	maxContext        = 4 << 30 // bytes
	maxContextEntries = 200_000
	maxIgnore         = 1 << 20
)

// writeContext writes the tree below root to w in the form that engines read,
// without what .dockerignore excludes. sum covers names, modes, links, contents
// and the Dockerfile's name, but not times. It does not follow links.
func writeContext(ctx context.Context, w io.Writer, root *os.Root, dockerfile string) (sum [sha256.Size]byte, err error) {
	ignored, err := Ignores(root, dockerfile)
	if err != nil {
		return sum, err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", dockerfile)
	out := tar.NewWriter(w)
	// BuildKit recognises an archive by its first block alone.
	if err := out.WriteHeader(&tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755, Format: tar.FormatUSTAR}); err != nil {
		return sum, err
	}
	entries, left := 0, int64(maxContext)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case name == ".":
			return nil
		}
		if skip, all, err := ignored(name); err != nil || skip {
			if err == nil && all && d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		if entries++; entries > maxContextEntries {
			return fmt.Errorf("more than %d files: name what is not needed in .dockerignore", maxContextEntries)
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		hdr := &tar.Header{Name: name, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime()}
		switch {
		case fi.IsDir():
			hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
		case fi.Mode()&fs.ModeSymlink != 0:
			hdr.Typeflag = tar.TypeSymlink
			if hdr.Linkname, err = root.Readlink(name); err != nil {
				return err
			}
		case fi.Mode().IsRegular():
			return contextFile(ctx, out, h, root, hdr, &left)
		default:
			return fmt.Errorf("%s is neither a file, nor a directory, nor a link: name it in .dockerignore", name)
		}
		fmt.Fprintf(h, "%c %o %q %q\n", hdr.Typeflag, hdr.Mode, hdr.Name, hdr.Linkname)
		return out.WriteHeader(hdr)
	})
	if err = errors.Join(err, out.Close()); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// contextFile writes one file, with the length that it had when it was opened.
func contextFile(ctx context.Context, out *tar.Writer, h io.Writer, root *os.Root, hdr *tar.Header, left *int64) error {
	f, err := root.OpenFile(hdr.Name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s was replaced", hdr.Name)
	}
	hdr.Typeflag, hdr.Size, hdr.Mode = tar.TypeReg, fi.Size(), int64(fi.Mode().Perm())
	if *left -= hdr.Size; *left < 0 {
		return fmt.Errorf("more than %d bytes: name what is not needed in .dockerignore", int64(maxContext))
	}
	fmt.Fprintf(h, "%c %o %q %d\n", hdr.Typeflag, hdr.Mode, hdr.Name, hdr.Size)
	if err := out.WriteHeader(hdr); err != nil {
		return err
	}
	if _, err := io.CopyN(io.MultiWriter(out, h), reader{ctx, f}, hdr.Size); err != nil {
		return fmt.Errorf("read %s: %w", hdr.Name, err)
	}
	return nil
}

// Ignores reads .dockerignore, or the one of this Dockerfile alone, as the
// engines' own clients do. all means that everything below name is excluded as
// well.
func Ignores(root *os.Root, dockerfile string) (func(name string) (skip, all bool, err error), error) {
	var patterns []string
	for _, name := range []string{dockerfile + ".dockerignore", ".dockerignore"} {
		f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		patterns, err = ignorefile.ReadAll(io.LimitReader(f, maxIgnore))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		break
	}
	m, err := patternmatcher.New(patterns)
	if err != nil {
		return nil, fmt.Errorf("read .dockerignore: %w", err)
	}
	return func(name string) (skip, all bool, err error) {
		if name = path.Clean(name); name == dockerfile {
			return false, false, nil
		}
		skip, err = m.MatchesOrParentMatches(name)
		return skip, !m.Exclusions(), err
	}, nil
}
