package gitgate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/secret"
)

// packHead is the length of a pack's header.
const packHead = 12

// received lets git store a pack that is read ahead.
func received(t *testing.T, g *Gate, format string, pack []byte) (*quarantine, *readAhead, error) {
	t.Helper()
	g.kept <- struct{}{}
	q, err := newQuarantine(g, &baseObjects{}, format)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.remove)
	in, err := g.newInspection()
	if err != nil {
		t.Fatal(err)
	}
	a := in.readAhead(t.Context(), newHistory(format))
	err = q.receive(t.Context(), bufio.NewReader(bytes.NewReader(pack)), a)
	a.end()
	return q, a, err
}

// packOf returns a pack with commits, deltas, a tag, and one file that is too large to be
// held.
func packOf(t *testing.T, format string) (pack []byte, objects int) {
	t.Helper()
	w := filepath.Join(t.TempDir(), "w")
	git(t, filepath.Dir(w), "init", "-q", "-b", "trunk", "--object-format="+format, w)
	r := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, heldObject+1)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	write(t, w+"/large", string(noise))
	write(t, w+"/less", string(noise[:heldObject/4]))
	write(t, w+"/empty", "")
	var lines []string
	for range 2000 {
		lines = append(lines, fmt.Sprintf("line %d", r.Uint64()))
	}
	for i := range 5 {
		lines[100*i] = "changed"
		commitFile(t, w, "d.txt", strings.Join(lines, "\n"))
	}
	git(t, w, "tag", "-a", "-m", "a tag", "v1")
	git(t, w, "repack", "-q", "-a", "-d", "-f")
	all := pipeGit(t, w, "", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
	args := []string{"pack-objects", "--all", "--revs", "--stdout", "-q"}
	if format == "sha1" { // with the other format, deltas name their bases by id
		args = append(args, "--delta-base-offset")
	}
	return pipeGitRaw(t, w, "", args...), 1 + strings.Count(all, "\n")
}

// The objects read ahead and those read afterwards are together all that git sees, each
// once.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			g, _ := newGate(t, Config{})
			pack, objects := packOf(t, format)
			q, a, err := received(t, g, format, pack)
			if err != nil || a.err != nil {
				t.Fatal(err, a.err)
			}
			afterwards := func() (ids []string, err error) {
				err = q.rest(t.Context(), a, func(o object) error {
					ids = append(ids, o.id)
					_, err := io.Copy(io.Discard, o.body)
					return err
				})
				return ids, err
			}
			left, err := afterwards()
			if err != nil || len(a.read)+len(left) != objects {
				t.Fatalf("%d of %d objects were read ahead, %d afterwards: %v", len(a.read), objects, len(left), err)
			}
			// The large object, and the deltas.
			if len(left) < 3 || len(left) > objects/2 {
				t.Errorf("%d of %d objects were read afterwards", len(left), objects)
			}
			for _, id := range left {
				if a.has(id) {
					t.Errorf("%s was read twice", id)
				}
			}
			var one gitobject.ID
			for one = range a.read {
				break
			}
			delete(a.read, one)
			if again, err := afterwards(); err != nil || len(again) != len(left)+1 {
				t.Errorf("without one that was read ahead: %d instead of %d: %v", len(again), len(left)+1, err)
			}
			one[0]++
			a.read[one] = struct{}{}
			var no *refusedError
			if _, err := afterwards(); !errors.As(err, &no) {
				t.Errorf("an object that git does not see: %v", err)
			}
		})
	}
}

// Truncated or changed packs end the reading ahead, and git reports the fault. The objects
// read until then are objects that git sees, or git refuses the pack.
func TestReadAheadOfBrokenPacks(t *testing.T) {
	t.Parallel()
	g, base := newGate(t, Config{Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}}})
	g.aheadFrom = packHead
	_, pack := rawPush(t, cloneOf(t, base))
	if _, a, err := received(t, g, "sha1", pack); err != nil || len(a.read) != 3 {
		t.Fatalf("the neighbour: %d objects, %v", len(a.read), err)
	}
	for i := 0; i < len(pack); i += 1 + len(pack)/40 {
		changed := bytes.Clone(pack)
		changed[i] ^= 0x55
		for _, p := range [][]byte{pack[:i], changed} {
			in, err := g.newInspection()
			if err != nil {
				t.Fatal(err)
			}
			a := in.readAhead(t.Context(), newHistory("sha1"))
			_, _ = a.Write(p)
			a.end()
			if a.err != nil || len(a.read) > 3 {
				t.Errorf("at %d: %d objects, %v", i, len(a.read), a.err)
			}
		}
	}
}

// A value that becomes a secret during a push is looked for in all of the push.
func TestSecretsOfTheMoment(t *testing.T) {
	t.Parallel()
	var asked, from atomic.Int32
	from.Store(2)
	g, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}}, Secrets: func() map[string]secret.Value {
		if asked.Add(1) < from.Load() {
			return nil
		}
		return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
	}})
	g.aheadFrom = packHead
	w := cloneOf(t, url)
	commitFile(t, w, "f.txt", "one\n"+knownSecret+"\n")
	asked.Store(0) // the clone asked too
	refusedPush(t, w, "f.txt:2", "deploy-token")
	// The counter-check: the value never becomes a secret.
	asked.Store(0)
	from.Store(1000)
	git(t, w, "push", "-q", "origin", "trunk")
}

// A pack that unpacks to more than the limit is not read ahead any further, and is refused.
func TestReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	g, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}, Limits: Bounds{Unpacked: 1 << 20}})
	g.aheadFrom = packHead
	w := cloneOf(t, url)
	commitFile(t, w, "fine.txt", strings.Repeat("x", 1<<19))
	git(t, w, "push", "-q", "origin", "trunk")
	commitFile(t, w, "bomb.txt", strings.Repeat("x", 1<<21))
	refusedPush(t, w, "have more than 1048576 bytes")
	if left, err := os.ReadDir(g.cfg.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
