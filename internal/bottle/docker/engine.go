package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/ociruntime"
	"github.com/carboy/carboy/internal/safetext"
)

// defaultSocket names the socket on which an Engine listens unless told otherwise.
const defaultSocket = "/var/run/docker.sock"

// Versions of the Engine's API: the oldest that has what is used here, and the newest that
// this was written for.
const minAPI, maxAPI = 41, 44

// engine is a Docker Engine of this machine.
type engine struct {
	socket string
	api    string // begins every path: the version of the API
	client *dockerapi.Client
	// kernel is the runtime with a kernel of its own; its zero value: there is none, and
	// bottles run under runc.
	kernel ociRuntime
	// helps says that carboy is not root, and has helpers do what takes that.
	helps bool
}

// ociRuntime is a runtime of the Engine's, as its settings have it.
type ociRuntime struct{ name, path string }

// ours reports whether the runtime is carboy's own.
func (r ociRuntime) ours() bool { return filepath.Base(r.path) == ociruntime.Program }

// kernelOf returns the Engine's runtime whose containers have a kernel of their own:
// carboy's, else gVisor's. paths are the programs of all runtimes by their names.
func kernelOf(paths map[string]string) ociRuntime {
	for _, program := range []string{ociruntime.Program, "runsc"} {
		for _, n := range slices.Sorted(maps.Keys(paths)) {
			if filepath.Base(paths[n]) == program {
				return ociRuntime{n, paths[n]}
			}
		}
	}
	return ociRuntime{}
}

// isolation returns the class of bottles made with this Engine.
func (e *engine) isolation() bottle.Isolation {
	if e.kernel.name != "" {
		return bottle.IsolationUserKernel
	}
	return bottle.IsolationContainer
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
	e := &engine{socket: socket, client: dockerapi.New(socket)}
	version, err := e.client.Ping(ctx)
	if err != nil {
		return nil, e.unreachable(err)
	}
	_, minor, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if err != nil || n < minAPI {
		return nil, &bottle.UnavailableError{
			Backend: name, Reason: fmt.Sprintf("the Engine at %s speaks version %s of the API, which is too old", socket, safetext.String(version, 20)),
			Advice: "use Docker 20.10 or newer",
		}
	}
	e.api = fmt.Sprintf("/v1.%d", min(n, maxAPI))
	return e, nil
}

// call makes a request with JSON and reads JSON; query, in and out may be nil.
func (e *engine) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return e.client.Call(ctx, method, e.api+path, in, out)
}

// unreachable says why nobody answers at the socket.
func (e *engine) unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	u := &bottle.UnavailableError{Backend: name, Reason: "no Engine answers at " + e.socket, Err: err, Advice: "start Docker (systemctl start docker), or use another backend"}
	switch {
	case errors.Is(err, os.ErrNotExist):
		u.Reason, u.Advice = "there is no Docker Engine: "+e.socket+" is absent", "install Docker (apt install docker.io) and start it, or use another backend"
	case errors.Is(err, dockerapi.ErrStranger):
		u.Reason, u.Advice = "the Engine at "+e.socket+" is not the system's", "set DOCKER_HOST to the system's Engine, unix://"+defaultSocket
	case errors.Is(err, os.ErrPermission):
		u.Reason, u.Advice = "you may not use the Docker Engine at "+e.socket, `sudo usermod -aG docker "$USER" and log in again: its members are root in effect`
	}
	return u
}

// suitable reports why this Engine cannot hold bottles, and settles their runtime.
func (e *engine) suitable(ctx context.Context) error {
	var info struct {
		OSType          string
		Runtimes        map[string]struct{ Path string }
		SecurityOptions []string
	}
	if err := e.call(ctx, "GET", "/info", nil, nil, &info); err != nil {
		return e.unreachable(err)
	}
	refuse := func(reason, advice string) error {
		return &bottle.UnavailableError{Backend: name, Reason: "the Engine at " + e.socket + " " + reason, Advice: advice}
	}
	paths := map[string]string{}
	for n, r := range info.Runtimes {
		paths[n] = r.Path
	}
	e.kernel = kernelOf(paths)
	_, hasRunc := info.Runtimes[runtimeName]
	filter := ""
	for _, o := range info.SecurityOptions {
		switch {
		case o == "name=rootless":
			return refuse("is a rootless one, which root's carboy does not use", "set DOCKER_HOST to the system's Engine")
		case o == "name=userns":
			return refuse("maps users (userns-remap), so files of the host would change hands", "use an Engine without userns-remap, or the backend gvisor")
		case strings.HasPrefix(o, "name=seccomp,profile="):
			filter = strings.TrimPrefix(o, "name=seccomp,profile=")
		}
	}
	switch {
	case info.OSType != "linux":
		return refuse("is not one for Linux", "use Docker on Linux")
	case !hasRunc:
		return refuse("has no runtime "+runtimeName, "install runc")
	case filter == "":
		return refuse("has no filters of system calls (seccomp)", "use a kernel and an Engine with seccomp")
	case filter != "default" && filter != "builtin": // its name until Docker 20.10, and since
		return refuse("filters system calls by a profile of its own ("+safetext.String(filter, 200)+"), which may allow anything", "remove seccomp-profile from its settings (/etc/docker/daemon.json), or use the backend gvisor")
	}
	return nil
}
