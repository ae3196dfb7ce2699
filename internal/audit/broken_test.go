package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"
)

// copied returns a copy of the log in dir.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "audit")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"log", "checkpoints", "hashes", "key", "key.pub", "lock"} {
		write(t, to, name, read(t, dir, name))
	}
	return to
}

// instead puts a directory, a link to the file or a named pipe in the place of a file of the log.
func instead(kind, name string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, name)
		if err := os.Rename(name, name+".old"); err != nil {
			return err
		}
		switch kind {
		case "directory":
			return os.Mkdir(name, 0o700)
		case "link":
			return os.Symlink(name+".old", name)
		case "pipe":
			return unix.Mkfifo(name, 0o600)
		}
		return nil
	}
}

// TestBrokenFiles breaks each file of a log. What can't be checked is an error, what can be and is wrong is a finding, and
// nothing is proven from it; a reader waits for nobody and follows no link.
func TestBrokenFiles(t *testing.T) {
	orig, p := fill(t, 5)
	half := func(name string) func(string) error {
		return func(dir string) error {
			return os.Truncate(filepath.Join(dir, name), int64(len(read(t, orig, name))/2))
		}
	}
	for name, x := range map[string]struct {
		spoil  func(dir string) error
		verify string // the status, or a part of the error or of the finding
		prove  string // a part of the error; "": a proof is made
		open   string
	}{
		"whole":                    {func(string) error { return nil }, "intact", "", ""},
		"no log":                   {instead("", "log"), "no such file", "no such file", "tampered"},
		"no key.pub":               {instead("", "key.pub"), "no such file", "no such file", ""},
		"no checkpoints":           {instead("", "checkpoints"), "checkpoints is missing", "no such file", "tampered"},
		"no hashes":                {instead("", "hashes"), "hashes is missing", "", ""},
		"a directory as log":       {instead("directory", "log"), "is a directory", "is a directory", "is a directory"},
		"a directory as key.pub":   {instead("directory", "key.pub"), "not a regular file", "not a regular file", "public key"},
		"checkpoints as directory": {instead("directory", "checkpoints"), "is a directory", "is a directory", "is a directory"},
		"a link as log":            {instead("link", "log"), "symbolic links", "symbolic links", "symbolic links"},
		"a link as checkpoints":    {instead("link", "checkpoints"), "symbolic links", "symbolic links", "symbolic links"},
		"a pipe as key.pub":        {instead("pipe", "key.pub"), "not a regular file", "not a regular file", ""},
		"half a log":               {half("log"), "the log ends after", "the log ends after", "tampered"},
		"half a key.pub":           {half("key.pub"), "not one line", "not one line", ""},
		"empty checkpoints": {func(dir string) error {
			return os.Truncate(filepath.Join(dir, "checkpoints"), 0)
		}, "no checkpoint", "no checkpoint", "tampered"},
		"checkpoints of zeros": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "checkpoints"), make([]byte, 2*maxCheckpoint), 0o600)
		}, "malformed", "no checkpoint", "tampered"},
		"another key.pub": {func(dir string) error {
			_, vkey, err := note.GenerateKey(nil, "other")
			return errors.Join(err, os.WriteFile(filepath.Join(dir, "key.pub"), []byte(vkey+"\n"), 0o600))
		}, "no verifiable signatures", "no verifiable signatures", "tampered"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, orig)
			if err := x.spoil(dir); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(ctx, dir, VerifyOptions{})
			if got := fmt.Sprint(r.Status, r.Findings, err); !strings.Contains(got, x.verify) || x.verify != "intact" && r.OK() {
				t.Errorf("Verify: %s, want %q", got, x.verify)
			}
			says := func(who, want string, err error) {
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, want %q", who, err, want)
				}
			}
			_, err = Prove(ctx, dir, 3)
			says("Prove", x.prove, err)
			_, err = ProveConsistency(ctx, dir, p.Checkpoint)
			says("ProveConsistency", x.prove, err)
			l, err := open(ctx, dir, &faultDisk{at: -1}, time.Now)
			says("Open", x.open, err)
			if err == nil {
				l.Close()
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".*.tmp")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

func TestOpenRefusesDirectories(t *testing.T) {
	orig, _ := fill(t, 2)
	tmp := t.TempDir()
	write(t, tmp, "file", nil)
	if err := os.Symlink(orig, filepath.Join(tmp, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"missing/audit", "file", "link"} {
		if l, err := Open(ctx, filepath.Join(tmp, name)); err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		}
	}
	if _, err := os.Stat(filepath.Join(tmp, "missing")); err == nil {
		t.Error("a directory was made")
	}
}

