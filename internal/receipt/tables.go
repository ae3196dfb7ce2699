package receipt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Tables of longTable rows or more are folded at first.
const longTable = 25

// inside returns a cell with text from inside, said one with carboy's own text.
func insideCell(s string) cell      { return cell{Text: safetext.String(s, maxPageText), Inside: true} }
func pathCell(p store.Raw) cell     { return cell{Text: safetext.Path([]byte(p)), Inside: true} }
func said(s string) cell            { return cell{Text: safetext.String(s, maxPageText)} }
func counted(n int64) cell          { return cell{Text: number(n), Number: true} }
func sized(n int64) cell            { return cell{Text: Bytes(n), Number: true} }
func verdictClass(v Verdict) string { return map[Verdict]string{Allowed: "ok", Refused: "bad"}[v] }

// sections returns the tables of the page, in order.
func sections(r *Receipt) []section {
	out := []section{networkSection(r), changesSection(r)}
	if r.Git != nil {
		out = append(out, gitSection(r.Git))
	}
	if r.Files != nil {
		out = append(out, filesSection(r))
	}
	if r.Privileges != nil || r.Sockets != nil {
		out = append(out, rightsSection(r))
	}
	out = append(out, limitsSection(r.Limits), confinedSection(r))
	for i := range out {
		for j := range out[i].Tables {
			t := &out[i].Tables[j]
			t.Long = len(t.Rows) >= longTable
		}
	}
	return out
}

// rest describes the rows that a table leaves out.
func rest(n int, total int64) string {
	if more := total - int64(n); more > 0 {
		return number(more) + " more are counted and not listed."
	}
	return ""
}

func networkSection(r *Receipt) section {
	n := &r.Network
	t := n.Totals
	s := section{ID: "network", Title: "Network", Lead: "Nothing was asked for."}
	if n.any() {
		s.Lead = n.lead() + "; " + traffic(t.BytesUp, t.BytesDown) + "."
		if t.Dropped > 0 {
			s.Lead += " " + count(t.Dropped, "packet was", "packets were") + " dropped without an answer."
		}
	}
	names := table{Caption: "Names that were asked for", Head: []string{"Verdict", "Name", "Times", "Rule"}, Rest: rest(len(n.Names), n.NamesTotal)}
	for _, x := range refusedFirst(n.Names, func(x Name) Verdict { return x.Verdict }) {
		names.Rows = append(names.Rows, line{verdictClass(x.Verdict), []cell{said(string(x.Verdict)), insideCell(x.Name), counted(x.Count), said(rule(x.Rule))}})
	}
	conns := table{Caption: "Connections that were tried", Head: []string{"Verdict", "To", "As", "Times", "Up", "Down", "Why"}, Rest: rest(len(n.Connections), n.ConnectionsTotal)}
	for _, x := range refusedFirst(n.Connections, func(x Connection) Verdict { return x.Verdict }) {
		up, down := x.BytesUp, x.BytesDown
		x.BytesUp, x.BytesDown = 0, 0 // they have columns
		conns.Rows = append(conns.Rows, line{verdictClass(x.Verdict), []cell{
			said(string(x.Verdict)), insideCell(target(x.Name, x.Port)), insideCell(x.Proto), counted(x.Count), sized(up), sized(down), said(why(x)),
		}})
	}
	requests := table{Caption: "Requests, by host and outcome", Head: []string{"Verdict", "To", "Times", "Failed", "Up", "Down", "Credential", "Why"}, Rest: rest(len(n.Requests), n.RequestsTotal)}
	for _, x := range refusedFirst(n.Requests, func(x Request) Verdict { return x.Verdict }) {
		y := Request{Verdict: Refused, Rule: x.Rule, Reason: x.Reason} // the rest has columns
		requests.Rows = append(requests.Rows, line{verdictClass(x.Verdict), []cell{
			said(string(x.Verdict)), insideCell(target(x.Name, x.Port)), counted(x.Count), counted(x.Failed), sized(x.BytesUp), sized(x.BytesDown), said(x.Credential), said(y.why()),
		}})
	}
	creds := table{Caption: "Credentials that were put on; their values stayed outside", Head: []string{"Variable", "Requests"}, Rest: rest(len(n.Credentials), n.CredentialsTotal)}
	for _, x := range n.Credentials {
		creds.Rows = append(creds.Rows, line{"", []cell{said(x.Name), counted(x.Requests)}})
	}
	found := table{Caption: "What was found in it: secrets on their way out, injected instructions on their way in", Head: []string{"Done", "Way", "Host", "What", "Secret", "Written as", "Where", "Times", "Rule"}, Rest: rest(len(n.Found), n.FoundTotal)}
	for _, x := range n.Found {
		class := "warn"
		if x.Action == Blocked {
			class = "bad"
		}
		found.Rows = append(found.Rows, line{class, []cell{
			said(string(x.Action)), said(x.way()), insideCell(target(x.Name, x.Port)), said(Plain(x.What)), said(x.Secret), said(x.Transform), insideCell(x.Place), counted(x.Count), said(rule(x.Rule)),
		}})
	}
	s.Tables = filled(found, names, conns, requests, creds)
	return s
}

