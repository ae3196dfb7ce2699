package gate

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestCoverage: a floor of statements that tests execute.
func TestCoverage(t *testing.T) {
	for profile, want := range map[string]string{
		"mode: set\na.go:1.1,2.2 8 1\na.go:3.1,4.2 2 0\n":                   "8 of 10",
		"mode: set\na.go:1.1,2.2 8 0\na.go:1.1,2.2 8 3\nb.go:1.1,2.2 2 0\n": "8 of 10",
		"mode: set\n":                    "0 of 0",
		"":                               "!",
		"coverage: 99% of statements":    "!",
		"mode: set\na.go:1.1,2.2 -8 1\n": "!",
		"mode: set\na.go:1.1,2.2 8\n":    "!",
	} {
		hit, all, err := covered(profile)
		got := "!"
		if err == nil {
			got = fmt.Sprintf("%d of %d", hit, all)
		}
		if got != want {
			t.Errorf("%q: %s, want %s", profile, got, want)
		}
	}
	ran := commandFacts{Ended: true, Programs: 1}
	for f, want := range map[coverageFacts]bool{
		{ran, 8, 10, 80}: true, {ran, 8, 10, 81}: false, {ran, 0, 0, 1}: false, {ran, 1, 1, 0}: false,
		{commandFacts{Ended: true, Programs: 1, Code: 1}, 8, 10, 80}: false,
	} {
		if f.Positive() != want {
			t.Errorf("%+v: %t", f, !want)
		}
	}
	for text, ok := range map[string]bool{"profile: c.out, min: 80": true, "profile: c.out": false, "min: 80": false, "profile: ../c, min: 80": false, "profile: c.out, min: 0": false, "profile: c.out, min: 101": false} {
		_, err := ParseCatalog("g", []byte("version: 1\nsignals:\n  - {name: c, kind: coverage, command: [go, test], "+text+"}\n"))
		if (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	// The page shows this very file.
	page, err1 := os.ReadFile("../../docs/gates.md")
	file, err2 := os.ReadFile("kind_coverage.go")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	_, code, _ := strings.Cut(string(file), "func init() {")
	code, _, _ = strings.Cut(code, "\n// covered adds up")
	if !strings.Contains(string(page), "func init() {"+code) {
		t.Error("docs/gates.md shows another kind than kind_coverage.go")
	}
}
