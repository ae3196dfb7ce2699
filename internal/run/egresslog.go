package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/store"
)

// egressLog is among a run's logs.
const egressLog = "egress"

// openEgressLog starts the log of the run's requests. Its goroutine also tells the audit
// log and people, so that the packet path only queues.
func (s *Session) openEgressLog() {
	n := &egressNotes{s: s, told: map[string]bool{}}
	s.egressLog = egresslog.Start(logLevel(s.RouteFile, s.o.Grant), egresslog.Options{
		Open: func() (*os.File, error) { return s.run.OpenLog(egressLog) },
		Run:  string(s.run.ID()), Clean: n.clean, OnNotable: n.tell,
	})
}

// logLevel returns the level that the route file or the bottle sets, or else the
// default of a route file.
func logLevel(f *routes.File, g *plan.Grant) int {
	switch {
	case f != nil:
		return f.Log
	case g != nil:
		return g.Log
	}
	return routes.DefaultLog
}

// endEgressLog completes the log. Nothing comes from the gateway any more.
func (s *Session) endEgressLog() {
	a := s.egressLog.End()
	s.denials.missed(a.Unreported)
	if a.Records+a.LeftOut == 0 {
		return
	}
	s.Rec.Network.Log = &receipt.RequestLog{Records: a.Records, LeftOut: a.LeftOut}
	if a.Err != nil {
		s.Rec.Network.Log.Incomplete = fault.Sentence(a.Err.Error())
	}
}

// observe is on the packet path: it only writes what happened down.
func (s *Session) observe(ev gateway.Event) {
	if s.o.Told != nil {
		s.o.Told(ev)
	}
	if s.o.Alive != nil {
		s.o.Alive()
	}
	if s.approvals != nil {
		s.approvals.noteAllowed(ev)
	}
	if r, ok := recordOf(ev); ok {
		s.egressLog.Put(r)
	}
}

// now is for what carries no time.
func now() time.Time { return time.Now().UTC() }

func recordOf(ev gateway.Event) (egresslog.Entry, bool) {
	switch e := ev.(type) {
	case gateway.NameAsked:
		return egresslog.Entry{
			Time: now(), Kind: egresslog.Name, Verdict: string(verdict(e.Allowed)), Host: e.Name, Protocol: e.Type,
			Rule: e.Rule, Reason: string(e.Reason), Count: e.Count,
		}, true
	case gateway.Conn:
		return egresslog.Entry{
			Time: e.Time.UTC(), Kind: egresslog.Connection, Verdict: string(verdict(e.Allowed)), Host: e.Name, Port: e.Addr.Port(), Protocol: e.Protocol,
			Rule: e.Rule, Reason: string(e.Reason), Detail: e.Detail, Up: e.Up, Down: e.Down, Took: e.Duration, Count: e.Count,
		}, true
	case gateway.Request:
		if e.Reason == gateway.ReasonHTTPMalformed || e.Reason == gateway.ReasonLimitHead {
			e.Method, e.Path = "", "" // it was never read as a request
		}
		return egresslog.Entry{
			Time: e.Time.UTC(), Kind: egresslog.Request, Verdict: string(verdict(e.Allowed)), Host: e.Name, Port: e.Port, Protocol: e.Version,
			Method: e.Method, Path: e.Path, Status: e.Status, Rule: e.Rule, Reason: string(e.Reason), Detail: e.Detail,
			Credential: e.Credential, Up: e.Up, Down: e.Down, Took: e.Duration,
		}, true
	case gateway.Found:
		return egresslog.Entry{
			Time: e.Time.UTC(), Kind: egresslog.Found, Host: e.Name, Port: e.Port, Method: e.Method, Rule: e.Rule,
			Inbound: e.Inbound, What: e.What, Secret: e.Secret, Transform: e.Transform, Place: e.Place, Action: string(e.Action), Count: e.Count,
		}, true
	case gateway.LimitHit:
		return egresslog.Entry{Time: now(), Kind: egresslog.Limit, Reason: string(e.Limit), Host: e.Name, Count: e.Count}, true
	}
	return egresslog.Entry{}, false
}

// egressNotes holds the state of the log's goroutine.
type egressNotes struct {
	s       *Session
	rules   *scan.Rules
	edition int   // of the secrets that they are of
	bad     error // rules could not be made
	// told holds the refusals of requests that people were told of, by target and
	// reason: their connection ends later, for the same reason.
	told map[string]bool
}

// maxTold bounds that.
const maxTold = 4096

