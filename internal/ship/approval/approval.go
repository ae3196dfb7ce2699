// Package approval signs and verifies approvals of plans. An approval is a statement that
// names the approved plans by their digests, signed with an SSH key.
//
// The statement is a JSON document, and the signature an SSHSIG over its bytes, so
// ssh-keygen -Y verify checks them without carboy:
//
//	ssh-keygen -Y verify -f allowed_signers -I alice@example.org -n carboy-ship@carboy.dev -s approval.json.sig < approval.json
//
// [Signers.Verify] accepts a statement only if the operator's allowed_signers lists the
// signing key for the named approver, for this namespace and at this time.
//
// Start reading at [Statement], then [Signers.Verify].
package approval

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ship/module"
)

const (
	// Namespace distinguishes these signatures from those of mails, commits and files.
	Namespace = "carboy-ship@carboy.dev"
	// schema identifies the format of a statement.
	schema = "carboy.dev/ship-approval/v1"
	// SignersFile is the name of the file in the operator's configuration directory.
	SignersFile = "allowed_signers"
	// MaxSize bounds a statement, and MaxSignature a signature, in bytes.
	MaxSize      = 64 << 10
	MaxSignature = 16 << 10
	// MaxPlans bounds the plans of one approval; there is one for each host.
	MaxPlans = 32
	// Destructive in Statement.Allow approves destructive changes.
	Destructive = "destructive"
)

// ErrMismatch matches every error about an approval that is invalid or does not apply.
var ErrMismatch = errors.New("approval does not match")

type mismatch string

func (m mismatch) Error() string      { return string(m) }
func (mismatch) Is(target error) bool { return target == ErrMismatch }

// Mismatch returns an error that matches [ErrMismatch].
func Mismatch(format string, args ...any) error { return mismatch(fmt.Sprintf(format, args...)) }

// Statement is the signed document.
type Statement struct {
	Schema   string    `json:"schema"`
	Plans    []string  `json:"plans"`  // SHA-256 of each plan, in hexadecimal digits, sorted
	Commit   string    `json:"commit"` // of all of them
	Module   string    `json:"module"`
	Approver string    `json:"approver"` // as in allowed_signers
	Time     time.Time `json:"time"`
	Purpose  string    `json:"purpose"`
	// Allow contains [Destructive] if destructive changes are approved too.
	Allow []string `json:"allow,omitempty"`
	// Nonce makes each approval unique: 32 hexadecimal digits.
	Nonce string `json:"nonce"`
}

// Signed is a statement with its signature, both unverified.
type Signed struct {
	Statement []byte `json:"statement"`
	Signature []byte `json:"signature"`
}

// Digest returns the SHA-256 of the statement in hexadecimal digits. It identifies an
// approval.
func (s Signed) Digest() string {
	sum := sha256.Sum256(s.Statement)
	return hex.EncodeToString(sum[:])
}

// Approval is a statement whose signature was verified by a [Verifier].
type Approval struct {
	Statement
	Digest string
	Key    string // fingerprint of the signing key
}

// Verifier verifies signed approvals. [Signers] verifies SSH signatures. Reviews at a forge
// are signed by nobody, so they are no such approvals: see package reviews.
type Verifier interface {
	Verify(ctx context.Context, s Signed, now time.Time) (*Approval, error)
}

var (
	digest   = module.NewPattern(`^[0-9a-f]{64}$`)
	commit   = module.NewPattern(`^[0-9a-f]{40}$`)
	approver = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)
	nonce    = module.NewPattern(`^[0-9a-f]{32}$`)
)

// maxPurpose bounds a purpose, in bytes.
const maxPurpose = 500

