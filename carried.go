package carboy

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/carboy/carboy/internal/store"
)

// A bottle that is kept can be carried to another machine, as one file: a tar with its
// record, its identity, and what is kept of it, in this order. Whoever makes such a
// file decides what goes on in the bottle, and its image is read by the sandbox; so it
// is taken only with the digest that was told where it was made.

// Entries of such a file, before the parts that kept.json names.
const (
	carriedBottle   = "bottle.json"
	carriedIdentity = "identity.json"
	carriedKept     = "kept.json"
	maxCarriedText  = 1 << 20 // bytes, each of these
)

// ExportBottle writes a bottle that is frozen or kept to w, and returns the digest of
// what it wrote. The file has the key of the bottle's own authority, and all that was
// in the bottle: keep it to yourself.
func (c *Client) ExportBottle(ctx context.Context, slug string, w io.Writer) (digest string, err error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("export bottle %s: %w", slug, err) }
	lock, err := c.store.LockBottle(slug)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	b, err := c.store.Bottle(slug)
	if err != nil {
		return "", err
	}
	k, dir, err := c.store.Kept(slug)
	if err != nil {
		return "", err
	}
	if k == nil {
		return fail(ErrNotKept)
	}
	identity, err := lock.Identity()
	if err == nil && identity == nil {
		err = errors.New("it has no identity")
	}
	if err != nil {
		return fail(err)
	}
	record, err := store.EncodeBottle(&b)
	if err != nil {
		return fail(err)
	}
	kept, err := store.EncodeKept(k)
	if err != nil {
		return fail(err)
	}
	sum := &counted{h: sha256.New()}
	tw := tar.NewWriter(io.MultiWriter(w, sum))
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err := io.Copy(tw, &ctxReader{ctx, r})
		return err
	}
	for _, x := range []struct {
		name string
		text []byte
	}{{carriedBottle, record}, {carriedIdentity, identity}, {carriedKept, kept}} {
		if err := put(x.name, int64(len(x.text)), bytes.NewReader(x.text)); err != nil {
			return fail(err)
		}
	}
	for _, p := range k.Parts() {
		f, err := openPart(dir, p)
		if err != nil {
			return fail(err)
		}
		err = put(p.Name, p.Size, f)
		f.Close()
		if err != nil {
			return fail(err)
		}
	}
	if err := tw.Close(); err != nil {
		return fail(err)
	}
	return "sha256:" + hex.EncodeToString(sum.h.Sum(nil)), nil
}

// ctxReader ends with a context.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *ctxReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// ImportBottle makes a bottle of what ExportBottle wrote, under its name or the next
// that is free. What has another digest makes none.
func (c *Client) ImportBottle(ctx context.Context, r io.Reader, digest string) (slug string, err error) {
	sum := sha256.New()
	whole := io.TeeReader(&ctxReader{ctx, r}, sum)
	tr := tar.NewReader(whole)
	fail := func(err error) (string, error) { return "", fmt.Errorf("import a bottle: %w", err) }
	text := func(name string) ([]byte, error) {
		if err := nextCarried(tr, name, -1); err != nil {
			return nil, err
		}
		b, err := io.ReadAll(io.LimitReader(tr, maxCarriedText+1))
		if err == nil && len(b) > maxCarriedText {
			err = fmt.Errorf("%s is too long", name)
		}
		return b, err
	}
	var b store.Bottle
	var k store.Kept
	record, err := text(carriedBottle)
	if err == nil {
		b, err = store.DecodeBottle(record)
	}
	if err != nil {
		return fail(err)
	}
	identity, err := text(carriedIdentity)
	if err != nil {
		return fail(err)
	}
	kept, err := text(carriedKept)
	if err == nil {
		k, err = store.DecodeKept(kept)
	}
	if err != nil {
		return fail(err)
	}
	if b, err = c.store.CreateBottle(ctx, b); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_, rerr := c.store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
			err = errors.Join(err, rerr)
		}
	}()
	lock, err := c.store.LockBottle(b.Slug)
	if err != nil {
		return fail(err)
	}
	defer lock.Unlock()
	dir, err := lock.KeptDir(k.Run)
	if err != nil {
		return fail(err)
	}
	for _, p := range k.Parts() {
		if err := takeCarried(tr, dir, p); err != nil {
			return fail(err)
		}
	}
	if _, err := tr.Next(); err != io.EOF {
		return fail(errors.New("there is more in it than was kept"))
	}
	if _, err := io.Copy(io.Discard, whole); err != nil {
		return fail(err)
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); got != digest {
		return fail(&TamperedError{File: "the file", Err: fmt.Errorf("has the digest %s", got)})
	}
	if err := lock.WriteIdentity(identity); err != nil {
		return fail(err)
	}
	if _, err := identityOf(lock, b.Slug); err != nil {
		return fail(err)
	}
	if err := lock.Keep(&k); err != nil {
		return fail(err)
	}
	return b.Slug, nil
}

// nextCarried goes on to the entry that must be next. A size of -1 is any.
func nextCarried(tr *tar.Reader, name string, size int64) error {
	h, err := tr.Next()
	if err != nil {
		return fmt.Errorf("%s is missing: %w", name, err)
	}
	if h.Name != name || h.Typeflag != tar.TypeReg || size >= 0 && h.Size != size {
		return fmt.Errorf("%q stands where %s must be", h.Name, name)
	}
	return nil
}

func takeCarried(tr *tar.Reader, dir string, p store.KeptPart) error {
	if err := nextCarried(tr, p.Name, p.Size); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, p.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, tr)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
