// Package receipt defines carboy's report about a run: the command, how strongly it
// was confined, what it changed, which hosts it asked for, and what was refused by
// which rule.
//
// A receipt holds facts that were observed outside the workload: by the kernel that
// served it, by the gateway or by the supervisor. The workload chooses only names
// and paths. These are kept exactly in JSON and made visible in text. Every bounded
// list has a total beside it, so that a cut list cannot pass for a whole one. A
// receipt never holds a secret: no environment, no content of files, no payload.
//
// The JSON form is published in docs/schemas/receipt.v1.json; within version 1
// fields are only added. Start reading at [Receipt]; [Text] shows it to people.
package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Schema names the format.
const Schema = "carboy.dev/receipt/v1"

// Bounds of the lists in a receipt. The code that fills a list cuts it there and
// goes on counting; [Parse] and [Receipt.Encode] refuse longer lists.
const (
	MaxChanges     = 1000
	MaxNames       = 1000
	MaxConnections = 1000
	MaxRequests    = 1000
	MaxFound       = 1000
	MaxCredentials = 200
	maxNotes       = 100
	maxProcesses   = 1000
	maxAreas       = 200
	MaxWritten     = 1000
	maxAttempts    = 200
	maxSockets     = 100
	MaxExecs       = 200
	MaxGitRepos    = 200
	MaxPushes      = 200
	// Of one push, and in the whole receipt.
	MaxPushRefs     = 50
	MaxPushCommits  = 100
	MaxPushFindings = 50
)

// maxSize bounds an encoded receipt that [Parse] accepts, in bytes.
const maxSize = 64 << 20

// Receipt describes one run. The zero value is not valid; [Receipt.Encode] refuses it.
type Receipt struct {
	Schema string   `json:"schema"` // always Schema
	ID     store.ID `json:"id"`
	// Build identifies the carboy that made the run.
	Build   string      `json:"build,omitempty"`
	Command []store.Raw `json:"command"`
	// Workspace is the directory that the command worked on.
	Workspace Workspace `json:"workspace"`
	// Started and Ended are wall-clock times in UTC, for people; Duration is
	// monotonic and may differ when the clock was set. Ended is nil while the
	// run lasts or when carboy died with it.
	Started  *time.Time    `json:"started"`
	Ended    *time.Time    `json:"ended"`
	Duration time.Duration `json:"duration_ns"`
	Exit     Exit          `json:"exit"`
	// Isolation describes the command's sandbox.
	Isolation Isolation `json:"isolation"`
	Limits    Limits    `json:"limits"`
	// Changes is nil when none are kept apart: the mode is bind or none, or the
	// run did not get so far.
	Changes *Changes `json:"changes"`
	Network Network  `json:"network"`
	// Image is the image of the bottle's root; nil: this machine's tools, or a directory.
	Image  *Image  `json:"image,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`
	// Trace describes the record of the kernel inside; nil when it recorded nothing,
	// and then Processes, Files, Privileges and Sockets are nil as well.
	Trace      *Trace      `json:"trace,omitempty"`
	Processes  *Processes  `json:"processes,omitempty"`
	Files      *Files      `json:"files,omitempty"`
	Privileges *Privileges `json:"privileges,omitempty"`
	Sockets    *Sockets    `json:"sockets,omitempty"`
	// Execs are the commands that were started in the bottle beside Command;
	// nil: none.
	Execs *Execs `json:"execs,omitempty"`
	// Proposals is nil if nothing was proposed or reported.
	Proposals *Proposals `json:"proposals,omitempty"`
	// Git reports the traffic of the git gate; nil: the bottle declares no repository.
	Git *Git `json:"git,omitempty"`
	// Published are ports of servers inside that were reachable on the host's
	// loopback.
	Published []Published `json:"published,omitempty"`
	// Services are the bottles that ran beside this one, for it alone.
	Services []Service `json:"services,omitempty"`
	// Audit is nil when nothing was recorded.
	Audit *Audit `json:"audit"`
	// Evidence is the directory with all files kept of the run.
	Evidence store.Raw `json:"evidence,omitempty"`
	// Notes are carboy's own sentences about facts without a field, such as a clock
	// jump.
	Notes []string `json:"notes,omitempty"`
}

