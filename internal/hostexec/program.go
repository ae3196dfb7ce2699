package hostexec

import (
	"slices"
	"strings"
	"time"
)

// Program names one member of the closed set. Any other number is refused, zero
// too.
type Program uint8

const (
	// Git reads a repository without running anything that it carries.
	Git Program = iota + 1
	// AppArmorParser loads or removes carboy's own AppArmor profile, as root.
	AppArmorParser
	// Buildctl has a BuildKit daemon build the user's own Dockerfile.
	Buildctl
	// GitServe stores, checks and reads packs for the git gate, and serves
	// upstream repositories on this machine.
	GitServe
	// GitLand brings commits that a bottle made into the host's repository.
	GitLand
	// Smolvm makes, starts and ends virtual machines whose names begin with carboy-.
	Smolvm
	// Qemu runs a virtual machine; see [Runner.StartSealed].
	Qemu
	// Mke2fs makes a file system in a file, for a virtual machine's disk.
	Mke2fs
)

// String returns the bare name, or "unknown program".
func (p Program) String() string {
	if s := hostPrograms[p]; s != nil {
		return s.name
	}
	return "unknown program"
}

// MaxTimeout bounds Command.Timeout for every program.
const MaxTimeout = time.Hour

// spec holds the fixed rules of one program.
type spec struct {
	name string
	// env maps the names a caller may pass to a check of the value.
	env map[string]func(string) bool
	// prepare checks the arguments and turns them into an invocation. It
	// refuses whatever it does not know.
	prepare func(c *call) error
	// addressSpace bounds each process's address space in bytes; 0 is no bound.
	addressSpace uint64
	// lasts says that Start takes the program.
	lasts bool
	// dirs returns the directories to look in, in place of trustedDirs; nil: none.
	dirs func() []string
	// sealed programs start by StartSealed alone, others never.
	sealed bool
}

// call is one command on its way to an invocation.
type call struct {
	program string
	path    string // of the program
	args    []string
	dir     string
	scratch string // parent for temporary directories

	argv []string // arguments after argv[0]
	env  []string // fixed environment of this program, added to the base
	temp string   // directory to remove once every process is gone
	// sparse says that the repository's work tree is sparse.
	sparse bool
}

// hostPrograms is the closed set; the decision record lists the same names.
var hostPrograms = map[Program]*spec{
	Git: {
		name:         "git",
		env:          map[string]func(string) bool{"TZ": isZoneName},
		prepare:      prepareGit,
		addressSpace: 16 << 30,
	},
	AppArmorParser: {
		name:    "apparmor_parser",
		prepare: prepareAppArmor,
	},
	Buildctl: {
		name:    "buildctl",
		prepare: prepareBuildctl,
	},
	GitServe: {
		name:         "git",
		prepare:      prepareGitServe,
		addressSpace: 16 << 30,
	},
	GitLand: {
		name:         "git",
		prepare:      prepareGitLand,
		addressSpace: 16 << 30,
	},
	Smolvm: {
		name:    "smolvm-bin",
		prepare: prepareSmolvm,
		lasts:   true,
		dirs:    smolvmDirs,
	},
	Qemu: {
		name:    "qemu-system-x86_64",
		prepare: prepareQemu,
		sealed:  true,
	},
	Mke2fs: {
		name:    "mke2fs",
		prepare: prepareMke2fs,
	},
}

// never lists programs that must not enter the set, under this or another name.
// Each runs text it is given as code, moves bytes to another machine, changes
// permissions, or ends other people's processes. A link in a trusted directory
// that leads to one of them is refused as well.
var never = []string{
	"bash", "sh", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "busybox", "toybox",
	"python", "python2", "python3", "perl", "ruby", "node", "lua", "awk", "gawk", "mawk", "env", "xargs", "find",
	"curl", "wget", "ssh", "scp", "sftp", "rsync", "nc", "ncat", "netcat", "socat", "telnet",
	"bwrap", "bubblewrap", "unshare", "nsenter", "chroot", "setpriv", "sudo", "su", "doas", "pkexec",
	"eval", "exec", "kill", "killall", "pkill", "chmod", "chown", "chgrp", "dd", "rm", "mv", "cp", "tee",
}

func isNever(name string) bool { return slices.Contains(never, name) }

// appArmorProfile is the only file that apparmor_parser may be given.
const appArmorProfile = "/etc/apparmor.d/carboy"

func prepareAppArmor(c *call) error {
	allowed := [][]string{
		{"--version"},
		{"--replace", appArmorProfile},
		{"--remove", appArmorProfile},
		{"--skip-kernel-load", "--skip-cache", appArmorProfile},
	}
	for _, form := range allowed {
		if slices.Equal(c.args, form) {
			c.argv = form
			return nil
		}
	}
	return refuse(c.program, reasonArgument, "arguments are not one of its four forms")
}

// buildctlForm is the only accepted form of arguments; a value completes each
// one that ends with = or :. The result goes to a file. No secret, no agent's
// socket and no entitlement is passed along.
var buildctlForm = []string{
	"--addr", "unix:///", "build", "--progress", "plain", "--frontend", "dockerfile.v0",
	"--opt", "filename=", "--local", "context=/", "--local", "dockerfile=/", "--output", "type=docker,dest=/",
}

func prepareBuildctl(c *call) error {
	if len(c.args) != len(buildctlForm) {
		return refuse(c.program, reasonArgument, "arguments are not its one form")
	}
	for i, form := range buildctlForm {
		arg := c.args[i]
		value, ok := strings.CutPrefix(arg, form)
		open := strings.ContainsAny(form, "=:")
		switch {
		case !ok || open == (value == ""):
			return refuse(c.program, reasonArgument, "argument %d is not %s", i+1, form)
		case strings.ContainsAny(value, ",\"\n"):
			return refuse(c.program, reasonArgument, "argument %d holds a comma, a quote or a new line", i+1)
		}
	}
	c.argv = c.args
	return nil
}

// isZoneName accepts zone names such as Europe/Berlin or UTC. A leading slash
// or colon or a dot segment would make the C library open a file of the
// caller's choice.
func isZoneName(v string) bool {
	if v == "" || len(v) > 64 || v[0] == '/' {
		return false
	}
	for i := range len(v) {
		b := v[i]
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case b == '/', b == '_', b == '-', b == '+':
		default:
			return false
		}
	}
	return true
}
