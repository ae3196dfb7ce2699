package change

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"testing"

	udiff "github.com/aymanbagabas/go-udiff"
)

func TestDiff(t *testing.T) {
	w := newWorld(t, map[string]string{"edit": "a\nb\nc\n", "gone": "x\n", "m": "m", "l": "-> a", "bin": "\x00\x01", "crlf": "a\n", "d/x": "x"})
	u := w.upper().file("edit", "a\n\x1b[2Jb\u202e\nc", 0o644).gone("gone").file("m", "m", 0o755).link("l", "b").file("bin", "\x00\x02", 0o644)
	u.file("crlf", "a\r\n", 0o644).file("new\nline", "\tx\n", 0o600).file(".git/hooks/x", "sh", 0o755).opaque("d2", 0o755).gone("d")
	s := w.collect(u.file("empty", "", 0o644).bytes())
	var out bytes.Buffer
	st, err := s.Diff(&out, DiffOptions{})
	must(t, err)
	want := `diff --carboy a/bin b/bin
Binary content differs (2 bytes before, 2 after)
diff --carboy a/crlf b/crlf
--- a/crlf
+++ b/crlf
@@ -1 +1 @@
-a
+a\r
diff --carboy a/d b/d
deleted directory mode 040755
diff --carboy a/d/x b/d/x
deleted file mode 100644
--- a/d/x
+++ /dev/null
@@ -1 +0,0 @@
-x
\ No newline at end of file
diff --carboy a/d2 b/d2
new directory mode 040755
diff --carboy a/edit b/edit
--- a/edit
+++ b/edit
@@ -1,3 +1,3 @@
 a
-b
-c
+\x1b[2Jb\u202e
+c
\ No newline at end of file
diff --carboy a/empty b/empty
new file mode 100644
diff --carboy a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --carboy a/l b/l
--- a/l
+++ b/l
@@ -1 +1 @@
-a
\ No newline at end of file
+b
\ No newline at end of file
diff --carboy a/m b/m
old mode 100644
new mode 100755
diff --carboy "a/new\nline" "b/new\nline"
new file mode 100600
--- /dev/null
+++ "b/new\nline"
@@ -0,0 +1 @@
+	x
# not shown: 3 paths of git's own, which are never copied; --git shows them
`
	if out.String() != want {
		t.Errorf("got\n%s", out.String())
	}
	if st.Files != 11 || st.Binary != 1 || st.Protected != 0 || st.Added != 5 || st.Removed != 6 || st.Truncated {
		t.Errorf("%+v", st)
	}
	out.Reset()
	must(t, second(s.Diff(&out, DiffOptions{Colour: true, Paths: []string{"edit"}})))
	if strings.Count(out.String(), "\x1b") != strings.Count(out.String(), "\x1b[0m")*2 || !strings.Contains(out.String(), green+`+\x1b[2Jb`) {
		t.Errorf("coloured: %q", out.String())
	}
	out.Reset()
	st, err = s.Diff(&out, DiffOptions{MaxBytes: 300})
	must(t, err)
	if !st.Truncated || out.Len() > 1500 || !strings.Contains(out.String(), "was cut") || st.Files != 11 {
		t.Errorf("%+v %q", st, out.String())
	}
	out.Reset()
	must(t, second(s.Diff(&out, DiffOptions{Stat: true})))
	if out.Len() != 0 {
		t.Errorf("stat wrote %q", out.String())
	}
	if _, err := s.Diff(&out, DiffOptions{Paths: []string{"none"}}); !errors.Is(err, ErrNoSuchChange) {
		t.Error(err)
	}
	must(t, os.RemoveAll(w.ws))
	out.Reset()
	must(t, second(s.Diff(&out, DiffOptions{})))
	if !strings.Contains(out.String(), "cannot be opened") {
		t.Error("a missing workspace goes unmentioned")
	}
}

func second[T any](_ T, err error) error { return err }

// TestDiffIsLinear: files built to make a comparison slow stay fast enough
// for the test's time limit.
func TestDiffIsLinear(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var a, b, c, d strings.Builder
	for i := range 200_000 {
		fmt.Fprintf(&a, "%d\n", rng.Intn(1000))
		fmt.Fprintf(&b, "%d\n", rng.Intn(1000))
		fmt.Fprintf(&c, "%d\n", i)
		fmt.Fprintf(&d, "%d\n", i^1)
	}
	for _, p := range [][2]string{{a.String(), b.String()}, {c.String(), d.String()}, {strings.Repeat("\n", 1<<20), strings.Repeat("x\n", 1<<19)},
		{strings.Repeat("a\nb\n", 1<<18), strings.Repeat("b\na\n", 1<<18)}} {
		hunksOf(p[0], udiff.Lines(p[0], p[1]))
	}
}

func TestBookkeeping(t *testing.T) {
	for path, want := range map[string]bool{
		".git/objects/17/fc": true, ".git/index": true, ".git/logs/HEAD": true, "sub/.git/objects/x": true,
		".git/HEAD": true, ".git/refs/heads/main": true, "objects/x": false, ".github/index": false, ".gitx": false,
	} {
		if got := (&Change{Path: Bytes(path), Type: File}).Bookkeeping(); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if (&Change{Path: ".git/objects/x", Protected: []Reason{{Rule: "git"}}}).Bookkeeping() {
		t.Error("a protected path counts as bookkeeping")
	}
}
