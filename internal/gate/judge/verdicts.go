package judge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/gate"
)

// AttestVerdict writes the attestations of a verdict, one DSSE envelope a line, signed with
// this user's key. It returns the public key.
func (c *Judge) AttestVerdict(ctx context.Context, ref string, w io.Writer) (key string, err error) {
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	s, err := gate.OpenSigner(c.GateDir("key"))
	if err != nil {
		return "", err
	}
	list, err := v.Attest(ctx, s)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		b, err := json.Marshal(e)
		if err != nil {
			return "", err
		}
		if _, err := w.Write(append(b, '\n')); err != nil {
			return "", err
		}
	}
	return s.PublicKey(), nil
}

// CheckVerdict compares the files beside a recorded verdict with the digests in it:
// evidence, inputs and the proposed baseline. An ErrLedger names the files that differ. If
// the verdict was removed meanwhile, the error is ErrNoVerdict.
func (c *Judge) CheckVerdict(ctx context.Context, v *gate.Verdict, dir string) error {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return err
	}
	defer release()
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("verdict %s: %w", v.ID, ErrNoVerdict)
	}
	if err != nil {
		return err
	}
	defer root.Close()
	found, err := v.Check(ctx, root)
	if err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("verdict %s: %w: %s", v.ID, ErrLedger, strings.Join(found, "; "))
}

// VerdictEvidence returns one file of a verdict's evidence. phase is a signal and the tree
// of gate.Phase.On, such as tests-base or tests-old-tests; name is stdout, stderr,
// observed.json, receipt.json or trace. The bytes are untrusted: show them through package
// safetext.
func (c *Judge) VerdictEvidence(ctx context.Context, ref, phase, name string) ([]byte, error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	v, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Join(dir, "evidence"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(phase + "/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, maxEvidence+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxEvidence {
		return nil, fmt.Errorf("%s of %s has more than %d bytes: read it in %s", name, phase, maxEvidence, dir)
	}
	for _, p := range v.Phases {
		if p.Signal+"-"+p.On == phase && p.Evidence[name] == HexSum(b.Bytes()) {
			return b.Bytes(), nil
		}
	}
	return nil, fmt.Errorf("verdict %s: %s of %s: %w: its text was changed", v.ID, name, phase, ErrLedger)
}

// maxEvidence bounds a file of evidence that is read into memory, in bytes.
const maxEvidence = 64 << 20
