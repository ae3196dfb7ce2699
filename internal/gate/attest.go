package gate

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/carboy/carboy/internal/attest"
)

// VerdictType is the type of the predicate that holds a verdict.
const VerdictType = "https://carboy.dev/verdict/v1"

// statements returns the verdict, and how its phases ran (SLSA provenance), as statements
// about the change.
func (v *Verdict) statements() ([]attest.Statement, error) {
	subject := []attest.Descriptor{{Name: "tree", Digest: map[string]string{"sha256": v.Change.Digest}}}
	if v.Change.Commit != "" {
		subject[0].Digest["gitCommit"] = v.Change.Commit
	}
	verdict, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	type phase struct {
		Signal, On string
		Command    []string
	}
	var phases []phase
	var made []attest.Descriptor
	for _, p := range v.Phases {
		phases = append(phases, phase{p.Signal, p.On, p.Command})
		if p.Trace != "" {
			made = append(made, attest.Descriptor{Name: "trace of " + p.Signal + " on the " + p.On, Digest: map[string]string{"sha256": p.Trace}})
		}
	}
	deps := []attest.Descriptor{
		{Name: "base", Digest: map[string]string{"sha256": v.Base.Digest}},
		{Name: "catalog", Digest: map[string]string{"sha256": v.CatalogDigest}},
	}
	if v.Baseline != "" {
		deps = append(deps, attest.Descriptor{Name: "baseline", Digest: map[string]string{"sha256": v.Baseline}})
	}
	slsa, err := json.Marshal(map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            "https://carboy.dev/gate/v1",
			"externalParameters":   map[string]any{"base": v.Base.Name, "change": v.Change.Name, "catalog": v.Catalog, "override": v.Override, "granted": v.Granted, "baselineSignedBy": v.BaselineBy},
			"internalParameters":   map[string]any{"phases": phases, "isolation": v.Isolation},
			"resolvedDependencies": deps,
		},
		"runDetails": map[string]any{
			"builder":    map[string]any{"id": "https://carboy.dev/carboy", "version": map[string]string{"carboy": v.Build}},
			"metadata":   map[string]any{"invocationId": v.ID, "startedOn": v.At.Add(-v.Duration), "finishedOn": v.At},
			"byproducts": made,
		},
	})
	if err != nil {
		return nil, err
	}
	return []attest.Statement{
		{Type: attest.StatementType, Subject: subject, PredicateType: VerdictType, Predicate: verdict},
		{Type: attest.StatementType, Subject: subject, PredicateType: attest.ProvenanceV1, Predicate: slsa},
	}, nil
}

// Signer signs attestations with an Ed25519 key of this user.
type Signer struct{ key ed25519.PrivateKey }

// OpenSigner reads the key in dir. On first use it creates the key with mode 0600, and
// its public part beside it.
func OpenSigner(dir string) (*Signer, error) {
	path := filepath.Join(dir, "key")
	for range 2 {
		seed, err := os.ReadFile(path)
		if err == nil {
			if len(seed) != ed25519.SeedSize {
				return nil, fmt.Errorf("%s is not a key", path)
			}
			s := &Signer{ed25519.NewKeyFromSeed(seed)}
			return s, s.publish(path + ".pub")
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err := makeKey(dir, path); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s can't be made", path)
}

func makeKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	_, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	// A hard link publishes the whole file: two processes that start at once agree on one
	// key.
	f, err := os.CreateTemp(dir, ".key")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(priv.Seed())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Link(f.Name(), path)
}

// publish writes the public part if it is missing: the process that made the key may have
// died before.
func (s *Signer) publish(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".pub")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(s.PublicKey() + "\n")
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Sign implements dsse.Signer.
func (s *Signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.key, data), nil
}

// KeyID implements dsse.Signer: it returns the SHA-256 of the public key.
func (s *Signer) KeyID() (string, error) { return attest.KeyID(s.public()), nil }

func (s *Signer) public() ed25519.PublicKey { return s.key.Public().(ed25519.PublicKey) }

// PublicKey returns the public key in base64.
func (s *Signer) PublicKey() string { return base64.StdEncoding.EncodeToString(s.public()) }

// Attest signs the verdict's statements, each in a DSSE envelope of its own.
func (v *Verdict) Attest(ctx context.Context, s *Signer) ([]*dsse.Envelope, error) {
	list, err := v.statements()
	if err != nil {
		return nil, err
	}
	var out []*dsse.Envelope
	for _, st := range list {
		b, err := json.Marshal(st)
		if err != nil {
			return nil, err
		}
		e, err := attest.Sign(ctx, s, b)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// VerifyAttestation checks an envelope against key, an Ed25519 public key in base64 that
// the caller trusts, and returns the statement.
func VerifyAttestation(ctx context.Context, e *dsse.Envelope, key string) (*attest.Statement, error) {
	pub, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(pub) != ed25519.PublicKeySize {
		return nil, errors.New("verify attestation: the key is not an Ed25519 public key in base64")
	}
	k, err := attest.NewKey(ed25519.PublicKey(pub))
	if err != nil {
		return nil, fmt.Errorf("verify attestation: %w", err)
	}
	b, err := attest.Verify(ctx, e, k)
	if err != nil {
		return nil, fmt.Errorf("verify attestation: %w", err)
	}
	var st attest.Statement
	if err := json.Unmarshal(b, &st); err != nil || st.Type != attest.StatementType {
		return nil, errors.New("verify attestation: it is not an in-toto statement")
	}
	return &st, nil
}
