//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/handover"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/pool"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/reclaim"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// carboy run --pool N. A ready bottle is a separate carboy process that has done all of a
// run up to the command. It waits for one hand-over: the arguments, environment and
// standard streams of the carboy that the user started. Then it executes the same command
// line with the same code, once, and exits. The process in the user's terminal passes
// signals on and waits for the exit code. So the user sees the same as without a pool, and
// no bottle is used twice.

// maxPool bounds the bottles that wait for one kind of run.
const maxPool = 16

// defaultIdle bounds the wait of a bottle for its run.
const defaultIdle = 15 * time.Minute

// poolVersion changes with the frames below. Both ends are the same binary (it
// is in the key), except for pool list and pool stop.
const poolVersion = 1

// order tells a process which bottle to prepare.
type order struct {
	Key    string
	Keep   int
	Idle   time.Duration
	Config string
	Dir    string

	Mode         store.Mode
	Workspace    string
	Allow        []string
	AllowPrivate []string
	Mounts       []string
	RootFS       string
	Limits       bottle.Limits

	Place string // what pool.Reserve gave
}

func (o *order) options() carboy.RunOptions {
	return carboy.RunOptions{
		Mode: o.Mode, Workspace: o.Workspace, Allow: o.Allow, AllowPrivate: o.AllowPrivate,
		Mounts: o.Mounts, RootFS: o.RootFS, Limits: o.Limits,
	}
}

// poolAsk is the first frame to a ready bottle. With Op "run" it comes with the
// three standard streams.
type poolAsk struct {
	Version int
	Op      string // run, status or stop
	Key     string
	Args    []string
	Env     []string
	Dir     string
	Umask   int
}

// poolReply answers a poolAsk. After an OK to a run, the asker must send Go, so that a
// run whose asker has given up never begins.
type poolReply struct {
	OK     bool
	Status *poolStatus `json:",omitempty"`
}

// poolNews is a frame that the asker sends after a poolReply.
type poolNews struct {
	Go     bool
	Signal int
}

// poolExit tells the asker the exit code of the run.
type poolExit struct{ Code int }

// poolStatus describes a ready bottle.
type poolStatus struct {
	ID        string        `json:"id"`
	PID       int           `json:"pid"`
	Since     time.Time     `json:"since"`
	Idle      time.Duration `json:"idle_ns"`
	Workspace store.Raw     `json:"workspace"`
	Mode      store.Mode    `json:"mode"`
	Allow     []string      `json:"allow"`
	Memory    int64         `json:"memory_bytes"`
}

// poolable reports whether a run can use a bottle of the pool.
func (a *app) poolable(f *runFlags, o *carboy.RunOptions) bool {
	switch {
	case f.pool.n == 0, a.verbose, carboy.CanPrepare(o) != nil, a.env(bottle.DebugEnv) != "":
		return false
	case a.backend != "" && a.backend != carboy.Backends()[0]:
		if !f.quiet {
			a.say(plainText, "not from the pool: its bottles are of the backend %s", carboy.Backends()[0])
		}
		return false
	case f.tty:
		// The shell must be able to stop a background job that reads from the terminal,
		// and it knows only this process.
		fg, err := foreground(a.stdin)
		return err == nil && fg
	case f.interactive && isTerminal(a.stdin):
		return false // the same, and without -t nothing here notices
	}
	return true
}

// foreground reports whether we are in the foreground of the terminal f. It fails
// when f is not the terminal that we were started in.
func foreground(f *os.File) (bool, error) {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return group == unix.Getpgrp(), err
}

// runPooled hands the command line to a ready bottle, if there is one. It gives up after
// answerIn, however many bottles do not answer.
func (a *app) runPooled(key string) (done bool, err error) {
	dir, err := store.RuntimeDir(a.env)
	if err != nil {
		return false, nil // the cold run says it better
	}
	paths, err := pool.Fitting(dir, key)
	if err != nil {
		return false, nil
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH)
	defer signal.Stop(signals)
	for end := time.Now().Add(answerIn); len(paths) > 0 && time.Now().Before(end); paths = paths[1:] {
		c, err := pool.Dial(paths[0])
		if err != nil {
			continue
		}
		done, err := a.handOver(c, key, signals, end)
		c.Close()
		if done {
			return true, err
		}
	}
	if interrupted(signals) {
		return true, errEarly
	}
	return false, nil
}

// errEarly is the error of a run that was interrupted before a bottle accepted it.
var errEarly = fmt.Errorf("%w before the command ran", carboy.ErrInterrupted)

