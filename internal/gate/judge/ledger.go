package judge

import (
	"path/filepath"
	"strings"
)

// AttemptPrefix begins the name of each step's file in the directory of a work, and
// AttemptOf names its digest in the audit log.
const (
	AttemptPrefix = "attempt-"
	AttemptOf     = "attempt"
)

// AttemptNumber returns the number in the name of a step's file.
func AttemptNumber(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), AttemptPrefix), ".json")
}