// filled leaves out tables without rows.
func filled(t ...table) []table {
	return slices.DeleteFunc(t, func(t table) bool { return len(t.Rows) == 0 && t.Rest == "" })
}

var changeKinds = map[string]string{"add": "added", "modify": "modified", "delete": "deleted", "mode": "mode only", "type": "another type"}

func changesSection(r *Receipt) section {
	s := section{ID: "changes", Title: "Changes", Lead: changedCard(r).Lead}
	c := r.Changes
	if c == nil {
		return s
	}
	if c.Total > 0 {
		s.Lead = count(c.Total, "path", "paths") + ": " + changeCounts(c) + ". To read them: carboy diff " + string(r.ID)
	}
	t := table{Caption: "Paths of the workspace", Head: []string{"What", "Path", "Size", "Remarks"}, Rest: rest(len(c.List), c.Total)}
	for _, x := range c.List {
		what := changeKinds[x.Kind]
		if what == "" {
			what = x.Kind
		}
		if x.Type != "file" {
			what += ", " + x.Type
		}
		size := cell{Number: true}
		if x.Kind != "delete" && x.Type == "file" {
			size = sized(x.Size)
		}
		var remarks []string
		for _, p := range x.Protected {
			remarks = append(remarks, "protected: "+p)
		}
		if x.BaseMoved != "" {
			remarks = append(remarks, "changed on the host meanwhile: "+x.BaseMoved)
		}
		if x.Unlandable != "" {
			remarks = append(remarks, "cannot land: "+x.Unlandable)
		}
		class := ""
		if len(remarks) > 0 {
			class = "warn"
		}
		t.Rows = append(t.Rows, line{class, []cell{said(what), pathCell(x.Path), size, said(strings.Join(remarks, "; "))}})
	}
	missing := table{Caption: "What could not be kept", Head: []string{"Why"}}
	for _, x := range c.Incomplete {
		missing.Rows = append(missing.Rows, line{"warn", []cell{said(x)}})
	}
	s.Tables = filled(missing, t)
	return s
}

func filesSection(r *Receipt) section {
	f := r.Files
	least := ""
	if f.More {
		least = "At least "
	}
	s := section{ID: "files", Title: "Files", Lead: least + number(f.ReadTotal) + " read outside the workspace and " + number(f.ReadInside) + " inside; " +
		number(f.WrittenTotal) + " written; " + number(f.Missed) + " looked for in vain; " + number(f.DeniedTotal) + " denied."}
	areas := func(caption, class string, list []Area, total int64) table {
		t := table{Caption: caption, Head: []string{"Area", "Files"}}
		for _, x := range list {
			t.Rows = append(t.Rows, line{class, []cell{pathCell(x.Path), counted(x.Files)}})
			total -= x.Files
		}
		if total > 0 {
			t.Rest = count(total, "file", "files") + " elsewhere."
		}
		return t
	}
	written := table{Caption: "Written, made, renamed or removed", Head: []string{"Where", "Path", "How"}, Rest: rest(len(f.Written), f.WrittenTotal)}
	for _, x := range r.byPlace() {
		rank, where := r.where(x)
		class := ""
		if rank == 0 {
			class = "warn"
		}
		written.Rows = append(written.Rows, line{class, []cell{said(where), pathCell(x.Path), said(strings.Join(x.How, ", "))}})
	}
	s.Tables = filled(
		areas("Denied: there, and not permitted", "bad", f.Denied, f.DeniedTotal),
		written,
		areas("Read outside the workspace, by area", "", f.Read, f.ReadTotal))
	return s
}

func rightsSection(r *Receipt) section {
	s := section{ID: "rights", Title: "Rights and sockets", Lead: "Rights: not recorded."}
	outcome := func(errno string) (cell, string) {
		if errno == "" {
			return said("granted, inside the bottle only"), "warn"
		}
		return said("refused: " + errno), "bad"
	}
	attempts := table{Caption: "Requests for rights", Head: []string{"Outcome", "What", "Detail", "Times"}}
	if p := r.Privileges; p != nil {
		s.Lead = "Rights: " + p.lead() + "."
		all, _ := p.tally()
		attempts.Rest = rest(int(all), p.Total)
		for _, x := range p.Attempts {
			c, class := outcome(x.Errno)
			if x.harmless() {
				class = ""
			}
			attempts.Rows = append(attempts.Rows, line{class, []cell{c, insideCell(x.What), insideCell(x.Detail), counted(x.Count)}})
		}
	}
	sockets := table{Caption: "Sockets, by family", Head: []string{"Outcome", "Family", "Type", "Times"}}
	if x := r.Sockets; x != nil {
		sockets.Rest = rest(int(x.listed()), x.Total)
		for _, x := range x.List {
			c, class := outcome(x.Errno)
			if x.Errno == "" && !x.unusual() {
				c, class = said("made"), ""
			} else if x.Errno == "" {
				c = said("made, of an unusual kind")
			}
			sockets.Rows = append(sockets.Rows, line{class, []cell{c, insideCell(x.Family), insideCell(x.Type), counted(x.Count)}})
		}
	}
	s.Tables = filled(attempts, sockets)
	return s
}

