package builder

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/carboy/carboy/internal/dockerfile"
	"github.com/carboy/carboy/internal/image"
)

// stage is the state of a stage under way.
type stage struct {
	w     *build
	base  *image.Image // nil: scratch
	root  string       // the directory that it began with
	key   string       // a digest of all that its files depend on
	upper string       // the file with what has changed since; empty: nothing
	// changed says that steps have changed something, beside the owners that the base has.
	changed bool
	pending []pending // not yet carried out
	config  v1.Config
	args    map[string]string
	cmd     bool // CMD was in this Dockerfile
}

// pending is an operation that waits for the next bottle.
type pending struct {
	op
	tar     string // a file with what is copied; empty: from has it
	from    *stage
	sources []string
}

// stage carries out one stage.
func (w *build) stage(ctx context.Context, n int) (*stage, error) {
	def := &w.file.Stages[n]
	base, err := def.Expand(def.Base, w.lookupGlobal)
	if err != nil {
		return nil, err
	}
	platform, err := def.Expand(def.Platform, w.lookupGlobal)
	if err != nil {
		return nil, err
	}
	if here := "linux/" + runtime.GOARCH; platform != "" && platform != here {
		return nil, &dockerfile.Error{File: def.File, Line: def.Line, Op: def.Op, Foreign: true, Reason: fmt.Sprintf("is for the platform %.80s, and this machine's is %s", platform, here)}
	}
	w.say(&def.Step, false)
	st, err := w.from(ctx, def, base, n)
	if err != nil {
		return nil, err
	}
	for i := range def.Steps {
		if err := st.do(ctx, &def.Steps[i], n); err != nil {
			return nil, err
		}
	}
	return st, st.carry(ctx, nil, nil)
}

// from begins a stage with an earlier one or an image.
func (w *build) from(ctx context.Context, def *dockerfile.Stage, base string, n int) (*stage, error) {
	for i := n - 1; i >= 0; i-- {
		if as := w.file.Stages[i].As; as != "" && as == strings.ToLower(base) {
			st := *w.stages[i]
			st.args, st.cmd, st.pending = map[string]string{}, false, nil
			st.config.Env, st.config.Labels, st.config.ExposedPorts = slices.Clone(st.config.Env), maps.Clone(st.config.Labels), maps.Clone(st.config.ExposedPorts)
			return &st, nil
		}
	}
	st, err := w.open(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", def.Bad("%.200s can't be had", base), err)
	}
	return st, nil
}

// open begins a stage with scratch or an image.
func (w *build) open(ctx context.Context, ref string) (*stage, error) {
	st := &stage{w: w, args: map[string]string{}}
	if ref == "scratch" {
		st.key, st.root = key("scratch", version), filepath.Join(w.tmp, "scratch")
		if err := os.Mkdir(st.root, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		return st, nil
	}
	img, err := w.fetch(ctx, ref)
	if err != nil {
		return nil, err
	}
	root, err := w.s.Use(ctx, img)
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, func() { root.Close() })
	c := img.Config
	st.base, st.root = img, root.Dir
	st.config = v1.Config{Env: slices.Clone(c.Env), User: c.User, WorkingDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Shell: c.Shell, Labels: maps.Clone(c.Labels)}
	st.key = key("image", version, img.Root, img.Layers)
	st.upper, err = w.s.Owners(ctx, img, root.Dir, w.dir)
	return st, err
}

// fetch returns a base image. A relative path is one in the context.
func (w *build) fetch(ctx context.Context, ref string) (*image.Image, error) {
	if make := w.o.Bases[ref]; make != nil {
		return make(ctx, Base{w.s, w.tmp, func(l string) { w.o.Say(Progress{Text: l}) }, w.o.Pull.Transport})
	}
	form, file := "", ref
	for _, f := range []string{"oci:", "tar:"} {
		if rest, ok := strings.CutPrefix(ref, f); ok {
			form, file = f, rest
		}
	}
	if relative := form != "" && !filepath.IsAbs(file) || strings.HasPrefix(ref, "./") || strings.HasPrefix(ref, "../"); relative {
		if w.o.Context == nil {
			return nil, fmt.Errorf("%s is relative, and there is no context", ref)
		}
		ref = form + filepath.Join(w.o.Context.Name(), file)
	}
	return w.s.Pull(ctx, ref, w.o.Pull)
}

