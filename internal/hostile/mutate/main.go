// Command mutate shows that carboy's tests of attacks can fail. For each promise
// of docs/promises.md it turns a defence off in carboy's own source, and runs the
// test that must notice.
//
//	go run ./internal/hostile/mutate             all mutants
//	go run ./internal/hostile/mutate -only TEXT  those whose name or promise begins with TEXT
//	go run ./internal/hostile/mutate -first      the first mutant of each promise
//	go run ./internal/hostile/mutate -list       name them, and run nothing
//	go run ./internal/hostile/mutate -baseline   first run the same tests with no mutant
//
// No file of the tree is changed: go reads the altered text in its place
// (-overlay). All mutants are in one build, each behind a switch, so that each
// package is built once; a copy of the test binary under a mutant's name turns
// that one on. A change that fits nowhere in the source, or in several places, is
// an error, and so is a test that passes, hangs, panics or is skipped.
//
// Nothing of it is linked into carboy. Start reading at mutants, then at overlay.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
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

func run(ctx context.Context, args []string, out, msg io.Writer) int {
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.SetOutput(msg)
	only := fs.String("only", "", "only mutants whose name or promise begins with `TEXT`; several with commas")
	first := fs.Bool("first", false, "of each promise, only the first of them")
	list := fs.Bool("list", false, "name the mutants and run nothing")
	baseline := fs.Bool("baseline", false, "run each test with no mutant first; it must pass")
	verbose := fs.Bool("v", false, "show the tests' output")
	// Tests wait much of their time.
	jobs := fs.Int("jobs", runtime.NumCPU()+1, "mutants at a time")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || *jobs < 1 {
		fmt.Fprintln(msg, "usage: mutate [-only TEXT] [-first] [-list] [-baseline] [-v] [-jobs N]")
		return 2
	}
	chosen := withPrefix(mutants, *only)
	if *first {
		seen := map[string]bool{}
		chosen = slices.DeleteFunc(chosen, func(m mutant) bool {
			again := seen[m.Promise]
			seen[m.Promise] = true
			return again
		})
	}
	if len(chosen) == 0 {
		fmt.Fprintf(msg, "mutate: no mutant's name or promise begins with %q; -list names them\n", *only)
		return 2
	}
	if *list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%-3s %-38s %s\n    must fail: %s\n", m.Promise, m.Name, m.Why, m.Test)
		}
		return 0
	}
	r, err := newRunner()
	if err != nil {
		fmt.Fprintln(msg, "mutate:", err)
		return 2
	}
	defer r.close()
	began := time.Now()
	if err := r.build(ctx, chosen); err != nil {
		fmt.Fprintln(msg, "mutate:", err)
		return 2
	}
	fmt.Fprintf(msg, "%d packages built in %.0fs\n", len(packages(chosen)), time.Since(began).Seconds())
	if *baseline && !r.baseline(ctx, chosen, msg) {
		return 1
	}
	bad := r.all(ctx, chosen, *jobs, *verbose, msg)
	fmt.Fprintf(out, "%d mutants: %d made their test fail, %d did not (%.0fs)\n", len(chosen), len(chosen)-bad, bad, time.Since(began).Seconds())
	if bad > 0 {
		return 1
	}
	return 0
}

func withPrefix(all []mutant, only string) (out []mutant) {
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

// split returns the directory and the name of a mutant's test.
func (m mutant) split() (dir, test string) {
	dir, test, _ = strings.Cut(m.Test, ".")
	return dir, test
}

// packages returns the directories of the tests of ms.
func packages(ms []mutant) (dirs []string) {
	for _, m := range ms {
		if dir, _ := m.split(); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// baseline runs the tests of ms with no mutant and reports whether all pass.
func (r *runner) baseline(ctx context.Context, ms []mutant, msg io.Writer) bool {
	ok := true
	for _, dir := range packages(ms) {
		var tests []string
		for _, m := range ms {
			if d, test := m.split(); d == dir {
				tests = append(tests, test)
			}
		}
		if got, out := r.test(ctx, "baseline", dir, tests...); got != survived {
			fmt.Fprintf(msg, "with no mutant, %s is %s:\n%s\n", dir, got, out)
			ok = false
		}
	}
	return ok
}

// all runs mutants, several at a time, and counts those that were not killed.
func (r *runner) all(ctx context.Context, ms []mutant, jobs int, verbose bool, msg io.Writer) (bad int) {
	todo := make(chan mutant)
	var workers sync.WaitGroup
	var mu sync.Mutex
	for range jobs {
		workers.Go(func() {
			for m := range todo {
				began := time.Now()
				dir, test := m.split()
				got, out := r.test(ctx, m.Name, dir, test)
				mu.Lock()
				fmt.Fprintf(msg, "%-8s %-3s %-38s %5.1fs  %s\n", got, m.Promise, m.Name, time.Since(began).Seconds(), reason(out))
				if got != killed {
					bad++
				}
				if verbose || got != killed {
					fmt.Fprintf(msg, "%s\n", out)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range ms {
		todo <- m
	}
	close(todo)
	workers.Wait()
	return bad
}
