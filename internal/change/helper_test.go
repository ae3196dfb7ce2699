package change

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"
)

// world is a workspace, a run directory and the start of a run.
type world struct {
	t    testing.TB
	ws   string
	run  string
	base *Baseline
}

// newWorld makes a workspace of the files given (a trailing slash: a
// directory; "->": a link) and begins a run.
func newWorld(t testing.TB, files map[string]string) *world {
	t.Helper()
	return newWorldAt(t, fastTemp(t), fastTemp(t), files)
}

func newWorldAt(t testing.TB, dir, run string, files map[string]string) *world {
	t.Helper()
	w := &world{t: t, ws: filepath.Join(dir, "ws"), run: run}
	must(t, os.Mkdir(w.ws, 0o755))
	w.write(files)
	w.begin()
	return w
}

func realTemp(t testing.TB) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}

// fastTemp is realTemp where syncing costs nothing, if there is such a place.
func fastTemp(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "change-test-")
	if err != nil {
		return realTemp(t)
	}
	t.Cleanup(func() {
		// An ordinary user removes nothing from a directory that may not be written to.
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func (w *world) begin() {
	w.t.Helper()
	b, err := Begin(context.Background(), w.ws, w.run)
	must(w.t, err)
	must(w.t, b.Wait(context.Background()))
	w.base = b
	w.t.Cleanup(func() { b.Close() })
}

func (w *world) write(files map[string]string) {
	w.t.Helper()
	names := make([]string, 0, len(files))
	for n := range files {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		p := w.ws + "/" + n
		must(w.t, os.MkdirAll(filepath.Dir(p), 0o755))
		switch c := files[n]; {
		case strings.HasSuffix(n, "/"):
			must(w.t, os.MkdirAll(p, 0o755))
		case strings.HasPrefix(c, "-> "):
			must(w.t, os.Symlink(c[3:], p))
		default:
			must(w.t, os.WriteFile(p, []byte(c), 0o644))
		}
	}
}

func (w *world) collect(stream []byte) *Set {
	w.t.Helper()
	s, err := Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base})
	must(w.t, err)
	return s
}

func (w *world) land(s *Set, o LandOptions) *LandReport {
	w.t.Helper()
	r, err := Land(context.Background(), s, o)
	must(w.t, err)
	return r
}

// tree describes a directory exactly: path, type, mode, content.
func treeOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		desc := info.Mode().String()
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			desc += " -> " + target
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if errors.Is(err, fs.ErrPermission) {
				b, err = []byte("?"), nil
			}
			if err != nil {
				return err
			}
			if len(b) > 200 {
				desc += fmt.Sprintf(" %d bytes", len(b))
			} else {
				desc += " " + string(b)
			}
		}
		out[rel] = desc
		return nil
	}))
	return out
}

func diffTrees(a, b map[string]string) string {
	var out []string
	for k, v := range a {
		if w, ok := b[k]; !ok {
			out = append(out, fmt.Sprintf("- %q %q", k, v))
		} else if v != w {
			out = append(out, fmt.Sprintf("! %q %q, now %q", k, v, w))
		}
	}
	for k, v := range b {
		if _, ok := a[k]; !ok {
			out = append(out, fmt.Sprintf("+ %q %q", k, v))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// upper builds a stream as the sandbox's file system writes it.
type upper struct {
	t    testing.TB
	buf  bytes.Buffer
	tw   *tar.Writer
	at   string // "./path/of/workspace"
	seen map[string]bool
	wo   string // first whiteout
}

func (w *world) upper() *upper {
	u := &upper{t: w.t, at: "." + w.ws, seen: map[string]bool{}}
	u.tw = tar.NewWriter(&u.buf)
	u.raw(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755})
	p := "."
	for c := range strings.SplitSeq(strings.TrimPrefix(w.ws, "/"), "/") {
		p += "/" + c
		u.raw(tar.Header{Name: p + "/", Typeflag: tar.TypeDir, Mode: 0o755})
	}
	return u
}

func (u *upper) raw(h tar.Header) {
	u.t.Helper()
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(1700000000, 0)
	}
	u.seen[strings.TrimSuffix(h.Name, "/")] = true
	must(u.t, u.tw.WriteHeader(&h))
}

// dirs emits the directories above name that the stream lacks, as copied up.
func (u *upper) dirs(name string) {
	i := strings.LastIndexByte(name, '/')
	if i < 0 || u.seen[u.at+"/"+name[:i]] {
		return
	}
	u.dirs(name[:i])
	u.dir(name[:i], 0o755)
}

func (u *upper) dir(name string, mode int64) *upper {
	u.dirs(name)
	u.raw(tar.Header{Name: u.at + "/" + name + "/", Typeflag: tar.TypeDir, Mode: mode})
	return u
}

func (u *upper) opaque(name string, mode int64) *upper {
	u.dirs(name)
	u.raw(tar.Header{Name: u.at + "/" + name + "/", Typeflag: tar.TypeDir, Mode: mode,
		PAXRecords: map[string]string{opaqueXattr: "y"}})
	return u
}

func (u *upper) file(name, content string, mode int64) *upper {
	u.t.Helper()
	u.dirs(name)
	u.raw(tar.Header{Name: u.at + "/" + name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))})
	_, err := u.tw.Write([]byte(content))
	must(u.t, err)
	return u
}

func (u *upper) link(name, target string) *upper {
	u.dirs(name)
	u.raw(tar.Header{Name: u.at + "/" + name, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target})
	return u
}

func (u *upper) hard(name, first string) *upper {
	u.dirs(name)
	u.raw(tar.Header{Name: u.at + "/" + name, Typeflag: tar.TypeLink, Linkname: first})
	return u
}

// gone emits a whiteout: the first as a device, further ones as hard links.
func (u *upper) gone(name string) *upper {
	u.dirs(name)
	full := u.at + "/" + name
	if u.wo != "" {
		u.raw(tar.Header{Name: full, Typeflag: tar.TypeLink, Linkname: u.wo})
		return u
	}
	u.wo = full
	u.raw(tar.Header{Name: full, Typeflag: tar.TypeChar})
	return u
}

func (u *upper) bytes() []byte {
	u.t.Helper()
	must(u.t, u.tw.Close())
	return u.buf.Bytes()
}

// kinds summarises a set as "kind path" lines.
func kinds(s *Set) string {
	var b strings.Builder
	for _, c := range s.Changes {
		fmt.Fprintf(&b, "%s %s %s", c.Kind, c.Type, c.Path)
		if c.BaseMoved != "" {
			b.WriteString(" MOVED")
		}
		if c.Unlandable != "" {
			b.WriteString(" NEVER")
		}
		if c.Omitted != "" {
			b.WriteString(" OMITTED")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
