package orchestrate

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of what the handler takes.
const (
	maxHook       = 8 << 20 // bytes of a delivery
	maxHooks      = 8       // that are read at a time
	hookIn        = 30 * time.Second
	maxDeliveries = 10_000 // names that are remembered
)

// Handler returns the handler of webhooks, for any path. A delivery that is signed by the
// secret of one of the forges makes carboy look at the thread that it names. It is
// never more than a hint: what holds is read from the forge.
func (o *Orchestrator) Handler() http.Handler { return http.HandlerFunc(o.hook) }

func (o *Orchestrator) hook(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "webhooks are posted", http.StatusMethodNotAllowed)
		return
	}
	select {
	case o.hooks <- struct{}{}:
		defer func() { <-o.hooks }()
	default:
		o.counts.overloaded.Add(1)
		w.Header().Set("Retry-After", "5")
		http.Error(w, "too many deliveries at a time", http.StatusServiceUnavailable)
		return
	}
	// Not every server behind this handler can set a deadline.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(hookIn))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHook))
	if err != nil {
		o.counts.refused.Add(1)
		if errors.As(err, new(*http.MaxBytesError)) {
			http.Error(w, "the delivery is too large", http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "the delivery did not arrive whole", http.StatusBadRequest)
		return
	}
	e, f, err := o.verify(r.Header, body)
	if err != nil {
		o.counts.refused.Add(1)
	}
	switch {
	case errors.Is(err, forge.ErrNotSigned):
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.counts.hooks.Add(1)
	// The signature proves who sent the body, not when: a repeated delivery is a look less.
	if e.Delivery == "" || o.delivered.add(f.Owner+" "+e.Delivery) {
		o.hint(f, e)
	} else {
		o.counts.duplicates.Add(1)
	}
	w.WriteHeader(http.StatusNoContent)
}

// verify returns the event of a delivery, and the forge whose secret signs it.
func (o *Orchestrator) verify(h http.Header, body []byte) (*forge.Event, *Forge, error) {
	for i := range o.Forges {
		f := &o.Forges[i]
		e, err := forge.ParseHook(f.Provider, f.Secret, h, body)
		if errors.Is(err, forge.ErrNotSigned) {
			continue
		}
		return e, f, err
	}
	return nil, nil, forge.ErrNotSigned
}

// hint asks for the looks that an event is a reason for.
func (o *Orchestrator) hint(f *Forge, e *forge.Event) {
	owner, name := splitRepo(e.Repo)
	r, ok := f.repo(name)
	if !ok || !strings.EqualFold(owner, f.Owner) || strings.EqualFold(e.Sender.Login, f.Robot) {
		return
	}
	k := issues.Key{Owner: f.Owner, Repo: r.Name, Number: int64(e.At.Number)}
	switch {
	case e.Kind == forge.PushEvent:
		o.lookAtPulls(k)
		return
	case e.At.Number < 1:
		return
	case e.At.Pull:
		var known bool
		if k, known = o.issueOf(k); !known {
			return
		}
	}
	if !o.queue.add(k, false) {
		o.Log.Warn("more issues changed than are remembered; they are found by polling", "issue", safetext.String(k.String(), 200))
	}
}

// splitRepo splits a repository's path at its last slash.
func splitRepo(path string) (owner, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

// A recent set remembers the names that were added last.
type recent struct {
	mu    sync.Mutex
	names map[string]struct{}
	ring  []string
	next  int
}

func newRecent(size int) *recent {
	return &recent{names: map[string]struct{}{}, ring: make([]string, size)}
}

// add remembers a name, and reports whether it was not known.
func (r *recent) add(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	name = name[:min(len(name), 200)]
	if _, ok := r.names[name]; ok {
		return false
	}
	delete(r.names, r.ring[r.next])
	r.names[name] = struct{}{}
	r.ring[r.next] = name
	r.next = (r.next + 1) % len(r.ring)
	return true
}
