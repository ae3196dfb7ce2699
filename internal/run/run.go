package run

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/progress"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// Session holds the state of one run.
type Session struct {
	c   *Runner
	o   *plan.Options
	run *store.Run

	*plan.Plan
	baseline       *change.Baseline
	claim          *store.Claim
	sandbox        *sandbox
	warm           bottle.Warm   // where the bottle's first process has started, or nil
	bottle         bottle.Bottle // the sandbox's
	events         *events
	denials        *denials
	egressLog      *egresslog.Log
	git            *gitAccount         // nil: the bottle has no repository
	allCredentials gateway.Credentials // all that were opened; of the routes' watcher
	Redactor       *secret.Redactor
	facts          *trace.Collector
	traceSum       *[sha256.Size]byte // of the trace's file
	paused         bool               // the bottle was, so that all its facts were sent
	began          time.Time          // when the command was started
	std            *streams
	budget         *budget // of all output
	execs          execs
	socket         string   // of the control server
	env            []string // the command's variables
	inside         CredentialGuard
	base           []policy.Route // before people decided about them; under inside.mu
	approver       *approver      // nil: nobody can be asked
	approvals      *approvals     // nil: nobody is asked
	peak           bottle.Usage
	stopOnce       sync.Once
	stopping       chan struct{} // closed when somebody asked for the end
	freezeOnce     sync.Once
	freezing       chan struct{} // closed when somebody asked to freeze it
	audience       audience
	commandMu      sync.Mutex
	commandRuns    bottle.Process // nil: not yet
	thawed         bool           // the command goes on in a bottle that was frozen
	intr           *interrupts
	conf           host.Config
	cleanup        []func()
	closers        []func() // of published ports
	services       []*service

	closeControl func() // nil: there is no control socket

	Rec receipt.Receipt
	set *change.Set
}

// Run runs one command in a bottle of its own. The receipt is returned whenever
// a run was recorded, also with an error: then its Exit says what failed. An
// error without a receipt means that nothing was started or written.
func (c *Runner) Run(ctx context.Context, o plan.Options) (*receipt.Receipt, error) {
	return c.conduct(ctx, o, nil)
}

// conduct runs one command, in prepared unless that is nil.
func (c *Runner) conduct(ctx context.Context, o plan.Options, prepared *Prepared) (*receipt.Receipt, error) {
	c, err := c.on(o.Backend)
	if err != nil {
		return nil, err
	}
	s, err := c.newSession(ctx, &o, prepared)
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
	phases.Mark("accounted")
	if o.Answer != nil {
		s.answered()
		s.events.settle()
		// Nothing of the bottle is left that could write to the workspace, and who
		// was answered may begin the next run: with these ports, too.
		s.release()
		s.unpublish()
		o.Answer(&s.Rec, err)
		phases.Mark("answered")
	}
	if s.bottle != nil {
		go s.bottle.Close() // ends with the bottle, for which record waits
	}
	if rerr := s.record(); rerr != nil {
		err = errors.Join(err, &RecordError{rerr})
	}
	return &s.Rec, err
}

// RecordError reports that some records of a run could not be written. The run itself
// went as the receipt says.
type RecordError struct{ Err error }

func (e *RecordError) Error() string { return "record the run: " + e.Err.Error() }

func (e *RecordError) Unwrap() error { return e.Err }

