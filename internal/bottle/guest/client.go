// Package guest is the host's side of the program that runs inside a container or virtual
// machine (package agent): it starts commands there, joins their streams to the caller's
// descriptors, and fetches changed files. It is shared by the backends that have such a
// program.
//
// The guest is hostile. What it sends has bounds, which package proto checks; a breach
// ends the stream, and with it the bottle. It can refuse to answer, so callers give a
// context, and Close ends every call. Start reading at [Connect].
package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/safetext"
)

// maxText bounds what of a guest's message is shown, bytes.
const maxText = 500

// Client is the host's end of the stream to one guest. Its methods are safe for
// concurrent use.
type Client struct {
	conn  *proto.Conn
	hello proto.Hello

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // what copies streams
}

// Connect greets the guest on conn, which it owns, and returns when the guest has
// answered. Closing conn must end its reads and writes.
func Connect(ctx context.Context, conn io.ReadWriteCloser) (*Client, error) {
	nonce := make([]byte, proto.NonceSize)
	if _, err := rand.Read(nonce); err != nil {
		conn.Close()
		return nil, err
	}
	c := &Client{conn: proto.NewConn(conn, true)}
	stop := context.AfterFunc(ctx, func() { c.conn.Close() })
	hello, err := c.conn.Greet(nonce)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("greet the guest: %w", err)
	}
	c.hello = hello
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		_ = c.conn.Serve(nil) // Err holds why it ended
	}()
	return c, nil
}

// Hello returns what the guest said of itself. It is bounded, and nothing else is known
// about it.
func (c *Client) Hello() proto.Hello { return c.hello }

// Done is closed when the stream has ended.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Err returns why the stream ended, nil while it has not.
func (c *Client) Err() error { return c.conn.Err() }

// Close ends the stream, and so the guest, and every call. All copies of descriptors are
// closed when it returns.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.conn.Close()
	c.running.Wait()
	return err
}

// enter counts a copier of streams, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

// Setup prepares the guest; see proto.Setup.
func (c *Client) Setup(ctx context.Context, s *proto.Setup) error {
	_, err := c.call(ctx, &proto.Request{Op: proto.OpSetup, Setup: s}, nil, nil)
	return err
}

// Freeze stops the commands and writes their files out.
func (c *Client) Freeze(ctx context.Context) error {
	_, err := c.call(ctx, &proto.Request{Op: proto.OpFreeze}, nil, nil)
	return err
}

// Thaw lets the commands go on after Freeze.
func (c *Client) Thaw(ctx context.Context) error {
	_, err := c.call(ctx, &proto.Request{Op: proto.OpThaw}, nil, nil)
	return err
}

// Stats returns what the commands use, as the guest says.
func (c *Client) Stats(ctx context.Context) (proto.Stats, error) {
	r, err := c.call(ctx, &proto.Request{Op: proto.OpStats}, nil, nil)
	if err != nil {
		return proto.Stats{}, err
	}
	if r.Stats == nil {
		return proto.Stats{}, c.breach("a reply without statistics")
	}
	return *r.Stats, nil
}

// Usage returns what the commands use, as the guest says: onDisk tells that their files are
// on disk, and don't count as memory. A guest that does not answer within answerPatience is
// given up, and the stream ends.
func (c *Client) Usage(onDisk bool) (bottle.Usage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerPatience)
	defer cancel()
	s, err := c.Stats(ctx)
	switch {
	case err != nil:
		return bottle.Usage{}, err
	case onDisk:
		return bottle.Usage{Memory: s.Memory, Disk: s.Disk}, nil
	}
	return bottle.Usage{Memory: s.Memory + s.Disk}, nil
}

// Refusals returns the forks that the guest refused, as it says.
func (c *Client) Refusals(ctx context.Context) (bottle.Refusals, error) {
	s, err := c.Stats(ctx)
	return bottle.Refusals{Pids: s.Refused}, err
}

// Import unpacks the tar stream r below dir, a directory in the guest's own root.
func (c *Client) Import(ctx context.Context, dir string, r io.Reader) error {
	_, err := c.call(ctx, &proto.Request{Op: proto.OpImport, Dir: dir}, r, nil)
	return err
}

// Export writes the guest's tar stream of the layers to w. It is hostile: no byte of it
// has been looked at. disk is what the guest can have written, in bytes: one that sends
// more than its files can take is refused.
func (c *Client) Export(ctx context.Context, layers []proto.Layer, disk int64, w io.Writer) error {
	// Names and headers are beside the data.
	_, err := c.call(ctx, &proto.Request{Op: proto.OpExport, Layers: layers}, nil, &bounded{w: w, left: 2*min(disk, math.MaxInt64/4) + 64<<20})
	if err != nil {
		return fmt.Errorf("export changes: %w", err)
	}
	return nil
}

