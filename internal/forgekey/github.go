package forgekey

import (
	"context"
	"fmt"
	"net/http"
)

// github implements the REST API of GitHub and GitHub Enterprise Server.
type github struct{}

func (github) api(host string) string {
	if host == "github.com" {
		return "https://api.github.com"
	}
	return "https://" + host + "/api/v3"
}

func (github) settings(repo string) string { return repo + "/settings/keys" }

func (github) sign(h http.Header, token string) {
	h.Set("Authorization", "Bearer "+token)
	h.Set("Accept", "application/vnd.github+json")
	h.Set("X-GitHub-Api-Version", "2022-11-28")
}

func (github) list(ctx context.Context, c *client, repo string, page int) ([]deployKey, error) {
	var out []keyAnswer
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("/repos/%s/keys?per_page=%d&page=%d", escaped(repo), perPage, page), nil, &out, http.StatusOK)
	return keysOf(out), err
}

func (github) create(ctx context.Context, c *client, repo, title, public string) (deployKey, error) {
	return createReadOnly(ctx, c, repo, title, public)
}

func (github) remove(ctx context.Context, c *client, repo, id string) error {
	return c.call(ctx, http.MethodDelete, "/repos/"+escaped(repo)+"/keys/"+id, nil, nil, http.StatusNoContent)
}
