package change

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// ignoredBy reports what the rules of one file in the top directory say of a path.
func ignoredBy(rules []ignoreRule, rel string, isDir bool) bool {
	names := strings.Split(rel, "/")
	for n := 1; n <= len(names); n++ {
		for i := len(rules) - 1; i >= 0; i-- {
			if rules[i].matches(names[:n], n < len(names) || isDir) {
				if !rules[i].negated {
					return true
				}
				break
			}
		}
	}
	return false
}

// TestGitignoreAsGit: paths are ignored as git ignores them, for the patterns of its manual and
// for random ones.
func TestGitignoreAsGit(t *testing.T) {
	dir := t.TempDir()
	git := func(in string, args ...string) string {
		c := exec.Command("git", append([]string{"-C", dir, "-c", "core.excludesFile=/dev/null"}, args...)...)
		c.Stdin = strings.NewReader(in)
		out, err := c.Output()
		if x, ok := err.(*exec.ExitError); err != nil && (!ok || x.ExitCode() != 1) {
			t.Fatal(args, err)
		}
		return string(out)
	}
	git("", "init", "-q")
	var paths []string
	for _, a := range []string{"a", "b", "foo", "a.o", " x", "#c", "!d"} {
		for _, b := range []string{"a", "foo", "bar.o", "b c"} {
			for _, c := range []string{"a", "foo", "z.txt"} {
				p := a + "/" + b + "/" + c
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(p)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, p), nil, 0o644); err != nil {
					t.Fatal(err)
				}
				paths = append(paths, p)
			}
		}
	}
	check := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		theirs := map[string]bool{}
		for p := range strings.SplitSeq(git(strings.Join(paths, "\x00"), "check-ignore", "--no-index", "-z", "--stdin"), "\x00") {
			theirs[p] = true
		}
		rules := parseIgnore([]byte(text))
		for _, p := range paths {
			if ignoredBy(rules, p, false) != theirs[p] {
				t.Errorf("%q: %s: git says %v", text, p, theirs[p])
			}
		}
	}
	for _, text := range []string{
		"", "a", "/a", "a/", "foo/\n!foo/a", "*.o\n!bar.o", "/*\n!/foo\n/foo/*\n!/foo/bar.o", "**/foo", "**/foo/a", "a/**", "a/**/foo", "a/**/**/foo",
		"**", "*", "!*", "/", "//a", "a//b", "b c", "b c/", "b*c ", `b\ c`, `b c\ `, `\#c`, "#c", `\!d`, "!d", " x", "[ab]/foo", "[!a]/foo", "[^a]", "?",
		"a/?oo", "a\r\nb\r\n", "\ufeffa", "a\n!a", "foo/*\n!foo/a", "*/foo", "f**o", "a**", "**o/a", "***/foo", "****/foo/a", "a/***", "a/***o", "***", "[", "a[", "z.txt\n", `z\.txt`, `z.t\xt`, "*.*", "x/../a",
	} {
		check(text)
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	// Stars beside other characters are one by git's manual. Git's own matcher takes some for
	// "**", which differs by version.
	besides := regexp.MustCompile(`[^/\n!]\*\*|\*\*[^/\n]`)
	pieces := []string{"a", "foo", "*", "**", "/", "?", "!", "o", ".o", "bar", " ", "[a-f]", "\n", "\n", "b c", "z.txt", "/"}
	for range 150 {
		var text strings.Builder
		for range 1 + r.IntN(8) {
			fmt.Fprint(&text, pieces[r.IntN(len(pieces))])
		}
		if !besides.MatchString(text.String()) {
			check(text.String())
		}
	}
}
