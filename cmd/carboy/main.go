// Command carboy runs commands in sealed bottles: see README.md, or
// `carboy --help`.
//
// Package carboy does the work. Here are flags, exit codes, and what people
// read; advice on what to do about an error is added here and nowhere below.
// Start reading at [newApp].
package main

import (
	"context"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/lean"
	"github.com/carboy/carboy/internal/stamp"
)

func main() {
	carboy.Main()
	collectLater()
	readyMain()
	attacker.Main()
	os.Exit(mainCode())
}

// collectLater keeps short commands from collecting garbage.
func collectLater() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(lean.StartGC)
	}
}

// mainCode is main without the hook for inner processes, so that tests can
// start it as a program of another name.
func mainCode() int {
	// Without this, writing to a pipe whose reader is gone ends carboy in the
	// middle of a run. A handler, not SIG_IGN: that would reach the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// Go's HTTP client writes what servers do wrong to the common logger: a server
	// would fill the terminal. What it means for a request is in the records.
	log.SetOutput(io.Discard)
	stamp.Begin()
	a := newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	code := a.run(context.Background(), os.Args[1:])
	if err := stamp.End(); err != nil {
		a.say(plainText, "%s", errorLine(err))
	}
	return code
}
