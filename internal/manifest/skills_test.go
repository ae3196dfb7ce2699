package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
)

// shelf is a user's home with skills.
type shelf struct {
	t     *testing.T
	where Where
}

func newShelf(t *testing.T) *shelf {
	home := t.TempDir()
	s := &shelf{t, Where{Config: home + "/config", Home: home, Repo: home + "/repo"}}
	if err := os.Mkdir(s.where.Repo, 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shelf) write(path, text string, mode os.FileMode) string {
	s.t.Helper()
	path = filepath.Join(s.where.Home, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func (s *shelf) read(names ...string) (string, error) {
	var vs []Value[string]
	for i, n := range names {
		vs = append(vs, Value[string]{V: n, From: Origin{File: "/agents/a.md", Line: 3 + i, Column: 5, Field: "skills"}})
	}
	files, read, err := ReadSkills(s.where, vs)
	if len(files) != len(read) {
		s.t.Errorf("%d files, and %d were read", len(files), len(read))
	}
	var out []string
	for _, f := range files {
		out = append(out, fmt.Sprintf("%s %v %s", f.Path, f.Exec, f.Content))
	}
	return strings.Join(out, "; "), err
}

// The user's own directory comes first, then bot-bottle's, then Claude Code's.
func TestSkillsAreFound(t *testing.T) {
	s := newShelf(t)
	s.write(".claude/skills/a/SKILL.md", "claude's a", 0o644)
	s.write(".claude/skills/b/SKILL.md", "claude's b", 0o644)
	s.write(".bot-bottle/skills/a/SKILL.md", "bot-bottle's a", 0o644)
	s.write("config/skills/c/SKILL.md", "c", 0o644)
	s.write("config/skills/c/bin/run.sh", "run", 0o755)
	s.write("config/skills/c/.git/config", "not taken", 0o644)
	got, err := s.read("a", "b", "c", "a")
	if want := "a/SKILL.md false bot-bottle's a; b/SKILL.md false claude's b; c/SKILL.md false c; c/bin/run.sh true run"; err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	s.write("config/skills/a/SKILL.md", "a", 0o644)
	if got, err := s.read("a"); got != "a/SKILL.md false a" {
		t.Errorf("%q, %v", got, err)
	}
	// Not a repository's, whatever it calls it.
	s.write("repo/.claude/skills/d/SKILL.md", "theirs", 0o644)
	s.write("repo/.bot-bottle/skills/d/SKILL.md", "theirs", 0o644)
	_, err = s.read("a", "d")
	var bad document.Error
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "/agents/a.md:4:5") || !strings.Contains(err.Error(), `no skill is called "d"`) {
		t.Errorf("%v", err)
	}
}

// TestSkillsRefuse: a skill that would bring files of others inside is refused, with the
// file. The nearest harmless skill is taken.
func TestSkillsRefuse(t *testing.T) {
	const key = "ghp_0123456789abcdefABCDEF0123456789abcd"
	for name, x := range map[string]struct {
		do   func(s *shelf, dir string)
		want string // empty: it is taken
	}{
		"link out":        {func(s *shelf, dir string) { s.link(s.write("id_rsa", "the key", 0o600), dir+"/x") }, "x: is a link that leads out"},
		"link up":         {func(s *shelf, dir string) { s.write("id_rsa", "k", 0o600); s.link("../../../id_rsa", dir+"/x") }, "x: is a link that leads out"},
		"link to nothing": {func(s *shelf, dir string) { s.link("nothing", dir+"/x") }, "x: is a link that leads out"},
		"link to dir out": {func(s *shelf, dir string) { s.link(s.where.Home, dir+"/x") }, "x: is a link that leads out"},
		"link within":     {func(s *shelf, dir string) { s.link("SKILL.md", dir+"/x") }, ""},
		"link to dir in":  {func(s *shelf, dir string) { s.write("config/skills/s/d/f", "f", 0o600); s.link("d", dir+"/x") }, "x: is no regular file"},
		"pipe":            {func(s *shelf, dir string) { s.must(unix.Mkfifo(dir+"/x", 0o600)) }, "x: is no regular file"},
		"others write":    {func(s *shelf, dir string) { s.write("config/skills/s/x", "x", 0o666) }, "x: can be written by others"},
		"others' dir":     {func(s *shelf, dir string) { s.must(os.Mkdir(dir+"/d", 0o777)); s.must(os.Chmod(dir+"/d", 0o777)) }, "d: can be written by others"},
		"secret":          {func(s *shelf, dir string) { s.write("config/skills/s/x", "one\ntwo\ntoken: "+key+"\n", 0o600) }, "x:3"},
		"no secret":       {func(s *shelf, dir string) { s.write("config/skills/s/x", "one\ntwo\ntoken: ghp_…\n", 0o600) }, ""},
		"too large":       {func(s *shelf, dir string) { s.write("config/skills/s/x", strings.Repeat("x", maxSkillFile+1), 0o600) }, "x: has more than"},
		"large":           {func(s *shelf, dir string) { s.write("config/skills/s/x", strings.Repeat("x", maxSkillFile), 0o600) }, ""},
		"too much": {func(s *shelf, dir string) {
			for i := range 5 {
				s.write(fmt.Sprintf("config/skills/s/%d", i), strings.Repeat("x", maxSkillFile), 0o600)
			}
		}, "is too much"},
		"too many": {func(s *shelf, dir string) {
			for i := range maxSkillFiles {
				s.write(fmt.Sprintf("config/skills/s/%d", i), "", 0o600)
			}
		}, "is one file more"},
		"no SKILL.md": {func(s *shelf, dir string) { s.must(os.Rename(dir+"/SKILL.md", dir+"/README.md")) }, "has no file SKILL.md"},
		"a file":      {func(s *shelf, dir string) { s.must(os.RemoveAll(dir)); s.write("config/skills/s", "x", 0o600) }, "can't be read"},
		"kept elsewhere": {func(s *shelf, dir string) {
			s.must(os.Rename(dir, s.where.Home+"/elsewhere"))
			s.link(s.where.Home+"/elsewhere", dir)
		}, ""},
		"kept in the repository": {func(s *shelf, dir string) {
			s.must(os.Rename(dir, s.where.Repo+"/s"))
			s.link(s.where.Repo+"/s", dir)
		}, "where an agent may have written it"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			s.write("config/skills/s/SKILL.md", "the skill", 0o644)
			x.do(s, s.where.Config+"/skills/s")
			got, err := s.read("s")
			if x.want == "" && (err != nil || !strings.Contains(got, "s/SKILL.md false the skill")) {
				t.Errorf("%.200q %v", got, err)
			}
			if x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want) || got != "" || strings.Contains(err.Error(), key)) {
				t.Errorf("%.200q %v, want %q", got, err, x.want)
			}
		})
	}
}

func (s *shelf) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) link(to, path string) { s.must(os.Symlink(to, path)) }
