package gitgate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// The part of a file behind an unreadable place must not leave, neither because a person
// allows a line before it nor because upstream has that line.
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

// A refusal gives only advice that would help.
func TestAdvice(t *testing.T) {
	t.Parallel()
	const (
		comment = "say gitleaks:allow in a comment"
		nobody  = "this bottle asks nobody"
		many    = "more than 20 lines say gitleaks:allow"
	)
	var lines strings.Builder
	for i := range 21 {
		fmt.Fprintf(&lines, "k = AKIAQYLPMN5HHHFPZX%c%c # gitleaks:allow\n", 'A'+i, 'Q'-i/4)
	}
	ask := func(context.Context, Allow) (string, error) { return "", errors.New("nobody comes") }
	for name, c := range map[string]struct {
		ask        func(context.Context, Allow) (string, error)
		text, says string // of the three
	}{
		"a token":                          {ask, "k = " + awsKey, comment},
		"a secret of the host's":           {ask, "k = " + knownSecret, ""},
		"a token, and nobody is asked":     {nil, "k = " + awsKey, ""},
		"a comment, and nobody is asked":   {nil, "k = " + awsKey + " # gitleaks:allow", nobody},
		"more comments than are asked for": {ask, lines.String(), many},
		"a comment":                        {ask, "k = " + awsKey + " # gitleaks:allow", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := newGate(t, Config{
				Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}}, Ask: c.ask,
				Secrets: func() map[string]secret.Value {
					return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
				},
			})
			w := cloneOf(t, url)
			commitFile(t, w, "f.txt", c.text+"\n")
			out, err := tryGit(t, w, "push", "origin", "trunk")
			if err == nil {
				t.Fatalf("was pushed:\n%s", out)
			}
			for _, s := range []string{comment, nobody, many} {
				if strings.Contains(out, s) != (s == c.says) {
					t.Errorf("wants %q alone:\n%s", c.says, out)
				}
			}
		})
	}
}

// A fetch request carries no secret to upstream, neither as a name nor in ids.
func TestFetchSpells(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	for name, c := range map[string]struct {
		secret string
		body   func(s string) string
	}{
		"in the beginning of a name": {knownSecret, func(s string) string {
			return line("command=ls-refs\n") + "0001" + line("ref-prefix refs/heads/"+s+"\n") + "0000"
		}},
		"in two beginnings": {knownSecret, func(s string) string {
			return line("command=ls-refs\n") + "0001" + line("ref-prefix "+s[:12]+"\n") + line("ref-prefix "+s[12:]+"\n") + "0000"
		}},
		"in an id": {knownSecret[:20], func(s string) string {
			return line("command=fetch\n") + "0001" + line(fmt.Sprintf("have %x\n", s)) + line("done\n") + "0000"
		}},
		"in the name of a branch": {knownSecret, func(s string) string {
			return line("command=fetch\n") + "0001" + line("deepen-not "+s+"\n") + line("done\n") + "0000"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Repos: []Repo{{Name: "app", URL: up}}, Secrets: func() map[string]secret.Value {
				return map[string]secret.Value{"deploy-token": secret.NewString(c.secret)}
			}}
			events := record(&cfg)
			_, url := newGate(t, cfg)
			ask := func(s string) string {
				_, out := post(t, url+"/app.git/git-upload-pack", uploadPack, c.body(s), "Git-Protocol", "version=2")
				return out
			}
			const says = "nothing was asked of upstream: the request holds a secret (deploy-token)"
			if out := ask(strings.Repeat("an-innocent-word-", 3)[:len(c.secret)]); strings.Contains(out, says) {
				t.Errorf("its neighbour is refused: %q", out)
			}
			if out := ask(c.secret); !strings.Contains(out, says) {
				t.Errorf("it left: %q", out)
			}
			op := "fetch"
			if strings.Contains(c.body(c.secret), "ls-refs") {
				op = "list"
			}
			if ev := events.last(op); ev.Verdict != Refused {
				t.Errorf("recorded as %q of %s", ev.Verdict, op)
			}
		})
	}
}
