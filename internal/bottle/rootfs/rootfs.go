// Package rootfs builds the file tree of a bottle: the host's own tools,
// read-only, and an /etc with the files that programs need. Everything else of
// the host (homes, other users, service data, keys, sockets, devices, /var,
// /opt, /srv, /root, /run) is absent rather than masked: it is never mounted,
// so nothing can be uncovered.
//
// Start reading at Host and Dir.
package rootfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// toolDirs are the host's tool directories. On merged-/usr systems all but the
// first are symbolic links, and are links inside too.
var toolDirs = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/nix/store", "/gnu/store", // world-readable by design
}

// etcFiles are copied when they are regular files that everyone may read.
var etcFiles = []string{
	"ld.so.cache", "ld.so.conf", "os-release", "debian_version", "lsb-release", "redhat-release", "alpine-release",
	"arch-release", "localtime", "timezone", "locale.conf", "locale.alias", "protocols", "services", "mime.types", "magic",
	"inputrc", "environment.d/locale.conf", "login.defs", "shells",
	"ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates.conf", "gai.conf", "host.conf", "netconfig", "rpc", "ethertypes",
	"xattr.conf", "papersize", "debuginfod/elfutils.urls",
	// settings.xml is left out: Maven keeps passwords there.
	"maven/m2.conf", "maven/toolchains.xml", "maven/logging/simplelogger.properties",
}

// etcDirs are bound read-only as a whole: they hold no keys.
var etcDirs = []string{
	"alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates", "crypto-policies",
	"ld.so.conf.d", "terminfo", "fonts", "java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk",
	"python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "perl", "xdg", "bash_completion.d",
	"skel", "vim", "emacs", "clang",
}

// secretDirs lie in tool directories and hold this machine's settings with
// credentials: npm keeps its global tokens in /usr/local/etc/npmrc.
var secretDirs = []string{"/usr/local/etc"}

// maxEtcFile bounds a copied file: /etc files are small, and a link may lead
// anywhere.
const maxEtcFile = 4 << 20

// Options describe the bottle for which the root is built.
type Options struct {
	User     bottle.User
	Hostname string
	DNS      netip.Addr // zero: no resolv.conf entry
	// Self4 is the bottle's own address, for /etc/hosts; zero: none.
	Self4 netip.Addr
	// Trusting makes room for the certificate that Trust adds.
	Trusting bool
	// Git is the text of the system's git configuration, which follows the
	// image's own; empty: none.
	Git string
	// Files are made in the user's home; the user may change them.
	Files []File
}

// File is a file in the home of the bottle's user.
type File struct {
	Path    string // relative to the home, clean
	Content []byte
	Exec    bool
}

// Host returns the default root: this machine's tools.
func Host(o Options) (bottle.Root, error) {
	return hostFrom("/", o)
}

func hostFrom(base string, o Options) (bottle.Root, error) {
	b := &builder{base: base, have: map[string]bool{"/": true}}
	for _, d := range toolDirs {
		if err := b.tools(d); err != nil {
			return bottle.Root{}, err
		}
	}
	for _, d := range secretDirs {
		b.hide(d)
	}
	b.dirs()
	for _, f := range etcFiles {
		b.copyFile("/etc/" + f)
	}
	for _, d := range etcDirs {
		if !o.Trusting || !trustDirs[d] {
			b.bind("/etc/" + d)
		}
	}
	b.identity(o)
	b.git(o)
	if o.Trusting {
		b.trust()
	}
	b.packaged()
	b.home(o)
	return b.root, b.err
}

// Dir returns a root that is a directory of the user's, such as an unpacked
// image. It adds only the files that a bottle needs.
func Dir(dir string, o Options) (bottle.Root, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return bottle.Root{}, err
	}
	if !fi.IsDir() {
		return bottle.Root{}, &fs.PathError{Op: "root file system", Path: dir, Err: unix.ENOTDIR}
	}
	b := &builder{base: dir, have: map[string]bool{"/": true}}
	b.root.Dir = dir
	b.dirs()
	b.identity(o)
	b.git(o)
	if o.Trusting {
		b.trust()
	}
	b.home(o)
	return b.root, b.err
}

// Built returns a root for building an image: dir with the names of hosts that a bottle
// needs, and with the directories that its kernel mounts on. Accounts, and all else, are the
// image's own.
func Built(dir string, o Options) (bottle.Root, error) {
	b := &builder{base: dir, have: map[string]bool{"/": true}}
	b.root.Dir = dir
	for _, d := range []string{"/etc", "/proc", "/sys", "/dev"} {
		b.add(bottle.Entry{Path: d, Mode: fs.ModeDir | 0o755})
	}
	b.scratch()
	b.hosts(o)
	if o.Trusting {
		b.text(builtTrustFile, string(b.hostBundle()))
		b.text(builtAuthorityFile, "")
	}
	return b.root, b.err
}

