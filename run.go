package carboy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/netlog"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/stamp"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
	"github.com/carboy/carboy/internal/visible"
)

// RunOptions say what to run and what it may do. What is not granted here is
// not there.
type RunOptions struct {
	// Command is the program, looked up inside, and its arguments.
	Command []string
	// Workspace is the directory to work on; empty: the current one. With Mode
	// none it is not shown and only remembered.
	Workspace string
	Mode      store.Mode
	// Allow and AllowPrivate are routes: HOST[:PORT].
	Allow, AllowPrivate []string
	// Routes is a route file, see package routes; empty: none. Its routes come
	// before the others.
	Routes string
	// Credentials are NAME=VARIABLE@HOST[:SCHEME]: routes to HOST on which the
	// value of the host's variable is put on. Inside, the variable has a
	// placeholder.
	Credentials []string
	// Secrets are what is watched for on the way out, and never comes inside: a
	// variable of the host (NAME, env:NAME) or a file (a path, file:PATH).
	Secrets []string
	// Env are NAME=VALUE, or NAME for the host's value.
	Env []string
	// Mounts are SRC:DST[:ro].
	Mounts []string
	// RootFS is a directory to use as the root file system; empty or "host":
	// this machine's tools.
	RootFS string
	// Image is an image to use as the root file system, in the form that PullImage
	// takes; ImageDigest, if set, is the digest that it must have. Without Command,
	// the image's own is run.
	Image, ImageDigest string
	image              *openedImage // by Run
	// Limits: a zero field is the machine's default.
	Limits bottle.Limits
	// Publish are TCP ports inside, made reachable at the same port of the
	// host's 127.0.0.1.
	Publish []uint16

	// Stdin may be nil: the command reads end of file. Terminal gives the
	// command a terminal, which is Stdin's and must be one.
	//
	// Stdout and Stderr are written until Run returns, or, when the last
	// interrupt came while a Write hung, until that returns.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	// Interrupt: the first signal goes to the command, the second destroys the
	// bottle. Before the command runs, the first one gives up; when the changes
	// are being taken home, the second one does, and they are lost. Nil: none.
	Interrupt <-chan os.Signal
	// Ready is a bottle that was made ahead, by the same Client, for such
	// options; the run uses it up. The caller has asked Ready.Fits. Nil: a bottle
	// is made now.
	Ready *Ready
	// Answer is called when everything that the receipt says of the command is
	// known, changes and network included, and the last of its output was passed
	// on. What still follows is for the records: they are not complete yet. It
	// is not called when the command never ran. Nil: nobody.
	Answer func(*receipt.Receipt, error)
	// OnEvent is told what happens, for people, one event at a time. When it is
	// slow, events are dropped, not the run. Nil: nobody.
	OnEvent func(Event)

	// Supervise has people asked: about a value that is held back where a route says
	// so, and about routes, which what runs inside proposes with its tools. Without it
	// such a value is blocked, and there are no tools.
	Supervise bool
	// Policy is a file of the user's own that answers some of it by rule; empty: none.
	Policy string
	// AskFor is how long an answer is waited for; 0: five minutes.
	AskFor time.Duration
	// EndAtPids ends the run when it meets its limit of processes. Otherwise that
	// refuses to start more, and the receipt says so.
	EndAtPids bool

	// granted is what a bottle's manifests grant, from Start. Nil: nothing.
	granted *granted
	// throwaway gives up what is changed, without collecting it.
	throwaway bool
	// told hears of all that the gateway did, answers with their digests. It is on the
	// packet path, and called from many goroutines at once. Nil: nobody.
	told gateway.Observer
	// at is where the workspace stands inside, for a tree that carboy itself has
	// laid out. Empty: at its own path.
	at string
	// caches are directories of carboy's own, by where they stand in the home inside:
	// the command can write there, which does not reach them. take, if there is one,
	// gets all that the bottle's files are beside what it was made with, and where its
	// home is; its error is its caller's to remember.
	caches map[string]string
	take   func(home string, upper io.Reader) error
}