// do carries out one instruction.
func (st *stage) do(ctx context.Context, s *dockerfile.Step, n int) error {
	words, err := st.words(s)
	if err != nil {
		return err
	}
	if s.Op == "RUN" {
		return st.run(ctx, s)
	}
	st.w.say(s, false)
	c := &st.config
	switch s.Op {
	case "COPY", "ADD":
		return st.copy(ctx, s, words, n)
	case "ARG":
		return st.w.args(s, st.args, st.lookup)
	case "ENV", "LABEL":
		return st.set(s)
	case "WORKDIR":
		c.WorkingDir = st.abs(words[0])
		st.add(pending{op: op{Where: st.where(s), Mkdir: c.WorkingDir}}, "workdir", c.WorkingDir)
	case "USER":
		c.User = words[0]
	case "SHELL":
		c.Shell = s.Args
	case "CMD":
		c.Cmd, st.cmd = st.shell(s), true
	case "ENTRYPOINT":
		c.Entrypoint = st.shell(s)
		if !st.cmd {
			c.Cmd = nil // of the base image: it would become this program's arguments
		}
	case "EXPOSE":
		if c.ExposedPorts == nil {
			c.ExposedPorts = map[string]struct{}{}
		}
		for _, p := range words {
			if !strings.Contains(p, "/") {
				p += "/tcp"
			}
			c.ExposedPorts[p] = struct{}{}
		}
	case "STOPSIGNAL":
		c.StopSignal = words[0]
	case "VOLUME":
		st.w.o.Say(Progress{Text: "VOLUME is ignored: a bottle keeps none, and the directory is one like any other"})
	case "MAINTAINER":
	default:
		return s.Bad("is not carried out here") // a mistake of ours
	}
	return nil
}

// where names an instruction in errors from inside.
func (st *stage) where(s *dockerfile.Step) string {
	return fmt.Sprintf("%s:%d: %s", s.File, s.Line, s.Op)
}

// words expands an instruction's words.
func (st *stage) words(s *dockerfile.Step) ([]string, error) {
	switch s.Op {
	case "RUN", "CMD", "ENTRYPOINT", "SHELL", "MAINTAINER":
		return s.Args, nil // a shell expands them, or nobody
	}
	out := make([]string, len(s.Args))
	for i, a := range s.Args {
		var err error
		if out[i], err = s.Expand(a, st.lookup); err != nil {
			return nil, err
		}
		if out[i] == "" {
			return nil, s.Bad("%.80q is empty", a)
		}
	}
	return out, nil
}

// add makes an operation wait for the next bottle.
func (st *stage) add(p pending, parts ...any) {
	st.key = key(st.key, parts)
	st.pending, st.changed = append(st.pending, p), true
}

// abs returns a path of the image from its root.
func (st *stage) abs(name string) string {
	if !path.IsAbs(name) {
		name = path.Join("/", st.config.WorkingDir, name)
	}
	return path.Clean(name)
}

// shell returns a command line as it is started.
func (st *stage) shell(s *dockerfile.Step) []string {
	if s.JSON {
		return s.Args
	}
	sh := st.config.Shell
	if len(sh) == 0 {
		sh = []string{"/bin/sh", "-c"}
	}
	return append(slices.Clone(sh), s.Args...)
}

// copy reads what COPY names, or notes the stage that has it.
func (st *stage) copy(ctx context.Context, s *dockerfile.Step, words []string, n int) error {
	sources, dest := words[:len(words)-1], words[len(words)-1]
	dir := strings.HasSuffix(dest, "/") || dest == "." || strings.HasSuffix(dest, "/.")
	if len(sources) > 1 && !dir {
		return s.Bad("has several sources, so its destination %.80q must be a directory: end it with /", dest)
	}
	dest = st.abs(dest)
	if dir && dest != "/" {
		dest += "/"
	}
	p := pending{op: op{Where: st.where(s), Dest: dest}}
	var err error
	if p.Chown, err = s.Expand(s.Flags["chown"], st.lookup); err != nil {
		return err
	}
	if p.Chmod, err = s.Expand(s.Flags["chmod"], st.lookup); err != nil {
		return err
	}
	from := s.Flags["from"]
	if from == "" {
		sum, err := st.pack(s, &p, sources)
		if err != nil {
			return s.Bad("%v", err)
		}
		st.add(p, "copy", dest, p.Chown, p.Chmod, sum)
		return nil
	}
	if p.from, err = st.w.source(ctx, s, from, n); err != nil {
		return err
	}
	p.sources = sources
	st.add(p, "copy from", dest, p.Chown, p.Chmod, p.from.key, sources)
	return nil
}

// source returns the stage that --from names.
func (w *build) source(ctx context.Context, s *dockerfile.Step, from string, n int) (*stage, error) {
	if i := w.find(from, n); i >= 0 {
		return w.stages[i], nil
	}
	if st := w.others[from]; st != nil {
		return st, nil
	}
	st, err := w.open(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", s.Bad("--from=%.200s is no earlier stage, and no image", from), err)
	}
	w.others[from] = st
	return st, nil
}

// pack reads files of the context into a tar, and returns a digest of them.
func (st *stage) pack(s *dockerfile.Step, p *pending, sources []string) (sum string, err error) {
	root := st.w.o.Context
	if root == nil {
		return "", errors.New("there is no context to copy from")
	}
	skip, err := image.Ignores(root, st.w.o.Ignore)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(st.w.tmp, "copy-")
	if err != nil {
		return "", err
	}
	defer f.Close()
	p.tar = f.Name()
	h := sha256.New()
	k := &packer{fsys: root.FS().(fs.ReadLinkFS), w: tar.NewWriter(f), sum: h, skip: skip, root: true, plain: s.Op == "ADD"}
	if err := k.pack(sources); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), k.w.Close()
}
