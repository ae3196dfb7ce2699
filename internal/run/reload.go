package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
)

// CredentialGuard keeps credentials of the gateway out of the bottle. It holds the credentials in
// force and the commands that run. Both change during a run: commands are added, and
// route files are read again.
type CredentialGuard struct {
	mu      sync.Mutex
	Creds   *plan.Credentials            // of the routes in force
	Secrets map[string]secret.Value      // all that is or was watched for; not changed
	Running map[*RunningCommand]struct{} // of the commands that run
	Edition int
}

// RunningCommand holds the variables and arguments of one command.
type RunningCommand struct {
	command []string
	asked   []string // --env
	env     []string // NAME=VALUE
}

// Watched returns the secrets now watched for, and a number that grows with each change.
func (in *CredentialGuard) Watched() (watched map[string]secret.Value, edition int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.Secrets, in.Edition
}

// Admit returns a command's variables. It refuses a command that holds a watched
// secret or a credential of the gateway. Until leave is called, Change refuses
// credentials that the command holds.
func (in *CredentialGuard) Admit(p *plan.Plan, lookup func(string) string, terminal bool, command, asked []string) (env []string, leave func(), err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := *p
	now.Credentials, now.Watched = in.Creds, in.Secrets
	if err := now.KeepOut(command); err != nil {
		return nil, nil, err
	}
	if env, err = plan.Environment(lookup, &now, terminal, asked); err != nil {
		return nil, nil, err
	}
	t := &RunningCommand{command, asked, env}
	in.Running[t] = struct{}{}
	return env, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.Running, t)
	}, nil
}

// Change calls put and replaces the credentials, unless a running command holds one of
// them. Old secrets stay watched for: they may occur in output not yet recorded.
func (in *CredentialGuard) Change(secrets *plan.Secrets, creds *plan.Credentials, put func(all map[string]secret.Value) error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for t := range in.Running {
		if err := t.holds(creds); err != nil {
			return err
		}
	}
	all := &plan.Secrets{Values: secrets.With(creds)}
	for _, name := range slices.Sorted(maps.Keys(in.Secrets)) {
		if v := in.Secrets[name]; !slices.ContainsFunc(slices.Collect(maps.Values(all.Values)), v.Equal) {
			all.Put(name, v)
		}
	}
	if err := put(all.Values); err != nil {
		return err
	}
	for name, v := range in.Creds.Values {
		if _, ok := creds.Values[name]; !ok {
			creds.Values[name] = v
		}
	}
	in.Creds, in.Secrets = creds, all.Values
	in.Edition++
	return nil
}

// holds returns an error if the command holds one of the credentials: the gateway can't
// keep out a value that is inside already.
func (t *RunningCommand) holds(creds *plan.Credentials) error {
	const advice = "the gateway adds credentials only outside the bottle; start a new run without it"
	for _, e := range t.asked {
		if name, _, _ := strings.Cut(e, "="); creds.Env[name] != "" {
			return fmt.Errorf("they add the credential of the variable %s, which --env took into the bottle: %s", name, advice)
		}
	}
	for _, e := range t.env {
		if name, val, _ := strings.Cut(e, "="); creds.In(val) {
			return fmt.Errorf("they add a credential that is in the bottle's variable %s: %s", name, advice)
		}
	}
	for _, arg := range t.command {
		if creds.In(arg) {
			return fmt.Errorf("they add a credential that is in the command line of a command in the bottle: %s", advice)
		}
	}
	return nil
}

// reloadEvery is the interval between checks of a route file. Editors write a file in
// several steps, or replace it: so it is read only when two checks in a row found the
// same file.
const reloadEvery = 250 * time.Millisecond

// startWatching applies changes of the route file until stop is called. stop waits for
// the last one.
func (s *Session) startWatching(ctx context.Context) (stop func()) {
	if s.RouteFile == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		s.watchRoutes(ctx)
	}()
	return func() { cancel(); <-done }
}

// watchRoutes checks the route file until ctx ends. An invalid file is reported once and
// changes nothing.
func (s *Session) watchRoutes(ctx context.Context) {
	at := s.RouteStamp
	t := time.NewTicker(reloadEvery)
	defer t.Stop()
	seen := at
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now, err := plan.StampOf(s.o.Routes)
		if now == at || now != seen {
			seen = now
			continue
		}
		at = now
		if err == nil {
			err = s.reloadRoutes(ctx)
		}
		if err != nil {
			var wrong document.Error
			if errors.As(err, &wrong) && len(wrong) > 1 {
				err = fmt.Errorf("%w (and %d more)", wrong[0], len(wrong)-1)
			}
			s.events.send(plan.Event{Kind: "routes", Text: fmt.Sprintf("the routes stay as they were: %v", err)})
		}
	}
}

// reloadRoutes puts all of the file's routes in force, or returns an error and changes
// nothing.
func (s *Session) reloadRoutes(ctx context.Context) error {
	rs, file, err := plan.ParseRoutes(s.o)
	if err != nil {
		return err
	}
	creds, err := (&plan.CredentialReader{Lookup: s.c.Env, Roots: s.c.Opened.Roots, Had: s.allCredentials}).Read(rs)
	if err != nil {
		return err
	}
	for _, f := range creds.TokenFiles() {
		if s.Shows(f) {
			return fmt.Errorf("refresh_token_file %s lies where the command can read it", f)
		}
	}
	if _, err := policy.Compile(rs...); err != nil {
		return err
	}
	return s.inside.Change(s.Secrets, creds, func(all map[string]secret.Value) error {
		return s.useRoutes(ctx, rs, file, creds, all)
	})
}

// useRoutes puts the routes in force, after the redactor and the audit log have them.
func (s *Session) useRoutes(ctx context.Context, rs []policy.Route, file *routes.File, creds *plan.Credentials, watched map[string]secret.Value) error {
	table, err := s.decidedOver(rs)
	if err != nil {
		return err
	}
	if err := s.Redactor.Add(marks(creds)); err != nil {
		return err
	}
	// Nothing that it allows happens before the log has it.
	ev := s.event(audit.Routes, audit.Noted)
	ev.Actor = audit.ByUser(os.Getuid())
	ev.Subject = s.text(s.o.Routes)
	ev.Text = s.text(fmt.Sprintf("%d routes", len(rs)))
	ev.Digests = []audit.Digest{{Of: "routes", Sum: file.Sum}}
	ev.Sync = true
	if _, err := s.c.Audit.Append(ctx, ev); err != nil {
		return err
	}
	maps.Copy(s.allCredentials, creds.Of)
	s.base = rs
	s.sandbox.gw.SetRoutes(table, creds.Of, watched)
	s.egressLog.SetLevel(file.Log)
	s.egressLog.Put(egresslog.Entry{Time: now(), Kind: egresslog.Routes, Detail: fmt.Sprintf("%d routes", len(rs))})
	s.events.send(plan.Event{Kind: "routes", Text: fmt.Sprintf("%s was read again: %d routes", s.o.Routes, len(rs))})
	return nil
}
