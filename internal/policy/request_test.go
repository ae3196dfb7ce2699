package policy

import (
	"net/http"
	"testing"
)

// TestHeaderTwins: a header that some servers confuse with the one in a condition
// makes all routes of the host refuse. Other names with such characters don't.
func TestHeaderTwins(t *testing.T) {
	env := HeaderMatch{name: "X-Env", value: "test"}
	first, err := allowRoute(t, "api.example.com").WithOptions(Options{Matches: []Match{{Headers: []HeaderMatch{env}}}})
	if err != nil {
		t.Fatal(err)
	}
	table, err := Compile(first, allowRoute(t, "api.example.com"), allowRoute(t, "other.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		host   string
		header http.Header
		want   Reason // ReasonRoute: allowed
	}{
		{"api.example.com", http.Header{"X-Env": {"test"}}, ReasonRoute},
		{"api.example.com", http.Header{"X-Env": {"prod"}}, ReasonRoute}, // the second route allows it
		{"api.example.com", http.Header{"X-Env": {"test"}, "X_env": {"prod"}}, ReasonAmbiguous},
		{"api.example.com", http.Header{"X_Env": {"test"}}, ReasonAmbiguous},
		{"api.example.com", http.Header{"X.env": {"prod"}}, ReasonAmbiguous},
		{"api.example.com", http.Header{"X-Env": {"test"}, "X_Environment": {"a"}, "My_Header": {"b"}}, ReasonRoute},
		{"other.example.com", http.Header{"X_Env": {"test"}}, ReasonRoute},
	} {
		v := table.DecideRequest(x.host, 443, &Request{Method: "GET", Path: "/", Header: x.header})
		if v.Reason != x.want || v.Allowed != (x.want == ReasonRoute) {
			t.Errorf("%s %v: %v %s %s", x.host, x.header, v.Allowed, v.Reason, v.Missed)
		}
	}
}

func allowRoute(t *testing.T, host string) Route {
	t.Helper()
	r, err := ParseAllow(host)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