// bounded refuses more bytes than left.
type bounded struct {
	w    io.Writer
	left int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, errors.New("the guest sends more than its disk holds")
	}
	return b.w.Write(p)
}

func (c *Client) breach(text string) error {
	c.conn.Close()
	return fmt.Errorf("%w: %s", proto.ErrProtocol, text)
}

// open sends a request. Until stop is called, the end of ctx ends the stream, also while a
// guest that reads nothing holds up the sending: a request that is given up leaves the guest
// in an unknown state.
func (c *Client) open(ctx context.Context, r *proto.Request) (ch *proto.Channel, stop func() bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	stop = context.AfterFunc(ctx, func() { c.conn.Close() })
	if ch, err = c.conn.Open(r); err != nil {
		stop()
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		return nil, nil, c.gone(err)
	}
	return ch, stop, nil
}

// call makes a request. It sends from as the request's input and writes its output to to.
func (c *Client) call(ctx context.Context, r *proto.Request, from io.Reader, to io.Writer) (proto.Reply, error) {
	ch, stop, err := c.open(ctx, r)
	if err != nil {
		return proto.Reply{}, err
	}
	defer stop()
	var sendErr, takeErr error
	if from != nil {
		_, sendErr = io.Copy(struct{ io.Writer }{ch.Writer(proto.In)}, from)
		if errors.Is(sendErr, proto.ErrStopped) {
			sendErr = nil // the reply says why
		}
		if sendErr != nil { // half a stream must not be taken for a whole one
			c.conn.Close()
			return proto.Reply{}, sendErr
		}
		_ = ch.Writer(proto.In).Close()
	}
	if to != nil {
		out := ch.Reader(proto.Out)
		if _, takeErr = io.Copy(to, struct{ io.Reader }{out}); takeErr != nil {
			_ = out.Close()
		}
	}
	<-ch.Ended() // a guest that replies, and keeps the channel open, could have thousands
	reply, err := ch.Reply()
	switch {
	case ctx.Err() != nil:
		return reply, ctx.Err()
	case takeErr != nil && !errors.Is(takeErr, proto.ErrEnded):
		return reply, takeErr
	case err != nil:
		return reply, c.gone(err)
	case reply.Error != "":
		return reply, fmt.Errorf("the guest says: %s", safetext.String(reply.Error, maxText))
	}
	return reply, nil
}

// gone returns bottle.ErrGone if the stream has ended, with the reason.
func (c *Client) gone(err error) error {
	why := c.conn.Err()
	switch {
	case errors.Is(why, proto.ErrProtocol):
		return fmt.Errorf("%w: %w", bottle.ErrGone, why)
	case why != nil, errors.Is(err, proto.ErrEnded):
		return bottle.ErrGone
	}
	return err
}

// Start starts a command. The caller keeps its descriptors; they are duplicated.
func (c *Client) Start(ctx context.Context, cmd *bottle.Command) (bottle.Process, error) {
	s := &proto.Start{Args: raw(cmd.Args), Env: raw(cmd.Env), Dir: []byte(cmd.Dir), Terminal: cmd.Terminal}
	p := &process{client: c, terminal: cmd.Terminal, drained: make(chan struct{})}
	if err := p.take(cmd, s); err != nil {
		p.close()
		return nil, err
	}
	ch, stop, err := c.open(ctx, &proto.Request{Op: proto.OpStart, Start: s})
	if err != nil {
		p.close()
		return nil, err
	}
	p.ch = ch
	<-ch.Replied()
	reply, err := ch.Reply()
	if err == nil && reply.Error != "" {
		<-ch.Ended()
		err = startError(reply)
	}
	if !stop() { // nobody waits for the command
		p.close()
		return nil, ctx.Err()
	}
	if err == nil && !p.join() {
		err = bottle.ErrGone
	}
	if err != nil {
		p.close()
		return nil, c.gone(err)
	}
	return p, nil
}

func startError(r proto.Reply) error {
	text := safetext.String(r.Error, maxText)
	switch r.Code {
	case proto.CodeNotFound:
		return fmt.Errorf("%w: %s", bottle.ErrNotFound, text)
	case proto.CodeNotExecutable:
		return fmt.Errorf("%w: %s", bottle.ErrNotExecutable, text)
	}
	return fmt.Errorf("start the command: %s", text)
}

func raw(ss []string) [][]byte {
	out := make([][]byte, len(ss))
	for i, s := range ss {
		out[i] = []byte(s)
	}
	return out
}

// status turns the guest's account into the contract's.
func status(e proto.Exit) bottle.Status {
	return bottle.Status{Exited: true, Code: e.Code, Signal: syscall.Signal(e.Signal)}
}
