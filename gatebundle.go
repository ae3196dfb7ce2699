package carboy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/carboy/carboy/internal/gate"
)

// A verdict in a directory of its own, for somebody who has neither the repository, nor
// this machine's state, nor a network: the verdict, all that it names, and its signed
// attestations.

// attestationFile has an envelope on each line.
const attestationFile = "verdict.intoto.jsonl"

// maxBundled bounds a file of a bundle that is read whole, in bytes.
const maxBundled = 64 << 20

// BundleVerdict writes a verdict with its evidence, as it was recorded, and its
// attestations into dir, which must not be there, and gives the key that verifies.
func (c *Client) BundleVerdict(ctx context.Context, ref, dir string) (key string, err error) {
	v, from, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	if err := c.CheckVerdict(ctx, v, from); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	src, err := os.OpenRoot(from)
	if err != nil {
		return "", err
	}
	defer src.Close()
	to, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer to.Close()
	for _, name := range append(slices.Sorted(maps.Keys(v.Files())), gate.VerdictFile) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := copyInto(to, src, name); err != nil {
			return "", err
		}
	}
	var b bytes.Buffer
	if key, err = c.AttestVerdict(ctx, v.ID, &b); err != nil {
		return "", err
	}
	return key, to.WriteFile(attestationFile, b.Bytes(), 0o644)
}

func copyInto(to, from *os.Root, name string) error {
	r, err := from.Open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	fi, err := r.Stat()
	if err != nil {
		return err
	}
	if fi.Size() > gate.MaxInBundle {
		return fmt.Errorf("%s has %d bytes, and a bundle's files have %d at most: set a lower trace.max_mib, and judge again", name, fi.Size(), int64(gate.MaxInBundle))
	}
	if err := to.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	w, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// BundleReport is what VerifyBundle found.
type BundleReport struct {
	Schema string `json:"schema"`
	// Intact: the key signed this verdict, and all that lies there is what it says.
	Intact bool `json:"intact"`
	// Verdict is what the key signed; nil: it signed none.
	Verdict *gate.Verdict `json:"verdict,omitempty"`
	Files   int           `json:"files"` // that were compared
	// Findings name what is not as it was, each in a line.
	Findings []string `json:"findings"`
}

// VerifyBundle checks what BundleVerdict wrote by a public key that the caller trusts, in
// base64, and by nothing else of this machine: nothing else may lie there, and no file of
// more than gate.MaxInBundle bytes. An error means that it could not be read at all; what
// is wrong with it is in the report.
func VerifyBundle(ctx context.Context, dir, key string) (*BundleReport, error) {
	r := &BundleReport{Schema: "carboy.dev/gate-bundle/v1", Findings: []string{}}
	say := func(format string, a ...any) (*BundleReport, error) {
		r.Findings = append(r.Findings, fmt.Sprintf(format, a...))
		return r, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	signed, err := readBounded(root, attestationFile)
	if err != nil {
		return say("%s can't be read: %v", attestationFile, err)
	}
	text, err := readBounded(root, gate.VerdictFile)
	if err != nil {
		return say("%s can't be read: %v", gate.VerdictFile, err)
	}
	var types, trees []string
	for line := range bytes.Lines(signed) {
		var e dsse.Envelope
		if err := json.Unmarshal(line, &e); err != nil {
			return say("%s: it is no envelope: %v", attestationFile, err)
		}
		st, err := gate.VerifyAttestation(ctx, &e, key)
		if err != nil {
			return say("%s: %v", attestationFile, err)
		}
		if st.PredicateType == gate.VerdictType {
			if r.Verdict, err = gate.ParseVerdict(st.Predicate); err != nil {
				return say("%s: %v", attestationFile, err)
			}
		}
		types = append(types, st.PredicateType)
		for _, s := range st.Subject {
			trees = append(trees, s.Digest["sha256"])
		}
	}
	if !slices.Equal(types, []string{gate.VerdictType, gate.ProvenanceV1}) {
		r.Verdict = nil
		return say("%s has not one verdict and one provenance", attestationFile)
	}
	if trees = slices.Compact(trees); len(trees) != 1 || trees[0] != r.Verdict.Change.Digest {
		return say("%s is of another tree than the verdict", attestationFile)
	}
	want, err := r.Verdict.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(want, text) {
		r.Findings = append(r.Findings, gate.VerdictFile+" is not the verdict that was signed")
	}
	found, err := r.Verdict.CheckBundle(ctx, root, attestationFile)
	if err != nil {
		return nil, err
	}
	r.Findings = append(r.Findings, found...)
	r.Files = len(r.Verdict.Files())
	r.Intact = len(r.Findings) == 0
	return r, nil
}

func readBounded(root *os.Root, name string) ([]byte, error) {
	fi, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxBundled {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", name, maxBundled)
	}
	return root.ReadFile(name)
}
