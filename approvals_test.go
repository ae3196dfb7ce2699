package carboy

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
)

// outside opens the client again so that its gateway reaches a server of h by the name
// example.com, also on loopback.
func (w *world) outside(h http.Handler) {
	w.t.Helper()
	srv := httptest.NewTLSServer(h)
	w.t.Cleanup(srv.Close)
	w.reach(srv, "example.com")
}

// reach opens the client again so that its gateway reaches srv, and nothing else, by names.
func (w *world) reach(srv *httptest.Server, names ...string) {
	w.t.Helper()
	o := w.c.host.Opened
	o.Roots = x509.NewCertPool()
	o.Roots.AddCert(srv.Certificate())
	o.Resolver = oneAddress(names)
	o.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", srv.Listener.Addr().String())
	}
	w.c.Close()
	c, err := Open(context.Background(), reopen(o))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	w.c = c
}

// oneAddress resolves each of its names to the same public address, and no other name.
type oneAddress []string

func (names oneAddress) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if !slices.Contains(names, strings.TrimSuffix(host, ".")) {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// answerer answers what waits in a queue, as a person elsewhere would.
type answerer struct {
	mu   sync.Mutex
	seen []supervise.Entry
}

// answering answers every proposal by say until the test is over.
func (w *world) answering(say func(supervise.Proposal) supervise.Reply) *answerer {
	w.t.Helper()
	// As from another process: with a Client of its own.
	c, err := Open(context.Background(), reopen(w.c.host.Opened))
	if err != nil {
		w.t.Fatal(err)
	}
	q, err := c.Proposals()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a, done := &answerer{}, make(chan struct{})
	changed, answered := q.Watch(ctx), map[supervise.ID]bool{}
	go func() { // ends with the test
		defer close(done)
		for ctx.Err() == nil {
			l, err := q.List(ctx, supervise.Query{})
			if err != nil && ctx.Err() == nil {
				w.t.Error(err)
			}
			for _, e := range l.Entries {
				if answered[e.Proposal.ID] {
					continue // whoever waits has not taken it yet
				}
				r := say(e.Proposal)
				if r.Verdict == "" {
					continue
				}
				a.mu.Lock()
				a.seen, answered[e.Proposal.ID] = append(a.seen, e), true
				a.mu.Unlock()
				r.ID, r.Channel = e.Proposal.ID, supervise.ChannelCLI
				if r.Digest == (supervise.Digest{}) {
					r.Digest = e.Proposal.Digest
				}
				if _, err := q.Answer(ctx, r); err != nil && ctx.Err() == nil {
					w.t.Errorf("answer: %v", err)
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done; q.Close(); c.Close() })
	return a
}

func (a *answerer) kinds() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, e := range a.seen {
		out = append(out, string(e.Proposal.Kind))
	}
	return strings.Join(out, " ")
}

// callTool is a shell function that calls one of carboy's tools as an MCP client does.
const callTool = `call() {
	printf '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s}}' "$1" "$2" |
	curl -sS -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' --data-binary @- http://supervise.carboy.internal/mcp
}
`

func approvalFiles(script, more string) map[string]string {
	text, err := json.Marshal(callTool + script)
	if err != nil {
		panic(err)
	}
	return map[string]string{
		".config/carboy/bottles/b.md": "---\nagent_provider:\n  template: command\n  settings: {command: [sh, -c, " + string(text) + ", sh, '{prompt}']}\n" + more + "---\n",
		".config/carboy/agents/a.md":  "---\nbottle: b\n---\n",
	}
}

// TestApprovals: what runs inside is refused a host, proposes it with its tool, and
// reaches it as soon as a person has approved; a value that is held back goes on when
// it was approved, once for the bottle; and a host is taken away again. All of it is
// in the receipt, and the decisions outlive the run with the bottle.
func TestApprovals(t *testing.T) {
	token := "gh" + "p_" + strings.Repeat("aB3dE5gH7j", 4)[:36]
	var got sync.Map
	w := agents(t, nil, approvalFiles(`T=gh; T=${T}`+token[2:]+`
curl -sS https://example.com/first -o /dev/null -w 'first %{http_code}\n' || echo refused
call egress-allow '{"host":"example.com","methods":["GET","POST"],"paths":["/"],"reason":"the tests need it"}'
curl -sS https://example.com/second || echo refused
curl -sS https://example.com/held -d "token=$T" || echo refused
curl -sS https://example.com/again -d "token=$T" || echo refused
call signal-done '{"status":"done","summary":"reached it"}'
test "$1" = stay && exit 3
call list-egress-routes '{}' | grep -q 'host: example.com' && echo listed
call egress-block '{"routes_yaml":"routes: [{host: example.com}]","justification":"done with it"}'
curl -sS https://example.com/last || echo gone
`, ""))
	w.outside(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got.Store(r.URL.Path, string(b))
		fmt.Fprintln(rw, "answer of", r.URL.Path)
	}))
	a := w.answering(func(p supervise.Proposal) supervise.Reply {
		return supervise.Reply{Verdict: supervise.Approved, Note: "go on \x1b[31mthen"}
	})
	var out strings.Builder
	var events []plan.Event
	s, err := w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "go", Stdout: &out, Stderr: &out, OnEvent: func(e plan.Event) { events = append(events, e) }})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"refused\n", "Approved.", "go on", "answer of /second", "answer of /held", "answer of /again", "taken down", "listed\n", "not be reached any more", "gone\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("a note reached the terminal as it was")
	}
	if v, _ := got.Load("/held"); v != "token="+token {
		t.Errorf("what was held came as %q", v)
	}
	if k := a.kinds(); k != "egress-allow egress-token-allow egress-block" {
		t.Errorf("asked: %s", k)
	}
	past := a.seen[0].Proposal.Payload.(supervise.EgressAllow).Past
	if len(past) == 0 || !strings.Contains(past[0].What, "example.com") {
		t.Errorf("what it would have allowed: %+v", past)
	}
	blocked := a.seen[2].Proposal.Payload.(supervise.EgressBlock).Past
	for what, want := range map[string]bool{"GET example.com:443/second": true, "POST example.com:443/held": true, "GET example.com:443/first": false} {
		if got := slices.Contains(blocked, supervise.PastRequest{What: what, Count: 1}); got != want {
			t.Errorf("%s among what was allowed: %t, in %+v", what, got, blocked)
		}
	}
	p := s.Receipt.Proposals
	if p == nil || len(p.List) != 3 || p.Total != 3 || len(p.Signals) != 1 || p.List[0].Verdict != "approved" || p.List[0].Effect != "done" || p.List[0].By == "" {
		t.Errorf("the receipt: %+v", p)
	}
	waiting := 0
	for _, e := range events {
		if e.Kind == "waiting" && strings.HasPrefix(e.Text, "waiting for a person: carboy supervise show ") {
			waiting++
		}
	}
	if waiting != 3 {
		t.Errorf("told of %d that waited: %v", waiting, events)
	}
	if text, err := json.Marshal(p); err != nil || strings.Contains(string(text), token[10:30]) {
		t.Errorf("the record: %s", text)
	}
}

