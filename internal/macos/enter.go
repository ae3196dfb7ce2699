package macos

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/carboy/carboy/internal/macos/frames"
	"github.com/carboy/carboy/internal/macos/mirror"
	"github.com/carboy/carboy/internal/macos/session"
	"github.com/carboy/carboy/internal/macos/start"
	"github.com/carboy/carboy/internal/safetext"
)

// enter runs the command line in the machine. It calls leave before signals are passed on
// to the command.
func (i *invocation) enter(leave func()) (int, error) {
	var err error
	if i.binary, err = findBinary(i.linux, i.Exe, cmp.Or(i.machine.arch, i.Arch)); err != nil {
		return 0, err
	}
	o, done, err := i.session()
	if err != nil {
		return 0, err
	}
	defer done()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	leave()
	o.Signals = signals
	code, err := i.once(*o)
	var no *session.NoSessionError
	if !errors.As(err, &no) {
		return code, err
	}
	if err := i.install(); err != nil {
		return 0, err
	}
	return i.once(*o)
}

// install puts the Linux carboy into the machine. A signal ends it.
func (i *invocation) install() error {
	if err := i.binary.verify(); err != nil {
		return err
	}
	i.say("putting carboy into the machine")
	ctx, leave := interruptible()
	defer leave()
	c := i.maker.enter(i.binary.install()...)
	c.Input = i.binary.path
	err := i.show(ctx, c)
	return cmp.Or(context.Cause(ctx), err)
}

// once runs one session.
func (i *invocation) once(o session.Options) (int, error) {
	c := i.maker.enter(i.binary.session()...)
	p, err := start.Begin(context.Background(), start.Call{Program: c.Program, Args: c.Args, Env: i.Env})
	if err != nil {
		return 0, err
	}
	code, err := session.Run(context.Background(), p.Stdout, p.Stdin, o)
	werr := p.Wait()
	var told *frames.FailError
	if err != nil && werr != nil && !errors.As(err, &told) {
		err = errors.Join(err, werr) // what the program says is the reason
	}
	return code, err
}

// session returns what the session needs, and a function that undoes what it did to the
// terminal.
func (i *invocation) session() (*session.Options, func(), error) {
	o := &session.Options{
		Args: i.args, Dir: i.cwd, Home: i.home, Env: i.variables(), UID: i.UID, GID: i.GID,
		Stdin: i.Stdin, Stdout: i.Stdout, Stderr: i.Stderr, Say: func(s string) { i.say("%s", s) },
	}
	var err error
	if o.Trees, err = i.trees(); err != nil {
		return nil, nil, err
	}
	i.streams(o)
	o.Size = func() session.Size {
		for _, f := range []*os.File{i.Stdout, i.Stderr, i.Stdin} {
			if w, h, err := term.GetSize(int(f.Fd())); err == nil {
				return session.Size{Rows: uint16(min(h, 1<<16-1)), Cols: uint16(min(w, 1<<16-1))}
			}
		}
		return session.Size{}
	}
	done := func() {}
	if o.In == session.Terminal {
		fd := int(i.Stdin.Fd())
		before, err := term.GetState(fd)
		if err != nil {
			return nil, nil, err
		}
		o.Started = func() {
			if _, err := term.MakeRaw(fd); err == nil {
				i.raw = true
			}
		}
		done = func() {
			term.Restore(fd, before)
			i.raw = false
		}
	}
	return o, done, nil
}

// streams says what the standard streams are. The machine's terminal is shown on the first
// of ours that is one.
func (i *invocation) streams(o *session.Options) {
	kind := func(f *os.File) session.Stream {
		switch _, err := f.Stat(); {
		case err != nil:
			return session.None
		case term.IsTerminal(int(f.Fd())):
			return session.Terminal
		}
		return session.Pipe
	}
	o.In, o.Out, o.Err = kind(i.Stdin), kind(i.Stdout), kind(i.Stderr)
	for _, s := range []struct {
		kind session.Stream
		file *os.File
	}{{o.Out, i.Stdout}, {o.Err, i.Stderr}, {o.In, i.Stdin}} {
		if s.kind == session.Terminal {
			o.Screen = s.file
			break
		}
	}
	word := ""
	if len(i.words) > 0 {
		word = i.words[0]
	}
	switch {
	case o.In == session.Terminal && o.Out != session.Terminal && !asks(i.args, "it", "--interactive", "--tty"):
		o.In = session.None // the terminal's keys belong to what reads the output, such as a pager
	case o.In == session.Pipe && !slices.Contains(readers, word):
		o.In = session.None
	}
}

// kept are variables, and prefixes of their names, that mean this machine and stay here.
var (
	kept         = []string{"HOME", "PATH", "PWD", "OLDPWD", "SHELL", "SHLVL", "TMPDIR", "USER", "LOGNAME", "MANPATH", "INFOPATH", "DISPLAY", "DOCKER_HOST", "XAUTHORITY", "CODEX_HOME", "GOPATH", "GOROOT", "GOBIN", "GOCACHE", "GOMODCACHE", "COMMAND_MODE", "Apple_PubSub_Socket_Render", "SECURITYSESSIONID", "LaunchInstanceID", "_"}
	keptPrefixes = []string{"XDG_", "SSH_", "DYLD_", "LD_", "LIMA_", "CONTAINER_", "HOMEBREW_", "CARBOY_MACHINE", "CARBOY_LINUX", "CARBOY_SESSION", "__", "XPC_"}
)

