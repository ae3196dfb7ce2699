package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// platform is the platform of every bottle.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// resolve finds the image that ref names. done releases temporary files.
func (s *Store) resolve(ctx context.Context, ref string, o Options) (img v1.Image, done func(), err error) {
	done = func() {}
	bad := func(reason string, err error) (v1.Image, func(), error) {
		return nil, nil, &Error{Ref: ref, Reason: reason, Err: err}
	}
	form, rest := "", ref
	switch {
	case strings.HasPrefix(ref, "oci:"), strings.HasPrefix(ref, "tar:"):
		form, rest, _ = strings.Cut(ref, ":")
	case strings.HasPrefix(ref, "/"), strings.HasPrefix(ref, "./"), strings.HasPrefix(ref, "../"):
		form = "path"
	case ref == "":
		return bad("no reference", nil)
	}
	if form == "" {
		r, err := name.ParseReference(ref)
		if err != nil {
			return bad("it is neither oci:DIRECTORY, tar:FILE, a path, nor a reference to a registry", err)
		}
		t := o.Transport
		if t == nil {
			t = http.DefaultTransport
		}
		if o.Env == nil {
			o.Env = os.Getenv
		}
		img, err := remote.Image(r, remote.WithContext(ctx), remote.WithPlatform(platform), remote.WithTransport(t), remote.WithAuthFromKeychain(keychain{o.Env}), remote.WithUserAgent("carboy"))
		if err != nil {
			return bad("the registry does not give it", err)
		}
		return img, done, nil
	}
	file, tag, err := split(rest)
	if err != nil {
		return bad("there is no such file", err)
	}
	fi, err := os.Stat(file)
	switch {
	case err != nil:
		return bad("it can't be read", err)
	case fi.IsDir() && form == "tar", !fi.IsDir() && form == "oci":
		return bad("oci: stands before a directory and tar: before a file", nil)
	case fi.IsDir():
		img, err := fromLayout(file, tag)
		if err != nil {
			return bad("no image can be read from this layout", err)
		}
		return img, done, nil
	case !fi.Mode().IsRegular():
		return bad("it is neither a file nor a directory", nil)
	}
	// An OCI archive is a layout in a tar. docker save writes an index of its
	// own; newer versions write both.
	dir, err := os.MkdirTemp(s.path("tmp"), "archive-")
	if err != nil {
		return nil, nil, err
	}
	done = func() { os.RemoveAll(dir) }
	isLayout, err := extractLayout(ctx, file, dir, o.Limits.unpacked(fi.Size()))
	if err == nil && isLayout {
		img, err = fromLayout(dir, tag)
	} else if err == nil {
		img, err = fromDocker(file, tag)
	}
	if err != nil {
		done()
		return bad("no image can be read from this archive", err)
	}
	return img, done, nil
}

// split separates NAME from FILE[:NAME], where FILE exists.
func split(s string) (file, tag string, err error) {
	if _, err = os.Stat(s); err == nil {
		return s, "", nil
	}
	for i := len(s) - 1; i > 0; i-- {
		if s[i] == ':' {
			if _, e := os.Stat(s[:i]); e == nil {
				return s[:i], s[i+1:], nil
			}
		}
	}
	return "", "", err
}

// refName is the annotation with an image's name in a layout.
const refName = "org.opencontainers.image.ref.name"

// fromLayout finds an image in a layout. The library compares no digests there: each index
// and manifest is compared here, and what the manifest names when it is used.
func fromLayout(dir, tag string) (v1.Image, error) {
	p, err := layout.FromPath(dir)
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(filepath.Join(dir, "index.json")); err == nil && fi.Size() > maxDocument {
		return nil, fmt.Errorf("its index has %d bytes, and at most %d are read", fi.Size(), maxDocument)
	}
	index, err := p.ImageIndex()
	if err != nil {
		return nil, err
	}
	img, err := choose(dir, index, tag, 0)
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if m.Config.Digest.Hex == "" {
		return nil, errors.New("its manifest names no configuration")
	}
	return img, short(dir, m.Config)
}

