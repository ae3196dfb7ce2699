// Package forgeservice lets the agent of one bottle read a repository's issues and pull
// requests, and write to those that were assigned to it.
//
// The service runs on the trusted side and holds the forge's token. It promises:
//
//   - Any number of the one repository can be read; only the threads of its [Scope] are
//     written to. For another one nothing is sent, and the operation is recorded.
//   - What is posted was scanned first, also by the bottle's run ([Service.Guard]). It says at
//     its top that an agent wrote it, shows all its text, and refers to no issue outside the
//     scope, so that it closes none.
//   - The same text is posted once to a thread, however often the agent asks.
//   - The agent is told neither the forge's address nor its own words about a failure.
//   - Calls, writes and texts are bounded, and so is the time of a call.
//
// Not promised: that others can't be called by name (@ada), nor that no program at the forge
// takes a comment for a command: a robot's comment can be as much as its account may do.
//
// Start reading at [New]; text.go is about what is posted.
package forgeservice

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of a service's life and of one call.
const (
	maxCalls    = 2000
	maxWrites   = 100 // of those
	maxSignals  = 100 // beside them
	callIn      = 2 * time.Minute
	maxPosted   = 32 << 10 // bytes of a text of the agent
	maxSummary  = 4000
	maxTitle    = 1000
	maxRead     = 64 << 10 // bytes of one text of others
	maxComments = 100
	maxAll      = 256 << 10 // bytes of all comments together
)

// Status is an agent's report on its work.
type Status string

// The statuses.
const (
	Success Status = "success"
	Failed  Status = "failed"
	Blocked Status = "blocked"
)

// Outcome tells how far an operation came.
type Outcome string

// The outcomes.
const (
	Begun   Outcome = "begun" // something may be sent from now on
	Done    Outcome = "done"
	Refused Outcome = "refused" // nothing was sent
	Unsure  Outcome = "failed"  // a write may have arrived
)

// Operation is something that an agent did at the forge, or wanted to do. A write that is
// not refused has two records of one number, before and after.
type Operation struct {
	Number    int       `json:"number"` // counts the service's operations
	At        time.Time `json:"at"`
	Operation string    `json:"operation"`
	Target    string    `json:"target,omitempty"`
	Outcome   Outcome   `json:"outcome"`
	Reason    string    `json:"reason,omitempty"`
	Digest    string    `json:"sha256,omitempty"` // of the text that is sent
	Result    string    `json:"result,omitempty"`
}

// Options configure a Service. All are needed.
type Options struct {
	Client *forge.Client
	Target forge.Target
	Scope  Scope
	Bottle string // its slug: the same text of a bottle is posted once
	Agent  string // its name, for people
	// Scan refuses a text that must not leave. It may ask a person, and blocks until there
	// is an answer.
	Scan func(ctx context.Context, text string) error
	// Record keeps an operation. A write is sent only after its first record is kept.
	Record func(Operation) error
	// Done is told what the agent reports. The summary is fit to be posted.
	Done func(ctx context.Context, s Status, summary string) error
}

// Service carries out the calls of one bottle's agent. It may be used concurrently.
type Service struct {
	o     Options
	apart bool
	// writing is held during a write: two writers at one moment would not see each other.
	writing chan struct{}

	mu                     sync.Mutex
	scope                  Scope
	guard                  func(ctx context.Context, text string) error // nil: there is no bottle yet
	calls, writes, signals int
	numbers                int
}

// New returns a Service. It sends nothing yet.
func New(o Options) (*Service, error) {
	switch {
	case o.Client == nil || o.Scan == nil || o.Record == nil || o.Done == nil:
		return nil, errors.New("a forge service needs a client, a scan, a record, and somebody to tell of the end")
	case o.Target.Repo == "" || o.Scope.issue < 1 || o.Bottle == "" || o.Agent == "":
		return nil, errors.New("a forge service needs a repository, an issue, a bottle and an agent")
	}
	return &Service{o: o, apart: o.Client.NumbersApart(), scope: o.Scope, writing: make(chan struct{}, 1)}, nil
}

