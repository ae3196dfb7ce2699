package hostexec

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// plainGit runs git as a person would, with the repository's configuration in
// force; only the person's own is left out.
func plainGit(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	// Traps that go off may wait for each other: end them as one group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.org",
		"GIT_AUTHOR_DATE=2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2020-01-01T00:00:00Z",
		"GIT_TERMINAL_PROMPT=0",
	}
	out, err := cmd.Output()
	return string(out), err
}

func mustGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := plainGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v", args, err)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newRepo has two commits, a tag, a modified, a staged and an untracked file.
func newRepo(t *testing.T, init ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ws")
	mustGit(t, "/", append([]string{"init", "-q", "-b", "main", dir}, init...)...)
	write(t, dir+"/a.txt", "one\n")
	write(t, dir+"/sub/b c.txt", "b\n")
	mustGit(t, dir, "add", ".")
	mustGit(t, dir, "commit", "-q", "-m", "first")
	write(t, dir+"/a.txt", "one\ntwo\n")
	mustGit(t, dir, "commit", "-q", "-a", "-m", "second")
	mustGit(t, dir, "tag", "v1")
	write(t, dir+"/a.txt", "one\ntwo\nthree\n")
	write(t, dir+"/staged.txt", "s\n")
	mustGit(t, dir, "add", "staged.txt")
	write(t, dir+"/new\nline.txt", "n\n")
	return dir
}

func hostGit(t *testing.T, r *Runner, dir string, stdin []byte, args ...string) (string, error) {
	t.Helper()
	res, err := r.Run(t.Context(), Command{Program: Git, Args: args, Dir: dir, Timeout: 5 * time.Minute, Stdin: stdin})
	return string(res.Stdout.Text()), err
}

// asking are calls of every subcommand, in the forms that touch most.
var asking = [][]string{
	{"version"},
	{"rev-parse", "HEAD"},
	{"rev-parse", "--abbrev-ref", "HEAD"},
	{"rev-list", "--objects", "--all"},
	{"cat-file", "-p", "HEAD:a.txt"},
	{"ls-files", "-z", "-s"},
	{"ls-files", "-m", "-o", "--exclude-standard", "-z"},
	{"ls-tree", "-r", "-z", "HEAD"},
	{"merge-base", "HEAD", "HEAD~1"},
	{"for-each-ref", "--format=%(refname) %(objectname)"},
	{"status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all"},
	{"diff"},
	{"diff", "--cached", "--name-status", "-z"},
	{"diff", "--numstat", "HEAD", "--", "a.txt"},
	{"diff-tree", "-r", "-p", "HEAD~1", "HEAD"},
	{"log", "-p", "--format=%H %an %s", "-2"},
	{"show", "--stat", "HEAD"},
	{"log", "--oneline"},
}

// touching are the calls that look at contents, where helpers would run.
var touching = [][]string{
	{"status", "--porcelain=v2", "-z", "--untracked-files=all"},
	{"diff"},
	{"diff", "HEAD", "--stat"},
	{"log", "-p", "-2"},
	{"log", "--oneline"},
	{"show", "HEAD"},
	{"cat-file", "-p", "HEAD:a.txt"},
}

