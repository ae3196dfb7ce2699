package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carboy/carboy/internal/secret"
)

var ctx = context.Background()

func event(i int, sync bool) Event {
	r, _ := secret.NewRedactor(nil)
	return Event{
		Kind: Connect, Run: "01arz3ndektsv4rrffq69g5fav", Actor: ByBottle, Decision: Allowed, Sync: sync,
		Subject: Redact(r, fmt.Sprintf("host-%d.example:443", i)), Rule: plain("allow *.example"),
		Digests: []Digest{{"change", sha256.Sum256(fmt.Append(nil, i))}},
	}
}

// fill makes a log of n records, all signed, with several checkpoints, and returns its directory and last checkpoint.
func fill(t testing.TB, n int) (string, Position) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "audit")
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var p Position
	for i := 1; i < n; i++ {
		if p, err = l.Append(ctx, event(i, i%3 == 0 || i == n-1)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, p
}

func verify(t testing.TB, dir string, o VerifyOptions) Report {
	t.Helper()
	r, err := Verify(ctx, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t testing.TB, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t testing.TB, dir, name string, b []byte) {
	t.Helper()
	// In place: truncating and writing again makes some file systems go to the disk each time.
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != int64(len(b)) {
		if err := f.Truncate(int64(len(b))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAppendAndVerify(t *testing.T) {
	dir, p := fill(t, 12)
	r := verify(t, dir, VerifyOptions{Anchors: [][]byte{p.Checkpoint}})
	if !r.OK() || r.Records != 12 || r.Signed != 12 || r.Anchors != 1 || len(r.Findings) != 0 {
		t.Fatalf("%s", r.JSON())
	}
	if p.Seq != 11 {
		t.Errorf("last record at %d", p.Seq)
	}
	var rec Record
	lines := bytes.Split(read(t, dir, "log"), []byte("\n"))
	if err := json.Unmarshal(lines[5], &rec); err != nil || rec.Subject != "host-5.example:443" || rec.Decision != Allowed || rec.Digests[0].Of != "change" {
		t.Errorf("%+v %v", rec, err)
	}
	if st, _ := os.Stat(filepath.Join(dir, "key")); st.Mode().Perm() != 0o600 {
		t.Errorf("key has mode %v", st.Mode())
	}
	var doc map[string]any
	if err := json.Unmarshal(r.JSON(), &doc); err != nil || doc["schema"] != "carboy.dev/audit-report/v1" {
		t.Errorf("%s", r.JSON())
	}
}

func TestUnsignedRecordsAreAllowed(t *testing.T) {
	dir, _ := fill(t, 4)
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := l.Append(ctx, event(9, false)); err != nil || p.Checkpoint != nil {
		t.Fatal(p, err)
	}
	if r := verify(t, dir, VerifyOptions{}); !r.OK() || r.Records != 5 || r.Signed != 4 {
		t.Errorf("%s", r.JSON())
	}
	signed, err := l.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if c, err := ParseCheckpoint(signed, l.PublicKey()); err != nil || c.Size != 5 {
		t.Error(c, err)
	}
	if r := verify(t, dir, VerifyOptions{}); !r.OK() || r.Signed != 5 {
		t.Errorf("%s", r.JSON())
	}
	if _, err := l.Append(ctx, event(1, false)); err == nil {
		t.Error("appended to a closed log")
	}
}

func TestZeroValuesRefuse(t *testing.T) {
	dir, _ := fill(t, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := read(t, dir, "log")
	for name, e := range map[string]Event{
		"zero": {}, "no actor": {Kind: Connect}, "no kind": {Actor: ByCarboy},
		"kind with a break": {Kind: "a\nb", Actor: ByCarboy}, "run with a quote": {Kind: Connect, Actor: ByCarboy, Run: `"`},
		"unknown decision": {Kind: Connect, Actor: ByCarboy, Decision: 9},
		"digests":          {Kind: Connect, Actor: ByCarboy, Digests: make([]Digest, maxDigests+1)},
		"too long to read": {Kind: Connect, Actor: ByCarboy, Text: Text{strings.Repeat("x", maxRecord)}},
	} {
		if _, err := l.Append(ctx, event(1, false), e); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if !bytes.Equal(before, read(t, dir, "log")) {
		t.Error("a refused record left something")
	}
	p, err := l.Append(ctx, Event{Kind: Connect, Actor: ByUser(1000)})
	if err != nil || p.Checkpoint == nil {
		t.Fatal("a refusal is not durable", err)
	}
	if b := read(t, dir, "log"); !bytes.Contains(b, []byte(`"actor":"user:1000","decision":"refused"`)) {
		t.Errorf("%s", b)
	}
	if s := Decision(7).String(); s != "decision(7)" {
		t.Error(s)
	}
}

func TestTextHoldsNoSecrets(t *testing.T) {
	const token = "ghp_0123456789abcdef"
	r, err := secret.NewRedactor(map[string]secret.Value{"token": secret.NewString(token)})
	if err != nil {
		t.Fatal(err)
	}
	dir, _ := fill(t, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, text := range []string{"GET /?t=" + token, strings.Repeat("x", MaxText-10) + token, "\x1b[31m" + token + "\n"} {
		if _, err := l.Append(ctx, Event{Kind: Connect, Actor: ByBottle, Subject: Redact(r, text), Text: Redact(r, text)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := Redact(nil, token).String(); got != secret.Redacted {
		t.Errorf("without a redactor: %q", got)
	}
	b := read(t, dir, "log")
	if bytes.Contains(b, []byte(token)) || bytes.Contains(b, []byte(token[:12])) || bytes.ContainsRune(b, 0x1b) {
		t.Errorf("%s", b)
	}
	if !bytes.Contains(b, []byte(`\\x1b[31m[redacted:token]\\n`)) {
		t.Errorf("nothing is left to read: %s", b)
	}
}

// TestLargestRecordFits holds the bounds of the parts to that of the whole: no event that the types allow is refused for
// its length.
func TestLargestRecordFits(t *testing.T) {
	r, _ := secret.NewRedactor(nil)
	long := Redact(r, strings.Repeat(`"\`, MaxText))
	e := Event{Kind: Connect, Actor: ByBottle, Run: strings.Repeat("a", 64), Subject: long, Rule: long, Text: long}
	for range maxDigests {
		e.Digests = append(e.Digests, Digest{Of: literal(strings.Repeat(`"`, 64))})
	}
	if b, err := e.encode(1<<62, time.Now()); err != nil {
		t.Error(len(b), err)
	}
}

func TestEveryFlipIsDetected(t *testing.T) {
	dir, _ := fill(t, 3)
	for _, name := range []string{"log", "checkpoints", "hashes", "key.pub"} {
		orig := read(t, dir, name)
		for i := range orig {
			bits := []byte{1 << (i % 8), 0x20}
			if name == "checkpoints" { // its encodings leave bits unused
				bits = []byte{1, 2, 4, 8, 16, 32, 64, 128}
			}
			for _, bit := range bits {
				b := bytes.Clone(orig)
				b[i] ^= bit
				write(t, dir, name, b)
				if r, err := Verify(ctx, dir, VerifyOptions{}); err == nil && r.OK() {
					t.Fatalf("%s: bit %#x of byte %d of %d flipped unseen", name, bit, i, len(orig))
				} else if err == nil && name != "checkpoints" && name != "key.pub" && r.Status != Tampered {
					t.Fatalf("%s: byte %d flipped is %s", name, i, r.Status)
				}
			}
		}
		write(t, dir, name, orig)
	}
	if r := verify(t, dir, VerifyOptions{}); !r.OK() {
		t.Fatalf("the original: %s", r.JSON())
	}
}

func TestTamperingIsDetected(t *testing.T) {
	dir, last := fill(t, 20)
	lines := bytes.SplitAfter(read(t, dir, "log"), []byte("\n"))
	lines = lines[:len(lines)-1]
	cps, hashes := read(t, dir, "checkpoints"), read(t, dir, "hashes")
	older, olderLast := fill(t, 9)
	var entries [][]byte
	for rest := cps; len(rest) > 0; {
		var e []byte
		e, rest = nextEntry(rest)
		entries = append(entries, append(bytes.Clone(e), '\n'))
	}
	drop := func(i int) []byte {
		return bytes.Join(append(append([][]byte{}, lines[:i]...), lines[i+1:]...), nil)
	}
	swap := func(i, j int) []byte {
		out := append([][]byte{}, lines...)
		out[i], out[j] = out[j], out[i]
		return bytes.Join(out, nil)
	}
	upTo := func(n int) []byte { return bytes.Join(lines[:n], nil) }
	hashesUpTo := func(n int64) []byte { return hashes[:tlog.StoredHashCount(n)*tlog.HashSize] }
	whole := bytes.Join(lines, nil)
	for name, tc := range map[string]struct {
		log, cps, hashes []byte
		anchor           []byte
	}{
		"first deleted":                   {drop(0), cps, hashes, nil},
		"middle deleted":                  {drop(10), cps, hashes, nil},
		"last deleted":                    {drop(19), cps, hashes, nil},
		"last deleted with its hashes":    {drop(19), cps, hashesUpTo(19), nil},
		"swapped":                         {swap(4, 5), cps, hashes, nil},
		"swapped last":                    {swap(18, 19), cps, hashes, nil},
		"doubled":                         {append(upTo(10), bytes.Join(lines[9:], nil)...), cps, hashes, nil},
		"empty":                           {nil, cps, hashes, nil},
		"truncated":                       {upTo(12), cps, hashesUpTo(12), nil},
		"truncated within a record":       {whole[:len(whole)-5], cps, hashes, nil},
		"checkpoints deleted":             {whole, nil, hashes, nil},
		"checkpoints in another order":    {whole, append(bytes.Clone(entries[1]), entries[0]...), hashes, nil},
		"a checkpoint doubled":            {whole, append(bytes.Clone(cps), entries[len(entries)-1]...), hashes, nil},
		"an old log beside":               {read(t, older, "log"), cps, hashes, nil},
		"an old log and hashes beside":    {read(t, older, "log"), cps, read(t, older, "hashes"), nil},
		"another log's checkpoints":       {whole, read(t, older, "checkpoints"), hashes, nil},
		"all put back to an older state":  {upTo(10), bytes.Join(entries[:4], nil), hashesUpTo(10), last.Checkpoint},
		"an anchor of another log":        {whole, cps, hashes, olderLast.Checkpoint},
		"stored hashes deleted, one left": {whole, cps, hashesUpTo(1), nil},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir, "log", tc.log)
			write(t, dir, "checkpoints", tc.cps)
			write(t, dir, "hashes", tc.hashes)
			var o VerifyOptions
			if tc.anchor != nil {
				o.Anchors = [][]byte{tc.anchor}
			}
			r := verify(t, dir, o)
			want := Tampered
			if name == "stored hashes deleted, one left" {
				want = torn // they can be made from the log
			}
			if r.Status != want {
				t.Errorf("%s", r.JSON())
			}
		})
	}
	write(t, dir, "log", whole)
	write(t, dir, "checkpoints", cps)
	write(t, dir, "hashes", hashes)
	if r := verify(t, dir, VerifyOptions{Anchors: [][]byte{last.Checkpoint}}); !r.OK() {
		t.Errorf("the original: %s", r.JSON())
	}
}

func TestFindingNamesTheRecord(t *testing.T) {
	dir, _ := fill(t, 20)
	b := read(t, dir, "log")
	write(t, dir, "log", bytes.Replace(b, []byte("host-13."), []byte("host-31."), 1))
	r := verify(t, dir, VerifyOptions{})
	if r.Status != Tampered || len(r.Findings) == 0 || r.Findings[0].Record != 13 {
		t.Errorf("%s", r.JSON())
	}
}

// TestRewrittenHistory signs another history with the stolen key: only a checkpoint from elsewhere can tell.
func TestRewrittenHistory(t *testing.T) {
	dir, kept := fill(t, 12)
	forged := filepath.Join(t.TempDir(), "audit")
	os.Mkdir(forged, 0o700)
	for _, name := range []string{"key", "key.pub"} {
		write(t, forged, name, read(t, dir, name))
	}
	l, err := Open(ctx, forged)
	if err == nil {
		for i := range 20 {
			if _, err = l.Append(ctx, event(i+100, true)); err != nil {
				break
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	key := strings.TrimSpace(string(read(t, dir, "key.pub")))
	if r := verify(t, forged, VerifyOptions{Key: key}); !r.OK() || !r.KeyGiven {
		t.Fatalf("%s", r.JSON())
	}
	if r := verify(t, forged, VerifyOptions{Key: key, Anchors: [][]byte{kept.Checkpoint}}); r.Status != Tampered {
		t.Errorf("a rewritten history passed: %s", r.JSON())
	}
	other, _ := fill(t, 3)
	if r := verify(t, other, VerifyOptions{Key: key}); r.Status != Tampered {
		t.Errorf("another key's log passed: %s", r.JSON())
	}
}

func TestOpenRefusesWhatWasTamperedWith(t *testing.T) {
	for name, f := range map[string]func(dir string){
		"truncated":   func(dir string) { os.Truncate(filepath.Join(dir, "log"), 700) },
		"log deleted": func(dir string) { os.Remove(filepath.Join(dir, "log")) },
		"truncated, hashes deleted": func(dir string) {
			os.Truncate(filepath.Join(dir, "log"), 700)
			os.Remove(filepath.Join(dir, "hashes"))
		},
		"checkpoints overwritten": func(dir string) {
			os.WriteFile(filepath.Join(dir, "checkpoints"), bytes.Repeat([]byte("x"), maxCheckpoint+1), 0o600)
		},
		"checkpoints deleted": func(dir string) { os.Remove(filepath.Join(dir, "checkpoints")) },
		"checkpoint altered": func(dir string) {
			b, _ := os.ReadFile(filepath.Join(dir, "checkpoints"))
			b[len(b)-10] ^= 1
			os.WriteFile(filepath.Join(dir, "checkpoints"), b, 0o600)
		},
		"rewritten and hashes deleted": func(dir string) {
			b, _ := os.ReadFile(filepath.Join(dir, "log"))
			os.WriteFile(filepath.Join(dir, "log"), bytes.Replace(b, []byte("host-3."), []byte("host-4."), 1), 0o600)
			os.Remove(filepath.Join(dir, "hashes"))
		},
		"public key of another": func(dir string) {
			_, vkey, _ := note.GenerateKey(nil, "x")
			os.WriteFile(filepath.Join(dir, "key.pub"), []byte(vkey+"\n"), 0o600)
		},
	} {
		dir, _ := fill(t, 9)
		f(dir)
		before := read2(dir)
		l, err := Open(ctx, dir)
		var tampered *tamperError
		if !errors.As(err, &tampered) {
			t.Errorf("%s: opened (%v)", name, err)
			if l != nil {
				l.Close()
			}
		}
		if after := read2(dir); !bytes.Equal(before, after) {
			t.Errorf("%s: evidence was changed", name)
		}
	}
}

func read2(dir string) []byte {
	a, _ := os.ReadFile(filepath.Join(dir, "log"))
	b, _ := os.ReadFile(filepath.Join(dir, "checkpoints"))
	return append(append(a, 0), b...)
}

func TestOpenRefusesKeys(t *testing.T) {
	for name, f := range map[string]func(key string){
		"missing":  func(key string) { os.Remove(key) },
		"readable": func(key string) { os.Chmod(key, 0o644) },
		"link":     func(key string) { os.Rename(key, key+"2"); os.Symlink(key+"2", key) },
		"broken":   func(key string) { os.WriteFile(key, []byte("PRIVATE+KEY+x+y+z\n"), 0o600) },
	} {
		dir, _ := fill(t, 3)
		f(filepath.Join(dir, "key"))
		l, err := Open(ctx, dir)
		if err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: error quotes the key: %v", name, err)
		}
		if r := verify(t, dir, VerifyOptions{}); !r.OK() {
			t.Errorf("%s: verifying needs the key: %s", name, r.JSON())
		}
	}
	dir, _ := fill(t, 3)
	os.Remove(filepath.Join(dir, "key.pub")) // can be made from the key
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if r := verify(t, dir, VerifyOptions{}); !r.OK() {
		t.Errorf("%s", r.JSON())
	}
	os.Chmod(dir, 0o755)
	if l, err := Open(ctx, dir); err == nil {
		l.Close()
		t.Error("opened a directory that others can enter")
	}
}

func TestTornTailIsCutAndRecorded(t *testing.T) {
	full, _ := fill(t, 10)
	log, cps, hashes := read(t, full, "log"), read(t, full, "checkpoints"), read(t, full, "hashes")
	// The end that a crash can cut: after the checkpoint before the last one.
	entries := bytes.SplitAfter(cps, entryEnd)
	before := bytes.Join(entries[:len(entries)-3], nil)
	signed, _ := lastEntry(before)
	prev, err := ParseCheckpoint(signed, strings.TrimSpace(string(read(t, full, "key.pub"))))
	if err != nil {
		t.Fatal(err)
	}
	for logCut := prev.Bytes; logCut <= int64(len(log)); logCut += 61 {
		for _, cpCut := range []int{0, 1, 40, len(cps) - len(before) - 1} {
			if cpCut > 0 && logCut < int64(len(log)) && cpCut == len(cps)-len(before) {
				continue
			}
			dir := filepath.Join(t.TempDir(), "audit")
			os.Mkdir(dir, 0o700)
			write(t, dir, "log", log[:logCut])
			write(t, dir, "checkpoints", cps[:len(before)+cpCut])
			write(t, dir, "hashes", hashes[:(logCut*13)%int64(len(hashes))])
			write(t, dir, "key", read(t, full, "key"))
			write(t, dir, "key.pub", read(t, full, "key.pub"))
			l, err := Open(ctx, dir)
			if err != nil {
				t.Fatalf("cut at %d, %d: %v", logCut, cpCut, err)
			}
			if _, err := l.Append(ctx, event(1, true)); err != nil {
				t.Fatal(err)
			}
			l.Close()
			r := verify(t, dir, VerifyOptions{Anchors: [][]byte{signed}})
			clean := cpCut == 0 && log[logCut-1] == '\n'
			if !r.OK() || (r.Repairs == 0) != clean {
				t.Fatalf("cut at %d, %d: %s", logCut, cpCut, r.JSON())
			}
		}
	}
}

func TestLogInUseIsNotReplaced(t *testing.T) {
	dir, _ := fill(t, 5)
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	old := read(t, dir, "log")
	os.Rename(filepath.Join(dir, "log"), filepath.Join(dir, "log2"))
	write(t, dir, "log", old)
	var tampered *tamperError
	if _, err := l.Append(ctx, event(1, true)); !errors.As(err, &tampered) {
		t.Error(err)
	}
}

func TestProof(t *testing.T) {
	dir, _ := fill(t, 13)
	key := strings.TrimSpace(string(read(t, dir, "key.pub")))
	for i := range int64(13) {
		p, err := Prove(ctx, dir, i)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := json.Marshal(p)
		var q Proof
		if err := json.Unmarshal(b, &q); err != nil || q.check(key) != nil {
			t.Fatal(err, q.check(key))
		}
		withModAlone(t, q, key)
		q.Record = strings.Replace(q.Record, "carboy", "cowboy", 1)
		if q.check(key) == nil {
			t.Error("an altered record passed")
		}
		q = p
		q.Index++
		if q.check(key) == nil {
			t.Error("another index passed")
		}
	}
	for _, i := range []int64{-1, 13} {
		if _, err := Prove(ctx, dir, i); err == nil {
			t.Errorf("proof for record %d", i)
		}
	}
}

func TestConsistency(t *testing.T) {
	dir, p := fill(t, 8)
	key := strings.TrimSpace(string(read(t, dir, "key.pub")))
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 9 {
		if _, err := l.Append(ctx, event(i, true)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	c, err := ProveConsistency(ctx, dir, p.Checkpoint)
	if err != nil || c.check(key) != nil {
		t.Fatal(err)
	}
	c.Old, c.New = c.New, c.Old
	if c.check(key) == nil {
		t.Error("passed backwards")
	}
	_, other := fill(t, 8)
	if _, err := ProveConsistency(ctx, dir, other.Checkpoint); err == nil {
		t.Error("another log's checkpoint passed")
	}
	// The same key, another history.
	forged := filepath.Join(t.TempDir(), "audit")
	os.Mkdir(forged, 0o700)
	write(t, forged, "key", read(t, dir, "key"))
	if l, err = Open(ctx, forged); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if _, err := l.Append(ctx, event(i+50, true)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	if _, err := ProveConsistency(ctx, forged, p.Checkpoint); err == nil {
		t.Error("a rewritten history passed")
	}
}

// withModAlone checks a proof as its documentation tells others to.
func withModAlone(t *testing.T, p Proof, key string) {
	t.Helper()
	v, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open([]byte(p.Checkpoint), note.VerifierList(v))
	if err != nil {
		t.Fatal(err)
	}
	var origin, root string
	var size int64
	fmt.Sscanf(n.Text, "%s\n%d\n%s\n", &origin, &size, &root)
	h, err := tlog.ParseHash(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := tlog.CheckRecord(p.Hashes, size, h, p.Index, tlog.RecordHash([]byte(p.Record))); err != nil {
		t.Error(err)
	}
}

func TestCompactIsTlog(t *testing.T) {
	var c compact
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(ix []int64) (out []tlog.Hash, err error) {
		for _, i := range ix {
			out = append(out, stored[i])
		}
		return out, nil
	})
	for n := range int64(300) {
		want, err := tlog.StoredHashes(n, fmt.Append(nil, n), reader)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.add(tlog.RecordHash(fmt.Append(nil, n))); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatal(n)
		}
		stored = append(stored, want...)
		if root, err := tlog.TreeHash(n+1, reader); err != nil || root != c.root() {
			t.Fatal(n, err)
		}
	}
}

// fuzzKey is the same in every process of a fuzz run: inputs that one signed are good in all.
const fuzzKey = "PRIVATE+KEY+carboy.dev/audit/fuzz+%08x+%s"

// fuzzLog makes a log that is the same, byte by byte, each time.
func fuzzLog(f *testing.F) string {
	dir := filepath.Join(f.TempDir(), "audit")
	os.Mkdir(dir, 0o700)
	seed := bytes.Repeat([]byte{7}, ed25519.SeedSize)
	pub := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	vkey, err := note.NewEd25519VerifierKey("carboy.dev/audit/fuzz", pub)
	if err != nil {
		f.Fatal(err)
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		f.Fatal(err)
	}
	write(f, dir, "key", fmt.Appendf(nil, fuzzKey+"\n", v.KeyHash(), base64.StdEncoding.EncodeToString(append([]byte{1}, seed...))))
	l, err := fuzzOpen(dir)
	if err != nil {
		f.Fatal(err)
	}
	defer l.Close()
	for i := range 3 {
		if _, err := l.Append(ctx, event(i, i == 1)); err != nil {
			f.Fatal(err)
		}
	}
	return dir
}

func fuzzOpen(dir string) (*Log, error) {
	return open(ctx, dir, &faultDisk{at: -1}, func() time.Time { return time.Unix(1, 0) })
}

func FuzzVerify(f *testing.F) {
	dir := fuzzLog(f)
	f.Add(read(f, dir, "log"), read(f, dir, "checkpoints"), read(f, dir, "hashes"))
	f.Add([]byte("\n\n"), []byte("\n\n— x\n\n"), []byte{})
	good := [3][]byte{read(f, dir, "log"), read(f, dir, "checkpoints"), read(f, dir, "hashes")}
	f.Fuzz(func(t *testing.T, log, cps, hashes []byte) {
		write(t, dir, "log", log)
		write(t, dir, "checkpoints", cps)
		write(t, dir, "hashes", hashes)
		r := verify(t, dir, VerifyOptions{})
		// Without the key nobody makes records that count as signed, other than those that are.
		lines := bytes.SplitAfter(log, []byte("\n"))
		if r.OK() && !bytes.HasPrefix(good[0], bytes.Join(lines[:r.Signed], nil)) {
			t.Fatalf("forged: %s", r.JSON())
		}
		lastEntry(cps)
		nextEntry(cps)
		// Open repairs what is torn, and washes nothing clean: records that were signed are there, or it is still said.
		key := strings.TrimSpace(string(read(t, dir, "key.pub")))
		l, err := fuzzOpen(dir)
		if err != nil {
			if r.Status == Intact {
				t.Fatalf("intact, and not opened: %v", err)
			}
			return
		}
		l.Close()
		after := verify(t, dir, VerifyOptions{})
		if r.Status != Tampered && after.Status != Intact {
			t.Fatalf("opened, and is %s", after.JSON())
		}
		signed, _ := lastEntry(cps)
		if c, err := ParseCheckpoint(signed, key); err == nil && after.OK() && !bytes.HasPrefix(read(t, dir, "log"), good[0][:c.Bytes]) {
			t.Fatalf("washed: %s", after.JSON())
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	e := event(1, true)
	b, _ := e.encode(0, time.Unix(0, 0))
	f.Add(bytes.TrimSpace(b))
	f.Add([]byte(`{"schema":"carboy.dev/audit-record/v1","kind":"x","actor":"y","decision":"allowed","later":1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if r, err := parseRecord(line, 0); err == nil && (r.Kind == "" || r.Actor == "" || r.Schema != recordSchema) {
			t.Fatalf("%+v", r)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	dir, _ := fill(b, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := event(1, false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Append(ctx, e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendDurable(b *testing.B) {
	dir, _ := fill(b, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	e := event(1, true)
	for b.Loop() {
		if _, err := l.Append(ctx, e); err != nil {
			b.Fatal(err)
		}
	}
}

// Benchmark100k opens and verifies a log of 100,000 records.
func Benchmark100k(b *testing.B) {
	dir, _ := fill(b, 2)
	l, err := Open(ctx, dir)
	if err != nil {
		b.Fatal(err)
	}
	batch := make([]Event, 1000)
	for i := range batch {
		batch[i] = event(i, i == len(batch)-1)
	}
	for range 100 {
		if _, err := l.Append(ctx, batch...); err != nil {
			b.Fatal(err)
		}
	}
	l.Close()
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			l, err := Open(ctx, dir)
			if err != nil {
				b.Fatal(err)
			}
			l.Close()
		}
	})
	b.Run("verify", func(b *testing.B) {
		for b.Loop() {
			if r := verify(b, dir, VerifyOptions{}); !r.OK() {
				b.Fatalf("%s", r.JSON())
			}
		}
	})
}
