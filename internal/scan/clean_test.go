package scan

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/testenv"
)

// standardLibrary gives the sources of Go's standard library, up to limit bytes.
func standardLibrary(t testing.TB, limit int, each func(path string, text []byte)) {
	t.Helper()
	program, err := filepath.EvalSymlinks(testenv.Need(t, "go", "https://go.dev/dl"))
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(filepath.Dir(program), "..", "src")
	n := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "cmd" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || n > limit {
			return nil
		}
		text, err := os.ReadFile(path)
		n += len(text)
		if err == nil {
			each(strings.TrimPrefix(path, root), text)
		}
		return err
	})
	if err != nil || n == 0 {
		t.Fatalf("the standard library's sources: %d bytes, %v", n, err)
	}
}

// TestCleanText scans what holds no secret. What looks like a token in the
// standard library is listed here: each was looked at.
func TestCleanText(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	var secrets []string
	for range 20 {
		secrets = append(secrets, randomSecret(rng))
	}
	r := mustRules(t, Config{Watched: mustKnown(t, secrets...), Tokens: true})
	limit := 64 << 20
	if testing.Short() {
		limit = 2 << 20
	}
	var work, total int64
	cover := NewCoverage()
	standardLibrary(t, limit, func(path string, text []byte) {
		s := r.NewScanner(Options{Action: Report, Place: path, Coverage: cover})
		defer s.Close()
		var out []byte
		out, err := s.Push(out, text)
		if err == nil {
			out, err = s.End(out)
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if string(out) != string(text) {
			t.Errorf("%s: not the same came out", path)
		}
		for _, f := range s.Findings() {
			if !strings.HasPrefix(f.Rule, "private-key") || f.Place != "/crypto/tls/example_test.go" { // it has one
				t.Errorf("%s", f)
			}
		}
		work += s.work
		total += int64(len(text))
	})
	t.Logf("%d bytes, %.2f steps of the slow path per byte", total, float64(work)/float64(total))
}
