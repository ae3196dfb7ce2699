package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/safetext"
)

// defaultSocket names the socket on which an Engine listens unless told otherwise.
const defaultSocket = "/var/run/docker.sock"

// Versions of the Engine's API: the oldest that has what is used here, and the newest that
// this was written for.
const minAPI, maxAPI = 41, 44

// maxAnswer bounds an answer of the Engine, bytes.
const maxAnswer = 8 << 20

// engine speaks HTTP with a container engine over its Unix socket.
type engine struct {
	socket string
	api    string
	client *http.Client
}

// socketOf returns the Engine's socket, as the docker command would choose it. An engine
// on another machine is refused: a bottle's files and network are here.
func socketOf(getenv func(string) string) (string, error) {
	refuse := func(from, host string) error {
		return &bottle.UnavailableError{
			Backend: name, Reason: fmt.Sprintf("%s names %s, and carboy uses only an Engine of this machine", from, safetext.String(host, 100)),
			Advice: "unset it, or set DOCKER_HOST=unix://" + defaultSocket,
		}
	}
	path := func(from, host string) (string, error) {
		p, ok := strings.CutPrefix(host, "unix://")
		if !ok || !filepath.IsAbs(p) {
			return "", refuse(from, host)
		}
		return p, nil
	}
	if host := getenv("DOCKER_HOST"); host != "" {
		return path("DOCKER_HOST", host)
	}
	dir := getenv("DOCKER_CONFIG")
	if dir == "" && getenv("HOME") != "" {
		dir = filepath.Join(getenv("HOME"), ".docker")
	}
	current := getenv("DOCKER_CONTEXT")
	if current == "" && dir != "" {
		var c struct{ CurrentContext string }
		if err := readJSON(filepath.Join(dir, "config.json"), &c); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("docker's settings: %w", err)
		}
		current = c.CurrentContext
	}
	if current == "" || current == "default" {
		return defaultSocket, nil
	}
	sum := sha256.Sum256([]byte(current))
	var meta struct {
		Endpoints map[string]struct{ Host string }
	}
	if err := readJSON(filepath.Join(dir, "contexts", "meta", hex.EncodeToString(sum[:]), "meta.json"), &meta); err != nil {
		return "", fmt.Errorf("docker's context %s: %w", safetext.String(current, 100), err)
	}
	return path("docker's context "+safetext.String(current, 100), meta.Endpoints["docker"].Host)
}

func readJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, 1<<20)).Decode(v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// connect returns the Engine that the environment names, and settles the API's version.
func connect(ctx context.Context) (*engine, error) {
	socket, err := socketOf(os.Getenv)
	if err != nil {
		return nil, err
	}
	e := &engine{socket: socket}
	e.client = &http.Client{Transport: &http.Transport{
		// Nothing stays open between calls: they are few, and a bottle leaves nothing.
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
		},
	}}
	resp, err := e.send(ctx, http.MethodGet, "/_ping", nil, "")
	if err != nil {
		return nil, e.unreachable(err)
	}
	resp.Body.Close()
	_, minor, _ := strings.Cut(resp.Header.Get("Api-Version"), ".")
	n, err := strconv.Atoi(minor)
	if err != nil || n < minAPI {
		return nil, &bottle.UnavailableError{
			Backend: name, Reason: fmt.Sprintf("the Engine at %s speaks version %s of the API, which is too old", socket, safetext.String(resp.Header.Get("Api-Version"), 20)),
			Advice: "use Docker 20.10 or newer",
		}
	}
	e.api = fmt.Sprintf("/v1.%d", min(n, maxAPI))
	return e, nil
}

// unreachable says why nobody answers at the socket.
func (e *engine) unreachable(err error) error {
	u := &bottle.UnavailableError{Backend: name, Reason: "no Engine answers at " + e.socket, Err: err, Advice: "start Docker (systemctl start docker), or use another backend"}
	switch {
	case errors.Is(err, os.ErrNotExist):
		u.Reason, u.Advice = "there is no Docker Engine: "+e.socket+" is absent", "install Docker (apt install docker.io) and start it, or use another backend"
	case errors.Is(err, os.ErrPermission):
		u.Reason, u.Advice = "you may not use the Docker Engine at "+e.socket, `sudo usermod -aG docker "$USER" and log in again: its members are root in effect`
	}
	return u
}

// engineError is an answer of the Engine that is no success.
type engineError struct {
	status int
	text   string
}

func (e *engineError) Error() string { return fmt.Sprintf("docker: %s (%d)", e.text, e.status) }

// gone reports whether the Engine says that the thing is not there, or is going.
func gone(err error) bool {
	var e *engineError
	return errors.As(err, &e) && (e.status == http.StatusNotFound || e.status == http.StatusConflict && strings.Contains(e.text, "already in progress"))
}

// send makes a request. The caller closes the answer's body.
func (e *engine) send(ctx context.Context, method, path string, body io.Reader, kind string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotModified {
		defer resp.Body.Close()
		var m struct{ Message string }
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if json.Unmarshal(b, &m) != nil || m.Message == "" {
			m.Message = string(b)
		}
		return nil, &engineError{resp.StatusCode, safetext.String(m.Message, 500)}
	}
	return resp, nil
}

// call makes a request with JSON and reads JSON; in and out may be nil.
func (e *engine) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	kind := ""
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, kind = bytes.NewReader(b), "application/json"
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	resp, err := e.send(ctx, method, e.api+path, body, kind)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("docker: answer to %s: %w", path, err)
	}
	return nil
}