// newSession checks everything that can be checked before a run is recorded, and
// then creates the run's record.
func (c *Runner) newSession(ctx context.Context, o *plan.Options, prepared *Prepared) (_ *Session, err error) {
	s := &Session{c: c, o: o, conf: c.Config, stopping: make(chan struct{}), freezing: make(chan struct{})}
	if o.Image != "" {
		if o.Opened, err = plan.OpenImage(ctx, c.Host, o); err != nil {
			return nil, err
		}
		s.cleanup = append(s.cleanup, o.Opened.Close)
		defer func() {
			if err != nil {
				o.Opened.Close()
			}
		}()
	}
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, errors.New("no command to run")
	}
	setDefaults(o)
	defer func() {
		if err != nil {
			s.discardBottle()
		}
	}()
	if err := s.choosePlan(ctx, prepared); err != nil {
		return nil, err
	}
	phases.Mark("planned")
	if s.Redactor, err = c.RedactorFor(s.Plan, o); err != nil {
		return nil, err
	}
	s.inside = CredentialGuard{Creds: s.Credentials, Secrets: s.Watched, Edition: 1, Running: map[*RunningCommand]struct{}{}}
	// It stays to the end.
	if s.env, _, err = s.inside.Admit(s.Plan, c.Env, o.Terminal, o.Command, o.Env); err != nil {
		return nil, err
	}
	if err := s.createRun(ctx); err != nil {
		return nil, err
	}
	s.startReceipt()
	s.budget = newBudget(s.Limits.Output)
	s.openLedger()
	s.openEgressLog()
	s.openGit()
	s.allCredentials = maps.Clone(s.Credentials.Of)
	s.startEvents()
	phases.Mark("recorded")
	return s, nil
}

// setDefaults discards output and events that the caller does not ask for.
func setDefaults(o *plan.Options) {
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	if o.OnEvent == nil {
		o.OnEvent = func(plan.Event) {}
	}
}

// choosePlan takes the plan and the sandbox of prepared. If prepared is nil, it makes a
// plan and starts the bottle's first process.
func (s *Session) choosePlan(ctx context.Context, prepared *Prepared) (err error) {
	if prepared != nil {
		if s.sandbox = prepared.take(); s.sandbox == nil {
			return fmt.Errorf("%w: it was used", ErrUnfit)
		}
		s.Plan, s.o.Mode, s.conf = s.sandbox.plan, s.sandbox.plan.Mode, prepared.conf
		return nil
	}
	if s.Plan, err = plan.New(s.c.Host, s.o); err != nil {
		return err
	}
	if err := s.c.admit(ctx, s.Plan, s.conf.Floor()); err != nil {
		return err
	}
	s.warmUp()
	return nil
}

// discardBottle closes the sandbox, or its first process, of a session that failed
// before it ran.
func (s *Session) discardBottle() {
	if s.sandbox != nil {
		s.sandbox.close()
	}
	if s.warm != nil {
		s.warm.Close()
	}
}

// createRun creates the run in the store, claims the workspace and opens the queue of
// approvals. After an error nothing of them is left.
func (s *Session) createRun(ctx context.Context) (err error) {
	o, ws := s.o, s.Workspace
	if s.Plan.Asking {
		s.approver = newApprover(s.c.Build, s.o.Forge)
	}
	kind, name := o.Grant.Record()
	s.run, err = s.c.Store.Create(ctx, store.Spec{Kind: kind, Name: name, Workspace: ws, Mode: o.Mode, Command: s.command(), Build: s.c.Build})
	if err != nil {
		return err
	}
	if o.Mode != store.None {
		access := store.Shared
		if o.Mode == store.Bind {
			access = store.Exclusive
		}
		if s.claim, err = s.c.Store.Claim(ctx, store.ForRun, ws, access, s.run.ID()); err != nil {
			s.abandon(err)
			return err
		}
	}
	if err := s.openApprovals(); err != nil {
		s.release()
		s.abandon(err)
		return err
	}
	return nil
}

// startReceipt fills in what is known before the bottle is made.
func (s *Session) startReceipt() {
	s.Rec = receipt.Receipt{
		Schema: receipt.Schema, ID: s.run.ID(), Build: s.c.Build, Command: store.Raws(s.command()),
		Workspace: receipt.Workspace{Path: s.Workspace.Path, Mode: s.o.Mode},
		Limits:    receipt.Limits{Limits: s.Limits},
		Evidence:  store.Raw(s.run.Dir()),
	}
	if s.o.Opened != nil {
		s.Rec.Image = &receipt.Image{Ref: store.Raw(s.o.Image), Digest: s.o.Opened.Digest}
	}
	for _, m := range s.Mounts {
		s.Rec.Mounts = append(s.Rec.Mounts, receipt.Mount{Source: store.Raw(m.Source), Target: store.Raw(m.Target), Access: plan.AccessName(m.Access)})
	}
}

