package bottletest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/checkpoint"
)

// checkpointSteps lists the shell commands that run between copies. Later ones change the
// files of earlier ones.
var checkpointSteps = []string{
	`mkdir -p d/e; echo one >d/e/f; echo two >d/g; ln d/g hard; ln -s d/g soft; rm a.txt`,
	`:`,
	`echo more >>d/g`,
	`mv d moved; chmod 600 moved/e/f`,
	`truncate -s 100M holes; printf x | dd of=holes bs=1 seek=50000000 conv=notrunc 2>/dev/null`,
	`:`,
	`printf y | dd of=holes bs=1 seek=70000000 conv=notrunc 2>/dev/null; mkfifo pipe`,
	`rm -r moved; mkdir moved; echo three >moved/e; mkdir ~/.h; echo home >~/.h/x`,
	`cp holes other; mv other ~/.h/holes; rm hard soft pipe; echo one >a.txt`,
}

// checkpoints checks that copies of a running bottle are what ExportAll would write, that
// later ones hold changes and not the rest, and that the commands go on.
func (s *suite) checkpoints(t *testing.T) {
	b := s.create(t)
	dir := checkpoint.Open(t.TempDir(), 1<<30)
	var size counter
	take := func(o bottle.CheckpointOptions) (changed bool) {
		t.Helper()
		err := dir.Add(b.ctx, func(w io.Writer) (bool, error) {
			size = 0
			r, err := b.Checkpoint(b.ctx, o, io.MultiWriter(w, &size))
			changed = r.Changed
			return r.Changed, err
		})
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	sh := b.start("/bin/sh", "-c", `echo ready; while read -r x; do eval "$x"; echo "done $x"; done`)
	sh.waitFor("ready")
	mapped := b.start(guestPath, "map", "mapped")
	mapped.waitFor("mapped")
	for i, step := range checkpointSteps {
		fmt.Fprintf(sh.stdin, "%s; : %d\n", step, i)
		sh.waitFor(fmt.Sprintf("done %s; : %d", step, i))
		changed := take(bottle.CheckpointOptions{})
		if idle := step == ":"; changed == idle {
			t.Errorf("step %d, %s: it changed something: %v", i, step, changed)
		}
	}
	// A write through memory leaves no trace in the file's times.
	fmt.Fprintln(mapped.stdin, "go")
	mapped.waitFor("written")
	if !take(bottle.CheckpointOptions{}) {
		t.Error("a write through memory changed nothing")
	}
	var copied, exported bytes.Buffer
	if err := dir.Write(b.ctx, &copied); err != nil {
		t.Fatal(err)
	}
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.ExportAll(b.ctx, &exported); err != nil {
		t.Fatal(err)
	}
	got, want := headers(t, &copied), headers(t, &exported)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: the copy has\n%s, the bottle\n%s", name, got[name], want[name])
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("%s: only the copy has it", name)
	}
	if len(want) < 8 {
		t.Errorf("the bottle holds %d files: this shows nothing", len(want))
	}
	if size > 4*mib && s.without["holes"] == "" {
		t.Errorf("the last copy has %d bytes, and four changed", size)
	}
}

// headers returns what a tar says of each file, with a digest of its content.
func headers(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, tr); err != nil {
			t.Fatal(err)
		}
		dev := ""
		if h.Typeflag == tar.TypeChar {
			dev = fmt.Sprint(h.Devmajor, ",", h.Devminor)
		}
		delete(h.PAXRecords, "path")
		out[h.Name] = fmt.Sprintf("%c %o %d:%d %d %v %q %s %v %x", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Size, h.ModTime.Unix(), h.Linkname, dev, h.PAXRecords, sum.Sum(nil))
	}
}

// guestMap makes a file, shares it with its memory, and writes to that when a line comes.
func guestMap(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	if err := f.Truncate(1 << 16); err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m[1] = 1
	fmt.Println("mapped")
	var one [1]byte
	os.Stdin.Read(one[:])
	copy(m[4096:], "late")
	fmt.Println("written")
	os.Stdin.Read(one[:])
	os.Stdin.Read(one[:])
	os.Stdin.Read(one[:])
	return nil
}
