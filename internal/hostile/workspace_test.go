package hostile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// vandal does to a workspace what an agent gone astray would.
const vandal = `
echo changed >> a.txt; echo new > new.txt; rm -f keep.txt; mkdir -p src; echo x > src/x
chmod 777 a.txt; mv dir moved; ln -s / rootlink; ln -sf ../../../../../../etc/passwd up; touch -t 200001010000 a.txt
rm -rf .git/objects; echo 'ref: refs/heads/evil' > .git/HEAD; mkfifo pipe; ln a.txt hard; truncate -s 5000000 sparse`

func (h *host) furnish() {
	h.t.Helper()
	h.write("keep.txt", "keep")
	h.write("dir/f", "f")
	h.write(".git/HEAD", "ref: refs/heads/main\n")
	h.write(".git/config", "[core]\n\tbare = false\n")
	h.write(".git/objects/pack/p", "p")
	h.write(".git/refs/heads/.keep", "")
	if err := os.MkdirAll(filepath.Join(h.ws, ".git/hooks"), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// TestS6OnlyLandingChanges: with overlay and copy the host's directory is the
// same to the last bit until a person lands something.
func TestS6OnlyLandingChanges(t *testing.T) {
	for _, mode := range []store.Mode{store.Overlay, store.Copy} {
		t.Run(string(mode), func(t *testing.T) {
			h := newHost(t)
			h.furnish()
			h.write("locked/f", "f")
			if err := os.Chmod(h.ws+"/locked", 0o555); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Chmod(h.ws+"/locked", 0o755) })
			before := tree(t, h.ws)
			x := h.sh(func(o *carboy.RunOptions) { o.Mode = mode }, vandal)
			for _, dir := range []string{"base", "scratch"} {
				if _, err := os.Stat(filepath.Join(h.client.StateDir(), "runs", string(x.rec.ID), dir)); err == nil {
					t.Errorf("%s of the bottle is still there", dir)
				}
			}
			if got := tree(t, h.ws); got != before {
				t.Fatalf("the workspace changed before landing:\n%s\nbefore:\n%s", got, before)
			}
			rep, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{Paths: []string{"new.txt"}})
			if err != nil || !slices.Equal(rep.Landed, []string{"new.txt"}) {
				t.Fatalf("landing one file: %+v %v", rep, err)
			}
			if err := os.Remove(filepath.Join(h.ws, "new.txt")); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, h.ws); got != before {
				t.Errorf("landing one file changed others:\n%s", got)
			}
		})
	}
}

// planted are files that run on the host because somebody works there.
var planted = []string{
	".git/hooks/pre-commit", ".git/hooks/post-checkout", ".git/config", ".git/info/attributes", ".git/modules/x/config", ".GIT/hooks/pre-push", "sub/.git/hooks/pre-commit", "sub/.git/config",
	".claude/settings.json", ".claude/settings.local.json", ".mcp.json", "CLAUDE.md", "AGENTS.md", ".vscode/tasks.json", ".idea/workspace.xml", ".cursor/mcp.json", ".envrc", ".gdbinit", ".devcontainer/devcontainer.json",
	".carboy/agents/x.md", ".bot-bottle/agents/x.md", "deep/er/.vscode/settings.json",
}

// TestS6ProtectedPaths: files that make the host run code are withheld, and
// land when a person includes them by that name.
func TestS6ProtectedPaths(t *testing.T) {
	h := newHost(t)
	h.furnish()
	script := "echo fine > fine.txt; mkdir -p src; echo fine > src/main.c; echo fine > gitignore.txt\n"
	for _, p := range planted {
		script += "mkdir -p \"$(dirname '" + p + "')\"; printf '#!/bin/sh\\ntouch /tmp/owned\\n' > '" + p + "'; chmod +x '" + p + "'\n"
	}
	x := h.sh(nil, script)
	before := tree(t, h.ws)
	rep, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range planted {
		if b, err := os.ReadFile(filepath.Join(h.ws, p)); err == nil && strings.Contains(string(b), "owned") {
			t.Errorf("%s landed unasked", p)
		}
	}
	for _, p := range []string{"fine.txt", "src/main.c", "gitignore.txt"} {
		if !slices.Contains(rep.Landed, p) {
			t.Errorf("%s did not land: %+v", p, rep)
		}
	}
	if got, err := os.ReadFile(filepath.Join(h.ws, ".git/config")); err != nil || string(got) != "[core]\n\tbare = false\n" {
		t.Errorf(".git/config is %q, %v", got, err)
	}
	if _, err := h.client.Undo(t.Context(), x.rec.ID, change.UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, h.ws); got != before {
		t.Errorf("undo left\n%s\nand before was\n%s", got, before)
	}
	rep, err = h.client.Land(t.Context(), x.rec.ID, change.LandOptions{Paths: []string{".vscode/tasks.json"}, IncludeProtected: true})
	if err != nil || !slices.Contains(rep.Landed, ".vscode/tasks.json") {
		t.Errorf("a protected file that a person includes: %+v %v", rep, err)
	}
}

