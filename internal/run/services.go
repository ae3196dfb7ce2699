package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// serviceBackend holds every service: what runs as an image's root, with the rights inside
// that its programs expect, only this kernel can.
const serviceBackend = "gvisor"

// slowPull is the time after which people are told that an image is fetched.
const slowPull = time.Second

// maxServiceLog bounds what is kept of a service's output, in bytes.
const maxServiceLog = 4 << 20

// service is a bottle beside the session's, which lives as long as that runs.
type service struct {
	*plan.Service
	s      *Session
	v      *sandbox // nil: it was not made
	in     *plan.Inside
	root   *image.Root
	ending atomic.Bool   // the run is over
	over   chan struct{} // closed when its command has ended; nil: it was not started
	out    *output

	conns, up, down atomic.Int64

	mu  sync.Mutex
	rec receipt.Service
}

// startServices starts the bottles beside the session's, one after the other, each when
// those before it are ready.
func (s *Session) startServices(ctx context.Context) error {
	if s.o.Grant == nil || len(s.o.Grant.Services) == 0 {
		return nil
	}
	c, err := s.c.on(serviceBackend)
	if err != nil {
		return err
	}
	for i := range s.o.Grant.Services {
		d := &s.o.Grant.Services[i]
		if err := s.Redactor.Add(d.Secrets()); err != nil {
			return err
		}
		x := &service{Service: d, s: s, rec: receipt.Service{Name: d.Name, Image: store.Raw(d.Image)}}
		s.services = append(s.services, x)
		began := time.Now()
		err := x.create(ctx, c, i)
		if err == nil {
			err = x.start(ctx)
		}
		if err == nil {
			err = x.await(ctx)
		}
		if err != nil {
			return x.failed(ctx, err)
		}
		x.tell(fmt.Sprintf("is %s after %.1f s", x.health(""), time.Since(began).Seconds()))
	}
	s.Plan.Services = s.reached(nil)
	return nil
}

// reached returns the services that a bottle reaches: those with the names; nil: all.
func (s *Session) reached(names []string) map[string]gateway.Service {
	out := map[string]gateway.Service{}
	for _, x := range s.services {
		if names == nil || slices.Contains(names, x.Name) {
			out[x.Name] = gateway.Service{Ports: x.Ports, Dial: x.dial}
		}
	}
	return out
}

// endServices ends what startServices began, and writes the receipt's part about it.
func (s *Session) endServices() {
	for _, x := range slices.Backward(s.services) {
		x.close()
	}
	for _, x := range s.services {
		x.rec.Connections, x.rec.BytesUp, x.rec.BytesDown = x.conns.Load(), x.up.Load(), x.down.Load()
		s.Rec.Services = append(s.Rec.Services, x.rec)
	}
	s.services = nil
}

// create makes the service's bottle, the n-th of the run.
func (x *service) create(ctx context.Context, c *Runner, n int) error {
	images, err := plan.OpenImages(c.Host)
	if err != nil {
		return err
	}
	slow := time.AfterFunc(slowPull, func() { x.tell("has its image fetched") })
	img, err := images.Pull(ctx, x.Image, plan.PullOptions{Env: c.Env})
	slow.Stop()
	if err != nil {
		return err
	}
	x.rec.Digest = img.Digest
	if x.in = x.Process(&img.Config); len(x.in.Args) == 0 {
		return errors.New("its image says no command: name one with command")
	}
	if x.root, err = images.Use(ctx, img); err != nil {
		return err
	}
	steps, done, err := images.Steps(ctx)
	if err != nil {
		return err
	}
	defer done()
	b := &plan.Build{Root: x.root.Dir}
	if b.Upper, err = images.Owners(ctx, img, b.Root, steps); err != nil {
		return err
	}
	if b.Program, err = plan.Program(); err != nil {
		return err
	}
	p, err := plan.New(c.Host, x.Options(b))
	if err != nil {
		return err
	}
	// A bottle reaches only what its bottle's file lists after it; none, not all.
	p.Beside(x.s.Plan, x.s.reached(append([]string{}, x.After...)))
	if err := c.admit(ctx, p, x.s.conf.Floor()); err != nil {
		return err
	}
	dir := x.s.run.Path("services", x.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if x.v, err = c.newSandbox(ctx, p, fmt.Sprintf("b%ss%d", x.s.run.ID(), n), dir, nil, nil); err != nil {
		return err
	}
	posture := x.v.bottle.Posture()
	x.rec.Class = posture.Isolation
	return x.s.floor(x.s.conf.Floor()).Check(posture.Backend, posture.Isolation)
}

// start starts the service's command.
func (x *service) start(ctx context.Context) error {
	log, err := x.s.run.OpenLog(store.ServiceLog(x.Name))
	if err != nil {
		return err
	}
	out, w, err := newOutput(&logFile{f: log, left: maxServiceLog})
	if err != nil {
		log.Close()
		return err
	}
	x.out = out
	p, err := x.begin(ctx, "service "+x.Name, x.in.Args, w, false)
	w.Close()
	if err != nil {
		return err
	}
	x.over = make(chan struct{})
	go x.watch(p) // ends with the command or the bottle
	return nil
}

// begin starts a program as the user whom the image was made for.
func (x *service) begin(ctx context.Context, what string, args []string, out *os.File, guest bool) (bottle.Process, error) {
	in := *x.in
	in.Args = args
	order, err := json.Marshal(plan.Order{What: what, Run: &in})
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe() // not a file: secrets are in it
	if err != nil {
		return nil, err
	}
	go func() { // ends when all was read, or when nobody can read it any more
		w.Write(append(order, '\n'))
		w.Close()
	}()
	defer r.Close()
	return x.v.bottle.Start(ctx, &bottle.Command{Args: []string{plan.BuildProgram, what}, Dir: "/", Stdin: r, Stdout: out, Stderr: out, Guest: guest})
}

// watch waits for the end of the command, or ends it at a limit.
func (x *service) watch(p bottle.Process) {
	defer close(x.over)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over, meter := endOf(p), watchUsage(ctx, x.v.bottle)
	var exit receipt.Exit
	for exit.Reason == "" {
		select {
		case e := <-over:
			exit = x.exitOf(e)
		case m := <-meter:
			switch {
			case m.err != nil:
				exit = endedBy(receipt.Killed, "its memory can't be read: "+m.err.Error())
			case m.use.Memory > x.v.plan.Limits.Memory:
				exit = endedBy(receipt.Memory, "it used more than its limit of "+receipt.Bytes(x.v.plan.Limits.Memory))
			}
		}
	}
	if x.ending.Load() {
		return
	}
	x.v.bottle.Close() // a service is one program
	x.mu.Lock()
	x.rec.Exit = &exit
	x.mu.Unlock()
	x.event("service-ended", "has ended: "+exitText(exit))
}

// exitOf returns how the command ended.
func (x *service) exitOf(e ended) receipt.Exit {
	switch {
	case e.err != nil:
		return endedBy(receipt.Failed, "its bottle died: "+e.err.Error())
	case e.status.Signal != 0:
		return receipt.Exit{Code: exitcode.Signal(e.status.Signal), Reason: receipt.Signalled, Signal: unix.SignalName(e.status.Signal)}
	}
	return receipt.Exit{Code: e.status.Code & 0xff, Reason: receipt.Exited}
}

func exitText(e receipt.Exit) string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Signal != "":
		return "by " + e.Signal
	}
	return fmt.Sprintf("with exit code %d", e.Code)
}