// fingerprint covers names, modes, times and contents below dir.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%q %v %d %d\n", path, fi.Mode(), fi.Size(), fi.ModTime().UnixNano())
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			_, _ = h.Write(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Answers equal git's own, in each form of repository, and nothing
// in the workspace or the scratch directory is different afterwards.
func TestGitAnswersAsGitDoes(t *testing.T) {
	forms := map[string]func(t *testing.T) string{
		"plain":  func(t *testing.T) string { return newRepo(t) },
		"sha256": func(t *testing.T) string { return newRepo(t, "--object-format=sha256") },
		"packed": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "gc", "-q")
			return d
		},
		"detached": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "checkout", "-q", "--detach")
			return d
		},
		"linked worktree": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "worktree", "add", "-q", "../linked")
			write(t, d+"/../linked/a.txt", "changed\n")
			return filepath.Join(filepath.Dir(d), "linked")
		},
		"split index": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "update-index", "--split-index")
			return d
		},
		"shallow": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "commit", "-q", "-a", "-m", "third")
			to := filepath.Join(t.TempDir(), "shallow")
			mustGit(t, "/", "clone", "-q", "--depth=2", "--branch=main", "file://"+d, to)
			mustGit(t, to, "branch", "--unset-upstream") // branch.* is not taken over
			return to
		},
		"file mode off": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "config", "core.fileMode", "false")
			chmod(t, d+"/sub/b c.txt", 0o755)
			return d
		},
		"sparse": func(t *testing.T) string {
			d := newRepo(t)
			mustGit(t, d, "sparse-checkout", "set", "--no-cone", "/*.txt")
			return d
		},
		"own excludes": func(t *testing.T) string {
			d := newRepo(t)
			write(t, d+"/.git/info/exclude", "new*\n")
			return d
		},
	}
	for form, build := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			scratch := t.TempDir()
			r := newTestRunner(t, Options{Scratch: scratch})
			dir := build(t)
			// Stale times in the index tempt git to rewrite it.
			old := time.Now().Add(-time.Hour)
			_ = os.Chtimes(dir+"/sub/b c.txt", old, old)
			before := fingerprint(t, filepath.Dir(dir))
			got := map[int]string{}
			for i, args := range asking {
				var err error
				if got[i], err = hostGit(t, r, dir, nil, args...); err != nil {
					t.Errorf("%q: %v", args, err)
				}
			}
			if fingerprint(t, filepath.Dir(dir)) != before {
				t.Error("the workspace was written to")
			}
			if left, _ := os.ReadDir(scratch); len(left) != 0 {
				t.Errorf("left in scratch: %v", left)
			}
			for i, args := range asking {
				if want := mustGit(t, dir, args...); got[i] != want {
					t.Errorf("%q:\ngot  %q\nwant %q", args, got[i], want)
				}
			}
		})
	}
}

func TestGitWithInput(t *testing.T) {
	r := newTestRunner(t, Options{})
	dir := newRepo(t)
	id := strings.TrimSpace(mustGit(t, dir, "rev-parse", "HEAD:a.txt"))
	out, err := hostGit(t, r, dir, []byte("one\ntwo\n"), "hash-object", "--stdin")
	if err != nil || strings.TrimSpace(out) != id {
		t.Errorf("hash-object: %q, %v", out, err)
	}
	out, err = hostGit(t, r, dir, []byte(id+"\n"), "cat-file", "--batch")
	if err != nil || out != id+" blob 8\none\ntwo\n\n" {
		t.Errorf("cat-file: %q, %v", out, err)
	}
	// What is included is not read, nor what the repository or the user say.
	write(t, dir+"/other", "[a]\n\tb = included\n")
	out, err = hostGit(t, r, dir, []byte("[remote \"or igin\"]\n\turl = \"x # y\"\n[include]\n\tpath = "+dir+"/other\n"), "config")
	if err != nil || out != "remote.or igin.url\nx # y\x00include.path\n"+dir+"/other\x00" {
		t.Errorf("config: %q, %v", out, err)
	}
	repo, err := FindRepository(dir)
	if err != nil || repo.Objects != dir+"/.git/objects" || !strings.Contains(repo.Config, "[core]") {
		t.Errorf("%+v %v", repo, err)
	}
	if _, err := FindRepository(dir + "/sub"); err == nil {
		t.Error("a directory below the top has a repository")
	}
}

// trap is a repository that makes git run the canary. arm prepares it; spring
// is what a person types, to show that the trap works.
type trap struct {
	arm    func(t *testing.T, dir, canary string)
	spring []string // nil: cannot be shown without a terminal
}

func config(kv ...string) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		for i := 0; i < len(kv); i += 2 {
			mustGit(t, dir, "config", kv[i], strings.ReplaceAll(kv[i+1], "CANARY", canary))
		}
	}
}

func attributes(text string, next func(t *testing.T, dir, canary string)) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		write(t, dir+"/.gitattributes", text)
		write(t, dir+"/.git/info/attributes", text)
		next(t, dir, canary)
	}
}

// missingBlob makes HEAD:a.txt an object that a promisor remote would have.
func missingBlob(url string) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		id := strings.TrimSpace(mustGit(t, dir, "rev-parse", "HEAD:a.txt"))
		if err := os.Remove(filepath.Join(dir, ".git/objects", id[:2], id[2:])); err != nil {
			t.Fatal(err)
		}
		config("core.repositoryFormatVersion", "1", "extensions.partialClone", "origin", "remote.origin.promisor", "true",
			"remote.origin.url", url, "protocol.allow", "always", "core.sshCommand", "CANARY",
			"remote.origin.uploadpack", "CANARY")(t, dir, canary)
	}
}

