// Package fault holds the errors that commands show to users, and small helpers for text,
// paths and trees that the stages share.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/safetext"
)

// NotSet returns the error for an --env NAME whose variable has no value.
func NotSet(name string) error {
	return &OptionError{Option: "--env", Value: name, Reason: "is not set here", Advice: "set it, or write --env " + name + "=VALUE"}
}

// OptionError reports an option whose value can't be used. Reason continues the sentence
// that Option and Value begin; Advice says what to do.
type OptionError struct {
	Option, Value, Reason, Advice string
}

// ExitClass lets package exitcode choose the exit code.
func (e *OptionError) ExitClass() exitcode.Class { return exitcode.WrongOption }

func (e *OptionError) Error() string { return fmt.Sprintf("%s %q %s", e.Option, e.Value, e.Reason) }

// CutText returns the first n bytes of s at most. It may cut inside a UTF-8 sequence.
func CutText(s string, n int) string { return s[:min(len(s), n)] }

// Mapped returns f of each element of list.
func Mapped[T, U any](list []T, f func(T) U) []U {
	out := make([]U, len(list))
	for i, x := range list {
		out[i] = f(x)
	}
	return out
}

// ErrNobody means that no person can be asked now.
var ErrNobody = errors.New("nobody can be asked now")

// Fit makes untrusted text fit a field of a proposal: it replaces invalid UTF-8 and cuts
// the text to most bytes, of which an ellipsis is the last three.
func Fit(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-3], "") + "…"
	}
	return s
}

// Within reports whether path is dir or below it.
func Within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// RemoveTree removes dir with its contents. Unlike os.RemoveAll, it also removes what is
// in read-only directories: copies of workspaces may have some.
func RemoveTree(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// Count adds n to yes if allowed, else to no.
func Count(allowed bool, n int64, yes, no *int64) {
	if allowed {
		*yes += n
	} else {
		*no += n
	}
}

// Cut returns the first n elements of s at most.
func Cut[T any](s []T, n int) []T { return s[:min(len(s), n)] }

// RealPath resolves the symbolic links of path. It returns path unchanged if that fails.
func RealPath(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}

// ErrNoRepository means that a directory lies in no work tree.
var ErrNoRepository = errors.New("not in a git repository")

// WorkTree returns the nearest directory, from dir upwards, that holds .git. Its links are
// resolved. An error wraps ErrNoRepository if there is none.
func WorkTree(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if at == "/" {
			return "", fmt.Errorf("%s: %w", dir, ErrNoRepository)
		}
	}
}

// Cause returns the text of err. If a path is to blame, it leaves out operation and path.
func Cause(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// Sentence joins reasons with semicolons, without control characters and at most 1,000
// bytes long.
func Sentence(why ...string) string { return safetext.String(strings.Join(why, "; "), 1000) }
