package propose

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// A Login is the file in which an agent's program, signed in outside, keeps a token that
// ends soon. carboy reads the token when a bottle starts, if the user has agreed to that
// once, and stands it in for the variable in which a user would give it. It never reads the
// token that makes new ones, and never writes the file.
type Login struct {
	File     string
	Variable string    // for which the token stands
	Expires  time.Time // of the token
	token    string
}

// claudeLogin is the variable for a token of a Claude account.
const claudeLogin = "CLAUDE_CODE_OAUTH_TOKEN"

const maxLogin = 64 << 10

// FindLogin returns the login of a template's program, nil if it has none. It is an error
// if the file can't be read or understood, or its token has ended.
func FindLogin(template string, env func(string) string) (*Login, error) {
	if template != "claude" || env(claudeLogin) != "" || env("ANTHROPIC_API_KEY") != "" {
		return nil, nil
	}
	dir := env("CLAUDE_CONFIG_DIR")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(env("HOME"), ".claude")
	}
	l := &Login{File: filepath.Join(dir, ".credentials.json"), Variable: claudeLogin}
	if err := l.read(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	if !time.Now().Before(l.Expires) {
		return nil, fmt.Errorf("the sign-in of Claude Code in %s ended at %s: run claude outside once, which renews it", l.File, l.Expires.Local().Format(time.DateTime))
	}
	return l, nil
}

func (l *Login) read() error {
	f, err := os.OpenFile(l.File, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLogin))
	if err != nil {
		return err
	}
	var has struct {
		Account struct {
			Token   string `json:"accessToken"`
			Expires int64  `json:"expiresAt"` // milliseconds
		} `json:"claudeAiOauth"`
	}
	if err := json.Unmarshal(b, &has); err != nil || !strings.HasPrefix(has.Account.Token, "sk-ant-oat") {
		return fmt.Errorf("%s holds no sign-in of Claude Code that carboy understands; set ANTHROPIC_API_KEY, or %s to what claude setup-token prints", l.File, claudeLogin)
	}
	l.token, l.Expires = has.Account.Token, time.UnixMilli(has.Account.Expires)
	return nil
}

// agreedLogin returns the file that says that the user lets carboy read logins of a
// template's program.
func agreedLogin(template, conf string) string { return filepath.Join(conf, "logins", template) }

// Agreed reports whether the user lets carboy read this file.
func (l *Login) Agreed(template, conf string) bool {
	had, err := os.ReadFile(agreedLogin(template, conf))
	return err == nil && string(had) == l.File+"\n"
}

// Agree notes that the user does.
func (l *Login) Agree(template, conf string) error {
	name := agreedLogin(template, conf)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return store.WriteFile(name, []byte(l.File+"\n"), 0o600)
}

// Over returns env, in which the login's token stands for its variable.
func (l *Login) Over(env func(string) string) func(string) string {
	return func(name string) string {
		if v := env(name); v != "" || name != l.Variable {
			return v
		}
		return l.token
	}
}

// WithLogins returns env, in which the token of a login that the user has agreed to stands
// for its variable.
func WithLogins(env func(string) string, conf func() (string, error)) func(string) string {
	return func(name string) string {
		if name == claudeLogin {
			dir, err := conf()
			if l, lerr := FindLogin("claude", env); err == nil && lerr == nil && l != nil && l.Agreed("claude", dir) {
				return l.token
			}
		}
		return env(name)
	}
}
