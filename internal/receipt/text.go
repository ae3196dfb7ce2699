package receipt

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Style selects the form of a receipt's text. The zero value is plain text with
// short lists, 80 columns wide.
type Style struct {
	// Color adds ANSI colours. The caller decides: a terminal, and no NO_COLOR.
	Color bool
	// All shows lists in full, as far as the receipt holds them.
	All bool
	// Width is the number of columns, from 20 to 120; 0 means 80.
	Width int
	// ASCII escapes other characters from inside, for a terminal without UTF-8.
	ASCII bool
}

const (
	defaultWidth = 80
	minWidth     = 20
	maxWidth     = 120 // longer lines are hard to read
	// Below narrowBelow columns, labels stand above their values instead of beside.
	narrowBelow = 50

	margin    = 2  // before entries of a section
	labelCol  = 12 // where values start
	shortList = 10
	// maxShown bounds one text from inside, in bytes, before it is wrapped.
	maxShown = 400
	// shortLines bounds the lines of one text in a short receipt.
	shortLines = 5
	// shortTree bounds the lines of the process tree in a short receipt.
	shortTree = 20
)

// Text writes r for people, with no line wider than the style allows. It makes
// control characters from inside visible first: a receipt is read in a terminal, and
// the workload chooses names and paths.
func Text(w io.Writer, r *Receipt, s Style) error {
	p := newPrinter(s)
	p.head(r)
	p.changes(r)
	p.network(r)
	p.git(r)
	p.processes(r)
	p.files(r)
	p.rights(r)
	p.limits(r)
	p.surroundings(r)
	p.unknown(r)
	p.end(r)
	_, err := io.WriteString(w, p.b.String())
	return err
}

type printer struct {
	b     strings.Builder
	style Style
	width int
}

func newPrinter(s Style) *printer {
	w := s.Width
	if w == 0 {
		w = defaultWidth
	}
	return &printer{style: s, width: min(max(w, minWidth), maxWidth)}
}

type color string

const (
	plain  color = ""
	bold   color = "1"
	dim    color = "2"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	cyan   color = "36"
)

