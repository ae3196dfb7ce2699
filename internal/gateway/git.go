package gateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/carboy/carboy/internal/policy"
)

// Code leaves by the git gate, which reads what is pushed. A push by HTTPS would be a
// pack here: compressed, and made of differences to what only the server has. So no
// route lets one through. A fetch shows what a repository holds; it is permitted by a
// route that says so, and by one that permits everything.

const (
	gitReceive = "git-receive-pack"
	gitUpload  = "git-upload-pack"
)

// gitService says which of git's services a request asks for; empty: none. What a
// server might read as one counts: escapes, letters of another size, a type of content.
func gitService(r *http.Request) string {
	query := r.URL.RawQuery
	if q, err := url.QueryUnescape(query); err == nil {
		query = q
	}
	all := strings.ToLower(r.URL.Path + "\n" + query + "\n" + strings.Join(r.Header["Content-Type"], "\n"))
	for _, s := range []string{gitReceive, gitUpload} {
		if strings.Contains(all, "/"+s) || strings.Contains(all, "service="+s) || strings.Contains(all, "x-"+s) {
			return s
		}
	}
	return ""
}

// refuseGit judges a request of git's to a route that permits it otherwise.
func refuseGit(r *http.Request, route *policy.Route) (reason Reason, detail, hint string) {
	switch gitService(r) {
	case gitReceive:
		return ReasonGitPush, "git does not push through here", "code leaves by the git gate, which reads it: declare the repository in git-gate.repos of the bottle, and push to the same address"
	case gitUpload:
		if !route.Options().GitFetch && !route.Plain() {
			return ReasonGitFetch, "the route does not permit git to fetch", "whoever runs this may say `git: {fetch: true}` on the route, or declare the repository in git-gate.repos of the bottle"
		}
	}
	return ReasonOK, "", ""
}
