package carboy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// What a bottle's git gate has on disk, in the bottle's directory on the host: what is
// being pushed, and deploy keys with their records. Nothing of it is shown inside, since
// nothing of carboy's state ever is.
const (
	gitDir  = "git"
	keysDir = "keys"
)

// gitMount is the git gate of one run of a bottle. It is made before the run has a
// record, so that a forge that can't be asked is known before anything is started.
type gitMount struct {
	c       *Client
	gate    *gitgate.Gate
	git     *hostexec.Runner
	slug    string
	keys    string
	tokens  map[string]secret.Value // of forges, by their variables
	watched map[string]secret.Value
	session atomic.Pointer[session] // nil: no run yet

	mu    sync.Mutex
	made  []receipt.GitKey
	close sync.Once
	left  []*forgekey.LeftError
}

// Bounds of what forges are waited for.
const (
	makeKeysIn   = 2 * time.Minute // all keys of a start
	revokeKeysIn = time.Minute     // all keys of an end
)

// mountGit makes the deploy keys and the gate of a bottle that the caller has locked;
// asks says whether its pushes may wait for people.
func (c *Client) mountGit(ctx context.Context, g *gitGrant, lock *store.BottleLock, slug, workspace string, asks bool) (_ *gitMount, err error) {
	fail := func(err error) (*gitMount, error) { return nil, fmt.Errorf("git gate of bottle %s: %w", slug, err) }
	keys, err := lock.Private(keysDir)
	if err != nil {
		return fail(err)
	}
	m := &gitMount{c: c, slug: slug, keys: keys, tokens: map[string]secret.Value{}, watched: g.watched()}
	for _, r := range g.repos {
		if r.deploy != nil {
			m.tokens[r.forgeEnv] = r.forge
		}
	}
	// Of a life before, of which perhaps no repository is declared any more.
	kctx, cancel := context.WithTimeout(ctx, makeKeysIn)
	defer cancel()
	if left := c.revokeKeys(kctx, m.keys, m.token, m.noteKey); len(left) > 0 {
		return fail(left[0])
	}
	defer func() {
		if err != nil {
			m.end(context.WithoutCancel(ctx))
			for _, l := range m.left {
				err = errors.Join(err, l)
			}
		}
	}()
	repos := make([]gitgate.Repo, len(g.repos))
	for i, r := range g.repos {
		repos[i] = r.Repo
		if r.deploy == nil {
			continue
		}
		k, err := m.makeKey(kctx, r)
		if err != nil {
			return fail(err)
		}
		access := *r.SSH
		access.Signer = k.Signer
		repos[i].SSH = &access
	}
	dir, err := lock.Private(gitDir)
	if err != nil {
		return fail(err)
	}
	var untrusted []string
	if workspace != "" {
		untrusted = []string{realPath(workspace)}
	}
	if m.git, err = hostexec.New(hostexec.Options{Untrusted: untrusted}); err != nil {
		return fail(err)
	}
	conf := gitgate.Config{Dir: dir, Repos: repos, Git: m.git, Secrets: m.secrets, Observe: m.observe, Roots: c.opened.Roots}
	if asks {
		conf.Ask = m.ask
	}
	if m.gate, err = gitgate.New(conf); err != nil {
		return fail(err)
	}
	return m, nil
}

func (m *gitMount) options(token secret.Value) forgekey.Options {
	return forgekey.Options{Dir: m.keys, Token: token, Roots: m.c.opened.Roots, Resolver: hostResolver(m.c.opened.Resolver)}
}

func (m *gitMount) makeKey(ctx context.Context, r gitRepo) (*forgekey.Key, error) {
	k, err := forgekey.Make(ctx, m.options(r.forge), r.Name, "carboy:"+m.slug+":"+r.Name, *r.deploy, r.forgeEnv)
	if err != nil {
		return nil, err
	}
	m.noteKey(k.Record, audit.Allowed, "made")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made = append(m.made, receipt.GitKey{
		Repo: r.Name, Title: k.Record.Title, Fingerprint: k.Record.Fingerprint(), ID: k.Record.ID, State: receipt.KeyMade,
	})
	return k, nil
}

