package gate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
)

// What lies beside a verdict, in its directory.
const (
	VerdictFile  = "verdict.json"
	ProposedFile = "baseline.json"
	InputsFile   = "inputs.json"
	EvidenceDir  = "evidence"
)

// EvidenceOf is the directory of a phase's evidence, below the verdict's.
func (p *Phase) EvidenceOf() string { return EvidenceDir + "/" + p.Signal + "-" + p.On }

// Files are the SHA-256 of all that a verdict says lies beside it, by slash-separated
// names, in hexadecimal digits.
func (v *Verdict) Files() map[string]string {
	out := map[string]string{}
	for name, sum := range map[string]string{ProposedFile: v.Proposed, InputsFile: v.Inputs} {
		if sum != "" {
			out[name] = sum
		}
	}
	for _, p := range v.Phases {
		for name, sum := range p.Evidence {
			out[p.EvidenceOf()+"/"+name] = sum
		}
	}
	return out
}

// Check compares what lies in a verdict's directory with what the verdict says of it,
// and gives what is another, in the order of names: a file that was changed, one that
// is gone, one that is no file, and one that the verdict does not know of. It follows
// no links out of the directory. An error means that it could not be read.
func (v *Verdict) Check(ctx context.Context, dir *os.Root) (found []string, err error) {
	want := v.Files()
	say := func(format string, a ...any) { found = append(found, fmt.Sprintf(format, a...)) }
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		switch got, err := sumIn(dir, name); {
		case errors.Is(err, fs.ErrNotExist):
			say("%s is gone", name)
		case errors.Is(err, errNoFile):
			say("%s is no file any more", name)
		case err != nil:
			return nil, err
		case got != want[name]:
			say("%s is not what the verdict says: its text was changed", name)
		}
	}
	err = fs.WalkDir(dir.FS(), EvidenceDir, func(p string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.IsDir() && want[p] == "":
			say("%s is not of the verdict", p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, name := range []string{ProposedFile, InputsFile} {
		if _, err := dir.Lstat(name); err == nil && want[name] == "" {
			say("%s is not of the verdict", name)
		}
	}
	return found, nil
}

var errNoFile = errors.New("it is no file")

// sumIn is the SHA-256 of a file of a directory, in hexadecimal digits.
func sumIn(dir *os.Root, name string) (string, error) {
	fi, err := dir.Lstat(name)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s: %w", path.Clean(name), errNoFile)
	}
	f, err := dir.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
