// Command bench measures carboy against the bare machine, gVisor's own runsc,
// bubblewrap, runc, docker and Anthropic's srt, as far as they are installed,
// and prints the tables of docs/benchmarks.md.
//
//	go run ./internal/bench                             print
//	go run ./internal/bench -update docs/benchmarks.md  and rewrite the table
//	go run ./internal/bench -json                       ratios and samples
//
// It is a developer's program: nothing of it is linked into carboy. Start
// reading at bench.measure; loads.go says what is run, peers.go by whom.
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

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle/gvisor"
)

func main() {
	gvisor.Main() // bottles with and without a trace are made by this program itself
	if len(os.Args) > 1 && os.Args[1] == insideArg {
		os.Exit(inside(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	rounds        int
	json          bool
	update        string
	only, peers   string
	dir           string
	carboy, runsc string
	megabytes     int
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.IntVar(&o.rounds, "rounds", 5, "rounds; in each, every load is run by every peer")
	fs.BoolVar(&o.json, "json", false, "print JSON instead of the table")
	fs.StringVar(&o.update, "update", "", "rewrite the table between the markers of this `file`")
	fs.StringVar(&o.only, "only", "", "comma-separated `loads`; empty: all")
	fs.StringVar(&o.peers, "peers", "", "comma-separated `peers` beside native; empty: all")
	fs.StringVar(&o.dir, "dir", os.TempDir(), "`directory` on the disk to measure; must be open to every user")
	fs.StringVar(&o.carboy, "carboy", "", "a carboy `binary`; empty: build this checkout")
	fs.StringVar(&o.runsc, "runsc", "", "a runsc `binary`; empty: build the module's version")
	fs.IntVar(&o.megabytes, "download", 500, "`MB` to download; a fifth of it is uploaded")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.rounds < 1 || o.megabytes < 5 {
		return nil, errors.New("-rounds must be at least 1, -download at least 5")
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
		if _, err := readMarked(o.update); err != nil {
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
	if o.update != "" {
		if err := rewriteMarked(o.update, r.markdown()); err != nil {
			return err
		}
	}
	if err := r.print(stdout, o.json); err != nil {
		return err
	}
	if len(r.Failed) > 0 {
		return fmt.Errorf("%d samples failed", len(r.Failed))
	}
	return nil
}

func (r *Report) print(w io.Writer, asJSON bool) error {
	if !asJSON {
		_, err := io.WriteString(w, r.markdown())
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

const (
	beginMark = "<!-- bench: written by `go run ./internal/bench -update docs/benchmarks.md` -->"
	endMark   = "<!-- /bench -->"
)

// readMarked gives what stands before and after the table.
func readMarked(file string) ([2]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return [2]string{}, err
	}
	before, rest, ok1 := strings.Cut(string(b), beginMark)
	_, after, ok2 := strings.Cut(rest, endMark)
	if !ok1 || !ok2 {
		return [2]string{}, fmt.Errorf("update %s: the lines %q and %q do not both stand in it", file, beginMark, endMark)
	}
	return [2]string{before, after}, nil
}

func rewriteMarked(file, table string) error {
	parts, err := readMarked(file)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	text := parts[0] + beginMark + "\n" + table + endMark + parts[1]
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, file)
}
