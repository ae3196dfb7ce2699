// Package netlog keeps what a run asked of the network, one record a line, while
// the run goes on.
//
// It promises that Put never waits for a disk, whoever floods it; that the file is
// bounded, and that what it leaves out is said in it and counted; that refusals and
// findings have room that allowed requests can't take; and that a record was cleaned
// of secrets before anything of it is written or told.
//
// The file is for people who look at a run. What must not be lost is in the audit
// log, of which this is no part: a full disk ends the file, and not the run.
//
// Start reading at [Record] and [Start]; [Reader] reads a file that is being written.
package netlog

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

// Schema names the format: it is in the first line.
const Schema = "carboy.dev/egress-log/v1"

// Kind is what a record is about.
type Kind string

// The kinds.
const (
	Head       Kind = "head"       // the first line
	Name       Kind = "name"       // a question about a name
	Connection Kind = "connection" // one that ended or was refused
	Request    Kind = "request"    // one of HTTP, answered or cut off
	Found      Kind = "found"      // a secret going out, an injected instruction coming in
	Limit      Kind = "limit"      // one was met
	Routes     Kind = "routes"     // others are in force from here on
	LeftOut    Kind = "left-out"   // Count records are missing here, or from here on; Detail says why
)

// Record is one line. Text in it comes from inside the bottle, cleaned of secrets,
// and must be made visible before it is shown.
type Record struct {
	Schema string    `json:"schema,omitempty"` // of Head
	Run    string    `json:"run,omitempty"`    // of Head
	Time   time.Time `json:"t"`
	Kind   Kind      `json:"kind"`
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
	Credential string `json:"credential,omitempty"` // the name of what was put on

	Inbound   bool   `json:"inbound,omitempty"`
	What      string `json:"what,omitempty"`
	Secret    string `json:"secret,omitempty"` // its name
	Transform string `json:"transform,omitempty"`
	Place     string `json:"place,omitempty"`
	Action    string `json:"action,omitempty"`

	Up    int64         `json:"bytes_up,omitempty"`
	Down  int64         `json:"bytes_down,omitempty"`
	Took  time.Duration `json:"took_ns,omitempty"`
	Count uint64        `json:"count,omitempty"` // times so far, where repeats are told seldom
}

// Weighty reports whether r is more than something that was allowed.
func (r *Record) Weighty() bool { return r.Verdict != "allowed" }

// Levels of what is written.
const (
	LevelNone   = 0
	LevelBlocks = 1 // what is not allowed, and findings
	LevelAll    = 2
)

// Options of a Log.
type Options struct {
	// Open makes the file when there is something for it.
	Open func() (*os.File, error)
	Run  string
	// Max bounds the file, in bytes; 0: DefaultMax.
	Max int64
	// Clean takes secrets out of a record. It is called before Told, from the
	// goroutine of the Log.
	Clean func(*Record)
	// Told is called for each record that is not merely allowed, whatever the
	// level, in order, from the goroutine of the Log. Nil: nobody.
	Told func(*Record)
}

// DefaultMax is the bound of a file, in bytes.
const DefaultMax = 32 << 20

// maxQueue bounds the records that wait for the disk. Those that are merely allowed
// take half of it at most.
const maxQueue = 8192

// Log is being written. Its methods may be called concurrently.
type Log struct {
	o    Options
	wake chan struct{}
	done chan struct{}

	mu    sync.Mutex
	level int
	queue []Record
	ended bool
	lost  [2]uint64 // that found no place in the queue: allowed ones, weighty ones

	// Of the goroutine alone.
	f    *os.File
	size int64
	err  error
	acct Account
	full [2]bool // a kind of record has met its bound
}

// Account is what became of a log.
type Account struct {
	Records int64 // in the file
	LeftOut int64 // of this level and not in the file
	// Untold are weighty records that Told has not heard of, since too many came
	// at once.
	Untold int64
	Err    error // that ended the file
}

