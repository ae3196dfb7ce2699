package change

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestNames: names with newlines, controls and bytes that are not UTF-8 come
// home exactly.
func TestNames(t *testing.T) {
	names := []string{"new\nline", "\xff\xfe raw", "tab\t", "\x1b[31mred", "-rf", "a b", "\"q\"", "…", strings.Repeat("n", 255), " ", "~", "\u202egnp.exe"}
	w := newWorld(t, nil)
	u := w.upper()
	for i, n := range names {
		u.file(n, fmt.Sprint(i), 0o644)
	}
	u.link("bad target", "raw \xff")
	w.collect(u.bytes())
	s, err := OpenSet(w.run)
	must(t, err)
	var out bytes.Buffer
	_, err = s.Diff(&out, DiffOptions{})
	must(t, err)
	for _, r := range out.String() {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x202e || r == 0xfffd {
			t.Errorf("diff shows %q", r)
		}
	}
	w.land(s, LandOptions{})
	for i, n := range names {
		b, err := os.ReadFile(w.ws + "/" + n)
		if err != nil || string(b) != fmt.Sprint(i) {
			t.Errorf("%q: %q %v", n, b, err)
		}
	}
	if l, _ := os.Readlink(w.ws + "/bad target"); l != "raw \xff" {
		t.Errorf("link %q", l)
	}
	if _, err := Undo(context.Background(), s, UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	ents, err := os.ReadDir(w.ws)
	must(t, err)
	if len(ents) != 0 {
		t.Errorf("left %v", ents)
	}
}

// TestHostileStream: what no honest file system writes is left out, said, and
// writes nothing outside.
func TestHostileStream(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f"})
	out := filepath.Dir(w.ws) + "/outside"
	must(t, os.WriteFile(out, []byte("safe"), 0o644))
	u := w.upper()
	bad := []tar.Header{
		{Name: u.at + "/../outside", Typeflag: tar.TypeReg},
		{Name: out, Typeflag: tar.TypeReg},
		{Name: "outside", Typeflag: tar.TypeReg},
		{Name: u.at + "/a/../../outside", Typeflag: tar.TypeReg},
		{Name: u.at + "//x", Typeflag: tar.TypeReg},
		{Name: u.at + "/./x", Typeflag: tar.TypeReg},
		{Name: u.at + "/" + strings.Repeat("d/", 300) + "x", Typeflag: tar.TypeReg},
		{Name: u.at + "/" + strings.Repeat("n", 256), Typeflag: tar.TypeReg},
		{Name: u.at + "/" + strings.Repeat(strings.Repeat("m", 200)+"/", 30) + "x", Typeflag: tar.TypeReg},
		{Name: u.at + "/orphan/x", Typeflag: tar.TypeReg},
		{Name: u.at + "/f/below-a-file", Typeflag: tar.TypeReg},
		{Name: u.at + "/hard", Typeflag: tar.TypeLink, Linkname: "./etc/passwd"},
		{Name: u.at + "/hard2", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		{Name: u.at + "/hard3", Typeflag: tar.TypeLink, Linkname: u.at},
		{Name: u.at + "/hard4", Typeflag: tar.TypeLink, Linkname: u.at + "/hard4"},
	}
	u.link("l", "..")
	for _, h := range bad {
		h.Mode = 0o644
		u.raw(h)
	}
	u.raw(tar.Header{Name: u.at + "/l/outside", Typeflag: tar.TypeReg, Mode: 0o644})
	u.file("dup", "1", 0o644)
	u.file("dup", "2", 0o644)
	u.file("good", "good", 0o644)
	s := w.collect(u.bytes())
	if got, want := kinds(s), "add file dup\nadd file good\nadd symlink l\n"; got != want {
		t.Fatalf("got %s", got)
	}
	if len(s.Incomplete) == 0 {
		t.Error("nothing said")
	}
	if _, err := Land(context.Background(), s, LandOptions{}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("landed an incomplete set: %v", err)
	}
	r := w.land(s, LandOptions{AllowIncomplete: true})
	if len(r.Withheld) != 1 || r.Withheld[0].Path != "l" {
		t.Errorf("withheld %v", r.Withheld)
	}
	if b, _ := os.ReadFile(out); string(b) != "safe" {
		t.Errorf("outside is %q", b)
	}
}

func TestTornStream(t *testing.T) {
	w := newWorld(t, map[string]string{"d/a": "a", "d/b": "b"})
	whole := w.upper().opaque("d", 0o755).file("first", "1", 0o644).file("d/b", "b", 0o644).bytes()
	for cut := 0; cut < len(whole)-1024; cut += 256 {
		s, err := Collect(context.Background(), bytes.NewReader(whole[:cut]), CollectOptions{Baseline: w.base})
		if !errors.Is(err, errMalformed) || s == nil || len(s.Incomplete) == 0 {
			t.Errorf("cut at %d of %d: %v", cut, len(whole), err)
			continue
		}
		if strings.Contains(kinds(s), "delete") {
			t.Errorf("cut at %d: deletes what the stream did not come to:\n%s", cut, kinds(s))
		}
	}
	s := w.collect(whole)
	if got, want := kinds(s), "delete file d/a\nadd file first\n"; got != want {
		t.Errorf("whole: got %s", got)
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, nil)
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(i*7 + i/255 + 1)
	}
	u := w.upper().file("small", "s", 0o644).file("large", string(noise), 0o644).file("last", "l", 0o644)
	stream := u.file("zeros", strings.Repeat("\x00", 1<<20), 0o644).bytes()
	s, err := Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base, MaxBytes: 50_000})
	var le *limitError
	if !errors.As(err, &le) || le.Limit != "bytes" || le.Path != "large" {
		t.Fatalf("got %v", err)
	}
	if got, want := kinds(s), "add file large OMITTED\nadd file last\nadd file small\nadd file zeros\n"; got != want {
		t.Errorf("got %s", got)
	}
	r := w.land(s, LandOptions{AllowIncomplete: true})
	if len(r.Landed) != 3 || len(r.Withheld) != 1 {
		t.Errorf("%+v", r)
	}
	if s, err = Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base, MaxEntries: 3}); !errors.As(err, &le) || le.Limit != "entries" || s == nil {
		t.Errorf("entries: %v", err)
	}
	if s, err = Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base, MaxLogical: 200_000}); !errors.As(err, &le) || le.Limit != "logical bytes" || s == nil {
		t.Errorf("logical: %v", err)
	}
	if s, err := Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base, MaxBytes: 1 << 20}); err != nil || len(s.Incomplete) != 0 {
		t.Errorf("within: %v", err)
	}
}