// Workspace is the directory that the command worked on.
type Workspace struct {
	Path store.Raw  `json:"path,omitempty"` // empty when the mode is none
	Mode store.Mode `json:"mode"`
}

// Reason tells why a run is over, or that it is not. The zero Reason is not valid.
type Reason string

// The reasons.
const (
	Exited    Reason = "exited"    // the command ended by itself, with Code
	Signalled Reason = "signalled" // Signal ended the command
	Timeout   Reason = "timeout"   // the wall clock ran out
	Memory    Reason = "memory"    // the bottle's memory passed its limit
	Output    Reason = "output"    // stdout and stderr together passed their limit
	Pids      Reason = "pids"      // the limit of processes was met, where that was to end the run
	Killed    Reason = "killed"    // the bottle was destroyed from outside, as by a second interrupt
	Frozen    Reason = "frozen"    // somebody froze the bottle; the command can go on in another run
	Failed    Reason = "failed"    // carboy refused or failed; Error says why
	Lost      Reason = "lost"      // carboy died during the run
	Running   Reason = "running"   // the run is not over; Code means nothing yet
)

var reasons = map[Reason]bool{
	Exited: true, Signalled: true, Timeout: true, Memory: true,
	Output: true, Pids: true, Killed: true, Frozen: true, Failed: true, Lost: true, Running: true,
}

// Exit describes the end of a run.
type Exit struct {
	// Code is the exit code of `carboy run`; package exitcode has the table.
	Code   int    `json:"code"`
	Reason Reason `json:"reason"`
	// Signal is a name such as SIGTERM, when one ended the command.
	Signal string `json:"signal,omitempty"`
	// Error is carboy's own, when it refused or failed.
	Error string `json:"error,omitempty"`
}

// Isolation describes the boundary of a run.
type Isolation struct {
	// Class is empty when nothing was confined because nothing ran.
	Class   bottle.Isolation `json:"class"`
	Backend string           `json:"backend"`
	Build   string           `json:"build"` // of the backend
	// Posture was read from the live processes before the first instruction
	// of the command; nil when the run did not get so far.
	Posture *bottle.Posture `json:"posture"`
	// Lacks lists what the backend can't give, and why.
	Lacks []bottle.Lack `json:"lacks,omitempty"`
}

// WeakFacts says why the facts of a run prove less than those of the kernel that serves the
// command, as a sentence without a full stop. It returns "" for such a kernel's, for runs
// before facts had kinds, and for runs without a posture.
func (i Isolation) WeakFacts() string {
	if i.Posture == nil {
		return ""
	}
	backend := safetext.String(i.Backend, maxShown)
	switch i.Posture.Facts {
	case bottle.FactsNone:
		return "the backend " + backend + " sends no facts"
	case bottle.FactsGuest:
		return "the facts of the backend " + backend + " come from inside the guest: they miss some operations, and root there could have stopped them"
	}
	return ""
}

// Limits are the bounds of a run and which of them it met.
type Limits struct {
	bottle.Limits
	Hit []Hit `json:"hit"`
}

// Hit is a limit that was met.
type Hit struct {
	Limit string `json:"limit"` // timeout, memory, pids, disk, output, bytes, connections, …
	// Count is the number of times; 0 when that isn't known.
	Count int64 `json:"count,omitempty"`
	// Detail is a sentence, such as the effect on the run.
	Detail string `json:"detail,omitempty"`
}

// Changes lists the changes that the run made to its workspace.
type Changes struct {
	Total     int64 `json:"total"`
	Added     int64 `json:"added"`
	Modified  int64 `json:"modified"`
	Deleted   int64 `json:"deleted"`
	Mode      int64 `json:"mode_only"`
	Retyped   int64 `json:"retyped"`
	Protected int64 `json:"protected"` // land only with --include-protected
	// BaseMoved counts paths that the host changed while the bottle ran; they
	// are conflicts.
	BaseMoved int64 `json:"base_moved"`
	// Unlandable counts paths that never land, such as sockets and devices.
	Unlandable int64 `json:"unlandable"`
	// Git counts files of git's own. They are never copied, and not counted above. In
	// References of them git keeps what references are: commits may come with those.
	Git        int64 `json:"git,omitempty"`
	References int64 `json:"references,omitempty"`
	// Ignored counts paths that git ignores or programs can make again, which land only on
	// request. They are not counted above.
	Ignored int64 `json:"ignored,omitempty"`
	// List holds the first of them, at most MaxChanges.
	List []Change `json:"list"`
	// Incomplete describes what could not be kept; empty when everything was.
	Incomplete []string `json:"incomplete,omitempty"`
}