// clean takes out what spells a secret, plain or in another form: what a request
// was refused for must not stand in the log instead.
func (n *egressNotes) clean(r *egresslog.Entry) {
	for _, text := range []*string{&r.Host, &r.Method, &r.Path, &r.Detail, &r.Place} {
		if *text != "" {
			*text = n.cleaned(*text)
		}
	}
}

func (n *egressNotes) cleaned(text string) string {
	if s := n.s.Redactor.String(text); s != text {
		text = s
	}
	if now, edition := n.s.inside.Watched(); edition != n.edition {
		var known *scan.WatchedSecrets
		n.bad = nil
		if len(now) > 0 {
			known, n.bad = scan.NewWatchedSecrets(now)
		}
		if n.bad == nil {
			n.rules, n.bad = scan.NewRules(scan.Config{Watched: known, Tokens: true})
		}
		n.edition = edition
	}
	if n.bad != nil {
		return plan.NotShown
	}
	found, err := n.rules.Check(scan.Options{Place: "log", Action: scan.Report}, []byte(text))
	if err != nil {
		return plan.NotShown
	}
	for _, f := range found {
		switch {
		case f.Warning:
		case f.Secret != "":
			return "[redacted:" + plan.RedactionName(f.Secret) + "]"
		default:
			return "[redacted:" + plan.RedactionName(f.Rule) + "]"
		}
	}
	return text
}

// tell passes on what is more than something that was allowed.
func (n *egressNotes) tell(r *egresslog.Entry) {
	s := n.s
	if s.approvals != nil {
		s.approvals.noteRefused(r)
	}
	switch r.Kind {
	case egresslog.Name:
		if r.Count == 1 {
			s.events.send(plan.Event{Kind: "refused", Name: r.Host, Rule: r.Rule, Text: "name refused: " + r.Reason})
			s.denied(audit.Resolve, r.Host, r.Rule, r.Reason)
		}
	case egresslog.Connection:
		if r.Count <= 1 && !n.told[outcome(r)] {
			s.events.send(plan.Event{Kind: "refused", Name: r.Host, Port: r.Port, Rule: r.Rule, Text: "connection refused: " + r.Reason})
			s.denied(audit.Connect, fmt.Sprintf("%s:%d", r.Host, r.Port), r.Rule, r.Reason)
		}
	case egresslog.Request:
		s.denied(audit.Request, strings.TrimSpace(fmt.Sprintf("%s %s:%d%s", r.Method, r.Host, r.Port, r.Path)), r.Rule, said(r))
		if k := outcome(r); !n.told[k] && len(n.told) < maxTold {
			n.told[k] = true
			s.events.send(plan.Event{Kind: "refused", Name: r.Host, Port: r.Port, Method: r.Method, Path: r.Path, Rule: r.Rule, Text: "request refused: " + said(r)})
		}
	case egresslog.Found:
		s.foundOne(r)
	case egresslog.Limit:
		if r.Count == 1 {
			s.events.send(plan.Event{Kind: "limit", Text: "limit " + r.Reason + " was hit", Name: r.Host})
		}
	}
}

// foundOne records a finding: what was done about it is a decision, too.
func (s *Session) foundOne(r *egresslog.Entry) {
	decision := audit.Noted
	if r.Action == string(gateway.FoundBlocked) {
		decision = audit.Refused
	}
	what := r.What
	if r.Secret != "" {
		what += " " + r.Secret
	}
	way := "on the way out"
	if r.Inbound {
		way = "on the way in"
	}
	as := ""
	if r.Transform != "" && r.Transform != "plain" {
		as = " as " + r.Transform
	}
	text := fmt.Sprintf("%s%s in the %s, %s: %s", what, as, r.Place, way, r.Action)
	s.note(audit.Found, decision, fmt.Sprintf("%s:%d", r.Host, r.Port), r.Rule, fmt.Sprintf("%s (%d so far)", text, r.Count))
	if r.Count == 1 {
		s.events.send(plan.Event{Kind: "found", Name: r.Host, Port: r.Port, Rule: r.Rule, Text: "found: " + text})
	}
}

func outcome(r *egresslog.Entry) string {
	return strings.Join([]string{r.Host, fmt.Sprint(r.Port), r.Reason}, " ")
}

func said(r *egresslog.Entry) string {
	return because(gateway.Reason(r.Reason), r.Detail)
}

// EgressLog opens what was kept of what a run asked of the network, also while the
// run goes on. The error is fs.ErrNotExist when nothing was.
func (c *Runner) EgressLog(id store.ID) (*egresslog.Reader, error) {
	f, err := c.review.OpenLog(id, egressLog)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := c.Store.Get(id); err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	return egresslog.NewReader(f), nil
}
