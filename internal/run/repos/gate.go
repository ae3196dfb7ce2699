package repos

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
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Directories of a bottle's git gate, below the bottle's directory on the host: pushes in
// progress, and deploy keys with their records. Like all of carboy's state, they are never
// shown inside.
const (
	gitDir  = "git"
	keysDir = "keys"
)

// Gate is the git gate of one run of a bottle. It is made before the run has a record, so
// that an unreachable forge stops the run before anything starts.
type Gate struct {
	c       *host.Host
	gate    *gitgate.Gate
	git     *hostexec.Runner
	slug    string
	keys    string
	tokens  map[string]secret.Value // of forges, by their variables
	watched map[string]secret.Value
	user    atomic.Pointer[User] // nil: no run yet

	Mu    sync.Mutex
	Made  []receipt.GitKey
	close sync.Once
	Left  []*forgekey.LeftError
}

// User is the run that a bottle's git gate serves.
type User interface {
	// WatchedSecrets returns the secrets that pushes are scanned for.
	WatchedSecrets() map[string]secret.Value
	// AllowPush asks a person about a line and returns who allowed it.
	AllowPush(ctx context.Context, a gitgate.Allow) (by string, err error)
	// GitDone records what the gate did.
	GitDone(gitgate.Event)
}

// Use sets the run that the gate serves; nil: none.
func (m *Gate) Use(u User) {
	if u == nil {
		m.user.Store(nil)
		return
	}
	m.user.Store(&u)
}

// Bounds of the wait for forges.
const (
	makeKeysIn   = 2 * time.Minute // all keys of a start
	revokeKeysIn = time.Minute     // all keys of an end
)

// Open makes the deploy keys and the gate of a bottle that the caller has locked. asks
// lets pushes wait for people.
func Open(ctx context.Context, c *host.Host, g *Repos, lock *store.BottleLock, slug, workspace string, asks bool) (_ *Gate, err error) {
	fail := func(err error) (*Gate, error) { return nil, fmt.Errorf("git gate of bottle %s: %w", slug, err) }
	keys, err := lock.Private(keysDir)
	if err != nil {
		return fail(err)
	}
	m := &Gate{c: c, slug: slug, keys: keys, tokens: map[string]secret.Value{}, watched: g.Watched()}
	for _, r := range g.Repos {
		if r.deploy != nil {
			m.tokens[r.forgeEnv] = r.forge
		}
	}
	// Of a life before, of which perhaps no repository is declared any more.
	kctx, cancel := context.WithTimeout(ctx, makeKeysIn)
	defer cancel()
	if left := revokeKeys(kctx, c, m.keys, m.token, m.noteKey); len(left) > 0 {
		return fail(left[0])
	}
	defer func() {
		if err != nil {
			m.End(context.WithoutCancel(ctx))
			for _, l := range m.Left {
				err = errors.Join(err, l)
			}
		}
	}()
	repos := make([]gitgate.Repo, len(g.Repos))
	for i, r := range g.Repos {
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
		untrusted = []string{fault.RealPath(workspace)}
	}
	if m.git, err = hostexec.New(hostexec.Options{Untrusted: untrusted}); err != nil {
		return fail(err)
	}
	conf := gitgate.Config{Dir: dir, Repos: repos, Git: m.git, Secrets: m.secrets, Observe: m.observe, Roots: c.Opened.Roots}
	if asks {
		conf.Ask = m.ask
	}
	if m.gate, err = gitgate.New(conf); err != nil {
		return fail(err)
	}
	return m, nil
}

func (m *Gate) options(token secret.Value) forgekey.Options {
	return forgekey.Options{Dir: m.keys, Token: token, Roots: m.c.Opened.Roots, Resolver: hostResolver(m.c.Opened.Resolver)}
}

func (m *Gate) makeKey(ctx context.Context, r Repo) (*forgekey.Key, error) {
	k, err := forgekey.Make(ctx, m.options(r.forge), r.Name, "carboy:"+m.slug+":"+r.Name, *r.deploy, r.forgeEnv)
	if err != nil {
		return nil, err
	}
	m.noteKey(k.Record, audit.Allowed, "made")
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Made = append(m.Made, receipt.GitKey{
		Repo: r.Name, Title: k.Record.Title, Fingerprint: k.Record.Fingerprint(), ID: k.Record.ID, State: receipt.KeyMade,
	})
	return k, nil
}