// Any reports whether there is anything to land or to look at, ignored paths among it.
func (c *Changes) Any() bool { return c != nil && c.Total+c.References+c.Ignored > 0 }

// OnlyIgnored reports whether all that changed is ignored paths.
func (c *Changes) OnlyIgnored() bool {
	return c != nil && c.Total+c.References == 0 && c.Ignored > 0 && len(c.Incomplete) == 0
}

// Change is one path of the workspace.
type Change struct {
	Path store.Raw `json:"path"`
	Kind string    `json:"kind"` // add, modify, delete, mode, type
	Type string    `json:"type"` // file, dir, symlink, …
	Size int64     `json:"size,omitempty"`
	// Protected tells why the path needs --include-protected.
	Protected []string `json:"protected,omitempty"`
	// BaseMoved tells how the host changed it meanwhile.
	BaseMoved string `json:"base_moved,omitempty"`
	// Unlandable tells why it never lands.
	Unlandable string `json:"unlandable,omitempty"`
}

// Verdict is a decision of policy. The zero Verdict is not valid.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Refused Verdict = "refused"
)

func (v Verdict) valid() bool { return v == Allowed || v == Refused }

// Network reports the traffic that the gateway saw.
type Network struct {
	// Names asked for, most important first: refused before allowed.
	Names      []Name `json:"names"`
	NamesTotal int64  `json:"names_total"`
	// Connections that were tried, grouped by target, verdict and reason.
	Connections []Connection `json:"connections"`
	// ConnectionsTotal counts groups, as NamesTotal counts names.
	ConnectionsTotal int64 `json:"connections_total"`
	// Requests of HTTP, grouped by target, rule and outcome. Requests inside TLS
	// that is not intercepted are not known.
	Requests      []Request `json:"requests"`
	RequestsTotal int64     `json:"requests_total"` // groups
	// Credentials that were put on requests, by the names of their variables.
	Credentials      []Credential `json:"credentials"`
	CredentialsTotal int64        `json:"credentials_total"`
	// Found lists the scanners' findings in outgoing and incoming data. It never
	// holds the values.
	Found      []Found `json:"found"`
	FoundTotal int64   `json:"found_total"` // groups
	// Log is the file of single requests, see carboy egress log; nil: there is none.
	Log    *RequestLog `json:"log,omitempty"`
	Totals Totals      `json:"totals"`
}

// Totals count the whole run, whatever the lists hold.
type Totals struct {
	NamesAllowed       int64 `json:"names_allowed"` // queries, not distinct names
	NamesRefused       int64 `json:"names_refused"`
	ConnectionsAllowed int64 `json:"connections_allowed"`
	ConnectionsRefused int64 `json:"connections_refused"`
	RequestsAllowed    int64 `json:"requests_allowed"`
	RequestsRefused    int64 `json:"requests_refused"`
	// FoundOut counts findings in outgoing data, FoundIn in incoming, whatever the
	// action.
	FoundOut  int64 `json:"found_out"`
	FoundIn   int64 `json:"found_in"`
	BytesUp   int64 `json:"bytes_up"`   // from the bottle, payload
	BytesDown int64 `json:"bytes_down"` // to the bottle, payload
	// Dropped counts packets that the gateway discarded without an answer:
	// malformed ones, or more than it could serve.
	Dropped int64 `json:"dropped"`
}

// Name is a name that was asked for.
type Name struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Rule    string  `json:"rule"` // the rule that decided
	Count   int64   `json:"count"`
}

// Connection is a group of attempts with the same target and outcome.
type Connection struct {
	// Name is the host that the connection was meant for, or the literal address.
	Name    string  `json:"name"`
	Port    uint16  `json:"port"`
	Proto   string  `json:"proto"` // tcp, udp, icmp, tls, http, …
	Verdict Verdict `json:"verdict"`
	Rule    string  `json:"rule"`
	// Reason says what was wrong, when refused.
	Reason    string `json:"reason,omitempty"`
	Count     int64  `json:"count"`
	BytesUp   int64  `json:"bytes_up"`
	BytesDown int64  `json:"bytes_down"`
}

