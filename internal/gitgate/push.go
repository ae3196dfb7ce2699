package gitgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// heartbeat is the interval at which git is told that its push is still being checked.
const heartbeat = 5 * time.Second

// refusedError says why the gate refuses a push. The text is for the bottle.
type refusedError struct{ Text string }

func (e *refusedError) Error() string { return e.Text }

func refused(format string, args ...any) error {
	return &refusedError{fmt.Sprintf(format, args...)}
}

// push stores a pack in quarantine, checks and scans it, and sends it on.
func (g *Gate) push(w http.ResponseWriter, r *http.Request, rp *repo) {
	ev := Event{Start: time.Now(), Repo: rp.name, Op: "push", Verdict: Done}
	body, err := requestBody(w, r, receivePack, g.cfg.Limits.Pack+maxCommandSize)
	if err != nil {
		ev.Verdict, ev.Reason = Refused, err.Error()
		plain(w, http.StatusBadRequest, "git gate: "+err.Error())
		g.observe(ev)
		return
	}
	in := newLineReader(&counted{body, &ev.In})
	req, err := readCommands(in, g.cfg.Limits.Refs)
	if req == nil && err == nil {
		w.Header().Set("Content-Type", "application/x-"+receivePack+"-result")
		return
	}
	if req == nil {
		drain(r, g.cfg.Limits.Pack)
		ev.Verdict, ev.Reason = Refused, err.Error()
		// git shows no text of an HTTP error here.
		w.Header().Set("Content-Type", "application/x-"+receivePack+"-result")
		out := answer{w: w, http: http.NewResponseController(w), band: true}
		out.fail(err)
		g.observe(ev)
		return
	}
	ev.Refs, ev.Options = req.updates, req.options
	defer func() { g.observe(ev) }()
	p := &pushing{g: g, rp: rp, req: req, ev: &ev, out: newReport(w)}
	err = p.take(r, in)
	if err == nil {
		p.out.begin()
		err = p.judge(r.Context())
	} else {
		drain(r, g.cfg.Limits.Pack)
		p.out.begin()
	}
	if p.q != nil {
		defer p.q.remove()
	}
	if err == nil {
		err = p.forward(r.Context())
	}
	if err != nil {
		ev.Verdict, ev.Reason = Failed, safetext.String(err.Error(), 1000)
		var no *refusedError
		if errors.As(err, &no) {
			ev.Verdict = Refused
		}
	}
	p.out.end(req.updates, err)
	ev.Out = p.out.written()
}

type counted struct {
	r io.Reader
	n *int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	*c.n += int64(n)
	return n, err
}

// pushing is the state of one push.
type pushing struct {
	g   *Gate
	rp  *repo
	req *pushRequest
	ev  *Event
	out *report
	q   *quarantine // nil without a pack
	in  *inspection // set when the pack begins to come in
	// ahead has read a part of the pack, or is nil.
	ahead *readAhead
	// history holds the commits of the pack.
	history *history
}

// take reads the pack into quarantine, where git checks its form.
func (p *pushing) take(r *http.Request, in *lineReader) error {
	ctx := r.Context()
	if p.req.deletesOnly() {
		if n, _ := io.Copy(io.Discard, io.LimitReader(in.r, 1)); n != 0 {
			return refused("a pack came with a push that only deletes")
		}
		return nil
	}
	select {
	case p.g.kept <- struct{}{}:
	default:
		return refused("%d pushes are under way already, or wait for a person: push again when one is done", maxKept)
	}
	select {
	case p.g.pushes <- struct{}{}:
		defer func() { <-p.g.pushes }()
	case <-ctx.Done():
		<-p.g.kept
		return ctx.Err()
	}
	q, err := newQuarantine(p.g, &p.rp.base, p.req.format)
	if err != nil {
		<-p.g.kept
		return err
	}
	p.q = q
	if p.in, err = p.g.newInspection(); err != nil {
		return err
	}
	p.history = newHistory(p.req.format)
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	p.ahead = p.in.readAhead(reading, p.history)
	if err = q.receive(ctx, in.r, p.ahead); err != nil {
		cancel()
	}
	p.ahead.end()
	return err
}

