package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/carboy/carboy/internal/secret"

	"github.com/carboy/carboy/internal/testenv"
)

// described is a vendor's description of its API, or of its webhooks.
type described struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

const docURL = "file:///description.json"

// load reads the description whose path is in the variable env. It returns nil if CI could
// not fetch it, which .ci/run has reported.
func load(t *testing.T, env, what string) *described {
	t.Helper()
	path := os.Getenv(env)
	if path == "" && testenv.CI() {
		t.Logf("NOT RUN here: needs %s: its path in %s", what, env)
		return nil
	}
	if path == "" {
		testenv.Missing(t, what, "its path in "+env)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	d := &described{doc: nullable(doc).(map[string]any), compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	d.compiler.DefaultDraft(jsonschema.Draft4)
	if err := d.compiler.AddResource(docURL, d.doc); err != nil {
		t.Fatal(err)
	}
	return d
}

// nullable writes OpenAPI 3.0's "nullable" as JSON schema does.
func nullable(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = nullable(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = nullable(v[k])
		}
		if v["nullable"] == true {
			delete(v, "nullable")
			return map[string]any{"anyOf": []any{v, map[string]any{"type": "null"}}}
		}
	}
	return v
}

// at follows a JSON pointer and references.
func (d *described) at(pointer string) (map[string]any, string) {
	for {
		var v any = d.doc
		for p := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
			switch x := v.(type) {
			case map[string]any:
				v = x[strings.NewReplacer("~1", "/", "~0", "~").Replace(p)]
			case []any:
				i, _ := strconv.Atoi(p)
				v = x[i]
			}
		}
		m, _ := v.(map[string]any)
		ref, ok := m["$ref"].(string)
		if !ok {
			return m, pointer
		}
		pointer = strings.TrimPrefix(ref, "#")
	}
}

func (d *described) validate(pointer string, v any) error {
	_, pointer = d.at(pointer)
	s := d.compiled[pointer]
	if s == nil {
		var err error
		if s, err = d.compiler.Compile(docURL + "#" + strings.NewReplacer("{", "%7B", "}", "%7D").Replace(pointer)); err != nil {
			return err
		}
		d.compiled[pointer] = s
	}
	return s.Validate(v)
}

// flat collects what a schema and all of its parts say of an object.
type flat struct {
	properties map[string]string // pointers
	required   []string
	open       bool // takes any property
	types      []string
	enum       []any
	items      string
	choices    [][]string // pointers, of oneOf and anyOf
	format     string
}

func (d *described) flatten(pointer string, into *flat) {
	m, pointer := d.at(pointer)
	if props, ok := m["properties"].(map[string]any); ok {
		for k := range props {
			into.properties[k] = pointer + "/properties/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k)
		}
	}
	for _, r := range list1(m["required"]) {
		into.required = append(into.required, r.(string))
	}
	switch m["additionalProperties"].(type) {
	case map[string]any:
		into.open = true
	case bool:
		into.open = into.open || m["additionalProperties"] == true
	}
	switch x := m["type"].(type) {
	case string:
		into.types = []string{x}
	case []any:
		into.types = nil
		for _, s := range x {
			into.types = append(into.types, s.(string))
		}
	}
	if e := list1(m["enum"]); e != nil {
		into.enum = e
	}
	if c, ok := m["const"]; ok {
		into.enum = []any{c}
	}
	if _, ok := m["items"].(map[string]any); ok {
		into.items = pointer + "/items"
	}
	if s, ok := m["format"].(string); ok {
		into.format = s
	}
	for i := range list1(m["allOf"]) {
		d.flatten(fmt.Sprintf("%s/allOf/%d", pointer, i), into)
	}
	for _, key := range []string{"oneOf", "anyOf"} {
		var c []string
		for i := range list1(m[key]) {
			c = append(c, fmt.Sprintf("%s/%s/%d", pointer, key, i))
		}
		if c != nil {
			into.choices = append(into.choices, c)
		}
	}
}

func list1(v any) []any { l, _ := v.([]any); return l }

// missing stands for a value that is to be made up.
type missing struct{}

