package bottletest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
)

// pauseStops checks that nothing inside moves after Pause, so that an export is
// consistent.
func (s *suite) pauseStops(t *testing.T) {
	if s.lacking(t, bottle.CapReadWrite, s.pauseStopsInside) {
		return
	}
	var dir string
	b := s.create(t, func(sp *bottle.Spec) {
		dir = shared(t, sp)
		sp.Mounts = append(sp.Mounts, bottle.Mount{Source: dir, Target: "/data", Access: bottle.AccessReadWrite})
	})
	p := b.start("/bin/sh", "-c", "echo up; while :; do echo x >> /data/ticks; done")
	p.waitFor("up")
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		fi, err := os.Stat(dir + "/ticks")
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	one := size()
	for range 20 {
		b.Usage() // takes a moment, in which a running bottle would write
	}
	want(t, "bytes written after the pause", size()-one, 0)
	if err := b.Export(b.ctx, io.Discard); err != nil {
		t.Errorf("export after pause: %v", err)
	}
}

// pauseStopsInside is pauseStops with a file that only the bottle has.
func (s *suite) pauseStopsInside(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "echo up; while :; do echo x >> ticks; done")
	p.waitFor("up")
	one := b.exported()["ticks"]
	if two := b.upperFiles()["ticks"]; one.sum != two.sum {
		t.Errorf("a paused bottle wrote %d bytes", two.size-one.size)
	}
}

// entry is one member of an exported stream.
type entry struct {
	typ     byte
	mode    int64
	size    int64
	link    string
	sum     [32]byte
	opaque  bool
	deleted bool
	socket  bool
}

// exported pauses the bottle and reads its changes, by path below the
// workspace.
func (b *box) exported() map[string]entry {
	b.t.Helper()
	if err := b.Pause(b.ctx); err != nil {
		b.t.Fatal(err)
	}
	return b.upperFiles()
}

// upperFiles reads the changes of a paused bottle.
func (b *box) upperFiles() map[string]entry {
	b.t.Helper()
	r, w := io.Pipe()
	errc := make(chan error, 1)
	go func() {
		err := b.Export(b.ctx, w)
		w.CloseWithError(err)
		errc <- err
	}()
	out := map[string]entry{}
	prefix := strings.TrimPrefix(b.spec.Workspace.Target, "/")
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.t.Fatalf("exported stream: %v", err)
		}
		e := entry{typ: h.Typeflag, mode: h.Mode, size: h.Size, link: h.Linkname}
		e.opaque = h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] != ""
		e.socket = h.PAXRecords["CARBOY.type"] == "socket"
		e.deleted = h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 && !e.socket
		hash := sha256.New()
		if _, err := io.Copy(hash, tr); err != nil {
			b.t.Fatal(err)
		}
		copy(e.sum[:], hash.Sum(nil))
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		rel, ok := strings.CutPrefix(name, prefix)
		switch {
		case !ok && strings.HasPrefix(prefix, name):
			continue // a directory above the workspace
		case !ok:
			b.t.Errorf("the stream holds %q, which is not in the workspace", h.Name)
			continue
		}
		if rel = strings.TrimPrefix(rel, "/"); rel == "" {
			rel = "."
		}
		if _, twice := out[rel]; twice {
			b.t.Errorf("the stream holds %q twice", rel)
		}
		out[rel] = e
	}
	io.Copy(io.Discard, r)
	if err := <-errc; err != nil {
		b.t.Fatalf("export: %v", err)
	}
	return out
}

func is(e entry, content string) bool {
	return e.typ == tar.TypeReg && e.sum == sha256.Sum256([]byte(content))
}

func (s *suite) exportChanges(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) {
		write(t, sp.Workspace.Source+"/same", "same")
		write(t, sp.Workspace.Source+"/exec", "exec")
	})
	b.sh("echo more >> a.txt; echo new > new; mkdir -p d/e; echo deep > d/e/f; chmod 755 exec; cat same; mkfifo pipe; echo out > /tmp/outside")
	got := b.exported()
	if !is(got["a.txt"], "hello\nmore\n") {
		t.Errorf("a changed file: %+v", got["a.txt"])
	}
	if !is(got["new"], "new\n") || !is(got["d/e/f"], "deep\n") {
		t.Errorf("new files: %+v %+v", got["new"], got["d/e/f"])
	}
	want(t, "a new directory", got["d/e"].typ, byte(tar.TypeDir))
	want(t, "a changed mode", got["exec"].mode&0o777, 0o755)
	if s.without["pipes"] == "" {
		want(t, "a pipe", got["pipe"].typ, byte(tar.TypeFifo))
	}
	if _, ok := got["same"]; ok {
		t.Error("a file that was only read is among the changes")
	}
	for name := range got {
		if strings.Contains(name, "outside") {
			t.Errorf("%s is not in the workspace", name)
		}
	}
}

