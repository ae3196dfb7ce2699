package macos

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/macos/start"
	"github.com/carboy/carboy/internal/safetext"
)

// machineName is the name of the one machine that carboy makes and uses.
const machineName = "carboy"

// mark labels the machine, so that one of another maker with its name is left alone.
const mark = "dev.carboy.machine"

// state says what a machine does.
type state string

const (
	absent  state = "absent"
	running state = "running"
	stopped state = "stopped"
	other   state = "other" // it starts, stops, or is broken
)

// machine holds what a program says about our machine.
type machine struct {
	state  state
	says   string // the program's word for the state
	ours   bool   // it has our mark
	arch   string // as Go names it; empty: not known
	shares []string
}

// shared reports whether the machine has dir at its own path, and may write it.
func (m *machine) shared(dir string) bool {
	return slices.ContainsFunc(m.shares, func(s string) bool { return within(dir, s) })
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// design says how a machine is made.
type design struct {
	image  string // a container's image, or Lima's template; empty: the program's usual
	cpus   int
	gib    int // memory
	shares []string
	// help lists the options of the command that makes a machine, of which older
	// versions have fewer. Empty: all are taken to be there.
	help string
}

// has reports whether the program knows an option.
func (d *design) has(option string) bool {
	return d.help == "" || slices.ContainsFunc(strings.Fields(d.help), func(w string) bool { return strings.Trim(w, ",[]") == option })
}

// maker makes and enters machines by one program.
type maker interface {
	program() start.Program
	// services returns a command that succeeds if what the program needs runs, and those
	// that start it; nil: it needs nothing.
	services() (is *Command, begin []Command)
	// look returns the command that lists machines, and parse reads what it says.
	look() Command
	parse(out []byte) (*machine, error)
	// options returns a command whose output lists the options of make; nil: they are the
	// same in all versions that carboy works with.
	options() *Command
	make(design) []Command
	// sharable says why a directory can't be shared; empty: it can.
	sharable(dir string) string
	begin() []Command
	stop() []Command
	remove() []Command
	// enter returns a command that runs words in the machine as root, with this standard
	// input and without a terminal.
	enter(words ...string) Command
}

// check refuses a machine that carboy must not or can't use.
func (m *machine) check(p start.Program) error {
	switch {
	case m.state == absent:
		return nil
	case !m.ours:
		return &adviceError{fmt.Errorf("%s has a machine named %q that carboy did not make", p, machineName), "rename or remove it, or use the other program: CARBOY_MACHINE=container or lima"}
	case m.state == other:
		return &adviceError{fmt.Errorf("the machine is neither running nor stopped: %s says %q", p, safetext.String(m.says, 80)), "wait for it, or remove it: carboy machine remove"}
	}
	return nil
}

// goArch returns Go's name of an architecture; empty: it is neither of those that carboy is
// built for.
func goArch(s string) string {
	switch strings.ToLower(s) {
	case "arm64", "aarch64":
		return "arm64"
	case "amd64", "x86_64":
		return "amd64"
	}
	return ""
}

// share is one directory of the Mac that a machine has.
type share struct {
	from, to string
	writable bool
}

// sameplace returns the directories that the machine has at their own paths and may write.
func sameplace(all []share) []string {
	var out []string
	for _, s := range all {
		if s.writable && filepath.IsAbs(s.from) && filepath.Clean(s.from) == s.from && (s.to == "" || s.to == s.from) {
			out = append(out, s.from)
		}
	}
	return out
}

// maxShares bounds what a machine's description may list.
const maxShares = 1000

// notListed is an output of a program that is not what its documentation says.
func notListed(p start.Program, err error) error {
	return &adviceError{fmt.Errorf("what %s says about its machines can't be read: %s", p, safetext.String(err.Error(), 300)), "carboy may be older or newer than it; see docs/macos.md"}
}

var errTwice = errors.New("it lists the machine twice")

// adviceError is an error with what to do about it.
type adviceError struct {
	error
	advice string
}

func (e *adviceError) Unwrap() error { return e.error }
