package docker

import (
	"context"
	"crypto/rand"
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
	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/safetext"
)

// Labels of containers. A container whose owner has ended is removed by the next carboy
// that can tell.
const (
	labelBottle = "dev.carboy.bottle"
	labelOwner  = "dev.carboy.owner" // process, its start and the boot
	labelPIDs   = "dev.carboy.pidns" // where the process has that number
)

// guestPids is added to the limit on processes, for the guest program's own threads and
// one process that becomes a command.
const guestPids = 16

// memoryRoom is added to the container's limit on memory. carboy looks at Usage and ends
// the run at the bottle's limit, with that reason; the kernel, which kills a process for
// no reason that anybody sees, comes second.
func memoryRoom(spec *bottle.Spec) int64 { return max(256<<20, spec.Limits.Memory/4) }

// runtimeName is the OCI runtime that shares the host's kernel.
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
	Init           *bool
	CgroupnsMode   string
	IpcMode        string
	PidMode        string
	Runtime        string
	Binds          []string
	Devices        []any
	MaskedPaths    *[]string `json:",omitempty"` // nil: the Engine's own
	ReadonlyPaths  *[]string `json:",omitempty"`
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
	AttachStdin     bool                `json:",omitempty"`
	AttachStdout    bool                `json:",omitempty"`
	OpenStdin       bool                `json:",omitempty"`
	StdinOnce       bool                `json:",omitempty"` // it ends when carboy does
	Volumes         map[string]struct{} `json:",omitempty"`
	Healthcheck     struct{ Test []string }
	Labels          map[string]string
	HostConfig      hostConfig
}

// configOf returns the container of a bottle under runc. What the bottle sees is put into it
// later, from outside: the Engine is asked for nothing of the host.
func configOf(spec *bottle.Spec, image string) *containerConfig {
	c := &containerConfig{
		Image: image, Entrypoint: []string{guestPath, "container"}, Cmd: []string{},
		User:     fmt.Sprintf("%d:%d", spec.User.UID, spec.User.GID),
		Hostname: spec.Hostname, WorkingDir: "/", NetworkDisabled: true,
		Labels: map[string]string{labelBottle: spec.ID, labelOwner: owner(), labelPIDs: pidNamespace()},
	}
	c.Healthcheck.Test = []string{"NONE"}
	h := &c.HostConfig
	h.NetworkMode, h.IpcMode, h.CgroupnsMode, h.Runtime = "none", "private", "private", runtimeName
	h.Init = new(bool) // false, whatever the Engine's settings say: the guest is the first process
	h.CapDrop, h.SecurityOpt, h.ReadonlyRootfs = []string{"ALL"}, []string{"no-new-privileges"}, true
	h.Memory = spec.Limits.Memory + memoryRoom(spec)
	h.MemorySwap = h.Memory // no swap
	h.PidsLimit = spec.Limits.Pids + guestPids
	// The Engine refuses more processors than the machine has.
	h.NanoCpus = int64(min(spec.Limits.CPUs, runtime.NumCPU())) * 1e9
	h.AutoRemove = true
	h.LogConfig.Type = "none"
	h.Ulimits = []ulimit{{"core", 1, 1}} // with 0, the host's program for core files is started
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
	Mounts []struct{ Type, Destination string }
}

// container returns the API's path for a container.
func container(id, what string) string { return "/containers/" + url.PathEscape(id) + what }

// create makes a container, and returns its id. It waits for the Engine's answer even if the
// caller gives up. If there is none, the container can be found by the name that is returned.
func (e *engine) create(ctx context.Context, c *containerConfig) (id string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	name := "carboy-" + strings.ToLower(rand.Text())
	var r struct {
		ID string `json:"Id"`
	}
	err = e.call(ctx, http.MethodPost, "/containers/create", url.Values{"name": {name}}, c, &r)
	if err == nil && r.ID == "" {
		err = errors.New("it has no id")
	}
	if err != nil {
		return name, fmt.Errorf("create the container: %w", err)
	}
	return r.ID, nil
}

// start starts a container, and finds its first process.
func (e *engine) start(ctx context.Context, id string, want *containerConfig) (*process, error) {
	if err := e.call(ctx, http.MethodPost, container(id, "/start"), nil, nil, nil); err != nil {
		return nil, fmt.Errorf("start the container: %w", err)
	}
	var c inspected
	err := e.call(ctx, http.MethodGet, container(id, "/json"), nil, nil, &c)
	switch {
	case dockerapi.Gone(err) || err == nil && !c.State.Running:
		return nil, fmt.Errorf("docker: the container ended at once %s; the Engine's log may say why: journalctl -u docker", safetext.String(c.State.Error, 300))
	case err != nil:
		return nil, err
	}
	if err := c.check(want); err != nil {
		return nil, err
	}
	return openProcess(c.State.Pid, c.ID)
}