// Assign puts another scope of the same issue in force, such as one with the pull request
// that carboy opened. Only the trusted side calls it.
func (s *Service) Assign(scope Scope) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if scope.issue != s.scope.issue {
		return fmt.Errorf("this service is for issue #%d, not for #%d", s.scope.issue, scope.issue)
	}
	s.scope = scope
	return nil
}

// Guard has each text that is posted or reported pass check, too. A bottle's run calls it,
// which knows secrets that Options.Scan does not. It takes the place of the check before.
func (s *Service) Guard(check func(ctx context.Context, text string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guard = check
}

// scan returns an error unless a text may leave.
func (s *Service) scan(ctx context.Context, text string) error {
	s.mu.Lock()
	guard := s.guard
	s.mu.Unlock()
	if err := s.o.Scan(ctx, text); err != nil || guard == nil {
		return err
	}
	return guard(ctx, text)
}

func (s *Service) now() Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scope
}

// begin counts an operation, and returns its first record.
func (s *Service) begin(name string, number int) (Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls >= maxCalls {
		return Operation{}, fmt.Errorf("%d calls were made, which are all that there may be", maxCalls)
	}
	s.calls++
	s.numbers++
	return Operation{Number: s.numbers, Operation: name, Target: "#" + strconv.Itoa(number)}, nil
}

func (s *Service) record(o Operation, outcome Outcome, reason error) error {
	o.At, o.Outcome = time.Now().UTC(), outcome
	if reason != nil {
		o.Reason = safetext.String(reason.Error(), 600)
	}
	if err := s.o.Record(o); err != nil {
		return fmt.Errorf("it can't be recorded, so it is not done: %w", errNotKept)
	}
	return nil
}

var errNotKept = errors.New("carboy's records can't be written")

// refuse records a refusal.
func (s *Service) refuse(o Operation, why error) error {
	_ = s.record(o, Refused, why) // it is refused anyway
	return why
}

// read carries out a call that changes nothing.
func (s *Service) read(ctx context.Context, name string, number int, kind string, get func(ctx context.Context, at forge.Thread) (any, error)) (string, error) {
	o, err := s.begin(name, number)
	if err != nil {
		return "", err
	}
	at, err := s.now().thread(number, kind, s.apart)
	if err == nil && number < 1 {
		err = errors.New(`field "number": want the number of an issue or pull request`)
	}
	if err != nil {
		return "", s.refuse(o, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callIn)
	defer cancel()
	v, err := get(ctx, at)
	if err != nil {
		_ = s.record(o, Unsure, err)
		return "", told(err)
	}
	if err := s.record(o, Done, nil); err != nil {
		return "", err
	}
	b, err := json.Marshal(v)
	return string(b), err
}

type thread struct {
	Number int    `json:"number"`
	Title  string `json:"title"`
	Body   string `json:"body"`
	State  string `json:"state"`
}

func newThread(number int, title, body string, open bool) thread {
	t := thread{number, cut(title, maxTitle), cut(forge.Text(body), maxRead), "closed"}
	if open {
		t.State = "open"
	}
	return t
}

// cut bounds a text of others.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return fmt.Sprintf("%s… [cut: %d bytes more]", s[:most], len(s)-most)
}

// ReadIssue reads an issue.
func (s *Service) ReadIssue(ctx context.Context, number int) (string, error) {
	return s.read(ctx, "read_issue", number, "issue", func(ctx context.Context, at forge.Thread) (any, error) {
		i, err := s.o.Client.Issue(ctx, s.o.Target.Repo, at)
		if err != nil {
			return nil, err
		}
		return struct {
			thread
			Pull bool `json:"pull_request,omitempty"`
		}{newThread(i.Number, i.Title, i.Body, i.Open), i.Pull}, nil
	})
}

