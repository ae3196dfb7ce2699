package change

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestPolicyPath(t *testing.T) {
	protected := []string{
		".git/hooks/pre-commit", ".git/config", ".git/config.worktree", ".git/hooks", ".git/info/attributes",
		".git/info/exclude", ".git/info/grafts", ".git/objects/info/alternates", ".git/objects/info/http-alternates",
		".git/commondir", ".git/gitdir", ".git/modules/x/config", ".git/modules/x/hooks/y", ".git/worktrees/w/gitdir",
		".git/worktrees/w/commondir", ".git/rebase-merge/git-rebase-todo", ".git/sequencer/todo", ".git/index.lock",
		".git/HEAD.lock", ".git/refs/heads/main.lock", ".git/BISECT_RUN", ".git/unknown", ".git/HEAD/x", ".git/lfs/hooks",
		".GIT/config", ".Git/Hooks/post-checkout", "sub/.git/config", "a/b/c/.git/hooks/x",
		".g\u200cit/config", ".gi\u00adt/config", "\ufeff.git/config", ".git\u200d/hooks/x", ".git./config", ".git /config",
		".git. ./config", "git~1/config", "GIT~1/hooks/x", ".git::$INDEX_ALLOCATION/config", ".gıt/config", ".\uff47it/config",
		".git/ho\u200coks/x", ".git/objects/pack/../x", ".git/obj\u200cects/aa", ".git/refs\u200c/x",
		".claude/settings.json", ".claude", "sub/.claude/settings.local.json", ".CLAUDE/x", "CLAUDE.md", "sub/AGENTS.md",
		".mcp.json", ".cursor/mcp.json", ".codex/config.toml", ".gemini/settings.json", ".opencode/plugin/x.js", ".aider.conf.yml",
		".vscode/tasks.json", ".idea/workspace.xml", ".zed/settings.json", ".nvim.lua", ".exrc", ".envrc", ".direnv/x",
		".devcontainer/devcontainer.json", ".devcontainer.json", ".husky/pre-commit", ".githooks/x", ".npmrc", ".yarnrc.yml",
		".pnpmfile.cjs", ".bot-bottle/x", ".carboy/x", "x.code-workspace", ".cargo/config.toml", ".carboy-0123-1",
		".hg/hgrc", "sub/.HG/hgrc", ".sl/config", ".jj/repo/config.toml", ".Rprofile", ".pdbrc", ".ghci", ".octaverc", ".pryrc", ".irbrc",
		".perldb", ".env", "tools/bazel", "crush.json", ".qwen/x", "QWEN.md", "AGENT.md", ".trae/x", ".factory/x", ".augment/x",
		".github/mcp.json", ".github/hooks/x.json", "x.sublime-project", "x.pro.user", ".jj/repo", ".hg", ".github",
		".vs\u200bcode/tasks.json", ".VSCode/x", ".claude./x", ".vſcode/x",
	}
	for _, p := range protected {
		if len(Policy{}.Path(p, File)) == 0 {
			t.Errorf("%q is not protected", p)
		}
	}
	free := []string{
		".git", ".git/HEAD", ".git/index", ".git/packed-refs", ".git/refs/heads/main", ".git/refs/heads/feature/x",
		".git/logs/HEAD", ".git/logs/refs/heads/main", ".git/ORIG_HEAD", ".git/FETCH_HEAD", ".git/COMMIT_EDITMSG", ".git/MERGE_MSG",
		".git/objects/aa/" + strings.Repeat("b", 38), ".git/objects/aa/" + strings.Repeat("b", 62),
		".git/objects/pack/pack-" + strings.Repeat("a", 40) + ".pack", ".git/objects/pack/pack-" + strings.Repeat("a", 40) + ".idx",
		".git/objects/info/commit-graph", ".git/objects/info/packs", ".git/info/refs",
		".gitignore", ".gitattributes", ".github/workflows/ci.yml", "git/config", "hooks/pre-commit", "x.git.txt", ".gitx/config",
		"main.go", "README.md", "src/claude/x", "vscode/tasks.json", "config", "docs/agents.txt", "Makefile", "package.json", ".env.example", "env", "tools/build.sh", "tools", "bazel", "crush/x", ".hg/store/x", ".jj/repo/store/x", ".github/ISSUE_TEMPLATE.md", "profile.R", ".r",
		"claude.mdx", "a.b/c d/é", "\xff\xfe", strings.Repeat("x/", 100) + "y",
	}
	for _, p := range free {
		typ := File
		if p == ".git" {
			typ = Dir
		}
		if r := (Policy{}).Path(p, typ); len(r) != 0 {
			t.Errorf("%q is protected: %v", p, r)
		}
	}
	for _, p := range []string{".git", "sub/.git"} {
		for _, typ := range []Type{File, Symlink} {
			if len(Policy{}.Path(p, typ)) == 0 {
				t.Errorf("%s as a %s is not protected", p, typ)
			}
		}
	}
	for _, p := range []string{".git/HEAD", ".git/refs", ".git/objects", ".git/refs/heads/x", ".git/index"} {
		if len(Policy{}.Path(p, Symlink)) == 0 {
			t.Errorf("%s as a link is not protected", p)
		}
	}
}

