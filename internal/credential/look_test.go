package credential

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

const awsAuth = "AWS4-HMAC-SHA256 Credential=agents-own/20260102/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=agents-own"

// TestLook: who looks at a request sees neither the agent's own credential nor the real one, but what of the agent's will
// leave with it. What look forbids or can't mask is not signed.
func TestLook(t *testing.T) {
	errNo := errors.New("no")
	for _, x := range []struct {
		scheme policy.Scheme
		value  string
		own    string // the agent's Authorization
		shows  string // what look sees of it
	}{
		{Bearer, real, "Bearer agents-own", ""},
		{AWS, "AKID:" + real, awsAuth, "eu-central-1 s3"},
		{AWS, "AKID:" + real, "Bearer agents-own", ""},
	} {
		for name, answer := range map[string]func(*http.Request) error{
			"allowed": func(*http.Request) error { return nil },
			"refused": func(*http.Request) error { return errNo },
			"masked":  func(r *http.Request) error { r.Header.Set("Authorization", "[redacted]"); return nil },
		} {
			c := open(t, x.scheme, "", x.value)
			r := request(t, "https://h/p?access_token=agents-own", "Authorization", x.own)
			looked := false
			err := c.Sign(r, nil, func(r *http.Request) error {
				looked = true
				if all := fmt.Sprint(r.Header, r.URL); r.Header.Get("Authorization") != x.shows || strings.Contains(all, "agents-own") || strings.Contains(all, real) {
					t.Errorf("%s: look sees %s", x.scheme, all)
				}
				return answer(r)
			})
			signable := x.scheme != AWS || x.shows != ""
			signs := signable && (name == "allowed" || name == "masked" && x.scheme != AWS)
			if !looked || (err == nil) != signs || name == "refused" && !errors.Is(err, errNo) {
				t.Errorf("%s, %s: %v", x.scheme, name, err)
			}
			if got := r.Header.Get("Authorization"); !signs && (strings.Contains(got, real) || strings.Contains(got, "AKID")) {
				t.Errorf("%s, %s: signed as %s", x.scheme, name, got)
			}
		}
	}
}

// TestAWSWithoutBody: a request without a body needs no digest from the client.
func TestAWSWithoutBody(t *testing.T) {
	c := open(t, AWS, "", "AKID:"+real)
	r := request(t, "https://s3.amazonaws.com/", "Authorization", awsAuth)
	if err := c.Sign(r, nil, nil); err != nil || !strings.Contains(r.Header.Get("Authorization"), "Credential=AKID/") {
		t.Errorf("%v, %v", r.Header, err)
	}
}

// TestKeep: a kept placeholder depends on the seed and on what it stands for, and on nothing else, so that a resumed
// bottle finds the same; its length stays, and the value is not in it.
func TestKeep(t *testing.T) {
	kept := func(name string, p policy.Credential, value, seed string) string {
		t.Helper()
		c, err := Open(name, p, secret.NewString(value))
		if err != nil {
			t.Fatal(err)
		}
		n := len(c.Placeholder())
		if err := c.Keep([]byte(seed)); err != nil {
			t.Fatal(err)
		}
		if got := c.Placeholder(); c.Name() != name || len(got) != n || !strings.HasPrefix(got, "carboy-placeholder-") || strings.Contains(got, value) {
			t.Errorf("%s of %d bytes: %q", c.Name(), len(value), got)
		}
		return c.Placeholder()
	}
	for _, n := range []int{1, 40, 108, 9000} {
		value := strings.Repeat("0", n)
		first := kept("a", policy.Credential{Scheme: Bearer}, value, "seed")
		if again := kept("a", policy.Credential{Scheme: Bearer}, strings.Repeat("1", n), "seed"); again != first {
			t.Errorf("%d bytes: %q, and then %q", n, first, again)
		}
		seen := map[string]bool{first: true}
		for what, other := range map[string]string{
			"seed":   kept("a", policy.Credential{Scheme: Bearer}, value, "other"),
			"name":   kept("b", policy.Credential{Scheme: Bearer}, value, "seed"),
			"scheme": kept("a", policy.Credential{Scheme: APIKey}, value, "seed"),
			"field":  kept("a", policy.Credential{Scheme: Header, Field: "X-A"}, value, "seed"),
			"header": kept("a", policy.Credential{Scheme: Header, Field: "X-B"}, value, "seed"),
		} {
			if seen[other] {
				t.Errorf("%d bytes: the same with another %s", n, what)
			}
			seen[other] = true
		}
	}
}

