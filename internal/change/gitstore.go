package change

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// storePrefix begins the names of repositories that receive a bottle's objects.
const storePrefix = ".git-"

// makeStore makes an empty repository in the run's directory.
func makeStore(runDir string) (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(runDir, upperDir), storePrefix)
	if err != nil {
		return "", err
	}
	for _, d := range []string{"objects/pack", "objects/info", "refs/heads", "refs/tags"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, ".git", d), 0o755))
	}
	if err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

func (r *repository) close() { os.RemoveAll(r.store) }

// format writes the files that make the store a repository.
func (r *repository) format() error {
	config := "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"
	if r.digits == gitobject.SHA256 {
		config = strings.Replace(config, "version = 0", "version = 1", 1) + "[extensions]\n\tobjectformat = sha256\n"
	}
	head := r.head
	if !strings.HasPrefix(head, "refs/heads/") {
		head = "refs/heads/main"
	}
	return errors.Join(os.WriteFile(r.store+"/.git/config", []byte(config), 0o644),
		os.WriteFile(r.store+"/.git/HEAD", []byte("ref: "+head+"\n"), 0o644))
}

// readObjects indexes the objects in the bottle's files.
func (r *repository) readObjects(ctx context.Context) error {
	r.objects = gitobject.New(r.digits)
	pack, err := os.Open(filepath.Join(r.s.dir, upperDir, packFile))
	if err != nil {
		return err
	}
	// Closed by the finalizer: the index reads from it as long as it lives.
	prefix := r.path("objects") + "/"
	for i := range r.s.Changes {
		c := &r.s.Changes[i]
		rest, ok := strings.CutPrefix(string(c.Path), prefix)
		if !ok || c.Kind == Delete || c.Kind == Mode || c.Type != File || c.Omitted != "" {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		dir, name, _ := strings.Cut(rest, "/")
		from := io.NewSectionReader(pack, c.Offset, c.Size)
		switch {
		case dir == "pack" && strings.HasSuffix(name, ".pack"):
			err = r.objects.AddPack(ctx, from, c.Size)
		case isHex(dir, 2) && isHex(name, r.digits-2):
			err = r.objects.AddLoose(from, c.Size)
		default:
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.notes = append(r.notes, fmt.Sprintf("%s is damaged: %v", show(string(c.Path)), err))
		}
	}
	return r.ask(ctx, r.objects.IDs)
}

// ask asks the host which of the objects it has.
func (r *repository) ask(ctx context.Context, ids func(func(gitobject.ID))) error {
	if r.fresh {
		return nil
	}
	var in bytes.Buffer
	ids(func(id gitobject.ID) { in.WriteString(id.Hex(r.digits) + "\n") })
	if in.Len() == 0 {
		return nil
	}
	res, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.Git, Args: []string{"cat-file", "--batch-check=%(objectname) %(objecttype)", "--buffer"},
		Dir: r.top, Timeout: gitPatience, Stdin: in.Bytes(), Stdout: hostexec.Keep{Head: hostexec.MaxKeep}})
	if err != nil {
		return err
	}
	out, err := res.Stdout.Complete()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		name, kind, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if id, ok := gitobject.ParseID(name); ok && kind != "missing" {
			r.known[id] = true
		}
	}
	return nil
}

// need returns the objects that a tip needs and the host lacks, or why they can't all be
// had.
func (r *repository) need(ctx context.Context, tip string) ([]gitobject.ID, string, error) {
	id, ok := gitobject.ParseID(tip)
	if !ok || len(tip) != r.digits {
		return nil, "its object name is of another hash than the repository's", nil
	}
	seen := map[gitobject.ID]bool{}
	known := func(id gitobject.ID) bool { return r.known[id] || r.got[id] }
	need, edge, err := r.objects.Closure(ctx, id, known, seen)
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if err != nil {
		return nil, "its objects can't be read: " + err.Error(), nil
	}
	if err := r.ask(ctx, func(f func(gitobject.ID)) {
		for _, id := range edge {
			f(id)
		}
	}); err != nil {
		return nil, "", err
	}
	for _, id := range edge {
		if !r.known[id] {
			why := "object " + id.Hex(r.digits) + " is missing: the repository is shallow or partial, borrows objects, or is damaged"
			if len(r.notes) > 0 {
				why += " (" + r.notes[0] + ")"
			}
			return nil, why, nil
		}
	}
	for _, id := range need {
		r.got[id] = true
	}
	return need, "", nil
}

// receive stores objects, after git has checked them. What git finds wrong with one of them
// is returned as a reason to ask.
func (r *repository) receive(ctx context.Context, need []gitobject.ID) ([]Reason, error) {
	if err := r.format(); err != nil || len(need) == 0 {
		return nil, err
	}
	err := r.index(ctx, need, true)
	if !failed(err) {
		return nil, err
	}
	said := err
	if err := r.index(ctx, need, false); err != nil {
		return nil, fmt.Errorf("git refuses the bottle's objects: %w", errors.Join(said, err))
	}
	var f *hostexec.FailedError
	errors.As(said, &f)
	return []Reason{{"git", "git fsck finds fault with a commit, tree or file in it: " + safetext.String(f.Stderr, 300)}}, nil
}

func (r *repository) index(ctx context.Context, need []gitobject.ID, strict bool) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	args := []string{"pack", fmt.Sprint(strict), "999999999999999"}
	if !r.fresh {
		args = append(args, r.hostObjects())
	}
	fed := make(chan error, 1)
	go func() { // ends with the pack, or with git at the other end of the pipe
		w := bufio.NewWriterSize(out, 1<<20)
		err := r.objects.WritePack(ctx, w, need)
		if err == nil {
			err = w.Flush()
		}
		fed <- errors.Join(err, out.Close())
	}()
	_, err = r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: args, Dir: r.store + "/.git", Timeout: hostexec.MaxTimeout, Input: in,
		Stdout: hostexec.Keep{Tail: 4096}, Stderr: hostexec.Keep{Head: 4096, Tail: 4096}})
	if ferr := <-fed; err == nil {
		err = ferr
	}
	return err
}

// packs returns the stored packs and their indexes, each pack before its index: git looks
// for indexes.
func (r *repository) packs() []string {
	packs, _ := filepath.Glob(r.storeObjects() + "/pack/pack-*.pack")
	var out []string
	for _, p := range packs {
		out = append(out, p, strings.TrimSuffix(p, ".pack")+".idx")
	}
	return out
}
