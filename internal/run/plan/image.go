package plan

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/image"
)

func BuildImage(ctx context.Context, c *host.Host, file, dir string, say func(string)) (*Image, error) {
	s, err := OpenImages(c)
	if err != nil {
		return nil, err
	}
	return s.Build(ctx, image.Recipe{File: file, Repo: dir, Home: c.Env("HOME")}, PullOptions{Env: c.Env, Maker: c.Maker}, say)
}

// Image describes a pulled image: its digest, its configuration, its layers.
type Image = image.Image

// PullOptions controls how an image is fetched; the zero value is usual.
type PullOptions = image.Options

// PullImage fetches and unpacks an image, unless that was done before: oci:DIR,
// tar:FILE, a path to either, or a reference to a registry. The result has the digest
// that names the same image later.
func PullImage(ctx context.Context, c *host.Host, ref string, o PullOptions) (*Image, error) {
	if o.Env == nil {
		o.Env = c.Env
	}
	s, err := OpenImages(c)
	if err != nil {
		return nil, err
	}
	return s.Pull(ctx, ref, o)
}

// Images lists the pulled images, the newest first.
func Images(c *host.Host) ([]Image, error) {
	s, err := OpenImages(c)
	if err != nil {
		return nil, err
	}
	return s.List()
}

// RemoveImage removes an image by its digest, with the layers that no other image has. It
// returns an error and keeps an image that a run uses.
func RemoveImage(ctx context.Context, c *host.Host, digest string) error {
	s, err := OpenImages(c)
	if err != nil {
		return err
	}
	return s.Remove(ctx, digest)
}

func OpenImages(c *host.Host) (*image.Store, error) {
	return image.Open(filepath.Join(c.StateDir(), "images"))
}

// OpenedImage holds the image that is a run's root. The image can't be removed while it
// is open.
type OpenedImage struct {
	*Image
	root *image.Root
}

func (i *OpenedImage) Close() { i.root.Close() }

func OpenImage(ctx context.Context, c *host.Host, o *Options) (*OpenedImage, error) {
	if o.RootFS != "" && o.RootFS != "host" {
		return nil, &fault.OptionError{Option: "--image", Value: o.Image, Reason: "can't be combined with --rootfs", Advice: "leave one of them out"}
	}
	s, err := OpenImages(c)
	if err != nil {
		return nil, err
	}
	if file, ok := strings.CutPrefix(o.Image, image.BuildPrefix); ok && o.ImageDigest == "" && o.Grant != nil {
		img, err := BuildImage(ctx, c, file, o.Workspace, nil)
		if err != nil {
			return nil, err
		}
		o.ImageDigest = img.Digest
	}
	img, err := s.Pull(ctx, o.Image, PullOptions{Pin: o.ImageDigest, Env: c.Env})
	if err != nil {
		return nil, err
	}
	root, err := s.Use(ctx, img)
	if err != nil {
		return nil, err
	}
	if len(o.Command) == 0 {
		o.Command = slices.Concat(img.Config.Entrypoint, img.Config.Cmd)
	}
	return &OpenedImage{img, root}, nil
}

// env returns an image's own variables. Carboy's override them.
func (i *OpenedImage) env() map[string]string {
	env := map[string]string{}
	for _, e := range i.Config.Env {
		if name, val, ok := strings.Cut(e, "="); ok && envName().MatchString(name) && !strings.ContainsRune(val, 0) {
			env[name] = val
		}
	}
	return env
}