type builder struct {
	base string
	root bottle.Root
	have map[string]bool
	err  error
}

func (b *builder) add(e bottle.Entry) {
	if b.have[e.Path] {
		return
	}
	b.parents(e.Path)
	b.have[e.Path] = true
	b.root.Entries = append(b.root.Entries, e)
}

func (b *builder) parents(path string) {
	dir := filepath.Dir(path)
	if b.have[dir] {
		return
	}
	b.add(bottle.Entry{Path: dir, Mode: fs.ModeDir | 0o755})
}

func (b *builder) text(path, content string) {
	b.add(bottle.Entry{Path: path, Mode: 0o644, Content: []byte(content)})
}

// tools binds one tool directory or copies its link. A link must lead to
// another tool directory: anything else would expose other files.
func (b *builder) tools(dir string) error {
	path := filepath.Join(b.base, dir)
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		abs := to
		if !filepath.IsAbs(abs) {
			abs = filepath.Join(filepath.Dir(dir), to)
		}
		if !within(abs, toolDirs) {
			return fmt.Errorf("root file system: %s is a link to %s, which is not a tool directory", dir, to)
		}
		b.add(bottle.Entry{Path: dir, Mode: fs.ModeSymlink, Link: to})
	case fi.IsDir():
		b.bind(dir)
	}
	return nil
}

