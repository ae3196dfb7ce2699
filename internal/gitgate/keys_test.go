package gitgate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// aKey returns the text of a private key, with middle as one of its lines.
func aKey(middle string) string {
	b := "-----BEGIN EC PRIVATE" + " KEY-----\n"
	for range 3 {
		b += strings.Repeat(rand.Text(), 3)[:64] + "\n"
	}
	return b + middle + "-----END EC PRIVATE" + " KEY-----\n"
}

// A person is asked once about the keys in a file, which have no place for a comment, and
// not at all about those that upstream has there. No other secret goes along.
func TestG1Keys(t *testing.T) {
	t.Parallel()
	key, other := aKey(""), aKey("")
	shown := strings.Split(key, "\n")[2] // must not be
	many := ""
	for i := range 30 {
		many += fmt.Sprintf("k%d:\n%s", i, aKey(""))
	}
	const found, nobody, no = "private-key", "this bottle asks nobody", "not this one"
	for name, c := range map[string]struct {
		old   string
		texts []string // one commit each
		says  string
		asked int
		text  string // of the question
	}{
		"new":                             {"x\n", []string{key}, goes, 1, "-----BEGIN EC PRIVATE" + " KEY----- lines 1-5"},
		"in short lines, nobody is asked": {"x\n", []string{"-----BEGIN RSA PRIVATE " + "KEY----- # gitleaks:allow\n" + strings.Repeat("MIIEpAIBAAKCAQEA7bq2rJw9Xk3v\n", 12) + "-----END RSA PRIVATE " + "KEY-----\n"}, nobody, 0, ""},
		"new, in the midst":               {"x\n", []string{"a\nb = `" + key + "`\n"}, goes, 1, "lines 2-6"},
		"new, rejected":                   {"x\n", []string{key}, no, 1, "lines 1-5"},
		"new, and nobody is asked":        {"x\n", []string{key}, nobody, 0, ""},
		"thirty in one file":              {"x\n", []string{many}, goes, 1, "lines 2-6, 8-12"},
		"the same in three commits":       {"x\n", []string{key, "a\n" + key, "b\n" + key}, goes, 1, "lines "},
		"upstream has it":                 {key, []string{"a\n" + key}, goes, 0, ""},
		"upstream has thirty":             {many, []string{"a\n" + many, "a\nb\n" + many}, goes, 0, ""},
		"upstream has it, one more":       {key, []string{"a\n" + key + other}, goes, 1, "lines 7-11"},
		"upstream has it, one letter":     {strings.Replace(key, key[60:62], "==", 1), []string{"a\n" + key}, goes, 1, "lines 2-6"},
		"upstream has the same elsewhere": {"x\n", []string{key}, goes, 1, "lines 1-5"},
		"a secret of the host's in it":    {"x\n", []string{aKey(knownSecret + "\n")}, "known-secret deploy-token", 0, ""},
		"another token in it":             {"x\n", []string{aKey(awsKey + "\n")}, "aws-access-token", 0, ""},
		"another token, upstream has it":  {key, []string{"a\n" + key + awsKey + "\n"}, "aws-access-token", 0, ""},
		"compressed":                      {"x\n", []string{string(gzipped(key))}, found, 0, ""},
		"on one line":                     {"x\n", []string{strings.ReplaceAll(key, "\n", `\n`) + "\n"}, found, 0, ""},
		"on one line that asks":           {"x\n", []string{strings.ReplaceAll(key, "\n", `\n`) + " gitleaks:allow\n"}, goes, 1, "***"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			git(t, up, "config", "uploadpack.allowFilter", "true")
			direct := t.TempDir() + "/d"
			git(t, up, "clone", "-q", up, direct)
			commitFile(t, direct, "f.txt", c.old)
			if strings.Contains(name, "elsewhere") {
				commitFile(t, direct, "g.txt", c.texts[0]+"more\n")
			}
			git(t, direct, "push", "-q", "origin", "trunk")
			var asked []Allow
			cfg := Config{
				Repos: []Repo{{Name: "app", URL: up}},
				Secrets: func() map[string]secret.Value {
					return map[string]secret.Value{"deploy-token": secret.NewString(knownSecret)}
				},
			}
			if c.says != nobody {
				cfg.Ask = func(_ context.Context, a Allow) (string, error) {
					asked = append(asked, a)
					if c.says == no {
						return "", errors.New(no)
					}
					return "me", nil
				}
			}
			pushes(t, cfg, c.says, "f.txt", c.texts...)
			if len(asked) != c.asked {
				t.Fatalf("%d questions: %+v", len(asked), asked)
			}
			for _, a := range asked {
				if a.Rule != "private-key" || a.File != "f.txt" || a.Line < 1 || !strings.Contains(a.Text, c.text) || strings.Contains(a.Text, shown) {
					t.Errorf("%+v", a)
				}
			}
		})
	}
}
