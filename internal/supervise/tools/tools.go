// Package tools is what an agent in a bottle has of the queue: tools by MCP, over
// streamable HTTP. It can propose, and is told what was decided. It can't answer,
// nor see what others proposed: there is no such request.
//
// Every request comes from inside a bottle and is hostile. There are no sessions, so
// none can be taken over; bodies, calls at a time and calls per second are bounded;
// what a tool is given is checked against bounds before anybody hears of it. A tool
// that waits for a person says so on its stream, that whoever waits for it goes on
// waiting, and gives up when its request is gone.
//
// Start reading at [New].
package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"
)

// Path is where the tools are.
const Path = "/mcp"

// Bounds of what comes from inside.
const (
	// MaxBody is of a request, in bytes.
	MaxBody = 64 << 10
	// MaxCalls are under way at a time, and perSecond begin in the long run.
	MaxCalls  = 64
	perSecond = 20
	burst     = 60

	MaxReason  = 2000 // bytes
	MaxSummary = 4000 // bytes
	maxPaths   = 16
	maxMethods = 8
)

// Host does what the tools say. Its methods are called by many goroutines at once;
// their texts are hostile, but within the bounds above and UTF-8.
type Host interface {
	// Routes is the allowlist in force, as a route file.
	Routes(ctx context.Context) (string, error)
	// Allow proposes a route, and Block that there be none to a host. They wait for
	// the answer. An error is told to the agent.
	Allow(ctx context.Context, r Route) (Decision, error)
	Block(ctx context.Context, host, reason string) (Decision, error)
	// Done takes down what the agent says of its work.
	Done(ctx context.Context, status Status, summary string) error
}

// Route is what an agent may ask for.
type Route struct {
	Host    string   // NAME or NAME:PORT
	Paths   []string // prefixes; none: every path
	Methods []string // none: every method
	Reason  string
}

// Decision is how a proposal ended.
type Decision struct {
	Proposal string // its id; empty: nobody had to be asked
	Verdict  string // as the queue says it
	Words    string // for the agent; what to do now, and a person's note
}

// Status is what an agent says of its work.
type Status string

// The statuses.
const (
	Done    Status = "done"
	Failed  Status = "failed"
	Blocked Status = "blocked"
)

// Options are a handler's.
type Options struct {
	// Name is the host that the tools are at.
	Name    string
	Version string
	// Alive is how often a stream shows that its tool still waits; 0: 10 s.
	Alive time.Duration
}

// New is a handler for one bottle.
func New(h Host, o Options) http.Handler {
	if o.Alive == 0 {
		o.Alive = 10 * time.Second
	}
	s := &server{host: h, o: o, limit: rate.NewLimiter(perSecond, burst), calls: make(chan struct{}, MaxCalls)}
	s.mcp = mcp.NewStreamableHTTPHandler(s.serverFor, &mcp.StreamableHTTPOptions{
		Stateless: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: MaxBody, Logger: slog.New(slog.DiscardHandler),
	})
	return s
}

type server struct {
	host  Host
	o     Options
	mcp   http.Handler
	limit *rate.Limiter
	calls chan struct{}
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	origin := r.Header.Values("Origin")
	switch {
	case r.Host != s.o.Name && r.Host != s.o.Name+":80":
		http.Error(w, "this is "+s.o.Name, http.StatusMisdirectedRequest)
		return
	case len(origin) > 1 || len(origin) == 1 && origin[0] != "http://"+s.o.Name:
		// A page that a browser inside shows is none of the agent's.
		http.Error(w, "the tools are not for pages of other servers", http.StatusForbidden)
		return
	case r.URL.Path != Path:
		http.Error(w, "the tools are at http://"+s.o.Name+Path+", by MCP", http.StatusNotFound)
		return
	case r.ContentLength > MaxBody:
		http.Error(w, fmt.Sprintf("a request has at most %d bytes", MaxBody), http.StatusRequestEntityTooLarge)
		return
	}
	select {
	case s.calls <- struct{}{}:
		defer func() { <-s.calls }()
	default:
		tooMany(w)
		return
	}
	if !s.limit.Allow() {
		tooMany(w)
		return
	}
	k := &keptAlive{w: w}
	defer k.every(s.o.Alive)()
	s.mcp.ServeHTTP(k, r.WithContext(context.WithValue(r.Context(), aliveKey{}, k)))
}

func tooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "too many calls", http.StatusTooManyRequests)
}

const instructions = `This program runs in a bottle: it reaches only the hosts that somebody allowed. ` +
	`When a request is refused for lack of a route, propose one with egress-allow and say why it is needed; a person decides, which may take minutes. ` +
	`Propose as little as is enough. A refusal is final: go on without. Call signal-done when the work is done or can't be.`

// serverFor makes the server of one request: what its tools wait for ends with it.
func (s *server) serverFor(r *http.Request) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "carboy", Title: "carboy", Version: s.o.Version}, &mcp.ServerOptions{Instructions: instructions, Logger: slog.New(slog.DiscardHandler)})
	for i := range tools {
		t := &tools[i]
		srv.AddTool(&t.tool, func(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(r.Context(), cancel)()
			if k, ok := r.Context().Value(aliveKey{}).(*keptAlive); ok {
				k.waits()
			}
			res, err := t.call(ctx, s.host, q.Params.Arguments)
			if err != nil {
				return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: err.Error()}}}, nil
			}
			return res, nil
		})
	}
	return srv
}