// TestFilesChangeInUse changes the files below an open log. What may be tampering ends its use, what a crash of another
// process may have left is cut off, and what can't be read is not signed.
func TestFilesChangeInUse(t *testing.T) {
	orig, _ := fill(t, 5)
	add := func(name string, b []byte) func(string) {
		return func(dir string) { write(t, dir, name, append(read(t, dir, name), b...)) }
	}
	first, _ := nextEntry(read(t, orig, "checkpoints"))
	shorter := func(name string) func(string) {
		return func(dir string) { os.Truncate(filepath.Join(dir, name), 1) }
	}
	longLine := append(bytes.Repeat([]byte(" "), maxRecord), '\n')
	for name, x := range map[string]struct {
		change func(dir string)
		want   string // a part of the error; "": it is repaired
	}{
		"log shorter":              {shorter("log"), "became shorter"},
		"checkpoints shorter":      {shorter("checkpoints"), "became shorter"},
		"hashes shorter":           {shorter("hashes"), "read stored hashes"},
		"an old checkpoint":        {add("checkpoints", append(bytes.Clone(first), '\n')), "go backwards"},
		"endless checkpoint":       {add("checkpoints", bytes.Repeat([]byte("x"), maxCheckpoint+1)), "checkpoints can't be read"},
		"a false checkpoint":       {add("checkpoints", []byte("x\n\n— y z\n\n")), "malformed note"},
		"a line that is no record": {add("log", []byte("{}\n")), ""},
		"a line too long":          {add("log", longLine), ""},
		"half a record":            {add("log", []byte(`{"schema":`)), ""},
		"half a checkpoint":        {add("checkpoints", []byte("carboy.dev/")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, orig)
			l, err := open(ctx, dir, &faultDisk{at: -1}, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			x.change(dir)
			changed := read2(dir)
			p, err := l.Append(ctx, event(7, true))
			if x.want == "" {
				if r := verify(t, dir, VerifyOptions{}); err != nil || !r.OK() || r.Repairs != 1 || r.Records != 7 || p.Seq != 6 {
					t.Errorf("%v: %s", err, r.JSON())
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), x.want) || !bytes.Equal(changed, read2(dir)) {
				t.Errorf("%v, want %q", err, x.want)
			}
		})
	}
}

// TestHashesLostBeforeSigning loses the stored hashes while records wait to be signed, of this process or of another. No
// root is signed without them; the next Open makes them again, with all records.
func TestHashesLostBeforeSigning(t *testing.T) {
	orig, _ := fill(t, 3)
	for _, other := range []bool{false, true} {
		dir := copied(t, orig)
		var logs [2]*Log
		for i := range logs {
			var err error
			if logs[i], err = open(ctx, dir, &faultDisk{at: -1}, time.Now); err != nil {
				t.Fatal(err)
			}
		}
		signs := logs[0]
		if other {
			signs = logs[1]
		}
		if _, err := logs[0].Append(ctx, event(3, false), event(4, false)); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "hashes", nil)
		if _, err := signs.Sync(ctx); err == nil || !strings.Contains(err.Error(), "read stored hashes") {
			t.Errorf("other %v: %v", other, err)
		}
		logs[0].Close()
		logs[1].Close()
		l, err := Open(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Sync(ctx); err != nil {
			t.Error(err)
		}
		l.Close()
		if r := verify(t, dir, VerifyOptions{}); !r.OK() || r.Signed != 5 {
			t.Errorf("other %v: %s", other, r.JSON())
		}
	}
}

// TestRepairFails breaks each call that writes while Open repairs a torn end. The next Open repairs it, once.
func TestRepairFails(t *testing.T) {
	orig, p := fill(t, 3)
	write(t, orig, "log", append(read(t, orig, "log"), `{"torn`...))
	write(t, orig, "checkpoints", append(read(t, orig, "checkpoints"), "torn"...))
	for at := 0; ; at++ {
		dir, d := copied(t, orig), &faultDisk{at: at, crash: true}
		l, err := open(ctx, dir, d, time.Now)
		if (err == nil) != (d.calls <= at) {
			t.Errorf("call %d of %d: %v", at, d.calls, err)
		}
		if err == nil {
			l.Close()
		}
		if l, err = Open(ctx, dir); err != nil {
			t.Fatalf("call %d: %v", at, err)
		}
		l.Close()
		r := verify(t, dir, VerifyOptions{Anchors: [][]byte{p.Checkpoint}})
		if !r.OK() || r.Repairs > 1 || r.Records > 4 {
			t.Errorf("call %d: %s", at, r.JSON())
		}
		if d.calls <= at {
			break
		}
	}
}

