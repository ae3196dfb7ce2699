// Package agentimages makes the images of agents' programs: a root file system from Debian's
// packages, and on it the program from npm. Everything is pinned by name, version and digest
// in the files beside this one, so an image is the same wherever and whenever it is built.
//
// Start reading at [Open].
package agentimages

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/image"
)

//go:embed Dockerfile packages.lock */package.json */package-lock.json
var files embed.FS

const registry = "registry.npmjs.org"

// Names returns the agents that have an image, sorted.
func Names() []string {
	list, err := fs.Glob(files, "*/package.json")
	if err != nil {
		panic(err) // the pattern is right
	}
	for i, name := range list {
		list[i] = path.Dir(name)
	}
	slices.Sort(list)
	return list
}

// Open completes o to build the image of an agent. The caller closes what is returned after
// the build.
func Open(name string, o *builder.Options) (done func(), err error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no image of %.80q", name)
	}
	dir, err := os.MkdirTemp("", "carboy-image-")
	if err != nil {
		return nil, err
	}
	remove := func() { os.RemoveAll(dir) }
	for _, f := range []string{"package.json", "package-lock.json"} {
		b, err := files.ReadFile(name + "/" + f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o644)
		}
		if err != nil {
			remove()
			return nil, err
		}
	}
	if o.Text, err = files.ReadFile("Dockerfile"); err == nil {
		o.Context, err = os.OpenRoot(dir)
	}
	if err != nil {
		remove()
		return nil, err
	}
	// Where a mirror stands in for the registry, its address may be a private one.
	if o.File = name; !slices.Contains(o.AllowPrivate, registry) {
		o.Allow = append(o.Allow, registry)
	}
	o.Bases = map[string]func(context.Context, builder.Base) (*image.Image, error){"carboy/packages": base}
	return func() { o.Context.Close(); remove() }, nil
}

// base returns the image of the packages alone.
func base(ctx context.Context, b builder.Base) (*image.Image, error) {
	text, err := files.ReadFile("packages.lock")
	if err != nil {
		return nil, err
	}
	l, err := parseLock(string(text))
	if err != nil {
		return nil, fmt.Errorf("packages.lock: %w", err)
	}
	const ref = "carboy/packages"
	key := l.key()
	if img, err := b.Store.Recall(ref, key); img != nil || err != nil {
		return img, err
	}
	f, err := os.CreateTemp(b.Tmp, "packages-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &maker{tmp: b.Tmp, client: &http.Client{}, say: b.Say}
	if b.Transport != nil {
		m.client.Transport = b.Transport
	}
	digest, err := m.layer(ctx, l, f)
	if err != nil {
		return nil, err
	}
	src, err := builder.OneLayer(f.Name(), digest)
	if err != nil {
		return nil, err
	}
	img, err := b.Store.Add(ctx, ref, src, image.Options{})
	if err != nil {
		return nil, err
	}
	return img, errors.Join(b.Store.Remember(key, img.Digest))
}
