package microvm

import (
	"compress/gzip"
	"fmt"
	"io"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// maxModule bounds an unpacked module, bytes.
const maxModule = 32 << 20

// readModule returns the content of a module, unpacked.
func readModule(path string) ([]byte, error) {
	f, err := openTrusted(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".ko":
	case ".xz":
		r, err = xz.NewReader(f)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(f); err == nil {
			defer z.Close()
			r = z
		}
	case ".gz":
		r, err = gzip.NewReader(f)
	}
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	if len(b) > maxModule {
		return nil, fmt.Errorf("unpack %s: it has more than %d bytes", path, maxModule)
	}
	return b, nil
}