// TestHardLinksFromOutside: hard links from a store outside the workspace, as package
// managers make them, are taken in either order of the stream.
func TestHardLinksFromOutside(t *testing.T) {
	w := newWorld(t, map[string]string{"gone1": "x", "gone2": "y"})
	u := w.upper()
	u.raw(tar.Header{Name: "./store/", Typeflag: tar.TypeDir, Mode: 0o755})
	for _, n := range []string{"./store/a", "./store/b"} {
		u.raw(tar.Header{Name: n, Typeflag: tar.TypeReg, Mode: 0o755, Size: 5})
		_, err := u.tw.Write([]byte(n[len(n)-5:]))
		must(t, err)
	}
	u.raw(tar.Header{Name: "./etc-gone", Typeflag: tar.TypeChar})
	u.wo = "./etc-gone"
	u.gone("gone1").gone("gone2")
	u.hard("x/linked", "./store/a").hard("x/again", "./store/a").hard("y", "./store/b")
	s := w.collect(u.bytes())
	if got, want := kinds(s), "delete file gone1\ndelete file gone2\nadd dir x\nadd file x/again\nadd file x/linked\nadd file y\n"; got != want {
		t.Fatalf("got %s", got)
	}
	w.land(s, LandOptions{})
	now := treeOf(t, w.ws)
	if now["x/linked"] != "-rwxr-xr-x ore/a" || now["x/again"] != now["x/linked"] || now["y"] != "-rwxr-xr-x ore/b" {
		t.Error(now)
	}
	ents, err := os.ReadDir(filepath.Join(w.run, upperDir))
	must(t, err)
	for _, e := range ents {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left %s", e.Name())
		}
	}
}

