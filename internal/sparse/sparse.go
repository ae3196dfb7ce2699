// Package sparse copies files and leaves their holes out.
package sparse

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// piece bounds the bytes between two looks at a context.
const piece = 64 << 20

// Copy copies the first size bytes of from to at in to, which must hold nothing there: holes
// stay holes. A file that becomes shorter meanwhile ends with one. It moves the offsets of both
// files, and does not set the size of to. It returns ctx's error when that ends.
func Copy(ctx context.Context, to *os.File, at int64, from *os.File, size int64) error {
	for off := int64(0); off < size; {
		data, end, err := next(from, off, size)
		if err != nil || data >= size {
			return err
		}
		if _, err := to.Seek(at+data, io.SeekStart); err != nil {
			return err
		}
		if _, err := from.Seek(data, io.SeekStart); err != nil {
			return err
		}
		for off = data; off < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			// The kernel copies by itself where both file systems let it.
			n, err := io.Copy(to, io.LimitReader(from, min(end-off, piece)))
			if err != nil {
				return err
			}
			if n == 0 {
				return nil
			}
			off += n
		}
	}
	return nil
}

// next returns where the next data begins and ends, from off on. Where the file system can't
// tell, all of the file is data.
func next(f *os.File, off, size int64) (data, end int64, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var dataErr, holeErr error
	err = raw.Control(func(fd uintptr) {
		if data, dataErr = unix.Seek(int(fd), off, unix.SEEK_DATA); dataErr == nil {
			end, holeErr = unix.Seek(int(fd), data, unix.SEEK_HOLE)
		}
	})
	switch {
	case err != nil:
		return 0, 0, err
	case errors.Is(dataErr, unix.ENXIO):
		return size, size, nil
	case dataErr != nil || data < off:
		return off, size, nil
	case holeErr != nil || end <= data:
		return data, size, nil
	}
	return data, min(end, size), nil
}
