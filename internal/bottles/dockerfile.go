package bottles

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/run/plan"
)

// recipe returns the Dockerfile that a bottle names. A relative path is relative to the
// directory of the bottle's file. dir is the agent's workspace.
func (c *Keeper) recipe(v manifest.Value[string], dir string) image.Recipe {
	path, home := v.V, c.Env("HOME")
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

// imageOf returns the image of a bottle's root file system, or "" for none. It checks a
// Dockerfile, but does not build it.
func (c *Keeper) imageOf(e *manifest.Effective, dir string) (string, error) {
	v := e.Provider.Dockerfile
	if !v.IsSet() {
		return e.Provider.Image.V, nil
	}
	r := c.recipe(v, dir)
	if err := r.Check(); err != nil {
		var bad *image.Error
		if errors.As(err, &bad) {
			return "", &fault.OptionError{Option: v.From.String(), Value: v.From.Field, Reason: bad.Error(), Advice: "name a Dockerfile of your own, beside the bottle's file"}
		}
		return "", err
	}
	return r.Ref(), nil
}

// BuildImage builds the image of a Preflight for which [Preflight.Builds] is true, and
// stores it. The Docker Engine or a BuildKit daemon of this machine does the work, else
// bottles do; there is nothing to do if nothing changed. say receives output, which is not
// trusted; it may be nil.
func (c *Keeper) BuildImage(ctx context.Context, p *Preflight, say func(string)) (*plan.Image, error) {
	file, ok := strings.CutPrefix(p.Image, image.BuildPrefix)
	if !ok {
		return nil, &fault.OptionError{Option: "image", Value: p.Image, Reason: "is not one to be built", Advice: "PullImage fetches it"}
	}
	return plan.BuildImage(ctx, c.Host, file, p.Run.Workspace, say)
}

// Builds reports whether the image must be built before the start.
func (p *Preflight) Builds() bool { return strings.HasPrefix(p.Image, image.BuildPrefix) }
