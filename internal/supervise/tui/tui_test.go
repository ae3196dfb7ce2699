package tui

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

// desk runs a model without a terminal. It runs commands at once, and has a clock that the
// test sets.
type desk struct {
	*model
	t     *testing.T
	q     *supervisetest.Queue
	clock time.Time
	over  bool // the program has ended
}

func newDesk(t *testing.T, q *supervisetest.Queue, width, height int) *desk {
	d := &desk{t: t, q: q, clock: time.Now()}
	d.model = newModel(t.Context(), q, func() time.Time { return d.clock })
	d.after = func(time.Duration, tea.Msg) tea.Cmd { return nil } // the test sets the clock
	d.send(tea.WindowSizeMsg{Width: width, Height: height})
	d.look()
	d.wait()
	return d
}

// look makes the model read the queue.
func (d *desk) look() { d.run(d.load()) }

// wait advances the clock until keys work.
func (d *desk) wait() { d.clock = d.clock.Add(settle) }

func (d *desk) send(msg tea.Msg) {
	_, cmd := d.Update(msg)
	d.run(cmd)
}

// run runs a command and its messages.
func (d *desk) run(cmd tea.Cmd) {
	if cmd == nil {
		return
	}
	switch msg := cmd().(type) {
	case tea.BatchMsg:
		for _, c := range msg {
			d.run(c)
		}
	case tea.QuitMsg:
		d.over = true
	case listed, unread, went, decided:
		d.send(msg)
	}
}

var named = map[string]tea.KeyPressMsg{
	"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab},
	"space": {Code: tea.KeySpace, Text: " "}, "backspace": {Code: tea.KeyBackspace}, "end": {Code: tea.KeyEnd}, "home": {Code: tea.KeyHome}, "pgdown": {Code: tea.KeyPgDown},
	"ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+s": {Code: 's', Mod: tea.ModCtrl}, "ctrl+u": {Code: 'u', Mod: tea.ModCtrl}, "ctrl+k": {Code: 'k', Mod: tea.ModCtrl}, "delete": {Code: tea.KeyDelete},
}