// interrupted reports whether a signal has arrived that ends the run.
func interrupted(signals <-chan os.Signal) bool {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return true
			}
		default:
			return false
		}
	}
}

// answerIn bounds the wait for a ready bottle to say whether it fits.
const answerIn = 3 * time.Second

// errSupervisorDied means that nobody knows how the run ended.
var errSupervisorDied = errors.New("the carboy that held the bottle died")

// handOver gives the command line to the bottle at the other end of c, which must accept
// it before end. If it returns false, nothing ran.
func (a *app) handOver(c *handover.Conn, key string, signals <-chan os.Signal, end time.Time) (done bool, err error) {
	wd, err := unix.Getwd()
	if err != nil {
		return false, nil
	}
	files, drop, err := standardStreams(a)
	if err != nil {
		return false, nil
	}
	defer drop()
	mask := unix.Umask(0)
	unix.Umask(mask)
	c.Deadline(end)
	if err := c.Send(poolAsk{Version: poolVersion, Op: "run", Key: key, Args: a.args, Env: os.Environ(), Dir: wd, Umask: mask}, files...); err != nil {
		return false, nil
	}
	var r poolReply
	heard := make(chan error, 1)
	go func() { // ends by the deadline, or when c is closed
		_, err := c.Recv(&r)
		heard <- err
	}()
	for waiting := true; waiting; {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				return true, errEarly // nobody says go
			}
		case err := <-heard:
			if err != nil || !r.OK {
				return false, nil
			}
			waiting = false
		}
	}
	if interrupted(signals) {
		return true, errEarly
	}
	// A supervisor that dies does not restore the terminal.
	state, terr := term.GetState(int(a.stdin.Fd()))
	c.Deadline(time.Time{})
	if err := c.Send(poolNews{Go: true}); err != nil {
		return true, errSupervisorDied
	}
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with the run
		for {
			select {
			case s := <-signals:
				if n, ok := s.(syscall.Signal); ok {
					c.Send(poolNews{Signal: int(n)})
				}
			case <-over:
				return
			}
		}
	}()
	var x poolExit
	if _, err := c.Recv(&x); err != nil {
		if terr == nil {
			term.Restore(int(a.stdin.Fd()), state)
		}
		return true, errSupervisorDied
	}
	a.code = x.Code
	if x.Code != 0 {
		return true, errReported
	}
	return true, nil
}

// standardStreams returns the standard streams of this process, with /dev/null for those
// that are closed.
func standardStreams(a *app) (files []*os.File, drop func(), err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	out, ok1 := a.stdout.(*os.File)
	msg, ok2 := a.stderr.(*os.File)
	if !ok1 || !ok2 {
		null.Close()
		return nil, nil, errors.New("the output is not a file")
	}
	for _, f := range []*os.File{a.stdin, out, msg} {
		if f == nil || !isOpen(f) {
			f = null
		}
		files = append(files, f)
	}
	return files, func() { null.Close() }, nil
}

func isOpen(f *os.File) bool {
	_, err := f.Stat()
	return err == nil
}

// poolKey returns the key of the bottles that the run can use.
func (a *app) poolKey(o *carboy.RunOptions) (string, error) {
	return carboy.PoolKey(o, a.env, a.config)
}

// orderFor returns the order for more bottles that a run with o can use.
func (a *app) orderFor(f *runFlags, o *carboy.RunOptions, key string) (*order, error) {
	wd, err := unix.Getwd() // as who makes them sees it, which has no $PWD
	if err != nil {
		return nil, err
	}
	return &order{
		Key: key, Keep: int(f.pool.n), Idle: f.idle(), Config: a.config, Dir: wd,
		Mode: o.Mode, Workspace: o.Workspace, Allow: o.Allow, AllowPrivate: o.AllowPrivate,
		Mounts: o.Mounts, RootFS: o.RootFS, Limits: o.Limits,
	}, nil
}

// idle returns the time for which the bottles that this run orders wait.
func (f *runFlags) idle() time.Duration {
	if f.poolIdle == 0 {
		return defaultIdle
	}
	return time.Duration(f.poolIdle)
}