// noteKey records in the audit log that a key was made or revoked. A key is revoked even
// if that can't be recorded.
func (m *Gate) noteKey(r forgekey.KeyRecord, d audit.Decision, what string) {
	noteKey(m.c, m.slug, r, d, what)
}

func noteKey(c *host.Host, slug string, r forgekey.KeyRecord, d audit.Decision, what string) {
	ctx, cancel := context.WithTimeout(context.Background(), host.AppendIn)
	defer cancel()
	redact := &secret.Redactor{}
	ev := audit.Event{Kind: audit.GitKey, Actor: audit.ByCarboy, Decision: d, Sync: true,
		Subject: audit.Redact(redact, r.Target.Repo+" at "+r.Target.API), Rule: audit.Redact(redact, "bottle "+slug),
		Text: audit.Redact(redact, fmt.Sprintf("deploy key %s, id %s, %s: %s", r.Title, r.ID, r.Fingerprint(), what))}
	if _, err := c.Audit.Append(ctx, ev); err != nil {
		c.Log.Warn("a deploy key could not be noted in the audit log", "key", r.Title, "what", what, "err", err)
	}
}

// token returns a forge's token by its variable: its value at the start, or else now.
func (m *Gate) token(env string) secret.Value {
	if v, ok := m.tokens[env]; ok {
		return v
	}
	return secret.NewString(m.c.Env(env))
}

