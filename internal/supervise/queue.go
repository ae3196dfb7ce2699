package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// Queue is the queue as those who list and answer proposals use it. Several goroutines and
// processes may use it at once.
type Queue struct {
	waiting, archive *directory
	o                Options
	by               By

	mu    sync.Mutex
	cache map[ID]cached // for List
}

// cached is a proposal, and the state of its file when it was read. [Queue.Answer] does not
// use it and reads the file again.
type cached struct {
	stat fileStat
	p    Proposal
}

// fileStat identifies one version of a file. Only the kernel sets the time of the last
// status change.
type fileStat struct {
	dev, ino  uint64
	size      int64
	changed   unix.Timespec
	uid, mode uint32
}

// Open opens the queue in dir, and makes missing directories. It returns an error if
// another user can write to dir, or this one cannot. The caller must close the queue.
func Open(dir string, o Options) (*Queue, error) {
	if o.Audit == nil {
		return nil, errors.New("open queue: no audit log")
	}
	if o.Redactor == nil {
		o.Redactor = &secret.Redactor{}
	}
	top, err := openDirectory(dir)
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	defer top.f.Close()
	waiting, err := openDirectory(filepath.Join(dir, waitingDir))
	if err != nil {
		return nil, fmt.Errorf("open queue: %w", err)
	}
	archive, err := openDirectory(filepath.Join(dir, archiveDir))
	if err != nil {
		waiting.f.Close()
		return nil, fmt.Errorf("open queue: %w", err)
	}
	q := &Queue{waiting: waiting, archive: archive, o: o, by: By{UID: os.Geteuid()}}
	if u, err := user.LookupId(strconv.Itoa(q.by.UID)); err == nil && safetext.Clean(u.Username) && len(u.Username) <= 256 {
		q.by.User = u.Username
	}
	return q, nil
}

// Close closes the directories.
func (q *Queue) Close() error { return errors.Join(q.waiting.f.Close(), q.archive.f.Close()) }

// List returns proposals. It withdraws those whose asking process is gone.
func (q *Queue) List(ctx context.Context, query Query) (Listing, error) {
	var l Listing
	ids, strange, err := q.waiting.names(proposalEnd)
	if err != nil {
		return l, fmt.Errorf("list proposals: %w", err)
	}
	for _, n := range strange {
		l.Problems = append(l.Problems, Problem{filepath.Join(q.waiting.path, n), errors.New("is not a file of the queue")})
	}
	q.forget(ids)
	alive := map[ID]bool{}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return l, err
		}
		e, err := q.cachedLoad(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			l.Problems = append(l.Problems, Problem{filepath.Join(q.waiting.path, string(id)+proposalEnd), err})
			continue
		}
		asker := e.Proposal.asker
		if _, known := alive[asker]; !known {
			alive[asker] = q.waiting.alive(asker)
		}
		if !alive[asker] {
			if err := q.withdrawOrphan(ctx, id); err != nil {
				l.Problems = append(l.Problems, Problem{filepath.Join(q.waiting.path, string(id)+proposalEnd), err})
			}
			continue
		}
		if (e.Answer == nil || query.Archived) && (query.Bottle == "" || query.Bottle == e.Proposal.Bottle) {
			l.Entries = append(l.Entries, e)
		}
	}
	if query.Archived {
		slices.Reverse(l.Entries)
		if err := q.listArchive(ctx, query, &l); err != nil {
			return l, err
		}
	}
	if query.Limit > 0 && len(l.Entries) > query.Limit {
		l.Entries = l.Entries[:query.Limit]
	}
	return l, nil
}

func (q *Queue) listArchive(ctx context.Context, query Query, l *Listing) error {
	ids, _, err := q.archive.names(archiveEnd)
	if err != nil {
		return fmt.Errorf("list proposals: %w", err)
	}
	for _, id := range slices.Backward(ids) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if query.Limit > 0 && len(l.Entries) >= query.Limit {
			return nil
		}
		e, err := q.archived(id)
		switch {
		case errors.Is(err, fs.ErrNotExist), slices.ContainsFunc(l.Entries, func(x Entry) bool { return x.Proposal.ID == id }):
		case err != nil:
			l.Problems = append(l.Problems, Problem{filepath.Join(q.archive.path, string(id)+archiveEnd), err})
		case query.Bottle == "" || query.Bottle == e.Proposal.Bottle:
			l.Entries = append(l.Entries, e)
		}
	}
	return nil
}