// session is one run while it goes on.
type session struct {
	c   *Client
	o   *RunOptions
	run *store.Run

	*plan
	baseline    *change.Baseline
	claim       *store.Claim
	vessel      *vessel
	warm        bottle.Warm   // where the vessel's making has begun, or nil
	bottle      bottle.Bottle // the vessel's
	events      *events
	denials     *denials
	netlog      *netlog.Log
	git         *gitAccount         // nil: the bottle has no repository
	had         gateway.Credentials // all that were opened; of the routes' watcher
	redactor    *secret.Redactor
	facts       *trace.Collector
	traceSum    *[sha256.Size]byte // of the trace's file
	paused      bool               // the bottle was, so that all its facts were sent
	began       time.Time          // when the command was started
	std         *streams
	budget      *budget // of all output
	execs       execs
	socket      string   // of the control server
	env         []string // the command's variables
	inside      inside
	base        []policy.Route // before people decided about them; under inside.mu
	asks        *asks          // nil: nobody is asked
	peak        bottle.Usage
	stopOnce    sync.Once
	stopping    chan struct{} // closed when somebody asked for the end
	freezeOnce  sync.Once
	freezing    chan struct{} // closed when somebody asked to freeze it
	audience    audience
	commandMu   sync.Mutex
	commandRuns bottle.Process // nil: not yet
	thawed      bool           // the command goes on in a bottle that was frozen
	intr        *interrupts
	conf        config
	cleanup     []func()
	closers     []func() // of published ports

	closeControl func() // nil: there is no control socket

	rec receipt.Receipt
	set *change.Set
}

// Run runs one command in a bottle of its own. The receipt is returned whenever
// a run was recorded, also with an error: then its Exit says what failed. An
// error without a receipt means that nothing was started or written.
func (c *Client) Run(ctx context.Context, o RunOptions) (*receipt.Receipt, error) {
	s, err := c.newSession(ctx, &o)
	if err != nil {
		return nil, err
	}
	rctx, unlisten := s.listen(ctx)
	defer unlisten()
	defer func() { s.close(rctx) }()
	err = s.execute(rctx)
	if err != nil && s.intr.gaveUp(rctx) {
		switch phase(s.intr.phase.Load()) {
		case preparing:
			err = fmt.Errorf("%w before the command ran", ErrInterrupted)
		case starting:
			err = fmt.Errorf("%w while the command was being started", ErrInterrupted)
		}
	}
	s.account(err)
	stamp.Mark("accounted")
	if o.Answer != nil {
		s.answered()
		s.events.settle()
		// Nothing of the bottle is left that could write to the workspace, and who
		// was answered may begin the next run: with these ports, too.
		s.release()
		s.unpublish()
		o.Answer(&s.rec, err)
		stamp.Mark("answered")
	}
	if s.bottle != nil {
		go s.bottle.Close() // ends with the bottle, for which record waits
	}
	if rerr := s.record(); rerr != nil {
		err = errors.Join(err, &RecordError{rerr})
	}
	return &s.rec, err
}

// RecordError is a run that went as the receipt says, and whose records could
// not all be written.
type RecordError struct{ Err error }

func (e *RecordError) Error() string { return "record the run: " + e.Err.Error() }
func (e *RecordError) Unwrap() error { return e.Err }

