package carboy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
)

// value is made up at each run, so that nothing that looks like a secret is kept.
func madeUp(t *testing.T, i int) string {
	return fmt.Sprintf("zq%dxw-%p-vk%d", i, t, i)
}

func TestReadKnown(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a, b, c := madeUp(t, 1), madeUp(t, 2), madeUp(t, 3)
	env := func(n string) string { return map[string]string{"A": a, "SHORT": "abc1234", "DULL": "aaaaaaaaaaaa"}[n] }
	pem := "-----BEGIN PRIVATE KEY-----\n" + a + a + "\n" + b + b + "\n-----END PRIVATE KEY-----"
	for _, x := range []struct {
		given []string
		want  map[string]string
	}{
		{[]string{"A"}, map[string]string{"A": a}},
		{[]string{"env:A", "A"}, map[string]string{"A": a}},
		{[]string{write("token", b+"\n")}, map[string]string{"token": b}},
		{[]string{"file:" + write("token2", b+"\r\n")}, map[string]string{"token2": b}},
		{[]string{write("two", b+"\n\n")}, map[string]string{"two": b + "\n"}},
		{[]string{write("key.pem", pem+"\n")}, map[string]string{"key.pem": pem}},
		{[]string{write("prod.env", "# mine\n\nDB_PASSWORD=\""+b+"\"\r\nexport OTHER='"+c+"'\nPORT=8080\n")},
			map[string]string{"prod.env:DB_PASSWORD": b, "prod.env:OTHER": c}},
		{[]string{write(".env", "K="+b), write("x.env", "K="+c)}, map[string]string{".env:K": b, "x.env:K": c}},
		{nil, map[string]string{}},
	} {
		k, err := plan.ReadSecrets(x.given, env)
		if err != nil {
			t.Errorf("%v: %v", x.given, err)
			continue
		}
		got := map[string]string{}
		for n, v := range k.Values {
			got[n] = v.UnsafeString()
		}
		if !maps.Equal(got, x.want) {
			t.Errorf("%v: %v", x.given, slices.Sorted(maps.Keys(got)))
		}
	}
	for _, x := range []struct{ given, want string }{
		{"UNSET", `"UNSET" names no variable that is set`},
		{"SHORT", "too short"},
		{"DULL", "different bytes"},
		{write("short", "abc\n"), "too short"},
		{write("long", strings.Repeat(a, 1000)), "too long"},
		// Of a private key its lines alone are watched for.
		{write("empty.pem", "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n"), "too short"},
		{write("huge", strings.Repeat(a, 30000)), "more than"},
		{write("bad.env", "A="+a+"\nnot a line\n"), "line 2 is not NAME=VALUE"},
		{write("short.env", "API_KEY=abc\n"), "line 1 is too short"},
		{write("none.env", "PORT=80\n"), "holds no value"},
		{filepath.Join(dir, "missing"), "no such file"},
		{"file:missing", "no such file"},
		{dir, "regular file"},
	} {
		_, err := plan.ReadSecrets([]string{x.given}, env)
		var bad *fault.OptionError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), x.want) || bad.Advice == "" {
			t.Errorf("%s: %v", x.given, err)
		}
	}
}

// TestPastedSecret: who gives a value where its name belongs does not see it
// again, in the error or in the advice; a name is shown.
func TestPastedSecret(t *testing.T) {
	var values []string
	for _, prefix := range []string{"ghp_", "sk-", "AKIA7", "hunter2", "xoxb-1-", "/", "a/b+", "env:ghp_", "JBSWY3DPEHPK3PXP"} {
		values = append(values, prefix+strings.Repeat("q7Zt", 5))
	}
	values = append(values, "correcthorsebattery", "p@ssw0rd@x", "JBSWY3DPEHPK3PXP", "ghp_short", strings.Repeat("Ab1", 40)+"=")
	none := func(string) string { return "" }
	for _, v := range values {
		_, err := plan.ReadSecrets([]string{v}, none)
		checkHidden(t, v, err)
		for _, form := range []string{"x=%s@a.example.com", "%s", "x=%s", "x=A@%s@a.example.com"} {
			r, err := plan.ParseCredential(fmt.Sprintf(form, v))
			if err == nil {
				_, err = (&plan.CredentialReader{Lookup: none}).Read([]policy.Route{r})
			}
			checkHidden(t, v, err)
		}
	}
	for _, name := range []string{"GITHUB_TOKEN", "API_KEY", "AWS_S3_KEY", "TOKEN2", "A", "NPM_TOKEN_1", "_X"} {
		if plan.NameOrHidden(name) != name {
			t.Errorf("%s is hidden", name)
		}
		if _, err := plan.ReadSecrets([]string{name}, none); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v", err)
		}
	}
	if _, err := plan.ReadSecrets([]string{"A1", "ghp_" + strings.Repeat("aB3", 9)}, func(n string) string {
		if n == "A1" {
			return madeUp(t, 1)
		}
		return ""
	}); err == nil || !strings.Contains(err.Error(), "number 2") {
		t.Errorf("%v", err)
	}
}

