//go:build linux

// Command carboy runs commands in sealed bottles: see README.md, or
// `carboy --help`.
//
// Package carboy does the work. This package has the flags, the output, and the advice on
// what to do about an error. Start reading at [newApp].
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
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/reclaim"
)

func main() {
	runtimeMain()
	carboy.Main()
	collectLater()
	preparedMain()
	escapeMain()
	os.Exit(mainCode())
}

// collectLater raises the heap size at which the first garbage collection starts, so that
// short commands need none.
func collectLater() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(reclaim.StartGC)
	}
}

// mainCode is main without the hook for inner processes. Tests start it under another
// name.
func mainCode() int {
	if code, done := machineCode(os.Args); done {
		return code
	}
	// Without this, writing to a pipe whose reader is gone ends carboy in the
	// middle of a run. A handler, not SIG_IGN: that would reach the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// Go's HTTP client writes what servers do wrong to the common logger: a server
	// would fill the terminal. What it means for a request is in the records.
	log.SetOutput(io.Discard)
	phases.Begin()
	a := newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	code := a.run(context.Background(), os.Args[1:])
	if err := phases.End(); err != nil {
		a.say(plainText, "%s", errorLine(err))
	}
	return code
}
