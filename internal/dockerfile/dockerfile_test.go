package dockerfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// show writes a Dockerfile in one line, as it was understood.
func show(f *File) string {
	var out []string
	step := func(s *Step) {
		line := s.Op
		for _, k := range []string{"platform", "from", "chown", "chmod"} {
			if v := s.Flags[k]; v != "" {
				line += " --" + k + "=" + v
			}
		}
		if s.JSON {
			line += " JSON"
		}
		for _, a := range s.Args {
			line += fmt.Sprintf(" %q", a)
		}
		for _, p := range s.Pairs {
			line += " " + p.Name
			if p.Given {
				line += fmt.Sprintf("=%q", p.Value)
			}
		}
		out = append(out, line)
	}
	for i := range f.Args {
		step(&f.Args[i])
	}
	for i := range f.Stages {
		st := &f.Stages[i]
		out = append(out, strings.TrimSpace(fmt.Sprintf("FROM %s %s as %s", st.Platform, st.Base, st.As)))
		for j := range st.Steps {
			step(&st.Steps[j])
		}
	}
	return strings.Join(out, "; ")
}

// The Dockerfiles of agents and of their projects, as people write them.
func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"an agent's": {
			"# syntax=docker/dockerfile:1.7\nFROM node:22-bookworm-slim\n\nRUN apt-get update && apt-get install -y --no-install-recommends \\\n      ca-certificates git \\\n    # for the tests\n      ripgrep \\\n && rm -rf /var/lib/apt/lists/*\nRUN npm install -g @anthropic-ai/claude-code@2.1.329\nUSER node\nWORKDIR /home/node\nENTRYPOINT [\"claude\"]\n",
			`FROM  node:22-bookworm-slim as; RUN "apt-get update && apt-get install -y --no-install-recommends       ca-certificates git       ripgrep  && rm -rf /var/lib/apt/lists/*"; RUN "npm install -g @anthropic-ai/claude-code@2.1.329"; USER "node"; WORKDIR "/home/node"; ENTRYPOINT JSON "claude"`,
		},
		"stages": {
			"ARG GO=1.26\nFROM --platform=$BUILDPLATFORM golang:${GO} AS Build\nCOPY --chown=1:2 --chmod=755 go.mod go.sum ./\nRUN [\"go\", \"build\"]\nfrom scratch\ncopy --from=build /out/app /app\nCMD [\"/app\"]",
			`ARG GO="1.26"; FROM $BUILDPLATFORM golang:${GO} as build; COPY --chown=1:2 --chmod=755 "go.mod" "go.sum" "./"; RUN JSON "go" "build"; FROM  scratch as; COPY --from=build "/out/app" "/app"; CMD JSON "/app"`,
		},
		"variables": {
			"FROM a\nENV A=b C=\"d e\" F=g\\ h\nENV OLD way of it\nARG X\nARG Y=1 Z\nLABEL a.b=\"c d\" e=f\nEXPOSE 80 81/udp\nVOLUME [\"/data\"]\nSTOPSIGNAL SIGTERM\nMAINTAINER me\nSHELL [\"/bin/bash\", \"-c\"]\n",
			`FROM  a as; ENV A="b" C="\"d e\"" F="g\\ h"; ENV OLD="way of it"; ARG X; ARG Y="1" Z; LABEL a.b="\"c d\"" e="f"; EXPOSE "80" "81/udp"; VOLUME JSON "/data"; STOPSIGNAL "SIGTERM"; MAINTAINER "me"; SHELL JSON "/bin/bash" "-c"`,
		},
		"a backtick":          {"# escape=`\nFROM a\nRUN x `\n y\\\n", "FROM  a as; RUN \"x  y\\\\\""},
		"a script":            {"FROM a\nRUN <<EOF\nset -e\n# not a comment\necho x\nEOF\nUSER u\n", `FROM  a as; RUN "set -e\n# not a comment\necho x\n"; USER "u"`},
		"a shell's own":       {"FROM a\nRUN cat <<-'E' >/f && true\n\tx\n\tE\nUSER u\n", `FROM  a as; RUN "cat <<-'E' >/f && true\n\tx\n\tE\n"; USER "u"`},
		"no here-document":    {"FROM a\nRUN x=$((1 << 2)); cat <<<word\nUSER u\n", `FROM  a as; RUN "x=$((1 << 2)); cat <<<word"; USER "u"`},
		"no list":             {"FROM a\nRUN [ -e /x ] && echo\nCMD [ \"x' ]\n", `FROM  a as; RUN "[ -e /x ] && echo"; CMD "[ \"x' ]"`},
		"carriage returns":    {"\ufeffFROM a\r\nRUN x \\\r\n y\r\n", `FROM  a as; RUN "x  y"`},
		"spaces in names":     {"FROM a\nCOPY [\"a b\", \"/c d/\"]\nADD 'x y' /\n", `FROM  a as; COPY JSON "a b" "/c d/"; ADD "'x y'" "/"`},
		"an archive by COPY":  {"FROM a\nCOPY x.tar.gz /\n", `FROM  a as; COPY "x.tar.gz" "/"`},
		"an escaped newline":  {"FROM a\nRUN x \\\\\nUSER u\n", `FROM  a as; RUN "x \\\\"; USER "u"`},
		"an end in a comment": {"FROM a\nRUN x \\\n# c\n\n", `FROM  a as; RUN "x"`},
	} {
		f, err := Parse("D", []byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := show(f); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// What is not carried out is named with its place, and never skipped.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		text, want string
		foreign    bool
	}{
		{"FROM a\nRUN --mount=type=cache,target=/x true\n", "D:2: RUN: --mount", true},
		{"FROM a\n\nRUN --network=host true\n", "D:3: RUN: --network", true},
		{"FROM a\nONBUILD RUN x\n", "D:2: ONBUILD", true},
		{"FROM a\nHEALTHCHECK NONE\n", "D:2: HEALTHCHECK", true},
		{"FROM a\nCOPY --link a /b\n", "D:2: COPY: --link", true},
		{"FROM a\nCOPY --parents a /b\n", "D:2: COPY: --parents", true},
		{"FROM a\nCOPY <<EOF /x\ny\nEOF\n", "D:2: COPY: a here-document", true},
		{"FROM a\nRUN <<EOF\n#!/usr/bin/env python3\nEOF\n", "D:2: RUN: a here-document with a program", true},
		{"FROM a\nADD https://example.com/x /\n", "D:2: ADD: nothing is fetched", true},
		{"FROM a\nADD x y.tar.gz /\n", "D:2: ADD: an archive", true},
		{"# syntax=example.com/frontend:1\nFROM a\n", "D:1: is written for the frontend", true},
		{"FROM a\nRUNN x\n", `D:2: "RUNN" is not an instruction`, false},
		{"RUN x\n", "D:1: RUN: stands before", false},
		{"# nothing\n", "has no FROM", false},
		{"FROM a b\n", "D:1: FROM: takes IMAGE", false},
		{"FROM a AS 1x\n", "D:1: FROM:", false},
		{"FROM\n", "D:1: FROM: has no arguments", false},
		{"FROM a\nCOPY x\n", "D:2: COPY: takes", false},
		{"FROM a\nCOPY --from x /y\n", "D:2: COPY:", false},
		{"FROM a\nCOPY --chown=1 --chown=2 x /y\n", "given twice", false},
		{"FROM a\nENV A\n", "D:2: ENV:", false},
		{"FROM a\nENV A='b\n", "D:2: ENV: a quote", false},
		{"FROM a\nRUN <<EOF\nx\n", "D:2: RUN: the here-document EOF does not end", false},
		{"FROM a\nSHELL /bin/sh\n", "D:2: SHELL: takes a list", false},
		{"FROM a\n" + strings.Repeat("USER x\n", maxSteps), "instructions", false},
		{strings.Repeat("#\n", MaxFile), "is larger", false},
	} {
		_, err := Parse("D", []byte(c.text))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || e.Foreign != c.foreign {
			t.Errorf("%.60q: %v", c.text, err)
		}
	}
}

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "b", "E": "", "SP": "x y"}
	lookup := func(n string) (string, bool) { v, ok := vars[n]; return v, ok }
	s := &Step{File: "D", Line: 3, Op: "ENV", escape: '\\'}
	for in, want := range map[string]string{
		"x": "x", "$A": "b", "${A}c": "bc", "$A$A": "bb", "$NO": "", `\$A`: "$A", `'$A'`: "$A", `"$A c"`: "b c", `"a\"b"`: `a"b`, `"a\nb"`: `a\nb`,
		`a\ b`: "a b", "${A:-x}": "b", "${E:-x}": "x", "${E-x}": "", "${NO-x}": "x", "${NO:-$A}": "b", "${NO:-${A}}": "b", "${A:+x}": "x", "${E:+x}": "", "${E+x}": "x",
		"${A:?no}": "b", "$": "$", "a$": "a$", "$1": "$1", `C:\\`: `C:\`, "$SP": "x y", `${NO:-"a b"}`: "a b",
	} {
		if got, err := s.Expand(in, lookup); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"${A": "${", "${": "${", `"a`: "a quote", "'a": "a quote", "${A#b}": "patterns", "${A//b}": "patterns", "${NO:?is needed}": "NO is not set: is needed", "${A:": "a brace",
		strings.Repeat("${NO:-", 100): "too deeply",
	} {
		if _, err := s.Expand(in, lookup); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "D:3: ENV: ") {
			t.Errorf("%.30q: %v", in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("FROM a AS b\nRUN <<E\nx\nE\nCOPY --from=b [\"a\", \"b\"]\n"))
	f.Add([]byte("# escape=`\nFROM ${A:-b}\nENV A=\"b c\" D='e' F=`\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("D", text)
		if err != nil {
			return
		}
		for _, st := range file.Stages {
			for _, s := range append(slices.Clone(st.Steps), st.Step) {
				for _, a := range s.Args {
					s.Expand(a, func(string) (string, bool) { return "$A", true })
				}
			}
		}
	})
}
