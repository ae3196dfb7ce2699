package tui

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

const (
	// settle is the time that a proposal must be on the screen before a key may answer it.
	settle = 250 * time.Millisecond
	// calm is the least time between two reads of a queue that changes all the time.
	calm = 100 * time.Millisecond
	// splitAt is the least width of a terminal that shows the list and a proposal side by
	// side.
	splitAt = 96
	// maxPaste bounds a paste, in bytes.
	maxPaste = 16 << 10
)

// row is a line of the list.
type row struct {
	entry supervise.Entry
	title string // visible
	find  string // the text that a search looks at, in lower case
	gone  string // why the proposal is over; empty while it waits
}

func newRow(e supervise.Entry) *row {
	p := e.Proposal
	r := &row{entry: e, title: p.Title().String()}
	r.find = strings.ToLower(string(p.Kind) + " " + p.From() + " " + r.title + " " + string(p.ID))
	return r
}

func (r *row) id() supervise.ID { return r.entry.Proposal.ID }

// model is the state of the program. bubbletea calls it from one goroutine.
type model struct {
	ctx     context.Context
	queue   Queue
	now     func() time.Time
	after   func(time.Duration, tea.Msg) tea.Cmd
	changes <-chan struct{}
	style   style

	width, height int

	rows     []*row // in the order in which they came
	problems []supervise.Problem
	failed   string // why the queue could not be read
	loaded   bool
	loading  bool // the queue is being read
	dirty    bool // it has changed since that began

	at     supervise.ID // the selected one; empty if none
	top    int          // the first visible row, among those that match
	filter string
	find   bool // the filter is being typed

	sheet  *sheet // the shown proposal, or nil
	scroll int    // its first line on the screen
	open   bool   // the sheet gets the keys
	since  time.Time
	shows  int // counts what was shown

	ask  *ask // the answer being given, or nil
	help bool
	said string // the last message
	bad  bool   // the message is an error
}

func newModel(ctx context.Context, q Queue, now func() time.Time) *model {
	return &model{ctx: ctx, queue: q, now: now, after: func(d time.Duration, msg tea.Msg) tea.Cmd {
		return tea.Tick(d, func(time.Time) tea.Msg { return msg })
	}}
}

// Messages other than keys.
type (
	listed  struct{ listing supervise.Listing }
	unread  struct{ err error }
	changed struct{ over bool }
	settled struct{ shows int }
	ticked  struct{}
	went    struct {
		id    supervise.ID
		entry supervise.Entry
		err   error
	}
	decided struct {
		reply  supervise.Reply
		answer supervise.Answer
		err    error
	}
)

func (m *model) Init() tea.Cmd { return tea.Batch(m.load(), m.watch(), m.tick()) }

func (m *model) tick() tea.Cmd { return m.after(time.Second, ticked{}) }

// load reads the queue, unless it is being read.
func (m *model) load() tea.Cmd {
	if m.loading {
		m.dirty = true
		return nil
	}
	m.loading, m.dirty = true, false
	return func() tea.Msg {
		l, err := m.queue.List(m.ctx, supervise.Query{})
		if err != nil {
			return unread{err}
		}
		return listed{l}
	}
}

func (m *model) watch() tea.Cmd {
	if m.changes == nil {
		return nil
	}
	return func() tea.Msg {
		_, ok := <-m.changes
		return changed{over: !ok}
	}
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
		return m, m.show()
	case tea.PasteMsg:
		return m, m.paste(msg.Content[:min(len(msg.Content), maxPaste)])
	case tea.KeyPressMsg:
		return m, m.press(msg.Keystroke(), msg.Text)
	case ticked:
		return m, m.tick()
	case settled: // drawn anew: its keys work now
	case changed:
		if msg.over {
			return m, nil
		}
		return m, tea.Batch(m.load(), m.after(calm, again{}))
	case again:
		return m, m.watch()
	case unread:
		// The queue sends a change every few seconds in any case.
		m.loading, m.failed = false, safetext.String(msg.err.Error(), 300)
	case listed:
		m.loading, m.failed, m.loaded = false, "", true
		cmd := m.merge(msg.listing)
		if m.dirty {
			cmd = tea.Batch(cmd, m.load())
		}
		return m, cmd
	case went:
		m.wentAway(msg)
	case decided:
		return m, m.isDecided(msg)
	}
	return m, nil
}

// again is the message that ends the calm between two reads.
type again struct{}

