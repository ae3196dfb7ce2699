package manifest

import "strings"

// Listed is an agent as a list has it. What it says of itself may be a repository's
// word.
type Listed struct {
	Name        string
	Description string // the first line of it
	Bottles     []string
	InRepo      bool
	// Err is why its file can't be used; the name is all that is known then.
	Err error
}

// maxListed bounds how many files are read for a list.
const maxListed = 500

// Agents are all that there are, by name. Unlike Names it reads their files.
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
