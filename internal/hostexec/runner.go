package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// killGrace bounds Run's wait between a kill and ErrUnkilled.
const killGrace = 10 * time.Second

// Options configure a Runner.
type Options struct {
	// Untrusted are absolute directories in which no program may lie, the
	// workspace above all. Each command's own Dir is added to them.
	Untrusted []string
	// Scratch is an existing directory for short-lived files; "" is the
	// system's temporary directory.
	Scratch string
	// Log gets one event per command that dropped environment variables; nil
	// discards.
	Log *slog.Logger
	// Observe receives the record of each command when it is over, also of
	// refused ones. The goroutine that called Run calls it, so calls may
	// overlap. It must not call the Runner. nil discards.
	Observe func(Execution)
}

// A Runner runs commands and registers the running ones. The zero value
// refuses. All methods may be called concurrently.
type Runner struct {
	opt       Options
	untrusted []fs.FileInfo
	programs  map[Program]*spec
	dirs      []string
	grace     time.Duration

	mu      sync.Mutex
	open    bool
	nextID  uint64
	found   map[Program]*location
	running map[uint64]*running
	changed chan struct{} // closed and replaced whenever running shrinks
}

// running is a registered command. It leaves the register only once its
// supervisor has reported that nothing is left, or its leftovers were swept.
type running struct {
	info RunInfo
	stop func(Outcome)
}

// RunInfo describes a registered command.
type RunInfo struct {
	ID      uint64
	Program string
	Dir     string
	Started time.Time
}

// New returns a Runner. It fails if an untrusted directory is not absolute, is
// the root directory, or cannot be examined.
func New(opt Options) (*Runner, error) {
	r := &Runner{
		opt: opt, programs: hostPrograms, dirs: trustedDirs, grace: killGrace, open: true,
		found: map[Program]*location{}, running: map[uint64]*running{}, changed: make(chan struct{}),
	}
	if r.opt.Log == nil {
		r.opt.Log = slog.New(slog.DiscardHandler)
	}
	if r.opt.Scratch == "" {
		r.opt.Scratch = os.TempDir()
	}
	if !filepath.IsAbs(r.opt.Scratch) {
		return nil, fmt.Errorf("hostexec: scratch directory %q is not absolute", opt.Scratch)
	}
	for _, dir := range opt.Untrusted {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return nil, fmt.Errorf("hostexec: untrusted directory %q must be absolute and not the root", dir)
		}
		fi, err := os.Stat(dir)
		if err != nil {
			return nil, fmt.Errorf("hostexec: look at untrusted directory: %w", err)
		}
		r.untrusted = append(r.untrusted, fi)
	}
	return r, nil
}

// Command describes one run of a program.
type Command struct {
	Program Program
	Args    []string
	// Dir is the absolute working directory; mandatory. For git it is the top
	// of the work tree.
	Dir string
	// Timeout is mandatory, above 0 and at most MaxTimeout; Start takes 0 too. A
	// deadline of the context applies as well.
	Timeout time.Duration
	// Keep, for Start alone, lets the command's descendants go on when it has ended
	// with 0. Timeout is then the command's own.
	Keep bool
	// Env holds the NAME=VALUE entries to pass. Entries that are not on the
	// program's list are dropped and logged by name.
	Env []string
	// Stdin is the whole standard input; nil is /dev/null.
	Stdin []byte
	// Input replaces Stdin, and Output replaces the capture of standard output.
	// Both are ends of pipes and go to the command itself, so that streamed
	// data is neither held nor copied. Run closes both, also when it fails. The
	// other end of Output ends when no descendant is left.
	Input, Output *os.File
	// Stdout and Stderr bound how much of the streams is kept.
	Stdout, Stderr Keep
}

// Result describes a command that was spawned.
type Result struct {
	Outcome  Outcome
	ExitCode int // -1 unless Exited
	Signal   int // 0 unless Signaled
	// Strays counts the processes that were still alive when the command ended
	// and were then killed.
	Strays         int
	Duration       time.Duration
	Stdout, Stderr Capture
}

