//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/macos/session"
)

// machineMain is what carboy on macOS starts in its machine: the side of a session there.
// In a command line that it runs, it sets that session's variables.
func machineMain() {
	serves := len(os.Args) == 2 && os.Args[1] == session.Command
	var err error
	if serves {
		err = session.Serve(os.Stdin, os.Stdout, session.Machine)
	} else {
		err = session.Inherit()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "carboy: %s\n", errorLine(err))
		os.Exit(exitcode.OfError(exitcode.Runs, err))
	}
	if serves {
		os.Exit(exitcode.OK)
	}
}