// newSession checks everything that can be checked before a run is recorded.
func (c *Client) newSession(ctx context.Context, o *RunOptions) (_ *session, err error) {
	s := &session{c: c, o: o, conf: c.config, stopping: make(chan struct{}), freezing: make(chan struct{})}
	if o.Image != "" {
		if o.image, err = c.openImage(ctx, o); err != nil {
			return nil, err
		}
		s.cleanup = append(s.cleanup, o.image.close)
		defer func() {
			if err != nil {
				o.image.close()
			}
		}()
	}
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, errors.New("no command to run")
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	defer func() {
		if err == nil {
			return
		}
		if s.vessel != nil {
			s.vessel.close()
		}
		if s.warm != nil {
			s.warm.Close()
		}
	}()
	if o.Ready != nil {
		if o.Ready.c != c {
			return nil, fmt.Errorf("%w: it is another client's", ErrUnfit)
		}
		if s.vessel = o.Ready.take(); s.vessel == nil {
			return nil, fmt.Errorf("%w: it was used", ErrUnfit)
		}
		s.plan, o.Mode, s.conf = s.vessel.plan, s.vessel.plan.mode, o.Ready.conf
	} else {
		if s.plan, err = c.newPlan(o); err != nil {
			return nil, err
		}
		if err := c.backend.Check(ctx); err != nil {
			return nil, err
		}
		s.warmUp()
	}
	stamp.Mark("planned")
	if s.redactor, err = c.redactorFor(s.plan, o); err != nil {
		return nil, err
	}
	ws := s.ws
	s.inside = inside{creds: s.creds, known: s.known, edition: 1, taken: map[*taken]struct{}{}}
	// It stays to the end.
	if s.env, _, err = s.inside.takeIn(s.plan, c.env, o.Terminal, o.Command, o.Env); err != nil {
		return nil, err
	}
	access := store.Shared
	if o.Mode == store.Bind {
		access = store.Exclusive
	}
	kind, name := o.granted.record()
	s.run, err = c.store.Create(ctx, store.Spec{Kind: kind, Name: name, Workspace: ws, Mode: o.Mode, Command: s.command(), Build: c.build})
	if err != nil {
		return nil, err
	}
	if o.Mode != store.None {
		if s.claim, err = c.store.Claim(ctx, store.ForRun, ws, access, s.run.ID()); err != nil {
			s.abandon(err)
			return nil, err
		}
	}
	if err := s.openAsks(); err != nil {
		s.release()
		s.abandon(err)
		return nil, err
	}
	s.rec = receipt.Receipt{
		Schema: receipt.Schema, ID: s.run.ID(), Build: c.build, Command: store.Raws(s.command()),
		Workspace: receipt.Workspace{Path: ws.Path, Mode: o.Mode},
		Limits:    receipt.Limits{Limits: s.limits},
		Evidence:  store.Raw(s.run.Dir()),
	}
	if o.image != nil {
		s.rec.Image = &receipt.Image{Ref: store.Raw(o.Image), Digest: o.image.Digest}
	}
	for _, m := range s.mounts {
		s.rec.Mounts = append(s.rec.Mounts, receipt.Mount{Source: store.Raw(m.Source), Target: store.Raw(m.Target), Access: accessName(m.Access)})
	}
	s.budget = newBudget(s.limits.Output)
	s.openLedger()
	s.openNetLog()
	s.openGit()
	s.had = maps.Clone(s.creds.of)
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
	s.events = startEvents(func(ev Event) {
		ev.Name, ev.Text = s.redactor.String(ev.Name), s.redactor.String(ev.Text)
		o.OnEvent(ev)
	})
	for _, f := range s.readable() {
		s.events.send(Event{Kind: "secret", Text: "the command can read " + f + ", which is watched for on the way out only"})
	}
	stamp.Mark("recorded")
	return s, nil
}

// warmUp has the bottle's first process start while the records are written, if
// it has not started while the state was opened.
func (s *session) warmUp() {
	if a := s.c.ahead.Swap(nil); a != nil {
		if a.id.stray && s.id.stray {
			s.id = a.id // chosen at random, once
		}
		s.warm = a.warm
	} else if w, ok := s.c.backend.(bottle.Warmer); ok {
		s.warm = w.Warm(s.id.user, s.id.hostUID, s.id.hostGID)
	}
}

// command is the command line as records may show it.
func (s *session) command() []string { return s.redacted(s.o.Command) }

func (s *session) redacted(command []string) []string {
	out := make([]string, len(command))
	for i, a := range command {
		out[i] = s.redactor.String(a)
	}
	return out
}

// abandon drops a run that never began.
func (s *session) abandon(err error) {
	ctx := context.Background()
	s.run.Fail(ctx, exitcode.Refused, err.Error(), store.NoChanges)
	s.run.Close()
	s.c.store.Remove(ctx, s.run.ID(), store.RemoveOptions{Unlanded: true})
}

