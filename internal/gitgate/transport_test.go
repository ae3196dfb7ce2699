package gitgate

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/secret"
)

// transports lists the ways to an upstream repository on this machine.
var transports = map[string]func(t *testing.T, path string) (Repo, Config){
	"local": func(t *testing.T, path string) (Repo, Config) { return Repo{Name: "app", URL: path}, Config{} },
	"file": func(t *testing.T, path string) (Repo, Config) {
		return Repo{Name: "app", URL: "file://" + path}, Config{}
	},
	"ssh": func(t *testing.T, path string) (Repo, Config) {
		s := gittest.StartSSH(t, "AcceptEnv GIT_PROTOCOL")
		return overSSHTo(s, path), Config{}
	},
	"ssh without version 2": func(t *testing.T, path string) (Repo, Config) {
		s := gittest.StartSSH(t)
		return overSSHTo(s, path), Config{}
	},
	"https": func(t *testing.T, path string) (Repo, Config) {
		const token = "a-token-of-the-upstream"
		git(t, path, "config", "http.receivepack", "true")
		s := gittest.StartHTTPS(t, filepath.Dir(path), token)
		return Repo{Name: "app", URL: s.URL + "/" + filepath.Base(path), Token: secret.NewString(token)}, Config{Roots: s.Roots}
	},
}

func overSSHTo(s *gittest.SSH, path string) Repo {
	return Repo{Name: "app", URL: s.URL(path), SSH: &SSHAccess{Signer: s.Client, HostKeys: []ssh.PublicKey{s.HostKey}}}
}

// Common uses of git work through the gate, over each transport.
func TestTransports(t *testing.T) {
	for name, to := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := newUpstreamRepo(t)
			git(t, up, "config", "receive.advertisePushOptions", "true")
			git(t, up, "config", "uploadpack.allowFilter", "true")
			repo, cfg := to(t, up)
			cfg.Repos = []Repo{repo}
			events := record(&cfg)
			_, url := newGate(t, cfg)
			url += "/app.git"
			dir := t.TempDir()
			git(t, dir, "clone", "-q", url, "w")
			w := dir + "/w"
			if got := git(t, w, "symbolic-ref", "--short", "HEAD"); got != "trunk\n" {
				t.Errorf("HEAD is %q", got)
			}
			write(t, w+"/.gitattributes", "*.bin binary\n")
			write(t, w+"/.gitmodules", "[submodule \"lib\"]\n\tpath = lib\n\turl = https://example.org/lib.git\n")
			commitFile(t, w, "b.txt", strings.Repeat("a line\n", 1000))
			git(t, w, "push", "-q", "origin", "trunk")
			// A new tree with upstream's .gitmodules and .gitattributes.
			commitFile(t, w, "b.txt", strings.Repeat("a line\n", 999)+"another\n")
			git(t, w, "tag", "-a", "-m", "a tag", "v1")
			git(t, w, "notes", "add", "-m", "a note")
			git(t, w, "push", "-q", "-o", "ci.skip", "origin", "trunk", "v1", "refs/notes/*:refs/notes/*")
			same(t, w, up, "trunk", "v1", "refs/notes/commits")
			if got := events.last("push").Options; !slices.Equal(got, []string{"ci.skip"}) {
				t.Errorf("options %q", got)
			}
			// A forced push and a deletion reach upstream as such.
			git(t, w, "reset", "-q", "--hard", "HEAD~1")
			commitFile(t, w, "c.txt", "c\n")
			if out, err := tryGit(t, w, "push", "origin", "trunk"); err == nil || !strings.Contains(out, "non-fast-forward") && !strings.Contains(out, "fetch first") {
				t.Errorf("a push that is not a fast-forward: %s", out)
			}
			git(t, w, "push", "-q", "--force", "origin", "trunk", "trunk:topic")
			same(t, w, up, "trunk")
			git(t, w, "push", "-q", "origin", ":topic")
			if out, err := tryGit(t, up, "rev-parse", "--verify", "-q", "topic"); err == nil {
				t.Errorf("deleted, and there: %s", out)
			}
			// A push by others is visible at once.
			other := dir + "/other"
			git(t, dir, "clone", "-q", up, "other")
			commitFile(t, other, "d.txt", "d\n")
			git(t, other, "push", "-q", "origin", "trunk")
			git(t, w, "pull", "-q", "--rebase", "origin", "trunk")
			same(t, w, up, "trunk")
			git(t, dir, "clone", "-q", "--depth=1", url, "shallow")
			if got := git(t, dir+"/shallow", "rev-list", "--count", "HEAD"); got != "1\n" {
				t.Errorf("a shallow clone has %s commits", got)
			}
			commitFile(t, dir+"/shallow", "e.txt", "e\n")
			git(t, dir+"/shallow", "push", "-q", "origin", "trunk")
			git(t, dir+"/shallow", "fetch", "-q", "--unshallow")
			// Protocol version 0 gives out no single file, with or without the gate.
			if !strings.Contains(name, "without version 2") {
				git(t, dir, "clone", "-q", "--filter=blob:none", url, "partial")
				git(t, dir+"/partial", "log", "-p", "--format=%h")
			}
			git(t, w, "worktree", "add", "-q", dir+"/wt", "-b", "wt")
			commitFile(t, dir+"/wt", "f.txt", "f\n")
			git(t, dir+"/wt", "push", "-q", "-u", "origin", "wt")
			git(t, up, "fsck", "--strict")
		})
	}
}

func same(t *testing.T, a, b string, refs ...string) {
	t.Helper()
	for _, r := range refs {
		if x, y := git(t, a, "rev-parse", r), git(t, b, "rev-parse", r); x != y {
			t.Errorf("%s is %s and %s", r, x, y)
		}
	}
}

// SHA-256 repositories work, and keep their format.
func TestSHA256(t *testing.T) {
	t.Parallel()
	up := newUpstreamRepo(t, "--object-format=sha256")
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	w := cloneOf(t, url)
	if got := git(t, w, "rev-parse", "--show-object-format"); got != "sha256\n" {
		t.Fatalf("cloned as %s", got)
	}
	write(t, w+"/.gitmodules", "[submodule \"lib\"]\n\tpath = lib\n\turl = https://example.org/lib.git\n")
	commitFile(t, w, "b.txt", "b\n")
	git(t, w, "push", "-q", "origin", "trunk")
	commitFile(t, w, "b.txt", "c\n")
	git(t, w, "push", "-q", "origin", "trunk")
	same(t, w, up, "trunk")
	commitFile(t, w, "k.txt", "\n\n"+awsKey+"\n")
	refusedPush(t, w, "k.txt:3")
}

// A repository with submodules, all served by the gate.
func TestSubmodules(t *testing.T) {
	t.Parallel()
	up, lib := newUpstreamRepo(t), newUpstreamRepo(t)
	repos := []Repo{{Name: "app", URL: up}, {Name: "lib", URL: lib}}
	_, url := newGate(t, Config{Repos: repos})
	w := cloneOf(t, url)
	git(t, w, "-c", "url."+url+"/lib.git.insteadOf=https://example.org/lib", "submodule", "--quiet", "add", "https://example.org/lib", "lib")
	git(t, w, "commit", "-qm", "submodule")
	git(t, w, "push", "-q", "origin", "trunk")
	dir := t.TempDir()
	git(t, dir, "-c", "url."+url+"/lib.git.insteadOf=https://example.org/lib", "clone", "-q", "--recurse-submodules", url+"/app.git", "c")
	same(t, dir+"/c/lib", lib, "trunk")
}
