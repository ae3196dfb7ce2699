package shiptest

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// Registry is an image registry on loopback.
type Registry struct {
	Address string

	mu   sync.Mutex
	mood string
}

// NewRegistry starts an empty registry.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{Address: l.Addr().String()}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.answer(w, req, inner) })}
	done := make(chan struct{})
	go func() { s.Serve(l); close(done) }()
	t.Cleanup(func() { s.Close(); <-done })
	return r
}

// Mood sets how the registry answers: "" correctly, "fails", "hangs", or "lies" with other
// bytes than the digest says.
func (r *Registry) Mood(m string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mood = m
}

func (r *Registry) answer(w http.ResponseWriter, req *http.Request, inner http.Handler) {
	r.mu.Lock()
	mood := r.mood
	r.mu.Unlock()
	switch mood {
	case "fails":
		http.Error(w, `{"errors":[{"code":"DENIED","message":"password=hunter2"}]}`, http.StatusForbidden)
	case "hangs":
		<-req.Context().Done()
	case "lies":
		inner.ServeHTTP(&liar{w}, req)
	default:
		inner.ServeHTTP(w, req)
	}
}

// liar changes the digests in manifests.
type liar struct{ http.ResponseWriter }

func (l *liar) Write(p []byte) (int, error) {
	if strings.Contains(l.Header().Get("Content-Type"), "manifest") {
		if _, err := l.ResponseWriter.Write(bytes.ReplaceAll(p, []byte("schemaVersion"), []byte("schemaVersioN"))); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return l.ResponseWriter.Write(p)
}

// Publish creates an image with a mark, pushes it to the registry and removes it from the
// engine. It returns the image's name with its digest.
func (e *Engine) Publish(t testing.TB, r *Registry, mark string) string {
	t.Helper()
	name := r.Address + "/app:" + mark
	e.Import(t, name, mark, nil)
	out := e.Run(t, "push", name)
	_, digest, ok := strings.Cut(out, "digest: ")
	if !ok {
		t.Fatalf("docker push says %q", out)
	}
	e.Run(t, "rmi", "-f", e.Run(t, "image", "inspect", "--format", "{{.Id}}", name))
	return r.Address + "/app@" + strings.Fields(digest)[0]
}