// check returns what is wrong with a statement, apart from its signature.
func (s *Statement) check() error {
	switch {
	case s.Schema != schema:
		return fmt.Errorf("schema %.80q is not %s", s.Schema, schema)
	case len(s.Plans) == 0 || len(s.Plans) > MaxPlans || !slices.IsSorted(s.Plans) || len(slices.Compact(slices.Clone(s.Plans))) != len(s.Plans):
		return errors.New("plans: not a sorted list of different plans")
	case slices.ContainsFunc(s.Plans, func(p string) bool { return !digest.MatchString(p) }):
		return errors.New("plans: not SHA-256 digests")
	case !commit.MatchString(s.Commit):
		return errors.New("commit: not 40 hexadecimal digits")
	case !approver.MatchString(s.Approver):
		return fmt.Errorf("approver: %.80q is not a name such as alice@example.org", s.Approver)
	case s.Time.IsZero():
		return errors.New("time: missing")
	case strings.TrimSpace(s.Purpose) == "" || len(s.Purpose) > maxPurpose || !utf8.ValidString(s.Purpose) || strings.ContainsAny(s.Purpose, "\r\n"):
		return errors.New("purpose: say in a line what for")
	case !nonce.MatchString(s.Nonce):
		return errors.New("nonce: not 32 hexadecimal digits")
	}
	for _, a := range s.Allow {
		if a != Destructive {
			return fmt.Errorf("allow: %.80q is not known", a)
		}
	}
	return nil
}

// New returns a statement with a new nonce.
func New(plans []string, commit, module, approver, purpose string, destructive bool, now time.Time) Statement {
	n := make([]byte, 16)
	rand.Read(n)
	s := Statement{Schema: schema, Plans: slices.Sorted(slices.Values(plans)), Commit: commit, Module: module, Approver: approver,
		Time: now.UTC().Truncate(time.Second), Purpose: purpose, Nonce: hex.EncodeToString(n)}
	if destructive {
		s.Allow = []string{Destructive}
	}
	return s
}

// encode returns the statement's only valid encoding.
func (s *Statement) encode() ([]byte, error) {
	b, err := json.MarshalIndent(s, "", "  ")
	return append(b, '\n'), err
}

// Sign signs a statement.
func Sign(s Statement, key ssh.Signer) (Signed, error) {
	if err := s.check(); err != nil {
		return Signed{}, fmt.Errorf("approve: %w", err)
	}
	b, err := s.encode()
	if err != nil {
		return Signed{}, err
	}
	sig, err := SignText(b, Namespace, key)
	if err != nil {
		return Signed{}, fmt.Errorf("approve: %w", err)
	}
	return Signed{Statement: b, Signature: sig}, nil
}

// Signers verifies signatures against a file of allowed signers in the format of
// ssh-keygen(1). Patterns and certificates are not supported, so the file lists every
// approver explicitly.
type Signers struct{ list []signer }

type signer struct {
	principals    []string
	key           ssh.PublicKey
	namespaces    []string // nil: all
	after, before time.Time
}

// ParseSigners parses a file of allowed signers; file is its name in errors.
func ParseSigners(file string, data []byte) (*Signers, error) {
	out := &Signers{}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s, err := parseSigner(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		out.list = append(out.list, s)
	}
	return out, nil
}

