package agent

import (
	"io"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/guest/uppertar"
)

// importTar unpacks a stream below dir.
func importTar(dir string, r io.Reader) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return uppertar.Read(r, func(name string) (int, string) { return fd, name })
}

// exportTar packs upper directories, in order, into one stream.
func exportTar(layers []proto.Layer, w io.Writer) error {
	t := uppertar.NewWriter(w)
	for _, l := range layers {
		fd, err := unix.Open(l.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = t.Below(fd, strings.Trim(filepath.Clean("/"+l.At), "/"))
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return t.Close()
}
