// Package builder builds images from Dockerfiles in bottles, without an engine and without
// root's rights on the host.
//
// Each RUN is the command of a bottle of the embedded kernel, whose root is the stage's
// directory and whose way out is the gateway. What a bottle has changed comes out as the tar
// that its kernel writes, begins the next step's bottle, and is, in the end, one layer above
// those of the base image. Paths and accounts of an image are resolved in bottles only, by
// the program in inside.go.
//
// What a step has changed is kept under a digest of all that it depends on. Start reading at
// [Builder.Build].
package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/dockerfile"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
)

// Builder builds images.
type Builder struct{ Runs *run.Runner }

// Options say what to build.
type Options struct {
	// Context is the directory that COPY and ADD take files from; nil: they can't.
	Context *os.Root
	// File names the Dockerfile in errors; Text is what it holds. Ignore names it in the
	// context, to find its own .dockerignore.
	File, Ignore        string
	Text                []byte
	Args                map[string]string // of ARG
	Allow, AllowPrivate []string          // hosts that RUN may reach, as run's --allow and --allow-private
	Target              string            // the stage; empty: the last one
	NoCache             bool
	Name                string // that the image gets, for image.NamePrefix; empty: none
	Ref                 string // of the image, in lists; empty: its name, else its file
	Say                 func(Progress)
	Pull                image.Options // of base images
	// Bases are images that FROM may name besides.
	Bases map[string]func(context.Context, Base) (*image.Image, error)
}

// Base holds what the maker of a base image needs.
type Base struct {
	Store     *image.Store
	Tmp       string // a directory for the time of the build
	Say       func(string)
	Transport http.RoundTripper // nil: the default
}

// Progress says how far a build is.
type Progress struct {
	Step, Steps int    // counted from 1; 0: Text is a line that a step has written
	Text        string // an instruction; it and lines come from others
	Cached      bool
}

// version changes when the same instructions make something else.
const version = "1"

// build is one build under way.
type build struct {
	b       *Builder
	o       Options
	s       *image.Store
	dir     string // of kept steps
	tmp     string
	program string
	file    *dockerfile.File
	global  map[string]string // of ARG before the first FROM
	stages  []*stage          // by number; nil: not needed
	others  map[string]*stage // of --from, by reference
	closers []func()
	used    map[string]bool // build arguments
	step    int
	steps   int
	most    int64
}

// Build builds an image and stores it. Nothing is left of a build that fails but its
// finished steps.
func (b *Builder) Build(ctx context.Context, o Options) (img *image.Image, err error) {
	if o.Say == nil {
		o.Say = func(Progress) {}
	}
	switch {
	case o.Ref != "":
	case o.Name != "":
		o.Ref = image.NamePrefix + o.Name
	default:
		o.Ref = image.BuildPrefix + o.File
	}
	if o.Name != "" {
		if err := image.CheckName(o.Name); err != nil {
			return nil, err
		}
	}
	w := &build{b: b, o: o, others: map[string]*stage{}, used: map[string]bool{}}
	defer func() {
		for _, f := range slices.Backward(w.closers) {
			f()
		}
	}()
	if w.file, err = dockerfile.Parse(o.File, o.Text); err != nil {
		return nil, foreign(err)
	}
	if w.s, err = plan.OpenImages(b.Runs.Host); err != nil {
		return nil, err
	}
	if err := w.begin(ctx); err != nil {
		return nil, err
	}
	last, err := w.target()
	if err != nil {
		return nil, err
	}
	needed, err := w.needed(last)
	if err != nil {
		return nil, foreign(err)
	}
	w.stages = make([]*stage, len(w.file.Stages))
	for i, st := range w.file.Stages {
		if needed[i] {
			w.steps += 1 + len(st.Steps)
		}
	}
	for i := range w.file.Stages {
		if !needed[i] {
			continue
		}
		if w.stages[i], err = w.stage(ctx, i); err != nil {
			return nil, foreign(err)
		}
	}
	for name := range o.Args {
		if !w.used[name] {
			return nil, fmt.Errorf("--build-arg %s: no ARG of %s has that name", name, o.File)
		}
	}
	if img, err = w.image(ctx, w.stages[last]); err == nil && o.Name != "" {
		err = w.s.Name(o.Name, img.Digest)
	}
	return img, err
}