// signedHead puts a commit with a signature on main.
func signedHead(t *testing.T, dir string) {
	t.Helper()
	commit := strings.Replace(mustGit(t, dir, "cat-file", "-p", "HEAD"), "\n\n",
		"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n aGVsbG8=\n -----END PGP SIGNATURE-----\n\n", 1)
	write(t, dir+"/.git/commit", commit)
	id := mustGit(t, dir, "hash-object", "-w", "-t", "commit", ".git/commit")
	mustGit(t, dir, "update-ref", "HEAD", strings.TrimSpace(id))
}

var traps = map[string]trap{
	"fsmonitor":          {config("core.fsmonitor", "CANARY"), []string{"status"}},
	"external diff":      {config("diff.external", "CANARY"), []string{"diff"}},
	"diff driver":        {attributes("* diff=x\n", config("diff.x.command", "CANARY")), []string{"diff"}},
	"textconv":           {attributes("* diff=x\n", config("diff.x.textconv", "CANARY")), []string{"show", "HEAD"}},
	"textconv, cached":   {attributes("* diff=x\n", config("diff.x.textconv", "CANARY", "diff.x.cachetextconv", "true")), []string{"log", "-p"}},
	"clean filter":       {attributes("* filter=x\n", config("filter.x.clean", "CANARY")), []string{"diff"}},
	"clean, on status":   {attributes("* filter=x\n", touched(config("filter.x.clean", "CANARY"))), []string{"status"}},
	"process filter":     {attributes("* filter=x\n", config("filter.x.process", "CANARY", "filter.x.required", "true")), []string{"diff"}},
	"smudge filter":      {attributes("* filter=x\n", config("filter.x.smudge", "CANARY")), []string{"cat-file", "--filters", "HEAD:a.txt"}},
	"include":            {included("include.path"), []string{"status"}},
	"conditional":        {included("includeIf.gitdir:/.path"), []string{"status"}},
	"worktree config":    {worktreeConfig, []string{"status"}},
	"hook":               {hook(".git/hooks"), []string{"status"}},
	"hooks path":         {hook("hooks"), []string{"status"}},
	"submodule":          {submodule, []string{"status"}},
	"submodule log":      {submodule, []string{"diff"}},
	"signature":          {signed("log.showSignature", "true"), []string{"log"}},
	"signature format":   {signed("format.pretty", "%G?"), []string{"log"}},
	"signature, named":   {signed("pretty.x", "%+G?", "format.pretty", "x"), []string{"log"}},
	"ssh signature":      {signed("log.showSignature", "true", "gpg.x509.program", "CANARY"), []string{"show"}},
	"promisor, ext":      {missingBlob("ext::CANARY"), []string{"cat-file", "-p", "HEAD:a.txt"}},
	"promisor, ssh":      {missingBlob("ssh://host.invalid/x"), []string{"cat-file", "-p", "HEAD:a.txt"}},
	"promisor, file":     {missingBlob("file:///"), []string{"cat-file", "-p", "HEAD:a.txt"}},
	"promisor, on diff":  {missingBlob("ext::CANARY"), []string{"diff", "HEAD"}},
	"alias of a builtin": {config("alias.log", "!CANARY", "alias.status", "!CANARY"), nil},
	"pager":              {config("core.pager", "CANARY", "pager.log", "CANARY", "pager.diff", "CANARY", "pager.show", "CANARY"), nil},
	"askpass, editor":    {config("core.askPass", "CANARY", "core.editor", "CANARY", "credential.helper", "!CANARY", "sequence.editor", "CANARY"), nil},
	"alternates command": {config("core.alternateRefsCommand", "CANARY"), nil},
	"url rewriting":      {config("url.ext::CANARY.insteadOf", "https://"), nil},
}

func touched(next func(t *testing.T, dir, canary string)) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		next(t, dir, canary)
		b, err := os.ReadFile(dir + "/sub/b c.txt")
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/sub/b c.txt", string(b)) // same bytes, new time
	}
}

func included(key string) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		write(t, dir+"/evil.config", "[core]\n\tfsmonitor = "+canary+"\n")
		mustGit(t, dir, "config", key, dir+"/evil.config")
	}
}

func worktreeConfig(t *testing.T, dir, canary string) {
	config("core.repositoryFormatVersion", "1", "extensions.worktreeConfig", "true")(t, dir, canary)
	write(t, dir+"/.git/config.worktree", "[core]\n\tfsmonitor = "+canary+"\n")
}