func limitsSection(l Limits) section {
	s := section{ID: "limits", Title: "Limits", Lead: "None was met."}
	if b := bounds(l); b != "" {
		s.Lead += " They were: " + b + "."
	}
	if n := len(l.Hit); n > 0 {
		s.Lead = count(int64(n), "limit was", "limits were") + " met, of: " + bounds(l) + "."
	}
	t := table{Caption: "Limits that were met", Head: []string{"Limit", "Times", "What it meant"}}
	for _, h := range l.Hit {
		times := cell{Text: "not counted", Number: true}
		if h.Count > 0 {
			times = counted(h.Count)
		}
		t.Rows = append(t.Rows, line{"bad", []cell{said(h.Limit), times, said(h.Detail)}})
	}
	s.Tables = filled(t)
	return s
}

// confinedSection shows the command's sandbox, and the access it was given.
func confinedSection(r *Receipt) section {
	s := section{ID: "isolation", Title: "Isolation", Lead: isolationLine(r.Isolation) + "."}
	posture := table{Caption: "Read from the live processes before the command's first instruction", Head: []string{"Process", "uid", "Seccomp", "No new privileges", "Own root", "Namespaces of its own"}}
	if p := r.Isolation.Posture; p != nil {
		for _, x := range p.Processes {
			posture.Rows = append(posture.Rows, line{"", []cell{
				said(x.Role), {Text: fmt.Sprint(x.UID), Number: true}, said(seccompWord(x.Seccomp)), said(yes(x.NoNewPrivs)), said(yes(x.Chrooted)), said(strings.Join(x.Namespaces, ", ")),
			}})
		}
	}
	root := table{Caption: "The image that was its root", Head: []string{"Image", "Digest"}}
	if r.Image != nil {
		root.Rows = append(root.Rows, line{"", []cell{said(string(r.Image.Ref)), said(r.Image.Digest)}})
	}
	mounts := table{Caption: "Host paths that it could see, beside the workspace", Head: []string{"Access", "On the host", "Inside"}}
	for _, m := range r.Mounts {
		class := ""
		if m.Access == "read-write" {
			class = "warn"
		}
		mounts.Rows = append(mounts.Rows, line{class, []cell{said(m.Access), pathCell(m.Source), pathCell(m.Target)}})
	}
	ports := table{Caption: "Ports that the host's loopback reached", Head: []string{"Inside", "On the host"}}
	for _, x := range r.Published {
		ports.Rows = append(ports.Rows, line{"", []cell{{Text: fmt.Sprint(x.Port), Number: true}, said(x.Host)}})
	}
	services := table{Caption: "Services, each in a bottle of its own", Head: []string{"Name", "State", "Image", "Digest", "Connections", "Bytes"}}
	for _, x := range r.Services {
		services.Rows = append(services.Rows, line{"", []cell{
			said(x.Name), said(x.state()), said(string(x.Image)), said(x.Digest), {Text: fmt.Sprint(x.Connections), Number: true}, said(traffic(x.BytesUp, x.BytesDown)),
		}})
	}
	s.Tables = filled(append([]table{posture, root, services, mounts, ports}, proposalTables(r.Proposals)...)...)
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func seccompWord(mode int) string {
	if mode == 2 {
		return "filter"
	}
	return fmt.Sprintf("mode %d", mode)
}

// evidence lists the files to check the page against.
func evidence(r *Receipt) [][2]string {
	out := [][2]string{{"run", string(r.ID)}}
	add := func(k, v string) {
		if v != "" {
			out = append(out, [2]string{k, safetext.String(v, maxPageText)})
		}
	}
	add("carboy", r.Build)
	if t := r.Trace; t != nil {
		s := count(t.Facts, "fact", "facts") + " in " + Bytes(t.Bytes)
		if t.whole() {
			s += ", none lost"
		}
		add("trace", s+"; carboy trace "+string(r.ID))
		add("SHA-256 of the trace", t.Digest)
	}
	if a := r.Audit; a != nil {
		add("audit log", count(a.Seq, "record", "records")+" at the end of the run; carboy audit verify")
		add("root of the audit log", a.Root)
	}
	if r.Evidence != "" {
		out = append(out, [2]string{"kept in", safetext.Path([]byte(r.Evidence))})
	}
	return out
}
