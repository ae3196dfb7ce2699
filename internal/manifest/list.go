package manifest

import "strings"

// Listed is an agent in a list. Its description may come from a repository.
type Listed struct {
	Name        string
	Description string // the first line of it
	Bottles     []string
	InRepo      bool
	// Err tells why its file can't be used; then only Name is set.
	Err error
}

// Broken tells why bottles can't be used, by name.
func (s *Set) Broken(bottles []string) map[string]error {
	out := map[string]error{}
	for _, name := range bottles[:min(len(bottles), maxListed)] {
		if _, err := s.whole(Value[string]{V: name}, nil); err != nil {
			out[name] = err
		}
	}
	return out
}

// maxListed bounds the files that are read for a list.
const maxListed = 500

// Agents returns all agents, sorted by name. Unlike Names it reads their files.
func (s *Set) Agents() []Listed {
	var out []Listed
	for i, name := range s.Names("agents") {
		l := Listed{Name: name}
		if i < maxListed {
			if a, err := s.agent(name); err != nil {
				l.Err = err
			} else {
				l.InRepo = a.InRepo
				l.Description, _, _ = strings.Cut(strings.TrimSpace(strings.Join(a.Vendor["description"].V, " ")), "\n")
				for _, b := range a.Bottles {
					l.Bottles = append(l.Bottles, b.V)
				}
			}
		}
		out = append(out, l)
	}
	return out
}
