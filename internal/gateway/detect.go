package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// maxHeldBody bounds bodies of known length that are looked at whole before any
// of them goes on, and before anything is dialled for them.
const maxHeldBody = 64 << 10

// detectors are what one version of the routes looks for. What they look for is
// prepared when a request first needs it.
type detectors struct {
	secrets  map[string]secret.Value
	coverage *scan.Coverage // the bottle's: pieces of one secret may be far apart
	spare    *scan.Spare    // the bottle's, too
	inbound  func() (*scan.Rules, error)

	mu     sync.Mutex
	known  *scan.Known
	folded *scan.Rules
	out    map[outKind]*scan.Rules
}

type outKind struct{ tokens, known, entropy bool }

func newDetectors(secrets map[string]secret.Value, coverage *scan.Coverage, spare *scan.Spare) *detectors {
	return &detectors{secrets: secrets, coverage: coverage, spare: spare, inbound: sync.OnceValues(scan.NewInjections), out: map[outKind]*scan.Rules{}}
}

// outbound returns what a route's requests are scanned for; nil: nothing.
func (d *detectors) outbound(s policy.Scan) (*scan.Rules, error) {
	kind := outKind{!s.NoTokens, !s.NoSecrets, s.Entropy}
	if kind == (outKind{}) {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.out[kind]; r != nil {
		return r, nil
	}
	c := scan.Config{Tokens: kind.tokens}
	if kind.known {
		if d.known == nil {
			k, err := scan.NewKnown(d.secrets)
			if err != nil {
				return nil, err
			}
			d.known = k
		}
		c.Known = d.known
	}
	if kind.entropy {
		c.Entropy = &scan.Entropy{}
	}
	r, err := scan.NewRules(c)
	if err != nil {
		return nil, err
	}
	d.out[kind] = r
	return r, nil
}

// inOneCase returns what is looked for in texts that may lose their case on the way,
// brought into small letters: the names of headers and of hosts do; nil: nothing.
func (d *detectors) inOneCase() (*scan.Rules, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.folded != nil || len(d.secrets) == 0 {
		return d.folded, nil
	}
	small := map[string]secret.Value{}
	for name, v := range d.secrets {
		v.UnsafeReveal(func(b []byte) {
			// Of what stays too little, nothing can be told from ordinary text.
			if low := secret.New(smallLetters(b)); scan.Fit(low) == nil {
				small[name] = low
			}
		})
	}
	k, err := scan.NewKnown(small)
	if err != nil {
		return nil, err
	}
	d.folded, err = scan.NewRules(scan.Config{Known: k})
	return d.folded, err
}

// smallLetters keeps the length.
func smallLetters(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}

// folds looks for secrets in text without regard to case. What passes says yes to is
// none; nil: it says no.
func (d *detectors) folds(text []byte, place string, passes func(scan.Finding) bool) (scan.Finding, error) {
	rules, err := d.inOneCase()
	if err != nil || rules == nil {
		return scan.Finding{}, err
	}
	found, err := rules.Check(scan.Options{Place: place, Spare: d.spare, Action: scan.Report}, smallLetters(text))
	for _, f := range found {
		if f.Warning {
			continue
		}
		if f.Transform = "in one case"; passes == nil || !passes(f) {
			return f, nil
		}
	}
	return scan.Finding{}, err
}

// saying looks at a text that is no part of a request that goes out: the name that
// a resolver is asked for, or what a record would show. leaves says that it does
// go out, so that it counts with what left before.
func (d *detectors) saying(text string, leaves bool) (scan.Finding, bool) {
	if len(text) < scan.MinSecret {
		return scan.Finding{}, false
	}
	rules, err := d.outbound(policy.Scan{})
	if err != nil {
		return scan.Finding{Rule: "unprepared"}, true
	}
	o := scan.Options{Place: "name", Spare: d.spare, Action: scan.Report}
	if leaves {
		o.Coverage = d.coverage
	}
	found, err := rules.Check(o, []byte(text))
	for _, f := range found {
		if !f.Warning {
			return f, true
		}
	}
	if err == nil {
		var f scan.Finding
		if f, err = d.folds([]byte(text), "name", nil); f.Rule != "" {
			return f, true
		}
	}
	return scan.Finding{Rule: "unreadable"}, err != nil
}

// hidden is a text for the record, without what must not stand there.
func (d *detectors) hidden(text string) string {
	if _, found := d.saying(text, false); found {
		return withheld
	}
	return text
}

// watch looks at one exchange: at the request as it will leave, before a
// credential is on it, and at the reply as it will enter.
type watch struct {
	x     *exchange
	d     *detectors
	scan  policy.Scan
	route string      // the exchange's may be written while a body is still read
	rules *scan.Rules // nil: nothing is looked for in the request
}

func newWatch(x *exchange, d *detectors, s policy.Scan) (*watch, error) {
	rules, err := d.outbound(s)
	if err != nil {
		return nil, refuse(ReasonScan, "what is looked for can't be prepared: %w", err)
	}
	x.watch = &watch{x: x, d: d, scan: s, route: x.e.Rule, rules: rules}
	return x.watch, nil
}

// options of a scanner for one place of the request.
func (w *watch) options(place string) scan.Options {
	o := scan.Options{Place: place, Coverage: w.d.coverage, Spare: w.d.spare}
	if w.scan.OnMatch == policy.Redact {
		o.Action = scan.Redact
	}
	o.OnFinding = func(f scan.Finding) { w.found(f, o.Action, false) }
	if w.asks() {
		o.OnFinding = func(f scan.Finding) {
			if f.Warning {
				w.found(f, o.Action, false)
			}
		}
		o.Ask = w.ask
	}
	return o
}

// scanner begins a stream of one direction; nil: nothing is looked for in it. Its
// errors go through stopped or replied, which end the exchange.
func (w *watch) scanner(inbound bool, place string, codings []string) (*scan.Scanner, error) {
	if !inbound {
		if w.rules == nil {
			return nil, nil
		}
		o := w.options(place)
		o.Codings = codings
		return w.rules.NewScanner(o), nil
	}
	if w.scan.NoInjection {
		return nil, nil
	}
	rules, err := w.d.inbound()
	if err != nil {
		return nil, refuse(ReasonScan, "what is looked for can't be prepared: %w", err)
	}
	return rules.NewScanner(scan.Options{Place: place, Spare: w.d.spare, Codings: codings, OnFinding: func(f scan.Finding) { w.found(f, scan.Block, true) }}), nil
}

func (w *watch) found(f scan.Finding, a scan.Action, inbound bool) {
	did := FoundBlocked
	switch {
	case f.Warning:
		did = FoundReported
	case a == scan.Redact && !f.Sealed:
		did = FoundRedacted
	case a == scan.Report:
		did = FoundAllowed
	}
	e := &w.x.e
	w.x.c.flow.g.ledger.found(Found{
		Time: time.Now(), Name: e.Name, Port: e.Port, Method: e.Method, Rule: w.route, Inbound: inbound,
		What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: f.Place, Action: did,
	})
}

// request looks at a request and readies its body to be looked at as it goes. The
// request may be masked, and must not be sent after an error.
func (w *watch) request(req *http.Request) error {
	if w.rules == nil {
		return nil
	}
	if err := w.head(req); err != nil {
		return err
	}
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	b := &watchedBody{w: w, src: req.Body, req: req}
	if isGRPC(req) {
		messages, err := newScanned(w, false)
		if err != nil {
			return err
		}
		b.scanner, b.r = messages, newGRPCBody(req.Body, messages, strings.ToLower(req.Header.Get("Grpc-Encoding")))
		req.Body = b
		return nil
	}
	s, err := w.scanner(false, "body", codings(req.Header))
	if err != nil {
		return err
	}
	b.scanner, b.r = s, scan.NewReader(req.Body, s)
	if req.ContentLength <= 0 || req.ContentLength > maxHeldBody {
		req.Body = b
		return nil
	}
	held, err := io.ReadAll(b)
	if cerr := b.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	// Upstream need not be asked whether it wants what is here already.
	req.Header.Del("Expect")
	req.Body = io.NopCloser(bytes.NewReader(held))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(held)), nil }
	return nil
}