// TestSecrets: each part of a value that is secret is kept out of the bottle.
func TestSecrets(t *testing.T) {
	for _, x := range []struct {
		scheme policy.Scheme
		value  string
		want   string
	}{
		{Query, real, "[" + real + "]"}, {Bearer, real, "[" + real + "]"},
		{AWS, "AKID:" + real, "[" + real + "]"}, {AWS, "AKID:" + real + ":session", "[" + real + " session]"},
	} {
		var got []string
		c := open(t, x.scheme, "own", x.value)
		for _, v := range c.Secrets() {
			got = append(got, v.UnsafeString())
		}
		if fmt.Sprint(got) != x.want || c.Warning() != nil {
			t.Errorf("%s: %v, want %s; %v", x.scheme, got, x.want, c.Warning())
		}
	}
}

// locked is a store that gives its token out only the first times.
type locked struct {
	memory
	gives int
}

var errLocked = errors.New("the keyring is locked")

func (l *locked) Take(ctx context.Context) (secret.Value, func(), error) {
	if l.gives--; l.gives < 0 {
		return secret.Value{}, nil, errLocked
	}
	return l.memory.Take(ctx)
}

// TestOAuthStoreFails: if a store gives no token, or one that can't be sent, the opening
// or the request fails, and the token server is not asked.
func TestOAuthStoreFails(t *testing.T) {
	s := tokenServer(t)
	conf := policy.Credential{Scheme: OAuth, OAuth: policy.OAuth{TokenURL: s.URL + "/token", ClientID: "me"}}
	for name, x := range map[string]struct {
		o    OAuthOptions
		want string
	}{
		"locked":                     {OAuthOptions{Refresh: &locked{}}, errLocked.Error()},
		"a line end":                 {OAuthOptions{Refresh: &memory{v: refreshToken + "\n"}}, "line end"},
		"a line end of the secret":   {OAuthOptions{Refresh: &memory{v: refreshToken}, ClientSecret: secret.NewString(clientSecret + "\n")}, "line end"},
		"a stored token with a bell": {OAuthOptions{Refresh: &sharing{memory: memory{v: refreshToken}, access: "kept-zq7x\a"}}, "control character"},
	} {
		if _, err := OpenOAuth("R", conf, x.o); err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "zq7x") {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
	c, err := OpenOAuth("R", conf, OAuthOptions{Refresh: &locked{memory: memory{v: refreshToken}, gives: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := put(c); !errors.Is(err, errLocked) || got != "" {
		t.Errorf("locked after opening: %q, %v", got, err)
	}
	if s.count() != 0 {
		t.Errorf("asked %d times", s.count())
	}
}

// counter counts what is sent.
type counter int

func (c *counter) RoundTrip(*http.Request) (*http.Response, error) {
	*c++
	return nil, errors.New("sent")
}

// TestInJSONSendsWholeForms: what can't be read as a form is not sent as something else, nor told.
func TestInJSONSendsWholeForms(t *testing.T) {
	for body, want := range map[string]string{"a=1&b=%2F": "sent", "secret=%zz": "no form"} {
		var sent counter
		r, err := http.NewRequest("POST", "https://h/token", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, err = inJSON{&sent}.RoundTrip(r)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%zz") || (sent == 1) != (want == "sent") {
			t.Errorf("%s: %v, sent %d", body, err, sent)
		}
	}
	var sent counter
	broken := errors.New("broken")
	r, err := http.NewRequest("POST", "https://h/token", iotest.ErrReader(broken))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (inJSON{&sent}).RoundTrip(r); !errors.Is(err, broken) || sent != 0 {
		t.Errorf("a body that breaks: %v, sent %d", err, sent)
	}
}
