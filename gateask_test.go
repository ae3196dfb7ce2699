package carboy

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/work"
)

// refused is a project with a verdict that says no, by policy alone: no bottle runs.
func refused(t *testing.T) (*project, *judge.Judged) {
	t.Helper()
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	p.put("b", "\x00")
	p.commit()
	return p, p.judge(judge.GateOptions{Base: "HEAD^"})
}

const whyNot = "the binary is a test's fixture"

// TestH2Override: a verdict is set aside by who answers at the queue, for that verdict
// and no other, once; whatever else is tried leaves it as it was.
func TestH2Override(t *testing.T) {
	ctx := context.Background()
	p, j := refused(t)
	// As an ordinary one: somebody elsewhere is shown what failed, and approves.
	var shown supervise.GateOverride
	p.answering(func(x supervise.Proposal) supervise.Reply {
		shown, _ = x.Payload.(supervise.GateOverride)
		if shown.Reason != whyNot {
			return supervise.Reply{Verdict: supervise.Rejected, Note: "no"}
		}
		return supervise.Reply{Verdict: supervise.Approved, Note: "seen"}
	})
	var no *ask.NotApprovedError
	if _, err := p.c.OverrideVerdict(ctx, j.ID, "because I say so", ask.Options{}); !errors.As(err, &no) || no.Verdict != "rejected" || no.Note != "no" {
		t.Fatalf("a refusal: %v", err)
	}
	if v, _, err := p.c.Verdict(ctx, j.ID); err != nil || v.Allowed() {
		t.Fatalf("a refused override let the change go on: %v", err)
	}
	v, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, ask.Options{})
	if err != nil || !v.Allowed() || v.Outcome != gate.Final || v.Override.Proposal == "" || len(v.Override.Digest) != 64 || !strings.Contains(v.Override.By, "(cli)") {
		t.Fatalf("%+v %v", v, err)
	}
	if shown.Verdict == "" || shown.Repository != p.ws || shown.Commit != j.Change.Commit || shown.Tree != j.Change.Digest || !strings.Contains(strings.Join(shown.Failures, "\n"), "policy: final") {
		t.Errorf("shown: %+v", shown)
	}
	var out bytes.Buffer
	if _, err := p.c.AttestVerdict(ctx, j.ID, &out); err != nil {
		t.Error(err)
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
	// The record names what was approved.
	named := false
	err = p.c.judge.AuditRecords(func(r *audit.Record) {
		for _, d := range r.Digests {
			named = named || r.Kind == audit.GateOverride && d.Of == "proposal" && d.SHA256 == v.Override.Digest
		}
	})
	if err != nil || !named {
		t.Errorf("no record of the override names the proposal: %v", err)
	}
}

