package manifest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
)

// Effective is an agent with its bottle, merged from all files. It is not changed
// any more.
type Effective struct {
	Agent   *Agent
	Bottles []Value[string] // by name, in the order in which they were put together
	Bottle
	// User is the committer: the agent's if set, else the bottle's.
	User User
	// Files lists the files that were read for it.
	Files []File
	// Warnings are sentences for the user.
	Warnings []document.Problem

	hidden map[Origin]bool // where what looks like a secret stands
}

// Default is the bottle that an agent gets when neither it nor the command line
// names one.
const Default = "default"

// Bounds of the bottles that a bottle extends.
const (
	maxExtends = 64  // in a row
	maxBottles = 500 // in all
)

// Resolve merges the bottles for agent: the ones named, or else those that the agent
// names, or else the one called default. Later ones win.
func (s *Set) Resolve(agent string, bottles []string) (*Effective, error) {
	a, err := s.agent(agent)
	if err != nil {
		return nil, err
	}
	e := &Effective{Agent: a, Bottles: a.Bottles}
	if len(bottles) > 0 {
		e.Bottles = nil
		for i, b := range bottles {
			if slices.Contains(bottles[:i], b) {
				return nil, fmt.Errorf("bottle %q is given twice", b)
			}
			e.Bottles = append(e.Bottles, Value[string]{V: b})
		}
	}
	if len(e.Bottles) == 0 {
		if f, err := s.find("bottles", Default); f == nil && err == nil {
			return nil, &MissingError{Thing: "bottle", Name: Default, Looked: []string{s.where.Config + "/bottles"},
				Advice: "the agent names none: say bottle: NAME in " + a.File + ", or --bottle NAME, or make one called " + Default}
		}
		e.Bottles = []Value[string]{{V: Default}}
	}
	for _, b := range e.Bottles {
		whole, err := s.whole(b, nil)
		if err != nil {
			return nil, err
		}
		e.Bottle.over(whole)
	}
	e.User = e.Git.User
	e.User.over(a.User)
	if err := e.finish(s); err != nil {
		return nil, err
	}
	e.Files, e.Warnings, e.hidden = unique(s.files), slices.Clone(s.warned), maps.Clone(s.hidden)
	return e, nil
}

func unique(files []File) []File {
	out := slices.Clone(files)
	slices.SortStableFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(out)
}

// whole returns a bottle merged with all that it extends. path lists the bottles that
// led to it.
func (s *Set) whole(name Value[string], path []Value[string]) (*Bottle, error) {
	for i, p := range path {
		if p.V == name.V {
			return nil, document.Error{name.From.problem("extends goes in a circle: "+circle(append(path[i:], name)), "take one of them out")}
		}
	}
	if len(path) >= maxExtends {
		return nil, document.Error{name.From.problem(fmt.Sprintf("more than %d bottles extend one another in a row", maxExtends), "")}
	}
	l := s.bottles[name.V]
	if l == nil {
		if len(s.bottles) >= maxBottles {
			return nil, document.Error{name.From.problem(fmt.Sprintf("more than %d bottles", maxBottles), "")}
		}
		l = &loaded{}
		s.bottles[name.V] = l
		l.bottle, l.err = s.bottle(name)
	}
	if l.err != nil || l.whole != nil {
		return l.whole, l.err
	}
	whole := &Bottle{}
	path = append(slices.Clip(path), name)
	for _, parent := range l.bottle.Extends {
		p, err := s.whole(parent, path)
		if err != nil {
			return nil, err
		}
		whole.over(p)
	}
	whole.over(l.bottle)
	whole.Extends, whole.Egress.behind = l.bottle.Extends, l.bottle.Egress.behind
	l.whole = whole
	return whole, nil
}

func circle(path []Value[string]) string {
	var out []string
	for i, p := range path {
		name := p.V
		if i > 0 {
			name += " (" + p.From.String() + ")"
		}
		out = append(out, name)
	}
	return strings.Join(out, " -> ")
}

