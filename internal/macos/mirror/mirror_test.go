package mirror

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/macos/frames"
)

// pair returns both ends of a connection, which breaks when the test ends.
func pair(t *testing.T) (here, there *frames.Conn) {
	t.Helper()
	r1, w1 := io.Pipe()
	r2, w2 := io.Pipe()
	t.Cleanup(func() {
		r1.Close()
		r2.Close()
	})
	return frames.New(r1, w2), frames.New(r2, w1)
}

// both calls one function for each end, and returns their errors.
func both(t *testing.T, here, there func(*frames.Conn) error) (error, error) {
	t.Helper()
	a, b := pair(t)
	end := make(chan error)
	go func() { end <- there(b) }()
	err := here(a)
	return err, <-end
}

func write(t *testing.T, dir, path, text string) {
	t.Helper()
	name := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// tree returns what is in dir: each path with its mode and content.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all, err := Scan(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range all {
		text := e.Target
		if e.Kind == File {
			b, err := os.ReadFile(filepath.Join(dir, e.Path))
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		out[e.Path] = fmt.Sprintf("%s %o %d %s", e.Kind, e.Mode, e.Time, text)
	}
	return out
}

// give makes the machine's directory equal to this side's, and returns what it notes and how
// many files crossed.
func give(t *testing.T, mac, machine string) (base []Entry, sent int) {
	t.Helper()
	err, merr := both(t,
		func(c *frames.Conn) error {
			return Give(t.Context(), c, mac, nil, func(n int, _ int64) { sent = n })
		},
		func(c *frames.Conn) (err error) {
			base, err = Receive(t.Context(), c, machine, Owner{os.Getuid(), os.Getgid()})
			return err
		})
	if err != nil || merr != nil {
		t.Fatal(err, merr)
	}
	if a, b := tree(t, mac), tree(t, machine); !maps.Equal(a, b) {
		t.Fatalf("the directories differ:\n%v\n%v", a, b)
	}
	return base, sent
}

func take(t *testing.T, mac, machine, aside string, base []Entry) (taken *Taken, now []Entry) {
	t.Helper()
	err, merr := both(t,
		func(c *frames.Conn) error {
			var err error
			taken, err = Take(c, mac, aside)
			return err
		},
		func(c *frames.Conn) (err error) {
			now, err = Offer(t.Context(), c, machine, base)
			return err
		})
	if err != nil || merr != nil {
		t.Fatal(err, merr)
	}
	return taken, now
}