// noteKey puts into the audit log what became of a key. A record that can't be written
// is no reason to keep the key.
func (m *gitMount) noteKey(r forgekey.Record, d audit.Decision, what string) {
	m.c.noteKey(m.slug, r, d, what)
}

func (c *Client) noteKey(slug string, r forgekey.Record, d audit.Decision, what string) {
	ctx, cancel := context.WithTimeout(context.Background(), appendIn)
	defer cancel()
	redact := &secret.Redactor{}
	ev := audit.Event{Kind: audit.GitKey, Actor: audit.ByCarboy, Decision: d, Sync: true,
		Subject: audit.Redact(redact, r.Target.Repo+" at "+r.Target.API), Rule: audit.Redact(redact, "bottle "+slug),
		Text: audit.Redact(redact, fmt.Sprintf("deploy key %s, id %s, %s: %s", r.Title, r.ID, r.Fingerprint(), what))}
	if _, err := c.audit.Append(ctx, ev); err != nil {
		c.log.Warn("a deploy key could not be noted in the audit log", "key", r.Title, "what", what, "err", err)
	}
}

// token is a forge's, by its variable: as it was at the start, or as it is now.
func (m *gitMount) token(env string) secret.Value {
	if v, ok := m.tokens[env]; ok {
		return v
	}
	return secret.NewString(m.c.env(env))
}

// revokeKeys revokes what there is in dir, and returns what is left.
func (c *Client) revokeKeys(ctx context.Context, dir string, token func(env string) secret.Value, note func(forgekey.Record, audit.Decision, string)) (left []*forgekey.LeftError) {
	recs, err := forgekey.Left(dir)
	if err != nil {
		return []*forgekey.LeftError{{Record: forgekey.Record{Title: filepath.Base(dir)}, Err: err}}
	}
	results := make([]error, len(recs))
	var wg sync.WaitGroup
	for i, r := range recs {
		wg.Go(func() {
			results[i] = forgekey.Revoke(ctx, forgekey.Options{Dir: dir, Token: token(r.TokenEnv), Roots: c.opened.Roots, Resolver: hostResolver(c.opened.Resolver)}, r)
		})
	}
	wg.Wait()
	for i, err := range results {
		var l *forgekey.LeftError
		switch {
		case err == nil:
			note(recs[i], audit.Allowed, "revoked")
		case errors.As(err, &l):
			note(recs[i], audit.Refused, "not revoked: "+l.Err.Error())
			left = append(left, l)
		}
	}
	return left
}

// handlers are what the gateway serves inside.
func (m *gitMount) handlers() map[string]http.Handler {
	return map[string]http.Handler{gateway.GitName: m.gate}
}

// secrets are what pushes are looked through for: what the run watches for, or, before
// there is one, what the gate itself has.
func (m *gitMount) secrets() map[string]secret.Value {
	if s := m.session.Load(); s != nil {
		known, _ := s.inside.watched()
		return known
	}
	return m.watched
}

func (m *gitMount) ask(ctx context.Context, a gitgate.Allow) (by string, err error) {
	s := m.session.Load()
	if s == nil || s.asks == nil {
		return "", errNobody
	}
	return s.askAllow(ctx, a)
}

func (m *gitMount) observe(ev gitgate.Event) {
	if s := m.session.Load(); s != nil {
		s.gitDone(ev)
	}
}

