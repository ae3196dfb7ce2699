package gate

import (
	"context"
	"fmt"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "build", Summary: "a command ends with 0 on the change", Runs: true, ByCode: true}, func(*Signal, document.Mapping) Judge[commandFacts] {
		return evaluateRun
	})
	register(SignalKind{Name: "install", Summary: "dependencies are installed, from the lockfiles of the base", Runs: true, ByCode: true, Keys: []string{"lockfiles"}}, func(_ *Signal, m document.Mapping) Judge[installFacts] {
		mayChange := m.Get("lockfiles").OneOf("unchanged", "may-change") == "may-change"
		return func(ctx context.Context, c *Case) (installFacts, []Finding, error) {
			f := installFacts{MayChange: mayChange}
			changed, err := differingLockfiles(ctx, c.Base, c.Change)
			if err != nil {
				return f, nil, err
			}
			f.Changed = changed
			var found []Finding
			for _, p := range changed {
				found = append(found, Finding{ID: "lockfile", File: p, Noted: mayChange, Text: "the change asks for other dependencies than the base approves"})
			}
			// A file that is there already would pass for an installed one.
			if f.Brought, err = differingBelow(ctx, c.Base, c.Change, c.Keep); err != nil {
				return f, nil, err
			}
			for _, p := range f.Brought {
				found = append(found, Finding{ID: "brought", File: p, Text: "the change has a file of its own where " + c.Name + " installs; only what comes from the lockfile may be there"})
			}
			if len(f.Changed) > 0 && !mayChange || len(f.Brought) > 0 {
				return f, found, nil
			}
			run, more, err := evaluateRun(ctx, c)
			f.Run = run
			return f, append(found, more...), err
		}
	})
}

// commandFacts are the facts of a command that ran on the change.
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
	// Brought lists files that the change itself has where dependencies are installed.
	Brought []string `json:"brought_along,omitempty"`
}

func (f installFacts) Positive() bool {
	return f.Run.Positive() && (f.MayChange || len(f.Changed) == 0) && len(f.Brought) == 0
}

func evaluateRun(ctx context.Context, c *Case) (commandFacts, []Finding, error) {
	p, err := c.run(ctx, c.Change)
	if err != nil {
		return commandFacts{}, nil, err
	}
	f := factsOf(p)
	return f, exitFinding(p), nil
}

func factsOf(p *Phase) commandFacts {
	f := commandFacts{Code: p.Code, Ended: p.exited()}
	for _, x := range p.Observed.Execs {
		f.Programs += x.Count
	}
	return f
}

// exitFinding returns a finding with the output of a command that failed.
func exitFinding(p *Phase) []Finding {
	if p.Code == 0 {
		return nil
	}
	return []Finding{{ID: "exit", Text: fmt.Sprintf("%s ended with %d", p.Command[0], p.Code), Detail: firstErrors(p)}}
}

// firstErrors returns the beginning and the end of standard error, or of standard output
// if that is empty.
func firstErrors(p *Phase) string {
	b := p.Stderr.Bytes
	if len(b) == 0 {
		b = p.Stdout.Bytes
	}
	return headAndTail(string(b), maxDetail)
}

// headAndTail returns the first and last lines of s, at most n bytes (200 or more), with
// secrets masked. It cuts a line that is longer only between tokens, or leaves it out.
func headAndTail(s string, n int) string {
	if s = maskSecrets(s); len(s) <= n {
		return s
	}
	// Half a line may be half of a secret.
	half := n/2 - 20
	first, last := s[:half], s[len(s)-half:]
	i, j := strings.LastIndexByte(first, '\n')+1, strings.IndexByte(last, '\n')+1
	if i < half/2 {
		i = strings.LastIndexFunc(first, separatesTokens) + 1
	}
	if j == 0 || j > half/2 {
		if j = strings.IndexFunc(last, separatesTokens); j < 0 {
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

// separatesTokens reports whether no token continues across r. A private key does, but is
// masked already.
func separatesTokens(r rune) bool { return strings.ContainsRune(" \t\r\n,;|()[]{}<>\"'`", r) }