// complete returns v with all that the schema requires, and an error if v has something that
// the schema does not know.
func (d *described) complete(pointer string, v any, depth int) (any, error) {
	if depth > 30 {
		return nil, fmt.Errorf("%s: too deep", pointer)
	}
	s := &flat{properties: map[string]string{}}
	d.flatten(pointer, s)
	if _, none := v.(missing); none && len(s.enum) > 0 {
		return s.enum[0], nil
	}
	if len(s.enum) > 0 && !slices.Contains(s.enum, v) {
		return nil, fmt.Errorf("%s: %v is none of %v", pointer, v, s.enum)
	}
	for _, choice := range s.choices {
		var first error
		// null is the last choice of nullable: the first for what is made up.
		if _, none := v.(missing); none {
			choice = slices.Clone(choice)
			slices.Reverse(choice)
		}
		done := false
		for _, p := range choice {
			got, err := d.complete(p, v, depth+1)
			if err == nil && len(s.properties) == 0 {
				return got, nil
			}
			if err == nil {
				done = true
				break
			}
			if first == nil {
				first = err
			}
		}
		if !done {
			return nil, first
		}
	}
	if _, none := v.(missing); none {
		return d.made(pointer, s, depth)
	}
	switch x := v.(type) {
	case map[string]any:
		if len(s.types) > 0 && !slices.Contains(s.types, "object") {
			return nil, fmt.Errorf("%s: an object, not %v", pointer, s.types)
		}
		out := map[string]any{}
		for k, e := range x {
			p, ok := s.properties[k]
			switch {
			case !ok && (s.open || len(s.properties) == 0):
				out[k] = e
				continue
			case !ok:
				return nil, fmt.Errorf("%s has no %q", pointer, k)
			}
			var err error
			if out[k], err = d.complete(p, e, depth+1); err != nil {
				return nil, err
			}
		}
		return d.fill(out, s, depth)
	case []any:
		if len(s.types) > 0 && !slices.Contains(s.types, "array") {
			return nil, fmt.Errorf("%s: a list, not %v", pointer, s.types)
		}
		out := []any{}
		for _, e := range x {
			e, err := d.complete(s.items, e, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, e)
		}
		return out, nil
	}
	kind := map[bool]string{true: "null", false: "string"}[v == nil]
	switch v.(type) {
	case bool:
		kind = "boolean"
	case float64, json.Number, int:
		kind = "integer"
	}
	if len(s.types) > 0 && !slices.Contains(s.types, kind) && (kind != "integer" || !slices.Contains(s.types, "number")) {
		return nil, fmt.Errorf("%s: %v is %s, not %v", pointer, v, kind, s.types)
	}
	return v, nil
}