// RequestLog describes the file of single requests.
type RequestLog struct {
	Records int64 `json:"records"`
	LeftOut int64 `json:"left_out"`
	// Incomplete tells why the file ends before the run; empty when it does not.
	Incomplete string `json:"incomplete,omitempty"`
}

// Request is a group of requests with the same target, rule and outcome.
type Request struct {
	Name    string  `json:"name"`
	Port    uint16  `json:"port"`
	Verdict Verdict `json:"verdict"`
	Rule    string  `json:"rule"` // in a refusal, of the nearest route
	// Reason says what was wrong, when refused or failed; of the first.
	Reason string `json:"reason,omitempty"`
	// Credential is the name of the one that was put on.
	Credential string `json:"credential,omitempty"`
	Count      int64  `json:"count"`
	// Failed were answered with 400 and above, or cut off.
	Failed    int64 `json:"failed"`
	BytesUp   int64 `json:"bytes_up"`
	BytesDown int64 `json:"bytes_down"`
	// Tokens sums the use of models as upstream reports it; nil: it reported none.
	Tokens *Tokens `json:"tokens,omitempty"`
}

// Tokens sums the model tokens that answers reported. Only the servers vouch for
// these numbers.
type Tokens struct {
	Answers int64 `json:"answers"` // that said it
	Input   int64 `json:"input"`   // all that was read
	Cached  int64 `json:"cached"`  // of that, from a cache
	Output  int64 `json:"output"`
}

// Credential is one that was put on requests.
type Credential struct {
	Name     string `json:"name"`
	Requests int64  `json:"requests"`
}

// Action is the treatment of a scanner's finding. The zero Action is not valid.
type Action string

// The actions.
const (
	Blocked  Action = "blocked"  // the data did not pass
	Masked   Action = "redacted" // the data passed with the finding masked
	Reported Action = "reported" // the data passed
	Passed   Action = "allowed"  // the data passed because a person allowed it
)

func (a Action) valid() bool { return a == Blocked || a == Masked || a == Reported || a == Passed }

// Found is a group of findings of one kind in the traffic with one host.
type Found struct {
	Name    string `json:"name"`
	Port    uint16 `json:"port"`
	Inbound bool   `json:"inbound"` // in what came in
	// What names the rule of a token or phrase, or known-secret, pieces-of-secret,
	// high-entropy, unreadable.
	What   string `json:"what"`
	Secret string `json:"secret,omitempty"` // the name of a known secret
	// Transform is the encoding: base64, gzip > hex, …; empty: none.
	Transform string `json:"transform,omitempty"`
	Place     string `json:"place"` // path, query, header X, body, trailer X, message
	Rule      string `json:"rule"`  // the route
	Action    Action `json:"action"`
	Count     int64  `json:"count"`
}

// Image identifies the image of a bottle's root.
type Image struct {
	Ref    store.Raw `json:"ref"`    // as it was named
	Digest string    `json:"digest"` // of its manifest
}

// Mount is a host path that the command could see, beside the workspace.
type Mount struct {
	Source store.Raw `json:"source"`
	Target store.Raw `json:"target"`
	Access string    `json:"access"` // read-only, read-write, overlay
}

// Execs lists the commands that were started in a running bottle.
type Execs struct {
	Total int64  `json:"total"`
	List  []Exec `json:"list"` // in the order of their start
}

// Exec is a command that was started in a running bottle.
type Exec struct {
	Command []store.Raw `json:"command"`
	By      uint32      `json:"by"` // the host's user
	// Start is counted from the run's start.
	Start    time.Duration `json:"start_ns"`
	Duration time.Duration `json:"duration_ns"`
	Exit     Exit          `json:"exit"`
}

// Published is a port inside that was reachable on the host's loopback.
type Published struct {
	Port uint16 `json:"port"` // inside
	Host string `json:"host"` // address and port on the host
}

