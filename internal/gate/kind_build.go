package gate

import (
	"context"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	Register(Kind{Name: "build", Summary: "a command ends with 0 on the change", Runs: true, ByCode: true}, func(*Signal, document.Mapping) Judge[commandFacts] {
		return ranWell
	})
	Register(Kind{Name: "install", Summary: "dependencies are installed, from the lockfiles of the base", Runs: true, ByCode: true, Keys: []string{"lockfiles"}}, func(_ *Signal, m document.Mapping) Judge[installFacts] {
		mayChange := m.Get("lockfiles").OneOf("unchanged", "may-change") == "may-change"
		return func(ctx context.Context, c *Case) (installFacts, []Finding, error) {
			f := installFacts{MayChange: mayChange}
			changed, err := lockfilesThatDiffer(ctx, c.Base, c.Change)
			if err != nil {
				return f, nil, err
			}
			f.Changed = changed
			var found []Finding
			for _, p := range changed {
				found = append(found, Finding{ID: "lockfile", File: p, Noted: mayChange, Text: "the change asks for other dependencies than the base approves"})
			}
			// What is there already would be taken for what was installed.
			if f.Brought, err = differBelow(ctx, c.Base, c.Change, c.Keep); err != nil {
				return f, nil, err
			}
			for _, p := range f.Brought {
				found = append(found, Finding{ID: "brought", File: p, Text: "the change has a file of its own where " + c.Name + " installs; only what comes from the lockfile may be there"})
			}
			if len(f.Changed) > 0 && !mayChange || len(f.Brought) > 0 {
				return f, found, nil
			}
			run, more, err := ranWell(ctx, c)
			f.Run = run
			return f, append(found, more...), err
		}
	})
}

// commandFacts are those of a command that ran on the change.
type commandFacts struct {
	Code     int    `json:"exit_code"`
	Ended    bool   `json:"ended_by_itself"`
	Programs uint64 `json:"programs_executed"`
}

func (f commandFacts) Positive() bool { return f.Ended && f.Code == 0 && f.Programs > 0 }

type installFacts struct {
	Run       commandFacts `json:"run"`
	Changed   []string     `json:"lockfiles_changed,omitempty"`
	MayChange bool         `json:"lockfiles_may_change"`
	// Brought are files of the change where dependencies are installed.
	Brought []string `json:"brought_along,omitempty"`
}

func (f installFacts) Positive() bool {
	return f.Run.Positive() && (f.MayChange || len(f.Changed) == 0) && len(f.Brought) == 0
}

func ranWell(ctx context.Context, c *Case) (commandFacts, []Finding, error) {
	p, err := c.Run(ctx, c.Change)
	if err != nil {
		return commandFacts{}, nil, err
	}
	f := factsOf(p)
	return f, exitFinding(p), nil
}

func factsOf(p *Phase) commandFacts {
	f := commandFacts{Code: p.Code, Ended: p.Own()}
	for _, x := range p.Observed.Execs {
		f.Programs += x.Count
	}
	return f
}

// exitFinding is what a command that failed had to say.
func exitFinding(p *Phase) []Finding {
	if p.Code == 0 {
		return nil
	}
	return []Finding{{ID: "exit", Text: fmt.Sprintf("%s ended with %d", p.Command[0], p.Code), Detail: firstErrors(p)}}
}

// firstErrors are the lines that people look for first: the first and last of standard
// error, or of standard output where that is empty. They are the phase's own words.
func firstErrors(p *Phase) string {
	b := p.Stderr.Bytes
	if len(b) == 0 {
		b = p.Stdout.Bytes
	}
	return ends(string(b), maxDetail)
}

// ends are the first and the last lines of a text, of at most n bytes, 200 or more,
// without tokens and private keys. A line that is too long for that is cut where no token
// can be, or left out.
func ends(s string, n int) string {
	if s = masked(s); len(s) <= n {
		return s
	}
	// Half a line may be half of what is not to be told.
	half := n/2 - 20
	first, last := s[:half], s[len(s)-half:]
	i, j := strings.LastIndexByte(first, '\n')+1, strings.IndexByte(last, '\n')+1
	if i < half/2 {
		i = strings.LastIndexFunc(first, divides) + 1
	}
	if j == 0 || j > half/2 {
		if j = strings.IndexFunc(last, divides); j < 0 {
			j = half
		}
	}
	if first, last = first[:i], last[j:]; strings.TrimSpace(last) == "" {
		last = ""
	}
	switch out := len(s) - len(first) - len(last); {
	case first == "" && last == "":
		return fmt.Sprintf("(%d bytes in lines that are too long to show; the evidence has what was printed)\n", len(s))
	case (first == "" || strings.HasSuffix(first, "\n")) && (last == "" || s[len(s)-len(last)-1] == '\n'):
		return first + "…\n" + last
	case last == "":
		return fmt.Sprintf("%s… (%d bytes)\n", first, out)
	default:
		return fmt.Sprintf("%s… (%d bytes) …%s", first, out, last)
	}
}

// divides reports whether no token goes on over a character. Private keys do: they are
// masked before.
func divides(r rune) bool { return strings.ContainsRune(" \t\r\n,;|()[]{}<>\"'`", r) }
