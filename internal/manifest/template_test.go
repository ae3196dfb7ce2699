package manifest_test

// The templates register themselves, here too.
import _ "github.com/carboy/carboy/internal/agent"
