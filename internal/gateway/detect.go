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

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// maxHeldBody bounds the bodies that are buffered and scanned whole, before any byte
// goes on and before anything is dialled. It applies to bodies of known length.
const maxHeldBody = 64 << 10

// detectors holds the scan rules for one version of the routes. Rules are built when a
// request first needs them.
type detectors struct {
	secrets  map[string]secret.Value
	coverage *scan.Coverage // the bottle's: joins pieces of one secret from different requests
	spare    *scan.Spare    // shared by the whole bottle
	inbound  func() (*scan.Rules, error)

	mu      sync.Mutex
	watched *scan.WatchedSecrets
	folded  *scan.Rules
	out     map[outboundKey]*scan.Rules
}

type outboundKey struct{ tokens, watched, entropy bool }

func newDetectors(secrets map[string]secret.Value, coverage *scan.Coverage, spare *scan.Spare) *detectors {
	return &detectors{secrets: secrets, coverage: coverage, spare: spare, inbound: sync.OnceValues(scan.NewInjections), out: map[outboundKey]*scan.Rules{}}
}

// outbound returns the rules for a route's requests; nil: nothing is scanned for.
func (d *detectors) outbound(s policy.Scan) (*scan.Rules, error) {
	kind := outboundKey{!s.NoTokens, !s.NoSecrets, s.Entropy}
	if kind == (outboundKey{}) {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.out[kind]; r != nil {
		return r, nil
	}
	c := scan.Config{Tokens: kind.tokens}
	if kind.watched {
		if d.watched == nil {
			k, err := scan.NewWatchedSecrets(d.secrets)
			if err != nil {
				return nil, err
			}
			d.watched = k
		}
		c.Watched = d.watched
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

// foldedRules returns rules for the secrets in lower case; nil: there are none. Names
// of headers and hosts may lose their case on the way.
func (d *detectors) foldedRules() (*scan.Rules, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.folded != nil || len(d.secrets) == 0 {
		return d.folded, nil
	}
	small := map[string]secret.Value{}
	for name, v := range d.secrets {
		v.UnsafeReveal(func(b []byte) {
			// A short secret in lower case can't be told from ordinary text.
			if low := secret.New(smallLetters(b)); scan.Fit(low) == nil {
				small[name] = low
			}
		})
	}
	k, err := scan.NewWatchedSecrets(small)
	if err != nil {
		return nil, err
	}
	d.folded, err = scan.NewRules(scan.Config{Watched: k})
	return d.folded, err
}

// smallLetters returns b with ASCII letters in lower case. The length stays.
func smallLetters(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}

// findFolded looks for secrets in text without regard to case. Findings for which
// passes returns true are skipped; passes may be nil.
func (d *detectors) findFolded(text []byte, place string, passes func(scan.Finding) bool) (scan.Finding, error) {
	rules, err := d.foldedRules()
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

// leastToken is less than any vendor's token has.
const leastToken = 20

var namedTokens = sync.OnceValues(func() (*scan.Rules, error) { return scan.NewRules(scan.Config{Tokens: true, AnyCase: true}) })

// findInNames searches those parts of text that are names for tokens, in any letter case:
// HTTP folds the case of names. passes is as for findFolded.
func (d *detectors) findInNames(text []byte, parts []part, passes func(scan.Finding) bool) (scan.Finding, error) {
	var names []byte
	for _, p := range parts {
		if p.to-p.from < leastToken || p.place != "host" && !strings.HasPrefix(p.place, "the name of") {
			continue
		}
		if names == nil {
			names = bytes.Repeat([]byte("\n"), len(text))
		}
		copy(names[p.from:p.to], text[p.from:p.to])
	}
	if names == nil {
		return scan.Finding{}, nil
	}
	rules, err := namedTokens()
	if err != nil {
		return scan.Finding{}, err
	}
	found, err := rules.Check(scan.Options{Spare: d.spare, Action: scan.Report}, names)
	for _, f := range found {
		if !f.Warning && (passes == nil || !passes(f)) {
			return f, nil
		}
	}
	return scan.Finding{}, err
}

// findInText scans a text that is not part of an outgoing request: a name in a DNS
// question, or text for a record. leaves says that the text goes out; it then counts
// towards the pieces of secrets that have left.
func (d *detectors) findInText(text string, leaves bool) (scan.Finding, bool) {
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
	var f scan.Finding
	if err == nil {
		f, err = d.findFolded([]byte(text), "name", nil)
	}
	if err == nil && f.Rule == "" {
		f, err = d.findInNames([]byte(text), []part{{to: len(text), place: "host"}}, nil)
	}
	if f.Rule != "" {
		return f, true
	}
	return scan.Finding{Rule: "unreadable"}, err != nil
}

// hidden returns text, or a placeholder if text contains a secret.
func (d *detectors) hidden(text string) string {
	if _, found := d.findInText(text, false); found {
		return withheld
	}
	return text
}

// inspector scans one exchange: the request before a credential is added, and the
// reply before the bottle gets it.
type inspector struct {
	x     *exchange
	d     *detectors
	scan  policy.Scan
	route string      // a copy: exchange.e may be written while a body is still read
	rules *scan.Rules // nil: requests are not scanned
	// fields looks at the request's body for credentials of the agent's own; nil: nothing
	// does.
	fields *credential.Fields
}

func newInspector(x *exchange, d *detectors, s policy.Scan) (*inspector, error) {
	rules, err := d.outbound(s)
	if err != nil {
		return nil, refusedf(reasonScan, "what is looked for can't be prepared: %w", err)
	}
	x.inspector = &inspector{x: x, d: d, scan: s, route: x.e.Rule, rules: rules}
	return x.inspector, nil
}

// options returns the scanner options for one place of the request.
func (w *inspector) options(place string) scan.Options {
	o := scan.Options{Place: place, Coverage: w.d.coverage, Spare: w.d.spare}
	if w.scan.OnMatch == policy.Redact {
		o.Action = scan.Redact
	}
	o.OnFinding = func(f scan.Finding) { w.found(f, o.Action, false) }
	if w.asksPerson() {
		o.OnFinding = func(f scan.Finding) {
			if f.Warning {
				w.found(f, o.Action, false)
			}
		}
		o.Ask = w.ask
	}
	return o
}

// scanner returns a scanner for one stream in one direction; nil: nothing is scanned
// for. Pass its errors through outboundError or inboundError, which end the exchange.
func (w *inspector) scanner(inbound bool, place string, codings []string) (*scan.Scanner, error) {
	if !inbound {
		if w.rules == nil {
			return nil, nil
		}
		o := w.options(place)
		o.Codings = codings
		if w.fields != nil && place == "body" {
			o.Decoded = w.fields.Look
		}
		return w.rules.NewScanner(o), nil
	}
	if w.scan.NoInjection {
		return nil, nil
	}
	rules, err := w.d.inbound()
	if err != nil {
		return nil, refusedf(reasonScan, "what is looked for can't be prepared: %w", err)
	}
	o := scan.Options{Place: place, Spare: w.d.spare, Codings: codings}
	if w.scan.OnInjection == policy.ReportIncoming {
		o.Action = scan.Report
	}
	o.OnFinding = func(f scan.Finding) { w.found(f, o.Action, true) }
	if place == "body" {
		o.Decoded = w.x.c.flow.g.readTokens().look
	}
	return rules.NewScanner(o), nil
}

func (w *inspector) found(f scan.Finding, a scan.Action, inbound bool) {
	did := FoundBlocked
	switch {
	case f.Warning || inbound && a == scan.Report:
		did = FoundReported
	case a == scan.Redact && !f.Sealed:
		did = FoundRedacted
	case a == scan.Report:
		did = foundAllowed
	}
	e := &w.x.e
	w.x.c.flow.g.ledger.found(Found{
		Time: time.Now(), Name: e.Name, Port: e.Port, Method: e.Method, Rule: w.route, Inbound: inbound,
		What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: f.Place, Action: did,
	})
}

// request scans a request's head and wraps its body in a scanner. It may mask parts of
// the request. After an error the request must not be sent.
func (w *inspector) request(req *http.Request) error {
	if w.rules == nil {
		if w.fields == nil || req.Body == nil || req.Body == http.NoBody {
			return nil
		}
		if len(codings(req.Header)) == 0 {
			req.Body = &fieldsBody{req.Body, w}
			return nil
		}
		// Rules of nothing decode it.
		var err error
		if w.rules, err = scan.NewRules(scan.Config{}); err != nil {
			return refusedf(reasonScan, "the body can't be decoded: %w", err)
		}
		return w.body(req)
	}
	if err := w.head(req); err != nil {
		return err
	}
	return w.body(req)
}

// body wraps a request's body in a scanner.
func (w *inspector) body(req *http.Request) error {
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	b := &scannedBody{w: w, src: req.Body, req: req}
	if isGRPC(req.Header.Get("Content-Type")) && req.ContentLength < 0 && len(codings(req.Header)) == 0 {
		messages, err := newMessageScanner(w, false)
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
	// The body is here already, so upstream need not confirm that it wants it.
	req.Header.Del("Expect")
	req.Body = io.NopCloser(bytes.NewReader(held))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(held)), nil }
	return nil
}

// part locates a piece of the head's text that can be replaced.
type part struct {
	from, to int
	place    string
	header   []string // the values of the header; value is the index
	value    int
}

// head scans the request without its body as one text, so that a secret split over
// names and values is found.
func (w *inspector) head(req *http.Request) error {
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

// placeOf returns the place of the part that contains position at.
func placeOf(parts []part, at int64) string {
	i, found := slices.BinarySearchFunc(parts, int(at), func(p part, at int) int { return p.from - at })
	if !found {
		i--
	}
	return parts[max(i, 0)].place
}

// hidePath withholds the path or method from the record if a finding overlaps it.
func (w *inspector) hidePath(findings []scan.Finding, parts []part) {
	for _, f := range findings {
		for _, p := range parts {
			if (p.place == "path" || p.place == "method") && int(f.Offset) < p.to && p.from < int(f.Offset)+f.Length {
				w.x.withhold(p.place)
			}
		}
	}
}

// text scans a complete text. masked is nil if the text may leave unchanged.
func (w *inspector) text(text []byte, parts []part) (masked []byte, err error) {
	o := scan.Options{Coverage: w.d.coverage, Spare: w.d.spare, Action: scan.Block}
	act, collect := scan.Block, scan.Report // without a person, all findings are collected
	if w.scan.OnMatch == policy.Redact {
		act, collect = scan.Redact, scan.Redact
	}
	asks := w.asksPerson()
	type found struct {
		rule string
		at   int64
	}
	var given map[found]bool // tokens that a server gave the bottle
	o.Ask = func(f scan.Finding, value []byte) scan.Action {
		place := placeOf(parts, f.Offset)
		switch {
		case f.Secret == "" && place == "header Authorization" && value != nil && w.x.c.flow.g.issued.has(value):
			if given == nil {
				given = map[found]bool{}
			}
			given[found{f.Rule, f.Offset}] = true
			return scan.Report
		case !asks:
			return collect
		}
		w.hidePath([]scan.Finding{f}, parts)
		f.Place = w.d.hidden(place)
		return w.ask(f, value)
	}
	var passes func(scan.Finding) bool
	if asks {
		passes = func(f scan.Finding) bool {
			f.Sealed = true // the original case is unknown here, so the value can't be masked
			return o.Ask(f, nil) == scan.Report
		}
	}
	s := w.rules.NewScanner(o)
	defer s.Close()
	out, err := s.Push(make([]byte, 0, len(text)), text)
	if err == nil {
		out, err = s.End(out)
	}
	findings := slices.DeleteFunc(slices.Clone(s.Findings()), func(f scan.Finding) bool { return f.Secret == "" && given[found{f.Rule, f.Offset}] })
	w.hidePath(findings, parts)
	for _, f := range findings {
		f.Place = w.d.hidden(placeOf(parts, f.Offset))
		if f.Warning || !asks {
			w.found(f, act, false)
		}
		if !f.Warning && err == nil && act == scan.Block && !asks {
			err = &scan.FoundError{Finding: f}
		}
	}
	if err == nil {
		var f scan.Finding
		if !w.scan.NoSecrets {
			f, err = w.d.findFolded(out, "", passes)
		}
		if err == nil && f.Rule == "" && !w.scan.NoTokens {
			f, err = w.d.findInNames(out, parts, passes)
		}
		if f.Rule != "" {
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
		return nil, w.outboundError(err)
	case bytes.Equal(out, text):
		return nil, nil
	}
	return out, nil
}

// putMasked replaces the masked parts in a request.
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
				return refusedf(reasonSecret, "a secret in the path can't be masked: a part of it is escaped")
			}
			req.URL.Path, req.URL.RawPath = path, s
		case p.place == "query":
			req.URL.RawQuery = s
		default:
			return refusedf(reasonSecret, "a secret in %s can't be masked", p.place)
		}
	}
	return nil
}

// outboundError turns a scanner's error about outgoing data into the end of the
// exchange.
func (w *inspector) outboundError(err error) error {
	var own *credential.OwnError
	if errors.As(err, &own) {
		if words := w.x.refusalText.Load(); words != nil {
			return w.x.stop(refusedf(reasonCredential, "%w: %s", own, *words))
		}
		return w.x.stop(&refusedError{reasonCredential, own})
	}
	var found *scan.FoundError
	if !errors.As(err, &found) {
		return w.x.stop(refusedf(reasonScan, "%w", err))
	}
	what := describe(found.Finding)
	if words := w.x.refusalText.Load(); words != nil {
		return w.x.stop(refusedf(reasonSecret, "%s: %s", what, *words))
	}
	return w.x.stop(refusedf(reasonSecret, "%s", what))
}

// describe returns a finding and its place in words.
func describe(f scan.Finding) string {
	what := strings.ReplaceAll(f.Rule, "-", " ")
	if f.Secret != "" {
		what += " " + f.Secret
	}
	if f.Transform != "" && f.Transform != "plain" {
		what += ", written as " + f.Transform
	}
	return what + ", in " + f.Place
}

// isScan reports whether err comes from the scanner itself, not from its source.
func isScan(err error) bool {
	var (
		found  *scan.FoundError
		limit  *scan.LimitError
		decode *scan.DecodeError
		broken *scan.PanicError
		own    *credential.OwnError
	)
	return errors.As(err, &own) || errors.As(err, &found) || errors.As(err, &limit) || errors.As(err, &decode) || errors.As(err, &broken) || errors.Is(err, scan.ErrClosed) || errors.Is(err, credential.ErrUnprepared)
}

// fieldsBody reads a request's body that is not scanned.
type fieldsBody struct {
	io.ReadCloser
	w *inspector
}

func (b *fieldsBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if ferr := b.w.fields.Look(p[:n]); ferr != nil {
		return 0, b.w.outboundError(ferr)
	}
	return n, err
}

// scannedBody reads a request's body through a scanner, then scans the trailers.
type scannedBody struct {
	w   *inspector
	src io.ReadCloser
	req *http.Request

	// mu serialises Read and Close: the transport may close while it still reads.
	mu      sync.Mutex
	scanner interface{ Close() }
	r       io.Reader
}

func (b *scannedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.r.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		if terr := b.trailers(); terr != nil {
			return 0, terr // drop the last bytes too: the body must not look complete
		}
	case isScan(err):
		return n, b.w.outboundError(err)
	}
	return n, err
}

