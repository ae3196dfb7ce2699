package gitgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// These lists hold the capabilities that the gate understands. It does not pass on any
// other that upstream offers, so no client uses one.
var (
	offersV2 = map[string][]string{
		"agent": nil, "ls-refs": {"unborn"}, "fetch": {"shallow", "wait-for-done", "filter", "ref-in-want"}, "object-format": nil,
	}
	offersFetch = []string{
		"multi_ack", "thin-pack", "side-band", "side-band-64k", "ofs-delta", "shallow", "deepen-since", "deepen-not", "deepen-relative",
		"no-progress", "include-tag", "multi_ack_detailed", "allow-tip-sha1-in-want", "allow-reachable-sha1-in-want", "no-done", "symref",
		"filter", "object-format", "agent",
	}
	// For a push, upstream must have some of these, and the gate provides the others; see
	// pushCaps. Signed pushes (push-cert) are left out: they name the URL that was pushed
	// to.
	offersPush = []string{"report-status", "delete-refs", "side-band-64k", "quiet", "atomic", "ofs-delta", "push-options", "object-format", "agent"}
)

// offer is the advertisement of an upstream.
type offer struct {
	v      version
	lines  []string // as sent to the bottle; the first without its capabilities
	caps   []string // for version 0
	format string   // "sha1" or "sha256"
	at     time.Time
}

func (o *offer) has(capability string) bool { return slices.Contains(o.caps, capability) }

