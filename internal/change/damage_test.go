package change

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestSnapshotDamage cuts a snapshot at every byte. Only the whole one is
// complete, and what a cut one holds is true.
func TestSnapshotDamage(t *testing.T) {
	w := newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{"a": "a", "d/x": "x", "d/l": "-> x", "d/e/": ""})
	must(t, syscall.Mkfifo(w.ws+"/p", 0o600))
	w.base.Close()
	w.begin()
	all := func(string) bool { return true }
	name := filepath.Join(w.run, upperDir, snapshotFile)
	whole, err := readSnapshot(name, all)
	must(t, err)
	if e, existed, known := whole.was(".", "p"); !existed || !known || e.typ != Fifo || !whole.complete || len(whole.dirs) != 3 {
		t.Fatalf("got %+v", whole)
	}
	if _, existed, known := whole.was("nowhere", "x"); existed || !known {
		t.Error("a complete snapshot does not know that a directory was missing")
	}
	b, err := os.ReadFile(name)
	must(t, err)
	for cut := range b {
		must(t, os.WriteFile(name, b[:cut], 0o600))
		got, err := readSnapshot(name, all)
		if cut < len(snapshotMagic) != errors.Is(err, ErrCorrupt) && err == nil {
			t.Errorf("cut at %d: %v", cut, err)
		}
		if got.complete {
			t.Errorf("cut at %d: complete", cut)
		}
		for dir, ents := range got.dirs {
			if !maps.Equal(ents, whole.dirs[dir]) {
				t.Errorf("cut at %d: %s holds %v", cut, dir, ents)
			}
		}
	}
	if _, existed, known := (*names)(nil).was(".", "a"); existed || known {
		t.Error("no snapshot knows something")
	}
	huge := binary.AppendUvarint(nil, 1<<40)
	for what, rec := range map[string][]byte{
		"a long path": huge,
		"many names":  append([]byte{1, '.'}, huge...),
		"a long name": append([]byte{1, '.', 1}, huge...),
	} {
		must(t, os.WriteFile(name, append([]byte(snapshotMagic), rec...), 0o600))
		if _, err := readSnapshot(name, all); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A run whose snapshot is damaged or gone can still be collected.
	for _, damage := range []func() error{
		func() error { return os.WriteFile(name, []byte("damaged"), 0o600) },
		func() error { return os.Remove(name) },
	} {
		must(t, damage())
		s := w.collect(w.upper().file("a", "A", 0o644).bytes())
		if got := kinds(s); got != "modify file a\n" || len(s.Notes) != 1 {
			t.Errorf("got %snotes %q", got, s.Notes)
		}
		if _, _, err := HostChanges(context.Background(), w.base, 0); err == nil {
			t.Error("compared the host with a damaged snapshot")
		}
	}
}

// TestSnapshotStops checks that a snapshot ends with its context and with a
// full disk.
func TestSnapshotStops(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a"})
	if err := writeSnapshot(ended(), w.base.root, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	if err := writeSnapshot(context.Background(), w.base.root, full); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v", err)
	}
	// A recording that failed is noted, and the host is judged by ctime alone.
	b := &Baseline{done: make(chan struct{}), ID: w.base.ID, marker: w.base.marker, runDir: w.run, root: w.base.root, err: errors.New("disk on fire")}
	if err := b.Wait(ended()); !errors.Is(err, context.Canceled) {
		t.Errorf("waited: %v", err)
	}
	if _, _, err := HostChanges(ended(), b, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("compared: %v", err)
	}
	if _, err := Collect(ended(), bytes.NewReader(w.upper().bytes()), CollectOptions{Baseline: b}); !errors.Is(err, context.Canceled) {
		t.Errorf("collected: %v", err)
	}
	close(b.done)
	_, notes, err := HostChanges(context.Background(), b, 0)
	must(t, err)
	s, err := Collect(context.Background(), bytes.NewReader(w.upper().bytes()), CollectOptions{Baseline: b})
	must(t, err)
	for _, notes := range [][]string{notes, s.Notes} {
		if len(notes) != 1 || !strings.Contains(notes[0], "disk on fire") {
			t.Errorf("notes %q", notes)
		}
	}
}