// part is where in the text of a head something stands that can be changed.
type part struct {
	from, to int
	place    string
	header   []string // a header's values: which one
	value    int
}

// head looks at all of a request that is not its body, as one text: what is split
// over names and values lies close together in it.
func (w *watch) head(req *http.Request) error {
	text := make([]byte, 0, 1<<10)
	parts := make([]part, 0, len(req.Header)+4)
	add := func(place, s string, header []string, value int) {
		parts = append(parts, part{len(text), len(text) + len(s), place, header, value})
		text = append(text, s...)
	}
	add("method", req.Method, nil, 0)
	text = append(text, ' ')
	add("host", req.Host, nil, 0)
	text = append(text, ' ')
	add("path", req.URL.EscapedPath(), nil, 0)
	text = append(text, '?')
	add("query", req.URL.RawQuery, nil, 0)
	text = append(text, '\n')
	for name, values := range req.Header {
		for i, v := range values {
			add("the name of a header", name, nil, 0)
			text = append(text, ':', ' ')
			add("header "+name, v, values, i)
			text = append(text, '\n')
		}
	}
	for name := range req.Trailer {
		add("the name of a trailer", name, nil, 0)
		text = append(text, '\n')
	}
	masked, err := w.text(text, parts)
	if err != nil || masked == nil {
		return err
	}
	return putMasked(req, text, masked, parts)
}