type tool struct {
	tool mcp.Tool
	call func(context.Context, Host, json.RawMessage) (*mcp.CallToolResult, error)
}

func schema(s string) json.RawMessage { return json.RawMessage(s) }

var no = false

var tools = []tool{
	{
		mcp.Tool{
			Name: "list-egress-routes", Description: "Lists the hosts and requests that this bottle may reach, as a route file. The first route that a request meets decides.",
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{},"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			if err := read(args, &struct{}{}); err != nil {
				return nil, err
			}
			text, err := h.Routes(ctx)
			return said(text), err
		},
	},
	{
		mcp.Tool{
			Name: "egress-allow", Description: "Proposes that this bottle may reach a host, and waits until a person has decided. When it is approved, the request that was refused can be made again at once.",
			Annotations: &mcp.ToolAnnotations{OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{` +
				`"host":{"type":"string","minLength":1,"maxLength":260,"description":"the host's name, such as registry.example.com, *.example.com for every name below it, or NAME:PORT for another port than 443 and 80"},` +
				`"methods":{"type":"array","maxItems":8,"items":{"type":"string","maxLength":20},"description":"such as GET; none: every method"},` +
				`"paths":{"type":"array","maxItems":16,"items":{"type":"string","minLength":1,"maxLength":500},"description":"beginnings of paths, such as /v1/; none: every path"},` +
				`"reason":{"type":"string","minLength":1,"maxLength":2000,"description":"what it is needed for, for whoever decides"}},` +
				`"required":["host","reason"],"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			var in struct {
				Host    string   `json:"host"`
				Methods []string `json:"methods"`
				Paths   []string `json:"paths"`
				Reason  string   `json:"reason"`
			}
			if err := read(args, &in); err != nil {
				return nil, err
			}
			if err := errors.Join(text("host", in.Host, 1, 260), text("reason", in.Reason, 1, MaxReason), texts("methods", in.Methods, maxMethods, 20), texts("paths", in.Paths, maxPaths, 500)); err != nil {
				return nil, err
			}
			d, err := h.Allow(ctx, Route{in.Host, in.Paths, in.Methods, in.Reason})
			return decided(d), err
		},
	},
	{
		mcp.Tool{
			Name: "egress-block", Description: "Proposes that this bottle may reach a host no longer, and waits until a person has decided. What is under way there ends.",
			Annotations: &mcp.ToolAnnotations{OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{` +
				`"host":{"type":"string","minLength":1,"maxLength":260,"description":"as list-egress-routes has it"},` +
				`"reason":{"type":"string","minLength":1,"maxLength":2000,"description":"why, for whoever decides"}},` +
				`"required":["host","reason"],"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			var in struct {
				Host   string `json:"host"`
				Reason string `json:"reason"`
			}
			if err := read(args, &in); err != nil {
				return nil, err
			}
			if err := errors.Join(text("host", in.Host, 1, 260), text("reason", in.Reason, 1, MaxReason)); err != nil {
				return nil, err
			}
			d, err := h.Block(ctx, in.Host, in.Reason)
			return decided(d), err
		},
	},
	{
		mcp.Tool{
			Name: "signal-done", Description: "Says that the work is done, failed, or can't go on, with a summary for whoever asked for it. It ends nothing.",
			Annotations: &mcp.ToolAnnotations{OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{` +
				`"status":{"type":"string","enum":["done","failed","blocked"]},` +
				`"summary":{"type":"string","minLength":1,"maxLength":4000}},` +
				`"required":["status","summary"],"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			var in struct {
				Status  Status `json:"status"`
				Summary string `json:"summary"`
			}
			if err := read(args, &in); err != nil {
				return nil, err
			}
			if in.Status != Done && in.Status != Failed && in.Status != Blocked {
				return nil, errors.New("field \"status\": want done, failed or blocked")
			}
			if err := text("summary", in.Summary, 1, MaxSummary); err != nil {
				return nil, err
			}
			return said("It is taken down."), h.Done(ctx, in.Status, in.Summary)
		},
	},
}

// read reads what a tool is given, strictly.
func read(args json.RawMessage, into any) error {
	if len(args) == 0 {
		args = json.RawMessage("{}")
	}
	if !utf8.Valid(args) {
		return errors.New("the arguments are not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(args))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("the arguments can't be read: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("the arguments are more than one JSON value")
	}
	return nil
}

func text(field, s string, least, most int) error {
	if len(strings.TrimSpace(s)) < least || len(s) > most {
		return fmt.Errorf("field %q: %d bytes, want %d to %d", field, len(s), least, most)
	}
	return nil
}

func texts(field string, list []string, most, each int) error {
	if len(list) > most {
		return fmt.Errorf("field %q: %d values, at most %d", field, len(list), most)
	}
	for _, s := range list {
		if err := text(field, s, 1, each); err != nil {
			return err
		}
	}
	return nil
}

// said is a result in words. There is no structured one: some agents show their model
// that alone, and the words hold what a person says.
func said(words string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: words}}}
}

func decided(d Decision) *mcp.CallToolResult {
	if d.Proposal != "" {
		d.Words += " (proposal " + d.Proposal + ": " + d.Verdict + ")"
	}
	return said(d.Words)
}
