package agentimages

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/carboy/carboy/internal/builder"
)

// lock holds what packages.lock lists.
type lock struct {
	text     string
	packages []pkg
}

// pkg names a package of Debian's or npm's.
type pkg struct {
	name string
	urls []string // the later ones are for when the first has it no more
	size int64    // 0: not known
	sum  string   // "sha256:HEX" or "sha512:HEX"
	npm  bool
}

// key returns what the image of the packages is remembered by.
func (l *lock) key() string {
	sum := sha256.Sum256([]byte("packages 1\n" + l.text))
	return hex.EncodeToString(sum[:])
}

// maxPackage bounds one package, in bytes.
const maxPackage = 256 << 20

func parseLock(text string) (*lock, error) {
	l := &lock{text: text}
	snapshot := ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		var p pkg
		err := errors.New("is not understood")
		switch {
		case f[0] == "snapshot" && len(f) == 2:
			snapshot, err = f[1], nil
			n++
			continue
		case f[0] == "deb" && len(f) == 4:
			p, err = debian(f, snapshot)
		case f[0] == "npm" && len(f) == 4:
			p, err = fromNPM(f)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		l.packages = append(l.packages, p)
	}
	return l, nil
}

func debian(f []string, snapshot string) (p pkg, err error) {
	if p.size, err = strconv.ParseInt(f[2], 10, 64); err != nil || p.size < 0 || p.size > maxPackage {
		return p, fmt.Errorf("%q is not a size", f[2])
	}
	if b, err := hex.DecodeString(f[3]); err != nil || len(b) != sha256.Size {
		return p, fmt.Errorf("%q is not a SHA-256", f[3])
	}
	p.name, p.sum = path.Base(f[1]), "sha256:"+f[3]
	// The archive drops a version when there is a newer one; the other keeps all.
	p.urls = []string{"http://deb.debian.org/debian/" + f[1], "https://snapshot.debian.org/archive/debian/" + snapshot + "/" + f[1]}
	return p, nil
}

func fromNPM(f []string) (p pkg, err error) {
	sum, ok := strings.CutPrefix(f[3], "sha512-")
	b, err := base64.StdEncoding.DecodeString(sum)
	if err != nil || !ok || len(b) != sha512.Size {
		return p, fmt.Errorf("%q is not a SHA-512", f[3])
	}
	p.name, p.npm, p.sum = f[1], true, "sha512:"+hex.EncodeToString(b)
	p.urls = []string{"https://registry.npmjs.org/" + f[1] + "/-/" + path.Base(f[1]) + "-" + f[2] + ".tgz"}
	return p, nil
}

// maker makes a layer out of packages.
type maker struct {
	tmp    string
	client *http.Client
	say    func(string)
	made   map[string]bool // directories
}

// layer writes the files of all packages as one layer, and returns its digest. Packages'
// scripts are not run.
func (m *maker) layer(ctx context.Context, l *lock, w io.Writer) (string, error) {
	m.made = map[string]bool{}
	sum := sha256.New()
	buf := bufio.NewWriterSize(io.MultiWriter(w, sum), 256<<10)
	out := tar.NewWriter(buf)
	for i, p := range l.packages {
		m.say(fmt.Sprintf("package %d of %d: %s", i+1, len(l.packages), p.name))
		f, err := m.fetch(ctx, p)
		if err == nil {
			err = m.unpack(p, f, out)
			f.Close()
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := errors.Join(out.Close(), buf.Flush()); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// fetch returns a package's file, which is what its digest says.
func (m *maker) fetch(ctx context.Context, p pkg) (*os.File, error) {
	var errs []error
	for _, url := range p.urls {
		f, err := m.fetchFrom(ctx, p, url)
		if err == nil {
			return f, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (m *maker) fetchFrom(ctx context.Context, p pkg, url string) (_ *os.File, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "carboy")
	r, err := m.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, r.Status)
	}
	f, err := os.CreateTemp(m.tmp, "package-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name()) // it lives as long as it is open
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	kind, want, _ := strings.Cut(p.sum, ":")
	var sum hash.Hash = sha256.New()
	if kind == "sha512" {
		sum = sha512.New()
	}
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r.Body, maxPackage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", url, err)
	case n > maxPackage || p.size > 0 && n != p.size, hex.EncodeToString(sum.Sum(nil)) != want:
		return nil, fmt.Errorf("%s is not the file that is pinned", url)
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// unpack adds a package's files to the layer.
func (m *maker) unpack(p pkg, f io.Reader, out *tar.Writer) error {
	in, strip, below := io.Reader(nil), "", ""
	var err error
	if p.npm {
		in, err = gzip.NewReader(bufio.NewReader(f))
		strip, below = "package/", "usr/local/lib/node_modules/"+p.name+"/"
	} else {
		in, err = debData(f)
	}
	if err != nil {
		return err
	}
	for t := tar.NewReader(in); ; {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if p.npm {
			name = below + strings.TrimPrefix(name, strip)
		}
		if err := m.add(h, name, t, out); err != nil {
			return err
		}
	}
}

// add adds one entry under a name. The time is the same for all.
func (m *maker) add(h *tar.Header, name string, r io.Reader, out *tar.Writer) error {
	n := &tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid, Linkname: h.Linkname, ModTime: builder.Epoch, Format: tar.FormatPAX}
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "" || m.made[name] {
			return nil
		}
		m.made[name] = true
		n.Name += "/"
	case tar.TypeReg:
		n.Size = h.Size
	case tar.TypeLink:
		n.Linkname = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	case tar.TypeSymlink:
	default:
		return nil // a header of the whole archive
	}
	if strings.HasPrefix(name, "usr/local/lib/node_modules/") {
		// npm's archives say who packed them, and with what rights.
		n.Uid, n.Gid, n.Mode = 0, 0, n.Mode&0o777|0o644
	}
	if err := out.WriteHeader(n); err != nil {
		return err
	}
	_, err := io.CopyN(out, r, n.Size)
	return err
}

// debData returns the files in a package of Debian's: the member data.tar of an archive of ar
// (deb(5)).
func debData(r io.Reader) (io.Reader, error) {
	in := bufio.NewReader(r)
	magic := make([]byte, 8)
	if _, err := io.ReadFull(in, magic); err != nil || string(magic) != "!<arch>\n" {
		return nil, errors.New("is not a package of Debian's")
	}
	for {
		var h [60]byte
		if _, err := io.ReadFull(in, h[:]); err != nil {
			return nil, fmt.Errorf("has no files: %w", err)
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(h[48:58])), 10, 64)
		if err != nil || size < 0 {
			return nil, errors.New("is damaged")
		}
		name := strings.TrimRight(string(bytes.TrimSpace(h[:16])), "/")
		data := io.LimitReader(in, size)
		switch name {
		case "data.tar":
			return data, nil
		case "data.tar.gz":
			return gzip.NewReader(data)
		case "data.tar.xz":
			return xz.NewReader(data)
		case "data.tar.zst":
			return zstd.NewReader(data, zstd.WithDecoderConcurrency(1))
		}
		if _, err := io.CopyN(io.Discard, in, size+size%2); err != nil {
			return nil, errors.New("is damaged")
		}
	}
}
