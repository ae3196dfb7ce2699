package gitgate

import (
	"archive/zip"
	"bytes"
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
			if !c.goes && !strings.Contains(out, "known-secret deploy-token") {
				t.Errorf("does not say why:\n%s", out)
			}
		})
	}
}

// What can't be read to its end leaves only if a person lets it.
func TestG1Unreadable(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	w := zip.NewWriter(&zipped)
	f, err := w.Create("a.txt")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, "ordinary words, and some more of them, and of them")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive := func(at int, b ...byte) string {
		s := bytes.Clone(zipped.Bytes())
		copy(s[at:], b)
		return string(s)
	}
	seven := "7z\xbc\xaf\x27\x1c\x00\x04\x8d\x9b\xd5\x0f" + strings.Repeat("\x00", 20)
	deep := strings.Repeat("words\n", 100)
	for range 8 {
		deep = string(gzipped(deep))
	}
	const (
		refused, found = "can't be read to its end", "known-secret deploy-token"
		nobody         = "needs a person to approve it, and this bottle asks nobody"
	)
	yes := func(asked *[]Allow) func(context.Context, Allow) (string, error) {
		return func(_ context.Context, a Allow) (string, error) { *asked = append(*asked, a); return "me", nil }
	}
	no := func(asked *[]Allow) func(context.Context, Allow) (string, error) {
		return func(_ context.Context, a Allow) (string, error) {
			*asked = append(*asked, a)
			return "", errors.New("not this one")
		}
	}
	for name, c := range map[string]struct {
		file  string
		ask   func(*[]Allow) func(context.Context, Allow) (string, error)
		says  string
		asked int
	}{
		"a method that is not read, nobody is asked": {archive(8, 97), nil, nobody, 0},
		"a method that is not read, refused":         {archive(8, 97), no, "not this one", 1},
		"a method that is not read, approved":        {archive(8, 97), yes, goes, 1},
		"encrypted in the local header":              {archive(6, 9), nil, refused, 0},
		"a local header that is not one":             {archive(0, 'Q'), nil, refused, 0},
		"7z":                                         {seven, nil, refused, 0},
		"7z, approved":                               {seven, yes, goes, 1},
		"too deep":                                   {deep, nil, refused, 0},
		"too deep, approved":                         {deep, yes, goes, 1},
		"7z and a secret":                            {seven + knownSecret, yes, found, 0},
		"too deep and a secret":                      {deep + strings.Repeat("word\n", 20_000) + knownSecret, yes, found, 0},
		"a zip":                                      {archive(0), no, goes, 0},
		"what begins like 7z":                        {seven[:8] + "\x00" + seven[9:], no, goes, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked []Allow
			cfg := Config{
				Repos: []Repo{{Name: "app", URL: newUpstreamRepo(t)}},
				Secrets: func() map[string]secret.Value {
					return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
				},
			}
			if c.ask != nil {
				cfg.Ask = c.ask(&asked)
			}
			pushes(t, cfg, c.says, "f.bin", c.file)
			if len(asked) != c.asked {
				t.Errorf("%d questions: %+v", len(asked), asked)
			}
			for _, a := range asked {
				if a.Rule != unreadable || a.File != "f.bin" || a.Line < 1 || a.Commit == "" || !strings.Contains(a.Text, "can't be read to its end") {
					t.Errorf("%+v", a)
				}
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
		many    = "asked about 20 lines and files in one push, and this one has more"
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

// Nor do the ids of a push, which upstream gets before it looks for the objects.
func TestPushSpells(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t)
	cfg := Config{Repos: []Repo{{Name: "app", URL: up}}, Secrets: func() map[string]secret.Value {
		return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
	}}
	_, url := newGate(t, cfg)
	w := cloneOf(t, url)
	cmd, pack := rawPush(t, w)
	for name, body := range map[string]func(id string) string{
		"as an old value":  func(id string) string { return line(id + cmd[40:]) },
		"as a new value":   func(id string) string { return line(cmd[:41] + id + cmd[81:]) },
		"as a shallow one": func(id string) string { return line("shallow "+id) + line(cmd[:41]+someID+cmd[81:]) },
	} {
		t.Run(name, func(t *testing.T) {
			const says = "an id in the request: known-secret deploy-token"
			push := func(s string) string {
				_, out := post(t, url+"/app.git/git-receive-pack", receivePack, body(fmt.Sprintf("%x", s[:20]))+"0000"+string(pack))
				return out
			}
			if out := push(harmless); strings.Contains(out, says) {
				t.Errorf("its neighbour is refused: %q", out)
			}
			if out := push(knownSecret); !strings.Contains(out, says) {
				t.Errorf("it left: %q", out)
			}
		})
	}
}
