package ship

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/ship/plan"
)

// States of a service on a host; see [Status.State].
const (
	stateCurrent        = "current"
	stateBehind         = "behind"
	stateAbsent         = "absent"
	stateExited         = "exited"
	stateUnhealthy      = "unhealthy"
	stateDrifted        = "drifted"
	stateUnapproved     = "unapproved"
	stateRollbackFailed = string(RollbackFailed)
	stateOrphaned       = "orphaned"
	stateRemoved        = "removed" // of a module that went away; not returned
	stateUnreachable    = "unreachable"
	stateUnknown        = "unknown"
)

// view holds everything that decides on the state of a service on a host.
type view struct {
	l         *hostState
	records   []*record // of the service there, oldest first
	broken    *record   // the last apply, if it could not be taken back
	takenOver bool      // what runs is what an earlier tool applied
	told      func(*record) string
}

// judge sets state, reason and next step of st, whose Changes are those of a plan made now.
// What runs is compared with what was applied last, and then with the commit.
func (v *view) judge(st *Status) {
	last := v.l.last
	if last != nil && last.Target.Absent {
		last = nil // nothing should run
	}
	const again = "carboy plan %[1]s -o plans"
	back := fmt.Sprintf("carboy rollback %s -o plans plans the return to what was applied last", st.Module)
	if last == nil {
		back = "look at it on the host; " + fmt.Sprintf(again, st.Module) + " plans what the commit says"
	}
	set := func(state, why, next string) { st.State, st.Why, st.Next = state, why, next }
	failed := func() {
		set(stateRollbackFailed, "going back failed: "+v.told(v.broken)+v.running(), "act now: look at the service on the host; "+back)
	}
	if len(v.l.obs.Containers) == 0 {
		switch {
		case v.broken != nil && last != nil:
			failed()
		case last != nil:
			set(stateAbsent, "it was applied, and its container is gone", fmt.Sprintf(again, st.Module)+" plans to put it there again")
		default:
			set(stateAbsent, "", fmt.Sprintf(again, st.Module)+" plans to put it there")
		}
		return
	}
	now := v.l.obs.Containers[0]
	same := last != nil && asApplied(last, now) || last == nil && v.takenOver
	file := ""
	if last != nil {
		file = differs(v.l)
	}
	switch {
	case v.broken != nil && !(same && file == "" && ran(now)):
		failed()
	case same && file != "":
		set(stateDrifted, "the file "+file+" is not as it was applied", back)
	case same && now.Status != "running":
		set(stateExited, "it is as it was applied, and is "+shown(now.Status), "docker logs on the host tells why; "+fmt.Sprintf(again, st.Module)+" plans to start it, carboy rollback the return to what was before")
	case same && now.Health == "unhealthy":
		set(stateUnhealthy, "it runs as it was applied, and its healthcheck fails", "docker inspect on the host tells why; carboy rollback "+st.Module+" -o plans plans the return to what was before")
	case same && len(st.Changes) == 0:
		set(stateCurrent, "", "")
	case same:
		set(stateBehind, "", fmt.Sprintf(again, st.Module)+" plans what the commit says")
	default:
		if r := v.recorded(now); r != nil {
			set(stateDrifted, "it is not what was applied last, but as of "+v.told(r)+v.running(), back)
			return
		}
		if len(st.Changes) == 0 || st.Changes[len(st.Changes)-1].Action == plan.Adopt {
			back += "; " + fmt.Sprintf(again, st.Module) + " plans to adopt what runs"
		}
		set(stateUnapproved, "no record has it"+v.running(), back)
	}
}

// recorded returns the newest record whose plan a container is as, nil if there is none.
// What was applied comes before what was only tried.
func (v *view) recorded(now plan.Container) (found *record) {
	for _, r := range slices.Backward(v.records) {
		p, _, err := plan.Decode(r.Plan)
		if err != nil || !asApplied(p, now) {
			continue
		}
		if r.Outcome == Applied {
			return r
		}
		found = cmp.Or(found, r)
	}
	return found
}

// running says since when something else runs, from which image, and from which file if
// that is not carboy's standard input.
func (v *view) running() string {
	started, rest, _ := strings.Cut(v.l.runs, " ")
	image, file, _ := strings.Cut(rest, " ")
	if image == "" {
		return ""
	}
	out := "; what runs is of image " + shown(image)
	if t, err := time.Parse(time.RFC3339Nano, started); err == nil {
		out += ", since " + t.UTC().Format(time.RFC3339)
	}
	if file = strings.TrimSpace(file); strings.Contains(file, "/") {
		out += ", from " + shown(file)
	}
	return out
}

// differs returns the first file on the host that differs from the last applied plan, ""
// if there is none.
func differs(l *hostState) string {
	for _, f := range l.last.Source.Files {
		if have, ok := l.obs.Files[f.Path]; ok && have != f.SHA256 {
			return f.Path
		}
	}
	return ""
}

// told says for people what a record's plan was, how and when it ended, who applied it and
// who approved it.
func (e *Engine) told(host string, r *record) string {
	x := e.entry(host, r)
	if x == nil {
		return "a record that cannot be read"
	}
	at := x.Ended
	if at.IsZero() {
		at = x.Began
	}
	var by []string
	for _, a := range x.Approvals {
		by = append(by, a.Approver)
	}
	out := fmt.Sprintf("commit %.12s, %s at %s by %s", x.Commit, x.Outcome, at.Format(time.RFC3339), shown(x.By))
	if len(by) > 0 {
		out += ", approved by " + strings.Join(by, ", ")
	}
	if x.Outcome != Applied && x.Why != "" {
		out += " (" + x.Why + ")"
	}
	return out
}

// broken returns the record of the last apply of a service, if going back failed after it;
// nil if something was applied since.
func (e *Engine) broken(host string, jobs []*hostJob, records []*record) *record {
	for _, j := range jobs { // the host knows the order
		switch j.outcome {
		case Applied:
			return nil
		case RollbackFailed:
			return e.merge(host, j)
		}
	}
	for _, r := range slices.Backward(records) {
		switch r.Outcome {
		case Applied:
			return nil
		case RollbackFailed:
			return r
		}
	}
	return nil
}

// recordsOf returns the records of a module's service on a host, oldest first. Those that
// cannot be read are left out.
func (e *Engine) recordsOf(host string, t *plan.Target, id string) []*record {
	all, _ := e.records(host, id)
	return slices.DeleteFunc(all, func(r *record) bool {
		p, _, err := plan.Decode(r.Plan)
		return err != nil || p.Target.Project != t.Project || p.Target.Service != t.Service
	})
}