// trailers scans the trailers, which are known at the body's end.
func (b *scannedBody) trailers() error {
	if len(b.req.Trailer) == 0 {
		return nil
	}
	var text []byte
	var parts []part
	for name, values := range b.req.Trailer {
		// Trailers that were not announced have new names.
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

// Close closes the source first, so that a blocked Read ends.
func (b *scannedBody) Close() error {
	err := b.src.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scanner.Close()
	return err
}

// codings returns a body's content codings in the order in which they were applied.
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

// limitAcceptEncoding asks upstream only for codings that the scanner can decode.
func (w *inspector) limitAcceptEncoding(h http.Header) {
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

// reply wraps an answer's body in a scanner.
func (w *inspector) reply(res *http.Response) error {
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
	b := &scannedReply{w: w, src: res.Body, scanner: s}
	if text || len(coded) > 0 {
		b.r = scan.NewReader(res.Body, s)
	}
	return w.holdReply(res, b)
}

// holdReply makes b the answer's body. It reads a short one of known length to its end,
// so that a refusal is the whole answer.
func (w *inspector) holdReply(res *http.Response, b io.ReadCloser) error {
	if res.ContentLength <= 0 || res.ContentLength > maxHeldBody || res.Request.Method == http.MethodHead {
		res.Body = b
		return nil
	}
	held, err := io.ReadAll(b)
	_ = b.Close()
	var stop *refusedError
	if errors.As(err, &stop) {
		return err
	}
	// If upstream cut off the body, pass on what came and then the same error.
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

// scannedReply reads an answer's body through a scanner. Only the proxy uses it.
type scannedReply struct {
	w       *inspector
	src     io.ReadCloser
	scanner *scan.Scanner
	r       io.Reader // nil: the first bytes decide whether it is text, whatever Content-Type says
}

func (b *scannedReply) Read(p []byte) (int, error) {
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
	return n, b.w.inboundError(err)
}

// inboundError turns a scanner's error about incoming data into the end of the
// exchange.
func (w *inspector) inboundError(err error) error {
	var found *scan.FoundError
	if errors.As(err, &found) {
		return w.x.stop(refusedf(reasonInjection, "%s: an instruction to an agent, and near it a request for what is secret", strings.ReplaceAll(found.Finding.Rule, "-", " ")))
	}
	return w.x.stop(refusedf(reasonScan, "the answer can't be looked at: %w", err))
}

func (b *scannedReply) Close() error {
	err := b.src.Close()
	b.scanner.Close()
	return err
}

// isText reports whether an agent would read a body of this type as text. An absent
// type counts as text.
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

// refusedf returns an error that ends an exchange for a reason.
func refusedf(reason Reason, format string, args ...any) error {
	return &refusedError{reason, fmt.Errorf(format, args...)}
}

// refusedError ends an exchange that was admitted.
type refusedError struct {
	reason Reason
	err    error
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }
