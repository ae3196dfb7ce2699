package trace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

const testRun = "01k9x3m7q8r5t2v6w4y0z1a2b3"

var unixEpoch = time.Unix(0, 0)

// some makes n facts, as a run would.
func some(n int) []Fact {
	ops := []Op{Open, Stat, Exec, Open, Connect, Kill, SetID, Fork, Exit}
	out := make([]Fact, n)
	for i := range out {
		out[i] = Fact{Seq: uint64(i + 1), Time: int64(1e18) + int64(i)*1000, Op: ops[i%len(ops)], PID: uint32(i % 50), Path: fmt.Sprintf("/usr/lib/x/%d", i)}
	}
	return out
}

// write writes facts, in blocks of at most per, and returns the file.
func write(t testing.TB, facts []Fact, per int, reason string) (string, Kept) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace")
	w, err := createFile(path, testRun, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range facts {
		w.add(&facts[i])
		if per > 0 && (i+1)%per == 0 {
			w.Flush()
		}
	}
	k := w.Close(reason)
	if k.Err != nil {
		t.Fatal(k.Err)
	}
	return path, k
}

// read reads all that can be read.
func read(t testing.TB, path string) (facts []Fact, damage []*DamageError, tail Tail, err error) {
	t.Helper()
	r, err := OpenFile(path, "")
	if err != nil {
		return nil, nil, tail, err
	}
	defer r.Close()
	for {
		var f Fact
		var d *DamageError
		switch err := r.Next(&f); {
		case err == nil:
			facts = append(facts, f)
		case errors.As(err, &d):
			damage = append(damage, d)
		case err == io.EOF:
			return facts, damage, r.Tail(), nil
		default:
			return facts, damage, r.Tail(), err
		}
		if len(damage) > 10_000 {
			t.Fatal("damage without an end")
		}
	}
}

