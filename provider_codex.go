package carboy

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
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

const (
	openaiHost  = "api.openai.com"
	chatgptHost = "chatgpt.com"
	// codexTokens is where codex gets another access token, and codexClient what it
	// calls itself there.
	codexTokens = "https://auth.openai.com/oauth/token"
	codexAuth   = "auth.openai.com"
	codexClient = "app_EMoamEEZ73f0CkXaXp7hrann"
	// codexOther is the variable by which codex is sent to another server than that.
	codexOther = "CODEX_REFRESH_TOKEN_URL_OVERRIDE"
	// codexAccount is the header that says whose account of several is meant.
	codexAccount = "Chatgpt-Account-Id"
)

// launchCodex starts Codex, with an API key, or with what the host's has signed in
// with.
func launchCodex(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	program, err := l.program(c, e, o, "codex", "@openai/codex")
	if err != nil {
		return err
	}
	l.command = program
	switch {
	case o.Headless && o.resume:
		l.command = append(l.command, "exec", "resume", "--last", "--skip-git-repo-check")
	case o.Headless:
		l.command = append(l.command, "exec", "--skip-git-repo-check")
	case o.resume:
		l.command = append(l.command, "resume", "--last")
	}
	l.command = append(append(l.command, "--dangerously-bypass-approvals-and-sandbox"), e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		l.command = append(l.command, "-m", m)
	}
	if o.Headless {
		l.command = append(l.command, afterDashes(o.Prompt)...)
	}
	type object = map[string]any
	config := object{
		"check_for_update_on_startup": false, "cli_auth_credentials_store": "file",
		"analytics": object{"enabled": false}, "feedback": object{"enabled": false},
	}
	if l.workspace != "" {
		config["projects"] = object{l.workspace: object{"trust_level": "trusted"}}
	}
	if len(l.mcp) > 0 {
		servers := object{}
		for _, m := range l.mcp {
			servers[m.name] = object{"url": m.url, "tool_timeout_sec": toolsWait}
		}
		config["mcp_servers"] = servers
	}
	if err := l.toml(".codex/config.toml", config); err != nil {
		return err
	}
	l.text(".codex/AGENTS.md", e)
	l.addSkills(".codex/skills")
	l.sessions = []string{".codex/sessions"}
	if e.Provider.ForwardHostCredentials.V {
		return l.forwardCodex(c, e.Provider.ForwardHostCredentials.From)
	}
	if !l.keyed(openaiHost) {
		l.noteKey(openaiHost, "OPENAI_API_KEY", "auth_scheme: bearer")
	}
	return l.json(".codex/auth.json", object{"auth_mode": "apikey", "OPENAI_API_KEY": placeholder})
}

// forwardCodex has the gateway put on what the host's codex has signed in with. The
// file inside has the same form, and no token in it.
func (l *launch) forwardCodex(c *Client, from manifest.Origin) error {
	file := codexFile(c.env)
	login, err := readCodex(file)
	if err != nil {
		return &OptionError{Option: from.String(), Value: file, Reason: err.Error(), Advice: "codex login, with cli_auth_credentials_store = \"file\" in its config.toml"}
	}
	defer login.destroy()
	tokens := c.env(codexOther)
	if tokens == "" {
		tokens = codexTokens
	} else {
		l.notes = append(l.notes, "codex's sign-in is refreshed at "+tokens+" ("+codexOther+")")
	}
	cred := policy.Credential{Scheme: credential.Codex, OAuth: policy.OAuth{TokenURL: tokens, ClientID: codexClient, File: file, InBody: true}}
	if login.key {
		own := func(r policy.Route) bool { return reaches(r, openaiHost) }
		if err := l.putOn(own, cred, from, func() (policy.Route, error) { return policy.ParseAllow(openaiHost + ":443") }); err != nil {
			return err
		}
		return l.json(".codex/auth.json", map[string]any{"auth_mode": "apikey", "OPENAI_API_KEY": placeholder})
	}
	// Signing in, and refreshing, is done outside.
	if table, err := policy.Compile(l.routes...); err != nil {
		return err
	} else if v := table.Decide(codexAuth, 443); v.Allowed {
		return &OptionError{Option: from.String(), Value: v.Rule, Reason: "lets the bottle ask " + codexAuth + ", where sign-ins are refreshed", Advice: "leave that host out: carboy asks it itself"}
	}
	own := func(r policy.Route) bool { return reaches(r, chatgptHost) }
	if err := l.putOn(own, cred, from, func() (policy.Route, error) { return policy.ParseAllow(chatgptHost + ":443/backend-api") }); err != nil {
		return err
	}
	inside, err := login.stand()
	if err != nil {
		return err
	}
	l.file(".codex/auth.json", inside)
	return nil
}

// codexFile is where the host's codex keeps what it has signed in with.
func codexFile(lookup func(string) string) string {
	dir := lookup("CODEX_HOME")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(lookup("HOME"), ".codex")
	}
	return filepath.Join(dir, "auth.json")
}

// codexLogin is what auth.json has.
type codexLogin struct {
	access, refresh secret.Value // access is the API key, when key is set
	key             bool
	account         string
	plan            string
	expires         time.Time // of access; zero: it does not say
}

