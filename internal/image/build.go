package image

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// BuildPrefix marks a reference that is the path of a Dockerfile.
const BuildPrefix = "dockerfile:"

// Recipe is a Dockerfile of the user's own. An engine executes it outside of
// any bottle, if there is one, so nobody but the user may have written it.
type Recipe struct {
	File string // absolute
	// Repo is the repository in which an agent may have written. The Dockerfile's
	// directory may neither lie in it nor contain it.
	Repo string
	// Home is the user's home, which is too much to send to an engine.
	Home string
}

// Ref returns the reference of the built image.
func (r Recipe) Ref() string { return BuildPrefix + r.File }

func (r Recipe) bad(reason string, err error) error {
	return &Error{Ref: r.Ref(), Reason: reason, Err: err}
}

// Check refuses a Dockerfile that somebody other than the user may have
// written.
func (r Recipe) Check() error {
	root, _, err := r.open()
	if err != nil {
		return err
	}
	return root.Close()
}

// open opens the directory to send to the engine: the Dockerfile's own, with
// links resolved. name is the Dockerfile in it.
func (r Recipe) open() (root *os.Root, name string, err error) {
	if !filepath.IsAbs(r.File) {
		return nil, "", r.bad("a Dockerfile is named by its whole path", nil)
	}
	file, err := filepath.EvalSymlinks(r.File)
	if err != nil {
		return nil, "", r.bad("there is no such file", err)
	}
	dir, name := filepath.Split(file)
	dir = filepath.Clean(dir)
	if root, err = os.OpenRoot(dir); err != nil {
		return nil, "", r.bad("its directory can't be opened", err)
	}
	if err := r.own(root, dir, name); err != nil {
		root.Close()
		return nil, "", err
	}
	return root, name, nil
}

// own checks the opened files: a name could lead elsewhere by now.
func (r Recipe) own(root *os.Root, dir, name string) error {
	fi, err := root.Stat(".")
	if err != nil {
		return r.bad("its directory can't be looked at", err)
	}
	file, err := root.Lstat(name)
	switch {
	case err != nil:
		return r.bad("it can't be looked at", err)
	case !file.Mode().IsRegular():
		return r.bad("is not a regular file", nil)
	}
	for _, place := range []struct{ path, why string }{
		{r.Repo, "it lies in the current directory, or that beside it: an agent may have written it, and what it says is carried out on this machine; keep it with your bottles"},
		{r.Home, "it lies in your home itself, all of which would be sent to the engine: give it a directory of its own"},
	} {
		if place.path == "" {
			continue
		}
		real, err := filepath.EvalSymlinks(place.path)
		if err != nil {
			return r.bad("the current directory can't be found", err)
		}
		if beneath(real, dir) || place.path == r.Repo && beneath(dir, real) {
			return r.bad(place.why, nil)
		}
	}
	for _, x := range []struct {
		what string
		fi   fs.FileInfo
	}{{"its directory", fi}, {"it", file}} {
		st := x.fi.Sys().(*unixStat)
		if st.Uid != 0 && int(st.Uid) != os.Geteuid() || x.fi.Mode().Perm()&0o022 != 0 {
			return r.bad(x.what+" can be written to by others than you: what it says is carried out on this machine; chmod go-w it", nil)
		}
	}
	return nil
}