// health returns the service's state, and sets it first unless to is empty.
func (x *service) health(to string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if to != "" {
		x.rec.Health = to
	}
	return x.rec.Health
}

func (x *service) tell(text string) { x.event("service", text) }

func (x *service) event(kind, text string) {
	x.s.events.send(plan.Event{Kind: kind, Text: "service " + x.Name + " " + safetext.String(text, 160)})
}

// dial connects to a port of the service, for another bottle's gateway.
func (x *service) dial(ctx context.Context, port uint16) (net.Conn, error) {
	c, err := x.v.gw.DialBottle(ctx, port)
	if err != nil {
		return nil, err
	}
	x.conns.Add(1)
	return &serviceConn{c, x}, nil
}

// serviceConn counts the bytes of a connection to a service.
type serviceConn struct {
	net.Conn
	x *service
}

func (c *serviceConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.x.down.Add(int64(n))
	return n, err
}

func (c *serviceConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.x.up.Add(int64(n))
	return n, err
}

// CloseWrite ends this direction.
func (c *serviceConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Conn.Close()
}

// close destroys the service's bottle.
func (x *service) close() {
	x.ending.Store(true)
	if x.v != nil {
		x.v.close()
	}
	if x.over != nil {
		<-x.over
	}
	if x.out != nil {
		x.out.close()
	}
	if x.root != nil {
		x.root.Close()
	}
}

// failed returns err with what the service wrote last.
func (x *service) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = fmt.Errorf("service %s (%s): %w", x.Name, x.From, err)
	if x.out == nil {
		return err
	}
	if last := x.out.last(); len(last) > 0 {
		err = fmt.Errorf("%w; its last lines: %s", err, x.s.Redactor.String(strings.Join(last, " | ")))
	}
	return err
}

// output takes what a program writes: it keeps the end, and writes all to a log.
type output struct {
	r    *os.File
	log  *logFile // nil: none
	done chan struct{}

	mu   sync.Mutex
	tail []byte
}

// The bounds of what is shown of a service's output.
const (
	maxTail      = 4 << 10
	maxTailLines = 10
)

// newOutput returns an output and the end of its pipe for the program.
func newOutput(log *logFile) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	o := &output{r: r, log: log, done: make(chan struct{})}
	go func() { // ends with the program's end, or close
		defer close(o.done)
		io.Copy(o, r)
	}()
	return o, w, nil
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	if o.log != nil {
		o.log.Write(b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tail = append(o.tail, b...)
	if n := len(o.tail) - maxTail; n > 0 {
		o.tail = append(o.tail[:0], o.tail[n:]...)
	}
	return len(b), nil
}

// last returns the last lines, which are safe to show.
func (o *output) last() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for l := range strings.FieldsFuncSeq(string(o.tail), func(r rune) bool { return r == '\n' || r == '\r' }) {
		out = append(out, safetext.String(l, 200))
	}
	return out[max(0, len(out)-maxTailLines):]
}

// lastWords bounds the wait for output that is written already.
const lastWords = 200 * time.Millisecond

// close stops reading.
func (o *output) close() {
	o.r.SetReadDeadline(time.Now().Add(lastWords))
	<-o.done
	o.r.Close()
	if o.log != nil {
		o.log.f.Close()
	}
}