// placeOf names the part that a position is in.
func placeOf(parts []part, at int64) string {
	i, found := slices.BinarySearchFunc(parts, int(at), func(p part, at int) int { return p.from - at })
	if !found {
		i--
	}
	return parts[max(i, 0)].place
}

// hidePath keeps out of the record what was found in what it would show.
func (w *watch) hidePath(findings []scan.Finding, parts []part) {
	for _, f := range findings {
		for _, p := range parts {
			if (p.place == "path" || p.place == "method") && int(f.Offset) < p.to && p.from < int(f.Offset)+f.Length {
				w.x.withhold(p.place)
			}
		}
	}
}

// text scans a text that is there as a whole. masked is nil when it may leave as it is.
func (w *watch) text(text []byte, parts []part) (masked []byte, err error) {
	o := scan.Options{Coverage: w.d.coverage, Spare: w.d.spare, Action: scan.Report}
	act := scan.Block
	if w.scan.OnMatch == policy.Redact {
		o.Action, act = scan.Redact, scan.Redact
	}
	var passes func(scan.Finding) bool
	if w.asks() {
		o.Action = scan.Block
		o.Ask = func(f scan.Finding, value []byte) scan.Action {
			w.hidePath([]scan.Finding{f}, parts)
			f.Place = w.d.hidden(placeOf(parts, f.Offset))
			return w.ask(f, value)
		}
		passes = func(f scan.Finding) bool {
			f.Sealed = true // its letters in another case are not found again, to be masked
			return o.Ask(f, nil) == scan.Report
		}
	}
	s := w.rules.NewScanner(o)
	defer s.Close()
	out, err := s.Push(make([]byte, 0, len(text)), text)
	if err == nil {
		out, err = s.End(out)
	}
	w.hidePath(s.Findings(), parts)
	for _, f := range s.Findings() {
		f.Place = w.d.hidden(placeOf(parts, f.Offset))
		if f.Warning || o.Ask == nil {
			w.found(f, act, false)
		}
		if !f.Warning && err == nil && act == scan.Block && o.Ask == nil {
			err = &scan.FoundError{Finding: f}
		}
	}
	if err == nil && !w.scan.NoSecrets {
		f, ferr := w.d.folds(out, "", passes)
		if err = ferr; f.Rule != "" {
			w.hidePath([]scan.Finding{f}, parts)
			f.Place = w.d.hidden(placeOf(parts, f.Offset))
			if passes == nil {
				w.found(f, scan.Block, false)
			}
			err = &scan.FoundError{Finding: f}
		}
	}
	switch {
	case err != nil:
		var found *scan.FoundError
		if errors.As(err, &found) {
			found.Finding.Place = w.d.hidden(placeOf(parts, found.Finding.Offset))
		}
		return nil, w.stopped(err)
	case bytes.Equal(out, text):
		return nil, nil
	}
	return out, nil
}

