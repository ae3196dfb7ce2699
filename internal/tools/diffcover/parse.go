package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A block is a line of a profile: statements that run together.
type block struct {
	file       string // relative to the module's directory
	from, to   int    // lines
	statements int
	count      int // how often they ran
}

// lines are the numbers of lines of one file.
type lines []int

func (l lines) within(from, to int) (out lines) {
	for _, n := range l {
		if from <= n && n <= to {
			out = append(out, n)
		}
	}
	return out
}

// ranges returns l as "3" and "5-7".
func (l lines) ranges() (out []string) {
	all := slices.Compact(slices.Sorted(slices.Values(l)))
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n] == all[0]+n {
			n++
		}
		text := strconv.Itoa(all[0])
		if n > 1 {
			text += "-" + strconv.Itoa(all[n-1])
		}
		out, all = append(out, text), all[n:]
	}
	return out
}

func moduleOf(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name), nil
		}
	}
	return "", fmt.Errorf("%s/go.mod names no module", dir)
}

// readProfile reads the module's blocks. A block that several test binaries
// have is one that ran as often as all of them say.
func readProfile(name, module string) ([]block, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	byPlace := map[string]block{}
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		if strings.HasPrefix(in.Text(), "mode: ") {
			continue
		}
		b, place, err := parseBlock(in.Text())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		own := false
		if b.file, own = strings.CutPrefix(b.file, module+"/"); !own {
			continue
		}
		b.count += byPlace[place].count
		byPlace[place] = b
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(byPlace) == 0 {
		return nil, fmt.Errorf("%s has no statements of %s", name, module)
	}
	out := make([]block, 0, len(byPlace))
	for _, place := range sortedKeys(byPlace) {
		out = append(out, byPlace[place])
	}
	return out, nil
}

// parseBlock reads "FILE:LINE.COLUMN,LINE.COLUMN STATEMENTS COUNT".
func parseBlock(line string) (b block, place string, err error) {
	bad := fmt.Errorf("no line of a profile: %q", line)
	f := strings.Fields(line)
	if len(f) != 3 {
		return b, "", bad
	}
	colon := strings.LastIndex(f[0], ":")
	if colon < 0 {
		return b, "", bad
	}
	b.file = f[0][:colon]
	var columns [2]int
	if _, err := fmt.Sscanf(f[0][colon+1:], "%d.%d,%d.%d", &b.from, &columns[0], &b.to, &columns[1]); err != nil {
		return b, "", bad
	}
	var errs [2]error
	b.statements, errs[0] = strconv.Atoi(f[1])
	b.count, errs[1] = strconv.Atoi(f[2])
	if errs[0] != nil || errs[1] != nil {
		return b, "", bad
	}
	return b, f[0], nil
}

// addedLines returns the lines of each Go file that base does not have, without
// those that hold no statement.
func addedLines(dir, base string) (map[string]lines, error) {
	diff, err := git(dir, "diff", "-U0", "--no-color", "--no-ext-diff", "--no-textconv", "--relative", "--src-prefix=a/", "--dst-prefix=b/", base, "--", "*.go")
	if err != nil {
		return nil, err
	}
	out := map[string]lines{}
	file, at, left := "", 0, 0 // the next line of the hunk, and how many are left
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		if hunk, ok := strings.CutPrefix(line, "@@ "); ok {
			if at, left, err = parseHunk(hunk); err != nil {
				return nil, err
			}
			continue
		}
		if left == 0 {
			if name, ok := strings.CutPrefix(line, "+++ "); ok {
				file = strings.TrimPrefix(name, "b/")
			}
			continue
		}
		if text, ok := strings.CutPrefix(line, "+"); ok {
			if hasStatement(text) {
				out[file] = append(out[file], at)
			}
			at++
			left--
		}
	}
	return out, nil
}

// parseHunk reads what follows "@@ ": "-1,2 +3,4 @@ func f()". A count that is
// not there is 1.
func parseHunk(hunk string) (first, count int, err error) {
	f := strings.Fields(hunk)
	if len(f) < 2 || !strings.HasPrefix(f[1], "+") {
		return 0, 0, fmt.Errorf("git diff has the hunk %q", hunk)
	}
	from, n, several := strings.Cut(f[1][1:], ",")
	if !several {
		n = "1"
	}
	if first, err = strconv.Atoi(from); err == nil {
		count, err = strconv.Atoi(n)
	}
	return first, count, err
}

// hasStatement is false for comments, empty lines, and closing brackets.
func hasStatement(line string) bool {
	line = strings.TrimSpace(line)
	return strings.Trim(line, "(){}[],;") != "" && !strings.HasPrefix(line, "//")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
