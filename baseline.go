package carboy

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

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// A baseline is changed by a person: asked at the queue, signed with their SSH key, and
// committed by them. What is in force is the base's, and only if its signature counts.

// ErrBaseline is of baselines that can't be changed.
var ErrBaseline = errors.New("the baseline stays as it is")

// AcceptOptions say who accepts a baseline.
type AcceptOptions struct {
	AskOptions
	// As is the signer's name in the operator's allowed_signers, and Key the file of an
	// SSH key: a private one, or a public one whose other half the agent holds.
	As, Key string
	// Unsigned leaves it unsigned, where allowed_signers has nobody for gates.
	Unsigned bool
}

// gateSigners are those who may sign baselines, by the operator's own file; nil: it
// names nobody, and whoever commits to the base decides.
func (c *Client) gateSigners() (*approval.Signers, error) {
	conf, err := store.ConfigDir(c.opened.Config, c.env)
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

// counts reports who signed a baseline, or why it does not count.
func counts(s *approval.Signers, b *gate.Baseline, text, sig []byte) (by, why string) {
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

// baselineOf is the baseline of a tree, if it counts.
func (c *Client) baselineOf(ctx context.Context, t *gate.Tree) (b *gate.Baseline, by, why string, err error) {
	return c.baselineIn(gate.BaselinePath, func(name string) ([]byte, error) { return t.Read(ctx, name) })
}

// baselineIn is the one of a file, with its signature beside it, if it counts.
func (c *Client) baselineIn(name string, read func(string) ([]byte, error)) (b *gate.Baseline, by, why string, err error) {
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
	if by, why = counts(signers, b, text, sig); why != "" {
		b = nil
	}
	return b, by, why, nil
}

// standing is the baseline that a change of it begins with: the work tree's, where that
// is what was accepted here last, else HEAD's, if it counts. What else lies in the work
// tree anybody can have written.
func (c *Client) standing(ctx context.Context, dir string) (*gate.Baseline, error) {
	here, err := readBaseline(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if here != nil {
		last := ""
		err := c.auditRecords(func(r *audit.Record) {
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

// readBaseline is the one that lies in a directory.
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

// newBaseline is a baseline that would be in force.
type newBaseline struct {
	c       *Client
	dir     string
	verdict string // its id; empty: none was looked at
	digest  string // of the verdict
	was     *gate.Baseline
	text    []byte
	as, who string
	signer  ssh.Signer
	done    func()
}

// nextBaseline readies a change of dir's baseline; next makes it of the one that stands.
func (c *Client) nextBaseline(ctx context.Context, dir string, v *gate.Verdict, o AcceptOptions, next func(was *gate.Baseline) (*gate.Baseline, error)) (_ *newBaseline, err error) {
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
	if err := n.signs(ctx, o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.done()
		}
	}()
	if n.was, err = c.standing(ctx, n.dir); err != nil {
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

// signs finds who signs.
func (n *newBaseline) signs(ctx context.Context, o AcceptOptions) error {
	signers, err := n.c.gateSigners()
	if err != nil {
		return err
	}
	switch {
	case o.Unsigned && o.Key+o.As != "":
		return &OptionError{Option: "--unsigned", Reason: "does not go with --key and --as", Advice: "say one or the other"}
	case o.Unsigned && signers != nil:
		return &OptionError{Option: "--unsigned", Reason: "would not count: " + approval.SignersFile + " says who signs baselines", Advice: "sign it, with --as NAME --key FILE"}
	case o.Unsigned:
		return nil
	case o.Key == "" || !approval.ValidName(o.As):
		return &OptionError{Option: "--key", Reason: "and --as say who signs the baseline, and one is missing or no name", Advice: "say --as me@example.org --key ~/.ssh/id_ed25519 (or its .pub, with an agent), or --unsigned to leave it to whoever commits"}
	}
	k := remote.Keys{AgentSocket: n.c.env("SSH_AUTH_SOCK")}
	if n.signer, n.done, err = k.Signer(ctx, o.Key); err != nil {
		n.done = func() {}
		return err
	}
	n.as = o.As
	n.who = o.As + " with " + ssh.FingerprintSHA256(n.signer.PublicKey())
	if signers == nil {
		return nil
	}
	// Before anybody is asked: what would not be believed is not signed.
	now := time.Now()
	if err := signers.May(gate.Namespace, n.as, n.signer.PublicKey(), now, now); err != nil {
		n.done()
		return &OptionError{Option: "--key", Value: n.who, Reason: err.Error(), Advice: "the operator's " + approval.SignersFile + " says who may sign for " + gate.Namespace}
	}
	return nil
}

// put records and writes it, as a proposal said that was approved.
func (n *newBaseline) put(ctx context.Context, a supervise.Outcome) error {
	if n.verdict != "" {
		v, _, err := n.c.Verdict(ctx, n.verdict)
		if err != nil {
			return err
		}
		if d, err := v.Digest(); err != nil || d != n.digest {
			return errors.Join(err, fmt.Errorf("verdict %s is not the one that was shown: %w", n.verdict, ErrLedger))
		}
	}
	if now, err := n.c.standing(ctx, n.dir); err != nil || now.Digest() != n.was.Digest() {
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
	_, err = n.c.audit.Append(ctx, audit.Event{
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
	// The signature goes first: one of another text is found, and none is not.
	if err := replace(root, gate.SignaturePath, sig); err != nil {
		return err
	}
	return replace(root, gate.BaselinePath, n.text)
}

// replace puts a file in the place of another, or takes that away when b is nil.
func replace(root *os.Root, name string, b []byte) error {
	if b == nil {
		if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	tmp := name + ".new"
	if err := root.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return root.Rename(tmp, name)
}

// shown are two baselines as the queue shows them: whole, or where that is too much,
// without the lines that both have.
func (n *newBaseline) shown() (before, after string, err error) {
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
	before, after, err := n.shown()
	if err != nil {
		return "", err
	}
	if before == after {
		return "", fmt.Errorf("nothing is new: %w", ErrBaseline)
	}
	p := supervise.BaselineUpdate{
		Gate: fit(name, 256), Repository: fit(n.dir, 4096), File: gate.BaselinePath, Verdict: n.digest, From: n.was.Digest(), To: hexSum(n.text),
		Signer: n.who, Before: before, After: after,
	}
	err = askPeople(ctx, n.c, gateAsker, run, p, tool, o.AskOptions, func(ok supervise.Approval[supervise.BaselineUpdate]) error {
		return n.put(ctx, ok.Outcome())
	})
	return gate.BaselinePath, err
}

// AcceptBaseline adds what a verdict's phases did to the baseline of a work tree, when a
// person approves that at the queue, and signs it. It counts once it is committed to
// the base. The path is of what was written.
func (c *Client) AcceptBaseline(ctx context.Context, dir, ref string, o AcceptOptions) (string, error) {
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

// SignBaseline signs the baseline that lies in a work tree, when a person approves what
// is new in it.
func (c *Client) SignBaseline(ctx context.Context, dir string, o AcceptOptions) (string, error) {
	n, err := c.nextBaseline(ctx, dir, nil, o, func(*gate.Baseline) (*gate.Baseline, error) { return readBaseline(dir) })
	if err != nil {
		return "", err
	}
	return n.ask(ctx, gate.CatalogPath, "carboy gate baseline sign", "", o)
}

// AcceptLostTests has the baseline of a work tree say that tests may be gone that a
// verdict misses, when a person approves that; none named: all of them.
func (c *Client) AcceptLostTests(ctx context.Context, dir, ref string, tests []string, o AcceptOptions) (string, error) {
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	lost := v.LostTests()
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
		return "", fmt.Errorf("verdict %s misses no such test: %w", v.ID, ErrBaseline)
	}
	for _, s := range signals {
		n, err := c.nextBaseline(ctx, dir, v, o, func(was *gate.Baseline) (*gate.Baseline, error) { return was.Without(s, lost[s]), nil })
		if err != nil {
			return "", err
		}
		p := supervise.TestsGone{
			Gate: fit(v.Catalog, 256), Repository: fit(n.dir, 4096), Signal: fit(s, 256), Verdict: n.digest, File: gate.BaselinePath,
			From: n.was.Digest(), To: hexSum(n.text), Signer: n.who, Tests: lost[s],
		}
		err = askPeople(ctx, c, gateAsker, runOf(v), p, "carboy gate baseline accept --lost-tests", o.AskOptions, func(ok supervise.Approval[supervise.TestsGone]) error {
			return n.put(ctx, ok.Outcome())
		})
		n.done()
		if err != nil {
			return "", err
		}
	}
	return gate.BaselinePath, nil
}
