// Package attacker is the attacker's side of the hostile corpus: what a
// program inside a bottle tries in order to get out, to reach what it was not
// given, to use up the host, or to fool whoever reads the records.
//
// It runs inside only: the carboy binary, shown read-only at [Path], is started
// under that name, and [Main] takes the process over when process 1 is carboy's
// own init. On a host the name means nothing. It is in that binary, and no program
// of its own, because `go build ./cmd/carboy` must make all of carboy escape-test
// without a file that was built before; only that command's file imports it, the
// library doesn't contain it, and it computes nothing when a process starts.
//
// Each [Attack] has a control, the nearest thing that must work, so that an
// attack that fails because it is badly made is noticed. An attack says what
// happened to it; whether that is an escape is decided outside, by package
// corpus, from what was planted there. Where a seal is broken, an attack that
// succeeds does no harm: it writes back what it read, sets what is set, signals
// what ignores the signal. Start reading at [Attack] and [All].
package attacker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Path is the attacker's program inside a bottle, and its name.
const Path = "/attacker"

// Judge names the party that decides whether an attack succeeded.
type Judge string

// The judges, the most reliable first.
const (
	// ByHost: planted things and measurements on the host decide.
	ByHost Judge = "host"
	// ByToken: the host compares what the attacker brought with a text that
	// the attacker was never told.
	ByToken Judge = "token"
	// ByWord: the kernel's answer decides, as the attacker reports it. The host has
	// nothing to check.
	ByWord Judge = "answer"
)

// Attack describes one technique.
type Attack struct {
	ID      string // family/name
	Family  string
	Promise string // of docs/promises.md
	How     string // the technique, in one sentence
	Defence string // what defeats it
	Source  string // what it was reported against, or "generic"
	Judge   Judge

	// Try returns nil if the attack succeeded, an error that says how it was
	// refused, or one made by cannot. Try is nil if the host runs the attack, by a
	// command of its own in the bottle.
	Try func(*Env) error
	// Control does the most similar thing that must work.
	Control func(*Env) error
}

// World tells the attacker what to attack. It has the places of planted things, but never
// the secret text.
type World struct {
	Attacks   []string // ids, in this order
	Workspace string
	Secret    string // a file of the host that holds the secret text
	SecretIno uint64
	Marker    string // reversed: how every secret text begins
	HostPIDs  []int
	ReadOnly  string // a read-only mount with a file "given"
	Abstract  string // an abstract socket's name, without @

	HostSockets []string // paths of sockets on the host, as seen inside
	HostAddrs   []string // IP addresses of the host
	Port        string   // of a web server on the host's loopback

	Open, Second, TLS, TLS2 string // host:port that are allowed
	Private, Meta, Rebind   string // host:port that are allowed and lead inside
	Exfil                   string // a zone that no route allows

	// Hosts for interception, all with TLS except CredPlain. The gateway adds a
	// credential on Cred below /v1 and on CredQuery.
	Cred, CredQuery, CredPlain string
	Leak, LeakWild             string            // no credential; LeakWild is below Wild
	Wild                       string            // a zone of which all is allowed
	Watched                    map[string]string // by attack: a known secret, reversed

	Git    string // the URL of a repository behind the git gate
	GitTip string // the commit that it has
}

// Result holds one attack's result.
type Result struct {
	ID       string `json:"id"`
	Control  string `json:"control,omitempty"` // why the control failed
	Outcome  string `json:"outcome"`           // Done, Refused, Cannot
	Detail   string `json:"detail,omitempty"`
	Evidence []byte `json:"evidence,omitempty"`
	Tries    int    `json:"tries"`

	Took time.Duration `json:"took_ns"` // control and attack
}

// Outcomes of an attack, as the attacker reports them.
const (
	Done    = "done"
	Refused = "refused"
	Cannot  = "cannot"
)