func hook(at string) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		if err := os.MkdirAll(filepath.Join(dir, at), 0o755); err != nil {
			t.Fatal(err)
		}
		symlink(t, canary, filepath.Join(dir, at, "post-index-change"))
		if at != ".git/hooks" {
			mustGit(t, dir, "config", "core.hooksPath", filepath.Join(dir, at))
		}
		touched(config())(t, dir, canary)
	}
}

// submodule has the trap in the configuration of a repository within.
func submodule(t *testing.T, dir, canary string) {
	in := dir + "/module"
	mustGit(t, "/", "init", "-q", in)
	write(t, in+"/f", "f\n")
	mustGit(t, in, "add", ".")
	mustGit(t, in, "commit", "-q", "-m", "m")
	mustGit(t, dir, "-c", "advice.addEmbeddedRepo=false", "add", "module")
	mustGit(t, dir, "commit", "-q", "-m", "with module")
	write(t, in+"/f", "g\n")
	mustGit(t, in, "config", "core.fsmonitor", canary)
	config("diff.ignoreSubmodules", "none", "diff.submodule", "diff", "status.submoduleSummary", "true", "submodule.recurse", "true")(t, dir, canary)
}

func signed(kv ...string) func(t *testing.T, dir, canary string) {
	return func(t *testing.T, dir, canary string) {
		signedHead(t, dir)
		config(append([]string{"gpg.program", "CANARY"}, kv...)...)(t, dir, canary)
	}
}

// Every trap goes off for plain git, and for none of our calls.
func TestHostileRepositories(t *testing.T) {
	for name, tr := range traps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newRepo(t)
			at := t.TempDir()
			canary, fired := at+"/canary", at+"/fired"
			write(t, canary, "#!/bin/sh\necho \"$0 $*\" >>"+fired+"\nexit 1\n")
			chmod(t, canary, 0o755)
			tr.arm(t, dir, canary)
			_ = os.Remove(fired)
			r := newTestRunner(t, Options{Untrusted: []string{dir}})
			for _, args := range touching {
				// Objects may be missing: the answer may be an error.
				out, err := hostGit(t, r, dir, nil, args...)
				if err != nil && !strings.HasPrefix(name, "promisor") {
					t.Errorf("%q: %v\n%s", args, err, out)
				}
				if b, err := os.ReadFile(fired); err == nil {
					t.Fatalf("%q ran %s", args, b)
				}
			}
			if tr.spring == nil {
				return
			}
			_, _ = plainGit(t, dir, tr.spring...)
			if _, err := os.Stat(fired); err != nil {
				t.Errorf("git %q does not spring the trap: the test shows nothing", tr.spring)
			}
		})
	}
}

