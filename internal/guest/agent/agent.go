// Package agent is the program that runs inside a container or virtual machine: it
// starts commands, gives them terminals, passes signals on, and unpacks and packs files,
// as the host asks for over one byte stream (package proto).
//
// It is PID 1 there. It has what rights the place gives it: in a virtual machine root's,
// in a container those of the bottle's user, without capabilities. Commands can do
// nothing to it: where it has their uid, it is not dumpable. When the stream ends, it
// ends everything. Start reading at [Main].
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
)

// Socket is the abstract Unix socket on which a container's program waits for the host.
const Socket = "@carboy-guest"

// Main runs the program with the arguments of the process, and exits.
//
//	/init            in a virtual machine, as PID 1
//	agent container  as PID 1 of a container
//	agent fd N       as an ordinary process, on descriptor N
//	agent stdio      likewise, reading descriptor 0 and writing descriptor 1
//	agent dial ...   says which addresses accept connections, and ends
//	agent hold       sleeps until it is killed
func Main(args []string) {
	if args[0] == stageName {
		stage()
	}
	err := run(args)
	if args[0] == initName {
		powerOff(err)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "carboy guest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(args []string) error {
	// Commands inherit nothing of what this program was started with. (Linux 5.11; the
	// places that matter start it with nothing.)
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	a := &agent{procs: map[int]*proc{}}
	var stream io.ReadWriteCloser
	var err error
	switch {
	case args[0] == initName:
		if os.Getpid() != 1 {
			return errors.New("is not the first process")
		}
		stream, a.notes, err = boot()
	case len(args) == 2 && args[1] == "container":
		stream, err = await(Socket)
	case len(args) == 3 && args[1] == "fd":
		var n int
		if n, err = strconv.Atoi(args[2]); err == nil {
			stream, err = inherited(n)
		}
	case len(args) == 2 && args[1] == "stdio":
		stream, err = standard()
	case len(args) > 2 && args[1] == "dial":
		return dial(args[2:], os.Stdout)
	case len(args) == 2 && args[1] == "hold":
		for {
			_ = unix.Pause()
		}
	default:
		return errors.New("usage: agent container | agent fd N | agent stdio | agent dial ADDRESS:PORT, one or more")
	}
	if err != nil {
		return err
	}
	return a.serve(stream)
}

// inherited returns a descriptor of the process that started this one.
func inherited(fd int) (io.ReadWriteCloser, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return os.NewFile(uintptr(fd), "stream"), nil
}

// duplex reads one descriptor and writes another.
type duplex struct{ in, out *os.File }

func (d *duplex) Read(p []byte) (int, error)  { return d.in.Read(p) }
func (d *duplex) Write(p []byte) (int, error) { return d.out.Write(p) }
func (d *duplex) Close() error                { return errors.Join(d.in.Close(), d.out.Close()) }

// standard returns the stream on descriptors 0 and 1, moved away from there: commands
// must not inherit it.
func standard() (io.ReadWriteCloser, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	var moved [2]*os.File
	for fd := range moved {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err == nil {
			err = unix.SetNonblock(n, true)
		}
		if err == nil {
			err = unix.Dup3(null, fd, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", fd, err)
		}
		moved[fd] = os.NewFile(uintptr(n), "stream")
	}
	return &duplex{moved[0], moved[1]}, nil
}

// await takes one connection on an abstract socket of this network namespace.
func await(name string) (io.ReadWriteCloser, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return nil, err
	}
	for {
		conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("wait for the host: %w", err)
		}
		return os.NewFile(uintptr(conn), "stream"), nil
	}
}

type agent struct {
	notes []string

	// mu is held while a process is started and entered, so that its end is
	// never seen before.
	mu    sync.Mutex
	procs map[int]*proc

	setupMu sync.Mutex
	setup   *proto.Setup
	begun   bool   // a command was started
	cgroup  string // the commands' cgroup; empty: none
}

// serve answers the host until the stream ends, then ends every process.
func (a *agent) serve(stream io.ReadWriteCloser) error {
	// A command with this uid must not attach to this process or read its memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		ignoreSignals()
	}
	keepThreads()
	go a.reap()
	conn := proto.NewConn(stream, false)
	if err := conn.Answer(a.hello()); err != nil {
		return err
	}
	err := conn.Serve(a.accept)
	a.endAll()
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}

// threads counts the threads that this program has ready. It must not need a new one when
// commands have used up the limit on processes: Go's runtime would end the program.
const threads = 12

// keepThreads makes Go's runtime start threads, which it keeps for later.
func keepThreads() {
	var all, held sync.WaitGroup
	all.Add(threads)
	held.Add(threads)
	for range threads {
		go func() {
			runtime.LockOSThread()
			all.Done()
			all.Wait()
			runtime.UnlockOSThread()
			held.Done()
		}()
	}
	held.Wait()
}

func (a *agent) hello() proto.Hello {
	h := proto.Hello{PID: os.Getpid(), UID: os.Geteuid(), Arch: runtime.GOARCH, Notes: a.notes}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	ents, _ := os.ReadDir("/sys/class/net")
	for _, e := range ents {
		if e.Name() == "lo" {
			continue
		}
		mac, _ := os.ReadFile("/sys/class/net/" + e.Name() + "/address")
		h.NICs = append(h.NICs, proto.NIC{Name: e.Name(), MAC: strings.TrimSpace(string(mac))})
	}
	return h
}

// accept is called on the reader's goroutine.
func (a *agent) accept(ch *proto.Channel, text []byte) {
	go a.answer(ch, text)
}

func (a *agent) answer(ch *proto.Channel, text []byte) {
	var r proto.Request
	if err := json.Unmarshal(text, &r); err != nil {
		_ = ch.SendReply(failure(fmt.Errorf("request: %w", err)))
		_ = ch.End()
		return
	}
	if r.Op == proto.OpStart && r.Start != nil {
		a.start(ch, r.Start)
		return
	}
	var reply proto.Reply
	if err := a.perform(ch, &r, &reply); err != nil {
		reply = failure(err)
	}
	_ = ch.SendReply(reply)
	_ = ch.End()
}

func (a *agent) perform(ch *proto.Channel, r *proto.Request, reply *proto.Reply) (err error) {
	switch {
	case r.Op == proto.OpSetup && r.Setup != nil:
		return a.prepare(r.Setup)
	case r.Op == proto.OpImport:
		return importTar(r.Dir, ch.Reader(proto.In))
	case r.Op == proto.OpExport:
		err := exportTar(r.Layers, ch.Writer(proto.Out))
		return errors.Join(err, ch.Writer(proto.Out).Close())
	case r.Op == proto.OpFreeze:
		return a.freeze()
	case r.Op == proto.OpThaw:
		return a.thaw()
	case r.Op == proto.OpStats:
		reply.Stats, err = a.stats()
		return err
	}
	return fmt.Errorf("request %q is not known", r.Op)
}

// failure turns an error into a reply.
func failure(err error) proto.Reply {
	r := proto.Reply{Error: err.Error(), Code: proto.CodeOther}
	var c *codeError
	if errors.As(err, &c) {
		r.Code = c.code
	}
	return r
}

// codeError is an error on which the host acts.
type codeError struct {
	code proto.Code
	err  error
}

func (e *codeError) Error() string { return e.err.Error() }
func (e *codeError) Unwrap() error { return e.err }