// startEvents starts the delivery of events to the caller, with secrets masked.
func (s *Session) startEvents() {
	s.events = startEvents(func(ev plan.Event) {
		ev.Name, ev.Text = s.Redactor.String(ev.Name), s.Redactor.String(ev.Text)
		s.o.OnEvent(ev)
	})
	for _, f := range s.Readable() {
		s.events.send(plan.Event{Kind: "secret", Text: "the command can read " + f + ", which is watched for on the way out only"})
	}
}

// warmUp has the bottle's first process start while the records are written, if
// it has not started while the state was opened.
func (s *Session) warmUp() {
	if a := s.c.ahead.Swap(nil); a != nil {
		if a.id.Stray && s.User.Stray && !s.Building() {
			s.User = a.id // chosen at random, once
		}
		s.warm = a.warm
	} else if w, ok := s.c.Backend.(bottle.Warmer); ok {
		s.warm = w.Warm(s.User.User, s.User.HostUID, s.User.HostGID)
	}
}

// command returns the command line with secrets masked, for records.
func (s *Session) command() []string { return s.redacted(s.o.Command) }

func (s *Session) redacted(command []string) []string {
	out := make([]string, len(command))
	for i, a := range command {
		out[i] = s.Redactor.String(a)
	}
	return out
}

// abandon drops a run that never began.
func (s *Session) abandon(err error) {
	ctx := context.Background()
	s.run.Fail(ctx, exitcode.OfRun(receipt.Failed), err.Error(), store.NoChanges)
	s.run.Close()
	s.c.Store.Remove(ctx, s.run.ID(), store.RemoveOptions{Unlanded: true})
}

// execute makes the bottle, runs the command and takes its changes. Everything
// made here is undone by close.
func (s *Session) execute(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	phases.Mark("baseline begun")
	if err := s.startServices(ctx); err != nil {
		return err
	}
	v := s.sandbox
	if v == nil {
		var err error
		if v, err = s.makeSandbox(ctx); err != nil {
			return err
		}
	}
	if err := s.board(v); err != nil {
		return err
	}
	phases.Mark("bottle made")
	if err := s.publish(ctx); err != nil {
		return err
	}
	if err := s.serveControl(); err != nil {
		return err
	}
	if err := s.noteStart(ctx); err != nil {
		return err
	}
	phases.Mark("start noted")
	unwatch, uncopy := s.startWatching(ctx), s.startCheckpoints(ctx)
	out, err := s.runCommand(ctx)
	unwatch()
	uncopy()
	phases.Mark("command ended")
	s.Rec.Exit = out
	if out.Reason != "" {
		s.intr.enter(ending)
		s.quietHits(ctx)
		err = errors.Join(err, s.takeChanges(ctx))
	}
	if !s.atRest(ctx) {
		s.bottle.Close()
		phases.Mark("bottle gone")
		s.closeStreams(ctx)
	}
	return err
}

// atRest reports whether the command's caller can be answered before the bottle
// is destroyed: it stands still, it reaches nothing of the host's, and all of
// its output was passed on.
func (s *Session) atRest(ctx context.Context) bool {
	if s.o.Answer == nil || !s.paused || s.std == nil || s.Mode == store.Bind {
		return false
	}
	for _, m := range s.Mounts {
		if m.Access == bottle.AccessReadWrite {
			return false
		}
	}
	ctx, cancel := s.draining(ctx)
	defer cancel()
	return s.std.drain(ctx)
}

