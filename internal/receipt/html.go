package receipt

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// The page is one file that loads nothing: its content security policy allows only
// its own script and style, by their hashes. Text from inside is made visible and
// bounded, and never becomes markup: html/template escapes it, and the script reads
// it with textContent and writes no markup (the policy's trusted types forbid it).

//go:embed page
var pageFiles embed.FS

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.ParseFS(pageFiles, "page/page.html"))
})

const (
	// maxPageText bounds one text from inside on the page, in bytes.
	maxPageText = 1000
	// maxPageArgs bounds the arguments of one process there.
	maxPageArgs = 4096
	// openRows rows of the process tree are open at first.
	openRows = 60
	// manyKids children are shown at once near the root.
	manyKids = 150
	// gridWidth is the width of the time axis in units of the drawing: browsers
	// keep coordinates up to 2^25.
	gridWidth = 10_000_000
	// overviewBins is the resolution of the timeline's overview.
	overviewBins = 200
)

// HTML writes r as a self-contained HTML page.
func HTML(w io.Writer, r *Receipt) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	p := newPage(r)
	p.Digest = sum(b)
	var out bytes.Buffer
	if err := pageTemplate().Execute(&out, p); err != nil {
		return fmt.Errorf("receipt as html: %w", err)
	}
	_, err = w.Write(out.Bytes())
	return err
}