// TestH1OverrideForged: nobody's answer, a file of the change's, an old approval, one
// of another verdict: none sets a verdict aside.
func TestH1OverrideForged(t *testing.T) {
	ctx := context.Background()
	p, j := refused(t)
	stands := func(what string) {
		t.Helper()
		if v, _, err := p.c.Verdict(ctx, j.ID); err == nil && v.Allowed() {
			t.Errorf("%s: the change goes on", what)
		}
	}
	var no *ask.NotApprovedError
	if _, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, ask.Options{Timeout: 20 * time.Millisecond}); !errors.As(err, &no) || no.Verdict != "expired" {
		t.Errorf("nobody answered: %v", err)
	}
	stands("nobody answered")
	// A rule can't, whatever it says.
	rules := filepath.Join(filepath.Dir(p.ws), "rules.yaml")
	if err := os.WriteFile(rules, []byte("rules:\n  - {kind: gate-override, answer: approve}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, ask.Options{Timeout: 20 * time.Millisecond, Policy: rules}); err == nil || !strings.Contains(err.Error(), "people only") {
		t.Errorf("a rule: %v", err)
	}
	stands("a rule")
	// One that lies in the repository is nobody's.
	p.put("rules.yaml", "rules:\n  - {kind: gate-attempts, repository: "+p.ws+", answer: approve}\n")
	if _, err := p.c.OverrideVerdict(ctx, j.ID, whyNot, ask.Options{Timeout: 20 * time.Millisecond, Policy: filepath.Join(p.ws, "rules.yaml")}); err == nil || !strings.Contains(err.Error(), "lies in") {
		t.Errorf("a rule of the repository: %v", err)
	}
	// Files of the change that say so.
	b := mustEncode(t, &gate.Verdict{Override: &gate.Override{By: "root", Reason: whyNot}})
	for _, name := range []string{".carboy/override.json", ".carboy/verdict.json", ".carboy/gate-override.json"} {
		p.put(name, string(b))
	}
	p.commit()
	if again := p.judge(judge.GateOptions{Base: "HEAD^^", Again: true}); again.Allowed() {
		t.Error("a file of the change overrides its verdict")
	}
	// The verdict's own file, edited.
	file := filepath.Join(j.Dir, judge.VerdictFile)
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	v := *j.Verdict
	v.Override = &gate.Override{By: "root", At: time.Now(), Reason: whyNot, Proposal: "01k", Digest: strings.Repeat("a", 64)}
	if err := os.WriteFile(file, mustEncode(t, &v), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.c.Verdict(ctx, j.ID); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("an override that is not on record counts: %v", err)
	}
	if err := os.WriteFile(file, was, 0o600); err != nil {
		t.Fatal(err)
	}
	// An approval, replayed: for another verdict, and for this one once it was judged anew.
	q, err := p.c.Proposals()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	a, err := q.Asker(supervise.AskerOptions{Bottle: judge.GateAsker})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	digest, err := j.Digest()
	if err != nil {
		t.Fatal(err)
	}
	approve := func(id, digest string) supervise.Approval[supervise.GateOverride] {
		t.Helper()
		tk, err := a.Propose(ctx, supervise.GateOverride{Gate: "g", Repository: p.ws, Verdict: digest, ID: id, Reason: whyNot}, supervise.Draft{})
		if err != nil {
			t.Fatal(err)
		}
		x := tk.Proposal()
		if _, err := q.Answer(ctx, supervise.Reply{ID: x.ID, Digest: x.Digest, Verdict: supervise.Approved, Channel: supervise.ChannelCLI}); err != nil {
			t.Fatal(err)
		}
		o, err := tk.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ok, _ := supervise.ApprovalOf[supervise.GateOverride](o)
		return ok
	}
	for what, ok := range map[string]supervise.Approval[supervise.GateOverride]{
		"another verdict's digest": approve(j.ID, strings.Repeat("0", 64)),
		"no approval at all":       {},
	} {
		if _, err := p.c.judge.Override(ctx, ok); err == nil {
			t.Errorf("%s was carried out", what)
		}
		stands(what)
	}
	old := approve(j.ID, digest)
	if _, err := p.c.judge.Override(ctx, old); err != nil {
		t.Fatalf("its neighbour, for this verdict: %v", err)
	}
	if _, err := p.c.judge.Override(ctx, old); err == nil {
		t.Error("an approval was carried out twice")
	}
}

// sshKey writes a new key, and gives its file and its line for allowed_signers.
func (w *world) sshKey(name, options string) (file, line string) {
	w.t.Helper()
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		w.t.Fatal(err)
	}
	file = filepath.Join(w.t.TempDir(), "key")
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		w.t.Fatal(err)
	}
	k, err := ssh.NewPublicKey(pub)
	if err != nil {
		w.t.Fatal(err)
	}
	return file, strings.Join(strings.Fields(name+" "+options+" "+string(ssh.MarshalAuthorizedKey(k))), " ") + "\n"
}

// signers writes the operator's allowed_signers.
func (w *world) signers(lines ...string) {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.ws), ".config/carboy")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, approval.SignersFile), []byte(strings.Join(lines, "")), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

// drifted is a project whose gate has a trace of a script, and that script's baseline,
// made without a bottle: of entries that a test writes.
func drifted(t *testing.T) *project {
	return newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
}

// seen has a verdict say that its phases did something.
func (p *project) seen(execs ...string) *judge.Judged {
	p.t.Helper()
	j := p.judge(judge.GateOptions{Base: "HEAD", Change: "HEAD", Again: true})
	b := gate.Baseline{Entries: []*gate.Entry{{Signal: "tests", Image: "host", Lockfiles: "l", Execs: execs, Reads: []string{"/usr"}}}}
	enc, err := b.Encode()
	if err != nil {
		p.t.Fatal(err)
	}
	j.Proposed = judge.HexSum(enc)
	if err := errors.Join(os.WriteFile(filepath.Join(j.Dir, judge.ProposedFile), enc, 0o600), p.c.judge.RecordVerdict(context.Background(), j.Verdict)); err != nil {
		p.t.Fatal(err)
	}
	return j
}

