// Package tools serves the queue to an agent in a bottle, as MCP tools over streamable
// HTTP. The agent can propose and learn the decision. It cannot answer, and cannot see the
// proposals of others: there is no such request.
//
// Every request comes from inside a bottle and may be hostile. There are no sessions to
// take over. Bodies, concurrent calls and calls per second are bounded. A tool's arguments
// are checked against bounds before any use. A tool that waits for a person writes to its
// stream from time to time, so that the client goes on waiting, and it gives up when the
// request is gone.
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

// Path is the path of the tools.
const Path = "/mcp"

// Bounds of input from inside.
const (
	// maxBody bounds a request, in bytes.
	maxBody = 64 << 10
	// maxCalls bounds the concurrent calls, and perSecond those that begin in a second, on
	// average.
	maxCalls  = 64
	perSecond = 20
	burst     = 60

	maxReason  = 2000 // bytes
	maxSummary = 4000 // bytes
	maxPaths   = 16
	maxMethods = 8
	maxYAML    = 16 << 10 // bytes
)

// Host carries out the calls of the tools. Many goroutines call its methods at once. The
// texts it gets may be hostile, but are UTF-8 and within the bounds above.
type Host interface {
	// Routes returns the allowlist in force, as a route file.
	Routes(ctx context.Context) (string, error)
	// Allow proposes routes, and Block the removal of the routes to hosts. They block
	// until there is an answer. The agent is told an error.
	Allow(ctx context.Context, r Route) (Decision, error)
	Block(ctx context.Context, r Route) (Decision, error)
	// Done records the agent's report on its work.
	Done(ctx context.Context, status Status, summary string) error
}

// Route is what an agent asks for: one route, or a route file.
type Route struct {
	Host    string   // NAME or NAME:PORT
	Paths   []string // prefixes; none: every path
	Methods []string // none: every method
	Reason  string
	YAML    string // a route file, instead of host, paths and methods
}

// asked holds the arguments of the tools about routes. The last two are those of
// bot-bottle's tools.
type asked struct {
	Host          string   `json:"host"`
	Methods       []string `json:"methods"`
	Paths         []string `json:"paths"`
	Reason        string   `json:"reason"`
	YAML          string   `json:"routes_yaml"`
	Justification string   `json:"justification"`
}

// route checks the arguments.
func (in asked) route() (Route, error) {
	if in.Reason != "" && in.Justification != "" {
		return Route{}, errors.New(`fields "reason" and "justification": give one of them`)
	}
	r := Route{in.Host, in.Paths, in.Methods, in.Reason + in.Justification, in.YAML}
	err := text("reason", r.Reason, 1, maxReason)
	if in.YAML == "" {
		return r, errors.Join(text("host", in.Host, 1, 260), err, texts("methods", in.Methods, maxMethods, 20), texts("paths", in.Paths, maxPaths, 500))
	}
	if in.Host != "" || len(in.Paths)+len(in.Methods) > 0 {
		return Route{}, errors.New(`field "routes_yaml": holds hosts, methods and paths itself; leave the others out`)
	}
	return r, errors.Join(text("routes_yaml", in.YAML, 1, maxYAML), err)
}

// Decision is the end of a proposal.
type Decision struct {
	Proposal string // its id; empty if nobody had to be asked
	Verdict  string // a supervise.Verdict
	Message  string // tells the agent what to do now; holds a person's note
}

// Status is an agent's report on its work.
type Status string

// The statuses.
const (
	done    Status = "done"
	failed  Status = "failed"
	blocked Status = "blocked"
)

// Options configure a handler.
type Options struct {
	// Name is the host name of the tools.
	Name    string
	Version string
	// Alive is the interval at which a waiting tool writes to its stream. 0 means 10 s.
	Alive time.Duration
	// Forge adds the tools of a forge. nil: there are none, and nothing speaks of them.
	Forge Forge
}

// New returns a handler for one bottle.
func New(h Host, o Options) http.Handler {
	if o.Alive == 0 {
		o.Alive = 10 * time.Second
	}
	s := &server{host: h, o: o, tools: tools, words: instructions, limit: rate.NewLimiter(perSecond, burst), calls: make(chan struct{}, maxCalls)}
	if o.Forge != nil {
		s.tools, s.words = withForge(o.Forge), instructions+forgeInstructions
	}
	s.mcp = mcp.NewStreamableHTTPHandler(s.serverFor, &mcp.StreamableHTTPOptions{
		Stateless: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: maxBody, Logger: slog.New(slog.DiscardHandler),
	})
	return s
}

