package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
)

// Bounds of reading a repository.
const (
	gitTime    = time.Minute
	maxSource  = 32 << 20 // of all files of a module together
	maxListing = 8 << 20
)

// source is a module at a commit, read from git objects and never from the work tree.
type source struct {
	commit  string
	module  *module.Module
	compose *module.Compose
	text    map[string][]byte // contents by path below the repository's top
	desc    plan.Source
}

func (e *Engine) git(ctx context.Context, in []byte, keep int, args ...string) ([]byte, error) {
	r, err := e.exec.Run(ctx, hostexec.Command{Program: hostexec.Git, Args: args, Dir: e.Repo, Timeout: gitTime, Stdin: in, Stdout: hostexec.Keep{Head: keep}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Repo, err)
	}
	return r.Stdout.Complete()
}

// head returns the checked-out commit, and whether the work tree is clean.
func (e *Engine) head(ctx context.Context) (commit string, clean bool, err error) {
	out, err := e.git(ctx, nil, maxListing, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all")
	if errors.Is(err, hostexec.ErrTruncated) { // very many changes: certainly not clean
		if out, err = e.git(ctx, nil, 1<<10, "rev-parse", "--verify", "HEAD"); err == nil {
			out = append([]byte("# branch.oid "), bytes.Replace(out, []byte("\n"), []byte("\x00? \x00"), 1)...)
		}
	}
	if err != nil {
		return "", false, err
	}
	clean = true
	for _, l := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if oid, ok := strings.CutPrefix(l, "# branch.oid "); ok && commit == "" {
			commit = oid
		}
		clean = clean && strings.HasPrefix(l, "# ")
	}
	if commit == "(initial)" {
		return "", false, fail(Refused, "", "commit something: what is shipped is a commit", "%s has no commit yet", e.Repo)
	}
	if !plan.ValidCommit(commit) {
		return "", false, fmt.Errorf("%s: HEAD is %.80q, not a commit", e.Repo, commit)
	}
	return commit, clean, nil
}

// dirty returns the error for a work tree that is not clean, with its first change.
func (e *Engine) dirty(ctx context.Context, commit string) error {
	name := ""
	if out, err := e.git(ctx, nil, maxListing, "status", "--porcelain=v1", "-z", "--untracked-files=all"); err == nil && len(out) > 3 {
		name = ": " + shown(strings.SplitN(string(out[3:]), "\x00", 2)[0])
	}
	return fail(Refused, "", "commit or stash it, or keep it out with .git/info/exclude: what is shipped is a commit that others can look at",
		"%s: the work tree holds something else than commit %.12s%s", e.Repo, commit, name)
}

// blob is one file of a commit.
type blob struct {
	oid  string
	exec bool
}

// list returns the files that a commit has below a directory. Links and submodules are an
// error.
func (e *Engine) list(ctx context.Context, commit, dir string) (map[string]blob, error) {
	out, err := e.git(ctx, nil, maxListing, "ls-tree", "-r", "-z", "--full-tree", commit, "--", dir)
	if err != nil {
		return nil, err
	}
	all := map[string]blob{}
	for _, entry := range strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if entry == "" {
			continue
		}
		meta, name, ok := strings.Cut(entry, "\t")
		f := strings.Fields(meta)
		if !ok || len(f) != 3 {
			return nil, fmt.Errorf("git ls-tree: a line that is none")
		}
		switch f[0] {
		case "100644":
			all[name] = blob{oid: f[2]}
		case "100755":
			all[name] = blob{oid: f[2], exec: true}
		default:
			return nil, fail(Refused, "", "a module is files", "%s: is a link or a submodule", shown(name))
		}
	}
	return all, nil
}

// object is a git object. The kind of a missing object is "".
type object struct {
	oid, kind string
	text      []byte
}

