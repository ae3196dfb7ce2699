// Command house measures how tidy the source is.
//
//	go run ./internal/tools/house           the numbers, one line each
//	go run ./internal/tools/house -v        and the places that they count
//	go run ./internal/tools/house -check    only the numbers over their limits, with
//	                                        the places; the exit code is 1 if there are any
//
// The limits are in the table below. It reads the source of the module in the
// current directory, as it is built for this system; it builds what the module
// imports, but neither its programs nor its tests.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

// A place is one thing that a number counts, where and what.
type place struct {
	file string // relative to the module's directory
	line int    // 0 for the whole file
	text string
}

func (p place) String() string {
	if p.line == 0 {
		return p.file + ": " + p.text
	}
	return fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text)
}

// A number is one measurement of the source.
type number struct {
	name    string
	limit   int
	measure func(*source) (int, []place)
}

const (
	maxLines      = 90 // of a function
	maxComplexity = 30 // of a function
)

var numbers = []number{
	{"lines of the root package", 900, rootLines},
	{"arrows between rooms that run back up", 15, backArrows},
	{"circles of folders", 0, circles},
	{fmt.Sprintf("functions over %d lines", maxLines), 0, longFunctions},
	{fmt.Sprintf("functions of complexity over %d", maxComplexity), 0, complexFunctions},
	{"exported names that no other package uses", 300, unusedExports},
	{"doc comments that open with \"X is what\"", 20, openings},
	{"doc comments that name another identifier", 0, misnamed},
	{"words in README.md and docs/*.md", 33000, words},
	{"waits for time in tests, not in " + sleepsFile, 0, sleeps},
}

func main() { os.Exit(run(os.Args[1:], ".", os.Stdout, os.Stderr)) }

func run(args []string, dir string, out, msg io.Writer) int {
	fs := flag.NewFlagSet("house", flag.ContinueOnError)
	fs.SetOutput(msg)
	verbose := fs.Bool("v", false, "print the places too")
	check := fs.Bool("check", false, "print only the numbers over their limits; exit with 1 if there are any")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		fmt.Fprintln(msg, "usage: house [-v] [-check]")
		return 2
	}
	src, err := load(dir)
	if err != nil {
		fmt.Fprintln(msg, "house:", err)
		return 2
	}
	code := 0
	for _, n := range numbers {
		count, places := n.measure(src)
		over := count > n.limit
		if *check && !over {
			continue
		}
		fmt.Fprintf(out, "%6d  %s (limit %d)\n", count, n.name, n.limit)
		if *verbose || *check {
			for _, p := range places {
				fmt.Fprintf(out, "        %v\n", p)
			}
		}
		if *check {
			code = 1
		}
	}
	return code
}