func TestGitArguments(t *testing.T) {
	refused := [][]string{
		nil, {""}, {"-c", "alias.x=!sh", "x"}, {"-calias.x=!sh", "x"}, {"-c", "core.fsmonitor=x", "status"}, {"--config-env=alias.x=X", "x"},
		{"--config-env", "alias.x=X", "x"}, {"--exec-path=/work", "status"}, {"--exec-path", "/work"}, {"-C", "/etc", "status"}, {"-C/etc", "status"},
		{"--git-dir=/x", "status"}, {"--git-dir", "/x"}, {"--work-tree=/", "status"}, {"--namespace=x", "log"}, {"--super-prefix=x", "status"},
		{"-p", "log"}, {"--paginate", "log"}, {"--bare", "log"}, {"--help"}, {"--version"}, {"help", "log"}, {"--list-cmds=alias"}, {"--attr-source=x", "diff"},
		{"x"}, {"!sh"}, {"status "}, {"Status"}, {"/usr/lib/git-core/git-status"}, {"../git-status"},
		{"clone", "ext::sh -c x", "y"}, {"fetch"}, {"pull"}, {"push"}, {"ls-remote", "ext::x"}, {"archive", "--remote=ext::x", "HEAD"}, {"submodule", "update"},
		{"config", "alias.x", "!sh"}, {"config", "--global"}, {"config", "--list"}, {"config", "--file=/etc/x"}, {"config", "--includes"}, {"config", "--edit"}, {"difftool"}, {"mergetool"}, {"bisect", "run", "sh"}, {"rebase", "--exec", "sh"}, {"commit"}, {"checkout"}, {"gc"},
		{"filter-branch"}, {"grep", "-Osh", "x"}, {"grep", "x"}, {"daemon"}, {"upload-pack", "."}, {"receive-pack", "."}, {"http-backend"}, {"shell"}, {"apply"},
		{"am"}, {"hook", "run", "x"}, {"for-each-repo"}, {"credential", "fill"}, {"web--browse"}, {"instaweb"}, {"remote-ext"}, {"update-index"}, {"init"},
		{"diff", "--ext-diff"}, {"diff", "--textconv"}, {"diff", "--output=/x"}, {"diff", "--output", "x"}, {"diff", "--no-index", "a", "b"}, {"diff", "-O/etc/x"},
		{"diff", "--submodule=log"}, {"diff", "--ignore-submodules=none"}, {"diff", "--ext-dif"}, {"log", "--textc"}, {"diff", "/etc/passwd", "/etc/shadow"},
		{"diff", "../x", "a"}, {"diff", "--", "sub/../../x"}, {"diff", "--", "/etc/passwd"}, {"diff", "~/x", "a"}, {"diff", ""}, {"diff", "-c"},
		{"log", "--show-signature"}, {"log", "--format=%G?"}, {"log", "--format=%GG"}, {"log", "--format=%+G?"}, {"log", "--format=%-GS"}, {"log", "--format=% GK"},
		{"log", "--format=%<(9)%G?"}, {"log", "--pretty=format:%(describe)"}, {"log", "--pretty=x"}, {"log", "--pretty=tformat:%%%G?"}, {"log", "--format=%"},
		{"log", "--date=format:%Y"}, {"log", "-L1,2:x"}, {"show", "--format=%(trailers)%G?"}, {"log", "--exec=x"}, {"log", "--ext-diff"},
		{"cat-file", "--filters", "HEAD:a"}, {"cat-file", "--textconv", "HEAD:a"}, {"cat-file", "--batch=%(x)"}, {"cat-file", "--batch-all-objects"},
		{"hash-object", "/etc/shadow"}, {"hash-object", "-w", "--stdin"}, {"hash-object", "--path=x", "--stdin"}, {"hash-object", "--stdin-paths"}, {"hash-object", "--stdin", "--filters"},
		{"for-each-ref", "--format=%(signature)"}, {"for-each-ref", "--format=%(signature:key)"}, {"for-each-ref", "--format=%(describe)"}, {"for-each-ref", "--shell"},
		{"for-each-ref", "--sort=signature"}, {"rev-list", "--alternate-refs"}, {"rev-list", "--stdin"}, {"rev-list", "--disk-usage", "HEAD"}, {"rev-parse", "--git-dir"}, {"rev-parse", "--parseopt"},
		{"rev-parse", "--show-superproject-working-tree"}, {"status", "--ignore-submodules=none"}, {"status", "--ahead-behind"}, {"status", "-v"}, {"ls-files", "--recurse-submodules"},
		{"ls-files", "--exclude-from=/etc/shadow"}, {"ls-files", "--exclude-per-directory=x"}, {"ls-files", "--with-tree=x"}, {"version", "x"},
	}
	for _, args := range refused {
		c := &call{program: "git", args: args, dir: "/nonexistent"}
		if err := prepareGit(c); reasonOf(err) != reasonArgument {
			t.Errorf("%q: %v", args, err)
		}
	}
	r := newTestRunner(t, Options{})
	dir := newRepo(t)
	for _, args := range [][]string{
		{"log", "--format=%H%x00%an <%ae>%n%+s 100%%", "-n1"}, {"log", "--pretty=format:%h", "--date=iso", "-1"}, {"log", "--pretty=fuller", "--max-count=1"},
		{"for-each-ref", "--format=%(refname:short)%00%(*objectname)", "--sort=-creatordate"}, {"cat-file", "-t", "HEAD"}, {"diff", "HEAD~1..HEAD", "--", "sub/b c.txt"},
		{"diff", "HEAD", "--", "-odd"}, {"rev-parse", "--verify", "--quiet", "v1"}, {"rev-list", "--count", "HEAD", "--not", "v1~1"}, {"diff", "-U0"}, {"show", "-s", "--format=%B", "HEAD"},
	} {
		if out, err := hostGit(t, r, dir, nil, args...); err != nil {
			t.Errorf("nearest neighbour %q: %v %s", args, err, out)
		}
	}
	// Abbreviations of options are git's, not ours.
	wantReason(t, prepareGit(&call{program: "git", args: []string{"diff", "--stag"}, dir: dir}), reasonArgument)
}