// end closes the gate and revokes the keys. Idempotent; left are then the keys that
// could not be.
func (m *gitMount) end(ctx context.Context) {
	m.close.Do(func() {
		if m.gate != nil {
			if err := m.gate.Close(); err != nil {
				m.c.log.Warn("the git gate did not end cleanly", "err", err)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, revokeKeysIn)
		defer cancel()
		m.left = m.c.revokeKeys(ctx, m.keys, m.token, m.noteKey)
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := range m.made {
			k := &m.made[i]
			k.State = receipt.KeyRevoked
			for _, l := range m.left {
				if l.Record.Fingerprint() == k.Fingerprint {
					k.State, k.Error, k.RemoveAt = receipt.KeyLeft, visible.String(l.Err.Error(), 300), l.Record.Target.Settings
				}
			}
		}
	})
}

// KeysLeftError is about deploy keys that may be at a forge still.
type KeysLeftError struct {
	Bottle string
	Left   []*forgekey.LeftError
}

func (e *KeysLeftError) Error() string {
	s := "bottle " + e.Bottle
	for _, l := range e.Left {
		s += ": " + l.Error()
	}
	return s
}

// Unwrap returns what is wrong with each of them.
func (e *KeysLeftError) Unwrap() (out []error) {
	for _, l := range e.Left {
		out = append(out, l)
	}
	return out
}

// Advice says what a person does about them.
func (e *KeysLeftError) Advice() string {
	return e.Left[0].Advice() + "; then carboy destroy " + e.Bottle + ", or with --leave-keys when they are gone"
}

// onlyKeysLeft reports whether nothing else went wrong.
func onlyKeysLeft(err error) bool {
	_, ok := err.(*KeysLeftError)
	if j, joined := err.(interface{ Unwrap() []error }); joined && !ok {
		list := j.Unwrap()
		return len(list) == 1 && onlyKeysLeft(list[0])
	}
	return err == nil || ok
}

// revokeLeft revokes the keys of a bottle that nobody uses, or with leave forgets them.
// The caller has its lock.
func (c *Client) revokeLeft(ctx context.Context, lock *store.BottleLock, slug string, leave bool) error {
	dir := filepath.Join(lock.Dir(), keysDir)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, revokeKeysIn)
	defer cancel()
	note := func(r forgekey.Record, d audit.Decision, what string) { c.noteKey(slug, r, d, what) }
	left := c.revokeKeys(ctx, dir, func(env string) secret.Value { return secret.NewString(c.env(env)) }, note)
	if len(left) == 0 {
		return nil
	}
	if !leave {
		return &KeysLeftError{slug, left}
	}
	for _, l := range left {
		note(l.Record, audit.Noted, "left at the forge, as somebody asked for")
	}
	return os.RemoveAll(dir)
}

// recoverKeysIn bounds what a command waits for keys of bottles whose carboy died.
const recoverKeysIn = 5 * time.Second

// recoverKeys revokes the keys of bottles whose carboy died. What can't be revoked now
// stays with its bottle.
func (c *Client) recoverKeys(ctx context.Context) {
	dirs, err := store.Glob(filepath.Join(c.StateDir(), "bottles"), "*/"+keysDir+"/*.json")
	if err != nil || len(dirs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recoverKeysIn)
	defer cancel()
	slices.Sort(dirs)
	for _, slug := range slices.Compact(mapped(dirs, func(d string) string { return filepath.Base(filepath.Dir(filepath.Dir(d))) })) {
		if busy, err := c.store.BottleBusy(slug); busy || err != nil {
			continue // it runs; taking its lock would wait
		}
		lock, err := c.store.LockBottle(slug)
		if err != nil {
			continue
		}
		if err := c.revokeLeft(ctx, lock, slug, false); err != nil {
			c.log.Warn("deploy keys of a bottle whose carboy died are left", "bottle", slug, "err", err)
		}
		lock.Unlock()
	}
}

func mapped[T, U any](list []T, f func(T) U) []U {
	out := make([]U, len(list))
	for i, x := range list {
		out[i] = f(x)
	}
	return out
}

// hasKeys reports whether deploy keys of a bottle may be at a forge.
func (c *Client) hasKeys(slug string) bool {
	recs, err := forgekey.Left(filepath.Join(c.StateDir(), "bottles", slug, keysDir))
	return err != nil || len(recs) > 0
}

// hostResolver is r as package forgekey asks it; nil stays nil.
func hostResolver(r Resolver) forgekey.Resolver {
	if r == nil {
		return nil
	}
	return lookup{r}
}

type lookup struct{ Resolver }

func (l lookup) LookupHost(ctx context.Context, host string) ([]string, error) {
	addrs, err := l.LookupNetIP(ctx, "ip", host)
	var out []string
	for _, a := range addrs {
		out = append(out, a.Unmap().String())
	}
	return out, err
}