// putMasked changes a request to what may leave of it.
func putMasked(req *http.Request, text, masked []byte, parts []part) error {
	for _, p := range parts {
		if bytes.Equal(text[p.from:p.to], masked[p.from:p.to]) {
			continue
		}
		s := string(masked[p.from:p.to])
		switch {
		case p.header != nil:
			p.header[p.value] = s
		case p.place == "path":
			path, err := url.PathUnescape(s)
			if err != nil {
				return refuse(ReasonSecret, "a secret in the path can't be masked: a part of it is escaped")
			}
			req.URL.Path, req.URL.RawPath = path, s
		case p.place == "query":
			req.URL.RawQuery = s
		default:
			return refuse(ReasonSecret, "a secret in %s can't be masked", p.place)
		}
	}
	return nil
}

// stopped is a scanner's error as the exchange's end.
func (w *watch) stopped(err error) error {
	var found *scan.FoundError
	if !errors.As(err, &found) {
		return w.x.stop(refuse(ReasonScan, "%w", err))
	}
	f := found.Finding
	what := strings.ReplaceAll(f.Rule, "-", " ")
	if f.Secret != "" {
		what += " " + f.Secret
	}
	if f.Transform != "" && f.Transform != "plain" {
		what += ", written as " + f.Transform
	}
	if words := w.x.words.Load(); words != nil {
		return w.x.stop(refuse(ReasonSecret, "%s, in %s: %s", what, f.Place, *words))
	}
	return w.x.stop(refuse(ReasonSecret, "%s, in %s", what, f.Place))
}

// isScan reports whether err is a scanner's, not of what it read from.
func isScan(err error) bool {
	var (
		found  *scan.FoundError
		limit  *scan.LimitError
		decode *scan.DecodeError
		broken *scan.PanicError
	)
	return errors.As(err, &found) || errors.As(err, &limit) || errors.As(err, &decode) || errors.As(err, &broken) || errors.Is(err, scan.ErrClosed)
}

// watchedBody is a request's body as far as it may leave, and its trailers.
type watchedBody struct {
	w   *watch
	src io.ReadCloser
	req *http.Request

	// The transport may close while it still reads.
	mu      sync.Mutex
	scanner interface{ Close() }
	r       io.Reader
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.r.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		if terr := b.trailers(); terr != nil {
			return 0, terr // with what came last: the body must not look whole
		}
	case isScan(err):
		return n, b.w.stopped(err)
	}
	return n, err
}

// trailers looks at those, which are known at the body's end.
func (b *watchedBody) trailers() error {
	if len(b.req.Trailer) == 0 {
		return nil
	}
	var text []byte
	var parts []part
	for name, values := range b.req.Trailer {
		// Of those that were not announced the names are new, too.
		parts = append(parts, part{len(text), len(text) + len(name), "the name of a trailer", nil, 0})
		text = append(append(text, name...), ": "...)
		for i, v := range values {
			parts = append(parts, part{len(text), len(text) + len(v), "trailer " + name, values, i})
			text = append(append(text, v...), '\n')
		}
	}
	if len(parts) == 0 {
		return nil
	}
	masked, err := b.w.text(text, parts)
	if err != nil || masked == nil {
		return err
	}
	return putMasked(b.req, text, masked, parts)
}

// Close lets a read that is under way end first: the source must be closed before.
func (b *watchedBody) Close() error {
	err := b.src.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scanner.Close()
	return err
}

// codings are those of a body, in the order in which they were applied.
func codings(h http.Header) (out []string) {
	for _, v := range h.Values("Content-Encoding") {
		for c := range strings.SplitSeq(v, ",") {
			if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
				out = append(out, c)
			}
		}
	}
	return out
}

