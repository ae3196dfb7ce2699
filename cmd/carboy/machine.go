//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/macos/session"
)

// machineCode is what carboy on macOS starts in its machine: the side of a session there.
// In a command line that it runs, it only sets that session's variables. If done is true,
// the program ends with this code.
func machineCode(args []string) (code int, done bool) {
	serves := len(args) == 2 && args[1] == session.Command
	var err error
	if serves {
		err = session.Serve(os.Stdin, os.Stdout, session.Machine(os.Getenv))
	} else {
		err = session.Inherit()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "carboy: %s\n", errorLine(err))
		return exitcode.OfError(exitcode.Runs, err), true
	}
	return exitcode.OK, serves
}
