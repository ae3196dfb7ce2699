package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"
)

// agentArg makes this program the client of the gateway's measurements: it does
// the tasks that it reads, one JSON line each, and answers each with one. The same
// program runs on the bare machine and in a bottle.
const agentArg = "-agent"

// task describes one task of the agent.
type task struct {
	Do    string        `json:"do"` // post, down, up, events, open, close, probe, soak
	Proto string        `json:"proto,omitempty"`
	Conc  int           `json:"conc,omitempty"`
	For   time.Duration `json:"for,omitempty"`
	Bytes int64         `json:"bytes,omitempty"`
	Count int           `json:"count,omitempty"`
	Text  string        `json:"text,omitempty"`
}

// outcome holds a task's result. Latencies are in nanoseconds.
type outcome struct {
	Error string           `json:"error,omitempty"`
	Count int              `json:"count"`
	Bytes int64            `json:"bytes"`
	Took  time.Duration    `json:"took"`
	P50   time.Duration    `json:"p50"`
	P99   time.Duration    `json:"p99"`
	Mix   map[string]int64 `json:"mix,omitempty"` // soak: what was done how often
}

type agent struct {
	base   string
	tls    *tls.Config
	proxy  *url.URL
	h1, h2 *http.Client
	held   []*heldConn
}

// runAgent reads tasks and does them until its input ends.
func runAgent(args []string, in io.Reader, out io.Writer) int {
	a := &agent{}
	fs := flag.NewFlagSet("agent", flag.ContinueOnError)
	ca := fs.String("ca", "", "a `file` of certificates to trust beside the machine's")
	proxy := fs.String("proxy", "", "`URL` of a proxy")
	fs.StringVar(&a.base, "base", "", "`URL` of the server")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	if err := a.setUp(*ca, *proxy); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	lines, answers := bufio.NewScanner(in), json.NewEncoder(out)
	for lines.Scan() {
		var t task
		var o outcome
		err := json.Unmarshal(lines.Bytes(), &t)
		if err == nil {
			o, err = a.perform(t)
		}
		if err != nil {
			o.Error = err.Error()
		}
		if answers.Encode(o) != nil {
			return 1
		}
	}
	return 0
}

func (a *agent) setUp(ca, proxy string) error {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(pem)
	a.tls = &tls.Config{RootCAs: roots}
	if proxy != "" {
		if a.proxy, err = url.Parse(proxy); err != nil {
			return err
		}
	}
	client := func(set func(*http.Protocols)) *http.Client {
		t := &http.Transport{
			TLSClientConfig: a.tls.Clone(), MaxIdleConnsPerHost: 1000, Protocols: new(http.Protocols), DisableCompression: true,
			WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
		}
		set(t.Protocols)
		if a.proxy != nil {
			t.Proxy = http.ProxyURL(a.proxy)
		}
		return &http.Client{Transport: t}
	}
	a.h1 = client(func(p *http.Protocols) { p.SetHTTP1(true) })
	a.h2 = client(func(p *http.Protocols) { p.SetHTTP2(true) })
	return nil
}

func (a *agent) client(t task) *http.Client {
	if t.Proto == "h2" {
		return a.h2
	}
	return a.h1
}

func (a *agent) perform(t task) (outcome, error) {
	switch t.Do {
	case "post":
		return a.post(t)
	case "down":
		return a.down(t)
	case "up":
		return a.up(t)
	case "events":
		return a.events(t)
	case "open":
		return a.open(t)
	case "close":
		a.letGo()
		return outcome{}, nil
	case "probe":
		return a.probe(t)
	case "soak":
		return a.soak(t)
	}
	return outcome{}, fmt.Errorf("no task %q", t.Do)
}

const postSize = 1 << 10

// post keeps a number of requests in flight for a time, each with a body of 1 KiB.
func (a *agent) post(t task) (outcome, error) {
	if _, err := a.postFor(t, time.Second/4); err != nil { // connections, caches
		return outcome{}, err
	}
	return a.postFor(t, t.For)
}

