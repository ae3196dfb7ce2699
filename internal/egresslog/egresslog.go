// Package egresslog records a run's network activity, one record per line, while the
// run goes on.
//
// Put never waits for the disk, however many records come. The file is bounded; what
// it leaves out is counted, and the file says so. Refusals and findings have room that
// allowed requests can't take. Secrets are removed from a record before any of it is
// written or reported.
//
// The file is for people who watch a run. The audit log, which is separate, holds what
// must not be lost: a full disk ends this file, not the run.
//
// Start reading at [Entry] and [Start]; [Reader] reads a file that is being written.
package egresslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// schema is the name of the format, in the first line of a file.
const schema = "carboy.dev/egress-log/v1"

// EntryKind is the kind of an entry.
type EntryKind string

// Kinds of entries.
const (
	Head       EntryKind = "head"       // the first line
	Name       EntryKind = "name"       // a DNS question
	Connection EntryKind = "connection" // a connection that ended or was refused
	Request    EntryKind = "request"    // an HTTP request that was answered or cut off
	Found      EntryKind = "found"      // a secret going out, an injected instruction coming in
	Limit      EntryKind = "limit"      // a limit was reached
	Routes     EntryKind = "routes"     // other routes apply from here on
	LeftOut    EntryKind = "left-out"   // Count records are missing here, or from here on; Detail says why
)