// inForce is the baseline that would judge, and why it would not.
func (p *project) inForce(rev string) (*gate.Baseline, string, string) {
	p.t.Helper()
	w, err := p.c.judge.GateWork(context.Background(), &judge.GateOptions{Dir: p.ws, Base: rev, Change: "."})
	if err != nil {
		p.t.Fatal(err)
	}
	defer w.Close()
	return w.G.Baseline, w.G.BaselineBy, w.G.BaselineWhy
}

// TestT3SignedBaseline: where the operator says who signs baselines, the base's counts as
// they signed it, and in no other form; ssh-keygen says the same.
func TestT3SignedBaseline(t *testing.T) {
	ctx := context.Background()
	p := drifted(t)
	me, mine := p.sshKey("me@example.org", `namespaces="carboy-gate@carboy.dev"`)
	other, others := p.sshKey("other@example.org", `namespaces="carboy-gate@carboy.dev"`)
	ship, ships := p.sshKey("ship@example.org", `namespaces="carboy-ship@carboy.dev"`)
	stranger, _ := p.sshKey("me@example.org", "")
	late, lates := p.sshKey("late@example.org", `namespaces="carboy-gate@carboy.dev",valid-before="20200101"`)
	p.signers(mine, ships, lates)

	var bad *fault.OptionError
	j := p.seen("/bin/sh")
	for what, o := range map[string]judge.AcceptOptions{
		"no key":                   {Options: saysYes},
		"unsigned":                 unsigned,
		"a key of nobody's":        {Options: saysYes, As: "me@example.org", Key: stranger},
		"a key under another name": {Options: saysYes, As: "ship@example.org", Key: me},
		"a key for plans":          {Options: saysYes, As: "ship@example.org", Key: ship},
		"a key of before":          {Options: saysYes, As: "late@example.org", Key: late},
		"a key that is not listed": {Options: saysYes, As: "other@example.org", Key: other},
	} {
		if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, o); !errors.As(err, &bad) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(filepath.Join(p.ws, gate.BaselinePath)); err == nil {
			t.Fatalf("%s: the baseline was written", what)
		}
	}
	o := judge.AcceptOptions{Options: saysYes, As: "me@example.org", Key: me}
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, o); err != nil {
		t.Fatal(err)
	}
	good := p.commit()
	b, by, why := p.inForce(good)
	if b == nil || !strings.HasPrefix(by, "me@example.org with SHA256:") || why != "" || b.Accepted.Verdict == "" {
		t.Fatalf("it does not count: %+v %q %q", b, by, why)
	}
	if v := p.judge(judge.GateOptions{Base: good, Change: good, Again: true}); v.BaselineBy != by {
		t.Errorf("the verdict names %q", v.BaselineBy)
	}
	text, sig := p.get(gate.BaselinePath), p.get(gate.SignaturePath)
	t.Run("ssh-keygen", func(t *testing.T) {
		cmd := exec.Command(testenv.Need(t, "ssh-keygen", "apt-get install openssh-client"), "-Y", "verify", "-f", filepath.Join(filepath.Dir(p.ws), ".config/carboy", approval.SignersFile), "-I", "me@example.org", "-n", gate.Namespace, "-s", filepath.Join(p.ws, gate.SignaturePath))
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("ssh-keygen: %v %s", err, out)
		}
	})
	resign := func(key, as, namespace, text string) string {
		t.Helper()
		raw, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ssh.ParsePrivateKey(raw)
		if err != nil {
			t.Fatal(err)
		}
		out, err := approval.SignText([]byte(text), namespace, s)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	edited := strings.Replace(text, "/bin/sh", "/bin/no", 1)
	as := func(name string) string { return strings.Replace(text, "me@example.org", name, 1) }
	for what, x := range map[string][2]string{
		"edited after signing":          {edited, sig},
		"a byte of white space":         {text + "\n", sig},
		"no signature":                  {text, ""},
		"a broken signature":            {text, strings.Replace(sig, "A", "B", 5)},
		"signed by a stranger":          {edited, resign(stranger, "", gate.Namespace, edited)},
		"signed by somebody not listed": {as("other@example.org"), resign(other, "", gate.Namespace, as("other@example.org"))},
		"signed in another's name":      {as("ship@example.org"), resign(me, "", gate.Namespace, as("ship@example.org"))},
		"signed for plans":              {edited, resign(me, "", approval.Namespace, edited)},
		"signed by a key for plans":     {as("ship@example.org"), resign(ship, "", gate.Namespace, as("ship@example.org"))},
		"signed by a key of before":     {as("late@example.org"), resign(late, "", gate.Namespace, as("late@example.org"))},
		"signed by nobody":              {strings.Replace(text, `"by": "me@example.org"`, `"by": ""`, 1), sig},
	} {
		p.put(gate.BaselinePath, x[0])
		p.put(gate.SignaturePath, x[1])
		if x[1] == "" {
			os.Remove(filepath.Join(p.ws, gate.SignaturePath))
		}
		if b, by, why := p.inForce(p.commit()); b != nil || by != "" || why == "" {
			t.Errorf("%s: it counts, by %q", what, by)
		}
	}
	// Its neighbours: signed anew, also by another who is allowed by then.
	p.put(gate.BaselinePath, text)
	p.put(gate.SignaturePath, resign(me, "", gate.Namespace, text))
	if b, _, why := p.inForce(p.commit()); b == nil {
		t.Errorf("signed again: %s", why)
	}
	p.signers(mine, others)
	p.put(gate.BaselinePath, as("other@example.org"))
	p.put(gate.SignaturePath, resign(other, "", gate.Namespace, as("other@example.org")))
	if b, by, why := p.inForce(p.commit()); b == nil || !strings.HasPrefix(by, "other@") {
		t.Errorf("signed by another: %s", why)
	}
	// So it is with one beside a catalog of the user's own.
	own := filepath.Join(filepath.Dir(p.ws), "own.yaml")
	side := strings.TrimSuffix(own, ".yaml") + "-baseline.json"
	beside := func(text, sig string) (*gate.Baseline, string, string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(own, []byte("version: 1\nsignals:\n  - {name: policy, kind: policy}\n"), 0o600), os.WriteFile(side, []byte(text), 0o600), os.WriteFile(side+".sig", []byte(sig), 0o600)); err != nil {
			t.Fatal(err)
		}
		w, err := p.c.judge.GateWork(ctx, &judge.GateOptions{Dir: p.ws, Base: good, Change: ".", Catalog: own})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return w.G.Baseline, w.G.BaselineBy, w.G.BaselineWhy
	}
	if b, by, why := beside(text, sig); b == nil || !strings.HasPrefix(by, "me@") {
		t.Errorf("beside the user's catalog, signed: %q %s", by, why)
	}
	for what, x := range map[string][2]string{"unsigned": {text, ""}, "edited": {edited, sig}, "by a stranger": {edited, resign(stranger, "", gate.Namespace, edited)}} {
		if b, by, why := beside(x[0], x[1]); b != nil || by != "" || why == "" {
			t.Errorf("beside the user's catalog, %s: it counts, by %q", what, by)
		}
	}
	// Who is taken off the list has signed nothing any more.
	p.signers(others)
	if b, _, why := p.inForce(good); b != nil || why == "" {
		t.Error("a signature counts of somebody who was taken off the list")
	}
	// A list that anybody can write to, or that can't be read, lets nothing through.
	list := filepath.Join(filepath.Dir(p.ws), ".config/carboy", approval.SignersFile)
	if err := os.Chmod(list, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.judge.GateWork(ctx, &judge.GateOptions{Dir: p.ws, Base: good, Change: "."}); err == nil {
		t.Error("a list that others can write to says who signs")
	}
}

