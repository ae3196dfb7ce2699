package store

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sys has the system calls that change the disk or can fail because of it. The package uses no others, so tests can make
// each one fail, or stop the process at it.
type sys interface {
	Openat(dir int, name string, flags int, mode uint32) (int, error)
	Mkdirat(dir int, name string, mode uint32) error
	Write(fd int, p []byte) (int, error)
	Fsync(fd int) error
	Renameat(oldDir int, oldName string, newDir int, newName string) error
	Unlinkat(dir int, name string, flags int) error
	Flock(fd int, how int) error
}

// kernel makes the system calls. It repeats calls that a signal interrupted.
type kernel struct{}

func (kernel) Openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error { fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode); return err })
	return fd, err
}

func (kernel) Mkdirat(dir int, name string, mode uint32) error {
	return retry(func() error { return unix.Mkdirat(dir, name, mode) })
}

func (kernel) Write(fd int, p []byte) (n int, err error) {
	err = retry(func() error { n, err = unix.Write(fd, p); return err })
	return n, err
}

func (kernel) Fsync(fd int) error { return retry(func() error { return unix.Fsync(fd) }) }

func (kernel) Renameat(oldDir int, oldName string, newDir int, newName string) error {
	return retry(func() error { return unix.Renameat(oldDir, oldName, newDir, newName) })
}

func (kernel) Unlinkat(dir int, name string, flags int) error {
	return retry(func() error { return unix.Unlinkat(dir, name, flags) })
}

func (kernel) Flock(fd int, how int) error {
	return retry(func() error { return unix.Flock(fd, how) })
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

const (
	dirFlags  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	readFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
)
