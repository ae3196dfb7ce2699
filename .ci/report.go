//go:build ignore

// Command report reads what go test -json wrote. It prints go's own line for
// each package and the output of what failed. With
//
//	-ok FILE          it prints the lines only;
//	-skipped FILE...  it fails when a test was skipped and ran in none of the files;
//	-again PAGE FILE  it prints what is to be tested again: "promise PACKAGE TEST" for
//	                  each test that failed and stands on the page of promises, and
//	                  "package PACKAGE" for each package where a test failed. It fails
//	                  when something else than a test failed;
//	-merge OLD NEW    it prints the events of OLD, with those of NEW in the place of
//	                  the packages that are in both.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
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
	passed  map[string]bool
	stray   []string // lines that are no events: build failures
}

func main() {
	args, mode := os.Args[1:], ""
	if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		mode, args = args[0], args[1:]
	}
	if mode == "-merge" && len(args) == 2 {
		if err := merge(args[0], args[1]); err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
		return
	}
	page := ""
	if mode == "-again" && len(args) == 2 {
		b, err := os.ReadFile(args[0])
		if err != nil {
			fmt.Fprintln(os.Stderr, "report:", err)
			os.Exit(1)
		}
		page, args = string(b), args[1:]
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
		fmt.Fprintln(os.Stderr, "usage: report [-ok|-skipped|-again PAGE] FILE... | report -merge OLD NEW")
		os.Exit(2)
	}
	switch mode {
	case "-skipped":
		os.Exit(skipped(all))
	case "-again":
		os.Exit(again(all[0], page))
	}
	code := 0
	for _, r := range all {
		if mode != "-ok" {
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

// skipped lists tests that were skipped and ran in none of the runs.
func skipped(all []*result) int {
	var never []string
	for _, r := range all {
		for key, why := range r.skipped {
			if !slices.ContainsFunc(all, func(r *result) bool { return r.passed[key] }) {
				never = append(never, key+": "+why)
			}
		}
	}
	slices.Sort(never)
	for _, s := range slices.Compact(never) {
		fmt.Println("skipped in every run:", s)
	}
	if len(never) > 0 {
		return 1
	}
	fmt.Println("every test ran at least once")
	return 0
}

// again lists what is to be tried again: whoever reads it decides how often. Tests are
// given as go test -run takes them.
func again(r *result, page string) int {
	if len(r.stray) > 0 {
		fmt.Fprintln(os.Stderr, "something else than a test failed")
		return 1
	}
	tests := map[string]int{}
	var packages []string
	for _, key := range r.failed {
		pkg, test, _ := strings.Cut(key, " ")
		if test == "" {
			packages = append(packages, pkg)
			continue
		}
		tests[pkg]++
		part := func(other string) bool { return strings.HasPrefix(other, key+"/") }
		// A test that failed by its parts is told by them.
		if !slices.ContainsFunc(r.failed, part) && promised(page, pkg, test) {
			parts := strings.Split(test, "/")
			for i, p := range parts {
				parts[i] = "^" + regexp.QuoteMeta(p) + "$"
			}
			fmt.Println("promise", pkg, strings.Join(parts, "/"))
		}
	}
	for _, pkg := range packages {
		if tests[pkg] == 0 { // it crashed, or took too long
			fmt.Fprintln(os.Stderr, "failed, and no test of it:", pkg)
			return 1
		}
		fmt.Println("package", pkg)
	}
	if len(packages) == 0 {
		return 1
	}
	return 0
}

const module = "github.com/carboy/carboy/"

// promised reports whether the page names a test, one that it is a part of, or a part
// of it.
func promised(page, pkg, test string) bool {
	name := "`" + onPage(pkg) + "."
	for i := range len(test) + 1 {
		if (i == len(test) || test[i] == '/') && strings.Contains(page, name+test[:i]+"`") {
			return true
		}
	}
	return strings.Contains(page, name+test+"/")
}

// onPage is how the page of promises calls a package.
func onPage(pkg string) string {
	if pkg+"/" == module {
		return "carboy"
	}
	return strings.TrimPrefix(pkg, module)
}

// merge prints the lines of old whose package is not in new, then those of new.
func merge(old, new string) error {
	renewed := map[string]bool{}
	var lines [][]byte
	for _, name := range []string{new, old} {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var kept []byte
		for line := range bytes.Lines(b) {
			var e event
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if name == new {
				renewed[e.Package] = true
			} else if renewed[e.Package] {
				continue
			}
			kept = append(kept, line...)
		}
		lines = append(lines, kept)
	}
	for _, b := range slices.Backward(lines) {
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
	}
	return nil
}