func TestMirror(t *testing.T) {
	mac, machine := t.TempDir(), t.TempDir()
	write(t, mac, "a.txt", "one")
	write(t, mac, "deep/er/b.txt", strings.Repeat("b", 3*frames.Chunk+1))
	write(t, mac, "run.sh", "#!/bin/sh\n")
	write(t, mac, "empty", "")
	if err := os.Chmod(filepath.Join(mac, "run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.txt", filepath.Join(mac, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nowhere/at all", filepath.Join(mac, "dangling")); err != nil {
		t.Fatal(err)
	}
	_, first := give(t, mac, machine)
	if first != 4 {
		t.Errorf("%d files crossed first", first)
	}
	if _, again := give(t, mac, machine); again != 0 {
		t.Errorf("%d files crossed again", again)
	}

	// Edits here: changed, removed, another kind, other permissions.
	write(t, mac, "a.txt", "two")
	os.Remove(filepath.Join(mac, "empty"))
	write(t, mac, "empty/now/a/directory", "x")
	os.RemoveAll(filepath.Join(mac, "deep"))
	write(t, mac, "deep", "a file")
	os.Chmod(filepath.Join(mac, "run.sh"), 0o644)
	write(t, machine, "left over/by/a command", "x")
	base, sent := give(t, mac, machine)
	if sent != 3 {
		t.Errorf("%d files crossed after edits", sent)
	}

	// Changes there.
	write(t, machine, "a.txt", "there")
	write(t, machine, "new/deep/file", "new")
	os.Remove(filepath.Join(machine, "deep"))
	write(t, machine, "deep/again", "y")
	os.RemoveAll(filepath.Join(machine, "empty"))
	os.Remove(filepath.Join(machine, "link"))
	os.Symlink("run.sh", filepath.Join(machine, "link"))
	os.Chmod(filepath.Join(machine, "run.sh"), 0o700)
	taken, now := take(t, mac, machine, t.TempDir(), base)
	if len(taken.Kept) != 0 || taken.Aside != "" {
		t.Errorf("kept %q", taken.Kept)
	}
	if a, b := tree(t, mac), tree(t, machine); !maps.Equal(a, b) {
		t.Errorf("after the changes came back:\n%v\n%v", a, b)
	}
	if again, err := Scan(t.Context(), machine); err != nil || len(changes(now, again)) != 0 {
		t.Errorf("nothing changed, and %v would come back, %v", changes(now, again), err)
	}
	if _, sent := give(t, mac, machine); sent != 0 {
		t.Errorf("%d files crossed that came from there", sent)
	}
}

// What changed on both sides stays here; the machine's file is put aside.
func TestMirrorBothSides(t *testing.T) {
	mac, machine, aside := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "kept")
	for _, n := range []string{"edited", "removed here", "removed there", "equal", "dir/inner"} {
		write(t, mac, n, "both have "+n)
	}
	base, _ := give(t, mac, machine)

	write(t, mac, "edited", "mine")
	write(t, machine, "edited", "its")
	os.Remove(filepath.Join(mac, "removed here"))
	write(t, machine, "removed here", "its")
	write(t, mac, "removed there", "mine")
	os.Remove(filepath.Join(machine, "removed there"))
	write(t, mac, "made twice", "mine")
	write(t, machine, "made twice", "its")
	os.RemoveAll(filepath.Join(machine, "dir"))
	write(t, mac, "dir/other", "mine")
	at := time.Unix(1700000000, 5)
	for _, d := range []string{mac, machine} { // as when another command brought it back meanwhile
		write(t, d, "equal", "same!")
		os.Chtimes(filepath.Join(d, "equal"), at, at)
	}

	taken, _ := take(t, mac, machine, aside, base)
	slices.Sort(taken.Kept)
	if want := []string{"dir", "edited", "made twice", "removed here", "removed there"}; !slices.Equal(taken.Kept, want) {
		t.Errorf("kept %q, not %q", taken.Kept, want)
	}
	have := tree(t, mac)
	for n, want := range map[string]string{"edited": "mine", "removed there": "mine", "made twice": "mine", "dir/other": "mine", "equal": "same!"} {
		if !strings.HasSuffix(have[n], " "+want) {
			t.Errorf("%s is %q here", n, have[n])
		}
	}
	if have["removed here"] != "" {
		t.Error("what was removed here came back")
	}
	for _, n := range []string{"edited", "made twice", "removed here"} {
		if b, err := os.ReadFile(filepath.Join(aside, n)); err != nil || string(b) != "its" {
			t.Errorf("aside, %s: %q, %v", n, b, err)
		}
	}
}

// A file whose size and time were put back after a change comes back all the same, unless
// it changed here too.
func TestMirrorHiddenChange(t *testing.T) {
	mac, machine, aside := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, mac, "file", "before")
	write(t, mac, "both", "before")
	base, _ := give(t, mac, machine)
	for _, n := range []string{"file", "both"} {
		at := base[slices.IndexFunc(base, func(e Entry) bool { return e.Path == n })].Time
		write(t, machine, n, "behind")
		if err := os.Chtimes(filepath.Join(machine, n), time.Time{}, time.Unix(0, at)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, mac, "both", "mine")
	taken, _ := take(t, mac, machine, aside, base)
	have := tree(t, mac)
	if !strings.HasSuffix(have["file"], " behind") || !strings.HasSuffix(have["both"], " mine") || !slices.Equal(taken.Kept, []string{"both"}) {
		t.Errorf("%v, kept %q", have, taken.Kept)
	}
}

// What another command in the machine changes while a directory is brought in is its own: it
// comes back.
func TestChangedWhileReceived(t *testing.T) {
	mac, machine := t.TempDir(), t.TempDir()
	write(t, mac, "file", "ours")
	write(t, mac, "other", "ours")
	var base []Entry
	err, merr := both(t,
		func(c *frames.Conn) error { return Give(t.Context(), c, mac, nil, nil) },
		func(c *frames.Conn) (err error) {
			base, err = Receive(t.Context(), lander{c, func() {
				write(t, machine, "file", "landed")
				write(t, machine, "new", "landed")
			}}, machine, Owner{os.Getuid(), os.Getgid()})
			return err
		})
	if err != nil || merr != nil {
		t.Fatal(err, merr)
	}
	taken, _ := take(t, mac, machine, "", base)
	have := tree(t, mac)
	if !strings.HasSuffix(have["file"], " landed") || !strings.HasSuffix(have["new"], " landed") || !strings.HasSuffix(have["other"], " ours") || len(taken.Kept) > 0 {
		t.Errorf("%v, kept %q", have, taken.Kept)
	}
}

// lander calls land when everything has been received.
type lander struct {
	*frames.Conn
	land func()
}

func (l lander) Send(k frames.Kind, b []byte) error {
	if k == frames.Result {
		l.land()
	}
	return l.Conn.Send(k, b)
}

// A file that is removed, shortened or replaced while it is sent does not replace the other
// side's, and nothing waits for a pipe.
func TestOfferChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(string) error{
		"removed":   os.Remove,
		"shortened": func(p string) error { return os.Truncate(p, 2) },
		"a pipe": func(p string) error {
			return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600))
		},
	} {
		mac, machine := t.TempDir(), t.TempDir()
		write(t, mac, "a", "ours")
		write(t, mac, "b", "ours")
		base, _ := give(t, mac, machine)
		write(t, machine, "a", "its own")
		write(t, machine, "b", "its own")
		err, merr := both(t,
			func(c *frames.Conn) error { _, err := Take(c, mac, ""); return err },
			func(c *frames.Conn) error {
				_, err := Offer(t.Context(), &meddler{Conn: c, then: func() error { return change(filepath.Join(machine, "b")) }}, machine, base)
				return errors.Join(err, c.Send(frames.Fail, nil))
			})
		if err == nil || merr == nil || !strings.Contains(merr.Error(), "changed while") {
			t.Errorf("%s: %v, %v", name, err, merr)
		}
		if have := tree(t, mac); !strings.HasSuffix(have["a"], " its own") || !strings.HasSuffix(have["b"], " ours") {
			t.Errorf("%s: %v", name, have)
		}
	}
}

