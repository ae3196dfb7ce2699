// Package macos is carboy on macOS: it finds or makes a Linux virtual machine, puts the
// Linux carboy in, and runs the command line there. Start reading at [Main].
//
// It makes command lines for Apple's container or Lima's limactl and reads what these
// say, so all of it but the terminal is tested on Linux.
package macos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/macos/start"
	"github.com/carboy/carboy/internal/safetext"
)

// Process holds what the program gets from its caller.
type Process struct {
	Args   []string // without the program
	Env    []string
	Exe    string // this program's file, with links resolved
	Dir    string // the current directory
	Stdin  *os.File
	Stdout *os.File
	Stderr *os.File
	Arch   string // as Go names it
	CPUs   int
	UID    int
	GID    int
}

// Main runs one command line and returns its exit code.
func Main(p Process) int {
	// Otherwise a write to a pipe that nobody reads would end this process, and the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	i := &invocation{Process: p, out: p.Stderr}
	err := i.parse()
	code := 0
	if err == nil {
		code, err = i.run()
	}
	if err == nil {
		return code
	}
	i.say("%s", safetext.Lines(err.Error(), 4000))
	var a *adviceError
	if errors.As(err, &a) {
		i.say("hint: %s", safetext.String(a.advice, 1000))
	}
	return exitcode.OfError(exitcode.FamilyOf(strings.Join(i.words, " ")), err)
}

// invocation is one command line.
type invocation struct {
	Process
	out io.Writer // messages
	raw bool      // the terminal is raw: lines end with a carriage return

	dryRun bool
	chosen string   // container or lima; empty: what is there
	linux  string   // the Linux program; empty: beside this one
	args   []string // what runs in the machine
	words  []string // its command's words, such as image and pull
	config string   // --config
	cwd    string   // the current directory, links resolved
	dir    string   // --dir, else the current directory; links resolved
	home   string

	maker   maker
	machine *machine
	binary  *binary
}

// say shows a line to the user.
func (i *invocation) say(format string, args ...any) {
	end := "\n"
	if i.raw {
		end = "\r\n"
	}
	fmt.Fprintf(i.out, "carboy: "+format+end, args...)
}

// detail is say for a user who wants to know what carboy itself does.
func (i *invocation) detail(format string, args ...any) {
	if asks(i.args, "v", "--verbose") {
		i.say(format, args...)
	}
}

// env returns a variable of the user's.
func (i *invocation) env(name string) string {
	for _, v := range slices.Backward(i.Env) {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// run does what the command line says.
func (i *invocation) run() (int, error) {
	if err := i.choose(); err != nil {
		return 0, err
	}
	if i.dryRun {
		return 0, i.print()
	}
	ctx, leave := interruptible()
	defer leave()
	if len(i.words) > 0 && i.words[0] == "machine" {
		return 0, i.manage(ctx)
	}
	if err := i.ensure(ctx); err != nil {
		return 0, errors.Join(context.Cause(ctx), err)
	}
	return i.enter(leave)
}

// interruptible returns a context that ends with a signal, which is its cause, and a
// function that leaves signals to others.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-signals:
			cancel(exitcode.Interrupted(s.(syscall.Signal), errors.New("interrupted")))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// choose decides which program makes the machine.
func (i *invocation) choose() error {
	makers := map[string]maker{"container": apple{}, "lima": lima{}}
	if i.chosen != "" {
		m, ok := makers[i.chosen]
		if !ok {
			return exitcode.With(exitcode.WrongUsage, fmt.Errorf("%q makes no machines: there are container and lima", safetext.String(i.chosen, 80)))
		}
		if _, err := start.Look(m.program()); err != nil && !i.dryRun {
			return missing(fmt.Errorf("%s is not installed", m.program()))
		}
		i.maker = m
		return nil
	}
	for _, name := range []string{"container", "lima"} {
		if _, err := start.Look(makers[name].program()); err == nil {
			i.maker = makers[name]
			return nil
		}
	}
	if i.dryRun {
		i.maker = apple{}
		return nil
	}
	return missing(errors.New("carboy on macOS needs a Linux machine, and nothing is installed that makes one"))
}

func missing(err error) error {
	return &adviceError{err, "install Apple's container (https://github.com/apple/container/releases, macOS 26), or Lima: brew install lima"}
}

// call runs a command of the program, and returns its output.
func (i *invocation) call(ctx context.Context, c Command) ([]byte, error) {
	return i.start(ctx, c, nil)
}

// show runs a command that takes long or may fail, with its output among the messages.
func (i *invocation) show(ctx context.Context, c Command) error {
	_, err := i.start(ctx, c, i.out)
	return err
}

func (i *invocation) start(ctx context.Context, c Command, show io.Writer) ([]byte, error) {
	call := start.Call{Program: c.Program, Args: c.Args, Env: i.Env, Show: show}
	if c.Input != "" {
		f, err := os.Open(c.Input)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		call.Stdin = f
	}
	out, err := start.Run(ctx, call)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c, err)
	}
	return out, nil
}

// find sets what the program says about the machine.
func (i *invocation) find(ctx context.Context) error {
	out, err := i.call(ctx, i.maker.look())
	if err != nil {
		return err
	}
	m, err := i.maker.parse(out)
	if err != nil {
		return err
	}
	i.machine = m
	return m.check(i.maker.program())
}

