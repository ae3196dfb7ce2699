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
	"slices"
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
	if r.objects != nil {
		return nil
	}
	objects := gitobject.New(r.digits)
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
			err = objects.AddPack(ctx, from, c.Size)
		case isHex(dir, 2) && isHex(name, r.digits-2):
			err = objects.AddLoose(from, c.Size)
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
	r.objects = objects
	return r.ask(ctx, objects.IDs)
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
	return need, "", nil
}

// receive stores the objects of a reference, after git has checked them. Faults that old
// histories have are a reason to ask, and the objects then serve this reference alone.
func (r *repository) receive(ctx context.Context, c *RefChange, need []gitobject.ID) error {
	if err := r.format(); err != nil || len(need) == 0 {
		return err
	}
	name, err := r.index(ctx, need, "sound")
	if err == nil {
		for _, id := range need {
			r.got[id] = true
		}
		r.sound = append(r.sound, name)
		return nil
	}
	said := err
	var f *hostexec.FailedError
	if !failed(err) || !errors.As(err, &f) {
		return err
	}
	if c.pack, err = r.index(ctx, need, "old"); failed(err) {
		c.Never = "git refuses its objects: " + err.Error()
		return nil
	} else if err != nil {
		return errors.Join(said, err)
	}
	c.Protected = append(c.Protected, Reason{"git", "git fsck finds fault with a commit, tree or file in it: " + safetext.String(f.Stderr, 300)})
	return nil
}

// index stores objects as a pack and returns its name.
func (r *repository) index(ctx context.Context, need []gitobject.ID, like string) (string, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return "", err
	}
	args := []string{"pack", like, "999999999999999"}
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
	res, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: args, Dir: r.store + "/.git", Timeout: hostexec.MaxTimeout, Input: in,
		Stdout: hostexec.Keep{Tail: 4096}, Stderr: hostexec.Keep{Head: 4096, Tail: 4096}})
	if ferr := <-fed; err == nil {
		err = ferr
	}
	_, name, _ := strings.Cut(strings.TrimSpace(string(res.Stdout.Text())), "\t")
	return name, err
}

// packs returns the stored packs that references need and their indexes, each pack before
// its index: git looks for indexes.
func (r *repository) packs(take []RefChange) []string {
	names := slices.Clone(r.sound)
	for _, c := range take {
		if c.pack != "" && !slices.Contains(names, c.pack) {
			names = append(names, c.pack)
		}
	}
	var out []string
	for _, name := range names {
		p := r.storeObjects() + "/pack/pack-" + name
		out = append(out, p+".pack", p+".idx")
	}
	return out
}