// Service is a bottle that ran beside the command's, with a server that the command reached
// by its name.
type Service struct {
	Name   string    `json:"name"`
	Image  store.Raw `json:"image"`
	Digest string    `json:"digest,omitempty"` // empty: the image could not be had
	// Class comes from the bottle's verified posture; empty: there was no bottle.
	Class bottle.Isolation `json:"class,omitempty"`
	// Health says how far the service came; empty: it was never ready.
	Health string `json:"health,omitempty"`
	// Exit is nil if the service ended with the run.
	Exit *Exit `json:"exit,omitempty"`
	// Connections and their bytes are those of the command and of other services.
	Connections int64 `json:"connections"`
	BytesUp     int64 `json:"bytes_up"`   // to the service
	BytesDown   int64 `json:"bytes_down"` // from it
}

// The states of a service.
const (
	Healthy   = "healthy"   // its healthcheck passed
	Listening = "listening" // its first port accepted a connection
	Started   = "started"   // it has neither
	Unhealthy = "unhealthy"
)

// Audit identifies the state of the audit log when the run was over.
type Audit struct {
	// Seq is the number of records in the log.
	Seq int64 `json:"seq"`
	// Root is the hash of the tree over them.
	Root string `json:"root"`
}

// Trace describes the file of facts that Processes, Files, Privileges and Sockets
// summarize.
type Trace struct {
	// Facts counts the facts that the kernel inside recorded, those not kept included.
	Facts int64 `json:"facts"`
	// Dropped counts facts that never left the kernel: their content is lost.
	Dropped int64 `json:"dropped"`
	// Unkept counts facts that are counted in this receipt but not in the file,
	// which had reached its bound or could not be written.
	Unkept int64 `json:"unkept"`
	// Bytes and Digest (SHA-256, hexadecimal) are of the trace file.
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest,omitempty"`
	// Incomplete tells in a sentence why the trace does not reach to the end of the
	// run or misses something; empty when it is complete.
	Incomplete string `json:"incomplete,omitempty"`
}

// Processes lists the processes of the run, as a tree.
type Processes struct {
	Total int64 `json:"total"` // processes, whatever the list holds
	Execs int64 `json:"execs"` // programs started, also within one process
	// Failed counts programs that could not be started.
	Failed int64 `json:"failed_execs"`
	// List holds parents before their children, at most MaxProcesses.
	List []Process `json:"list"`
}

// Process is one process. One that executed several programs in turn shows the
// last one; Execs says how many there were.
type Process struct {
	// ID counts from 1 in this list's order; Parent is 0 for those that carboy
	// started. PIDs are used again, IDs are not.
	ID     int64       `json:"id"`
	Parent int64       `json:"parent"`
	PID    int64       `json:"pid"`            // inside
	Path   store.Raw   `json:"path,omitempty"` // the file that was loaded; empty: only forked
	Args   []store.Raw `json:"args"`
	Digest string      `json:"digest,omitempty"` // SHA-256 of that file, hexadecimal
	UID    uint32      `json:"uid"`
	EUID   uint32      `json:"euid"`
	Execs  int64       `json:"execs"`
	// Start and End are nanoseconds since the command's start; End is nil when
	// the process did not end before the bottle did.
	Start int64  `json:"start_ns"`
	End   *int64 `json:"end_ns"`
	// Code or Signal tells its end; Signal is a name such as SIGKILL.
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"`
}

// Files counts the files read and lists those written. An area is a directory such
// as /usr/lib.
type Files struct {
	// Read counts files that were opened for reading outside the workspace.
	Read      []Area `json:"read_outside"`
	ReadTotal int64  `json:"read_outside_total"` // distinct files
	// ReadInside counts those in the workspace.
	ReadInside int64 `json:"read_inside_total"`
	// Written lists files that were written, made, renamed or removed anywhere. For
	// the workspace's kept changes see Changes.
	Written      []Written `json:"written"`
	WrittenTotal int64     `json:"written_total"`
	// Missed counts names that were looked up and did not exist.
	Missed int64 `json:"missed_total"`
	// Denied lists files that existed and were not permitted.
	Denied      []Area `json:"denied"`
	DeniedTotal int64  `json:"denied_total"`
	// More is true when there were more distinct files than are told apart; the
	// totals are then lower bounds.
	More bool `json:"more,omitempty"`
}

// Area counts the distinct files of a directory.
type Area struct {
	Path  store.Raw `json:"path"`
	Files int64     `json:"files"`
}