// TestForeignMarker takes a marker where no unnamed files can be made.
func TestForeignMarker(t *testing.T) {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	run := realTemp(t)
	before := filepath.Join(run, "before")
	must(t, os.WriteFile(before, nil, 0o600))
	m, err := takeMarker(context.Background(), fd, run)
	must(t, err)
	fi, err := os.Stat(before)
	must(t, err)
	if !m.Foreign || ctimeOf(fi) >= m.At {
		t.Errorf("got %+v for a file of %d", m, ctimeOf(fi))
	}
	if ents, _ := os.ReadDir(run); len(ents) != 1 {
		t.Errorf("left %v", ents)
	}
	if _, err := takeMarker(context.Background(), fd, run+"/missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	w := newWorld(t, map[string]string{"a": "a"})
	w.base.marker.Foreign = true
	if s := w.collect(w.upper().bytes()); len(s.Notes) != 1 {
		t.Errorf("notes %q", s.Notes)
	}
	if _, err := Begin(context.Background(), w.ws, before); err == nil {
		t.Error("began with a file as run directory")
	}
	if _, err := Begin(context.Background(), w.ws+"/a", run); !errors.Is(err, errWorkspaceNotDir) {
		t.Errorf("got %v", err)
	}
}

func TestThreshold(t *testing.T) {
	m := marker{At: int64(time.Hour), Offset: int64(time.Minute)}
	for _, c := range []struct {
		moved time.Duration
		early bool
		note  string
	}{{0, false, ""}, {time.Millisecond, false, ""}, {-time.Millisecond, false, ""}, {time.Second, false, "forward by 1s"}, {-time.Second, true, "back by 1s"}} {
		at, note := m.threshold(m.Offset + int64(c.moved))
		if (at < m.At) != c.early || !strings.Contains(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("clock moved by %v: threshold %v, %q", c.moved, time.Duration(at), note)
		}
	}
}

func TestHostChangesBounded(t *testing.T) {
	files := map[string]string{}
	for i := range 5 {
		files[fmt.Sprintf("gone%d", i)] = "x"
		files[fmt.Sprintf("retyped%d", i)] = "x"
	}
	w := newWorld(t, files)
	for name := range files {
		must(t, os.Remove(w.ws+"/"+name))
		if strings.HasPrefix(name, "retyped") {
			must(t, os.MkdirAll(w.ws+"/"+name+"/deep/er", 0o755))
		}
	}
	w.write(map[string]string{"new/a": "a", "new/b/c": "c", "top": "t"})
	all, _, err := HostChanges(context.Background(), w.base, 0)
	must(t, err)
	if len(all) != 5+5*3+4+1 {
		t.Fatalf("%d changes: %v", len(all), all)
	}
	for max := 1; max < len(all); max++ {
		got, notes, err := HostChanges(context.Background(), w.base, max)
		must(t, err)
		if len(got) != max || len(notes) != 1 {
			t.Errorf("at most %d: %d changes, notes %q", max, len(got), notes)
		}
		for _, c := range got {
			if !slices.Contains(all, c) {
				t.Errorf("at most %d: unknown change %v", max, c)
			}
		}
	}
	w.base.marker.At += int64(time.Hour)
	w.base.marker.Offset += int64(time.Hour)
	if _, notes, _ := HostChanges(context.Background(), w.base, 0); len(notes) != 1 || !strings.Contains(notes[0], "set back") {
		t.Errorf("notes %q", notes)
	}
}

// TestHostSpecials: the bottle replaces or removes names that are sockets and
// fifos on the host, or that the host has moved behind a link. None lands.
func TestHostSpecials(t *testing.T) {
	w := newWorld(t, map[string]string{"d/x": "x", "tree/x": "x", "f": "f"})
	l, err := net.Listen("unix", w.ws+"/sock")
	must(t, err)
	defer l.Close()
	must(t, syscall.Mkfifo(w.ws+"/pipe", 0o600))
	must(t, syscall.Mkfifo(w.ws+"/tree/pipe", 0o600))
	w.base.Close()
	w.begin()
	u := w.upper().file("d/x", "bottle", 0o644).file("sock", "now a file", 0o644).gone("pipe").gone("tree")
	must(t, u.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}))
	u.raw(tar.Header{Name: u.at + "/odd", Typeflag: '9', Mode: 0o644})
	stream := u.bytes()
	must(t, os.Rename(w.ws+"/d", w.ws+"/moved"))
	must(t, os.Symlink("moved", w.ws+"/d"))
	s, err := Collect(context.Background(), bytes.NewReader(stream), CollectOptions{Baseline: w.base})
	must(t, err)
	want := "type dir d MOVED\nadd file d/x MOVED\ndelete fifo pipe NEVER\ntype file sock NEVER\ndelete dir tree\ndelete fifo tree/pipe NEVER\ndelete file tree/x\n"
	if got := kinds(s); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	before := treeOf(t, w.ws)
	if _, err := Land(context.Background(), s, LandOptions{AllowIncomplete: true}); err == nil {
		t.Error("landed through a link")
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Error(d)
	}
}

