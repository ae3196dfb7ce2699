package carboy

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/manifest"
)

// recipe is the Dockerfile that a bottle names. A path that is not whole is one beside
// the bottle's file. dir is where the agent is to work.
func (c *Client) recipe(v manifest.Value[string], dir string) image.Recipe {
	path, home := v.V, c.env("HOME")
	switch rest, ok := strings.CutPrefix(path, "~/"); {
	case ok && home != "":
		path = filepath.Join(home, rest)
	case !filepath.IsAbs(path):
		path = filepath.Join(filepath.Dir(v.From.File), path)
	}
	if whole, err := filepath.Abs(path); err == nil {
		path = whole
	}
	return image.Recipe{File: path, Repo: dir, Home: home}
}

// imageOf is the image that a bottle's root file system is made of; empty: none. A
// Dockerfile is looked at, and not built yet.
func (c *Client) imageOf(e *manifest.Effective, dir string) (string, error) {
	v := e.Provider.Dockerfile
	if !v.IsSet() {
		return e.Provider.Image.V, nil
	}
	r := c.recipe(v, dir)
	if err := r.Check(); err != nil {
		var bad *image.Error
		if errors.As(err, &bad) {
			return "", &OptionError{Option: v.From.String(), Value: v.From.Field, Reason: bad.Error(), Advice: "name a Dockerfile of your own, beside the bottle's file"}
		}
		return "", err
	}
	return r.Ref(), nil
}

// BuildImage has the Docker Engine, or a BuildKit daemon, of this machine build the image of a Preflight whose
// Image is one that is to be built, and takes it in; without a change since, it is
// there already. say is told what the engine says, which may be anything; nil: nobody
// is.
func (c *Client) BuildImage(ctx context.Context, p *Preflight, say func(string)) (*Image, error) {
	file, ok := strings.CutPrefix(p.Image, image.BuildPrefix)
	if !ok {
		return nil, &OptionError{Option: "image", Value: p.Image, Reason: "is not one to be built", Advice: "PullImage fetches it"}
	}
	return c.buildImage(ctx, file, p.run.Workspace, say)
}

func (c *Client) buildImage(ctx context.Context, file, dir string, say func(string)) (*Image, error) {
	s, err := c.images()
	if err != nil {
		return nil, err
	}
	return s.Build(ctx, image.Recipe{File: file, Repo: dir, Home: c.env("HOME")}, PullOptions{Env: c.env}, say)
}

// Builds reports whether the image is to be built before the start.
func (p *Preflight) Builds() bool { return strings.HasPrefix(p.Image, image.BuildPrefix) }