// cachedLoad is like load, and reads a file again only if it has changed.
func (q *Queue) cachedLoad(id ID) (Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(q.waiting.fd(), string(id)+proposalEnd, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Entry{}, &fs.PathError{Op: "look at", Path: filepath.Join(q.waiting.path, string(id)+proposalEnd), Err: err}
	}
	now := fileStat{st.Dev, st.Ino, st.Size, st.Ctim, st.Uid, st.Mode}
	q.mu.Lock()
	old, ok := q.cache[id]
	q.mu.Unlock()
	if ok && old.stat == now {
		return q.withAnswer(old.p)
	}
	e, err := q.load(id)
	if err == nil {
		q.mu.Lock()
		if q.cache == nil {
			q.cache = map[ID]cached{}
		}
		q.cache[id] = cached{now, e.Proposal}
		q.mu.Unlock()
	}
	return e, err
}

// forget removes all but the sorted ids from the cache.
func (q *Queue) forget(ids []ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id := range q.cache {
		if _, ok := slices.BinarySearch(ids, id); !ok {
			delete(q.cache, id)
		}
	}
}

// load reads a waiting proposal, and its answer if the asker has not taken that yet.
func (q *Queue) load(id ID) (Entry, error) {
	data, err := q.waiting.read(string(id) + proposalEnd)
	if err != nil {
		return Entry{}, err
	}
	p, err := parseProposal(id, data)
	if err != nil {
		return Entry{}, err
	}
	return q.withAnswer(p)
}

// withAnswer returns p with its answer, if there is one. It returns fs.ErrNotExist if both
// have moved to the archive meanwhile.
func (q *Queue) withAnswer(p Proposal) (Entry, error) {
	a, err := q.answerOf(p)
	if a == nil && err == nil {
		var st unix.Stat_t
		if err := unix.Fstatat(q.waiting.fd(), string(p.ID)+proposalEnd, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return Entry{}, &fs.PathError{Op: "look at", Path: filepath.Join(q.waiting.path, string(p.ID)+proposalEnd), Err: err}
		}
	}
	return Entry{Proposal: p, Answer: a}, err
}

// answerOf returns the answer to p, or nil if there is none.
func (q *Queue) answerOf(p Proposal) (*Answer, error) {
	data, err := q.waiting.read(string(p.ID) + answerEnd)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var a Answer
	if err == nil {
		a, err = parseAnswer(p, data)
	}
	if err != nil {
		return nil, &badAnswer{err}
	}
	return &a, nil
}

// badAnswer means that an answer's file is not a valid answer.
type badAnswer struct{ err error }

func (e *badAnswer) Error() string { return "the answer can't be read: " + e.err.Error() }
func (e *badAnswer) Unwrap() error { return e.err }

func (q *Queue) archived(id ID) (Entry, error) {
	data, err := q.archive.read(string(id) + archiveEnd)
	if err != nil {
		return Entry{}, err
	}
	return parseDecided(id, data)
}

// ambiguousError means that a part of an id matches several proposals.
type ambiguousError struct {
	Prefix string
	IDs    []ID
}

func (e *ambiguousError) Error() string {
	return fmt.Sprintf("%q begins the ids of %d proposals, such as %s and %s", e.Prefix, len(e.IDs), e.IDs[0], e.IDs[1])
}

// Find returns the proposal whose id begins or ends with part. It looks at the waiting ones
// first, then at the archive. It returns ErrNotFound or an *AmbiguousError if there is not
// exactly one.
func (q *Queue) Find(ctx context.Context, part string) (Entry, error) {
	part = strings.ToLower(part)
	if len(part) > len(newID()) || part == "" || strings.Trim(part, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return Entry{}, fmt.Errorf("proposal %.60q: %w", part, ErrNotFound)
	}
	for _, d := range []struct {
		*directory
		end string
	}{{q.waiting, proposalEnd}, {q.archive, archiveEnd}} {
		ids, _, err := d.names(d.end)
		if err != nil {
			return Entry{}, fmt.Errorf("find proposal: %w", err)
		}
		ids = slices.DeleteFunc(ids, func(id ID) bool { return !strings.HasPrefix(string(id), part) && !strings.HasSuffix(string(id), part) })
		switch {
		case len(ids) > 1:
			return Entry{}, &ambiguousError{part, ids}
		case len(ids) == 0:
			continue
		}
		e, err := q.entry(ctx, ids[0])
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return Entry{}, fmt.Errorf("proposal %s: %w", ids[0], err)
		}
		return e, nil
	}
	return Entry{}, fmt.Errorf("proposal %s: %w", part, ErrNotFound)
}