// execute makes the bottle, runs the command and takes its changes. Everything
// made here is undone by close.
func (s *session) execute(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	stamp.Mark("baseline begun")
	v := s.vessel
	if v == nil {
		var err error
		if v, err = s.makeVessel(ctx); err != nil {
			return err
		}
	}
	if err := s.board(v); err != nil {
		return err
	}
	stamp.Mark("bottle made")
	if err := s.publish(ctx); err != nil {
		return err
	}
	if err := s.serveControl(); err != nil {
		return err
	}
	if err := s.noteStart(ctx); err != nil {
		return err
	}
	stamp.Mark("start noted")
	unwatch := s.startWatching(ctx)
	out, err := s.runCommand(ctx)
	unwatch()
	stamp.Mark("command ended")
	s.rec.Exit = out
	if out.Reason != "" {
		s.intr.enter(ending)
		s.quietHits(ctx)
		err = errors.Join(err, s.takeChanges(ctx))
	}
	if !s.atRest(ctx) {
		s.bottle.Close()
		stamp.Mark("bottle gone")
		s.closeStreams(ctx)
	}
	return err
}

// atRest reports whether the command's caller can be answered before the bottle
// is destroyed: it stands still, it reaches nothing of the host's, and all of
// its output was passed on.
func (s *session) atRest(ctx context.Context) bool {
	if s.o.Answer == nil || !s.paused || s.std == nil || s.mode == store.Bind {
		return false
	}
	for _, m := range s.mounts {
		if m.Access == bottle.AccessReadWrite {
			return false
		}
	}
	ctx, cancel := s.draining(ctx)
	defer cancel()
	return s.std.drain(ctx)
}

// board takes v for this run.
func (s *session) board(v *vessel) error {
	s.vessel, s.bottle = v, v.bottle
	observe := gateway.Observer(s.observe)
	v.observer.Store(&observe)
	if s.asks != nil {
		s.people.asks.Store(s.asks)
	}
	s.cleanup = append(s.cleanup, v.close)
	p := s.bottle.Posture()
	s.rec.Isolation = receipt.Isolation{Class: p.Isolation, Backend: p.Backend, Build: p.Build, Posture: &p}
	return s.startTrace(v)
}

func (s *session) closeStreams(ctx context.Context) {
	if s.std != nil {
		ctx, cancel := s.draining(ctx)
		defer cancel()
		s.std.close(ctx)
		s.audience.close()
		s.std = nil
	}
}

func (s *session) begin(ctx context.Context) error {
	if s.target == "" {
		return nil
	}
	b, err := change.Begin(ctx, s.source, s.run.Dir())
	if err != nil {
		return err
	}
	s.baseline = b
	s.cleanup = append(s.cleanup, func() { b.Close() })
	// The bottle shows the directory that was looked at first; were this another
	// one, its changes would be compared with, and land in, the wrong place.
	if b.ID.Dev != s.ws.Dev || b.ID.Ino != s.ws.Ino {
		return fmt.Errorf("%w: %s; run the command again", errReplaced, s.source)
	}
	return nil
}

var errReplaced = errors.New("another directory was put in the workspace's place while the run was made ready")

// slowExport is when people are told what they wait for.
const slowExport = 2 * time.Second

// Bounds of what a bottle does for us at its end. A sandbox that hangs, or that
// the workload has run out of descriptors, must not keep carboy.
const (
	pauseIn  = 10 * time.Second
	exportIn = 30 * time.Minute
)

// takeChanges stops the bottle, brings home what it changed, and keeps the bottle
// where it is to be kept. A bottle that is gone has none to give; the receipt says so.
// When run is over for another reason, the changes are taken all the same; an
// interrupt gives them up.
func (s *session) takeChanges(run context.Context) error {
	ctx, cancel := s.ending(run, exportIn)
	defer cancel()
	perr := s.pause(ctx)
	stamp.Mark("bottle paused")
	switch {
	case s.o.Mode == store.None, s.o.throwaway:
		return s.keep(run)
	case s.o.Mode == store.Bind:
		err := errors.Join(s.keep(run), s.bottle.Close())
		return errors.Join(err, s.noteHostChanges(ctx))
	}
	slow := time.AfterFunc(slowExport, func() {
		s.events.send(Event{Kind: "progress", Text: "taking the changes out of the bottle"})
	})
	defer slow.Stop()
	err := perr
	if err == nil {
		s.set, err = s.collect(ctx)
		if err == nil && s.o.take != nil {
			s.handUpper(ctx)
		}
		stamp.Mark("changes taken")
	}
	if err != nil && s.intr.gaveUp(run) {
		err = fmt.Errorf("the changes were given up: %w", ErrInterrupted)
	}
	if err != nil {
		if s.rec.Changes == nil {
			s.rec.Changes = &receipt.Changes{}
		}
		s.rec.Changes.Incomplete = append(s.rec.Changes.Incomplete, err.Error())
	}
	return errors.Join(err, s.keep(run))
}