// TestWaitingEnds holds the log, as another process or goroutine does: who waits for it can give up, and adds nothing.
func TestWaitingEnds(t *testing.T) {
	dir, _ := fill(t, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := read2(dir)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	refused := func(who string) {
		t.Helper()
		_, appended := l.Append(gone, event(1, true))
		_, synced := l.Sync(gone)
		if !errors.Is(appended, context.Canceled) || !errors.Is(synced, context.Canceled) {
			t.Errorf("%s has it: Append: %v; Sync: %v", who, appended, synced)
		}
	}
	l.turn <- struct{}{}
	refused("a goroutine")
	<-l.turn
	other, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	refused("a process")
	for who, err := range map[string]error{
		"Verify": func() error { _, err := Verify(gone, dir, VerifyOptions{}); return err }(),
		"Prove":  func() error { _, err := Prove(gone, dir, 0); return err }(),
		"Open":   func() error { _, err := Open(gone, dir); return err }(),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", who, err)
		}
	}
	if !bytes.Equal(before, read2(dir)) {
		t.Error("something was added")
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, event(1, true)); err != nil {
		t.Error(err)
	}
}

// TestParseCheckpoint signs texts with the log's own key: only the one form that this package writes is a checkpoint.
func TestParseCheckpoint(t *testing.T) {
	skey, vkey, err := note.GenerateKey(nil, "log")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := note.GenerateKey(nil, "other")
	if err != nil {
		t.Fatal(err)
	}
	second, err := note.NewSigner(other)
	if err != nil {
		t.Fatal(err)
	}
	root := strings.Repeat("A", 43) + "="
	good := "log\n7\n" + root + "\nbytes 99\n"
	for text, want := range map[string]string{
		good:                     "",
		"other" + good[3:]:       "malformed",
		good + "more\n":          "malformed",
		"log\n7\n" + root + "\n": "malformed",
		strings.Replace(good, "bytes", "octet", 1):       "malformed",
		strings.Replace(good, "7", "-7", 1):              `"-7" is not a number`,
		strings.Replace(good, "7", "07", 1):              `"07" is not a number`,
		strings.Replace(good, "7", "", 1):                `"" is not a number`,
		strings.Replace(good, "99", "+99", 1):            `"+99" is not a number`,
		strings.Replace(good, root, "AAAA", 1):           "malformed hash",
		good + strings.Repeat("x", maxCheckpoint) + "\n": "more than",
	} {
		signed, err := note.Sign(&note.Note{Text: text}, signer)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCheckpoint(signed, vkey)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && (c.Size != 7 || c.Bytes != 99) {
			t.Errorf("%.60q: %+v, %v; want %q", text, c, err, want)
		}
	}
	both, err := note.Sign(&note.Note{Text: good}, signer, second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCheckpoint(both, vkey); err == nil {
		t.Error("a second signature passed")
	}
	one, err := note.Sign(&note.Note{Text: good}, signer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCheckpoint(one, "log+00000000+x"); err == nil {
		t.Error("a broken key passed")
	}
}

// TestProofsOfOtherThings alters proofs in the fields that TestProof and TestConsistency do not.
func TestProofsOfOtherThings(t *testing.T) {
	dir, last := fill(t, 4)
	key := strings.TrimSpace(string(read(t, dir, "key.pub")))
	p, err := Prove(ctx, dir, 2)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ProveConsistency(ctx, dir, last.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Proof, *Consistency){
		"schema":           func(p *Proof, c *Consistency) { p.Schema, c.Schema = c.Schema, p.Schema },
		"checkpoint":       func(p *Proof, c *Consistency) { p.Checkpoint, c.New = p.Checkpoint[1:], "" },
		"older checkpoint": func(p *Proof, c *Consistency) { p.Checkpoint, c.Old = "", c.Old[1:] },
	} {
		p, c := p, c
		change(&p, &c)
		if p.check(key) == nil || c.check(key) == nil {
			t.Errorf("another %s passed: %v, %v", name, p.check(key), c.check(key))
		}
	}
	// The whole log is put back to an older state: it does not extend the checkpoint that was kept.
	entries := bytes.SplitAfter(read(t, dir, "checkpoints"), entryEnd)
	write(t, dir, "checkpoints", bytes.Join(entries[:2], nil))
	if _, err := ProveConsistency(ctx, dir, last.Checkpoint); err == nil || !strings.Contains(err.Error(), "the older one of 4") {
		t.Errorf("an older state passed: %v", err)
	}
}

func TestDecisionText(t *testing.T) {
	for _, d := range []Decision{Refused, Allowed, Noted} {
		var got Decision
		b, err := d.MarshalText()
		if err != nil || got.UnmarshalText(b) != nil || got != d || d.String() != string(b) {
			t.Errorf("%s: %s, %v, %v", d, b, got, err)
		}
	}
	var d Decision
	if d.UnmarshalText([]byte("perhaps")) == nil {
		t.Error("perhaps is a decision")
	}
}
