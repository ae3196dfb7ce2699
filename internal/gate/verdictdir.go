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
	"math"
	"os"
	"path"
	"slices"
)

// Names in a verdict's directory.
const (
	VerdictFile  = "verdict.json"
	ProposedFile = "baseline.json"
	InputsFile   = "inputs.json"
	EvidenceDir  = "evidence"
)

// EvidenceOf returns the directory of a phase's evidence, relative to the verdict's.
func (p *Phase) EvidenceOf() string { return EvidenceDir + "/" + p.Signal + "-" + p.On }

// Files returns the SHA-256 of all files that belong to the verdict, by slash-separated
// name, in hexadecimal digits.
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

// Check compares a verdict's directory with the verdict. It returns a message for each
// difference, sorted by name: a file that changed, is missing or is not regular, and an
// entry below the evidence that the verdict does not name. It follows no link out of the
// directory. An error means that the directory could not be read.
func (v *Verdict) Check(ctx context.Context, dir *os.Root) (found []string, err error) {
	return v.check(ctx, dir, math.MaxInt64)
}

// MaxBundleFile bounds a file of a bundle, in bytes. A trace has at most 256 MiB by
// default.
const MaxBundleFile = 4 << 30

// CheckBundle is Check for a directory from somebody else, which may hold nothing but the
// verdict, the files that it names, and those in beside. It reports a file of more than
// MaxBundleFile bytes without reading it.
func (v *Verdict) CheckBundle(ctx context.Context, dir *os.Root, beside ...string) (found []string, err error) {
	if found, err = v.check(ctx, dir, MaxBundleFile); err != nil {
		return nil, err
	}
	all, err := fs.ReadDir(dir.FS(), ".")
	if err != nil {
		return nil, err
	}
	known := append([]string{VerdictFile, ProposedFile, InputsFile, EvidenceDir}, beside...)
	for _, d := range all {
		if !slices.Contains(known, d.Name()) && len(found) < maxFound {
			found = append(found, d.Name()+" is not of the verdict")
		}
	}
	return found, nil
}

// maxFound bounds the messages about one directory.
const maxFound = 1000

func (v *Verdict) check(ctx context.Context, dir *os.Root, most int64) (found []string, err error) {
	want := v.Files()
	say := func(format string, a ...any) {
		if len(found) < maxFound {
			found = append(found, fmt.Sprintf(format, a...))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		switch got, err := FileDigest(ctx, dir, name, most); {
		case errors.Is(err, fs.ErrNotExist):
			say("%s is gone", name)
		case errors.Is(err, ErrNoFile):
			say("%s is not a file any more", name)
		case errors.Is(err, errTooLarge):
			say("%s has more than %d bytes, and was not compared", name, most)
		case err != nil:
			return nil, err
		case got != want[name]:
			say("%s is not what the verdict says: its text was changed", name)
		}
	}
	dirs := map[string]bool{EvidenceDir: true}
	for _, p := range v.Phases {
		dirs[p.EvidenceOf()] = true
	}
	err = fs.WalkDir(dir.FS(), EvidenceDir, func(p string, d fs.DirEntry, err error) error {
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !d.IsDir() && want[p] == "":
			say("%s is not of the verdict", p)
		case d.IsDir() && !dirs[p]:
			say("%s is not of the verdict", p)
			return fs.SkipDir
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

var (
	// ErrNoFile means that a name is not that of a regular file.
	ErrNoFile   = errors.New("it is not a regular file")
	errTooLarge = errors.New("it is too large")
)

// FileDigest returns the SHA-256 of a regular file of at most most bytes, in hexadecimal
// digits. It follows no link.
func FileDigest(ctx context.Context, dir *os.Root, name string, most int64) (string, error) {
	fi, err := dir.Lstat(name)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s: %w", path.Clean(name), ErrNoFile)
	}
	if fi.Size() > most {
		return "", fmt.Errorf("%s: %w", path.Clean(name), errTooLarge)
	}
	f, err := dir.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	// One byte more shows that the file has grown.
	if _, err := io.Copy(h, untilDone{ctx, io.LimitReader(f, fi.Size()+1)}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// untilDone is a reader that stops when its context ends.
type untilDone struct {
	ctx context.Context
	r   io.Reader
}

func (u untilDone) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(b)
}
