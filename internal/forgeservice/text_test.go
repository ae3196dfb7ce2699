package forgeservice

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/forge"
)

func testWhere(t *testing.T, apart bool) where {
	t.Helper()
	scope, err := NewScope(7, 12, 35)
	if err != nil {
		t.Fatal(err)
	}
	return newWhere(forge.Target{Provider: "gitea", API: "https://forge.example.org/api/v1", Repo: "org/app", Settings: "https://forge.example.org/org/app/settings/keys"}, scope, apart)
}

// refersTo holds patterns by which forges find references, each in the raw text or in the
// text of the page.
var refersTo = regexp.MustCompile(`(?i)[#!]99|GH-99|/(issues|pull|merge_requests|work_items)/99|\[(issue|work_item):99`)

// page returns text as a page shows it: without escapes, and with entities decoded.
func page(text string) string {
	return html.UnescapeString(regexp.MustCompile("\\\\([!-/:-@\\[-`{-~])").ReplaceAllString(text, "$1"))
}

var tags = regexp.MustCompile(`<[^>]*>`)

// refers returns a reference that a forge finds in text, or "".
func refers(text string) string {
	for _, s := range []string{text, page(text), tags.ReplaceAllString(page(text), "")} {
		if found := refersTo.FindString(s); found != "" {
			return found
		}
	}
	return ""
}

// TestF1ReferencesAreInert writes to an issue out of the scope in each way that a forge reads
// as a reference.
func TestF1ReferencesAreInert(t *testing.T) {
	for _, apart := range []bool{false, true} {
		w := testWhere(t, apart)
		for _, attack := range []string{
			"Closes #99", "fixes: #99", "Implements #99", "any word #99", "closes\n#99", "Closes #7, #99 and #99", "(#99)", "x#99",
			"Closes org/app#99", "Closes ORG/app#99", "Closes org/other#99", "Closes org/my_app#99", "Closes org/app!99", "!99", "GH-99", "fixes gh-99.", "_GH-99",
			"Closes org/other#7x #99",
			"`Closes #99`", "`fixes `#99``", "```\nCloses #99\n```", "    Closes #99", "> Closes #99", "<b>Closes</b> #99",
			`Closes \#99`, `Closes GH\-99`, "Closes &#35;99", "Closes &#x23;99", "Closes &#X23;99", "Closes &num;99", "Closes &#0035;99", "Closes #&#57;9", "Closes #&#x39;9", "Closes GH&#45;99", "&#71;H-99",
			"Closes https://forge.example.org/org/app/issues/99", "Closes http://FORGE.example.org/org/app/pull/99", "Closes https://forge.example.org/org/other/issues/99",
			"Closes https://forge.example.org/org/app/-/issues/99", "Closes https://forge.example.org/org/app/-/merge_requests/99", "https://forge.example.org/org/app/-/merge\\_requests/99",
			"https://forge.example.org/org/app\\/issues\\/99", "https://forge\\.example.org/org/app/issues/99", "https://forge&period;example.org/org/app/issues/99",
			"https://u@forge.example.org:443/org/app/issues/99", "https://other.example.org/?https://forge.example.org/org/app/issues/99", "//forge.example.org/org/app/issues/99", "[x](/org/app/issues/99)", "[x](../issues/99)",
			"https://other.example.org,https://forge.example.org/org/app/issues/99",
			"[issue:99]", "[work_item:99]", "Closes #\u200b99", "Closes #\u00ad99", "Closes #\x0099",
			"Closes # <!-- -->#99",
		} {
			if found := refers(clean(attack)); found == "" {
				t.Errorf("%q attacks nothing", attack)
			}
			got, _ := w.inert(clean(attack))
			if found := refers(got); found != "" {
				t.Errorf("apart %v: %q becomes %q, which still has %q", apart, attack, got, found)
			}
			if strings.ContainsAny(got, "\u200b\u200c\u2060\ufeff") {
				t.Errorf("%q becomes %q, which hides something", attack, got)
			}
		}
	}
}

