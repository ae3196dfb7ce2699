package change

import (
	"strconv"
	"strings"

	udiff "github.com/aymanbagabas/go-udiff"
)

// contextLines is the number of unchanged lines shown around a change.
const contextLines = 3

// hunk is a group of changed lines with their context. The library's unified
// format counts lines from the start for every edit, which takes quadratic
// time on a hostile file; hunksOf counts them once.
type hunk struct {
	from, to int // first line, from 1; the line before when there is none
	old, new int // lines on each side
	lines    []hunkLine
}

type hunkLine struct {
	kind byte // ' ', '-' or '+'
	text string
}

func (h *hunk) add(kind byte, text string) {
	h.lines = append(h.lines, hunkLine{kind, text})
	if kind != '+' {
		h.old++
	}
	if kind != '-' {
		h.new++
	}
}

// hunksOf groups edits into hunks. The edits are as udiff.Lines returns them:
// sorted, and of whole lines.
func hunksOf(before string, edits []udiff.Edit) []hunk {
	lines := strings.SplitAfter(before, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	var out []hunk
	var h *hunk
	pos, at, delta := 0, 0, 0 // offset and line reached in before; line shift
	for _, e := range edits {
		first := at
		for pos < e.Start {
			pos += len(lines[first])
			first++
		}
		if h == nil || first-at > 2*contextLines {
			if h != nil {
				h.context(lines, at, min(at+contextLines, len(lines)))
			}
			start := max(first-contextLines, 0)
			if h != nil {
				start = max(start, at)
			}
			out = append(out, hunk{from: start, to: start + delta})
			h = &out[len(out)-1]
			h.context(lines, start, first)
		} else {
			h.context(lines, at, first)
		}
		for at = first; pos < e.End; at++ {
			h.add('-', lines[at])
			pos += len(lines[at])
			delta--
		}
		for l := range strings.Lines(e.New) {
			h.add('+', l)
			delta++
		}
	}
	if h != nil {
		h.context(lines, at, min(at+contextLines, len(lines)))
	}
	return out
}

func (h *hunk) context(lines []string, from, to int) {
	for _, l := range lines[from:to] {
		h.add(' ', l)
	}
}

// span formats one side of a hunk's header; start counts from 0.
func span(start, n int) string {
	if n > 0 {
		start++
	}
	if n == 1 {
		return strconv.Itoa(start)
	}
	return strconv.Itoa(start) + "," + strconv.Itoa(n)
}
