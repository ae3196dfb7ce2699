package receipt

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// Style says how a receipt is shown. The zero value is plain text with short
// lists.
type Style struct {
	// Color adds ANSI colours. The caller decides: a terminal, and no NO_COLOR.
	Color bool
	// All shows the lists as far as the receipt holds them; else a handful.
	All bool
}

const (
	lineWidth = 80
	indent    = "  "
	labelCol  = 12 // where values start
	shortList = 10
	// maxShown bounds one text from inside, in bytes, before it is wrapped.
	maxShown = 400
)

// Text writes r for people, no line wider than 80 columns. Everything that came
// from inside is made visible first: a receipt is read in a terminal, and names
// and paths are the workload's own choice.
func Text(w io.Writer, r *Receipt, s Style) error {
	p := &printer{style: s}
	p.head(r)
	p.changes(r)
	p.network(r)
	p.limits(r)
	p.surroundings(r)
	p.notes(r)
	_, err := io.WriteString(w, p.b.String())
	return err
}

type printer struct {
	b     strings.Builder
	style Style
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

func (p *printer) head(r *Receipt) {
	title := "carboy receipt"
	id := string(r.ID)
	fmt.Fprintf(&p.b, "%s %s\n", p.paint(bold, title), p.paint(cyan, id))
	p.b.WriteString(p.paint(dim, strings.Repeat("─", lineWidth)) + "\n")
	p.field("command", plain, shellLine(r.Command))
	p.field("workspace", plain, workspaceLine(r.Workspace))
	if r.Started != nil {
		p.field("started", plain, r.Started.UTC().Format("2006-01-02 15:04:05 UTC")+", took "+Duration(r.Duration))
	}
	c, text := exitLine(r.Exit)
	p.field("exit", c, text)
	p.field("isolation", plain, isolationLine(r.Isolation))
}

// pseudoVersion is how Go names a commit; people need its day and its name.
var pseudoVersion = regexp.MustCompile(`^v[0-9.]+-(?:0\.)?([0-9]{8})[0-9]{6}-([0-9a-f]{12})$`)

func workspaceLine(ws Workspace) string {
	path := visible.Path([]byte(ws.Path))
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
	why := visible.String(e.Error, maxShown)
	switch e.Reason {
	case Exited:
		if e.Code == 0 {
			return green, "0"
		}
		return red, code
	case Signalled:
		return red, code + ", signal " + visible.String(e.Signal, 40)
	case Timeout:
		return red, code + ", the wall clock ran out"
	case Memory:
		return red, code + ", ended because its memory passed the limit"
	case Output:
		return red, code + ", ended because its output passed the limit"
	case Killed:
		return red, join(code+", the bottle was destroyed", why)
	case Running:
		return yellow, "not yet, the run goes on"
	case Lost:
		return red, join(code+", carboy died during the run", why)
	default:
		return red, join(code+", carboy refused or failed", why)
	}
}

func isolationLine(i Isolation) string {
	if i.Class == "" {
		return "nothing ran"
	}
	build := pseudoVersion.ReplaceAllString(i.Build, "$1-$2")
	s := visible.String(fmt.Sprintf("%s (%s)", i.Class, join2(i.Backend, " ", build)), maxShown)
	if i.Posture == nil {
		return s + ", not verified"
	}
	return s + ", verified at the start"
}

func (p *printer) changes(r *Receipt) {
	c := r.Changes
	if c == nil {
		kept := r.Workspace.Mode == store.Overlay || r.Workspace.Mode == store.Copy
		if kept && r.Isolation.Class != "" && r.Exit.Reason != Running {
			p.section("Changes", "not collected")
		}
		return
	}
	if c.Total == 0 {
		p.section("Changes", "none")
	} else {
		p.section("Changes", count(c.Total, "path", "paths")+": "+changeCounts(c))
	}
	limit := p.limit()
	for i, x := range c.List {
		if i == limit {
			break
		}
		p.change(x)
	}
	p.more(min(limit, len(c.List)), c.Total, "carboy diff lists them")
	for i, s := range c.Incomplete {
		if i == shortList {
			p.more(i, int64(len(c.Incomplete)), "")
			break
		}
		p.item(yellow, "incomplete", visible.String(s, maxShown))
	}
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
			s = append(s, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return strings.Join(s, ", ")
}

func (p *printer) change(x Change) {
	mark, c := changeMark(x.Kind)
	text := visible.Path([]byte(x.Path))
	if x.Type == "dir" {
		text += "/"
	}
	if x.Kind != "delete" && x.Type == "file" {
		text = spread(text, Bytes(x.Size), lineWidth-len(indent)-3)
	}
	p.wrap(indent+p.paint(c, mark)+"  ", len(indent)+3, plain, text)
	if len(x.Protected) > 0 {
		p.wrap(indent+"   ", len(indent)+3, yellow, "protected: "+visible.String(x.Protected[0], maxShown))
	}
	if x.BaseMoved != "" {
		p.wrap(indent+"   ", len(indent)+3, yellow, "changed on the host meanwhile: "+visible.String(x.BaseMoved, maxShown))
	}
	if x.Unlandable != "" {
		p.wrap(indent+"   ", len(indent)+3, yellow, "cannot land: "+visible.String(x.Unlandable, maxShown))
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
	if t == (Totals{}) && len(n.Names) == 0 && len(n.Connections) == 0 {
		p.section("Network", "nothing was asked for")
		return
	}
	p.section("Network", tally(t.NamesAllowed, t.NamesRefused, "query", "queries")+"; "+
		tally(t.ConnectionsAllowed, t.ConnectionsRefused, "connection", "connections"))
	if t.BytesUp > 0 || t.BytesDown > 0 || t.Dropped > 0 {
		line := Bytes(t.BytesUp) + " up, " + Bytes(t.BytesDown) + " down"
		if t.Dropped > 0 {
			line += ", " + count(t.Dropped, "packet", "packets") + " dropped"
		}
		p.wrap(indent, len(indent), dim, line)
	}
	limit := p.limit()
	names := refusedFirst(n.Names, func(x Name) Verdict { return x.Verdict })
	for i, x := range names {
		if i == limit {
			break
		}
		p.verdict(x.Verdict, "name", visible.String(x.Name, maxShown), x.Count, rule(x.Rule))
	}
	p.more(min(limit, len(names)), n.NamesTotal, "carboy receipt --all")
	conns := refusedFirst(n.Connections, func(x Connection) Verdict { return x.Verdict })
	for i, x := range conns {
		if i == limit {
			break
		}
		p.connection(x)
	}
	p.more(min(limit, len(conns)), n.ConnectionsTotal, "carboy receipt --all")
}

func tally(allowed, refused int64, one, many string) string {
	s := count(allowed+refused, one, many)
	if refused > 0 {
		s += fmt.Sprintf(", %d refused", refused)
	}
	return s
}

func (p *printer) connection(x Connection) {
	why := rule(x.Rule)
	if x.Reason != "" {
		why = visible.String(Plain(x.Reason), maxShown)
		if by := rule(x.Rule); x.Rule != "" && by != why {
			why += " (" + by + ")"
		}
	}
	if x.BytesUp > 0 || x.BytesDown > 0 {
		why = fmt.Sprintf("%s up, %s down; %s", Bytes(x.BytesUp), Bytes(x.BytesDown), why)
	}
	p.verdict(x.Verdict, visible.String(x.Proto, 40), target(x.Name, x.Port), x.Count, why)
}

func target(name string, port uint16) string {
	s := visible.String(name, maxShown)
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
	return visible.String(Plain(s), maxShown)
}

// whyCol is where reasons start when what they are about leaves room.
const whyCol = 49

// verdict prints what was decided about what, and why beside it or, where one of
// the two is long, on a line of its own: they never fight for room.
func (p *printer) verdict(v Verdict, kind, what string, n int64, why string) {
	c := green
	if v == Refused {
		c = red
	}
	if n > 1 {
		what += fmt.Sprintf(" (%d times)", n)
	}
	lead := indent + p.paint(c, string(v)) + "  "
	const col = 18
	lead += pad(breakLines(kind, 6)[0], 7)
	if gap := whyCol - col - cells(what); gap >= 2 && cells(why) <= lineWidth-whyCol {
		p.b.WriteString(lead + what + strings.Repeat(" ", gap) + p.paint(dim, why) + "\n")
		return
	}
	p.wrap(lead, col, plain, what)
	p.wrap(strings.Repeat(" ", col), col, dim, why)
}

func (p *printer) limits(r *Receipt) {
	l := r.Limits
	if len(l.Hit) == 0 {
		p.section("Limits", "none met")
	} else {
		p.section("Limits", count(int64(len(l.Hit)), "limit", "limits")+" met")
	}
	for i, h := range l.Hit {
		if i == p.limit() {
			p.more(i, int64(len(l.Hit)), "")
			break
		}
		text := visible.String(h.Detail, maxShown)
		if h.Count > 1 {
			text = strings.TrimPrefix(text+fmt.Sprintf(" (%d times)", h.Count), " ")
		}
		p.item(red, visible.String(h.Limit, 40), text)
	}
	if l.Memory == 0 {
		return
	}
	timeout := "no time limit"
	if l.Timeout > 0 {
		timeout = Duration(l.Timeout)
	}
	p.wrap(indent, len(indent), dim, fmt.Sprintf("%s, %s memory, %s, %s disk, %s, %s output",
		timeout, Bytes(l.Memory), count(l.Pids, "process", "processes"), Bytes(l.Disk),
		count(int64(l.CPUs), "CPU", "CPUs"), Bytes(l.Limits.Output)))
}

func (p *printer) surroundings(r *Receipt) {
	if len(r.Mounts) > 0 {
		p.section("Mounts", "")
		for i, m := range r.Mounts {
			if i == p.limit() {
				p.more(i, int64(len(r.Mounts)), "")
				break
			}
			text := visible.Path([]byte(m.Source))
			if m.Target != m.Source {
				text += " at " + visible.Path([]byte(m.Target))
			}
			p.item(plain, visible.String(m.Access, 12), text)
		}
	}
	for i, x := range r.Published {
		if i == 0 {
			p.section("Published", "")
		}
		p.item(plain, fmt.Sprint(x.Port), "on the host at "+visible.String(x.Host, 80))
	}
	p.b.WriteString("\n")
	if r.Audit != nil {
		p.field("audit", dim, fmt.Sprintf("%s, root %s", count(r.Audit.Seq, "record", "records"), visible.String(r.Audit.Root, 48)))
	}
	if r.Evidence != "" {
		p.field("evidence", dim, visible.Path([]byte(r.Evidence)))
	}
}

func (p *printer) notes(r *Receipt) {
	for _, n := range r.Notes {
		p.field("note", yellow, visible.String(n, maxShown))
	}
}

// section starts a part with a heading and one line about it.
func (p *printer) section(name, text string) {
	p.b.WriteString("\n")
	if text == "" {
		p.b.WriteString(p.paint(bold, name) + "\n")
		return
	}
	p.wrap(p.paint(bold, fmt.Sprintf("%-*s", labelCol, name)), labelCol, plain, text)
}

// field prints a label and its value.
func (p *printer) field(label string, c color, text string) {
	p.wrap(p.paint(dim, fmt.Sprintf("%-*s", labelCol, label)), labelCol, c, text)
}

// item prints an indented label and its value.
func (p *printer) item(c color, label, text string) {
	const col = labelCol + 3
	if gap := labelCol - cells(label); gap >= 0 {
		p.wrap(indent+p.paint(c, label)+strings.Repeat(" ", gap+1), col, plain, text)
		return
	}
	p.wrap(indent, len(indent), c, label)
	p.wrap(strings.Repeat(" ", col), col, plain, text)
}

func (p *printer) more(shown int, total int64, hint string) {
	if n := total - int64(shown); n > 0 {
		p.wrap(indent, len(indent), dim, join(fmt.Sprintf("… and %d more", n), hint))
	}
}

func (p *printer) limit() int {
	if p.style.All {
		return max(MaxChanges, MaxNames, MaxConnections)
	}
	return shortList
}

// wrap writes lead, which takes col columns, and text after it, broken so that
// no line is wider than lineWidth; further lines start at col.
func (p *printer) wrap(lead string, col int, c color, text string) {
	room := lineWidth - col
	first := true
	for _, line := range breakLines(text, room) {
		if first {
			p.b.WriteString(lead)
		} else {
			p.b.WriteString(strings.Repeat(" ", col))
		}
		first = false
		p.b.WriteString(p.paint(c, line) + "\n")
	}
}

// breakLines breaks at spaces where it can and within words where it must, never
// between a letter and its marks: a line that starts with a mark would change
// what stands before it. The room must hold a letter with the most marks that
// visible keeps.
func breakLines(text string, room int) []string {
	var lines []string
	for cells(text) > room {
		cut, space, at := 0, -1, 0
		for i, r := range text {
			if !unicode.Is(unicode.M, r) {
				cut = i
			}
			at += runeCells(r)
			if at > room {
				break
			}
			if r == ' ' {
				space = i
			}
		}
		if cut == 0 {
			_, cut = utf8.DecodeRuneInString(text)
		}
		if cut < len(text) && text[cut] == ' ' {
			space = cut
		}
		if space > 0 && space >= cut/2 {
			lines = append(lines, strings.TrimRight(text[:space], " "))
			text = strings.TrimLeft(text[space:], " ")
			continue
		}
		lines = append(lines, text[:cut])
		text = text[cut:]
	}
	return append(lines, text)
}

// cells is how many columns a terminal needs for s.
func cells(s string) int {
	n := 0
	for _, r := range s {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if r < 0x300 {
		return 1
	}
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// pad fills s up to n columns.
func pad(s string, n int) string { return s + strings.Repeat(" ", max(n-cells(s), 0)) }

// spread puts right at the end of a line of room columns, behind left.
func spread(left, right string, room int) string {
	gap := room - cells(left) - cells(right)
	if gap < 2 {
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

// shellLine shows a command so that its words can be told apart.
func shellLine(args []store.Raw) string {
	words := make([]string, len(args))
	for i, a := range args {
		s := visible.String(string(a), maxShown)
		if s == "" || strings.ContainsAny(s, " \t\n\"'\\$`&|;<>()*?[]#~!{}") {
			s = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
		words[i] = s
	}
	return visible.String(strings.Join(words, " "), 2*maxShown)
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
	return fmt.Sprintf("%d %s", n, many)
}

// Bytes shows a size with a binary unit.
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

// Duration shows d with the precision that people can use.
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
