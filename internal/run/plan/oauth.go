package plan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// openOAuth opens the credential of a route that gets access tokens for a refresh token.
func (r *CredentialReader) openOAuth(rule string, c policy.Credential) (*credential.Credential, error) {
	missing := func(env string) error {
		advice := "set that variable; it stays outside"
		if NameOrHidden(env) == NotShown {
			advice = pasted
		}
		return &fault.OptionError{Option: rule, Value: NameOrHidden(env), Reason: "is not set here", Advice: advice}
	}
	o := credential.OAuthOptions{Roots: r.Roots}
	if env := c.OAuth.SecretEnv; env != "" {
		if o.ClientSecret = secret.NewString(r.Lookup(env)); o.ClientSecret.Empty() {
			return nil, missing(env)
		}
	}
	name := c.Env
	if c.Env != "" {
		v := secret.NewString(r.Lookup(c.Env))
		if v.Empty() {
			return nil, missing(c.Env)
		}
		o.Refresh = &variableToken{name: c.Env, v: v}
	} else {
		path := tokenFile(c.OAuth.File, r.Lookup("HOME"))
		name = filepath.Base(path)
		o.Refresh = &FileToken{Path: path}
	}
	opened, err := credential.OpenOAuth(name, c, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rule, err)
	}
	return opened, nil
}

// tokenFile returns the path of the file that a route names.
func tokenFile(name, home string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		return filepath.Join(home, rest)
	}
	return name
}

// CheckTokenFile returns an error if the file of a refresh token can't be used. It does
// not keep what it reads.
func CheckTokenFile(name, home string) error {
	v, err := (&FileToken{Path: tokenFile(name, home)}).read()
	v.Destroy()
	return err
}

// variableToken holds a refresh token from a variable, and then its successors in this
// run.
type variableToken struct {
	name string
	mu   sync.Mutex
	v    secret.Value
}

func (t *variableToken) Take(context.Context) (secret.Value, func(), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.v, func() {}, nil
}

func (t *variableToken) Put(v secret.Value) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.v = v
	return fmt.Errorf("the server gave another refresh token, which is gone with this run: the one in %s may not be valid any more (refresh_token_file keeps it)", NameOrHidden(t.name))
}

// FileToken takes a refresh token from a file of its own. Runs that share the file take
// turns, by a lock on its directory: a server that changes tokens accepts each only once.
type FileToken struct {
	Path string
	mu   sync.Mutex
	// v holds a token that could not be written; only this run uses it.
	v secret.Value
}

// MaxTokenFile bounds the file, in bytes.
const MaxTokenFile = 64 << 10

// Take locks the token for this run and returns it. The caller calls done when the
// successor was put, or none came.
func (t *FileToken) Take(ctx context.Context) (_ secret.Value, done func(), err error) {
	t.mu.Lock()
	own := t.v
	t.mu.Unlock()
	dir, err := unix.Open(filepath.Dir(t.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return secret.Value{}, nil, fmt.Errorf("refresh_token_file %s: %w", t.Path, err)
	}
	done = sync.OnceFunc(func() { unix.Close(dir) })
	if err = lockWithin(ctx, dir); err == nil && own.Empty() {
		own, err = t.read()
	}
	if err != nil {
		done()
		return secret.Value{}, nil, fmt.Errorf("refresh_token_file %s: %w", t.Path, err)
	}
	return own, done, nil
}

// lockWithin waits for the lock until ctx ends.
func lockWithin(ctx context.Context, fd int) error {
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.New("another run is using it")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (t *FileToken) read() (secret.Value, error) {
	f, err := os.Open(t.Path)
	if err != nil {
		return secret.Value{}, errors.New(fault.Cause(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return secret.Value{}, errors.New(fault.Cause(err))
	case !fi.Mode().IsRegular():
		return secret.Value{}, errors.New("not a regular file")
	case fi.Mode().Perm()&0o077 != 0:
		return secret.Value{}, fmt.Errorf("others may read it (mode %04o); make it yours alone with chmod 600", fi.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxTokenFile+1))
	defer clear(b)
	switch b := bytes.TrimSpace(b); {
	case err != nil:
		return secret.Value{}, errors.New(fault.Cause(err))
	case len(b) > MaxTokenFile:
		return secret.Value{}, fmt.Errorf("more than %d bytes", MaxTokenFile)
	case len(b) == 0:
		return secret.Value{}, errors.New("it is empty; put the refresh token there")
	default:
		return secret.New(b), nil
	}
}

// Put replaces the file by a rename, so that half a token is never read.
func (t *FileToken) Put(v secret.Value) error {
	var err error
	v.UnsafeReveal(func(b []byte) { err = store.WriteFile(t.Path, append(slices.Clone(b), '\n'), 0o600) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.v = (secret.Value{}); err != nil {
		t.v = v
		return fmt.Errorf("the server gave another refresh token, which could not be written to %s (%w): the one that is there may not be valid any more", t.Path, err)
	}
	return nil
}

// TokenFiles returns the files of refresh tokens, as real paths.
func (c *Credentials) TokenFiles() (out []string) {
	for want := range c.Of {
		if f := c.files[want]; f != "" {
			out = append(out, fault.RealPath(f))
		}
	}
	return out
}

// hideTokens refuses a plan that would show the file of a refresh token inside.
func (p *Plan) hideTokens() error {
	for _, f := range p.Credentials.TokenFiles() {
		if p.Shows(f) {
			return &fault.OptionError{Option: "refresh_token_file", Value: f, Reason: "lies where the command can read it", Advice: "keep it outside of the workspace and of what is mounted"}
		}
	}
	return nil
}