type server struct {
	host  Host
	o     Options
	tools []tool
	words string // the instructions
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
		// A web page in the bottle's browser does not speak for the agent.
		http.Error(w, "the tools are not for pages of other servers", http.StatusForbidden)
		return
	case r.URL.Path != Path:
		http.Error(w, "the tools are at http://"+s.o.Name+Path+", by MCP", http.StatusNotFound)
		return
	case r.ContentLength > maxBody:
		http.Error(w, fmt.Sprintf("a request has at most %d bytes", maxBody), http.StatusRequestEntityTooLarge)
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

// serverFor returns an MCP server for one request. When the request ends, its tools stop
// waiting.
func (s *server) serverFor(r *http.Request) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{Name: "carboy", Title: "carboy", Version: s.o.Version}, &mcp.ServerOptions{Instructions: s.words, Logger: slog.New(slog.DiscardHandler)})
	for i := range s.tools {
		t := &s.tools[i]
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
			return textResult(text), err
		},
	},
	{
		mcp.Tool{
			Name: "egress-allow", Description: "Proposes that this bottle may reach a host, and waits until a person has decided. After an approval, the refused request can be repeated at once.",
			Annotations: &mcp.ToolAnnotations{OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{` +
				`"host":{"type":"string","maxLength":260,"description":"the host's name, such as registry.example.com, *.example.com for every name below it, or NAME:PORT for another port than 443 and 80; required"},` +
				`"methods":{"type":"array","maxItems":8,"items":{"type":"string","maxLength":20},"description":"such as GET; without any, every method"},` +
				`"paths":{"type":"array","maxItems":16,"items":{"type":"string","minLength":1,"maxLength":500},"description":"prefixes of paths, such as /v1/; without any, every path"},` +
				`"reason":{"type":"string","maxLength":2000,"description":"what it is needed for; shown to the person who decides; required"},` +
				`"routes_yaml":{"type":"string","maxLength":16384,"description":"instead of host, methods and paths: routes, in the form of list-egress-routes"},` +
				`"justification":{"type":"string","maxLength":2000,"description":"another name for reason"}},` +
				`"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			return propose(ctx, args, h.Allow)
		},
	},
	{
		mcp.Tool{
			Name: "egress-block", Description: "Proposes that this bottle may no longer reach a host, and waits until a person has decided. An approval ends its open connections there.",
			Annotations: &mcp.ToolAnnotations{OpenWorldHint: &no},
			InputSchema: schema(`{"type":"object","properties":{` +
				`"host":{"type":"string","maxLength":260,"description":"a host in the form of list-egress-routes; required"},` +
				`"reason":{"type":"string","maxLength":2000,"description":"why; shown to the person who decides; required"},` +
				`"routes_yaml":{"type":"string","maxLength":16384,"description":"instead of host: routes to these hosts go"},` +
				`"justification":{"type":"string","maxLength":2000,"description":"another name for reason"}},` +
				`"additionalProperties":false}`),
		},
		func(ctx context.Context, h Host, args json.RawMessage) (*mcp.CallToolResult, error) {
			return propose(ctx, args, func(ctx context.Context, r Route) (Decision, error) {
				if len(r.Paths)+len(r.Methods) > 0 {
					return Decision{}, errors.New(`fields "paths" and "methods": all routes to the host go`)
				}
				return h.Block(ctx, r)
			})
		},
	},
	{
		mcp.Tool{
			Name: "signal-done", Description: "Reports that the work is done, has failed, or cannot go on, with a summary for the person who requested it. It does not end anything.",
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
			if in.Status != done && in.Status != failed && in.Status != blocked {
				return nil, errors.New("field \"status\": want done, failed or blocked")
			}
			if err := text("summary", in.Summary, 1, maxSummary); err != nil {
				return nil, err
			}
			return textResult("It is taken down."), h.Done(ctx, in.Status, in.Summary)
		},
	},
}

// propose passes a proposal about routes on.
func propose(ctx context.Context, args json.RawMessage, to func(context.Context, Route) (Decision, error)) (*mcp.CallToolResult, error) {
	var in asked
	if err := read(args, &in); err != nil {
		return nil, err
	}
	r, err := in.route()
	if err != nil {
		return nil, err
	}
	d, err := to(ctx, r)
	return decided(d), err
}

// read decodes a tool's arguments, and refuses unknown ones.
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

// textResult returns a result with text only. Some agents show their model only the
// structured part of a result, and that would lack a person's note.
func textResult(words string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: words}}}
}

func decided(d Decision) *mcp.CallToolResult {
	if d.Proposal != "" {
		d.Message += " (proposal " + d.Proposal + ": " + d.Verdict + ")"
	}
	return textResult(d.Message)
}
