package provenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// gitTimeout bounds one call of git.
const gitTimeout = time.Minute

// git compares the record with the work tree, if that has the commit.
func (v *verification) git(ctx context.Context) error {
	if v.o.WorkTree == "" {
		v.r.say("git", Unchecked, "no work tree was named")
		return nil
	}
	dir, err := fault.WorkTree(v.o.WorkTree)
	if errors.Is(err, fault.ErrNoRepository) {
		v.r.say("git", Unchecked, "this directory is in no git work tree")
		return nil
	}
	if err != nil {
		return err
	}
	f := v.r.Record
	body, err := readCommit(ctx, dir, f.Commit)
	if err != nil {
		v.r.say("git", Unchecked, "%s could not be read: %v", dir, err)
		return nil
	}
	switch tree := gitobject.ParseCommit(body).Tree; {
	case body == nil:
		v.r.say("git", Unchecked, "%s does not have commit %s", dir, f.Commit)
	case gitobject.Name("commit", body, len(f.Commit)) != f.Commit:
		v.r.say("git", Fails, "the object that %s has as commit %s is another one", dir, f.Commit)
	case f.Tree == "":
		v.r.say("git", Holds, "%s has the commit, with tree %s; the record names no tree", dir, tree)
	case tree != f.Tree:
		v.r.say("git", Fails, "the commit has tree %s, and the record says %s", tree, f.Tree)
	default:
		v.r.say("git", Holds, "%s has the commit, with the tree that the record names", dir)
	}
	return nil
}

// ReadTree returns the name of the tree of a commit, read from the object that the repository
// at dir has for the commit's full name. It is an error if the repository has none, or
// another object under that name. The repository may be hostile.
func ReadTree(ctx context.Context, dir, commit string) (string, error) {
	if !isCommit(commit) {
		return "", fmt.Errorf("%q is no full name of a commit", safetext.String(commit, 80))
	}
	body, err := readCommit(ctx, dir, commit)
	switch {
	case err != nil:
		return "", err
	case body == nil:
		return "", fmt.Errorf("%s does not have commit %s", dir, commit)
	case gitobject.Name("commit", body, len(commit)) != commit:
		return "", fmt.Errorf("the object that %s has as commit %s is another one", dir, commit)
	}
	tree := gitobject.ParseCommit(body).Tree
	if !isCommit(tree) || len(tree) != len(commit) {
		return "", fmt.Errorf("commit %s names no tree", commit)
	}
	return tree, nil
}

// readCommit returns the object that a repository has for a commit's full name, nil if it has
// none. The caller must compare its hash.
func readCommit(ctx context.Context, dir, commit string) ([]byte, error) {
	runner, err := hostexec.New(hostexec.Options{Untrusted: []string{dir}})
	if err != nil {
		return nil, err
	}
	defer runner.Close(context.WithoutCancel(ctx))
	res, err := runner.Run(ctx, hostexec.Command{
		Program: hostexec.Git, Args: []string{"cat-file", "--batch"}, Dir: dir, Timeout: gitTimeout, Stdin: []byte(commit + "\n"),
	})
	if err != nil {
		return nil, err
	}
	out, err := res.Stdout.Complete()
	if err != nil {
		return nil, err
	}
	head, body, _ := bytes.Cut(out, []byte("\n"))
	if bytes.HasSuffix(head, []byte(" missing")) {
		return nil, nil
	}
	var id string
	var size int
	if _, err := fmt.Sscanf(string(head), "%s commit %d", &id, &size); err != nil || size < 0 || size > len(body) {
		return nil, fmt.Errorf("git has no commit %s, but %q", commit, head[:min(len(head), 100)])
	}
	return body[:size], nil
}