// keys presses keys, by name or as text, without any time between them.
func (d *desk) keys(keys ...string) {
	d.t.Helper()
	for _, k := range keys {
		if key, ok := named[k]; ok {
			d.send(key)
			continue
		}
		for _, r := range k {
			d.send(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
}

// slowly presses keys with time to look between them.
func (d *desk) slowly(keys ...string) {
	d.t.Helper()
	for _, k := range keys {
		d.keys(k)
		d.wait()
	}
}

func (d *desk) shows() string { return strings.Join(d.screen(), "\n") }

func (d *desk) has(want ...string) {
	d.t.Helper()
	for _, w := range want {
		if !strings.Contains(d.shows(), w) {
			d.t.Fatalf("the screen lacks %q:\n%s", w, d.shows())
		}
	}
}

// answered fails the test unless the answers were these, each as "verdict host".
func (d *desk) answered(want ...string) {
	d.t.Helper()
	var got []string
	for _, r := range d.q.Replies() {
		if r.Channel != supervise.ChannelTUI {
			d.t.Errorf("channel %q", r.Channel)
		}
		e := d.q.Entry(r.ID)
		got = append(got, string(r.Verdict)+" "+e.Proposal.Payload.(supervise.EgressAllow).Routes[0].Host)
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		d.t.Fatalf("answered %q, want %q; the screen:\n%s", got, want, d.shows())
	}
}

func three() *supervisetest.Queue {
	q := &supervisetest.Queue{}
	for _, h := range []string{"one.example", "two.example", "three.example"} {
		q.Add("fix-login", "because of "+h, supervisetest.Route(h))
	}
	return q
}

func TestAnswers(t *testing.T) {
	for _, width := range []int{120, 60} {
		d := newDesk(t, three(), width, 50)
		d.has("3 waiting", "one.example", "two.example")
		d.slowly("enter")
		d.has("@@ -1,3 ", "+ ", "proxy.golang.org", "because of one.example", "GET https://one.example/api/v1/users")
		d.slowly("a")
		d.has("Approve: ", "Note")
		d.answered()
		d.slowly("for the tests", "enter")
		d.answered("approved one.example")
		if r := d.q.Replies()[0]; r.Note != "for the tests" || r.Digest != d.q.Entry(r.ID).Proposal.Digest {
			t.Errorf("%+v", r)
		}
		d.has("2 waiting", "approved: ")
		d.slowly("j", "r")
		d.has("Reject: ")
		d.slowly("no", "backspace", "enter")
		d.answered("approved one.example", "rejected three.example")
		if r := d.q.Replies()[1]; r.Note != "n" {
			t.Errorf("%+v", r)
		}
		d.slowly("r", "esc")
		d.has("nothing was answered")
		d.answered("approved one.example", "rejected three.example")
		d.keys("q")
		if !d.over {
			t.Error("q does not leave")
		}
	}
}

// TestModify checks that a modified payload is shown before it is approved, and that its
// errors are shown.
func TestModify(t *testing.T) {
	d := newDesk(t, three(), 120, 30)
	d.slowly("m")
	d.has("Modify: ", "GET", "Ctrl-S")
	for range 20 {
		d.keys("down")
	}
	d.keys("end", "backspace", "backspace", "backspace", "no such method", "ctrl+s")
	if d.ask == nil || d.ask.edit == nil || d.ask.wrong == "" {
		t.Fatalf("a mistake was taken:\n%s", d.shows())
	}
	for range len("no such method") {
		d.keys("backspace")
	}
	d.keys("HEAD", "ctrl+s")
	d.wait()
	d.has("Approve as modified: ", "HEAD")
	d.answered()
	d.slowly("enter")
	d.answered("modified one.example")
	if got := d.q.Replies()[0].Payload.(supervise.EgressAllow).Routes[0].Matches[0].Methods; !reflect.DeepEqual(got, []string{"HEAD"}) {
		t.Errorf("approved: %v", got)
	}
	// A modification that becomes dangerous gets the warning.
	d.slowly("m")
	for range 20 {
		d.keys("up")
	}
	d.keys("home", "ctrl+k")
	d.ask.edit = newEditor("routes:\n  - host: \"*.example.org\"\n")
	d.keys("ctrl+s")
	d.wait()
	d.slowly("enter", "enter")
	d.answered("modified one.example")
	d.has("type yes")
	d.slowly("yes", "enter")
	d.answered("modified one.example", "modified two.example")
}

// TestDangerous checks that two keys do not approve a proposal with a warning.
func TestDangerous(t *testing.T) {
	q := &supervisetest.Queue{}
	q.Add("b", "", supervisetest.AnyRoute("any.example"))
	d := newDesk(t, q, 100, 24)
	d.slowly("a", "enter", "enter", "y", "enter")
	d.answered()
	d.has("type yes", "every request to any.example")
	d.slowly("es", "enter")
	d.answered("approved any.example")
	// Rejecting needs no warning.
	q.Add("b", "", supervisetest.AnyRoute("more.example"))
	d.look()
	d.wait()
	d.slowly("r", "enter")
	d.answered("approved any.example", "rejected more.example")
}

// TestNothingMoves checks that new and ended proposals change neither the selection nor its
// place on the screen.
func TestNothingMoves(t *testing.T) {
	for _, width := range []int{120, 50} {
		q := &supervisetest.Queue{}
		q.AddMany(30)
		d := newDesk(t, q, width, 20)
		d.slowly("j", "j", "j", "j", "j", "j", "j", "j", "j", "j", "j", "j")
		at, line := d.at, lineOf(d, "host-012")
		q.Add("b", "", supervisetest.Route("new.example"))
		l, _ := q.List(context.Background(), supervise.Query{})
		q.End(l.Entries[2].Proposal.ID, supervise.Rejected)
		q.End(l.Entries[11].Proposal.ID, supervise.Withdrawn)
		q.End(l.Entries[13].Proposal.ID, supervise.Expired)
		d.look()
		if d.at != at || lineOf(d, "host-012") != line {
			t.Errorf("it moved from line %d to %d:\n%s", line, lineOf(d, "host-012"), d.shows())
		}
		// The selected proposal is answered elsewhere. It stays on the screen, with a note.
		q.End(at, supervise.Approved)
		d.look()
		if d.at != at || lineOf(d, "host-012") != line {
			t.Errorf("it moved when it was answered:\n%s", d.shows())
		}
		d.has("approved by someone (cli)")
		d.slowly("a", "r", "m", "enter", "a", "enter")
		d.answered()
		d.has("gone")
		// The next proposal can be answered.
		d.slowly("esc", "j", "enter", "a")
		d.has("Approve: allow host-014")
		d.slowly("enter")
		d.answered("approved host-014.example.com")
	}
}

func lineOf(d *desk, what string) int {
	for i, l := range d.screen() {
		if strings.Contains(l, what) {
			return i
		}
	}
	return -1
}

// TestKeysMeetWhatIsShown checks that keys have no effect before the person could see what
// they would answer.
func TestKeysMeetWhatIsShown(t *testing.T) {
	d := newDesk(t, three(), 120, 24)
	d.keys("j", "a")
	d.has("look, then press it again")
	d.keys("enter", "r", "m", "enter")
	d.answered()
	if d.ask != nil {
		t.Fatal("a key was taken that came with the one that changed the screen")
	}
	d.wait()
	d.keys("a", "enter")
	d.answered()
	d.wait()
	d.keys("enter")
	d.answered("approved two.example")
	// It shows the next proposal, and a key that was pressed too often answers nothing.
	d.keys("a", "enter", "r", "enter")
	d.answered("approved two.example")

	// In a narrow terminal, the proposal must be open.
	d = newDesk(t, three(), 60, 24)
	d.keys("a")
	if d.ask != nil || !d.open {
		t.Error("approved without being shown")
	}
	d.wait()
	d.slowly("a", "enter")
	d.answered("approved one.example")
}

// TestGoneWhileAsked checks that the text of a note is never a command, even if the
// proposal has ended meanwhile.
func TestGoneWhileAsked(t *testing.T) {
	d := newDesk(t, three(), 120, 24)
	d.slowly("a", "a note")
	d.q.End(d.at, supervise.Rejected)
	d.look()
	d.has("gone meanwhile: rejected by someone (cli)")
	d.slowly("a", "enter", "j", "r", "enter", "q", "q", "q", "y", "enter")
	d.answered()
	if d.over {
		t.Error("a letter of the note left")
	}
	d.slowly("esc", "j", "a", "enter")
	d.answered("approved two.example")
}

// TestAnotherUnderTheSameID checks that an answer names the digest that was on the screen.
func TestAnotherUnderTheSameID(t *testing.T) {
	d := newDesk(t, three(), 120, 24)
	shown := d.q.Entry(d.at).Proposal.Digest
	d.slowly("a")
	d.q.Change(d.at, supervisetest.AnyRoute("evil.example"))
	d.slowly("enter")
	if r := d.q.Replies(); len(r) != 1 || r[0].Digest != shown || d.q.Entry(r[0].ID).Answer != nil {
		t.Fatalf("what was not shown was answered: %+v", r)
	}
	d.has(supervise.ErrDigest.Error())
	// By the time it is read, it is another proposal.
	d.look()
	d.keys("a", "enter")
	if len(d.q.Replies()) != 1 {
		t.Error("it was answered as it was drawn")
	}
}

// TestTooLate checks that both persons learn who was first.
func TestTooLate(t *testing.T) {
	for _, v := range []supervise.Verdict{supervise.Approved, supervise.Rejected, supervise.Withdrawn, supervise.Expired} {
		d := newDesk(t, three(), 120, 24)
		d.slowly("a")
		d.q.End(d.at, v)
		d.slowly("enter")
		d.has("your answer came too late")
	}
}

func TestFind(t *testing.T) {
	q := three()
	d := newDesk(t, q, 120, 24)
	d.slowly("/", "TWO")
	if d.shows(); strings.Contains(d.shows(), "three.example") {
		t.Errorf("not left out:\n%s", d.shows())
	}
	d.slowly("enter", "a", "enter")
	d.answered("approved two.example")
	d.has("nothing that waits has that in it")
	d.slowly("a", "r", "enter")
	d.answered("approved two.example")
	d.slowly("esc")
	d.has("one.example", "three.example")
	d.slowly("/", "zzz", "a", "enter", "a")
	d.answered("approved two.example")
}

func TestUnreadable(t *testing.T) {
	q := three()
	d := newDesk(t, q, 120, 24)
	q.Fail(nil, supervise.Problem{File: "bad\x1b[2J", Err: errors.New("is torn")})
	d.look()
	d.has(`1 skipped: bad\x1b[2J: is torn`)
	q.Fail(errors.New("disk on fire"))
	d.look()
	d.has("the queue can't be read: disk on fire")
	d = newDesk(t, &supervisetest.Queue{}, 40, 10)
	d.has("nothing waits", "Nothing waits for you.")
	d.slowly("a", "r", "m", "enter", "j", "k", "G", "f", "n", "J", "/", "enter", "tab")
}

// TestHostile checks that text from inside draws nothing, hides nothing, and is never wider
// or longer than the terminal.
func TestHostile(t *testing.T) {
	hostile := "\x1b[2J\x1b]0;owned\x07\u202eevil\u200b\r\n\u009b31m" + strings.Repeat("wide 漢字 ", 100) + strings.Repeat("a\u0301", 300)
	q := &supervisetest.Queue{}
	apply := supervisetest.Apply("h")
	apply.Module, apply.Files, apply.Plans[0].Changes[0].From, apply.Plans[0].Changes[0].Why = "m\u202e", []string{hostile}, strings.ToValidUTF8(hostile[:40], ""), strings.ToValidUTF8(hostile[:40], "")
	q.Add("ship", hostile, apply)
	q.Add("gate", hostile, supervise.TestsGone{Gate: "g\u202e", Repository: hostile, Signal: "s", Verdict: "v", File: "f", To: "t", Signer: "s", Tests: []string{strings.ToValidUTF8(hostile[:500], ""), "x"}})
	for i := range 17 {
		q.Add(fmt.Sprint("b", i, "\x1b[31m"), hostile, supervise.GateOverride{Gate: "g\u202e", Repository: hostile, Commit: "c", Verdict: "v", Failures: []string{hostile, strings.Repeat("x", 4000)}})
	}
	q.Add("gate", hostile, supervise.GateAttempts{Gate: "g\u202e", Repository: hostile, Work: "w", Step: "s", Made: 3, More: 1, Failures: []string{hostile}})
	for _, st := range []style{{}, {ascii: true}, {color: true}} {
		for _, size := range [][2]int{{200, 60}, {100, 24}, {80, 24}, {40, 12}, {20, 6}, {8, 3}} {
			for _, keys := range [][]string{{}, {"enter"}, {"enter", "G"}, {"enter", "f"}, {"r"}, {"enter", "a"}, {"?"}, {"/", "漢"}, {"j", "j", "enter", "a", "note", "enter"}} {
				d := newDesk(t, q, size[0], size[1])
				d.model.style = st
				d.slowly(keys...)
				lines := d.screen()
				if len(lines) > size[1] {
					t.Errorf("%v %v %v: %d lines", st, size, keys, len(lines))
				}
				for _, l := range lines {
					plain := withoutColor(l)
					if plain != l && !st.color || !safetext.Clean(plain) || safetext.Width(plain) > size[0] {
						t.Fatalf("%v %v %v: %q is %d wide", st, size, keys, l, safetext.Width(plain))
					}
					if st.ascii && strings.ContainsFunc(l, func(r rune) bool { return r > 126 }) {
						t.Fatalf("not plain: %q", l)
					}
				}
			}
		}
	}
	d := newDesk(t, q, 120, 60)
	d.has(`\u202e`)
	if len(q.Replies()) != 0 {
		t.Error("answered")
	}
}

// TestSigned checks that a proposal that needs a signature is shown with the signing
// command, and can only be rejected here.
func TestSigned(t *testing.T) {
	q := &supervisetest.Queue{}
	q.Add("ship", "", supervisetest.Apply("prod1"))
	d := newDesk(t, q, 140, 40)
	d.has("apply web to prod1, which a signature decides", "approving it here does nothing", "carboy ship approve plans/web.plan.json", "app:v2")
	d.slowly("enter", "a")
	d.has("a signature approves this")
	d.slowly("m")
	d.answered()
	d.slowly("r", "enter")
	if r := q.Replies(); len(r) != 1 || r[0].Verdict != supervise.Rejected {
		t.Errorf("answered: %+v", r)
	}
}

// TestEditor edits a text in every way.
func TestEditor(t *testing.T) {
	for _, x := range []struct {
		from string
		keys []string
		want string
	}{
		{"a\nb\n", []string{"x"}, "xa\nb\n"},
		{"a\nb\n", []string{"end", "enter", "x"}, "a\nx\nb\n"},
		{"ab\n", []string{"right", "enter"}, "a\nb\n"},
		{"a\nb\n", []string{"down", "backspace"}, "ab\n"},
		{"a\nb\n", []string{"end", "delete"}, "ab\n"},
		{"abc\n", []string{"right", "delete", "ctrl+k"}, "a\n"},
		{"a\nb\n", []string{"right", "right", "x", "left", "left", "left", "y"}, "ya\nxb\n"},
		{"", []string{"backspace", "delete", "up", "down", "x"}, "x\n"},
		{"é漢\n", []string{"end", "backspace", "é"}, "éé\n"},
	} {
		e := newEditor(x.from)
		for _, k := range x.keys {
			key, text := k, ""
			if len([]rune(k)) == 1 {
				key, text = "", k
			}
			e.press(key, text)
		}
		if got := e.text(); got != x.want {
			t.Errorf("%q %v: %q, want %q", x.from, x.keys, got, x.want)
		}
	}
	e := newEditor("")
	e.paste("two\r\nli\x1b[2Jnes\nend")
	if got := e.text(); got != "two\n\nend\n" {
		t.Errorf("%q: a line that is not plain is not taken", got)
	}
	e.paste(strings.Repeat("x", maxEdited))
	if e.size() > maxEdited {
		t.Errorf("%d characters", e.size())
	}
}
