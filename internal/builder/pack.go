package builder

import (
	"archive/tar"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Bounds of what one COPY takes.
const (
	maxCopy        = 64 << 30 // bytes
	maxCopyEntries = 1_000_000
)

// packer writes files of a tree as a tar, as COPY puts them below its destination: of a
// directory what is in it, of a file the file. Links stay links, except a source itself.
type packer struct {
	fsys    fs.ReadLinkFS
	w       *tar.Writer
	sum     hash.Hash                                     // of names, modes, links and contents; nil: not wanted
	skip    func(name string) (skip, all bool, err error) // nil: nothing
	root    bool                                          // files become root's
	plain   bool                                          // a source that is an archive is an error
	entries int
	left    int64
}

// contents is the name of the entry that says that a directory's contents follow, not a file
// that may be given another name.
const contents = "./"

// pack writes the sources.
func (p *packer) pack(sources []string) error {
	p.left = maxCopy
	for _, s := range sources {
		names, err := p.match(s)
		if err != nil {
			return err
		}
		for _, name := range names {
			fi, err := fs.Stat(p.fsys, name)
			if err != nil {
				return err
			}
			if !fi.IsDir() {
				if p.plain && p.archive(name) {
					return fmt.Errorf("%q is an archive, which is not unpacked here: COPY takes it as it is, and the Docker Engine and BuildKit unpack it", s)
				}
				err = p.one(name, path.Base(name), fi)
			} else if err = p.header(&tar.Header{Typeflag: tar.TypeDir, Name: contents, Mode: 0o755, Format: tar.FormatPAX}); err == nil {
				err = p.tree(name, ".")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// match returns the names that a source means.
func (p *packer) match(source string) (out []string, err error) {
	name := clean(source)
	if name == "" {
		return []string{"."}, nil
	}
	if !strings.ContainsAny(name, `*?[\`) {
		if skipped, err := p.skips(name); err != nil || skipped {
			return nil, errors.Join(err, fmt.Errorf("%q is left out by .dockerignore", source))
		}
		if _, err := fs.Stat(p.fsys, name); err != nil {
			return nil, fmt.Errorf("%q: %w", source, err)
		}
		return []string{name}, nil
	}
	all, err := fs.Glob(p.fsys, name)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", source, err)
	}
	for _, n := range all {
		skipped, err := p.skips(n)
		if err != nil {
			return nil, err
		}
		if !skipped {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing is called %q", source)
	}
	return out, nil
}

// skips reports whether nothing at or below the name is taken.
func (p *packer) skips(name string) (bool, error) {
	if p.skip == nil {
		return false, nil
	}
	skip, all, err := p.skip(name)
	if err != nil || !skip {
		return false, err
	}
	fi, err := fs.Stat(p.fsys, name)
	return err != nil || all || !fi.IsDir(), nil
}

// tree writes what is in a directory, by sorted names.
func (p *packer) tree(dir, as string) error {
	list, err := fs.ReadDir(p.fsys, dir)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range list {
		name, to := path.Join(dir, e.Name()), path.Join(as, e.Name())
		skip := false
		if p.skip != nil {
			all := false
			if skip, all, err = p.skip(name); err != nil {
				return err
			}
			if skip && (all || !e.IsDir()) {
				continue
			}
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if !skip {
			if err := p.one(name, to, fi); err != nil {
				return err
			}
		}
		if fi.IsDir() {
			if err := p.tree(name, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// one writes one entry.
func (p *packer) one(name, as string, fi fs.FileInfo) error {
	if p.entries++; p.entries > maxCopyEntries {
		return fmt.Errorf("more than %d files are copied", maxCopyEntries)
	}
	h := &tar.Header{Name: as, Mode: modeOf(fi), ModTime: fi.ModTime(), Format: tar.FormatPAX}
	if st, ok := fi.Sys().(*unixStat); ok && !p.root {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	var err error
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, as+"/"
	case fi.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = p.fsys.ReadLink(name); err != nil {
			return err
		}
	case fi.Mode().IsRegular():
		return p.file(name, h)
	default:
		return fmt.Errorf("%s is neither a file, nor a directory, nor a link", name)
	}
	return p.header(h)
}

// modeOf returns the permissions and the sticky bit.
func modeOf(fi fs.FileInfo) int64 {
	m := int64(fi.Mode().Perm())
	if fi.Mode()&fs.ModeSticky != 0 {
		m |= 0o1000
	}
	return m
}

// header writes an entry's header, and adds it to the sum.
func (p *packer) header(h *tar.Header) error {
	if p.sum != nil {
		fmt.Fprintf(p.sum, "%c %o %d %d %q %q %d\n", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Name, h.Linkname, h.Size)
	}
	return p.w.WriteHeader(h)
}

// file writes a file with the length that it had when it was opened.
func (p *packer) file(name string, h *tar.Header) error {
	f, err := p.fsys.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s was replaced", name)
	}
	h.Typeflag, h.Size, h.Mode = tar.TypeReg, fi.Size(), modeOf(fi)
	if p.left -= h.Size; p.left < 0 {
		return fmt.Errorf("more than %d bytes are copied", int64(maxCopy))
	}
	if err := p.header(h); err != nil {
		return err
	}
	to := io.Writer(p.w)
	if p.sum != nil {
		to = io.MultiWriter(p.w, p.sum)
	}
	if _, err := io.CopyN(to, f, h.Size); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// archive reports whether a file begins as archives do.
func (p *packer) archive(name string) bool {
	f, err := p.fsys.Open(name)
	if err != nil {
		return false // packing it will say why
	}
	defer f.Close()
	head := make([]byte, 262)
	n, _ := io.ReadFull(f, head)
	for _, magic := range []string{"\x1f\x8b", "BZh", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"} {
		if strings.HasPrefix(string(head[:n]), magic) {
			return true
		}
	}
	return n == len(head) && string(head[257:]) == "ustar"
}

type unixStat = syscall.Stat_t
