package gate

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/carboy/carboy/internal/browsertest"
)

// hostileNames are names of files and tests, and output, that a change may choose.
var hostileNames = []string{
	"plain/file.go", "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "]]><x>&amp;<![CDATA[", "a:b/c", "//example.org/x", "100%25 #?x",
	"\x1b[2J\x1b]8;;http://example.org\x07link", "right\u202eleft\u2066x", "nul\x00and\x08", "broken\xff\xfe", "line\nbreak\r\n::error::x", "{{.ID}}${7*7}", "javascript:alert(1)", strings.Repeat("long/", 200) + "x",
}

func hostileVerdict(t testing.TB) *Verdict {
	t.Helper()
	var found []Finding
	for i, n := range hostileNames {
		found = append(found, Finding{ID: n, File: n, Line: i, Text: n, Detail: n})
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	v := &Verdict{
		Schema: verdictSchema, ID: "01m82p823qrzq4herp7s70zths", At: at, Build: "v1", Outcome: Final,
		Base: Side{Name: "main", Commit: strings.Repeat("a", 40), Files: 3, Digest: strings.Repeat("1", 64)}, Change: Side{Name: hostileNames[1], Commit: strings.Repeat("b", 40), Files: 4, Digest: strings.Repeat("2", 64)},
		Catalog: CatalogPath, CatalogFrom: "base", CatalogDigest: strings.Repeat("3", 64), Baseline: strings.Repeat("4", 64), Isolation: "gvisor", Duration: 3 * time.Second,
		Signals: []*Result{
			{Name: "policy", Kind: "policy", Outcome: Final, Findings: found, Why: hostileNames[7]},
			{Name: "tests", Kind: "tests", Outcome: Failed, Findings: found},
			{Name: "late", Kind: "build", Outcome: Unavailable, Why: hostileNames[1]},
			{Name: "both", Kind: "tests", Outcome: Escalated, Why: "exit code and report disagree"},
			{Name: "good", Kind: "build", Outcome: Passed},
		},
		Phases: []*Phase{
			{Signal: "tests", On: "change", Command: []string{"sh", hostileNames[2]}, Ended: &Ended{Run: "r", Reason: "exited", Trace: strings.Repeat("5", 64)}},
			{Signal: "integration-tests", On: "base", Command: []string{"sh"}, Ended: &Ended{Run: "s", Code: 137, Reason: "memory", Duration: 12345 * time.Millisecond, Trace: strings.Repeat("6", 64)}},
		},
	}
	for _, r := range v.Signals {
		r.seal(nil)
	}
	return v
}

// Other programs accept all output formats, by the formats' own schemas, and find every
// signal and finding in them, whatever a change calls its files.
func TestFormsAreRead(t *testing.T) {
	v := hostileVerdict(t)
	var b bytes.Buffer
	if err := v.SARIF(&b); err != nil {
		t.Fatal(err)
	}
	r, err := sarif.FromBytes(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	// The reader writes these where there are none, and its own schema refuses that.
	filled := func(r *sarif.Report) *sarif.Report {
		r.Runs[0].Language, r.Runs[0].Tool.Driver.Language = "en-US", "en-US"
		r.Runs[0].NewlineSequences = []string{"\n"}
		return r
	}
	if err := filled(r).Validate(); err != nil {
		t.Error(err)
	}
	// The same with one mistake is none: the schema does look.
	if bad, err := sarif.FromBytes(bytes.Replace(b.Bytes(), []byte(`"startLine": 1`), []byte(`"startLine": 0`), 1)); err == nil && filled(bad).Validate() == nil {
		t.Error("the schema takes a line 0")
	}
	if n := len(r.Runs[0].Results); n != 2*len(hostileNames)+2 {
		t.Errorf("%d results", n)
	}
	for _, x := range r.Runs[0].Results {
		for _, l := range x.Locations {
			at := *l.PhysicalLocation.ArtifactLocation.URI
			if strings.ContainsAny(at, " <>\"\x1b\n") || strings.HasPrefix(at, "/") || strings.Contains(strings.SplitN(at, "/", 2)[0], ":") {
				t.Errorf("%q is not relative to the repository", at)
			}
		}
	}
	b.Reset()
	if err := v.JUnit(&b); err != nil {
		t.Fatal(err)
	}
	inv, err := parseJUnit(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]state{"policy::policy": testFailed, "tests::tests": testFailed, "build::late": testFailed, "tests::both": testFailed, "build::good": testPassed} {
		if inv.tests[name] != want {
			t.Errorf("%s is %q in JUnit's form", name, inv.tests[name])
		}
	}
	texts := 0
	for d := xml.NewDecoder(&b); ; {
		x, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := x.(xml.CharData); ok && bytes.Contains(c, []byte("plain/file.go")) {
			texts++
		}
	}
	if texts != 2 {
		t.Errorf("findings stand in %d of the cases", texts)
	}
	b.Reset()
	v.Text(&b, true)
	for i, line := range strings.Split(b.String(), "\n") {
		if strings.ContainsAny(line, "\x1b\x00\x07\x08\r\u202e\u2066\ufffd") {
			t.Errorf("line %d for the terminal is %q", i, line)
		}
	}
}

// Independent readers of DSSE, in-toto and SLSA accept attestations. An altered one does
// not verify.
func TestAttestationsAreRead(t *testing.T) {
	v := hostileVerdict(t)
	dir := t.TempDir()
	s, err := OpenSigner(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Whoever made the key may have died before its public part was there.
	public := filepath.Join(dir, "key.pub")
	if err := os.Remove(public); err != nil {
		t.Fatal(err)
	}
	if again, err := OpenSigner(dir); err != nil || again.PublicKey() != s.PublicKey() {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(public); err != nil || string(b) != s.PublicKey()+"\n" {
		t.Errorf("%q, %v", b, err)
	}
	list, err := v.Attest(t.Context(), s)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	key, err := base64.StdEncoding.DecodeString(s.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenSigner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range list {
		payload, err := base64.StdEncoding.DecodeString(e.Payload)
		if err != nil || len(e.Signatures) != 1 {
			t.Fatal(err)
		}
		sig, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
		if err != nil {
			t.Fatal(err)
		}
		// DSSE's encoding, from its text.
		pae := fmt.Sprintf("DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(payload), payload)
		if !ed25519.Verify(key, []byte(pae), sig) {
			t.Error("the signature is not DSSE's")
		}
		var st intoto.Statement
		if err := errors.Join(protojson.Unmarshal(payload, &st), st.Validate()); err != nil {
			t.Errorf("statement %d: %v", i, err)
		}
		if i == 1 {
			b, err := st.GetPredicate().MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			var p provenance.Provenance
			if err := errors.Join(protojson.Unmarshal(b, &p), p.Validate()); err != nil {
				t.Errorf("provenance: %v", err)
			}
		}
		if _, err := VerifyAttestation(t.Context(), e, s.PublicKey()); err != nil {
			t.Error(err)
		}
		b64 := base64.StdEncoding.EncodeToString
		for what, x := range map[string]dsse.Envelope{
			"another payload":        {PayloadType: e.PayloadType, Payload: b64(bytes.Replace(payload, []byte("final"), []byte("passed"), 1)), Signatures: e.Signatures},
			"a byte more":            {PayloadType: e.PayloadType, Payload: b64(append(bytes.Clone(payload), ' ')), Signatures: e.Signatures},
			"another type":           {PayloadType: "text/plain", Payload: e.Payload, Signatures: e.Signatures},
			"no signature":           {PayloadType: e.PayloadType, Payload: e.Payload},
			"the other one's":        {PayloadType: e.PayloadType, Payload: e.Payload, Signatures: list[1-i].Signatures},
			"a signature of nothing": {PayloadType: e.PayloadType, Payload: e.Payload, Signatures: []dsse.Signature{{KeyID: e.Signatures[0].KeyID, Sig: ""}}},
		} {
			if what == "another payload" && i == 1 {
				continue // provenance does not say it
			}
			if _, err := VerifyAttestation(t.Context(), &x, s.PublicKey()); err == nil {
				t.Errorf("%s verifies", what)
			}
		}
		for _, k := range []string{other.PublicKey(), "", "AAAA"} {
			if _, err := VerifyAttestation(t.Context(), e, k); err == nil {
				t.Errorf("it verifies by the key %q", k)
			}
		}
	}
	// The statement is about the verdict.
	st, err := VerifyAttestation(t.Context(), list[0], s.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	var back Verdict
	if err := json.Unmarshal(st.Predicate, &back); err != nil || back.Outcome != Final || st.Subject[0].Digest["sha256"] != v.Change.Digest {
		t.Errorf("%+v %v", back, err)
	}
}

// Names of a change show as text only. The page loads nothing, and is legible in light
// and dark mode, wide and narrow.
func TestPageInBrowser(t *testing.T) {
	var b bytes.Buffer
	if err := hostileVerdict(t).HTML(&b); err != nil {
		t.Fatal(err)
	}
	browser := browsertest.Start(t)
	for _, x := range []struct {
		name  string
		view  browsertest.View
		theme bool
	}{{"gate-light", browsertest.View{Width: 1100, Height: 900}, false}, {"gate-dark", browsertest.View{Width: 1100, Height: 900}, true}, {"gate-narrow", browsertest.View{Width: 390, Height: 800}, false}} {
		p := browser.OpenHTML(t, b.Bytes(), x.view)
		p.Media(x.theme, false)
		if bad := browsertest.Eval[[]string](p, browsertest.Contrast); len(bad) > 0 {
			t.Errorf("%s: hard to read: %v", x.name, bad)
		}
		if n := browsertest.Eval[int](p, `document.querySelectorAll("script, img, a, iframe, form").length`); n != 0 {
			t.Errorf("%s: %d elements are a change's", x.name, n)
		}
		if w := browsertest.Eval[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); w > 0 {
			t.Errorf("%s: the page is %d pixels wider than its window", x.name, w)
		}
		// Short words stand in one line.
		if bad := browsertest.Eval[[]string](p, `[...document.querySelectorAll(".short td~td")].filter(c => {
			const r = document.createRange();
			r.selectNodeContents(c);
			return new Set([...r.getClientRects()].map(x => x.top)).size != 1;
		}).map(c => c.textContent)`); len(bad) > 0 {
			t.Errorf("%s: broken into lines: %q", x.name, bad)
		}
		p.Quiet(browsertest.FileOnly())
		p.Screenshot(x.name, true)
	}
}
