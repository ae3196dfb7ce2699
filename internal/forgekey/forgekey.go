// Package forgekey makes and revokes deploy keys. A deploy key is an ed25519 key for one
// bottle and one repository. The forge gets it when the bottle starts and removes it when
// the bottle ends. The private half never leaves this machine.
//
// The package never forgets a key. Before it sends a request to a forge, it writes the
// request and the key to disk. So after a crash, a time-out or a wrong answer at any point
// there is a record from which [Revoke] finds the key at the forge: by the key itself, not
// by an earlier answer. A key counts as revoked only when the forge lists the repository's
// keys without it. A key that cannot be revoked is a [LeftError], which says where a person
// can remove it.
//
// Start reading at [Make] and [Revoke]. Package forge calls the forge.
package forgekey

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Options configure making and revoking keys.
type Options struct {
	// Dir holds the keys and their records. It is made with mode 0700 if it does not exist.
	Dir   string
	Token secret.Value
	// Roots verify a forge's certificate. nil means the roots of this machine.
	Roots *x509.CertPool
	// Timeout bounds one call. Zero means 30 s.
	Timeout time.Duration
	// Resolver resolves the forge's name. nil means the resolver of this machine.
	Resolver forge.Resolver
}

// lookIn bounds the look for a key whose request failed.
const lookIn = 30 * time.Second

func open(o Options, to forge.Target) (*forge.Client, error) {
	return forge.Open(forge.Options{Provider: to.Provider, API: to.API, Token: o.Token, Roots: o.Roots, Timeout: o.Timeout, Resolver: o.Resolver})
}

// KeyRecord describes one key. It does not hold the private key.
type KeyRecord struct {
	Schema string `json:"schema"`
	// Name is the repository's name in the bottle. Title is the key's title at the forge.
	Name   string       `json:"name"`
	Title  string       `json:"title"`
	Target forge.Target `json:"target"`
	// Public is the key in the form of authorized_keys, without a comment.
	Public string `json:"public_key"`
	// TokenEnv is the host's environment variable that held the token.
	TokenEnv string    `json:"forge_token_env"`
	Asked    time.Time `json:"asked"`
	// ID is the forge's id of the key. It is empty after a request whose result is unknown.
	ID string `json:"id,omitempty"`
}

// Fingerprint returns the key's fingerprint as ssh-keygen -l shows it.
func (r *KeyRecord) Fingerprint() string {
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(r.Public))
	if err != nil {
		return ""
	}
	return ssh.FingerprintSHA256(k)
}

const recordKind = "deploy-key"

// LeftError means that a key may still be at a forge, and that this machine could not
// remove it.
type LeftError struct {
	Record KeyRecord
	Err    error
}

func (e *LeftError) Error() string {
	id := e.Record.ID
	if id == "" {
		id = "unknown"
	}
	return fmt.Sprintf("deploy key %s (id %s, %s) may still open %s: %v", e.Record.Title, id, e.Record.Fingerprint(), e.Record.Target.Repo, e.Err)
}

func (e *LeftError) Unwrap() error { return e.Err }

// Advice returns what a person should do about it.
func (e *LeftError) Advice() string {
	return "set " + secret.NameOrHidden(e.Record.TokenEnv) + " to a token of the forge and try again, or remove the key at " + e.Record.Target.Settings
}

// Key is a key that the forge has.
type Key struct {
	Signer ssh.Signer
	Record KeyRecord
}

// keyName reports whether s may be the name of a key and its record on disk: a name of a
// repository in a manifest, and not a path to another directory.
func keyName(s string) bool {
	return s != "" && len(s) <= 100 && s[0] != '.' && s[0] != '-' &&
		strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

const (
	recordSuffix = ".json"
	keySuffix    = ".key"
)

// Make makes a key and adds it at the forge. It first revokes an older key of that name.
// After an error, either the forge does not have the key, or the error is a [LeftError] and
// [Revoke] can use the record.
func Make(ctx context.Context, o Options, name, title string, to forge.Target, tokenEnv string) (*Key, error) {
	fail := func(err error) (*Key, error) { return nil, fmt.Errorf("deploy key for %s: %w", name, err) }
	if !keyName(name) {
		return fail(fmt.Errorf("%.40q is not a name of a repository", name))
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fail(err)
	}
	old, err := read(o.Dir, name)
	if err == nil {
		err = Revoke(ctx, o, *old)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fail(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return fail(err)
	}
	block, err := ssh.MarshalPrivateKey(private, title)
	if err != nil {
		return fail(err)
	}
	authorized, err := ssh.NewPublicKey(public)
	if err != nil {
		return fail(err)
	}
	rec := KeyRecord{
		Schema: store.Schema(recordKind), Name: name, Title: title, Target: to, TokenEnv: tokenEnv, Asked: time.Now().UTC(),
		Public: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(authorized))),
	}
	text := pem.EncodeToMemory(block)
	err = store.WriteFile(filepath.Join(o.Dir, name+keySuffix), text, 0o600)
	clear(text)
	if err == nil {
		err = rec.write(o.Dir)
	}
	if err != nil {
		return fail(errors.Join(err, drop(o.Dir, name)))
	}
	c, err := open(o, to)
	if err != nil {
		return fail(errors.Join(err, drop(o.Dir, name)))
	}
	defer c.Close()
	if err := rec.create(ctx, c); err != nil {
		var left *LeftError
		if !errors.As(err, &left) {
			err = errors.Join(err, drop(o.Dir, name))
		}
		return fail(err)
	}
	if err := rec.write(o.Dir); err != nil {
		// The key is at the forge, and its record is on disk.
		return fail(err)
	}
	return &Key{Signer: signer, Record: rec}, nil
}

