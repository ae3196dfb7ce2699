// Package rootfile replaces files below a directory whose content others may change: no
// link in it leads outside. Start reading at [Replace].
package rootfile

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
)

// Replace calls make with a name beside path that is not taken, and then gives what make
// made the name path: path is there as it was, or as a whole. make syncs what must last.
// If it fails, nothing stays.
func Replace(root *os.Root, path string, make func(temporary string) error) error {
	temporary := filepath.Join(filepath.Dir(path), ".carboy-"+rand.Text())
	err := make(temporary)
	if err == nil {
		err = root.Rename(temporary, path)
	}
	if err == nil {
		return nil
	}
	if gone := root.Remove(temporary); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}
