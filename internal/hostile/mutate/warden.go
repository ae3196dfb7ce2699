package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// wardenName is argv[0] of a warden: this program again, between the runner and
// a program that it runs. What that leaves behind, which is what some mutants
// bring about, becomes the warden's child and is ended with it; so no run ends
// what belongs to another one beside it.
const wardenName = "mutate-warden"

// crashCode is a warden's exit code when its program was ended by a signal or
// could not be started. Tests end with 1, and with 2 after a panic.
const crashCode = 250

// wardenMain takes over the process when it was started as a warden.
func wardenMain() {
	if os.Args[0] == wardenName && len(os.Args) > 1 {
		os.Exit(guard(os.Args[1:]))
	}
}

func guard(args []string) int {
	// The program dies with its warden, which to the kernel is the thread that
	// started it.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "become the parent of what tests leave:", err)
		return crashCode
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, unix.SIGTERM)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return crashCode
	}
	go func() { // ends with the process
		<-stop
		cmd.Process.Kill()
	}()
	err := cmd.Wait()
	endOrphans()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, err)
	return crashCode
}

// endOrphans kills and reaps this process's children until it has none.
func endOrphans() {
	for {
		var orphans []int
		ents, _ := os.ReadDir("/proc")
		for _, e := range ents {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			if p, ok := testenv.ReadProcess(pid); ok && p.Parent == os.Getpid() {
				orphans = append(orphans, pid)
			}
		}
		if len(orphans) == 0 {
			return
		}
		for _, pid := range orphans { // what is below them comes to us next
			unix.Kill(pid, unix.SIGKILL)
			unix.Wait4(pid, nil, 0, nil)
		}
	}
}