// TestApprovalsOnResume: what was decided for a bottle is in force when it is resumed, and
// nobody is asked again; in another bottle of the same agent it is not.
func TestApprovalsOnResume(t *testing.T) {
	token := "gh" + "p_" + strings.Repeat("zB3dE5gH7j", 4)[:36]
	w := agents(t, nil, approvalFiles(`T=gh; T=${T}`+token[2:]+`
curl -sS https://example.com/a -o /dev/null -d "token=$T" -w '%{http_code}\n' && exit 0
call egress-allow '{"routes_yaml":"routes: [{host: example.com, git: {fetch: true}}]","justification":"x"}' > /dev/null
curl -sS https://example.com/b -o /dev/null -d "token=$T" -w '%{http_code}\n'
exit 3
`, ""))
	w.outside(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	a := w.answering(func(p supervise.Proposal) supervise.Reply { return supervise.Reply{Verdict: supervise.Approved} })
	var out strings.Builder
	s, _ := w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "go", Stdout: &out, Stderr: &out})
	if s == nil || !s.Kept || a.kinds() != "egress-allow egress-token-allow" {
		t.Fatalf("%+v %s\n%s", s, a.kinds(), out.String())
	}
	out.Reset()
	if _, err := w.c.Resume(t.Context(), bottles.ResumeOptions{Slug: s.Slug, Headless: true, Prompt: "go", Keep: true, Stdout: &out, Stderr: &out}); err != nil || !strings.HasPrefix(out.String(), "200") {
		t.Errorf("resumed: %v %s", err, out.String())
	}
	if a.kinds() != "egress-allow egress-token-allow" {
		t.Errorf("asked again: %s", a.kinds())
	}
	if _, err := w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "go", Stdout: &out, Stderr: &out}); err == nil || a.kinds() != "egress-allow egress-token-allow egress-allow egress-token-allow" {
		t.Errorf("another bottle: %v %s", err, a.kinds())
	}
}

