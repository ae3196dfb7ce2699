package manifest

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

// agent finds and reads an agent. Keys by which an agent could widen its bottle are
// errors, in the user's own directory too.
func (s *Set) agent(name string) (*Agent, error) {
	if !validName(name) {
		return nil, fmt.Errorf("%.80q is no name of an agent: names are [a-z][a-z0-9-]*", name)
	}
	f, err := s.find("agents", name)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, s.missing("agent", "agents", name)
	}
	front, body, line, err := split(f.path, f.text)
	if err != nil {
		return nil, err
	}
	d, root, err := document.Parse(f.path, front)
	if err != nil {
		return nil, err
	}
	r := &reader{s, f.kind}
	m := root.MappingWithout(notAgents, agentKeys...)
	a := &Agent{Name: name, File: f.path, InRepo: f.kind == repo, Bottles: r.names(m.Get("bottle")), Vendor: map[string]Value[[]string]{}}
	for _, e := range m.Get("skills").List() {
		n := e.Text()
		switch {
		case n == "":
		case !validName(n):
			e.Bad(fmt.Sprintf("%.40q is no name of a skill", n), "names are kebab-case: [a-z][a-z0-9-]*")
		default:
			a.Skills = append(a.Skills, said(e, n))
		}
	}
	a.User = r.user(m.Get("git-gate").MappingWithout(map[string]string{"repos": "repositories belong into a bottle: an agent can't widen one"}, "user").Get("user"))
	for _, k := range vendorKeys {
		v := m.Get(k)
		switch {
		case !v.Present():
		case k == "tools" && v.IsList():
			a.Vendor[k] = said(v, v.Strings())
		default:
			a.Vendor[k] = said(v, []string{v.Text()})
		}
	}
	if p := strings.TrimSpace(string(body)); p != "" {
		line += strings.Count(string(body[:bytes.Index(body, []byte(p))]), "\n")
		a.Prompt = Value[string]{V: p, From: Origin{File: f.path, Line: line, Column: 1}}
	}
	if a.InRepo {
		s.noteShadowed(name, f.path)
	}
	return a, d.Err()
}

// noteShadowed warns if a repository's agent replaces the user's own.
func (s *Set) noteShadowed(name, by string) {
	for _, u := range s.users {
		if f, _ := s.readUsers(u, u.base+"/agents/"+name+".md"); f != nil {
			s.files = s.files[:len(s.files)-1]
			s.warn(by, "the repository's agent "+name+" takes the place of your own, "+f.path, "rename one of them")
			return
		}
	}
}

// missing returns the error about a name without a file.
func (s *Set) missing(thing, what, name string) error {
	advice := "there is none yet: carboy init writes one"
	if names := s.Names(what); len(names) > 0 {
		const shown = 20
		more := ""
		if len(names) > shown {
			names, more = names[:shown], fmt.Sprintf(" and %d more", len(names)-shown)
		}
		advice = "there are: " + strings.Join(names, ", ") + more
		if near := document.Nearest(name, s.Names(what)); near != "" {
			advice = "did you mean " + near + "? (" + advice + ")"
		}
	}
	if s.old != "" {
		advice += "; " + s.old + " is a manifest of the old form, which is not read"
	}
	e := &MissingError{Thing: thing, Name: name, Advice: advice}
	for _, u := range s.users {
		e.Looked = append(e.Looked, u.base+"/"+what)
	}
	if len(e.Looked) == 0 {
		e.Looked = []string{s.where.Config + "/" + what}
	}
	for _, r := range s.repos {
		if what == "agents" {
			e.Looked = append(e.Looked, s.repoReal+"/"+r.base+"/"+what)
		} else if f, _ := openBeneath(s.repoReal, r.base+"/"+what+"/"+name+".md", 0); f != nil {
			f.Close()
			e.Advice = "one of that name is in the repository (" + f.Name() + "), which grants itself nothing: copy it to " + s.where.Config + "/bottles if you want what it says"
		}
	}
	return e
}

// MissingError reports a bottle or agent that does not exist.
type MissingError struct {
	Thing, Name string
	From        Origin // who asked for it; zero: the command line
	Looked      []string
	Advice      string
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("no %s is called %q", e.Thing, e.Name)
	if !e.From.IsZero() {
		s = e.From.String() + ": " + e.From.Field + ": " + s
	}
	return s + " (looked in " + strings.Join(e.Looked, ", ") + ")"
}