// merge takes a new listing. New proposals go to the end, and ended ones leave the list
// unless selected. The visible rows do not move.
func (m *model) merge(l supervise.Listing) tea.Cmd {
	m.problems = l.Problems
	waits := make(map[supervise.ID]supervise.Entry, len(l.Entries))
	for _, e := range l.Entries {
		waits[e.Proposal.ID] = e
	}
	var cmds []tea.Cmd
	before := m.place()
	known := make(map[supervise.ID]bool, len(m.rows))
	m.rows = slices.DeleteFunc(m.rows, func(r *row) bool {
		known[r.id()] = true
		e, there := waits[r.id()]
		switch {
		case there && e.Proposal.Digest == r.entry.Proposal.Digest:
			return false
		case r.id() != m.at:
			return true
		}
		if r.gone == "" {
			r.gone = "nobody waits for an answer any more"
			id := r.id()
			cmds = append(cmds, func() tea.Msg {
				e, err := m.queue.Find(m.ctx, string(id))
				return went{id, e, err}
			})
		}
		return false
	})
	news := 0
	for _, e := range l.Entries {
		if !known[e.Proposal.ID] {
			m.rows = append(m.rows, newRow(e))
			news++
		}
	}
	// The selected row stays at its place on the screen.
	m.top += m.place() - before
	if news > 0 && m.shows > 0 {
		cmds = append(cmds, tea.Raw("\a"))
	}
	return tea.Batch(append(cmds, m.show())...)
}

// wentAway shows how a selected proposal ended elsewhere.
func (m *model) wentAway(w went) {
	if r := m.row(w.id); r != nil && w.err == nil && w.entry.Answer != nil {
		r.gone = answeredBy(*w.entry.Answer)
		if m.sheet != nil && m.sheet.id == w.id {
			m.sheet.lines = nil
		}
	}
}

// answeredBy returns a text that says who answered.
func answeredBy(a supervise.Answer) string {
	switch a.Verdict {
	case supervise.Expired:
		return "its time was up, which refuses"
	case supervise.Withdrawn:
		return "whoever asked is gone, or wants no answer any more"
	}
	return safetext.String(fmt.Sprintf("%s by %s (%s)", a.Verdict, userOf(a.By), a.By.Channel), 200)
}

func userOf(b supervise.By) string {
	if b.User != "" {
		return b.User
	}
	return fmt.Sprint("user ", b.UID)
}

// matching returns the rows that match the filter.
func (m *model) matching() []*row {
	if m.filter == "" {
		return m.rows
	}
	f := strings.ToLower(m.filter)
	var out []*row
	for _, r := range m.rows {
		if strings.Contains(r.find, f) {
			out = append(out, r)
		}
	}
	return out
}

func (m *model) row(id supervise.ID) *row {
	if i := slices.IndexFunc(m.rows, func(r *row) bool { return r.id() == id }); i >= 0 {
		return m.rows[i]
	}
	return nil
}

// place returns the index of the selected row among the matching ones, or 0.
func (m *model) place() int {
	return max(0, slices.IndexFunc(m.matching(), func(r *row) bool { return r.id() == m.at }))
}

// show shows the selected proposal. If none is selected, it selects one.
func (m *model) show() tea.Cmd {
	list := m.matching()
	if len(list) == 0 {
		if m.ask == nil && !m.open && (m.at == "" || m.row(m.at) == nil || !m.isMatching(list)) {
			m.at, m.sheet = "", nil
		}
		return nil
	}
	if m.at == "" || m.row(m.at) == nil {
		m.at = list[max(0, min(m.top, len(list)-1))].id()
	}
	r := m.row(m.at)
	if m.sheet == nil || m.sheet.id != m.at || m.sheet.digest != r.entry.Proposal.Digest {
		m.sheet, m.scroll = newSheet(r.entry, false), 0
		return m.unsettle()
	}
	return nil
}

func (m *model) isMatching(list []*row) bool {
	return slices.ContainsFunc(list, func(r *row) bool { return r.id() == m.at })
}

// unsettle makes keys wait until the person has seen what is shown now.
func (m *model) unsettle() tea.Cmd {
	m.since = m.now()
	m.shows++
	shows := m.shows
	return m.after(settle, settled{shows})
}

func (m *model) isSettled() bool { return m.now().Sub(m.since) >= settle }

func (m *model) split() bool { return m.width >= splitAt }

// seen reports whether the selected proposal is on the screen.
func (m *model) seen() bool { return m.sheet != nil && (m.split() || m.open) }

