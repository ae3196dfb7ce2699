// Package dockerfile reads the Dockerfiles of everyday: their stages, instructions and
// words. It does nothing of what they say.
//
// What it does not know is an error with the file, the line and the instruction, never
// skipped: a step that is left out makes another image than the one that was meant. Start
// reading at [Parse].
package dockerfile

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// MaxFile bounds a Dockerfile, in bytes.
const MaxFile = 1 << 20

const maxSteps = 1000

// Error says what can't be done, and where.
type Error struct {
	File, Op, Reason string
	Line             int
	// Foreign says that other builders know the instruction.
	Foreign bool
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s:%d", e.File, e.Line)
	if e.Op != "" {
		s += ": " + e.Op
	}
	return s + ": " + e.Reason
}

// File is a Dockerfile.
type File struct {
	Name   string
	Args   []Step // ARG, before the first stage
	Stages []Stage
}

// Stage holds the instructions from one FROM to the next.
type Stage struct {
	Step
	Base, Platform string // before expansion
	As             string // its name, in lower case; empty: none
	Steps          []Step
}

// Step is one instruction.
type Step struct {
	File string
	Line int
	Op   string // in upper case
	// Text is all of it after the name, with continued lines joined.
	Text  string
	Flags map[string]string
	// Args are the words, before expansion. Of RUN, CMD and ENTRYPOINT, they are the
	// command's arguments, or the one line that a shell is given.
	Args []string
	JSON bool // written as a list in JSON
	// Pairs holds what ENV, LABEL and ARG set. A pair of ARG may be without a value.
	Pairs []Pair

	escape byte
}

// Pair is NAME=VALUE.
type Pair struct {
	Name, Value string // Value is before expansion
	Given       bool
}

// Bad returns an error about the step.
func (s *Step) Bad(format string, a ...any) error {
	return &Error{File: s.File, Line: s.Line, Op: s.Op, Reason: fmt.Sprintf(format, a...)}
}

// foreign returns an error about what other builders can do.
func (s *Step) foreign(format string, a ...any) error {
	return &Error{File: s.File, Line: s.Line, Op: s.Op, Foreign: true, Reason: fmt.Sprintf(format, a...)}
}

// flags lists the known instructions, each with the flags that it may have.
var flags = map[string][]string{
	"FROM": {"platform"}, "RUN": nil, "COPY": {"from", "chown", "chmod"}, "ADD": {"chown", "chmod"}, "ENV": nil, "ARG": nil,
	"WORKDIR": nil, "USER": nil, "ENTRYPOINT": nil, "CMD": nil, "LABEL": nil, "EXPOSE": nil, "SHELL": nil, "VOLUME": nil,
	"STOPSIGNAL": nil, "MAINTAINER": nil,
}

// known lists what other builders know besides.
var known = []string{"ONBUILD", "HEALTHCHECK"}

// Parse reads a Dockerfile. name stands in errors.
func Parse(name string, text []byte) (*File, error) {
	f := &File{Name: name}
	p := &parser{file: name, escape: '\\'}
	if len(text) > MaxFile {
		return nil, &Error{File: name, Line: 1, Reason: fmt.Sprintf("is larger than %d bytes", MaxFile)}
	}
	steps, err := p.steps(string(text))
	if err != nil {
		return nil, err
	}
	for _, s := range steps {
		switch {
		case s.Op == "FROM":
			st, err := stage(s)
			if err != nil {
				return nil, err
			}
			f.Stages = append(f.Stages, st)
		case len(f.Stages) > 0:
			at := &f.Stages[len(f.Stages)-1]
			at.Steps = append(at.Steps, s)
		case s.Op == "ARG":
			f.Args = append(f.Args, s)
		default:
			return nil, s.Bad("stands before the first FROM")
		}
	}
	if len(f.Stages) == 0 {
		return nil, &Error{File: name, Line: 1, Reason: "has no FROM"}
	}
	return f, nil
}

// stage reads FROM IMAGE [AS NAME].
func stage(s Step) (Stage, error) {
	st := Stage{Step: s, Platform: s.Flags["platform"]}
	switch {
	case len(s.Args) == 3 && strings.EqualFold(s.Args[1], "as"):
		st.As = strings.ToLower(s.Args[2])
		if strings.Trim(st.As, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" || !strings.ContainsAny(st.As[:1], "abcdefghijklmnopqrstuvwxyz") {
			return st, s.Bad("%.80q is not the name of a stage: a letter, then letters, digits, and ._-", s.Args[2])
		}
	case len(s.Args) != 1:
		return st, s.Bad("takes IMAGE, or IMAGE AS NAME")
	}
	st.Base = s.Args[0]
	return st, nil
}

type parser struct {
	file   string
	escape byte
	lines  []string
	at     int // of the next line
}