// wants asks upstream for nothing that can't be looked at when it comes.
func (w *watch) wants(h http.Header) {
	if w.scan.NoInjection {
		return
	}
	var kept []string
	for _, v := range h.Values("Accept-Encoding") {
		for c := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(c, ";")
			if name = strings.ToLower(strings.TrimSpace(name)); name == "identity" || scan.Decodes(name) && name != "zstd" { // which takes megabytes for each
				kept = append(kept, strings.TrimSpace(c))
			}
		}
	}
	if len(kept) == 0 {
		kept = []string{"identity"}
	}
	h.Set("Accept-Encoding", strings.Join(kept, ", "))
}

// reply readies an answer to be looked at as it enters.
func (w *watch) reply(res *http.Response) error {
	if w.scan.NoInjection || res.StatusCode == http.StatusSwitchingProtocols || res.Body == nil || res.Body == http.NoBody ||
		res.Request.Method == http.MethodHead {
		return nil
	}
	coded := codings(res.Header)
	text := isText(res.Header.Get("Content-Type"))
	if !text && slices.ContainsFunc(coded, func(c string) bool { return !scan.Decodes(c) }) {
		return nil
	}
	s, err := w.scanner(true, "body", coded)
	if err != nil {
		return err
	}
	b := &watchedReply{w: w, src: res.Body, scanner: s}
	if text || len(coded) > 0 {
		b.r = scan.NewReader(res.Body, s)
	}
	if res.ContentLength <= 0 || res.ContentLength > maxHeldBody {
		res.Body = b
		return nil
	}
	held, err := io.ReadAll(b)
	_ = b.Close()
	var stop *refusedError
	if errors.As(err, &stop) {
		return err
	}
	// What upstream cut off is passed on so, and then ends as upstream did.
	res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(held), failing{err}))
	return nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// watchedReply is an answer as far as it may enter. The proxy alone uses it.
type watchedReply struct {
	w       *watch
	src     io.ReadCloser
	scanner *scan.Scanner
	r       io.Reader // nil: its first bytes tell what it is, whatever its type says
}

func (b *watchedReply) Read(p []byte) (int, error) {
	if b.r == nil {
		n, err := b.src.Read(p)
		switch {
		case n == 0:
			return n, err
		case !strings.HasPrefix(http.DetectContentType(p[:n]), "text/"):
			b.r = b.src
			return n, err
		}
		first := io.MultiReader(bytes.NewReader(slices.Clone(p[:n])), failing{err})
		if err == nil {
			first = io.MultiReader(bytes.NewReader(slices.Clone(p[:n])), b.src)
		}
		b.r = scan.NewReader(first, b.scanner)
	}
	n, err := b.r.Read(p)
	if err == nil || err == io.EOF || !isScan(err) {
		return n, err
	}
	return n, b.w.replied(err)
}

// replied is the error of a scanner of what comes in as the exchange's end.
func (w *watch) replied(err error) error {
	var found *scan.FoundError
	if errors.As(err, &found) {
		return w.x.stop(refuse(ReasonInjection, "%s: an instruction to an agent, and near it a request for what is secret", strings.ReplaceAll(found.Finding.Rule, "-", " ")))
	}
	return w.x.stop(refuse(ReasonScan, "the answer can't be looked at: %w", err))
}

func (b *watchedReply) Close() error {
	err := b.src.Close()
	b.scanner.Close()
	return err
}

// isText reports whether an agent would read a body of this type as text. A type
// that is not told may be any.
func isText(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	if t == "" || err != nil && t == "" {
		return true
	}
	main, sub, _ := strings.Cut(t, "/")
	if main == "text" {
		return true
	}
	if main != "application" {
		return false
	}
	for _, s := range []string{"json", "xml", "yaml", "toml", "javascript", "ecmascript", "typescript", "graphql", "markdown", "ndjson", "html", "sql", "rtf", "x-www-form-urlencoded"} {
		if strings.Contains(sub, s) {
			return true
		}
	}
	return false
}

// refuse is an error that ends an exchange, for a reason.
func refuse(reason Reason, format string, args ...any) error {
	return &refusedError{reason, fmt.Errorf(format, args...)}
}

// refusedError ends a request, or a reply, that was admitted.
type refusedError struct {
	reason Reason
	err    error
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }
