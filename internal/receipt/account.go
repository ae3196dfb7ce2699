package receipt

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// ran reports whether anything was started.
func (r *Receipt) ran() bool { return r.Isolation.Class != "" }

// keeps reports whether the run's changes are kept apart from the host's files.
func (r *Receipt) keeps() bool {
	return r.Workspace.Mode == store.Overlay || r.Workspace.Mode == store.Copy
}

// unknown lists the gaps of this receipt, as sentences that a person who signs for
// the run must know. Each is one line of visible text. An empty list means that
// everything was observed and kept.
func (r *Receipt) unknown() []string {
	if !r.ran() {
		return nil
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch r.Exit.Reason {
	case Running:
		say("how it ends: the run goes on")
	case Lost:
		say("how it would have ended: carboy died during the run")
	}
	if r.Isolation.Posture == nil {
		say("how strongly it was confined: that was not verified at the start")
	}
	r.unknownChanges(say)
	r.unknownTrace(say)
	n := &r.Network
	if g := r.Git; g != nil {
		unlisted(say, int64(len(g.Pushes)), g.PushesTotal, "push", "pushes")
		for _, x := range g.Pushes {
			unlisted(say, int64(len(x.Refs)), x.RefsTotal, "reference of a push", "references of a push")
			unlisted(say, int64(len(x.Found)), x.FoundTotal, "finding in a push", "findings in a push")
		}
	}
	if x := r.Execs; x != nil {
		unlisted(say, int64(len(x.List)), x.Total, "command of carboy exec", "commands of carboy exec")
	}
	if x := r.Proposals; x != nil {
		unlisted(say, int64(len(x.List)), x.Total, "proposal", "proposals")
	}
	unlisted(say, int64(len(n.Names)), n.NamesTotal, "name", "names")
	unlisted(say, int64(len(n.Connections)), n.ConnectionsTotal, "connection", "connections")
	unlisted(say, int64(len(n.Requests)), n.RequestsTotal, "group of requests", "groups of requests")
	if l := n.Log; l != nil && l.LeftOut > 0 {
		why := ""
		if l.Incomplete != "" {
			why = ": " + safetext.String(l.Incomplete, maxShown)
		}
		say("%s that the log of requests does not hold%s; they are counted here", count(l.LeftOut, "line", "lines"), why)
	}
	unlisted(say, int64(len(n.Credentials)), n.CredentialsTotal, "credential", "credentials")
	unlisted(say, int64(len(n.Found)), n.FoundTotal, "finding", "findings")
	return out
}

func (r *Receipt) unknownChanges(say func(string, ...any)) {
	c := r.Changes
	switch {
	case r.Workspace.Mode == store.Bind:
		say("what it changed in the workspace: writes went straight to the host's directory")
	case c == nil && r.keeps() && r.Exit.Reason != Running:
		say("what it changed: the changes were not collected")
	case c != nil && len(c.Incomplete) > 0:
		say("part of what it changed: %s", safetext.String(c.Incomplete[0], maxShown))
	}
}

func (r *Receipt) unknownTrace(say func(string, ...any)) {
	t := r.Trace
	if t == nil {
		why := cmp.Or(r.Isolation.WeakFacts(), "nothing was recorded")
		say("which programs ran, which files they read and which rights they asked for: %s", why)
		return
	}
	if why := r.Isolation.WeakFacts(); why != "" {
		say("what the record of programs and files left out: %s", why)
	}
	if t.Dropped > 0 {
		say("%s that the kernel inside dropped: programs, files or attempts may be missing here", count(t.Dropped, "fact", "facts"))
	}
	if t.Unkept > 0 {
		say("the details of %s that the trace file does not hold; they are counted here", count(t.Unkept, "fact", "facts"))
	}
	if t.Incomplete != "" {
		say("the trace is incomplete: %s", safetext.String(t.Incomplete, maxShown))
	}
	if p := r.Processes; p != nil {
		unlisted(say, int64(len(p.List)), p.Total, "process", "processes")
	}
	if f := r.Files; f != nil {
		if f.More {
			say("how many files exactly: there were more than are told apart, so those counts are lower bounds")
		}
		unlisted(say, int64(len(f.Written)), f.WrittenTotal, "written file", "written files")
	}
	if p := r.Privileges; p != nil {
		all, _ := p.tally()
		unlisted(say, all, p.Total, "request for rights", "requests for rights")
	}
	if s := r.Sockets; s != nil {
		unlisted(say, s.listed(), s.Total, "socket", "sockets")
	}
}

// whole reports whether every fact arrived and was kept.
func (t *Trace) whole() bool { return t.Dropped == 0 && t.Unkept == 0 && t.Incomplete == "" }

// unlisted describes a list that was cut.
func unlisted(say func(string, ...any), n, total int64, one, many string) {
	if total > n {
		say("%s that the receipt counts and does not list", count(total-n, one, many))
	}
}

// lead says it in a sentence.
func (p *Processes) lead() string {
	s := count(p.Total, "process", "processes") + ", " + count(p.Execs, "program", "programs") + " started"
	if p.Failed > 0 {
		s += "; " + count(p.Failed, "attempt", "attempts") + " to start one failed"
	}
	return s
}

// tally counts the attempts of the list, and those that were granted.
func (p *Privileges) tally() (all, granted int64) {
	for _, a := range p.Attempts {
		all += a.Count
		if a.Errno == "" {
			granted += a.Count
		}
	}
	return all, granted
}

// lead says it in a sentence.
func (p *Privileges) lead() string {
	all, granted := p.tally()
	all = max(all, p.Total)
	switch {
	case all == 0:
		return "none were asked for"
	case all == 1 && granted == 0:
		return "one request, refused"
	case granted == 0:
		return count(all, "request", "requests") + ", all refused"
	case granted == all:
		return count(all, "request", "requests") + ", granted inside the bottle only"
	}
	return count(all, "request", "requests") + ", " + number(all-granted) + " refused, the others granted inside the bottle only"
}

// harmless reports whether programs make this request routinely, such as a shell
// that drops rights it does not have.
func (a Attempt) harmless() bool { return a.Errno == "" && a.What == "setid" }

func (s *Sockets) listed() int64 {
	var n int64
	for _, x := range s.List {
		n += x.Count
	}
	return n
}

// where returns where a written file ended up, as a rank, the worst first, and as
// text.
func (r *Receipt) where(x Written) (int, string) {
	for _, m := range r.Mounts {
		dir := strings.TrimSuffix(string(m.Target), "/")
		if m.Access == "read-write" && (string(x.Path) == dir || strings.HasPrefix(string(x.Path), dir+"/")) {
			return 0, "on the host, through a mount"
		}
	}
	switch {
	case x.Inside && r.Workspace.Mode == store.Bind:
		return 0, "in the workspace, on the host"
	case x.Inside:
		return 2, "in the workspace"
	}
	return 1, "in the bottle"
}

// byPlace returns the written files, those on the host first.
func (r *Receipt) byPlace() []Written {
	if r.Files == nil {
		return nil
	}
	list := slices.Clone(r.Files.Written)
	slices.SortStableFunc(list, func(a, b Written) int {
		i, _ := r.where(a)
		j, _ := r.where(b)
		return cmp.Compare(i, j)
	})
	return list
}

// unusual reports whether programs seldom need the socket, or it was refused.
func (s Socket) unusual() bool {
	if s.Errno != "" || s.Type == "raw" {
		return true
	}
	switch s.Family {
	case "inet", "inet6", "unix", "netlink":
		return false
	}
	return true
}