// TestS6LinksOut: no link, made inside or out, before or after, leads a write
// out of the workspace.
func TestS6LinksOut(t *testing.T) {
	h := newHost(t)
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/f", []byte("safe"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, h.ws+"/hostlink"); err != nil {
		t.Fatal(err)
	}
	h.write("plain/f", "f")
	before := tree(t, outside)
	x := h.sh(nil, "mkdir -p "+outside+"; echo owned > "+outside+"/f; echo owned > hostlink/f; echo owned > hostlink/g; ln -s "+outside+" out; echo owned > out/h; rm -r plain; ln -s "+outside+" plain; echo owned > plain/f; echo ok > inside.txt")
	if got := tree(t, outside); got != before {
		t.Fatalf("a write through a link left the bottle:\n%s", got)
	}
	// Meanwhile the host's directory becomes a link too: landing must not
	// follow it.
	x2 := h.sh(nil, "mkdir later; echo owned > later/f")
	if err := os.Symlink(outside, h.ws+"/later"); err != nil {
		t.Fatal(err)
	}
	// So does one that the bottle only added a file to: nothing but the way
	// there tells that landing.
	h.write("kept/f", "f")
	x3 := h.sh(nil, "echo owned > kept/fresh")
	if err := errors.Join(os.Rename(h.ws+"/kept", h.ws+"/kept.aside"), os.Symlink(outside, h.ws+"/kept")); err != nil {
		t.Fatal(err)
	}
	// And links of names that git, or carboy, treats in ways of their own.
	x4 := h.sh(nil, "mkdir -p "+outside+"; ln -s "+outside+" .git; echo owned > .git/f; echo owned > .git/config; ln -s "+outside+" .carboy; echo owned > .carboy/f")
	for _, id := range []store.ID{x.rec.ID, x2.rec.ID, x3.rec.ID, x4.rec.ID} {
		for _, include := range []bool{false, true} {
			rep, err := h.client.Land(t.Context(), id, change.LandOptions{IncludeProtected: include})
			t.Logf("landing: %+v %v", rep, err)
			if got := tree(t, outside); got != before {
				t.Fatalf("landing wrote through a link:\n%s", got)
			}
		}
	}
	if b, err := os.ReadFile(h.ws + "/inside.txt"); err != nil || string(b) != "ok\n" {
		t.Errorf("the file beside them: %q %v", b, err)
	}
}

// TestS6HostEdits: what the host changed meanwhile is not overwritten.
func TestS6HostEdits(t *testing.T) {
	h := newHost(t)
	h.write("free.txt", "1")
	x := h.sh(nil, "echo bottle >> a.txt; echo bottle >> free.txt")
	h.write("a.txt", "the host's own\n")
	_, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{})
	var conflict *change.ConflictError
	if !errors.As(err, &conflict) {
		t.Errorf("landing over an edit of the host: %v", err)
	}
	if b, _ := os.ReadFile(h.ws + "/a.txt"); string(b) != "the host's own\n" {
		t.Errorf("a.txt is %q", b)
	}
	if rep, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{Paths: []string{"free.txt"}}); err != nil || len(rep.Landed) != 1 {
		t.Errorf("the file that the host left alone: %+v %v", rep, err)
	}
}

// TestS6LandingRunsNothing: neither taking changes home nor landing runs what
// the repository configures.
func TestS6LandingRunsNothing(t *testing.T) {
	git := testenv.Need(t, "git", "apt-get install git")
	h := newHost(t)
	marker := filepath.Join(t.TempDir(), "owned")
	h.furnish()
	h.write(".git/config", "[core]\n\tfsmonitor = touch "+marker+"\n\thooksPath = .git/hooks\n\tsshCommand = touch "+marker+"\n[diff]\n\texternal = touch "+marker+"\n[filter \"x\"]\n\tclean = touch "+marker+"\n\tsmudge = touch "+marker+"\n")
	h.write(".gitattributes", "* filter=x diff=x\n")
	for _, hook := range []string{"pre-commit", "post-checkout", "post-index-change", "reference-transaction", "fsmonitor-watchman"} {
		h.write(".git/hooks/"+hook, "#!/bin/sh\ntouch "+marker+"\n")
		if err := os.Chmod(h.ws+"/.git/hooks/"+hook, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	x := h.sh(nil, "echo changed >> a.txt")
	var shown strings.Builder
	if _, err := h.client.Diff(t.Context(), x.rec.ID, &shown, change.DiffOptions{}); err != nil || !strings.Contains(shown.String(), "changed") {
		t.Errorf("diff: %v %q", err, shown.String())
	}
	if rep, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{}); err != nil || len(rep.Landed) != 1 {
		t.Errorf("land: %+v %v", rep, err)
	}
	if _, err := h.client.Undo(t.Context(), x.rec.ID, change.UndoOptions{}); err != nil {
		t.Errorf("undo: %v", err)
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the repository's configuration was run on the host")
	}
	// The trap does snap: git itself, asked there, runs it.
	c := exec.Command(git, "-C", h.ws, "status")
	c.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := c.CombinedOutput()
	if _, merr := os.Stat(marker); merr != nil {
		t.Errorf("this test looks in the wrong place: git status ran nothing either: %v %s", err, out)
	}
}

// TestS6Bind: a bound workspace takes writes at once, as was asked for, and
// still nothing outside of it.
func TestS6Bind(t *testing.T) {
	h := newHost(t)
	if os.Geteuid() == 0 {
		if err := os.Chmod(h.ws, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/f", []byte("safe"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, h.ws+"/out"); err != nil {
		t.Fatal(err)
	}
	before := tree(t, outside)
	x := h.run(func(o *carboy.RunOptions) { o.Mode = store.Bind }, "/bin/sh", "-c", "echo direct > direct.txt; mkdir -p "+outside+" 2>/dev/null; echo owned > out/f; echo owned > out/g; echo owned > "+outside+"/f; ln -s "+outside+" out2; echo owned > out2/f; true")
	x.exited(0)
	if b, err := os.ReadFile(h.ws + "/direct.txt"); err != nil || string(b) != "direct\n" {
		t.Errorf("a direct write: %q %v", b, err)
	}
	if got := tree(t, outside); got != before {
		t.Errorf("a bound workspace let a write out:\n%s", got)
	}
}
