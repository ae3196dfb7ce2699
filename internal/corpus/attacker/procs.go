package attacker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const ownPIDs = "process ids are the bottle's own"

// victims runs f on the numbers of host processes that no process inside has.
func (e *Env) victims(f func(pid int) error) error {
	var free []int
	for _, pid := range e.HostPIDs {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/stat", pid)); err != nil {
			free = append(free, pid)
		}
	}
	if len(free) == 0 {
		return cannot("the host's process ids are taken inside")
	}
	return e.any(each(free, f)...)
}

// withChild runs f on a child process, and then kills the child.
func withChild(f func(pid int) error) error {
	c := exec.Command("/bin/sleep", "100")
	if err := c.Start(); err != nil {
		return cannot("%v", err)
	}
	err := f(c.Process.Pid)
	c.Process.Kill()
	c.Wait()
	return err
}

func onVictims(id, how string, f func(e *Env, pid int) error) Attack {
	return Attack{ID: id, How: how, Defence: ownPIDs, Judge: ByWord,
		Control: func(e *Env) error { return withChild(func(pid int) error { return f(e, pid) }) },
		Try:     func(e *Env) error { return e.victims(func(pid int) error { return f(e, pid) }) }}
}

func signalNothing(_ *Env, pid int) error { return unix.Kill(pid, 0) }

func traceProcess(_ *Env, pid int) error {
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	var st unix.WaitStatus
	unix.Wait4(pid, &st, unix.WALL, nil)
	return unix.PtraceDetach(pid)
}

func readMemory(e *Env, pid int) error {
	b := make([]byte, 64)
	// Where a process of this kind has something: the first map.
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	at := uintptr(0x400000)
	if err == nil {
		fmt.Sscanf(string(maps), "%x-", &at)
	}
	iov := []unix.Iovec{{Base: &b[0]}}
	iov[0].SetLen(len(b))
	_, err = unix.ProcessVMReadv(pid, iov, []unix.RemoteIovec{{Base: at, Len: len(b)}}, 0)
	return err
}

func openProcess(_ *Env, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func readProcess(e *Env, pid int) error {
	return e.any(each([]string{"cmdline", "environ", "maps", "status", "mountinfo", "net/tcp"}, func(f string) error { return e.read(fmt.Sprintf("/proc/%d/%s", pid, f)) })...)
}

func hostProcesses() []Attack {
	return family("host-processes", "S1", slices.Concat(outerProcesses(), innerProcesses())...)
}

// outerProcesses returns the attacks on processes of the host.
func outerProcesses() []Attack {
	return []Attack{
		{ID: "see", How: "List every process that /proc shows, with its command line.", Defence: ownPIDs, Judge: ByWord,
			Control: func(e *Env) error { return e.read(fmt.Sprintf("/proc/%d/cmdline", os.Getpid())) },
			Try: func(e *Env) error {
				lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
				if err != nil || len(lines) == 0 {
					return cannot("/proc shows nothing")
				}
				for _, f := range lines {
					b, _ := os.ReadFile(f)
					for _, name := range []string{"runsc", "carboy-shim", "systemd", "carboy\x00run", "escape-test", ".test\x00"} {
						if strings.Contains(string(b), name) {
							e.bring(b)
							return nil
						}
					}
				}
				return fmt.Errorf("%d processes, none of the host", len(lines))
			}},
		onVictims("signal", "Send signals by number to carboy's own processes on the host.", signalNothing),
		onVictims("trace", "Attach to them with ptrace.", traceProcess),
		onVictims("read-memory", "Read their memory with process_vm_readv.", readMemory),
		onVictims("pidfd", "Take descriptors of them.", openProcess),
		onVictims("read-proc", "Read what /proc says of them.", readProcess),
		{ID: "signal-all", How: "Signal every process that may be signalled (kill -1).", Defence: ownPIDs, Judge: ByHost,
			Control: func(*Env) error {
				return withChild(func(pid int) error { return unix.Kill(pid, unix.SIGCONT) })
			},
			Try: func(*Env) error { return unix.Kill(-1, unix.SIGCONT) }},
	}
}

// innerProcesses returns the attacks on process 1 and on siblings inside.
func innerProcesses() []Attack {
	return []Attack{
		{ID: "kill-init", How: "Kill process 1, as its user and as root of a namespace of one's own.", Defence: "the first process takes no signal that it doesn't ask for, and the bottle does not hang on it", Judge: ByWord,
			Control: func(*Env) error {
				return withChild(func(pid int) error { return unix.Kill(pid, unix.SIGKILL) })
			},
			Try: func(e *Env) error {
				gone := func(err error) error {
					time.Sleep(50 * time.Millisecond)
					if _, serr := os.Stat("/proc/1/stat"); serr != nil {
						return nil
					}
					return errors.Join(err, errors.New("it lives"))
				}
				var tries []try
				for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGSTOP, unix.SIGINT, unix.SIGABRT} {
					tries = append(tries, try{unix.SignalName(sig), func() error { return gone(unix.Kill(1, sig)) }})
				}
				tries = append(tries, try{"namespace", func() error { return gone(e.tool(asRoot(), "kill-init")) }})
				return e.any(tries...)
			}},
		{ID: "init-memory", How: "Write to the memory of process 1, which carboy put there, and read its variables.", Defence: "the kernel inside checks who may", Judge: ByWord,
			Control: func(*Env) error {
				f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
				if err == nil {
					f.Close()
				}
				return err
			},
			Try: func(e *Env) error {
				return e.any(
					try{"mem", func() error {
						f, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0)
						if err != nil {
							return err
						}
						defer f.Close()
						_, err = f.WriteAt([]byte{0}, 0x400078)
						return err
					}},
					try{"environ", func() error { return e.read("/proc/1/environ") }},
					try{"ptrace", func() error { return traceProcess(e, 1) }},
				)
			}},
		{ID: "trace-sibling", How: "Attach to a process that is not a descendant, and change what it does.", Defence: "only descendants are traced", Judge: ByWord,
			Control: func(e *Env) error {
				return withChild(func(pid int) error { return traceProcess(e, pid) })
			},
			Try: func(e *Env) error {
				return withChild(func(pid int) error { return e.tool(nil, "ptrace", fmt.Sprint(pid)) })
			}},
		{ID: "init-descriptors", How: "Take over descriptors that process 1 or the kernel's own parts hold.", Defence: "process 1 has none of the host's", Judge: ByWord,
			Control: func(*Env) error { return list("/proc/self/fd") },
			Try: func(e *Env) error {
				fds, err := os.ReadDir("/proc/1/fd")
				if err != nil {
					return err
				}
				for _, f := range fds {
					to, err := os.Readlink("/proc/1/fd/" + f.Name())
					if err == nil && to != "/dev/null" && !strings.HasPrefix(to, "host:") && !strings.HasPrefix(to, "pipe:") {
						e.bring([]byte(to))
						return nil
					}
				}
				return fmt.Errorf("%d descriptors, none of interest", len(fds))
			}},
	}
}

// asRoot makes a process root of its own namespaces.
func asRoot(more ...uintptr) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	for _, f := range more {
		a.Cloneflags |= f
	}
	return a
}