func checkHidden(t *testing.T, value string, err error) {
	t.Helper()
	var bad *fault.OptionError
	switch {
	case err == nil:
		t.Errorf("%s was taken", value)
	case strings.Contains(err.Error(), value[4:]):
		t.Errorf("repeated: %v", err)
	case errors.As(err, &bad) && strings.Contains(bad.Advice, value[4:]):
		t.Errorf("repeated: %v", bad.Advice)
	}
}

// TestKnownHasCredentials: what the gateway puts on is watched for, too, by the
// name of its variable, and what is too short for that is still put on.
func TestKnownHasCredentials(t *testing.T) {
	a, b := madeUp(t, 1), madeUp(t, 2)
	env := func(n string) string { return map[string]string{"A": a, "USERPASS": "me:" + b, "PIN": "1234567"}[n] }
	c := &Client{runs: run.New(&host.Host{Env: env}, nil, nil)}
	var rs []policy.Route
	for _, s := range []string{"a=A@a.example.com", "b=USERPASS@b.example.com:basic", "c=PIN@c.example.com"} {
		r, err := plan.ParseCredential(s)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	creds, err := (&plan.CredentialReader{Lookup: env}).Read(rs)
	if err != nil {
		t.Fatal(err)
	}
	k, err := plan.ReadSecrets([]string{"A"}, env)
	if err != nil {
		t.Fatal(err)
	}
	p := &plan.Plan{Credentials: creds, Secrets: k, Watched: k.With(creds)}
	got := map[string]bool{}
	for n, v := range p.Watched {
		got[n+"|"+v.UnsafeString()] = true
	}
	if !got["A|"+a] || got["A (2)|"+a] || len(got) != 4 {
		t.Errorf("%d values: %v", len(got), slices.Sorted(maps.Keys(p.Watched)))
	}
	found := false
	for s := range got {
		found = found || strings.HasPrefix(s, "USERPASS") && strings.HasSuffix(s, "|"+b)
	}
	if !found {
		t.Error("the password of USERPASS is not watched for")
	}
	// Names of other files than variables can be marks, too.
	p.Secrets.Put("Ünï cödé/x", p.Secrets.Values["A"])
	p.Secrets.Put("É/x", p.Secrets.Values["A"])
	r, err := c.runs.RedactorFor(p, &plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s := r.String("x" + a + "y" + strings.ToLower(a)); strings.Contains(s, a) || strings.Contains(s, strings.ToLower(a)) {
		t.Error(s)
	}
}

// TestRoutesThatNeverDecide: a credential that would never be put on is an error.
func TestRoutesThatNeverDecide(t *testing.T) {
	o := &plan.Options{Credentials: []string{"wiki=KEY@wiki.corp.example"}, Allow: []string{"wiki.corp.example"}}
	if _, _, err := plan.ParseRoutes(o); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	o.AllowPrivate = []string{"*.corp.example"}
	if _, _, err := plan.ParseRoutes(o); err == nil || !strings.Contains(err.Error(), "--credential wiki") || !strings.Contains(err.Error(), "--allow-private *.corp.example") {
		t.Error(err)
	}
	// Without more than its host it is allowed either way.
	if _, _, err := plan.ParseRoutes(&plan.Options{Allow: o.Allow, AllowPrivate: o.AllowPrivate}); err != nil {
		t.Error(err)
	}
}
