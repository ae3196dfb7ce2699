//go:build ignore

// Command report reads what go test -json wrote. It prints go's own line for
// each package and the output of what failed; with -ok the lines only; with
// -skipped it fails when a test was skipped in every file.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output, ImportPath string
}

type result struct {
	lines   []string            // go's own, one per package
	output  map[string][]string // by package and test
	failed  []string
	skipped map[string]string // test to reason
	stray   []string          // lines that are no events: build failures
}

func main() {
	args, onlyOK, onlySkipped := os.Args[1:], false, false
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		onlyOK, onlySkipped = args[0] == "-ok", args[0] == "-skipped"
		args = args[1:]
	}
	var all []*result
	for _, name := range args {
		r, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		fmt.Fprintln(os.Stderr, "usage: report [-ok|-skipped] FILE...")
		os.Exit(2)
	}
	if onlySkipped {
		os.Exit(skipped(all))
	}
	code := 0
	for _, r := range all {
		if !onlyOK {
			r.failures()
		}
		for _, l := range r.lines {
			fmt.Println(l)
		}
		if len(r.failed) > 0 || len(r.stray) > 0 || len(r.lines) == 0 {
			code = 1
		}
	}
	os.Exit(code)
}

func read(name string) (*result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &result{output: map[string][]string{}, skipped: map[string]string{}}
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
		delete(r.output, key)
	}
}

func isResult(line string) bool {
	return strings.HasPrefix(line, "ok  ") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "?   ")
}

func (r *result) failures() {
	for _, l := range r.stray {
		fmt.Println(l)
	}
	const most = 400 // lines of one test
	for _, key := range r.failed {
		out := r.output[key]
		if n := len(out) - most; n > 0 {
			fmt.Printf("(%d lines before)\n", n)
			out = out[n:]
		}
		fmt.Printf("FAILED %s\n\t%s\n", key, strings.Join(out, "\n\t"))
	}
}

// skipped lists tests that ran in none of the runs.
func skipped(all []*result) int {
	var never []string
	for key, why := range all[0].skipped {
		if !slices.ContainsFunc(all[1:], func(r *result) bool { _, ok := r.skipped[key]; return !ok }) {
			never = append(never, key+": "+why)
		}
	}
	slices.Sort(never)
	for _, s := range never {
		fmt.Println("skipped in every run:", s)
	}
	if len(never) > 0 {
		return 1
	}
	fmt.Println("every test ran at least once")
	return 0
}