func (p *project) get(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.ws, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// TestT3SmuggledBaseline: what lies in the work tree is not what a person is shown the
// difference to: what an agent put there is shown as new, or left out; and what was
// shown is what is written.
func TestT3SmuggledBaseline(t *testing.T) {
	ctx := context.Background()
	p := drifted(t)
	j := p.seen("/bin/sh")
	var shown supervise.BaselineUpdate
	asked := judge.AcceptOptions{Unsigned: true, Options: ask.Options{Here: func(_ context.Context, e ProposalEntry) (bool, string, error) {
		shown, _ = e.Proposal.Payload.(supervise.BaselineUpdate)
		return true, "", nil
	}}}
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, asked); err != nil {
		t.Fatal(err)
	}
	if shown.Before != "" || !strings.Contains(shown.After, `tests executes "/bin/sh"`) || shown.To != judge.HexSum([]byte(p.get(gate.BaselinePath))) {
		t.Errorf("shown: %+v", shown)
	}
	// What was accepted and not committed yet stands.
	j = p.seen("/bin/sh", "/bin/tar")
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, asked); err != nil || !strings.Contains(shown.Before, "/bin/sh") || strings.Contains(shown.Before, "/bin/tar") {
		t.Errorf("a second one: %v, before %q", err, shown.Before)
	}
	accepted := p.get(gate.BaselinePath)
	p.commit()
	// The agent's run landed an entry of its own.
	p.put(gate.BaselinePath, strings.Replace(accepted, "/bin/tar", "/bin/evil", 1))
	j = p.seen("/bin/sh", "/bin/tar", "/bin/ls")
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, asked); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(shown.Before+shown.After+p.get(gate.BaselinePath), "evil") {
		t.Error("what the agent put there was taken over")
	}
	// An older one that was accepted once is no more than a file.
	newest := p.get(gate.BaselinePath)
	p.put(gate.BaselinePath, accepted)
	if b, err := p.c.judge.Standing(ctx, p.ws); err != nil || b.Digest() != judge.HexSum([]byte(accepted)) {
		t.Errorf("HEAD's is not what stands: %v", err)
	}
	p.put(gate.BaselinePath, newest)
	if b, err := p.c.judge.Standing(ctx, p.ws); err != nil || b.Digest() != judge.HexSum([]byte(newest)) {
		t.Errorf("what was accepted last does not stand: %v", err)
	}
	// Signing shows all that is new against what stands.
	p.commit()
	p.put(gate.BaselinePath, strings.Replace(newest, "/bin/tar", "/bin/evil", 1))
	if _, err := p.c.SignBaseline(ctx, p.ws, asked); err != nil || !strings.Contains(shown.After, "evil") || strings.Contains(shown.Before, "evil") {
		t.Errorf("signed without being shown: %v", err)
	}
	// A refusal, and a link out of the repository, write nothing.
	p.git("checkout", "-q", "--", ".")
	no := judge.AcceptOptions{Unsigned: true, Options: ask.Options{Here: func(context.Context, ProposalEntry) (bool, string, error) { return false, "", nil }}}
	j = p.seen("/bin/cat")
	was := p.get(gate.BaselinePath)
	var refused *ask.NotApprovedError
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, no); !errors.As(err, &refused) || p.get(gate.BaselinePath) != was {
		t.Errorf("refused: %v", err)
	}
	out := t.TempDir()
	if err := errors.Join(os.RemoveAll(filepath.Join(p.ws, ".carboy")), os.Symlink(out, filepath.Join(p.ws, ".carboy"))); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.AcceptBaseline(ctx, p.ws, j.ID, asked); err == nil {
		t.Error("it was written through a link")
	}
	if list, err := os.ReadDir(out); err != nil || len(list) > 0 {
		t.Errorf("outside of the repository: %v %v", list, err)
	}
	// A verdict of another repository.
	q := drifted(t)
	q.c.Close()
	q.c = p.c
	if _, err := p.c.AcceptBaseline(ctx, q.ws, j.ID, asked); !errors.Is(err, judge.ErrBaseline) {
		t.Errorf("a verdict of another repository: %v", err)
	}
}

