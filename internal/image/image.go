// Package image turns OCI and Docker images, from a layout, an archive or a
// registry, into directories that a bottle can use as its root.
//
// Whoever made an image, unpacking it writes only below its own new directory,
// within limits, without set-user-id programs or device nodes. The unpacked
// files match their digests. A digest that was fetched once needs no network
// and gives the same files each time.
//
// Start reading at Store.Pull; unpack.go handles untrusted input.
package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// Bounds limits one image. A zero field means its default.
type Bounds struct {
	Layers  int   // 256
	Entries int64 // files, directories and links of all layers, 2 Mi
	Bytes   int64 // unpacked size of all layers, 20 GiB
	// Ratio of the unpacked size to that of the layers as they are fetched, from the first
	// GiB on, 100; negative: any.
	Ratio int64
}

// unpacked returns how many bytes packed bytes may unpack to.
func (l Bounds) unpacked(packed int64) int64 {
	if l.Ratio < 0 || packed > l.Bytes/l.Ratio {
		return l.Bytes
	}
	return min(l.Bytes, max(1<<30, l.Ratio*packed))
}

func (l Bounds) orDefaults() Bounds {
	if l.Layers == 0 {
		l.Layers = 256
	}
	if l.Entries == 0 {
		l.Entries = 2 << 20
	}
	if l.Bytes == 0 {
		l.Bytes = 20 << 30
	}
	if l.Ratio == 0 {
		l.Ratio = 100
	}
	return l
}

// Options say how an image is fetched.
type Options struct {
	// Pin is the digest that the reference must resolve to, "sha256:…". If it
	// was fetched before, nobody is asked. Empty: any digest.
	Pin string
	// Limits bound the image.
	Limits Bounds
	// Transport asks registries; nil: http.DefaultTransport.
	Transport http.RoundTripper
	// Env locates the user's registry passwords; nil: os.Getenv.
	Env func(string) string
	// Maker builds a Dockerfile if there is no engine; nil: nobody does.
	Maker Maker
	// Progress, if set, is called for each layer, before and after it is
	// fetched, by one goroutine at a time.
	Progress func(Progress)
}

// Progress reports on one layer.
type Progress struct {
	Layer, Layers int   // counted from 1
	Size          int64 // bytes to fetch; 0: already present
	Done          bool
}

// Config holds an image's instructions for running it.
type Config struct {
	Env        []string          `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Shell      []string          `json:"shell,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
}

// Image describes an unpacked image.
type Image struct {
	Schema string    `json:"schema"`
	Ref    string    `json:"ref"`    // the reference by which it was fetched last
	Digest string    `json:"digest"` // of its manifest for this platform
	Root   string    `json:"root"`   // chain ID of its layers, the name of the directory
	Config Config    `json:"config"`
	Layers []string  `json:"layers"`         // digests, the lowest first
	Bytes  int64     `json:"bytes"`          // unpacked
	Left   []string  `json:"left,omitempty"` // entries that were not made, and why; the first 100
	When   time.Time `json:"when"`
}

// Error says what is wrong with an image, and where.
type Error struct {
	Ref    string
	Layer  int    // counted from 1; 0: none
	Entry  string // of the layer
	Reason string
	Err    error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "image %s", e.Ref)
	if e.Layer > 0 {
		fmt.Fprintf(&b, ", layer %d", e.Layer)
	}
	if e.Entry != "" {
		fmt.Fprintf(&b, ", %q", e.Entry)
	}
	b.WriteString(": " + e.Reason)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// errInUse means that a bottle uses the image's directory as its root.
var errInUse = errors.New("the image is in use")

// Store keeps images in a directory of the user's:
//
//	blobs/HEX        layers as fetched, verified
//	roots/HEX/fs     the result of a chain of layers; beside it the lock of its users
//	images/HEX.json  images, by digest of the manifest
//	names/NAME.json  what was built under a name, by digest
//	steps/HEX        what steps of a build have changed, by content
//	tmp/             files being written
//
// Several processes may use it at once.
type Store struct{ dir string }

const kind = "image"

