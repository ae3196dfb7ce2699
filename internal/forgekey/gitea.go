package forgekey

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// gitea implements the API of Gitea and Forgejo, version 1.
type gitea struct{}

func (gitea) api(host string) string { return "https://" + host + "/api/v1" }

func (gitea) settings(repo string) string { return repo + "/settings/keys" }

func (gitea) sign(h http.Header, token string) { h.Set("Authorization", "token "+token) }

func (gitea) list(ctx context.Context, c *client, repo string, page int) ([]deployKey, error) {
	var out []keyAnswer
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("/repos/%s/keys?limit=%d&page=%d", escaped(repo), perPage, page), nil, &out, http.StatusOK)
	return keysOf(out), err
}

func (gitea) create(ctx context.Context, c *client, repo, title, public string) (deployKey, error) {
	return createReadOnly(ctx, c, repo, title, public)
}

func (gitea) remove(ctx context.Context, c *client, repo, id string) error {
	return c.call(ctx, http.MethodDelete, "/repos/"+escaped(repo)+"/keys/"+id, nil, nil, http.StatusNoContent, http.StatusOK)
}

// createReadOnly creates a read-only key at Gitea or GitHub, whose requests are the same.
func createReadOnly(ctx context.Context, c *client, repo, title, public string) (deployKey, error) {
	in := struct {
		Title    string `json:"title"`
		Key      string `json:"key"`
		ReadOnly bool   `json:"read_only"`
	}{title, public, false}
	var out keyAnswer
	err := c.call(ctx, http.MethodPost, "/repos/"+escaped(repo)+"/keys", in, &out, http.StatusCreated)
	return out.key(), err
}

// escaped returns a repository's path for a URL, with its slashes.
func escaped(repo string) string {
	parts := strings.Split(repo, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}
