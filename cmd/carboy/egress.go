//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/safetext"
)

const egressLong = `Check what a bottle may reach before a run needs it, and show what a run requested.`

const egressCheckLong = `Read a route file as a run would, and report every error with its line. It starts
nothing and reads no credential: it only checks that the variable which a route names
is set here.

--request says which route decides about a request, and why: METHOD URL, or URL
for GET. The exit code is 1 if the file has errors or the request is refused.`

const egressCheckExample = `  carboy egress check routes.yaml
  carboy egress check routes.yaml --request https://api.example.com/v1/models
  carboy egress check routes.yaml --request 'DELETE https://api.example.com/v1'
  carboy egress check --json routes.yaml`

func (a *app) egressCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "egress", Short: "check route files, and show the requests of runs", Long: egressLong, GroupID: "keep", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.egressCheckCmd(), a.egressLogCmd())
	return cmd
}

type egressCheck struct {
	request string
	headers []string
	json    bool
}

func (a *app) egressCheckCmd() *cobra.Command {
	f := &egressCheck{}
	cmd := &cobra.Command{
		Use: "check FILE", Short: "find errors in a route file, and say which route decides", Long: egressCheckLong, Example: egressCheckExample,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("carboy egress check routes.yaml", "egress check: wanted one file, got %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.egressCheck(args[0], f) },
	}
	cmd.Flags().StringVar(&f.request, "request", "", "decide about `REQUEST`: METHOD URL, or URL")
	cmd.Flags().StringArrayVar(&f.headers, "header", nil, "with --request: a header, as NAME:VALUE; repeatable")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the result as JSON")
	cmd.RegisterFlagCompletionFunc("request", cobra.NoFileCompletions)
	cmd.RegisterFlagCompletionFunc("header", cobra.NoFileCompletions)
	return cmd
}

// checked is the JSON output.
type checked struct {
	Schema   string             `json:"schema"`
	File     string             `json:"file"`
	OK       bool               `json:"ok"`
	Problems []document.Problem `json:"problems"`
	Warnings []document.Problem `json:"warnings"`
	Routes   []checkedRoute     `json:"routes"`
	Request  *decision          `json:"request,omitempty"`
}

type checkedRoute struct {
	Rule       string `json:"rule"`
	Host       string `json:"host"`
	Inspect    bool   `json:"inspect"`
	Private    bool   `json:"private,omitempty"`
	Conditions int    `json:"conditions"` // alternatives; 0: every request
	Credential string `json:"credential,omitempty"`
	Upstream   string `json:"upstream,omitempty"` // where its requests go instead
	GitFetch   bool   `json:"git_fetch"`
}

type decision struct {
	Request string        `json:"request"`
	Allowed bool          `json:"allowed"`
	Rule    string        `json:"rule,omitempty"` // in a refusal, of the nearest route
	Reason  policy.Reason `json:"reason"`
	Missed  string        `json:"missed,omitempty"`
	Allow   string        `json:"allow,omitempty"` // the flag that would allow it
	Hint    string        `json:"hint,omitempty"`  // what else would
}

func (a *app) egressCheck(path string, f *egressCheck) error {
	if f.request == "" && len(f.headers) > 0 {
		return usagef("add --request 'GET https://…'", "egress check: --header needs --request")
	}
	req, err := parseRequest(f.request, f.headers)
	if err != nil {
		return err
	}
	out := checked{Schema: "carboy.dev/egress-check/v1", File: path, Problems: []document.Problem{}, Warnings: []document.Problem{}, Routes: []checkedRoute{}}
	file, err := routes.Load(path)
	var problems document.Error
	switch {
	case errors.As(err, &problems):
		out.Problems = problems
	case err != nil:
		return err
	default:
		out.OK = true
		out.describe(file, os.LookupEnv)
		if req != nil {
			if out.Request, err = decide(file.Routes, req); err != nil {
				return err
			}
			out.OK = out.Request.Allowed
		}
	}
	a.code = exitcode.OfCheck(out.OK)
	if f.json {
		return a.printJSON(out)
	}
	a.printChecked(&out)
	return nil
}

func (c *checked) describe(file *routes.File, env func(string) (string, bool)) {
	for _, r := range file.Routes {
		o := r.Options()
		cr := checkedRoute{Rule: r.Rule(), Host: r.String(), Inspect: !o.Opaque && r.Protocol() == policy.ProtocolWeb, Private: r.Private(), Conditions: len(o.Matches)}
		cr.GitFetch = cr.Inspect && r.Fetches()
		if !o.Upstream.IsZero() {
			cr.Upstream = o.Upstream.String()
		}
		if !o.Credential.IsZero() {
			cr.Credential = string(o.Credential.Scheme)
			if n := o.Credential.Env; n != "" {
				cr.Credential += " " + carboy.NameOrHidden(n)
			}
			if n := o.Credential.OAuth.File; n != "" {
				cr.Credential += " " + n
			}
			warn := func(field, what, advice string) {
				c.Warnings = append(c.Warnings, document.Problem{File: r.Rule(), Field: field, What: what, Advice: advice})
			}
			for _, v := range [][2]string{{"token_env", o.Credential.Env}, {"oauth.client_secret_env", o.Credential.OAuth.SecretEnv}} {
				switch value, set := env(v[1]); {
				case v[1] == "":
				case !set:
					warn(v[0], "this variable is not set here", "set it before the run, which refuses to start without")
				case value == "":
					warn(v[0], "this variable is empty here", "set it before the run, which refuses to start without")
				}
			}
			if f := o.Credential.OAuth.File; f != "" {
				home, _ := env("HOME")
				if err := carboy.CheckTokenFile(f, home); err != nil {
					warn("oauth.refresh_token_file", err.Error(), "a run refuses to start without")
				}
			}
		}
		c.Routes = append(c.Routes, cr)
	}
}

type wantedRequest struct {
	text    string
	name    string
	literal netip.Addr
	port    uint16
	url     *url.URL
	policy.Request
}

func parseRequest(s string, headers []string) (*wantedRequest, error) {
	if s == "" {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return usagef("such as --request 'POST https://api.example.com/v1'", "egress check: --request: "+format, args...)
	}
	method, raw, both := strings.Cut(strings.TrimSpace(s), " ")
	if !both {
		method, raw = "GET", method
	}
	raw = strings.TrimSpace(raw)
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, bad("%q is no http or https URL", raw)
	}
	w := &wantedRequest{text: method + " " + raw, name: u.Hostname(), port: 443, url: u}
	if u.Scheme == "http" {
		w.port = 80
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return nil, bad("port %q", p)
		}
		w.port = uint16(n)
	}
	w.literal, _ = netip.ParseAddr(w.name)
	w.Method, w.Header = method, http.Header{}
	// As it was written, since that is what rules are about.
	rest := raw[strings.Index(raw, "://")+3:]
	w.Path = "/"
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && rest[i] == '/' {
		w.Path, _, _ = strings.Cut(rest[i:], "?")
		w.Path, _, _ = strings.Cut(w.Path, "#")
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return nil, usagef("such as --header 'Accept: text/html'", "egress check: --header %q has no colon", h)
		}
		w.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return w, nil
}

