package gitgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// fetch passes a request on to upstream, and streams the answer back.
func (g *Gate) fetch(w http.ResponseWriter, r *http.Request, rp *repo) {
	ev := Event{Start: time.Now(), Repo: rp.name, Op: "fetch", Verdict: Done}
	defer func() { g.observe(ev) }()
	v := askedVersion(r)
	body, err := requestBody(w, r, uploadPack, g.cfg.Limits.Request)
	var req []byte
	var empty bool
	if err == nil {
		req, empty, err = readFetch(body, v, g.cfg.Limits.Request)
	}
	if err == nil && !empty {
		if strings.HasPrefix(string(req[4:]), "command=ls-refs") {
			ev.Op = "list"
		}
		err = g.checkFetch(req)
	}
	ev.In = int64(len(req))
	w.Header().Set("Content-Type", "application/x-"+uploadPack+"-result")
	if err != nil {
		// git shows no text of an HTTP error here.
		ev.Verdict, ev.Reason = Refused, err.Error()
		out := answer{w: w, http: http.NewResponseController(w)}
		out.fail(err)
		return
	}
	if empty {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.cfg.Limits.Time)
	defer cancel()
	out := &answer{w: w, http: http.NewResponseController(w)}
	err = g.relay(ctx, cancel, out, rp, v, req)
	ev.Out = out.n
	if err == nil {
		return
	}
	ev.Verdict, ev.Reason = Failed, err.Error()
	out.fail(err)
}

func (g *Gate) relay(ctx context.Context, cancel func(), out *answer, rp *repo, v version, req []byte) error {
	r, err := rp.up.call(ctx, uploadPack, v, bytes.NewReader(req), int64(len(req)))
	if err != nil {
		return &upstreamError{"fetch", timely(ctx, err)}
	}
	b := bound(r, g.cfg.Limits.Fetch, g.cfg.Limits.Idle, cancel)
	defer b.Close()
	return out.copy(newLineReader(b))
}

// answer writes pkt-lines to the bottle.
type answer struct {
	w    io.Writer
	http *http.ResponseController
	buf  []byte
	n    int64 // bytes written
	band bool  // the pack has begun, so messages go in the side band
}

// The bands of a side-band line, as its first byte.
const (
	bandData    = 1
	bandMessage = 2
	bandError   = 3
)

// copy passes upstream's lines on to their end. It cleans messages for people, and returns
// an error for a line that is neither text nor of a band.
func (a *answer) copy(l *lineReader) error {
	var last time.Time
	ended := false
	for {
		k, p, err := l.next()
		if errors.Is(err, io.EOF) {
			switch {
			case a.n == 0:
				return &upstreamError{"fetch", errors.New("it answers with nothing")}
			case a.band && !ended:
				return &upstreamError{"fetch", io.ErrUnexpectedEOF}
			}
			return a.flush()
		}
		if err != nil {
			return &upstreamError{"fetch", err}
		}
		a.buf = a.buf[:0]
		ended = k == flush
		switch {
		case k == flush:
			a.buf = appendFlush(a.buf)
		case k == delim:
			a.buf = append(a.buf, "0001"...)
		case k == response:
			continue // response-end: only remote helpers need it
		case len(p) > 0 && p[0] == bandData:
			a.band = true
			a.buf = appendData(a.buf, p)
		case len(p) > 0 && p[0] == bandMessage:
			a.band = true
			a.buf = appendBand(a.buf, bandMessage, progress(p[1:]))
		case len(p) > 0 && p[0] == bandError:
			return &upstreamError{"fetch", fmt.Errorf("it says %q", p[1:])}
		default:
			text := chomp(p)
			if msg, ok := strings.CutPrefix(text, "ERR "); ok {
				return &upstreamError{"fetch", fmt.Errorf("it says %q", msg)}
			}
			if !printable(text) {
				return &upstreamError{"fetch", errFraming}
			}
			a.band = a.band || text == "packfile"
			a.buf = appendLine(a.buf, text, "\n")
		}
		if err := a.write(); err != nil {
			return err
		}
		// Flush, since net/http buffers small writes and a person waits for messages.
		if now := time.Now(); k != data || now.Sub(last) > 200*time.Millisecond {
			last = now
			if err := a.flush(); err != nil {
				return err
			}
		}
	}
}

func (a *answer) write() error {
	n, err := a.w.Write(a.buf)
	a.n += int64(n)
	return err
}

func (a *answer) flush() error {
	if err := a.http.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// fail writes an error in git's protocol.
func (a *answer) fail(err error) {
	text := "git gate: " + err.Error()
	a.buf = a.buf[:0]
	if a.band {
		a.buf = appendBand(a.buf, bandError, text+"\n")
	} else {
		a.buf = appendLine(a.buf, "ERR "+text)
	}
	_ = a.write()
	_ = a.flush()
}

// appendBand appends text as lines of one band.
func appendBand(b []byte, band byte, text string) []byte {
	for len(text) > 0 {
		n := min(len(text), maxLine-5)
		b = appendLine(b, string(band), text[:n])
		text = text[n:]
	}
	return b
}

// progress makes upstream's messages safe for a terminal. It keeps line feeds, and the
// carriage returns with which git updates a counter.
func progress(p []byte) string {
	var b strings.Builder
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			b.WriteString(safetext.Bytes(p, 1000))
			break
		}
		b.WriteString(safetext.Bytes(p[:i], 1000))
		b.WriteByte(p[i])
		p = p[i+1:]
	}
	return b.String()
}

func isLFS(what string) bool { return what == "info/lfs" || strings.HasPrefix(what, "info/lfs/") }

// refuseLFS answers in the form of LFS, whose objects would leave unread.
func refuseLFS(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	w.WriteHeader(http.StatusNotImplemented)
	_, _ = io.WriteString(w, `{"message":"the git gate does not carry LFS objects: keep the files in git itself, or fetch them with GIT_LFS_SKIP_SMUDGE=1 as pointers"}`+"\n")
}