// Policy returns the content security policy of what [HTML] writes, for a server that sends
// it as a header too. It is the same for all receipts, and begins with default-src 'none'.
func Policy() string {
	return "default-src 'none'; script-src '" + source(asset("page.js")) + "'; style-src '" + source(asset("page.css")) +
		"'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

// page holds the template's data. Every string in it is visible text.
type page struct {
	Policy string
	Style  template.CSS
	Script template.JS

	ID, Command, Workspace, Started, Took string
	Build                                 string
	Exit                                  string
	ExitClass                             string
	Summary                               []card
	Tree                                  *timeline
	Tables                                []section
	Evidence                              [][2]string
	Notes                                 []string
	Digest                                string
}

// card is a part of the summary: one sentence and its details.
type card struct {
	Title, Class, Word string
	Lead               string
	Items              []string
	Link               string // the section with all of it
}

type section struct {
	ID, Title, Lead string
	Tables          []table
}

type table struct {
	Caption string
	Head    []string
	Rows    []line
	Rest    string // what is not listed
	Long    bool   // folded at first
}

// Numeric reports whether a column has numbers.
func (t table) Numeric(i int) bool { return len(t.Rows) > 0 && t.Rows[0].Cells[i].Number }

type line struct {
	Class string
	Cells []cell
}

// cell is a text; a text from inside is shown as code.
type cell struct {
	Text   string
	Inside bool
	Number bool
}

func newPage(r *Receipt) *page {
	style, script := asset("page.css"), asset("page.js")
	c, exit := exitLine(r.Exit)
	p := &page{
		Policy: Policy(),
		Style:  template.CSS(style), Script: template.JS(script),
		ID: string(r.ID), Command: shellLine(r.Command), Workspace: workspaceLine(r.Workspace),
		Took: Duration(r.Duration), Exit: exit, ExitClass: map[color]string{green: "ok", red: "bad", yellow: "warn"}[c],
		Build: safetext.String(r.Build, 100),
		Tree:  newTimeline(r), Summary: summary(r),
	}
	if r.Started != nil {
		p.Started = r.Started.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	for _, n := range r.Notes {
		p.Notes = append(p.Notes, safetext.String(n, maxPageText))
	}
	p.Tables = sections(r)
	p.Evidence = evidence(r)
	return p
}

// asset returns an embedded file of the page.
func asset(name string) string {
	b, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // embedded
	}
	return string(b)
}

func source(s string) string {
	h := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(h[:])
}

// summary returns the cards that a person signs: what ran, what it reached, what it
// changed, what was refused, and what is not known.
func summary(r *Receipt) []card {
	return []card{ranCard(r), reachedCard(r), changedCard(r), refusedCard(r), unknownCard(r)}
}

func ranCard(r *Receipt) card {
	c := card{Title: "What ran", Class: "ok", Word: "done", Link: "processes"}
	if !r.ran() {
		c.Class, c.Word, c.Lead, c.Link = "bad", "not run", "Nothing ran.", ""
		return c
	}
	switch {
	case r.Exit.Reason == Running:
		c.Class, c.Word = "warn", "running"
	case r.Exit.Reason != Exited || r.Exit.Code != 0:
		c.Class, c.Word = "bad", "failed"
	}
	if p := r.Processes; p != nil {
		c.Lead = p.lead() + "."
		c.Items = append(c.Items, programs(p)...)
	} else {
		c.Lead, c.Link = "Which programs ran was not recorded.", ""
	}
	if p := r.Privileges; p != nil {
		c.Items = append(c.Items, "rights: "+p.lead())
	}
	c.Items = append(c.Items, "isolation: "+isolationLine(r.Isolation))
	return c
}

// programs names the programs that ran, those with the most processes first.
func programs(p *Processes) []string {
	const shown = 6
	n := map[string]int64{}
	var names []string
	for i := range p.List {
		x := &p.List[i]
		if x.Path == "" {
			continue
		}
		s := safetext.Fit(safetext.Path([]byte(x.Path)), 60, "…")
		if n[s] == 0 {
			names = append(names, s)
		}
		n[s]++
	}
	slices.SortStableFunc(names, func(a, b string) int { return int(n[b] - n[a]) })
	var out []string
	for i, s := range names {
		if i == shown {
			out = append(out, "and "+count(int64(len(names)-shown), "other program", "other programs"))
			break
		}
		if n[s] > 1 {
			s += " × " + number(n[s])
		}
		out = append(out, s)
	}
	return out
}

func reachedCard(r *Receipt) card {
	t := r.Network.Totals
	c := card{Title: "What it reached", Class: "ok", Word: "nothing", Link: "network", Lead: "No connection was made."}
	if t.ConnectionsAllowed > 0 {
		c.Word = "allowed"
		c.Lead = count(t.ConnectionsAllowed, "connection", "connections") + " allowed: " + traffic(t.BytesUp, t.BytesDown) + "."
	}
	var conns []string
	for _, x := range r.Network.Connections {
		if x.Verdict == Allowed {
			conns = append(conns, safetext.Fit(target(x.Name, x.Port), 80, "…")+" ("+safetext.String(x.Proto, 40)+", "+traffic(x.BytesUp, x.BytesDown)+")")
		}
	}
	c.Items = cut(conns, "target")
	if n := r.Network.credentials(); len(n) > 0 {
		c.Items = append(c.Items, "credentials put on outside: "+strings.Join(cut(n, "credential"), ", "))
	}
	for _, m := range r.Mounts {
		c.Items = append(c.Items, "host path "+safetext.Fit(safetext.Path([]byte(m.Source)), 80, "…")+", "+safetext.String(m.Access, 40))
	}
	for _, x := range r.Services {
		c.Items = append(c.Items, "service "+safetext.String(x.Name, 63)+", "+x.state()+": "+count(x.Connections, "connection", "connections"))
	}
	for _, x := range r.Published {
		c.Items = append(c.Items, fmt.Sprintf("port %d was reachable from the host at %s", x.Port, safetext.String(x.Host, 80)))
	}
	return c
}

func changedCard(r *Receipt) card {
	c := card{Title: "What it changed", Class: "ok", Word: "kept apart", Link: "changes", Lead: "Nothing in the workspace."}
	switch x := r.Changes; {
	case r.Workspace.Mode == store.Bind:
		c.Class, c.Word, c.Lead, c.Link = "warn", "on the host", "Writes went straight to the host's directory.", ""
	case x == nil && r.keeps() && r.ran():
		c.Class, c.Word, c.Lead, c.Link = "warn", "unknown", "The changes were not collected.", ""
	case x == nil:
		c.Word, c.Lead, c.Link = "nothing", "There was no workspace.", ""
	case x.Total == 0 && x.References == 0 && x.Ignored > 0:
		c.Lead = "Nothing but " + count(x.Ignored, "ignored path", "ignored paths") + ", kept apart."
	case x.Total == 0 && x.References > 0:
		c.Lead = "Git's references, kept apart for review: carboy diff shows the commits."
	case x.Total > 0:
		c.Lead = count(x.Total, "path", "paths") + " of the workspace, kept apart for review."
		c.Items = append(c.Items, changeCounts(x))
		if x.Protected+x.BaseMoved+x.Unlandable > 0 {
			c.Class, c.Word = "warn", "look closer"
		}
	default:
		c.Word = "nothing"
	}
	var host, bottle []string
	for _, x := range r.byPlace() {
		text := safetext.Fit(safetext.Path([]byte(x.Path)), 80, "…") + " (" + safetext.String(strings.Join(x.How, ", "), 60) + ")"
		switch rank, where := r.where(x); rank {
		case 0:
			host = append(host, where+": "+text)
		case 1:
			bottle = append(bottle, "gone with the bottle: "+text)
		}
	}
	if len(host) > 0 {
		c.Class, c.Word = "warn", "on the host"
	}
	c.Items = append(append(c.Items, cut(host, "file on the host")...), cut(bottle, "file in the bottle")...)
	return c
}

func refusedCard(r *Receipt) card {
	c := card{Title: "What was refused", Class: "ok", Word: "nothing", Lead: "Nothing had to be refused."}
	t := r.Network.Totals
	n := t.NamesRefused + t.ConnectionsRefused + t.RequestsRefused
	var found, items []string
	for _, x := range r.Network.Found {
		n += x.Count
		found = append(found, x.Action.word()+", on the way "+x.way()+": "+x.text()+", "+safetext.Fit(target(x.Name, x.Port), 80, "…"))
	}
	for _, x := range r.Network.Names {
		if x.Verdict == Refused {
			items = append(items, "name "+safetext.Fit(safetext.String(x.Name, maxPageText), 80, "…"))
		}
	}
	for _, x := range r.Network.Connections {
		if x.Verdict == Refused {
			items = append(items, safetext.String(x.Proto, 40)+" to "+safetext.Fit(target(x.Name, x.Port), 80, "…"))
		}
	}
	for _, x := range r.Network.Requests {
		if x.Verdict == Refused {
			items = append(items, count(x.Count, "request", "requests")+" to "+safetext.Fit(target(x.Name, x.Port), 80, "…")+": "+safetext.String(Plain(x.Reason), 200))
		}
	}
	items = append(cut(found, "finding"), cut(items, "name, address or request")...)
	if f := r.Files; f != nil && f.DeniedTotal > 0 {
		n += f.DeniedTotal
		items = append(items, count(f.DeniedTotal, "file", "files")+" that it had no permission for")
	}
	if p := r.Privileges; p != nil {
		if all, won := p.tally(); all > won {
			n += all - won
			items = append(items, count(all-won, "request", "requests")+" for rights")
		}
	}
	for _, h := range r.Limits.Hit {
		n++
		items = append(items, "limit met: "+safetext.String(h.Limit, 40)+" "+safetext.String(h.Detail, 200))
	}
	c.Items = items
	if n > 0 {
		c.Class, c.Word, c.Link = "bad", "refused", "network"
		c.Lead = number(n) + " refusals, findings and limits met."
		if n == 1 {
			c.Lead = "One refusal, finding or limit met."
		}
		if t.NamesRefused+t.ConnectionsRefused+t.RequestsRefused == 0 && len(found) == 0 {
			c.Link = "rights"
		}
	}
	return c
}

func unknownCard(r *Receipt) card {
	c := card{Title: "What is unknown", Class: "ok", Word: "nothing", Lead: "Nothing: every fact arrived and was kept."}
	c.Items = r.unknown()
	switch {
	case !r.ran():
		c.Lead = "Nothing, since nothing ran."
	case len(c.Items) > 0:
		c.Class, c.Word, c.Lead = "warn", "look closer", "This receipt cannot say:"
	}
	return c
}

// cut returns the first entries of a list and the number of the rest.
func cut(list []string, what string) []string {
	const shown = 5
	if n := len(list) - shown; n > 0 {
		return append(slices.Clone(list[:shown]), "and "+count(int64(n), "other "+what, "more"))
	}
	return list
}

// timeline shows the tree of processes over time.
type timeline struct {
	Lead, Rest string
	// Total is the width of the time axis in nanoseconds, Grid in units of the
	// drawing.
	Total, Grid int64
	Ticks       []string
	// Overview is a drawing on a grid of overviewBins by 100: the number of
	// processes over time, at most Peak.
	Overview string
	Bins     int
	Peak     string
	Rows     []row
}

type row struct {
	Level  int
	Indent int // of the level, as far as it is drawn
	Deep   bool
	Kids   bool
	Open   bool // at first
	Class  string

	Name, Tail        string
	Start, Took, Exit string
	Bars              []bar
	Grid              int64
	Facts             [][2]string
	Args              []string
	Members           []member
}

type bar struct {
	X, W  int64
	Class string
	Text  string
}

type member struct{ PID, Name, Start, Took, Exit string }

// deepest bounds the indentation of the tree.
const deepest = 12

func newTimeline(r *Receipt) *timeline {
	p := r.Processes
	if p == nil {
		return nil
	}
	t := &timeline{Lead: p.lead(), Bins: overviewBins, Grid: gridWidth, Total: max(int64(r.Duration), 1000)}
	for i := range p.List {
		x := &p.List[i]
		t.Total = max(t.Total, x.Start)
		if x.End != nil {
			t.Total = max(t.Total, *x.End)
		}
	}
	if n := p.Total - int64(len(p.List)); n > 0 {
		t.Rest = count(n, "process is", "processes are") + " counted and not listed here: carboy trace " + string(r.ID)
	}
	for i := range 5 {
		t.Ticks = append(t.Ticks, brief(time.Duration(t.Total*int64(i)/4)))
	}
	t.overview(p)
	roots := p.forest(true)
	open(roots)
	t.rows(nil, roots, 1)
	return t
}

// open opens nodes from the root down until there are enough rows.
func open(level []*node) {
	rows := len(level)
	for len(level) > 0 {
		var next []*node
		for _, n := range level {
			if after := rows + len(n.kids); after <= openRows || rows <= openRows/4 && after <= manyKids {
				rows = after
				n.open = true
				next = append(next, n.kids...)
			}
		}
		level = next
	}
}

func (t *timeline) rows(parent *node, nodes []*node, level int) {
	for _, n := range nodes {
		t.Rows = append(t.Rows, t.row(parent, n, level))
		t.rows(n, n.kids, level+1)
	}
}

func (t *timeline) row(parent, n *node, level int) row {
	x := n.first()
	start, end, ended := n.span()
	out := row{
		Level: level, Indent: min(level-1, deepest), Deep: level-1 > deepest, Kids: len(n.kids) > 0, Open: n.open, Grid: t.Grid,
		Name: safetext.String(x.line(), maxPageText), Start: "+" + brief(time.Duration(start)), Took: "to the end",
		Exit: outcomeText(x), Class: class(x),
	}
	if ended {
		out.Took = brief(time.Duration(end - start))
	}
	if n.mixed {
		out.Name = x.program() + " …"
	}
	if len(n.procs) > 1 {
		out.Tail = "× " + number(int64(len(n.procs)))
	}
	if f := n.failed(); n.mixed && f > 0 && f < int64(len(n.procs)) {
		out.Exit, out.Class = number(f)+" failed", "bad"
	}
	if who := ids(parent, x); who != "" {
		out.Tail = strings.TrimPrefix(out.Tail+", "+who, ", ")
		if out.Class == "ok" {
			out.Class = "warn"
		}
	}
	for _, y := range n.procs {
		out.Bars = append(out.Bars, t.bar(y))
	}
	out.detail(parent, n)
	return out
}

func (r *row) detail(parent, n *node) {
	x := n.first()
	fact := func(k, v string) {
		if v != "" {
			r.Facts = append(r.Facts, [2]string{k, v})
		}
	}
	if x.Path != "" {
		fact("file", safetext.Path([]byte(x.Path)))
		fact("SHA-256", safetext.String(x.Digest, 80))
	} else {
		fact("file", "none: it went on as a copy of its parent")
	}
	who := fmt.Sprintf("uid %d", x.UID)
	if x.EUID != x.UID {
		who += fmt.Sprintf(", effective uid %d", x.EUID)
	}
	if parent != nil && parent.first().UID != x.UID {
		who += fmt.Sprintf(" (its parent: %d)", parent.first().UID)
	}
	fact("rights", who)
	if x.Execs > 1 {
		fact("programs", "the last of "+number(x.Execs))
	}
	if r.Deep {
		fact("depth", strconv.Itoa(r.Level-1))
	}
	if !n.mixed {
		left := maxPageArgs
		for i, a := range x.Args {
			s := safetext.String(string(a), min(left, maxPageText))
			if s == "" && a != "" {
				r.Args = append(r.Args, fmt.Sprintf("… and %d more", len(x.Args)-i))
				break
			}
			left -= len(s) + 1
			if s == "" {
				s = "''"
			}
			r.Args = append(r.Args, s)
		}
	}
	if len(n.procs) == 1 {
		fact("pid", strconv.FormatInt(x.PID, 10)+" inside")
		return
	}
	for _, y := range n.procs {
		m := member{PID: strconv.FormatInt(y.PID, 10), Start: "+" + brief(time.Duration(y.Start)), Took: took(y), Exit: outcomeText(y)}
		if n.mixed {
			m.Name = safetext.String(y.line(), maxShown)
		}
		r.Members = append(r.Members, m)
	}
}

func took(x *Process) string {
	if x.End == nil {
		return "to the end"
	}
	return brief(time.Duration(*x.End - x.Start))
}

func outcomeText(x *Process) string {
	switch {
	case x.End == nil:
		return "not ended"
	case x.Signal != "":
		return x.outcome()
	}
	return "exit " + x.outcome()
}

func class(x *Process) string {
	switch {
	case x.End == nil:
		return "warn"
	case x.bad():
		return "bad"
	}
	return "ok"
}

func (t *timeline) bar(x *Process) bar {
	end := t.Total
	if x.End != nil {
		end = max(*x.End, x.Start)
	}
	from, to := t.at(x.Start), t.at(end)
	return bar{
		X: from, W: to - from, Class: class(x),
		Text: fmt.Sprintf("pid %d: +%s, took %s, %s", x.PID, brief(time.Duration(x.Start)), took(x), outcomeText(x)),
	}
}

// at returns the position of a time on the grid.
func (t *timeline) at(ns int64) int64 {
	return int64(float64(min(max(ns, 0), t.Total)) / float64(t.Total) * gridWidth)
}

// overview draws the number of processes over time: for each bin the most that ran
// at once.
func (t *timeline) overview(p *Processes) {
	type edge struct {
		at   int64
		step int
	}
	var edges []edge
	for i := range p.List {
		x := &p.List[i]
		edges = append(edges, edge{t.at(x.Start), 1})
		if x.End != nil {
			edges = append(edges, edge{t.at(max(*x.End, x.Start)), -1})
		}
	}
	// A process that ends when another begins does not run beside it; one that takes
	// no time still counts.
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	var bins [overviewBins]int
	n, peak, bin := 0, 1, 0
	for _, e := range edges {
		for b := min(int(e.at*overviewBins/gridWidth), overviewBins-1); bin < b; {
			bin++
			bins[bin] = n
		}
		n += e.step
		bins[bin] = max(bins[bin], n)
		peak = max(peak, n)
	}
	for bin++; bin < overviewBins; bin++ {
		bins[bin] = n
	}
	t.Peak = number(int64(peak)) + " at once, at most"
	var b strings.Builder
	b.WriteString("M0 100")
	for i, n := range bins {
		fmt.Fprintf(&b, "V%dH%d", 100-n*96/peak, i+1)
	}
	b.WriteString("V100Z")
	t.Overview = b.String()
}
