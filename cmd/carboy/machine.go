//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/carboy/carboy/internal/exitcode"
	macsession "github.com/carboy/carboy/internal/macos/session"
)

// machineCode serves a session if carboy on macOS started this program in its machine. In a
// command line of such a session, it only sets the session's variables. If done is true,
// the program ends with this code.
func machineCode(args []string) (code int, done bool) {
	serves := len(args) == 2 && args[1] == macsession.Command
	var err error
	if serves {
		err = macsession.Serve(os.Stdin, os.Stdout, macsession.Machine(os.Getenv))
	} else {
		err = macsession.Inherit()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "carboy: %s\n", errorLine(err))
		return exitcode.OfError(exitcode.Runs, err), true
	}
	return exitcode.OK, serves
}