// board takes v for this run.
func (s *Session) board(v *sandbox) error {
	s.sandbox, s.bottle = v, v.bottle
	observe := gateway.Observer(s.observe)
	v.observer.Store(&observe)
	if s.approvals != nil {
		s.approver.approvals.Store(s.approvals)
	}
	s.cleanup = append(s.cleanup, v.close)
	p := s.bottle.Posture()
	p.Facts = p.FactsKind()
	s.Rec.Isolation = receipt.Isolation{Class: p.Isolation, Backend: p.Backend, Build: p.Build, Posture: &p, Lacks: s.c.Backend.Capabilities().Missing()}
	// What the backend said before may not be what it made.
	if err := s.floor(s.conf.Floor()).Check(p.Backend, p.Isolation); err != nil {
		return err
	}
	return s.startTrace(v)
}

func (s *Session) closeStreams(ctx context.Context) {
	if s.std != nil {
		ctx, cancel := s.draining(ctx)
		defer cancel()
		s.std.close(ctx)
		s.audience.close()
		s.std = nil
	}
}

func (s *Session) begin(ctx context.Context) error {
	if s.Target == "" {
		return nil
	}
	b, err := change.Begin(ctx, s.Source, s.run.Dir())
	if err != nil {
		return err
	}
	s.baseline = b
	s.cleanup = append(s.cleanup, func() { b.Close() })
	// The bottle shows the directory that was looked at first; were this another
	// one, its changes would be compared with, and land in, the wrong place.
	if b.ID.Dev != s.Workspace.Dev || b.ID.Ino != s.Workspace.Ino {
		return fmt.Errorf("%w: %s; run the command again", ErrReplaced, s.Source)
	}
	return nil
}

var ErrReplaced = errors.New("another directory was put in the workspace's place while the run was made ready")

// Bounds of requests to a bottle at its end. A sandbox that hangs, or whose descriptors
// the workload has used up, must not block carboy.
const (
	pauseIn  = 10 * time.Second
	exportIn = 30 * time.Minute
)

// takeChanges stops the bottle, collects its changes, and keeps the bottle if that was
// asked for. A bottle that is gone has no changes to give; the receipt says so.
// When run is over for another reason, the changes are taken all the same; an
// interrupt gives them up.
func (s *Session) takeChanges(run context.Context) error {
	ctx, cancel := s.ending(run, exportIn)
	defer cancel()
	perr := s.pause(ctx)
	phases.Mark("bottle paused")
	switch {
	case s.o.Build != nil:
		return s.takeBuilt(ctx, perr)
	case s.o.Mode == store.None, s.o.Throwaway:
		return s.keep(run)
	case s.o.Mode == store.Bind:
		err := errors.Join(s.keep(run), s.bottle.Close())
		return errors.Join(err, s.noteHostChanges(ctx))
	}
	err := perr
	if err == nil {
		err = s.telling(ctx, "taking the changes out of the bottle", func(ctx context.Context) (err error) {
			s.set, err = s.collect(ctx, s.bottle.Export)
			if err == nil && s.o.Take != nil {
				_ = s.handUpper(ctx, func(r io.Reader) error { return s.o.Take(s.User.User.Home, r) })
			}
			return err
		})
		phases.Mark("changes taken")
	}
	switch {
	case err != nil && s.intr.gaveUp(run):
		err = fmt.Errorf("the changes were given up: %w", ErrInterrupted)
	case err != nil && s.set == nil:
		err = s.takeCopied(ctx, err)
	}
	if err != nil {
		if s.Rec.Changes == nil {
			s.Rec.Changes = &receipt.Changes{}
		}
		s.Rec.Changes.Incomplete = append(s.Rec.Changes.Incomplete, err.Error())
	}
	return errors.Join(err, s.keep(run))
}

// telling calls do, and says each second how far it is.
func (s *Session) telling(ctx context.Context, what string, do func(context.Context) error) error {
	return progress.Tell(ctx, func(n int64, took time.Duration) {
		s.events.send(plan.Event{Kind: "taking", Text: what, Bytes: n, Took: took})
	}, do)
}

