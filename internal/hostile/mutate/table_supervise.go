package main

// H1 and H2: who answers, and what the answer is about.

var superviseMutants = []mutant{
	{
		Name: "links-to-answers-are-followed", Promise: "H1",
		Why:     "an answer may be a link to a file that somebody else writes",
		Package: "./internal/supervise", Tests: []string{"TestForgedAnswers"}, Says: "a link: got through: true",
		edits: []edit{{"internal/supervise/dir.go", "unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC", "unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC"}},
	},
	{
		Name: "files-that-others-write-are-answers", Promise: "H1",
		Why:     "an answer that the group can write is taken for the user's",
		Package: "./internal/supervise", Tests: []string{"TestForgedAnswers"}, Says: "mode 620: got through: true",
		edits: []edit{{"internal/supervise/dir.go", "case st.Mode&0o022 != 0:", "case st.Mode&0o022 == 0o777:"}},
	},
	{
		Name: "files-of-others-are-answers", Promise: "H1",
		Why:     "an answer that another user made is taken for the user's",
		Package: "./internal/supervise", Tests: []string{"TestAnswersOfOthers"}, Says: "an answer of user 12345 got through: true", root: true,
		edits: []edit{{"internal/supervise/dir.go", "case st.Uid != uint32(os.Geteuid()):", "case st.Uid == 1<<31:"}},
	},
	{
		Name: "anybodys-directory-is-the-queue", Promise: "H1",
		Why:     "a directory that has become everybody's goes on being the queue",
		Package: "./internal/supervise", Tests: []string{"TestForgedAnswers"}, Says: "a directory that others can write to: got through: true",
		edits: []edit{{"internal/supervise/dir.go", "case st.Mode&0o077 != 0:", "case st.Mode&0o077 == 0o7777:"}},
	},
	{
		Name: "no-answer-is-an-approval", Promise: "H1",
		Why:     "what nobody answered in time is allowed",
		Package: "./internal/supervise", Tests: []string{"TestTimeout"}, Says: "outcome {",
		edits: []edit{{"internal/supervise/supervise.go", "return v == Approved || v == Modified", "return v == Approved || v == Modified || v == Expired"}},
	},
	{
		Name: "dead-bottles-are-approved-for", Promise: "H1",
		Why:     "an approval is given for a bottle that was killed, and lies there for whoever comes",
		Package: "./internal/supervise", Tests: []string{"TestKilledAsker"}, Says: "approved for nobody",
		edits: []edit{{"internal/supervise/queue.go", "case !q.waiting.alive(p.asker):", "case p.asker == \"\":"}},
	},
	{
		Name: "a-bottle-fills-the-queue", Promise: "H1",
		Why:     "one bottle has a person look at as many proposals as it likes, and buries the one that matters",
		Package: "./internal/supervise", Tests: []string{"TestFlood"}, Says: "wait; <nil>",
		edits: []edit{{"internal/supervise/asker.go", "if len(a.byID) >= MaxWaiting {", "if len(a.byID) >= 1000*MaxWaiting {"}},
	},
	{
		Name: "a-bottle-asks-all-day", Promise: "H1",
		Why:     "proposing and withdrawing in turn fills the disk and the log",
		Package: "./internal/supervise", Tests: []string{"TestFlood"}, Says: "more than an hour's: <nil>",
		edits: []edit{{"internal/supervise/asker.go", "if len(a.made) >= MaxPerHour {", "if len(a.made) >= 1000*MaxPerHour {"}},
	},
	{
		Name: "the-same-is-asked-again", Promise: "H1",
		Why:     "a bottle that asks in a loop wears a person out",
		Package: "./internal/supervise", Tests: []string{"TestFlood"}, Says: "the same 20 times",
		edits: []edit{{"internal/supervise/asker.go", "if w := a.byWhat[p.Digest]; w != nil {", "if w := a.byWhat[p.Digest]; w != nil && len(a.byID) == 0 {"}},
	},
	{
		Name: "text-reaches-the-terminal", Promise: "H1",
		Why:     "what a bottle says rewrites what a person is shown",
		Package: "./internal/supervise", Tests: []string{"TestHiddenChange"}, Says: "reaches a terminal",
		edits: []edit{{"internal/supervise/detail.go", "v := visible.String(text, 16*len(text)+16)", "v := text"}},
	},
	{
		Name: "hiding-is-not-pointed-out", Promise: "H1",
		Why:     "characters that do not show are written out, amid much else, and nobody says so",
		Package: "./internal/supervise", Tests: []string{"TestHiddenChange"}, Says: "is not pointed out",
		edits: []edit{{"internal/supervise/detail.go", "if !visible.Clean(plainBreaks.Replace(text)) {", "if text == \"\" {"}},
	},
	{
		Name: "white-space-hides-a-change", Promise: "H1",
		Why:     "a line that differs by a tab alone is shown as itself, twice",
		Package: "./internal/supervise", Tests: []string{"TestHiddenChange"}, Says: "a tab is not told from spaces",
		edits: []edit{{"internal/supervise/detail.go", "if alike(lines) {", "if len(lines) == 0 {"}},
	},
	{
		Name: "a-repositorys-policy-answers", Promise: "H1",
		Why:     "a policy in a workspace, where a bottle's changes land, approves what bottles ask for",
		Package: "./internal/supervise", Tests: []string{"TestPolicyOfOthers"}, Says: "in a workspace: ",
		edits: []edit{{"internal/supervise/policy.go", "err == nil && inside(file, real) {\n			return nil, \"\", fmt.Errorf(\"lies in the workspace", "err == nil && inside(real, file) {\n			return nil, \"\", fmt.Errorf(\"lies in the workspace"}},
	},
	{
		Name: "anybodys-policy-answers", Promise: "H1",
		Why:     "a policy that others can write to approves",
		Package: "./internal/supervise", Tests: []string{"TestPolicyOfOthers"}, Says: "can write: ",
		edits: []edit{{"internal/supervise/policy.go", "if st.Mode&0o022 != 0 && !(dir", "if st.Mode&0o022 == 0o777 && !(dir"}},
	},
	{
		Name: "a-rule-approves-what-stands-beside", Promise: "H1",
		Why:     "a proposal with one route that a rule covers carries another one along",
		Package: "./internal/supervise", Tests: []string{"TestPolicyCovers"}, Says: "a route beside: ",
		edits: []edit{{"internal/supervise/policy.go", "		if !r.covers(s) {\n			return false\n		}\n	}\n	return len(subjects) > 0", "		if r.covers(s) {\n			return true\n		}\n	}\n	return false"}},
	},
	{
		Name: "rules-approve-what-people-approve", Promise: "H1",
		Why:     "a rule overrides gates, replaces baselines and applies plans",
		Package: "./internal/supervise", Tests: []string{"TestPolicyErrors"}, Says: "is approved by people only",
		edits: []edit{{"internal/supervise/policy.go", "	if !ok {\n		m.Get(\"answer\").Bad(", "	if !ok {\n		return\n	}\n	if !ok {\n		m.Get(\"answer\").Bad("}},
	},
	{
		Name: "another-digest-is-approved", Promise: "H2",
		Why:     "what is approved is what is there in that moment, whatever was shown",
		Package: "./internal/supervise", Tests: []string{"TestSwappedProposal"}, Says: "approved something else than was shown",
		edits: []edit{{"internal/supervise/queue.go", "case p.Digest != r.Digest:", "case r.Digest == p.Digest && r.ID != p.ID:"}},
	},
	{
		Name: "an-answer-to-something-else-counts", Promise: "H2",
		Why:     "who waits takes the approval of another payload than it asked for",
		Package: "./internal/supervise", Tests: []string{"TestSwappedProposal"}, Says: "something else was approved than asked for",
		edits: []edit{{"internal/supervise/file.go", "case a.Digest != p.Digest:", "case a.Digest == Digest{} && p.ID == \"\":"}},
	},
	{
		Name: "old-approvals-count-again", Promise: "H2",
		Why:     "the approval of an earlier proposal answers the next one that says the same",
		Package: "./internal/supervise", Tests: []string{"TestReplay"}, Says: "the same again: an old approval got through",
		edits: []edit{{"internal/supervise/file.go", "case a.ID != p.ID:", "case a.ID == \"\" && p.ID == \"\":"}},
	},
	{
		Name: "one-bottles-approval-is-anothers", Promise: "H2",
		Why:     "what was approved for one bottle has the same digest in another",
		Package: "./internal/supervise", Tests: []string{"TestReplay"}, Says: "the same of a bottle: ",
		edits: []edit{{"internal/supervise/kind.go", "bottle, p.Kind())\n	h.Write", "bottle[:0], p.Kind())\n	h.Write"}},
	},
	{
		Name: "what-is-modified-has-no-digest", Promise: "H2",
		Why:     "a modified payload counts that nobody has named",
		Package: "./internal/supervise", Tests: []string{"TestForgedAnswers"}, Says: "modified for another bottle: got through: true",
		edits: []edit{{"internal/supervise/file.go", "if digest != a.PayloadDigest {", "if digest == (Digest{}) {"}},
	},
	{
		Name: "two-answers-win", Promise: "H2",
		Why:     "of two who answer at once both are told that they won, and both are in the log",
		Package: "./internal/supervise", Tests: []string{"TestRacingAnswers"}, Says: "answers won",
		edits: []edit{
			{"internal/supervise/queue.go", "} else if old != nil {", "} else if old != nil && ctx.Err() != nil {"},
			{"internal/supervise/queue.go", "q.waiting.write(string(id)+answerEnd, out, false)", "q.waiting.write(string(id)+answerEnd, out, true)"},
		},
	},
	{
		Name: "approvals-without-a-record", Promise: "H2",
		Why:     "an approval is in force that no log has",
		Package: "./internal/supervise", Tests: []string{"TestUnwritable"}, Says: "approved without a record",
		edits: []edit{{"internal/supervise/queue.go", "if err := q.recordAnswer(ctx, p, a); err != nil {", "if err := q.recordAnswer(ctx, p, a); err != nil && ctx.Err() != nil {"}},
	},
	{
		Name: "late-approvals-count", Promise: "H2",
		Why:     "an approval counts after its time, and after the machine has started again",
		Package: "./internal/supervise", Tests: []string{"TestClocks"}, Says: "approved when the time was up",
		edits: []edit{{"internal/supervise/queue.go", "case p.deadline.left() <= 0:", "case p.deadline.left() <= -1<<62:"}},
	},
	{
		Name: "what-is-only-shown-is-carried-out", Promise: "H2",
		Why:     "effects get what no digest names",
		Package: "./internal/supervise", Tests: []string{"TestEffect"}, Says: "the effect got what was only shown",
		edits: []edit{{"internal/supervise/approval.go", "bare, ok := p.Bare().(P)", "bare, ok := p.(P)"}},
	},
	{
		Name: "a-secret-in-the-queue", Promise: "A2",
		Why:     "a known secret stands in a proposal, on disk and before people's eyes",
		Package: "./internal/supervise", Tests: []string{"TestSecrets"}, Says: "a payload with a known secret was taken",
		edits: []edit{{"internal/supervise/asker.go", "if a.q.o.Redactor.In(string(data)) {", "if a.q.o.Redactor.In(\"\") {"}},
	},
}
