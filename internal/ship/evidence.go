package ship

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/secret"
)

// Bounds of evidence. script.sh sends more lines of a log than are kept, so that a secret
// that begins before the kept ones is recognized.
const (
	sentLog     = 256 << 10 // bytes
	sentLines   = 300
	keptLines   = 200
	keptBytes   = 64 << 10 // of all lines together
	maxSections = 2        // of the new version, and of the previous one
	maxChecks   = 5
	checkBytes  = 4096 // Docker cuts the output of a healthcheck there
)

// evidence collects what tells why an apply failed: the last output of programs, what the
// service wrote, and what its healthcheck said. Hosts do not keep it, because they cannot
// redact it.
type evidence struct {
	sections []*section
	said     []string // by the last command, redacted
	closed   bool     // said is of the command that failed
}

// section holds what script.sh sends of one container.
type section struct {
	previous bool
	health   string // JSON of Docker
	log      []string
	bytes    int
}

// step hears a step of the script: a command's output ends where another one begins, and
// that of the command that failed is kept while the script goes back.
func (e *evidence) step(name string) {
	switch {
	case name == "back" || name == "kept":
		e.closed = true
	case name == "run" && !e.closed:
		e.said = nil
	}
}

// output hears a redacted line of a program's output.
func (e *evidence) output(line string) {
	if e.closed || line == "" {
		return
	}
	if e.said = append(e.said, line); len(e.said) > keptLines {
		e.said = slices.Delete(e.said, 0, len(e.said)-keptLines)
	}
}

// add hears a line of script.sh's function evidence.
func (e *evidence) add(word, rest string) {
	if word == "@evidence" {
		if len(e.sections) < maxSections {
			e.sections = append(e.sections, &section{previous: rest == "previous"})
		}
		return
	}
	if len(e.sections) == 0 {
		return
	}
	s := e.sections[len(e.sections)-1]
	switch {
	case word == "@health" && s.health == "":
		s.health = rest
	case word == "@log" && len(s.log) < sentLines && s.bytes <= sentLog:
		s.log = append(s.log, rest)
		s.bytes += len(rest) + 1
	}
}

// lines returns the evidence for people, redacted and bounded. Each line begins with who
// wrote it.
func (e *evidence) lines() []string {
	var out []string
	for _, s := range e.sections {
		who := ""
		if s.previous {
			who = "previous version, "
		}
		for _, l := range s.checks() {
			out = append(out, who+"healthcheck: "+l)
		}
		for _, l := range s.logs() {
			out = append(out, who+"log: "+l)
		}
	}
	if len(e.sections) == 0 {
		for _, l := range e.said {
			out = append(out, "docker compose: "+l)
		}
	}
	size := 0
	for i, l := range slices.Backward(out) { // the last say most
		if size += len(l); size > keptBytes {
			return out[i+1:]
		}
	}
	return out
}

// checks returns what the healthcheck said, the last runs of it.
func (s *section) checks() (out []string) {
	var health struct {
		Log []struct {
			ExitCode int
			Output   string
		}
	}
	if json.Unmarshal([]byte(s.health), &health) != nil {
		return nil
	}
	log := health.Log
	for _, run := range log[max(0, len(log)-maxChecks):] {
		all := strings.Split(strings.TrimRight(run.Output, "\n"), "\n")
		if len(run.Output) >= checkBytes { // the last line is cut: it may be half a secret
			all = all[:len(all)-1]
		}
		out = append(out, fmt.Sprintf("exit %d", run.ExitCode))
		for _, l := range redacted(all) {
			if l != "" {
				out = append(out, l)
			}
		}
	}
	return out
}

// logs returns the last lines that the service wrote.
func (s *section) logs() []string {
	all := s.log
	if s.bytes >= sentLog && len(all) > 0 { // the first line is cut: it may be half a secret
		all = all[1:]
	}
	all = redacted(all)
	return all[max(0, len(all)-keptLines):]
}

// redacted returns lines without secrets, safe to print. A private key whose beginning is
// not among them is one nevertheless.
func redacted(in []string) []string {
	out := make([]string, len(in))
	r := newRedactor()
	for i, l := range in {
		inKey := r.inKey
		out[i] = shown(r.Line(l))
		if !inKey && !keyBegins.MatchString(l) && keyEnds.MatchString(l) {
			for k := range i + 1 {
				out[k] = secret.Redacted
			}
		}
	}
	return out
}
