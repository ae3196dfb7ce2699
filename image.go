package carboy

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/image"
)

// Image is an image that was pulled: its digest, its configuration, its layers.
type Image = image.Image

// PullOptions say how an image is fetched; the zero value is usual.
type PullOptions = image.Options

// PullImage fetches and unpacks an image, where that was not done before: oci:DIR,
// tar:FILE, a path to either, or a reference to a registry. What it returns has the
// digest by which the same is found again.
func (c *Client) PullImage(ctx context.Context, ref string, o PullOptions) (*Image, error) {
	if o.Env == nil {
		o.Env = c.env
	}
	s, err := c.images()
	if err != nil {
		return nil, err
	}
	return s.Pull(ctx, ref, o)
}

// Images lists what was pulled, the newest first.
func (c *Client) Images() ([]Image, error) {
	s, err := c.images()
	if err != nil {
		return nil, err
	}
	return s.List()
}

// RemoveImage removes an image by its digest, with the layers that no other has. One
// that a run uses stays, with an error.
func (c *Client) RemoveImage(ctx context.Context, digest string) error {
	s, err := c.images()
	if err != nil {
		return err
	}
	return s.Remove(ctx, digest)
}

func (c *Client) images() (*image.Store, error) {
	return image.Open(filepath.Join(c.StateDir(), "images"))
}

// openedImage is the image that is a run's root. It stays while it is open.
type openedImage struct {
	*Image
	root *image.Root
}

func (i *openedImage) close() { i.root.Close() }

func (c *Client) openImage(ctx context.Context, o *RunOptions) (*openedImage, error) {
	if o.RootFS != "" && o.RootFS != "host" {
		return nil, &OptionError{Option: "--image", Value: o.Image, Reason: "can't be combined with --rootfs", Advice: "leave one of them out"}
	}
	s, err := c.images()
	if err != nil {
		return nil, err
	}
	if file, ok := strings.CutPrefix(o.Image, image.BuildPrefix); ok && o.ImageDigest == "" && o.granted != nil {
		img, err := c.buildImage(ctx, file, o.Workspace, nil)
		if err != nil {
			return nil, err
		}
		o.ImageDigest = img.Digest
	}
	img, err := s.Pull(ctx, o.Image, PullOptions{Pin: o.ImageDigest, Env: c.env})
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
	return &openedImage{img, root}, nil
}

// env are an image's own variables, which come before carboy's.
func (i *openedImage) env() map[string]string {
	env := map[string]string{}
	for _, e := range i.Config.Env {
		if name, val, ok := strings.Cut(e, "="); ok && envName().MatchString(name) && !strings.ContainsRune(val, 0) {
			env[name] = val
		}
	}
	return env
}
