// Package attest signs and verifies in-toto statements in DSSE envelopes, and writes them
// in Sigstore's bundle format. Start reading at [Sign] and [Verify].
package attest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

// The types of statements and of their envelope.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	ProvenanceV1  = "https://slsa.dev/provenance/v1"
	PayloadType   = "application/vnd.in-toto+json"
)

// Statement is an in-toto statement: a predicate about subjects, which are named by
// digest.
type Statement struct {
	Type          string          `json:"_type"`
	Subject       []Descriptor    `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

// Descriptor is an in-toto resource descriptor.
type Descriptor struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

// Sign returns an envelope with the payload, an in-toto statement in JSON, and one
// signature.
func Sign(ctx context.Context, s dsse.Signer, payload []byte) (*dsse.Envelope, error) {
	es, err := dsse.NewEnvelopeSigner(s)
	if err != nil {
		return nil, err
	}
	return es.SignPayload(ctx, PayloadType, payload)
}

// Verify checks an envelope against a key that the caller trusts, and returns the payload.
// One of the signatures must be the key's.
func Verify(ctx context.Context, e *dsse.Envelope, key dsse.Verifier) ([]byte, error) {
	ev, err := dsse.NewEnvelopeVerifier(key)
	if err != nil {
		return nil, err
	}
	if _, err := ev.Verify(ctx, e); err != nil {
		return nil, err
	}
	if e.PayloadType != PayloadType {
		return nil, fmt.Errorf("it is of type %q", e.PayloadType[:min(len(e.PayloadType), 100)])
	}
	return e.DecodeB64Payload()
}

// KeyID returns the name of an Ed25519 key in envelopes: the SHA-256 of the public key, in
// hexadecimal digits.
func KeyID(k ed25519.PublicKey) string {
	sum := sha256.Sum256(k)
	return hex.EncodeToString(sum[:])
}

// A Key verifies with a public key: of Ed25519, or of ECDSA on P-256 with SHA-256.
type Key struct {
	public crypto.PublicKey
	id     string
}

// NewKey returns a Key. A public key of another kind is an error.
func NewKey(public crypto.PublicKey) (*Key, error) {
	switch k := public.(type) {
	case ed25519.PublicKey:
		if len(k) == ed25519.PublicKeySize {
			return &Key{k, KeyID(k)}, nil
		}
	case *ecdsa.PublicKey:
		if k.Curve.Params().Name == "P-256" {
			der, err := x509.MarshalPKIXPublicKey(k)
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(der)
			return &Key{k, hex.EncodeToString(sum[:])}, nil
		}
	}
	return nil, errors.New("the key is neither of Ed25519 nor of ECDSA on P-256")
}

// Verify implements dsse.Verifier.
func (k *Key) Verify(_ context.Context, data, sig []byte) error {
	good := false
	switch p := k.public.(type) {
	case ed25519.PublicKey:
		good = ed25519.Verify(p, data, sig)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(data)
		good = ecdsa.VerifyASN1(p, sum[:], sig)
	}
	if !good {
		return errors.New("the signature does not fit")
	}
	return nil
}

// KeyID implements dsse.Verifier.
func (k *Key) KeyID() (string, error) { return k.id, nil }

// Public implements dsse.Verifier.
func (k *Key) Public() crypto.PublicKey { return k.public }
