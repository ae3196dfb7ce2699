package scan

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"regexp"
	"strings"
	"testing"
)

var fromGitleaks = flag.String("gitleaks", "", "gitleaks.toml of github.com/zricethezav/gitleaks/v8, from which to write tokens_gitleaks.go again")

// TestWriteRules is not a test: with -gitleaks it writes the table of rules.
// It reads the little of TOML that this file uses.
func TestWriteRules(t *testing.T) {
	if *fromGitleaks == "" {
		return
	}
	text, err := os.ReadFile(*fromGitleaks)
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile(`'''(.*?)'''|"([^"]*)"`)
	list := func(s string) (out []string) {
		for _, m := range quoted.FindAllStringSubmatch(s, -1) {
			out = append(out, m[1]+m[2])
		}
		return out
	}
	var w bytes.Buffer
	w.WriteString(gitleaksHeader)
	head, rest, _ := strings.Cut(string(text), "[[rules]]")
	array := func(s, key string) []string {
		i := strings.Index(s, "\n"+key+" = [")
		if i < 0 {
			return nil
		}
		s = s[i:]
		if one, _, _ := strings.Cut(s[1:], "\n"); strings.HasSuffix(one, "]") {
			return list(one[strings.Index(one, "[")+1:])
		}
		return list(s[strings.Index(s, "[")+1 : strings.Index(s, "\n]")])
	}
	fmt.Fprintf(&w, "var gitleaksAllowed = []string{\n")
	for _, r := range array(head, "regexes") {
		fmt.Fprintf(&w, "%q,\n", r)
	}
	fmt.Fprintf(&w, "}\n\nvar gitleaksStopwords = %#v\n\nvar gitleaksRules = []tokenRule{\n", array(head, "stopwords"))
	for _, block := range strings.Split(rest, "[[rules]]") {
		block, allow, _ := strings.Cut("\n"+block, "[[rules.allowlists]]")
		one := func(key string) string {
			m := regexp.MustCompile(`(?m)^` + key + ` = (?:'''(.*)'''|"(.*)"|([0-9.]+))$`).FindStringSubmatch(block)
			if m == nil {
				return ""
			}
			return m[1] + m[2] + m[3]
		}
		fmt.Fprintf(&w, "{id: %q, regex: %q", one("id"), one("regex"))
		if e := one("entropy"); e != "" {
			fmt.Fprintf(&w, ", entropy: %s", e)
		}
		if g := one("secretGroup"); g != "" {
			fmt.Fprintf(&w, ", group: %s", g)
		}
		for _, a := range strings.Split(allow, "[[rules.allowlists]]") {
			var keep []string
			for _, r := range array("\n"+a, "regexes") {
				// Whole example keys look like keys, and are none of ours.
				if !strings.HasPrefix(r, "AIza") {
					keep = append(keep, r)
				}
			}
			if len(keep) > 0 && !strings.Contains(a, "regexTarget") {
				fmt.Fprintf(&w, ", allow: %#v", keep)
			}
		}
		w.WriteString("},\n")
	}
	w.WriteString("}\n")
	out, err := format.Source(w.Bytes())
	if err != nil {
		t.Fatal(err, w.String())
	}
	if err := os.WriteFile("tokens_gitleaks.go", out, 0o644); err != nil {
		t.Fatal(err)
	}
}

const gitleaksHeader = `// Code generated from the rules of gitleaks; DO NOT EDIT.
// go test ./internal/scan -run WriteRules -gitleaks FILE, where FILE is config/gitleaks.toml of
// github.com/zricethezav/gitleaks/v8 v8.30.1. Examples of whole keys are left out.
//
// MIT License
//
// Copyright (c) 2019 Zachary Rice
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.

package scan

`
