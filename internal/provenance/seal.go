package provenance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/attest"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/secret"
)

// ErrOther means that another record was sealed for this commit. It is never replaced.
var ErrOther = errors.New("another record was sealed for this commit")

// SealOptions say how to seal.
type SealOptions struct {
	Build string // of carboy, as records name it
	// BundleKey is the file of a private key in PEM form, see attest.OpenPEM. With it the
	// record is written a second time beside the first, in Sigstore's format. Empty: not.
	BundleKey string
}

// Seal signs the record of a merged pull request, keeps it, and notes its digest in the
// audit log. It returns the digest, a SHA-256 in hexadecimal digits. Sealing the same facts
// again changes nothing, and completes what a crash cut off. Other facts for the same commit
// are ErrOther. An error that begins with "field" is of a fact that can't be sealed.
func (s *Store) Seal(ctx context.Context, facts *Facts, o SealOptions) (digest string, err error) {
	f, err := facts.normal()
	if err != nil {
		return "", err
	}
	n := name{f.Owner, f.Repo, f.Commit}
	defer func() {
		if err != nil {
			err = fmt.Errorf("seal the provenance of %s: %w", n, err)
		}
	}()
	var pem *attest.PEMSigner
	if o.BundleKey != "" {
		if pem, err = attest.OpenPEM(o.BundleKey); err != nil {
			return "", err
		}
	}
	unlock, err := s.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer unlock()
	file, statement, fresh, err := s.envelope(ctx, n, f, o.Build)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(file)
	digest = hex.EncodeToString(sum[:])
	all, err := s.records(ctx)
	if err != nil {
		return "", err
	}
	was := all[n]
	if was != nil && slices.ContainsFunc(was.sum, func(d string) bool { return d != digest }) {
		return "", fmt.Errorf("%w: the audit log has %s of it (record %d)", ErrOther, was.sum[0], was.seq)
	}
	if fresh {
		if err := s.write(n, suffix, file); err != nil {
			return "", err
		}
	}
	if was == nil {
		none := new(secret.Redactor)
		_, err := s.log.Append(ctx, audit.Event{
			Kind: audit.Sealed, Actor: audit.ByCarboy, Decision: audit.Noted, Subject: audit.Redact(none, n.String()),
			Digests: []audit.Digest{{Of: digestOf, Sum: sum}},
		})
		if err != nil {
			return "", err
		}
	}
	if pem != nil {
		err = s.bundle(ctx, n, pem, statement)
	}
	return digest, err
}

// envelope returns the signed record of f and the statement in it: the one that is there, if
// it has the same facts, or a fresh one.
func (s *Store) envelope(ctx context.Context, n name, f *Facts, build string) (file, statement []byte, fresh bool, err error) {
	file, statement, p, err := s.kept(ctx, n)
	if err == nil {
		was, err := encode(p.facts)
		if err != nil {
			return nil, nil, false, err
		}
		if now, err := encode(f); err != nil || !bytes.Equal(was, now) {
			return nil, nil, false, errors.Join(fmt.Errorf("%w: %s has other facts", ErrOther, s.file(n, suffix)), err)
		}
		return file, statement, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, false, err
	}
	if statement, err = payload(f, build, f.sources()); err != nil {
		return nil, nil, false, err
	}
	if _, err := parse(statement); err != nil { // nothing is sealed that Verify would refuse
		return nil, nil, false, err
	}
	signer, err := s.log.Attester()
	if err != nil {
		return nil, nil, false, err
	}
	e, err := attest.Sign(ctx, signer, statement)
	if err != nil {
		return nil, nil, false, err
	}
	file, err = encode(e)
	return file, statement, true, err
}

// kept returns the record that is there, its statement and what that says. The error is
// fs.ErrNotExist if there is none, and ErrOther if this user's key did not sign it.
func (s *Store) kept(ctx context.Context, n name) (file, statement []byte, p *parsed, err error) {
	if file, err = s.read(n, suffix); err != nil {
		return nil, nil, nil, err
	}
	key, err := s.key()
	if err != nil {
		return nil, nil, nil, err
	}
	if statement, err = openEnvelope(ctx, file, key); err == nil {
		p, err = parse(statement)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%w: %s: %w", ErrOther, s.file(n, suffix), err)
	}
	return file, statement, p, nil
}

// Sealed returns the facts that were sealed for a commit, nil if none were. Sealing them
// again completes what a crash cut off. A file that this user's key did not sign is ErrOther.
func (s *Store) Sealed(ctx context.Context, owner, repo, commit string) (*Facts, error) {
	if err := checkRepo(owner, repo); err != nil || !isCommit(commit) {
		return nil, err // Seal refuses the commit, and says why
	}
	_, _, p, err := s.kept(ctx, name{owner, repo, commit})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return p.facts, nil
}

// bundle writes the statement in Sigstore's format, unless that is there.
func (s *Store) bundle(ctx context.Context, n name, pem *attest.PEMSigner, statement []byte) error {
	b, err := s.read(n, bundleSuffix)
	if err == nil {
		e, err := bundled(b)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrOther, s.file(n, bundleSuffix), err)
		}
		// Of another key, perhaps: the configured one may have changed since.
		if was, err := e.DecodeB64Payload(); err != nil || !bytes.Equal(was, statement) {
			return fmt.Errorf("%w: %s has another statement", ErrOther, s.file(n, bundleSuffix))
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if b, err = attest.MakeBundle(ctx, pem, statement); err != nil {
		return err
	}
	return s.write(n, bundleSuffix, b)
}

// key returns the key of this user's audit log.
func (s *Store) key() (*attest.Key, error) { return logKey(s.log.PublicKey()) }

func logKey(vkey string) (*attest.Key, error) {
	pub, err := audit.PublicKey(vkey)
	if err != nil {
		return nil, err
	}
	return attest.NewKey(pub)
}

// openEnvelope checks a file against a key, and returns the statement in it.
func openEnvelope(ctx context.Context, file []byte, key *attest.Key) ([]byte, error) {
	var e dsse.Envelope
	if err := exactly(file, &e); err != nil {
		return nil, err
	}
	return open(ctx, &e, key)
}

// open checks an envelope with one signature against a key, and returns the payload.
func open(ctx context.Context, e *dsse.Envelope, key *attest.Key) ([]byte, error) {
	if len(e.Signatures) != 1 {
		return nil, fmt.Errorf("it has %d signatures, not one", len(e.Signatures))
	}
	b, err := attest.Verify(ctx, e, key)
	if err != nil {
		return nil, fmt.Errorf("the key did not sign it: %w", err)
	}
	return b, nil
}

// bundled returns the envelope in a bundle of Sigstore's format.
func bundled(file []byte) (*dsse.Envelope, error) {
	var b attest.Bundle
	if err := exactly(file, &b); err != nil {
		return nil, err
	}
	if b.MediaType != attest.BundleType || b.Envelope == nil {
		return nil, fmt.Errorf("field mediaType is %q, and this carboy reads %q", b.MediaType[:min(len(b.MediaType), 100)], attest.BundleType)
	}
	return b.Envelope, nil
}

// exactly reads a file into v. It refuses a file that encode would not write for v.
func exactly(file []byte, v any) error {
	if len(file) > maxFile {
		return fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err := decode(file, v); err != nil {
		return err
	}
	again, err := encode(v)
	if err == nil && !bytes.Equal(again, file) {
		err = errForm
	}
	return err
}