// TestOwnReferencesStay is the control: what is in the scope, or refers to nothing, is left
// as it is.
func TestOwnReferencesStay(t *testing.T) {
	for _, c := range []struct {
		text  string
		apart bool
	}{
		{"Closes #7", false}, {"fixes #7, see #12 (#35).", false}, {"Closes org/app#7 and Org/App#12", false}, {"GH-7", false}, {"!12", false},
		{"https://forge.example.org/org/app/issues/7", false}, {"<https://forge.example.org/org/app/pull/12#issuecomment-9>", false}, {"https://forge.example.org/Org/App/issues/7.", false},
		{"Closes #7, see !12", true}, {"https://forge.example.org/org/app/-/issues/7", true}, {"https://forge.example.org/org/app/-/merge_requests/12", true},
		{"See https://github.com/golang/go/issues/99 and [it](https://go.dev/issue/99).", false},
		{"# A heading\n\n- one\n- two\n\n```go\nif a < b && c > d { x != 1 }\n```\n", false}, {"a &lt; b &amp;&amp; c &nbsp; &copy;", false}, {"#define X", false}, {"?a=1&copy2=3&lt=4", false},
		{"CVE-2026-1234, v1.99, a/b/99, issue 99, number 99", false}, {"👩‍💻 fine", false}, {"@ada, please look", false},
	} {
		want := strings.TrimSpace(c.text)
		if got, broken := testWhere(t, c.apart).inert(clean(c.text)); got != want || len(broken) > 0 {
			t.Errorf("%q becomes %q %q", c.text, got, broken)
		}
	}
	// Numbers of the other kind are out of the scope where the two are numbered apart.
	if got, broken := testWhere(t, true).inert("Closes #12, !7"); len(broken) != 2 || strings.Contains(got, "#12") {
		t.Errorf("%q %q", got, broken)
	}
	// The entity holds the number of a thread of the scope.
	if got, _ := testWhere(t, false).inert("&#35;99"); refersTo.MatchString(page(got)) || strings.Contains(page(got), "#35;") {
		t.Errorf("%q", got)
	}
	// What people can't see becomes visible, carboy's marks too.
	if got, _ := testWhere(t, false).inert("a<!-- carboy:begin -->b<?php"); got != `a<\!-- carboy:begin -->b<\?php` {
		t.Errorf("%q", got)
	}
}

func TestScope(t *testing.T) {
	s, err := NewScope(7)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := s.With(12)
	if err != nil {
		t.Fatal(err)
	}
	wider, err := wide.With(9)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		scope Scope
		apart bool
		list  string
	}{
		{Scope{}, false, "nothing"}, {s, false, "#7"}, {wide, false, "#7, #12"}, {wider, false, "#7, #9, #12"}, {wide, true, "issue #7, pull request #12"},
	} {
		if got := x.scope.list(x.apart); got != x.list {
			t.Errorf("%v: %q, not %q", x.scope, got, x.list)
		}
	}
	at := func(n int, pull bool) forge.Thread { return forge.Thread{Number: n, Pull: pull} }
	for _, x := range []struct {
		scope Scope
		at    forge.Thread
		apart bool
		want  bool
	}{
		{s, at(7, false), false, true}, {s, at(7, true), false, true}, {s, at(12, true), false, false}, {wide, at(12, true), false, true}, {wide, at(12, false), false, true},
		{wide, at(12, true), true, true}, {wide, at(12, false), true, false}, {wide, at(7, true), true, false}, {wide, at(7, false), true, true}, {Scope{}, at(0, false), false, false}, {Scope{}, at(0, true), true, false},
	} {
		if got := x.scope.has(x.at, x.apart); got != x.want {
			t.Errorf("%v has %v (apart %v): %v", x.scope, x.at, x.apart, got)
		}
	}
	for _, bad := range [][]int{{0}, {-1}, {7, 0}} {
		if _, err := NewScope(bad[0], bad[1:]...); err == nil {
			t.Errorf("a scope of %v", bad)
		}
	}
	both, _ := NewScope(7, 7)
	for _, x := range []struct {
		number int
		kind   string
		want   forge.Thread
		bad    bool
	}{
		{7, "", at(0, false), true}, {7, "issue", at(7, false), false}, {7, "pull_request", at(7, true), false}, {8, "", at(0, false), true}, {8, "commit", at(0, false), true},
	} {
		if got, err := both.thread(x.number, x.kind, true); got != x.want || (err != nil) != x.bad {
			t.Errorf("%d %q: %v %v", x.number, x.kind, got, err)
		}
	}
	if got, err := wide.thread(12, "", true); got != at(12, true) || err != nil {
		t.Errorf("%v %v", got, err)
	}
	if got, err := wide.thread(7, "", true); got != at(7, false) || err != nil {
		t.Errorf("%v %v", got, err)
	}
}

// Inert does to a text what is done to an agent's.
func TestInert(t *testing.T) {
	scope, err := NewScope(7)
	if err != nil {
		t.Fatal(err)
	}
	if got := Inert(forge.Target{Repo: "org/app"}, scope, false, "closes #7 and #8\u200b <!-- x"); got != "closes #7 and #\u00a08 <\\!-- x" {
		t.Errorf("%q", got)
	}
}
