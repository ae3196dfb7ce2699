package supervise

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzEntry checks any content of a file in the queue: it is refused, or it is a proposal
// that reads back as the same one and whose text is safe to show.
func FuzzEntry(f *testing.F) {
	id := newID()
	for _, p := range each(f) {
		x := Proposal{ID: id, asker: newID(), Bottle: "dev", Kind: p.Kind(), Payload: p, Why: "because"}
		x.Digest, _ = DigestOf("dev", p)
		file, err := x.file()
		if err != nil {
			f.Fatal(err)
		}
		data, _ := marshal(file)
		f.Add(data)
		f.Add(answerBytes(f, x, Approved))
		a := Answer{ID: id, Digest: x.Digest, Verdict: Rejected, By: By{Channel: ChannelCLI}}
		decided, err := Entry{x, &a, "done"}.file()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(decided)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseProposal(id, data)
		if err != nil {
			p = Proposal{ID: id, Bottle: "dev", Kind: kindEgressTokenAllow, Payload: token(TokenAllow)}
			p.Digest, _ = DigestOf("dev", p.Payload)
		} else {
			again, err := p.file()
			if err != nil {
				t.Fatal(err)
			}
			out, err := marshal(again)
			if err != nil {
				t.Fatal(err)
			}
			q, err := parseProposal(id, out)
			if err != nil || q.Digest != p.Digest {
				t.Fatalf("it does not read back: %v", err)
			}
			if s := shown(p.Detail(true)); strings.ContainsAny(s, "\x1b\r\u202e") {
				t.Fatalf("shown: %q", s)
			}
		}
		if a, err := parseAnswer(p, data); err == nil && (a.Digest != p.Digest || a.ID != p.ID) {
			t.Fatal("the answer to something else was taken")
		}
		if e, err := parseDecided(id, data); err == nil && (e.Answer == nil || e.Proposal.ID != id) {
			t.Fatal("half an entry was taken")
		}
	})
}

// FuzzPolicy checks any content of a policy: it is refused, or no rule without conditions
// approves, and no rule approves a kind that only people approve.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte("rules:\n  - {kind: egress-allow, host: a.example.com, methods: [GET], paths: [/v1], answer: approve}\n"))
	f.Add([]byte("rules:\n  - {kind: [gitleaks-allow, apply], bottle: dev, answer: reject, note: x}\n"))
	f.Add([]byte("rules:\n  - {kind: egress-token-allow, host: '*.example.com', rule: x, answer: approve}\n"))
	secretHost := []byte("never-named.test")
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parsePolicy("p.yaml", data)
		if err != nil || bytes.Contains(data, []byte("test")) {
			return
		}
		for kind, payload := range map[Kind]Payload{kindEgressAllow: EgressAllow{Routes: []RouteAdded{{Host: string(secretHost)}}}, kindApply: Apply{}, kindGateOverride: GateOverride{}, kindBaselineUpdate: BaselineUpdate{}} {
			if r := p.match(Proposal{Bottle: "dev", Kind: kind, Payload: payload}); r != nil && r.verdict.Allows() {
				t.Fatalf("%s was approved by %q", kind, data)
			}
		}
	})
}