// ReadPullRequest reads a pull request.
func (s *Service) ReadPullRequest(ctx context.Context, number int) (string, error) {
	return s.read(ctx, "read_pr", number, "pull_request", func(ctx context.Context, at forge.Thread) (any, error) {
		p, err := s.o.Client.PullRequest(ctx, s.o.Target.Repo, at.Number)
		if err != nil {
			return nil, err
		}
		return struct {
			thread
			Merged bool   `json:"merged"`
			Base   string `json:"base"`
			Head   string `json:"head"`
		}{newThread(p.Number, p.Title, p.Body, p.Open), p.Merged, cut(p.Base, maxTitle), cut(p.Head, maxTitle)}, nil
	})
}

// ReadComments reads the newest comments, the oldest of them first.
func (s *Service) ReadComments(ctx context.Context, number int, kind string) (string, error) {
	type comment struct {
		ID   int64  `json:"id"`
		User string `json:"user"`
		Body string `json:"body"`
	}
	return s.read(ctx, "read_comments", number, kind, func(ctx context.Context, at forge.Thread) (any, error) {
		out := struct {
			Comments []comment `json:"comments"`
			Left     int       `json:"older_left_out,omitempty"`
			More     bool      `json:"others_left_out,omitempty"` // too many or too large to be read
		}{Comments: []comment{}}
		size := 0
		var err error
		out.More, err = s.o.Client.EachComment(ctx, s.o.Target.Repo, at, time.Time{}, func(f forge.Comment) bool {
			m := comment{f.ID, cut(f.Author.Login, maxTitle), cut(f.Body, maxRead)}
			size += len(m.Body)
			out.Comments = append(out.Comments, m)
			for len(out.Comments) > maxComments || size > maxAll {
				size -= len(out.Comments[0].Body)
				out.Comments = out.Comments[1:]
				out.Left++
			}
			return true
		})
		return out, err
	})
}

// prepared is a text of the agent that may be posted.
type prepared struct {
	text   string
	broken []string // references that were made inert
}

func (s *Service) prepare(ctx context.Context, scope Scope, text string, most int) (prepared, error) {
	if len(text) > most {
		return prepared{}, fmt.Errorf("the text has %d bytes, at most %d can be posted", len(text), most)
	}
	text = clean(text)
	for own, more := strings.TrimSpace(s.mark()), true; more; { // it was read, and is written again
		text, more = strings.CutPrefix(text, own)
		text = strings.TrimSpace(text)
	}
	if text == "" {
		return prepared{}, errors.New("there is no text to post")
	}
	if err := s.scan(ctx, text); err != nil {
		return prepared{}, fmt.Errorf("nothing was posted: %w", err)
	}
	text, broken := newWhere(s.o.Target, scope, s.apart).inert(text)
	return prepared{text, broken}, nil
}

// mark says at the top of a text who wrote it. Nothing below can hide it.
func (s *Service) mark() string {
	name := strings.Map(func(r rune) rune {
		if r < 0x80 && strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", r) {
			return r
		}
		return '-'
	}, cut(s.o.Agent, 100))
	return "**Written by the agent `" + name + "` in a carboy bottle, not by a person.**\n\n"
}

// write carries out a call that sends text to a thread of the scope.
func (s *Service) write(ctx context.Context, name string, number int, kind, body string, send func(ctx context.Context, at forge.Thread, text string) (string, error)) (string, error) {
	o, err := s.begin(name, number)
	if err != nil {
		return "", err
	}
	scope := s.now()
	at, err := scope.thread(number, kind, s.apart)
	if errors.Is(err, errKind) && !scope.has(forge.Thread{Number: number}, false) || err == nil && !scope.has(at, s.apart) {
		err = scope.scopeError(number, s.apart)
	}
	if err != nil {
		return "", s.refuse(o, err)
	}
	o.Target = at.String()
	p, err := s.prepare(ctx, scope, body, maxPosted)
	if err != nil {
		return "", s.refuse(o, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callIn)
	defer cancel()
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return "", s.refuse(o, errors.New("other writes of this agent take too long"))
	}
	s.mu.Lock()
	full := s.writes >= maxWrites
	if !full {
		s.writes++
	}
	// It may have changed while a person was asked, or another write took its time.
	scope = s.scope
	s.mu.Unlock()
	switch {
	case full:
		return "", s.refuse(o, fmt.Errorf("%d writes were made, which are all that there may be", maxWrites))
	case !scope.has(at, s.apart):
		return "", s.refuse(o, scope.scopeError(number, s.apart))
	}
	text := s.mark() + p.text
	sum := sha256.Sum256([]byte(text))
	o.Digest = hex.EncodeToString(sum[:])
	if err := s.record(o, Begun, nil); err != nil {
		return "", err
	}
	if o.Result, err = send(ctx, at, text); err != nil {
		_ = s.record(o, Unsure, err)
		return "", fmt.Errorf("%w (the same call again does it at most once)", told(err))
	}
	if err := s.record(o, Done, nil); err != nil {
		return "", fmt.Errorf("it is done, but %w", errNotKept)
	}
	return "It is done." + p.said(), nil
}

