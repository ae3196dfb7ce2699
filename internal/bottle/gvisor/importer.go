package gvisor

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/pkg/usermem"
)

// The importer reads the exporter's output, made for "/", into the upper layer
// of a bottle in which nothing has run. It runs inside the sentry: a malicious
// stream reaches only the bottle's own kernel, within the bottle's limit.

// ImportArgs are the arguments of Side.Import; the file is the source.
type ImportArgs struct{ urpc.FilePayload }

// Import fills the upper layer from the file.
func (*Side) Import(a *ImportArgs, _ *struct{}) (err error) {
	if len(a.Files) != 1 {
		return fmt.Errorf("import needs 1 file, got %d", len(a.Files))
	}
	k := sentryKernel.Load()
	if k == nil {
		return errors.New("the bottle has not started")
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("importer: %v", p)
		}
	}()
	return importUpper(k, a.Files[0])
}

// importVia fills the upper layer of the sandbox from a file.
func importVia(from *os.File) error {
	if err := callSide("AwaitInit", nil, nil); err != nil {
		return err
	}
	return callSide("Import", &ImportArgs{urpc.FilePayload{Files: []*os.File{from}}}, nil)
}

type importer struct {
	ctx   context.Context
	vfs   *vfs.VirtualFilesystem
	creds *auth.Credentials
	root  vfs.VirtualDentry // of the upper layer
	whole vfs.VirtualDentry // of the overlay
	buf   []byte
	// dirs get their times and modes when they are full: a mode could forbid
	// adding files.
	dirs []*tar.Header
}

func importUpper(k *kernel.Kernel, r io.Reader) error {
	ctx := k.SupervisorContext()
	root, err := upperRoot(k)
	if err != nil {
		return err
	}
	defer root.DecRef(ctx)
	ns := k.GlobalInit().Leader().MountNamespace()
	if ns == nil || !ns.TryIncRef() {
		return errors.New("the mount namespace is gone")
	}
	defer ns.DecRef(ctx)
	m := &importer{ctx: ctx, vfs: k.VFS(), creds: auth.NewRootCredentials(k.RootUserNamespace()), root: root, whole: ns.Root(ctx), buf: make([]byte, copyBuffer)}
	defer m.whole.DecRef(ctx)
	tr := tar.NewReader(bufio.NewReaderSize(r, copyBuffer))
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read the files: %w", err)
		}
		h.Name = inUpper(h.Name)
		if h.Name == "" || h.Name == ".carboy" || strings.HasPrefix(h.Name, ".carboy/") {
			continue // made by the backend, and in use
		}
		if err := m.one(h, tr); err != nil {
			return fmt.Errorf("bring back %q: %w", h.Name, err)
		}
	}
	for _, h := range slices.Backward(m.dirs) {
		if err := m.attributes(h); err != nil {
			return fmt.Errorf("bring back %q: %w", h.Name, err)
		}
	}
	return nil
}

func inUpper(name string) string { return strings.Trim(strings.TrimPrefix(name, "./"), "/") }

func (m *importer) pop(name string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: m.root, Start: m.root, Path: fspath.Parse(name)}
}

func (m *importer) one(h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		if h.PAXRecords[recOpaque] == "" {
			if err := m.copyUp(h.Name); err != nil {
				return err
			}
		}
		err := m.vfs.MkdirAt(m.ctx, m.creds, m.pop(h.Name), &vfs.MkdirOptions{Mode: 0o700})
		if err != nil && !linuxerr.Equals(linuxerr.EEXIST, err) {
			return err
		}
		m.dirs = append(m.dirs, h)
		return nil
	case tar.TypeLink:
		return m.vfs.LinkAt(m.ctx, m.creds, m.pop(inUpper(h.Linkname)), m.pop(h.Name))
	case tar.TypeSymlink:
		if err := m.vfs.SymlinkAt(m.ctx, m.creds, m.pop(h.Name), h.Linkname); err != nil {
			return err
		}
	case tar.TypeReg:
		if err := m.file(h, r); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := m.vfs.MknodAt(m.ctx, m.creds, m.pop(h.Name), &vfs.MknodOptions{Mode: linux.S_IFIFO | 0o600}); err != nil {
			return err
		}
	case tar.TypeChar:
		if h.Devmajor != 0 || h.Devminor != 0 {
			return errors.New("is a device")
		}
		return m.vfs.MknodAt(m.ctx, m.creds, m.pop(h.Name), &vfs.MknodOptions{Mode: linux.S_IFCHR})
	default:
		return fmt.Errorf("is of type %q", h.Typeflag)
	}
	return m.attributes(h)
}