func parseSigner(line string) (s signer, err error) {
	names, rest, ok := strings.Cut(line, " ")
	if !ok {
		return s, errors.New("a line is: NAME KEYTYPE KEY")
	}
	for _, n := range strings.Split(names, ",") {
		if !approver.MatchString(n) {
			return s, fmt.Errorf("%.80q is not a name; patterns are not taken", n)
		}
		s.principals = append(s.principals, n)
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(rest))
	if err != nil {
		return s, errors.New("no public key; a line is: NAME KEYTYPE KEY")
	}
	if _, cert := key.(*ssh.Certificate); cert {
		return s, errors.New("certificates are not taken; write the key")
	}
	s.key = key
	for _, o := range options {
		name, value, _ := strings.Cut(o, "=")
		value = strings.Trim(value, `"`)
		switch strings.ToLower(name) {
		case "namespaces":
			s.namespaces = strings.Split(value, ",")
		case "valid-after":
			s.after, err = moment(value)
		case "valid-before":
			s.before, err = moment(value)
		default:
			err = fmt.Errorf("option %.40q is not taken", name)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// moment parses a time as ssh-keygen does: YYYYMMDD[HHMM[SS]], local unless Z follows.
func moment(v string) (time.Time, error) {
	where := time.Local
	digits, utc := strings.CutSuffix(v, "Z")
	if utc {
		where = time.UTC
	}
	for _, form := range []string{"20060102", "200601021504", "20060102150405"} {
		if t, err := time.ParseInLocation(form, digits, where); err == nil && len(form) == len(digits) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is not a time such as 20270101", v)
}

// Verify implements [Verifier]. The error matches [ErrMismatch].
func (s *Signers) Verify(_ context.Context, in Signed, now time.Time) (*Approval, error) {
	if len(in.Statement) > MaxSize || len(in.Signature) > MaxSignature {
		return nil, Mismatch("approval: too long")
	}
	var st Statement
	d := json.NewDecoder(bytes.NewReader(in.Statement))
	d.DisallowUnknownFields()
	if err := d.Decode(&st); err != nil {
		return nil, Mismatch("approval: not a statement: %v", err)
	}
	if err := st.check(); err != nil {
		return nil, Mismatch("approval: %v", err)
	}
	// Accept only our own encoding, so that a person and carboy read the same in it.
	if again, err := st.encode(); err != nil || !bytes.Equal(again, in.Statement) {
		return nil, Mismatch("approval: was edited or formatted since carboy wrote it")
	}
	if st.Time.After(now.Add(5 * time.Minute)) {
		return nil, Mismatch("approval: made at %s, which is still to come", st.Time.Format(time.RFC3339))
	}
	key, err := s.Signed(in, Namespace, st.Approver, st.Time, now)
	if err != nil {
		return nil, Mismatch("approval: %v", err)
	}
	return &Approval{Statement: st, Digest: in.Digest(), Key: key}, nil
}

// Allow reports whether anybody may sign in a namespace.
func (s *Signers) Allow(namespace string) bool {
	return slices.ContainsFunc(s.list, func(who signer) bool { return who.namespaces == nil || slices.Contains(who.namespaces, namespace) })
}

// Signed verifies a signature by name in a namespace and returns the fingerprint of its
// key. The key must have been valid at the time of signing and be valid now. The error
// matches [ErrMismatch].
func (s *Signers) Signed(in Signed, namespace, name string, at, now time.Time) (string, error) {
	if len(in.Signature) > MaxSignature {
		return "", Mismatch("signature: too long")
	}
	sig, err := sshsig.Unarmor(in.Signature) // rejects signatures with SHA-1
	if err != nil {
		return "", Mismatch("signature: %v", err)
	}
	if err := s.May(namespace, name, sig.PublicKey, at, now); err != nil {
		return "", err
	}
	if err := sshsig.Verify(bytes.NewReader(in.Statement), sig, sig.PublicKey, sig.HashAlgorithm, namespace); err != nil {
		return "", Mismatch("signature of %s: %v", name, err)
	}
	return ssh.FingerprintSHA256(sig.PublicKey), nil
}

// May returns an error unless name may sign with a key in a namespace, both at the time at
// and now. The error matches [ErrMismatch].
func (s *Signers) May(namespace, name string, key ssh.PublicKey, at, now time.Time) error {
	for _, who := range s.list {
		if !bytes.Equal(who.key.Marshal(), key.Marshal()) || !slices.Contains(who.principals, name) {
			continue
		}
		switch {
		case who.namespaces != nil && !slices.Contains(who.namespaces, namespace):
			return Mismatch("the key of %s is allowed for other purposes only", name)
		case !who.after.IsZero() && (at.Before(who.after) || now.Before(who.after)), !who.before.IsZero() && (at.After(who.before) || now.After(who.before)):
			return Mismatch("the key of %s is not valid at this time", name)
		}
		return nil
	}
	return Mismatch("%s does not allow the key %s for %s", SignersFile, ssh.FingerprintSHA256(key), name)
}

// SignText signs a text in a namespace and returns the armored SSHSIG.
func SignText(text []byte, namespace string, key ssh.Signer) ([]byte, error) {
	sig, err := sshsig.Sign(bytes.NewReader(text), key, sshsig.HashSHA512, namespace)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return sshsig.Armor(sig), nil
}

// ValidName reports whether s can be a name in [SignersFile].
func ValidName(s string) bool { return approver.MatchString(s) }
