package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	passes = `{"Action":"output","Package":"m/a","Test":"TestA","Output":"said\n"}
{"Action":"pass","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
{"Action":"pass","Package":"m/a"}
`
	skips = `{"Action":"output","Package":"m/a","Test":"TestA","Output":"needs root\n"}
{"Action":"skip","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.1s\n"}
`
	lacks = `{"Action":"output","Package":"m/a","Test":"TestB/x","Output":"    a_test.go:9: SKIPPED: needs tmux: apt-get install tmux\n"}
{"Action":"skip","Package":"m/a","Test":"TestB/x"}
{"Action":"pass","Package":"m/a","Test":"TestB"}
{"Action":"output","Package":"m/b","Test":"TestC","Output":"    b_test.go:9: SKIPPED: needs root: sudo go test\n"}
{"Action":"skip","Package":"m/b","Test":"TestC"}
{"Action":"output","Package":"m/b","Test":"TestD","Output":"    b_test.go:9: SKIPPED: needs git: apt-get install git\n"}
{"Action":"skip","Package":"m/b","Test":"TestD"}
`
	fails = `{"Action":"output","Package":"m/a","Test":"TestA","Output":"a_test.go:3: why\n"}
{"Action":"fail","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a"}
`
	unbuilt = `{"Action":"build-output","ImportPath":"m/a","Output":"a.go:1: no\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a [build failed]\n"}
`
)

func TestReport(t *testing.T) {
	long := ""
	for i := range 500 {
		long += fmt.Sprintf("{\"Action\":\"output\",\"Package\":\"m/a\",\"Test\":\"TestA\",\"Output\":\"line %d\\n\"}\n", i)
	}
	pieces := ""
	for range 30 {
		pieces += fmt.Sprintf("{\"Action\":\"output\",\"Package\":\"m/a\",\"Test\":\"TestA\",\"Output\":\"%s\"}\n", strings.Repeat("x", 1000))
	}
	pieces += "{\"Action\":\"output\",\"Package\":\"m/a\",\"Test\":\"TestA\",\"Output\":\"x\\n\"}\n"
	for _, c := range []struct {
		flag  string
		files []string
		code  int
		want  string // all that is printed, if it begins with "="
	}{
		{"", []string{passes}, 0, "=ok  \tm/a\t0.1s\n"},
		{"", []string{passes, fails}, 1, "FAILED m/a TestA\n\ta_test.go:3: why\n"},
		{"", []string{unbuilt}, 1, "a.go:1: no\n"},
		{"", []string{passes + "panic: no event\n"}, 1, "panic: no event\n"},
		{"", []string{""}, 1, "="},
		{"", []string{long + fails}, 1, "(101 lines before)\nFAILED m/a TestA\n\tline 101\n"},
		{"", []string{pieces + fails}, 1, "FAILED m/a TestA\n\t" + strings.Repeat("x", 5000) + "...\n\ta_test.go:3: why\n"},
		{"-ok", []string{fails}, 1, "=FAIL\tm/a\t0.1s\n"},
		{"-skipped", []string{skips, passes}, 0, "=every test ran at least once\n"},
		{"-skipped", []string{skips, skips}, 1, "=skipped in every run: m/a TestA: needs root\n"},
		{"-skipped", []string{strings.ReplaceAll(skips, "needs root", "run without -short")}, 0, "=every test ran at least once\n"},
		{"-skipped", []string{skips, strings.ReplaceAll(skips, "needs root", "run without -short")}, 0, "=every test ran at least once\n"},
		{"-skipped", []string{skips, fails}, 1, "m/a TestA: needs root"},
		{"-skipped", []string{lacks, `{"Action":"pass","Package":"m/b","Test":"TestC"}`}, 1, "m/a TestB/x"},
		{"-skipped", []string{`{"Action":"skip","Package":"m/a","Test":"TestB/x"}`, `{"Action":"pass","Package":"m/a","Test":"TestB"}`}, 0, "=every test ran at least once\n"},
		{"-skipped", []string{`{"Action":"skip","Package":"m/a","Test":"TestB/x"}`, `{"Action":"skip","Package":"m/a","Test":"TestB"}`}, 1, "m/a TestB/x"},
		{"-skipped", []string{`{"Action":"skip","Package":"m/a","Test":"TestB/x"}`, "{\"Action\":\"skip\",\"Package\":\"m/a\",\"Test\":\"TestB/x\"}\n{\"Action\":\"pass\",\"Package\":\"m/a\",\"Test\":\"TestB\"}"}, 1, "m/a TestB/x"},
		{"-lacking", []string{lacks, passes}, 0, "=m/a ^TestB$/^(x)$\nm/b ^(TestC|TestD)$\n"},
		{"-lacking", []string{lacks, `{"Action":"pass","Package":"m/a","Test":"TestB/x"}`}, 0, "=m/b ^(TestC|TestD)$\n"},
		{"-no-such-flag", []string{passes}, 2, "usage"},
		{"-ok", nil, 2, "usage"},
	} {
		var args []string
		if c.flag != "" {
			args = append(args, c.flag)
		}
		for i, text := range c.files {
			name := filepath.Join(t.TempDir(), fmt.Sprint(i))
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append(args, name)
		}
		var out bytes.Buffer
		code := run(args, &out, &out)
		whole, exact := strings.CutPrefix(c.want, "=")
		if code != c.code || exact && out.String() != whole || !exact && !strings.Contains(out.String(), c.want) {
			t.Errorf("%s %.300q: exit code %d, %q; want %d, %q", c.flag, c.files, code, &out, c.code, c.want)
		}
	}
	var out bytes.Buffer
	if code := run([]string{"/no/such/file"}, &out, &out); code != 2 {
		t.Errorf("a file that is not there: exit code %d", code)
	}
}
