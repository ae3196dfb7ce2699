package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/supervise"
)

// askerMain stands for the process of a bottle in scripts: "asker BOTTLE WHAT…"
// proposes each of WHAT (a host, or a path of a held value), writes their ids to
// ids.txt, and prints what was decided.
func askerMain() {
	if err := askFor(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func askFor(bottle string, what []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := carboy.Open(ctx, carboy.Options{Quick: true})
	if err != nil {
		return err
	}
	defer c.Close()
	q, err := c.Proposals()
	if err != nil {
		return err
	}
	defer q.Close()
	a, err := q.Asker(supervise.AskerOptions{Bottle: bottle})
	if err != nil {
		return err
	}
	defer a.Close()
	var tickets []*supervise.Ticket
	ids := ""
	for _, w := range what {
		p, err := asked(w)
		if err != nil {
			return err
		}
		t, err := a.Propose(ctx, p, supervise.Draft{Why: "the build needs it\x1b[2J\u202e", Tool: "egress-allow"})
		if err != nil {
			return err
		}
		tickets = append(tickets, t)
		ids += string(t.Proposal().ID) + "\n"
	}
	if err := os.WriteFile("ids.tmp", []byte(ids), 0o600); err != nil {
		return err
	}
	if err := os.Rename("ids.tmp", "ids.txt"); err != nil {
		return err
	}
	for i, t := range tickets {
		o, err := t.Wait(ctx)
		if err != nil {
			return err
		}
		got := ""
		if p, ok := supervise.ApprovalOf[supervise.EgressAllow](o); ok {
			got = p.Payload().Routes[0].Host
		}
		if p, ok := supervise.ApprovalOf[supervise.EgressTokenAllow](o); ok {
			got = string(p.Payload().Action)
		}
		fmt.Println(what[i], o.Answer.Verdict, got, o.Answer.Note)
	}
	return nil
}

func asked(what string) (supervise.Payload, error) {
	if strings.HasPrefix(what, "/") {
		return supervise.EgressTokenAllow{
			Value: supervise.Fingerprint([32]byte{}, secret.NewString(what)), Length: len(what), Rule: "generic-api-key", Host: "api.example.com",
			Method: "POST", Path: what, Action: supervise.TokenAllow,
		}, nil
	}
	r, err := policy.ParseAllow(what)
	if err != nil {
		return nil, err
	}
	return supervise.NewEgressAllow([]policy.Route{r}, nil, nil)
}

// TestSuperviseAsks: in a terminal a proposal is shown before it is approved, as it is,
// and what would hide does not.
func TestSuperviseAsks(t *testing.T) {
	home := newHome(t)
	s := terminalIn(t, home, "supervise", "list")
	s.await("nothing waits")
	s.end()
	env := func(name string) string {
		return map[string]string{"HOME": home, "XDG_STATE_HOME": home + "/state"}[name]
	}
	ctx := context.Background()
	c, err := carboy.Open(ctx, carboy.Options{Quick: true, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	q, err := c.Proposals()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	a, err := q.Asker(supervise.AskerOptions{Bottle: "dev"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p, err := asked("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key  string
		want supervise.Verdict
	}{{"n\r", ""}, {"y\r", supervise.Approved}} {
		ticket, err := a.Propose(ctx, p, supervise.Draft{Why: "it is fine\x1b[2J\x1b[H"})
		if err != nil {
			t.Fatal(err)
		}
		s := terminalIn(t, home, "supervise", "approve", ticket.Proposal().ID.Short())
		s.await("allow a.example.com")
		s.await(`it is fine\x1b[2J\x1b[H`)
		s.await("approve this? [y/N] ")
		s.typed(c.key)
		if c.want == "" {
			s.await("not confirmed; nothing was changed")
			select {
			case <-ticket.Done():
				t.Error("answered though nobody confirmed")
			default:
			}
			ticket.Close()
			continue
		}
		o, err := ticket.Wait(ctx)
		if err != nil || o.Answer.Verdict != c.want {
			t.Errorf("%s: %v, %v", c.key, o.Answer.Verdict, err)
		}
	}
}
