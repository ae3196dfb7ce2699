package builder

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/run/plan"
)

// What follows runs in the bottle, as its root. Paths, links and accounts are the image's
// there, and lead nowhere else: carboy outside resolves none of them.

// order tells the program inside what to do, on its standard input. The contents of copies
// follow it as tars, one after the other.
type order struct {
	plan.Order // Run comes after Ops
	Ops        []op
	Pack       *packing // instead of both; nil: nothing
}

// op changes the file system.
type op struct {
	Where string // in the Dockerfile, for errors
	Mkdir string // a directory to make; empty: this is a copy
	Dest  string // absolute; with a slash at the end a directory
	Chown string // USER, USER:GROUP or empty
	Chmod string // octal, or empty
}

// packing writes files of a stage to standard output.
type packing struct{ Sources []string }

// Main carries out an order if the process is the program inside a bottle, and then does not
// return. Otherwise it returns at once.
func Main() {
	if os.Args[0] != plan.BuildProgram {
		return
	}
	unix.Umask(0o022)
	if err := inside(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(125)
	}
	os.Exit(0)
}

func inside(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if o.Pack != nil {
		w := bufio.NewWriterSize(out, 256<<10)
		p := &packer{fsys: os.DirFS("/").(fs.ReadLinkFS), w: tar.NewWriter(w)}
		if err := p.pack(o.Pack.Sources); err != nil {
			return err
		}
		return errors.Join(p.w.Close(), w.Flush())
	}
	for _, op := range o.Ops {
		if op.Mkdir != "" {
			err = os.MkdirAll(op.Mkdir, 0o755)
		} else {
			err = op.copy(r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", op.Where, err)
		}
	}
	if o.Run == nil {
		return nil
	}
	return become(o.Run)
}

// copy unpacks the next tar.
func (o *op) copy(r io.Reader) error {
	x := &copying{op: o, uid: -1, gid: -1, mode: -1}
	if o.Chown != "" {
		who, err := lookUp(o.Chown)
		if err != nil {
			return err
		}
		x.uid, x.gid = who.uid, who.gid
	}
	if o.Chmod != "" {
		n, err := strconv.ParseUint(o.Chmod, 8, 12)
		if err != nil {
			return fmt.Errorf("--chmod=%s is not a mode in octal digits", o.Chmod)
		}
		x.mode = int64(n)
	}
	x.dest, x.into = filepath.Clean(o.Dest), strings.HasSuffix(o.Dest, "/")
	if fi, err := os.Stat(x.dest); err == nil && fi.IsDir() {
		x.into = true
	}
	if err := os.MkdirAll(filepath.Dir(x.dest), 0o755); err != nil {
		return err
	}
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what is copied: %w", err)
		}
		if h.Name == contents {
			x.into = true
		}
		if n == 0 && x.into {
			err = x.makeDir(x.dest)
		} else if n > 0 && !x.into {
			err = fmt.Errorf("several files can't be called %s: end it with /", x.dest)
		}
		if err == nil && h.Name != contents {
			err = x.one(h, t)
		}
		if err != nil {
			return err
		}
	}
}

// copying is one copy under way.
type copying struct {
	*op
	dest     string
	into     bool // dest is a directory
	uid, gid int
	mode     int64
}

func (x *copying) makeDir(name string) error {
	err := os.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		fi, err := os.Stat(name)
		if err == nil && !fi.IsDir() {
			err = &os.PathError{Op: "copy into", Path: name, Err: unix.ENOTDIR}
		}
		return err
	}
	if err == nil && x.uid >= 0 {
		err = os.Lchown(name, x.uid, x.gid)
	}
	return err
}

func (x *copying) one(h *tar.Header, r io.Reader) error {
	name := x.dest
	if x.into {
		name = filepath.Join(x.dest, path.Clean("/"+h.Name))
		// Of a directory that .dockerignore leaves out, a part may be taken.
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
	}
	mode := h.Mode & 0o1777
	if x.mode >= 0 {
		mode = x.mode
	}
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		if err = x.makeDir(name); err != nil {
			return err
		}
	case tar.TypeSymlink:
		if err = clearName(name); err == nil {
			err = os.Symlink(h.Linkname, name)
		}
	case tar.TypeReg:
		err = writeFile(name, r)
	default:
		return fmt.Errorf("%s is neither a file, nor a directory, nor a link", name)
	}
	if err != nil {
		return err
	}
	if x.uid >= 0 {
		if err := os.Lchown(name, x.uid, x.gid); err != nil {
			return err
		}
	} else if err := os.Lchown(name, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeSymlink {
		return nil
	}
	if err := unix.Chmod(name, uint32(mode)); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return nil // its time changes with what is put into it
	}
	return os.Chtimes(name, h.ModTime, h.ModTime)
}

// clearName removes what has the name, unless it is a directory.
func clearName(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile replaces what has the name by a new file.
func writeFile(name string, r io.Reader) error {
	if fi, err := os.Lstat(name); err == nil && fi.IsDir() {
		return &os.PathError{Op: "copy to", Path: name, Err: unix.EISDIR}
	}
	if err := clearName(name); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}

// become replaces the program by the process that c describes.
func become(c *plan.Inside) error {
	who, err := lookUp(c.User)
	if err != nil {
		return err
	}
	env := map[string]string{}
	for _, e := range c.Env {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	if _, ok := env["HOME"]; !ok {
		c.Env = append(c.Env, "HOME="+who.home)
	}
	if err := os.Chdir(c.Dir); err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	if err := unix.Dup2(int(null.Fd()), 0); err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(who.groups), syscall.Setresgid(who.gid, who.gid, who.gid), syscall.Setresuid(who.uid, who.uid, who.uid)); err != nil {
		return fmt.Errorf("become the user %q: %w", c.User, err)
	}
	name := which(c.Args[0], env["PATH"])
	if name == "" {
		return fmt.Errorf("%s: not found in the image, whose PATH is %q", c.Args[0], env["PATH"])
	}
	return fmt.Errorf("start %s: %w", name, unix.Exec(name, c.Args, c.Env))
}

// which returns the path of a program that may be executed, or "".
func which(name, path string) string {
	dirs := filepath.SplitList(path)
	if strings.Contains(name, "/") {
		dirs = []string{""}
	}
	for _, dir := range dirs {
		at := filepath.Join(dir, name)
		if fi, err := os.Stat(at); err == nil && fi.Mode().IsRegular() && unix.Access(at, unix.X_OK) == nil {
			return at
		}
	}
	return ""
}
