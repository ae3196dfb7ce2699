package mirror

import "io/fs"

// touched returns 0: only the machine's side compares it.
func touched(fs.FileInfo) int64 { return 0 }
