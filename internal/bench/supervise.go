package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/wire"
)

// superviseArg makes this program the supervisor of one bottle, in a process of its
// own that can be looked at from outside. It is `carboy run` without its command
// line: Client.Run, with the certificates of the server beside the machine's.
const superviseArg = "-supervise"

// supervised is its task.
type supervised struct {
	Routes    string   `json:"routes"`
	Workspace string   `json:"workspace"`
	CA        string   `json:"ca"`
	Control   string   `json:"control"` // a socket, see control
	Argv      []string `json:"argv"`
	// Conns, when not 0, is how many connections the gateway lets be open at once.
	// No flag and no option of a run says that, so the bottle and its gateway are
	// put together here, as Client.Run does, but for its records.
	Conns int `json:"conns,omitempty"`
	// Leak names the resource that is leaked on purpose, so that a soak can be seen to fail.
	Leak string `json:"leak,omitempty"`
}

func runSupervisor(args []string) int {
	var s supervised
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &s) != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := s.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "supervise:", err)
		return 1
	}
	return 0
}

func (s *supervised) run(ctx context.Context) error {
	if err := s.control(); err != nil {
		return err
	}
	if err := leak(s.Leak); err != nil {
		return err
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	if s.Conns > 0 {
		return s.assembled(ctx, roots)
	}
	c, err := carboy.Open(ctx, carboy.Options{Roots: roots})
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Run(ctx, carboy.RunOptions{
		Command: s.Argv, Workspace: s.Workspace, Routes: s.Routes, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err == nil && r.Exit.Code != exitcode.OK {
		err = fmt.Errorf("the agent ended with %d", r.Exit.Code)
	}
	return err
}

// control answers what can't be seen from outside: the number of goroutines, and
// profiles. It ends with the process.
func (s *supervised) control() error {
	ln, err := net.Listen("unix", s.Control)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /goroutines", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, runtime.NumGoroutine()) })
	mux.HandleFunc("GET /profile", pprof.Profile)
	mux.HandleFunc("GET /pprof/", func(w http.ResponseWriter, r *http.Request) {
		pprof.Handler(r.URL.Path[len("/pprof/"):]).ServeHTTP(w, r)
	})
	go http.Serve(ln, mux)
	return nil
}

// leakPeriod is such that a leak is small beside the work, but not beside the
// bounds of a soak.
const leakPeriod = 20 * time.Millisecond

// leaked keeps what was leaked.
var leaked []any

func leak(what string) error {
	var one func()
	switch what {
	case "":
		return nil
	case "memory":
		one = func() {
			b := make([]byte, 64<<10)
			for i := range b {
				b[i] = 1
			}
			leaked = append(leaked, b)
		}
	case "goroutines":
		one = func() { go func() { select {} }() }
	case "descriptors":
		one = func() {
			if f, err := os.Open(os.DevNull); err == nil {
				leaked = append(leaked, f)
			}
		}
	default:
		return fmt.Errorf("-leak %s: want memory, goroutines or descriptors", what)
	}
	go func() { // to the end of the process
		for range time.Tick(leakPeriod) {
			one()
		}
	}()
	return nil
}

// assembled runs a bottle of the library with a gateway that lets more be open.
func (s *supervised) assembled(ctx context.Context, roots *x509.CertPool) (err error) {
	doc, err := os.ReadFile(s.Routes)
	if err != nil {
		return err
	}
	file, err := routes.Parse(s.Routes, doc)
	if err != nil {
		return err
	}
	table, err := policy.Compile(file.Routes...)
	if err != nil {
		return err
	}
	cable := wire.DefaultConfig()
	spec, err := plainSpec(s.Workspace, rootfs.Options{DNS: cable.DNS, Self4: cable.Bottle4.Addr(), Trusting: true})
	if err != nil {
		return err
	}
	authority, err := ca.New("bench", nil)
	if err != nil {
		return err
	}
	if spec.Root, err = rootfs.Trust(spec.Root, authority.PEM()); err != nil {
		return err
	}
	spec.Limits.OpenFiles = int64(s.Conns) + 1000
	pair, err := wire.New()
	if err != nil {
		return err
	}
	channels, inside, err := wire.NewChannels()
	if err != nil {
		return errors.Join(err, pair.Host.Close(), pair.Bottle.Close())
	}
	spec.Net, spec.Wire, spec.Channels = cable, pair.Bottle, inside
	gw, err := gateway.New(gateway.Config{Host: pair.Host, Channels: channels, Wire: spec.Net, Table: table, Authority: authority, Roots: roots, Limits: gateway.Limits{Conns: s.Conns}})
	if err != nil {
		return errors.Join(err, pair.Bottle.Close(), inside.Close())
	}
	bt, err := backends.Default().Create(ctx, spec)
	if err != nil {
		return errors.Join(err, gw.Close())
	}
	defer func() { err = errors.Join(err, bt.Close(), gw.Close()) }() // in this order, see Gateway.Close
	var env []string
	for _, k := range slices.Sorted(maps.Keys(rootfs.TrustEnv())) {
		env = append(env, k+"="+rootfs.TrustEnv()[k])
	}
	p, err := bt.Start(ctx, &bottle.Command{Args: s.Argv, Env: append(loadEnv(), env...), Dir: s.Workspace, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return err
	}
	st, err := p.Wait(ctx)
	if err == nil && st.ExitCode() != 0 {
		err = fmt.Errorf("the agent ended with %d", st.ExitCode())
	}
	return err
}
