package carboy

import (
	"path/filepath"
	"strings"
)

// attemptPrefix begins the name of each attempt's file in a work's directory.
const attemptPrefix = "attempt-"

func attemptNumber(file string) string {
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), attemptPrefix), ".json")
}