func TestRepositoryForms(t *testing.T) {
	r := newTestRunner(t, Options{})
	other := newRepo(t)
	for name, build := range map[string]func(t *testing.T, dir string){
		"no repository": func(t *testing.T, dir string) { os.RemoveAll(dir + "/.git") },
		"link":          func(t *testing.T, dir string) { os.RemoveAll(dir + "/.git"); symlink(t, other+"/.git", dir+"/.git") },
		"FIFO":          func(t *testing.T, dir string) { os.RemoveAll(dir + "/.git"); fifo(t, dir+"/.git") },
		"HEAD a FIFO":   func(t *testing.T, dir string) { os.Remove(dir + "/.git/HEAD"); fifo(t, dir+"/.git/HEAD") },
		"HEAD a link": func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/HEAD")
			symlink(t, "/etc/passwd", dir+"/.git/HEAD")
		},
		"HEAD a device": func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/HEAD")
			symlink(t, "/dev/zero", dir+"/.git/HEAD")
		},
		"HEAD upward":     func(t *testing.T, dir string) { write(t, dir+"/.git/HEAD", "ref: ../../x\n") },
		"HEAD with lines": func(t *testing.T, dir string) { write(t, dir+"/.git/HEAD", "ref: refs/heads/main\nref: refs/x\n") },
		"config too large": func(t *testing.T, dir string) {
			write(t, dir+"/.git/config", strings.Repeat("#", maxRepoFile+1))
		},
		"config a link": func(t *testing.T, dir string) {
			os.Remove(dir + "/.git/config")
			symlink(t, "/etc/passwd", dir+"/.git/config")
		},
		"reftable": func(t *testing.T, dir string) { write(t, dir+"/.git/config", "[extensions] refStorage = reftable\n") },
		"another's .git": func(t *testing.T, dir string) {
			os.RemoveAll(dir + "/.git")
			write(t, dir+"/.git", "gitdir: "+other+"/.git\n")
		},
		"another's worktree": func(t *testing.T, dir string) {
			os.RemoveAll(dir + "/.git")
			if _, err := os.Stat(other + "/.git/worktrees/theirs"); err != nil {
				mustGit(t, other, "worktree", "add", "-q", "../theirs")
			}
			write(t, dir+"/.git", "gitdir: "+other+"/.git/worktrees/theirs\n")
		},
		"file with nothing": func(t *testing.T, dir string) { os.RemoveAll(dir + "/.git"); write(t, dir+"/.git", "") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := newRepo(t)
			if _, err := hostGit(t, r, dir, nil, "rev-parse", "HEAD"); err != nil {
				t.Fatalf("nearest neighbour: %v", err)
			}
			build(t, dir)
			out, err := hostGit(t, r, dir, nil, "rev-parse", "HEAD")
			if reasonOf(err) != reasonRepository {
				t.Fatalf("%q, %v", out, err)
			}
		})
	}
	if left, _ := os.ReadDir(r.opt.Scratch); len(left) != 0 {
		t.Errorf("refusals left %v", left)
	}
}

func fifo(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A missing worktree elsewhere: core.worktree is the repository's wish only.
func TestWorktreeSettingIsNotFollowed(t *testing.T) {
	r := newTestRunner(t, Options{})
	dir, other := newRepo(t), newRepo(t)
	mustGit(t, dir, "config", "core.worktree", other)
	out, err := hostGit(t, r, dir, nil, "rev-parse", "--show-toplevel")
	want, _ := filepath.EvalSymlinks(dir)
	if err != nil || strings.TrimSpace(out) != want {
		t.Errorf("%q, %v", out, err)
	}
}

func FuzzInertConfig(f *testing.F) {
	f.Add("[core]\n\tfilemode = false ; x\n[extensions]objectFormat=sha256\n")
	f.Add("[core \"x\"]\nautocrlf = \"input\"\n[core] fsmonitor = /x\n")
	f.Add("[core]\nfilemode = true\\\n[include]\npath = x\n[extensions]\nrefstorage = files")
	f.Fuzz(func(t *testing.T, s string) {
		set := map[string]string{}
		if inertSettings(s, set) != nil {
			return
		}
		for l := range bytes.Lines([]byte(writeConfig(set))) {
			text := strings.TrimSpace(string(l))
			if text == "[core]" || text == "[extensions]" {
				continue
			}
			key, value, _ := strings.Cut(text, " = ")
			ok := key == "repositoryformatversion" || key == "bare"
			for _, section := range []string{"core.", "extensions."} {
				for _, v := range inertKeys[section+key] {
					ok = ok || v == value
				}
			}
			if !ok {
				t.Errorf("%q came through", text)
			}
		}
	})
}
