// Package hosts reads hosts.yaml, in which an operator lists the machines that carboy may
// change, their keys, and the directories that it may and may not change there.
//
// Every [Host] has at least one pinned key, a user and an allowed root. A missing key of
// the file grants nothing. A file that others can write to is an error.
//
// Start reading at [Load].
package hosts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/ship/module"
)

// FileName is the name of the file in the configuration directory.
const FileName = "hosts.yaml"

// Host is one machine.
type Host struct {
	Name    string
	Address string // a name or an address, without a port
	Port    int
	User    string
	Keys    []ssh.PublicKey // pinned: the host must have one of them
	Jump    string          // the host through which it is reached, or ""
	KeyFile string          // absolute path of the private key; "": use the SSH agent
	Docker  string          // DOCKER_HOST on the host, or ""

	Roots  []string // remote_root must be in one of them
	Sacred []string // remote_root must not be in, above or equal to one of them
	Apply  bool     // whether carboy may change the host

	// Approvals is the number of people who must approve a plan, at least 1.
	Approvals int
	// FreeUndo allows the last apply to be undone without an approval.
	FreeUndo bool
	// Reviews names the forge whose reviews can approve plans for this host. nil: none can.
	Reviews *Reviews
}

// File is a parsed hosts.yaml.
type File struct {
	Path  string
	hosts map[string]*Host
}

// errNone means that there is no hosts.yaml, so no host is allowed.
var errNone = errors.New("there is no " + FileName)

// maxFile bounds the file, in bytes.
const maxFile = document.MaxSize

// Load reads hosts.yaml in dir. The error matches errNone if there is none, and is a
// [document.Error] if it is invalid.
func Load(dir string) (*File, error) {
	name := filepath.Join(dir, FileName)
	data, err := ReadTrusted(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, errNone)
	}
	if err != nil {
		return nil, err
	}
	return Parse(name, data)
}

// ReadTrusted reads a file that grants permissions. It must be a regular file of at most
// limit bytes, owned by this user or root, and not writable by anybody else.
func ReadTrusted(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is not a file", name)
	case !ok || int(st.Uid) != os.Getuid() && st.Uid != 0:
		return nil, fmt.Errorf("%s: belongs to somebody else; it decides what may be changed", name)
	case fi.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("%s: others can write to it; chmod go-w %s", name, name)
	case fi.Size() > limit:
		return nil, fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may have grown since
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return b, err
}

// Parse parses the text of a hosts.yaml; file is its name in errors.
func Parse(file string, data []byte) (*File, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	out := &File{Path: file, hosts: map[string]*Host{}}
	m := top.Mapping("hosts", "reviews")
	reviews := parseAllReviews(m.Get("reviews"))
	names, values := m.Need("hosts").Entries()
	for i, name := range names {
		if !module.ValidHost(name) {
			values[i].Bad("has a name that is none", "letters, digits, ._- only")
			continue
		}
		out.hosts[name] = parse(name, values[i], reviews)
	}
	for i, name := range names {
		h := out.hosts[name]
		if h == nil || h.Jump == "" {
			continue
		}
		if j := out.hosts[h.Jump]; j == nil || j.Jump != "" || j == h {
			values[i].Bad("jumps through "+strconv.Quote(h.Jump), "name another entry, that is reached directly")
		}
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

func parse(name string, v document.Value, reviews map[string]*Reviews) *Host {
	m := v.Mapping("address", "port", "user", "host_keys", "jump", "key", "docker_host", "allowed_roots", "sacred_paths", "apply", "allow_root", "approvals", "undo_without_approval", "reviews")
	h := &Host{Name: name, Port: int(m.Get("port").Int(22, 1, 65535)), Jump: m.Get("jump").Text(), Apply: m.Get("apply").Bool(false),
		Approvals: int(m.Get("approvals").Int(1, 1, 16)), FreeUndo: m.Get("undo_without_approval").Bool(false)}
	address := m.Need("address")
	if h.Address = address.Text(); address.Present() && !module.ValidAddress(h.Address) {
		address.Bad("is neither a name nor an address", "without user and port, which have keys of their own")
	}
	user := m.Need("user")
	switch h.User = user.Text(); {
	case !user.Present():
	case !module.ValidUser(h.User):
		user.Bad("is not a user's name", "")
	case h.User == "root" && !m.Get("allow_root").Bool(false):
		user.Bad("is root", "use one who may only run docker, or write allow_root: true")
	}
	keys := m.Need("host_keys")
	for _, k := range keys.List() {
		key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(k.Text()))
		if err != nil || len(rest) > 0 {
			k.Bad("is not a public key", "ssh-keyscan -t ed25519 "+h.Address+" prints it after the address; compare it with the machine's own")
			continue
		}
		h.Keys = append(h.Keys, key)
	}
	if keys.Present() && len(keys.List()) == 0 {
		keys.Bad("is empty", "without a pinned key anybody could be this host")
	}
	if f := m.Get("key"); f.Present() {
		if h.KeyFile = f.Text(); !filepath.IsAbs(h.KeyFile) {
			f.Bad("is not an absolute path", "leave it out to use the agent")
		}
	}
	if d := m.Get("docker_host"); d.Present() {
		if h.Docker = d.Text(); !strings.HasPrefix(h.Docker, "unix:///") || module.Absolute(strings.TrimPrefix(h.Docker, "unix://")) != "" {
			d.Bad("is not the address of a socket", "such as unix:///run/user/1000/docker.sock")
		}
	}
	h.Roots, h.Sacred = paths(m.Need("allowed_roots")), paths(m.Get("sacred_paths"))
	if r := m.Get("allowed_roots"); r.Present() && len(r.List()) == 0 {
		r.Bad("is empty", "nothing could be put there; name a directory such as /srv")
	}
	if r := m.Get("reviews"); r.Present() {
		if h.Reviews = reviews[r.Text()]; h.Reviews == nil {
			r.Bad("names "+strconv.Quote(r.Text())+", which is no entry of reviews", "")
		}
	}
	return h
}

func paths(v document.Value) []string {
	out := v.Strings()
	for _, p := range out {
		if why := module.Absolute(p); why != "" {
			v.Bad(fmt.Sprintf("has %.200q, which %s", p, why), "")
		}
	}
	return out
}

// Find returns a host by its name.
func (f *File) Find(name string) (*Host, bool) {
	h, ok := f.hosts[name]
	return h, ok
}

// names returns the names of the hosts, sorted.
func (f *File) names() []string {
	var out []string
	for n := range f.hosts {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Fingerprints returns the SHA-256 fingerprints of the pinned keys, sorted.
func (h *Host) Fingerprints() []string {
	var out []string
	for _, k := range h.Keys {
		out = append(out, ssh.FingerprintSHA256(k))
	}
	slices.Sort(out)
	return out
}

// Admits returns why a directory may not be changed on this host, "" if it may.
func (h *Host) Admits(dir string) string {
	if why := module.Absolute(dir); why != "" {
		return why
	}
	for _, s := range h.Sacred {
		if within(dir, s) || within(s, dir) {
			return "lies in or around " + s + ", which is sacred"
		}
	}
	for _, r := range h.Roots {
		if within(dir, r) {
			return ""
		}
	}
	return "lies in none of its allowed_roots"
}

// within reports whether a equals b or is below it. Both are absolute and clean.
func within(a, b string) bool { return a == b || strings.HasPrefix(a, b+"/") }