func (s *suite) exportDeletions(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) {
		ws := sp.Workspace.Source
		for _, d := range []string{"/again", "/all", "/renamed"} {
			if err := os.Mkdir(ws+d, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, ws+d+"/old", "old")
		}
		write(t, ws+"/one", "1")
		write(t, ws+"/two", "2")
		write(t, ws+"/kind", "file")
	})
	b.sh(`rm one two; rm -r all; rm -r again; mkdir again; echo new > again/new; mv renamed name2; rm kind; mkdir kind; touch short; rm short`)
	got := b.exported()
	for _, name := range []string{"one", "two", "all", "renamed"} {
		if !got[name].deleted {
			t.Errorf("%s was deleted: %+v", name, got[name])
		}
	}
	if e := got["again"]; e.typ != tar.TypeDir || !e.opaque {
		t.Errorf("a directory made anew hides what was in the old: %+v", e)
	}
	if !is(got["again/new"], "new\n") || !is(got["name2/old"], "old") {
		t.Errorf("new names: %+v %+v", got["again/new"], got["name2/old"])
	}
	want(t, "a file that became a directory", got["kind"].typ, byte(tar.TypeDir))
	if e, ok := got["short"]; ok && !e.deleted {
		t.Errorf("a file that came and went: %+v", e)
	}
}

func (s *suite) exportLinks(t *testing.T) {
	b := s.create(t)
	b.sh(`ln -s /etc/shadow abs; ln -s ../../../../etc/shadow up; ln -s nowhere dangling; ln -s . self; ln a.txt h1; ln a.txt h2; echo x > n; ln n n2; ln -s a.txt h3; mkdir real; ln -s real dirlink; echo y > dirlink/f`)
	got := b.exported()
	for name, to := range map[string]string{"abs": "/etc/shadow", "up": "../../../../etc/shadow", "dangling": "nowhere", "self": ".", "h3": "a.txt", "dirlink": "real"} {
		if e := got[name]; e.typ != tar.TypeSymlink || e.link != to {
			t.Errorf("link %s: %+v, want a link to %s", name, e, to)
		}
	}
	names := 0
	for _, name := range []string{"a.txt", "h1", "h2"} {
		e, ok := got[name]
		if !ok {
			continue
		}
		names++
		if e.typ != tar.TypeLink && !is(e, "hello\n") {
			t.Errorf("hard link %s: %+v", name, e)
		}
	}
	if names < 2 {
		t.Errorf("hard links are missing: %v", got)
	}
	if e := got["n2"]; e.typ != tar.TypeLink && !is(e, "x\n") {
		t.Errorf("n2: %+v", e)
	}
	if !is(got["real/f"], "y\n") {
		t.Errorf("a file written through a link to a directory: %+v", got["real/f"])
	}
}

func (s *suite) exportNames(t *testing.T) {
	b := s.create(t)
	b.guestRun("names")
	got := b.exported()
	for _, n := range oddNames() {
		if !is(got[n], n) {
			t.Errorf("file %q: %+v", n, got[n])
		}
	}
	if !is(got[deepPath()], "deep") {
		t.Error("a file at a deep path is missing")
	}
}

func (s *suite) exportLarge(t *testing.T) {
	b := s.create(t)
	b.guestRun("large")
	got := b.exported()
	var content bytes.Buffer
	for i := range largeSize >> 20 {
		content.Write(largeBlock(i))
	}
	if !is(got["large"], content.String()) {
		t.Errorf("large file: %+v", got["large"])
	}
	sparse := make([]byte, 100<<20)
	copy(sparse[len(sparse)-3:], "end")
	if !is(got["sparse"], string(sparse)) {
		t.Errorf("sparse file: %+v", got["sparse"])
	}
}

// exportScratch checks exports with the overlay's pages on disk.
func (s *suite) exportScratch(t *testing.T) {
	var dir string
	b := s.create(t, func(sp *bottle.Spec) {
		dir = shared(t, sp)
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		sp.Scratch = dir
	})
	b.sh("true")
	before, err := b.Usage()
	if err != nil {
		t.Fatal(err)
	}
	b.sh("echo more >> a.txt; head -c 50000000 /dev/zero > big; mkdir d; echo x > d/f")
	u, err := b.Usage()
	if err != nil || u.Memory > before.Memory+25*mib || u.Disk < 50000000 {
		t.Errorf("usage with the overlay on disk: %+v, %v; before it was %+v", u, err, before)
	}
	got := b.exported()
	if !is(got["a.txt"], "hello\nmore\n") || !is(got["d/f"], "x\n") || got["big"].size != 50000000 {
		t.Errorf("changes: %+v", got)
	}
}

var errReader = errors.New("the reader gave up")

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errReader
	}
	return len(p), nil
}

func (s *suite) exportBrokenReader(t *testing.T) {
	b := s.create(t)
	b.sh("head -c 20000000 /dev/zero | tr '\\0' x > big")
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	soon(t, "export to a broken writer", func() {
		if err := b.Export(b.ctx, &brokenWriter{left: 1 << 20}); !errors.Is(err, errReader) {
			t.Errorf("export to a broken writer: %v", err)
		}
	})
	soon(t, "close", func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	soon(t, "export after close", func() {
		if err := b.Export(b.ctx, io.Discard); !errors.Is(err, bottle.ErrGone) {
			t.Error(fmt.Errorf("export after close: %w", err))
		}
	})
}
