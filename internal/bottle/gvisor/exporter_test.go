package gvisor

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// made is a bottle for one test, with helpers.
type made struct {
	t    testing.TB
	ctx  context.Context
	spec *bottle.Spec
	b    bottle.Bottle
}

func makeBottle(t testing.TB, tune ...func(*bottle.Spec)) *made {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	s := testSpec(t)
	for _, f := range tune {
		f(s)
	}
	b, err := Backend{}.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testenv.AwaitReports(); b.Close() })
	return &made{t, ctx, s, b}
}

// sh runs a script in the workspace and returns its output.
func (m *made) sh(script string) string {
	m.t.Helper()
	out, st := m.run("sh", "-c", "set -e\n"+script)
	if st.ExitCode() != 0 {
		m.t.Fatalf("script ended with %d: %s", st.ExitCode(), out)
	}
	return out
}

func (m *made) run(args ...string) (string, bottle.Status) {
	m.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Close()
	in, inw, err := os.Pipe()
	if err != nil {
		m.t.Fatal(err)
	}
	inw.Close()
	p, err := m.b.Start(m.ctx, &bottle.Command{
		Args: args, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/carboy"},
		Dir: m.spec.Workspace.Target, Stdin: in, Stdout: w, Stderr: w,
	})
	w.Close()
	in.Close()
	if err != nil {
		m.t.Fatal(err)
	}
	var out bytes.Buffer
	done := make(chan struct{})
	go func() { io.Copy(&out, r); close(done) }()
	st, err := p.Wait(m.ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	<-done
	return out.String(), st
}

// upper is one entry of an export.
type upper struct {
	*tar.Header
	data []byte
}

// export pauses and reads the changes; names are relative to the workspace,
// which is "". Contents over 1 MiB are left out.
func (m *made) export() map[string]upper {
	m.t.Helper()
	if err := m.b.Pause(m.ctx); err != nil {
		m.t.Fatal(err)
	}
	r, w := io.Pipe()
	errc := make(chan error, 1)
	go func() {
		err := m.b.Export(m.ctx, w)
		w.CloseWithError(err)
		errc <- err
	}()
	out := map[string]upper{}
	ws := "." + m.spec.Workspace.Target
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			m.t.Fatal(err)
		}
		name := h.Name
		if h.Typeflag == tar.TypeDir {
			name = strings.TrimSuffix(name, "/")
		}
		if name != ws && !strings.HasPrefix(name, ws+"/") {
			if !strings.HasPrefix(ws, name+"/") || h.Typeflag != tar.TypeDir {
				m.t.Fatalf("exported %q, which is outside the workspace", name)
			}
			continue
		}
		name = strings.TrimPrefix(strings.TrimPrefix(name, ws), "/")
		u := upper{Header: h}
		if h.Size <= 1<<20 {
			if u.data, err = io.ReadAll(tr); err != nil {
				m.t.Fatal(err)
			}
		}
		if _, dup := out[name]; dup {
			m.t.Fatalf("%q is in the stream twice", name)
		}
		out[name] = u
	}
	io.Copy(io.Discard, r)
	if err := <-errc; err != nil {
		m.t.Fatal(err)
	}
	return out
}

func isWhiteout(u upper) bool {
	return u.Header != nil && u.Typeflag == tar.TypeChar && u.Devmajor == 0 && u.Devminor == 0
}

