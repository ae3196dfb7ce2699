package provenance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/carboy/carboy/internal/attest"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/receipt/receipttest"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// place is a state directory with its Store and log.
type place struct {
	*Store
	t     testing.TB
	state string
	log   *audit.Log
}

func newPlace(t testing.TB) *place {
	t.Helper()
	return openPlace(t, t.TempDir())
}

func openPlace(t testing.TB, state string) *place {
	t.Helper()
	log, err := audit.Open(t.Context(), filepath.Join(state, "audit"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return &place{Open(state, log), t, state, log}
}

const (
	merged = "4bcf5b0d1a0e7d8c7a1d5d1f0a5a7e8f9b0c1d2e"
	other  = "4bcf99999a0e7d8c7a1d5d1f0a5a7e8f9b0c1d2e"
	head   = "00cf5b0d1a0e7d8c7a1d5d1f0a5a7e8f9b0c1d2e"
)

func sum(s string) string {
	b := sha256.Sum256([]byte(s))
	return hex.EncodeToString(b[:])
}

// facts has every field filled in, some of it by an adversary.
func facts() *Facts {
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("CET", 3600))
	return &Facts{
		Forge: "https://git.example.org/", Owner: "acme", Repo: "app", Issue: 7, Pull: 9, URL: "https://git.example.org/acme/app/pulls/9",
		Base: "main", Branch: "carboy/7-fix\u202e", Head: head, Commit: merged, Tree: "aacf5b0d1a0e7d8c7a1d5d1f0a5a7e8f9b0c1d2e", Merged: at.Add(time.Hour),
		Agent: "fixer", Bottles: []string{"go"}, Slug: "fixer-7", Backend: "gvisor",
		Turns: []Turn{{
			ID: "01", Work: "w1", Began: at, Ended: at.Add(time.Minute), Exit: 0, Outcome: "failed", Why: "a test fails\x1b[2J", Verdict: "v1", VerdictSHA256: sum("v1"),
			Tokens: 1200, Runs: []Run{{ID: "r1", ReceiptSHA256: sum("r1"), Egress: Egress{Hosts: []string{"api.example.org"}, HostsTotal: 1}}},
		}, {
			ID: "02", Began: at.Add(2 * time.Minute), Ended: at.Add(3 * time.Minute), Outcome: "passed", Verdict: "v2", VerdictSHA256: sum("v2"),
			Commit: head, Tokens: 34, Runs: []Run{{ID: "r2", ReceiptSHA256: sum("r2"), Scan: Scan{Out: 1, Blocked: 1}}},
		}},
		Operations: []forgeservice.Operation{
			{Number: 1, At: at, Operation: "read_issue", Target: "#7", Outcome: forgeservice.Done},
			{Number: 2, At: at, Operation: "post_comment", Target: "#5", Outcome: forgeservice.Refused, Reason: "write to #5 denied: out of assigned scope (writable: #7)\xff"},
		},
		Reviews: []Review{{By: "ada <b>", State: "APPROVED", Commit: head, At: at.Add(30 * time.Minute)}},
	}
}

func (p *place) seal(f *Facts) string {
	p.t.Helper()
	digest, err := p.Seal(p.t.Context(), f, SealOptions{Build: "v1"})
	if err != nil {
		p.t.Fatal(err)
	}
	return digest
}

func (p *place) verify(o VerifyOptions) *Report {
	p.t.Helper()
	r, err := p.Verify(p.t.Context(), o)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// file returns the path of the record of merged.
func (p *place) file() string {
	return filepath.Join(p.state, "provenance", "acme", "app", merged+".json")
}

func (r *Report) of(check string) Check {
	i := slices.IndexFunc(r.Checks, func(c Check) bool { return c.Name == check })
	if i < 0 {
		return Check{}
	}
	return r.Checks[i]
}

// Independent readers of DSSE, in-toto and SLSA accept a record; it fits its published
// schema; it is on record, and nobody else can read it.
func TestSealedIsRead(t *testing.T) {
	p := newPlace(t)
	digest := p.seal(facts())
	b, err := os.ReadFile(p.file())
	if err != nil || sum(string(b)) != digest {
		t.Fatal(err, digest)
	}
	for path := p.file(); path != p.state; path = filepath.Dir(path) {
		fi, err := os.Lstat(path)
		if err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", path, fi.Mode(), err)
		}
	}
	var e dsse.Envelope
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	statement, err := base64.StdEncoding.DecodeString(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	var st intoto.Statement
	if err := errors.Join(protojson.Unmarshal(statement, &st), st.Validate()); err != nil {
		t.Fatal(err)
	}
	if len(st.Subject) != 2 || st.Subject[0].Digest["gitCommit"] != merged || st.Subject[1].Digest["gitTree"] != facts().Tree || st.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("%v", st.Subject)
	}
	pb, err := st.GetPredicate().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var prov slsa.Provenance
	if err := errors.Join(protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(pb, &prov), prov.Validate()); err != nil {
		t.Error(err)
	}
	schema, err := receipttest.Load("../../docs/schemas/provenance.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(statement, &doc); err != nil {
		t.Fatal(err)
	}
	for _, bad := range schema.Check(doc) {
		t.Error(bad)
	}
	r := p.verify(VerifyOptions{Commit: merged})
	if !r.Verified || r.SHA256 != digest || r.Build != "v1" || r.of("audit log").Result != Holds || r.KeyGiven {
		t.Errorf("%+v", r)
	}
	if r.Record.Reviews[0].By != "ada <b>" || !r.Record.Merged.Equal(facts().Merged) || len(r.Record.Operations) != 2 {
		t.Errorf("%+v", r.Record)
	}
	for _, s := range []string{r.Record.Branch, r.Record.Turns[0].Why, r.Record.Operations[1].Reason} {
		if !safetext.Clean(s) {
			t.Errorf("%q is not safe to show", s)
		}
	}
}

// A record says what was not observed, and that more plainly where others pushed.
func TestSources(t *testing.T) {
	all := func(change func(*Facts)) (Sources, string) {
		f := facts()
		change(f)
		n, err := f.normal()
		if err != nil {
			t.Fatal(err)
		}
		s := n.sources()
		if err := s.check(); err != nil {
			t.Error(err)
		}
		return s, strings.Join(s.Not, "\n")
	}
	s, not := all(func(*Facts) {})
	if !strings.Contains(not, "the merge: who or what made it") || !strings.Contains(not, "took it back") || strings.Contains(not, "no gate of carboy judged the difference") {
		t.Error(not)
	}
	if got := strings.Join(s.Observed, "\n"); !strings.Contains(got, "of which 1 were refused") || !strings.Contains(got, "did not have to stop") {
		t.Error(got)
	}
	if got := strings.Join(s.Claimed, "\n"); !strings.Contains(got, "1234, by the models' answers") {
		t.Error(got)
	}
	for want, change := range map[string]func(*Facts){
		"merged at " + other + ", and carboy had pushed " + head: func(f *Facts) { f.Head = other },
		"carboy pushed nothing":                                  func(f *Facts) { f.Turns[1].Commit = "" },
		"did not tell its last commit":                           func(f *Facts) { f.Head = "" },
		"carboy did not read it":                                 func(f *Facts) { f.Tree = "" },
		"runs without a receipt: 1":                              func(f *Facts) { f.Turns[1].Runs[0].ReceiptSHA256 = "" },
		"0 turns, 0 runs, 0 operations, 1 revi":                  func(f *Facts) { f.Reviews = make([]Review, maxReviews+1) },
	} {
		if _, not := all(change); !strings.Contains(not, want) {
			t.Errorf("nothing says %q:\n%s", want, not)
		}
	}
	if s, _ := all(func(f *Facts) { f.Watchdog = true }); !strings.Contains(strings.Join(s.Observed, "\n"), "watchdog stopped") {
		t.Error(s.Observed)
	}
}

// Sealing the same facts again changes nothing, also by a later build and after a crash at
// any step. Other facts are refused, and what is there stays.
func TestSealedOnce(t *testing.T) {
	p := newPlace(t)
	digest := p.seal(facts())
	was, err := os.ReadFile(p.file())
	if err != nil {
		t.Fatal(err)
	}
	again := func(want error) {
		t.Helper()
		got, err := p.Seal(t.Context(), facts(), SealOptions{Build: "v2"})
		if !errors.Is(err, want) || want == nil && got != digest {
			t.Fatal(got, err)
		}
		if now, err := os.ReadFile(p.file()); want == nil && (err != nil || !bytes.Equal(now, was)) {
			t.Fatal("the file was changed", err)
		}
	}
	again(nil)
	if f, err := p.Sealed(t.Context(), "acme", "app", merged); err != nil || f == nil || f.Pull != 9 || p.seal(f) != digest {
		t.Errorf("the sealed facts: %+v %v", f, err)
	}
	for _, x := range []name{{"acme", "app", other}, {"acme", "other", merged}, {"acme", "app", "HEAD"}} {
		if f, err := p.Sealed(t.Context(), x.owner, x.repo, x.commit); err != nil || f != nil {
			t.Errorf("%v: %+v %v", x, f, err)
		}
	}
	if f, err := p.Sealed(t.Context(), "..", "app", merged); err == nil {
		t.Errorf("%+v", f)
	}
	records, err := p.records(t.Context())
	if err != nil || len(records) != 1 || len(records[name{"acme", "app", merged}].sum) != 1 {
		t.Fatal(records, err)
	}
	f := facts()
	f.Reviews[0].State = "REJECTED"
	if _, err := p.Seal(t.Context(), f, SealOptions{Build: "v1"}); !errors.Is(err, ErrOther) {
		t.Fatal(err)
	}
	again(nil)
	// The file is gone: the same build makes the same one, and another one does not count.
	if err := os.Remove(p.file()); err != nil {
		t.Fatal(err)
	}
	again(ErrOther)
	if _, err := os.Lstat(p.file()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file that differs from the record was written", err)
	}
	if got := p.seal(facts()); got != digest {
		t.Error(got)
	}
	again(nil)

	for _, died := range []string{"in the middle of the file", "before the record"} {
		p := newPlace(t)
		dir := filepath.Dir(p.file())
		left, text := filepath.Join(dir, "."+merged+".json.tmp"), was[:100]
		if died == "before the record" {
			n, err := facts().normal()
			if err != nil {
				t.Fatal(err)
			}
			left = p.file()
			if text, _, _, err = p.envelope(t.Context(), name{"acme", "app", merged}, n, "v0"); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(left, text, 0o600)); err != nil {
			t.Fatal(err)
		}
		if r, err := p.Verify(t.Context(), VerifyOptions{Commit: merged}); err == nil && (r.Verified || r.of("audit log").Result != Fails) {
			t.Errorf("%s: %+v", died, r)
		}
		p.seal(facts())
		if r := p.verify(VerifyOptions{Commit: merged}); !r.Verified {
			t.Errorf("%s: %+v", died, r)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("%s: %v stays, %v", died, all, err)
		}
	}
}

// Two processes that seal at once agree on one record.
func TestSealedAtOnce(t *testing.T) {
	state := t.TempDir()
	var wg sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		p := openPlace(t, state)
		wg.Go(func() {
			var err error
			if got[i], err = p.Seal(t.Context(), facts(), SealOptions{Build: "v1"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(slices.Compact(got)) != 1 {
		t.Error(got)
	}
	p := openPlace(t, state)
	if records, err := p.records(t.Context()); err != nil || len(records[name{"acme", "app", merged}].sum) != 1 {
		t.Error(records, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	unlock, err := p.lock(ctx, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	stop()
	if _, err := p.Seal(ctx, facts(), SealOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := p.Verify(ctx, VerifyOptions{Commit: merged}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := p.List(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Who looks while others seal finds nothing wrong: a record that is not in the log yet is
// not seen.
func TestSealedMeanwhile(t *testing.T) {
	state := t.TempDir()
	sealing, looking := openPlace(t, state), openPlace(t, state)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 30 {
			f := facts()
			f.Commit = fmt.Sprintf("%040x", i)
			if _, err := sealing.Seal(t.Context(), f, SealOptions{Build: "v1"}); err != nil {
				t.Error(err)
			}
		}
	}()
	for looks := 0; ; looks++ {
		found, err := looking.Findings(t.Context())
		if err != nil || len(found) != 0 {
			t.Errorf("look %d: %v %v", looks, found, err)
		}
		select {
		case <-done:
			if list, err := looking.List(t.Context()); err != nil || len(list) != 30 {
				t.Error(len(list), err)
			}
			return
		default:
		}
	}
}

// What a forge says may hold anything. Names that lead elsewhere are refused, and nothing is
// written.
func TestFactsThatAreRefused(t *testing.T) {
	p := newPlace(t)
	for _, good := range []func(*Facts){
		func(f *Facts) { f.Owner, f.Repo = "group/sub.group/x_y-z", ".github" },
		func(f *Facts) {
			f.Commit, f.Tree, f.Head = strings.Repeat("ab", 32), strings.Repeat("cd", 32), ""
		},
		func(f *Facts) { f.Issue, f.Turns, f.Reviews, f.Operations, f.Bottles = 0, nil, nil, nil, nil },
	} {
		f := facts()
		good(f)
		digest := p.seal(f)
		if r := p.verify(VerifyOptions{Commit: f.Owner + "/" + f.Repo + "@" + f.Commit}); !r.Verified || r.SHA256 != digest {
			t.Errorf("%+v", r)
		}
	}
	before, err := p.files(t.Context())
	if err != nil || len(before) != 3 {
		t.Fatal(before, err)
	}
	for what, bad := range map[string]func(*Facts){
		"owner up":      func(f *Facts) { f.Owner = ".." },
		"owner empty":   func(f *Facts) { f.Owner = "" },
		"owner rooted":  func(f *Facts) { f.Owner = "/etc" },
		"owner deep":    func(f *Facts) { f.Owner = strings.Repeat("a/", 21) + "a" },
		"part empty":    func(f *Facts) { f.Owner = "a//b" },
		"repo up":       func(f *Facts) { f.Repo = "../x" },
		"repo dot":      func(f *Facts) { f.Repo = "." },
		"repo slash":    func(f *Facts) { f.Repo = "a/b" },
		"repo zero":     func(f *Facts) { f.Repo = "a\x00b" },
		"repo at":       func(f *Facts) { f.Repo = "a@b" },
		"repo break":    func(f *Facts) { f.Repo = "a\nb" },
		"repo long":     func(f *Facts) { f.Repo = strings.Repeat("a", 256) },
		"commit short":  func(f *Facts) { f.Commit = merged[:12] },
		"commit upper":  func(f *Facts) { f.Commit = strings.ToUpper(merged) },
		"commit path":   func(f *Facts) { f.Commit = "../" + merged[3:] },
		"tree":          func(f *Facts) { f.Tree = "x" },
		"tree, longer":  func(f *Facts) { f.Tree = strings.Repeat("ab", 32) },
		"head":          func(f *Facts) { f.Head = "main" },
		"pull":          func(f *Facts) { f.Pull = 0 },
		"issue":         func(f *Facts) { f.Issue = -1 },
		"merged":        func(f *Facts) { f.Merged = time.Time{} },
		"year":          func(f *Facts) { f.Reviews[0].At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"agent":         func(f *Facts) { f.Agent = "" },
		"forge":         func(f *Facts) { f.Forge = "file:///etc" },
		"forge's token": func(f *Facts) { f.Forge = "https://u:secret@git.example.org" },
		"verdict":       func(f *Facts) { f.Turns[0].VerdictSHA256 = "" },
		"verdict's sum": func(f *Facts) { f.Turns[0].VerdictSHA256 = "abc" },
		"turn's commit": func(f *Facts) { f.Turns[0].Commit = "HEAD" },
		"run":           func(f *Facts) { f.Turns[0].Runs[0].ID = "" },
		"receipt":       func(f *Facts) { f.Turns[0].Runs[0].ReceiptSHA256 = "abc" },
	} {
		f := facts()
		bad(f)
		if _, err := p.Seal(t.Context(), f, SealOptions{}); err == nil || what != "year" && !strings.HasPrefix(err.Error(), "field") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if after, err := p.files(t.Context()); err != nil || len(after) != 3 {
		t.Error(after, err)
	}
	if all, err := os.ReadDir(p.state); err != nil || len(all) != 2 {
		t.Error(all, err)
	}
}

// However much strangers write, a record stays within its bounds; what they wrote does not
// hide what was refused; and the record verifies.
func TestBounds(t *testing.T) {
	p := newPlace(t)
	f := facts()
	long := strings.Repeat("\"\\\u202e\xff", 500) // each of them is longer in JSON
	refused := f.Operations[1]
	f.Operations = nil
	for range maxOperations + 500 {
		f.Operations = append(f.Operations, forgeservice.Operation{Operation: "read_issue", Target: long, Outcome: forgeservice.Done, Reason: long, Result: long})
	}
	f.Operations = append(f.Operations, refused)
	for range maxReviews + 7 {
		f.Reviews = append(f.Reviews, Review{By: long, State: long, Commit: long})
	}
	f.Bottles = slices.Repeat([]string{long}, maxBottles+3)
	turn := f.Turns[0]
	turn.Why = long
	turn.Runs[0].Egress.Hosts = slices.Repeat([]string{long}, 1000)
	turn.Runs = slices.Repeat(turn.Runs, maxRuns+1)
	f.Turns = append(slices.Repeat([]Turn{turn}, maxTurns), f.Turns[1])
	f.Agent, f.Base, f.Branch, f.Slug, f.URL = "x"+long, "y"+long, long, long, long
	p.seal(f)
	r := p.verify(VerifyOptions{Commit: merged})
	if !r.Verified {
		t.Fatalf("%+v", r.Checks)
	}
	got := r.Record
	if want := (LeftOut{Turns: 1, Runs: maxTurns - 1, Operations: 501, Reviews: 8, Bottles: 3}); got.LeftOut != want {
		t.Errorf("%+v", got.LeftOut)
	}
	if last := got.Operations[len(got.Operations)-1]; last.Outcome != forgeservice.Refused {
		t.Errorf("what was refused is hidden: %+v", last)
	}
	if got.pushed() != head {
		t.Error("the last turn is hidden")
	}
	if fi, err := os.Stat(p.file()); err != nil || fi.Size() > maxFile {
		t.Error(fi, err)
	}
	if len(f.Reviews) != maxReviews+8 || f.Reviews[3].By != long {
		t.Error("the caller's facts were changed")
	}
}

// A run's facts are those of its receipt.
func TestRunOf(t *testing.T) {
	started := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rec := &receipt.Receipt{
		Schema: receipt.Schema, ID: "01k9x3m7q8r5t2v6w4y0z1a2b3", Command: []store.Raw{"x"}, Workspace: receipt.Workspace{Mode: store.None},
		Started: &started, Exit: receipt.Exit{Code: 125, Reason: receipt.Failed, Error: "x"},
		Network: receipt.Network{
			Names: []receipt.Name{{Name: "b.example", Verdict: receipt.Allowed, Rule: "r", Count: 1}, {Name: "a.example", Verdict: receipt.Allowed, Rule: "r", Count: 1}, {Name: "evil.example", Verdict: receipt.Refused, Rule: "r", Count: 1}}, NamesTotal: 3,
			Requests: []receipt.Request{{Name: "a.example", Port: 443, Verdict: receipt.Allowed, Rule: "r", Count: 2, Tokens: &receipt.Tokens{Answers: 2, Input: 100, Output: 11}}}, RequestsTotal: 1,
			Found: []receipt.Found{
				{Name: "a.example", Port: 443, What: "known-secret", Place: "body", Rule: "r", Action: receipt.Blocked, Count: 3},
				{Name: "a.example", Port: 443, What: "known-secret", Place: "body", Rule: "r", Action: receipt.Reported, Count: 1},
			}, FoundTotal: 2,
			Totals: receipt.Totals{RequestsAllowed: 2, RequestsRefused: 1, ConnectionsAllowed: 4, ConnectionsRefused: 5, FoundOut: 4, FoundIn: 0, BytesUp: 6, BytesDown: 7},
		},
	}
	b, err := rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r, tokens, err := RunOf(b)
	if err != nil {
		t.Fatal(err)
	}
	want := Run{ID: string(rec.ID), ReceiptSHA256: sum(string(b)), Exit: 125, Reason: "failed", Scan: Scan{Out: 4, Blocked: 3},
		Egress: Egress{RequestsAllowed: 2, RequestsRefused: 1, ConnectionsAllowed: 4, ConnectionsRefused: 5, BytesUp: 6, BytesDown: 7, Hosts: []string{"a.example", "b.example"}, HostsTotal: 2}}
	if tokens != 111 || !reflect.DeepEqual(r, want) {
		t.Errorf("%d %+v", tokens, r)
	}
	if _, _, err := RunOf([]byte("{}")); err == nil {
		t.Error("what is no receipt is taken")
	}
}

// pemKey writes a private key, and returns its file and the public key.
func pemKey(t *testing.T) (file, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	pub, err2 := x509.MarshalPKIXPublicKey(key.Public())
	file = filepath.Join(t.TempDir(), "key.pem")
	err3 := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	return file, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
}

// With a configured key a bundle stands beside the record. It verifies by that key alone,
// and one of another statement is noticed.
func TestBundle(t *testing.T) {
	p := newPlace(t)
	file, public := pemKey(t)
	seal := func(f *Facts, key string) error {
		_, err := p.Seal(t.Context(), f, SealOptions{Build: "v1", BundleKey: key})
		return err
	}
	if err := seal(facts(), "/nonexistent"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := os.Lstat(p.file()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a record was sealed without its bundle", err)
	}
	p.seal(facts())
	if err := seal(facts(), file); err != nil { // the record is there, the bundle is not
		t.Fatal(err)
	}
	bundle := strings.TrimSuffix(p.file(), suffix) + bundleSuffix
	was, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(bundle); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
	second, otherPublic := pemKey(t)
	for _, key := range []string{file, second} {
		if err := seal(facts(), key); err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(bundle); err != nil || !bytes.Equal(was, now) {
			t.Error("the bundle was replaced", err)
		}
	}
	if r := p.verify(VerifyOptions{Commit: merged}); !r.Verified || r.of("bundle").Result != Unchecked {
		t.Errorf("%+v", r)
	}
	for _, o := range []VerifyOptions{{Commit: merged[:8], Key: public}, {File: bundle, Key: public}} {
		if r := p.verify(o); !r.Verified || r.Record.Commit != merged || r.of("audit log").Result != Unchecked {
			t.Errorf("%+v", r)
		}
	}
	if r := p.verify(VerifyOptions{Commit: merged, Key: otherPublic}); r.Verified || r.of("signature").Result != Fails || r.Record != nil {
		t.Errorf("%+v", r)
	}
	if r := p.verify(VerifyOptions{File: p.file(), Key: public}); r.Verified {
		t.Errorf("an envelope passes for a bundle: %+v", r)
	}
	if r := p.verify(VerifyOptions{File: bundle}); r.Verified {
		t.Errorf("a bundle passes for an envelope: %+v", r)
	}
	f := facts()
	f.Commit = other
	if err := seal(f, file); err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(strings.Replace(bundle, merged, other, 1))
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{"another statement": wrong, "no bundle": []byte("{}\n"), "another type": bytes.Replace(was, []byte("v0.3"), []byte("v0.2"), 1)} {
		if err := os.WriteFile(bundle, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := p.verify(VerifyOptions{Commit: merged}); r.Verified || r.of("bundle").Result != Fails {
			t.Errorf("%s: %+v", what, r)
		}
		if r := p.verify(VerifyOptions{Commit: merged, Key: public}); r.Verified {
			t.Errorf("%s: %+v", what, r)
		}
		if err := seal(facts(), file); !errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Remove(bundle); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), VerifyOptions{Commit: merged, Key: public}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// sign returns an envelope of any text by the place's own key: what a defect of carboy, or a
// thief of the key, could have made.
func (p *place) sign(statement []byte) []byte {
	p.t.Helper()
	signer, err := p.log.Attester()
	if err != nil {
		p.t.Fatal(err)
	}
	e, err := attest.Sign(p.t.Context(), signer, statement)
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := encode(e)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// Files that are not what was sealed do not verify, and the check says why. The file itself
// does, before and after.
func TestHostileFiles(t *testing.T) {
	p := newPlace(t)
	p.seal(facts())
	good, err := os.ReadFile(p.file())
	if err != nil {
		t.Fatal(err)
	}
	var e dsse.Envelope
	if err := json.Unmarshal(good, &e); err != nil {
		t.Fatal(err)
	}
	statement, err := e.DecodeB64Payload()
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*dsse.Envelope)) []byte {
		x := e
		x.Signatures = slices.Clone(e.Signatures)
		change(&x)
		b, err := encode(x)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	replaced := func(from, to string) []byte {
		if !bytes.Contains(statement, []byte(from)) {
			t.Fatalf("the statement has no %s", from)
		}
		return p.sign(bytes.Replace(statement, []byte(from), []byte(to), 1))
	}
	stranger := newPlace(t)
	stranger.seal(facts())
	theirs, err := os.ReadFile(stranger.file())
	if err != nil {
		t.Fatal(err)
	}
	f := facts()
	f.Commit = other
	p.seal(f)
	renamed, err := os.ReadFile(strings.Replace(p.file(), merged, other, 1))
	if err != nil {
		t.Fatal(err)
	}
	hit := facts()
	hit.Watchdog = true
	n, err := hit.normal()
	if err != nil {
		t.Fatal(err)
	}
	second, err := payload(n, "v1", n.sources())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what, check, want string
		text              []byte
	}{
		{"empty", "signature", "can't be read", nil},
		{"truncated", "signature", "can't be read", good[:len(good)/2]},
		{"something follows", "signature", "follows its end", append(slices.Clone(good), good...)},
		{"spaces", "signature", "not in the form", append(slices.Clone(good), ' ')},
		{"a key twice", "signature", "not in the form", bytes.Replace(good, []byte(`{"payloadType"`), []byte(`{"payloadType":"x","payloadType"`), 1)},
		{"an unknown key", "signature", "unknown field", bytes.Replace(good, []byte(`{"payloadType"`), []byte(`{"x":1,"payloadType"`), 1)},
		{"a key in capitals", "signature", "not in the form", bytes.Replace(good, []byte(`"payload":`), []byte(`"PAYLOAD":`), 1)},
		{"a list", "signature", "can't be read", []byte("[]\n")},
		{"deep", "signature", "can't be read", []byte(strings.Repeat("[", 100000) + "\n")},
		{"no signature", "signature", "0 signatures", with(func(e *dsse.Envelope) { e.Signatures = []dsse.Signature{} })},
		{"two signatures", "signature", "2 signatures", with(func(e *dsse.Envelope) { e.Signatures = append(e.Signatures, e.Signatures[0]) })},
		{"altered payload", "signature", "did not sign", with(func(e *dsse.Envelope) { e.Payload = base64.StdEncoding.EncodeToString(second) })},
		{"altered signature", "signature", "did not sign", with(func(e *dsse.Envelope) { e.Signatures[0].Sig = "AAAA" })},
		{"no base64", "signature", "did not sign", with(func(e *dsse.Envelope) { e.Payload = "%" })},
		{"another type of payload", "signature", "did not sign", with(func(e *dsse.Envelope) { e.PayloadType = "text/plain" })},
		{"another key's", "signature", "did not sign", theirs},
		{"another statement type", "form", "field _type", replaced("in-toto.io/Statement/v1", "in-toto.io/Statement/v0")},
		{"another predicate type", "form", "field predicateType", replaced("slsa.dev/provenance/v1", "carboy.dev/verdict/v1")},
		{"another build type", "form", "buildType", replaced(BuildType, "https://carboy.dev/gate/v1")},
		{"a field twice", "form", "not in the form", replaced(`{"_type"`, `{"_type":"https://in-toto.io/Statement/v1","_type"`)},
		{"an unknown field", "form", "unknown field", replaced(`"watchdog_fired"`, `"x":1,"watchdog_fired"`)},
		{"a subject that contradicts", "form", "not in the form", replaced(`"gitCommit":"`+merged, `"gitCommit":"`+other)},
		{"no record", "form", "carboy_record", p.sign([]byte(`{"_type":"` + attest.StatementType + `","predicateType":"` + attest.ProvenanceV1 + `","predicate":{"buildDefinition":{"buildType":"` + BuildType + `"}}}`))},
		{"no JSON", "form", "can't be read", p.sign([]byte("hello"))},
		{"a name that leads elsewhere", "form", "no name of a repository", replaced(`"owner":"acme"`, `"owner":".."`)},
		{"unsafe text", "form", "not in the form", replaced(`"slug":"fixer-7","backend":"gvisor","turns"`, `"slug":"fixer-7`+"\u202e"+`","backend":"gvisor","turns"`)},
		{"nothing unobserved", "form", "not_observed", p.sign(append(slices.Clone(statement[:bytes.Index(statement, []byte(`"not_observed"`))]), []byte(`"not_observed":[]}}}}`+"\n")...))},
		{"another commit's", "commit", "stands in the place", renamed},
		{"another record of the commit, by the key", "audit log", "another one", p.sign(second)},
	} {
		if err := os.WriteFile(p.file(), x.text, 0o600); err != nil {
			t.Fatal(err)
		}
		r := p.verify(VerifyOptions{Commit: merged})
		if c := r.of(x.check); r.Verified || c.Result != Fails || !strings.Contains(c.Text, x.want) {
			t.Errorf("%s: %+v", x.what, r.Checks)
		}
		if _, err := p.Seal(t.Context(), facts(), SealOptions{Build: "v1"}); !errors.Is(err, ErrOther) {
			t.Errorf("%s: sealed again: %v", x.what, err)
		}
		found, err := p.Findings(t.Context())
		if err != nil || len(found) != 1 || !strings.Contains(found[0].Text, merged) {
			t.Errorf("%s: findings: %+v %v", x.what, found, err)
		}
	}
	if err := os.WriteFile(p.file(), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := p.verify(VerifyOptions{Commit: merged}); !r.Verified {
		t.Errorf("%+v", r)
	}
	if found, err := p.Findings(t.Context()); err != nil || len(found) != 0 {
		t.Error(found, err)
	}
}

// What stands in a record's place without being a file of a bounded size is not read. The
// log tells of a record that is gone.
func TestHostilePlaces(t *testing.T) {
	p := newPlace(t)
	p.seal(facts())
	good, err := os.ReadFile(p.file())
	if err != nil {
		t.Fatal(err)
	}
	away := filepath.Join(t.TempDir(), "away.json")
	if err := os.WriteFile(away, good, 0o600); err != nil {
		t.Fatal(err)
	}
	repo := filepath.Dir(p.file())
	for what, x := range map[string]struct {
		make func() error
		want string
	}{
		"a link":      {func() error { return os.Symlink(away, p.file()) }, "symbolic link"},
		"a directory": {func() error { return os.Mkdir(p.file(), 0o700) }, "not a regular file"},
		"oversized": {func() error {
			return errors.Join(os.WriteFile(p.file(), good, 0o600), os.Truncate(p.file(), maxFile+1))
		}, "more than"},
		"gone": {func() error { return nil }, "no such file"},
		"a linked place": {func() error {
			return errors.Join(os.Rename(repo, repo+"2"), os.Rename(repo+"2", filepath.Dir(away)+"/app"), os.Symlink(filepath.Dir(away)+"/app", repo), os.WriteFile(p.file(), good, 0o600))
		}, "not a directory"},
	} {
		if err := os.RemoveAll(p.file()); err != nil {
			t.Fatal(err)
		}
		if err := x.make(); err != nil {
			t.Fatal(err)
		}
		r := p.verify(VerifyOptions{Commit: merged})
		if c := r.of("audit log"); r.Verified || c.Result != Fails || !strings.Contains(c.Text, x.want) || !strings.Contains(c.Text, "was sealed") {
			t.Errorf("%s: %+v", what, r.Checks)
		}
		if list, err := p.List(t.Context()); err != nil || len(list) != 1 || list[0].Wrong == "" || list[0].Record != nil {
			t.Errorf("%s: %+v %v", what, list, err)
		}
		if what != "gone" {
			if _, err := p.Seal(t.Context(), facts(), SealOptions{Build: "v1"}); err == nil {
				t.Errorf("%s: sealed through it", what)
			}
		}
		if fi, err := os.Lstat(repo); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
			if err := errors.Join(os.Remove(repo), os.Rename(filepath.Dir(away)+"/app", repo)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.RemoveAll(p.file()), os.WriteFile(p.file(), good, 0o600)); err != nil {
		t.Fatal(err)
	}
	if r := p.verify(VerifyOptions{Commit: merged}); !r.Verified {
		t.Errorf("%+v", r)
	}
	if r := p.verify(VerifyOptions{File: away}); !r.Verified || r.of("commit").Result != Unchecked {
		t.Errorf("%+v", r)
	}
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(away, link); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(t.Context(), VerifyOptions{File: link}); err == nil {
		t.Error("a link is followed")
	}
}

// A log that was tampered with proves nothing of a record.
func TestTamperedLog(t *testing.T) {
	p := newPlace(t)
	digest := p.seal(facts())
	log := filepath.Join(p.state, "audit", "log")
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, bytes.Replace(b, []byte(digest), []byte(sum("x")), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := p.verify(VerifyOptions{Commit: merged}); r.Verified || !strings.Contains(r.of("audit log").Text, "tampered") {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(log, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := p.verify(VerifyOptions{Commit: merged}); !r.Verified {
		t.Errorf("%+v", r)
	}
}

// A record is found by a part of its commit, if that is of one. A record of elsewhere
// verifies by the key that its owner gives.
func TestNames(t *testing.T) {
	p := newPlace(t)
	p.seal(facts())
	f := facts()
	f.Commit = other
	p.seal(f)
	f.Owner, f.Merged = "fork", f.Merged.Add(time.Hour)
	p.seal(f)
	for ref, want := range map[string]string{merged: "acme/app@" + merged, "4bcf5": "acme/app@" + merged, "fork/app@4bcf": "fork/app@" + other, "acme/app@4bcf9": "acme/app@" + other} {
		r := p.verify(VerifyOptions{Commit: ref})
		if got := (name{r.Record.Owner, r.Record.Repo, r.Record.Commit}).String(); !r.Verified || got != want {
			t.Errorf("%s: %s %+v", ref, got, r.Checks)
		}
	}
	var option *fault.OptionError
	for _, ref := range []string{"4bcf", "4bcf9", other, "acme/app@4bcf", "", "HEAD", "4bc", "x@4bcf", "../a@4bcf", merged + strings.Repeat("0", 25)} {
		if _, err := p.Verify(t.Context(), VerifyOptions{Commit: ref}); !errors.As(err, &option) || option.Advice == "" {
			t.Errorf("%q: %v", ref, err)
		}
	}
	for _, ref := range []string{"00000", "acme/other@4bcf5", merged + "00"} {
		if _, err := p.Verify(t.Context(), VerifyOptions{Commit: ref}); !errors.Is(err, ErrNone) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 3 || list[0].Owner != "fork" || list[2].Wrong != "" {
		t.Errorf("%+v %v", list, err)
	}
	elsewhere := newPlace(t)
	if list, err := elsewhere.List(t.Context()); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	key := p.log.PublicKey()
	r := elsewhere.verify(VerifyOptions{File: p.file(), Key: key, Commit: merged})
	if !r.Verified || !r.KeyGiven || r.of("audit log").Result != Unchecked {
		t.Errorf("%+v", r)
	}
	if r := elsewhere.verify(VerifyOptions{File: p.file(), Key: key, Commit: other}); r.Verified || r.of("commit").Result != Fails {
		t.Errorf("%+v", r)
	}
	if r := elsewhere.verify(VerifyOptions{File: p.file()}); r.Verified || r.of("signature").Result != Fails {
		t.Errorf("%+v", r)
	}
	if r := p.verify(VerifyOptions{File: p.file(), Key: key}); !r.Verified || r.of("audit log").Result != Holds {
		t.Errorf("%+v", r)
	}
	for _, key := range []string{"x", "-----BEGIN PUBLIC KEY-----", strings.ToUpper(key)} {
		if _, err := p.Verify(t.Context(), VerifyOptions{Commit: merged, Key: key}); !errors.As(err, &option) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// In a work tree with the commit, the record must have its tree. An object that a work tree
// shows in the commit's place is noticed.
func TestWorkTree(t *testing.T) {
	dir := t.TempDir()
	gittest.Git(t, dir, "init", "-q", "-b", "main")
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	gittest.Git(t, dir, "add", "-A")
	gittest.Git(t, dir, "commit", "-q", "-m", "a")
	commit := strings.TrimSpace(gittest.Git(t, dir, "rev-parse", "HEAD"))
	tree := strings.TrimSpace(gittest.Git(t, dir, "rev-parse", "HEAD^{tree}"))
	gittest.Git(t, dir, "commit", "-q", "--allow-empty", "-m", "b")
	second := strings.TrimSpace(gittest.Git(t, dir, "rev-parse", "HEAD"))
	empty := t.TempDir()
	gittest.Git(t, empty, "init", "-q", "-b", "main")
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what, commit, tree, in, want string
		result                       Result
	}{
		{"the commit", commit, tree, dir, "with the tree that the record names", Holds},
		{"below the top", commit, tree, sub, "with the tree that the record names", Holds},
		{"no tree", commit, "", dir, "names no tree", Holds},
		{"another tree", commit, facts().Tree, dir, "the commit has tree " + tree, Fails},
		{"not here", commit, tree, empty, "does not have commit", Unchecked},
		{"no repository", commit, tree, t.TempDir(), "in no git work tree", Unchecked},
		{"a tree for a commit", tree, tree, dir, "could not be read", Unchecked},
		{"not asked", commit, tree, "", "no work tree was named", Unchecked},
	} {
		t.Run(x.what, func(t *testing.T) {
			p := newPlace(t)
			f := facts()
			f.Commit, f.Tree = x.commit, x.tree
			p.seal(f)
			r := p.verify(VerifyOptions{Commit: x.commit, WorkTree: x.in})
			if c := r.of("git"); c.Result != x.result || !strings.Contains(c.Text, x.want) || r.Verified != (x.result != Fails) {
				t.Errorf("%+v", r.Checks)
			}
		})
	}
	for in, want := range map[[2]string]string{{dir, commit}: tree, {dir, second}: tree, {empty, commit}: "", {dir, tree}: "", {dir, "HEAD"}: "", {t.TempDir(), commit}: ""} {
		if got, err := ReadTree(t.Context(), in[0], in[1]); got != want || (err == nil) != (want != "") {
			t.Errorf("%v: %q %v, want %q", in, got, err, want)
		}
	}
	t.Run("a forged object", func(t *testing.T) {
		p := newPlace(t)
		f := facts()
		f.Commit, f.Tree = commit, tree
		p.seal(f)
		object := func(id string) string { return filepath.Join(dir, ".git", "objects", id[:2], id[2:]) }
		was, err := os.ReadFile(object(second))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(object(commit)), os.WriteFile(object(commit), was, 0o444)); err != nil {
			t.Fatal(err)
		}
		if r := p.verify(VerifyOptions{Commit: commit, WorkTree: dir}); r.of("git").Result == Holds {
			t.Errorf("%+v", r.Checks)
		}
		if got, err := ReadTree(t.Context(), dir, commit); err == nil {
			t.Error(got)
		}
	})
}