// said tells the agent what was changed in its text.
func (p prepared) said() string {
	if len(p.broken) == 0 {
		return ""
	}
	refs := p.broken
	more := ""
	if len(refs) > 10 {
		refs, more = refs[:10], " and others"
	}
	return " References out of the assigned scope have a space in them now, so that they refer to nothing and close nothing: " + safetext.String(strings.Join(refs, " "), 300) + more + "."
}

// PostComment posts a comment. The same text is posted once.
func (s *Service) PostComment(ctx context.Context, number int, kind, body string) (string, error) {
	return s.write(ctx, "post_comment", number, kind, body, func(ctx context.Context, at forge.Thread, text string) (string, error) {
		sum := sha256.Sum256([]byte(s.o.Bottle + "\x00" + text))
		m, err := s.o.Client.PostOnce(ctx, s.o.Target.Repo, at, "agent/"+hex.EncodeToString(sum[:16]), text)
		if err != nil {
			return "", err
		}
		return "comment " + strconv.FormatInt(m.ID, 10), nil
	})
}

// UpdateDescription replaces a description, but not carboy's own part of it.
func (s *Service) UpdateDescription(ctx context.Context, number int, kind, body string) (string, error) {
	return s.write(ctx, "update_description", number, kind, body, func(ctx context.Context, at forge.Thread, text string) (string, error) {
		return "", s.o.Client.UpdateDescription(ctx, s.o.Target.Repo, at, text, "")
	})
}

// SignalDone delivers the agent's report. done is another word for success.
func (s *Service) SignalDone(ctx context.Context, status, summary string) (string, error) {
	s.mu.Lock()
	s.signals++
	s.numbers++
	o := Operation{Number: s.numbers, Operation: "signal_done"}
	full := s.signals > maxSignals
	s.mu.Unlock()
	if full {
		return "", fmt.Errorf("%d reports were made, which are all that there may be", maxSignals)
	}
	st := Status(status)
	if status == "done" {
		st = Success
	}
	if st != Success && st != Failed && st != Blocked {
		return "", s.refuse(o, errors.New(`field "status": want success, failed or blocked`))
	}
	o.Result = string(st)
	p, err := s.prepare(ctx, s.now(), summary, maxSummary)
	if err != nil {
		return "", s.refuse(o, fmt.Errorf("the report was not delivered; change the summary: %w", err))
	}
	if err := s.record(o, Begun, nil); err != nil {
		return "", err
	}
	if err := s.o.Done(ctx, st, p.text); err != nil {
		_ = s.record(o, Unsure, err)
		return "", errors.New("the report could not be delivered; try again")
	}
	if err := s.record(o, Done, nil); err != nil {
		return "", fmt.Errorf("it is delivered, but %w", errNotKept)
	}
	return "It is taken down." + p.said(), nil
}

// told returns a failure in carboy's own words. The forge's would be its address, and
// whatever its answers hold.
func told(err error) error {
	var e *forge.Error
	switch {
	case !errors.As(err, &e) || e.Code == 0:
		return errors.New("the forge can't be reached, or does not answer as it should; try again later, or go on without")
	case e.Code == http.StatusNotFound:
		return errors.New("the forge has no such thing, or does not show it")
	}
	return fmt.Errorf("the forge answers %d %s", e.Code, http.StatusText(e.Code))
}
