package gate

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A coverage signal demands a minimum of executed statements.
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
}

// The table in the documentation lists exactly the keys of each kind.
func TestDocsNameEveryKey(t *testing.T) {
	page, err := os.ReadFile("../../docs/gates.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "<!-- keys:")
	table, _, _ = strings.Cut(table, "<!-- /keys -->")
	shown := map[string][]string{}
	word, kind := regexp.MustCompile("`([a-z_]+)`"), ""
	for line := range strings.Lines(table) {
		cells := strings.Split(line, " | ")
		if len(cells) < 3 {
			continue
		}
		if k := word.FindStringSubmatch(cells[0]); k != nil {
			kind = k[1]
		}
		for _, w := range word.FindAllStringSubmatch(cells[1], -1) {
			shown[kind] = append(shown[kind], w[1])
		}
	}
	for _, keys := range shown {
		slices.Sort(keys)
	}
	want := map[string][]string{"": slices.Sorted(slices.Values(commandKeys))}
	for name, k := range kinds {
		if len(k.Keys) > 0 {
			want[name] = slices.Sorted(slices.Values(k.Keys))
		}
	}
	if !maps.EqualFunc(shown, want, slices.Equal[[]string]) {
		t.Errorf("docs/gates.md has\n%v\nand kinds have\n%v", shown, want)
	}
}