// ensure sees to it that the machine is there and runs.
func (i *invocation) ensure(ctx context.Context) error {
	if is, begin := i.maker.services(); is != nil {
		if _, err := i.call(ctx, *is); err != nil {
			i.say("starting the services of %s", is.Program)
			if err := i.showAll(ctx, begin); err != nil {
				return err
			}
		}
	}
	if err := i.find(ctx); err != nil {
		return err
	}
	switch i.machine.state {
	case running:
		return nil
	case stopped:
		i.say("starting the machine")
		if err := i.showAll(ctx, i.maker.begin()); err != nil {
			return err
		}
	case absent:
		d, err := i.design()
		if err != nil {
			return err
		}
		if o := i.maker.options(); o != nil {
			help, err := i.call(ctx, *o)
			if err != nil {
				return err
			}
			d.help = string(help)
		}
		i.say("making the machine, once; %s downloads an image", i.maker.program())
		for _, s := range d.shares {
			i.say("it shares %s", safetext.String(s, 300))
		}
		if err := i.showAll(ctx, i.maker.make(*d)); err != nil {
			return err
		}
	}
	if err := i.find(ctx); err != nil {
		return err
	}
	if i.machine.state != running {
		return fmt.Errorf("the machine was started, and %s says %q", i.maker.program(), safetext.String(i.machine.says, 80))
	}
	return nil
}

// showAll runs commands one after the other until one fails.
func (i *invocation) showAll(ctx context.Context, all []Command) error {
	for _, c := range all {
		if err := i.show(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// manage does carboy machine status, stop and remove.
func (i *invocation) manage(ctx context.Context) error {
	verb := "status"
	if len(i.words) > 1 {
		verb = i.words[1]
	}
	err := i.find(ctx)
	broken := i.machine != nil && i.machine.ours && i.machine.state == other
	if err != nil && !(broken && verb == "remove") {
		return err
	}
	switch verb {
	case "status":
		fmt.Fprintf(i.Stdout, "%s: %s\n", i.maker.program(), i.machine.state)
		for _, s := range i.machine.shares {
			fmt.Fprintf(i.Stdout, "shares %s\n", safetext.String(s, 1000))
		}
		return nil
	case "stop":
		if i.machine.state != running {
			return nil
		}
		return i.showAll(ctx, i.maker.stop())
	case "remove":
		if i.machine.state == absent {
			return nil
		}
		return i.showAll(ctx, i.maker.remove())
	}
	return &adviceError{exitcode.With(exitcode.WrongUsage, fmt.Errorf("machine: unknown verb %q", safetext.String(verb, 80))), "carboy machine status, stop or remove"}
}

// design returns how to make the machine: it shares what CARBOY_MACHINE_SHARE names and
// the workspace of the command for which it is made.
func (i *invocation) design() (*design, error) {
	d := &design{image: i.env("CARBOY_MACHINE_IMAGE"), cpus: i.CPUs, gib: 4}
	for _, x := range []struct {
		name string
		to   *int
	}{{"CARBOY_MACHINE_CPUS", &d.cpus}, {"CARBOY_MACHINE_MEMORY", &d.gib}} {
		v := i.env(x.name)
		if v == "" {
			continue
		}
		if n, err := fmt.Sscanf(v, "%d", x.to); n != 1 || err != nil || *x.to < 1 || *x.to > 1024 || fmt.Sprint(*x.to) != v {
			return nil, exitcode.With(exitcode.WrongUsage, fmt.Errorf("%s=%s: write a number between 1 and 1024 (of GiB for memory)", x.name, safetext.String(v, 80)))
		}
	}
	if strings.HasPrefix(d.image, "-") {
		return nil, exitcode.With(exitcode.WrongUsage, errors.New("CARBOY_MACHINE_IMAGE begins with a dash"))
	}
	var shares []string
	for _, s := range filepath.SplitList(i.env("CARBOY_MACHINE_SHARE")) {
		if s == "" {
			continue
		}
		dir, err := realDir(s)
		if err == nil && linuxOwn(dir) {
			err = errors.New("the machine has files of its own there")
		}
		if err == nil && i.maker.sharable(dir) != "" {
			err = errors.New(i.maker.sharable(dir))
		}
		if err != nil {
			return nil, exitcode.With(exitcode.WrongUsage, fmt.Errorf("CARBOY_MACHINE_SHARE: %s: %w", safetext.String(s, 300), err))
		}
		shares = append(shares, dir)
	}
	if i.takesWorkspace() && i.maker.sharable(i.dir) == "" {
		shares = append(shares, i.dir)
	}
	slices.Sort(shares)
	for _, s := range shares { // what is below another share is shared already
		if n := len(d.shares); n == 0 || !within(s, d.shares[n-1]) {
			d.shares = append(d.shares, s)
		}
	}
	return d, nil
}

// realDir returns the path of a directory without links.
func realDir(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", errors.New("write an absolute path")
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = &fs.PathError{Op: "share", Path: dir, Err: syscall.ENOTDIR}
	}
	return dir, err
}