// Run runs the command and returns when it and all its descendants are gone.
// The error is nil exactly when the command exits with 0. Otherwise it is a
// *Refusal (nothing was spawned), a *FailedError (it ran; the Result is filled
// in), ErrUnkilled, ErrLost, or the system's error when it could not be
// started.
func (r *Runner) Run(ctx context.Context, cmd Command) (Result, error) {
	defer closeAll([]*os.File{cmd.Input, cmd.Output})
	rec := r.record(cmd)
	res, err := r.run(ctx, cmd, &rec)
	r.observe(&rec, &res, err)
	return res, err
}

func (r *Runner) record(cmd Command) Execution {
	return Execution{Schema: recordSchema, Program: cmd.Program.String(), Started: time.Now(), ExitCode: -1}
}

// observe completes the record of a command and its result, and passes the record on.
func (r *Runner) observe(rec *Execution, res *Result, err error) {
	rec.Duration = time.Since(rec.Started)
	res.Duration = rec.Duration
	var no *refusal
	if errors.As(err, &no) {
		rec.Refused, rec.Args = no.Reason, nil
	}
	rec.Outcome, rec.ExitCode, rec.Signal, rec.Strays = res.Outcome, res.ExitCode, res.Signal, res.Strays
	rec.StdoutBytes, rec.StderrBytes = res.Stdout.Total, res.Stderr.Total
	rec.Truncated = res.Stdout.truncated() || res.Stderr.truncated()
	if r != nil && r.opt.Observe != nil {
		r.opt.Observe(*rec)
	}
}

func (r *Runner) run(ctx context.Context, cmd Command, rec *Execution) (Result, error) {
	p, err := r.begin(ctx, cmd, rec, false)
	if err != nil {
		return Result{ExitCode: -1}, err
	}
	return r.await(ctx, p)
}

// begin makes every check and starts the command. lasting is for Start.
func (r *Runner) begin(ctx context.Context, cmd Command, rec *Execution, lasting bool) (*proc, error) {
	s, err := r.admit(&cmd, lasting)
	if err != nil {
		return nil, err
	}
	rec.Program, rec.Dir = s.name, cmd.Dir
	loc, err := r.locate(cmd.Program, s, cmd.Dir)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("hostexec: run %s: %w", s.name, err)
	}
	c := &call{program: s.name, path: loc.path, args: slices.Clone(cmd.Args), dir: cmd.Dir, scratch: r.opt.Scratch}
	if err := s.prepare(c); err != nil {
		c.discard()
		return nil, err
	}
	env, dropped := chooseEnv(s, cmd.Env, c.env)
	rec.Path, rec.Args, rec.EnvNames, rec.EnvDropped = loc.path, c.argv, envNames(env), dropped
	if len(dropped) > 0 {
		r.opt.Log.Warn("hostexec: environment variables dropped", "program", s.name, "names", dropped)
	}
	p, err := r.start(cmd, s, loc, c, env)
	if err != nil {
		c.discard()
		return nil, err
	}
	rec.ID = p.id
	return p, nil
}

// discard removes the files that prepare made, for a call without a supervisor.
func (c *call) discard() {
	if c.temp != "" {
		_ = os.RemoveAll(c.temp)
		c.temp = ""
	}
}

