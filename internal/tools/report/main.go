// Command report reads what go test -json wrote. It prints the output of what
// failed, and go's own line for each package.
//
//	report FILE...           fails when a test failed, or something did not build
//	report -ok FILE...       prints go's lines only
//	report -skipped FILE...  lists the skipped tests that passed in none of the
//	                         files, and fails when there are any
//	report -lacking FILE...  prints, for each package, its name and a pattern for go
//	                         test -run: of the tests, or of their parts, that were
//	                         skipped for want of a program or of root, and passed in
//	                         none of the files
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
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
		r.output[key] = appendOutput(r.output[key], e.Output)
	case e.Action == "fail":
		r.failed = append(r.failed, key)
	case e.Action == "skip" && e.Test != "":
		r.skipped[key] = strings.ReplaceAll(strings.TrimSuffix(strings.Join(r.output[key], ""), "\n"), "\n", " ")
	case e.Action == "pass":
		r.passed[key] = true
		delete(r.output, key)
	}
}

// appendOutput appends what a test printed to its lines: go test prints a long line in pieces. Of each
// line it keeps the beginning.
func appendOutput(lines []string, piece string) []string {
	const width = 4 << 10
	n := len(lines)
	switch {
	case n == 0 || strings.HasSuffix(lines[n-1], "\n"):
		return append(lines, piece)
	case len(lines[n-1]) < width:
		lines[n-1] += piece
	case strings.HasSuffix(piece, "\n"):
		lines[n-1] += "...\n"
	}
	return lines
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
		fmt.Fprintf(out, "FAILED %s\n\t%s\n", key, strings.TrimSuffix(strings.Join(said, "\t"), "\n"))
	}
}

// saw reports whether a run passed a test, or the whole test without skipping this part: a
// test of what is installed has no parts for the rest.
func (r *result) saw(key string) bool {
	pkg, test, _ := strings.Cut(key, " ")
	whole, _, _ := strings.Cut(test, "/")
	_, skipped := r.skipped[key]
	return r.passed[key] || !skipped && r.passed[pkg+" "+whole]
}

// unseen returns the tests that some run skipped and none passed, sorted, as "PACKAGE TEST:
// REASON".
func unseen(all []*result) []string {
	var never []string
	for _, r := range all {
		for key, why := range r.skipped {
			if !slices.ContainsFunc(all, func(r *result) bool { return r.saw(key) }) {
				never = append(never, key+": "+why)
			}
		}
	}
	slices.Sort(never)
	return slices.Compact(never)
}

// skipped lists the tests that no run passed. Those that say, in any run, that -short leaves
// them out are left to a run without it, and those of what a stand-in lacks to the real one.
func skipped(all []*result, out io.Writer) int {
	never := slices.DeleteFunc(unseen(all), func(s string) bool {
		key, _, _ := strings.Cut(s, ": ")
		return slices.ContainsFunc(all, func(r *result) bool {
			return strings.Contains(r.skipped[key], "-short") || strings.Contains(r.skipped[key], "SKIPPED: not given by what stands in here: ")
		})
	})
	for _, s := range never {
		fmt.Fprintln(out, "skipped in every run:", s)
	}
	if len(never) > 0 {
		return 1
	}
	fmt.Fprintln(out, "every test ran at least once")
	return 0
}

// lacking prints, for each package, a pattern of the tests that lacked anything and that no
// run passed: of those that lacked it in a part, that part alone. What lacks is said by
// testenv.Missing: "SKIPPED: needs WHAT: HOW".
func lacking(all []*result, out io.Writer) int {
	whole, parts := map[string][]string{}, map[string]map[string][]string{}
	for _, s := range unseen(all) {
		if !strings.Contains(s, "SKIPPED: needs ") {
			continue
		}
		pkg, rest, _ := strings.Cut(s, " ")
		name, _, _ := strings.Cut(rest, ": ")
		test, part, in := strings.Cut(name, "/")
		if parts[pkg] == nil {
			parts[pkg] = map[string][]string{}
		}
		if !in {
			whole[pkg] = append(whole[pkg], test)
			continue
		}
		part, _, _ = strings.Cut(part, "/")
		parts[pkg][test] = append(parts[pkg][test], regexp.QuoteMeta(part))
	}
	for _, pkg := range slices.Sorted(maps.Keys(parts)) {
		var patterns []string
		for _, test := range slices.Sorted(maps.Keys(parts[pkg])) {
			if !slices.Contains(whole[pkg], test) {
				patterns = append(patterns, fmt.Sprintf("^%s$/^(%s)$", test, strings.Join(slices.Compact(parts[pkg][test]), "|")))
			}
		}
		if w := whole[pkg]; len(w) > 0 {
			patterns = append(patterns, "^("+strings.Join(w, "|")+")$")
		}
		fmt.Fprintln(out, pkg, strings.Join(patterns, "|"))
	}
	return 0
}