// TestProtectedNames: each line of the list is whole, is said once and takes effect.
func TestProtectedNames(t *testing.T) {
	seen := map[string]bool{}
	for line := range strings.Lines(protectedText) {
		if line[0] == '#' {
			continue
		}
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 5 || slices.Contains(f, "") || f[0] != "settings" && f[0] != "ci" {
			t.Errorf("%q: not a place, name, program, reason and source", line)
			continue
		}
		name := f[1]
		if seen[name] || FoldName(name) != name || strings.Count(name, "*") > 1 || strings.Contains(name, "*") && (f[0] == "ci" || strings.Contains(name, "/")) {
			t.Errorf("%s: twice, not folded, or more than a wildcard", name)
		}
		seen[name] = true
		for _, p := range []string{strings.ReplaceAll(name, "*", "x"), "sub/" + strings.ToUpper(strings.ReplaceAll(name, "*", "x")), strings.ReplaceAll(name, "*", "x") + "/y"} {
			if !slices.Contains((Policy{CI: true}).Path(p, File), Reason{f[0], f[3]}) {
				t.Errorf("%s is not protected", p)
			}
		}
		if q := "x" + name; !strings.Contains(name, "*") && len((Policy{CI: true}).Path(q, Dir)) > 0 {
			t.Errorf("%s is protected", q)
		}
	}
	if len(seen) < 190 {
		t.Errorf("%d names", len(seen))
	}
}

// TestWritable: what lets others write is held back, and what lets less is not.
func TestWritable(t *testing.T) {
	w := newWorld(t, map[string]string{"private": "x", "shared": "x", "run": "x", "d/f": "x", "e/f": "x", "content": "x"})
	for p, mode := range map[string]os.FileMode{"private": 0o600, "shared": 0o664, "run": 0o644, "d": 0o755, "e": 0o775, "content": 0o644} {
		must(t, os.Chmod(w.ws+"/"+p, mode))
	}
	u := w.upper().file("private", "x", 0o666).file("shared", "y", 0o664).file("run", "x", 0o755).file("content", "y", 0o664)
	u.dir("d", 0o777).dir("e", 0o775).file("e/f", "y", 0o644).file("new", "x", 0o664).file("newer", "x", 0o666).dir("newdir", 0o1777)
	s := w.collect(u.bytes())
	for p, held := range map[string]bool{"private": true, "shared": false, "run": false, "content": true, "d": true, "e/f": false, "new": false, "newer": true, "newdir": true} {
		c, ok := s.Lookup(p)
		if !ok {
			t.Errorf("%s is no change:\n%s", p, kinds(s))
			continue
		}
		if got := slices.ContainsFunc(c.Protected, func(r Reason) bool { return r.Rule == "writable" }); got != held {
			t.Errorf("%s: held back %v, want %v", p, got, held)
		}
	}
}