// remove removes a container, running or not, and returns when it is gone. One that was
// gone is no error. One that may be paused goes on first: under gVisor the Engine's kill does
// not end it else.
func (e *engine) remove(ctx context.Context, id string, paused bool) error {
	if paused {
		_ = e.call(ctx, http.MethodPost, container(id, "/unpause"), nil, nil, nil)
	}
	err := e.call(ctx, http.MethodDelete, container(id, ""), url.Values{"force": {"1"}, "v": {"1"}}, nil, nil)
	if !dockerapi.Gone(err) {
		return err
	}
	// The Engine may be removing it, since its first process has ended.
	if err = e.call(ctx, http.MethodPost, container(id, "/wait"), url.Values{"condition": {"removed"}}, nil, nil); dockerapi.Gone(err) {
		return nil
	}
	return err
}

// check compares what the Engine made with what was asked for: it can have settings of
// its own.
func (c *inspected) check(want *containerConfig) error {
	h, w := &c.HostConfig, &want.HostConfig
	refuse := func(format string, args ...any) error {
		return &bottle.PostureError{Role: "container", Reason: fmt.Sprintf(format, args...)}
	}
	mounted := slices.ContainsFunc(c.Mounts, func(m struct{ Type, Destination string }) bool {
		_, asked := want.Volumes[m.Destination]
		return !asked || m.Type != "volume"
	})
	switch {
	case h.NetworkMode != w.NetworkMode:
		return refuse("its network is %q", h.NetworkMode)
	case h.Privileged:
		return refuse("it is privileged")
	case !slices.Equal(h.CapDrop, w.CapDrop) || !slices.Equal(capNames(h.CapAdd), capNames(w.CapAdd)):
		return refuse("it has capabilities")
	case !h.ReadonlyRootfs:
		return refuse("its root can be written to")
	case len(h.Binds) > 0 || mounted || len(c.Mounts) != len(want.Volumes):
		return refuse("files of the host are mounted")
	case len(h.Devices) > 0:
		return refuse("it has devices")
	case h.Runtime != w.Runtime:
		return refuse("its runtime is %q", h.Runtime)
	case h.PidMode != "" && h.PidMode != "private":
		return refuse("its processes are those of %q", h.PidMode)
	case c.Config.User != want.User:
		return refuse("its user is %q", c.Config.User)
	case !slices.Equal(c.Config.Entrypoint, want.Entrypoint):
		return refuse("it starts %q", c.Config.Entrypoint)
	case h.Memory != w.Memory || h.PidsLimit != w.PidsLimit || h.NanoCpus != w.NanoCpus:
		return refuse("its limits are not those of the bottle: the kernel may lack cgroups for memory, processes or processors")
	}
	return nil
}

// capNames returns the names of capabilities in one form and order: Engines differ.
func capNames(list []string) (out []string) {
	for _, c := range list {
		out = append(out, strings.TrimPrefix(c, "CAP_"))
	}
	slices.Sort(out)
	return out
}

// owner names this process: its number alone can be another's after its end.
func owner() string {
	return fmt.Sprintf("%d %s %s", os.Getpid(), startOf(os.Getpid()), bootID())
}

// startOf returns when a process started, in the kernel's ticks; empty: none runs.
func startOf(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name in parentheses may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" { // dead, and not yet waited for
		return ""
	}
	return f[19]
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

func pidNamespace() string {
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return ns
}

// sweep removes the containers of carboys that have ended.
func (e *engine) sweep(ctx context.Context) error {
	var list []struct {
		ID     string `json:"Id"`
		Labels map[string]string
		State  string
	}
	q := url.Values{"all": {"1"}, "filters": {`{"label":["` + labelOwner + `"]}`}}
	if err := e.call(ctx, http.MethodGet, "/containers/json", q, nil, &list); err != nil {
		return err
	}
	var errs []error
	for _, c := range list {
		if ownerLives(c.Labels) {
			continue
		}
		if err := e.remove(ctx, c.ID, c.State == "paused"); err != nil {
			id := safetext.String(c.ID, 64)
			errs = append(errs, fmt.Errorf("remove what a carboy left that was killed (docker rm -f %s): %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// ownerLives reports whether the carboy that made a container may be living. Of one in
// another PID namespace nothing is known here.
func ownerLives(labels map[string]string) bool {
	if ns := labels[labelPIDs]; ns != "" && ns != pidNamespace() {
		return true
	}
	f := strings.Fields(labels[labelOwner])
	if len(f) != 3 {
		return false
	}
	pid, err := strconv.Atoi(f[0])
	return err == nil && f[2] == bootID() && startOf(pid) == f[1]
}
