package provenance

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/carboy/carboy/internal/receipt"
)

// RunOf returns the facts of the run whose receipt is in text, the bytes of receipt.json,
// and the tokens that the models' answers claim.
func RunOf(text []byte) (_ Run, tokens int64, err error) {
	rec, err := receipt.Parse(text)
	if err != nil {
		return Run{}, 0, err
	}
	sum := sha256.Sum256(text)
	t := rec.Network.Totals
	r := Run{
		ID: string(rec.ID), ReceiptSHA256: hex.EncodeToString(sum[:]), Exit: rec.Exit.Code, Reason: string(rec.Exit.Reason),
		Backend: rec.Isolation.Backend, Isolation: string(rec.Isolation.Class),
		Scan: Scan{Out: t.FoundOut, In: t.FoundIn},
		Egress: Egress{
			RequestsAllowed: t.RequestsAllowed, RequestsRefused: t.RequestsRefused,
			ConnectionsAllowed: t.ConnectionsAllowed, ConnectionsRefused: t.ConnectionsRefused,
			BytesUp: t.BytesUp, BytesDown: t.BytesDown,
		},
	}
	for _, f := range rec.Network.Found {
		if f.Action == receipt.Blocked {
			r.Scan.Blocked += f.Count
		}
	}
	for _, n := range rec.Network.Names {
		if n.Verdict == receipt.Allowed && !slices.Contains(r.Egress.Hosts, n.Name) {
			r.Egress.Hosts = append(r.Egress.Hosts, n.Name)
		}
	}
	slices.Sort(r.Egress.Hosts)
	r.Egress.HostsTotal = int64(len(r.Egress.Hosts))
	for _, q := range rec.Network.Requests {
		if q.Tokens != nil {
			tokens += q.Tokens.Input + q.Tokens.Output
		}
	}
	return r, tokens, nil
}