func TestCollectRefuses(t *testing.T) {
	w := newWorld(t, map[string]string{"a": "a", "d/x": "x", "d/y": "y", "d/z": "z"})
	file := filepath.Join(realTemp(t), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	closed, err := Begin(context.Background(), w.ws, realTemp(t))
	must(t, err)
	must(t, closed.Close())
	must(t, closed.Close())
	for name, o := range map[string]CollectOptions{
		"no baseline":       {},
		"a closed baseline": {Baseline: closed},
		"a relative prefix": {Baseline: w.base, Prefix: "ws"},
		"an unclean prefix": {Baseline: w.base, Prefix: "/ws/../x"},
		"the root":          {Baseline: w.base, Prefix: "/"},
		"a run in a file":   {Baseline: w.base, RunDir: file},
	} {
		if s, err := Collect(context.Background(), bytes.NewReader(w.upper().bytes()), o); err == nil || s != nil {
			t.Errorf("%s: collected %v", name, s)
		}
	}
	broken := errors.New("connection lost")
	half := w.upper().file("big", strings.Repeat("x", 9000), 0o644).bytes()[:4096]
	s, err := Collect(context.Background(), io.MultiReader(bytes.NewReader(half), errReader{broken}), CollectOptions{Baseline: w.base})
	if !errors.Is(err, broken) || s == nil || len(s.Incomplete) == 0 {
		t.Errorf("a broken stream: %v, %v", s, err)
	}
	// A set can have more changes than its stream has entries.
	var limit *limitError
	c := &classifier{ctx: context.Background(), set: &Set{Changes: make([]Change, 2)}, opts: CollectOptions{MaxEntries: 2}}
	if err := c.emit(Change{Path: "third"}); !errors.As(err, &limit) || limit.Path != "third" {
		t.Errorf("got %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestOpenSetDamage(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f", "gone": "g"})
	s := w.collect(w.upper().file("f", "bottle", 0o644).gone("gone").file(".vscode/x", "sh", 0o755).bytes())
	again, err := OpenSet(w.run)
	must(t, err)
	if kinds(again) != kinds(s) || len(again.protected()) != 2 {
		t.Errorf("read back\n%s", kinds(again))
	}
	c, ok := again.Lookup("f")
	if !ok {
		t.Fatal("no change of f")
	}
	r, err := again.Content(c)
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, errors.Join(err, r.Close()))
	if string(b) != "bottle" {
		t.Errorf("content %q", b)
	}
	if _, ok := again.Lookup("nothing"); ok {
		t.Error("found a change that is none")
	}
	gone, _ := again.Lookup("gone")
	if _, err := again.Content(gone); err == nil {
		t.Error("a deleted file has a content")
	}
	must(t, os.Remove(filepath.Join(w.run, upperDir, packFile)))
	if _, err := again.Content(c); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	var out bytes.Buffer
	if _, err := again.Diff(&out, DiffOptions{}); err != nil || !strings.Contains(out.String(), "open content of f") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	if _, err := Land(context.Background(), again, LandOptions{}); err == nil || !strings.Contains(err.Error(), "contents are gone") {
		t.Errorf("landed without contents: %v", err)
	}
	name := filepath.Join(w.run, upperDir, setFile)
	for what, text := range map[string]string{
		"no JSON":        "{",
		"another schema": `{"schema":"carboy.dev/changes/v2"}`,
		"a path above":   `{"schema":"` + Schema + `","changes":[{"path":"../x"}]}`,
		"bad base64":     `{"schema":"` + Schema + `","changes":[{"path":{"base64":"!"}}]}`,
		"a bad path":     `{"schema":"` + Schema + `","changes":[{"path":{"base64":1}}]}`,
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
		if _, err := OpenSet(w.run); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := OpenSet(w.run + "/missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	for _, p := range []Bytes{"plain", "\xff\n", "ü"} {
		b, err := json.Marshal(p)
		must(t, err)
		var back Bytes
		must(t, json.Unmarshal(b, &back))
		if back != p {
			t.Errorf("%q came back as %q", p, back)
		}
	}
}

// TestDiffUnreadable: each content that cannot be shown is said to be so.
func TestDiffUnreadable(t *testing.T) {
	big := strings.Repeat("line\n", 1000)
	w := newWorld(t, map[string]string{"grown": "x", "large": big, "turned": "x", "gone": "x", "same": "x"})
	u := w.upper().file("grown", big, 0o644).file("large", "small\n", 0o644).file("turned", "y", 0o644).file("gone", "y", 0o644)
	s := w.collect(u.file("same", "x", 0o755).bytes())
	must(t, os.Remove(w.ws+"/gone"))
	must(t, errors.Join(os.Remove(w.ws+"/turned"), os.Mkdir(w.ws+"/turned", 0o755)))
	c, _ := s.Lookup("same")
	c.Kind, c.Omitted = Modify, "over the byte limit"
	var out bytes.Buffer
	st, err := s.Diff(&out, DiffOptions{MaxFile: 1000, Colour: true})
	must(t, err)
	for _, want := range []string{
		"The bottle's file is too large to show (5000 bytes).", "The host's file is too large to show (5000 bytes).",
		"The content (1 bytes) was not kept.", "does not land: over the byte limit", "not a regular file", "--- /dev/null", green + "+y" + reset,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing says %q:\n%s", want, out.String())
		}
	}
	if st.Truncated {
		t.Error("cut")
	}
	must(t, os.Rename(w.ws, w.ws+".moved"))
	out.Reset()
	if _, err := s.Diff(&out, DiffOptions{}); err != nil || !strings.Contains(out.String(), "old contents are not shown") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	out.Reset()
	if _, err := s.Diff(&out, DiffOptions{Stat: true}); err != nil || out.Len() != 0 {
		t.Errorf("%v:\n%s", err, out.String())
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	if _, err := s.Diff(full, DiffOptions{}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("wrote to a full disk: %v", err)
	}
	if _, err := s.Diff(io.Discard, DiffOptions{Paths: []string{"nothing"}}); !errors.Is(err, ErrNoSuchChange) {
		t.Errorf("got %v", err)
	}
}

func TestErrorText(t *testing.T) {
	cause, left := errors.New("disk full"), errors.New("disk gone")
	many := &ConflictError{Op: "undo"}
	for i := range 7 {
		many.Conflicts = append(many.Conflicts, Conflict{Path: fmt.Sprint(i), Why: "edited since"})
	}
	for _, c := range []struct {
		err  error
		want string
		is   []error
	}{
		{&WorkspaceError{Path: "/x", Reason: errWorkspaceUnreadable, Cause: cause, Advice: "look"}, "use /x as workspace: it cannot be read: disk full; look", []error{errWorkspaceUnreadable, cause}},
		{&WorkspaceError{Path: "/x", Reason: ErrWorkspaceRoot}, "use /x as workspace: it is the root of the file system", []error{ErrWorkspaceRoot}},
		{&limitError{Limit: "bytes", Max: 7, Path: "a\nb"}, `collect changes: more than 7 bytes at "a\nb"`, nil},
		{&limitError{Limit: "disk"}, "collect changes: no space left on the state directory's disk", nil},
		{many, "undo: 7 changed since: 0 (edited since), 1 (edited since), 2 (edited since), 3 (edited since), 4 (edited since), and 2 more", nil},
		{&strandedError{cause, []Bytes{"a", "b"}}, "disk full; it was taken back, but the directory of a was moved or its place taken (and of 1 more)", []error{cause}},
		{&rollbackError{cause, left}, "disk full; taking it back failed too and is tried again by the next command: disk gone", []error{cause, left}},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
		for _, is := range c.is {
			if !errors.Is(c.err, is) {
				t.Errorf("%v does not wrap %v", c.err, is)
			}
		}
	}
}

// TestXattrs: a landing keeps the attributes of a file but for those that gave
// its old content rights; undo restores all.
func TestXattrs(t *testing.T) {
	w := newWorldAt(t, realTemp(t), realTemp(t), map[string]string{"f": "f"})
	f := w.ws + "/f"
	want := map[string]string{"user.note": "kept"}
	lost := map[string]string{}
	if os.Geteuid() == 0 {
		want["trusted.note"] = "kept too"
		lost["security.capability"] = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	}
	for _, all := range []map[string]string{want, lost} {
		for k, v := range all {
			err := unix.Setxattr(f, k, []byte(v), 0)
			if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
				t.Logf("%s cannot be set here: %v", k, err)
				delete(all, k)
				continue
			}
			must(t, err)
		}
	}
	w.base.Close()
	w.begin()
	check := func(when string, k, v string) {
		t.Helper()
		buf := make([]byte, 100)
		n, err := unix.Getxattr(f, k, buf)
		if got := string(buf[:max(n, 0)]); got != v {
			t.Errorf("%s: %s is %q (%v), want %q", when, k, got, err, v)
		}
	}
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	w.land(s, LandOptions{})
	for k, v := range want {
		check("landed", k, v)
	}
	for k := range lost {
		check("landed", k, "")
	}
	_, err := Undo(context.Background(), s, UndoOptions{})
	must(t, err)
	for _, all := range []map[string]string{want, lost} {
		for k, v := range all {
			check("undone", k, v)
		}
	}
}

