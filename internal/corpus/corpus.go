// Package corpus is the host's side of the hostile corpus: it plants what an
// attacker would want, runs the attacks of package attacker in real bottles of
// this machine, and says what became of each.
//
// What it promises: an attack counts as contained only when it was made, its
// control worked, and nothing of what was planted was reached; one that could
// not be made counts as untried, with the reason. Where there is something on
// the host to look at, that decides and not the attacker's word. Everything is
// done in a temporary directory with a state of its own, and nothing is left.
// Servers are on the loopback; no name is looked up elsewhere.
//
// `carboy escape-test` and the tests in internal/hostile run the same corpus.
// Start reading at [Run], then at [scenes].
package corpus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/corpus/attacker"
)

// schema names the JSON form of a Report.
const schema = "carboy.dev/escape-test/v1"

// Outcome says whether an attack was contained.
type Outcome string

// The outcomes. An attack that was not tried is never contained.
const (
	Contained Outcome = "contained"
	Escaped   Outcome = "escaped"
	Untried   Outcome = "untried"
)

// Result holds one attack and its outcome.
type Result struct {
	ID        string         `json:"id"`
	Family    string         `json:"family"`
	Promise   string         `json:"promise"`
	Technique string         `json:"technique"`
	Defence   string         `json:"defence"`
	Source    string         `json:"source"`
	Judge     attacker.Judge `json:"decided_by"`
	Outcome   Outcome        `json:"outcome"`
	// Ways counts the ways in which the technique was tried.
	Ways int `json:"ways"`
	// Took is the duration of the attack and its control.
	Took time.Duration `json:"duration_ns"`
	// Detail says how the attack was refused, how it escaped, or why it was not tried.
	// It may hold text from inside.
	Detail string `json:"detail"`
}

// Counts counts attacks by outcome.
type Counts struct {
	Attacks   int `json:"attacks"`
	Contained int `json:"contained"`
	Escaped   int `json:"escaped"`
	Untried   int `json:"untried"`
}

func (c *Counts) add(o Outcome) {
	c.Attacks++
	switch o {
	case Contained:
		c.Contained++
	case Escaped:
		c.Escaped++
	default:
		c.Untried++
	}
}

// FamilyReport sums up one family.
type FamilyReport struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Promises []string `json:"promises"`
	Counts
}