// objects returns the objects of names, in order.
func (e *Engine) objects(ctx context.Context, names []string) ([]object, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := e.git(ctx, []byte(strings.Join(names, "\n")+"\n"), maxSource+1<<20, "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	all := make([]object, len(names))
	for i := range all {
		line, rest, _ := bytes.Cut(out, []byte("\n"))
		if out = rest; bytes.HasSuffix(line, []byte(" missing")) || bytes.HasSuffix(line, []byte(" submodule")) {
			continue
		}
		f := strings.Fields(string(line))
		if len(f) != 3 {
			return nil, errors.New("git cat-file: a line that is none")
		}
		n, err := strconv.Atoi(f[2])
		if err != nil || n < 0 || n+1 > len(rest) {
			return nil, errors.New("git cat-file: a line that is none")
		}
		all[i], out = object{f[0], f[1], rest[:n]}, rest[n+1:]
	}
	return all, nil
}

// guess reads files of a commit by their paths, without those that are missing. It returns
// their object ids and contents.
func (e *Engine) guess(ctx context.Context, commit string, paths ...string) (map[string]blob, map[string][]byte, error) {
	ask := make([]string, len(paths))
	for i, p := range paths {
		ask[i] = commit + ":" + p
	}
	all, err := e.objects(ctx, ask)
	names, texts := map[string]blob{}, map[string][]byte{}
	for i, o := range all {
		if o.kind == "blob" {
			names[paths[i]], texts[paths[i]] = blob{oid: o.oid}, o.text
		}
	}
	return names, texts, err
}

// load reads and checks a module at a commit.
func (e *Engine) load(ctx context.Context, id, commit string) (*source, error) {
	if !module.ValidID(id) {
		return nil, fail(Refused, "", "letters, digits, _ and - only", "%.80q is not the name of a module", id)
	}
	dir := path.Join("modules", id)
	file := module.File(id)
	var all, names map[string]blob
	var texts map[string][]byte
	var g errgroup.Group
	g.Go(func() (err error) { all, err = e.list(ctx, commit, dir); return err })
	// Read the files that most modules have while git lists them.
	g.Go(func() (err error) {
		names, texts, err = e.guess(ctx, commit, file, path.Join(dir, "compose.yaml"))
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, e.missing(ctx, commit, err)
	}
	if _, ok := all[file]; !ok {
		return nil, &Error{Refused, "", &noModule{commit, file}, "carboy ship init " + id + " writes one to begin with; commit it"}
	}
	s := &source{commit: commit, text: map[string][]byte{}}
	for name, b := range names {
		if b.oid == all[name].oid { // the listing has no links
			s.text[name] = texts[name]
		}
	}
	if err := s.fetch(ctx, e, all, file); err != nil {
		return nil, err
	}
	var err error
	if s.module, err = module.Parse(file, id, s.text[file]); err != nil {
		return nil, &Error{Refused, "", err, ""}
	}
	if _, ok := all[s.module.Compose]; !ok {
		return nil, fail(Refused, "", "spec.runtime.compose_file is a path below "+dir, "commit %.12s has no %s", commit, s.module.Compose)
	}
	want := []string{s.module.Compose}
	below := path.Join(dir, module.FilesDir) + "/"
	var files []string
	for name := range all {
		if rest, ok := strings.CutPrefix(name, below); ok && s.module.Sync == module.SyncFiles {
			if why := module.Relative(rest); why != "" || strings.Contains(rest, ".carboy.tmp") {
				return nil, fail(Refused, "", "rename it", "%s: cannot be synced: %s", shown(name), why)
			}
			files = append(files, rest)
			want = append(want, name)
		}
	}
	if len(files) > plan.MaxFiles {
		return nil, fail(Refused, "", "", "%s: more than %d files", below, plan.MaxFiles)
	}
	if err := s.fetch(ctx, e, all, want...); err != nil {
		return nil, err
	}
	return s, s.judge(all, below, files)
}

// noModule is the error for a commit that does not have a module.
type noModule struct{ commit, file string }

func (e *noModule) Error() string { return fmt.Sprintf("commit %.12s has no %s", e.commit, e.file) }

// errShallow matches the error for a commit that a shallow clone does not have.
var errShallow = errors.New("this clone is shallow")

// missing returns a better error for a commit that could not be read, if this clone is a
// shallow one that does not have it.
func (e *Engine) missing(ctx context.Context, commit string, err error) error {
	if _, no := e.git(ctx, nil, 1<<10, "cat-file", "-e", commit); no == nil {
		return err
	}
	out, no := e.git(ctx, nil, 1<<10, "rev-parse", "--is-shallow-repository")
	if no != nil || strings.TrimSpace(string(out)) != "true" {
		return err
	}
	return &Error{Refused, "", fmt.Errorf("%w, and lacks commit %.12s, which was applied before", errShallow, commit), "git fetch --unshallow"}
}

// fetch reads the files of names that were not read before.
func (s *source) fetch(ctx context.Context, e *Engine, blobs map[string]blob, names ...string) error {
	names = slices.DeleteFunc(names, func(n string) bool { return s.text[n] != nil })
	var oids []string
	for _, n := range names {
		oids = append(oids, blobs[n].oid)
	}
	all, err := e.objects(ctx, oids)
	for i, o := range all {
		if o.kind != "blob" {
			return fmt.Errorf("%s: git has no file %s", e.Repo, shown(names[i]))
		}
		s.text[names[i]] = o.text
	}
	return err
}

// files returns the files of a source, none if s is nil.
func (s *source) files() []plan.File {
	if s == nil {
		return nil
	}
	return s.desc.Files
}

// judge checks the compose file and fills in s.desc.
func (s *source) judge(all map[string]blob, below string, files []string) error {
	m := s.module
	var err error
	if s.compose, err = module.ParseCompose(m.Compose, m.Service, m.Root, s.text[m.Compose]); err != nil {
		return &Error{Refused, "", err, ""}
	}
	if !plan.ValidImage(s.compose.Image) {
		return fail(Refused, "", "write its name and tag, or name and digest", "%s: the image %.200q is not a name", m.Compose, s.compose.Image)
	}
	file := func(name, shown string) plan.File {
		t := s.text[name]
		return plan.File{Path: shown, SHA256: plan.Digest(t), Size: int64(len(t)), Exec: all[name].exec}
	}
	s.desc = plan.Source{Module: file(module.File(m.ID), module.File(m.ID)), Compose: file(m.Compose, m.Compose), Files: []plan.File{}}
	slices.Sort(files)
	for _, f := range files {
		for _, w := range s.compose.Writable {
			if at := m.Root + "/" + f; at == w || strings.HasPrefix(at, w+"/") {
				return fail(Refused, "", "mount it read_only", "%s: lies in %s, which a service can write to: it could lead the file elsewhere", below+f, w)
			}
		}
		s.desc.Files = append(s.desc.Files, file(below+f, f))
	}
	return nil
}
