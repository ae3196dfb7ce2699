package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// NamePrefix marks a reference to what was built here under a name.
const NamePrefix = "built:"

const nameKind = "image-name"

// named records which image has a name.
type named struct {
	Schema string `json:"schema"`
	Digest string `json:"digest"`
}

var imageName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,99}$`) })

// CheckName returns an error for what can't be the name of an image.
func CheckName(name string) error {
	if !imageName().MatchString(name) {
		return fmt.Errorf("the name %.120q is not one of letters a-z, digits, and . _ - after the first", name)
	}
	return nil
}

// Name gives a present image a name, by which NamePrefix finds it. The name's
// former image keeps its digest only.
func (s *Store) Name(name, digest string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return store.WriteJSON(s.path("names", name+".json"), nameKind, named{store.Schema(nameKind), digest})
}

// present returns the digest of the image that ref names without anybody being
// asked; "" if ref is of another form.
func (s *Store) present(ref string) (digest string, err error) {
	if h, err := v1.NewHash(ref); err == nil {
		return h.String(), nil
	}
	name, ok := strings.CutPrefix(ref, NamePrefix)
	if !ok {
		return "", nil
	}
	if err := CheckName(name); err != nil {
		return "", &Error{Ref: ref, Reason: "names nothing", Err: err}
	}
	var n named
	switch err := store.ReadJSON(s.path("names", name+".json"), nameKind, &n); {
	case errors.Is(err, fs.ErrNotExist):
		return "", &Error{Ref: ref, Reason: "nothing was built under that name; carboy image build -t " + name + " DIR does"}
	case err != nil:
		return "", err
	}
	return n.Digest, nil
}

// here returns a present image.
func (s *Store) here(ref, digest, pin string, err error) (*Image, error) {
	if err != nil {
		return nil, err
	}
	if pin != "" && pin != digest {
		return nil, &Error{Ref: ref, Reason: fmt.Sprintf("it leads to %s, and %s was pinned", digest, pin)}
	}
	img, err := s.pulled(ref, digest)
	if img == nil && err == nil {
		return nil, &Error{Ref: ref, Reason: digest + " is not here (any more); carboy image list shows what is"}
	}
	return img, err
}

// Add stores an image that was made here, unless it is present. ref stands in
// lists.
func (s *Store) Add(ctx context.Context, ref string, img v1.Image, o Options) (*Image, error) {
	o.Limits, o.Pin = o.Limits.orDefaults(), ""
	mutex, err := s.lock(ctx, unix.LOCK_EX, "lock")
	if err != nil {
		return nil, err
	}
	defer mutex.Close()
	if err := s.sweep(); err != nil {
		return nil, err
	}
	return s.take(ctx, ref, img, o)
}

// Layers returns the layers of a present image, the lowest first.
func (s *Store) Layers(img *Image) (out []v1.Layer, err error) {
	for _, digest := range img.Layers {
		h, err := v1.NewHash(digest)
		if err != nil || !isHex(h.Hex) {
			return nil, fmt.Errorf("image %s: %q is not the digest of a layer", img.Ref, digest)
		}
		l, err := partial.CompressedToLayer(&blob{s.path("blobs", h.Hex), h})
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// blob is a stored layer.
type blob struct {
	path string
	hash v1.Hash
}

// Digest implements partial.CompressedLayer.
func (b *blob) Digest() (v1.Hash, error) { return b.hash, nil }

// Compressed implements partial.CompressedLayer.
func (b *blob) Compressed() (io.ReadCloser, error) { return os.Open(b.path) }

// Size implements partial.CompressedLayer.
func (b *blob) Size() (int64, error) {
	fi, err := os.Stat(b.path)
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// MediaType implements partial.CompressedLayer. The type is what the content is.
func (b *blob) MediaType() (types.MediaType, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var head [4]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return "", err
	}
	switch {
	case strings.HasPrefix(string(head[:n]), "\x1f\x8b"):
		return types.OCILayer, nil
	case string(head[:n]) == "\x28\xb5\x2f\xfd":
		return types.OCILayerZStd, nil
	}
	return types.OCIUncompressedLayer, nil
}
