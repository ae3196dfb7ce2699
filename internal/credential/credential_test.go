package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

const real = "real-value-4711"

func open(t *testing.T, scheme policy.Scheme, field, value string) *Credential {
	t.Helper()
	c, err := Open("n", policy.Credential{Scheme: scheme, Field: field}, secret.NewString(value))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func request(t *testing.T, url string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// TestSign: the real value is where the scheme puts it and nowhere else. Nothing is
// left that the agent put where credentials go, in any way.
func TestSign(t *testing.T) {
	agent := []string{
		"Authorization", "Bearer agents-own", "authorization", "Basic agents-own", "X-API-Key", "agents-own", "Cookie", "session=agents-own",
		"Private-Token", "agents-own", "X-Own", "agents-own", "X-Kept", "kept",
	}
	const query = "a=1&access_token=agents-own&%61pi_key=agents-own&ACCESS_TOKEN=agents-own&Own=agents-own&b=%2F&b=2"
	for _, x := range []struct {
		scheme       policy.Scheme
		field, value string
		header, want string
		query        string
	}{
		{Bearer, "", real, "Authorization", "Bearer " + real, "a=1&Own=agents-own&b=%2F&b=2"},
		{token, "", real, "Authorization", "token " + real, "a=1&Own=agents-own&b=%2F&b=2"},
		{APIKey, "", real, "X-Api-Key", real, "a=1&Own=agents-own&b=%2F&b=2"},
		{Header, "x-own", real, "X-Own", real, "a=1&Own=agents-own&b=%2F&b=2"},
		{Basic, "", "user:" + real, "Authorization", "Basic dXNlcjpyZWFsLXZhbHVlLTQ3MTE=", "a=1&Own=agents-own&b=%2F&b=2"},
		{Query, "own", real + "&", "", "", "a=1&b=%2F&b=2&own=" + real + "%26"},
	} {
		c := open(t, x.scheme, x.field, x.value)
		r := request(t, "https://h/p?"+query, agent...)
		if err := c.Sign(r, nil, nil); err != nil {
			t.Fatal(err)
		}
		if x.header != "" && (r.Header.Get(x.header) != x.want || len(r.Header[x.header]) != 1) {
			t.Errorf("%s: %q", x.scheme, r.Header[x.header])
		}
		if r.URL.RawQuery != x.query {
			t.Errorf("%s: %s, wanted %s", x.scheme, r.URL.RawQuery, x.query)
		}
		left := strings.Count(fmt.Sprint(r.Header), "agents-own")
		if kept := r.Header.Get("X-Own") == "agents-own" && x.scheme != Header; kept {
			left--
		}
		if left != 0 || r.Header.Get("X-Kept") != "kept" {
			t.Errorf("%s: %v", x.scheme, r.Header)
		}
		if s := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(s, "4711") {
			t.Errorf("%s prints itself: %s", x.scheme, s)
		}
	}
}

func TestAmbiguousQuery(t *testing.T) {
	c := open(t, Bearer, "", real)
	for _, q := range []string{"a=1;access_token=x", "%zz=1", "a%3bb=1;c", "a;b"} {
		r := request(t, "https://h/p")
		r.URL.RawQuery = q
		if err := c.Sign(r, nil, nil); err == nil {
			t.Errorf("%s: signed as %s", q, r.URL.RawQuery)
		} else if strings.Contains(err.Error(), real) {
			t.Errorf("%v", err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, x := range []struct {
		scheme policy.Scheme
		value  string
	}{{Bearer, ""}, {Bearer, "a\nb"}, {Bearer, "value\n"}, {Basic, "no-colon"}, {Basic, ":"}, {AWS, "id-only"}, {AWS, ":secret"}, {"digest", "x"}} {
		if _, err := Open("n", policy.Credential{Scheme: x.scheme}, secret.NewString(x.value)); err == nil {
			t.Errorf("%s of %q", x.scheme, x.value)
		} else if len(x.value) > 3 && strings.Contains(err.Error(), x.value) {
			t.Errorf("the value is in %q", err)
		}
	}
	if _, err := Open("n", policy.Credential{Scheme: Bearer}, secret.Value{}); !errors.Is(err, ErrEmpty) {
		t.Errorf("%v", err)
	}
}

func TestPlaceholder(t *testing.T) {
	seen := map[string]bool{}
	for _, n := range []int{1, 20, 40, 108, 500} {
		c := open(t, Bearer, "", strings.Repeat("0", n))
		p := c.Placeholder()
		if !strings.HasPrefix(p, "carboy-placeholder-") || len(p) < n || n >= 40 && len(p) != n || seen[p] || strings.Contains(p, "0") {
			t.Errorf("%d: %q", n, p)
		}
		seen[p] = true
	}
}

// TestAWS: the new signature of a request is the one that the holder of the real
// credential would have made.
func TestAWS(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	sum := strings.Repeat("ab", 32)
	sign := func(id, key, token, service string, r *http.Request, digest string) {
		t.Helper()
		s := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = service == "s3" })
		if err := s.SignHTTP(context.Background(), aws.Credentials{AccessKeyID: id, SecretAccessKey: key, SessionToken: token}, r, digest, service, "eu-central-1", at); err != nil {
			t.Fatal(err)
		}
	}
	for _, service := range []string{"s3", "dynamodb"} {
		for _, token := range []string{"", "session"} {
			url := "https://" + service + ".eu-central-1.amazonaws.com/a%20b/c?x=1&list-type=2"
			r, want := request(t, url, contentSHA, sum, "X-Amz-Meta", "m"), request(t, url, contentSHA, sum, "X-Amz-Meta", "m")
			sign("carboy-placeholder", "nothing", "agents-session", service, r, sum)
			sign("AKID", real, token, service, want, sum)
			value := "AKID:" + real
			if token != "" {
				value += ":" + token
			}
			c := open(t, AWS, "", value)
			c.signer.(*sigv4).now = func() time.Time { return at }
			if err := c.Sign(r, nil, nil); err != nil {
				t.Fatal(err)
			}
			if r.Header.Get("Authorization") != want.Header.Get("Authorization") || r.Header.Get("X-Amz-Security-Token") != token || !strings.Contains(r.Header.Get("Authorization"), "AKID/") {
				t.Errorf("%s: %v, wanted %v", service, r.Header, want.Header)
			}
		}
	}
	c := open(t, AWS, "", "AKID:"+real)
	for name, r := range map[string]*http.Request{
		"unsigned":  request(t, "https://s3.amazonaws.com/"),
		"presigned": request(t, "https://s3.amazonaws.com/?X-Amz-Signature=00&X-Amz-Credential=x", "Authorization", "AWS4-HMAC-SHA256 Credential=a/20260102/r/s3/aws4_request"),
		"streaming": request(t, "https://s3.amazonaws.com/", "Authorization", "AWS4-HMAC-SHA256 Credential=a/20260102/r/s3/aws4_request", contentSHA, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
	} {
		if err := c.Sign(r, nil, nil); err == nil || strings.Contains(err.Error(), real) {
			t.Errorf("%s: %v", name, err)
		}
	}
	body, _ := http.NewRequest("PUT", "https://s3.amazonaws.com/", strings.NewReader("x"))
	body.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=a/20260102/r/s3/aws4_request")
	if err := c.Sign(body, nil, nil); err == nil {
		t.Error("a body without a digest was signed")
	}
}

// TestOwnInEverySpelling: headers, parameters and trailers that lenient servers treat
// as credentials are removed, similar ones are not.
func TestOwnInEverySpelling(t *testing.T) {
	c := open(t, Bearer, "", real)
	r := request(t, "https://h/p?access.token=agents-own&access%20token=agents-own&token[]=agents-own&+key=agents-own&page-token=kept", "X_Api_Key", "agents-own", "Private_Token", "agents-own", "X-Api-Keys", "kept")
	if err := c.Sign(r, nil, nil); err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(r.URL.RawQuery, r.Header); strings.Contains(s, "agents-own") || strings.Count(s, "kept") != 2 {
		t.Errorf("left are %s", s)
	}
	r, _ = http.NewRequest("POST", "https://h/p", strings.NewReader("body"))
	r.Trailer = http.Header{"Authorization": nil, "X-Kept": nil}
	if err := c.Sign(r, nil, nil); err != nil {
		t.Fatal(err)
	}
	// Set by the server at the body's end, announced or not.
	body := r.Body
	r.Trailer.Set("Cookie", "agents-own")
	r.Trailer.Set("Authorization", "agents-own")
	r.Trailer.Set("X-Kept", "kept")
	if _, err := io.ReadAll(body); err != nil || len(r.Trailer) != 1 || r.Trailer.Get("X-Kept") != "kept" {
		t.Errorf("trailers left are %v, %v", r.Trailer, err)
	}
}