func (a *agent) postFor(t task, d time.Duration) (outcome, error) {
	body, c := text(postSize), a.client(t)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		took  []time.Duration
		fault error
	)
	start := time.Now()
	until := start.Add(d)
	for range t.Conc {
		wg.Go(func() {
			var own []time.Duration
			var err error
			for err == nil && time.Now().Before(until) {
				began := time.Now()
				err = exchange(c, http.MethodPost, a.base+"/post", bytes.NewReader(body), postAnswer)
				own = append(own, time.Since(began))
			}
			mu.Lock()
			took, fault = append(took, own...), errors.Join(fault, err)
			mu.Unlock()
		})
	}
	wg.Wait()
	o := outcome{Count: len(took), Took: time.Since(start)}
	o.P50, o.P99 = quantiles(took)
	return o, fault
}

// exchange makes a request and compares the answer.
func exchange(c *http.Client, method, url string, body io.Reader, want string) error {
	q, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "text/plain")
	r, err := c.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(io.LimitReader(r.Body, 64<<10))
	if err == nil && (r.StatusCode != http.StatusOK || string(got) != want) {
		err = fmt.Errorf("%s %s: %s: %.300q", method, url, r.Status, got)
	}
	return err
}

func quantiles(ds []time.Duration) (p50, p99 time.Duration) {
	if len(ds) == 0 {
		return 0, 0
	}
	slices.Sort(ds)
	return ds[len(ds)/2], ds[min(len(ds)*99/100, len(ds)-1)]
}

func (a *agent) down(t task) (outcome, error) {
	start := time.Now()
	r, err := a.client(t).Get(a.base + "/bytes?n=" + strconv.FormatInt(t.Bytes, 10))
	if err != nil {
		return outcome{}, err
	}
	defer r.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Body}, make([]byte, 256<<10))
	if err == nil && (r.StatusCode != http.StatusOK || n != t.Bytes) {
		err = fmt.Errorf("down: %s, %d of %d bytes", r.Status, n, t.Bytes)
	}
	return outcome{Count: 1, Bytes: n, Took: time.Since(start)}, err
}

func (a *agent) up(t task) (outcome, error) {
	start := time.Now()
	q, err := http.NewRequest(http.MethodPut, a.base+"/sink", io.LimitReader(&texts{}, t.Bytes))
	if err != nil {
		return outcome{}, err
	}
	q.ContentLength = t.Bytes
	q.Header.Set("Content-Type", "text/plain")
	r, err := a.client(t).Do(q)
	if err != nil {
		return outcome{}, err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(io.LimitReader(r.Body, 300))
	if want := strconv.FormatInt(t.Bytes, 10); err == nil && string(got) != want {
		err = fmt.Errorf("up: %s, the server got %.300q of %s bytes", r.Status, got, want)
	}
	return outcome{Count: 1, Bytes: t.Bytes, Took: time.Since(start)}, err
}

// events reads a stream of events that contain the time of their writing.
func (a *agent) events(t task) (outcome, error) {
	start := time.Now()
	r, err := a.client(t).Get(a.base + "/events?n=" + strconv.Itoa(t.Count))
	if err != nil {
		return outcome{}, err
	}
	defer r.Body.Close()
	var late []time.Duration
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		now := time.Now().UnixNano()
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		at, err := strconv.ParseInt(data, 10, 64)
		if err != nil {
			return outcome{}, fmt.Errorf("events: %q", lines.Text())
		}
		late = append(late, time.Duration(now-at))
	}
	if err := lines.Err(); err != nil {
		return outcome{}, err
	}
	if len(late) != t.Count {
		return outcome{}, fmt.Errorf("events: %s, %d of %d", r.Status, len(late), t.Count)
	}
	o := outcome{Count: len(late), Took: time.Since(start)}
	o.P50, o.P99 = quantiles(late)
	return o, nil
}

