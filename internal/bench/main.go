// Command bench measures carboy against the bare machine, gVisor's own runsc,
// bubblewrap, runc, docker and Anthropic's srt, as far as they are installed,
// and prints the tables of docs/benchmarks.md.
//
//	go run ./internal/bench                             print
//	go run ./internal/bench -update docs/benchmarks.md  and rewrite the table
//	go run ./internal/bench -json                       ratios and samples
//	go run ./internal/bench -only many -idle 90         what 90 bottles take that wait
//	go run ./internal/bench -gateway                    the same of the gateway, beside other proxies
//	go run ./internal/bench -only git                   the git gate, beside git without it
//	go run ./internal/bench -only gate                  a gate, beside the same build and tests by themselves
//	go run ./internal/bench -soak 1h                    keep one gateway busy; fails when it grows
//
// It is a developer's program: nothing of it is linked into carboy. Start
// reading at bench.measure; loads.go says what is run, peers.go by whom. Of the
// gateway, at gatewayBench.measure.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
)

func main() {
	carboy.Main() // some bottles are made by this program itself
	part()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// part runs a part of a measurement and does not return, if this program started the
// process for that.
func part() {
	if len(os.Args) > 1 {
		switch rest := os.Args[2:]; os.Args[1] {
		case insideArg:
			os.Exit(inside(rest))
		case agentArg:
			os.Exit(runAgent(rest, os.Stdin, os.Stdout))
		case proxyArg:
			os.Exit(runProxy(rest, os.Stdin, os.Stdout))
		case superviseArg:
			os.Exit(runSupervisor(rest))
		}
	}
}

// options holds the flags.
type options struct {
	rounds        int
	json          bool
	update        string
	only, peers   string
	dir           string
	carboy, runsc string
	megabytes     int
	idle          int

	// Of the gateway.
	gateway bool
	busy    time.Duration
	bulk    int
	conns   int
	profile string
	soak    time.Duration
	leak    string
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 5, "rounds; in each, every load is run by every peer")
	fs.BoolVar(&o.json, "json", false, "print JSON instead of the table")
	fs.StringVar(&o.update, "update", "", "rewrite the table between the markers of this `file`")
	fs.StringVar(&o.only, "only", "", "comma-separated `loads`, manifests, many, or git or gate alone; empty: all but these two")
	fs.StringVar(&o.peers, "peers", "", "comma-separated `peers` beside native; empty: all")
	fs.StringVar(&o.dir, "dir", os.TempDir(), "`directory` on the disk to measure; must be open to every user")
	fs.StringVar(&o.carboy, "carboy", "", "a carboy `binary`; empty: build this checkout")
	fs.StringVar(&o.runsc, "runsc", "", "a runsc `binary`; empty: build the module's version")
	fs.IntVar(&o.megabytes, "download", 500, "`MB` to download; a fifth of it is uploaded")
	fs.IntVar(&o.idle, "idle", 8, "`bottles` that wait at once, whose memory is summed up; 0: none, and with -only git no clones at once")
	fs.BoolVar(&o.gateway, "gateway", false, "measure the gateway instead")
	fs.DurationVar(&o.busy, "busy", 3*time.Second, "with -gateway: how `long` requests are made and events are read")
	fs.IntVar(&o.bulk, "bulk", 256, "with -gateway: `MiB` up and down")
	fs.IntVar(&o.conns, "conns", 10_000, "with -gateway: connections that are kept open; 0: none")
	fs.StringVar(&o.profile, "profile", "", "with -gateway: write profiles of carboy under each load to this `directory`")
	fs.DurationVar(&o.soak, "soak", 0, "keep one gateway busy for so `long`, and fail when its process grows")
	fs.StringVar(&o.leak, "leak", "", "with -soak: leak memory, goroutines or descriptors on purpose, to see it fail")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.rounds < 1 || o.megabytes < 5 {
		return nil, errors.New("-rounds must be at least 1, -download at least 5")
	}
	if o.idle < 0 || o.idle > 1000 {
		return nil, errors.New("-idle must be between 0 and 1000")
	}
	if o.busy < time.Second/10 || o.bulk < 1 || o.conns < 0 || o.soak < 0 {
		return nil, errors.New("-busy must be at least 100ms, -bulk at least 1, -conns and -soak not below 0")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	switch {
	case o.soak > 0:
		err = soak(ctx, o, stdout, stderr)
	case o.gateway:
		err = benchmarkGateway(ctx, o, stdout, stderr)
	case o.only == gitMeasure:
		err = benchmarkGit(ctx, o, stdout, stderr)
	case o.only == gateMeasure:
		err = benchmarkGate(ctx, o, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	if o.gateway || o.soak > 0 || o.only == gitMeasure || o.only == gateMeasure {
		return 0
	}
	// Root's bind mounts (runsc's root) must go when this program goes.
	if os.Geteuid() == 0 && os.Getenv(ownMounts) == "" {
		return inOwnMounts(ctx, args, stdout, stderr)
	}
	if err := benchmark(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func benchmark(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.update != "" { // before minutes are spent
		if _, err := readMarked(o.update, tables); err != nil {
			return err
		}
	}
	b, err := newBench(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.measure(ctx); err != nil {
		return err
	}
	r := b.report()
	if err := o.publish(stdout, tables, r); err != nil {
		return err
	}
	if len(r.Failed) > 0 {
		return fmt.Errorf("%d samples failed", len(r.Failed))
	}
	return nil
}

// publish writes the results to the file that -update names, and to w, for people or as
// JSON.
func (o *options) publish(w io.Writer, m marks, r interface{ markdown() string }) error {
	text := r.markdown()
	if o.update != "" {
		if err := rewriteMarked(o.update, m, text); err != nil {
			return err
		}
	}
	if !o.json {
		_, err := io.WriteString(w, text)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// marks holds the lines around the generated text.
type marks struct{ begin, end string }

var (
	tables        = marks{"<!-- bench: written by `go run ./internal/bench -update docs/benchmarks.md` -->", "<!-- /bench -->"}
	gatewayTables = marks{"<!-- gateway: written by `go run ./internal/bench -gateway -update docs/benchmarks.md` -->", "<!-- /gateway -->"}
	gateTables    = marks{"<!-- gate: written by `go run ./internal/bench -only gate -update docs/benchmarks.md` -->", "<!-- /gate -->"}
	gitTables     = marks{"<!-- git: written by `go run ./internal/bench -only git -update docs/benchmarks.md` -->", "<!-- /git -->"}
)

// readMarked returns the text before and after the table.
func readMarked(file string, m marks) ([2]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return [2]string{}, err
	}
	before, rest, ok1 := strings.Cut(string(b), m.begin)
	_, after, ok2 := strings.Cut(rest, m.end)
	if !ok1 || !ok2 {
		return [2]string{}, fmt.Errorf("update %s: the lines %q and %q do not both stand in it", file, m.begin, m.end)
	}
	return [2]string{before, after}, nil
}

func rewriteMarked(file string, m marks, table string) error {
	parts, err := readMarked(file, m)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	text := parts[0] + m.begin + "\n" + table + m.end + parts[1]
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