// Env holds one attack's world and the evidence that it collects.
type Env struct {
	*World
	mu       sync.Mutex
	evidence []byte
	tries    int
	won      string // the way that succeeded
}

// maxEvidence bounds the evidence of one attack, in bytes.
const maxEvidence = 16 << 10

// bring adds b to the evidence, for the host to judge.
func (e *Env) bring(b []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.evidence = append(e.evidence, b[:min(len(b), maxEvidence-min(maxEvidence, len(e.evidence)))]...)
}

// cannotError reports an attack that could not be made. It must never count as refused.
type cannotError struct {
	why  string
	hung bool // it was made, and nobody said no
}

func (e *cannotError) Error() string { return e.why }

func cannot(format string, args ...any) error { return &cannotError{why: fmt.Sprintf(format, args...)} }

// try is one way of a technique.
type try struct {
	name string
	f    func() error
}

// slowTry is the duration after which a try is logged.
const slowTry = 3 * time.Second

// any makes every try, one after the other, and succeeds if one did. If one hung, the
// result is unknown. Tries that could not be made do not count.
func (e *Env) any(tries ...try) error { return e.attempt(1, tries) }

// atOnce does the same as any, but makes several tries in parallel, for tries that wait
// for the network.
func (e *Env) atOnce(tries ...try) error { return e.attempt(16, tries) }

func (e *Env) attempt(width int, tries []try) error {
	errs := make([]error, len(tries))
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i, t := range tries {
		slots <- struct{}{}
		wg.Add(1)
		go func() { // ends with the try, which bounds its own waits
			defer wg.Done()
			if width == 1 {
				runtime.LockOSThread() // and never unlocked: it may have changed the thread
			}
			start := time.Now()
			errs[i] = t.f()
			if d := time.Since(start); d > slowTry {
				fmt.Fprintf(os.Stderr, "%s took %v\n", t.name, d.Round(time.Millisecond))
			}
			<-slots
		}()
	}
	wg.Wait()
	var refused, unable []string
	var hung error
	for i, err := range errs {
		var c *cannotError
		switch {
		case err == nil:
			e.count(len(tries))
			e.won = tries[i].name
			return nil
		case errors.As(err, &c):
			unable = append(unable, tries[i].name+": "+err.Error())
			if c.hung {
				hung = &cannotError{why: unable[len(unable)-1], hung: true}
			}
		default:
			refused = append(refused, tries[i].name+": "+err.Error())
		}
	}
	e.count(len(refused))
	switch {
	case hung != nil:
		return hung
	case len(refused) == 0:
		return cannot("%s", strings.Join(unable, "; "))
	}
	return errors.New(strings.Join(refused, "; "))
}

func (e *Env) count(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tries += n
}

// each returns a try for every value.
func each[T any](values []T, f func(T) error) (out []try) {
	for _, v := range values {
		out = append(out, try{fmt.Sprint(v), func() error { return f(v) }})
	}
	return out
}

// Main runs the attacker and does not return if this process is the attacker in a bottle.
// Call it first in main, after carboy.Main.
func Main() {
	if os.Args[0] != Path || len(os.Args) < 2 || !inBottle() {
		return
	}
	switch os.Args[1] {
	case "attack":
		if err := attackAll(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "attacker:", err)
			os.Exit(99)
		}
		os.Exit(0)
	}
	f := toolOf(os.Args[1])
	if f == nil {
		fmt.Fprintln(os.Stderr, "attacker: no tool", os.Args[1])
		os.Exit(99)
	}
	runtime.LockOSThread()
	err := f(os.Args[2:])
	var c *cannotError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &c):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(toolCannot)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(toolRefused)
}

const (
	toolRefused = 1
	toolCannot  = 3
)

// inBottle reports whether process 1 is carboy's init or its guest program, which no host
// has.
func inBottle() bool {
	b, err := os.ReadFile("/proc/1/cmdline")
	return err == nil && (bytes.HasPrefix(b, []byte("/.carboy/init")) || bytes.HasPrefix(b, []byte("/carboy-guest\x00")))
}

