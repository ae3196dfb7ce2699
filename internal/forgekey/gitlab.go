package forgekey

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// gitlab implements the API of GitLab, version 4.
type gitlab struct{}

func (gitlab) api(host string) string { return "https://" + host + "/api/v4" }

func (gitlab) settings(repo string) string { return repo + "/-/settings/repository" }

func (gitlab) sign(h http.Header, token string) { h.Set("PRIVATE-TOKEN", token) }

func (gitlab) list(ctx context.Context, c *client, repo string, page int) ([]deployKey, error) {
	var out []keyAnswer
	err := c.call(ctx, http.MethodGet, fmt.Sprintf("/projects/%s/deploy_keys?per_page=%d&page=%d", url.PathEscape(repo), perPage, page), nil, &out, http.StatusOK)
	return keysOf(out), err
}

func (gitlab) create(ctx context.Context, c *client, repo, title, public string) (deployKey, error) {
	in := struct {
		Title   string `json:"title"`
		Key     string `json:"key"`
		CanPush bool   `json:"can_push"`
	}{title, public, true}
	var out keyAnswer
	err := c.call(ctx, http.MethodPost, "/projects/"+url.PathEscape(repo)+"/deploy_keys", in, &out, http.StatusCreated)
	return out.key(), err
}

func (gitlab) remove(ctx context.Context, c *client, repo, id string) error {
	return c.call(ctx, http.MethodDelete, "/projects/"+url.PathEscape(repo)+"/deploy_keys/"+id, nil, nil, http.StatusNoContent, http.StatusOK, http.StatusAccepted)
}