// copyUp makes the overlay itself create a directory of the lower layer in the
// upper one. The overlay knows the directories above a mount point already, and
// would go on to look for them below.
func (m *importer) copyUp(name string) error {
	pop := &vfs.PathOperation{Root: m.whole, Start: m.whole, Path: fspath.Parse(name)}
	vd, err := m.vfs.GetDentryAt(m.ctx, m.creds, pop, &vfs.GetDentryOptions{})
	if linuxerr.Equals(linuxerr.ENOENT, err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer vd.DecRef(m.ctx)
	if vd.Mount() != m.whole.Mount() {
		return nil // something is mounted there
	}
	st, err := m.vfs.StatAt(m.ctx, m.creds, pop, &vfs.StatOptions{Mask: linux.STATX_MODE})
	if err != nil || st.Mode&linux.S_IFMT != linux.S_IFDIR {
		return err
	}
	return m.vfs.SetStatAt(m.ctx, m.creds, pop, &vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_MODE, Mode: st.Mode & 0o7777}})
}

// file writes one file; zeros become holes.
func (m *importer) file(h *tar.Header, r io.Reader) error {
	fd, err := m.vfs.OpenAt(m.ctx, m.creds, m.pop(h.Name), &vfs.OpenOptions{Flags: linux.O_WRONLY | linux.O_CREAT | linux.O_EXCL, Mode: 0o600})
	if err != nil {
		return err
	}
	defer fd.DecRef(m.ctx)
	var off int64
	for {
		n, rerr := io.ReadFull(r, m.buf)
		b := m.buf[:n]
		for hole := len(b) > 0 && zeros(b); len(b) > 0 && !hole; {
			w, err := fd.PWrite(m.ctx, usermem.BytesIOSequence(b), off+int64(n-len(b)), vfs.WriteOptions{})
			if err != nil {
				return err
			}
			if w == 0 {
				return io.ErrShortWrite
			}
			b = b[w:]
		}
		off += int64(n)
		if rerr == io.EOF || rerr == io.ErrUnexpectedEOF {
			break
		}
		if rerr != nil {
			return rerr
		}
	}
	return fd.SetStat(m.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(h.Size)}})
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// attributes come last: a mode may forbid the earlier steps.
func (m *importer) attributes(h *tar.Header) error {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, recXattr)
		if !ok {
			continue
		}
		if err := m.vfs.SetXattrAt(m.ctx, m.creds, m.pop(h.Name), &vfs.SetXattrOptions{Name: name, Value: value}); err != nil {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	st := linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID | linux.STATX_MTIME, UID: uint32(h.Uid), GID: uint32(h.Gid), Mtime: linux.StatxTimestamp{Sec: h.ModTime.Unix()}}
	if h.Typeflag != tar.TypeSymlink {
		st.Mask |= linux.STATX_MODE
		st.Mode = uint16(h.Mode) & 0o7777
	}
	// The owner first: changing it clears set-id bits.
	owner := st
	owner.Mask = linux.STATX_UID | linux.STATX_GID
	for _, s := range []linux.Statx{owner, st} {
		if err := m.vfs.SetStatAt(m.ctx, m.creds, m.pop(h.Name), &vfs.SetStatOptions{Stat: s}); err != nil {
			return err
		}
	}
	return nil
}
