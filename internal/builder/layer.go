package builder

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

const whiteout = ".wh."

// Epoch is the time of each file that a build changes, unless the file is older. With it the
// same steps give the same digest.
var Epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// maxLayerEntries bounds the entries of a layer.
const maxLayerEntries = 4 << 20

// notOfImage lists what a bottle has at its root, or for itself, and an image must not bring.
var notOfImage = map[string]bool{
	".carboy": true, "proc": true, "sys": true, "dev": true, "tmp/.carboy": true,
	"etc/resolv.conf": true, "etc/hosts": true, "etc/hostname": true,
}

// layer turns what the steps have changed, as a bottle's kernel wrote it, into a layer of an
// image. The stream is not trusted: its names are cleaned, its length is bounded, and what
// an image can't hold is refused. It returns the layer's digest.
func layer(ctx context.Context, r io.Reader, w io.Writer, most int64) (digest string, err error) {
	sum := sha256.New()
	x := &layering{out: tar.NewWriter(io.MultiWriter(w, sum)), left: most, seen: map[string]bool{}}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			err = x.one(h, t)
		}
		if err != nil {
			return "", err
		}
	}
	if err := x.out.Close(); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

type layering struct {
	out  *tar.Writer
	left int64
	n    int
	seen map[string]bool // entries that a link may name
}

func (x *layering) one(h *tar.Header, r io.Reader) error {
	name := clean(h.Name)
	first, _, _ := strings.Cut(name, "/")
	if name == "" || notOfImage[first] || notOfImage[name] {
		return nil
	}
	if x.n++; x.n > maxLayerEntries {
		return fmt.Errorf("the steps have changed more than %d files", maxLayerEntries)
	}
	dir, base := path.Split(name)
	if strings.HasPrefix(base, whiteout) {
		return fmt.Errorf("%q can't be in an image: names that begin with %s say what is deleted", name, whiteout)
	}
	out := &tar.Header{Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Format: tar.FormatPAX}
	if out.ModTime.After(Epoch) || out.ModTime.Unix() < 0 {
		out.ModTime = Epoch
	}
	out.ModTime = out.ModTime.Truncate(time.Second)
	if c := h.PAXRecords["SCHILY.xattr.security.capability"]; c != "" {
		out.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": c}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		out.Typeflag, out.Name = tar.TypeDir, name+"/"
		if err := x.out.WriteHeader(out); err != nil || h.PAXRecords["SCHILY.xattr.trusted.overlay.opaque"] == "" {
			return err
		}
		return x.hide(name + "/" + whiteout + whiteout + ".opq")
	case tar.TypeReg:
		out.Typeflag, out.Size = tar.TypeReg, h.Size
		if x.left -= h.Size; x.left < 0 || h.Size < 0 {
			return errors.New("the steps have written more than an image may hold")
		}
	case tar.TypeSymlink:
		out.Typeflag, out.Linkname = tar.TypeSymlink, h.Linkname
	case tar.TypeLink:
		to := clean(h.Linkname)
		if !x.seen[to] {
			return fmt.Errorf("%q is a second name of %q, which is not there", name, to)
		}
		out.Typeflag, out.Linkname = tar.TypeLink, to
	case tar.TypeChar:
		if h.Devmajor != 0 || h.Devminor != 0 {
			return fmt.Errorf("%q is a device, which an image built here can't have", name)
		}
		return x.hide(dir + whiteout + base)
	case tar.TypeFifo:
		return nil // as an image brings none
	default:
		return fmt.Errorf("%q is of the unknown type %q", name, h.Typeflag)
	}
	x.seen[name] = true
	if err := x.out.WriteHeader(out); err != nil {
		return err
	}
	_, err := io.CopyN(x.out, r, out.Size)
	return err
}

// clean returns a name from the root, without what leads elsewhere; the root's is "".
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// hide writes an entry that says what the layer deletes.
func (x *layering) hide(name string) error {
	return x.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: Epoch, Format: tar.FormatPAX})
}

// bounded fails when more is written than it may pass on, and says what.
type bounded struct {
	w    io.Writer
	left int64
	what string
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errors.New(b.what + " more than the disk of a bottle holds")
	}
	return b.w.Write(p)
}

// keepFile writes what comes from r to a file under its final name, completely or not at
// all.
func keepFile(r io.Reader, name string, most int64) error {
	f, err := os.CreateTemp(filepath.Dir(name), "tmp-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = io.CopyBuffer(&bounded{f, most, "the steps have written"}, r, make([]byte, 256<<10))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
