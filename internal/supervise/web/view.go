package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// row is a line of the list. Its texts are visible.
type row struct {
	id                  supervise.ID
	digest              supervise.Digest
	title, kind, bottle string
	warn                bool
	until               time.Time
	find                string // the text that a search looks at, in lower case
}

func newRow(p supervise.Proposal) *row {
	r := &row{id: p.ID, digest: p.Digest, title: p.Title().String(), kind: string(p.Kind), bottle: p.From(), warn: p.Payload.Warn() != "", until: p.Expires}
	r.find = strings.ToLower(r.kind + " " + r.bottle + " " + r.title + " " + string(r.id))
	return r
}

func (s state) row(id string) *row {
	if i := slices.IndexFunc(s.rows, func(r *row) bool { return string(r.id) == id }); i >= 0 {
		return s.rows[i]
	}
	return nil
}

// rowOut is a row as the template and page.js get it.
type rowOut struct {
	ID      string `json:"id"`
	Href    string `json:"href"`
	Title   string `json:"title"`
	Kind    string `json:"kind"`
	Bottle  string `json:"bottle"`
	Warn    bool   `json:"warn"`
	Until   int64  `json:"until"` // milliseconds since 1970
	Left    string `json:"left"`
	Current bool   `json:"-"`
}

// listQuery selects a part of the list.
type listQuery struct{ query, from, id string }

// list is a part of the list.
type list struct {
	Count          string
	Rows           []rowOut
	Earlier, Later string
	From           string
}

// listed returns the part of the list that begins at a proposal, or that holds the shown
// one.
func (s *Server) listed(now state, in *session, a listQuery) list {
	rows := now.rows
	if q := strings.ToLower(strings.TrimSpace(a.query)); q != "" {
		rows = nil
		for _, r := range now.rows {
			if strings.Contains(r.find, q) {
				rows = append(rows, r)
			}
		}
	}
	begin := 0
	if a.from != "" {
		if i := slices.IndexFunc(rows, func(r *row) bool { return string(r.id) >= a.from }); i >= 0 {
			begin = i
		} else {
			begin = max(0, len(rows)-windowRows)
		}
	} else if i := slices.IndexFunc(rows, func(r *row) bool { return string(r.id) == a.id }); i >= 0 {
		begin = i - i%windowRows
	}
	end := min(begin+windowRows, len(rows))
	out := list{Count: counted(len(now.rows), len(rows), begin, end, a.query != ""), From: a.from}
	if begin > 0 {
		out.Earlier = in.path + params(a.query, string(rows[max(0, begin-windowRows)].id))
		if begin <= windowRows {
			out.Earlier = in.path + params(a.query, "")
		}
		if out.From == "" {
			out.From = string(rows[begin].id)
		}
	}
	if end < len(rows) {
		out.Later = in.path + params(a.query, string(rows[end].id))
	}
	out.Rows = make([]rowOut, 0, end-begin)
	for _, r := range rows[begin:end] {
		out.Rows = append(out.Rows, rowOut{
			ID: string(r.id), Href: in.path + "p/" + string(r.id) + params(a.query, out.From), Title: r.title, Kind: r.kind, Bottle: r.bottle, Warn: r.warn,
			Until: r.until.UnixMilli(), Left: left(time.Until(r.until)), Current: string(r.id) == a.id,
		})
	}
	return out
}

func counted(all, match, begin, end int, query bool) string {
	switch {
	case all == 0:
		return "nothing waits"
	case query:
		return fmt.Sprintf("%d of %d match", match, all)
	case end-begin < all:
		return fmt.Sprintf("%d–%d of %d waiting", begin+1, end, all)
	}
	return fmt.Sprintf("%d waiting", all)
}

