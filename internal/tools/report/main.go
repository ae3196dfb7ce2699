// Command report reads what go test -json wrote. It prints the output of what
// failed, and go's own line for each package.
//
//	report FILE...           fails when a test failed, or something did not build
//	report -ok FILE...       prints go's lines only
//	report -skipped FILE...  lists the skipped tests that passed in none of the
//	                         files, and fails when there are any
//	report -lacking FILE...  prints a pattern for go test -run of the tests that
//	                         skipped all or a part for want of a program or of
//	                         root, and passed it in none of the files; then their
//	                         packages, each on a line
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
}

// A result sums up one file. The keys of its maps are "PACKAGE TEST".
type result struct {
	lines   []string            // go's own, one per package
	output  map[string][]string // of what has not passed
	failed  []string
	skipped map[string]string // with the reason
	passed  map[string]bool
	stray   []string // lines that are no events, and what the compiler says
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, msg io.Writer) int {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	fs.SetOutput(msg)
	ok := fs.Bool("ok", false, "print go's lines only")
	skips := fs.Bool("skipped", false, "list tests that ran in none of the files")
	lacks := fs.Bool("lacking", false, "print a pattern of the tests that lacked a program")
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		fmt.Fprintln(msg, "usage: report [-ok|-skipped|-lacking] FILE...")
		return 2
	}
	var all []*result
	for _, name := range fs.Args() {
		r, err := read(name)
		if err != nil {
			fmt.Fprintln(msg, "report:", err)
			return 2
		}
		all = append(all, r)
	}
	if *skips {
		return skipped(all, out)
	}
	if *lacks {
		return lacking(all, out)
	}
	code := 0
	for _, r := range all {
		if !*ok {
			r.failures(out)
		}
		for _, l := range r.lines {
			fmt.Fprintln(out, l)
		}
		if len(r.failed) > 0 || len(r.stray) > 0 || len(r.lines) == 0 {
			code = 1
		}
	}
	return code
}

func read(name string) (*result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &result{output: map[string][]string{}, skipped: map[string]string{}, passed: map[string]bool{}}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			r.stray = append(r.stray, in.Text())
			continue
		}
		r.add(e)
	}
	return r, in.Err()
}

func (r *result) add(e event) {
	key := e.Package + " " + e.Test
	line := strings.TrimSuffix(e.Output, "\n")
	switch {
	case e.Action == "build-output":
		r.stray = append(r.stray, line)
	case e.Action == "output" && e.Test == "" && isResult(line):
		r.lines = append(r.lines, line)
	case e.Action == "output":
		r.output[key] = append(r.output[key], line)
	case e.Action == "fail":
		r.failed = append(r.failed, key)
	case e.Action == "skip" && e.Test != "":
		r.skipped[key] = strings.Join(r.output[key], " ")
	case e.Action == "pass":
		r.passed[key] = true
		delete(r.output, key)
	}
}

func isResult(line string) bool {
	return strings.HasPrefix(line, "ok  ") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   ")
}

// failures prints what failed, and the last lines of what it said.
func (r *result) failures(out io.Writer) {
	for _, l := range r.stray {
		fmt.Fprintln(out, l)
	}
	const most = 400 // lines of one test
	for _, key := range r.failed {
		said := r.output[key]
		if n := len(said) - most; n > 0 {
			fmt.Fprintf(out, "(%d lines before)\n", n)
			said = said[n:]
		}
		fmt.Fprintf(out, "FAILED %s\n\t%s\n", key, strings.Join(said, "\n\t"))
	}
}

// unseen returns the tests that some run skipped and none passed, sorted, as "PACKAGE TEST:
// REASON".
func unseen(all []*result) []string {
	var never []string
	for _, r := range all {
		for key, why := range r.skipped {
			if !slices.ContainsFunc(all, func(r *result) bool { return r.passed[key] }) {
				never = append(never, key+": "+why)
			}
		}
	}
	slices.Sort(never)
	return slices.Compact(never)
}

// skipped lists the tests that no run passed. Those that say that -short leaves them out are
// left to a run without it.
func skipped(all []*result, out io.Writer) int {
	never := slices.DeleteFunc(unseen(all), func(s string) bool { return strings.Contains(s, "-short") })
	for _, s := range never {
		fmt.Fprintln(out, "skipped in every run:", s)
	}
	if len(never) > 0 {
		return 1
	}
	fmt.Fprintln(out, "every test ran at least once")
	return 0
}

// lacking prints a pattern of the tests that lacked anything, and that no run passed, and
// their packages.
// What lacks is said by testenv.Missing: "SKIPPED: needs WHAT: HOW".
func lacking(all []*result, out io.Writer) int {
	var names, packages []string
	for _, s := range unseen(all) {
		if strings.Contains(s, "SKIPPED: needs ") {
			pkg, test, _ := strings.Cut(s, " ")
			packages = append(packages, pkg)
			names = append(names, test[:strings.IndexAny(test, ":/")])
		}
	}
	slices.Sort(names)
	fmt.Fprintf(out, "^(%s)$\n", strings.Join(slices.Compact(names), "|"))
	for _, p := range slices.Compact(packages) { // unseen sorts them
		fmt.Fprintln(out, p)
	}
	return 0
}
