package attest

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

const payload = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"tree","digest":{"gitCommit":"` + commit + `"}}],"predicateType":"https://example.org/p/v1","predicate":{"x":1}}`

const commit = "4bcf5b0d1a0e7d8c7a1d5d1f0a5a7e8f9b0c1d2e"

// keyFile writes a private key in PKCS 8, or in the form of its kind, and returns the file
// and the public key in PEM.
func keyFile(t *testing.T, key crypto.Signer, kind string) (file, public string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if k, ok := key.(*ecdsa.PrivateKey); ok && kind == "EC PRIVATE KEY" {
		der, err = x509.MarshalECPrivateKey(k)
	}
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))
}

func keys(t *testing.T) (ed ed25519.PrivateKey, p256, p384 *ecdsa.PrivateKey) {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(nil)
	p256, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	p384, err3 := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	return ed, p256, p384
}

// A bundle has the fields that Sigstore's format names, and its signature is one of DSSE's
// encoding, by the standard library alone.
func TestBundles(t *testing.T) {
	ed, p256, _ := keys(t)
	for name, x := range map[string]struct {
		key  crypto.Signer
		kind string
	}{"ed25519": {ed, "PRIVATE KEY"}, "P-256": {p256, "PRIVATE KEY"}, "P-256 of SEC 1": {p256, "EC PRIVATE KEY"}} {
		t.Run(name, func(t *testing.T) {
			file, public := keyFile(t, x.key, x.kind)
			s, err := OpenPEM(file)
			if err != nil {
				t.Fatal(err)
			}
			text, err := MakeBundle(t.Context(), s, []byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			var b struct {
				MediaType            string
				VerificationMaterial struct{ PublicKey struct{ Hint string } }
				DsseEnvelope         struct {
					PayloadType string
					Payload     []byte
					Signatures  []struct{ Sig []byte }
				}
			}
			if err := json.Unmarshal(text, &b); err != nil || b.MediaType != "application/vnd.dev.sigstore.bundle.v0.3+json" || len(b.DsseEnvelope.Signatures) != 1 {
				t.Fatalf("%s %v", text, err)
			}
			der, err := x509.MarshalPKIXPublicKey(x.key.Public())
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(der); b.VerificationMaterial.PublicKey.Hint != base64.StdEncoding.EncodeToString(sum[:]) {
				t.Errorf("the hint is %q", b.VerificationMaterial.PublicKey.Hint)
			}
			e := b.DsseEnvelope
			pae := fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(e.PayloadType), e.PayloadType, len(e.Payload), e.Payload)
			sum := sha256.Sum256(pae)
			if k, ok := x.key.(*ecdsa.PrivateKey); ok && !ecdsa.VerifyASN1(&k.PublicKey, sum[:], e.Signatures[0].Sig) || !ok && !ed25519.Verify(ed.Public().(ed25519.PublicKey), pae, e.Signatures[0].Sig) {
				t.Error("the signature is not DSSE's")
			}
			var st intoto.Statement
			if err := errors.Join(protojson.Unmarshal(e.Payload, &st), st.Validate()); err != nil {
				t.Error(err)
			}
			var own Bundle
			if err := json.Unmarshal(text, &own); err != nil {
				t.Fatal(err)
			}
			key, err := ParsePEM(public)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Verify(t.Context(), own.Envelope, key); err != nil || string(got) != payload {
				t.Errorf("%q %v", got, err)
			}
			altered := *own.Envelope
			altered.Payload = base64.StdEncoding.EncodeToString([]byte(strings.Replace(payload, "1}", "2}", 1)))
			if _, err := Verify(t.Context(), &altered, key); err == nil {
				t.Error("an altered payload verifies")
			}
			other, _, _ := keys(t)
			_, public = keyFile(t, other, "PRIVATE KEY")
			if key, err = ParsePEM(public); err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(t.Context(), own.Envelope, key); err == nil {
				t.Error("it verifies by another key")
			}
		})
	}
}

// An envelope of another type does not verify, though the key signed it.
func TestPayloadType(t *testing.T) {
	ed, _, _ := keys(t)
	file, public := keyFile(t, ed, "PRIVATE KEY")
	s, err := OpenPEM(file)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParsePEM(public)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Sign(t.Context(), s, []byte(payload))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(t.Context(), e, key); err != nil {
		t.Fatal(err)
	}
	const other = "text/plain"
	sig, err := s.Sign(context.Background(), fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(other), other, len(payload), payload))
	if err != nil {
		t.Fatal(err)
	}
	e.PayloadType, e.Signatures[0].Sig = other, base64.StdEncoding.EncodeToString(sig)
	if _, err := Verify(t.Context(), e, key); err == nil || !strings.Contains(err.Error(), "text/plain") {
		t.Errorf("another type: %v", err)
	}
}

// Keys of other kinds, keys that others can read, and what is no key, are refused; no
// message quotes the file.
func TestKeysThatAreRefused(t *testing.T) {
	ed, _, p384 := keys(t)
	good, public := keyFile(t, ed, "PRIVATE KEY")
	if _, err := OpenPEM(good); err != nil {
		t.Fatal(err)
	}
	big, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaFile, rsaPublic := keyFile(t, big, "PRIVATE KEY")
	wide, widePublic := keyFile(t, p384, "PRIVATE KEY")
	wrong, _ := keyFile(t, ed, "ENCRYPTED SIGSTORE PRIVATE KEY")
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, s string, mode os.FileMode) string {
		f := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.WriteFile(f, []byte(s), mode), os.Chmod(f, mode)); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for what, x := range map[string]struct{ file, want string }{
		"RSA":       {rsaFile, "neither"},
		"P-384":     {wide, "neither"},
		"encrypted": {wrong, "passphrase"},
		"open":      {write("a", string(text), 0o644), "chmod 600"},
		"nothing":   {write("b", "", 0o600), "no private key"},
		"two":       {write("c", string(text)+string(text), 0o600), "more than that"},
		"broken":    {write("d", "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", 0o600), "can't be read"},
		"large":     {write("e", string(text)+strings.Repeat("\n", maxPEM), 0o600), "more than"},
		"a folder":  {t.TempDir(), "owner alone"},
		"missing":   {filepath.Join(t.TempDir(), "x"), "no such file"},
	} {
		if _, err := OpenPEM(x.file); err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ParsePEM(public); err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]string{"RSA": rsaPublic, "P-384": widePublic, "nothing": "", "private": string(text), "two": public + public} {
		if _, err := ParsePEM(s); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	if _, err := NewKey(ed25519.PublicKey("short")); err == nil {
		t.Error("a short key is taken")
	}
}
