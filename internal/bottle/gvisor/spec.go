package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/carboy/carboy/internal/bottle"
)

const (
	name     = "gvisor"
	annotUID = "dev.carboy.uid"
	annotGID = "dev.carboy.gid"
	initPath = "/.carboy/init"
	// initID is init's user inside. No other process has it, so a command that
	// signals everything it may (kill -9 -1, pkill) cannot end its own bottle
	// and lose its changes. It exists in the sentry alone.
	initID = 4_200_000_001
)

// flags returns gVisor's settings for every bottle. Important defaults are
// repeated: a changed default upstream must not change a bottle.
func flags(p *plan, l *layout) map[string]string {
	over := "root:memory"
	if l.scratch != "" {
		over = "root:dir=" + l.scratch
	}
	f := map[string]string{
		"root":     l.state,
		"platform": "systrap",
		"network":  "sandbox",
		"overlay2": fmt.Sprintf("%s,size=%d", over, p.Limits.Disk),
		// Nothing inside shares the workspace's lower layer, and an overlay
		// hides the host's edits anyway; bind mounts stay "shared".
		"file-access":                 "exclusive",
		"file-access-mounts":          "shared",
		"directfs":                    "true",
		"dcache":                      "100000",
		"ignore-cgroups":              "true",
		"in-sandbox-cgroup":           "v2",
		"gofer-network-namespace":     "new",
		"host-settings":               "ignore",
		"host-uds":                    "none",
		"host-fifo":                   "none",
		"character-device-policy":     "emulated-only",
		"net-raw":                     "false",
		"allow-packet-socket-write":   "false",
		"allow-suid":                  "false",
		"allow-flag-override":         "false",
		"iouring":                     "false",
		"oci-seccomp":                 "false",
		"nvproxy":                     "false",
		"tpuproxy":                    "false",
		"rdmaproxy":                   "false",
		"reproduce-nat":               "false",
		"profile":                     "false",
		"watchdog-action":             "log",
		"app-huge-pages":              "true",
		"tx-checksum-offload":         "true",
		"rx-checksum-offload":         "true",
		"sidecar-usage-policy":        "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
		"control-rpc-stop-timeout":    "0s",
		"TESTONLY-unsafe-nonroot":     "false",
		"systrap-disable-fast-path":   "false",
		"allow-live-tcp-migration":    "false",
		"allow-rootfs-tar-annotation": "false",
	}
	if os.Geteuid() != 0 {
		f["rootless"] = "true"
	}
	if p.Debug != "" {
		f["debug"] = "true"
		f["debug-log"] = p.Debug + "/"
	}
	return f
}

func newConfig(p *plan, l *layout) (*config.Config, error) {
	fs := flag.NewFlagSet("carboy", flag.ContinueOnError)
	config.RegisterFlags(fs)
	for k, v := range flags(p, l) {
		if err := fs.Set(k, v); err != nil {
			return nil, fmt.Errorf("gVisor setting %s=%s: %w", k, v, err)
		}
	}
	return config.NewFromFlags(fs)
}

func writeSpec(p *plan, l *layout) error {
	if err := makeInit(l.root); err != nil {
		return err
	}
	b, err := json.Marshal(newSpec(p, l))
	if err != nil {
		return err
	}
	return os.WriteFile(l.bundle+"/config.json", b, 0o600)
}

// readSpec returns the spec for gVisor's parent side, with the bottle's user,
// as whom the sandbox's processes run on the host. The sentry reads the file
// itself and finds init's user there.
func readSpec(l *layout) (*specs.Spec, error) {
	s, err := specutils.ReadSpec(l.bundle, nil)
	if err != nil {
		return nil, err
	}
	for name, id := range map[string]*uint32{annotUID: &s.Process.User.UID, annotGID: &s.Process.User.GID} {
		n, err := strconv.ParseUint(s.Annotations[name], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("spec: annotation %s: %w", name, err)
		}
		*id = uint32(n)
	}
	return s, nil
}

func newSpec(p *plan, l *layout) *specs.Spec {
	s := &specs.Spec{
		Version:  "1.1.0",
		Root:     &specs.Root{Path: l.root},
		Hostname: p.Hostname,
		Process: &specs.Process{
			Args:            []string{initPath},
			Cwd:             "/",
			User:            specs.User{UID: initID, GID: initID},
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{},
			Rlimits:         rlimits(p.made()),
		},
		Mounts: append([]specs.Mount{
			{Type: "proc", Destination: "/proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Type: "tmpfs", Destination: "/dev", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Type: "devpts", Destination: "/dev/pts", Source: "devpts", Options: []string{"nosuid", "noexec", "gid=" + strconv.Itoa(int(p.User.GID)), "mode=620", "ptmxmode=666"}},
			{Type: "sysfs", Destination: "/sys", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Type: "tmpfs", Destination: "/dev/shm", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", sizeOption(p.made().Memory / 2)}},
			{Type: "cgroup", Destination: "/sys/fs/cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		}, l.mounts...),
		Annotations: map[string]string{
			annotUID: strconv.Itoa(int(p.User.UID)),
			annotGID: strconv.Itoa(int(p.User.GID)),
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace}},
		},
	}
	if uid := os.Geteuid(); uid != 0 {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: p.User.UID, HostID: uint32(uid), Size: 1}}
		s.Linux.GIDMappings = []specs.LinuxIDMapping{{ContainerID: p.User.GID, HostID: uint32(os.Getegid()), Size: 1}}
	}
	return s
}

func sizeOption(n int64) string { return "size=" + strconv.FormatInt(n, 10) }

func rlimits(l bottle.Limits) []specs.POSIXRlimit {
	same := func(t string, n int64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: t, Hard: uint64(n), Soft: uint64(n)}
	}
	return []specs.POSIXRlimit{
		same("RLIMIT_NOFILE", l.OpenFiles),
		same("RLIMIT_FSIZE", l.FileSize),
		same("RLIMIT_CORE", 0),
	}
}