// create adds the key at the forge and sets its id. It trusts an answer only if that holds
// the key. Otherwise the forge's list of keys decides.
func (r *KeyRecord) create(ctx context.Context, c *forge.Client) error {
	made, err := c.AddDeployKey(ctx, r.Target.Repo, r.Title, r.Public)
	if err == nil && made.ID != "" && sameKey(made.Key, r.Public) {
		r.ID = made.ID
		return nil
	}
	if err == nil {
		err = errors.New("the forge's answer does not have the key")
	}
	// The forge may have added the key in spite of the error. Look even if the caller has
	// gone away since.
	lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookIn)
	defer cancel()
	found, lerr := r.find(lctx, c)
	switch {
	case lerr != nil && declined(err):
		return err // without authentication there is no list either
	case lerr != nil:
		return &LeftError{*r, errors.Join(err, lerr)}
	case len(found) == 0:
		return err
	}
	r.ID = found[0].ID
	return nil
}

// declined reports whether err is an answer that says that the forge did nothing.
func declined(err error) bool {
	var e *forge.Error
	return errors.As(err, &e) && e.Code >= 400 && e.Code < 500 && e.Code != http.StatusRequestTimeout
}

// find lists the forge's keys that are r's public key. A key with only the same title
// belongs to another machine's bottle of that name.
func (r *KeyRecord) find(ctx context.Context, c *forge.Client) ([]forge.DeployKey, error) {
	keys, err := c.DeployKeys(ctx, r.Target.Repo)
	return slices.DeleteFunc(keys, func(k forge.DeployKey) bool { return !sameKey(k.Key, r.Public) }), err
}

// Revoke removes a key at the forge, and then here. A key that the forge no longer lists
// counts as removed. Otherwise the error is a [LeftError], and the record stays.
func Revoke(ctx context.Context, o Options, r KeyRecord) error {
	left := func(err error) error { return &LeftError{r, err} }
	if o.Token.Empty() {
		return left(errors.New(secret.NameOrHidden(r.TokenEnv) + ", which had the forge's token, is not set here"))
	}
	c, err := open(o, r.Target)
	if err != nil {
		return left(err)
	}
	defer c.Close()
	found, err := r.find(ctx, c)
	if err != nil {
		return left(err)
	}
	for _, k := range found {
		if r.ID == "" {
			r.ID = k.ID
		}
		err = errors.Join(err, c.RemoveDeployKey(ctx, r.Target.Repo, k.ID))
	}
	if len(found) > 0 {
		// A forge also answers 404 to a caller without access.
		still, lerr := r.find(ctx, c)
		switch {
		case lerr != nil:
			return left(errors.Join(err, lerr))
		case len(still) > 0 && err == nil:
			return left(errors.New("the forge says that it is removed, and lists it still"))
		case len(still) > 0:
			return left(err)
		}
	}
	if err := drop(o.Dir, r.Name); err != nil {
		return left(err)
	}
	return nil
}

// Left returns the records of keys that may be at a forge, by name. A record that cannot be
// read is an error: nobody would revoke its key.
func Left(dir string) ([]KeyRecord, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []KeyRecord
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && keyName(name) {
			r, err := read(dir, name)
			if err != nil {
				return nil, err
			}
			out = append(out, *r)
		}
	}
	return out, nil
}

func read(dir, name string) (*KeyRecord, error) {
	r := &KeyRecord{}
	path := filepath.Join(dir, name+recordSuffix)
	if err := store.ReadJSON(path, recordKind, r); err != nil {
		return nil, err
	}
	if !slices.Contains(forge.Providers(), r.Target.Provider) || r.Name != name || r.Fingerprint() == "" {
		return nil, fmt.Errorf("%s: not a record of a deploy key of %s", path, name)
	}
	return r, nil
}

func (r *KeyRecord) write(dir string) error {
	return store.WriteJSON(filepath.Join(dir, r.Name+recordSuffix), recordKind, r)
}

// drop removes the key and its record. The key goes first: a record without its key can
// still be revoked.
func drop(dir, name string) error {
	var errs []error
	for _, suffix := range []string{keySuffix, recordSuffix} {
		if err := os.Remove(filepath.Join(dir, name+suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sameKey compares two keys in the form of authorized_keys. It ignores comments, which
// forges drop or add.
func sameKey(a, b string) bool {
	x, y := strings.Fields(a), strings.Fields(b)
	return len(x) >= 2 && len(y) >= 2 && x[0] == y[0] && x[1] == y[1]
}
