package credential

import (
	"net/http"

	"github.com/carboy/carboy/internal/secret"
)

// fixed sets a header to a prefix and the value.
type fixed struct {
	header, prefix string
	value          secret.Value
}

func (f fixed) sign(req *http.Request, _ *removed) error {
	req.Header.Set(f.header, f.prefix+f.value.UnsafeString())
	return nil
}

func (f fixed) secrets() []secret.Value { return []secret.Value{f.value} }
