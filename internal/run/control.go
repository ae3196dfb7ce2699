package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/handover"
	"github.com/carboy/carboy/internal/store"
)

// A live run answers on a Unix socket in the runtime directory: HTTP/JSON, for
// this user only. The peer's uid is asked of the kernel.

// ControlVersion is the protocol version that both ends must speak. A newer command line talks to
// an older supervisor until that ends, so versions are only added.
const ControlVersion = 1

// Status describes a live run.
type Status struct {
	Schema  string        `json:"schema"`
	Version int           `json:"version"`
	ID      store.ID      `json:"id"`
	Build   string        `json:"build"`
	PID     int           `json:"pid"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Memory  int64         `json:"memory_bytes"`
	Disk    int64         `json:"disk_bytes"`
}

func (s *Session) serveControl() error {
	dir, err := store.RuntimeDir(s.c.Env)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, SocketName(s.run.ID()))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { s.serveStatus(w) })
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, r *http.Request) {
		s.destroy()
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /v1/freeze", func(w http.ResponseWriter, r *http.Request) {
		if s.o.Grant == nil || s.o.Grant.Lock == nil {
			http.Error(w, "it is no bottle with a name", http.StatusConflict)
			return
		}
		s.freezeOnce.Do(func() { close(s.freezing) })
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /v1/exec", s.serveExec)
	mux.HandleFunc("POST /v1/attach", s.serveAttach)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	done := make(chan struct{})
	go func() { srv.Serve(&ownListener{l}); close(done) }()
	s.closeControl = sync.OnceFunc(func() { srv.Close(); <-done; os.Remove(path) })
	s.cleanup = append(s.cleanup, s.closeControl)
	s.socket = path // in the record with the next step
	return nil
}

// upgradable reports whether a request may become a connection of a protocol: the
// run's command goes on. If not, it has been answered.
func (s *Session) upgradable(w http.ResponseWriter, r *http.Request, protocol string) bool {
	if r.Header.Get("Upgrade") != protocol {
		http.Error(w, "unknown protocol", http.StatusBadRequest)
		return false
	}
	s.execs.mu.Lock()
	open := s.execs.open
	s.execs.mu.Unlock()
	if !open {
		http.Error(w, errNotNow.Error(), http.StatusConflict)
	}
	return open
}

// takeOver upgrades a request's connection to a protocol. header is added to the answer
// unless it is empty. If takeOver returns false, the connection is closed.
func takeOver(w http.ResponseWriter, protocol, header string) (u *net.UnixConn, ok bool) {
	hj, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "no", http.StatusInternalServerError)
		return nil, false
	}
	conn, buf, err := hj.Hijack()
	if err != nil {
		return nil, false
	}
	u, ok = conn.(*net.UnixConn)
	// What came with the request would have lost its descriptors.
	if !ok || buf.Reader.Buffered() > 0 {
		conn.Close()
		return nil, false
	}
	u.SetDeadline(time.Time{})
	if _, err := io.WriteString(u, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n"+header+"\r\n"); err != nil {
		u.Close()
		return nil, false
	}
	return u, true
}

// dialControl connects to the control socket of this user's carboy.
func dialControl(ctx context.Context, m store.Meta) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", string(m.Socket))
	if err != nil {
		return nil, err
	}
	u := conn.(*net.UnixConn)
	if err := handover.Own(u); err != nil {
		u.Close()
		return nil, err
	}
	return u, nil
}

// upgrade opens a control connection of a live run and upgrades it to a protocol. What
// follows the answer is in its reader; resp says whether the run accepted.
func upgrade(ctx context.Context, m store.Meta, path, protocol string) (u *net.UnixConn, in *bufio.Reader, resp *http.Response, err error) {
	fail := func(err error) (*net.UnixConn, *bufio.Reader, *http.Response, error) {
		return nil, nil, nil, fmt.Errorf("run %s: %w: %v", m.ID, ErrNotLive, err)
	}
	if m.Socket == "" || m.State.Over() {
		return nil, nil, nil, fmt.Errorf("run %s: %w", m.ID, ErrNotLive)
	}
	if u, err = dialControl(ctx, m); err != nil {
		return fail(err)
	}
	u.SetDeadline(time.Now().Add(askIn))
	if _, err = io.WriteString(u, "POST "+path+" HTTP/1.1\r\nHost: carboy\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\nContent-Length: 0\r\n\r\n"); err == nil {
		in = bufio.NewReaderSize(u, 4096)
		resp, err = http.ReadResponse(in, nil)
	}
	if err != nil {
		u.Close()
		return fail(err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		u.SetDeadline(time.Time{})
	}
	return u, in, resp, nil
}

// refusal returns the error text of a response that is not an upgrade.
func refusal(resp *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
	return strings.TrimSpace(string(text))
}

func SocketName(id store.ID) string { return string(id) + ".sock" }

// destroy asks the run to destroy its bottle. Its changes are kept.
func (s *Session) destroy() { s.stopOnce.Do(func() { close(s.stopping) }) }

func (s *Session) serveStatus(w http.ResponseWriter) {
	use, _ := s.bottle.Usage()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(Status{
		Schema: store.Schema("status"), Version: ControlVersion, ID: s.run.ID(), Build: s.c.Build,
		PID: os.Getpid(), Elapsed: s.run.Elapsed(), Memory: use.Memory, Disk: use.Disk,
	})
}

// ownListener accepts only this user's processes.
type ownListener struct{ *net.UnixListener }

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if handover.Own(c) == nil {
			return c, nil
		}
		c.Close()
	}
}

// Status asks a live run about itself.
func (c *Runner) Status(ctx context.Context, m store.Meta) (Status, error) {
	var st Status
	resp, err := c.ask(ctx, m, http.MethodGet, "/v1/status")
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(&st); err != nil {
		return st, fmt.Errorf("status of run %s: %w", m.ID, err)
	}
	return st, nil
}

// Stop asks the carboy of a live run to destroy its bottle. Changes are kept.
func (c *Runner) Stop(ctx context.Context, m store.Meta) error {
	resp, err := c.ask(ctx, m, http.MethodPost, "/v1/stop")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// AskFreeze asks the carboy of a live run to freeze its bottle.
func (c *Runner) AskFreeze(ctx context.Context, m store.Meta) error {
	resp, err := c.ask(ctx, m, http.MethodPost, "/v1/freeze")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ErrNotLive means that nothing answers for a run: it is over.
var ErrNotLive = errors.New("run is not live")

func (c *Runner) ask(ctx context.Context, m store.Meta, method, path string) (*http.Response, error) {
	if m.Socket == "" || m.State.Over() {
		return nil, fmt.Errorf("run %s: %w", m.ID, ErrNotLive)
	}
	hc := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialControl(ctx, m)
		},
		DisableKeepAlives: true,
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://carboy"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %v", m.ID, ErrNotLive, err)
	}
	if resp.StatusCode/100 != 2 {
		resp.Body.Close()
		return nil, fmt.Errorf("run %s: %s", m.ID, resp.Status)
	}
	return resp, nil
}