// beneath reports whether path is dir or below it.
func beneath(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// built records which image was built from a recipe.
type built struct {
	Schema string `json:"schema"`
	Digest string `json:"digest"`
}

const builtKind = "built"

// job describes one build.
type job struct {
	dockerfile string // its name, in the context
	tag        string // for builders that keep what they build
	out        string // a file that is not there yet, for the image
	most       int64  // bound on its size, in bytes
}

// builder builds images.
type builder interface {
	make(ctx context.Context, src *os.File, j job, say func(string)) error
}

// Maker builds and stores the image of the Dockerfile that has a name in a directory,
// without an engine. say receives lines that are not trusted.
type Maker interface {
	Make(ctx context.Context, dir *os.Root, name, ref string, o Options, say func(string)) (*Image, error)
}

// findBuilder finds a Docker Engine or a BuildKit daemon. If the user names one
// of them, the other is not asked.
func findBuilder(ctx context.Context, env func(string) string, untrusted string) (builder, error) {
	var errs []error
	if env("BUILDKIT_HOST") == "" || env("DOCKER_HOST") != "" {
		e, err := findEngine(ctx, env)
		if err == nil {
			return e, nil
		}
		errs = append(errs, err)
	}
	if env("DOCKER_HOST") == "" || env("BUILDKIT_HOST") != "" {
		b, err := findBuildkit(ctx, env, untrusted)
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w; install and start Docker (apt-get install docker.io) or BuildKit, or build it elsewhere, docker save -o FILE, and say image: tar:/…/FILE", errors.Join(errs...))
}

// Build builds an image from a Dockerfile and its directory, and stores it. It
// returns an earlier build of the same content without asking anybody. say,
// which may be nil, receives the engine's output line by line; the text is
// untrusted.
func (s *Store) Build(ctx context.Context, r Recipe, o Options, say func(string)) (*Image, error) {
	if say == nil {
		say = func(string) {}
	}
	if o.Env == nil {
		o.Env = os.Getenv
	}
	if err := os.MkdirAll(s.path("builds"), 0o700); err != nil {
		return nil, err
	}
	root, name, err := r.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	tmp, unlock, err := s.scratch(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, err := os.OpenFile(filepath.Join(tmp, "context.tar"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	sum, err := writeContext(ctx, c, root, name)
	if err != nil {
		return nil, r.bad("what is beside it can't be taken", err)
	}
	key := hex.EncodeToString(sum[:])
	note := s.path("builds", key+"-"+runtime.GOARCH+".json")
	var was built
	if err := store.ReadJSON(note, builtKind, &was); err == nil {
		if img, err := s.pulled(r.Ref(), was.Digest); img != nil || err != nil {
			return img, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	e, err := findBuilder(ctx, o.Env, r.Repo)
	if err != nil && o.Maker != nil && o.Env("DOCKER_HOST") == "" && o.Env("BUILDKIT_HOST") == "" {
		img, err := o.Maker.Make(ctx, root, name, r.Ref(), o, say)
		if err != nil {
			return nil, r.bad("it can't be built", err)
		}
		return img, store.WriteJSON(note, builtKind, built{Schema: store.Schema(builtKind), Digest: img.Digest})
	}
	if err != nil {
		return nil, r.bad("nothing is here to build it", err)
	}
	if _, err := c.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	out := filepath.Join(tmp, "image.tar")
	if err := e.make(ctx, c, job{dockerfile: name, tag: "carboy-build:" + key[:40], out: out, most: o.Limits.orDefaults().Bytes}, say); err != nil {
		return nil, r.bad("it can't be built", err)
	}
	o.Pin = ""
	img, err := s.Pull(ctx, "tar:"+out, o)
	if err != nil {
		return nil, err
	}
	img.Ref = r.Ref()
	digest := strings.TrimPrefix(img.Digest, "sha256:")
	if err := store.WriteJSON(s.path("images", digest+".json"), kind, img); err != nil {
		return nil, err
	}
	return img, store.WriteJSON(note, builtKind, built{Schema: store.Schema(builtKind), Digest: img.Digest})
}

// scratch makes a directory for one build at a time. It does not use tmp, which
// another process empties when it pulls.
func (s *Store) scratch(ctx context.Context) (dir string, done func(), err error) {
	lock, err := s.lock(ctx, unix.LOCK_EX, "builds", "lock")
	if err != nil {
		return "", nil, err
	}
	dir = s.path("builds", "tmp")
	done = func() { os.RemoveAll(dir); lock.Close() }
	if err = os.RemoveAll(dir); err == nil { // left by a build that was killed
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		done()
		return "", nil, fmt.Errorf("make room for a build: %w", err)
	}
	return dir, done, nil
}