// judge scans all that would leave.
func (p *pushing) judge(ctx context.Context) error {
	select {
	case p.g.pushes <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	begun := time.Now()
	found, err := p.inspect(ctx)
	p.ev.Reading = time.Since(begun)
	if p.ahead != nil {
		p.ev.Reading += p.ahead.took
	}
	<-p.g.pushes // let other pushes go on while a person decides
	if err != nil {
		return err
	}
	return p.decide(ctx, found)
}

// forward sends the judged push to upstream, and reads the result.
func (p *pushing) forward(ctx context.Context) error {
	up, err := p.g.offerOf(ctx, p.rp)
	if err != nil {
		return err
	}
	head, err := p.req.forward(up)
	if err != nil {
		return &refusedError{err.Error()}
	}
	body, size := io.Reader(strings.NewReader(string(head))), int64(len(head))
	if p.q != nil {
		f, err := os.Open(p.q.pack)
		if err != nil {
			return err
		}
		defer f.Close()
		body, size = io.MultiReader(body, f), size+p.q.size
	}
	// From here on a git that goes away does not end the push. It would not undo a part of
	// it, and the result would be unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.g.cfg.Limits.Time)
	defer cancel()
	defer context.AfterFunc(p.g.ctx, cancel)()
	answer, err := p.rp.up.call(ctx, receivePack, 0, body, size)
	if err != nil {
		return p.unknown(ctx, timely(ctx, err))
	}
	b := bound(answer, p.g.cfg.Limits.Advert, answerPatience*p.g.cfg.Limits.Idle, cancel)
	defer b.Close()
	said, err := p.out.relay(newLineReader(b), up.has("side-band-64k"))
	if err == nil {
		err = parseReport(said, p.req.updates)
	}
	var ue *upstreamError
	if err != nil && !errors.As(err, &ue) {
		return p.unknown(ctx, err)
	}
	return err
}

// offerOf returns the capabilities of upstream. They are from the last advertisement, which
// git requested a moment ago. Its references may be outdated: a push names the old value
// that it expects of each.
func (g *Gate) offerOf(ctx context.Context, rp *repo) (*offer, error) {
	if o := rp.offer.Load(); o != nil && time.Since(o.at) < time.Minute {
		return o, nil
	}
	return g.list(ctx, rp, receivePack, 0)
}

// unknown handles a push that broke off: it asks upstream for the result.
func (p *pushing) unknown(ctx context.Context, cause error) error {
	err := &upstreamError{"push", cause}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*p.g.cfg.Limits.Connect)
	defer cancel()
	o, lerr := p.g.list(ctx, p.rp, receivePack, 0)
	if lerr != nil {
		err.Err = fmt.Errorf("%w; whether it was done is not known: fetch, when upstream answers again", cause)
		return err
	}
	have := map[string]string{}
	for _, l := range o.lines {
		id, name, _ := strings.Cut(l, " ")
		have[name] = id
	}
	for _, u := range p.req.updates {
		if have[u.Name] != u.New && (have[u.Name] != "" || !isZero(u.New)) {
			err.Err = fmt.Errorf("%w; asked right after that, it had changed nothing", cause)
			return err
		}
	}
	for i := range p.req.updates {
		p.req.updates[i].Result = "ok"
	}
	return nil
}

