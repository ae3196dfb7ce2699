package hostexec

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SmolvmGuest is the path, inside a machine, of the one program that is started there. It
// is in a directory of the host that the machine has read-only.
const SmolvmGuest = "/carboy/bin/agent"

// smolvmName matches the names of carboy's machines. Others are never touched.
var smolvmName = whole(`carboy-[a-z0-9][a-z0-9-]{0,40}`)

// smolvmDirs are the places where smolvm's packages and its installer put the program
// itself. What they put on PATH is a shell script beside it.
func smolvmDirs() []string {
	dirs := []string{"/usr/lib/smolvm", "/usr/local/lib/smolvm", "/opt/smolvm", "/run/current-system/sw/libexec/smolvm"}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		dirs = append(dirs, filepath.Join(home, ".smolvm"), filepath.Join(home, ".nix-profile/libexec/smolvm"))
	}
	return dirs
}

// NotInstalled reports whether err says that a program was looked for and is not there.
func NotInstalled(err error) bool {
	var no *refusal
	return errors.As(err, &no) && no.Reason == reasonInstalled
}

// smolvmForms are the accepted arguments after "machine", by the first of them.
var smolvmForms = map[string]func(args []string) bool{
	"create": smolvmCreate,
	"start":  func(a []string) bool { return len(a) == 2 && smolvmNamed(a) },
	"stop":   func(a []string) bool { return len(a) == 2 && smolvmNamed(a) },
	"delete": func(a []string) bool { return len(a) == 3 && smolvmNamed(a) && a[2] == "-f" },
	"exec": func(a []string) bool {
		if len(a) > 2 && a[2] == "-i" {
			a = append(a[:2:2], a[3:]...)
		}
		return len(a) >= 4 && smolvmNamed(a) && a[2] == "--" && a[3] == SmolvmGuest
	},
}

func smolvmNamed(args []string) bool { return args[0] == "--name" && smolvmName().MatchString(args[1]) }

// smolvmCreate accepts a machine without an image, whose directories of the host are
// read-only, and which may reach one loopback address and asks that address for names.
func smolvmCreate(args []string) bool {
	if len(args) < 2 || !smolvmNamed(args) || len(args)%2 != 0 {
		return false
	}
	seen := map[string]string{}
	for i := 2; i < len(args); i += 2 {
		option, value := args[i], args[i+1]
		if _, twice := seen[option]; twice && option != "-v" {
			return false
		}
		seen[option] = value
		ok := false
		switch option {
		case "--cpus", "--mem":
			n, err := strconv.ParseUint(value, 10, 32)
			ok = err == nil && n > 0 && value[0] != '+'
		case "--allow-cidr":
			p, err := netip.ParsePrefix(value)
			ok = err == nil && p.Addr().Is4() && p.Addr().IsLoopback() && p.Bits() == 32
		case "--dns":
			a, err := netip.ParseAddr(value)
			ok = err == nil && a.Is4() && a.IsLoopback()
		case "-v":
			ok = smolvmVolume(value)
		}
		if !ok {
			return false
		}
	}
	return seen["--allow-cidr"] != "" && seen["--allow-cidr"] == seen["--dns"]+"/32"
}

// smolvmVolume accepts HOST:GUEST:ro with clean absolute paths.
func smolvmVolume(v string) bool {
	host, rest, _ := strings.Cut(v, ":")
	guest, mode, _ := strings.Cut(rest, ":")
	for _, p := range []string{host, guest} {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p || p == "/" || strings.ContainsAny(p, ",\n") {
			return false
		}
	}
	return mode == "ro"
}

// prepareSmolvm gives smolvm the user's directories, in which it keeps its state and its
// machines, and the libraries that lie beside it.
func prepareSmolvm(c *call) error {
	if len(c.args) < 2 || c.args[0] != "machine" || smolvmForms[c.args[1]] == nil || !smolvmForms[c.args[1]](c.args[2:]) {
		return refuse(c.program, reasonArgument, "arguments are not one of its forms")
	}
	c.argv = c.args
	for _, name := range []string{"HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"} {
		if v := os.Getenv(name); filepath.IsAbs(v) && strings.IndexByte(v, 0) < 0 {
			c.env = append(c.env, name+"="+v)
		}
	}
	here := filepath.Dir(c.path)
	c.env = append(c.env, "LD_LIBRARY_PATH="+filepath.Join(here, "lib"))
	if root := filepath.Join(here, "agent-rootfs"); isDir(root) {
		c.env = append(c.env, "SMOLVM_AGENT_ROOTFS="+root)
	}
	return nil
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
