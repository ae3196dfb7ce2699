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
	// maxLine bounds one line of a script's output, in bytes. After a longer one the output
	// is ignored; the script continues.
	maxLine = 4 << 20
	// MaxOutput bounds a script's output, in bytes.
	MaxOutput = 32 << 20
	// maxErrors bounds the part of standard error that is kept, in bytes.
	maxErrors = 4 << 10
)

// Script is a shell script with its input.
type Script struct {
	Text string // made by [Assign] and constants
	// Input is the script's standard input.
	Input [][]byte
	// Within bounds how long Run waits.
	Within time.Duration
	// Redact, if not nil, redacts the script's standard error for the error of Run. If it
	// is nil, standard error is dropped.
	Redact func(string) string
}

// Line is one line of a script's output. A line of the script itself begins with a Word,
// which begins with @. A line of a program that it runs begins with "| " and has no Word.
type Line struct{ Word, Rest string }

// Run runs a script and calls each for every line of its output, in order, from the calling
// goroutine. It returns nil if the script ended with status 0. Otherwise the error matches
// [ErrUnreachable] if the script was not started, and [ErrCut] if the script or the
// connection ended in another way.
func (c *Conn) Run(ctx context.Context, s Script, each func(Line)) error {
	ctx, cancel := context.WithTimeout(ctx, s.Within)
	defer cancel()
	// Closing the connection ends everything that waits for the host.
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
		c.Close() // the rest of the output is not read
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

// ended returns the error of Run for a script that was started.
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

// inTime returns err, or the error of ctx if that has ended, which is then the cause.
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

// keepAlive closes the connection if the host stops answering.
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

// read splits a script's output into lines.
func read(r io.Reader, each func(Line)) error {
	limit := &io.LimitedReader{R: r, N: MaxOutput}
	s := bufio.NewScanner(limit)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
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

// bounded is a writer that keeps the first maxErrors bytes.
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