// probe sends a text and reports whether it reached the server.
func (a *agent) probe(t task) (outcome, error) {
	c := &http.Client{Transport: a.h1.Transport, Timeout: 3 * time.Second}
	if exchange(c, http.MethodPost, a.base+"/post", strings.NewReader(t.Text), postAnswer) == nil {
		return outcome{Count: 1}, nil
	}
	return outcome{}, nil
}

// heldConn is an open connection without an HTTP client around it: ten thousand clients
// would take most of the measured memory.
type heldConn struct {
	net.Conn
	r *bufio.Reader
}

// open opens that many connections and makes a request on each. Then it makes another
// request on a few of them, because the first connections must still be open.
func (a *agent) open(t task) (outcome, error) {
	start := time.Now()
	var mu sync.Mutex
	var fault error
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range cmp.Or(t.Conc, 16) {
		wg.Go(func() {
			for range next {
				h, err := a.hold()
				mu.Lock()
				if err != nil {
					fault = errors.Join(fault, err)
				} else {
					a.held = append(a.held, h)
				}
				mu.Unlock()
			}
		})
	}
	for range t.Count - len(a.held) {
		mu.Lock()
		bad := fault != nil
		mu.Unlock()
		if bad {
			break
		}
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	if fault != nil {
		return outcome{Count: len(a.held)}, fmt.Errorf("after %d connections: %w", len(a.held), fault)
	}
	for i := 0; i < len(a.held); i += max(1, len(a.held)/50) {
		if err := a.held[i].ask(a.host()); err != nil {
			return outcome{Count: len(a.held)}, fmt.Errorf("connection %d of %d, later: %w", i, len(a.held), err)
		}
	}
	return outcome{Count: len(a.held), Took: time.Since(start)}, nil
}

func (a *agent) letGo() {
	for _, h := range a.held {
		h.Close()
	}
	a.held = nil
}

func (a *agent) host() string { return strings.TrimPrefix(a.base, "https://") }

// hold connects, through the proxy if there is one, and makes a request.
func (a *agent) hold() (_ *heldConn, err error) {
	to := a.host()
	if a.proxy != nil {
		to = a.proxy.Host
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if a.proxy != nil {
		if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", a.host()); err != nil {
			return nil, err
		}
		r, err := http.ReadResponse(bufio.NewReaderSize(c, 16), &http.Request{Method: http.MethodConnect})
		if err != nil {
			return nil, err
		}
		if r.StatusCode != http.StatusOK {
			return nil, errors.New("connect: " + r.Status)
		}
	}
	cfg := a.tls.Clone()
	cfg.ServerName, _, _ = net.SplitHostPort(a.host())
	s := tls.Client(c, cfg)
	if err := s.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	h := &heldConn{s, bufio.NewReaderSize(s, 512)}
	return h, h.ask(a.host())
}

func (h *heldConn) ask(host string) error {
	h.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintf(h, "POST /post HTTP/1.1\r\nHost: %s\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nhold", host); err != nil {
		return err
	}
	r, err := http.ReadResponse(h.r, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	got, err := io.ReadAll(r.Body)
	if err == nil && string(got) != postAnswer {
		err = fmt.Errorf("%s: %.300q", r.Status, got)
	}
	return err
}

// forbidden is a path that a soak's route does not allow.
const forbidden = "/forbidden"

// soakKind is one kind of request that a soak repeats.
type soakKind struct {
	name  string
	every time.Duration
	do    func() error
}

// soakKinds returns the kinds of requests that a soak makes in parallel.
func (a *agent) soakKinds(t task) []soakKind {
	return []soakKind{
		{"h1", 0, func() error { return a.small(a.h1) }},
		{"h2", 0, func() error { return a.small(a.h2) }},
		{"fresh", 0, func() error { // a connection of its own
			h, err := a.hold()
			if err == nil {
				err = h.Close()
			}
			return err
		}},
		{"down", 200 * time.Millisecond, func() error { _, err := a.down(task{Bytes: t.Bytes, Proto: "h2"}); return err }},
		{"up", 200 * time.Millisecond, func() error { _, err := a.up(task{Bytes: t.Bytes}); return err }},
		{"events", 0, func() error { _, err := a.events(task{Count: 50}); return err }},
		{"websocket", 50 * time.Millisecond, a.converse},
		{"refused", 20 * time.Millisecond, func() error {
			r, err := a.h1.Get(a.base + forbidden)
			if err != nil {
				return err
			}
			defer r.Body.Close()
			io.Copy(io.Discard, r.Body)
			if r.StatusCode != http.StatusForbidden {
				return fmt.Errorf("get %s: %s, want it refused", forbidden, r.Status)
			}
			return nil
		}},
		{"reset by the server", 20 * time.Millisecond, func() error {
			r, err := a.h1.Get(a.base + "/reset")
			if err != nil {
				return nil
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err == nil && r.StatusCode == http.StatusOK {
				return errors.New("an answer that broke off looks whole")
			}
			return nil
		}},
		{"reset by the client", 20 * time.Millisecond, func() error {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/events?n=1000", nil)
			if err != nil {
				return err
			}
			r, err := a.h1.Do(q)
			if err != nil {
				return err
			}
			r.Body.Read(make([]byte, 1))
			cancel()
			return r.Body.Close()
		}},
		{"unknown name", 20 * time.Millisecond, func() error {
			ips, err := net.DefaultResolver.LookupIPAddr(context.Background(), "not-allowed.example.org")
			var dns *net.DNSError
			if !errors.As(err, &dns) || !dns.IsNotFound {
				return fmt.Errorf("look up a name that is not allowed: %v, %w; want that it does not exist", ips, err)
			}
			return nil
		}},
	}
}

// soak makes requests of all kinds until the time is over. It checks that allowed requests
// work and that the others are refused.
func (a *agent) soak(t task) (outcome, error) {
	until := time.Now().Add(t.For)
	start := time.Now()
	kinds := a.soakKinds(t)
	counts := make([]atomic.Int64, len(kinds))
	var stop atomic.Bool
	var wg sync.WaitGroup
	faults := make(chan error, len(kinds))
	for i, k := range kinds {
		wg.Go(func() {
			for !stop.Load() && time.Now().Before(until) {
				if err := k.do(); err != nil {
					stop.Store(true)
					faults <- fmt.Errorf("%s, number %d: %w", k.name, counts[i].Load()+1, err)
					return
				}
				counts[i].Add(1)
				time.Sleep(k.every)
			}
		})
	}
	wg.Wait()
	close(faults)
	o := outcome{Took: time.Since(start), Mix: map[string]int64{}}
	for i, k := range kinds {
		o.Mix[k.name] = counts[i].Load()
		o.Count += int(counts[i].Load())
	}
	var errs []error
	for err := range faults {
		errs = append(errs, err)
	}
	return o, errors.Join(errs...)
}

func (a *agent) small(c *http.Client) error {
	return exchange(c, http.MethodPost, a.base+"/post", bytes.NewReader(text(postSize)), postAnswer)
}

// converse opens a WebSocket and checks that a few messages are echoed.
func (a *agent) converse() error {
	cfg, err := websocket.NewConfig("wss://"+a.host()+"/socket", a.base)
	if err != nil {
		return err
	}
	cfg.TlsConfig = a.tls.Clone()
	c, err := websocket.DialConfig(cfg)
	if err != nil {
		return fmt.Errorf("websocket: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	for i := range 5 {
		want, got := string(text(100*(i+1))), ""
		if err := websocket.Message.Send(c, want); err != nil {
			return err
		}
		if err := websocket.Message.Receive(c, &got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("websocket: sent %q, got %q", want, got)
		}
	}
	return nil
}
