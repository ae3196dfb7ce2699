// Command mutate shows that the hostile tests can fail. A test of an attack
// that is always green proves nothing; so for each family of attacks this
// program turns the defence off in carboy's own source, builds the tests
// against that, and sees them go red.
//
//	go run ./internal/hostile/mutate             all mutants
//	go run ./internal/hostile/mutate -only TEXT  those whose name or promise begins with TEXT
//	go run ./internal/hostile/mutate -root       those whose tests need root
//	go run ./internal/hostile/mutate -list       what there is, and why
//	go run ./internal/hostile/mutate -baseline   first see the same tests green, unchanged
//	go run ./internal/hostile/mutate -json       results as a document
//	go run ./internal/hostile/mutate -within 9m  as many as begin in that time, in an
//	                                             order that -seed repeats
//
// No file of the tree is changed: go reads the altered text in its place
// (-overlay). A mutant that doesn't build, whose tests pass, hang, panic, are
// skipped, or fail for another reason than the attack getting through, is an
// error, each said by its own name.
//
// It is a developer's program: nothing of it is linked into carboy. Start
// reading at the tables (table_*.go) and at runner.mutant.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	wardenMain()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

type options struct {
	only           string
	list, baseline bool
	root           bool
	json, verbose  bool
	jobs           int
	within         time.Duration
	seed           uint64
}

func run(ctx context.Context, args []string, out, msg io.Writer) int {
	var o options
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.SetOutput(msg)
	fs.StringVar(&o.only, "only", "", "only mutants whose name or promise begins with `TEXT`; several with commas")
	fs.BoolVar(&o.list, "list", false, "name the mutants and run nothing")
	fs.BoolVar(&o.baseline, "baseline", false, "run each test without a mutation first; it must pass")
	fs.BoolVar(&o.root, "root", false, "only those whose tests need root, which an ordinary user's run leaves out")
	fs.BoolVar(&o.json, "json", false, "print the results as JSON")
	fs.BoolVar(&o.verbose, "v", false, "show what the tests said")
	// Tests wait for bottles much of their time.
	fs.IntVar(&o.jobs, "jobs", runtime.NumCPU()+1, "mutants at a time")
	fs.DurationVar(&o.within, "within", 0, "begin no more after that `TIME`; which ones are reached then differs from run to run")
	fs.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "the order of -within, a `NUMBER`")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || o.jobs < 1 {
		fmt.Fprintln(msg, "usage: mutate [-only TEXT] [-root] [-list] [-baseline] [-json] [-v] [-jobs N] [-within TIME [-seed N]]")
		return 2
	}
	picked := pick(mutants(), o.only)
	if o.root {
		picked = slices.DeleteFunc(picked, func(m mutant) bool { return !m.root })
	}
	if len(picked) == 0 {
		fmt.Fprintf(msg, "mutate: no mutant's name or promise begins with %q; -list names them\n", o.only)
		return 2
	}
	if o.list {
		for _, m := range picked {
			fmt.Fprintf(out, "%-4s %-34s %s\n     must fail: %s: %s\n", m.Promise, m.Name, m.Why, m.Package, strings.Join(m.Tests, ", "))
		}
		return 0
	}
	if os.Geteuid() != 0 {
		picked = slices.DeleteFunc(picked, func(m mutant) bool {
			if m.root {
				fmt.Fprintf(msg, "LEFT OUT   %-4s %-34s its tests need root: run mutate -root as root\n", m.Promise, m.Name)
			}
			return m.root
		})
	}
	if o.within > 0 {
		fmt.Fprintf(msg, "in the order of -seed %d, those that begin within %v\n", o.seed, o.within)
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(picked), func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
	}
	results, err := runAll(ctx, o, picked, msg)
	if err != nil {
		fmt.Fprintln(msg, "mutate:", err)
		return 2
	}
	return report(o, results, out)
}

func pick(all []mutant, only string) (out []mutant) {
	for _, m := range all {
		for _, text := range strings.Split(only, ",") {
			if strings.HasPrefix(m.Name, text) || strings.HasPrefix(m.Promise, text) {
				out = append(out, m)
				break
			}
		}
	}
	return out
}

// runAll runs mutants side by side; results are in their order.
func runAll(ctx context.Context, o options, ms []mutant, msg io.Writer) ([]result, error) {
	r, err := newRunner()
	if err != nil {
		return nil, err
	}
	defer r.close()
	if o.baseline {
		for _, m := range unmutated(ms) {
			if res := r.mutant(ctx, m); res.Outcome != passed {
				return nil, fmt.Errorf("without a mutation, %s %s: %s\n%s", m.Package, strings.Join(m.Tests, ", "), res.Outcome, res.Output)
			}
		}
	}
	results := make([]result, len(ms))
	todo := make(chan int)
	var workers sync.WaitGroup
	var mu sync.Mutex
	for range o.jobs {
		workers.Go(func() {
			for i := range todo {
				began := time.Now()
				res := r.mutant(ctx, ms[i])
				res.Seconds = time.Since(began).Seconds()
				results[i] = res
				mu.Lock()
				fmt.Fprintf(msg, "%-10s %-4s %-34s %5.1fs\n", res.Outcome, res.Promise, res.Name, res.Seconds)
				if o.verbose || res.Outcome != killed {
					fmt.Fprintf(msg, "%s\n", res.Output)
				}
				mu.Unlock()
			}
		})
	}
	began, reached := time.Now(), len(ms)
	for i := range ms {
		if ctx.Err() != nil || o.within > 0 && time.Since(began) > o.within {
			reached = i
			break
		}
		todo <- i
	}
	close(todo)
	workers.Wait()
	for _, m := range ms[reached:] {
		fmt.Fprintf(msg, "NOT BEGUN  %-4s %s\n", m.Promise, m.Name)
	}
	return results[:reached], ctx.Err()
}

// unmutated are the tests of ms, each package and test once.
func unmutated(ms []mutant) (out []mutant) {
	for _, m := range ms {
		same := func(x mutant) bool { return x.Package == m.Package && slices.Equal(x.Tests, m.Tests) }
		if !slices.ContainsFunc(out, same) {
			out = append(out, mutant{Name: "baseline", Package: m.Package, Tests: m.Tests})
		}
	}
	return out
}

func report(o options, results []result, out io.Writer) int {
	bad, promises := 0, map[string]int{}
	for _, r := range results {
		if r.Outcome != killed {
			bad++
		}
		promises[r.Promise]++
	}
	if o.json {
		b, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			fmt.Fprintln(out, err)
			return 2
		}
		fmt.Fprintf(out, "%s\n", b)
	} else {
		fmt.Fprintf(out, "%d mutants of %d promises: %d made their tests fail, %d did not\n", len(results), len(promises), len(results)-bad, bad)
	}
	if bad > 0 {
		return 1
	}
	return 0
}
