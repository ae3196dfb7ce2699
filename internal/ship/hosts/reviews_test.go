package hosts

import (
	"reflect"
	"strings"
	"testing"
)

const reviewed = `reviews:
  team:
    forge: gitea
    api: https://gitea.example.org/api/v1/
    repo: acme/web
    branch: release/2
    token_env: CARBOY_REVIEW_TOKEN
    people: {Alice: alice@example.org, bob: bob@example.org}
    protection:
      mergers: [Alice]
` + one + "    reviews: team\n"

// TestP5Reviews: reviews approve only where an entry says all that they need, exactly.
func TestP5Reviews(t *testing.T) {
	f, err := Parse("hosts.yaml", []byte(reviewed))
	if err != nil {
		t.Fatal(err)
	}
	h, _ := f.Find("prod1")
	want := &Reviews{
		Name: "team", Forge: "gitea", API: "https://gitea.example.org/api/v1", Repo: "acme/web", Branch: "release/2", TokenEnv: "CARBOY_REVIEW_TOKEN",
		People: map[string]string{"alice": "alice@example.org", "bob": "bob@example.org"}, AtLeast: 1, Approvals: 1, DismissStale: true, Mergers: []string{"alice"},
	}
	if !reflect.DeepEqual(h.Reviews, want) {
		t.Errorf("%+v, want %+v", h.Reviews, want)
	}
	if f, err = Parse("hosts.yaml", []byte(strings.Replace(reviewed, "    reviews: team\n", "", 1))); err != nil {
		t.Fatal(err)
	}
	if h, _ = f.Find("prod1"); h.Reviews != nil {
		t.Errorf("a host that names none has %+v", h.Reviews)
	}
	for _, x := range []struct{ old, new, says string }{
		{"forge: gitea", "forge: github", "does not say which reviews"},
		{"forge: gitea", "forge: gitlab", "name no commit"},
		{"forge: gitea", "forge: forgejo", "no forge whose reviews can approve"},
		{"    forge: gitea\n", "", "needs forge"},
		{"https://gitea", "ftp://gitea", "not the address of an API"},
		{"https://gitea", "https://me:secret@gitea", "not the address of an API"},
		{"/api/v1/", "/api/v1?token=x", "not the address of an API"},
		{"    api: https://gitea.example.org/api/v1/\n", "", "needs api"},
		{"acme/web", "acme", "OWNER/NAME"},
		{"acme/web", "acme/..", "OWNER/NAME"},
		{"acme/web", "acme/web/x", "OWNER/NAME"},
		{"release/2", "../main", "name of a branch"},
		{"release/2", "a//b", "name of a branch"},
		{"CARBOY_REVIEW_TOKEN", "'0123abcd'", "environment variable"},
		{"{Alice: alice@example.org, bob: bob@example.org}", "{}", "people"},
		{"bob: bob@", "ALICE: bob@", "there twice"},
		{"bob: bob@", "'b b': bob@", "not a login"},
		{"bob: bob@example.org", "bob: alice@example.org", "two logins"},
		{"bob: bob@example.org", "bob: '*'", "not a name"},
		{"    people: {Alice: alice@example.org, bob: bob@example.org}\n", "", "needs people"},
		{"    protection:\n", "    at_least: 3\n    protection:\n", "more than the 2 people"},
		{"    protection:\n", "    at_least: 0\n    protection:\n", "at_least"},
		{"      mergers: [Alice]\n", "      approvals: 1\n", "needs mergers"},
		{"mergers: [Alice]", "mergers: []", "is empty"},
		{"mergers: [Alice]", "mergers: ['*']", "not a login"},
		{"mergers: [Alice]", "mergers: [Alice]\n      approvals: 0", "approvals"},
		{"mergers: [Alice]", "mergers: [Alice]\n      dismiss_stale: maybe", "dismiss_stale"},
		{"    protection:\n      mergers: [Alice]\n", "", "needs protection"},
		{"reviews: team", "reviews: other", "no entry of reviews"},
		{"  team:", "  'a b':", "a name that is none"},
		{"    branch:", "    branches:", "branches"},
	} {
		if _, err := Parse("hosts.yaml", []byte(strings.Replace(reviewed, x.old, x.new, 1))); err == nil || !strings.Contains(err.Error(), x.says) || !strings.HasPrefix(err.Error(), "hosts.yaml:") {
			t.Errorf("%s: %v, want an error with its line that says %q", x.new, err, x.says)
		}
	}
}