func TestPolicyCI(t *testing.T) {
	for _, p := range []string{".github/workflows/x.yml", ".GitHub/Workflows/x.yml", ".github/actions/a/action.yml", ".gitlab-ci.yml", "Jenkinsfile", ".github"} {
		if len(Policy{CI: true}.Path(p, File)) == 0 {
			t.Errorf("%s is not protected", p)
		}
		if p != ".github" && len(Policy{}.Path(p, File)) != 0 {
			t.Errorf("%s is protected unasked", p)
		}
	}
	if len(Policy{CI: true}.Path(".github/ISSUE_TEMPLATE.md", File)) != 0 {
		t.Error("an issue template is protected")
	}
	x := Policy{Extra: []string{"deploy/", "one"}}
	for p, want := range map[string]bool{"deploy/x": true, "deploy": true, "deployment": false, "one": true, "one/two": true, "on": false} {
		if got := len(x.Path(p, File)) > 0; got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
}

// FuzzPolicyPath: what git, or a file system that folds names as git guards
// against, takes for .git/hooks or .git/config is protected.
func FuzzPolicyPath(f *testing.F) {
	for _, s := range []string{".git", ".GIT", ".g\u200cit", "git~1", ".git ", "x", "\xff", ".ｇit", ".git:x"} {
		f.Add(s, "hooks/x")
		f.Add(s, "HEAD")
	}
	f.Fuzz(func(t *testing.T, dir, rest string) {
		if checkRel(dir+"/"+rest) != nil || strings.Contains(dir, "/") {
			return
		}
		got := len(Policy{}.Path(dir+"/"+rest, File)) > 0
		simple := strings.Map(func(r rune) rune {
			if r == 0x200c || r == 0x200d || r == 0xfeff {
				return -1
			}
			return r
		}, dir)
		isGit := strings.EqualFold(strings.TrimRight(simple, ". "), ".git")
		harmless := len(rest) > 0 && gitPath(strings.Split(strings.ToLower(rest), "/"), strings.Split(rest, "/"), File) == ""
		if isGit && !harmless && !got {
			t.Errorf("%q/%q is not protected", dir, rest)
		}
		if fold(fold(dir)) != fold(dir) && fold(dir) == ".git" {
			t.Errorf("folding %q is not stable", dir)
		}
	})
}

// TestGitAgrees: with every file of the allow-list under the adversary's
// control, git runs nothing.
func TestGitAgrees(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("install git")
	}
	dir := realTemp(t)
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	git("init", "-q")
	must(t, os.WriteFile(dir+"/f", []byte("f"), 0o644))
	git("add", "f")
	git("commit", "-q", "-m", "one")
	// What an ordinary session of an agent changes in .git is free to land.
	before := treeOf(t, dir)
	must(t, os.WriteFile(dir+"/f", []byte("g"), 0o644))
	git("checkout", "-q", "-b", "feature/x")
	git("commit", "-q", "-a", "-m", "two")
	git("tag", "v1")
	git("gc", "-q")
	for p, v := range treeOf(t, dir) {
		if v == before[p] || !strings.HasPrefix(p, ".git/") {
			continue
		}
		typ := File
		if v[0] == 'd' {
			typ = Dir
		}
		if r := (Policy{}).Path(p, typ); len(r) != 0 && p != ".git/info/commit-graphs" {
			t.Errorf("%s, which git itself changed, is protected: %v", p, r)
		}
	}
}

func TestLinks(t *testing.T) {
	w := newWorld(t, map[string]string{"f": "f", "d/e/f": "f", "out": "-> /etc", "in": "-> d/e", "up": "-> ..", ".git/HEAD": "x"})
	links := map[string]bool{ // path → target leads out or to a protected place
		"a1 f": false, "a2 d/e": false, "a3 none": false, "a4 ./d/../f": false, "d/a5 ../f": false, "d/e/a6 ../../f": false,
		"a7 in/f": false, "a8 " + w.ws + "/f": false, "a9 .": false, "new/b0 ../f": false, "a0 chain1": false,
		"b1 /etc/passwd": true, "b2 ../x": true, "d/b3 ../../x": true, "b4 out/passwd": true, "b5 up/x": true, "b6 d/../../x": true,
		"b7 /": true, "b8 " + w.ws + "x/f": true, "b9 in/../../../x": true, "c1 b1": true, "c2 loop": true, "loop c2": true,
		"c3 " + w.ws + "/../x": true, "c4 .git/hooks/pre-commit": true, "d/c5 ../.git/config": true, "c6 in/../../.git/config": true,
		"c7 .claude/settings.json": true, "c8 a1/../../../x": true, "c9 .git/HEAD": false, "chain1 chain2": false, "chain2 f": false,
		"e1 dirlink/x": true, "dirlink ../other": true,
	}
	u := w.upper()
	u.dir("new", 0o755)
	for l := range links {
		p, target, _ := strings.Cut(l, " ")
		u.link(p, target)
	}
	s := w.collect(u.bytes())
	for l, want := range links {
		p, _, _ := strings.Cut(l, " ")
		c, ok := s.Lookup(p)
		if !ok {
			t.Errorf("%s is no change", p)
			continue
		}
		if got := len(c.Protected) > 0; got != want {
			t.Errorf("%s: protected %v, want %v (%v)", l, got, want, c.Protected)
		}
	}
	r := w.land(s, LandOptions{})
	for _, p := range r.Landed {
		c, _ := s.Lookup(p)
		if links[p+" "+string(c.Target)] {
			t.Errorf("landed %s", p)
		}
	}
}

