package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file is one of a bottle's. Each change gives it other contents.
type file struct {
	ino     uint64
	text    string
	changed bool // since the last copy
}

// stream returns the stream of files; whole: with all contents.
func stream(t testing.TB, files map[string]*file, whole bool) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(f.text)), Mode: 0o644, Devmajor: int64(f.ino >> 21), Devminor: int64(f.ino & (1<<21 - 1)), Format: tar.FormatPAX}
		var one bytes.Buffer
		ow := tar.NewWriter(&one)
		if err := errors.Join(ow.WriteHeader(h), write(ow, f.text), ow.Flush()); err != nil {
			t.Fatal(err)
		}
		raw := one.Bytes()
		if !whole && !f.changed {
			raw = raw[:len(raw)-int(padded(int64(len(f.text))))]
			e := &entry{head: raw}
			e.head[len(raw)-block+156] = same
			e.sum()
		}
		b.Write(raw)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

func add(t testing.TB, d *Dir, b []byte) {
	t.Helper()
	if err := d.Add(t.Context(), func(w io.Writer) (bool, error) { _, err := w.Write(b); return true, err }); err != nil {
		t.Fatal(err)
	}
}

// contents returns the files in what Write writes.
func contents(t testing.TB, d *Dir) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if err := d.Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}

// Whatever is made, changed, renamed and removed between copies, the last one is whole, and
// the directory holds few streams and not much more than the files.
func TestCopies(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		d := Open(filepath.Join(t.TempDir(), "copies"), 1<<30)
		files, ino := map[string]*file{}, uint64(1<<21-5)
		name := func() string {
			return fmt.Sprintf("./%s/%d", strings.Repeat("d", 1+r.IntN(150)), r.IntN(1000))
		}
		for round := range 60 {
			for range r.IntN(5) {
				names := slices.Sorted(maps.Keys(files))
				switch {
				case len(names) == 0 || r.IntN(3) == 0:
					ino++
					files[name()] = &file{ino: ino, text: strings.Repeat(fmt.Sprint(ino, " "), r.IntN(3000)), changed: true}
				case r.IntN(3) == 0:
					f := files[names[r.IntN(len(names))]]
					f.text, f.changed = strings.Repeat(fmt.Sprint(round, "."), r.IntN(3000)), true
				case r.IntN(2) == 0:
					from := names[r.IntN(len(names))]
					f := files[from]
					delete(files, from)
					files[name()] = f
				default:
					delete(files, names[r.IntN(len(names))])
				}
			}
			add(t, d, stream(t, files, round == 0))
			want := map[string]string{}
			live := int64(0)
			for n, f := range files {
				f.changed, want[n] = false, f.text
				live += int64(len(f.text))
			}
			if got := contents(t, d); !maps.Equal(got, want) {
				t.Fatalf("seed %d, round %d: got %d files, want %d", seed, round, len(got), len(want))
			}
			numbers, _, _, err := d.streams()
			if err != nil || len(numbers) > 20 {
				t.Fatalf("seed %d, round %d: %d streams, %v", seed, round, len(numbers), err)
			}
		}
	}
}

// A copy that failed, brought nothing new or was cut off leaves the one before.
func TestFailedCopy(t *testing.T) {
	d := Open(filepath.Join(t.TempDir(), "copies"), 10_000)
	if _, err := d.Latest(); !errors.Is(err, ErrNone) {
		t.Fatalf("an empty directory: %v", err)
	}
	files := map[string]*file{"./a": {ino: 7, text: "first", changed: true}}
	add(t, d, stream(t, files, true))
	files["./a"].text = "second"
	second := stream(t, files, true)
	boom := errors.New("boom")
	for _, x := range []struct {
		name  string
		fresh bool
		err   error
		b     []byte
	}{
		{"an error", true, boom, second},
		{"nothing new", false, nil, second},
		{"too much", true, nil, bytes.Repeat(second, 20)},
	} {
		err := d.Add(t.Context(), func(w io.Writer) (bool, error) {
			_, err := w.Write(x.b)
			return x.fresh, errors.Join(err, x.err)
		})
		if want := x.name != "nothing new"; (err != nil) != want {
			t.Errorf("%s: %v", x.name, err)
		}
		if x.name == "too much" && !errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", x.name, err)
		}
		if got := contents(t, d); got["./a"] != "first" {
			t.Errorf("%s: %v", x.name, got)
		}
	}
	// What a killed carboy was writing is no copy.
	if err := os.WriteFile(filepath.Join(d.path, tmp), second[:700], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, d); got["./a"] != "first" {
		t.Errorf("with half a copy: %v", got)
	}
	// The control: whole and new, it counts.
	add(t, d, second)
	if got := contents(t, d); got["./a"] != "second" {
		t.Errorf("a good copy: %v", got)
	}
	fi, err := os.Stat(d.path)
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", fi.Mode(), err)
	}
}

// A carboy that is killed between merging and removing what it merged leaves streams that
// change nothing.
func TestMergeCutShort(t *testing.T) {
	d := Open(filepath.Join(t.TempDir(), "copies"), 1<<30)
	f := &file{ino: 7, text: "one", changed: true}
	add(t, d, stream(t, map[string]*file{"./a": f}, true))
	old, err := os.ReadFile(d.name(1))
	if err != nil {
		t.Fatal(err)
	}
	f.text = "two"
	add(t, d, stream(t, map[string]*file{"./a": f}, true))
	if _, err := os.Stat(d.name(1)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("two streams of one size were not merged: %v", err)
	}
	if err := os.WriteFile(d.name(1), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, d); got["./a"] != "two" {
		t.Errorf("%v", got)
	}
}

// What can't be read is an error, and no panic or endless reading.
func TestMalformed(t *testing.T) {
	files := map[string]*file{"./a": {ino: 7, text: "text", changed: true}, "./b": {ino: 8, text: "text"}}
	good := stream(t, files, true)
	half := stream(t, files, false) // b's content is nowhere
	number := bytes.Clone(good)
	copy(number[124:], "zzz")
	long := bytes.Clone(good)
	copy(long[124:], "77777777777")
	for name, b := range map[string][]byte{"cut": good[:900], "no end": good[:len(good)-1024], "content missing": half, "no number": number, "too long": long, "empty": nil} {
		d := Open(filepath.Join(t.TempDir(), "copies"), 1<<30)
		add(t, d, b)
		if err := d.Write(t.Context(), io.Discard); !errors.Is(err, errMalformed) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	d := Open(filepath.Join(t.TempDir(), "copies"), 1<<30)
	add(t, d, good)
	if err := d.Write(t.Context(), io.Discard); err != nil {
		t.Errorf("control: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Write(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzWrite(f *testing.F) {
	files := map[string]*file{"./a": {ino: 7, text: "text", changed: true}, "./" + strings.Repeat("b", 200): {ino: 8, text: "text"}}
	f.Add(stream(f, files, true), stream(f, files, false))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		d := Open(filepath.Join(t.TempDir(), "copies"), 1<<20)
		for _, b := range [][]byte{one, two} {
			_ = d.Add(t.Context(), func(w io.Writer) (bool, error) { _, err := w.Write(b); return true, err })
		}
		_ = d.Write(t.Context(), io.Discard)
	})
}