// maxDocument bounds an index, a manifest and a configuration, which are read into memory.
const maxDocument = 4 << 20

// short returns an error if a document of a layout is not there or too large to be read.
func short(dir string, d v1.Descriptor) error {
	fi, err := os.Lstat(filepath.Join(dir, "blobs", d.Digest.Algorithm, d.Digest.Hex))
	switch {
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s is no file", d.Digest)
	case fi.Size() > maxDocument:
		return fmt.Errorf("%s has %d bytes, and at most %d are read", d.Digest, fi.Size(), maxDocument)
	}
	return nil
}

// check returns an error unless raw is what d describes.
func check(what string, raw []byte, d v1.Descriptor) error {
	if sum := sha256.Sum256(raw); d.Digest.Algorithm != "sha256" || hex.EncodeToString(sum[:]) != d.Digest.Hex || d.Size != int64(len(raw)) {
		return fmt.Errorf("its %s is not what its digest says, %s", what, d.Digest)
	}
	return nil
}

// choose finds the image for this platform. If several name no platform, tag
// decides.
func choose(dir string, index v1.ImageIndex, tag string, depth int) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var fit []v1.Descriptor
	var names []string
	for _, d := range m.Manifests {
		n := d.Annotations[refName]
		if n != "" {
			names = append(names, n)
		}
		switch {
		case tag != "" && n != tag && d.Digest.String() != tag && !strings.HasSuffix(n, ":"+tag):
		case d.Platform != nil && d.Platform.OS != "" && !d.Platform.Satisfies(platform):
		case d.MediaType.IsIndex(), d.MediaType.IsImage():
			fit = append(fit, d)
		}
	}
	switch {
	case len(fit) == 0 && tag != "":
		return nil, fmt.Errorf("it holds no %q for %s; it holds %s", tag, platform, strings.Join(names, ", "))
	case len(fit) == 0:
		return nil, fmt.Errorf("it holds no image for %s", platform)
	case len(fit) > 1:
		return nil, fmt.Errorf("it holds %d images: say which, by :NAME at the end (%s)", len(fit), strings.Join(names, ", "))
	case depth == 3:
		return nil, errors.New("indexes of indexes of indexes")
	}
	d := fit[0]
	if err := short(dir, d); err != nil {
		return nil, err
	}
	if d.MediaType.IsImage() {
		img, err := index.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		raw, err := img.RawManifest()
		if err != nil {
			return nil, err
		}
		return img, check("manifest", raw, d)
	}
	next, err := index.ImageIndex(d.Digest)
	if err != nil {
		return nil, err
	}
	raw, err := next.RawManifest()
	if err == nil {
		err = check("index", raw, d)
	}
	if err != nil {
		return nil, err
	}
	return choose(dir, next, "", depth+1)
}

func fromDocker(file, tag string) (v1.Image, error) {
	if tag == "" {
		return tarball.ImageFromPath(file, nil)
	}
	t, err := name.NewTag(tag)
	if err != nil {
		return nil, err
	}
	return tarball.ImageFromPath(file, &t)
}

// layoutFile matches the names of a layout that have a meaning.
var layoutFile = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(oci-layout|index\.json|blobs/sha256/[0-9a-f]{64})$`)
})

// extractLayout extracts a layout from an archive. It reports whether there was
// one.
func extractLayout(ctx context.Context, file, dir string, limit int64) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	plain, err := decompress(reader{ctx, f})
	if err != nil {
		return false, err
	}
	defer plain.Close()
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		return false, err
	}
	found := false
	in := tar.NewReader(plain)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return found, nil
		}
		if err != nil {
			return false, err
		}
		n := path.Clean(h.Name)
		if h.Typeflag != tar.TypeReg || !layoutFile().MatchString(n) {
			continue
		}
		if limit -= h.Size; limit < 0 {
			return false, errLimit
		}
		found = found || n == "oci-layout"
		out, err := os.OpenFile(filepath.Join(dir, filepath.FromSlash(n)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return false, err // also when a name occurs twice
		}
		_, err = io.Copy(out, in)
		if err := errors.Join(err, out.Close()); err != nil {
			return false, err
		}
	}
}