// Entry is one line. Its text comes from inside the bottle, without secrets. Escape
// it before showing it.
type Entry struct {
	Schema string    `json:"schema,omitempty"` // in the Head
	Run    string    `json:"run,omitempty"`    // in the Head
	Time   time.Time `json:"t"`
	Kind   EntryKind `json:"kind"`
	// Verdict is allowed or refused; empty where nothing was decided.
	Verdict string `json:"verdict,omitempty"`

	Host       string `json:"host,omitempty"`
	Port       uint16 `json:"port,omitempty"`
	Protocol   string `json:"protocol,omitempty"`
	Method     string `json:"method,omitempty"`
	Path       string `json:"path,omitempty"` // without the query
	Status     int    `json:"status,omitempty"`
	Rule       string `json:"rule,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Detail     string `json:"detail,omitempty"`
	Credential string `json:"credential,omitempty"` // the name of the credential that was added

	Inbound   bool   `json:"inbound,omitempty"`
	What      string `json:"what,omitempty"`
	Secret    string `json:"secret,omitempty"` // the name of the secret
	Transform string `json:"transform,omitempty"`
	Place     string `json:"place,omitempty"`
	Action    string `json:"action,omitempty"`

	Up    int64         `json:"bytes_up,omitempty"`
	Down  int64         `json:"bytes_down,omitempty"`
	Took  time.Duration `json:"took_ns,omitempty"`
	Count uint64        `json:"count,omitempty"` // how often so far; repeated events are recorded ever more rarely
}

// notable reports whether r is anything else than an allowed event.
func (r *Entry) notable() bool { return r.Verdict != "allowed" }

// Levels of logging.
const (
	levelNone   = 0
	levelBlocks = 1 // refusals and findings
	LevelAll    = 2
)

// Options configure a Log.
type Options struct {
	// Open creates the file. It is called before the first write.
	Open func() (*os.File, error)
	Run  string
	// Max bounds the file, in bytes; 0: DefaultMax.
	Max int64
	// Clean removes secrets from a record. The Log's goroutine calls it before OnNotable.
	Clean func(*Entry)
	// OnNotable is called for each Notable record, at any level, in order, from the Log's
	// goroutine. It may be nil.
	OnNotable func(*Entry)
}

// defaultMax is the default bound of a file, in bytes.
const defaultMax = 32 << 20

// maxQueue bounds the records that wait for the disk. Allowed events take at most half
// of it.
const maxQueue = 8192

// Log writes a file. Its methods are safe for concurrent use.
type Log struct {
	o    Options
	wake chan struct{}
	done chan struct{}

	mu    sync.Mutex
	level int
	queue []Entry
	ended bool
	lost  [2]uint64 // records that the queue had no room for: allowed, notable

	// Used only by the goroutine.
	f    *os.File
	size int64
	err  error
	acct Account
	full [2]bool // no more room for records of this weight
}

// Account sums up a log that has ended.
type Account struct {
	Records int64 // in the file
	LeftOut int64 // matched the level, but are not in the file
	// Unreported counts the notable records that OnNotable did not get, because too many came
	// at once.
	Unreported int64
	Err        error // that ended the file
}

// Start starts a log. The caller must call End.
func Start(level int, o Options) *Log {
	if o.Max == 0 {
		o.Max = defaultMax
	}
	l := &Log{o: o, level: level, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.work() // ends when End is called
	return l
}

// SetLevel changes the level of the following records.
func (l *Log) SetLevel(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.level = n
}

// Put queues a record. It does not block.
func (l *Log) Put(r Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	notable := r.notable()
	switch {
	case l.ended:
		return
	case !notable && l.level < LevelAll:
		return
	case len(l.queue) >= maxQueue || !notable && len(l.queue) >= maxQueue/2:
		l.lost[index(notable)]++
		return
	}
	l.queue = append(l.queue, r)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func index(notable bool) int {
	if notable {
		return 1
	}
	return 0
}

// End writes the queued records and closes the file. It ignores later records.
func (l *Log) End() Account {
	l.mu.Lock()
	if !l.ended {
		l.ended = true
		close(l.wake)
	}
	l.mu.Unlock()
	<-l.done
	return l.acct
}

func (l *Log) work() {
	defer close(l.done)
	for {
		_, more := <-l.wake
		l.mu.Lock()
		batch, lost, level := l.queue, l.lost, l.level
		l.queue, l.lost = nil, [2]uint64{}
		l.mu.Unlock()
		l.write(batch, lost, level)
		if !more {
			break
		}
	}
	if l.f != nil {
		if err := l.f.Close(); l.err == nil {
			l.err = err
		}
	}
	l.acct.Err = l.err
}

func (l *Log) write(batch []Entry, lost [2]uint64, level int) {
	var b bytes.Buffer
	n := int64(0)
	for i := range batch {
		r := &batch[i]
		l.o.Clean(r)
		if r.notable() && l.o.OnNotable != nil {
			l.o.OnNotable(r)
		}
		if level == levelNone || !r.notable() && level < LevelAll {
			continue
		}
		n += l.add(&b, r)
	}
	l.acct.Unreported += int64(lost[1])
	if missing := lost[0] + lost[1]; missing > 0 && level > levelNone {
		l.acct.LeftOut += int64(missing)
		n += l.add(&b, &Entry{Time: time.Now(), Kind: LeftOut, Count: missing, Detail: "too many came at once"})
	}
	l.flush(b.Bytes(), n)
}

// add appends r's line to b, or leaves it out, and returns the number of lines that it
// appended. The last sixteenth of the file is reserved for findings and for records of
// what is missing, the quarter before that for refusals.
func (l *Log) add(b *bytes.Buffer, r *Entry) (n int64) {
	if l.err != nil {
		l.acct.LeftOut++
		return 0
	}
	if l.size == 0 && b.Len() == 0 {
		n += appendLine(b, &Entry{Schema: schema, Run: l.o.Run, Time: r.Time, Kind: Head})
	}
	bound, full := l.o.Max, (*bool)(nil)
	switch {
	case !r.notable():
		bound, full = l.o.Max/16*11, &l.full[0]
	case r.Kind != Found && r.Kind != LeftOut:
		bound, full = l.o.Max/16*15, &l.full[1]
	}
	at := b.Len()
	n += appendLine(b, r)
	if l.size+int64(b.Len()) <= bound {
		return n
	}
	b.Truncate(at)
	n--
	if r.Kind != LeftOut {
		l.acct.LeftOut++
	}
	if full != nil && !*full {
		*full = true
		what := "allowed ones"
		if r.notable() {
			what = "refused ones"
		}
		n += appendLine(b, &Entry{Time: r.Time, Kind: LeftOut, Detail: what + " are left out from here on: this file has met its bound"})
	}
	return n
}

// appendLine appends r and returns the number of lines, 0 or 1.
func appendLine(b *bytes.Buffer, r *Entry) int64 {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if e.Encode(r) != nil {
		return 0 // an Entry has no value that can't be encoded
	}
	return 1
}

// flush writes n whole lines, or ends the file after an error.
func (l *Log) flush(b []byte, n int64) {
	if len(b) == 0 {
		return
	}
	if l.f == nil && l.err == nil {
		l.f, l.err = l.o.Open()
	}
	if l.err == nil {
		_, l.err = l.f.Write(b)
	}
	if l.err != nil {
		if l.f != nil {
			// A part of a line would corrupt the next one.
			_ = l.f.Truncate(l.size)
		}
		l.acct.LeftOut += n
		return
	}
	l.size += int64(len(b))
	l.acct.Records += n
}

var errLong = errors.New("the line is too long")

// maxLine bounds the lines that a Reader accepts.
const maxLine = 64 << 10

// Reader reads a log, even while it is being written.
type Reader struct {
	f    *os.File
	buf  []byte
	line int
}

// NewReader returns a Reader that starts at the current offset of f.
func NewReader(f *os.File) *Reader { return &Reader{f: f} }

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

// Next returns the next record and its line, or nil at the current end of the file.
// The line is valid until the next call.
func (r *Reader) Next() (*Entry, []byte, error) {
	for {
		if i := bytes.IndexByte(r.buf, '\n'); i >= 0 {
			line := r.buf[:i+1]
			r.buf = r.buf[i+1:]
			r.line++
			rec := &Entry{}
			if err := json.Unmarshal(line, rec); err != nil {
				return nil, nil, fmt.Errorf("%s:%d: %w", r.f.Name(), r.line, err)
			}
			if r.line == 1 && rec.Schema != schema {
				return nil, nil, fmt.Errorf("%s: schema %q, want %q", r.f.Name(), rec.Schema, schema)
			}
			return rec, line, nil
		}
		if len(r.buf) > maxLine {
			return nil, nil, fmt.Errorf("%s:%d: %w", r.f.Name(), r.line+1, errLong)
		}
		more := make([]byte, len(r.buf), len(r.buf)+maxLine)
		copy(more, r.buf)
		n, err := r.f.Read(more[len(more):cap(more)])
		r.buf = more[:len(more)+n]
		if n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, nil, err
			}
			return nil, nil, nil
		}
	}
}
