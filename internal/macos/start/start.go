// Package start starts the two programs that make virtual machines on macOS, where
// hostexec, which rests on Linux, is not. Start reading at [Run].
package start

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Program is one of the closed set.
type Program string

// The programs.
const (
	Container Program = "container" // Apple's
	Limactl   Program = "limactl"   // Lima's
)

// Look returns the path of a program, which is looked for in the user's PATH.
func Look(p Program) (string, error) {
	if p != Container && p != Limactl {
		return "", fmt.Errorf("%q is no program that carboy starts", p)
	}
	return exec.LookPath(string(p))
}

// passed are the variables that a program gets, and prefixes of their names. What else the
// user's environment holds, such as keys, does not reach it.
var (
	passed   = []string{"HOME", "PATH", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
	prefixes = []string{"LC_", "LIMA_", "CONTAINER_", "XDG_"}
)

// environment returns what a program gets of the user's environment env.
func environment(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains(passed, name) && !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// maxOutput bounds what is kept of a program's output, in bytes.
const maxOutput = 8 << 20

// maxErrors bounds what is kept of a program's messages, in bytes.
const maxErrors = 64 << 10

// Call is one start of a program.
type Call struct {
	Program Program
	Args    []string
	Env     []string  // the user's; environment filters it
	Stdin   io.Reader // nil: empty
	Show    io.Writer // gets output and messages as they come; nil: they are kept
}

// ExitError says that a program ended with a code other than 0.
type ExitError struct {
	Program Program
	Code    int // -1: a signal ended it
	Stderr  string
}

func (e *ExitError) Error() string {
	if last := lastLine(e.Stderr); last != "" {
		return fmt.Sprintf("%s ended with %d: %s", e.Program, e.Code, last)
	}
	return fmt.Sprintf("%s ended with %d", e.Program, e.Code)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// bounded keeps the first bytes that are written, and reports whether there were more.
type bounded struct {
	mu   sync.Mutex
	b    bytes.Buffer
	max  int
	more bool
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := b.max - b.b.Len()
	b.more = b.more || len(p) > room
	b.b.Write(p[:min(len(p), room)])
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (c *Call) command(ctx context.Context) (*exec.Cmd, *bounded, error) {
	path, err := Look(c.Program)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, path, c.Args...)
	cmd.Env = environment(c.Env)
	// Signals of the terminal are carboy's to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	messages := &bounded{max: maxErrors}
	cmd.Stderr = messages
	return cmd, messages, nil
}

// Run runs a program to its end, and returns its output, which is empty if it is shown. A
// code other than 0 is an [*ExitError]; output over 8 MiB is an error.
func Run(ctx context.Context, c Call) ([]byte, error) {
	cmd, messages, err := c.command(ctx)
	if err != nil {
		return nil, err
	}
	out := &bounded{max: maxOutput}
	cmd.Stdin, cmd.Stdout = c.Stdin, out
	if c.Show != nil {
		cmd.Stdout, cmd.Stderr = c.Show, io.MultiWriter(c.Show, messages)
	}
	err = ended(c.Program, cmd.Run(), messages)
	if err == nil && out.more {
		err = fmt.Errorf("%s wrote more than %d bytes", c.Program, maxOutput)
	}
	return out.b.Bytes(), err
}

func ended(p Program, err error, messages *bounded) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &ExitError{p, exit.ExitCode(), messages.String()}
	}
	return err
}

// Process is a program that runs, with both ends of its streams.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.ReadCloser

	program  Program
	cmd      *exec.Cmd
	messages *bounded
}

// Begin starts a program. It ends when its standard input is closed; call Wait then.
func Begin(ctx context.Context, c Call) (*Process, error) {
	cmd, messages, err := c.command(ctx)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err = errors.Join(err, oerr); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	return &Process{in, out, c.Program, cmd, messages}, nil
}

// Wait closes the streams and blocks until the program has ended. A code other than 0 is an
// [*ExitError] with its messages.
func (p *Process) Wait() error {
	p.Stdin.Close()
	p.Stdout.Close()
	return ended(p.program, p.cmd.Wait(), p.messages)
}