func (p *printer) paint(c color, s string) string {
	if !p.style.Color || c == plain || s == "" {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// narrow reports whether labels stand above their values.
func (p *printer) narrow() bool { return p.width < narrowBelow }

// glyph returns the variant that the terminal can show.
func (p *printer) glyph(utf, ascii string) string {
	if p.style.ASCII {
		return ascii
	}
	return utf
}

// own returns carboy's own text in characters that the terminal can show.
func (p *printer) own(s string) string {
	if p.style.ASCII {
		return safetext.ASCII(s)
	}
	return s
}

// text makes a text from inside visible.
func (p *printer) text(s string) string { return p.own(safetext.String(s, maxShown)) }

// path makes a file name from inside visible.
func (p *printer) path(b store.Raw) string { return p.own(safetext.Path([]byte(b))) }

func (p *printer) head(r *Receipt) {
	p.entry(0, bold, "carboy receipt", len("carboy receipt "), cyan, string(r.ID))
	p.b.WriteString(p.paint(dim, strings.Repeat(p.glyph("─", "-"), p.width)) + "\n")
	p.field("command", plain, shellLine(r.Command))
	p.field("workspace", plain, workspaceLine(r.Workspace))
	if r.Started != nil {
		p.field("started", plain, r.Started.UTC().Format("2006-01-02 15:04:05 UTC")+", took "+Duration(r.Duration))
	}
	c, text := exitLine(r.Exit)
	p.field("exit", c, text)
	p.field("isolation", plain, isolationLine(r.Isolation))
	if l := lacksLine(r.Isolation); l != "" {
		p.field("without", plain, l)
	}
}

// pseudoVersion matches Go's name of a commit. People are shown its day and hash.
var pseudoVersion = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^v[0-9.]+-(?:0\.)?([0-9]{8})[0-9]{6}-([0-9a-f]{12})$`)
})

func workspaceLine(ws Workspace) string {
	path := safetext.Path([]byte(ws.Path))
	switch ws.Mode {
	case store.None:
		return "none"
	case store.Bind:
		return path + " (bind: writes went to the host's directory)"
	case store.Copy:
		return path + " (copy: changes are kept for review)"
	default:
		return path + " (overlay: changes are kept for review)"
	}
}

func exitLine(e Exit) (color, string) {
	code := fmt.Sprint(e.Code)
	why := safetext.String(e.Error, maxShown)
	switch e.Reason {
	case Exited:
		if e.Code == 0 {
			return green, "0"
		}
		return red, code
	case Signalled:
		return red, code + ", signal " + safetext.String(e.Signal, 40)
	case Timeout:
		return red, code + ", the wall clock ran out"
	case Memory:
		return red, code + ", ended because its memory passed the limit"
	case Output:
		return red, code + ", ended because its output passed the limit"
	case Pids:
		return red, code + ", ended because it met its limit of processes"
	case Killed:
		return red, join(code+", the bottle was destroyed", why)
	case Frozen:
		return yellow, join(code+", the bottle was frozen", why)
	case Running:
		return yellow, "not yet, the run goes on"
	case Lost:
		return red, join(code+", carboy died during the run", why)
	default:
		return red, join(code+", carboy refused or failed", why)
	}
}

// lacksLine names what the backend can't give.
func lacksLine(i Isolation) string {
	var out []string
	for _, l := range i.Lacks {
		out = append(out, string(l.What))
	}
	return safetext.String(strings.Join(out, ", "), maxShown)
}

func isolationLine(i Isolation) string {
	if i.Class == "" {
		return "nothing ran"
	}
	build := pseudoVersion().ReplaceAllString(i.Build, "$1-$2")
	s := safetext.String(fmt.Sprintf("%s (%s)", i.Class, join2(i.Backend, " ", build)), maxShown)
	if i.Posture == nil {
		return s + ", not verified"
	}
	return s + ", verified at the start"
}

func (p *printer) changes(r *Receipt) {
	c := r.Changes
	if c == nil {
		if r.keeps() && r.ran() && r.Exit.Reason != Running {
			p.section("Changes", "not collected")
		}
		return
	}
	switch {
	case c.Total > 0:
		p.section("Changes", count(c.Total, "path", "paths")+": "+changeCounts(c))
	case c.References+c.Ignored > 0:
		p.section("Changes", changeCounts(c))
	default:
		p.section("Changes", "none")
	}
	shown := p.list(len(c.List), func(i int) { p.change(c.List[i]) })
	p.more(shown, c.Total, "carboy diff lists them")
	shown = p.list(len(c.Incomplete), func(i int) { p.item(yellow, "incomplete", plain, safetext.String(c.Incomplete[i], maxShown)) })
	p.more(shown, int64(len(c.Incomplete)), "")
}

func changeCounts(c *Changes) string {
	var s []string
	for _, x := range []struct {
		n    int64
		what string
	}{
		{c.Added, "added"}, {c.Modified, "modified"}, {c.Deleted, "deleted"}, {c.Mode, "mode"}, {c.Retyped, "of another type"},
		{c.Protected, "protected"}, {c.BaseMoved, "changed on the host meanwhile"}, {c.Unlandable, "cannot land"},
	} {
		if x.n > 0 {
			s = append(s, number(x.n)+" "+x.what)
		}
	}
	if c.References > 0 {
		s = append(s, "git's references (carboy diff shows the commits)")
	}
	if c.Ignored > 0 {
		s = append(s, "and "+count(c.Ignored, "ignored path", "ignored paths"))
	}
	return strings.Join(s, ", ")
}

func (p *printer) change(x Change) {
	mark, c := changeMark(x.Kind)
	const col = margin + 3
	name := p.path(x.Path)
	if x.Type == "dir" {
		name += "/"
	}
	size := ""
	if x.Kind != "delete" && x.Type == "file" {
		size = Bytes(x.Size)
	}
	p.entry(margin, c, mark, col, plain, p.beside(name, size, p.width-col))
	if len(x.Protected) > 0 {
		p.line(col, yellow, "protected: "+safetext.String(x.Protected[0], maxShown))
	}
	if x.BaseMoved != "" {
		p.line(col, yellow, "changed on the host meanwhile: "+safetext.String(x.BaseMoved, maxShown))
	}
	if x.Unlandable != "" {
		p.line(col, yellow, "cannot land: "+safetext.String(x.Unlandable, maxShown))
	}
}

func changeMark(kind string) (string, color) {
	switch kind {
	case "add":
		return "A", green
	case "modify":
		return "M", cyan
	case "delete":
		return "D", red
	case "mode":
		return "m", cyan
	case "type":
		return "T", yellow
	}
	return "?", yellow
}

func (p *printer) network(r *Receipt) {
	n := &r.Network
	t := n.Totals
	if !n.any() {
		p.section("Network", "nothing was asked for")
		return
	}
	p.section("Network", n.lead())
	if t.BytesUp > 0 || t.BytesDown > 0 || t.Dropped > 0 {
		line := traffic(t.BytesUp, t.BytesDown)
		if t.Dropped > 0 {
			line += ", " + count(t.Dropped, "packet", "packets") + " dropped"
		}
		p.line(margin, dim, line)
	}
	names := refusedFirst(n.Names, func(x Name) Verdict { return x.Verdict })
	shown := p.list(len(names), func(i int) {
		x := names[i]
		p.verdict(x.Verdict, "name", safetext.String(x.Name, maxShown), x.Count, rule(x.Rule))
	})
	p.more(shown, n.NamesTotal, "carboy receipt --all")
	conns := refusedFirst(n.Connections, func(x Connection) Verdict { return x.Verdict })
	shown = p.list(len(conns), func(i int) {
		x := conns[i]
		p.verdict(x.Verdict, safetext.String(x.Proto, 40), target(x.Name, x.Port), x.Count, why(x))
	})
	p.more(shown, n.ConnectionsTotal, "carboy receipt --all")
	requests := refusedFirst(n.Requests, func(x Request) Verdict { return x.Verdict })
	shown = p.list(len(requests), func(i int) {
		x := requests[i]
		p.verdict(x.Verdict, "req", target(x.Name, x.Port), x.Count, x.why())
	})
	p.more(shown, n.RequestsTotal, "carboy receipt --all")
	if len(n.Credentials) > 0 {
		p.line(margin, dim, "put on: "+strings.Join(n.credentials(), ", "))
	}
	p.found(n)
}

// found prints the findings last and in a section of their own, because a reader
// must not miss them.
func (p *printer) found(n *Network) {
	if n.FoundTotal == 0 {
		return
	}
	p.section("Found", n.foundLead())
	shown := p.list(len(n.Found), func(i int) {
		x := n.Found[i]
		c := yellow
		if x.Action == Blocked {
			c = red
		}
		p.outcome(c, x.Action.word(), x.way(), target(x.Name, x.Port), x.Count, x.text())
	})
	p.more(shown, n.FoundTotal, "carboy receipt --all")
}

// any reports whether there was any request.
func (n *Network) any() bool {
	return n.Totals != (Totals{}) || len(n.Names)+len(n.Connections)+len(n.Requests)+len(n.Found) > 0
}

// lead says it in a sentence.
func (n *Network) lead() string {
	t := n.Totals
	s := tally(t.NamesAllowed, t.NamesRefused, "query", "queries") + "; " + tally(t.ConnectionsAllowed, t.ConnectionsRefused, "connection", "connections")
	if t.RequestsAllowed+t.RequestsRefused > 0 {
		s += "; " + tally(t.RequestsAllowed, t.RequestsRefused, "request", "requests")
	}
	return s
}

func (n *Network) foundLead() string {
	return number(n.Totals.FoundOut) + " on the way out, " + number(n.Totals.FoundIn) + " on the way in"
}

func (n *Network) credentials() []string {
	var out []string
	for _, c := range n.Credentials {
		out = append(out, safetext.String(c.Name, 80)+" ("+count(c.Requests, "request", "requests")+")")
	}
	return out
}

// why describes the decision about requests, and their outcome.
func (x Request) why() string {
	s := rule(x.Rule)
	if x.Reason != "" {
		s = safetext.String(Plain(x.Reason), maxShown)
		if x.Rule != "" {
			s += " (" + rule(x.Rule) + ")"
		}
	}
	if x.Verdict == Refused {
		return s
	}
	lead := traffic(x.BytesUp, x.BytesDown)
	if x.Failed > 0 {
		lead += "; " + number(x.Failed) + " failed"
	}
	if x.Credential != "" {
		lead += "; with " + safetext.String(x.Credential, 80)
	}
	if t := x.Tokens; t != nil {
		lead += "; " + t.String()
	}
	return lead + "; " + s
}

// String describes the tokens in words.
func (t *Tokens) String() string {
	return fmt.Sprintf("%s tokens in (%s cached), %s out by %s", number(t.Input), number(t.Cached), number(t.Output), count(t.Answers, "answer", "answers"))
}

// word returns the action for people, as short as the verdicts.
func (a Action) word() string {
	switch a {
	case Masked:
		return "masked"
	case Reported:
		return "seen"
	}
	return string(a)
}

func (x Found) way() string {
	if x.Inbound {
		return "in"
	}
	return "out"
}

// text describes the finding and its place.
func (x Found) text() string {
	s := safetext.String(Plain(x.What), 100)
	if x.Secret != "" {
		s += " " + safetext.String(x.Secret, 100)
	}
	if x.Transform != "" && x.Transform != "plain" {
		s += " as " + safetext.String(x.Transform, 100)
	}
	return s + " in the " + safetext.String(x.Place, 100)
}

func traffic(up, down int64) string { return Bytes(up) + " up, " + Bytes(down) + " down" }

func tally(allowed, refused int64, one, many string) string {
	s := count(allowed+refused, one, many)
	if refused > 0 {
		s += ", " + number(refused) + " refused"
	}
	return s
}

// why describes the decision about a connection, and its traffic.
func why(x Connection) string {
	s := rule(x.Rule)
	if x.Reason != "" {
		s = safetext.String(Plain(x.Reason), maxShown)
		if by := rule(x.Rule); x.Rule != "" && by != s {
			s += " (" + by + ")"
		}
	}
	if x.BytesUp > 0 || x.BytesDown > 0 {
		s = traffic(x.BytesUp, x.BytesDown) + "; " + s
	}
	return s
}

func target(name string, port uint16) string {
	s := safetext.String(name, maxShown)
	if strings.Contains(s, ":") {
		s = "[" + s + "]"
	}
	if port != 0 {
		s += fmt.Sprintf(":%d", port)
	}
	return s
}

func rule(s string) string {
	if s == "" {
		s = "no-route"
	}
	return safetext.String(Plain(s), maxShown)
}

// verdict prints a decision and its subject, and the reason beside it or, if one of
// them is long, on a line of its own.
func (p *printer) verdict(v Verdict, kind, what string, n int64, why string) {
	c := green
	if v == Refused {
		c = red
	}
	p.outcome(c, string(v), kind, what, n, why)
}

func (p *printer) outcome(c color, word, kind, what string, n int64, why string) {
	what, why = p.own(what), p.own(why)
	if n > 1 {
		what += " (" + number(n) + " times)"
	}
	if p.narrow() {
		p.line(margin, c, word+" "+kind)
		p.line(margin+2, plain, what)
		p.line(margin+2, dim, why)
		return
	}
	const col = 18
	lead := pad("", margin) + p.paint(c, pad(word, 7)) + "  " + pad(safetext.Fit(p.own(kind), 6, ""), 7)
	whyCol := p.width*3/5 + 1
	if gap := whyCol - col - safetext.Width(what); gap >= 2 && safetext.Width(why) <= p.width-whyCol {
		p.b.WriteString(lead + what + pad("", gap) + p.paint(dim, why) + "\n")
		return
	}
	p.wrap(lead, col, plain, what)
	p.line(col, dim, why)
}

// The columns of the process tree.
const (
	timeCol = 8
	exitCol = 7
	treeCol = margin + timeCol + 2 + timeCol + 2 + exitCol + 2
	// leastTree is the least width of a name in the tree, in columns.
	leastTree = 12
)

func (p *printer) processes(r *Receipt) {
	x := r.Processes
	if x == nil {
		if r.ran() {
			p.section("Processes", "not recorded")
		}
		return
	}
	p.section("Processes", x.lead())
	if len(x.List) == 0 {
		return
	}
	if !p.narrow() {
		p.b.WriteString(p.paint(dim, pad("", margin)+left("start", timeCol)+"  "+left("took", timeCol)+"  "+left("exit", exitCol)) + "\n")
	}
	roots, cut := x.forest(!p.style.All), map[*node]int64{}
	if !p.style.All {
		roots, cut = shorten(roots, shortTree)
	}
	t := tree{p: p, cut: cut}
	t.nodes(nil, roots, nil)
	if n := x.Total - int64(len(x.List)); n > 0 {
		p.line(margin, dim, "… and "+number(n)+" more that the receipt does not list: carboy trace "+string(r.ID))
	}
}

// tree prints processes.
type tree struct {
	p   *printer
	cut map[*node]int64
}

// nodes prints siblings. rails tells for each level above, except the roots',
// whether more siblings follow there.
func (t *tree) nodes(parent *node, nodes []*node, rails []bool) {
	hidden := t.cut[parent]
	for i, n := range nodes {
		more := i+1 < len(nodes) || hidden > 0
		t.node(parent, n, rails, more)
		below := rails
		if parent != nil {
			below = append(slices.Clip(rails), more)
		}
		t.nodes(n, n.kids, below)
	}
	if hidden > 0 {
		first, _ := t.branches(rails, parent != nil, false)
		t.p.row("", "", "", plain, first, "", dim, "… and "+number(hidden)+" more", "", false)
	}
}

// branches returns the lines drawn before a name: on its first line, and on others.
func (t *tree) branches(rails []bool, child, more bool) (first, rest string) {
	if !child {
		return "", ""
	}
	p := t.p
	deepest := max((p.treeRoom()-leastTree)/3-1, 0)
	var b strings.Builder
	for i, on := range rails {
		if i == deepest {
			break
		}
		if on {
			b.WriteString(p.glyph("│  ", "|  "))
		} else {
			b.WriteString("   ")
		}
	}
	depth := ""
	if len(rails) > deepest {
		// Too deep to draw: say how deep.
		depth = "(" + number(int64(len(rails)+1)) + ") "
	}
	if more {
		return b.String() + p.glyph("├─ ", "|- ") + depth, b.String() + p.glyph("│  ", "|  ")
	}
	return b.String() + p.glyph("└─ ", "`- ") + depth, b.String() + "   "
}

func (t *tree) node(parent, n *node, rails []bool, more bool) {
	p, x := t.p, n.first()
	first, rest := t.branches(rails, parent != nil, more)
	start, end, ended := n.span()
	took := "to end"
	if ended {
		took = brief(time.Duration(end - start))
	}
	exit, c := p.exit(n)
	name, tail := x.line(), ""
	if n.mixed {
		name, tail = x.program(), p.glyph(" … × ", " ... x ")+number(int64(len(n.procs)))
	} else if len(n.procs) > 1 {
		tail = p.glyph(" × ", " x ") + number(int64(len(n.procs)))
	}
	if f := n.failed(); n.mixed && f > 0 {
		tail += ", " + number(f) + " failed"
	}
	if who := ids(parent, x); who != "" {
		tail += ", " + who
	}
	begun := "+" + brief(time.Duration(start))
	p.row(begun, took, exit, c, first, rest, plain, name, tail, p.style.All)
	if p.narrow() {
		if exit == "-" {
			exit = "not ended"
		} else if x.Signal == "" {
			exit = "exit " + exit
		}
		p.row("", "", "", plain, rest, rest, dim, begun+", "+took+", "+exit, "", true)
	}
	if p.style.All && x.Path != "" {
		s := string(p.path(x.Path))
		if x.Digest != "" {
			s += " sha256:" + p.text(x.Digest)
		}
		if x.Execs > 1 {
			s += ", the last of " + count(x.Execs, "program", "programs")
		}
		p.row("", "", "", plain, rest, rest, dim, s, "", true)
	}
}

// ids describes the user and group of a process if they are not its parent's.
func ids(parent *node, x *Process) string {
	var s []string
	if parent != nil && parent.first().UID != x.UID {
		s = append(s, fmt.Sprintf("uid %d", x.UID))
	}
	if x.EUID != x.UID {
		s = append(s, fmt.Sprintf("euid %d", x.EUID))
	}
	return strings.Join(s, ", ")
}

// exit describes the common end of a node's members, if they have one.
func (p *printer) exit(n *node) (string, color) {
	x := n.first()
	for _, y := range n.procs {
		if y.outcome() != x.outcome() {
			return "mixed", yellow
		}
	}
	switch {
	case x.End == nil:
		return "-", yellow
	case x.bad():
		return p.text(x.outcome()), red
	}
	return x.outcome(), dim
}

// treeRoom returns the columns that a tree has for branches and names.
func (p *printer) treeRoom() int {
	if p.narrow() {
		return p.width - margin
	}
	return p.width - treeCol
}

// row prints one line of the tree, or with wrapped as many as it takes. The tail
// is always shown, the name as far as there is room.
func (p *printer) row(start, took, exit string, ec color, first, rest string, c color, name, tail string, wrapped bool) {
	room := p.treeRoom()
	name, tail = p.own(name), p.own(tail)
	free := room - safetext.Width(first)
	tail = safetext.Fit(tail, free-4, "")
	lines := []string{safetext.Fit(name, free-safetext.Width(tail), p.glyph("…", "...")) + tail}
	if wrapped {
		lines = safetext.Wrap(name+tail, free-max(safetext.Width(rest)-safetext.Width(first), 0))
	}
	for i, line := range lines {
		branch := first
		if i > 0 {
			branch = pad(rest, safetext.Width(first))
			start, took, exit = "", "", ""
		}
		p.b.WriteString(pad("", margin))
		if !p.narrow() {
			p.b.WriteString(p.paint(dim, left(start, timeCol)+"  "+left(took, timeCol)) + "  " + p.paint(ec, left(safetext.Fit(exit, exitCol, ""), exitCol)) + "  ")
		}
		p.b.WriteString(p.paint(dim, branch) + p.paint(c, line) + "\n")
	}
}

// left puts s at the right end of n columns.
func left(s string, n int) string { return strings.Repeat(" ", max(n-safetext.Width(s), 0)) + s }

func (p *printer) files(r *Receipt) {
	f := r.Files
	if f == nil {
		return
	}
	least := ""
	if f.More {
		least = "at least "
	}
	s := least + number(f.ReadTotal) + " read outside the workspace, " + number(f.ReadInside) + " inside; " + number(f.WrittenTotal) + " written"
	if f.Missed > 0 {
		s += "; " + number(f.Missed) + " looked for in vain"
	}
	if f.DeniedTotal > 0 {
		s += "; " + number(f.DeniedTotal) + " denied"
	}
	p.section("Files", s)
	p.areas(red, "denied", f.Denied, f.DeniedTotal)
	p.areas(plain, "read", f.Read, f.ReadTotal)
	written := r.byPlace()
	if r.Changes != nil && !p.style.All {
		// The section of changes lists those that were kept.
		written = slices.DeleteFunc(written, func(x Written) bool { return x.Inside })
	}
	shown := p.list(len(written), func(i int) {
		x := written[i]
		how := safetext.String(strings.Join(x.How, ", "), 60)
		c := plain
		switch rank, where := r.where(x); rank {
		case 0:
			how += ", " + where
			c = yellow
		case 2:
			how += ", " + where
		}
		p.item(c, "written", plain, p.beside(p.path(x.Path), how, p.width-labelCol-3))
	})
	p.more(shown, f.WrittenTotal, "carboy receipt --all")
}

// areas lists directories. total counts files: those missing from the sum of the
// list are not listed.
func (p *printer) areas(c color, label string, list []Area, total int64) {
	shown := p.list(len(list), func(i int) {
		total -= list[i].Files
		p.item(c, label, plain, p.beside(p.path(list[i].Path), count(list[i].Files, "file", "files"), p.width-labelCol-3))
	})
	if total > 0 && shown > 0 {
		p.line(margin, dim, "… and "+count(total, "file", "files")+" "+label+" elsewhere")
	}
}

func (p *printer) rights(r *Receipt) {
	if x := r.Privileges; x != nil {
		p.section("Rights", x.lead())
		attempts := slices.Clone(x.Attempts)
		slices.SortStableFunc(attempts, func(a, b Attempt) int { return cmp.Compare(b.Errno, a.Errno) })
		shown := p.list(len(attempts), func(i int) {
			a := attempts[i]
			p.attempt(a.Errno, a.harmless(), safetext.String(a.What, 40), safetext.String(a.Detail, maxShown), a.Count)
		})
		p.more(shown, int64(len(attempts)), "carboy receipt --all")
	}
	if x := r.Sockets; x != nil {
		var odd []Socket
		var usual []string
		for _, s := range x.List {
			switch {
			case s.unusual() || p.style.All:
				odd = append(odd, s)
			case !slices.Contains(usual, s.Family):
				usual = append(usual, s.Family)
			}
		}
		switch {
		case len(x.List) == 0:
			p.section("Sockets", "none")
			return
		case len(odd) == 0:
			p.section("Sockets", "usual ones only: "+safetext.String(strings.Join(usual, ", "), 80))
			return
		case len(usual) == 0:
			p.section("Sockets", count(int64(len(odd)), "kind", "kinds"))
		default:
			p.section("Sockets", count(int64(len(odd)), "unusual kind", "unusual kinds")+", beside "+safetext.String(strings.Join(usual, ", "), 80))
		}
		shown := p.list(len(odd), func(i int) {
			s := odd[i]
			p.attempt(s.Errno, !s.unusual(), safetext.String(s.Family, 40), safetext.String(s.Type, 40), s.Count)
		})
		p.more(shown, int64(len(odd)), "carboy receipt --all")
	}
}

// attempt describes a request to the kernel inside in a line.
func (p *printer) attempt(errno string, harmless bool, what, detail string, n int64) {
	v, c := "refused", red
	switch {
	case harmless:
		v, c = "granted", plain
	case errno == "":
		v, c = "granted", yellow
	}
	text := strings.TrimSpace(what + " " + detail)
	if n > 1 {
		text += " (" + number(n) + " times)"
	}
	p.item(c, v, plain, p.beside(p.own(text), p.text(errno), p.width-labelCol-3))
}

func (p *printer) limits(r *Receipt) {
	l := r.Limits
	if len(l.Hit) == 0 {
		p.section("Limits", "none met")
	} else {
		p.section("Limits", count(int64(len(l.Hit)), "limit", "limits")+" met")
	}
	shown := p.list(len(l.Hit), func(i int) {
		h := l.Hit[i]
		text := safetext.String(h.Detail, maxShown)
		if h.Count > 1 {
			text = strings.TrimPrefix(text+" ("+number(h.Count)+" times)", " ")
		}
		p.item(red, safetext.String(h.Limit, 40), plain, text)
	})
	p.more(shown, int64(len(l.Hit)), "")
	if s := bounds(l); s != "" {
		p.line(margin, dim, s)
	}
}

// bounds prints the limits.
func bounds(l Limits) string {
	if l.Memory == 0 {
		return ""
	}
	timeout := "no time limit"
	if l.Timeout > 0 {
		timeout = Duration(l.Timeout)
	}
	s := fmt.Sprintf("%s, %s memory, %s, %s disk, %s, %s output",
		timeout, Bytes(l.Memory), count(l.Pids, "process", "processes"), Bytes(l.Disk),
		count(int64(l.CPUs), "CPU", "CPUs"), Bytes(l.Limits.Output))
	if l.Egress > 0 {
		s += ", " + Bytes(l.Egress) + " sent"
	}
	return s
}

func (p *printer) surroundings(r *Receipt) {
	if r.Image != nil {
		p.section("Image", "")
		p.item(plain, "root", plain, safetext.String(string(r.Image.Ref), maxShown))
		p.item(plain, "", plain, safetext.String(r.Image.Digest, 80))
	}
	p.services(r.Services)
	if len(r.Mounts) > 0 {
		p.section("Mounts", "")
	}
	shown := p.list(len(r.Mounts), func(i int) {
		m := r.Mounts[i]
		text := p.path(m.Source)
		if m.Target != m.Source {
			text += " at " + p.path(m.Target)
		}
		p.item(plain, safetext.String(m.Access, 12), plain, text)
	})
	p.more(shown, int64(len(r.Mounts)), "")
	if x := r.Execs; x != nil {
		p.section("Also run", "with carboy exec")
		shown = p.list(len(x.List), func(i int) {
			e := x.List[i]
			how := fmt.Sprintf("exit %d", e.Exit.Code)
			if e.Exit.Signal != "" {
				how = safetext.String(e.Exit.Signal, 20)
			}
			p.item(plain, how, plain, shellLine(e.Command))
		})
		p.more(shown, x.Total, "")
	}
	p.proposals(r.Proposals)
	if len(r.Published) > 0 {
		p.section("Published", "")
	}
	shown = p.list(len(r.Published), func(i int) {
		x := r.Published[i]
		p.item(plain, fmt.Sprint(x.Port), plain, "on the host at "+safetext.String(x.Host, 80))
	})
	p.more(shown, int64(len(r.Published)), "")
}

// services prints what ran beside the command's bottle.
func (p *printer) services(l []Service) {
	if len(l) == 0 {
		return
	}
	p.section("Services", "each in a bottle of its own, without a way out")
	shown := p.list(len(l), func(i int) {
		x, c := l[i], plain
		if x.Exit != nil || x.Health == "" || x.Health == Unhealthy {
			c = red
		}
		p.item(plain, safetext.String(x.Name, 63), c, x.state()+"; "+count(x.Connections, "connection", "connections")+", "+traffic(x.BytesUp, x.BytesDown))
		p.item(plain, "", plain, strings.TrimSpace(safetext.String(string(x.Image), maxShown)+" "+safetext.String(x.Digest, 80)))
	})
	p.more(shown, int64(len(l)), "")
}

// state says how far a service came, and how it ended.
func (x *Service) state() string {
	s := safetext.String(x.Health, 20)
	if s == "" {
		s = "never ready"
	}
	switch e := x.Exit; {
	case e == nil:
		return s
	case e.Error != "":
		return s + ", ended: " + safetext.String(e.Error, maxShown)
	case e.Signal != "":
		return s + ", ended by " + safetext.String(e.Signal, 20)
	default:
		return s + fmt.Sprintf(", ended with exit code %d", e.Code)
	}
}

func (p *printer) unknown(r *Receipt) {
	list := r.unknown()
	if len(list) == 0 {
		return
	}
	p.section("Unknown", "what this receipt cannot say")
	p.list(len(list), func(i int) { p.entry(margin, yellow, p.glyph("•", "*"), margin+2, plain, list[i]) })
}

// end prints where the evidence is.
func (p *printer) end(r *Receipt) {
	if r.Audit != nil || r.Trace != nil || r.Evidence != "" || len(r.Notes) > 0 {
		p.b.WriteString("\n")
	}
	if t := r.Trace; t != nil {
		s := count(t.Facts, "fact", "facts") + " in " + Bytes(t.Bytes)
		if t.whole() {
			p.field("trace", dim, s+", none lost")
		} else {
			p.field("trace", yellow, s+", not all that there were: see Unknown")
		}
		p.field("", dim, "carboy trace "+string(r.ID))
		if t.Digest != "" {
			p.field("  sha256", dim, safetext.String(t.Digest, 80))
		}
	}
	if r.Audit != nil {
		p.field("audit", dim, count(r.Audit.Seq, "record", "records"))
		p.field("  root", dim, safetext.String(r.Audit.Root, 80))
	}
	if r.Evidence != "" {
		p.field("evidence", dim, safetext.Path([]byte(r.Evidence)))
	}
	for _, n := range r.Notes {
		p.field("note", yellow, safetext.String(n, maxShown))
	}
}

// section starts a part with a heading and one line about it.
func (p *printer) section(name, text string) {
	p.b.WriteString("\n")
	p.entry(0, bold, name, labelCol, plain, text)
}

// field prints a label and its value.
func (p *printer) field(label string, c color, text string) {
	p.entry(0, dim, label, labelCol, c, text)
}

// item prints an indented label and its value.
func (p *printer) item(lc color, label string, c color, text string) {
	p.entry(margin, lc, label, labelCol+3, c, text)
}

// entry prints a label at a column and a text at another, below it when the
// label is too long or the lines too short for both.
func (p *printer) entry(at int, lc color, label string, col int, c color, text string) {
	label, text = p.own(label), p.clip(p.own(text))
	lead := pad("", at) + p.paint(lc, label)
	used := at + safetext.Width(label)
	switch {
	case text == "":
		p.line(at, lc, label)
	case label == "" && p.narrow():
		p.line(at+2, c, text)
	case p.narrow() && col > at+4 && used+1+safetext.Width(text) <= p.width:
		p.b.WriteString(lead + " " + p.paint(c, text) + "\n")
	case p.narrow() && col > at+4:
		p.line(at, lc, label)
		p.line(at+2, c, text)
	case used < col:
		p.wrap(lead+pad("", col-used), col, c, text)
	default:
		p.line(at, lc, label)
		p.line(col, c, text)
	}
}

// clip bounds a text in a short receipt, so that the workload can't fill the screen.
func (p *printer) clip(s string) string {
	if p.style.All {
		return s
	}
	return safetext.Fit(s, max(shortLines*(p.width-labelCol), maxShown/4), p.glyph("…", "..."))
}

// list prints entries, of long lists the first ones, and returns their number.
func (p *printer) list(n int, show func(int)) int {
	if !p.style.All {
		n = min(n, shortList)
	}
	for i := range n {
		show(i)
	}
	return n
}

func (p *printer) more(shown int, total int64, hint string) {
	if n := total - int64(shown); n > 0 {
		p.line(margin, dim, join("… and "+number(n)+" more", hint))
	}
}

// line prints a text at a column.
func (p *printer) line(at int, c color, text string) { p.wrap(pad("", at), at, c, text) }

// wrap prints lead, which takes col columns, and then text, broken so that no line
// is wider than the style allows. Further lines start at col.
func (p *printer) wrap(lead string, col int, c color, text string) {
	for i, line := range safetext.Wrap(p.own(text), p.width-col) {
		if i > 0 {
			lead = pad("", col)
		}
		p.b.WriteString(lead + p.paint(c, line) + "\n")
	}
}

// pad fills s up to n columns.
func pad(s string, n int) string { return s + strings.Repeat(" ", max(n-safetext.Width(s), 0)) }

// beside joins left and right into a line of room columns, with right at its end, if
// both fit.
func (p *printer) beside(left, right string, room int) string {
	gap := room - safetext.Width(left) - safetext.Width(p.own(right))
	switch {
	case right == "":
		return left
	case p.narrow() || gap < 2:
		return left + "  " + right
	}
	return left + strings.Repeat(" ", gap) + right
}

func refusedFirst[T any](s []T, verdict func(T) Verdict) []T {
	s = slices.Clone(s)
	slices.SortStableFunc(s, func(a, b T) int { return cmp.Compare(rank(verdict(a)), rank(verdict(b))) })
	return s
}

func rank(v Verdict) int {
	if v == Refused {
		return 0
	}
	return 1
}

// shellLine quotes a command so that its words can be told apart.
func shellLine(args []store.Raw) string {
	var b strings.Builder
	for i, a := range args {
		if b.Len() > 2*maxShown {
			b.WriteString(" …")
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word(string(a)))
	}
	return safetext.String(b.String(), 2*maxShown)
}

// word quotes one word of a command.
func word(s string) string {
	s = safetext.String(s, maxShown)
	if s == "" || strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[]#~!{}") {
		s = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

func join(a, b string) string { return join2(a, ": ", b) }

func join2(a, sep, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + sep + b
}

func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}

// number groups the digits of large numbers.
func number(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// brief formats a duration in at most 8 characters, for columns.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 100*time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d < 100*time.Minute:
		return fmt.Sprintf("%.1f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// Bytes formats a size with a binary unit.
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 1023.95 && unit < 4 {
		v /= 1024
		unit++
	}
	s := fmt.Sprintf("%.1f", v)
	return strings.TrimSuffix(s, ".0") + " " + string("KMGTP"[unit]) + "iB"
}

// Duration formats d with a precision that is useful to people.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d < time.Hour && d%time.Minute == 0:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}