// preparedEnv lists the variables that say where the user's files are. A waiting process gets
// no others. The hand-over brings those of the command.
var preparedEnv = []string{"HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "TMPDIR"}

// refill starts processes until o.Keep bottles are ready or being prepared.
func refill(o *order, env func(string) string) error {
	if exe, err := os.Readlink("/proc/self/exe"); err != nil || strings.HasSuffix(exe, " (deleted)") {
		return err // a new carboy makes its own
	}
	dir, err := store.RuntimeDir(env)
	if err != nil {
		return err
	}
	var vars []string
	for _, n := range preparedEnv {
		if v := env(n); v != "" {
			vars = append(vars, n+"="+v)
		}
	}
	for {
		place, err := pool.Reserve(dir, o.Key, o.Keep)
		if err != nil || place == "" {
			return err
		}
		next := *o
		next.Place = place
		doc, err := json.Marshal(&next)
		if err == nil {
			err = hostexec.Detach(hostexec.RolePrepared, vars, doc)
		}
		if err != nil {
			pool.Release(dir, place)
			return err
		}
	}
}

// preparedMain prepares a bottle and waits, if the process was started for that, and then
// does not return.
func preparedMain() {
	if len(os.Args) != 1 || os.Args[0] != string(hostexec.RolePrepared) {
		return
	}
	doc, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
	var o order
	if err == nil {
		err = json.Unmarshal(doc, &o)
	}
	if err == nil {
		null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		unix.Dup3(int(null.Fd()), 0, 0) // the order's pipe
		null.Close()
		err = servePrepared(&o)
	}
	os.Exit(exitcode.OfError(exitcode.Others, err))
}

// prepared is the state of a process that has a bottle ready.
type prepared struct {
	order  *order
	client *carboy.Client
	bottle *carboy.Prepared
	socket *pool.Socket
	since  time.Time
	claims chan claim
	stops  chan struct{}
	taken  chan struct{} // closed when one was accepted
	about  poolStatus    // what does not change
	idle   *time.Timer
	place  *pool.Place
}

// claim is a run's request for the bottle.
type claim struct {
	c     *handover.Conn
	ask   poolAsk
	files []*os.File
}

// watchEvery is the interval at which a ready bottle checks whether it is still useful.
const watchEvery = 15 * time.Second

func servePrepared(o *order) error {
	ctx := context.Background()
	if err := os.Chdir(o.Dir); err != nil {
		return err
	}
	opts := o.options()
	if key, err := carboy.PoolKey(&opts, os.Getenv, o.Config); err != nil || key != o.Key {
		return errors.Join(errors.New("this is another place than where the run was"), err)
	}
	dir, err := store.RuntimeDir(os.Getenv)
	if err != nil {
		return err
	}
	r := &prepared{order: o, since: time.Now(), idle: time.NewTimer(o.Idle), claims: make(chan claim), stops: make(chan struct{}), taken: make(chan struct{})}
	// A bottle counts as ready while it is being prepared.
	if r.place, err = pool.Occupy(dir, o.Place); err != nil {
		return err
	}
	defer r.place.Leave()
	if r.client, err = carboy.Open(ctx, carboy.Options{Config: o.Config, Quick: true}); err != nil {
		return err
	}
	defer r.client.Close()
	if r.bottle, err = r.client.Prepare(ctx, opts); err != nil {
		r.failed(err)
		return err
	}
	defer func() { r.bottle.Close() }()
	// The working directory could not be unmounted otherwise.
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := r.publish(dir); err != nil || r.socket == nil {
		return err
	}
	defer r.socket.Close()
	os.Remove(filepath.Join(r.client.StateDir(), failedFile))
	r.about = poolStatus{
		ID: r.socket.ID(), PID: os.Getpid(), Since: r.since.UTC().Round(time.Second), Idle: o.Idle,
		Workspace: store.Raw(r.bottle.Workspace()), Mode: o.Mode, Allow: append(slices.Clone(o.Allow), o.AllowPrivate...),
	}
	reclaim.Rest()
	go r.accept() // ends with the socket
	return r.wait(ctx)
}

// failed writes the error to a file for carboy pool list: nobody sees this process's
// stderr.
func (r *prepared) failed(err error) {
	store.WriteFile(filepath.Join(r.client.StateDir(), failedFile), []byte(errorLine(err)+"\n"), 0o600)
}

const failedFile = "pool/failed"

// publish offers the bottle, unless enough others are ready.
func (r *prepared) publish(dir string) error {
	unlock, err := pool.Lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	have, err := pool.Fitting(dir, r.order.Key)
	if err != nil || len(have) >= r.order.Keep {
		return err
	}
	r.socket, err = pool.Publish(dir, r.order.Key)
	r.place.Leave()
	return err
}

func (r *prepared) accept() {
	for {
		c, err := r.socket.Accept()
		if err != nil {
			return
		}
		go r.hear(c) // ends within answerIn, or hands c on
	}
}

// hear reads the request of a connection.
func (r *prepared) hear(c *handover.Conn) {
	c.Deadline(time.Now().Add(answerIn))
	var ask poolAsk
	files, err := c.Recv(&ask)
	if err != nil || ask.Version != poolVersion {
		c.Close()
		closeAll(files)
		return
	}
	switch {
	case ask.Op == "run" && len(files) == 3 && ask.Key == r.order.Key:
		select {
		case r.claims <- claim{c, ask, files}:
			return
		case <-r.taken:
		}
	case ask.Op == "status":
		if s := r.status(); s != nil {
			c.Send(poolReply{OK: true, Status: s})
		}
	case ask.Op == "stop":
		select {
		case r.stops <- struct{}{}:
			c.Send(poolReply{OK: true})
		case <-r.taken: // it is a run by now
		}
	}
	c.Close()
	closeAll(files)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// status returns nil if a run has the bottle.
func (r *prepared) status() *poolStatus {
	select {
	case <-r.taken:
		return nil
	default:
	}
	s := r.about
	if u, err := r.bottle.Usage(); err == nil {
		s.Memory = u.Memory
	}
	return &s
}

// wait blocks until the run has ended, or there will be none.
func (r *prepared) wait(ctx context.Context) error {
	stop := make(chan os.Signal, 4)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	watch := time.NewTicker(watchEvery)
	defer watch.Stop()
	for {
		select {
		case x := <-r.claims:
			close(r.taken)
			// There is only one run, so nobody must find the bottle from now on.
			r.socket.Close()
			r.serve(ctx, x, stop)
			return nil
		case <-stop:
			return nil
		case <-r.stops:
			return nil
		case <-r.idle.C:
			return nil
		case <-r.bottle.Done():
			return errors.New("the bottle died")
		case <-watch.C:
			if r.bottle.Stale() != nil || r.replaced() {
				return nil
			}
		}
	}
}

// replaced reports whether the binary was upgraded: then no run can use this bottle.
func (r *prepared) replaced() bool {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil || strings.HasSuffix(exe, " (deleted)") {
		return true
	}
	var now, then unix.Stat_t
	return unix.Stat(exe, &now) != nil || unix.Stat("/proc/self/exe", &then) != nil || now.Ino != then.Ino || now.Dev != then.Dev
}

// serve executes the command line of the carboy that the user started. Signals to this
// process have the same effect as on any carboy.
func (r *prepared) serve(ctx context.Context, x claim, signals chan os.Signal) {
	defer x.c.Close()
	x.c.Deadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := become(&x.ask); err != nil {
		x.c.Send(poolReply{})
		return
	}
	phases.Begin()
	defer phases.End()
	a := newApp(x.files[0], x.files[1], x.files[2], os.Getenv)
	a.warm = &warm{prepared: r, c: x.c, cancel: cancel, interrupts: signals, stdout: x.files[1]}
	// It executes carboy run only, whatever the command line says.
	root := a.root()
	if !isRun(root, x.ask.Args) {
		x.c.Send(poolReply{})
		return
	}
	code := a.execute(ctx, root, x.ask.Args)
	if !a.warm.began {
		return
	}
	a.warm.answer(code)
	refill(r.order, os.Getenv)
}

// isRun reports whether args is a command line of carboy run.
func isRun(root *cobra.Command, args []string) bool {
	cmd, _, err := root.Find(args)
	return err == nil && cmd.Name() == "run" && cmd.HasParent() && !cmd.Parent().HasParent()
}

// become gives this process the attributes of the user's process.
func become(ask *poolAsk) error {
	os.Clearenv()
	for _, e := range ask.Env {
		if k, v, ok := strings.Cut(e, "="); ok && k != "" {
			if err := os.Setenv(k, v); err != nil {
				return err
			}
		}
	}
	unix.Umask(ask.Umask)
	return os.Chdir(ask.Dir)
}

// warm is the state of an app that executes a command line that was handed over.
type warm struct {
	prepared   *prepared
	c          *handover.Conn
	cancel     context.CancelFunc
	interrupts chan os.Signal
	stdout     *os.File
	began      bool
	answered   bool
}

// errDeclined means that the asker must do the run itself.
var errDeclined = fmt.Errorf("declined: %w", errReported)

// begin accepts the run if the bottle fits. Once it succeeds, the run belongs to this
// process.
func (w *warm) begin(f *runFlags, o *carboy.RunOptions) error {
	if err := w.prepared.bottle.Fits(o); err != nil {
		w.c.Send(poolReply{})
		return errDeclined
	}
	w.c.Deadline(time.Now().Add(answerIn))
	if err := w.c.Send(poolReply{OK: true}); err != nil {
		return errDeclined
	}
	var n poolNews
	if _, err := w.c.Recv(&n); err != nil || !n.Go {
		return errDeclined
	}
	w.c.Deadline(time.Time{})
	w.began = true
	w.prepared.order.Keep, w.prepared.order.Idle = int(f.pool.n), f.idle()
	o.Interrupt = w.interrupts
	go w.relay() // ends with the connection
	return nil
}

// relay receives the signals and the end of the user's process.
func (w *warm) relay() {
	for {
		var n poolNews
		if _, err := w.c.Recv(&n); err != nil {
			// It was killed. A bottle of its own would have ended too.
			w.cancel()
			return
		}
		switch s := syscall.Signal(n.Signal); s {
		case syscall.SIGWINCH:
			syscall.Kill(os.Getpid(), s)
		case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
			select {
			case w.interrupts <- s:
			default:
			}
		}
	}
}

// answer tells the user's process the exit code. Only the first call has an effect.
func (w *warm) answer(code int) {
	if !w.answered {
		w.answered = true
		w.c.Send(poolExit{code})
	}
}

const poolLong = `List or end the bottles that carboy run --pool has prepared and that wait for their
run. Each is a process of its own, is used once, and ends after the time that
--pool-idle says.`

func (a *app) poolCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pool", Short: "list or end prepared bottles", Long: poolLong, GroupID: "keep", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.poolListCmd(), a.poolStopCmd())
	return cmd
}

func (a *app) poolListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "list the bottles that wait", Args: noArgs,
		Example: "  carboy pool list\n  carboy pool list --json | jq length",
		RunE: func(*cobra.Command, []string) error {
			all, err := a.poolAll("status")
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(all)
			}
			if len(all) == 0 {
				a.say(plainText, "no bottle waits; carboy run --pool 1 prepares one")
				a.sayFailed()
				return nil
			}
			w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "BOTTLE\tPID\tREADY SINCE\tIDLE FOR AT MOST\tMODE\tWORKSPACE\tALLOWED")
			for _, s := range all {
				ws := safetext.Path([]byte(s.Workspace))
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", s.ID, s.PID, s.Since.Local().Format("2006-01-02 15:04:05"), receipt.Duration(s.Idle), s.Mode,
					orDash(ws), orDash(safetext.String(strings.Join(s.Allow, " "), 200)))
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of id, pid, since, idle_ns, workspace, mode, allow, memory_bytes")
	return cmd
}