// steps reads all instructions.
func (p *parser) steps(text string) (out []Step, err error) {
	text = strings.TrimPrefix(text, "\ufeff")
	p.lines = strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	if err := p.directives(); err != nil {
		return nil, err
	}
	for p.at < len(p.lines) {
		line, joined := p.join()
		if joined == "" {
			continue
		}
		if len(out) == maxSteps {
			return nil, &Error{File: p.file, Line: line, Reason: fmt.Sprintf("has more than %d instructions", maxSteps)}
		}
		op, rest, _ := cutSpace(joined)
		s := Step{File: p.file, Line: line, Op: strings.ToUpper(op), Text: rest, escape: p.escape}
		if err := p.step(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// directives reads the comments at the top that say how to read the rest.
func (p *parser) directives() error {
	for ; p.at < len(p.lines); p.at++ {
		text, ok := strings.CutPrefix(strings.TrimSpace(p.lines[p.at]), "#")
		name, value, given := strings.Cut(text, "=")
		if !ok || !given {
			return nil
		}
		value = strings.TrimSpace(value)
		s := Step{File: p.file, Line: p.at + 1}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "escape":
			if value != "\\" && value != "`" {
				return s.Bad("the escape character is a backslash or a backtick")
			}
			p.escape = value[0]
		case "syntax":
			front, _, _ := strings.Cut(strings.TrimPrefix(value, "docker.io/"), "@")
			front, _, _ = strings.Cut(front, ":")
			if front != "docker/dockerfile" {
				return s.foreign("is written for the frontend %.80q", value)
			}
		case "check":
		default:
			return nil // a comment, after which no directive counts
		}
	}
	return nil
}

// join returns the next instruction, without comments and with its continued lines
// joined, and the number of its first line. It is empty at the end.
func (p *parser) join() (first int, text string) {
	var b strings.Builder
	for p.at < len(p.lines) {
		line := p.lines[p.at]
		p.at++
		bare := strings.TrimSpace(line)
		if bare == "" || bare[0] == '#' {
			continue // within a continued instruction too
		}
		if first == 0 {
			line, first = strings.TrimLeft(line, " \t"), p.at
		}
		line = strings.TrimRight(line, " \t")
		cut, more := strings.CutSuffix(line, string(p.escape))
		if more && strings.HasSuffix(cut, string(p.escape)) {
			more = false // it is escaped itself
		}
		if !more {
			b.WriteString(line)
			break
		}
		b.WriteString(cut)
	}
	return first, strings.TrimSpace(b.String())
}

func cutSpace(s string) (word, rest string, found bool) {
	i := strings.IndexAny(s, " \t")
	if i < 0 {
		return s, "", false
	}
	return s[:i], strings.TrimLeft(s[i:], " \t"), true
}

// step reads what follows the instruction's name.
func (p *parser) step(s *Step) error {
	allowed, ok := flags[s.Op]
	switch {
	case !ok && slices.Contains(known, s.Op):
		return s.foreign("is not carried out here")
	case !ok:
		return (&Step{File: s.File, Line: s.Line}).Bad("%.40q is not an instruction", s.Op)
	case s.Text == "":
		return s.Bad("has no arguments")
	}
	if err := s.cutFlags(allowed); err != nil {
		return err
	}
	switch s.Op {
	case "RUN", "CMD", "ENTRYPOINT", "SHELL":
		return p.command(s)
	case "ENV", "LABEL", "ARG":
		return s.pairs()
	case "MAINTAINER", "STOPSIGNAL", "USER", "WORKDIR":
		s.Args = []string{s.Text}
		return nil
	case "COPY", "ADD", "VOLUME":
		if s.list() {
			return s.paths()
		}
	}
	var err error
	if s.Args, err = split(s.Text, s.escape); err != nil {
		return s.Bad("%v", err)
	}
	return s.paths()
}

// cutFlags takes the flags off the text.
func (s *Step) cutFlags(allowed []string) error {
	s.Flags = map[string]string{}
	for strings.HasPrefix(s.Text, "--") {
		word, rest, _ := cutSpace(s.Text)
		name, value, given := strings.Cut(word[2:], "=")
		switch _, twice := s.Flags[name]; {
		case name == "" || !given && slices.Contains(allowed, name):
			return s.Bad("%.80q is not a flag with a value", word)
		case !slices.Contains(allowed, name):
			return s.foreign("--%.40s is not known here", name)
		case twice:
			return s.Bad("--%s is given twice", name)
		}
		s.Flags[name], s.Text = strings.Trim(value, `"`), rest
	}
	if s.Text == "" {
		return s.Bad("has no arguments")
	}
	return nil
}

// list reports whether the text is a list of strings in JSON, and reads it.
func (s *Step) list() bool {
	if !strings.HasPrefix(s.Text, "[") {
		return false
	}
	var words []string
	if json.Unmarshal([]byte(s.Text), &words) != nil || words == nil {
		return false
	}
	s.Args, s.JSON = words, true
	return true
}

// command reads a command line, with the here-documents of RUN.
func (p *parser) command(s *Step) error {
	switch {
	case s.list():
		if len(s.Args) == 0 && s.Op != "CMD" && s.Op != "ENTRYPOINT" {
			return s.Bad("has no arguments")
		}
		return nil
	case s.Op == "SHELL":
		return s.Bad(`takes a list in JSON, such as ["/bin/bash", "-c"]`)
	case s.Op == "RUN":
		docs, err := heredocs(s.Text)
		if err != nil {
			return s.Bad("%v", err)
		}
		if len(docs) > 0 {
			return p.heredoc(s, docs)
		}
	}
	s.Args = []string{s.Text}
	return nil
}

// doc is the beginning of a here-document.
type doc struct {
	end   string
	strip bool // of leading tabs
	whole bool // it is all of the instruction
}

// heredocs finds the here-documents that begin in a line for a shell.
func heredocs(line string) (out []doc, err error) {
	for rest := line; ; {
		i := strings.Index(rest, "<<")
		if i < 0 {
			return out, nil
		}
		before, after := rest[:i], rest[i+2:]
		rest = after
		if strings.HasPrefix(after, "<") { // a here-string
			rest = strings.TrimLeft(after, "<")
			continue
		}
		if strings.Count(before, `"`)%2 != 0 || strings.Count(before, "'")%2 != 0 {
			continue // within quotes
		}
		d := doc{}
		after, d.strip = strings.CutPrefix(after, "-")
		word, _, _ := cutSpace(strings.TrimLeft(after, " \t"))
		word = strings.TrimRight(word, ";|&)>")
		d.end = strings.Trim(word, `"'`)
		if d.end == "" || strings.Trim(d.end, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" || strings.ContainsAny(d.end[:1], "0123456789") {
			continue // a shift, as in $((1 << 2))
		}
		d.whole = len(out) == 0 && strings.TrimSpace(before) == "" && strings.TrimSpace(after) == word
		out = append(out, d)
	}
}

// heredoc adds the lines of here-documents to a command. One that is all of the
// instruction is the shell's script.
func (p *parser) heredoc(s *Step, docs []doc) error {
	var b strings.Builder
	whole := len(docs) == 1 && docs[0].whole
	if !whole {
		b.WriteString(s.Text + "\n")
	}
	for _, d := range docs {
		for closed := false; !closed; p.at++ {
			if p.at == len(p.lines) {
				return s.Bad("the here-document %s does not end", d.end)
			}
			line := p.lines[p.at]
			if d.strip && whole {
				line = strings.TrimLeft(line, "\t")
			}
			closed = line == d.end || d.strip && strings.TrimLeft(line, "\t") == d.end
			if !closed || !whole {
				b.WriteString(line + "\n")
			}
		}
	}
	if whole && strings.HasPrefix(b.String(), "#!") {
		return s.foreign("a here-document with a program of its own is not carried out here")
	}
	s.Args = []string{b.String()}
	return nil
}

// pairs reads NAME=VALUE..., and the older NAME VALUE of ENV and LABEL.
func (s *Step) pairs() error {
	words, err := split(s.Text, s.escape)
	if err != nil {
		return s.Bad("%v", err)
	}
	if first, rest, ok := cutSpace(s.Text); ok && s.Op != "ARG" && !strings.Contains(first, "=") {
		s.Pairs = []Pair{{first, rest, true}}
		return nil
	}
	for _, w := range words {
		name, value, given := strings.Cut(w, "=")
		name = strings.Trim(name, `"'`)
		if name == "" || !given && s.Op != "ARG" {
			return s.Bad("%.80q is not NAME=VALUE", w)
		}
		s.Pairs = append(s.Pairs, Pair{name, value, given})
	}
	return nil
}

// paths checks the arguments of COPY and ADD.
func (s *Step) paths() error {
	if s.Op != "COPY" && s.Op != "ADD" {
		if len(s.Args) == 0 {
			return s.Bad("has no arguments")
		}
		return nil
	}
	if len(s.Args) < 2 {
		return s.Bad("takes one source or more, and a destination")
	}
	for _, a := range s.Args[:len(s.Args)-1] {
		switch {
		case strings.HasPrefix(a, "<<"):
			return s.foreign("a here-document is not copied here")
		case s.Op == "ADD" && (strings.Contains(a, "://") || strings.HasPrefix(a, "git@")):
			return s.foreign("nothing is fetched from an address here")
		case s.Op == "ADD" && archive(a):
			return s.foreign("an archive is not unpacked here")
		}
	}
	return nil
}

// archive reports whether the name is that of an archive, which ADD would unpack.
func archive(name string) bool {
	for _, end := range []string{".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".gz", ".bz2", ".xz", ".zst"} {
		if strings.HasSuffix(strings.ToLower(path.Base(name)), end) {
			return true
		}
	}
	return false
}