func TestFileTypes(t *testing.T) {
	fd, err := unix.Open("/dev", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	seen := map[Type]int{}
	must(t, tree{fd}.list(".", nil, func(e dirent) error { seen[e.typ]++; return nil }))
	if seen[charDevice] == 0 || seen[Symlink] == 0 {
		t.Errorf("/dev holds %v", seen)
	}
	if _, _, err := (tree{fd}).openFile("null"); err == nil {
		t.Error("opened a device")
	}
	if _, err := (tree{fd}).readlink("null"); err == nil {
		t.Error("read a device as a link")
	}
	for dt, mode := range map[byte]uint32{unix.DT_REG: unix.S_IFREG, unix.DT_DIR: unix.S_IFDIR, unix.DT_LNK: unix.S_IFLNK, unix.DT_FIFO: unix.S_IFIFO,
		unix.DT_CHR: unix.S_IFCHR, unix.DT_BLK: unix.S_IFBLK, unix.DT_SOCK: unix.S_IFSOCK} {
		typ := typeOfMode(mode | 0o644)
		if typ == "" || typeOfDT(dt) != typ || codeTypes[strings.IndexByte(typeCodes, typeCode(typ))] != typ {
			t.Errorf("type %d is %q by its mode and %q in a directory", dt, typ, typeOfDT(dt))
		}
	}
	if typeOfDT(unix.DT_UNKNOWN) != "" || typeCode("") != '?' {
		t.Error("an unknown type has a name")
	}
	stop := errors.New("stop")
	for name, c := range map[string]struct {
		rec []byte
		err bool
	}{
		"short":    {make([]byte, 18), false},
		"too long": {append([]byte{16: 200, 17: 0}, make([]byte, 10)...), true},
		"empty":    {append([]byte{16: 3}, make([]byte, 10)...), true},
		"a name":   {append([]byte{16: 24, 18: unix.DT_REG}, "name\x00"...), true},
	} {
		if err := eachDirent(c.rec, func(dirent) error { return stop }); (err != nil) != c.err {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSameName(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{{"a", "a", true}, {"README", "readme", true}, {".git", "GIT~1", true}, {"ſ", "S", true}, {"\u212a", "k", true}, {"İ", "i", true},
		{"a\u200cb", "AB", true}, {"ｇ", "g", true}, {"x.", "x", true}, {"x:stream", "x", true}, {"a", "b", false}} {
		if SameName(c.a, c.b) != c.same || SameName(c.b, c.a) != c.same {
			t.Errorf("%q and %q: same is not %v", c.a, c.b, c.same)
		}
	}
	if got := FoldName("A/.GIT /x\u200b"); got != "a/.git/x" {
		t.Errorf("got %q", got)
	}
}

// TestEnded: every loop over files or contents ends with its context, and every
// copy with its disk.
func TestEnded(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f", "d/x": "x"})
	ctx := ended()
	f, err := os.Open(w.ws + "/f")
	must(t, err)
	defer f.Close()
	dst, err := os.Create(w.run + "/dst")
	must(t, err)
	defer dst.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	s := w.collect(w.upper().file("f", "bottle", 0o644).bytes())
	root := tree{w.base.root}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"hash": {func() error { _, err := hashFile(ctx, f, 1); return err }, context.Canceled},
		"pack": {func() error {
			_, _, err := newPack(dst, true).append(ctx, strings.NewReader("x"), 1, 10)
			return err
		}, context.Canceled},
		"short pack": {func() error {
			_, _, err := newPack(dst, true).append(context.Background(), strings.NewReader(""), 1, 10)
			return err
		}, io.ErrUnexpectedEOF},
		"walk":      {func() error { return walkTree(ctx, root, ".", "", nil) }, context.Canceled},
		"walk gone": {func() error { return walkTree(context.Background(), root, "gone", "", nil) }, unix.ENOENT},
		"plan": {func() error {
			return (&planner{ctx: ctx, t: root}).plan(&selection{s: s, take: []bool{true}})
		}, context.Canceled},
		"land": {func() error { _, err := Land(ctx, s, LandOptions{}); return err }, context.Canceled},
		"full disk": {func() error {
			_, err := copySparse(full, strings.NewReader("x"), 1)
			return err
		}, unix.ENOSPC},
		"marker": {func() error { _, err := takeMarker(context.Background(), -1, "/nowhere"); return err }, unix.ENOENT},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if d := diffTrees(map[string]string{"f": "-rw-r--r-- f", "d": "drwxr-xr-x", "d/x": "-rw-r--r-- x", ".": "drwxr-xr-x"}, treeOf(t, w.ws)); d != "" {
		t.Error(d)
	}
}