func params(query, from string) string {
	v := url.Values{}
	if query != "" {
		v.Set("q", query)
	}
	if from != "" {
		v.Set("from", from)
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

func left(d time.Duration) string {
	s := max(0, int(d.Round(time.Second).Seconds()))
	switch {
	case s < 60:
		return fmt.Sprintf("%d s left", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s left", s/60, s%60)
	}
	return fmt.Sprintf("%d h %d min left", s/3600, s%3600/60)
}

// view is the content of a page beside the list.
type view struct {
	id     string // of the proposal, or empty
	status int
	says   string // what went wrong; visible

	note, text string // as typed
	editing    bool
	changed    supervise.Payload // the edited payload; nil before text is parsed
	as         string            // digest of changed
}

func (v view) wrong(status int, says string) view {
	v.status, v.says = status, says
	return v
}

// failed returns v with a message for the error of an answer.
func (v view) failed(err error) view {
	if a, ok := errors.AsType[*supervise.AnsweredError](err); ok {
		words, _ := howItEnded(a.Answer)
		return v.wrong(http.StatusConflict, "Your answer came too late. "+words)
	}
	switch {
	case errors.Is(err, supervise.ErrDigest):
		v.changed = nil
		return v.wrong(http.StatusConflict, "Nothing was answered: the waiting proposal is not the one that was shown. Look at it again.")
	case errors.Is(err, supervise.ErrNotFound), errors.Is(err, supervise.ErrExpired), errors.Is(err, supervise.ErrGone):
		return v.wrong(http.StatusGone, "Nothing was answered: "+safetext.String(err.Error(), 300)+".")
	}
	return v.wrong(http.StatusInternalServerError, "Nothing was answered: "+safetext.String(err.Error(), 600))
}

// howItEnded returns a text that says how a proposal ended, and its tone.
func howItEnded(a supervise.Answer) (string, string) {
	switch a.Verdict {
	case supervise.Expired:
		return "Its time was up: refused.", "warn"
	case supervise.Withdrawn:
		return "Whoever asked is gone, or wants no answer any more.", "warn"
	}
	tone := "bad"
	what := "Rejected"
	if a.Verdict.Allows() {
		tone, what = "ok", "Approved"
		if a.Verdict == supervise.Modified {
			what = "Approved in another form"
		}
	}
	by := a.By.User
	if by == "" {
		by = fmt.Sprint("user ", a.By.UID)
	}
	where := map[supervise.Channel]string{
		supervise.ChannelTUI: " in a terminal", supervise.ChannelWeb: " on this page", supervise.ChannelCLI: " on the command line", supervise.ChannelPolicy: " by a rule",
	}[a.By.Channel]
	words := fmt.Sprintf("%s by %s%s", what, by, where)
	if a.Note != "" {
		words += ": “" + a.Note + "”"
	} else {
		words += "."
	}
	return safetext.String(words, 4*supervise.MaxNote), tone
}

// shownProposal is a proposal as the template gets it. Its texts are visible.
type shownProposal struct {
	ID, Kind, Bottle, Run, Title string
	Until                        int64
	Left                         string
	Warning                      string
	Notices                      []string
	Sections                     []section
	Gone, GoneTone               string
	Digest, ShortDigest          string
	As, Token, Action, Text      string
	Note                         string
	MaxNote, Rows                int
	Editable, Editing, Changed   bool
	Signed                       bool // a signature approves it, and nothing here
}

type section struct {
	Title  string
	Fields []supervise.Field
	Lines  []line
	Theirs bool
	Cut    int
}

type line struct{ Class, Text string }

// classes maps the mark of a line to its CSS class.
var classes = map[byte]string{'+': "add", '-': "del", '@': "hunk", '~': "cut", '>': "this", '\\': "cut"}

// page writes the page with the list and a proposal.
func (s *Server) page(w http.ResponseWriter, r *http.Request, in *session, v view) {
	q := r.URL.Query()
	now, _ := s.state()
	a := listQuery{query: cut(q.Get("q")), from: cut(q.Get("from")), id: v.id}
	out := struct {
		list
		Base, Version, Query, Wrong string
		Problems                    []string
		One                         *shownProposal
		Opened                      bool // One is the first that waits, and nobody chose it
		Next                        *rowOut
		Done                        bool
		Whole, Issues               string
	}{Issues: s.issues.link(r.Context()), list: s.listed(now, in, a), Base: in.path, Version: strconv.Itoa(now.version), Query: a.query, Wrong: v.says, Problems: now.skipped, Done: q.Get("done") != ""}
	if now.failed != "" {
		out.Wrong = "The queue can't be read, so this may be old: " + now.failed
	}
	status := http.StatusOK
	if v.id == "" && a.query == "" && out.Wrong == "" && len(out.Rows) > 0 {
		out.Opened, out.Rows[0].Current = true, true
		v.id = out.Rows[0].ID
	}
	if v.id != "" {
		e, err := s.find(r.Context(), v.id)
		switch {
		case errors.Is(err, supervise.ErrNotFound):
			status = http.StatusNotFound
			out.Wrong = "There is no such proposal, or not any more."
		case err != nil:
			status = http.StatusInternalServerError
			out.Wrong = safetext.String(err.Error(), 600)
		default:
			out.One = showProposal(e, in, v, q.Get("whole") != "")
			out.Next = next(out.list, v.id)
		}
		values := r.URL.Query()
		values.Set("whole", "1")
		values.Del("done")
		out.Whole = "?" + values.Encode()
	}
	if v.status != 0 {
		status = v.status
	}
	s.render(w, status, pageTemplate(), "page.html", out)
}

// next returns the row after the answered proposal, or the first.
func next(l list, id string) *rowOut {
	for i := range l.Rows {
		if l.Rows[i].ID > id {
			return &l.Rows[i]
		}
	}
	for i := range l.Rows {
		if l.Rows[i].ID != id {
			return &l.Rows[i]
		}
	}
	return nil
}

func showProposal(e supervise.Entry, in *session, v view, whole bool) *shownProposal {
	p := e.Proposal
	shown := p
	if v.changed != nil {
		shown.Payload = v.changed
	}
	d := shown.Detail(whole)
	digest := p.Digest.String()
	o := &shownProposal{
		ID: string(p.ID), Kind: string(p.Kind), Bottle: p.From(), Run: safetext.String(string(p.Run), 60), Title: d.Title.String(),
		Until: p.Expires.UnixMilli(), Left: left(time.Until(p.Expires)), Warning: d.Warning.String(),
		Digest: digest, ShortDigest: digest[:12], As: v.as, Action: in.path + "p/" + string(p.ID), Token: in.formToken(string(p.ID), digest+v.as),
		Note: v.note, MaxNote: supervise.MaxNote, Changed: v.changed != nil, Editing: v.editing, Text: v.text,
	}
	for _, n := range d.Notices {
		o.Notices = append(o.Notices, n.String())
	}
	for _, s := range d.Sections {
		out := section{Title: s.Title, Fields: s.Fields, Theirs: s.Theirs, Cut: s.Cut}
		for _, l := range s.Lines {
			text := l.Text.String()
			switch l.Mark {
			case '+', '-', ' ', '>':
				text = string(l.Mark) + " " + text
			case '@':
				text = "@" + text
			}
			out.Lines = append(out.Lines, line{classes[l.Mark], text})
		}
		o.Sections = append(o.Sections, out)
	}
	_, o.Signed = p.Payload.(supervise.Signed)
	if ed, ok := p.Payload.(supervise.Editable); ok {
		o.Editable = true
		if o.Text == "" {
			o.Text = ed.EditText()
		}
		o.Rows = min(max(strings.Count(o.Text, "\n")+1, 4), 24)
	}
	if e.Answer != nil {
		o.Gone, o.GoneTone = howItEnded(*e.Answer)
		if e.Effect != "" && e.Effect != "done" {
			o.Gone, o.GoneTone = o.Gone+" It could not be carried out: "+safetext.String(e.Effect, 400), "bad"
		}
	}
	return o
}