// entry returns the proposal id, which may wait or be archived.
func (q *Queue) entry(ctx context.Context, id ID) (Entry, error) {
	e, err := q.load(id)
	if err == nil && !q.waiting.alive(e.Proposal.asker) {
		if err = q.withdrawOrphan(ctx, id); err == nil {
			err = fs.ErrNotExist
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return q.archived(id)
	}
	return e, err
}

// Reply is an answer to be given.
type Reply struct {
	ID ID
	// Digest is the digest of the proposal that the person saw.
	Digest  Digest
	Verdict Verdict // Approved, Modified or Rejected
	Payload Payload // of Modified, made by Editable.Edit
	Note    string  // at most MaxNote
	Channel Channel // TUI, Web or CLI
}

// Answer answers a proposal in the name of this process's user. When it returns, the answer
// is recorded and in the queue, and the asker goes on at once. Errors are *AnsweredError,
// ErrDigest, ErrExpired, ErrGone, ErrNotFound, ErrNotModifiable, ErrSigned, and those of a
// note or payload out of bounds.
func (q *Queue) Answer(ctx context.Context, r Reply) (Answer, error) {
	by := q.by
	by.Channel = r.Channel
	if !slices.Contains([]Channel{ChannelTUI, ChannelWeb, ChannelCLI}, r.Channel) {
		return Answer{}, fmt.Errorf("answer proposal %s: unknown channel %.40q", r.ID, r.Channel)
	}
	return q.reply(ctx, r, by)
}

// AnswerByPolicy answers a proposal if a rule of p does. ok reports whether one did.
func (q *Queue) AnswerByPolicy(ctx context.Context, proposal Proposal, p *Policy) (a Answer, ok bool, err error) {
	rule := p.match(proposal)
	if rule == nil {
		return Answer{}, false, nil
	}
	by := q.by
	by.Channel, by.Policy = ChannelPolicy, &PolicyRef{File: p.file, Digest: p.digest, Rule: rule.number, Line: rule.line}
	a, err = q.reply(ctx, Reply{ID: proposal.ID, Digest: proposal.Digest, Verdict: rule.verdict, Note: rule.note}, by)
	return a, err == nil, err
}

func (q *Queue) reply(ctx context.Context, r Reply, by By) (Answer, error) {
	if !slices.Contains([]Verdict{Approved, Modified, Rejected}, r.Verdict) {
		return Answer{}, fmt.Errorf("answer proposal %s: unknown verdict %.40q", r.ID, r.Verdict)
	}
	if err := bounds(field{"note", r.Note, MaxNote}); err != nil {
		return Answer{}, fmt.Errorf("answer proposal %s: %w", r.ID, err)
	}
	if !validID(string(r.ID)) {
		return Answer{}, fmt.Errorf("answer proposal %.60q: %w", r.ID, ErrNotFound)
	}
	_, a, err := q.decide(ctx, r.ID, func(p Proposal) (Answer, error) {
		switch {
		case p.Digest != r.Digest:
			return Answer{}, ErrDigest
		case p.deadline.left() <= 0:
			return Answer{}, ErrExpired
		case !q.waiting.alive(p.asker):
			return Answer{}, ErrGone
		}
		if err := checkSigned(p.Payload, r.Verdict); err != nil {
			return Answer{}, err
		}
		a := Answer{ID: p.ID, Digest: p.Digest, Verdict: r.Verdict, By: by, Note: r.Note}
		if r.Verdict != Modified {
			return a, nil
		}
		if _, ok := p.Payload.(Editable); !ok {
			return Answer{}, fmt.Errorf("%s: %w", p.Kind, ErrNotModifiable)
		}
		if r.Payload == nil || r.Payload.Kind() != p.Kind {
			return Answer{}, errors.New("the modified payload is of another kind")
		}
		a.Payload = r.Payload.Bare()
		if err := a.Payload.Check(); err != nil {
			return Answer{}, err
		}
		var err error
		a.PayloadDigest, err = DigestOf(p.Bottle, a.Payload)
		return a, err
	})
	if err != nil {
		return Answer{}, fmt.Errorf("answer proposal %s: %w", r.ID, err)
	}
	return a, nil
}

// decide makes an answer under the proposal's lock, unless there is one. Of several
// concurrent callers one succeeds, and the others get an *AnsweredError. The answer is in
// the audit log before it takes effect.
func (q *Queue) decide(ctx context.Context, id ID, answer func(Proposal) (Answer, error)) (Proposal, Answer, error) {
	f, err := q.waiting.lockFile(ctx, string(id)+proposalEnd)
	if errors.Is(err, fs.ErrNotExist) {
		if e, err := q.archived(id); err == nil {
			return e.Proposal, Answer{}, &AnsweredError{id, *e.Answer}
		}
		return Proposal{}, Answer{}, ErrNotFound
	}
	if err != nil {
		return Proposal{}, Answer{}, err
	}
	defer f.Close()
	data, err := readFile(f)
	if err != nil {
		return Proposal{}, Answer{}, err
	}
	p, err := parseProposal(id, data)
	if err != nil {
		return Proposal{}, Answer{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if old, err := q.answerOf(p); err != nil {
		return p, Answer{}, err
	} else if old != nil {
		return p, Answer{}, &AnsweredError{id, *old}
	}
	a, err := answer(p)
	if err != nil {
		return p, Answer{}, err
	}
	a.At = time.Now().UTC().Truncate(time.Millisecond)
	file, err := a.file(p.Kind)
	if err != nil {
		return p, Answer{}, err
	}
	out, err := marshal(file)
	if err != nil {
		return p, Answer{}, err
	}
	if err := q.recordAnswer(ctx, p, a); err != nil {
		return p, Answer{}, fmt.Errorf("record the answer: %w", err)
	}
	err = q.waiting.write(string(id)+answerEnd, out, false)
	return p, a, err
}

// withdrawOrphan removes a proposal whose asking process is gone. It withdraws it, unless
// it is answered already.
func (q *Queue) withdrawOrphan(ctx context.Context, id ID) error {
	gone := func(p Proposal) (Answer, error) {
		by := q.by
		by.Channel = channelQueue
		return Answer{ID: p.ID, Digest: p.Digest, Verdict: Withdrawn, By: by, Note: "the process that asked is gone", At: time.Now().UTC().Truncate(time.Millisecond)}, nil
	}
	p, a, err := q.decide(ctx, id, gone)
	var answered *AnsweredError
	var bad *badAnswer
	effect := ""
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case errors.As(err, &bad):
		a, _ = gone(p)
	case errors.As(err, &answered):
		if a = answered.Answer; a.Verdict.Allows() {
			effect = "not known: the process that asked is gone"
		}
	case err != nil:
		return err
	}
	if err := q.archiveEntry(Entry{p, &a, effect}); err != nil {
		return err
	}
	return q.waiting.remove(string(p.asker) + askerEnd)
}

// lockPatience bounds the wait for another process's decision, which takes a few
// milliseconds.
const lockPatience = 10 * time.Second

// archiveEntry moves a decided proposal to the archive. It keeps an entry that is already
// there: that one may hold the result of the effect.
func (q *Queue) archiveEntry(e Entry) error {
	data, err := e.file()
	if err != nil {
		return err
	}
	id := string(e.Proposal.ID)
	if err := q.archive.write(id+archiveEnd, data, false); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Wait for a process that decides. The next holder of the lock finds the answer or the
	// archive.
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	f, err := q.waiting.lockFile(ctx, id+proposalEnd)
	if errors.Is(err, fs.ErrNotExist) {
		return q.waiting.remove(id + answerEnd)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// Remove the proposal first: an answer without a proposal has no effect.
	return errors.Join(q.waiting.remove(id+proposalEnd), q.waiting.remove(id+answerEnd))
}

// Prune removes the archived proposals that were answered before a time, and files that a
// crash left. It returns the number of proposals removed.
func (q *Queue) Prune(ctx context.Context, before time.Time) (int, error) {
	if _, err := q.List(ctx, Query{}); err != nil {
		return 0, err
	}
	ids, _, err := q.archive.names(archiveEnd)
	if err != nil {
		return 0, fmt.Errorf("prune proposals: %w", err)
	}
	n := 0
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		// Keep what cannot be read: a person should look at it.
		e, err := q.archived(id)
		if err != nil || !e.Answer.At.Before(before) {
			continue
		}
		if err := q.archive.remove(string(id) + archiveEnd); err != nil {
			return n, fmt.Errorf("prune proposals: %w", err)
		}
		n++
	}
	return n, q.sweep()
}

// sweep removes files that nobody needs any more: incomplete ones, answers without a
// proposal, marks of ended processes.
func (q *Queue) sweep() error {
	const tmpAge = time.Hour
	for _, d := range []*directory{q.waiting, q.archive} {
		entries, err := os.ReadDir(d.path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if i, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), tmpPrefix) && time.Since(i.ModTime()) > tmpAge {
				if err := d.remove(e.Name()); err != nil {
					return err
				}
			}
		}
	}
	answers, _, err := q.waiting.names(answerEnd)
	if err != nil {
		return err
	}
	for _, id := range answers {
		var st unix.Stat_t
		if errors.Is(unix.Fstatat(q.waiting.fd(), string(id)+proposalEnd, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
			if err := q.waiting.remove(string(id) + answerEnd); err != nil {
				return err
			}
		}
	}
	askers, _, err := q.waiting.names(askerEnd)
	if err != nil {
		return err
	}
	for _, id := range askers {
		if !q.waiting.alive(id) {
			if err := q.waiting.remove(string(id) + askerEnd); err != nil {
				return err
			}
		}
	}
	return nil
}

// cut shortens s to at most max bytes, between characters.
func cut(s string, max int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= max {
		return s
	}
	const end = "…"
	for max -= len(end); max > 0 && !utf8.RuneStart(s[max]); max-- {
	}
	return s[:max] + end
}
