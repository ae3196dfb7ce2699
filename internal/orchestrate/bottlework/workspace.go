package bottlework

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/store"
)

const gitTimeout = 15 * time.Minute

// readState returns what is known of the workspace in dir; nil: there is none.
func readState(dir string) (*issueState, error) {
	st := &issueState{}
	err := store.ReadJSON(filepath.Join(dir, stateFile), issueKind, st)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return st, err
}

func (st *issueState) write(dir string) error {
	st.Schema = store.Schema(issueKind)
	return store.WriteJSON(filepath.Join(dir, stateFile), issueKind, st)
}

// clone makes a repository at top, with the commits of the base and the branch and all that
// leads to them. It has no work tree yet. carboy writes all of its files but the objects,
// which the git gate brings, so that no setting and no hook of upstream's is in it.
func (u *upstream) clone(ctx context.Context, top string) error {
	if err := fault.RemoveTree(top); err != nil {
		return err
	}
	git := filepath.Join(top, ".git")
	for _, d := range []string{"objects/pack", "objects/info", "refs/heads", "refs/tags", "info"} {
		if err := os.MkdirAll(filepath.Join(git, d), 0o755); err != nil {
			return err
		}
	}
	version, more := 0, ""
	if u.format == "sha256" {
		version, more = 1, "[extensions]\n\tobjectformat = sha256\n"
	}
	config := fmt.Sprintf("[core]\n\trepositoryformatversion = %d\n\tfilemode = true\n\tbare = false\n%s[remote \"origin\"]\n\turl = %s\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n", version, more, quoted(u.repo.URL))
	if err := os.WriteFile(filepath.Join(git, "config"), []byte(config), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(git, "HEAD"), []byte("ref: refs/heads/none\n"), 0o644); err != nil {
		return err
	}
	return u.gate.Fetch(ctx, u.repo.Name, git, u.wanted(), nil)
}

// quoted quotes a value for git's configuration. No URL has a line end.
func quoted(s string) string { return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"` }

// make makes the workspace of an issue at the branch's commit, or at the base's if there is
// no branch, in place of the one that is there.
func (u *upstream) make(ctx context.Context, dir string, t *orchestrate.Turn) (*issueState, error) {
	made := filepath.Join(dir, newDir)
	defer fault.RemoveTree(made)
	top, files := filepath.Join(made, "git"), filepath.Join(made, "files")
	if err := fault.RemoveTree(made); err != nil {
		return nil, err
	}
	if err := u.clone(ctx, top); err != nil {
		return nil, err
	}
	head := u.tip
	if u.at != "" {
		head = u.at
	}
	if err := os.WriteFile(filepath.Join(top, ".git/HEAD"), []byte("ref: "+heads+t.Branch+"\n"), 0o644); err != nil {
		return nil, err
	}
	if err := errors.Join(writeRef(top, heads+t.Branch, head), u.writeRemote(top, t)); err != nil {
		return nil, err
	}
	r, err := hostexec.New(hostexec.Options{Untrusted: []string{made}})
	if err != nil {
		return nil, err
	}
	defer r.Close(context.WithoutCancel(ctx))
	tree, err := (&gate.Repository{Dir: top, Runner: r}).Tree(ctx, head)
	if err != nil {
		return nil, err
	}
	if err := tree.LayOut(ctx, files, nil); err != nil {
		return nil, err
	}
	if err := os.Rename(filepath.Join(top, ".git"), filepath.Join(files, ".git")); err != nil {
		return nil, err
	}
	empty := "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	if u.format == "sha256" {
		empty = "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	git := filepath.Join(files, ".git")
	for _, args := range [][]string{{"merge", git + "/index", empty, head, git + "/objects"}, {"refresh"}} {
		if _, err := r.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: args, Dir: files, Timeout: gitTimeout}); err != nil {
			return nil, err
		}
	}
	repo := filepath.Join(dir, repoDir)
	if err := fault.RemoveTree(repo); err != nil {
		return nil, err
	}
	if err := os.Rename(files, repo); err != nil {
		return nil, err
	}
	st := &issueState{Issue: t.Issue.String(), Head: head, Have: u.wanted(), Pushed: u.at}
	return st, st.write(dir)
}

// update brings the commits of the base and the branch into a workspace. Its files stay as
// they are.
func (u *upstream) update(ctx context.Context, dir string, st *issueState) error {
	git := filepath.Join(dir, repoDir, ".git")
	if err := u.gate.Fetch(ctx, u.repo.Name, git, u.wanted(), st.Have); err != nil {
		return err
	}
	st.Have = u.wanted()
	if st.Head != u.tip && st.Head != u.at {
		st.Have = append(st.Have, st.Head)
	}
	return st.write(dir)
}

// writeRemote lets the agent's git see upstream's branches as they were.
func (u *upstream) writeRemote(top string, t *orchestrate.Turn) error {
	err := writeRef(top, "refs/remotes/origin/"+t.Base, u.tip)
	if u.at != "" {
		err = errors.Join(err, writeRef(top, "refs/remotes/origin/"+t.Branch, u.at))
	}
	return err
}

// writeRef writes a reference of a repository that carboy made.
func writeRef(top, ref, id string) error {
	file := filepath.Join(top, ".git", ref)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return store.WriteFile(file, []byte(id+"\n"), 0o644)
}