// TestRepositories: directories that git would take for repositories.
func TestRepositories(t *testing.T) {
	w := newWorld(t, map[string]string{".git/HEAD": "x", "half/objects/": "", "half/refs/": ""})
	u := w.upper()
	u.file(".git/refs/heads/x", "x", 0o644)
	u.file("nested/.git/HEAD", "ref", 0o644).dir("nested/.git/objects", 0o755).dir("nested/.git/refs", 0o755)
	u.file("bare/HEAD", "ref", 0o644).dir("bare/objects", 0o755).dir("bare/refs", 0o755).file("bare/config", "[core]", 0o644).file("bare/other", "x", 0o644)
	u.file("half/HEAD", "completes what the host had", 0o644)
	u.file("common/HEAD", "x", 0o644).file("common/commondir", "..", 0o644)
	u.file("harmless/HEAD", "x", 0o644).file("harmless/config", "x", 0o644).file("harmless/hooks/x", "x", 0o644)
	s := w.collect(u.bytes())
	want := map[string]bool{".git/refs/heads/x": false, "nested/.git": false, "nested/.git/HEAD": false, "nested": false,
		"bare/HEAD": true, "bare/config": true, "bare/refs": true, "bare/other": false, "half/HEAD": true, "common/HEAD": true,
		"common/commondir": true, "harmless/HEAD": false, "harmless/config": false, "harmless/hooks/x": false}
	for p, want := range want {
		c, ok := s.Lookup(p)
		if !ok {
			t.Errorf("%s is no change:\n%s", p, kinds(s))
			continue
		}
		if got := len(c.Protected) > 0; got != want {
			t.Errorf("%s: protected %v, want %v (%v)", p, got, want, c.Protected)
		}
	}
}

// TestDeleteProtected: a tree that holds something protected is not removed
// around it.
func TestDeleteProtected(t *testing.T) {
	w := newWorld(t, map[string]string{"d/.git/hooks/x": "x", "d/f": "f", "e/f": "f", ".vscode/tasks.json": "{}"})
	s := w.collect(w.upper().gone("d").gone("e").gone(".vscode").bytes())
	r := w.land(s, LandOptions{})
	now := treeOf(t, w.ws)
	if now["d/.git/hooks/x"] == "" || now["d/f"] != "" || now["e"] != "" || now[".vscode/tasks.json"] == "" {
		t.Errorf("%v; withheld %v", now, r.Withheld)
	}
	w.land(s, LandOptions{IncludeProtected: true})
	if now := treeOf(t, w.ws); len(now) != 5 || now["d/.git/hooks/x"] == "" {
		t.Error(now) // a repository is never removed
	}
}

// TestForgedObject: git's objects are named by their content, so the diff shows a
// modified one. No object is copied.
func TestForgedObject(t *testing.T) {
	old, fresh := "objects/aa/"+strings.Repeat("b", 38), "objects/aa/"+strings.Repeat("c", 38)
	pack := "objects/pack/pack-" + strings.Repeat("a", 40) + ".pack"
	w := newWorld(t, map[string]string{".git/" + old: "object", ".git/" + pack: "pack", "sub/.git/HEAD": "ref: x", "f": "f"})
	u := w.upper().file(".git/"+old, "forged", 0o644).file(".git/"+fresh, "new", 0o644).file(".git/"+pack, "forged", 0o644)
	u.file(".git/objects/aa/short", "x", 0o644).file(".git/objects/Zz/x", "x", 0o644).file("sub/.git/HEAD", "ref: y", 0o644)
	stream := u.file("f", "bottle", 0o644).bytes()
	must(t, os.WriteFile(w.ws+"/f", []byte("mine"), 0o644))
	s := w.collect(stream)
	for name, protected := range map[string]bool{old: true, pack: true, fresh: false, "objects/aa/short": true, "objects/Zz/x": true} {
		c, ok := s.Lookup(".git/" + name)
		if !ok || (len(c.Protected) > 0) != protected || c.Bookkeeping() == protected {
			t.Errorf("%s: %+v", name, c)
		}
	}
	var out bytes.Buffer
	st, err := s.Diff(&out, DiffOptions{})
	must(t, err)
	if st.Bookkeeping == 0 || !strings.Contains(out.String(), "--git shows them") || !strings.Contains(out.String(), "# conflict: changed on the host during the run") {
		t.Errorf("%+v\n%s", st, out.String())
	}
	if all, err := s.Diff(&out, DiffOptions{Git: true, Paths: []string{w.ws}}); err != nil || all.Files != st.Files+st.Bookkeeping {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := Land(context.Background(), s, LandOptions{Paths: []string{".git/" + old}}); !errors.Is(err, ErrProtected) {
		t.Errorf("landed a forged object: %v", err)
	}
	w.land(s, LandOptions{Paths: []string{".git/objects/aa"}, IncludeProtected: true})
	if got := treeOf(t, w.ws); !strings.HasSuffix(got[".git/"+old], " object") || got[".git/"+fresh] != "" {
		t.Errorf("objects were copied: %v", got)
	}
}
