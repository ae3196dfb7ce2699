package plan

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
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

// Placeholder replaces a key that a program inside wants. Its value does not matter: the
// gateway replaces it in each request.
const Placeholder = "put-on-outside"

// codexAccount is the header that selects one of several accounts.
const codexAccount = "Chatgpt-Account-Id"

// codexLogin holds the content of auth.json.
type codexLogin struct {
	access, refresh secret.Value // access is the API key, when key is set
	Key             bool
	account         string
	plan            string
	expires         time.Time // of access; zero: it does not say
}

func (l *codexLogin) Destroy() {
	l.access.Destroy()
	l.refresh.Destroy()
}

// codexAuthFile holds the fields of the file that carboy reads; the others are kept.
type codexAuthFile struct {
	Mode   string `json:"auth_mode"`
	Key    string `json:"OPENAI_API_KEY"`
	Tokens *struct {
		ID      string `json:"id_token"`
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Account string `json:"account_id"`
	} `json:"tokens"`
}

func readCodexBytes(path string) ([]byte, error) {
	v, err := (&FileToken{Path: path}).read()
	if err != nil {
		return nil, err
	}
	defer v.Destroy()
	var b []byte
	v.UnsafeReveal(func(x []byte) { b = bytes.Clone(x) })
	return b, nil
}

// ReadCodex reads the file of a sign-in. Its errors contain nothing of the file.
func ReadCodex(path string) (*codexLogin, error) {
	b, err := readCodexBytes(path)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	var f codexAuthFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, errors.New("is not what codex writes")
	}
	switch {
	case f.Tokens != nil && f.Tokens.Access != "" && f.Tokens.Refresh != "" && (f.Mode == "chatgpt" || f.Mode == "" && f.Key == ""):
		l := &codexLogin{access: secret.NewString(f.Tokens.Access), refresh: secret.NewString(f.Tokens.Refresh), account: f.Tokens.Account}
		if !headerWord(l.account) {
			return nil, errors.New("has an account that is none")
		}
		said := Claims(f.Tokens.Access)
		if said.Exp > 0 {
			l.expires = time.Unix(said.Exp, 0)
		}
		for _, p := range []string{Claims(f.Tokens.ID).Auth.Plan, said.Auth.Plan} {
			if l.plan == "" && len(p) < 40 && strings.Trim(p, "abcdefghijklmnopqrstuvwxyz_") == "" {
				l.plan = p
			}
		}
		return l, nil
	case f.Key != "":
		return &codexLogin{access: secret.NewString(f.Key), Key: true}, nil
	}
	return nil, errors.New("says of no sign-in that could be used")
}

// headerWord reports whether s can stand in a header as it is.
func headerWord(s string) bool {
	return len(s) < 200 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

type codexClaims struct {
	Exp  int64 `json:"exp"`
	Auth struct {
		Plan string `json:"chatgpt_plan_type"`
	} `json:"https://api.openai.com/auth"`
}

// Claims returns a token's claims without verifying them: they only decide when the
// next token is requested.
func Claims(token string) (c codexClaims) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(b, &c) != nil {
		return codexClaims{}
	}
	return c
}

// Stand returns the file for inside the bottle: placeholders in the form that codex
// reads. They expire late, so codex asks for no new ones. Plan and account are the real
// ones, since codex looks for its account in the vendor's answers and refuses another.
// Nobody can sign in with them.
func (l *codexLogin) Stand() ([]byte, error) {
	plan := l.plan
	if plan == "" {
		plan = "unknown"
	}
	now := time.Now()
	token := func() (string, error) {
		head, err := json.Marshal(map[string]string{"alg": "RS256", "typ": "JWT"})
		if err != nil {
			return "", err
		}
		body, err := json.Marshal(map[string]any{
			"email": "placeholder@carboy.invalid", "iat": now.Unix(), "exp": now.AddDate(10, 0, 0).Unix(),
			"https://api.openai.com/auth": map[string]any{
				"chatgpt_plan_type": plan, "chatgpt_account_id": l.account, "chatgpt_user_id": "user-placeholder", "user_id": "user-placeholder",
			},
		})
		if err != nil {
			return "", err
		}
		// The empty line is JSON, too, and keeps a scanner from taking this for a real
		// one when the agent shows its file.
		e := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(append([]byte("\n"), b...)) }
		return e(head) + "." + e(body) + "." + e([]byte(Placeholder)), nil
	}
	t, err := token()
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(map[string]any{
		"auth_mode": "chatgpt", "OPENAI_API_KEY": nil, "last_refresh": now.UTC().Format(time.RFC3339Nano),
		"tokens": map[string]string{"id_token": t, "access_token": t, "refresh_token": Placeholder, "account_id": l.account},
	}, "", "  ")
}

