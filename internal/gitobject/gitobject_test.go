package gitobject

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zlib"
)

type repo struct {
	t   testing.TB
	dir string
}

func newRepo(t testing.TB, format string) repo {
	t.Helper()
	r := repo{t, t.TempDir()}
	r.git("init", "-q", "-b", "main", "--object-format="+format)
	return r
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r repo) write(name, text string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(r.dir, name)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// history makes commits whose files differ in a few lines, so that packs hold differences.
func (r repo) history(n int) {
	long := strings.Repeat("a line that stays the same in every commit\n", 200)
	for i := range n {
		r.write("dir/a", fmt.Sprintf("%s%d\n%s", long, i, long))
		r.write("b", fmt.Sprint(i))
		r.git("add", ".")
		r.git("commit", "-q", "-m", fmt.Sprint("commit ", i))
	}
	r.git("tag", "-a", "-m", "tag", "v1")
}

// objects reads the repository's loose objects and packs.
func (r repo) objects(digits int) *Objects {
	r.t.Helper()
	o := New(digits)
	loose, _ := filepath.Glob(r.dir + "/.git/objects/??/*")
	packs, _ := filepath.Glob(r.dir + "/.git/objects/pack/*.pack")
	for _, p := range append(loose, packs...) {
		b, err := os.ReadFile(p)
		if err == nil && strings.HasSuffix(p, ".pack") {
			err = o.AddPack(context.Background(), bytes.NewReader(b), int64(len(b)))
		} else if err == nil {
			err = o.AddLoose(bytes.NewReader(b), int64(len(b)))
		}
		if err != nil {
			r.t.Fatal(p, err)
		}
	}
	return o
}

func none(ID) bool { return false }

func mustID(t testing.TB, s string) ID {
	id, ok := ParseID(s)
	if !ok {
		t.Fatalf("%q is no name", s)
	}
	return id
}

// TestAgainstGit: loose objects and packs of both hashes have the names and contents that
// git gives them, and a pack made of them holds the same.
func TestAgainstGit(t *testing.T) {
	for format, digits := range map[string]int{"sha1": SHA1, "sha256": SHA256} {
		for _, packed := range []bool{false, true} {
			t.Run(fmt.Sprint(format, packed), func(t *testing.T) {
				r := newRepo(t, format)
				r.history(20)
				if packed {
					r.git("repack", "-adfq", "--depth=50")
				}
				o := r.objects(digits)
				want := strings.Fields(r.git("cat-file", "--batch-all-objects", "--batch-check=%(objectname)"))
				for _, id := range want {
					kind, body, err := o.Read(mustID(t, id))
					if err != nil || Name(kind.String(), body, digits) != id {
						t.Fatalf("%s: %v %v", id, kind, err)
					}
				}
				n := 0
				o.IDs(func(ID) { n++ })
				if n != len(want) {
					t.Errorf("%d objects of %d", n, len(want))
				}
				seen := map[ID]bool{}
				need, edge, err := o.Closure(t.Context(), mustID(t, r.git("rev-parse", "v1")), none, seen)
				if err != nil || len(edge) != 0 || len(need) != len(want) {
					t.Fatalf("closure: %d of %d, %d missing, %v", len(need), len(want), len(edge), err)
				}
				for _, part := range [][]ID{need, need[:len(need)/2]} { // bases are missing in the second
					var pack bytes.Buffer
					if err := o.WritePack(t.Context(), &pack, part); err != nil {
						t.Fatal(err)
					}
					again := New(digits)
					if err := again.AddPack(t.Context(), bytes.NewReader(pack.Bytes()), int64(pack.Len())); err != nil {
						t.Fatal(err)
					}
					for _, id := range part {
						if !again.Has(id) {
							t.Errorf("%s is not in the pack", id.Hex(digits))
						}
					}
				}
				// Control: what is known stops the walk.
				tip, parent := mustID(t, r.git("rev-parse", "main")), mustID(t, r.git("rev-parse", "main~1"))
				need, edge, err = o.Closure(t.Context(), tip, func(id ID) bool { return id == parent }, map[ID]bool{})
				if err != nil || len(edge) != 0 || len(need) != len(want)-1 && len(need) > len(want)-3 {
					t.Errorf("up to the parent: %d objects, %d missing, %v", len(need), len(edge), err)
				}
			})
		}
	}
}

// TestForgedNames: a loose object under another's name, and a pack's index, rename nothing.
func TestForgedNames(t *testing.T) {
	r := newRepo(t, "sha1")
	r.write("a", "honest")
	r.git("add", ".")
	id := r.git("rev-parse", ":a")
	evil := Name("blob", []byte("evil"), SHA1)
	r.write("evil", "evil")
	r.git("hash-object", "-w", "evil")
	at := func(id string) string { return r.dir + "/.git/objects/" + id[:2] + "/" + id[2:] }
	b, err := os.ReadFile(at(evil))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(at(id)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at(id), b, 0o644); err != nil {
		t.Fatal(err)
	}
	o := r.objects(SHA1)
	if o.Has(mustID(t, id)) || !o.Has(mustID(t, evil)) {
		t.Error("the name of the file was believed")
	}
}

// TestDamage: no damaged file stops the reader or makes it believe a name. Its control is
// the file without damage.
func TestDamage(t *testing.T) {
	r := newRepo(t, "sha1")
	r.history(6)
	r.git("repack", "-adfq")
	packs, _ := filepath.Glob(r.dir + "/.git/objects/pack/*.pack")
	whole, err := os.ReadFile(packs[0])
	if err != nil {
		t.Fatal(err)
	}
	check := func(b []byte) (n int, err error) {
		o := New(SHA1)
		err = o.AddPack(t.Context(), bytes.NewReader(b), int64(len(b)))
		o.IDs(func(id ID) {
			n++
			kind, body, rerr := o.Read(id)
			if rerr != nil || Name(kind.String(), body, SHA1) != id.Hex(SHA1) {
				t.Errorf("%s: %v", id.Hex(SHA1), rerr)
			}
		})
		return n, err
	}
	all, err := check(whole)
	if err != nil || all == 0 {
		t.Fatal(all, err)
	}
	for i := 0; i < len(whole)-20; i += 3 {
		b := bytes.Clone(whole)
		b[i] ^= 0x55
		_, _ = check(b) // every object that is left has the name of its content
		if n, _ := check(whole[:i]); n > all {
			t.Errorf("cut at %d: %d objects", i, n)
		}
	}
	var junk [500]byte
	if _, err := rand.Read(junk[:]); err != nil {
		t.Fatal(err)
	}
	o := New(SHA1)
	if o.AddLoose(bytes.NewReader(junk[:]), 500) == nil || o.AddLoose(bytes.NewReader(nil), 0) == nil {
		t.Error("junk is a loose object")
	}
	if _, _, err := o.Read(ID{}); err == nil {
		t.Error("read what is not there")
	}
	if o.WritePack(t.Context(), &bytes.Buffer{}, []ID{{}}) == nil {
		t.Error("packed what is not there")
	}
}

// TestPatch: a difference that reaches beyond its base or its result is refused.
func TestPatch(t *testing.T) {
	good := []byte{4, 6, 0x90, 4, 2, 'x', 'y'} // copy 4 bytes, then 2 new ones
	if b, err := patch([]byte("base"), good); err != nil || string(b) != "basexy" {
		t.Fatalf("%q %v", b, err)
	}
	for name, d := range map[string][]byte{
		"empty": nil, "other base": {5, 6, 0x90, 4, 2, 'x', 'y'}, "no result": {4}, "short": {4, 7, 0x90, 4, 2, 'x', 'y'}, "long": {4, 5, 0x90, 4, 2, 'x', 'y'},
		"reserved": {4, 1, 0}, "cut": {4, 6, 0x90}, "beyond": {4, 8, 0x91, 2, 4}, "text cut": {4, 2, 2, 'x'}, "huge": {4, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x80},
		"endless": {4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	} {
		if _, err := patch([]byte("base"), d); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestMalformed: objects that name nothing, trees that end early.
func TestMalformed(t *testing.T) {
	r := newRepo(t, "sha1")
	for _, c := range []struct{ kind, body string }{{"commit", "tree x\n"}, {"tag", "object y\n"}, {"commit", ""}, {"tree", "40000 x"}} {
		var loose bytes.Buffer
		cmd := exec.Command("git", "hash-object", "-t", c.kind, "--literally", "-w", "--stdin")
		cmd.Dir, cmd.Stdin, cmd.Stdout = r.dir, strings.NewReader(c.body), &loose
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		o := r.objects(SHA1)
		if _, _, err := o.Closure(t.Context(), mustID(t, strings.TrimSpace(loose.String())), none, map[ID]bool{}); err == nil {
			t.Errorf("%s %q: no error", c.kind, c.body)
		}
	}
	if _, ok := ParseID("xyz"); ok {
		t.Error("xyz is a name")
	}
	if c := ParseCommit([]byte("tree a\nparent b\nparent c\nauthor d\nparent e\n")); c.Tree != "a" || len(c.Parents) != 2 {
		t.Errorf("%+v", c)
	}
}

// TestChains: a long chain of differences, of which each object is asked for, ends at the
// bound on what is unpacked; the last one alone is read.
func TestChains(t *testing.T) {
	base := make([]byte, 1<<16)
	var pack bytes.Buffer
	pack.WriteString("PACK\x00\x00\x00\x02\x00\x00\x01\xf5") // 501 objects
	put := func(head, body []byte) {
		pack.Write(head)
		z := zlib.NewWriter(&pack)
		z.Write(body)
		z.Close()
	}
	put(entryHead(Blob, int64(len(base))), base)
	ids := []ID{mustID(t, Name("blob", base, SHA1))}
	size := binary.AppendUvarint(nil, uint64(len(base)))
	for i := range 500 {
		text := fmt.Sprintf("%04d", i)
		delta := append(binary.AppendUvarint(bytes.Clone(size), 1<<16+4), 0x80, 4)
		delta = append(delta, text...)
		put(append(entryHead(nameDelta, int64(len(delta))), ids[i][:SHA1/2]...), delta)
		ids = append(ids, mustID(t, Name("blob", append(bytes.Clone(base), text...), SHA1)))
		size = binary.AppendUvarint(nil, 1<<16+4)
	}
	o := New(SHA1)
	if err := o.AddPack(t.Context(), bytes.NewReader(pack.Bytes()), int64(pack.Len())); err != nil {
		t.Fatal(err)
	}
	o.left = 100 << 20
	if _, b, err := o.Read(ids[500]); err != nil || !bytes.HasSuffix(b, []byte("0499")) {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil && i < len(ids); i++ {
		_, _, err = o.Read(ids[i])
	}
	if !errors.Is(err, errBound) {
		t.Errorf("8 GB were unpacked: %v", err)
	}
}