func TestFile(t *testing.T) {
	want := some(20_000)
	path, k := write(t, want, 0, "")
	got, damage, tail, err := read(t, path)
	if err != nil || len(damage) > 0 || !reflect.DeepEqual(got, want) {
		t.Fatalf("%d facts of %d, %v, %v", len(got), len(want), damage, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	if !tail.Ended || tail.Last != 20_000 || !bytes.Equal(tail.Digest, sum[:]) || k.Digest != sum || k.Bytes != int64(len(b)) {
		t.Errorf("tail %+v, kept %+v", tail, k)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 > k.Bytes+8192 || st.Mode&0o777 != 0o600 {
		t.Errorf("%d bytes take %d on disk, mode %o", k.Bytes, st.Blocks*512, st.Mode)
	}
	if _, err := OpenFile(path, "01k9x3m7q8r5t2v6w4y0z1a2b4"); err == nil {
		t.Error("opened as the trace of another run")
	}
	if _, err := createFile(path, testRun, 0); !errors.Is(err, os.ErrExist) {
		t.Errorf("made once more: %v", err)
	}
}

// A reader that follows sees what was flushed, and never half a block.
func TestFollow(t *testing.T) {
	facts := some(300)
	path := filepath.Join(t.TempDir(), "trace")
	w, err := createFile(path, testRun, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenFile(path, testRun)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var f Fact
	for i := range facts {
		if err := r.Next(&f); err != io.EOF || r.Tail().Ended {
			t.Fatalf("before fact %d: %v", i+1, err)
		}
		w.add(&facts[i])
		w.Flush()
		if err := r.Next(&f); err != nil || f.Seq != facts[i].Seq {
			t.Fatalf("fact %d: %v %+v", i+1, err, f)
		}
	}
	w.dropped(7)
	w.Close("because")
	if err := r.Next(&f); err != io.EOF {
		t.Fatal(err)
	}
	if tail := r.Tail(); !tail.Ended || tail.Reason != "because" || tail.Dropped != 7 {
		t.Errorf("%+v", tail)
	}
}

// Cut anywhere, a trace is read up to its last whole block, and what is
// missing is never passed over.
func TestTorn(t *testing.T) {
	facts := some(60)
	path, _ := write(t, facts, 20, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, damage, tail, err := read(t, path)
		if n < headSize {
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint("byte ", n)) {
				t.Fatalf("%d bytes: %v", n, err)
			}
			continue
		}
		if err != nil || len(damage) > 0 || tail.Ended || len(got)%20 != 0 || len(got) > 0 && !reflect.DeepEqual(got, facts[:len(got)]) {
			t.Fatalf("%d bytes: %d facts, %v, %+v, %v", n, len(got), damage, tail, err)
		}
		if tail.Torn == 0 && tail.Digest == nil || tail.Torn > 0 && tail.Digest != nil {
			t.Fatalf("%d bytes: %+v", n, tail)
		}
	}
}

// One byte that was changed is found wherever it is, costs one block, and the
// numbers of what it cost are said.
func TestFlips(t *testing.T) {
	facts := some(60)
	path, _ := write(t, facts, 20, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := headSize; at < len(whole); at++ {
		b := bytes.Clone(whole)
		b[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, damage, tail, err := read(t, path)
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		seen := map[uint64]bool{}
		for _, f := range got {
			seen[f.Seq] = true
		}
		said := tail.Torn > 0 // the last block may look as if it went on
		for _, d := range damage {
			said = true
			for n := d.First; n > 0 && n <= 60 && (n <= d.Last || d.Last == 0); n++ {
				seen[n] = true
			}
		}
		if !said || tail.Digest != nil || len(got) < 40 {
			t.Fatalf("byte %d: %d facts, %v, %+v", at, len(got), damage, tail)
		}
		for n := uint64(1); n <= 60; n++ {
			if !seen[n] {
				t.Fatalf("byte %d: fact %d is neither there nor said to be missing: %v", at, n, damage)
			}
		}
	}
}

// blocksOf cuts a file at its blocks.
func blocksOf(t *testing.T, b []byte) [][]byte {
	t.Helper()
	out := [][]byte{b[:headSize]}
	for b = b[headSize:]; len(b) > 0; {
		var x block
		if err := x.parse(b); err != nil {
			t.Fatal(err)
		}
		n := blockSize + int(x.payload)
		out, b = append(out, b[:n]), b[n:]
	}
	return out
}

func TestEdited(t *testing.T) {
	facts := some(80)
	path, _ := write(t, facts, 20, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bl := blocksOf(t, whole) // head, 4 of facts, end
	other, _ := write(t, some(20), 0, "")
	foreign, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	// An editor who knows the format seals what was edited.
	sealed := bytes.Clone(bl[2])
	var x block
	if err := x.parse(sealed); err != nil {
		t.Fatal(err)
	}
	x.lost = 0
	x.last++
	x.put(sealed)
	for name, c := range map[string]struct {
		parts [][]byte
		facts int
		says  string
	}{
		"one cut out":        {[][]byte{bl[0], bl[1], bl[3], bl[4], bl[5]}, 60, "the facts 21 to 40 are missing"},
		"the first cut out":  {[][]byte{bl[0], bl[2], bl[3], bl[4], bl[5]}, 60, "the facts 1 to 20 are missing"},
		"the last cut out":   {[][]byte{bl[0], bl[1], bl[2], bl[3], bl[5]}, 60, "the facts 61 to 80 are missing"},
		"swapped":            {[][]byte{bl[0], bl[2], bl[1], bl[3], bl[4], bl[5]}, 80, "taken out, moved or replaced"},
		"twice":              {[][]byte{bl[0], bl[1], bl[1], bl[2], bl[3], bl[4], bl[5]}, 100, "taken out, moved or replaced"},
		"another trace's":    {[][]byte{bl[0], blocksOf(t, foreign)[1], bl[2], bl[3], bl[4], bl[5]}, 80, "taken out, moved or replaced"},
		"edited and sealed":  {[][]byte{bl[0], bl[1], sealed, bl[3], bl[4], bl[5]}, 80, "taken out, moved or replaced"},
		"an end before it":   {[][]byte{bl[0], bl[1], bl[5], bl[2], bl[3], bl[4], bl[5]}, 80, "taken out, moved or replaced"},
		"more after the end": {[][]byte{whole, []byte("more")}, 80, "behind the end"},
		"zeros inside":       {[][]byte{bl[0], bl[1], make([]byte, 100_000), bl[2], bl[3], bl[4], bl[5]}, 80, "no block begins here"},
	} {
		if err := os.WriteFile(path, bytes.Join(c.parts, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		got, damage, tail, err := read(t, path)
		if err != nil || len(got) != c.facts || len(damage) == 0 || tail.Digest != nil {
			t.Errorf("%s: %d facts, %v, %+v, %v", name, len(got), damage, tail, err)
			continue
		}
		if msg := damage[0].Error(); !strings.Contains(msg, c.says) || !strings.Contains(msg, path) {
			t.Errorf("%s: %q, want %q", name, msg, c.says)
		}
	}
}

func TestForeignFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	newer := putHead(testRun, unixEpoch)
	newer[8] = 2
	for name, c := range map[string]struct {
		content []byte
		is      error
		says    string
	}{
		"empty": {nil, ErrNoHead, "at byte 0"},
		"text":  {[]byte("hello, this is no trace"), errForeign, "begins otherwise"},
		"newer": {newer, nil, "is a trace of version 2, this carboy reads version 1"},
	} {
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenFile(path, "")
		if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	os.Remove(path)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, ""); !errors.Is(err, errForeign) {
		t.Errorf("a pipe: %v", err)
	}
	os.Remove(path)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, ""); err == nil {
		t.Error("a link was followed")
	}
}

// What unpacks to more than the block says costs no more than that.
func TestBomb(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	head := putHead(testRun, unixEpoch)
	b := block{kind: factsBlock, raw: maxRaw, n: 1, first: 1, last: 1, prev: sha256.Sum256(head)}
	buf := enc.EncodeAll(make([]byte, 256<<20), make([]byte, blockSize))
	if len(buf) > blockSize+maxPayload {
		t.Fatalf("the bomb has %d bytes", len(buf))
	}
	b.payload = uint32(len(buf) - blockSize)
	b.put(buf)
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, append(head, buf...), 0o600); err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(1, func() {
		got, damage, _, err := read(t, path)
		if err != nil || len(got) != 0 || len(damage) != 1 || !strings.Contains(damage[0].Error(), "does not unpack") {
			t.Fatalf("%v %v", damage, err)
		}
	})
	t.Logf("%.0f allocations", n)
	var before, after syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	read(t, path)
	syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	if grown := after.Maxrss - before.Maxrss; grown > 64<<10 {
		t.Errorf("reading it took %d KiB more", grown)
	}
}

// A flood of file facts, which do not compress, fills the file to its bound and
// leaves room for the rest; what is not kept is counted by kind.
func TestFlood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	const bound = 4 << 20
	w, err := createFile(path, testRun, bound)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return string(b)
	}
	seq := uint64(0)
	add := func(op Op, n int) {
		seq++
		w.add(&Fact{Seq: seq, Op: op, Path: noise(n)})
	}
	for range 5000 {
		add(Open, 2000)
	}
	for range 1000 {
		add(Exec, 100)
		add(SetID, 100)
		add(Open, 100)
	}
	k := w.Close("")
	if k.Err != nil || k.Bytes > bound {
		t.Fatalf("%d bytes of %d, %v", k.Bytes, bound, k.Err)
	}
	if k.Unkept.Of(KindFile) == 0 || k.Unkept.Of(kindExec) != 0 || k.Unkept.Of(KindPriv) != 0 {
		t.Errorf("not kept: %v", k.Unkept)
	}
	kept := map[FactKind]uint64{}
	lastFile := uint64(0)
	got, damage, tail, err := read(t, path)
	for _, f := range got {
		kept[f.Op.Kind()]++
		if f.Op == Open {
			if f.Seq != lastFile+1 {
				t.Fatalf("file facts have a hole before %d", f.Seq)
			}
			lastFile = f.Seq
		}
	}
	if err != nil || damage != nil || kept[kindExec] != 1000 || kept[KindPriv] != 1000 || kept[KindFile]+k.Unkept.Of(KindFile) != 6000 || tail.Unkept != k.Unkept {
		t.Errorf("kept %v, not kept %v, tail %+v, %v, %v", kept, k.Unkept, tail, damage, err)
	}
	// Who executes without an end does not push out who asks for rights.
	w, err = createFile(path+"2", testRun, bound)
	if err != nil {
		t.Fatal(err)
	}
	for range 6000 {
		add(Exec, 2000)
	}
	add(SetID, 10)
	if k := w.Close(""); k.Unkept.Of(kindExec) == 0 || k.Unkept.Of(KindPriv) != 0 || k.Bytes > bound {
		t.Errorf("%+v", k)
	}
}

// On a disk that gets full the file says where it stops, and the rest is counted.
func TestFullDisk(t *testing.T) {
	if os.Getenv("CARBOY_TEST_TMPFS") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullDisk$", "-test.v")
		cmd.Env = append(os.Environ(), "CARBOY_TEST_TMPFS="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	dir := os.Getenv("CARBOY_TEST_TMPFS")
	if err := unix.Mount("t", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "trace")
	w, err := createFile(path, testRun, 0)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range uint64(1000) {
		f := Fact{Seq: i + 1, Op: Open, Path: strings.Repeat(string(rune('a'+rnd.IntN(26))), 10)}
		for range 400 {
			f.Path += string(rune(rnd.IntN(1000) + 32))
		}
		w.add(&f)
		if i%10 == 0 {
			w.Flush()
		}
		if i == 500 {
			if b, err := os.Create(filepath.Join(dir, "filler")); err == nil {
				io.Copy(b, io.LimitReader(zeros{}, 1<<21))
				b.Close()
			}
		}
	}
	k := w.Close("")
	got, damage, tail, err := read(t, path)
	if err != nil || damage != nil || !tail.Ended || !strings.Contains(tail.Reason, "no space left") || tail.Last != 1000 {
		t.Fatalf("%d facts, %+v, %v, %v", len(got), tail, damage, err)
	}
	if !errors.Is(k.Err, unix.ENOSPC) || k.Unkept.Total()+uint64(len(got)) != 1000 || len(got) < 500 || tail.Unkept != k.Unkept {
		t.Errorf("%d facts, %+v", len(got), k)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func FuzzReader(f *testing.F) {
	path, _ := write(f, some(20), 10, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Add(append(bytes.Clone(whole), whole...))
	f.Add(append(bytes.Clone(whole[:headSize]), strings.Repeat(blockMagic, 2000)...))
	f.Add([]byte(fileMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, damage, tail, err := read(t, path)
		if err != nil {
			return
		}
		if tail.Digest != nil && len(damage) > 0 {
			t.Fatal("damaged and whole")
		}
		if len(got) > len(b)*20 {
			t.Fatalf("%d facts from %d bytes", len(got), len(b))
		}
	})
}

func BenchmarkWriter(b *testing.B) {
	facts := some(10_000)
	w, err := createFile(filepath.Join(b.TempDir(), "trace"), testRun, 1<<40)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for i := range b.N {
		f := facts[i%len(facts)]
		f.Seq = uint64(i + 1)
		w.add(&f)
	}
	k := w.Close("")
	b.ReportMetric(float64(k.Bytes)/float64(b.N), "B/fact")
}