// TestLostTestsAccepted: a test that a change removes on purpose is let go by a person,
// by name, in the base; another one, lost beside it, still fails.
func TestLostTestsAccepted(t *testing.T) {
	ctx := context.Background()
	files := map[string]string{}
	for k, v := range projectFiles {
		files[k] = v
	}
	files[gate.CatalogPath] = "version: 1\nsignals:\n  - {name: tests, kind: tests, format: junit, command: [sh, ./check.sh], timeout: 20s}\n"
	p := newProject(t, files)
	base := p.git("rev-parse", "HEAD")
	p.git("checkout", "-q", "-b", "work")
	os.Remove(filepath.Join(p.ws, "t_other.sh"))
	p.commit()
	j := p.judge(judge.GateOptions{Base: base})
	if lost := j.LostTests(); len(lost) != 1 || !slices.Equal(lost["tests"], []string{"s::t_other.sh"}) {
		t.Fatalf("%v\n%v", lost, notPassed(j.Verdict))
	}
	if _, err := p.c.AcceptLostTests(ctx, p.ws, j.ID, []string{"s::t_value.sh"}, unsigned); !errors.Is(err, judge.ErrBaseline) {
		t.Errorf("a test that is not lost: %v", err)
	}
	var kind supervise.Kind
	o := judge.AcceptOptions{Unsigned: true, Options: ask.Options{Here: func(_ context.Context, e ProposalEntry) (bool, string, error) {
		kind = e.Proposal.Kind
		return true, "", nil
	}}}
	p.git("checkout", "-q", "main")
	if _, err := p.c.AcceptLostTests(ctx, p.ws, j.ID, nil, o); err != nil || kind != supervise.KindTestsGone {
		t.Fatalf("%s %v", kind, err)
	}
	p.commit()
	p.git("checkout", "-q", "work")
	p.git("rebase", "-q", "main")
	if j := p.judge(judge.GateOptions{Base: "main"}); j.Outcome != gate.Passed {
		t.Errorf("an accepted one: %v", notPassed(j.Verdict))
	}
	// As the change has it, it says nothing: the base's counts.
	p.git("checkout", "-q", "main")
	p.git("checkout", "-q", "-b", "sly", base)
	os.Remove(filepath.Join(p.ws, "t_other.sh"))
	p.put(gate.BaselinePath, p.git("show", "main:"+gate.BaselinePath)+"\n")
	p.commit()
	if j := p.judge(judge.GateOptions{Base: base}); j.Outcome == gate.Passed {
		t.Error("the change let its own tests go")
	}
}

