package proto

// Version is the version of the protocol. Both sides must have the same.
const Version = 1

// Bounds on what a guest says of itself.
const (
	NonceSize = 32
	maxNames  = 64   // entries of a list
	maxName   = 4096 // bytes of a text
)

// Opening is the first message of the host.
type Opening struct {
	Version int    `json:"version"`
	Nonce   []byte `json:"nonce"`
}

// Hello is the first message of the guest. The host checks Version and Nonce and the
// bounds; the rest is what the guest says.
type Hello struct {
	Version int      `json:"version"`
	Nonce   []byte   `json:"nonce"` // that of the Opening
	PID     int      `json:"pid"`
	UID     int      `json:"uid"`
	Kernel  string   `json:"kernel"`
	Arch    string   `json:"arch"`
	NICs    []NIC    `json:"nics,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what went wrong before, for people
}

// NIC is a network card other than the loopback.
type NIC struct {
	Name string `json:"name"`
	MAC  string `json:"mac"`
}

// Check returns an error if a part of h is out of bounds.
func (h *Hello) Check(nonce []byte) error {
	switch {
	case h.Version != Version:
		return breach("version %d, not %d", h.Version, Version)
	case string(h.Nonce) != string(nonce) || len(nonce) != NonceSize:
		return breach("the nonce came back changed")
	case len(h.NICs) > maxNames || len(h.Notes) > maxNames || len(h.Kernel) > maxName || len(h.Arch) > maxName:
		return breach("the hello is too long")
	}
	for _, n := range h.NICs {
		if len(n.Name) > maxName || len(n.MAC) > maxName {
			return breach("the hello is too long")
		}
	}
	for _, n := range h.Notes {
		if len(n) > maxName {
			return breach("the hello is too long")
		}
	}
	return nil
}

// Op names a request.
type Op string

// The requests.
const (
	OpSetup  Op = "setup"
	OpStart  Op = "start"
	OpImport Op = "import" // stream In: a tar
	OpExport Op = "export" // stream Out: a tar
	OpFreeze Op = "freeze"
	OpThaw   Op = "thaw"
	OpStats  Op = "stats"
)

// output returns the streams from the guest that a request has.
func (o Op) output() []int {
	switch o {
	case OpStart:
		return []int{Out, Err}
	case OpExport:
		return []int{Out}
	}
	return nil
}

// Request asks the guest for something. One of the parts is set, by Op.
type Request struct {
	Op     Op      `json:"op"`
	Setup  *Setup  `json:"setup,omitempty"`
	Start  *Start  `json:"start,omitempty"`
	Dir    string  `json:"dir,omitempty"`    // import
	Layers []Layer `json:"layers,omitempty"` // export
}

// Code says why a request failed, where the host acts on it.
type Code string

// The codes. Any other failure has CodeOther.
const (
	CodeOther         Code = "other"
	CodeNotFound      Code = "not-found"
	CodeNotExecutable Code = "not-executable"
)

// Reply answers a request. Error is empty on success.
type Reply struct {
	Error string `json:"error,omitempty"`
	Code  Code   `json:"code,omitempty"`
	Stats *Stats `json:"stats,omitempty"`
}

// Setup prepares the guest. It comes before the first Start. There may be several, with
// imports between them: each does its steps, and the last one decides about commands. All
// paths are in the guest's own root.
type Setup struct {
	Hostname string `json:"hostname,omitempty"` // needs root
	Steps    []Step `json:"steps,omitempty"`    // in order; most need root
	Net      *Net   `json:"net,omitempty"`      // needs root; nil: the network is left as it is
	// Root names the directory to which commands are chrooted; empty: none.
	Root string `json:"root,omitempty"`
	// UID and GID are the commands' ids where the program is root; else ignored.
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	// Filter refuses system calls to commands that programs do without, as if the kernel
	// had none: rings, keys, probes, mounts, other architectures' calls.
	Filter bool `json:"filter,omitempty"`
	// Cgroup puts commands into a cgroup (version 2) of their own with Limits.
	Cgroup bool   `json:"cgroup,omitempty"`
	Limits Limits `json:"limits"`
	// Upper is a directory on the file system whose use Stats reports; empty: none.
	Upper string `json:"upper,omitempty"`
}

// Step makes one thing in the file tree.
type Step struct {
	// Op is "mkdir" (with its parents), "mount", "symlink" or "node".
	Op   string `json:"op"`
	Path string `json:"path"`
	// Source holds a mount's source, or the text of a link. "virtio:SERIAL" is the virtio
	// disk with that serial number.
	Source string `json:"source,omitempty"`
	Type   string `json:"type,omitempty"`  // of a mount
	Data   string `json:"data,omitempty"`  // of a mount
	Flags  uint64 `json:"flags,omitempty"` // of a mount: MS_*
	// Mode holds permission bits with the sticky bit, as stat(2) has them.
	Mode uint32 `json:"mode,omitempty"`
	UID  uint32 `json:"uid,omitempty"`
	GID  uint32 `json:"gid,omitempty"`
}

// Net describes the guest's one network card.
type Net struct {
	MAC      string   `json:"mac"` // which card
	MTU      uint32   `json:"mtu"`
	Addrs    []string `json:"addrs"`    // with prefix length
	Gateways []string `json:"gateways"` // one for each family
}

// Limits bound what runs inside; zero means no limit.
type Limits struct {
	Memory    int64 `json:"memory,omitempty"`
	Pids      int64 `json:"pids,omitempty"` // without a cgroup, of the user's (RLIMIT_NPROC)
	CPUs      int   `json:"cpus,omitempty"`
	FileSize  int64 `json:"file_size,omitempty"`  // RLIMIT_FSIZE
	OpenFiles int64 `json:"open_files,omitempty"` // RLIMIT_NOFILE
}

// Start starts a command. Strings are bytes: JSON would change what is not UTF-8.
type Start struct {
	Args     [][]byte `json:"args"`
	Env      [][]byte `json:"env"`
	Dir      []byte   `json:"dir"`
	Terminal bool     `json:"terminal,omitempty"`
	Rows     uint16   `json:"rows,omitempty"`
	Cols     uint16   `json:"cols,omitempty"`
}

// Layer is a part of an overlay's upper directory, to be exported.
type Layer struct {
	Dir string `json:"dir"` // the upper directory: names in the stream are from there
	At  string `json:"at"`  // which directory in it
}

// Control changes what runs on a channel. Each has the next number, from 1.
type Control struct {
	Seq    uint32 `json:"seq"`
	Signal int    `json:"signal,omitempty"`
	Group  bool   `json:"group,omitempty"`
	Rows   uint16 `json:"rows,omitempty"` // a size, when Signal is 0
	Cols   uint16 `json:"cols,omitempty"`
}

// Answer answers a Control.
type Answer struct {
	Seq   uint32 `json:"seq"`
	Error string `json:"error,omitempty"`
}

// Exit says how a command ended.
type Exit struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}

// Check returns an error if no process can end so.
func (e Exit) Check() error {
	if e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 || (e.Code != 0 && e.Signal != 0) {
		return breach("exit with code %d and signal %d", e.Code, e.Signal)
	}
	return nil
}

// Stats holds what the commands use.
type Stats struct {
	Memory  int64 `json:"memory"`  // bytes, without the page cache
	Refused int64 `json:"refused"` // forks
	Disk    int64 `json:"disk"`    // bytes used on the file system of Setup.Upper
}

// Check returns an error if a number is impossible.
func (s *Stats) Check() error {
	for _, n := range []int64{s.Memory, s.Refused, s.Disk} {
		if n < 0 || n > 1<<60 { // sums of two must fit
			return breach("impossible statistics: %d", n)
		}
	}
	return nil
}