// Start begins a log. End must be called.
func Start(level int, o Options) *Log {
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	l := &Log{o: o, level: level, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.work() // ends with End
	return l
}

// SetLevel changes what is written from here on.
func (l *Log) SetLevel(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.level = n
}

// Put takes a record. It does not wait.
func (l *Log) Put(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	weighty := r.Weighty()
	switch {
	case l.ended:
		return
	case !weighty && l.level < LevelAll:
		return
	case len(l.queue) >= maxQueue || !weighty && len(l.queue) >= maxQueue/2:
		l.lost[index(weighty)]++
		return
	}
	l.queue = append(l.queue, r)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func index(weighty bool) int {
	if weighty {
		return 1
	}
	return 0
}

// End writes what is left and closes the file. What is put later is ignored.
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

func (l *Log) write(batch []Record, lost [2]uint64, level int) {
	var b bytes.Buffer
	n := int64(0)
	for i := range batch {
		r := &batch[i]
		l.o.Clean(r)
		if r.Weighty() && l.o.Told != nil {
			l.o.Told(r)
		}
		if level == LevelNone || !r.Weighty() && level < LevelAll {
			continue
		}
		n += l.add(&b, r)
	}
	l.acct.Untold += int64(lost[1])
	if missing := lost[0] + lost[1]; missing > 0 && level > LevelNone {
		l.acct.LeftOut += int64(missing)
		n += l.add(&b, &Record{Time: time.Now(), Kind: LeftOut, Count: missing, Detail: "too many came at once"})
	}
	l.flush(b.Bytes(), n)
}

// add appends r's line to b, or leaves it out, and says how many lines it added. The
// last sixteenth of the file is for findings and what carboy says itself, the quarter
// before for refusals.
func (l *Log) add(b *bytes.Buffer, r *Record) (n int64) {
	if l.err != nil {
		l.acct.LeftOut++
		return 0
	}
	if l.size == 0 && b.Len() == 0 {
		n += appendLine(b, &Record{Schema: Schema, Run: l.o.Run, Time: r.Time, Kind: Head})
	}
	bound, full := l.o.Max, (*bool)(nil)
	switch {
	case !r.Weighty():
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
		if r.Weighty() {
			what = "refused ones"
		}
		n += appendLine(b, &Record{Time: r.Time, Kind: LeftOut, Detail: what + " are left out from here on: this file has met its bound"})
	}
	return n
}

// appendLine appends r and says that it did.
func appendLine(b *bytes.Buffer, r *Record) int64 {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if e.Encode(r) != nil {
		return 0 // no such value is in a Record
	}
	return 1
}

// flush writes whole lines, or says that the file is over.
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
			// Half a line would look like another's.
			_ = l.f.Truncate(l.size)
		}
		l.acct.LeftOut += n
		return
	}
	l.size += int64(len(b))
	l.acct.Records += n
}

var errLong = errors.New("the line is too long")

// maxLine bounds a line that is read.
const maxLine = 64 << 10

// Reader reads a log, also while it is written.
type Reader struct {
	f    *os.File
	buf  []byte
	line int
}

// NewReader reads f from where it stands.
func NewReader(f *os.File) *Reader { return &Reader{f: f} }

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }

// Next returns a record and its line, nil where the file ends at this moment. The
// line is valid until the next call.
func (r *Reader) Next() (*Record, []byte, error) {
	for {
		if i := bytes.IndexByte(r.buf, '\n'); i >= 0 {
			line := r.buf[:i+1]
			r.buf = r.buf[i+1:]
			r.line++
			rec := &Record{}
			if err := json.Unmarshal(line, rec); err != nil {
				return nil, nil, fmt.Errorf("%s:%d: %w", r.f.Name(), r.line, err)
			}
			if r.line == 1 && rec.Schema != Schema {
				return nil, nil, fmt.Errorf("%s: schema %q, want %q", r.f.Name(), rec.Schema, Schema)
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
