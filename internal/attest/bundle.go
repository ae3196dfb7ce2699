package attest

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"golang.org/x/sys/unix"
)

// BundleType is the media type of Sigstore's bundle format.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// Bundle is Sigstore's bundle of an envelope that a key signed, without certificates,
// entries of a log and timestamps.
type Bundle struct {
	MediaType string         `json:"mediaType"`
	Material  Material       `json:"verificationMaterial"`
	Envelope  *dsse.Envelope `json:"dsseEnvelope"`
}

// Material says which key signed a bundle.
type Material struct {
	PublicKey Hint `json:"publicKey"`
}

// Hint names a public key by the SHA-256 of its DER form, in base64. Nothing protects the
// hint: whoever verifies must know the key.
type Hint struct {
	Hint string `json:"hint"`
}

// MakeBundle signs the payload, and returns the bundle in JSON.
func MakeBundle(ctx context.Context, s *PEMSigner, payload []byte) ([]byte, error) {
	e, err := Sign(ctx, s, payload)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Bundle{BundleType, Material{Hint{s.hint}}, e}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// PEMSigner signs with the private key in a file. It implements dsse.Signer.
type PEMSigner struct {
	key  crypto.Signer
	hint string
	*Key
}

// maxPEM bounds a file with a key, in bytes.
const maxPEM = 64 << 10

// OpenPEM reads a private key of ECDSA on P-256 or of Ed25519 from a PEM file, as openssl
// genpkey writes it. The file must be readable by its owner alone. Encrypted keys are an
// error.
func OpenPEM(path string) (*PEMSigner, error) {
	b, err := readPrivate(path)
	if err != nil {
		return nil, err
	}
	block, rest := pem.Decode(b)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s holds no private key in PEM form, or more than that", path)
	}
	var key any
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("%s: a private key without a passphrase is needed: openssl genpkey -algorithm ed25519 makes one", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s can't be read as a private key", path) // the cause could quote it
	}
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: the key can't sign", path)
	}
	k, err := NewKey(s.Public())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	der, err := x509.MarshalPKIXPublicKey(s.Public())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	sum := sha256.Sum256(der)
	return &PEMSigner{s, base64.StdEncoding.EncodeToString(sum[:]), k}, nil
}

func readPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s must be a file that its owner alone can read: chmod 600 %s", path, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err == nil && len(b) > maxPEM {
		err = fmt.Errorf("%s has more than %d bytes", path, maxPEM)
	}
	return b, err
}

// Sign implements dsse.Signer.
func (s *PEMSigner) Sign(_ context.Context, data []byte) ([]byte, error) {
	if _, ok := s.key.(ed25519.PrivateKey); ok {
		return s.key.Sign(nil, data, crypto.Hash(0))
	}
	sum := sha256.Sum256(data)
	return s.key.Sign(rand.Reader, sum[:], crypto.SHA256)
}

// ParsePEM returns the public key in a PEM text, as openssl pkey -pubout writes it.
func ParsePEM(text string) (*Key, error) {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("it is no public key in PEM form")
	}
	p, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return NewKey(p)
}
