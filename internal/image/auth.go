package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// keychain reads the registry passwords that docker login and podman login
// wrote. It does not start the helper programs that keep passwords elsewhere.
type keychain struct{ env func(string) string }

// Resolve implements authn.Keychain. It returns anonymous access if there is no
// entry.
func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	for _, file := range k.files() {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var c struct {
			Auths       map[string]struct{ Auth, IdentityToken string }
			CredHelpers map[string]string
			CredsStore  string
		}
		if err := json.Unmarshal(b, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, key := range keys(r.RegistryStr()) {
			a, ok := c.Auths[key]
			helper := c.CredHelpers[key]
			if helper == "" && ok {
				helper = c.CredsStore
			}
			switch {
			case ok && a.IdentityToken != "":
				return authn.FromConfig(authn.AuthConfig{IdentityToken: a.IdentityToken}), nil
			case ok && a.Auth != "":
				plain, err := base64.StdEncoding.DecodeString(a.Auth)
				user, password, found := strings.Cut(string(plain), ":")
				if err != nil || !found {
					return nil, fmt.Errorf("%s: the entry of %s is not in base64, or no name and password", file, key)
				}
				return authn.FromConfig(authn.AuthConfig{Username: user, Password: password}), nil
			case helper != "":
				return nil, fmt.Errorf("%s keeps the password of %s with docker-credential-%s, which carboy does not start: fetch the image with skopeo copy docker://%s/… oci:DIRECTORY, and name oci:DIRECTORY", file, key, helper, r.RegistryStr())
			}
		}
	}
	return authn.Anonymous, nil
}

func (k keychain) files() []string {
	if f := k.env("REGISTRY_AUTH_FILE"); f != "" {
		return []string{f}
	}
	var out []string
	if d := k.env("DOCKER_CONFIG"); d != "" {
		out = append(out, filepath.Join(d, "config.json"))
	} else if h := k.env("HOME"); h != "" {
		out = append(out, filepath.Join(h, ".docker", "config.json"))
	}
	if d := k.env("XDG_RUNTIME_DIR"); d != "" {
		out = append(out, filepath.Join(d, "containers", "auth.json"))
	}
	return out
}

// keys returns the names under which a registry's password may be stored.
func keys(host string) []string {
	if host == name.DefaultRegistry {
		return []string{"https://index.docker.io/v1/", "index.docker.io", "docker.io"}
	}
	return []string{host, "https://" + host, "https://" + host + "/v1/", "https://" + host + "/v2/"}
}