func within(path string, dirs []string) bool {
	for _, d := range dirs {
		if path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// bind exposes a host directory read-only at the same path, if it is a
// directory. The bottle gets this very directory, not one that replaces it
// later.
func (b *builder) bind(dir string) {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(b.base, dir), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	b.parents(dir)
	b.have[dir] = true
	b.root.Binds = append(b.root.Binds, bottle.Mount{Source: filepath.Join(b.base, dir), Target: dir, Access: bottle.AccessReadOnly, Dev: uint64(st.Dev), Ino: st.Ino})
}

// hide puts an empty directory over one of the host's.
func (b *builder) hide(dir string) {
	if fi, err := os.Lstat(filepath.Join(b.base, dir)); err == nil && fi.IsDir() {
		b.root.Binds = append(b.root.Binds, bottle.Mount{Target: dir, Access: bottle.AccessReadOnly})
	}
}

// copyFile copies a small file that everyone may read, following links once, on
// the host. It skips an unreadable file: no program needs it then.
func (b *builder) copyFile(path string) {
	if content, _ := b.public(path, maxEtcFile, 0); content != nil {
		b.add(bottle.Entry{Path: path, Mode: 0o644, Content: content})
	}
}

// public returns the content, not nil, and the permissions of a regular file of at most
// limit bytes that everyone may read. A start reads more than a hundred: an os.File would
// take twice the time.
func (b *builder) public(path string, limit, flags int) (content []byte, perm fs.FileMode) {
	fd, err := uninterrupted(func() (int, error) {
		return unix.Open(filepath.Join(b.base, path), flags|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, 0
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o004 == 0 || st.Size > int64(limit) {
		return nil, 0
	}
	content = make([]byte, st.Size)
	for rest := content; len(rest) > 0; {
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, rest) })
		if err != nil || n == 0 {
			return nil, 0
		}
		rest = rest[n:]
	}
	return content, fs.FileMode(st.Mode & 0o777)
}

// uninterrupted makes a system call again when a signal interrupted it.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

// dirs makes the empty directories that programs expect.
func (b *builder) dirs() {
	for _, d := range []string{"/etc", "/home", "/root", "/mnt", "/media", "/opt", "/srv", "/run", "/var", "/var/cache", "/var/lib", "/var/log", "/proc", "/sys", "/dev"} {
		b.add(bottle.Entry{Path: d, Mode: fs.ModeDir | 0o755})
	}
	b.scratch()
	for _, d := range []string{"/var/tmp", "/run/lock"} {
		b.add(bottle.Entry{Path: d, Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	}
	b.add(bottle.Entry{Path: "/var/run", Mode: fs.ModeSymlink, Link: "/run"})
	b.add(bottle.Entry{Path: "/var/lock", Mode: fs.ModeSymlink, Link: "/run/lock"})
	b.add(bottle.Entry{Path: "/etc/mtab", Mode: fs.ModeSymlink, Link: "/proc/self/mounts"})
}

// scratch makes /tmp. The embedded kernel would cover an empty one with a tmpfs of its own,
// which counts as memory and has no disk limit.
func (b *builder) scratch() {
	b.add(bottle.Entry{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	b.add(bottle.Entry{Path: "/tmp/.carboy", Mode: fs.ModeDir | 0o755})
}

// identity writes the bottle's accounts, host names and resolver.
func (b *builder) identity(o Options) {
	u := o.User
	shell := "/bin/sh"
	if f, err := b.open("/bin/bash"); err == nil {
		f.Close()
		shell = "/bin/bash"
	}
	var passwd, group strings.Builder
	fmt.Fprintln(&passwd, "root:x:0:0:root:/root:/bin/sh")
	fmt.Fprintln(&group, "root:x:0:")
	if u.UID != 0 {
		fmt.Fprintf(&passwd, "%s:x:%d:%d::%s:%s\n", u.Name, u.UID, u.GID, u.Home, shell)
	}
	if u.GID != 0 {
		fmt.Fprintf(&group, "%s:x:%d:\n", u.Name, u.GID)
	}
	if u.UID != 65534 {
		fmt.Fprintln(&passwd, "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin")
	}
	if u.GID != 65534 {
		fmt.Fprintln(&group, "nogroup:x:65534:")
	}
	b.text("/etc/passwd", passwd.String())
	b.text("/etc/group", group.String())
	b.hosts(o)
	b.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n")
	// Not the host's profile: people put tokens, and proxies with passwords,
	// there.
	b.text("/etc/profile", "[ -r /etc/bash.bashrc ] && [ -n \"$BASH_VERSION\" ] && . /etc/bash.bashrc\n")
	b.text("/etc/bash.bashrc", "[ -n \"$PS1\" ] && PS1='\\u@\\h:\\w\\$ '\n")
	b.text("/etc/machine-id", "ca4b0700000000000000000000000000\n")
}

// hosts writes the names of hosts, and the resolver.
func (b *builder) hosts(o Options) {
	b.text("/etc/hostname", o.Hostname+"\n")
	hosts := "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
	if o.Self4.IsValid() {
		hosts += o.Self4.String() + " " + o.Hostname + "\n"
	} else {
		hosts += "127.0.1.1 " + o.Hostname + "\n"
	}
	b.text("/etc/hosts", hosts)
	if o.DNS.IsValid() {
		// One quick try: the gateway is local and answers at once.
		b.text("/etc/resolv.conf", "nameserver "+o.DNS.String()+"\noptions timeout:2 attempts:2\n")
	} else {
		b.text("/etc/resolv.conf", "")
	}
}

// GitConfig is the path of the system's git configuration.
const GitConfig = "/etc/gitconfig"

// git puts the image's own configuration first, since later settings win. It
// leaves out this machine's, which may name helpers and keys.
func (b *builder) git(o Options) {
	if o.Git == "" {
		return
	}
	text := ""
	if b.root.Dir != "" {
		if f, err := b.open(GitConfig); err == nil {
			defer f.Close()
			own, err := io.ReadAll(io.LimitReader(f, maxEtcFile))
			if err != nil {
				b.err = errors.Join(b.err, err)
			}
			text = strings.TrimRight(string(own), "\n") + "\n"
		}
	}
	b.text(GitConfig, text+o.Git)
}

func (b *builder) home(o Options) {
	home := o.User.Home
	b.add(bottle.Entry{Path: home, Mode: fs.ModeDir | 0o755, Owned: true})
	for _, d := range []string{".config", ".cache"} {
		b.add(bottle.Entry{Path: filepath.Join(home, d), Mode: fs.ModeDir | 0o755, Owned: true})
	}
	for _, f := range o.Files {
		b.file(home, f)
	}
}

// file makes a file of the user's and its parent directories. A file that
// exists already is an error, because replacing it would go unnoticed.
func (b *builder) file(home string, f File) {
	path := filepath.Join(home, f.Path)
	if !filepath.IsLocal(f.Path) || filepath.Clean(f.Path) != f.Path || f.Path == "." || b.have[path] {
		if b.err == nil {
			b.err = fmt.Errorf("root file system: %.200q can't be made in the home %s", f.Path, home)
		}
		return
	}
	dir := home
	parts := strings.Split(f.Path, "/")
	for _, part := range parts[:len(parts)-1] {
		dir += "/" + part
		b.add(bottle.Entry{Path: dir, Mode: fs.ModeDir | 0o755, Owned: true})
	}
	mode := fs.FileMode(0o600)
	if f.Exec {
		mode = 0o700
	}
	b.add(bottle.Entry{Path: path, Mode: mode, Content: f.Content, Owned: true})
}