// admit makes every check that needs nothing of the file system but Dir.
func (r *Runner) admit(cmd *Command, lasting bool) (*spec, error) {
	name := cmd.Program.String()
	if r == nil || r.programs == nil {
		return nil, refuse(name, reasonClosed, "runner was not made by New")
	}
	s := r.programs[cmd.Program]
	if s == nil || s.prepare == nil || isNever(s.name) {
		return nil, refuse(name, reasonProgram, "not in the closed set")
	}
	name = s.name
	if s.sealed {
		return nil, refuse(name, reasonProgram, "it runs in namespaces of its own only")
	}
	if (lasting || cmd.Keep) && !(lasting && s.lasts) {
		return nil, refuse(name, reasonProgram, "it may not outlast the call that starts it")
	}
	if cmd.Timeout <= 0 && !(lasting && cmd.Timeout == 0) || cmd.Timeout > MaxTimeout {
		return nil, refuse(name, reasonTimeout, "timeout %s is not above 0 and at most %s", cmd.Timeout, MaxTimeout)
	}
	cmd.Stdout, cmd.Stderr = cmd.Stdout.orDefault(), cmd.Stderr.orDefault()
	if !cmd.Stdout.valid() || !cmd.Stderr.valid() {
		return nil, refuse(name, reasonOutput, "kept bytes must be 0 to %d", MaxKeep)
	}
	if cmd.Input != nil && cmd.Stdin != nil {
		return nil, refuse(name, reasonArgument, "standard input is given twice")
	}
	for _, a := range cmd.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return nil, refuse(name, reasonArgument, "zero byte in an argument")
		}
	}
	return s, checkDir(name, cmd.Dir)
}

func checkDir(name, dir string) error {
	if dir == "" || !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || strings.IndexByte(dir, 0) >= 0 {
		return refuse(name, reasonDirectory, "%q is not a clean absolute path", dir)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return &refusal{Program: name, Reason: reasonDirectory, Detail: "working directory", Err: err}
	}
	if !fi.IsDir() {
		return refuse(name, reasonDirectory, "%q is not a directory", dir)
	}
	return nil
}

// locate finds the program once per Runner, and checks for each command that it
// lies in no workspace.
func (r *Runner) locate(p Program, s *spec, dir string) (*location, error) {
	r.mu.Lock()
	loc := r.found[p]
	r.mu.Unlock()
	if loc == nil {
		var err error
		dirs := r.dirs
		if s.dirs != nil {
			dirs = s.dirs()
		}
		if loc, err = resolve(s.name, dirs); err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.found[p] = loc
		r.mu.Unlock()
	}
	untrusted := slices.Clone(r.untrusted)
	if dir != "/" { // a working directory only; a workspace is never the root
		fi, err := os.Stat(dir)
		if err != nil {
			return nil, &refusal{Program: s.name, Reason: reasonDirectory, Detail: "working directory", Err: err}
		}
		untrusted = append(untrusted, fi)
	}
	for _, fi := range untrusted {
		if loc.beneath(fi) {
			return nil, refuse(s.name, reasonUntrusted, "%s lies in or is reached through the workspace", loc.path)
		}
	}
	return loc, nil
}

// register admits a command to the register, unless the Runner is closed.
func (r *Runner) register(program, dir string, stop func(Outcome)) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		return 0, refuse(program, reasonClosed, "runner is closed")
	}
	r.nextID++
	r.running[r.nextID] = &running{
		info: RunInfo{ID: r.nextID, Program: program, Dir: dir, Started: time.Now()},
		stop: stop,
	}
	return r.nextID, nil
}

func (r *Runner) unregister(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Running lists the registered commands, oldest first.
func (r *Runner) Running() []RunInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]RunInfo, 0, len(r.running))
	for _, p := range r.running {
		list = append(list, p.info)
	}
	slices.SortStableFunc(list, func(a, b RunInfo) int { return int(a.ID) - int(b.ID) })
	return list
}

// wait blocks until no command is registered, so that no process of any is
// left. It returns the context's error if that comes first.
func (r *Runner) wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		n, changed := len(r.running), r.changed
		r.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("hostexec: wait for %d commands: %w", n, ctx.Err())
		}
	}
}

// Close refuses new commands, kills the registered ones and waits as Wait
// does. It may be called again.
func (r *Runner) Close(ctx context.Context) error {
	r.mu.Lock()
	r.open = false
	stops := make([]func(Outcome), 0, len(r.running))
	for _, p := range r.running {
		stops = append(stops, p.stop)
	}
	r.mu.Unlock()
	for _, stop := range stops {
		stop(closed)
	}
	return r.wait(ctx)
}