// attackAll reads a World and writes a Result for each attack that it names, one JSON
// document a line.
func attackAll(in io.Reader, out io.Writer) error {
	var w World
	if err := json.NewDecoder(in).Decode(&w); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	all := map[string]*Attack{}
	for _, a := range All() {
		all[a.ID] = &a
	}
	enc := json.NewEncoder(out)
	for _, id := range w.Attacks {
		start := time.Now()
		r := Result{ID: id, Outcome: Cannot, Detail: "no such attack"}
		if a := all[id]; a != nil && a.Try != nil {
			r = a.attack(&w)
		}
		r.Took = time.Since(start)
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// patience bounds an attack. An attack that hangs counts as neither made nor refused, and
// must not stop later ones.
const patience = 2 * time.Minute

func (a *Attack) attack(w *World) Result {
	r := Result{ID: a.ID, Tries: 1}
	c := &Env{World: w}
	if err := bounded(func() error { return a.Control(c) }); err != nil {
		r.Control, r.Outcome = clip(err.Error()), Cannot
		return r
	}
	e := &Env{World: w}
	err := bounded(func() error { return a.Try(e) })
	e.mu.Lock()
	defer e.mu.Unlock()
	r.Tries, r.Evidence = max(1, e.tries), e.evidence
	var unable *cannotError
	switch {
	case err == nil:
		r.Outcome, r.Detail = Done, clip(e.won)
	case errors.As(err, &unable):
		r.Outcome, r.Detail = Cannot, clip(err.Error())
	default:
		r.Outcome, r.Detail = Refused, clip(err.Error())
	}
	return r
}

// bounded runs f on a thread of its own, which ends with f.
func bounded(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- cannot("panic: %v", p)
			}
		}()
		runtime.LockOSThread()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return cannot("no end after %v", patience)
	}
}

func clip(s string) string { return s[:min(len(s), 500)] }

// tool runs one of this program's tools as a process of its own. Its output is evidence.
func (e *Env) tool(attr *syscall.SysProcAttr, name string, args ...string) error {
	return e.command(attr, Path, append([]string{name}, args...)...)
}

// command runs a program. Its output is evidence. A program that could not be started does
// not count as refused.
func (e *Env) command(attr *syscall.SysProcAttr, path string, args ...string) error {
	c := exec.Command(path, args...)
	c.SysProcAttr = attr
	var out, msg bytes.Buffer
	c.Stdout, c.Stderr = &out, &msg
	err := c.Run()
	e.bring(out.Bytes())
	e.bring(msg.Bytes())
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return cannot("start %s: %v", path, err)
	case exit.ExitCode() == toolCannot && path == Path:
		return cannot("%s", strings.TrimSpace(msg.String()))
	}
	return fmt.Errorf("%w: %.200s", err, strings.TrimSpace(msg.String()))
}

// reverse reverses a text, so that a search for the text does not find it in this program.
func reverse(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// All returns the catalogue, family by family. It makes it on each call: this code is in
// every carboy, and few of them attack anything.
func All() []Attack {
	return slices.Concat(
		hostFiles(), hostProcesses(), kernelInterfaces(), devices(), namespaces(), sockets(), networkCard(),
		hostPorts(), names(), literals(), privateNames(), datagrams(), web(), tlsAttacks(),
		credentials(), placeholders(), secrets(), bodies(), pushes(), driven(),
	)
}

// family sets the fields that a family's attacks share.
func family(name, promise string, attacks ...Attack) []Attack {
	for i := range attacks {
		a := &attacks[i]
		a.ID, a.Family = name+"/"+a.ID, name
		if a.Promise == "" {
			a.Promise = promise
		}
		if a.Source == "" {
			a.Source = "generic"
		}
	}
	return attacks
}
