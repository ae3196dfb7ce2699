package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/attest"
)

// The log's key signs attestations. Nothing that it signs so can pass for a checkpoint.
func TestAttester(t *testing.T) {
	l, err := Open(ctx, filepath.Join(t.TempDir(), "audit"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := l.Attester()
	if err != nil {
		t.Fatal(err)
	}
	e, err := attest.Sign(ctx, a, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := PublicKey(l.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	key, err := attest.NewKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := attest.Verify(ctx, e, key); err != nil {
		t.Error(err)
	}
	if id, err := a.KeyID(); err != nil || id != e.Signatures[0].KeyID || id != attest.KeyID(pub) {
		t.Errorf("the key is called %q, %v", id, err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if key, err = attest.NewKey(other); err != nil {
		t.Fatal(err)
	}
	if _, err := attest.Verify(ctx, e, key); err == nil {
		t.Error("it verifies by another key")
	}
	signed, err := l.Sync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(signed), "\n\n")
	for _, s := range []string{text + "\n", "", "DSSEv", " DSSEv1 "} {
		if sig, err := a.Sign(ctx, []byte(s)); err == nil {
			t.Errorf("%q is signed: %x", s, sig)
		}
	}
	for _, s := range []string{"", "a+b+c", strings.ToUpper(l.PublicKey()), l.PublicKey() + "A"} {
		if _, err := PublicKey(s); err == nil {
			t.Errorf("%q is taken for a key", s)
		}
	}
}

// Records returns those of its kind with their numbers. It passes over a torn end, and
// stops at a line that is no record.
func TestRecords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	count := func() (seqs []int64, err error) {
		err = Records(ctx, dir, Sealed, func(r *Record) { seqs = append(seqs, r.Seq) })
		return seqs, err
	}
	if seqs, err := count(); err != nil || len(seqs) != 0 {
		t.Fatal(seqs, err) // there is no log
	}
	l, err := Open(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sealed := Event{Kind: Sealed, Actor: ByCarboy, Decision: Noted, Subject: plain("o/r@1"), Digests: []Digest{{"provenance", sha256.Sum256(nil)}}}
	named := event(1, false)
	named.Subject = plain(`"provenance.sealed"`) // a subject is not a kind
	p, err := l.Append(ctx, event(0, false), sealed, named, sealed)
	if err != nil || p.Checkpoint == nil {
		t.Fatal("it is not durable", err)
	}
	if seqs, err := count(); err != nil || len(seqs) != 2 || seqs[0] != 2 || seqs[1] != 4 {
		t.Error(seqs, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"kind":"provenance.sealed"`); err != nil {
		t.Fatal(err)
	}
	if seqs, err := count(); err != nil || len(seqs) != 2 {
		t.Error(seqs, err)
	}
	if _, err := f.WriteString("}\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := count(); err == nil || !strings.Contains(err.Error(), "record 5") {
		t.Error("a line that is no record is passed over", err)
	}
	if err := os.Remove(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	if _, err := count(); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Error("a link is followed", err)
	}
}
