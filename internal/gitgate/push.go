package gitgate

import (
	"net/http"
)

func (g *Gate) push(w http.ResponseWriter, r *http.Request, rp *repo) {
	plain(w, http.StatusNotImplemented, "not yet")
}
