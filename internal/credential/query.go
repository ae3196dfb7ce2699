package credential

import (
	"net/http"
	"net/url"

	"github.com/carboy/carboy/internal/secret"
)

// query adds a parameter to the URL.
type query struct {
	field string
	value secret.Value
}

func (q query) sign(req *http.Request, _ *removed) error {
	p := url.QueryEscape(q.field) + "=" + url.QueryEscape(q.value.UnsafeString())
	if req.URL.RawQuery != "" {
		p = req.URL.RawQuery + "&" + p
	}
	req.URL.RawQuery = p
	return nil
}

func (q query) secrets() []secret.Value { return []secret.Value{q.value} }