// Written is a file that was changed.
type Written struct {
	Path store.Raw `json:"path"`
	// How lists the operations: write, make, rename, remove, mode, owner, …, in
	// the order in which they were first seen.
	How    []string `json:"how"`
	Inside bool     `json:"in_workspace"`
}

// Privileges lists attempts to get or use rights, and their outcome.
type Privileges struct {
	Attempts []Attempt `json:"attempts"`
	Total    int64     `json:"total"`
}

// Attempt is a group of equal attempts.
type Attempt struct {
	What   string `json:"what"` // setid, mount, ptrace, bpf, …
	Detail string `json:"detail,omitempty"`
	// Errno is the name of the error, such as EPERM; empty when it succeeded,
	// which it did inside the bottle only.
	Errno string `json:"errno,omitempty"`
	Count int64  `json:"count"`
}

// Sockets lists the sockets that were made, by family.
type Sockets struct {
	List  []Socket `json:"list"`
	Total int64    `json:"total"`
}

// Socket is a group of sockets.
type Socket struct {
	Family string `json:"family"` // inet, inet6, unix, netlink, packet, vsock, …
	Type   string `json:"type"`   // stream, dgram, raw, …
	Errno  string `json:"errno,omitempty"`
	Count  int64  `json:"count"`
}

// Landable reports whether the run left changes that `land` could take.
func (r *Receipt) Landable() bool {
	return r.Changes != nil && (r.Changes.Total > r.Changes.Unlandable || r.Changes.References > 0)
}

// Parse decodes and validates a receipt. It ignores unknown fields, which later
// versions add.
func Parse(b []byte) (*Receipt, error) {
	if len(b) > maxSize {
		return nil, fmt.Errorf("parse receipt: more than %d bytes", maxSize)
	}
	r := &Receipt{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("parse receipt: %w", err)
	}
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("parse receipt: %w", err)
	}
	return r, nil
}

// Encode validates r and returns its JSON form, indented and with a final
// newline.
func (r *Receipt) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("encode receipt: %w", err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false) // commands are full of <, > and &
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode receipt: %w", err)
	}
	return b.Bytes(), nil
}

// MarshalJSON writes times in UTC and empty lists as [], so that readers need
// no case for null.
func (r Receipt) MarshalJSON() ([]byte, error) {
	type fields Receipt
	c := fields(r)
	c.Started, c.Ended = utc(r.Started), utc(r.Ended)
	c.Command = notNil(r.Command)
	c.Limits.Hit = notNil(r.Limits.Hit)
	c.Network.Names = notNil(r.Network.Names)
	c.Network.Connections = notNil(r.Network.Connections)
	c.Network.Requests = notNil(r.Network.Requests)
	c.Network.Credentials = notNil(r.Network.Credentials)
	c.Network.Found = notNil(r.Network.Found)
	if r.Changes != nil {
		ch := *r.Changes
		ch.List = notNil(ch.List)
		c.Changes = &ch
	}
	c.Git = r.Git.filled()
	c.Processes, c.Files, c.Privileges, c.Sockets = r.Processes.filled(), r.Files.filled(), r.Privileges.filled(), r.Sockets.filled()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(c)
	return b.Bytes(), err
}

// validate returns an error unless r is a valid receipt of this version.
func (r *Receipt) validate() error {
	if r.Schema != Schema {
		return fmt.Errorf("field \"schema\" is %q, want %q", r.Schema, Schema)
	}
	if _, err := store.ParseID(string(r.ID)); err != nil {
		return fmt.Errorf("field \"id\": %w", err)
	}
	switch r.Workspace.Mode {
	case store.Overlay, store.Copy, store.Bind, store.None:
	default:
		return fmt.Errorf("field \"workspace.mode\" is %q", r.Workspace.Mode)
	}
	if !reasons[r.Exit.Reason] {
		return fmt.Errorf("field \"exit.reason\" is %q", r.Exit.Reason)
	}
	if r.Exit.Code < 0 || r.Exit.Code > 255 {
		return fmt.Errorf("field \"exit.code\" is %d", r.Exit.Code)
	}
	if r.Duration < 0 {
		return errors.New("field \"duration_ns\" is negative")
	}
	return errors.Join(r.validateLists(), r.Network.validate())
}

