package gate

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// maxAgain bounds the failed tests of a phase that run again: more are no accident.
const maxAgain = 10

// timesAgain counts the runs of failed tests alone.
const timesAgain = 2

// runAgain runs failed tests of a phase again, without the others, each time in a fresh
// bottle. It returns the results of those that then passed, for people, by id.
func (x *testComparison) runAgain(ctx context.Context, s *Signal, t *Tree, was *Phase, failed []string) (map[string]string, error) {
	failed = slices.DeleteFunc(slices.Clone(failed), func(id string) bool { return !isOneTest(x.k.format, id) })
	if len(failed) == 0 || len(failed) > maxAgain {
		return nil, nil
	}
	alone := x.k.alone(s, failed)
	how, passed := map[string]string{}, map[string]bool{}
	for n := range timesAgain {
		p, err := x.c.g.again(ctx, alone, t, was, n+1)
		if err != nil {
			return nil, err
		}
		var inv *inventory
		if p.exited() {
			inv, _ = x.k.read(p)
		}
		for _, id := range failed {
			st := testFailed
			if inv != nil && inv.tests[id] != "" {
				st = inv.tests[id]
			}
			how[id] += fmt.Sprintf(", %s (%.1fs)", st, p.Duration.Seconds())
			passed[id] = passed[id] || st == testPassed
		}
	}
	for _, id := range failed {
		if !passed[id] {
			delete(how, id)
		}
	}
	return how, nil
}

// isOneTest reports whether an id is that of a test, not of a file or package that can't
// be built or loaded.
func isOneTest(format, id string) bool {
	if format == "go" {
		return goTestOf(id) != ""
	}
	return format == "junit" || strings.Contains(id, "::")
}

// again runs a signal's command once more on the tree of a phase.
func (g *Gate) again(ctx context.Context, s *Signal, t *Tree, was *Phase, n int) (*Phase, error) {
	var w *Warm
	if len(s.Warm) > 0 && was.Stale == nil {
		var err error
		if w, err = g.baseCaches(ctx); err != nil {
			return nil, err
		}
	}
	p, err := g.start(ctx, s, t, was.On, w, nil)
	if err != nil {
		return nil, err
	}
	p.On, p.Stale = fmt.Sprintf("%s-alone-%d", was.On, n), was.Stale
	g.mu.Lock()
	defer g.mu.Unlock()
	g.phases = append(g.phases, p)
	return p, nil
}

var plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\w+$`) })

// alone returns a signal whose command runs only some tests, where its runner has a way
// to say so; else it runs all.
func (k testsKind) alone(s *Signal, ids []string) *Signal {
	var names []string
	for _, id := range ids {
		name, _, _ := strings.Cut(strings.TrimPrefix(id[strings.LastIndex(id, "::")+1:], ":"), "[")
		if k.format == "go" {
			name = goTestOf(id)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	words := commandWords(s.Command)
	runs := func(program string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return path.Base(w) == program })
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = regexp.QuoteMeta(n)
	}
	pattern := "^(" + strings.Join(quoted, "|") + ")$"
	x := *s
	switch {
	case k.format == "go" && len(s.Command) > 1 && path.Base(s.Command[0]) == "go" && s.Command[1] == "test":
		x.Command = slices.Insert(slices.Clone(s.Command), 2, "-run="+pattern)
	case k.format == "pytest" && !slices.ContainsFunc(names, func(n string) bool { return !plainName().MatchString(n) }):
		return s.withEnv("PYTEST_ADDOPTS", "-k '"+strings.Join(names, " or ")+"'")
	case (k.format == "jest" || k.format == "vitest") && runs(k.format):
		x.Command = append(slices.Clone(s.Command), "-t", pattern)
	}
	return &x
}

// goTestOf returns the name of the function that an id of Go stands for; empty: it is a
// package's.
func goTestOf(id string) string {
	for _, n := range []string{".Test", ".Fuzz", ".Example"} {
		if i := strings.Index(id, n); i >= 0 && !strings.Contains(id, " [") {
			name, _, _ := strings.Cut(id[i+1:], "/")
			return name
		}
	}
	return ""
}

// settle takes the tests that fail only sometimes out of a list of failed ones, as the
// catalog's policy says, and reports all of them. old: they are as the base has them.
func (x *testComparison) settle(failed []string, how map[string]string, old bool) (left []string) {
	for _, id := range failed {
		times, sometimes := how[id]
		if !sometimes {
			left = append(left, id)
			continue
		}
		f := Finding{ID: id, Text: "flaky: it failed, and when it ran again alone it" + strings.TrimPrefix(times, ",")}
		if old {
			f.Text = "as the base has it, " + f.Text
		}
		switch x.k.flaky {
		case "fail":
			x.f.Failed = append(x.f.Failed, id)
		case "pass":
			x.f.FlakyPassed = append(x.f.FlakyPassed, id)
			f.Noted = true
		default:
			x.f.Flaky = append(x.f.Flaky, id)
		}
		x.found = append(x.found, f)
	}
	return left
}
