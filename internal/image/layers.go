package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/carboy/carboy/internal/progress"
)

// fetch stores one layer under its digest, completely or not at all.
func (p *pull) fetch(ctx context.Context, i int, d v1.Descriptor, blob string) error {
	l, err := p.src.LayerByDigest(d.Digest)
	if err != nil {
		return p.fail(i+1, "it can't be found", err)
	}
	r, err := l.Compressed()
	if err != nil {
		return p.fail(i+1, "it can't be fetched", err)
	}
	defer r.Close()
	f, err := os.CreateTemp(p.s.path("tmp"), "blob-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(progress.Reader(ctx, reader{ctx, r}), d.Size+1))
	switch {
	case err != nil:
		return p.fail(i+1, "it can't be fetched", err)
	case n != d.Size:
		return p.fail(i+1, fmt.Sprintf("it is not the %d bytes that the manifest says", d.Size), nil)
	case hex.EncodeToString(sum.Sum(nil)) != d.Digest.Hex:
		return p.fail(i+1, "it is not what its digest says", nil)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), blob)
}

// reader fails when its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// decompress recognises gzip and zstd by their first bytes and passes anything
// else through. A manifest often names the wrong type, and the digests decide.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, _ := b.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// One frame's window is held in memory; 128 MiB is zstd's own default
		// bound.
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}
