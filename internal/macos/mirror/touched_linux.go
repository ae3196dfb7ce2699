package mirror

import (
	"io/fs"
	"syscall"
)

// touched returns when the system last noted a change of the file, in ns since 1970.
func touched(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Ctim.Nano()
	}
	return 0
}