// revokeKeys revokes the keys recorded in dir, and returns the keys that are left.
func revokeKeys(ctx context.Context, c *host.Host, dir string, token func(env string) secret.Value, note func(forgekey.KeyRecord, audit.Decision, string)) (left []*forgekey.LeftError) {
	recs, err := forgekey.Left(dir)
	if err != nil {
		return []*forgekey.LeftError{{Record: forgekey.KeyRecord{Title: filepath.Base(dir)}, Err: err}}
	}
	results := make([]error, len(recs))
	var wg sync.WaitGroup
	for i, r := range recs {
		wg.Go(func() {
			results[i] = forgekey.Revoke(ctx, forgekey.Options{Dir: dir, Token: token(r.TokenEnv), Roots: c.Opened.Roots, Resolver: hostResolver(c.Opened.Resolver)}, r)
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

// Handlers returns the servers that the gateway offers inside, by host name.
func (m *Gate) Handlers() map[string]http.Handler {
	return map[string]http.Handler{gateway.GitName: m.gate}
}

// secrets returns the secrets that pushes are scanned for: the run's, or the gate's own
// before there is a run.
func (m *Gate) secrets() map[string]secret.Value {
	if u := m.user.Load(); u != nil {
		return (*u).WatchedSecrets()
	}
	return m.watched
}

func (m *Gate) ask(ctx context.Context, a gitgate.Allow) (by string, err error) {
	u := m.user.Load()
	if u == nil {
		return "", fault.ErrNobody
	}
	return (*u).AllowPush(ctx, a)
}

func (m *Gate) observe(ev gitgate.Event) {
	if u := m.user.Load(); u != nil {
		(*u).GitDone(ev)
	}
}

// Refs is [gitgate.Gate.Refs].
func (m *Gate) Refs(ctx context.Context, name string, refs ...string) (*gitgate.Fetched, error) {
	return m.gate.Refs(ctx, name, refs...)
}

// Fetch is [gitgate.Gate.Fetch].
func (m *Gate) Fetch(ctx context.Context, name, dir string, want, have []string) error {
	return m.gate.Fetch(ctx, name, dir, want, have)
}

// End closes the gate and revokes the keys. Left then lists the keys that could not be
// revoked. Later calls do nothing.
func (m *Gate) End(ctx context.Context) {
	m.close.Do(func() {
		if m.gate != nil {
			if err := m.gate.Close(); err != nil {
				m.c.Log.Warn("the git gate did not end cleanly", "err", err)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, revokeKeysIn)
		defer cancel()
		m.Left = revokeKeys(ctx, m.c, m.keys, m.token, m.noteKey)
		m.Mu.Lock()
		defer m.Mu.Unlock()
		for i := range m.Made {
			k := &m.Made[i]
			k.State = receipt.KeyRevoked
			for _, l := range m.Left {
				if l.Record.Fingerprint() == k.Fingerprint {
					k.State, k.Error, k.RemoveAt = receipt.KeyLeft, safetext.String(l.Err.Error(), 300), l.Record.Target.Settings
				}
			}
		}
	})
}

// KeysLeftError reports deploy keys that may still be at a forge.
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

// Unwrap returns one error for each key.
func (e *KeysLeftError) Unwrap() (out []error) {
	for _, l := range e.Left {
		out = append(out, l)
	}
	return out
}

// Advice returns what the user can do about the keys.
func (e *KeysLeftError) Advice() string {
	return e.Left[0].Advice() + "; then carboy destroy " + e.Bottle + ", or with --leave-keys when they are gone"
}

// OnlyKeysLeft reports whether err reports nothing but keys that are left.
func OnlyKeysLeft(err error) bool {
	_, ok := err.(*KeysLeftError)
	if j, joined := err.(interface{ Unwrap() []error }); joined && !ok {
		list := j.Unwrap()
		return len(list) == 1 && OnlyKeysLeft(list[0])
	}
	return err == nil || ok
}

// RevokeLeft revokes the keys of a bottle that nobody uses. With leave it only forgets
// them. The caller holds the bottle's lock.
func RevokeLeft(ctx context.Context, c *host.Host, lock *store.BottleLock, slug string, leave bool) error {
	dir := filepath.Join(lock.Dir(), keysDir)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, revokeKeysIn)
	defer cancel()
	note := func(r forgekey.KeyRecord, d audit.Decision, what string) { noteKey(c, slug, r, d, what) }
	left := revokeKeys(ctx, c, dir, func(env string) secret.Value { return secret.NewString(c.Env(env)) }, note)
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

// recoverKeysIn bounds the wait of a command for keys of bottles whose carboy died.
const recoverKeysIn = 5 * time.Second

// RecoverKeys revokes the keys of bottles whose carboy died. Keys that can't be revoked
// now stay with their bottle.
func RecoverKeys(ctx context.Context, c *host.Host) {
	dirs, err := store.Glob(filepath.Join(c.StateDir(), "bottles"), "*/"+keysDir+"/*.json")
	if err != nil || len(dirs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recoverKeysIn)
	defer cancel()
	slices.Sort(dirs)
	for _, slug := range slices.Compact(fault.Mapped(dirs, func(d string) string { return filepath.Base(filepath.Dir(filepath.Dir(d))) })) {
		if busy, err := c.Store.BottleBusy(slug); busy || err != nil {
			continue // it runs; taking its lock would wait
		}
		lock, err := c.Store.LockBottle(slug)
		if err != nil {
			continue
		}
		if err := RevokeLeft(ctx, c, lock, slug, false); err != nil {
			c.Log.Warn("deploy keys of a bottle whose carboy died are left", "bottle", slug, "err", err)
		}
		lock.Unlock()
	}
}

// HasKeys reports whether deploy keys of a bottle may be at a forge.
func HasKeys(c *host.Host, slug string) bool {
	recs, err := forgekey.Left(filepath.Join(c.StateDir(), "bottles", slug, keysDir))
	return err != nil || len(recs) > 0
}

// hostResolver adapts r to package forge; nil stays nil.
func hostResolver(r host.Resolver) forge.Resolver {
	if r == nil {
		return nil
	}
	return lookup{r}
}

type lookup struct{ host.Resolver }

func (l lookup) LookupHost(ctx context.Context, host string) ([]string, error) {
	addrs, err := l.LookupNetIP(ctx, "ip", host)
	var out []string
	for _, a := range addrs {
		out = append(out, a.Unmap().String())
	}
	return out, err
}