// TestApprovalsRefused: a refusal refuses, so does nobody's answer, and without people
// there is nobody to ask.
func TestApprovalsRefused(t *testing.T) {
	script := `
call egress-allow '{"host":"example.com","reason":"x"}'
curl -sS https://example.com/a || echo refused
call egress-allow '{"host":"10.0.0.1","reason":"x"}'
call egress-allow '{"host":"169.254.169.254","reason":"x"}'
call egress-allow '{"host":"localhost","reason":"x"}'
`
	for name, x := range map[string]struct {
		more, want string
		verdict    supervise.Verdict
		digest     supervise.Digest
	}{
		"rejected": {"", "Rejected.", supervise.Rejected, supervise.Digest{}},
		"nobody":   {"limits: {approval: 300ms}\n", "Nobody answered in time", "", supervise.Digest{}},
		"off":      {"supervise: false\n", "Could not resolve host: supervise.carboy.internal", supervise.Approved, supervise.Digest{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := agents(t, nil, approvalFiles(script, x.more))
			w.outside(http.NotFoundHandler())
			a := w.answering(func(p supervise.Proposal) supervise.Reply {
				return supervise.Reply{Verdict: x.verdict, Digest: x.digest}
			})
			var out strings.Builder
			s, err := w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "go", Stdout: &out, Stderr: &out})
			if !strings.Contains(out.String(), x.want) || !strings.Contains(out.String(), "refused\n") {
				t.Errorf("%v\n%s", err, out.String())
			}
			if n := strings.Count(a.kinds(), "egress"); name == "rejected" && n != 1 || name == "off" && n != 0 {
				t.Errorf("asked: %s\n%s", a.kinds(), out.String())
			}
			if s != nil && (s.Receipt.Proposals != nil) != (name != "off") {
				t.Errorf("%+v", s.Receipt.Proposals)
			}
			if name == "nobody" && (s == nil || len(s.Receipt.Proposals.List) != 1 || s.Receipt.Proposals.List[0].Verdict != string(supervise.Expired)) {
				t.Errorf("%+v", s)
			}
		})
	}
}

// BenchmarkApproval measures the time from a person's answer to the request that
// waited for it being at the server.
func BenchmarkApproval(b *testing.B) {
	w := measuredWorld(b)
	var mu sync.Mutex
	var asked time.Time
	var took []time.Duration
	w.outside(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		took = append(took, time.Since(asked))
		mu.Unlock()
	}))
	w.answering(func(p supervise.Proposal) supervise.Reply {
		mu.Lock()
		asked = time.Now()
		mu.Unlock()
		return supervise.Reply{Verdict: supervise.Approved}
	})
	var out strings.Builder
	script := fmt.Sprintf(`for i in $(seq %d); do curl -sS https://example.com/x -d "token=gh""p_$(printf '%%s%%020d' aB3dE5gH7jKLmN9x $i)" || exit 1; done`, b.N)
	_, err := w.c.Run(b.Context(), plan.Options{Command: []string{"sh", "-c", script}, Workspace: w.ws, Mode: store.None, Allow: []string{"example.com"}, Supervise: true, Stdout: &out, Stderr: &out})
	if err != nil || len(took) != b.N {
		b.Fatalf("%d of %d: %v %s", len(took), b.N, err, out.String())
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99")
}

