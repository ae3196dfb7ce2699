package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	// MaxLine bounds one line that comes back, in bytes; a longer one ends the script's
	// account, not the script.
	MaxLine = 4 << 20
	// MaxOutput bounds all that comes back, in bytes.
	MaxOutput = 32 << 20
	// maxErrors bounds what is kept of standard error, in bytes.
	maxErrors = 4 << 10
)

// Script is a program for the shell over there, and what it reads.
type Script struct {
	Text string // made by [Assign] and constants
	// Input follows the script.
	Input [][]byte
	// Within bounds the whole, on this side.
	Within time.Duration
	// Redact makes what the host writes to its standard error fit for an error; nil: it is
	// left out.
	Redact func(string) string
}

// Line is one line of the script's account: a word and the rest. Words begin with @;
// a line of a program has none, and begins with "| ".
type Line struct{ Word, Rest string }

// Run runs a script. Each line is passed to each as it comes, in order, from the
// calling goroutine. The error is nil when the script ended with 0, and matches
// [ErrCut] when it, or the connection, ended in another way.
func (c *Conn) Run(ctx context.Context, s Script, each func(Line)) error {
	ctx, cancel := context.WithTimeout(ctx, s.Within)
	defer cancel()
	// Whatever waits for the host ends with the connection.
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var work sync.WaitGroup
	defer work.Wait()
	alive, over := context.WithCancel(ctx)
	defer over()
	work.Go(func() { c.keepAlive(alive) })
	session, err := c.client.NewSession()
	if err != nil {
		return &Error{c.host.Name, "open session", ErrUnreachable, inTime(ctx, err)}
	}
	defer session.Close()
	in, err := session.StdinPipe()
	if err != nil {
		return err
	}
	out, err := session.StdoutPipe()
	if err != nil {
		return err
	}
	var said bounded
	session.Stderr = &said
	if err := session.Start(command(s.Text)); err != nil {
		return &Error{c.host.Name, "start", ErrUnreachable, inTime(ctx, err)}
	}
	work.Go(func() {
		_, err := io.WriteString(in, s.Text)
		for _, b := range s.Input {
			if err == nil {
				_, err = in.Write(b)
			}
		}
		in.Close()
	})
	readErr := read(out, each)
	if readErr != nil {
		c.Close() // nobody reads the rest
	}
	waitErr := session.Wait()
	over()
	work.Wait()
	text := ""
	if s.Redact != nil {
		text = s.Redact(strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "))
	}
	return c.ended(ctx, readErr, waitErr, text)
}

func (c *Conn) ended(ctx context.Context, readErr, waitErr error, said string) error {
	var exit *ssh.ExitError
	switch {
	case readErr != nil:
		return &Error{c.host.Name, "read", ErrCut, readErr}
	case errors.As(waitErr, &exit):
		return &Error{c.host.Name, "script", ErrCut, fmt.Errorf("ended with %d%s", exit.ExitStatus(), tail(said))}
	case waitErr != nil && ctx.Err() != nil:
		return &Error{c.host.Name, "script", ErrCut, fmt.Errorf("no answer in time: %w", ctx.Err())}
	case waitErr != nil:
		return &Error{c.host.Name, "script", ErrCut, fmt.Errorf("%w%s", waitErr, tail(said))}
	}
	return nil
}

// inTime is an error, or that the time was over, which is then why.
func inTime(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer in time: %w", ctx.Err())
	}
	return err
}

func tail(said string) string {
	if said == "" {
		return ""
	}
	return ": " + said
}

// keepAlive closes a connection whose host does not answer.
func (c *Conn) keepAlive(ctx context.Context) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		answered := make(chan struct{})
		go func() { // ends with the connection at the latest
			c.client.SendRequest("keepalive@openssh.com", true, nil)
			close(answered)
		}()
		late := time.NewTimer(aliveWithin)
		select {
		case <-ctx.Done():
		case <-answered:
		case <-late.C:
			c.Close()
		}
		late.Stop()
	}
}

// read takes a script's account apart.
func read(r io.Reader, each func(Line)) error {
	limit := &io.LimitedReader{R: r, N: MaxOutput}
	s := bufio.NewScanner(limit)
	s.Buffer(make([]byte, 0, 64<<10), MaxLine)
	for s.Scan() {
		text := s.Text()
		if strings.HasPrefix(text, "@") {
			word, rest, _ := strings.Cut(text, " ")
			each(Line{word, rest})
			continue
		}
		each(Line{"", strings.TrimPrefix(text, "| ")})
	}
	if err := s.Err(); err != nil {
		return err
	}
	if limit.N <= 0 {
		return fmt.Errorf("more than %d bytes", MaxOutput)
	}
	return nil
}

// bounded keeps the beginning of what is written.
type bounded struct {
	mu sync.Mutex
	b  []byte
}

func (w *bounded) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p[:min(len(p), maxErrors-len(w.b))]...)
	return len(p), nil
}

func (w *bounded) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}
