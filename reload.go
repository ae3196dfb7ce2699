package carboy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/netlog"
	"github.com/carboy/carboy/internal/policy"
)

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
	at, _ := stampOf(s.o.Routes)
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
	table, err := policy.Compile(rs...)
	if err != nil {
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
	s.vessel.gw.SetRoutes(table, creds.of, s.vessel.plan.secrets.with(creds))
	s.netlog.SetLevel(file.Log)
	s.netlog.Put(netlog.Record{Time: now(), Kind: netlog.Routes, Detail: fmt.Sprintf("%d routes", len(rs))})
	s.events.send(Event{Kind: "routes", Text: fmt.Sprintf("%s was read again: %d routes", s.o.Routes, len(rs))})
	return nil
}