// seed writes files below the spec's workspace on the host.
func seed(t testing.TB, files map[string]string) func(*bottle.Spec) {
	return func(s *bottle.Spec) {
		for name, text := range files {
			p := filepath.Join(s.Workspace.Source, name)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestExportKinds(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m := makeBottle(t, seed(t, map[string]string{
		"gone1": "1", "gone2": "2", "gone3": "3", "tree/a/b": "x", "tree/c": "y",
		"opaque/old": "o", "moved/in/file": "m", "replaced": "r", "sock": "a file", "append": "start ",
	}))
	m.sh(`
rm gone1 gone2 gone3
rm -r tree
rm -r opaque; mkdir opaque; echo new > opaque/new
mv moved elsewhere
rm replaced; mkdir replaced; ln -s ../x replaced/link
printf more >> append
mkfifo pipe
printf 'a' > "$(printf 'new\nline')"
printf 'b' > "$(printf 'bad\377\376utf8')"
printf 'c' > ' lead -- and trail '
ln append hard1; ln append hard2
mkdir -p long; cd long; n=$(printf 'd%.0s' $(seq 200)); mkdir -p $n/$n; echo deep > $n/$n/$n; cd ..
chmod 600 a.txt
rm -f sock
exec 3> unlinked; echo x >&3; rm unlinked
`)
	if out, st := m.run("python3", "-c", `
import socket, os
s = socket.socket(socket.AF_UNIX); s.bind("sock")
open("attr", "w").write("x")
os.setxattr("attr", "user.plain", b"v")
os.setxattr("attr", "user.odd", b"\x00\xff\n12 path=/etc/passwd\n")
os.setxattr("attr", "user.eq=ual", b"v")
os.setxattr("attr", "user.overlay.opaque", b"y")
for i in range(20): os.setxattr("attr", "user.big%d" % i, b"b"*60000)
import mmap
f = open("mapped", "w+b"); f.truncate(3*4096); m = mmap.mmap(f.fileno(), 3*4096)
m[4096:4101] = b"dirty"   # neither msync nor munmap
os.utime("mapped", (2**40, -5))
import sys; sys.stdout.flush(); os._exit(0)
`); st.ExitCode() != 0 {
		t.Fatal(out)
	}
	got := m.export()
	for _, n := range []string{"gone1", "gone2", "gone3", "tree", "moved", "sock"} {
		if !isWhiteout(got[n]) {
			t.Errorf("%s is not a whiteout: %+v", n, got[n].Header)
		}
	}
	if got["sock"].Header != nil && got["sock"].PAXRecords[recType] != "socket" {
		t.Error("the socket is not marked")
	}
	if got["gone1"].PAXRecords[recType] != "" {
		t.Error("a deletion is marked as a socket")
	}
	for _, n := range []string{"opaque", "replaced"} {
		if got[n].Header == nil || got[n].Typeflag != tar.TypeDir || got[n].PAXRecords[recOpaque] != "y" {
			t.Errorf("%s is not an opaque directory: %+v", n, got[n].Header)
		}
	}
	d200 := strings.Repeat("d", 200)
	for n, want := range map[string]string{
		"opaque/new": "new\n", "elsewhere/in/file": "m", "append": "start more", "new\nline": "a",
		"bad\xff\xfeutf8": "b", " lead -- and trail ": "c", "long/" + d200 + "/" + d200 + "/" + d200: "deep\n", "attr": "x",
		"mapped": strings.Repeat("\x00", 4096) + "dirty" + strings.Repeat("\x00", 8192-5),
	} {
		if u := got[n]; u.Header == nil || string(u.data) != want {
			t.Errorf("%q: %q, want %q", n, u.data, want)
		}
	}
	if got["opaque"].Header != nil && got["attr"].PAXRecords[recOpaque] != "" {
		t.Error("the bottle marked a file opaque")
	}
	for _, n := range []string{"hard1", "hard2"} {
		if u := got[n]; u.Header == nil || u.Typeflag != tar.TypeLink || !strings.HasSuffix(u.Linkname, "/append") {
			t.Errorf("%s is no hard link to append: %+v", n, u.Header)
		}
	}
	if u := got["pipe"]; u.Header == nil || u.Typeflag != tar.TypeFifo {
		t.Errorf("pipe: %+v", u.Header)
	}
	if u := got["replaced/link"]; u.Header == nil || u.Linkname != "../x" {
		t.Errorf("replaced/link: %+v", u.Header)
	}
	if u := got["a.txt"]; u.Header == nil || u.Mode != 0o600 || string(u.data) != "hello\n" {
		t.Errorf("a.txt: %+v", u.Header)
	}
	if _, ok := got["unlinked"]; ok {
		t.Error("an open file without a name was exported")
	}
	a := got["attr"].PAXRecords
	if a[recXattr+"user.plain"] != "v" || a[recXattr+"user.odd"] != "\x00\xff\n12 path=/etc/passwd\n" || a[recXattr+"user.overlay.opaque"] != "y" {
		t.Error("extended attributes were changed")
	}
	if a[recDropped] == "" {
		t.Error("attributes were dropped without a count")
	}
}

// A terabyte that is a hole costs nothing; one that may not be made is refused
// inside with EFBIG.
func TestExportSparse(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m := makeBottle(t, func(s *bottle.Spec) { s.Limits.FileSize = 2 << 40 })
	m.sh(`truncate -s 1T hole
truncate -s 1T islands; printf one | dd of=islands conv=notrunc bs=1 seek=500000000000 2>/dev/null
printf end | dd of=islands conv=notrunc bs=1 seek=$((1024*1024*1024*1024-3)) 2>/dev/null
truncate -s 300000000 comb; python3 -c '
f=open("comb","r+b")
for i in range(30000): f.seek(i*8192); f.write(b"%d" % i)
'`)
	before, err := memoryOf(m.b)
	if err != nil {
		t.Fatal(err)
	}
	var n counter
	if err := m.b.Pause(m.ctx); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(m.b.Export(m.ctx, io.MultiWriter(w, &n))) }()
	sizes := map[string]int64{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sizes[filepath.Base(h.Name)] = h.Size
		if filepath.Base(h.Name) == "comb" {
			checkComb(t, tr)
		}
	}
	io.Copy(io.Discard, r)
	if sizes["hole"] != 1<<40 || sizes["islands"] != 1<<40 || sizes["comb"] != 300000000 {
		t.Errorf("sizes: %v", sizes)
	}
	if n > 400<<20 {
		t.Errorf("%d bytes were written for some 120 MB of data", n)
	}
	after, err := memoryOf(m.b)
	if err != nil {
		t.Fatal(err)
	}
	if after > before+64<<20 {
		t.Errorf("memory went from %d to %d", before, after)
	}
	t.Logf("stream %d bytes, memory %d then %d", n, before, after)
}

func checkComb(t *testing.T, r io.Reader) {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 30000; i += 777 {
		want := []byte(strconv.Itoa(i))
		if !bytes.HasPrefix(b[i*8192:], want) || b[i*8192+4096] != 0 {
			t.Fatalf("tooth %d is %q", i, b[i*8192:i*8192+8])
		}
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

func TestFileSizeLimit(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m := makeBottle(t, func(s *bottle.Spec) { s.Limits.FileSize = 1 << 20 })
	out, st := m.run("python3", "-c", `
import os, signal, errno
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
f = os.open("big", os.O_RDWR|os.O_CREAT)
os.ftruncate(f, 1<<20)
for size in ((1<<20)+1, 1<<40):
    try: os.ftruncate(f, size); print("truncated to", size)
    except OSError as e: print(errno.errorcode[e.errno])
    try: os.pwrite(f, b"x", size-1); print("wrote at", size)
    except OSError as e: print(errno.errorcode[e.errno])
    try: os.posix_fallocate(f, 0, size); print("allocated", size)
    except OSError as e: print(errno.errorcode[e.errno])
`)
	if want := strings.Repeat("EFBIG\n", 6); st.ExitCode() != 0 || out != want {
		t.Errorf("exit %d: %s", st.ExitCode(), out)
	}
	if got := m.export()["big"]; got.Header == nil || got.Size != 1<<20 {
		t.Errorf("big: %+v", got.Header)
	}
}

func TestExportMany(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	dirs := 10
	if testenv.Exhaustive() {
		dirs = 100
	}
	m := makeBottle(t)
	m.sh(`python3 -c '
import os
for d in range(` + strconv.Itoa(dirs) + `):
    os.mkdir("d%d" % d)
    for i in range(1000): open("d%d/f%d" % (d, i), "w").write("%d" % i)
open("one", "w").write("1")
for i in range(5000): os.link("one", "l%d" % i)
p = "deep"
os.mkdir(p); os.chdir(p)
for i in range(3000): os.mkdir("x"); os.chdir("x")
open("end", "w").write("end")
'`)
	t0 := time.Now()
	got := m.export()
	t.Logf("%d entries in %v", len(got), time.Since(t0))
	files, links := 0, 0
	for n, u := range got {
		switch {
		case u.Typeflag == tar.TypeLink:
			links++
		case strings.HasPrefix(n, "d") && u.Typeflag == tar.TypeReg:
			if string(u.data) != n[strings.LastIndexByte(n, 'f')+1:] {
				t.Fatalf("%s holds %q", n, u.data)
			}
			files++
		}
	}
	if files != 1000*dirs || links != 5000 {
		t.Errorf("%d files, %d links", files, links)
	}
	// Beyond PATH_MAX nothing has a name that could be landed: the first
	// directory there stands for the rest.
	longest := 0
	for n := range got {
		longest = max(longest, len(n))
	}
	ws := len(m.spec.Workspace.Target) + 2
	if longest+ws <= maxExportPath || longest+ws > maxExportPath+256 {
		t.Errorf("the longest path has %d bytes", longest+ws)
	}
}

// While the bottle runs, things change and vanish under the exporter; the
// stream stays a whole one.
func TestExportRunning(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m := makeBottle(t)
	in, inw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inw.Close()
	out, outw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	_, err = m.b.Start(m.ctx, &bottle.Command{
		Args: []string{"python3", "-c", `
import os, shutil
i = 0
while True:
    i += 1
    if i == 10: os.write(1, b"at work")
    d = "t%d" % (i % 7)
    shutil.rmtree(d, ignore_errors=True); os.makedirs(d + "/x/y")
    for k in range(9): open(d + "/x/f%d" % k, "w").write("z" * (i * 997 % 70000))
    os.truncate(d + "/x/f3", i % 100000); os.rename(d + "/x/f1", d + "/moved")
`},
		Env: []string{"PATH=/usr/bin:/bin"}, Dir: m.spec.Workspace.Target, Stdin: in, Stdout: outw, Stderr: outw,
	})
	in.Close()
	outw.Close()
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	if n, err := out.Read(said); err != nil || string(said[:n]) != "at work" {
		t.Fatalf("%q, %v", said[:n], err)
	}
	for range 20 {
		r, w := io.Pipe()
		go func() { w.CloseWithError(m.b.Export(m.ctx, w)) }()
		tr := tar.NewReader(r)
		for {
			_, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, tr); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
	}
}

// A reader that goes away ends the export and nothing else.
func TestExportReaderGone(t *testing.T) {
	m := makeBottle(t)
	m.sh("head -c 30000000 /dev/zero | tr '\\0' x > big")
	if err := m.b.Pause(m.ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.b.Export(m.ctx, &fullDisk{left: 1 << 20}); err == nil {
		t.Error("no error from a full disk")
	}
	if got := m.export()["big"]; got.Header == nil || got.Size != 30000000 {
		t.Errorf("after that: %+v", got.Header)
	}
}

type fullDisk struct{ left int }

func (f *fullDisk) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, os.ErrInvalid
	}
	return len(b), nil
}

// What a killed bottle leaves of a directory overlay is a file of pages without
// names: nothing can be saved from it, so whoever kills must export first.
func TestNothingLeftAfterKill(t *testing.T) {
	dir := t.TempDir()
	m := makeBottle(t, func(s *bottle.Spec) {
		s.Scratch = dir
		if os.Getuid() == 0 { // the bottle runs as somebody else then
			if err := os.Chown(dir, int(s.HostUID), int(s.HostGID)); err != nil {
				t.Fatal(err)
			}
		}
	})
	m.sh("mkdir d; echo a-name-and-its-content > d/remember-this-name; sync")
	if err := m.b.Close(); err != nil {
		t.Fatal(err)
	}
	var left []string
	err := filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			left = append(left, fi.Name())
			if bytes.Contains(b, []byte("remember-this-name")) {
				t.Errorf("%s holds the name: an export after a kill may be possible after all", fi.Name())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("left: %q", left)
}