// pause stops what is inside, and has all of its facts sent.
func (s *session) pause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pauseIn)
	defer cancel()
	err := s.bottle.Pause(ctx)
	var lost *bottle.FactsLostError
	if s.facts != nil && (err == nil || errors.As(err, &lost)) {
		var untold uint64
		if lost != nil {
			untold = lost.Untold
		}
		s.facts.Sent(untold)
	}
	s.paused = err == nil
	if lost != nil {
		return nil // the trace says so; the changes are whole
	}
	return err
}

// maxNamed bounds the paths that a note names.
const maxNamed = 20

// noteHostChanges says what became of a workspace that the command wrote to
// directly. Somebody else may have written too: only the time is known.
func (s *session) noteHostChanges(ctx context.Context) error {
	s.baseline.Wait(ctx)
	list, _, err := change.HostChanges(ctx, s.baseline, receipt.MaxChanges)
	if err != nil || len(list) == 0 {
		return err
	}
	policy := s.conf.policy()
	for _, c := range list {
		if why := policy.Path(string(c.Path), c.Type); len(why) > 0 && len(s.rec.Notes) < maxNamed {
			s.rec.Notes = append(s.rec.Notes, "Look at "+visible.Path([]byte(c.Path))+", which changed on the host: "+why[0].Why)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Changed on the host during the run: %d", len(list))
	if len(list) == receipt.MaxChanges {
		b.WriteString(" or more")
	}
	b.WriteString(" paths: ")
	for i, c := range list[:min(len(list), maxNamed)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(visible.Path([]byte(c.Path)))
	}
	if len(list) > maxNamed {
		b.WriteString(", …")
	}
	s.rec.Notes = append(s.rec.Notes, b.String())
	return nil
}

// ending is a context for what must still be done: a caller that has gone away
// does not end it, an interrupt does.
func (s *session) ending(run context.Context, within time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), within)
	stop := context.AfterFunc(run, func() {
		if s.intr.gaveUp(run) {
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

// draining is a context for what a reader outside has to take: one that is slow
// gets all of it, one that does not read any more is not waited for when there
// was an interrupt or the caller has gone away.
func (s *session) draining(run context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(run))
	stop := context.AfterFunc(run, func() {
		if !s.intr.gaveUp(run) {
			select {
			case <-time.After(askIn):
			case <-ctx.Done():
			}
		}
		cancel()
	})
	return ctx, func() { stop(); cancel() }
}

func (s *session) collect(ctx context.Context) (*change.Set, error) {
	r, w := io.Pipe()
	errc := make(chan error, 1)
	go func() {
		err := s.bottle.Export(ctx, w)
		w.CloseWithError(err)
		errc <- err
	}()
	s.baseline.Wait(ctx)
	// A tar reader takes 512 bytes at a time, and each would be an exchange
	// between two goroutines.
	br := bufio.NewReaderSize(r, 256<<10)
	set, err := change.Collect(ctx, br, change.CollectOptions{
		Prefix: s.target, RunDir: s.run.Dir(), Baseline: s.baseline, MaxBytes: s.limits.Disk, Policy: s.conf.policy(),
	})
	if err == nil {
		io.Copy(io.Discard, br) // what stands after the archive's end
	}
	r.CloseWithError(io.ErrClosedPipe)
	xerr := <-errc
	if set == nil && err == nil {
		err = xerr
	}
	if set != nil {
		s.rec.Changes = summarize(set)
	}
	return set, err
}

// handUpper gives the whole upper layer to who asked for it, who learns of an error by
// reading.
func (s *session) handUpper(ctx context.Context) {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(s.bottle.ExportAll(ctx, w))
	}()
	_ = s.o.take(s.id.user.Home, bufio.NewReaderSize(r, 256<<10))
	r.CloseWithError(io.ErrClosedPipe)
	<-done
}

// close undoes everything, newest first.
func (s *session) close(ctx context.Context) {
	if s.bottle != nil {
		s.bottle.Close()
	}
	if s.warm != nil {
		s.warm.Close()
	}
	s.closeStreams(ctx)
	for i := len(s.cleanup) - 1; i >= 0; i-- {
		s.cleanup[i]()
	}
	s.cleanup = nil
	if s.vessel != nil {
		s.vessel.close() // one that was made ahead, and never boarded
	}
	s.release()
	s.run.Close()
	ctx, cancel := s.draining(ctx)
	defer cancel()
	s.events.close(ctx)
}

func (s *session) release() {
	if s.claim != nil {
		s.claim.Release()
		s.claim = nil
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func parseMounts(specs []string, workspace, state string) ([]bottle.Mount, error) {
	var out []bottle.Mount
	for _, spec := range specs {
		m, err := parseMount(spec)
		if err != nil {
			return nil, err
		}
		// A mount above it covers it too, and then the command would work on the
		// host's directory while the receipt speaks of an overlay.
		if workspace == m.Target || strings.HasPrefix(workspace, m.Target+"/") {
			return nil, &OptionError{Option: "--mount", Value: spec, Reason: "covers the workspace", Advice: "name a destination outside of it, or the directories that are needed"}
		}
		if workspace != "" && leadsOut(spec, m.Source, workspace) {
			return nil, &OptionError{Option: "--mount", Value: spec, Reason: "has a source in the workspace that is a link out of it", Advice: "the workspace's files may be anybody's; name where the link leads if that is meant"}
		}
		if showsState(m.Source, state) {
			return nil, &OptionError{Option: "--mount", Value: spec, Reason: "would show carboy's own state", Advice: "name the directories that the command needs"}
		}
		out = append(out, m)
	}
	return out, nil
}

// leadsOut reports whether a mount's source is named in the workspace and lies
// elsewhere: what a link there leads to was chosen by whoever wrote the link.
func leadsOut(spec, real, workspace string) bool {
	src, _, _ := strings.Cut(spec, ":")
	if real == workspace || strings.HasPrefix(real, workspace+"/") {
		return false
	}
	abs, err := filepath.Abs(src)
	for ; err == nil && abs != "/"; abs = filepath.Dir(abs) {
		if realPath(filepath.Dir(abs)) == workspace {
			return true
		}
	}
	return err != nil
}

// realPath is where path leads, as far as it can be found.
func realPath(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}

// parseMount reads SRC:DST[:ro|:rw]. Read-only is not the default: who writes
// a mount means to share, and the word "ro" is there to be said; but sockets
// and devices never come in this way.
func parseMount(spec string) (bottle.Mount, error) {
	bad := func(reason, advice string) (bottle.Mount, error) {
		return bottle.Mount{}, &OptionError{Option: "--mount", Value: spec, Reason: reason, Advice: advice}
	}
	parts := strings.Split(spec, ":")
	access := bottle.AccessReadWrite
	switch {
	case len(parts) == 3 && parts[2] == "ro":
		access = bottle.AccessReadOnly
	case len(parts) == 3 && parts[2] == "rw", len(parts) == 2:
	default:
		return bad("is not SRC:DST or SRC:DST:ro", "")
	}
	src, dst := parts[0], parts[1]
	if rest, ok := strings.CutPrefix(src, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return bad("has ~, but the home directory is unknown", "")
		}
		src = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(dst) || filepath.Clean(dst) != dst || dst == "/" {
		return bad("has a destination that is not an absolute path", "")
	}
	for _, own := range []string{"/proc", "/sys", "/dev", "/.carboy"} {
		if dst == own || strings.HasPrefix(dst, own+"/") {
			return bad("would cover the bottle's own "+own, "")
		}
	}
	abs, err := filepath.Abs(src)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return bad("has a source that can't be found", "")
	}
	fi, err := os.Stat(abs)
	if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
		return bad("has a source that is neither a directory nor a regular file", "")
	}
	if abs == "/" {
		return bad("would show the whole host", "name the directories that the command needs")
	}
	var st unix.Stat_t
	if err := unix.Lstat(abs, &st); err != nil {
		return bad("has a source that can't be found", "")
	}
	return bottle.Mount{Source: abs, Target: dst, Access: access, Dev: st.Dev, Ino: st.Ino}, nil
}
