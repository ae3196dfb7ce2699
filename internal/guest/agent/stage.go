package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/seccomp"
)

// The stage is this program again, between fork and the command: it sets limits, ids and
// the root of its own process, and then becomes the command.

// stageName is its argv[0].
const stageName = "carboy-stage"

const (
	stageOrderFD = 3 // it reads its order there
	stageFailFD  = 4 // and writes why it failed; closed when the command begins
)

type stageOrder struct {
	Start    *proto.Start `json:"start"`
	Root     string       `json:"root"`
	UID, GID uint32
	Drop     bool // it is root, and becomes UID and GID
	Filter   bool // see filter.go
	Limits   proto.Limits
	Cgroup   string
}

type stageFailure struct {
	Code proto.Code
	Text string
}

// stage does not return.
func stage() {
	// Some of what a process gives up, each thread gives up for itself.
	runtime.LockOSThread()
	unix.CloseOnExec(stageFailFD)
	err := becomeCommand()
	f := stageFailure{proto.CodeOther, err.Error()}
	var c *codeError
	if errors.As(err, &c) {
		f.Code = c.code
	}
	b, _ := json.Marshal(f)
	_, _ = unix.Write(stageFailFD, b)
	os.Exit(127)
}

func becomeCommand() error {
	in := os.NewFile(stageOrderFD, "order")
	b, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	in.Close()
	var o stageOrder
	if err := json.Unmarshal(b, &o); err != nil || o.Start == nil || len(o.Start.Args) == 0 {
		return errors.New("there is no command")
	}
	if o.Cgroup != "" {
		if err := os.WriteFile(o.Cgroup+"/cgroup.procs", []byte("0"), 0); err != nil {
			return fmt.Errorf("enter the cgroup: %w", err)
		}
	}
	if o.Root != "" {
		if err := unix.Chroot(o.Root); err != nil {
			return fmt.Errorf("enter %s: %w", o.Root, err)
		}
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := confine(&o); err != nil {
		return err
	}
	// As the user, who must have the right to enter it.
	if dir := string(o.Start.Dir); dir != "" {
		if err := unix.Chdir(dir); err != nil {
			return fmt.Errorf("working directory %.200q: %w", dir, err)
		}
	}
	unix.Umask(0o022)
	return execute(texts(o.Start.Args), texts(o.Start.Env))
}

// confine gives up what the command must not have.
func confine(o *stageOrder) error {
	set := func(which int, v int64) error {
		if v <= 0 {
			return nil
		}
		// Without rights a limit can only be lowered, and a stricter one will do.
		var had syscall.Rlimit
		if err := syscall.Getrlimit(which, &had); err != nil {
			return err
		}
		v = int64(min(uint64(v), had.Max))
		// The package syscall must know, or it sets its own limit again at execve.
		if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: uint64(v), Max: uint64(v)}); err != nil {
			return fmt.Errorf("set limit %d to %d: %w", which, v, err)
		}
		return nil
	}
	pids := o.Limits.Pids
	if o.Cgroup != "" {
		pids = 0 // the cgroup has that limit, and counts what it refuses
	}
	if err := errors.Join(set(unix.RLIMIT_FSIZE, o.Limits.FileSize), set(unix.RLIMIT_NOFILE, o.Limits.OpenFiles), set(unix.RLIMIT_NPROC, pids)); err != nil {
		return err
	}
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	if o.Drop {
		for c := 0; c < 64; c++ {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				break // the kernel has no more
			}
		}
		if err := syscall.Setgroups([]int{int(o.GID)}); err != nil {
			return err
		}
		if err := syscall.Setresgid(int(o.GID), int(o.GID), int(o.GID)); err != nil {
			return err
		}
		if err := syscall.Setresuid(int(o.UID), int(o.UID), int(o.UID)); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil || !o.Filter {
		return err
	}
	return seccomp.Install(filterProgram(), 0)
}

// execute replaces the process. It returns only errors.
func execute(args, env []string) error {
	name := args[0]
	if strings.Contains(name, "/") {
		return refused(name, syscall.Exec(name, args, env))
	}
	if name == "" {
		return refused(name, syscall.ENOENT)
	}
	last := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(variable(env, "PATH")) {
		if dir == "" {
			dir = "."
		}
		err := syscall.Exec(dir+"/"+name, args, env)
		switch err {
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			last = err
		default:
			return refused(name, err)
		}
	}
	return refused(name, last)
}

// refused says what execve's error means for the caller.
func refused(name string, err error) error {
	text := fmt.Errorf("%.200q: %w", name, err)
	switch err {
	case syscall.ENOENT:
		return &codeError{proto.CodeNotFound, text}
	case syscall.EACCES, syscall.ENOEXEC, syscall.ENOTDIR, syscall.EISDIR, syscall.EPERM, syscall.ELIBBAD, syscall.EINVAL, syscall.ETXTBSY:
		return &codeError{proto.CodeNotExecutable, text}
	}
	return text
}

func variable(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func texts(bs [][]byte) []string {
	out := make([]string, len(bs))
	for i, b := range bs {
		out[i] = string(b)
	}
	return out
}