func (a *app) poolStopCmd() *cobra.Command {
	return &cobra.Command{
		Use: "stop", Short: "end all bottles that wait", Args: noArgs,
		Long: "End all bottles that wait for a run. Running ones are not touched.",
		RunE: func(*cobra.Command, []string) error {
			all, err := a.poolAll("stop")
			if err == nil {
				a.say(plainText, "%s ended", number(len(all), "waiting bottle", "waiting bottles"))
			}
			return err
		},
	}
}

// poolAll sends the same request to every ready bottle. It leaves out those that are gone
// or that a run has just taken.
func (a *app) poolAll(op string) ([]poolStatus, error) {
	dir, err := store.RuntimeDir(a.env)
	if err != nil {
		return nil, err
	}
	paths, err := pool.All(dir)
	if err != nil {
		return nil, err
	}
	out := []poolStatus{}
	for _, path := range paths {
		c, err := pool.Dial(path)
		if err != nil {
			continue
		}
		c.Deadline(time.Now().Add(answerIn))
		var r poolReply
		err = c.Send(poolAsk{Version: poolVersion, Op: op})
		if err == nil {
			_, err = c.Recv(&r)
		}
		if err == nil && op == "stop" {
			c.Recv(&poolReply{}) // its end
			for end := time.Now().Add(answerIn); time.Now().Before(end) && exists(path); time.Sleep(time.Millisecond) {
			}
		}
		c.Close()
		switch {
		case err != nil || !r.OK:
		case r.Status != nil:
			out = append(out, *r.Status)
		default:
			out = append(out, poolStatus{ID: pool.ID(path)})
		}
	}
	return out, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sayFailed says why the last bottle could not be prepared.
func (a *app) sayFailed() {
	dir, err := store.StateDir(a.env)
	if err != nil {
		return
	}
	if b, err := os.ReadFile(filepath.Join(dir, failedFile)); err == nil {
		a.say(plainText, "the last one could not be made: %s", errorText(strings.TrimSpace(string(b))))
	}
}