// variables returns what carboy in the machine gets of the user's environment, keys too.
// What is not UTF-8 would arrive as something else, so it stays.
func (i *invocation) variables() map[string]string {
	out := map[string]string{}
	for _, v := range i.Env {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" || !utf8.ValidString(v) || slices.Contains(kept, name) || slices.ContainsFunc(keptPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		out[name] = value
	}
	if v := i.env("XDG_CONFIG_HOME"); filepath.IsAbs(v) {
		out["XDG_CONFIG_HOME"] = v
	}
	return out
}

// trees returns the directories that the command needs and the machine does not share.
// Settings and the workspace are copied in different ways, so one can't be in the other.
func (i *invocation) trees() ([]session.Tree, error) {
	base := i.env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		base = filepath.Join(i.home, ".config")
	}
	settings := []string{filepath.Join(base, "carboy"), filepath.Join(i.home, ".bot-bottle")}
	if i.config != "" {
		dir := i.config
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(i.cwd, dir)
		}
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("configuration directory: %w", err)
		}
		settings[0] = filepath.Clean(dir)
	}
	copied := i.takesWorkspace() && !i.machine.shared(i.dir)
	for _, s := range i.machine.shares {
		if copied && within(s, i.dir) { // a copy over it would change it here
			return nil, &adviceError{fmt.Errorf("the workspace %s can't be copied: the machine shares %s, which is in it", i.dir, s), "work in what is shared"}
		}
	}
	var out []session.Tree
	for _, dir := range settings {
		if i.machine.shared(dir) {
			continue
		}
		if err := guarded(dir); err != nil {
			return nil, err
		}
		if copied && (within(dir, i.dir) || within(i.dir, dir)) {
			return nil, &adviceError{fmt.Errorf("the workspace %s and carboy's settings in %s can't be copied: one is in the other", i.dir, dir), "work in another directory"}
		}
		out = append(out, session.Tree{Path: dir, Copy: session.Settings, Keep: i.setting(dir)})
	}
	if copied {
		aside := filepath.Join(i.home, "Library", "Application Support", "carboy", "kept", time.Now().UTC().Format("20060102T150405.000000Z"))
		out = append(out, session.Tree{Path: i.dir, Copy: session.Workspace, Aside: aside})
	}
	return out, nil
}

// guarded refuses a directory with settings that others can write: they grant rights. In
// the machine they would look like root's.
func guarded(dir string) error {
	fi, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return fmt.Errorf("configuration directory %s: is not a directory", dir)
	case ok && int(st.Uid) != os.Getuid() && st.Uid != 0:
		return fmt.Errorf("configuration directory %s: belongs to user %d", dir, st.Uid)
	case fi.Mode().Perm()&0o022 != 0:
		return &adviceError{fmt.Errorf("configuration directory %s: can be written by others (mode %#o)", dir, fi.Mode().Perm()), "chmod go-w it"}
	}
	return nil
}

// Bounds of settings that are brought into the machine.
const (
	maxSetting  = 1 << 20
	maxSettings = 16 << 20
)

// setting returns what says which files of a directory with settings are brought in:
// texts, but no private keys. Without a setting, the machine's carboy could allow more than
// it should, so one that can't be brought in is an error.
func (i *invocation) setting(dir string) func(mirror.Entry) (bool, error) {
	total := int64(0)
	return func(e mirror.Entry) (bool, error) {
		if e.Kind == mirror.Dir {
			return true, nil
		}
		path := filepath.Join(dir, e.Path)
		name := safetext.String(path, 300)
		if e.Kind == mirror.Link {
			if _, err := os.Stat(path); err != nil {
				return false, nil // an editor's mark, which leads nowhere
			}
			return false, fmt.Errorf("%s is a link, and links of settings don't lead into the machine: put the file itself there", name)
		}
		if e.Size > maxSetting || total+e.Size > maxSettings {
			i.say("%s stays here: settings are files of at most 1 MiB, 16 MiB together", name)
			return false, nil
		}
		b, err := readBounded(path, maxSetting)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if bytes.Contains(b, []byte("PRIVATE KEY-----")) {
			i.detail("%s stays here: it holds a private key", name)
			return false, nil
		}
		total += e.Size
		return true, nil
	}
}

// print shows each step of the command line, as a person could type it. Nothing is run.
func (i *invocation) print() error {
	i.machine = &machine{}
	b, berr := findBinary(i.linux, i.Exe, i.Arch)
	if berr != nil {
		b = &binary{path: filepath.Join(filepath.Dir(i.Exe), "carboy-linux-"+i.Arch), digest: strings.Repeat("0", 64)}
		i.say("%s; the lines below show a digest of zeros", berr)
	}
	d, err := i.design()
	if err != nil {
		return err
	}
	step := func(when string, all ...Command) {
		if len(all) == 0 {
			return
		}
		fmt.Fprintf(i.Stdout, "# %s\n", when)
		for _, c := range all {
			fmt.Fprintln(i.Stdout, safetext.Lines(c.String(), 1<<20))
		}
	}
	if is, begin := i.maker.services(); is != nil {
		step("do its services run?", *is)
		step("if not", begin...)
	}
	step("is there a machine, and what does it share?", i.maker.look())
	step("if there is none", i.maker.make(*d)...)
	step("if it is stopped", i.maker.begin()...)
	install := i.maker.enter(b.install()...)
	install.Input = b.path
	step("if this carboy is not in it", install)
	names := make([]string, 0, len(i.Env))
	for name := range i.variables() {
		names = append(names, safetext.String(name, 100))
	}
	slices.Sort(names)
	step("the command: standard input brings it, directories that are not shared, and variables:\n# "+strings.Join(names, " "), i.maker.enter(b.session()...))
	return nil
}
