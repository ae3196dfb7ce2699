// Package session runs one command line of carboy in a virtual machine as if it ran here:
// streams, terminal, signals, exit code, and the directories that the machine does not
// share. Everything crosses one connection, so credentials are never arguments, variables
// of the machine or files. Start reading at [Run], which is the side outside, and Serve,
// which is the machine's.
package session

import (
	"fmt"

	"github.com/carboy/carboy/internal/macos/mirror"
)

// Command is the argument with which carboy on Linux is the machine's side of a session.
const Command = "machine-session"

// version of the messages. Both sides are built from one source; a machine that runs an
// older carboy is given the right one.
const version = 1

// hello is the first thing that the machine says.
type hello struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
}

const helloSchema = "carboy.dev/session/v1"

// Stream says what a standard stream is.
type Stream string

// Kinds of standard streams.
const (
	None     Stream = ""         // it can't be read
	Pipe     Stream = "pipe"     // a pipe or a file
	Terminal Stream = "terminal" // a terminal
)

// Copy says how the machine has a directory that it does not share.
type Copy string

// Kinds of copies.
const (
	// Workspace is brought in, and what changes there is brought back.
	Workspace Copy = "workspace"
	// Settings are brought in to memory, never to the machine's disk, and stay as they are.
	Settings Copy = "settings"
)

// Tree is a directory that the machine does not share.
type Tree struct {
	Path string `json:"path"` // absolute, the same on both sides
	Copy Copy   `json:"copy"`
	// Aside gets the machine's version of files that changed on both sides.
	Aside string `json:"-"`
	// Keep says which entries are brought in; nil: all. An error of it ends the command.
	Keep func(mirror.Entry) (bool, error) `json:"-"`
}

// order says what to run.
type order struct {
	Version int               `json:"version"`
	Args    []string          `json:"args"` // without the program
	Dir     string            `json:"dir"`
	Home    string            `json:"home"`
	Env     map[string]string `json:"env"`
	In      Stream            `json:"in"`
	Out     Stream            `json:"out"`
	Err     Stream            `json:"err"`
	Size    Size              `json:"size"`
	UID     int               `json:"uid"`
	GID     int               `json:"gid"`
	Trees   []Tree            `json:"trees"`
}

// Size is the size of a terminal in characters; zero: not known.
type Size struct{ Rows, Cols uint16 }

// step announces what happens next with a directory.
type step struct {
	Tree int  `json:"tree"`
	Back bool `json:"back"` // the machine sends its changes; else it waits for the directory
	// Over says that the command has ended, so that the changes are its own.
	Over bool `json:"over"`
}

// window bounds the standard input that is under way, in bytes.
const window = 256 << 10

// NoSessionError means that the machine's program ended, or said something else, before
// carboy in the machine answered: it may be missing there.
type NoSessionError struct{ Err error }

func (e *NoSessionError) Error() string {
	return fmt.Sprintf("carboy in the machine did not answer: %v", e.Err)
}

func (e *NoSessionError) Unwrap() error { return e.Err }