// openCodex opens the credential of a sign-in.
func (r *CredentialReader) openCodex(rule string, c policy.Credential) (*credential.Credential, error) {
	const name = "codex-login"
	login, err := ReadCodex(c.OAuth.File)
	if err != nil {
		return nil, &fault.OptionError{Option: rule, Value: c.OAuth.File, Reason: err.Error(), Advice: "codex login"}
	}
	if login.Key {
		c.Scheme = credential.Bearer
		return credential.Open(name, c, login.access)
	}
	defer login.Destroy()
	o := credential.OAuthOptions{Roots: r.Roots, Refresh: &CodexSource{File: FileToken{Path: c.OAuth.File}}, JSON: true, Headers: map[string]string{}}
	if login.account != "" {
		o.Headers[codexAccount] = login.account
	}
	opened, err := credential.OpenOAuth(name, c, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rule, err)
	}
	return opened, nil
}

// CodexSource takes tokens from auth.json, which it shares with the host's codex: both
// write refreshed tokens there and read the other's. Codex does not lock the file;
// carboy's own runs take turns.
type CodexSource struct {
	File FileToken
	mu   sync.Mutex
	// own holds tokens that could not be written; only this run has them.
	own *codexLogin
	at  *codexLogin // as it was at the last Take
}

func (s *CodexSource) Take(ctx context.Context) (secret.Value, func(), error) {
	dir, err := unix.Open(filepath.Dir(s.File.Path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return secret.Value{}, nil, fmt.Errorf("%s: %w", s.File.Path, err)
	}
	done := sync.OnceFunc(func() { unix.Close(dir) })
	if err := lockWithin(ctx, dir); err != nil {
		done()
		return secret.Value{}, nil, fmt.Errorf("%s: %w", s.File.Path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at = s.own; s.own == nil {
		if s.at, err = ReadCodex(s.File.Path); err == nil && s.at.Key {
			err = errors.New("has an API key now: start anew")
		}
		if err != nil {
			s.at = nil
			done()
			return secret.Value{}, nil, fmt.Errorf("%s %w", s.File.Path, err)
		}
	}
	return s.at.refresh, done, nil
}

func (s *CodexSource) Access() (secret.Value, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		return secret.Value{}, time.Time{}
	}
	return s.at.access, s.at.expires
}

func (s *CodexSource) Put(v secret.Value) error { return s.PutAll(credential.Tokens{Refresh: v}) }

// PutAll writes the tokens as codex would. It keeps fields that it does not know.
func (s *CodexSource) PutAll(t credential.Tokens) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.at
	if !t.Access.Empty() {
		next.access = t.Access
		next.expires = time.Time{}
		if said := Claims(t.Access.UnsafeString()); said.Exp > 0 {
			next.expires = time.Unix(said.Exp, 0)
		}
	}
	if !t.Refresh.Empty() {
		next.refresh = t.Refresh
	}
	s.at, s.own = &next, nil
	err := s.write(t)
	if err != nil {
		s.own = &next
		return fmt.Errorf("codex's sign-in was refreshed, and could not be written to %s (%w): the one that is there may not be valid any more (codex login)", s.File.Path, err)
	}
	return nil
}

func (s *CodexSource) write(t credential.Tokens) error {
	b, err := readCodexBytes(s.File.Path)
	if err != nil {
		return err
	}
	defer clear(b)
	var all, tokens map[string]json.RawMessage
	if json.Unmarshal(b, &all) != nil || json.Unmarshal(all["tokens"], &tokens) != nil || tokens == nil {
		return errors.New("it is not what codex writes")
	}
	set := func(m map[string]json.RawMessage, name string, v any) error {
		raw, err := json.Marshal(v)
		m[name] = raw
		return err
	}
	for name, v := range map[string]string{"access_token": t.Access.UnsafeString(), "refresh_token": t.Refresh.UnsafeString(), "id_token": t.ID} {
		if v != "" {
			err = errors.Join(err, set(tokens, name, v))
		}
	}
	err = errors.Join(err, set(all, "tokens", tokens), set(all, "last_refresh", time.Now().UTC().Format(time.RFC3339Nano)))
	if err != nil {
		return errors.New("it can't be made")
	}
	out, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return errors.New("it can't be made")
	}
	defer clear(out)
	real, err := filepath.EvalSymlinks(s.File.Path) // people keep such files elsewhere
	if err != nil {
		return errors.New(fault.Cause(err))
	}
	return store.WriteFile(real, out, 0o600)
}

var _ credential.Sharer = (*CodexSource)(nil)