// bottle reads one bottle's own file.
func (s *Set) bottle(name Value[string]) (*Bottle, error) {
	if !validName(name.V) {
		return nil, fmt.Errorf("%.80q is no name of a bottle: names are [a-z][a-z0-9-]*", name.V)
	}
	f, err := s.find("bottles", name.V)
	if err != nil {
		return nil, err
	}
	if f == nil {
		err := s.missing("bottle", "bottles", name.V)
		if m, ok := err.(*MissingError); ok {
			m.From = name.From
		}
		return nil, err
	}
	return s.readBottle(f)
}

// over replaces the settings of b that src sets. It does not change src.
func (b *Bottle) over(src *Bottle) {
	env := maps.Clone(b.Env)
	for k, v := range src.Env {
		if env == nil {
			env = map[string]Value[string]{}
		}
		had := env[k]
		over(&had, v)
		env[k] = had
	}
	b.Env = env
	b.Provider.over(src.Provider)
	b.Git.over(src.Git)
	b.Egress.over(src.Egress)
	b.Services.over(src.Services)
	over(&b.Supervise, src.Supervise)
	over(&b.Workspace, src.Workspace)
	over(&b.Backend, src.Backend)
	if slices.Index(Isolations, src.Isolation.V) > slices.Index(Isolations, b.Isolation.V) {
		over(&b.Isolation, src.Isolation) // the strongest holds: no bottle weakens another
	}
	l, o := &b.Limits, src.Limits
	over(&l.Memory, o.Memory)
	over(&l.Disk, o.Disk)
	over(&l.Output, o.Output)
	over(&l.EgressBytes, o.EgressBytes)
	over(&l.Pids, o.Pids)
	over(&l.CPUs, o.CPUs)
	over(&l.Timeout, o.Timeout)
	over(&l.Approval, o.Approval)
}

func (g *Git) over(src Git) {
	g.User.over(src.User)
	repos := maps.Clone(g.Repos)
	if !src.Cleared.IsZero() {
		repos, g.Cleared = nil, src.Cleared
	}
	for name, r := range src.Repos {
		if repos == nil {
			repos = map[string]Repo{}
		}
		had, ok := repos[name]
		if !ok {
			repos[name] = r
			continue
		}
		// One of the two ways to a key: the later bottle's.
		if r.Identity.IsSet() {
			had.Key = Value[Key]{}
		}
		if r.Key.IsSet() {
			had.Identity = Value[string]{}
		}
		had.From, had.legacy = r.From, had.legacy || r.legacy
		over(&had.URL, r.URL)
		over(&had.Identity, r.Identity)
		over(&had.HostKey, r.HostKey)
		over(&had.Key, r.Key)
		over(&had.TokenEnv, r.TokenEnv)
		over(&had.TokenUser, r.TokenUser)
		over(&had.Aliases, r.Aliases)
		repos[name] = had
	}
	g.Repos = repos
}

// over puts src's routes before e's: the first that a request meets decides, and
// later bottles win. Those of bot-bottle's files go behind. All stay, but those that are
// the same, and those of which a later bottle says that connections to their host are of
// another kind.
func (e *Egress) over(src Egress) {
	over(&e.Log, src.Log)
	if len(src.Routes) == 0 && len(src.Replaced) == 0 {
		return
	}
	type kindOf struct {
		private, opaque bool
		protocol        policy.Protocol
	}
	kindsOf := func(r Route) kindOf { return kindOf{r.Private(), r.Options().Opaque, r.Protocol()} }
	same := map[string][]Route{}
	kinds := map[string]Route{}
	for _, r := range src.Routes {
		same[r.id] = append(same[r.id], r)
		for _, p := range r.ports {
			if _, ok := kinds[p]; !ok {
				kinds[p] = r
			}
		}
	}
	first, then := src.Routes, make([]Route, 0, len(src.Routes)+len(e.Routes))
	replaced := slices.Clone(e.Replaced)
	twice := map[Origin]bool{}
next:
	for _, r := range e.Routes {
		for _, o := range same[r.id] {
			if !sameRoute(r, o) {
				continue
			}
			if src.behind { // r has its place already
				twice[o.From] = true
				then = append(then, r)
			}
			continue next
		}
		for _, p := range r.ports {
			if by, ok := kinds[p]; ok && kindsOf(by) != kindsOf(r) {
				r.By = by.From
				replaced = append(replaced, r)
				continue next
			}
		}
		then = append(then, r)
	}
	if src.behind {
		first, then = then, slices.DeleteFunc(slices.Clone(src.Routes), func(r Route) bool { return twice[r.From] })
	}
	merged := slices.Concat(first, then)
	for _, r := range src.Replaced {
		if !slices.ContainsFunc(replaced, func(o Route) bool { return o.From == r.From }) {
			replaced = append(replaced, r)
		}
	}
	// A route that an earlier bottle lost and a later one sets again holds.
	replaced = slices.DeleteFunc(replaced, func(r Route) bool {
		return slices.ContainsFunc(merged, func(o Route) bool { return o.From == r.From })
	})
	e.Routes, e.Replaced = merged, replaced
}

