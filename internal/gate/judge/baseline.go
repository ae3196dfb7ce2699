package judge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/rootfile"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// A person changes a baseline: they approve it at the queue, sign it with their SSH key,
// and commit it. Only the base's baseline is in force, and only if its signature is valid.

// ErrBaseline means that a baseline can't be changed.
var ErrBaseline = errors.New("the baseline stays as it is")

// AcceptOptions sets who signs a baseline, and how they are asked.
type AcceptOptions struct {
	ask.Options
	// As is the signer's name in the operator's allowed_signers, and Key the file of an
	// SSH key: a private one, or a public one whose other half the agent holds.
	As, Key string
	// Unsigned writes the baseline without a signature. That needs an allowed_signers
	// that names nobody for gates.
	Unsigned bool
	// Changed makes AcceptLostTests accept the tests that the change edits, instead of
	// those that are lost.
	Changed bool
}

// gateSigners reads who may sign baselines from the operator's file. It returns nil if that
// names nobody: then whoever commits to the base decides.
func (c *Judge) gateSigners() (*approval.Signers, error) {
	conf, err := store.ConfigDir(c.Opened.Config, c.Env)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(conf, approval.SignersFile)
	b, err := hosts.ReadTrusted(name, 1<<20)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s, err := approval.ParseSigners(name, b)
	if err != nil || !s.Allow(gate.Namespace) {
		return nil, err
	}
	return s, nil
}

// signedBy returns the signer of a baseline, or the reason why the signature is not valid.
func signedBy(s *approval.Signers, b *gate.Baseline, text, sig []byte) (by, why string) {
	if s == nil {
		return "", ""
	}
	if b.Accepted == nil || b.Accepted.By == "" || len(sig) == 0 {
		return "", "it is not signed, which " + approval.SignersFile + " asks for: carboy gate baseline sign"
	}
	key, err := s.Signed(approval.Signed{Statement: text, Signature: sig}, gate.Namespace, b.Accepted.By, b.Accepted.At, time.Now())
	if err != nil {
		return "", err.Error()
	}
	return b.Accepted.By + " with " + key, ""
}

// baselineOf returns the baseline of a tree, as baselineIn does.
func (c *Judge) baselineOf(ctx context.Context, t *gate.Tree) (b *gate.Baseline, by, why string, err error) {
	return c.baselineIn(gate.BaselinePath, func(name string) ([]byte, error) { return t.Read(ctx, name) })
}

// baselineIn reads the baseline in a file and its signature beside it. by names the
// signer. If the signature is needed and not valid, b is nil and why says so.
func (c *Judge) baselineIn(name string, read func(string) ([]byte, error)) (b *gate.Baseline, by, why string, err error) {
	text, err := read(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", "", nil
	}
	if err == nil {
		b, err = gate.ParseBaseline(text)
	}
	if err != nil {
		return nil, "", "", err
	}
	signers, err := c.gateSigners()
	if err != nil {
		return nil, "", "", err
	}
	sig, err := read(name + gate.SignatureSuffix)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", "", err
	}
	if by, why = signedBy(signers, b, text, sig); why != "" {
		b = nil
	}
	return b, by, why, nil
}

