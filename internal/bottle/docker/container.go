package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
)

// Labels of containers. A container whose owner has ended is removed by the next carboy.
const (
	labelBottle = "dev.carboy.bottle"
	labelOwner  = "dev.carboy.owner" // process, its start and the boot
)

// guestPids is added to the limit on processes, for the guest program's own threads and
// one process that becomes a command.
const guestPids = 16

// memoryRoom is added to the container's limit on memory. carboy looks at Usage and ends
// the run at the bottle's limit, with that reason; the kernel, which kills a process for
// no reason that anybody sees, comes second.
func memoryRoom(spec *bottle.Spec) int64 { return max(256<<20, spec.Limits.Memory/4) }

// runtimeName is the OCI runtime of every bottle. With a runtime that keeps its own file
// system and network, wire and files could not be put into a container that has started.
const runtimeName = "runc"

type hostConfig struct {
	NetworkMode    string
	CapDrop        []string
	CapAdd         []string
	SecurityOpt    []string
	ReadonlyRootfs bool
	Privileged     bool
	Memory         int64
	MemorySwap     int64
	PidsLimit      int64
	NanoCpus       int64
	AutoRemove     bool
	IpcMode        string
	PidMode        string
	Runtime        string
	Binds          []string
	Devices        []any
	LogConfig      struct{ Type string }
	Ulimits        []ulimit
}

type ulimit struct {
	Name       string
	Soft, Hard int64
}

type containerConfig struct {
	Image           string
	Entrypoint      []string
	Cmd             []string
	User            string
	Hostname        string
	Env             []string
	WorkingDir      string
	NetworkDisabled bool
	Labels          map[string]string
	HostConfig      hostConfig
}

// configOf returns the container of a bottle. What the bottle sees is put into it later,
// from outside: the Engine is asked for nothing of the host.
func configOf(spec *bottle.Spec, image string) *containerConfig {
	c := &containerConfig{
		Image: image, Entrypoint: []string{guestPath, "container"}, Cmd: []string{},
		User:     fmt.Sprintf("%d:%d", spec.User.UID, spec.User.GID),
		Hostname: spec.Hostname, WorkingDir: "/", NetworkDisabled: true,
		Labels: map[string]string{labelBottle: spec.ID, labelOwner: owner()},
	}
	h := &c.HostConfig
	h.NetworkMode, h.IpcMode, h.Runtime = "none", "private", runtimeName
	h.CapDrop, h.SecurityOpt, h.ReadonlyRootfs = []string{"ALL"}, []string{"no-new-privileges"}, true
	h.Memory = spec.Limits.Memory + memoryRoom(spec)
	h.MemorySwap = h.Memory // no swap
	h.PidsLimit = spec.Limits.Pids + guestPids
	// The Engine refuses more processors than the machine has.
	h.NanoCpus = int64(min(spec.Limits.CPUs, runtime.NumCPU())) * 1e9
	h.AutoRemove = true
	h.LogConfig.Type = "none"
	h.Ulimits = []ulimit{{"core", 0, 0}}
	return c
}

// inspected holds the parts of the Engine's account of a container that are compared.
type inspected struct {
	ID    string `json:"Id"`
	State struct {
		Running bool
		Pid     int
		Error   string
	}
	HostConfig hostConfig
	Config     struct {
		User       string
		Entrypoint []string
	}
	Mounts []struct{ Source, Destination string }
}

func (e *engine) inspect(ctx context.Context, id string) (*inspected, error) {
	c := &inspected{}
	return c, e.call(ctx, http.MethodGet, "/containers/"+id+"/json", nil, nil, c)
}

// create returns the container's id. It waits for the Engine's answer even if the caller
// gives up: without the id the container could not be removed.
func (e *engine) create(ctx context.Context, spec *bottle.Spec, image string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	var r struct {
		ID string `json:"Id"`
	}
	if err := e.call(ctx, http.MethodPost, "/containers/create", nil, configOf(spec, image), &r); err != nil {
		return "", fmt.Errorf("create the container: %w", err)
	}
	if r.ID == "" || strings.ContainsAny(r.ID, "/?#") {
		return "", errors.New("docker: the container has no id")
	}
	return r.ID, nil
}

func (e *engine) start(ctx context.Context, id string) error {
	if err := e.call(ctx, http.MethodPost, "/containers/"+id+"/start", nil, nil, nil); err != nil {
		return fmt.Errorf("start the container: %w", err)
	}
	return nil
}

// remove removes a container, running or not, and returns when it is gone. One that was
// gone is no error.
func (e *engine) remove(ctx context.Context, id string) error {
	err := e.call(ctx, http.MethodDelete, "/containers/"+id, url.Values{"force": {"1"}, "v": {"1"}}, nil, nil)
	if !gone(err) {
		return err
	}
	// The Engine may be removing it, since its first process has ended.
	err = e.call(ctx, http.MethodPost, "/containers/"+id+"/wait", url.Values{"condition": {"removed"}}, nil, nil)
	if gone(err) {
		return nil
	}
	return err
}

// check compares what the Engine made with what was asked for: it can have settings of
// its own.
func (c *inspected) check(spec *bottle.Spec) error {
	h := &c.HostConfig
	refuse := func(format string, args ...any) error {
		return &bottle.PostureError{Role: "container", Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case h.NetworkMode != "none":
		return refuse("its network is %q", h.NetworkMode)
	case h.Privileged:
		return refuse("it is privileged")
	case !slices.Equal(h.CapDrop, []string{"ALL"}) || len(h.CapAdd) > 0:
		return refuse("it has capabilities")
	case !h.ReadonlyRootfs:
		return refuse("its root can be written to")
	case len(h.Binds) > 0 || len(c.Mounts) > 0:
		return refuse("files of the host are mounted")
	case len(h.Devices) > 0:
		return refuse("it has devices")
	case h.Runtime != runtimeName:
		return refuse("its runtime is %q", h.Runtime)
	case h.PidMode != "" && h.PidMode != "private":
		return refuse("its processes are those of %q", h.PidMode)
	case c.Config.User != fmt.Sprintf("%d:%d", spec.User.UID, spec.User.GID):
		return refuse("its user is %q", c.Config.User)
	case !slices.Equal(c.Config.Entrypoint, []string{guestPath, "container"}):
		return refuse("it starts %q", c.Config.Entrypoint)
	case h.Memory != spec.Limits.Memory+memoryRoom(spec) || h.PidsLimit != spec.Limits.Pids+guestPids:
		return refuse("its limits are not those of the bottle")
	}
	return nil
}

// owner names this process: its number alone can be another's after its end.
func owner() string {
	return fmt.Sprintf("%d %s %s", os.Getpid(), startOf(os.Getpid()), bootID())
}

// startOf returns when a process started, in the kernel's ticks; empty: there is none.
func startOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name in parentheses may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return ""
	}
	return f[19]
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// sweep removes the containers of carboys that have ended.
func (e *engine) sweep(ctx context.Context) error {
	var list []struct {
		ID     string `json:"Id"`
		Labels map[string]string
	}
	q := url.Values{"all": {"1"}, "filters": {`{"label":["` + labelOwner + `"]}`}}
	if err := e.call(ctx, http.MethodGet, "/containers/json", q, nil, &list); err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if !ownerLives(c.Labels[labelOwner]) {
			errs = append(errs, e.remove(ctx, c.ID))
		}
	}
	return errors.Join(errs...)
}

func ownerLives(label string) bool {
	f := strings.Fields(label)
	if len(f) != 3 {
		return false
	}
	pid, err := strconv.Atoi(f[0])
	return err == nil && f[2] == bootID() && startOf(pid) == f[1]
}
