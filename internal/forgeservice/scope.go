package forgeservice

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/forge"
)

// Scope holds the issue and the pull requests of it to which an agent may write. A Scope
// never changes: [Scope.With] returns another. The zero Scope has none.
type Scope struct {
	issue int
	pulls []int
}

// NewScope returns the Scope of an issue and its pull requests.
func NewScope(issue int, pulls ...int) (Scope, error) {
	if issue < 1 || slices.ContainsFunc(pulls, func(n int) bool { return n < 1 }) {
		return Scope{}, errors.New("numbers of issues and pull requests begin with 1")
	}
	pulls = slices.Clone(pulls)
	slices.Sort(pulls)
	return Scope{issue, slices.Compact(pulls)}, nil
}

// With returns a Scope with one more pull request.
func (s Scope) With(pull int) (Scope, error) {
	return NewScope(s.issue, append(slices.Clone(s.pulls), pull)...)
}

// has reports whether a thread is in the scope. Where issues and pull requests are not
// numbered apart, the number alone tells.
func (s Scope) has(at forge.Thread, apart bool) bool {
	if at.Number < 1 {
		return false
	}
	issue, pull := at.Number == s.issue, slices.Contains(s.pulls, at.Number)
	if !apart {
		return issue || pull
	}
	return at.Pull && pull || !at.Pull && issue
}

// list returns the threads of the scope, for an agent.
func (s Scope) list(apart bool) string {
	if s.issue < 1 {
		return "nothing"
	}
	names := []string{"#" + strconv.Itoa(s.issue)}
	if apart {
		names[0] = "issue " + names[0]
	}
	for _, n := range s.pulls {
		switch {
		case apart:
			names = append(names, "pull request #"+strconv.Itoa(n))
		case n != s.issue:
			names = append(names, "#"+strconv.Itoa(n))
		}
	}
	return strings.Join(names, ", ")
}

// errKind asks for a kind where the number does not tell.
var errKind = errors.New(`field "kind": issues and pull requests are numbered apart here: say issue or pull_request`)

// thread returns the thread that an agent means.
func (s Scope) thread(number int, kind string, apart bool) (forge.Thread, error) {
	issue, pull := forge.Thread{Number: number}, forge.Thread{Number: number, Pull: true}
	switch {
	case kind == "pull_request":
		return pull, nil
	case kind == "issue":
		return issue, nil
	case kind != "":
		return forge.Thread{}, errors.New(`field "kind": want issue or pull_request`)
	case !apart:
		// Which of the two it is, the forge knows by itself.
		return forge.Thread{Number: number, Pull: slices.Contains(s.pulls, number)}, nil
	case s.has(issue, true) && !s.has(pull, true):
		return issue, nil
	case s.has(pull, true) && !s.has(issue, true):
		return pull, nil
	}
	return forge.Thread{}, errKind
}

// scopeError refuses a write.
func (s Scope) scopeError(number int, apart bool) error {
	return fmt.Errorf("write to #%d denied: out of assigned scope (writable: %s)", number, s.list(apart))
}
