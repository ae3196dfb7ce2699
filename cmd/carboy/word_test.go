//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWord: one word in a terminal; what is proposed is asked once, and at the end the
// changes are a key away.
func TestWord(t *testing.T) {
	d := newDen(t, nil)
	bin := d.home + "/.local/bin" // of a login shell's PATH only
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	const program = "#!/bin/sh\nread x; echo \"got $x\"; echo \"$x\" >>said; [ \"$x\" != third ] || sleep 1000\n"
	if err := os.WriteFile(bin+"/claude", []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"TERM=xterm", "NO_COLOR=1", "ANTHROPIC_API_KEY=sk-ant-api03-a-key-of-the-host"}
	s := terminalOf(t, d.home, 100, env, "claude")
	s.await("reaches    api.anthropic.com:443")
	s.await("start it, and the next time in this directory without asking? [y/N]")
	s.typed("n\n")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	for i, words := range []string{"first", "second"} {
		s = terminalOf(t, d.home, 100, env, "claude")
		if i == 0 {
			s.await("without asking? [y/N]")
			s.typed("y\n")
		}
		s.typed(words + "\n")
		s.await("got " + words)
		s.await("d shows the changes, l lands them, Enter leaves them:")
		s.typed("d\n")
		s.await("+" + words)
		s.await("l lands them")
		s.typed("l\n")
		s.await("land ")
		s.typed("y\n")
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, s.text())
		}
		if i == 1 && strings.Contains(s.text(), "reaches") {
			t.Errorf("it asks again:\n%s", s.text())
		}
	}
	// Frozen, it has not ended: nothing is asked.
	s = terminalOf(t, d.home, 100, env, "claude")
	s.typed("third\n")
	s.await("got third")
	if _, msg, code := d.carboy("freeze", "claude"); code != 0 {
		t.Errorf("freeze: %d %s", code, msg)
	}
	if code := s.end(); code != 125 || strings.Contains(s.text(), "d shows the changes") {
		t.Errorf("frozen: exit code %d:\n%s", code, s.text())
	}
	if said, err := os.ReadFile(d.home + "/ws/said"); err != nil || string(said) != "first\nsecond\n" {
		t.Errorf("%q, %v", said, err)
	}
}

// TestWordBeginsAgain: claude --continue fails where there is no conversation, as in a bottle
// whose carboy died before the first prompt. So it gets that only where there is one.
func TestWordBeginsAgain(t *testing.T) {
	d := newDen(t, nil)
	bin := d.home + "/.local/bin"
	const program = `#!/bin/sh
echo "args $* ."
[ ! -e ~/.claude/began ] || { mkdir -p ~/.claude/projects/ws && echo {} >~/.claude/projects/ws/1.jsonl; }
mkdir -p ~/.claude; touch ~/.claude/began; exit 3
`
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(bin+"/claude", []byte(program), 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ANTHROPIC_API_KEY", "sk-ant-api03-a-key-of-the-host")
	for i, args := range [][]string{{"claude", "--yes"}, {"resume", "claude"}, {"resume", "claude"}} {
		if out, msg, code := d.carboy(args...); code != 3 || strings.Contains(out, "--continue .") != (i == 2) {
			t.Errorf("%d: %d %s%s", i, code, out, msg)
		}
	}
}

// TestWordInstalls: of a program that is not installed the hint says how to install it, and
// nothing of manifests, which its user has never seen.
func TestWordInstalls(t *testing.T) {
	d := newDen(t, nil)
	cmd := d.command("claude", "--yes")
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(cmd.Path), "ANTHROPIC_API_KEY=sk-ant-api03-a-key-of-the-host")
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err == nil || !strings.Contains(out, "claude is not installed here") || !strings.Contains(out, "hint: npm install -g @anthropic-ai/claude-code\n") || strings.Contains(out, "template") || strings.Contains(out, ".md") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestAgentCommand: any program starts as a word does: found where it is installed, asked
// about once, with the credentials that were named and no others, outside of the
// repository. It begins again with its arguments.
func TestAgentCommand(t *testing.T) {
	d := newDen(t, nil)
	bin := d.home + "/.local/bin" // of a login shell's PATH only
	const program = "#!/bin/sh\necho \"args $* key $MY_KEY other $ANTHROPIC_API_KEY\"; echo x >>work; [ $(wc -l <work) = 2 ]\n"
	err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(bin+"/My_Agent.sh", []byte(program), 0o755), os.WriteFile(d.home+"/ws/go.mod", nil, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MY_KEY", "key-of-the-host-0123456789")
	t.Setenv("ANTHROPIC_API_KEY", "sk-ant-api03-a-key-of-the-host")
	named := []string{"agent", "--credential", "a=MY_KEY@models.example.com"}
	start := func(more ...string) []string { return append(append([]string(nil), named...), more...) }

	if out, msg, code := d.carboy(start("--dry-run", "--", "My_Agent.sh")...); code != 0 || !strings.Contains(out, "reaches    models.example.com (bearer MY_KEY)") || !strings.Contains(out, "proxy.golang.org") || strings.Contains(out, "anthropic") {
		t.Errorf("%d %s%s", code, out, msg)
	}
	if out, msg, code := d.carboy(start("--", "My_Agent.sh")...); code != 125 || strings.Contains(out, "args") {
		t.Errorf("it was not asked: %d %s%s", code, out, msg)
	}
	for _, flags := range [][]string{{"--yes", "--"}, {"--"}} { // the second time without a question
		out, msg, code := d.carboy(start(append(flags, "My_Agent.sh", "--flag", "a b")...)...)
		if code != 1 || !strings.Contains(out, "args --flag a b key carboy-placeholder-") || !strings.Contains(out, " other \n") || !strings.Contains(msg, "carboy resume my-agent-sh") {
			t.Errorf("%q: %d %s%s", flags, code, out, msg)
		}
	}
	if out, msg, code := d.carboy("agent", "--credential", "a=MY_KEY@other.example.com", "--", "My_Agent.sh"); code != 125 || strings.Contains(out, "args") {
		t.Errorf("another host was not asked about: %d %s%s", code, out, msg)
	}
	if _, msg, code := d.carboy(start("--yes", "--", "My_Agent.sh")...); code != 1 {
		t.Errorf("%d %s", code, msg)
	}
	if out, msg, code := d.carboy("resume", "my-agent-sh"); code != 0 || !strings.Contains(out, "args --flag a b key carboy-placeholder-") {
		t.Errorf("resume: %d %s%s", code, out, msg)
	}
	if _, msg, code := d.carboy("land", "my-agent-sh", "--yes"); code != 0 {
		t.Errorf("land: %d %s", code, msg)
	}
	if b, err := os.ReadFile(d.home + "/ws/work"); string(b) != "x\nx\n" {
		t.Errorf("%q, %v", b, err)
	}
	if l, err := filepath.Glob(d.home + "/ws/*"); err != nil || len(l) != 2 {
		t.Errorf("in the repository: %q", l)
	}
	for want, args := range map[string][]string{
		"looks like a secret":            {"agent", "--yes", "--", "My_Agent.sh", "ghp_" + "0123456789abcdefABCDEF0123456789abcd"},
		"no-such-agent is not installed": {"agent", "--yes", "--", "no-such-agent"},
		"is no program":                  {"agent", "--yes", "--", "./go.mod"},
		"agent: no command":              {"agent"},
	} {
		if out, msg, code := d.carboy(args...); code != 125 || !strings.Contains(msg, want) {
			t.Errorf("%q: %d %s%s; want %q", args, code, out, msg, want)
		}
	}
}