// Report holds the results of a run of the corpus.
type Report struct {
	Schema  string        `json:"schema"`
	Build   string        `json:"build"`
	Kernel  string        `json:"kernel"` // of the host
	User    string        `json:"user"`   // root or ordinary
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"duration_ns"`
	Bottles int           `json:"bottles"`
	Verdict Outcome       `json:"verdict"`
	Counts
	Families []FamilyReport `json:"families"`
	Results  []Result       `json:"results"`
}

// Family is a group of attacks.
type Family struct{ Name, Title string }

// Families lists the families in the order in which they are run and shown.
var Families = []Family{
	{"host-files", "files of the host"},
	{"host-processes", "processes of the host"},
	{"kernel-interfaces", "interfaces of a kernel"},
	{"devices", "devices and terminals"},
	{"namespaces", "namespaces and mounts"},
	{"sockets", "Unix sockets and descriptors"},
	{"network-card", "the network card"},
	{"host-ports", "loopback and ports of the host"},
	{"names", "names and DNS"},
	{"literals", "addresses, in every spelling"},
	{"private-names", "allowed names that lead inside"},
	{"datagrams", "datagrams and raw packets"},
	{"http", "HTTP authority"},
	{"tls", "TLS server names"},
	{"credentials", "credentials that are put on"},
	{"placeholders", "what stands in their place"},
	{"secrets", "secrets on their way out"},
	{"bodies", "bodies that are looked at"},
	{"git-gate", "pushes through the git gate"},
	{"floods", "floods and limits"},
	{"landing", "workspace and landing"},
	{"terminal-text", "text that reaches a terminal"},
	{"trace", "the trace of what happened"},
	{"records", "records and the audit log"},
}

// Options sets what to run. The zero value runs everything.
type Options struct {
	// Backend names the backend that runs the bottles; empty: the default.
	Backend string
	// Families lists the families to run; empty: all.
	Families []string
	// Attacks lists the attacks to run, by their ids; empty: all of the families.
	Attacks []string
	// Progress is called before each scene with the number of attacks done, the number
	// of all attacks, and the name of the next scene. It may be nil.
	Progress func(done, total int, next string)
}

// Catalogue returns all attacks, family by family in the order of [Families].
func Catalogue() []attacker.Attack {
	all := attacker.All()
	rank := map[string]int{}
	for i, f := range Families {
		rank[f.Name] = i
	}
	slices.SortStableFunc(all, func(a, b attacker.Attack) int { return rank[a.Family] - rank[b.Family] })
	return all
}

// scene makes several attacks together, in one or a few bottles.
type scene struct {
	name     string
	families []string
	// run makes the chosen attacks and notes a verdict for each.
	run func(l *lab, chosen []attacker.Attack) error
}

// scenes lists the scenes in the order in which they run, one after the other: some
// measure the host.
var scenes = []scene{
	{"the seal", []string{"host-files", "host-processes", "kernel-interfaces", "devices", "namespaces", "sockets", "network-card"}, seal},
	{"the wire", []string{"host-ports", "names", "literals", "private-names", "datagrams", "http", "tls"}, wire},
	{"credentials", []string{"credentials", "placeholders"}, credentialed},
	{"what leaves", []string{"secrets", "bodies"}, leaving},
	{"the git gate", []string{"git-gate"}, pushes},
	{"floods", []string{"floods"}, floods},
	{"the way home", []string{"landing", "terminal-text"}, wayHome},
	{"the trace", []string{"trace"}, traced},
	{"records", []string{"records"}, records},
}

// Run runs the corpus. It returns a report unless the corpus could not be set up at all.
// Attacks that had not begun when ctx ended are untried.
func Run(ctx context.Context, o Options) (*Report, error) {
	for _, f := range o.Families {
		if !slices.ContainsFunc(Families, func(k Family) bool { return k.Name == f }) {
			return nil, fmt.Errorf("no family of attacks is called %q", f)
		}
	}
	for _, id := range o.Attacks {
		if !slices.ContainsFunc(attacker.All(), func(a attacker.Attack) bool { return a.ID == id }) {
			return nil, fmt.Errorf("no attack is called %q", id)
		}
	}
	rep := &Report{Schema: schema, Build: carboy.Version(), Kernel: kernelRelease(), User: userKind(), Started: time.Now().UTC().Truncate(time.Second)}
	start := time.Now()
	all := slices.DeleteFunc(Catalogue(), func(a attacker.Attack) bool {
		return len(o.Families) > 0 && !slices.Contains(o.Families, a.Family) || len(o.Attacks) > 0 && !slices.Contains(o.Attacks, a.ID)
	})
	verdicts := map[string]verdict{}
	done := 0
	for _, s := range scenes {
		chosen := slices.DeleteFunc(slices.Clone(all), func(a attacker.Attack) bool { return !slices.Contains(s.families, a.Family) })
		if len(chosen) == 0 || ctx.Err() != nil {
			continue
		}
		if o.Progress != nil {
			o.Progress(done, len(all), s.name)
		}
		if err := perform(ctx, o.Backend, s, chosen, verdicts, &rep.Bottles, func(n int) {
			if o.Progress != nil {
				o.Progress(done+n, len(all), s.name)
			}
		}); err != nil {
			return nil, err
		}
		done += len(chosen)
	}
	rep.fill(all, verdicts)
	rep.Took = time.Since(start)
	return rep, nil
}

// perform runs one scene in a lab of its own, and removes the lab.
func perform(ctx context.Context, backend string, s scene, chosen []attacker.Attack, verdicts map[string]verdict, bottles *int, progress func(int)) error {
	l, err := newLab(ctx, backend)
	if err != nil {
		return fmt.Errorf("set up %s: %w", s.name, err)
	}
	l.progress = progress
	err = s.run(l, chosen)
	for id, v := range l.verdicts {
		verdicts[id] = v
	}
	if err != nil {
		for _, a := range chosen {
			if _, ok := verdicts[a.ID]; !ok {
				verdicts[a.ID] = untried("%s: %v", s.name, err)
			}
		}
	}
	*bottles += l.bottles
	if cerr := l.close(); cerr != nil {
		return fmt.Errorf("clear away: %w", cerr)
	}
	var unavailable *bottle.UnavailableError
	if errors.As(err, &unavailable) {
		return err
	}
	return nil
}

func (r *Report) fill(all []attacker.Attack, verdicts map[string]verdict) {
	at := map[string]int{}
	for _, a := range all {
		v, ok := verdicts[a.ID]
		if !ok {
			v = untried("it was not reached")
		}
		if _, ok := at[a.Family]; !ok {
			at[a.Family] = len(r.Families)
			r.Families = append(r.Families, FamilyReport{Name: a.Family, Title: titleOf(a.Family)})
		}
		f := &r.Families[at[a.Family]]
		if !slices.Contains(f.Promises, a.Promise) {
			f.Promises = append(f.Promises, a.Promise)
		}
		f.add(v.outcome)
		r.add(v.outcome)
		r.Results = append(r.Results, Result{
			ID: a.ID, Family: a.Family, Promise: a.Promise, Technique: a.How, Defence: a.Defence, Source: a.Source, Judge: a.Judge,
			Outcome: v.outcome, Ways: max(1, v.ways), Took: v.took, Detail: v.detail,
		})
	}
	switch {
	case r.Escaped > 0:
		r.Verdict = Escaped
	case r.Untried > 0 || r.Contained == 0:
		r.Verdict = Untried
	default:
		r.Verdict = Contained
	}
}

func titleOf(family string) string {
	for _, f := range Families {
		if f.Name == family {
			return f.Title
		}
	}
	return family
}

// verdict holds one attack's outcome and its reason.
type verdict struct {
	outcome Outcome
	ways    int
	detail  string
	took    time.Duration
}

func contained(format string, args ...any) verdict {
	return verdict{outcome: Contained, ways: 1, detail: fmt.Sprintf(format, args...)}
}
func escaped(format string, args ...any) verdict {
	return verdict{outcome: Escaped, ways: 1, detail: fmt.Sprintf(format, args...)}
}
func untried(format string, args ...any) verdict {
	return verdict{outcome: Untried, ways: 1, detail: fmt.Sprintf(format, args...)}
}
