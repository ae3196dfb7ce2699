package carboy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/tokens"
)

// TestNetworkAccount: what the gateway counted is in the receipt, within bounds,
// beside totals that count all; what spells a known secret is not.
func TestNetworkAccount(t *testing.T) {
	value := madeUp(t, 1)
	g := gateway.Summary{RequestsDropped: 7, FoundDropped: 5}
	for i := range 3000 {
		g.Requests = append(g.Requests, gateway.RequestSummary{
			Name: fmt.Sprintf("h%d.%s.example", i, value), Port: 443, Allowed: i%2 == 0, Rule: "r.yaml:1", Count: 2, Failed: 1,
			Told: 2, Tokens: tokens.Usage{Input: int64(i), Cached: 1, Output: 3},
			Reason: map[bool]gateway.Reason{false: "request"}[i%2 == 0], Detail: "the route wants " + value, Credential: fmt.Sprint("C", i%300),
		})
		g.Found = append(g.Found, gateway.FoundSummary{
			Name: value, What: "known-secret", Secret: "DEPLOY_KEY", Place: "header X-" + value, Inbound: i%3 == 0, Count: 3,
			Action: []gateway.FoundAction{gateway.FoundReported, gateway.FoundRedacted, gateway.FoundBlocked}[i%3],
		})
	}
	r, err := secret.NewRedactor(map[string]secret.Value{"deploy_key": secret.NewString(value)})
	if err != nil {
		t.Fatal(err)
	}
	s := &run.Session{Redactor: r}
	s.Rec = receipt.Receipt{Schema: receipt.Schema, ID: "01k9x3m7q8r5t2v6w4y0z1a2b3", Workspace: receipt.Workspace{Mode: store.None}, Exit: receipt.Exit{Reason: receipt.Exited}}
	s.Rec.Network = run.Network(g)
	s.RedactNetwork()
	doc, err := s.Rec.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(doc), value) {
		t.Error("the receipt holds the value")
	}
	n := s.Rec.Network
	if len(n.Requests) != receipt.MaxRequests || n.RequestsTotal != 3007 || len(n.Found) != receipt.MaxFound || n.FoundTotal != 3005 || len(n.Credentials) != receipt.MaxCredentials || n.CredentialsTotal != 300 {
		t.Errorf("%d of %d requests, %d of %d findings, %d of %d credentials", len(n.Requests), n.RequestsTotal, len(n.Found), n.FoundTotal, len(n.Credentials), n.CredentialsTotal)
	}
	if n.Requests[0].Verdict != receipt.Refused || n.Found[0].Action != receipt.Blocked || n.Credentials[0] != (receipt.Credential{Name: "C0", Requests: 20}) {
		t.Errorf("%+v %+v %+v", n.Requests[0], n.Found[0], n.Credentials[0])
	}
	if x := n.Requests[0].Tokens; x == nil || *x != (receipt.Tokens{Answers: 2, Input: 1, Cached: 1, Output: 3}) {
		t.Errorf("%+v", x)
	}
	if x := n.Totals; x.RequestsAllowed != 3000 || x.RequestsRefused != 3000 || x.FoundIn != 3000 || x.FoundOut != 6000 {
		t.Errorf("%+v", x)
	}
}