func decide(rs []policy.Route, w *wantedRequest) (*decision, error) {
	table, err := policy.Compile(rs...)
	if err != nil {
		return nil, err
	}
	d := &decision{Request: w.text}
	var v policy.Verdict
	if w.literal.IsValid() {
		v = table.DecideAddr(w.literal, w.port)
	} else {
		v = table.Decide(w.name, w.port)
	}
	if v.Allowed && v.Protocol == policy.ProtocolWeb && !v.Opaque {
		rv := table.DecideRequest(w.name, w.port, &w.Request)
		if w.literal.IsValid() {
			rv = table.DecideAddrRequest(w.literal, w.port, &w.Request)
		}
		v, d.Missed = rv.Verdict, rv.Missed
		d.Allow, d.Hint = rv.Remedy(w.name, w.port, w.Path, v.Private)
		if v.Allowed {
			r := &http.Request{Method: w.Method, URL: w.url, Header: w.Header}
			if reason, detail, hint := gateway.RefuseOn(rv.Route, r); reason != gateway.ReasonOK {
				v.Allowed, v.Reason, d.Missed, d.Hint = false, policy.Reason(reason), detail, hint
			}
		}
	}
	if !v.Allowed && (v.Reason == policy.ReasonNoRoute || v.Reason == policy.ReasonPort || v.Reason == policy.ReasonLiteral) {
		d.Allow = policy.AllowFlag(w.name, w.port, w.Path, false)
		if d.Allow == "" {
			d.Allow = policy.AllowFlag(w.name, w.port, "", false)
		}
	}
	d.Allowed, d.Rule, d.Reason = v.Allowed, v.Rule, v.Reason
	return d, nil
}

func (a *app) printChecked(c *checked) {
	show := func(s string) string { return safetext.String(s, 500) }
	for _, p := range c.Problems {
		fmt.Fprintln(a.stderr, show(p.Error()))
	}
	if c.Request != nil {
		c.Warnings = nil // about something else
	}
	for _, p := range c.Warnings {
		fmt.Fprintln(a.stderr, show("warning: "+p.Error()))
	}
	if len(c.Problems) > 0 {
		fmt.Fprintf(a.stderr, "carboy: %s: %s; a run would refuse it\n", show(c.File), number(len(c.Problems), "problem", "problems"))
		return
	}
	if d := c.Request; d != nil {
		word := "allowed by"
		if !d.Allowed {
			word = "refused (" + string(d.Reason) + ")"
			if d.Rule != "" {
				word += ", nearest"
			}
		}
		fmt.Fprintln(a.stdout, show(strings.TrimSpace(d.Request+": "+word+" "+d.Rule)))
		git := strings.HasPrefix(string(d.Reason), "git-")
		switch {
		case git || d.Reason == "connect-method":
			fmt.Fprintln(a.stdout, "  "+show(d.Missed))
		case d.Missed != "":
			fmt.Fprintln(a.stdout, "  not met: "+show(d.Missed))
		}
		if d.Allow != "" {
			fmt.Fprintln(a.stdout, "  would be allowed with "+show(d.Allow))
		}
		if d.Hint != "" && (git || d.Missed == "") {
			fmt.Fprintln(a.stdout, "  "+show(d.Hint))
		}
		return
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tHOST\tREQUESTS\tCREDENTIAL\tTLS\tGIT")
	for _, r := range c.Routes {
		requests, tls := "all", "inspected"
		if r.Conditions > 0 {
			requests = number(r.Conditions, "condition", "conditions")
		}
		if !r.Inspect {
			requests, tls = "-", "passed unseen"
		}
		git := "-"
		if r.GitFetch {
			git = "fetch"
		}
		host := r.Host
		if r.Private {
			host += " (private)"
		}
		if r.Upstream != "" {
			host += " -> " + r.Upstream
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", show(r.Rule), show(host), requests, show(first(r.Credential, "-")), tls, git)
	}
	w.Flush()
}
