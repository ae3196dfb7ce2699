package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/hostexec"
)

// buildkit is a BuildKit daemon of this machine, driven through its client
// buildctl. buildctl gets an empty environment and no home, so it finds
// nobody's logins.
type buildkit struct {
	socket    string
	untrusted string // where buildctl must not lie
}

// findBuildkit finds a daemon that answers on a socket of this machine and
// belongs to the user or to root.
func findBuildkit(ctx context.Context, env func(string) string, untrusted string) (*buildkit, error) {
	usual := []string{"/run/buildkit/buildkitd.sock"}
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		usual = []string{dir + "/buildkit/buildkitd.sock", usual[0]}
	}
	paths, err := sockets(env, "BUILDKIT_HOST", usual)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range paths {
		c, err := dockerapi.Dial(ctx, p)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
			continue
		}
		c.Close()
		return &buildkit{socket: p, untrusted: untrusted}, nil
	}
	return nil, errors.Join(errs...)
}

// make builds an image from a context, a tar, and writes it to out in docker
// save's form.
func (b *buildkit) make(ctx context.Context, src *os.File, j job, say func(string)) error {
	dir := filepath.Join(filepath.Dir(j.out), "context")
	if err := spread(ctx, src, dir); err != nil {
		return fmt.Errorf("spread the context: %w", err)
	}
	r, err := hostexec.New(hostexec.Options{Untrusted: existing(b.untrusted)})
	if err != nil {
		return err
	}
	say("buildctl builds it")
	out, err := r.Run(ctx, hostexec.Command{
		Program: hostexec.Buildctl, Dir: dir, Timeout: hostexec.MaxTimeout,
		Args: []string{"--addr", "unix://" + b.socket, "build", "--progress", "plain", "--frontend", "dockerfile.v0",
			"--opt", "filename=" + j.dockerfile, "--local", "context=" + dir, "--local", "dockerfile=" + dir,
			"--output", "type=docker,dest=" + j.out},
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = errors.Join(err, r.Close(ctx))
	for line := range bytes.Lines(out.Stderr.Text()) {
		if text := step(string(line)); text != "" {
			say(text)
		}
	}
	if err != nil {
		return err
	}
	fi, err := os.Stat(j.out)
	if err == nil && fi.Size() > j.most {
		err = fmt.Errorf("it has more than %d bytes", j.most)
	}
	return err
}

// step returns the name of the build step that a line of buildctl's output
// starts, or "".
func step(line string) string {
	_, text, ok := strings.Cut(strings.TrimSpace(line), " ")
	if !ok || !strings.HasPrefix(line, "#") || !strings.HasPrefix(text, "[") || strings.HasPrefix(text, "[internal]") {
		return ""
	}
	return text
}

func existing(dir string) []string {
	if dir == "" {
		return nil
	}
	return []string{dir}
}

// spread unpacks writeContext's output into a new directory.
func spread(ctx context.Context, src io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(src)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		name, mode := filepath.Clean(h.Name), h.FileInfo().Mode()
		switch {
		case name == ".":
			continue
		case h.Typeflag == tar.TypeDir:
			err = root.MkdirAll(name, mode.Perm()|0o700)
		case h.Typeflag == tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case h.Typeflag == tar.TypeReg:
			err = writeTo(root, name, mode, in)
		default:
			err = fmt.Errorf("%q is of a kind that no context has", name)
		}
		if err != nil {
			return err
		}
	}
}

func writeTo(root *os.Root, name string, mode os.FileMode, r io.Reader) error {
	// .dockerignore may exclude a directory and still include a file in it.
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode.Perm()), f.Close())
}
