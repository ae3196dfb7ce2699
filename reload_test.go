package carboy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
)

// reloading is a run's inside whose routes put on the value of OLD.
func reloading(t *testing.T) (*run.CredentialGuard, *plan.Plan, func(variables ...string) *plan.Credentials) {
	t.Helper()
	host := map[string]string{"OLD": "the-old-credential-1", "NEW": "the-new-credential-2", "HOME": "/root"}
	read := func(variables ...string) *plan.Credentials {
		var rs []policy.Route
		for i, v := range variables {
			r, err := plan.ParseCredential(fmt.Sprintf("n%d=%s@host%d.test", i, v, i))
			if err != nil {
				t.Fatal(err)
			}
			rs = append(rs, r)
		}
		c, err := (&plan.CredentialReader{Lookup: func(n string) string { return host[n] }}).Read(rs)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	p := &plan.Plan{Credentials: read("OLD"), Secrets: &plan.Secrets{Values: map[string]secret.Value{}}}
	p.Watched = p.Secrets.With(p.Credentials)
	return &run.CredentialGuard{Creds: p.Credentials, Secrets: p.Watched, Edition: 1, Running: map[*run.RunningCommand]struct{}{}}, p, read
}

// TestReloadOfWhatIsInside: what came in with a command that runs is not taken for a
// credential; what came with one that is over may be.
func TestReloadOfWhatIsInside(t *testing.T) {
	for what, c := range map[string]struct{ command, env []string }{
		"a variable's value":       {[]string{"/bin/true"}, []string{"A=x the-new-credential-2"}},
		"the variable, by name":    {[]string{"/bin/true"}, []string{"NEW=another"}},
		"a word of a command line": {[]string{"/bin/echo", "--key=the-new-credential-2"}, nil},
	} {
		in, p, read := reloading(t)
		_, leave, err := in.Admit(p, func(string) string { return "" }, false, c.command, c.env)
		if err != nil {
			t.Fatal(what, err)
		}
		put := false
		change := func() error {
			return in.Change(p.Secrets, read("OLD", "NEW"), func(map[string]secret.Value) error { put = true; return nil })
		}
		if err := change(); err == nil || put || strings.Contains(err.Error(), "the-new") {
			t.Errorf("%s: %v", what, err)
		}
		if _, edition := in.Watched(); edition != 1 {
			t.Errorf("%s: a change that was refused is watched for", what)
		}
		leave()
		if err := change(); err != nil || !put {
			t.Errorf("%s, of a command that is over: %v", what, err)
		}
	}
}

// TestReloadIsWatchedFor: after it, nothing new takes the credential inside, and the
// old one is still watched for.
func TestReloadIsWatchedFor(t *testing.T) {
	in, p, read := reloading(t)
	lookup := func(n string) string { return "/root" }
	if _, leave, err := in.Admit(p, lookup, false, []string{"/bin/echo", "the-new-credential-2"}, nil); err != nil {
		t.Fatal(err) // it is nobody's yet
	} else {
		leave()
	}
	if err := in.Change(p.Secrets, read("NEW"), func(map[string]secret.Value) error { return errors.New("the log is full") }); err == nil {
		t.Fatal("an error was lost")
	}
	if _, leave, err := in.Admit(p, lookup, false, []string{"/bin/echo", "the-new-credential-2"}, nil); err != nil {
		t.Error("a change that failed is in force:", err)
	} else {
		leave()
	}
	var all map[string]secret.Value
	if err := in.Change(p.Secrets, read("NEW"), func(v map[string]secret.Value) error { all = v; return nil }); err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 {
		t.Errorf("%d are watched for, of 2", len(all))
	}
	for _, v := range []string{"the-new-credential-2", "the-old-credential-1"} {
		if _, _, err := in.Admit(p, lookup, false, []string{"/bin/echo", v}, nil); err == nil {
			t.Errorf("%s came inside as a word", v)
		}
		if _, _, err := in.Admit(p, lookup, false, []string{"/bin/true"}, []string{"A=" + v}); err == nil {
			t.Errorf("%s came inside in a variable", v)
		}
	}
	env, _, err := in.Admit(p, lookup, false, []string{"/bin/true"}, []string{"A=b"})
	if err != nil || !strings.Contains(strings.Join(env, "\n"), "NEW=carboy-placeholder-") {
		t.Errorf("a command that comes now has no placeholder: %v", err)
	}
}