func (r *Receipt) validateLists() error {
	if len(r.Notes) > maxNotes {
		return fmt.Errorf("field \"notes\" has %d entries, more than %d", len(r.Notes), maxNotes)
	}
	var errs []error
	check := func(list string, n int, total int64, limit int) { errs = append(errs, bounded(list, n, total, limit)) }
	if c := r.Changes; c != nil {
		check("changes", len(c.List), c.Total, MaxChanges)
	}
	if x := r.Execs; x != nil {
		check("execs", len(x.List), x.Total, MaxExecs)
	}
	if x := r.Proposals; x != nil {
		check("proposals", len(x.List), x.Total, MaxProposals)
		check("signals", len(x.Signals), int64(len(x.Signals)), MaxSignals)
	}
	if g := r.Git; g != nil {
		errs = append(errs, g.validate())
	}
	if p := r.Processes; p != nil {
		check("processes", len(p.List), p.Total, maxProcesses)
		errs = append(errs, p.validate())
	}
	if f := r.Files; f != nil {
		check("areas that were read", len(f.Read), f.ReadTotal, maxAreas)
		check("files that were written", len(f.Written), f.WrittenTotal, MaxWritten)
		check("areas that were denied", len(f.Denied), f.DeniedTotal, maxAreas)
	}
	if p := r.Privileges; p != nil {
		check("attempts", len(p.Attempts), p.Total, maxAttempts)
	}
	if s := r.Sockets; s != nil {
		check("sockets", len(s.List), s.Total, maxSockets)
	}
	return errors.Join(errs...)
}

// validate returns an error unless the list is a tree with parents before children.
func (p *Processes) validate() error {
	for i, x := range p.List {
		if x.ID != int64(i+1) || x.Parent < 0 || x.Parent >= x.ID {
			return fmt.Errorf("process %d of the list has id %d and parent %d", i+1, x.ID, x.Parent)
		}
	}
	return nil
}

func (p *Processes) filled() *Processes {
	if p == nil {
		return nil
	}
	c := *p
	c.List = notNil(slices.Clone(p.List))
	for i := range c.List {
		c.List[i].Args = notNil(c.List[i].Args)
	}
	return &c
}

func (f *Files) filled() *Files {
	if f == nil {
		return nil
	}
	c := *f
	c.Read, c.Written, c.Denied = notNil(f.Read), notNil(slices.Clone(f.Written)), notNil(f.Denied)
	for i := range c.Written {
		c.Written[i].How = notNil(c.Written[i].How)
	}
	return &c
}

func (p *Privileges) filled() *Privileges {
	if p == nil {
		return nil
	}
	return &Privileges{Attempts: notNil(p.Attempts), Total: p.Total}
}

func (s *Sockets) filled() *Sockets {
	if s == nil {
		return nil
	}
	return &Sockets{List: notNil(s.List), Total: s.Total}
}

func (n *Network) validate() error {
	for _, x := range n.Names {
		if !x.Verdict.valid() {
			return fmt.Errorf("verdict on name %q is %q", x.Name, x.Verdict)
		}
	}
	for _, x := range n.Connections {
		if !x.Verdict.valid() {
			return fmt.Errorf("verdict on connection to %q is %q", x.Name, x.Verdict)
		}
	}
	for _, x := range n.Requests {
		if !x.Verdict.valid() {
			return fmt.Errorf("verdict on requests to %q is %q", x.Name, x.Verdict)
		}
	}
	for _, x := range n.Found {
		if !x.Action.valid() {
			return fmt.Errorf("action about %q is %q", x.What, x.Action)
		}
	}
	return errors.Join(
		bounded("requests", len(n.Requests), n.RequestsTotal, MaxRequests),
		bounded("credentials", len(n.Credentials), n.CredentialsTotal, MaxCredentials),
		bounded("findings", len(n.Found), n.FoundTotal, MaxFound),
		bounded("names", len(n.Names), n.NamesTotal, MaxNames),
		bounded("connections", len(n.Connections), n.ConnectionsTotal, MaxConnections))
}

// bounded returns an error if a list is too long, or longer than its total.
func bounded(list string, n int, total int64, limit int) error {
	switch {
	case n > limit:
		return fmt.Errorf("list of %s has %d entries, more than %d", list, n, limit)
	case total < int64(n):
		return fmt.Errorf("list of %s has %d entries and a total of %d", list, n, total)
	}
	return nil
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC().Round(0)
	return &u
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