// Open makes the directories of a store in dir, which must belong to the user
// alone.
func Open(dir string) (*Store, error) {
	for _, d := range []string{"", "blobs", "roots", "images", "names", "steps", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	fi, err := os.Lstat(dir)
	switch {
	case err != nil:
		return nil, err
	case !fi.IsDir() || fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s must be a directory that only its owner may enter: chmod 700 it", dir)
	}
	return &Store{dir}, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// lock waits for a lock on a file of the store.
func (s *Store) lock(ctx context.Context, how int, parts ...string) (*os.File, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		f, err := s.tryLock(how, parts...)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func (s *Store) tryLock(how int, parts ...string) (*os.File, error) {
	f, err := os.OpenFile(s.path(parts...), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return f, nil
}

// Pull fetches the image that ref names, unless it is present, and unpacks it.
// ref is oci:DIR[:NAME], tar:FILE[:NAME], a path to either, built:NAME, the
// digest of one that is present, or a reference to a registry. An index
// resolves to the image for this platform.
func (s *Store) Pull(ctx context.Context, ref string, o Options) (*Image, error) {
	o.Limits = o.Limits.orDefaults()
	if o.Pin != "" {
		if _, err := v1.NewHash(o.Pin); err != nil {
			return nil, &Error{Ref: ref, Reason: "the pinned digest is none", Err: err}
		}
		if img, err := s.pulled(ref, o.Pin); img != nil || err != nil {
			return img, err
		}
	}
	if digest, err := s.present(ref); digest != "" || err != nil {
		return s.here(ref, digest, o.Pin, err)
	}
	mutex, err := s.lock(ctx, unix.LOCK_EX, "lock")
	if err != nil {
		return nil, err
	}
	defer mutex.Close()
	if err := s.sweep(); err != nil {
		return nil, err
	}
	src, done, err := s.resolve(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.take(ctx, ref, src, o)
}

// take unpacks an image, unless it is present. The caller holds the store's lock.
func (s *Store) take(ctx context.Context, ref string, src v1.Image, o Options) (*Image, error) {
	digest, err := src.Digest()
	if err != nil {
		return nil, &Error{Ref: ref, Reason: "its digest can't be told", Err: err}
	}
	if o.Pin != "" && digest.String() != o.Pin {
		return nil, &Error{Ref: ref, Reason: fmt.Sprintf("it leads to %s now, and %s was pinned", digest, o.Pin)}
	}
	if img, err := s.pulled(ref, digest.String()); img != nil || err != nil {
		return img, err
	}
	p := &pull{s: s, ref: ref, o: o, src: src}
	img, err := p.run(ctx)
	if err != nil {
		return nil, err
	}
	img.Digest = digest.String()
	return img, store.WriteJSON(s.path("images", digest.Hex+".json"), kind, img)
}

// pulled returns the complete image that was pulled under a digest, or nil.
func (s *Store) pulled(ref, digest string) (*Image, error) {
	h, err := v1.NewHash(digest)
	if err != nil {
		return nil, err
	}
	var img Image
	file := s.path("images", h.Hex+".json")
	if err := store.ReadJSON(file, kind, &img); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	if !isHex(img.Root) || img.Digest != digest {
		return nil, fmt.Errorf("%s is not what its name says: remove it", file)
	}
	if _, err := os.Lstat(s.path("roots", img.Root, "fs")); err != nil {
		return nil, nil
	}
	img.Ref = ref
	return &img, nil
}

func isHex(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

// sweep removes the leftovers of a killed pull. The caller holds the store's
// lock.
func (s *Store) sweep() error {
	left, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.RemoveAll(s.path("tmp", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// pull is one Pull under way.
type pull struct {
	s   *Store
	ref string
	o   Options
	src v1.Image

	layers int
}

func (p *pull) say(layer int, size int64, done bool) {
	if p.o.Progress != nil {
		p.o.Progress(Progress{Layer: layer + 1, Layers: p.layers, Size: size, Done: done})
	}
}

func (p *pull) fail(layer int, reason string, err error) error {
	return &Error{Ref: p.ref, Layer: layer, Reason: reason, Err: err}
}

func (p *pull) run(ctx context.Context) (*Image, error) {
	manifest, err := p.src.Manifest()
	if err != nil {
		return nil, p.fail(0, "its manifest can't be read", err)
	}
	raw, err := p.src.RawConfigFile()
	if err == nil {
		err = check("configuration", raw, manifest.Config)
	}
	var cfg *v1.ConfigFile
	if err == nil {
		cfg, err = v1.ParseConfigFile(bytes.NewReader(raw))
	}
	if err != nil {
		return nil, p.fail(0, "its configuration can't be read", err)
	}
	if cfg.Architecture != "" && cfg.Architecture != platform.Architecture || cfg.OS != "" && cfg.OS != platform.OS {
		return nil, p.fail(0, fmt.Sprintf("it is for %s/%s, and bottles here are %s", cfg.OS, cfg.Architecture, platform), nil)
	}
	switch n := len(manifest.Layers); {
	case n == 0:
		return nil, p.fail(0, "it has no layers", nil)
	case n > p.o.Limits.Layers:
		return nil, p.fail(0, fmt.Sprintf("%d layers, and at most %d are taken", n, p.o.Limits.Layers), nil)
	case n != len(cfg.RootFS.DiffIDs):
		return nil, p.fail(0, fmt.Sprintf("%d layers, and its configuration knows %d", n, len(cfg.RootFS.DiffIDs)), nil)
	}
	img := &Image{
		Schema: store.Schema(kind), Ref: p.ref, When: time.Now().UTC().Truncate(time.Second),
		Config: Config{cfg.Config.Env, cfg.Config.User, cfg.Config.WorkingDir, cfg.Config.Entrypoint, cfg.Config.Cmd, cfg.Config.Shell, cfg.Config.Labels},
	}
	p.layers = len(manifest.Layers)
	var chain string
	var packed int64
	for i, d := range manifest.Layers {
		// Such a layer would be fetched from an address that the manifest
		// chooses.
		if len(d.URLs) > 0 || !d.MediaType.IsDistributable() {
			return nil, p.fail(i+1, "it lies outside of the registry, at an address that its manifest gives; such layers are not fetched", nil)
		}
		if d.Size < 0 || d.Size > p.o.Limits.Bytes-packed {
			return nil, p.fail(i+1, p.most(), errLimit)
		}
		packed += d.Size
		img.Layers = append(img.Layers, d.Digest.String())
		chain = chainID(chain, cfg.RootFS.DiffIDs[i].String())
	}
	img.Root = chain
	if fi, err := os.Lstat(p.s.path("roots", img.Root, "fs")); err == nil && fi.IsDir() {
		return img, nil // another image has the same layers
	}
	tmp, err := os.MkdirTemp(p.s.path("tmp"), "root-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	dir := filepath.Join(tmp, "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	p.o.Limits.Bytes = p.o.Limits.unpacked(packed)
	u, err := newUnpacker(dir, p.o.Limits)
	if err != nil {
		return nil, err
	}
	defer u.close()
	for i, d := range manifest.Layers {
		if err := p.layer(ctx, u, i, d, cfg.RootFS.DiffIDs[i]); err != nil {
			return nil, err
		}
	}
	img.Bytes, img.Left = u.bytes, u.left
	if err := unix.Syncfs(u.root); err != nil {
		return nil, err
	}
	final := p.s.path("roots", img.Root)
	if err := os.RemoveAll(final); err != nil { // without fs: its removal was interrupted
		return nil, err
	}
	return img, os.Rename(tmp, final)
}

// most says how much is taken of an image, and what raises it.
func (p *pull) most() string {
	return fmt.Sprintf("at most %d bytes and %d files are unpacked of it; --max-bytes and --max-files of carboy image pull raise that", p.o.Limits.Bytes, p.o.Limits.Entries)
}

// chainID names a stack of layers as the OCI image specification does.
func chainID(below, diff string) string {
	if below == "" {
		return strings.TrimPrefix(diff, "sha256:")
	}
	sum := sha256.Sum256([]byte("sha256:" + below + " " + diff))
	return hex.EncodeToString(sum[:])
}

func (p *pull) layer(ctx context.Context, u *unpacker, i int, d v1.Descriptor, diff v1.Hash) error {
	if d.Digest.Algorithm != "sha256" || diff.Algorithm != "sha256" || !isHex(d.Digest.Hex) || !isHex(diff.Hex) {
		return p.fail(i+1, "its digests are not SHA-256", nil)
	}
	blob := p.s.path("blobs", d.Digest.Hex)
	fi, err := os.Lstat(blob)
	switch {
	case err == nil && fi.Mode().IsRegular() && fi.Size() == d.Size:
		p.say(i, 0, false)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		p.say(i, d.Size, false)
		if err := p.fetch(ctx, i, d, blob); err != nil {
			return err
		}
	}
	f, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer f.Close()
	// A stored layer is verified again: a digest is a promise about the bytes
	// in use.
	sum := sha256.New()
	if _, err := io.Copy(sum, reader{ctx, f}); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != d.Digest.Hex {
		os.Remove(blob)
		return p.fail(i+1, "what was kept of it has changed; it is fetched anew the next time", nil)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	plain, err := decompress(reader{ctx, f})
	if err != nil {
		return p.fail(i+1, "it can't be decompressed", err)
	}
	defer plain.Close()
	if err := u.layer(plain, diff.Hex); err != nil {
		var e *Error
		if errors.Is(err, errLimit) {
			return p.fail(i+1, p.most(), errLimit)
		}
		if errors.As(err, &e) {
			e.Ref, e.Layer = p.ref, i+1
			return e
		}
		return p.fail(i+1, "it can't be unpacked", err)
	}
	p.say(i, d.Size, true)
	return nil
}