// parseReport parses upstream's report-status.
func parseReport(b []byte, updates []RefUpdate) error {
	l := newLineReader(strings.NewReader(string(b)))
	unpacked := ""
	results := map[string]string{}
	for {
		k, line, err := l.next()
		if err != nil {
			return noEOF(err)
		}
		if k == flush {
			break
		}
		word, rest, _ := strings.Cut(chomp(line), " ")
		name, why, _ := strings.Cut(rest, " ")
		switch word {
		case "unpack":
			unpacked = rest
		case "ok":
			results[rest] = "ok"
		case "ng":
			results[name] = "upstream: " + safetext.String(why, 300)
			if why == "" {
				results[name] = "upstream refuses it"
			}
		case "option":
		default:
			return errFraming
		}
	}
	failed := 0
	for i, u := range updates {
		updates[i].Result = results[u.Name]
		if unpacked != "ok" {
			updates[i].Result = "upstream could not unpack it"
		}
		if updates[i].Result == "" {
			updates[i].Result = "upstream says nothing of it"
		}
		if updates[i].Result != "ok" {
			failed++
		}
	}
	switch {
	case unpacked != "ok":
		return &upstreamError{"push", fmt.Errorf("it can't unpack it: %q", unpacked)}
	case failed > 0:
		return &upstreamError{"push", fmt.Errorf("it refuses %d of %d references", failed, len(updates))}
	}
	return nil
}

// report writes the answer to a push: messages at once, and the result at the end.
type report struct {
	mu   sync.Mutex
	a    answer
	w    http.ResponseWriter
	stop chan struct{}
	beat sync.WaitGroup
	bad  error
}

func newReport(w http.ResponseWriter) *report {
	return &report{a: answer{w: w, http: http.NewResponseController(w)}, w: w, stop: make(chan struct{})}
}

// begin begins the answer, after the request was read to its end. Its goroutine stops at
// end.
func (r *report) begin() {
	r.w.Header().Set("Content-Type", "application/x-"+receivePack+"-result")
	r.beat.Go(func() {
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				r.send(appendLine(nil, string(rune(bandData))))
			case <-r.stop:
				return
			}
		}
	})
}

func (r *report) send(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad != nil {
		return
	}
	r.a.buf = b
	if r.bad = r.a.write(); r.bad == nil {
		r.bad = r.a.flush()
	}
}

// say sends lines that git shows as "remote: git gate: …".
func (r *report) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.send(appendBand(nil, bandMessage, text+"\n"))
}

func (r *report) written() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.a.n
}

// maxReport bounds a report-status, in bytes.
const maxReport = 4 << 20

// relay passes on upstream's messages and returns its report.
func (r *report) relay(l *lineReader, band bool) ([]byte, error) {
	var said []byte
	for {
		k, p, err := l.next()
		if errors.Is(err, io.EOF) {
			return said, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case !band && k == flush:
			said = appendFlush(said)
		case k == flush:
			return said, nil
		case k != data || len(said) > maxReport || band && len(p) == 0:
			return nil, errFraming
		case !band:
			said = appendData(said, p)
		case p[0] == bandData:
			said = append(said, p[1:]...)
		case p[0] == bandMessage:
			r.send(appendBand(nil, bandMessage, progress(p[1:])))
		case p[0] == bandError:
			return nil, fmt.Errorf("it says %q", p[1:])
		default:
			return nil, errFraming
		}
	}
}

// end writes the report and ends the answer.
func (r *report) end(updates []RefUpdate, err error) {
	close(r.stop)
	r.beat.Wait()
	said := appendLine(nil, "unpack ok\n")
	if err != nil {
		for line := range strings.SplitSeq(strings.TrimRight(err.Error(), "\n"), "\n") {
			r.say("git gate: %s", line)
		}
	}
	for i, u := range updates {
		switch {
		case u.Result == "" && err == nil:
			updates[i].Result = "ok"
		case u.Result == "":
			updates[i].Result = "refused by the git gate"
			var ue *upstreamError
			if errors.As(err, &ue) {
				updates[i].Result = "upstream failed"
			}
		}
		if updates[i].Result == "ok" {
			said = appendLine(said, "ok ", u.Name, "\n")
		} else {
			said = appendLine(said, "ng ", u.Name, " ", updates[i].Result, "\n")
		}
	}
	said = appendFlush(said)
	r.send(appendFlush(appendBand(nil, bandData, string(said))))
}
