package judge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/carboy/carboy/internal/attest"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/safetext"
)

// A bundle is a directory with a verdict, all its files and its signed attestations. It
// can be verified without the repository, this machine's state or a network.

// AttestationFile holds one DSSE envelope a line.
const AttestationFile = "verdict.intoto.jsonl"

// maxBundled bounds a file of a bundle that is read into memory, in bytes.
const maxBundled = 64 << 20

// BundleVerdict writes a verdict with its evidence and attestations to dir, which must not
// exist. It returns the public key that verifies the bundle.
func (c *Judge) BundleVerdict(ctx context.Context, ref, dir string) (key string, err error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return "", err
	}
	defer release()
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
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir)) // half a bundle is in the next one's way
		}
	}()
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
	return key, to.WriteFile(AttestationFile, b.Bytes(), 0o644)
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
	if fi.Size() > gate.MaxBundleFile {
		return fmt.Errorf("%s has %d bytes, and a bundle's files have %d at most: set a lower trace.max_mib, and judge again", name, fi.Size(), int64(gate.MaxBundleFile))
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

// BundleOptions sets whose verdict a bundle must be, and on which change. The change must
// be named: a bundle that was signed for another change is intact, too.
type BundleOptions struct {
	// Key is the public Ed25519 key that must have signed, in base64. It must come from
	// the person who judged, not from the bundle.
	Key string
	// Commit is the full name of the commit that must have been judged, and Tree the
	// SHA-256 of its tree as verdicts have it, in hexadecimal digits. At least one is
	// needed; a run's change has a tree alone.
	Commit, Tree string
	// Base is the full name of the commit that it must have been compared with, and Catalog
	// the SHA-256 of the catalog's file. Empty: any that the key signed.
	Base, Catalog string
	// NoOverride refuses a verdict that a person overrode.
	NoOverride bool
}

// check returns an error if the options name no change, or if a name is not a full hash.
func (o *BundleOptions) check() error {
	if o.Commit == "" && o.Tree == "" {
		return &fault.OptionError{Option: "--commit", Reason: "is needed, or --tree: a verdict on another change is as intact as the one on this", Advice: `say which change it must be of: --commit "$(git rev-parse HEAD)"`}
	}
	for _, x := range []struct {
		name, value, advice string
		sizes               []int
	}{
		{"--commit", o.Commit, `write all of its name: --commit "$(git rev-parse HEAD)"`, []int{40, 64}},
		{"--tree", o.Tree, "write all 64 digits, as change.sha256 of carboy gate explain --json has them", []int{64}},
		{"--base", o.Base, `write all of its name: --base "$(git rev-parse origin/main)"`, []int{40, 64}},
		{"--catalog", o.Catalog, "write all 64 digits, as sha256sum prints them", []int{64}},
	} {
		if x.value != "" && !(slices.Contains(x.sizes, len(x.value)) && strings.Trim(x.value, "0123456789abcdef") == "") {
			return &fault.OptionError{Option: x.name, Value: safetext.String(x.value, 80), Reason: "is no whole hash", Advice: x.advice}
		}
	}
	return nil
}

// other lists how a verdict differs from what the options ask for.
func (o *BundleOptions) other(v *gate.Verdict) (found []string) {
	for _, x := range []struct{ what, want, got string }{
		{"the commit that was judged", o.Commit, v.Change.Commit},
		{"the tree that was judged", o.Tree, v.Change.Digest},
		{"the base", o.Base, v.Base.Commit},
		{"the catalog", o.Catalog, v.CatalogDigest},
	} {
		if x.want != "" && x.want != x.got {
			found = append(found, fmt.Sprintf("%s is %s, not %s", x.what, cmp.Or(x.got, "none"), x.want))
		}
	}
	if o.NoOverride && v.Override != nil {
		found = append(found, "a person set the verdict aside: "+v.Override.By)
	}
	return found
}

// BundleReport holds the findings of VerifyBundle.
type BundleReport struct {
	Schema string `json:"schema"`
	// Intact says that the key signed this verdict, on the change that was asked for, and
	// that all files match it.
	Intact bool `json:"intact"`
	// Verdict holds the verdict that the key signed; nil: none.
	Verdict *gate.Verdict `json:"verdict,omitempty"`
	Files   int           `json:"files"` // that were compared
	// Findings lists what differs from the verdict or from the options, one line each.
	Findings []string `json:"findings"`
}

// VerifyBundle checks the files that BundleVerdict wrote, against a public key and names
// that the caller trusts. It uses nothing else of this machine. The directory may hold no
// other files, and none of more than gate.MaxBundleFile bytes. It returns an error if the
// bundle could not be read, and an OptionError if no change is named. The report lists
// what is wrong with the bundle.
func VerifyBundle(ctx context.Context, dir string, o BundleOptions) (*BundleReport, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
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
	signed, err := readBounded(root, AttestationFile)
	if err != nil {
		return say("%s can't be read: %v", AttestationFile, err)
	}
	text, err := readBounded(root, gate.VerdictFile)
	if err != nil {
		return say("%s can't be read: %v", gate.VerdictFile, err)
	}
	var types, trees []string
	for line := range bytes.Lines(signed) {
		var e dsse.Envelope
		if err := json.Unmarshal(line, &e); err != nil {
			return say("%s: it is no envelope: %v", AttestationFile, err)
		}
		st, err := gate.VerifyAttestation(ctx, &e, o.Key)
		if err != nil {
			return say("%s: %v", AttestationFile, err)
		}
		if st.PredicateType == gate.VerdictType {
			if r.Verdict, err = gate.ParseVerdict(st.Predicate); err != nil {
				return say("%s: %v", AttestationFile, err)
			}
		}
		types = append(types, st.PredicateType)
		for _, s := range st.Subject {
			trees = append(trees, s.Digest["sha256"])
		}
	}
	if !slices.Equal(types, []string{gate.VerdictType, attest.ProvenanceV1}) {
		r.Verdict = nil
		return say("%s has not one verdict and one provenance", AttestationFile)
	}
	if trees = slices.Compact(trees); len(trees) != 1 || trees[0] != r.Verdict.Change.Digest {
		return say("%s is of another tree than the verdict", AttestationFile)
	}
	want, err := r.Verdict.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(want, text) {
		r.Findings = append(r.Findings, gate.VerdictFile+" is not the verdict that was signed")
	}
	found, err := r.Verdict.CheckBundle(ctx, root, AttestationFile)
	if err != nil {
		return nil, err
	}
	r.Findings = append(append(r.Findings, found...), o.other(r.Verdict)...)
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
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", name, maxBundled)
	}
	return root.ReadFile(name)
}