func (d *described) fill(out map[string]any, s *flat, depth int) (any, error) {
	for _, r := range s.required {
		if _, ok := out[r]; ok {
			continue
		}
		p, ok := s.properties[r]
		if !ok {
			out[r] = "x"
			continue
		}
		var err error
		if out[r], err = d.complete(p, missing{}, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *described) made(pointer string, s *flat, depth int) (any, error) {
	kind := "object"
	if len(s.types) > 0 {
		kind = s.types[0]
	}
	switch {
	case slices.Contains(s.types, "null"):
		return nil, nil
	case kind == "object":
		return d.fill(map[string]any{}, s, depth)
	case kind == "array":
		return []any{}, nil
	case kind == "integer" || kind == "number":
		return 1, nil
	case kind == "boolean":
		return false, nil
	case kind == "string" && s.format == "date-time":
		return when(fakeTime), nil
	case kind == "string" && s.format == "uri":
		return "https://forge.example/x", nil
	case kind == "string":
		return "x", nil
	}
	return nil, fmt.Errorf("%s: can't make up %v", pointer, s.types)
}

// operation finds the description of a request.
func (d *described) operation(method, path string) (string, map[string]any) {
	paths := d.doc["paths"].(map[string]any)
	best, score := "", -1
	parts := strings.Split(path, "/")
	for name := range paths {
		want := strings.Split(name, "/")
		if len(want) != len(parts) {
			continue
		}
		n := 0
		for i := range want {
			switch {
			case want[i] == parts[i]:
				n++
			case !strings.HasPrefix(want[i], "{"):
				n = -1000
			}
		}
		if n > score {
			best, score = name, n
		}
	}
	pointer := "/paths/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(best) + "/" + strings.ToLower(method)
	op, _ := d.at(pointer)
	if op == nil {
		return "", nil
	}
	return pointer, op
}

// schema returns the pointer to the schema of an answer or, with code 0, of a request.
func (d *described) schema(pointer string, code int) string {
	if code == 0 {
		pointer += "/requestBody"
	} else {
		pointer += "/responses/" + strconv.Itoa(code)
	}
	m, pointer := d.at(pointer)
	content, _ := m["content"].(map[string]any)
	if content["application/json"] == nil {
		return ""
	}
	return pointer + "/content/application~1json/schema"
}

// roundTrip makes a value as the JSON that it is.
func roundTrip(t *testing.T, v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	v, err = jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestGitHubAsDescribed holds the client's requests, and the answers of the fake, to GitHub's
// own description: npm's @octokit/openapi has it in generated/api.github.com.json. The
// answers are made whole by it, as the real ones are, and the client reads the same.
func TestGitHubAsDescribed(t *testing.T) {
	d := load(t, "CARBOY_TEST_GITHUB_API", "npm's @octokit/openapi, generated/api.github.com.json,")
	if d == nil {
		return
	}
	newDescribed := func(t *testing.T) (*fake, *Client) {
		f, c := newFake(t, "github")
		f.branch, f.admin = map[string]any{"name": "main", "protected": true}, true
		f.rules = []any{
			map[string]any{"type": "pull_request", "parameters": map[string]any{"required_approving_review_count": 1, "dismiss_stale_reviews_on_push": true}},
			map[string]any{"type": "required_status_checks", "parameters": map[string]any{"required_status_checks": []any{map[string]any{"context": "carboy/gate"}}}},
		}
		return f, c
	}
	full := map[string]func(ctx context.Context, c *Client) (any, error){
		"account":  func(ctx context.Context, c *Client) (any, error) { return c.Account(ctx) },
		"member":   func(ctx context.Context, c *Client) (any, error) { return c.Member(ctx, "bots", "ada") },
		"stranger": func(ctx context.Context, c *Client) (any, error) { return c.Member(ctx, "bots", "eve") },
		"access":   func(ctx context.Context, c *Client) (any, error) { return c.Access(ctx, repo, "bob") },
		"issue":    func(ctx context.Context, c *Client) (any, error) { return c.Issue(ctx, repo, issue7) },
		"pull":     func(ctx context.Context, c *Client) (any, error) { return c.PullRequest(ctx, repo, 8) },
		"merged":   func(ctx context.Context, c *Client) (any, error) { return c.PullRequest(ctx, repo, 9) },
		"changed":  func(ctx context.Context, c *Client) (any, error) { return c.Changed(ctx, repo, fakeTime) },
		"comments": func(ctx context.Context, c *Client) (any, error) {
			list, _, err := c.Comments(ctx, repo, issue7, fakeTime)
			return list, err
		},
		"repository": func(ctx context.Context, c *Client) (any, error) { return c.Repository(ctx, repo) },
		"commit":     func(ctx context.Context, c *Client) (any, error) { return c.Commit(ctx, repo, headSHA) },
		"reviews":    func(ctx context.Context, c *Client) (any, error) { return c.Reviews(ctx, repo, 8) },
		"protected":  func(ctx context.Context, c *Client) (any, error) { return c.Protection(ctx, repo, "main") },
		"lacks": func(ctx context.Context, c *Client) (any, error) {
			_, _, err := c.Lacks(ctx, repo, "bots", ReadIssues, WriteIssues, ReadRepository, ReadMembers)
			return nil, err
		},
		"post": func(ctx context.Context, c *Client) (any, error) { return c.PostOnce(ctx, repo, issue7, "k", "x") },
		"open": func(ctx context.Context, c *Client) (any, error) {
			return c.OpenPullRequest(ctx, repo, NewPullRequest{"main", "carboy/7-new", "Mend it", "Closes #7"})
		},
		"describe": func(ctx context.Context, c *Client) (any, error) {
			return nil, c.UpdateDescription(ctx, repo, pull8, "x", "y")
		},
		"status": func(ctx context.Context, c *Client) (any, error) {
			return nil, c.SetStatus(ctx, repo, headSHA, Status{"failure", "carboy/gate", "", "https://x/1"})
		},
	}
	checked := 0
	for name, call := range full {
		t.Run(name, func(t *testing.T) {
			_, plain := newDescribed(t)
			want, err := call(t.Context(), plain)
			if err != nil {
				t.Fatal(err)
			}
			f, c := newDescribed(t)
			f.change = func(r *req, v any) any {
				path := strings.TrimPrefix(r.URL.EscapedPath(), f.api)
				op, _ := d.operation(r.Method, path)
				code := map[string]int{"POST": 201}[r.Method]
				if code == 0 {
					code = 200
				}
				schema := d.schema(op, code)
				if schema == "" {
					t.Errorf("%s %s with %d is not described", r.Method, path, code)
					return v
				}
				whole, err := d.complete(schema, v, 0)
				if err == nil {
					checked++
					err = d.validate(schema, roundTrip(t, whole))
				}
				if err != nil {
					t.Errorf("answer to %s %s: %v", r.Method, path, err)
					return v
				}
				return whole
			}
			got, err := call(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			same(t, name, got, want)
			for _, s := range f.seen("") {
				checked++
				d.request(t, s)
			}
		})
	}
	if checked < 50 {
		t.Errorf("%d requests and answers were checked", checked)
	}
	d.refuses(t)
	d.app(t)
}

// request holds a request to the description.
func (d *described) request(t *testing.T, s sent) {
	t.Helper()
	pointer, op := d.operation(s.method, s.path)
	if op == nil {
		t.Errorf("%s %s is not described", s.method, s.path)
		return
	}
	var params []string
	for i := range list1(op["parameters"]) {
		m, _ := d.at(fmt.Sprintf("%s/parameters/%d", pointer, i))
		params = append(params, fmt.Sprint(m["in"], " ", m["name"]))
	}
	for q := range s.query {
		if !slices.Contains(params, "query "+q) {
			t.Errorf("%s %s has no parameter %s", s.method, s.path, q)
		}
	}
	if len(s.body) > 0 {
		var v any
		if err := json.Unmarshal(s.body, &v); err != nil {
			t.Fatal(err)
		}
		schema := d.schema(pointer, 0)
		if _, err := d.complete(schema, v, 0); err != nil {
			t.Errorf("%s %s: %v", s.method, s.path, err)
		}
		if err := d.validate(schema, roundTrip(t, v)); err != nil {
			t.Errorf("%s %s: %v", s.method, s.path, err)
		}
	}
	if got := op["responses"].(map[string]any)[strconv.Itoa(s.code)]; got == nil {
		t.Errorf("%s %s: the fake answers %d, which is not described", s.method, s.path, s.code)
	}
}

// refuses is the control: what is wrong is seen.
func (d *described) refuses(t *testing.T) {
	op, _ := d.operation("POST", "/repos/org/app/issues/7/comments")
	if d.validate(d.schema(op, 0), map[string]any{}) == nil {
		t.Error("a comment without a body is taken")
	}
	if _, err := d.complete(d.schema(op, 201), map[string]any{"identity": "x"}, 0); err == nil {
		t.Error("a field that there is not is taken")
	}
	if _, err := d.complete(d.schema(op, 201), map[string]any{"id": "x"}, 0); err == nil {
		t.Error("a field of another type is taken")
	}
	if _, op := d.operation("POST", "/repos/org/app/issues/7/remarks"); op != nil {
		t.Error("a path that there is not is found")
	}
}

func (d *described) app(t *testing.T) {
	a, c := newApp(t, false)
	must[Account](t)(c.Account(t.Context()))
	body, err := json.Marshal(a.asked)
	if err != nil {
		t.Fatal(err)
	}
	d.request(t, sent{method: "POST", path: "/app/installations/42/access_tokens", body: body, code: 201})
	d.request(t, sent{method: "GET", path: "/app", code: 200})
	op, _ := d.operation("POST", "/app/installations/42/access_tokens")
	if _, err := d.complete(d.schema(op, 201), map[string]any{"token": "x", "expires_at": when(fakeTime), "permissions": map[string]any{"issues": "write"}}, 0); err != nil {
		t.Error(err)
	}
	for _, s := range []sent{
		{method: "GET", path: "/repos/org/app/keys", query: map[string][]string{"per_page": {"100"}, "page": {"1"}}, code: 200},
		{method: "POST", path: "/repos/org/app/keys", body: []byte(`{"title":"x","key":"ssh-ed25519 AAAA","read_only":false}`), code: 201},
		{method: "DELETE", path: "/repos/org/app/keys/5", code: 204},
	} {
		d.request(t, s)
	}
}

// TestGitHubHooksAsDescribed reads deliveries that are made from GitHub's own schemas: npm's
// @octokit/webhooks-schemas has them in schema.json.
func TestGitHubHooksAsDescribed(t *testing.T) {
	d := load(t, "CARBOY_TEST_GITHUB_HOOKS", "npm's @octokit/webhooks-schemas, schema.json,")
	if d == nil {
		return
	}
	pull := map[string]any{"number": 8, "head": map[string]any{"sha": headSHA}}
	with := map[string]any{"repository": map[string]any{"full_name": repo}, "sender": map[string]any{"login": "ada"}}
	for event, v := range map[string]struct {
		fields map[string]any
		want   Event
	}{
		"issues$opened":                       {map[string]any{"issue": map[string]any{"number": 7}}, Event{Kind: IssueEvent, Action: "opened", At: issue7}},
		"issues$assigned":                     {map[string]any{"issue": map[string]any{"number": 7}}, Event{Kind: IssueEvent, Action: "assigned", At: issue7}},
		"issues$labeled":                      {map[string]any{"issue": map[string]any{"number": 7}}, Event{Kind: IssueEvent, Action: "labeled", At: issue7}},
		"issues$edited":                       {map[string]any{"issue": map[string]any{"number": 7}}, Event{Kind: IssueEvent, Action: "edited", At: issue7}},
		"issue_comment$created":               {map[string]any{"issue": map[string]any{"number": 7}, "comment": map[string]any{"id": 5}}, Event{Kind: CommentEvent, Action: "created", At: issue7, Comment: 5}},
		"pull_request$opened":                 {map[string]any{"pull_request": pull}, Event{Kind: PullEvent, Action: "opened", At: pull8, Commit: headSHA}},
		"pull_request$closed":                 {map[string]any{"pull_request": pull}, Event{Kind: PullEvent, Action: "closed", At: pull8, Commit: headSHA}},
		"pull_request$reopened":               {map[string]any{"pull_request": pull}, Event{Kind: PullEvent, Action: "reopened", At: pull8, Commit: headSHA}},
		"pull_request_review$submitted":       {map[string]any{"pull_request": pull}, Event{Kind: ReviewEvent, Action: "submitted", At: pull8, Commit: headSHA}},
		"pull_request_review$dismissed":       {map[string]any{"pull_request": pull}, Event{Kind: ReviewEvent, Action: "dismissed", At: pull8, Commit: headSHA}},
		"pull_request_review_comment$created": {map[string]any{"pull_request": pull, "comment": map[string]any{"id": 5}}, Event{Kind: ReviewEvent, Action: "created", At: pull8, Commit: headSHA, Comment: 5}},
		"push$event":                          {map[string]any{"after": headSHA}, Event{Kind: PushEvent, Commit: headSHA}},
		"repository$renamed":                  {nil, Event{Kind: OtherEvent, Action: "renamed"}},
	} {
		in := map[string]any{}
		for k, x := range with {
			in[k] = x
		}
		for k, x := range v.fields {
			in[k] = x
		}
		pointer := "/definitions/" + event
		whole, err := d.complete(pointer, in, 0)
		if err == nil {
			err = d.validate(pointer, roundTrip(t, whole))
		}
		if err != nil {
			t.Errorf("%s: %v", event, err)
			continue
		}
		body, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(strings.TrimSuffix(event, "$event"), "$")
		got, err := ParseHook("github", secret.NewString(hookKey), hookHeaders("github", hookKey, name, string(body)), body)
		if err != nil {
			t.Errorf("%s: %v\n%s", event, err, body)
			continue
		}
		v.want.Delivery, v.want.Repo, v.want.Sender = "d-1", repo, got.Sender
		if got.Sender.Login != "ada" {
			t.Errorf("%s: %+v", event, got)
		}
		same(t, event, *got, v.want)
	}
	if d.validate("/definitions/issues$opened", map[string]any{"action": "opened"}) == nil {
		t.Error("a delivery without an issue is taken")
	}
}