func sameRoute(a, b Route) bool {
	return a.From == b.From || reflect.DeepEqual(a.Route.WithRule(""), b.Route.WithRule(""))
}

// checkRepos refuses repositories that could not be served as they are declared.
func (e *Effective) checkRepos(s *Set) (bad document.Error) {
	no := func(from Origin, what, advice string) { bad = append(bad, from.problem(what, advice)) }
	of := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(e.Git.Repos)) {
		r := e.Git.Repos[name]
		if !r.URL.IsSet() {
			no(r.From, "needs url: no bottle before says it", "")
			continue
		}
		if other, ok := of[r.URL.V]; ok {
			no(r.URL.From, "is the address of "+other+", too", "keep one of them")
		}
		of[r.URL.V] = name
		if r.Transport() == OverSSH {
			switch {
			case r.HostKey.IsSet():
			case r.legacy:
				s.warnAt(r.From.problem("has no host_key, and is neither fetched from nor pushed to", keyAdvice))
			default:
				no(r.From, "needs host_key: without it nobody knows who answers at that address", keyAdvice)
			}
		} else {
			for _, x := range []struct {
				from Origin
				key  string
			}{{r.Identity.From, "identity"}, {r.Key.From, "key"}, {r.HostKey.From, "host_key"}} {
				if !x.from.IsZero() {
					no(x.from, x.key+" is for ssh, and "+name+" is spoken to by "+string(r.Transport())+" ("+r.URL.From.String()+")", "leave it out, or write the url as ssh://git@HOST/PATH.git")
				}
			}
		}
		switch {
		case r.TokenEnv.IsSet() && r.Transport() != overHTTPS:
			no(r.TokenEnv.From, "token_env is for https, and "+name+" is spoken to by "+string(r.Transport())+" ("+r.URL.From.String()+")", "use identity or key for ssh")
		case r.Aliases.IsSet() && r.Transport() == overFile:
			no(r.Aliases.From, "aliases are of a host, and "+name+" is on this machine", "leave it out")
		case r.TokenUser.IsSet() && !r.TokenEnv.IsSet():
			no(r.TokenUser.From, "token_user needs token_env, the variable with the token", "")
		}
	}
	return bad
}

const keyAdvice = "ssh-keyscan HOST prints it; compare it with what the forge publishes, and write it as host_key: ssh-ed25519 AAAA…"

// finish fills in defaults and refuses conflicting settings.
func (e *Effective) finish(s *Set) error {
	var bad document.Error
	e.Provider.Template.fallback(DefaultTemplate)
	e.Supervise.fallback(true)
	e.Workspace.fallback("overlay")
	e.Egress.Log.fallback(logDefault)
	bad = append(bad, e.Provider.check()...)
	bad = append(bad, e.checkRepos(s)...)
	var all []policy.Route
	for _, r := range e.Egress.Routes {
		all = append(all, r.Route)
	}
	table, err := policy.Compile(all...)
	if err != nil {
		return err
	}
	bad = append(bad, e.Services.check(table)...)
	for _, r := range e.Egress.Routes {
		if by, ok := table.Shadowed(r.Route); ok {
			bad = append(bad, r.From.problem("never decides: a connection to "+r.Route.String()+" is of the kind that "+by+" says", "let both agree about private and inspect, or leave this one out"))
		}
	}
	if len(bad) > 0 {
		return bad
	}
	return nil
}