// readOffer reads an advertisement.
func readOffer(r io.Reader, service string) (*offer, error) {
	l := newLineReader(r)
	o := &offer{format: "sha1"}
	first, headed := true, false
	for {
		k, line, err := l.next()
		if err != nil {
			return nil, noEOF(err)
		}
		if k == flush {
			if headed && first { // after "# service="
				headed = false
				continue
			}
			if first && service == uploadPack {
				return nil, errors.New("it lists no capabilities")
			}
			return o, nil
		}
		text := chomp(line)
		if k != data {
			return nil, errFraming
		}
		if msg, ok := strings.CutPrefix(text, "ERR "); ok {
			return nil, fmt.Errorf("it says %q", msg)
		}
		switch {
		case first && text == "# service="+service:
			headed = true
			continue
		case first && text == "version 2" && service == uploadPack:
			o.v, first = 2, false
			continue
		case first && text == "version 1":
			continue
		case o.v == 2:
			err = o.addV2(text)
		case first:
			first = false
			err = o.addFirst(text, service)
		default:
			err = o.addRef(text)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (o *offer) addV2(text string) error {
	if !printable(text) {
		return errFraming
	}
	name, value, has := strings.Cut(text, "=")
	keep, ok := offersV2[name]
	switch {
	case !ok:
		return nil
	case name == "object-format":
		o.format = value
	case has && keep != nil:
		var left []string
		for _, f := range strings.Fields(value) {
			if slices.Contains(keep, f) {
				left = append(left, f)
			}
		}
		if text = name; len(left) > 0 {
			text += "=" + strings.Join(left, " ")
		}
	}
	o.lines = append(o.lines, text)
	return o.check()
}

func (o *offer) addFirst(text, service string) error {
	ref, caps, ok := strings.Cut(text, "\x00")
	if !ok || !printable(caps) {
		return fmt.Errorf("%w: the first reference names no capabilities", errFraming)
	}
	allowed := offersFetch
	if service == receivePack {
		allowed = offersPush
	}
	for _, c := range strings.Fields(caps) {
		name, value, _ := strings.Cut(c, "=")
		if name == "object-format" {
			o.format = value
		}
		if slices.Contains(allowed, name) {
			o.caps = append(o.caps, c)
		}
	}
	if err := o.check(); err != nil {
		return err
	}
	if name, _, _ := strings.Cut(ref, " "); strings.HasSuffix(ref, " capabilities^{}") && len(ref) == len(name)+len(" capabilities^{}") && isZero(name) {
		o.lines = append(o.lines, ref)
		return nil
	}
	return o.addRef(ref)
}

// addRef adds a reference, ".have" or "shallow" line.
func (o *offer) addRef(text string) error {
	id, name, ok := strings.Cut(text, " ")
	if id == "shallow" {
		id, name = name, "refs/shallow"
	}
	peeled := strings.TrimSuffix(name, "^{}")
	if !ok || !isID(id) || len(id) != idLen(o.format) || name != ".have" && checkRef(peeled) != nil && peeled != "HEAD" {
		return fmt.Errorf("%w: a malformed reference", errFraming)
	}
	o.lines = append(o.lines, text)
	return nil
}

func (o *offer) check() error {
	if o.format != "sha1" && o.format != "sha256" {
		return errors.New("its object format is unknown")
	}
	return nil
}

func idLen(format string) int {
	if format == "sha256" {
		return 64
	}
	return 40
}

func isID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

func isZero(s string) bool { return isID(s) && strings.Trim(s, "0") == "" }

// printable reports whether s has no character that steers a terminal.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 })
}

// list requests the advertisement of upstream.
func (g *Gate) list(ctx context.Context, rp *repo, service string, v version) (*offer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience*g.cfg.Limits.Idle)
	defer cancel()
	r, err := rp.up.advertise(ctx, service, v)
	if err != nil {
		return nil, &upstreamError{"list", timely(ctx, err)}
	}
	b := bound(r, g.cfg.Limits.Advert, g.cfg.Limits.Idle, cancel)
	o, err := readOffer(b, service)
	if err != nil {
		err = timely(ctx, err)
	}
	_ = b.Close()
	if err != nil {
		return nil, &upstreamError{"list", err}
	}
	if service == receivePack {
		o.at = time.Now()
		rp.offer.Store(o)
	}
	return o, nil
}

// timely returns ErrSilent if err comes from a deadline, and err otherwise.
func timely(ctx context.Context, err error) error {
	var slow net.Error
	if errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.As(err, &slow) && slow.Timeout() {
		return errSilent
	}
	return err
}

// advertise answers info/refs with upstream's present advertisement.
func (g *Gate) advertise(w http.ResponseWriter, r *http.Request, rp *repo) {
	service := r.URL.Query().Get("service")
	if (service != uploadPack && service != receivePack) || r.URL.RawQuery != "service="+service {
		plain(w, http.StatusForbidden, "the git gate speaks git's smart protocol only: ask for service=git-upload-pack or git-receive-pack")
		return
	}
	v := version(0)
	if service == uploadPack {
		v = askedVersion(r)
	}
	ev := Event{Start: time.Now(), Repo: rp.name, Op: "list", Verdict: Done}
	o, err := g.list(r.Context(), rp, service, v)
	var b []byte
	if v == 0 || err == nil && o.v == 0 {
		b = appendFlush(appendLine(b, "# service="+service+"\n"))
	}
	if err != nil {
		ev.Verdict, ev.Reason = Failed, err.Error()
		b = appendLine(b, "ERR git gate: "+err.Error())
	} else {
		b = o.appendTo(b, service)
	}
	w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
	_, _ = w.Write(b)
	ev.Out = int64(len(b))
	g.observe(ev)
}

func (g *Gate) observe(ev Event) {
	ev.Duration = time.Since(ev.Start)
	if g.cfg.Observe != nil {
		g.cfg.Observe(ev)
	}
}

// askedVersion returns the protocol version that a request asks for.
func askedVersion(r *http.Request) version {
	if slices.Contains(strings.Split(r.Header.Get("Git-Protocol"), ":"), "version=2") {
		return 2
	}
	return 0
}

func (o *offer) appendTo(b []byte, service string) []byte {
	if o.v == 2 {
		b = appendLine(b, "version 2\n")
		for _, l := range o.lines {
			b = appendLine(b, l, "\n")
		}
		return appendFlush(b)
	}
	caps := slices.Clone(o.caps)
	lines := o.lines
	if service == receivePack {
		caps = o.pushCaps()
	}
	if len(lines) == 0 {
		lines = []string{strings.Repeat("0", idLen(o.format)) + " capabilities^{}"}
	}
	for i, l := range lines {
		if i == 0 {
			l += "\x00" + strings.Join(caps, " ")
		}
		b = appendLine(b, l, "\n")
	}
	return appendFlush(b)
}

// pushCaps returns the capabilities that the gate offers for a push: its own, and those of
// upstream that only upstream can provide. It asks for whole packs (no-thin), which can be
// read without upstream's objects.
func (o *offer) pushCaps() []string {
	caps := []string{"report-status", "side-band-64k", "quiet", "ofs-delta", "no-thin", "object-format=" + o.format, "agent=git/carboy"}
	for _, c := range []string{"delete-refs", "atomic", "push-options"} {
		if o.has(c) {
			caps = append(caps, c)
		}
	}
	return caps
}

// checkRef applies the rules of git-check-ref-format, and requires the prefix refs/.
func checkRef(s string) error {
	if !strings.HasPrefix(s, "refs/") || len(s) > 1024 || strings.HasSuffix(s, "/") || strings.HasSuffix(s, ".") {
		return errors.New("a reference is of the form refs/…, of at most 1024 bytes")
	}
	for _, part := range strings.Split(s, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return errors.New("a part of the reference is empty, begins with a dot or ends in .lock")
		}
	}
	if strings.Contains(s, "..") || strings.Contains(s, "@{") || strings.ContainsAny(s, " ~^:?*[\\") || !printable(s) {
		return errors.New("the reference has characters that git does not allow")
	}
	return nil
}
