package run

import (
	"fmt"
	"testing"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/supervise"
)

// What people allowed is in the receipt, however often something else was refused.
func TestApprovalsAreNotHidden(t *testing.T) {
	a := &approvals{records: map[supervise.ID]supervise.Record{}}
	answered := func(id string, v supervise.Verdict) {
		a.record(supervise.Entry{Proposal: supervise.Proposal{ID: supervise.ID(id)}, Answer: &supervise.Answer{Verdict: v}})
	}
	for i := range receipt.MaxProposals + 5 {
		answered(fmt.Sprintf("%04d", i), supervise.Rejected)
	}
	answered("5000", supervise.Approved)
	answered("5001", supervise.Withdrawn)
	answered("5002", supervise.Modified)
	if a.records["5000"].Verdict != supervise.Approved || a.records["5002"].Verdict != supervise.Modified {
		t.Error("what was allowed is not among them")
	}
	if _, ok := a.records["5001"]; ok || len(a.records) != receipt.MaxProposals || len(a.records)+a.left != receipt.MaxProposals+8 {
		t.Errorf("%d proposals, and %d left out", len(a.records), a.left)
	}
}

// A command that has itself refused, over and over, hides no push that leaves: neither
// from the receipt nor from the audit log.
func TestPushesAreNotHidden(t *testing.T) {
	a := &gitAccount{rec: &receipt.Git{Repos: []receipt.GitRepo{{Name: "app"}}}, index: map[string]int{"app": 0}}
	push := func(v gitgate.Verdict, reason string) {
		a.count(gitgate.Event{Repo: "app", Op: opPush, Verdict: v, Reason: reason})
	}
	for i := range receipt.MaxPushes + 10 {
		push(gitgate.Refused, fmt.Sprint("refused ", i))
	}
	push(gitgate.Done, "first")
	push(gitgate.Failed, "broken off")
	push(gitgate.Done, "second")
	push(gitgate.Refused, "too late")
	list := a.rec.Pushes
	if len(list) != receipt.MaxPushes || a.rec.PushesTotal != receipt.MaxPushes+14 {
		t.Fatalf("%d of %d pushes", len(list), a.rec.PushesTotal)
	}
	for i, want := range []string{"first", "broken off", "second"} {
		if got := list[len(list)-3+i].Reason; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if list[0].Reason != "refused 0" {
		t.Errorf("the first is %q", list[0].Reason)
	}
	for i := range receipt.MaxPushes {
		push(gitgate.Done, fmt.Sprint("done ", i))
	}
	if got := a.rec.Pushes[receipt.MaxPushes-1]; got.Reason != fmt.Sprint("done ", receipt.MaxPushes-3) {
		t.Errorf("the last is %q", got.Reason)
	}

	d := &denials{}
	take := func(k audit.Kind, v audit.Decision) bool { return d.room(&audit.Event{Kind: k, Decision: v}) }
	for range maxDenials {
		if !take(audit.Resolve, audit.Refused) {
			t.Fatal("no room for a refusal")
		}
	}
	if take(audit.Resolve, audit.Refused) || take(audit.GitPush, audit.Refused) {
		t.Error("refusals are not bounded")
	}
	for range maxLeft {
		if !take(audit.GitPush, audit.Allowed) {
			t.Fatal("no room for a push")
		}
	}
	if take(audit.GitPush, audit.Noted) {
		t.Error("pushes are not bounded")
	}
}
