package carboy

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

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/netlog"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
)

// inside is what carboy's own hand put into the bottle, and what must not be there.
// Both change while a run goes on: commands come from outside, and route files are
// read again.
type inside struct {
	mu      sync.Mutex
	creds   *credentials            // of the routes in force
	known   map[string]secret.Value // all that is or was watched for; not changed
	taken   map[*taken]struct{}     // of the commands that run
	edition int
}

// taken is what came in with one command.
type taken struct {
	command []string
	asked   []string // --env
	env     []string // NAME=VALUE
}

// watched is what is watched for at this moment, and how often that has changed.
func (in *inside) watched() (known map[string]secret.Value, edition int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.known, in.edition
}

// takeIn makes a command's variables and refuses what would come inside with it and
// must not, now or, until leave, by routes that are read again.
func (in *inside) takeIn(p *plan, lookup func(string) string, terminal bool, command, asked []string) (env []string, leave func(), err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := *p
	now.creds, now.known = in.creds, in.known
	if err := now.keepOut(command); err != nil {
		return nil, nil, err
	}
	if env, err = environment(lookup, &now, terminal, asked); err != nil {
		return nil, nil, err
	}
	t := &taken{command, asked, env}
	in.taken[t] = struct{}{}
	return env, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.taken, t)
	}, nil
}

// change takes over new credentials, with put, unless one of them is inside already.
// What was watched for stays so: it may stand in what is still to be recorded.
func (in *inside) change(secrets *known, creds *credentials, put func(all map[string]secret.Value) error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for t := range in.taken {
		if err := t.holds(creds); err != nil {
			return err
		}
	}
	all := &known{values: secrets.with(creds)}
	for _, name := range slices.Sorted(maps.Keys(in.known)) {
		if v := in.known[name]; !slices.ContainsFunc(slices.Collect(maps.Values(all.values)), v.Equal) {
			all.put(name, v)
		}
	}
	if err := put(all.values); err != nil {
		return err
	}
	for name, v := range in.creds.values {
		if _, ok := creds.values[name]; !ok {
			creds.values[name] = v
		}
	}
	in.creds, in.known = creds, all.values
	in.edition++
	return nil
}

// holds refuses credentials that came in with a command: the gateway would keep out
// what is there already.
func (t *taken) holds(creds *credentials) error {
	const advice = "a credential that the gateway puts on does not come inside; start a new run without it"
	for _, e := range t.asked {
		if name, _, _ := strings.Cut(e, "="); creds.env[name] != "" {
			return fmt.Errorf("they put on the credential of the variable %s, and --env took that variable into the bottle: %s", name, advice)
		}
	}
	for _, e := range t.env {
		if name, val, _ := strings.Cut(e, "="); creds.in(val) {
			return fmt.Errorf("they put on a credential that the bottle's variable %s holds: %s", name, advice)
		}
	}
	for _, arg := range t.command {
		if creds.in(arg) {
			return fmt.Errorf("they put on a credential that the command line of a command in the bottle holds: %s", advice)
		}
	}
	return nil
}

// reloadEvery is how often a route file is looked at. Editors write a file in
// several steps, or put another in its place: what is read is a file that was the
// same at two looks.
const reloadEvery = 250 * time.Millisecond

// startWatching has changes of the route file take effect until stop, which waits
// for the last.
func (s *session) startWatching(ctx context.Context) (stop func()) {
	if s.file == nil {
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

// watchRoutes looks at the route file until ctx ends. One that is not good is told
// of once, and changes nothing.
func (s *session) watchRoutes(ctx context.Context) {
	at := s.read
	t := time.NewTicker(reloadEvery)
	defer t.Stop()
	seen := at
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now, err := stampOf(s.o.Routes)
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
			s.events.send(Event{Kind: "routes", Text: fmt.Sprintf("the routes stay as they were: %v", err)})
		}
	}
}

// fileStamp changes when a file does.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(path string) (fileStamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileStamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileStamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// reloadRoutes puts the file's routes in force: all of them, or an error and none.
func (s *session) reloadRoutes(ctx context.Context) error {
	rs, file, err := parseRoutes(s.o)
	if err != nil {
		return err
	}
	creds, err := (&credentialReader{lookup: s.c.env, roots: s.c.opened.Roots, had: s.had}).read(rs)
	if err != nil {
		return err
	}
	for _, f := range creds.tokenFiles() {
		if s.shows(f) {
			return fmt.Errorf("refresh_token_file %s lies where the command can read it", f)
		}
	}
	if _, err := policy.Compile(rs...); err != nil {
		return err
	}
	return s.inside.change(s.secrets, creds, func(all map[string]secret.Value) error {
		return s.useRoutes(ctx, rs, file, creds, all)
	})
}

// useRoutes has the routes decide. What they bring is known to the records first.
func (s *session) useRoutes(ctx context.Context, rs []policy.Route, file *routes.File, creds *credentials, known map[string]secret.Value) error {
	table, err := s.decidedOver(rs)
	if err != nil {
		return err
	}
	if err := s.redactor.Add(marks(creds)); err != nil {
		return err
	}
	// Nothing that it allows happens before the log has it.
	ev := s.event(audit.Routes, audit.Noted)
	ev.Actor = audit.ByUser(os.Getuid())
	ev.Subject = s.text(s.o.Routes)
	ev.Text = s.text(fmt.Sprintf("%d routes", len(rs)))
	ev.Digests = []audit.Digest{{Of: "routes", Sum: file.Sum}}
	ev.Sync = true
	if _, err := s.c.audit.Append(ctx, ev); err != nil {
		return err
	}
	maps.Copy(s.had, creds.of)
	s.base = rs
	s.vessel.gw.SetRoutes(table, creds.of, known)
	s.netlog.SetLevel(file.Log)
	s.netlog.Put(netlog.Record{Time: now(), Kind: netlog.Routes, Detail: fmt.Sprintf("%d routes", len(rs))})
	s.events.send(Event{Kind: "routes", Text: fmt.Sprintf("%s was read again: %d routes", s.o.Routes, len(rs))})
	return nil
}
