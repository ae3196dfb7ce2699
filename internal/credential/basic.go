package credential

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/carboy/carboy/internal/secret"
)

// basic is Basic authentication (RFC 7617).
type basic struct {
	pair, password secret.Value
	encoded        secret.Value
}

func newBasic(v secret.Value) (basic, error) {
	user, password, ok := strings.Cut(v.UnsafeString(), ":")
	if !ok || user == "" && password == "" {
		return basic{}, errors.New("the value of a basic credential is USER:PASSWORD")
	}
	return basic{
		pair: v, password: secret.NewString(password),
		encoded: secret.NewString(base64.StdEncoding.EncodeToString([]byte(v.UnsafeString()))),
	}, nil
}

func (b basic) sign(req *http.Request, _ *removed) error {
	req.Header.Set("Authorization", "Basic "+b.encoded.UnsafeString())
	return nil
}

func (b basic) secrets() []secret.Value { return []secret.Value{b.encoded, b.pair, b.password} }
