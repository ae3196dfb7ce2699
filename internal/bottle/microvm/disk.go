package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/sparse"
)

const (
	kib = 1 << 10
	mib = 1 << 20

	// smallestDisk holds an empty file system, in KiB.
	smallestDisk = 2 * 1024
)

// scratchFile returns a new file without a name: in the bottle's scratch directory or, if
// there is none, in memory.
func scratchFile(spec *bottle.Spec, name string) (*os.File, error) {
	if spec.Scratch == "" {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), name), nil
	}
	f, err := os.OpenFile(spec.Scratch, unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) {
		return f, err
	}
	if f, err = os.CreateTemp(spec.Scratch, name); err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// forReading opens a file without a name once more. QEMU takes no descriptor that can do
// more than it needs.
func forReading(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDONLY, 0)
}

// scratchDisk makes the disk that holds what the bottle writes. Its size is the limit; the
// file system's own tables take a part of it.
func scratchDisk(ctx context.Context, c *cache, r *hostexec.Runner, spec *bottle.Spec) (*os.File, error) {
	size := max(spec.Limits.Disk/kib/4*4, smallestDisk)
	path, err := c.file(ctx, fmt.Sprintf("disk-%s-%dk", format, size), func(f *os.File) error {
		if err := f.Truncate(size * kib); err != nil {
			return err
		}
		_, err := r.Run(ctx, hostexec.Command{Program: hostexec.Mke2fs, Args: hostexec.Mke2fsArgs(f.Name(), size), Dir: "/", Timeout: 5 * time.Minute})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the scratch disk: %w", err)
	}
	from, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	to, err := scratchFile(spec, "scratch")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(sparse.Copy(ctx, to, 0, from, size*kib), to.Truncate(size*kib)); err != nil {
		to.Close()
		return nil, fmt.Errorf("make the scratch disk: %w", err)
	}
	return to, nil
}
