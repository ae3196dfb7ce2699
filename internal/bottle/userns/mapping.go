package userns

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/hostexec"
)

// HoldName is the argv[0] with which carboy itself sleeps until it is killed.
const HoldName = "carboy-hold"

// Mapping makes a user namespace for ID-mapped mounts, in which the user and the group on
// disk are shown as others. A process keeps it alive until release: sleeper, a program
// that sleeps until it is killed, or, where a file without a name cannot be executed,
// carboy, which takes ten times as long to start.
func Mapping(disk, shown [2]uint32, sleeper []byte) (ns *os.File, release func(), err error) {
	f, err := nameless(sleeper)
	if err == nil {
		defer f.Close()
		if ns, release, err = mapBy(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), disk, shown); err == nil {
			return ns, release, nil
		}
	}
	return mapBy("/proc/self/exe", disk, shown)
}

// nameless returns a file in memory that can be executed: it is open for reading alone.
func nameless(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("sleep", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "sleep")
	defer f.Close()
	if _, err := f.Write(program); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

func mapBy(program string, disk, shown [2]uint32) (ns *os.File, release func(), err error) {
	cmd := &exec.Cmd{
		Path: program, Args: []string{HoldName, "hold"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: int(disk[0]), HostID: int(shown[0]), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: int(disk[1]), HostID: int(shown[1]), Size: 1}},
			Pdeathsig:   unix.SIGKILL,
		},
	}
	if err := hostexec.StartPinned(cmd); err != nil {
		return nil, nil, err
	}
	done := func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		done()
		return nil, nil, err
	}
	return ns, func() { ns.Close(); done() }, nil
}