// pause stops all processes inside and makes the bottle send all of its facts.
func (s *Session) pause(ctx context.Context) error {
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

// noteHostChanges notes in the receipt which files changed in a workspace that the
// command wrote to directly. They are found by their times, so another writer's files
// are among them.
func (s *Session) noteHostChanges(ctx context.Context) error {
	s.baseline.Wait(ctx)
	list, _, err := change.HostChanges(ctx, s.baseline, receipt.MaxChanges)
	if err != nil || len(list) == 0 {
		return err
	}
	policy := s.conf.Policy()
	for _, c := range list {
		if why := policy.Path(string(c.Path), c.Type); len(why) > 0 && len(s.Rec.Notes) < maxNamed {
			s.Rec.Notes = append(s.Rec.Notes, "Look at "+safetext.Path([]byte(c.Path))+", which changed on the host: "+why[0].Why)
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
		b.WriteString(safetext.Path([]byte(c.Path)))
	}
	if len(list) > maxNamed {
		b.WriteString(", …")
	}
	s.Rec.Notes = append(s.Rec.Notes, b.String())
	return nil
}

// ending returns a context for the last steps of a run. It ends after within or with an
// interrupt, but not because the caller is gone.
func (s *Session) ending(run context.Context, within time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(run), within)
	stop := context.AfterFunc(run, func() {
		if s.intr.gaveUp(run) {
			cancel()
		}
	})
	return ctx, func() { stop(); cancel() }
}

// draining returns a context for passing output to a reader outside. A slow reader gets
// all output. The context ends with an interrupt, or askIn after the caller is gone, so
// that a reader that has stopped is not waited for.
func (s *Session) draining(run context.Context) (context.Context, func()) {
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

// collect takes the run's changes out of the stream that export writes, and accounts for
// them.
func (s *Session) collect(ctx context.Context, export func(context.Context, io.Writer) error, notes ...string) (*change.Set, error) {
	s.baseline.Wait(ctx)
	set, err := collect(ctx, export, change.CollectOptions{
		Prefix: s.Target, RunDir: s.run.Dir(), Baseline: s.baseline, MaxBytes: s.Limits.Disk, Policy: s.conf.Policy(), Notes: notes,
	})
	if set != nil {
		s.Rec.Changes = review.Summarize(set)
	}
	return set, err
}

// collect takes the changes out of the stream that export writes.
func collect(ctx context.Context, export func(context.Context, io.Writer) error, o change.CollectOptions) (*change.Set, error) {
	r, w := io.Pipe()
	errc := make(chan error, 1)
	go func() {
		err := export(ctx, w)
		w.CloseWithError(err)
		errc <- err
	}()
	// A tar reader takes 512 bytes at a time, and each would be an exchange
	// between two goroutines.
	br := bufio.NewReaderSize(progress.Reader(ctx, r), 256<<10)
	set, err := change.Collect(ctx, br, o)
	if err == nil {
		io.Copy(io.Discard, br) // what stands after the archive's end
	}
	r.CloseWithError(io.ErrClosedPipe)
	xerr := <-errc
	if set == nil && err == nil {
		err = xerr
	}
	return set, err
}

// takeBuilt hands over what a step of a build has changed, if it succeeded. paused is the
// error of stopping the bottle.
func (s *Session) takeBuilt(ctx context.Context, paused error) error {
	if s.o.Build.Take == nil || s.Rec.Exit.Reason != receipt.Exited || s.Rec.Exit.Code != 0 {
		return nil
	}
	if paused != nil {
		return paused
	}
	return s.handUpper(ctx, s.o.Build.Take)
}

// handUpper passes the whole upper layer to take, whose reader returns errors of the
// export.
func (s *Session) handUpper(ctx context.Context, take func(io.Reader) error) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(s.bottle.ExportAll(ctx, w))
	}()
	err := take(bufio.NewReaderSize(progress.Reader(ctx, r), 256<<10))
	r.CloseWithError(io.ErrClosedPipe)
	<-done
	return err
}

// close undoes everything, newest first.
func (s *Session) close(ctx context.Context) {
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
	if s.sandbox != nil {
		s.sandbox.close() // one that was made ahead, and never boarded
	}
	s.release()
	s.run.Close()
	ctx, cancel := s.draining(ctx)
	defer cancel()
	s.events.close(ctx)
}

func (s *Session) release() {
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
