package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// TestCopy: files go out of a bottle that goes on, and into it; what a hostile tar says
// is written nowhere but under the new name.
func TestCopy(t *testing.T) {
	s := newSite(t)
	s.wipe()
	evilDir := s.home + "/evil" // where the bottle looks for tar first
	if err := os.Mkdir(evilDir, 0o755); err != nil {
		t.Fatal(err)
	}
	id, run, _ := s.live(`mkdir -p /tmp/t/sub; echo one >/tmp/t/one; echo two >/tmp/t/sub/two; ln -s one /tmp/t/in; ln -s /etc/passwd /tmp/t/out; mkfifo /tmp/t/pipe
chmod 4755 /tmp/t/one; head -c 3000000 /dev/zero >/tmp/large
while [ ! -e stop ]; do sleep 0.05; done; exit 6`, "--output", "1MiB", "--mount", evilDir+":/usr/local/bin:ro")
	to := t.TempDir()
	ready := func() bool { return s.carboy("exec", id, "--", "test", "-s", "/tmp/large").code == 0 }
	for end := time.Now().Add(patience); !ready(); {
		if time.Now().After(end) {
			t.Fatal("it has not begun")
		}
	}
	cp := func(args ...string) said { t.Helper(); return s.carboy(append([]string{"cp"}, args...)...) }
	is := func(path, want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", path, b, err)
		}
	}

	// Out: into a directory, and under a new name.
	x := cp(id+":/tmp/t", to)
	if x.code != 0 || !strings.Contains(x.msg, "left out: t/out: it is a link that leads out") || !strings.Contains(x.msg, "left out: t/pipe: it is neither") || !strings.Contains(x.msg, "copied 5 entries, 8 B") {
		t.Errorf("%+v", x)
	}
	is(to+"/t/sub/two", "two\n")
	is(to+"/t/in", "one\n")
	if fi, err := os.Lstat(to + "/t/one"); err != nil || fi.Mode()&^0o777 != 0 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if x := cp(id+":/tmp/t/one", to+"/new"); x.code != 0 {
		t.Errorf("%+v", x)
	}
	is(to+"/new", "one\n")
	if x := cp(id+":a.txt", to+"/relative"); x.code != 0 {
		t.Errorf("%+v", x)
	}
	is(to+"/relative", "hello\n")
	// More than the run's own output may be, which it does not count as.
	if x := cp(id+":/tmp/large", to); x.code != 0 {
		t.Errorf("%+v", x)
	}
	if fi, err := os.Stat(to + "/large"); err != nil || fi.Size() != 3000000 {
		t.Error(err)
	}
	if x := cp("--max-bytes", "1MiB", id+":/tmp/large", to+"/bounded"); x.code != 1 || !strings.Contains(x.msg, "more than 1048576 bytes") {
		t.Errorf("%+v", x)
	}

	// In: into a directory, with and without a slash, and under a new name.
	from := t.TempDir()
	if err := errors.Join(os.Chmod(from, 0o755), os.MkdirAll(from+"/d/e", 0o755), os.WriteFile(from+"/d/e/f", []byte("mine"), 0o644), os.WriteFile(from+"/one", []byte("1"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, dest := range []string{"/tmp", "/tmp/renamed", "made-here"} {
		if x := cp(from+"/d", id+":"+dest); x.code != 0 || !strings.Contains(x.msg, "copied 3 entries, 4 B") {
			t.Errorf("%s: %+v", dest, x)
		}
	}
	if x := cp(from+"/one", id+":/tmp/d/e/"); x.code != 0 {
		t.Errorf("%+v", x)
	}
	inside := s.carboy("exec", id, "--", "sh", "-c", `cat /tmp/d/e/f /tmp/renamed/e/f made-here/e/f /tmp/d/e/one; test -O /tmp/d/e/f && test -x /tmp/d/e/one && echo " is its own"`)
	if inside.out != "mineminemine1 is its own\n" {
		t.Errorf("%+v", inside)
	}
	if _, err := os.Lstat(s.ws + "/made-here"); err == nil {
		t.Error("it was written to the workspace itself")
	}

	// What can't be is said, and nothing is left of it.
	os.Symlink(from, to+"/link")
	os.WriteFile(to+"/mine", []byte("mine"), 0o600)
	os.Symlink(to+"/mine", to+"/there")
	before, _ := filepath.Glob(to + "/*")
	for _, c := range []struct {
		args []string
		msg  string
		code int
	}{
		{[]string{id + ":/tmp/none", to}, "tar in the bottle ended with 2", 1},
		{[]string{id + ":/none/x", to}, "tar in the bottle ended with 2", 1},
		{[]string{id + ":/tmp/t/out", to}, "nothing that can be taken out came", 1},
		{[]string{id + ":/tmp/t/one", to + "/mine"}, "file already exists", 1},
		{[]string{id + ":/tmp/t/one", to + "/there"}, "file already exists", 1},
		{[]string{id + ":/tmp/t/one", to + "/none/x"}, "no such file or directory", 1},
		{[]string{id + ":/tmp/t/one", to + "/none/"}, "is not a directory", 1},
		{[]string{id + ":/", to}, "has no name of its own", 1},
		{[]string{id + ":/tmp/..", to}, "has no name of its own", 1},
		{[]string{from + "/none", id + ":/tmp"}, "no such file or directory", 1},
		{[]string{from + "/one", id + ":/none/x"}, "tar in the bottle ended with 2", 1},
		{[]string{from + "/one", id + ":/proc/x"}, "tar in the bottle ended with 2", 1},
		{[]string{"zzzz:/tmp/t", to}, "no such run", 1},
		{[]string{id + ":", to}, "has no path", 2},
		{[]string{from, to}, "neither path is in a bottle", 2},
		{[]string{id + ":/a", id + ":/b"}, "are both bottles", 2},
		{[]string{"./" + id + ":/a", to}, "neither path is in a bottle", 2},
		{[]string{id + ":/a"}, "wanted two paths", 2},
	} {
		if x := cp(c.args...); x.code != c.code || !strings.Contains(x.msg, c.msg) {
			t.Errorf("cp %q: exit %d, %q", c.args, x.code, x.msg)
		}
	}
	is(to+"/mine", "mine")

	// A tar of the bottle's own that says what it likes.
	evil := func(script string, entries ...tar.Header) {
		t.Helper()
		var b bytes.Buffer
		b.WriteString("#!/bin/sh\n" + script + "\nexit $?\n")
		if err := errors.Join(os.WriteFile(evilDir+"/new", b.Bytes(), 0o755), os.Rename(evilDir+"/new", evilDir+"/tar")); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		w := tar.NewWriter(&b)
		for _, h := range entries {
			h.Mode = 0o755
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			w.Write(make([]byte, h.Size))
		}
		w.Close()
		if err := os.WriteFile(evilDir+"/stream", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	send := "cat /usr/local/bin/stream"
	top := tar.Header{Name: "./x/", Typeflag: tar.TypeDir}
	for _, c := range []struct {
		script, msg string
		entries     []tar.Header
	}{
		{send, "is no name that was asked for", []tar.Header{top, {Name: "./x/../../evil", Typeflag: tar.TypeReg, Size: 4}}},
		{send, "is no name that was asked for", []tar.Header{{Name: "/tmp/evil", Typeflag: tar.TypeReg, Size: 4}}},
		{send, "was not asked for", []tar.Header{{Name: "./mine", Typeflag: tar.TypeReg, Size: 4}}},
		{send, "comes without its directory", []tar.Header{top, {Name: "./x/l", Typeflag: tar.TypeSymlink, Linkname: to}, {Name: "./x/l/evil", Typeflag: tar.TypeReg, Size: 4}}},
		{send, "link to what was not asked for", []tar.Header{top, {Name: "./x/l", Typeflag: tar.TypeLink, Linkname: to + "/mine"}}},
		{send + "; exit 3", "tar in the bottle ended with 3", []tar.Header{top}},
		{send + "; echo '\033]0;owned\a' >&2; exit 2", `ended with 2: \x1b]0;owned\x07`, []tar.Header{top}},
		{send + "; cat /dev/zero", "more came after the archive's end", []tar.Header{top}},
		{"cat /dev/urandom", "what came is no archive", nil},
		{"true", "nothing that can be taken out came", nil},
		{"head -c 1000 /usr/local/bin/stream", "what came is no archive", []tar.Header{top, {Name: "./x/f", Typeflag: tar.TypeReg, Size: 4}}},
		{"exit 127", "there is no tar in the bottle", nil},
		{"kill -9 $$", "tar in the bottle ended with 137", nil},
	} {
		evil(c.script, c.entries...)
		if x := cp(id+":/tmp/x", to); x.code != 1 || !strings.Contains(x.msg, c.msg) || strings.Contains(x.msg, "\x1b") {
			t.Errorf("a tar that is %q: exit %d, %q, want %q", c.script, x.code, x.msg, c.msg)
		}
	}
	evil(send, top, tar.Header{Name: "./x/f", Typeflag: tar.TypeReg, Size: 4})
	if x := cp(id+":/tmp/x", to+"/good"); x.code != 0 {
		t.Errorf("the same tar, when it is honest: %+v", x)
	}
	is(to+"/good/f", "\x00\x00\x00\x00")
	os.RemoveAll(to + "/good")
	// One that never ends is ended by who waits for it.
	evil(send+"; exec sleep 1000", top)
	hung := s.command("cp", id+":/tmp/x", to)
	if err := hung.Start(); err != nil {
		t.Fatal(err)
	}
	asleep := func() bool { return s.runsInside(id, "sleep", "1000") }
	if !testenv.Poll(patience, asleep) {
		t.Fatal("it does not run")
	}
	hung.Process.Signal(os.Interrupt)
	hung.Wait()
	if !testenv.Poll(patience, func() bool { return !asleep() }) {
		t.Fatal("its caller gave up, and it goes on")
	}
	after, _ := filepath.Glob(to + "/*")
	if strings.Join(before, " ") != strings.Join(after, " ") {
		t.Errorf("left: %v, there was %v", after, before)
	}
	hidden, _ := filepath.Glob(to + "/.carboy-cp-*")
	if len(hidden) > 0 {
		t.Errorf("left: %v", hidden)
	}

	s.carboy("exec", id, "--", "touch", "stop")
	run.Wait()
	if code := run.ProcessState.ExitCode(); code != 6 {
		t.Errorf("the run's exit code %d", code)
	}
	if x := cp(id+":/tmp/t", to+"/late"); x.code != 1 || !strings.Contains(x.msg, "not live") {
		t.Errorf("%+v", x)
	}
	if x := s.carboy("receipt", id); !strings.Contains(x.out, "tar") {
		t.Errorf("%+v", x)
	}
	logs, _ := filepath.Glob(filepath.Join(s.home, "state/carboy/runs/*/logs/exec-stdout"))
	for _, l := range logs {
		if fi, err := os.Stat(l); err == nil && fi.Size() > 1<<20 {
			t.Errorf("%s has the files: %d bytes", l, fi.Size())
		}
	}
}