// TestRootGone: the bottle removed, replaced or hid the workspace itself.
func TestRootGone(t *testing.T) {
	for name, build := range map[string]func(u *upper, ws string){
		"removed": func(u *upper, ws string) { u.raw(tar.Header{Name: "." + ws, Typeflag: tar.TypeChar}) },
		"parent removed": func(u *upper, ws string) {
			u.raw(tar.Header{Name: "." + filepath.Dir(ws), Typeflag: tar.TypeChar})
		},
		"link": func(u *upper, ws string) {
			u.raw(tar.Header{Name: "." + ws, Typeflag: tar.TypeSymlink, Linkname: "/etc"})
		},
		"parent hidden": func(u *upper, ws string) {
			u.raw(tar.Header{Name: "." + filepath.Dir(ws) + "/", Typeflag: tar.TypeDir, PAXRecords: map[string]string{opaqueXattr: "y"}})
		},
		"hidden": func(u *upper, ws string) {
			u.raw(tar.Header{Name: "." + ws + "/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{opaqueXattr: "y"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, map[string]string{"a": "a", "d/b": "b"})
			u := &upper{t: t, seen: map[string]bool{}}
			u.tw = tar.NewWriter(&u.buf)
			build(u, w.ws)
			s := w.collect(u.bytes())
			if got, want := kinds(s), "delete file a\ndelete dir d\ndelete file d/b\n"; got != want {
				t.Fatalf("got %s", got)
			}
			w.land(s, LandOptions{})
			if now := treeOf(t, w.ws); len(now) != 1 {
				t.Error(now)
			}
		})
	}
	t.Run("user xattr hides nothing", func(t *testing.T) {
		w := newWorld(t, map[string]string{"d/b": "b"})
		u := w.upper()
		u.raw(tar.Header{Name: u.at + "/d/", Typeflag: tar.TypeDir, Mode: 0o755,
			PAXRecords: map[string]string{"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.user.x": "\n"}})
		if s := w.collect(u.bytes()); len(s.Changes) != 0 {
			t.Error(kinds(s))
		}
	})
}

// TestSpecials: devices, fifos and set-id files.
func TestSpecials(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f"})
	must(t, syscall.Mkfifo(w.ws+"/pipe", 0o600))
	w.base.Close()
	w.begin()
	u := w.upper()
	u.raw(tar.Header{Name: u.at + "/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666})
	u.raw(tar.Header{Name: u.at + "/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666})
	u.raw(tar.Header{Name: u.at + "/fifo", Typeflag: tar.TypeFifo, Mode: 0o666})
	u.raw(tar.Header{Name: u.at + "/f", Typeflag: tar.TypeFifo, Mode: 0o666})
	u.gone("pipe").file("suid", "x", 0o4755).file("sgid", "x", 0o2755).file("sticky", "x", 0o1755).dir("sgiddir", 0o2755)
	s := w.collect(u.bytes())
	r := w.land(s, LandOptions{})
	now := treeOf(t, w.ws)
	want := map[string]string{"f": "-rw-r--r-- f", "sticky": "-rwxr-xr-x x", "sgiddir": "drwxr-xr-x", "pipe": "prw-------"}
	for p, v := range now {
		if p != "." && v != want[p] {
			t.Errorf("%s is %q", p, v)
		}
	}
	if len(now) != len(want)+1 || len(r.Withheld) != 7 {
		t.Errorf("%v, withheld %v", now, r.Withheld)
	}
	w.land(s, LandOptions{Paths: []string{"suid"}, IncludeProtected: true})
	if got := treeOf(t, w.ws)["suid"]; got != "urwxr-xr-x x" {
		t.Errorf("suid is %q", got)
	}
	if r := w.land(s, LandOptions{Paths: []string{"null", "f"}, IncludeProtected: true}); len(r.Landed) != 0 {
		t.Errorf("landed %v", r.Landed)
	}
}

// TestSparse: a gigabyte of nothing stays nothing, through landing and undo.
func TestSparse(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() {
		size = 1 << 26
	}
	w := newWorld(t, map[string]string{"old": "x"})
	f, err := os.Create(w.ws + "/old")
	must(t, err)
	must(t, f.Truncate(size/16))
	must(t, f.Close())
	w.base.Close()
	w.begin()
	pr, pw := io.Pipe()
	go func() {
		u := &upper{t: t, at: "." + w.ws, seen: map[string]bool{}}
		head := w.upper()
		head.tw.Flush()
		pw.Write(head.buf.Bytes())
		u.tw = tar.NewWriter(pw)
		must(t, u.tw.WriteHeader(&tar.Header{Name: u.at + "/sparse", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}))
		zeros := make([]byte, 1<<20)
		for n := int64(0); n < size-1<<20; n += 1 << 20 {
			u.tw.Write(zeros)
		}
		copy(zeros[len(zeros)-4:], "tail")
		u.tw.Write(zeros)
		must(t, u.tw.WriteHeader(&tar.Header{Name: u.at + "/old", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3}))
		u.tw.Write([]byte("new"))
		u.tw.Close()
		pw.Close()
	}()
	s, err := Collect(context.Background(), pr, CollectOptions{Baseline: w.base, MaxBytes: 1 << 20})
	must(t, err)
	small := func(p string) {
		t.Helper()
		var st syscall.Stat_t
		must(t, syscall.Stat(p, &st))
		if st.Blocks*512 > 1<<20 {
			t.Errorf("%s takes %d bytes on disk", p, st.Blocks*512)
		}
	}
	small(filepath.Join(w.run, upperDir, packFile))
	w.land(s, LandOptions{})
	small(w.ws + "/sparse")
	if fi, err := os.Stat(w.ws + "/sparse"); err != nil || fi.Size() != size {
		t.Error(fi, err)
	}
	if _, err := Undo(context.Background(), s, UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	small(w.ws + "/old")
	if fi, err := os.Stat(w.ws + "/old"); err != nil || fi.Size() != size/16 {
		t.Error(fi, err)
	}
}

// TestSymlinkRace swaps directories of the workspace for links that lead out,
// all the while landing and undoing.
func TestSymlinkRace(t *testing.T) {
	dir := fastTemp(t)
	files := map[string]string{}
	for i := range 8 {
		files[fmt.Sprintf("d%d/sub/f", i)] = "old"
		files[fmt.Sprintf("d%d/sub/gone", i)] = "old"
	}
	w := newWorldAt(t, dir, fastTemp(t), files)
	u := w.upper()
	for i := range 8 {
		d := fmt.Sprintf("d%d/sub/", i)
		u.file(d+"f", "bottle", 0o755).gone(d+"gone").file(d+"new/x", "bottle", 0o644).file(d+"fresh", "bottle", 0o644)
	}
	s := w.collect(u.bytes())
	outside := filepath.Join(dir, "outside")
	for i := range 8 {
		d := fmt.Sprintf("%s/%d/sub", outside, i)
		must(t, os.MkdirAll(d, 0o755))
		// The same as inside, so that nothing but the way there tells them apart.
		for _, n := range []string{"f", "gone"} {
			must(t, os.WriteFile(d+"/"+n, []byte("old"), 0o644))
		}
	}
	before := treeOf(t, outside)
	inside := treeOf(t, w.ws)
	var stop atomic.Bool
	var swaps atomic.Int64
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				d := fmt.Sprintf("%s/d%d", w.ws, i*4+n%4)
				at, aside, to := d, d+".real", fmt.Sprintf("%s/%d", outside, i*4+n%4)
				if n%2 == 1 {
					at, aside, to = d+"/sub", d+"/sub.real", to+"/sub"
				}
				if os.Rename(at, aside) == nil {
					os.Symlink(to, at)
					// Mostly a moment; now and then long enough for a whole
					// landing, and then as long away.
					hold := time.Duration(0)
					if swaps.Add(1)%32 == 0 {
						hold = 2 * time.Millisecond
					}
					time.Sleep(hold)
					os.Remove(at)
					os.Rename(aside, at)
					time.Sleep(3 * hold)
				}
			}
		})
	}
	// What is only added finds nothing there that tells one place from another.
	var added []string
	for i := range 8 {
		added = append(added, fmt.Sprintf("d%d/sub/fresh", i), fmt.Sprintf("d%d/sub/new/x", i))
	}
	ok := 0
	// Who moves a directory away for long keeps what is in it; but it is said.
	told := false
	strands := func(err error) {
		var s *strandedError
		told = told || errors.As(err, &s)
	}
	for i := range 150 {
		o := LandOptions{}
		if i%2 == 1 {
			o.Paths = added
		}
		_, err := Land(context.Background(), s, o)
		if strands(err); err == nil {
			ok++
		}
		// At once: an undo would follow the same link.
		if d := diffTrees(before, treeOf(t, outside)); d != "" {
			t.Errorf("after %d swaps, outside changed:\n%s", swaps.Load(), d)
			break
		}
		_, err = Undo(context.Background(), s, UndoOptions{})
		if strands(err); err == nil {
			ok++
		}
	}
	stop.Store(true)
	wg.Wait()
	if d := diffTrees(before, treeOf(t, outside)); d != "" {
		t.Fatalf("after %d swaps, outside changed:\n%s", swaps.Load(), d)
	}
	rep, err := Recover(context.Background(), w.run)
	must(t, err)
	if told = told || len(rep.Left) > 0; told {
		t.Logf("something was stranded, and said so; %d swaps, %d of 300 went through", swaps.Load(), ok)
		return
	}
	_, err = Undo(context.Background(), s, UndoOptions{})
	if err != nil && !errors.Is(err, ErrNothingToUndo) {
		t.Fatal(err)
	}
	if d := diffTrees(inside, treeOf(t, w.ws)); d != "" {
		t.Errorf("after %d swaps and recovery, inside changed:\n%s", swaps.Load(), d)
	}
	t.Logf("%d swaps, %d of 300 went through", swaps.Load(), ok)
}
