package gitgate

import (
	"context"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// What is behind a place that can't be read to its end does not leave because a person
// allows a line before it, nor because that line stands upstream already.
func TestUnreadBehindAllowed(t *testing.T) {
	t.Parallel()
	deep := "deep"
	for range 8 {
		deep = string(gzipped(deep))
	}
	rest := strings.Repeat("word\n", 20_000) + knownSecret + "\n"
	key := "k = " + awsKey + " # gitleaks:allow\n"
	for name, c := range map[string]struct {
		old, text string
		goes      bool
	}{
		"a line that is approved":    {"x\n", key + deep + rest, false},
		"a line that stands there":   {key, key + deep + rest, false},
		"neighbour, approved":        {"x\n", key + "more\n", true},
		"neighbour, it stands there": {key, key + "more\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			git(t, up, "config", "uploadpack.allowFilter", "true")
			direct := t.TempDir() + "/d"
			git(t, up, "clone", "-q", up, direct)
			commitFile(t, direct, "f.txt", c.old)
			git(t, direct, "push", "-q", "origin", "trunk")
			_, url := newGate(t, Config{
				Repos: []Repo{{Name: "app", URL: up}},
				Ask:   func(context.Context, Allow) (string, error) { return "me", nil },
				Secrets: func() map[string]secret.Value {
					return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
				},
			})
			w := cloneOf(t, url)
			commitFile(t, w, "f.txt", c.text)
			out, err := tryGit(t, w, "push", "origin", "trunk")
			if goes := err == nil; goes != c.goes {
				t.Fatalf("went on: %v\n%s", goes, out)
			}
			if !c.goes && !strings.Contains(out, "can't be read to its end") {
				t.Errorf("does not say why:\n%s", out)
			}
		})
	}
}
