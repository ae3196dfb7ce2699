package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/trace"
)

// Traced holds the cost of a trace for a load, measured with pairs of bottles of the
// library that differ only in Spec.Trace. A run of the command is always traced.
type Traced struct {
	Load string `json:"load"`
	What string `json:"what"`
	// Bottle is the processor time of the bottle, traced ÷ untraced; All includes the
	// reader's; Time is the duration of the load, by this program's clock.
	Bottle *Spread `json:"bottle_cpu"`
	All    *Spread `json:"cpu_with_reader"`
	Time   *Spread `json:"time"`
	// Facts counts those of the last round, and Dropped the lost ones of all rounds.
	Facts   uint64 `json:"facts"`
	Dropped uint64 `json:"dropped"`

	with, without [3][]time.Duration // Bottle, All, Time
}

// cost holds the times of one bottle of a pair.
type cost struct {
	took           [3]time.Duration
	facts, dropped uint64
	bytes          int64 // of facts
}

// traced runs one round of pairs. The order within a pair changes.
func (b *bench) traced(ctx context.Context, round int) error {
	i := slices.IndexFunc(b.peers, func(p *peer) bool { return p.name == "carboy" })
	if i < 0 {
		return nil
	}
	for _, l := range b.loads {
		if l.traced == 0 {
			continue
		}
		fmt.Fprintf(b.log, "round %d of %d: %s, with and without a trace\n", round+1, b.o.rounds, l.name)
		var with, without cost
		var err error
		for turn := range 2 {
			into := &with
			if (turn+round)%2 == 1 {
				into = &without
			}
			c, e := b.pairHalf(ctx, l.argv(b.place(b.peers[i])), l.traced, into == &with)
			*into, err = c, errors.Join(err, e)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.fail(l, &peer{name: "a pair of bottles, one traced"}, err)
			continue
		}
		b.addPair(l, with, without)
	}
	return nil
}

func (b *bench) addPair(l load, with, without cost) {
	i := slices.IndexFunc(b.traces, func(t Traced) bool { return t.Load == l.name })
	if i < 0 {
		i = len(b.traces)
		b.traces = append(b.traces, Traced{Load: l.name, What: l.what})
	}
	t := &b.traces[i]
	for k := range t.with {
		t.with[k], t.without[k] = append(t.with[k], with.took[k]), append(t.without[k], without.took[k])
	}
	t.Bottle, t.All, t.Time = spread(t.with[0], t.without[0]), spread(t.with[1], t.without[1]), spread(t.with[2], t.without[2])
	t.Facts, t.Dropped = with.facts, t.Dropped+with.dropped
}

// pairHalf runs a load a number of times in a bottle of its own. It makes the bottle as
// carboy run does, except for the wire and the records.
func (b *bench) pairHalf(ctx context.Context, argv []string, times int, traced bool) (_ cost, err error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	s, err := plainSpec(b.path("ws"), rootfs.Options{})
	if err != nil {
		return cost{}, err
	}
	var r *factReader
	if traced {
		if s.Trace, r, err = listenFacts(); err != nil {
			return cost{}, err
		}
		defer r.close()
	}
	bt, err := backends.Default().Create(ctx, s)
	if err != nil {
		return cost{}, err
	}
	closed := false
	shut := func() error {
		if closed {
			return nil
		}
		closed = true
		return bt.Close()
	}
	defer func() { err = errors.Join(err, shut()) }()
	if traced && !bt.Posture().Trace {
		return cost{}, errors.New("the bottle gives no facts")
	}
	bottleBefore, err := childrenCPU()
	if err != nil {
		return cost{}, err
	}
	selfBefore, start := selfCPU(), time.Now()
	for range times {
		if err := callInside(ctx, bt, b.path("ws"), argv); err != nil {
			return cost{}, err
		}
	}
	var c cost
	c.took[2] = time.Since(start)
	if err := bt.Pause(ctx); err != nil { // now all facts are sent
		return cost{}, err
	}
	bottleAfter, err := childrenCPU()
	if err != nil {
		return cost{}, err
	}
	c.took[0] = bottleAfter - bottleBefore
	if err := shut(); err != nil {
		return cost{}, err
	}
	if traced {
		if c.facts, c.dropped, err = r.all(); err != nil {
			return cost{}, err
		}
		c.bytes = r.bytes
	}
	c.took[1] = c.took[0] + selfCPU() - selfBefore
	return c, nil
}

// plainSpec returns a bottle with only a workspace, and the root that o describes.
func plainSpec(ws string, o rootfs.Options) (*bottle.Spec, error) {
	user := bottle.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Name: "carboy", Home: "/home/carboy"}
	if user.UID == 0 {
		user.UID, user.GID = nobodyUID, nobodyGID
	}
	o.User, o.Hostname = user, "carboy"
	root, err := rootfs.Host(o)
	if err != nil {
		return nil, err
	}
	return &bottle.Spec{
		ID: "bench", Root: root, User: user, HostUID: user.UID, HostGID: user.GID, Hostname: "carboy",
		Workspace: &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay},
		Limits: bottle.Limits{
			Timeout: time.Hour, Memory: 4 << 30, Pids: 512, Disk: 1 << 30, CPUs: 1024, Output: 1 << 20, FileSize: 1 << 30, OpenFiles: 4096,
		},
	}, nil
}

func callInside(ctx context.Context, bt bottle.Bottle, dir string, argv []string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := bt.Start(ctx, &bottle.Command{Args: argv, Env: loadEnv(), Dir: dir, Stdin: null, Stdout: null, Stderr: null})
	if err != nil {
		return err
	}
	st, err := p.Wait(ctx)
	if err == nil && st.ExitCode() != 0 {
		err = fmt.Errorf("exit code %d", st.ExitCode())
	}
	return err
}

// factReader counts the facts of a bottle's sentry until the bottle is gone.
type factReader struct {
	in      *os.File
	done    chan struct{}
	facts   uint64
	dropped uint64
	bytes   int64 // of all batches
	err     error
}

// listenFacts makes the socket and begins to read; the first result is the
// bottle's end.
func listenFacts() (*os.File, *factReader, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	r := &factReader{in: os.NewFile(uintptr(fds[0]), "facts"), done: make(chan struct{})}
	go r.read() // ends with the bottle, or when close has shut the socket down
	return os.NewFile(uintptr(fds[1]), "facts"), r, nil
}

func (r *factReader) read() {
	defer close(r.done)
	buf := make([]byte, trace.MaxBatch)
	for {
		n, err := unix.Read(int(r.in.Fd()), buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			r.err = err
			return
		}
		dropped, err := trace.ParseBatch(buf[:n], func(*trace.Fact) { r.facts++ })
		if err != nil {
			r.err = err
			return
		}
		r.dropped = dropped // so far
		r.bytes += int64(n)
	}
}

// all waits for the end of a closed bottle's facts.
func (r *factReader) all() (facts, dropped uint64, err error) {
	<-r.done
	return r.facts, r.dropped, r.err
}

func (r *factReader) close() {
	unix.Shutdown(int(r.in.Fd()), unix.SHUT_RDWR)
	<-r.done
	r.in.Close()
}

func selfCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
