package plan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/sparse"
	"github.com/carboy/carboy/internal/store"
)

// copyWorkspace makes the private copy that a run with --workspace copy works
// on: by reflink where the file system can, so that it costs no space. Sockets,
// pipes and devices are left out. The host may edit meanwhile; each file is
// copied as it is at that moment.
func (p *Plan) copyWorkspace(ctx context.Context, dst string) error {
	c := Copier{Id: p.Workspace}
	if os.Geteuid() == 0 && p.User.HostUID != 0 {
		c.As = &p.User
	}
	if err := c.Tree(ctx, p.Source, dst); err != nil {
		return fmt.Errorf("copy workspace: %w", err)
	}
	return nil
}

// Copier copies one tree.
type Copier struct {
	Id store.Workspace // what src must be
	// As names the user that root makes the copy for: files that this user cannot
	// read are left out. Nil: all readable files are copied.
	As *User
	// Roots means that root owns the workspace, so root may show its files.
	Roots bool
}

// Tree copies the directory src, which must be c.Id, into dst.
func (c Copier) Tree(ctx context.Context, src, dst string) error {
	root, err := os.OpenRoot(src)
	if err != nil {
		return err
	}
	defer root.Close()
	fi, err := root.Stat(".")
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || st.Dev != c.Id.Dev || st.Ino != c.Id.Ino {
		return fmt.Errorf("%s: another directory was put in its place", src)
	}
	c.Roots = st.Uid == 0
	type dirMode struct {
		path string
		mode fs.FileMode
	}
	var dirs []dirMode
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && path != "." {
				return nil // removed meanwhile
			}
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		to := filepath.Join(dst, path)
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !c.MayRead(fi) {
			if d.IsDir() && path != "." {
				return fs.SkipDir
			}
			return nil
		}
		switch {
		case d.IsDir():
			dirs = append(dirs, dirMode{to, fi.Mode().Perm()})
			return os.Mkdir(to, 0o700)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := root.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, to)
		case d.Type().IsRegular():
			return copyFile(ctx, root, path, to, fi)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Modes last: a directory without the write bit must be filled first.
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Chmod(dirs[i].path, dirs[i].mode); err != nil {
			return err
		}
	}
	return nil
}

// MayRead reports whether the user that the copy is for may read the file, by its
// permission bits.
func (c Copier) MayRead(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if c.As == nil || !ok || fi.Mode()&fs.ModeSymlink != 0 {
		return true
	}
	need := uint32(0o4)
	if fi.IsDir() {
		need = 0o5
	}
	switch {
	case st.Uid == c.As.HostUID:
		need <<= 6
	case st.Gid == c.As.HostGID:
		need <<= 3
	case c.Roots && st.Uid == 0:
		return true
	}
	return st.Mode&need == need
}

func copyFile(ctx context.Context, root *os.Root, path, to string, fi fs.FileInfo) error {
	in, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	if now, err := in.Stat(); err != nil || !now.Mode().IsRegular() {
		return err // became something else meanwhile
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		if err := errors.Join(sparse.Copy(ctx, out, 0, in, fi.Size()), out.Truncate(fi.Size())); err != nil {
			return err
		}
	}
	if err := out.Chmod(fi.Mode().Perm()); err != nil {
		return err
	}
	if err := os.Chtimes(to, fi.ModTime(), fi.ModTime()); err != nil {
		return err
	}
	return out.Close()
}
