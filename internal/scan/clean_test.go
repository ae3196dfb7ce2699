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
			if f.Rule != "private-key" || f.Place != "/crypto/tls/example_test.go" { // it has one
				t.Errorf("%s", f)
			}
		}
		work += s.work
		total += int64(len(text))
	})
	t.Logf("%d bytes, %.2f steps of the slow path per byte", total, float64(work)/float64(total))
}

// TestHonestNeighbours has texts of public projects that look like a secret at first, each
// with the nearest one that is a secret.
func TestHonestNeighbours(t *testing.T) {
	rules := mustRules(t, Config{Tokens: true})
	rng := rand.New(rand.NewPCG(61, 62))
	line := randomOf(rng, lowers+uppers+digits+"+/", 64)
	head := "-----BEGIN RSA PRIVATE" + " KEY-----"
	tail := "-----END RSA PRIVATE" + " KEY-----"
	for _, x := range []struct{ name, honest, secret string }{
		{
			"a placeholder of a key", head + "\n> ...\n> Kh9NV...\n> ...\n> and so on, as many lines as it has\n> " + tail,
			head + "\n> ...\n> " + line + "...\n> ...\n> and so on, as many lines as it has\n> " + tail,
		},
		{
			"a key's first line in a program, twice", "if strings.HasPrefix(text, \"" + head + "\") {\n\treturn parseOneOfTheOldKeys(text)\n}\nreturn errors.New(\"no " + head + "\")\n",
			"if strings.HasPrefix(text, \"" + head + "\") {\n\treturn parseOneOfTheOldKeys(text)\n}\nreturn errors.New(\"no " + head + "\")\nconst key = `" + head + "\n" + line + "\n" + tail + "`\n",
		},
		{
			"a long name between", head + "\n" + strings.Repeat("parseOneOfTheOldKeysWithAPassword ", 3) + tail,
			head + "\n" + line[:11] + "7" + line[11:23] + "\n" + line[24:36] + "4" + line[36:48] + "\n" + tail,
		},
		{
			"a key that says false", head + "\nComment: false\n\nabc\n" + strings.Repeat("word ", 20) + tail,
			head + "\nComment: false\n\n" + line + "\n" + tail,
		},
		{
			"names in a list after a service's", `["openGraph","twitter","createMetadataAccumulator","titleTemplates"]`,
			`["openGraph","twitter","cr3ateMetadataAccumulat0r","titleTemplates"]`,
		},
	} {
		if found, _, err := scanAll(t, rules, Options{Action: Report}, x.honest, 0); err != nil || len(found) > 0 {
			t.Errorf("%s: %v %v", x.name, found, err)
		}
		if found, _, err := scanAll(t, rules, Options{Action: Report}, x.secret, 0); err != nil || len(found) == 0 {
			t.Errorf("the neighbour of %s is not found: %v", x.name, err)
		}
	}
}