// TestWorkAsksForMore: attempts beyond those of the catalog are a person's to grant, and
// stand in the ledger and the verdict; nobody else's word makes more.
func TestWorkAsksForMore(t *testing.T) {
	ctx := context.Background()
	// It passes in its second attempt, of which the catalog gives one.
	files := map[string]string{"check.sh": needsFeedback["check.sh"], gate.CatalogPath: "version: 1\nattempts: 1\n" + strings.TrimPrefix(needsFeedback[gate.CatalogPath], "version: 1\n")}
	p := worker(t, readsFeedback, files)
	var out bytes.Buffer
	no := ask.Options{Here: func(context.Context, ProposalEntry) (bool, string, error) { return false, "not today", nil }}
	w, err := p.c.Work(ctx, work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Stdout: &out, Stderr: &out, MaxAttempts: 4, People: no})
	if err != nil || w.Outcome != gate.Escalated || len(w.Attempts) != 1 || !strings.Contains(w.Why, "not today") {
		t.Fatalf("%+v %v\n%s", w, err, out.String())
	}
	// Who asks for no more than there were is told that nobody was asked.
	if w := p.work(work.WorkOptions{Continue: w.ID, MaxAttempts: 1, People: no}); w.Outcome != gate.Escalated || !strings.Contains(w.Why, "--max-attempts 1 is not above the 1") {
		t.Errorf("%+v", w)
	}
	if a, err := p.c.WorkAccount(ctx, w.ID); err != nil || !a.Spent || a.Limit != 1 {
		t.Errorf("%+v %v", a, err)
	}
	var asked supervise.GateAttempts
	yes := ask.Options{Here: func(_ context.Context, e ProposalEntry) (bool, string, error) {
		asked, _ = e.Proposal.Payload.(supervise.GateAttempts)
		return true, "", nil
	}}
	w, err = p.c.Work(ctx, work.WorkOptions{Continue: w.ID, Stdout: &out, Stderr: &out, MaxAttempts: 2, People: yes})
	if err != nil || w.Outcome != gate.Passed || len(w.Attempts) != 2 {
		t.Fatalf("%+v %v\n%s", w, err, out.String())
	}
	if asked.More != 1 || asked.Made != 1 || asked.Work != w.ID || len(asked.Failures) == 0 {
		t.Errorf("asked %+v", asked)
	}
	if g := w.Verdict.Granted; len(g) != 1 || g[0].More != 1 || g[0].Digest == "" || g[0].Work != w.ID {
		t.Errorf("the verdict says %+v", g)
	}
	if a, err := p.c.WorkAccount(ctx, w.ID); err != nil || a.Spent || a.Limit != 2 || a.Number != 2 {
		t.Errorf("%+v %v", a, err)
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
	// A grant that somebody writes into the ledger is none.
	dir := p.c.judge.GateDir("work", w.ID)
	steps, err := filepath.Glob(dir + "/attempt-*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range steps {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(`"more": 1`)) {
			if err := os.WriteFile(f, bytes.Replace(b, []byte(`"more": 1`), []byte(`"more": 9`), 1), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := p.c.Work(ctx, work.WorkOptions{Continue: w.ID, MaxAttempts: 9, People: yes}); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("a forged grant: %v", err)
	}
	var bad *fault.OptionError
	if _, err := p.c.Work(ctx, work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, MaxAttempts: 14}); !errors.As(err, &bad) {
		t.Errorf("too many: %v", err)
	}
}
