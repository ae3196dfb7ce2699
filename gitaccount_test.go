package carboy

import (
	"fmt"
	"testing"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/receipt"
)

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