// meddler calls then when the second change was named.
type meddler struct {
	*frames.Conn
	named int
	then  func() error
}

func (m *meddler) SendJSON(k frames.Kind, v any) error {
	err := m.Conn.SendJSON(k, v)
	if m.named++; m.named == 2 {
		err = errors.Join(err, m.then())
	}
	return err
}

// Not more of a file is sent than was noted: another program may write to it for ever.
func TestSendsWhatWasNoted(t *testing.T) {
	mac, machine := t.TempDir(), t.TempDir()
	write(t, mac, "log", "12345")
	err, merr := both(t,
		func(c *frames.Conn) error {
			return Give(t.Context(), c, mac, nil, func(int, int64) { write(t, mac, "log", "1234567890") })
		},
		func(c *frames.Conn) error {
			_, err := Receive(t.Context(), c, machine, Owner{os.Getuid(), os.Getgid()})
			return err
		})
	if err != nil || merr != nil || !strings.HasSuffix(tree(t, machine)["log"], " 12345") {
		t.Errorf("%v, %v, %v", err, merr, tree(t, machine))
	}
}

// A machine that was taken over writes nothing outside the directory.
func TestTakeHostile(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, "victim", "safe")
	file := func(path string) change { return change{New: &Entry{Path: path, Kind: File, Mode: 0o644}} }
	for _, c := range []struct {
		name string
		send []change
	}{
		{"parent", []change{file("../victim")}},
		{"absolute", []change{file(outside + "/victim")}},
		{"inner parent", []change{file("a/../../victim")}},
		{"empty", []change{file("")}},
		{"the directory", []change{file(".")}},
		{"trailing slash", []change{file("a/")}},
		{"zero byte", []change{file("a\x00b")}},
		{"long", []change{file(strings.Repeat("a/", 3000) + "b")}},
		{"through its own link", []change{{New: &Entry{Path: "l", Kind: Link, Target: outside}}, file("l/victim")}},
		{"through our link", []change{file("ours/victim")}},
		{"mode", []change{{New: &Entry{Path: "a", Kind: File, Mode: 0o4755}}}},
		{"device", []change{{New: &Entry{Path: "a", Kind: "b"}}}},
		{"link without a target", []change{{New: &Entry{Path: "a", Kind: Link}}}},
		{"two paths", []change{{Old: &Entry{Path: "a", Kind: File}, New: &Entry{Path: "b", Kind: File}}}},
		{"no path", []change{{}}},
		{"negative size", []change{{New: &Entry{Path: "a", Kind: File, Size: -1}}}},
		{"removes our link's file", []change{{Old: &Entry{Path: "ours/victim", Kind: File, Size: 4, Mode: 0o644}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mac := t.TempDir()
			if err := os.Symlink(outside, filepath.Join(mac, "ours")); err != nil {
				t.Fatal(err)
			}
			err, _ := both(t,
				func(p *frames.Conn) error { _, err := Take(p, mac, ""); return err },
				func(p *frames.Conn) error {
					go func() { // it hears nothing if the other side gives up
						for _, x := range c.send {
							p.SendJSON(frames.Change, x)
							if x.New != nil && x.New.Kind == File {
								p.Send(frames.Data, []byte("owned"))
								p.Send(frames.Data, nil)
							}
						}
						p.Send(frames.End, nil)
					}()
					return nil
				})
			if err == nil {
				t.Error("it was taken")
			}
			if b, err := os.ReadFile(filepath.Join(outside, "victim")); string(b) != "safe" {
				t.Errorf("the file outside is %q, %v", b, err)
			}
			if all, _ := os.ReadDir(outside); len(all) != 1 {
				t.Errorf("outside there is %v", all)
			}
		})
	}
}