func measuredWorld(b *testing.B) *world {
	testenv.Need(b, "curl", "apt-get install curl")
	base := b.TempDir()
	ws := filepath.Join(base, "ws")
	for _, d := range []string{base, filepath.Dir(base), ws} {
		_ = os.Mkdir(d, 0o755)
		if err := os.Chmod(d, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	vars := map[string]string{"XDG_STATE_HOME": filepath.Join(base, "state"), "XDG_RUNTIME_DIR": base, "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
	return &world{t: b, ws: ws, c: openClient(b, vars)}
}

// BenchmarkRestart measures the time, with twenty bottles whose requests wait, from
// the beginning of a program to answer them, after another has ended, to the last
// request being at the server.
func BenchmarkRestart(b *testing.B) {
	const bottles = 20
	w := measuredWorld(b)
	arrived := make(chan struct{}, bottles)
	w.outside(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived <- struct{}{} }))
	open := func() (*Client, *supervise.Queue) {
		c, err := Open(context.Background(), reopen(w.c.host.Opened))
		if err != nil {
			b.Fatal(err)
		}
		q, err := c.Proposals()
		if err != nil {
			b.Fatal(err)
		}
		return c, q
	}
	waiting := func(q *supervise.Queue) []supervise.Entry {
		l, err := q.List(context.Background(), supervise.Query{})
		if err != nil {
			b.Fatal(err)
		}
		return l.Entries
	}
	var took time.Duration
	for range b.N {
		var wg sync.WaitGroup
		for i := range bottles {
			wg.Go(func() {
				script := fmt.Sprintf(`curl -sS https://example.com/x -d "token=gh""p_%s%020d"`, "aB3dE5gH7jKLmN9x", i)
				var out strings.Builder
				r, err := w.c.Run(context.Background(), plan.Options{Command: []string{"sh", "-c", script}, Workspace: w.ws, Mode: store.None, Allow: []string{"example.com"}, Supervise: true, Stdout: &out, Stderr: &out})
				if err != nil || r.Exit.Code != 0 {
					b.Errorf("%v %s", err, out.String())
				}
			})
		}
		c, q := open()
		ctx, cancel := context.WithCancel(b.Context())
		changed := q.Watch(ctx)
		for len(waiting(q)) < bottles {
			<-changed
		}
		cancel()
		if err := errors.Join(q.Close(), c.Close()); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		c, q = open()
		for _, e := range waiting(q) {
			if _, err := q.Answer(context.Background(), supervise.Reply{ID: e.Proposal.ID, Digest: e.Proposal.Digest, Verdict: supervise.Approved, Channel: supervise.ChannelCLI}); err != nil {
				b.Fatal(err)
			}
		}
		for range bottles {
			<-arrived
		}
		took += time.Since(began)
		wg.Wait()
		if err := errors.Join(q.Close(), c.Close()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/restart")
}

// BenchmarkSupervised is a run in which people can be asked, by one in which they
// can't, in turns.
func BenchmarkSupervised(b *testing.B) {
	w := measuredWorld(b)
	run := func(supervised bool) float64 {
		began := time.Now()
		if r, err := w.c.Run(b.Context(), plan.Options{Command: []string{"true"}, Workspace: w.ws, Mode: store.None, Allow: []string{"example.com"}, Supervise: supervised}); err != nil || r.Exit.Code != 0 {
			b.Fatal(err)
		}
		return float64(time.Since(began))
	}
	var ratios []float64
	for range b.N {
		without := run(false)
		ratios = append(ratios, run(true)/without)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "with/without")
}

// TestManyWait: twenty bottles wait while whoever looks at the queue ends and is
// started again; each goes on with its own answer.
func TestManyWait(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	proposed := make(chan struct{}, 20)
	for i := range 20 {
		q, err := w.c.Proposals()
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		a, err := q.Asker(supervise.AskerOptions{Bottle: fmt.Sprintf("b%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		wg.Go(func() {
			k, err := a.Propose(t.Context(), supervise.EgressAllow{Routes: []supervise.RouteAdded{{Host: fmt.Sprintf("h%d.example.com", i)}}}, supervise.Draft{})
			proposed <- struct{}{}
			if err != nil {
				t.Error(err)
				return
			}
			o, err := k.Wait(t.Context())
			if err != nil || o.Allowed() != (i%2 == 0) || o.Answer.Note != fmt.Sprintf("for b%d", i) {
				t.Errorf("b%d: %v %+v", i, err, o.Answer)
			}
		})
	}
	for range 20 {
		<-proposed
	}
	for n := range 4 { // each looks, answers five, and ends
		q, err := w.c.Proposals()
		if err != nil {
			t.Fatal(err)
		}
		l, err := q.List(t.Context(), supervise.Query{})
		if err != nil || len(l.Entries) < 20-5*n-5 {
			t.Fatalf("%v %d", err, len(l.Entries))
		}
		left := 5
		for _, e := range l.Entries {
			var i int
			fmt.Sscanf(e.Proposal.Bottle, "b%d", &i)
			if i/5 != n || left == 0 {
				continue
			}
			left--
			v := supervise.Rejected
			if i%2 == 0 {
				v = supervise.Approved
			}
			if _, err := q.Answer(t.Context(), supervise.Reply{ID: e.Proposal.ID, Digest: e.Proposal.Digest, Verdict: v, Note: "for " + e.Proposal.Bottle, Channel: supervise.ChannelCLI}); err != nil {
				t.Error(err)
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}
