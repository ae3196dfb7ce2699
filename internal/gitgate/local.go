package gitgate

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/hostexec"
)

// localUpstream is a repository on this machine. Its hooks do not run.
type localUpstream struct {
	path  string
	git   *hostexec.Runner
	limit time.Duration
}

func (u *localUpstream) Close() error { return nil }

func (u *localUpstream) advertise(ctx context.Context, service string, v version) (io.ReadCloser, error) {
	return start(ctx, u.git, u.path, u.limit, nil, strings.TrimPrefix(service, "git-"), strconv.Itoa(int(v)), "advertise")
}

func (u *localUpstream) call(ctx context.Context, service string, v version, body io.Reader, _ int64) (io.ReadCloser, error) {
	if service == receivePack {
		// Do not kill git in the middle of a push: it would leave lock files.
		ctx = context.WithoutCancel(ctx)
	}
	c, err := start(ctx, u.git, u.path, u.limit, body, strings.TrimPrefix(service, "git-"), strconv.Itoa(int(v)), "answer")
	if err == nil && service == receivePack {
		c.rest = tidying
	}
	return c, err
}

// tidying bounds the time in which git may remove a push that it refused, after its answer.
const tidying = 20 * time.Second

// command is a running git. Reading returns its output, and at the end the error that it
// ended with.
type command struct {
	*os.File
	cancel context.CancelFunc
	rest   time.Duration // for which Close lets git run
	done   chan struct{}
	res    hostexec.Result
	err    error
	fed    chan error
}

// start runs one of GitServe's forms in dir. git reads in to its end.
func start(ctx context.Context, git *hostexec.Runner, dir string, limit time.Duration, in io.Reader, args ...string) (*command, error) {
	return startProgram(ctx, git, hostexec.GitServe, dir, limit, in, args...)
}

func startProgram(ctx context.Context, git *hostexec.Runner, program hostexec.Program, dir string, limit time.Duration, in io.Reader, args ...string) (*command, error) {
	out, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var inR, inW *os.File
	if in != nil {
		if inR, inW, err = os.Pipe(); err != nil {
			_, _ = out.Close(), outW.Close()
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &command{File: out, cancel: cancel, done: make(chan struct{}), fed: make(chan error, 1)}
	go func() { // ends with git
		defer close(c.done)
		c.res, c.err = git.Run(ctx, hostexec.Command{
			Program: program, Args: args, Dir: dir, Timeout: min(limit, hostexec.MaxTimeout),
			Input: inR, Output: outW,
		})
	}()
	if in == nil {
		c.fed <- nil
		return c, nil
	}
	go func() { // ends with in, or with git at the other end of the pipe
		_, err := io.Copy(inW, in)
		c.fed <- errors.Join(err, inW.Close())
	}()
	return c, nil
}

func (c *command) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	if errors.Is(err, io.EOF) {
		<-c.done
		if c.err != nil {
			err = c.err
		}
	}
	return n, err
}

// WriteTo hides the WriteTo of the File, which does not return git's error.
func (c *command) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

// Close lets git run for c.rest, kills it if it still runs, and blocks until it has ended.
func (c *command) Close() error {
	select {
	case <-c.done:
	case <-time.After(c.rest):
		c.cancel()
	}
	<-c.done
	c.cancel()
	return c.File.Close()
}
