package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/safetext"
)

// ErrNotServed means that no process serves the state.
var ErrNotServed = errors.New("carboy orchestrate serve does not run")

// The orders of an operator.
const (
	Cancel = "cancel"
	Retry  = "retry"
)

// Bounds of an order.
const (
	orderIn   = 30 * time.Second
	maxAnswer = 64 << 10
)

// controlSocket returns the path of the socket on which a process that serves a state takes
// orders. runtime is the user's private directory for sockets.
func controlSocket(runtime, state string) string {
	sum := sha256.Sum256([]byte(StateDir(state)))
	return filepath.Join(runtime, "issues-"+hex.EncodeToString(sum[:8])+".sock")
}

// control takes orders until its function is called. The state's lock is held, so a socket that
// is there is a dead process's.
func control(runtime, state string, o *orchestrate.Orchestrator) (end func(), err error) {
	path := controlSocket(runtime, state)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	order := func(do func(context.Context, issues.Key) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			k, err := orchestrate.ParseKey(r.FormValue("issue"))
			if err == nil {
				err = do(r.Context(), k)
			}
			if err != nil {
				code := http.StatusInternalServerError
				if errors.Is(err, issues.ErrMissing) {
					code = http.StatusNotFound
				}
				w.WriteHeader(code)
				json.NewEncoder(w).Encode(map[string]string{"error": safetext.String(err.Error(), 1000)})
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	m := http.NewServeMux()
	m.HandleFunc("POST /"+Cancel, order(o.Cancel))
	m.HandleFunc("POST /"+Retry, order(o.Retry))
	s := &http.Server{Handler: m, ReadTimeout: headersIn, WriteTimeout: answersIn}
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }() // ends with the server
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			s.Close()
		}
		<-done
	}, nil
}

// Order gives an order about an issue to the process that serves a state. The error matches
// [ErrNotServed] if there is none, and [issues.ErrMissing] if that does not know the issue.
func Order(ctx context.Context, runtime, state, order string, k issues.Key) error {
	ctx, stop := context.WithTimeout(ctx, orderIn)
	defer stop()
	path := controlSocket(runtime, state)
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://serve/"+order+"?"+url.Values{"issue": {k.String()}}.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: t}).Do(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNotServed
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent {
		return nil
	}
	var answer struct {
		Error string `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s", order, res.Status)
	}
	if res.StatusCode == http.StatusNotFound {
		return fmt.Errorf("%v: %w", k, issues.ErrMissing)
	}
	return errors.New(answer.Error)
}