// Wrong types, wrong order and a broken connection are errors.
func TestTakeNonsense(t *testing.T) {
	for name, send := range map[string]func(*frames.Conn){
		"text":        func(c *frames.Conn) { c.Send(frames.Change, []byte("rm -rf")) },
		"wrong type":  func(c *frames.Conn) { c.Send(frames.Change, []byte(`{"new":{"p":7}}`)) },
		"other frame": func(c *frames.Conn) { c.Send(frames.Exit, nil) },
		"failure":     func(c *frames.Conn) { c.Send(frames.Fail, []byte("disk full")) },
		"data at once": func(c *frames.Conn) {
			c.Send(frames.Data, []byte("x"))
		},
		"end within a file": func(c *frames.Conn) {
			b, _ := json.Marshal(change{New: &Entry{Path: "a", Kind: File}})
			c.Send(frames.Change, b)
			c.Send(frames.End, nil)
		},
	} {
		mac := t.TempDir()
		err, _ := both(t, func(p *frames.Conn) error { _, err := Take(p, mac, ""); return err },
			func(p *frames.Conn) error { go send(p); return nil })
		if err == nil {
			t.Errorf("%s was taken", name)
		}
		if all, _ := os.ReadDir(mac); len(all) != 0 {
			t.Errorf("%s left %v", name, all)
		}
	}
}

// The machine gets only files that it was told of.
func TestGiveHostile(t *testing.T) {
	mac := t.TempDir()
	write(t, mac, "dir/file", "x")
	for name, ask := range map[string]string{"out of range": "[2]", "negative": "[-1]", "a directory": "[0]", "many": "[1,1,1]", "text": `["/etc/passwd"]`} {
		err, _ := both(t, func(p *frames.Conn) error { return Give(t.Context(), p, mac, nil, nil) },
			func(p *frames.Conn) error {
				if err := list(p, frames.Entries, func([]Entry) error { return nil }); err != nil {
					return err
				}
				go func() {
					p.Send(frames.Need, []byte(ask))
					p.Send(frames.End, nil)
				}()
				return nil
			})
		if err == nil {
			t.Errorf("%s was given", name)
		}
	}
}

func TestScanLeavesOut(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "file", "x")
	write(t, dir, "bad\xff", "x")
	write(t, dir, "\xfe/inside", "x")
	all, err := Scan(t.Context(), dir)
	if err != nil || len(all) != 1 || all[0].Path != "file" {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := Scan(t.Context(), filepath.Join(dir, "missing")); err != nil || all != nil {
		t.Errorf("a missing directory: %v, %v", all, err)
	}
	if _, err := Scan(t.Context(), filepath.Join(dir, "file")); err == nil {
		t.Error("a file is no directory")
	}
}