func (l *codexLogin) destroy() {
	l.access.Destroy()
	l.refresh.Destroy()
}

// codexAuthFile is the part of the file that is understood; the rest is kept as it is.
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
	v, err := (&fileToken{path: path}).read()
	if err != nil {
		return nil, err
	}
	defer v.Destroy()
	var b []byte
	v.UnsafeReveal(func(x []byte) { b = bytes.Clone(x) })
	return b, nil
}

// readCodex reads the file of a sign-in. No error holds any of it.
func readCodex(path string) (*codexLogin, error) {
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
		said := claims(f.Tokens.Access)
		if said.Exp > 0 {
			l.expires = time.Unix(said.Exp, 0)
		}
		for _, p := range []string{claims(f.Tokens.ID).Auth.Plan, said.Auth.Plan} {
			if l.plan == "" && len(p) < 40 && strings.Trim(p, "abcdefghijklmnopqrstuvwxyz_") == "" {
				l.plan = p
			}
		}
		return l, nil
	case f.Key != "":
		return &codexLogin{access: secret.NewString(f.Key), key: true}, nil
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

// claims are what a token says of itself; it is not verified, for it decides nothing
// but when the next one is asked for.
func claims(token string) (c codexClaims) {
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

// stand is the file inside: placeholders in the form that codex reads, of which it
// thinks that they are good for long, so that it asks for no others. Plan and
// account are the real ones: codex looks for its account in what the vendor answers,
// and works with no other. They sign nobody in.
func (l *codexLogin) stand() ([]byte, error) {
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
		return e(head) + "." + e(body) + "." + e([]byte(placeholder)), nil
	}
	t, err := token()
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(map[string]any{
		"auth_mode": "chatgpt", "OPENAI_API_KEY": nil, "last_refresh": now.UTC().Format(time.RFC3339Nano),
		"tokens": map[string]string{"id_token": t, "access_token": t, "refresh_token": placeholder, "account_id": l.account},
	}, "", "  ")
}

// openCodex opens the credential of a sign-in.
func (r *credentialReader) openCodex(rule string, c policy.Credential) (*credential.Credential, error) {
	const name = "codex-login"
	login, err := readCodex(c.OAuth.File)
	if err != nil {
		return nil, &OptionError{Option: rule, Value: c.OAuth.File, Reason: err.Error(), Advice: "codex login"}
	}
	if login.key {
		c.Scheme = credential.Bearer
		return credential.Open(name, c, login.access)
	}
	defer login.destroy()
	o := credential.OAuthOptions{Roots: r.roots, Refresh: &codexSource{file: fileToken{path: c.OAuth.File}}, JSON: true, Headers: map[string]string{}}
	if login.account != "" {
		o.Headers[codexAccount] = login.account
	}
	opened, err := credential.OpenOAuth(name, c, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", rule, err)
	}
	return opened, nil
}

// codexSource is auth.json as a place of tokens, which it shares with the host's
// codex: whoever refreshes writes it, and the other takes what is there. Codex does
// not lock it; carboy's own runs take turns.
type codexSource struct {
	file fileToken
	mu   sync.Mutex
	// own are tokens that could not be written: of this run alone.
	own *codexLogin
	at  *codexLogin // as it was at the last Take
}

func (s *codexSource) Take(ctx context.Context) (secret.Value, func(), error) {
	dir, err := unix.Open(filepath.Dir(s.file.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return secret.Value{}, nil, fmt.Errorf("%s: %w", s.file.path, err)
	}
	done := sync.OnceFunc(func() { unix.Close(dir) })
	if err := lockWithin(ctx, dir); err != nil {
		done()
		return secret.Value{}, nil, fmt.Errorf("%s: %w", s.file.path, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at = s.own; s.own == nil {
		if s.at, err = readCodex(s.file.path); err == nil && s.at.key {
			err = errors.New("has an API key now: start anew")
		}
		if err != nil {
			s.at = nil
			done()
			return secret.Value{}, nil, fmt.Errorf("%s %w", s.file.path, err)
		}
	}
	return s.at.refresh, done, nil
}

func (s *codexSource) Access() (secret.Value, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		return secret.Value{}, time.Time{}
	}
	return s.at.access, s.at.expires
}

func (s *codexSource) Put(v secret.Value) error { return s.PutAll(credential.Tokens{Refresh: v}) }

// PutAll writes what codex would have written. What it does not know it leaves.
func (s *codexSource) PutAll(t credential.Tokens) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.at
	if !t.Access.Empty() {
		next.access = t.Access
		next.expires = time.Time{}
		if said := claims(t.Access.UnsafeString()); said.Exp > 0 {
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
		return fmt.Errorf("codex's sign-in was refreshed, and could not be written to %s (%w): the one that is there may not be valid any more (codex login)", s.file.path, err)
	}
	return nil
}

func (s *codexSource) write(t credential.Tokens) error {
	b, err := readCodexBytes(s.file.path)
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
	real, err := filepath.EvalSymlinks(s.file.path) // people keep such files elsewhere
	if err != nil {
		return errors.New(cause(err))
	}
	return store.WriteFile(real, out, 0o600)
}

var _ credential.Sharer = (*codexSource)(nil)