// Make implements image.Maker. RUN reaches no host.
func (b *Builder) Make(ctx context.Context, dir *os.Root, name, ref string, o image.Options, say func(string)) (*image.Image, error) {
	text, err := readFile(dir, name)
	if err != nil {
		return nil, err
	}
	return b.Build(ctx, Options{Context: dir, File: filepath.Join(dir.Name(), name), Ignore: name, Text: text, Ref: ref, Pull: o, Say: func(p Progress) { say(p.String()) }})
}

// readFile reads a Dockerfile. Parse refuses one that is longer than what is read.
func readFile(dir *os.Root, name string) ([]byte, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, dockerfile.MaxFile+1))
}

// String returns a line for people. Its text is not trusted.
func (p Progress) String() string {
	if p.Step == 0 {
		return p.Text
	}
	s := fmt.Sprintf("step %d/%d: %s", p.Step, p.Steps, p.Text)
	if p.Cached {
		s += " (cached)"
	}
	return s
}

// begin makes the build's own directory.
func (w *build) begin(ctx context.Context) error {
	dir, done, err := w.s.Steps(ctx)
	if err != nil {
		return err
	}
	w.dir = dir
	w.closers = append(w.closers, done)
	if w.tmp, err = os.MkdirTemp(dir, "tmp-"); err != nil {
		return err
	}
	w.closers = append(w.closers, func() { os.RemoveAll(w.tmp) })
	limits, err := plan.FillLimits(bottle.Limits{}, w.b.Runs.StateDir())
	if err != nil {
		return err
	}
	w.most = limits.Disk
	if w.program, err = plan.Program(); err != nil {
		return err
	}
	w.global = map[string]string{}
	for _, s := range w.file.Args {
		if err := w.args(&s, w.global, w.lookupGlobal); err != nil {
			return err
		}
	}
	return nil
}

// target returns the number of the stage to build.
func (w *build) target() (int, error) {
	if w.o.Target == "" {
		return len(w.file.Stages) - 1, nil
	}
	if i := w.find(w.o.Target, len(w.file.Stages)); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("--target %.80q: %s has no such stage", w.o.Target, w.o.File)
}

// find returns the number of the stage that has the name, or is that number, before a stage;
// -1: none.
func (w *build) find(name string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if as := w.file.Stages[i].As; as != "" && as == strings.ToLower(name) || name == fmt.Sprint(i) {
			return i
		}
	}
	return -1
}

// needed finds the stages that one depends on.
func (w *build) needed(last int) ([]bool, error) {
	out := make([]bool, len(w.file.Stages))
	out[last] = true
	for i := last; i >= 0; i-- {
		if !out[i] {
			continue
		}
		st := &w.file.Stages[i]
		base, err := st.Expand(st.Base, w.lookupGlobal)
		if err != nil {
			return nil, err
		}
		from := []string{base}
		for _, s := range st.Steps {
			if s.Flags["from"] != "" {
				from = append(from, s.Flags["from"])
			}
		}
		for _, name := range from {
			if n := w.find(name, i); n >= 0 {
				out[n] = true
			}
		}
	}
	return out, nil
}

// say reports the next step.
func (w *build) say(s *dockerfile.Step, cached bool) {
	w.step++
	w.o.Say(Progress{Step: w.step, Steps: w.steps, Text: s.Op + " " + s.Text, Cached: cached})
}

// foreign adds, to an error about what other builders know, who they are.
func foreign(err error) error {
	var e *dockerfile.Error
	if errors.As(err, &e) && e.Foreign {
		return fmt.Errorf("%w; the Docker Engine and BuildKit can: build it there, and use --image tar:FILE of docker save", err)
	}
	return err
}

// key returns a digest of all parts.
func key(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		panic(err) // strings, numbers, and lists of them
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// kept returns the file of a step's changes, if it is there and may be used.
func (w *build) kept(key string) (string, bool) {
	path := filepath.Join(w.dir, key)
	if w.o.NoCache {
		return path, false
	}
	// The modification time says when it was used last.
	return path, unix.Utimes(path, nil) == nil
}

// lines passes on output line by line, and keeps the last of them.
type lines struct {
	say  func(string)
	mu   sync.Mutex
	part []byte
	last []string
}

const (
	maxLine   = 4096
	keepLines = 5
)

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range b {
		if c == '\n' || c == '\r' {
			l.flush()
		} else if len(l.part) < maxLine {
			l.part = append(l.part, c)
		}
	}
	return len(b), nil
}

func (l *lines) flush() {
	if len(l.part) == 0 {
		return
	}
	line := string(l.part)
	l.part = l.part[:0]
	if l.last = append(l.last, line); len(l.last) > keepLines {
		l.last = l.last[1:]
	}
	l.say(line)
}
