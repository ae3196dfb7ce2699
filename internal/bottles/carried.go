package bottles

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

	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// A kept bottle can move to another machine as one file: a tar archive with its record,
// its identity and its kept parts, in this order. The author of such a file decides what
// runs in the bottle, and the sandbox reads its image. So ImportBottle wants the digest
// that ExportBottle returned.

// Entries of the archive before the parts that kept.json names.
const (
	carriedBottle   = "bottle.json"
	carriedIdentity = "identity.json"
	carriedKept     = "kept.json"
	maxCarriedText  = 1 << 20 // bytes of each of these
)

// ExportBottle writes a frozen or kept bottle to w and returns the digest of what it
// wrote. The archive holds the private key of the bottle's own certificate authority and
// everything that was in the bottle: keep it secret.
func (c *Keeper) ExportBottle(ctx context.Context, slug string, w io.Writer) (digest string, err error) {
	fail := func(err error) (string, error) { return "", fmt.Errorf("export bottle %s: %w", slug, err) }
	lock, err := c.Store.LockBottle(slug)
	if err != nil {
		return "", err
	}
	defer lock.Unlock()
	b, err := c.Store.Bottle(slug)
	if err != nil {
		return "", err
	}
	k, dir, err := c.Store.Kept(slug)
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
	sum := &run.Counted{H: sha256.New()}
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
		f, err := run.OpenPart(dir, p)
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
	return "sha256:" + hex.EncodeToString(sum.H.Sum(nil)), nil
}

// ctxReader is a reader that fails once its context is done.
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

// ImportBottle creates a bottle from what ExportBottle wrote, under its old name or the
// next free one. It creates none if r does not have the digest.
func (c *Keeper) ImportBottle(ctx context.Context, r io.Reader, digest string) (slug string, err error) {
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
	if b, err = c.Store.CreateBottle(ctx, b); err != nil {
		return fail(err)
	}
	defer func() {
		if err != nil {
			_, rerr := c.Store.RemoveBottle(context.WithoutCancel(ctx), b.Slug)
			err = errors.Join(err, rerr)
		}
	}()
	lock, err := c.Store.LockBottle(b.Slug)
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
		return fail(&run.TamperedError{File: "the file", Err: fmt.Errorf("has the digest %s", got)})
	}
	if err := lock.WriteIdentity(identity); err != nil {
		return fail(err)
	}
	if _, err := plan.ReadIdentity(lock, b.Slug); err != nil {
		return fail(err)
	}
	if err := lock.Keep(&k); err != nil {
		return fail(err)
	}
	return b.Slug, nil
}

// nextCarried moves tr to its next entry, which must be name. A size of -1 allows any.
func nextCarried(tr *tar.Reader, name string, size int64) error {
	h, err := tr.Next()
	if err != nil {
		return fmt.Errorf("%s is missing: %w", name, err)
	}
	if h.Name != name || h.Typeflag != tar.TypeReg || size >= 0 && h.Size != size {
		return fmt.Errorf("wanted the file %s, got %q of %d bytes", name, h.Name, h.Size)
	}
	return nil
}

// takeCarried writes the next entry, which must be p, into dir.
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
