package hostile

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/testenv"
)

// promised are the promises that docs/promises.md must hold, in order.
var promised = []string{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "G1", "G2", "G3", "A1", "A2", "H1", "H2", "T1", "T2", "T3", "T4", "P1", "P2", "P3", "P4", "P5", "F1", "F2", "F3"}

var (
	promiseLine = regexp.MustCompile(`(?m)^\*\*([A-Z][0-9])\*\* `)
	testName    = regexp.MustCompile("`([a-z0-9/]+)\\.(Test[A-Za-z0-9]+)(?:/([A-Za-z0-9]+))?`")
)

// TestPromisesNameTheirTests: the page cannot promise what nothing tries to
// break.
func TestPromisesNameTheirTests(t *testing.T) {
	root := sourceRoot(t)
	b, err := os.ReadFile(filepath.Join(root, "docs/promises.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	at := promiseLine.FindAllStringSubmatchIndex(page, -1)
	var found []string
	named := map[string]bool{}
	tests := map[string]map[string]bool{}
	suite := contractParts(t, root)
	for i, m := range at {
		end := len(page)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		id := page[m[2]:m[3]]
		found = append(found, id)
		names := testName.FindAllStringSubmatch(page[m[0]:end], -1)
		if len(names) < 2 {
			t.Errorf("promise %s has %d tests, and needs two", id, len(names))
		}
		for _, n := range names {
			dir, test, part := n[1], n[2], n[3]
			if dir == "carboy" {
				dir = "." // the package at the top
			}
			if tests[dir] == nil {
				tests[dir] = testenv.TestsOf(t, filepath.Join(root, dir))
			}
			if !tests[dir][test] {
				t.Errorf("promise %s names %s in %s, which does not exist", id, test, dir)
			}
			if part != "" && !(test == "TestContract" && suite[part]) && !(test == "TestScript" && isFile(filepath.Join(root, dir, "testdata", part+".txtar"))) {
				t.Errorf("promise %s names %s/%s, which does not exist", id, test, part)
			}
			if dir == "internal/hostile" {
				named[test] = true
			}
		}
	}
	if strings.Join(found, " ") != strings.Join(promised, " ") {
		t.Errorf("the page promises %v, want %v", found, promised)
	}
	for name := range testenv.TestsOf(t, filepath.Join(root, "internal/hostile")) {
		if !named[name] && name != "TestMain" && name != "TestPromisesNameTheirTests" {
			t.Errorf("%s tries to break no promise of the page", name)
		}
	}
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// sourceRoot is the checkout: where this test was built, or where it runs.
func sourceRoot(t *testing.T) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Dir(file), dir} {
		for ; d != "/" && d != "."; d = filepath.Dir(d) {
			if _, err := os.Stat(d + "/docs/promises.md"); err == nil {
				return d
			}
		}
	}
	testenv.Missing(t, "the source tree", "run go test in a checkout")
	return ""
}

// contractParts are the names in the table of bottletest.Run.
func contractParts(t *testing.T, root string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "internal/bottle/bottletest/bottletest.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`\{"([A-Za-z]+)", \(\*suite\)\.`).FindAllStringSubmatch(string(b), -1) {
		out[m[1]] = true
	}
	return out
}