// Standing returns the baseline that a new one starts from: the work tree's, if that is
// the one accepted here last, else HEAD's, if its signature is valid. Anybody could have
// written another one in the work tree.
func (c *Judge) Standing(ctx context.Context, dir string) (*gate.Baseline, error) {
	here, err := readBaseline(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if here != nil {
		last := ""
		err := c.AuditRecords(func(r *audit.Record) {
			for _, d := range r.Digests {
				if r.Kind == audit.GateBaseline && d.Of == "baseline" && r.Text == dir {
					last = d.SHA256
				}
			}
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if last == here.Digest() {
			return here, nil
		}
	}
	x, err := hostexec.New(hostexec.Options{Untrusted: []string{dir}})
	if err != nil {
		return nil, err
	}
	defer x.Close(ctx)
	t, err := (&gate.Repository{Dir: dir, Runner: x}).Tree(ctx, "HEAD")
	if errors.Is(err, gate.ErrNoRevision) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, _, _, err := c.baselineOf(ctx, t)
	return b, err
}

// readBaseline reads the baseline of a work tree.
func readBaseline(dir string) (*gate.Baseline, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	b, err := root.ReadFile(gate.BaselinePath)
	if err != nil {
		return nil, err
	}
	return gate.ParseBaseline(b)
}

// newBaseline is a baseline that waits for approval.
type newBaseline struct {
	c       *Judge
	dir     string
	verdict string // the id of the verdict that it follows; empty: none
	digest  string // of the verdict
	was     *gate.Baseline
	text    []byte
	as, who string
	signer  ssh.Signer
	done    func()
}

// nextBaseline prepares a change of dir's baseline; next returns the new one, made from
// the standing one.
func (c *Judge) nextBaseline(ctx context.Context, dir string, v *gate.Verdict, o AcceptOptions, next func(was *gate.Baseline) (*gate.Baseline, error)) (_ *newBaseline, err error) {
	n := &newBaseline{c: c, done: func() {}, who: "nobody: whoever commits it decides"}
	ws, err := store.ResolveWorkspace(dir)
	if err != nil {
		return nil, err
	}
	n.dir = string(ws.Path)
	if v != nil {
		n.verdict = v.ID
		if n.digest, err = v.Digest(); err != nil {
			return nil, err
		}
		if v.Repository != "" && v.Repository != n.dir {
			return nil, fmt.Errorf("verdict %s is of %s: %w", v.ID, v.Repository, ErrBaseline)
		}
	}
	if err := n.findSigner(ctx, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.done()
		}
	}()
	if n.was, err = c.Standing(ctx, n.dir); err != nil {
		return nil, err
	}
	b, err := next(n.was)
	if err != nil {
		return nil, err
	}
	b.Accepted = &gate.Accepted{By: n.as, At: time.Now().UTC().Truncate(time.Second), Verdict: n.digest, Previous: n.was.Digest()}
	n.text, err = b.Encode()
	return n, err
}

// findSigner opens the key that signs, and checks that its signature will count.
func (n *newBaseline) findSigner(ctx context.Context, o AcceptOptions) error {
	signers, err := n.c.gateSigners()
	if err != nil {
		return err
	}
	switch {
	case o.Unsigned && o.Key+o.As != "":
		return &fault.OptionError{Option: "--unsigned", Reason: "does not go with --key and --as", Advice: "say one or the other"}
	case o.Unsigned && signers != nil:
		return &fault.OptionError{Option: "--unsigned", Reason: "would not count: " + approval.SignersFile + " says who signs baselines", Advice: "sign it, with --as NAME --key FILE"}
	case o.Unsigned:
		return nil
	case o.Key == "" || !approval.ValidName(o.As):
		return &fault.OptionError{Option: "--key", Reason: "and --as say who signs the baseline, and one is missing or no name", Advice: "say --as me@example.org --key ~/.ssh/id_ed25519 (or its .pub, with an agent), or --unsigned to leave it to whoever commits"}
	}
	k := remote.Keys{AgentSocket: n.c.Env("SSH_AUTH_SOCK")}
	if n.signer, n.done, err = k.Signer(ctx, o.Key); err != nil {
		n.done = func() {}
		return err
	}
	n.as = o.As
	n.who = o.As + " with " + ssh.FingerprintSHA256(n.signer.PublicKey())
	if signers == nil {
		return nil
	}
	// Check this before anybody is asked: the signature would not count.
	now := time.Now()
	if err := signers.May(gate.Namespace, n.as, n.signer.PublicKey(), now, now); err != nil {
		n.done()
		return &fault.OptionError{Option: "--key", Value: n.who, Reason: err.Error(), Advice: "the operator's " + approval.SignersFile + " says who may sign for " + gate.Namespace}
	}
	return nil
}

// write records and writes the baseline after its approval, if nothing has changed since.
func (n *newBaseline) write(ctx context.Context, a supervise.Outcome) error {
	if n.verdict != "" {
		v, _, err := n.c.Verdict(ctx, n.verdict)
		if err != nil {
			return err
		}
		if d, err := v.Digest(); err != nil || d != n.digest {
			return errors.Join(err, fmt.Errorf("verdict %s is not the one that was shown: %w", n.verdict, ErrLedger))
		}
	}
	if now, err := n.c.Standing(ctx, n.dir); err != nil || now.Digest() != n.was.Digest() {
		return errors.Join(err, fmt.Errorf("another baseline stands since this was shown: %w", ErrBaseline))
	}
	var sig []byte
	var err error
	if n.signer != nil {
		if sig, err = approval.SignText(n.text, gate.Namespace, n.signer); err != nil {
			return err
		}
	}
	none := new(secret.Redactor)
	_, err = n.c.Audit.Append(ctx, audit.Event{
		Kind: audit.GateBaseline, Actor: audit.ByUser(a.Answer.By.UID), Decision: audit.Allowed, Subject: audit.Redact(none, n.verdict), Rule: audit.Redact(none, n.who),
		Digests: []audit.Digest{{Of: "baseline", Sum: sha256.Sum256(n.text)}, {Of: "proposal", Sum: a.Proposal.Digest}}, Text: audit.Redact(none, n.dir), Sync: true,
	})
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(n.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(gate.BaselinePath), 0o755); err != nil {
		return err
	}
	// The signature goes first: if the process dies here, it does not match the old text,
	// which is noticed; a missing signature might not be.
	if err := replace(root, gate.SignaturePath, sig); err != nil {
		return err
	}
	return replace(root, gate.BaselinePath, n.text)
}

// replace replaces a file atomically, or removes it if b is nil.
func replace(root *os.Root, name string, b []byte) error {
	if b == nil {
		if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return rootfile.Replace(root, name, func(tmp string) error {
		f, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(b)
		return errors.Join(err, f.Sync(), f.Close())
	})
}

// beforeAfter returns both baselines as the queue shows them: in full or, if that is too
// long, without the lines that both have.
func (n *newBaseline) beforeAfter() (before, after string, err error) {
	next, err := gate.ParseBaseline(n.text)
	if err != nil {
		return "", "", err
	}
	a, b := n.was.Lines(), next.Lines()
	const most = supervise.MaxPayload / 3
	if len(strings.Join(a, "\n"))+len(strings.Join(b, "\n")) > most {
		both := map[string]bool{}
		for _, l := range a {
			both[l] = true
		}
		only := slices.DeleteFunc(slices.Clone(b), func(l string) bool { return both[l] })
		both = map[string]bool{}
		for _, l := range b {
			both[l] = true
		}
		a, b = slices.DeleteFunc(slices.Clone(a), func(l string) bool { return both[l] }), only
	}
	before, after = strings.Join(a, "\n"), strings.Join(b, "\n")
	if len(before)+len(after) > most {
		return "", "", fmt.Errorf("%d bytes are new, more than a person can be shown: look at %s yourself, and commit it: %w", len(before)+len(after), gate.BaselinePath, ErrBaseline)
	}
	return before, after, nil
}

func (n *newBaseline) ask(ctx context.Context, name, tool string, run store.ID, o AcceptOptions) (string, error) {
	defer n.done()
	before, after, err := n.beforeAfter()
	if err != nil {
		return "", err
	}
	if before == after {
		return "", fmt.Errorf("nothing is new: %w", ErrBaseline)
	}
	p := supervise.BaselineUpdate{
		Gate: fault.Fit(name, 256), Repository: fault.Fit(n.dir, 4096), File: gate.BaselinePath, Verdict: n.digest, From: n.was.Digest(), To: HexSum(n.text),
		Signer: n.who, Before: before, After: after,
	}
	err = ask.ForApproval(ctx, n.c.Host, GateAsker, run, p, tool, o.Options, func(ok supervise.Approval[supervise.BaselineUpdate]) error {
		return n.write(ctx, ok.Outcome())
	})
	return gate.BaselinePath, err
}

// AcceptBaseline adds what the phases of a verdict did to the baseline of a work tree, if
// a person approves that at the queue, and signs the result. The baseline is in force once
// it is committed to the base. AcceptBaseline returns its path in the work tree.
func (c *Judge) AcceptBaseline(ctx context.Context, dir, ref string, o AcceptOptions) (string, error) {
	p, v, err := c.ProposedBaseline(ctx, ref)
	if err != nil {
		return "", err
	}
	n, err := c.nextBaseline(ctx, dir, v, o, func(was *gate.Baseline) (*gate.Baseline, error) { return gate.MergeBaselines(was, p), nil })
	if err != nil {
		return "", err
	}
	return n.ask(ctx, v.Catalog, "carboy gate baseline accept", runOf(v), o)
}

// SignBaseline signs the baseline of a work tree, if a person approves what is new in it.
func (c *Judge) SignBaseline(ctx context.Context, dir string, o AcceptOptions) (string, error) {
	n, err := c.nextBaseline(ctx, dir, nil, o, func(*gate.Baseline) (*gate.Baseline, error) { return readBaseline(dir) })
	if err != nil {
		return "", err
	}
	return n.ask(ctx, gate.CatalogPath, "carboy gate baseline sign", "", o)
}

// AcceptLostTests allows, in the baseline of a work tree, the removal of tests that a
// verdict reports as lost, if a person approves that. An empty list means all of them. With
// o.Changed it allows tests to ask for something else, as the judged change edits them.
func (c *Judge) AcceptLostTests(ctx context.Context, dir, ref string, tests []string, o AcceptOptions) (string, error) {
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	lost, files := v.LostTests(), map[string]string{}
	if o.Changed {
		lost = map[string][]string{}
		for name, x := range v.ChangedTests() {
			lost[name], files[name] = x.Tests, x.Files
		}
	}
	var signals []string
	for name, list := range lost {
		if len(tests) > 0 {
			list = slices.DeleteFunc(slices.Clone(list), func(id string) bool { return !slices.Contains(tests, id) })
			lost[name] = list
		}
		if len(list) > 0 {
			signals = append(signals, name)
		}
	}
	slices.Sort(signals)
	if len(signals) == 0 {
		return "", fmt.Errorf("verdict %s misses no such test, or asks about none: %w", v.ID, ErrBaseline)
	}
	for _, s := range signals {
		n, err := c.nextBaseline(ctx, dir, v, o, func(was *gate.Baseline) (*gate.Baseline, error) {
			if o.Changed {
				return was.WithChangedTests(s, lost[s], files[s]), nil
			}
			return was.WithRemovedTests(s, lost[s]), nil
		})
		if err != nil {
			return "", err
		}
		p := supervise.TestsGone{
			Gate: fault.Fit(v.Catalog, 256), Repository: fault.Fit(n.dir, 4096), Signal: fault.Fit(s, 256), Verdict: n.digest, File: gate.BaselinePath,
			From: n.was.Digest(), To: HexSum(n.text), Signer: n.who, Tests: lost[s], Files: files[s],
		}
		tool := "carboy gate baseline accept --lost-tests"
		if o.Changed {
			p.Shown, tool = FailuresOf(v), "carboy gate baseline accept --changed-tests"
		}
		err = ask.ForApproval(ctx, c.Host, GateAsker, runOf(v), p, tool, o.Options, func(ok supervise.Approval[supervise.TestsGone]) error {
			return n.write(ctx, ok.Outcome())
		})
		n.done()
		if err != nil {
			return "", err
		}
	}
	return gate.BaselinePath, nil
}
