package userns

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/hostexec"
)

// HoldName is the argv[0] with which carboy itself sleeps until it is killed.
const HoldName = "carboy-hold"

// Pair says that a user and a group on disk are shown as others; the zero Pair keeps root's.
// Of two with the same id, the first counts.
type Pair struct{ Disk, Shown [2]uint32 }

// Mapping makes a user namespace for ID-mapped mounts with those pairs. A process keeps it alive until release: sleeper, a program
// that sleeps until it is killed, or, where a file without a name cannot be executed,
// carboy, which takes ten times as long to start.
func Mapping(sleeper []byte, pairs ...Pair) (ns *os.File, release func(), err error) {
	f, err := nameless(sleeper)
	if err == nil {
		defer f.Close()
		if ns, release, err = mapBy(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), pairs); err == nil {
			return ns, release, nil
		}
	}
	return mapBy("/proc/self/exe", pairs)
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

func mapBy(program string, pairs []Pair) (ns *os.File, release func(), err error) {
	var ids [2][]syscall.SysProcIDMap
	for _, p := range pairs {
		for i := range ids {
			m := syscall.SysProcIDMap{ContainerID: int(p.Disk[i]), HostID: int(p.Shown[i]), Size: 1}
			if !slices.ContainsFunc(ids[i], func(o syscall.SysProcIDMap) bool { return o.ContainerID == m.ContainerID || o.HostID == m.HostID }) {
				ids[i] = append(ids[i], m)
			}
		}
	}
	cmd := &exec.Cmd{
		Path: program, Args: []string{HoldName, "hold"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: ids[0],
			GidMappings: ids[1],
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
