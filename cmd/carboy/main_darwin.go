// Command carboy on macOS runs the Linux carboy in a virtual machine.
//
// Package macos does the work, and docs/macos.md describes it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/carboy/carboy/internal/macos"
)

func main() { os.Exit(mainCode()) }

func mainCode() int {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	dir, derr := os.Getwd()
	if err == nil {
		err = derr
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "carboy: %v\n", err)
		return 125
	}
	return macos.Main(macos.Process{
		Args: os.Args[1:], Env: os.Environ(), Exe: exe, Dir: dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), UID: os.Getuid(), GID: os.Getgid(),
	})
}