func (m *model) say(bad bool, format string, args ...any) {
	m.said, m.bad = fmt.Sprintf(format, args...), bad
}

// press handles a key and the text that it types.
func (m *model) press(key, typed string) tea.Cmd {
	if key == "ctrl+c" {
		return tea.Quit
	}
	if m.ask != nil {
		return m.pressAsk(key, typed)
	}
	m.said, m.bad = "", false
	switch {
	case m.help:
		m.help = false
		return nil
	case m.find:
		return m.pressFind(key, typed)
	}
	switch key {
	case "q":
		if m.open {
			m.open = false
			return nil
		}
		return tea.Quit
	case "?":
		m.help = true
	case "/":
		m.find, m.open = true, false
	case "esc", "h", "left":
		if m.open {
			m.open = false
		} else if m.filter != "" && key == "esc" {
			m.filter = ""
			return m.point(m.place())
		}
	case "enter", "l", "right":
		if m.sheet != nil && !m.open {
			m.open = true
			if !m.split() {
				return m.unsettle()
			}
		}
	case "tab":
		m.open = !m.open && m.sheet != nil
	case "n", "]":
		return m.point(m.place() + 1)
	case "p", "[":
		return m.point(m.place() - 1)
	case "ctrl+d", "J":
		m.scrollTo(m.scroll + m.sheetRoom()/2)
	case "ctrl+u", "K":
		m.scrollTo(m.scroll - m.sheetRoom()/2)
	case "f":
		if m.sheet != nil {
			m.sheet = newSheet(m.sheet.entry, !m.sheet.full)
			return m.unsettle()
		}
	case "a", "r", "m":
		return m.begin(key)
	default:
		return m.move(key)
	}
	return nil
}

// move moves the selection, or scrolls the open proposal.
func (m *model) move(key string) tea.Cmd {
	step, page := 1, max(1, m.listRoom()/2)
	to := m.place()
	last := len(m.matching()) - 1
	if m.open {
		to, page, last = m.scroll, max(1, m.sheetRoom()-1), 1<<30
	}
	switch key {
	case "j", "down":
		to += step
	case "k", "up":
		to -= step
	case "pgdown", "space", "ctrl+f":
		to += page
	case "pgup", "b", "ctrl+b":
		to -= page
	case "home", "g":
		to = 0
	case "end", "G":
		to = last
	default:
		return nil
	}
	if m.open {
		m.scrollTo(to)
		return nil
	}
	return m.point(to)
}

// point selects the i-th matching row. An ended proposal leaves the list when it loses the
// selection.
func (m *model) point(i int) tea.Cmd {
	list := m.matching()
	if len(list) == 0 {
		return m.show()
	}
	to := list[max(0, min(i, len(list)-1))]
	if to.id() == m.at && len(list) > 1 && to.gone != "" {
		to = list[max(0, min(i-1, len(list)-1))]
	}
	was := m.row(m.at)
	m.at = to.id()
	if was != nil && was != to && was.gone != "" {
		m.rows = slices.DeleteFunc(m.rows, func(r *row) bool { return r == was })
	}
	return m.show()
}

func (m *model) scrollTo(to int) {
	if m.sheet == nil {
		return
	}
	n := len(m.sheet.laid(m.style, m.sheetWidth()))
	m.scroll = max(0, min(to, n-m.sheetRoom()))
}

func (m *model) pressFind(key, typed string) tea.Cmd {
	switch key {
	case "enter":
		m.find = false
	case "esc":
		m.find, m.filter = false, ""
	case "backspace", "ctrl+h":
		m.filter = cutLast(m.filter)
	case "ctrl+u":
		m.filter = ""
	case "up", "down", "pgup", "pgdown":
		return m.move(key)
	default:
		if typed == "" || !safetext.Clean(typed) || len(m.filter)+len(typed) > 100 {
			return nil
		}
		m.filter += typed
	}
	if list := m.matching(); len(list) > 0 && !m.isMatching(list) {
		return m.point(0)
	}
	return m.show()
}

func (m *model) paste(s string) tea.Cmd {
	switch {
	case m.ask != nil:
		m.ask.paste(s)
	case m.find:
		return m.pressFind("", s)
	}
	return nil
}

