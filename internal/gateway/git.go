package gateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/carboy/carboy/internal/policy"
)

// Code leaves through the git gate, which reads what is pushed. A push over HTTPS is a
// pack here: compressed, and made of deltas to objects that only the server has. So no
// route allows one. A fetch shows the contents of a repository: [policy.Route.Fetches].

const (
	gitReceive = "git-receive-pack"
	gitUpload  = "git-upload-pack"
)

// gitService returns the git service that a request asks for; empty: none. It errs on
// the side of finding one, because servers differ: it looks through escapes, other
// cases and content types.
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

// noProxy is the answer to CONNECT.
const noProxy = "this is no proxy; connect to the host itself"

// RefuseOn returns why the gateway refuses a request that the route allows: it asks for a
// proxy, or for git. reason is [ReasonOK] if it does not.
func RefuseOn(route *policy.Route, r *http.Request) (reason Reason, detail, hint string) {
	if r.Method == http.MethodConnect {
		return reasonConnect, noProxy, ""
	}
	switch gitService(r) {
	case gitReceive:
		return reasonGitPush, "git does not push through here", "code leaves by the git gate, which reads it: declare the repository in git-gate.repos of the bottle, and push to the same address"
	case gitUpload:
		if !route.Fetches() {
			return reasonGitFetch, "the route does not permit git to fetch", "whoever runs this may say `git: {fetch: true}` on the route, or declare the repository in git-gate.repos of the bottle"
		}
	}
	return ReasonOK, "", ""
}
