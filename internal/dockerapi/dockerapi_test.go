package dockerapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// serve returns the socket of an engine that answers as the test says.
func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "engine-") // short, because the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }() // ends with the test
	t.Cleanup(func() { srv.Close(); <-done; os.RemoveAll(dir) })
	return dir + "/sock"
}

func TestCall(t *testing.T) {
	c := New(serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		switch r.URL.Path {
		case "/echo":
			if r.Header.Get("Content-Type") == "application/json" && r.ContentLength > 0 {
				io.Copy(w, r.Body)
			}
		case "/moved":
			http.Redirect(w, r, "/echo", http.StatusFound)
		case "/json":
			http.Error(w, `{"message":"no such thing\u001b[31m"}`, http.StatusNotFound)
		case "/text":
			http.Error(w, strings.Repeat("x", 1<<20), http.StatusInternalServerError)
		case "/removing":
			http.Error(w, `{"message":"removal of container x is already in progress"}`, http.StatusConflict)
		case "/conflict":
			http.Error(w, `{"message":"it is paused"}`, http.StatusConflict)
		case "/endless":
			for i := 0; i <= maxAnswer; i += 1 << 16 {
				io.WriteString(w, strings.Repeat(" ", 1<<16))
			}
			io.WriteString(w, "{}")
		}
	}))
	if v, err := c.Ping(t.Context()); v != "1.41" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	var out struct{ A string }
	if err := c.Call(t.Context(), "POST", "/echo", map[string]string{"A": "b"}, &out); err != nil || out.A != "b" {
		t.Errorf("%+v, %v", out, err)
	}
	for path, x := range map[string]struct {
		status int
		text   string
		gone   bool
	}{
		"/moved": {302, "", false}, "/json": {404, "no such thing", true}, "/text": {500, "xxx", false},
		"/removing": {409, "in progress", true}, "/conflict": {409, "it is paused", false},
	} {
		err := c.Call(t.Context(), "GET", path, nil, nil)
		var e *Error
		if !errors.As(err, &e) || e.Status != x.status || !strings.Contains(e.Message, x.text) || len(e.Message) > 4*maxShown || strings.Contains(e.Message, "\x1b") || Gone(err) != x.gone {
			t.Errorf("%s: %v, gone %v", path, err, Gone(err))
		}
	}
	for _, path := range []string{"/nothing", "/endless"} {
		if err := c.Call(t.Context(), "GET", path, nil, &out); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestSilent: an engine that takes a connection and says nothing keeps nobody for ever.
func TestSilent(t *testing.T) {
	defer func(d time.Duration) { pingIn = d }(pingIn)
	pingIn = time.Millisecond
	end := make(chan struct{})
	c := New(serve(t, func(http.ResponseWriter, *http.Request) { <-end }))
	defer close(end)
	if _, err := c.Ping(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Call(ctx, "GET", "/x", nil, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