// begin begins an answer to the proposal on the screen.
func (m *model) begin(key string) tea.Cmd {
	r := m.row(m.at)
	switch {
	case r == nil || m.sheet == nil:
		return nil
	case r.gone != "":
		m.say(true, "this can't be answered: %s", r.gone)
		return nil
	case !m.seen() && key != "r":
		m.open = true
		m.say(false, "this is what would be approved; then the same key again")
		return m.unsettle()
	case !m.isSettled():
		m.say(true, "that key came as this was drawn; look, then press it again")
		return nil
	}
	if _, ok := r.entry.Proposal.Payload.(supervise.Signed); ok && key != "r" {
		m.say(true, "a signature approves this: the proposal says by which command")
		return nil
	}
	a := &ask{of: r, digest: m.sheet.digest, since: m.now()}
	switch key {
	case "a":
		a.verdict = supervise.Approved
		a.warning = m.sheet.warning
		n := len(m.sheet.laid(m.style, m.sheetWidth()))
		a.unseen = max(0, n-max(m.sheet.seen, m.scroll+m.sheetRoom()))
	case "r":
		a.verdict = supervise.Rejected
	case "m":
		ed, ok := r.entry.Proposal.Payload.(supervise.Editable)
		if !ok {
			m.say(true, "a proposal of kind %s can only be approved or rejected as it is", r.entry.Proposal.Kind)
			return nil
		}
		a.verdict, a.payload = supervise.Modified, ed
		a.edit = newEditor(ed.EditText())
	}
	m.ask = a
	return nil
}

// pressAsk handles a key during an answer. The key is never a command then, even if the
// proposal ends meanwhile.
func (m *model) pressAsk(key, typed string) tea.Cmd {
	a := m.ask
	if a.sent {
		return nil
	}
	if a.of.gone != "" {
		if key == "esc" {
			m.ask = nil
		}
		return nil
	}
	if key == "esc" {
		m.ask = nil
		m.say(false, "nothing was answered")
		return nil
	}
	if a.edit != nil {
		if key != "ctrl+s" {
			a.edit.press(key, typed)
			a.wrong = ""
			return nil
		}
		p, err := a.payload.Edit("the proposal", []byte(a.edit.text()))
		if err != nil {
			a.wrong = safetext.String(err.Error(), 400)
			return nil
		}
		changed := a.of.entry
		changed.Proposal.Payload = p
		a.changed, a.edit = newSheet(changed, true), nil
		a.warning, a.since = a.changed.warning, m.now()
		return nil
	}
	if key != "enter" {
		a.line().press(key, typed)
		return nil
	}
	switch {
	case m.now().Sub(a.since) < settle:
		a.wrong = "Enter came as this was drawn; look, then press it again"
		return nil
	case a.warning != "" && !a.warned:
		a.warned, a.since, a.wrong = true, m.now(), ""
		return nil
	case a.warned && strings.ToLower(strings.TrimSpace(a.yes.s)) != "yes":
		a.wrong = "type yes, or press Esc"
		return nil
	}
	a.sent, a.wrong = true, ""
	d := supervise.Reply{ID: a.of.id(), Digest: a.digest, Verdict: a.verdict, Payload: a.payloadOf(), Note: strings.TrimSpace(a.note.s), Channel: supervise.ChannelTUI}
	return func() tea.Msg {
		answer, err := m.queue.Answer(m.ctx, d)
		return decided{d, answer, err}
	}
}

// isDecided shows the next proposal, or says why the answer failed.
func (m *model) isDecided(d decided) tea.Cmd {
	if m.ask == nil || m.ask.of.id() != d.reply.ID {
		return nil
	}
	r := m.ask.of
	m.ask = nil
	var answered *supervise.AnsweredError
	switch {
	case errors.As(d.err, &answered):
		r.gone = answeredBy(answered.Answer)
		m.say(true, "your answer came too late: it was %s", r.gone)
	case errors.Is(d.err, supervise.ErrExpired), errors.Is(d.err, supervise.ErrGone), errors.Is(d.err, supervise.ErrNotFound):
		r.gone = safetext.String(d.err.Error(), 200)
		m.say(true, "your answer came too late: %s", r.gone)
	case d.err != nil:
		m.say(true, "%s was not answered: %s", d.reply.ID, safetext.String(d.err.Error(), 300))
	default:
		m.say(false, "%s: %s", d.answer.Verdict, r.title)
		at := m.place()
		m.rows = slices.DeleteFunc(m.rows, func(x *row) bool { return x == r })
		m.open = false
		if list := m.matching(); len(list) > 0 {
			m.at = list[min(at, len(list)-1)].id()
		} else {
			m.at, m.sheet = "", nil
		}
		return tea.Batch(m.show(), m.load())
	}
	return m.load()
}
