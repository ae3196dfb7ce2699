package macos

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/exitcode"
)

// backendName is the earlier system's name for bottles by Apple's container. Here it
// chooses that program; the bottle in its machine is carboy's own.
const backendName = "macos-container"

// parse sets what the command line and the environment say.
func (i *invocation) parse() error {
	i.chosen, i.linux, i.home = i.env("CARBOY_MACHINE"), i.env("CARBOY_LINUX"), i.env("HOME")
	if !filepath.IsAbs(i.home) {
		return errors.New("HOME is not an absolute path: set it")
	}
	if !utf8.ValidString(strings.Join(i.Args, " ")) {
		return exitcode.With(exitcode.WrongUsage, errors.New("an argument is not UTF-8, so the machine would get another"))
	}
	rest, err := i.dry(i.Args)
	if err != nil {
		return err
	}
	i.args = i.backend(rest)
	i.words = words(i.args)
	i.config = value(i.args, "--config")
	if i.cwd, err = filepath.EvalSymlinks(i.Dir); err != nil {
		return err
	}
	dir := i.cwd
	if d := value(i.args, "--dir"); d != "" {
		if dir = d; !filepath.IsAbs(d) {
			dir = filepath.Join(i.cwd, d)
		}
	}
	if i.dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("find the workspace: %w", err)
	}
	if i.takesWorkspace() && linuxOwn(i.dir) {
		return exitcode.With(exitcode.WrongUsage, fmt.Errorf("%s can't be a workspace: the machine has files of its own there", i.dir))
	}
	return nil
}

// linuxOwn reports whether a directory, or one in it, is the machine's own. Sharing it would
// hide the machine's files, and a copy would replace them.
func linuxOwn(dir string) bool {
	return slices.ContainsFunc([]string{"/bin", "/dev", "/etc", "/lib", programs, "/sbin", "/usr", "/var/lib/carboy"}, func(own string) bool {
		return within(dir, own) || within(own, dir)
	})
}

// dry takes --dry-run out where it stands before the command: later it is the command's.
func (i *invocation) dry(args []string) ([]string, error) {
	for n := 0; n < len(args) && strings.HasPrefix(args[n], "-") && args[n] != "--"; n++ {
		switch name, _, has := strings.Cut(args[n], "="); {
		case name == "--dry-run" && has:
			return nil, exitcode.With(exitcode.WrongUsage, errors.New("--dry-run takes no value"))
		case name == "--dry-run":
			i.dryRun = true
			return slices.Delete(slices.Clone(args), n, n+1), nil
		case name == "--config" || name == "--backend":
			if !has {
				n++
			}
		}
	}
	return args, nil
}

// backend takes the name of Apple's program out of --backend, which may stand anywhere
// before "--", and of the variables.
func (i *invocation) backend(args []string) []string {
	v := cmp.Or(i.env("CARBOY_BACKEND"), i.env("BOT_BOTTLE_BACKEND"))
	i.Env = slices.DeleteFunc(slices.Clone(i.Env), func(e string) bool {
		return e == "CARBOY_BACKEND="+backendName || e == "BOT_BOTTLE_BACKEND="+backendName
	})
	given := value(args, "--backend")
	if given == backendName {
		end := before(args)
		for n := range end {
			switch {
			case args[n] == "--backend" && n+1 < end && args[n+1] == backendName:
				args = slices.Delete(slices.Clone(args), n, n+2)
			case args[n] == "--backend="+backendName:
				args = slices.Delete(slices.Clone(args), n, n+1)
			default:
				continue
			}
			break
		}
	}
	if given == backendName || given == "" && v == backendName {
		i.chosen = "container"
	}
	return args
}

// before returns how many arguments are carboy's: those of a command follow "--".
func before(args []string) int {
	if n := slices.Index(args, "--"); n >= 0 {
		return n
	}
	return len(args)
}

// value returns the value of a flag among carboy's arguments, the last as on Linux; empty:
// it is not there.
func value(args []string, flag string) (last string) {
	for n, a := range args[:before(args)] {
		if a == flag && n+1 < len(args) {
			last = args[n+1]
		}
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			last = v
		}
	}
	return last
}

// words returns the words of the command, such as image and pull: those before the first
// flag that follows them.
func words(args []string) []string {
	var out []string
	for n := 0; n < before(args); n++ {
		a := args[n]
		switch {
		case a == "--config" || a == "--backend":
			n++
		case !strings.HasPrefix(a, "-"):
			out = append(out, a)
		case len(out) > 0:
			return out
		}
	}
	return out
}

// asks reports whether one of the flags is among carboy's arguments. Short ones may be
// joined, as in -it.
func asks(args []string, short string, long ...string) bool {
	return slices.ContainsFunc(args[:before(args)], func(a string) bool {
		if strings.HasPrefix(a, "--") {
			return slices.Contains(long, a)
		}
		return strings.HasPrefix(a, "-") && strings.Trim(a[1:], "abcdefghijklmnopqrstuvwxyz") == "" && strings.ContainsAny(a[1:], short)
	})
}

// apart are commands that have nothing to do with the files of a workspace.
var apart = []string{
	"attach", "audit", "completion", "demo", "destroy", "doctor", "egress", "escape-test", "exec", "freeze", "gc", "help", "list", "logs",
	"man", "pool", "receipt", "sandbox", "schema", "supervise", "trace", "version",
}

// takesWorkspace reports whether the command may read or change the workspace. A home, or
// a directory with homes, is none.
func (i *invocation) takesWorkspace() bool {
	if len(i.words) == 0 || slices.Contains(apart, i.words[0]) || i.words[0] == "machine" || asks(i.args, "h", "--help") {
		return false
	}
	return !within(i.home, i.dir)
}

// readers are commands that read standard input where it is no terminal. Others leave it
// to the commands that follow them in a script.
var readers = []string{"attach", "cp", "egress", "exec", "init", "orchestrate", "resume", "run", "ship", "start", "supervise", "work"}
