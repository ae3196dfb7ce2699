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
// is gone, one that is no file, and a file or directory of the evidence that the verdict
// does not know of. It follows no links out of the directory. An error means that it
// could not be read.
func (v *Verdict) Check(ctx context.Context, dir *os.Root) (found []string, err error) {
	return v.check(ctx, dir, math.MaxInt64)
}

// MaxInBundle bounds a file of evidence in a directory that somebody handed over, in
// bytes. A trace has 256 MiB, unless who judged has another bound.
const MaxInBundle = 4 << 30

// CheckBundle is Check for a directory that somebody handed over, in which nothing but
// the verdict, what it names, and what beside names may lie. A file of more than
// MaxInBundle bytes is not read, and found.
func (v *Verdict) CheckBundle(ctx context.Context, dir *os.Root, beside ...string) (found []string, err error) {
	if found, err = v.check(ctx, dir, MaxInBundle); err != nil {
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

// maxFound bounds what is said of one directory.
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
		switch got, err := SumIn(ctx, dir, name, most); {
		case errors.Is(err, fs.ErrNotExist):
			say("%s is gone", name)
		case errors.Is(err, ErrNoFile):
			say("%s is no file any more", name)
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
	// ErrNoFile is of a name that stands for something else.
	ErrNoFile   = errors.New("it is no file")
	errTooLarge = errors.New("it is too large")
)

// SumIn is the SHA-256 of a file of a directory, of at most so many bytes, in
// hexadecimal digits. It follows no link; what is no file is ErrNoFile.
func SumIn(ctx context.Context, dir *os.Root, name string, most int64) (string, error) {
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
	// One that grows is another already.
	if _, err := io.Copy(h, untilDone{ctx, io.LimitReader(f, fi.Size()+1)}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// untilDone reads until a context is.
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
