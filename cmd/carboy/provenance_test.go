package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/provenance"
)

// TestProvenance: what people and programs are told of records that verify, that don't, and
// that are gone, with the exit codes.
func TestProvenance(t *testing.T) {
	root := t.TempDir()
	env := map[string]string{
		"XDG_STATE_HOME": filepath.Join(root, "state"), "XDG_RUNTIME_DIR": t.TempDir(), "XDG_CONFIG_HOME": filepath.Join(root, "config"), "HOME": root,
		"PATH": os.Getenv("PATH"), "LANG": "C.UTF-8",
	}
	carboy := func(code int, args ...string) (out, msg string) {
		t.Helper()
		var o, e bytes.Buffer
		got := newApp(nil, &o, &e, func(n string) string { return env[n] }).run(t.Context(), append([]string{"provenance"}, args...))
		if got != code {
			t.Errorf("%q: code %d, want %d\n%s%s", args, got, code, o.String(), e.String())
		}
		return o.String(), e.String()
	}
	has := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("nothing says %q:\n%s", w, text)
			}
		}
	}
	if out, _ := carboy(0, "list"); out != "" {
		t.Error(out)
	}
	if out, _ := carboy(0, "list", "--json"); out != "[]\n" {
		t.Error(out)
	}

	repo := t.TempDir()
	gittest.Git(t, repo, "init", "-q", "-b", "main")
	gittest.Git(t, repo, "commit", "-q", "--allow-empty", "-m", "a")
	commit := strings.TrimSpace(gittest.Git(t, repo, "rev-parse", "HEAD"))
	tree := strings.TrimSpace(gittest.Git(t, repo, "rev-parse", "HEAD^{tree}"))
	t.Chdir(repo)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sum := strings.Repeat("ab", 32)
	state := filepath.Join(env["XDG_STATE_HOME"], "carboy")
	log, err := audit.Open(t.Context(), filepath.Join(state, "audit"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	facts := &provenance.Facts{
		Forge: "https://git.example.org", Owner: "acme", Repo: "app", Issue: 7, Pull: 9, Base: "main", Branch: "carboy/7-x", Head: commit, Commit: commit, Tree: tree, Merged: at,
		Agent: "fixer\x1b[2J", Bottles: []string{"go"}, Slug: "fixer-7",
		Turns: []provenance.Turn{{ID: "1", Began: at, Ended: at, Outcome: "passed", Verdict: "v1", VerdictSHA256: sum, Commit: strings.Repeat("1", 40), Moved: true, Tokens: 5,
			Runs: []provenance.Run{{ID: "r1", ReceiptSHA256: sum}, {ID: "r2"}}}},
		Operations: []forgeservice.Operation{
			{Operation: "post_comment", Target: "#5", Outcome: forgeservice.Refused, Reason: "write to #5 denied\nverified", At: at},
			{Operation: "post_comment", Target: "#7", Outcome: forgeservice.Begun, At: at},
		},
		Reviews: []provenance.Review{{By: "ada", State: "APPROVED", At: at}},
	}
	digest, err := provenance.Open(state, log).Seal(t.Context(), facts, provenance.SealOptions{Build: "v1"})
	if err != nil {
		t.Fatal(err)
	}

	out, _ := carboy(0, "verify", commit[:10])
	has(out, "verified  ", digest, "signature  holds", "audit log  holds", "git        holds", "Pull request #9 of acme/app", "carboy observed\n", "the forge told\n", "the agent or a model claimed\n", "not observed\n  - the merge: who or what made it", "no gate of carboy judged the difference")
	out, _ = carboy(0, "verify", "acme/app@"+commit, "--json")
	var r provenance.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Verified || r.Schema != "carboy.dev/provenance-report/v1" {
		t.Errorf("%v %s", err, out)
	}
	out, _ = carboy(0, "show", commit)
	has(out, `agent        fixer\x1b[2J, bottles go`, "turn 1       2026-03-01T12:00:00Z", "#5: refused write to #5 denied\\nverified\n", "review       2026-03-01T12:00:00Z by ada, APPROVED", "receipt missing", "not pushed", "not observed")
	if strings.Contains(out, "begun") || strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	out, _ = carboy(0, "show", commit, "--json")
	has(out, `"schema": "carboy.dev/provenance-record/v1"`, `"owner": "acme"`, `"not_observed"`)
	out, _ = carboy(0, "list")
	if want := commit[:12] + "  acme/app  2026-03-01 12:00  #9  fixer\\x1b[2J\n"; out != want {
		t.Errorf("%q", out)
	}

	file := filepath.Join(state, "provenance", "acme", "app", commit+".json")
	carboy(0, "verify", "--file", file)
	out, msg := carboy(1, "verify", "--file", file, strings.Repeat("0", 40))
	has(out+msg, "commit     fails", "the record does not verify")
	for _, args := range [][]string{
		{"verify"}, {"show"}, {"verify", "HEAD"}, {"verify", ""}, {"verify", commit, commit}, {"verify", commit, "--key", ""}, {"verify", "--file", ""}, {"list", "x"}, {"show", "--nonsense"},
	} {
		if _, msg := carboy(2, args...); !strings.Contains(msg, "hint: ") && args[0] != "list" && args[len(args)-1] != "--nonsense" {
			t.Errorf("%q: %s", args, msg)
		}
	}
	_, msg = carboy(1, "verify", "00000000")
	has(msg, "there is no such record", "hint: carboy provenance list")
	_, msg = carboy(1, "verify", commit, "--key", "x")
	has(msg, "is no public key", "hint: ")

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b[:len(b)-9], 0o600); err != nil {
		t.Fatal(err)
	}
	out, msg = carboy(1, "verify", commit)
	has(out+msg, "does not verify  ", "signature  fails", "the record does not verify")
	if strings.Contains(out, "observed") {
		t.Errorf("what nobody signed is shown:\n%s", out)
	}
	out, _ = carboy(1, "verify", commit, "--json")
	if r = (provenance.Report{}); json.Unmarshal([]byte(out), &r) != nil || r.Verified || r.Record != nil {
		t.Error(out)
	}
	out, msg = carboy(1, "show", commit)
	if has(msg, "signature: "); out != "" {
		t.Error(out)
	}
	out, msg = carboy(1, "list")
	has(out+msg, "can't be read", "1 record does not verify")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	out, _ = carboy(1, "verify", commit)
	has(out, "audit log  fails", "was sealed")
	out, _ = carboy(1, "list", "--json")
	has(out, `"wrong": "it was sealed, and is gone"`)
	var o bytes.Buffer
	if code := newApp(nil, &o, &o, func(n string) string { return env[n] }).run(t.Context(), []string{"audit", "verify"}); code != 1 || !strings.Contains(o.String(), "provenance acme/app@"+commit+": it was sealed, and is gone") {
		t.Errorf("audit verify: %d\n%s", code, o.String())
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	carboy(0, "verify", commit)
	o.Reset()
	if code := newApp(nil, &o, &o, func(n string) string { return env[n] }).run(t.Context(), []string{"audit", "verify"}); code != 0 {
		t.Errorf("audit verify: %d\n%s", code, o.String())
	}
}
