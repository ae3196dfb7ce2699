package main

// P: plans, approvals and hosts.

var shipMutants = []mutant{
	{
		Name: "plans-have-many-spellings", Promise: "P1",
		Why:     "a plan with a key twice is one thing to who approves it and another to apply",
		Package: "./internal/ship/plan", Tests: []string{"TestP1Spelling"}, Says: "a key twice: taken",
		edits: []edit{{"internal/ship/plan/plan.go", "!bytes.Equal(again, b)", "len(again) == 0"}},
	},
	{
		Name: "the-plan-decides-alone", Promise: "P1",
		Why:     "a plan leads to another directory than its commit says",
		Package: "./internal/ship", Tests: []string{"TestP1Plans"}, Says: "another root",
		edits: []edit{{"internal/ship/apply.go", "case t.Root != m.Root:", "case false:"}},
	},
	{
		Name: "the-plan-says-what-ran-before", Promise: "P1",
		Why:     "a plan goes back to a file that never ran, when the new version is not healthy",
		Package: "./internal/ship", Tests: []string{"TestP1Previous"}, Says: "a file with another command: ",
		edits: []edit{{"internal/ship/apply.go", "old, err := e.judgeBack(o.Plan, obs, s, earlier[o.Previous.Commit])\n		if err != nil {", "old, err := e.judgeBack(o.Plan, obs, s, earlier[o.Previous.Commit])\n		if err != nil && obs == nil {"}},
	},
	{
		Name: "sacred-paths-are-not", Promise: "P1",
		Why:     "a module is put into a directory that the operator has ruled out",
		Package: "./internal/ship/hosts", Tests: []string{"TestP1Hosts"}, Says: "/srv/db: admitted true",
		edits: []edit{{"internal/ship/hosts/hosts.go", "within(dir, s) || within(s, dir)", "false"}},
	},
	{
		Name: "hosts-show-any-key", Promise: "P1",
		Why:     "whoever answers at the address is the host",
		Package: "./internal/ship/remote", Tests: []string{"TestP1HostKey", "TestJump"}, Says: "another key",
		edits: []edit{{"internal/ship/remote/dial.go", "if bytes.Equal(k.Marshal(), key.Marshal()) {", "if len(k.Marshal()) > 0 {"}},
	},
	{
		Name: "approvals-are-of-anything", Promise: "P1",
		Why:     "an approval of one plan lets another through",
		Package: "./internal/ship", Tests: []string{"TestH2Approvals"}, Says: "of another plan: ",
		edits: []edit{{"internal/ship/apply.go", "case !slices.Contains(a.Plans, o.Digest):", "case false:"}},
	},
	{
		Name: "signers-name-themselves", Promise: "P1",
		Why:     "who may approve approves in the name of others, and is two people",
		Package: "./internal/ship/approval", Tests: []string{"TestSigners"}, Says: "bob@example.org",
		edits: []edit{{"internal/ship/approval/approval.go", " || !slices.Contains(who.principals, name)", ""}},
	},
	{
		Name: "hosts-take-stale-plans", Promise: "P1", root: true,
		Why:     "what somebody did by hand since the plan is written over",
		Package: "./internal/ship", Tests: []string{"TestP1Stale"}, Says: "a stale plan",
		edits: []edit{{"internal/ship/script.sh", "if [ \"${s%% *}\" != \"$observed\" ]; then", "if false; then"}},
	},
	{
		Name: "hosts-have-no-lock", Promise: "P2", root: true,
		Why:     "two applies work on one service at once",
		Package: "./internal/ship", Tests: []string{"TestP2Stopped"}, Says: "the first stopped",
		edits: []edit{{"internal/ship/script.sh", "flock \"$@\" 9 ||", "true ||"}},
	},
	{
		Name: "values-are-not-quoted", Promise: "P3",
		Why:     "a quote in a value ends it, and what follows is run",
		Package: "./internal/ship/remote", Tests: []string{"TestP3Quote"}, Says: "reads",
		edits: []edit{{"internal/ship/remote/quote.go", "strings.ReplaceAll(s, \"'\", `'\\''`)", "s"}},
	},
	{
		Name: "compose-files-say-anything", Promise: "P3",
		Why:     "keys that nobody has judged reach docker compose",
		Package: "./internal/ship/module", Tests: []string{"TestP3Compose"}, Says: "privileged: true: <nil>, want a refusal",
		edits: []edit{{"internal/ship/module/compose.go", "		case !ok:", "		case !ok && k.Value == \"\":"}},
	},
	{
		Name: "modules-lead-out", Promise: "P3",
		Why:     "a module names a file above its directory",
		Package: "./internal/ship/module", Tests: []string{"TestP3Modules"}, Says: "upward",
		edits: []edit{{"internal/ship/module/module.go", "case p == \"..\" || strings.HasPrefix(p, \"../\") || strings.Contains(p, \"/../\") || strings.HasSuffix(p, \"/..\"):", "case p == \"\\x00\":"}},
	},
	{
		Name: "waves-in-any-order", Promise: "P1",
		Why:     "the hosts that come last are changed without those that come first",
		Package: "./internal/ship", Tests: []string{"TestP1Waves"}, Says: "the second wave alone",
		edits: []edit{{"internal/ship/apply.go", "err := e.judgeWaves(orders); err != nil", "err := error(nil); err != nil"}},
	},
	{
		Name: "hosts-write-our-records", Promise: "P1",
		Why:     "a host makes up a record, by which an apply is undone without an approval",
		Package: "./internal/ship", Tests: []string{"TestP1HostRecords"}, Says: "a host's own record",
		edits: []edit{{"internal/ship/apply.go", "r.Outcome != Applied || r.Learned {", "r.Outcome != Applied {"}},
	},
	{
		Name: "statements-read-two-ways", Promise: "P1",
		Why:     "what somebody read and signed is not what counts",
		Package: "./internal/ship/approval", Tests: []string{"TestOneReading"}, Says: "a key twice: <nil>",
		edits: []edit{{"internal/ship/approval/approval.go", "!bytes.Equal(again, in.Statement)", "len(again) == 0"}},
	},
	{
		Name: "locks-can-be-removed", Promise: "P2", root: true,
		Why:     "who removes a file that is called lock gets a second apply",
		Package: "./internal/ship", Tests: []string{"TestP2LockTaken"}, Says: "the second, the lock removed",
		edits: []edit{{"internal/ship/script.sh", "exec 9<\"$dir\" ||", "exec 9>>\"$dir/lock\" ||"}},
	},
	{
		Name: "services-write-where-files-go", Promise: "P3",
		Why:     "what runs makes a link of the directory into which the next file is put",
		Package: "./internal/ship", Tests: []string{"TestP3Reach"}, Says: "amid ",
		edits: []edit{{"internal/ship/make.go", "for _, w := range now.Writable {", "for _, w := range now.Writable[:0] {"}},
	},
	{
		Name: "files-follow-links", Promise: "P3", root: true,
		Why:     "a directory that becomes a link midway leads a file out",
		Package: "./internal/ship", Tests: []string{"TestP3Swap"}, Says: "a file went out",
		edits: []edit{{"internal/ship/script.sh", `into "$2" || exit 1
    tmp=./.carboy.tmp.$project.$service # another service may have the same root
    limited cp ${3:-} -T --remove-destination "$1" "$tmp" && limited sync "$tmp" && mv -T "$tmp" "./${2##*/}" && limited sync . && exit 0`, `t=$root/${2%/*}; mkdir -p "$t" && cp -T "$1" "$t/.carboy.tmp" && mv -T "$t/.carboy.tmp" "$root/$2" && exit 0`}},
	},
	{
		Name: "host-clocks-are-believed", Promise: "P4", root: true,
		Why:     "a clock that leaps ends the watching, and what dies soon counts as healthy",
		Package: "./internal/ship", Tests: []string{"TestP4HostClock"}, Says: "a clock that leaps",
		edits: []edit{{"internal/ship/script.sh", "if read -r now rest 2>/dev/null </proc/uptime; then", "if false; then"}},
	},
	{
		Name: "docker-is-not-waited-for", Promise: "P4", root: true,
		Why:     "an apply that was killed is said to be taken back, and Docker stops the service after that",
		Package: "./internal/ship", Tests: []string{"TestP4Docker"}, Says: "the host runs",
		edits: []edit{{"internal/ship/script.sh", "quiet() {", "quiet() {\n    return 0"}},
	},
	{
		Name: "output-tells-secrets", Promise: "P4",
		Why:     "a password that a program on the host prints is shown and recorded",
		Package: "./internal/ship", Tests: []string{"TestRedaction"}, Says: "hunter2",
		edits: []edit{{"internal/ship/redact.go", "for _, f := range forms() {", "for _, f := range forms()[:0] {"}},
	},
	{
		Name: "files-stay-after-rollback", Promise: "P4", root: true,
		Why:     "the old service runs with the new files",
		Package: "./internal/ship", Tests: []string{"TestP4FilesBack"}, Says: "after rolling back the file is",
		edits: []edit{{"internal/ship/script.sh", "restore_files || good=0", ":"}},
	},
	{
		Name: "what-files-broke-stays", Promise: "P4", root: true,
		Why:     "Compose leaves a container alone whose image and configuration are the same, and it stays broken",
		Package: "./internal/ship", Tests: []string{"TestP4FilesBack"}, Says: "a file alone that breaks it",
		edits: []edit{{"internal/ship/script.sh", `--pull never $force "$service" || good=0`, `--pull never "$service" || good=0`}},
	},
	{
		Name: "owners-are-lost", Promise: "P4", root: true,
		Why:     "a file that is brought back belongs to somebody else, and who needs it cannot read it",
		Package: "./internal/ship", Tests: []string{"TestP4FilesBack"}, Says: "after rolling back, the file is",
		edits: []edit{{"internal/ship/script.sh", `put "$j/prev/$i" "$f" -p || return 1`, `put "$j/prev/$i" "$f" || return 1`}},
	},
	{
		Name: "refusals-settle-jobs", Promise: "P4",
		Why:     "a Docker that is still starting is recorded as a job that failed",
		Package: "./internal/ship", Tests: []string{"TestP4Planted"}, Says: "while Docker does not answer",
		edits: []edit{{"internal/ship/apply.go", "if !res.said || !res.Outcome.settled() {", "if !res.Outcome.settled() {"}},
	},
	{
		Name: "who-sends-holds-the-lock", Promise: "P4",
		Why:     "a laptop that sleeps in the midst of sending keeps everybody else out",
		Package: "./internal/ship", Tests: []string{"TestP4Hangs"}, Says: "could not take what was sent",
		edits: []edit{{"internal/ship/script.sh", `limited head -c "$1"`, `head -c "$1"`}},
	},
	{
		Name: "output-waits-for-the-end", Promise: "P4",
		Why:     "an apply that hangs says nothing of what it hangs at",
		Package: "./internal/ship", Tests: []string{"TestP4Streams"}, Says: "deadline",
		edits: []edit{{"internal/ship/script.sh", "sed -u 's/^/| /'", "sed 's/^/| /'"}},
	},
	{
		Name: "stable-for-a-moment", Promise: "P4",
		Why:     "a service that dies a second later is applied",
		Package: "./internal/ship", Tests: []string{"TestStableFor"}, Says: "watched for",
		edits: []edit{{"internal/ship/script.sh", `none) [ $((now - looked)) -lt "${stable}00" ] || return 0 ;;`, "none) return 0 ;;"}},
	},
	{
		Name: "the-job-in-force-is-pruned", Promise: "P4",
		Why:     "nobody knows any more what runs, and from where to go back",
		Package: "./internal/ship", Tests: []string{"TestP4Pruned"}, Says: "in force",
		edits: []edit{{"internal/ship/script.sh", `[ "${d##*/}" != "$current" ] && read`, "read"}},
	},
	{
		Name: "good-plans-are-forgotten", Promise: "P1",
		Why:     "a plan that was used is carried out again when the host has forgotten it",
		Package: "./internal/ship", Tests: []string{"TestP4Pruned"}, Says: "of a plan that could be good",
		edits: []edit{{"internal/ship/script.sh", `[ $((time - ended)) -gt "$plan_life" ] || continue`, ":"}},
	},
	{
		Name: "lookers-shut-out", Promise: "P2",
		Why:     "who looks all the time keeps others from looking",
		Package: "./internal/ship", Tests: []string{"TestP2Lookers"}, Says: "somebody looks",
		edits: []edit{{"internal/ship/script.sh", "flock -sn 9", "flock -n 9"}},
	},
	{
		Name: "applies-do-not-wait", Promise: "P2",
		Why:     "an apply fails because somebody looked at that moment",
		Package: "./internal/ship", Tests: []string{"TestP2Lookers"}, Says: "while somebody looks",
		edits: []edit{{"internal/ship/script.sh", "lock -w 2 # somebody", "lock -n # somebody"}},
	},
	{
		Name: "the-unknown-writes-anywhere", Promise: "P3",
		Why:     "a service that nobody knows makes a link of a directory while files are put there",
		Package: "./internal/ship", Tests: []string{"TestP3Reach"}, Says: "beside what is not known",
		edits: []edit{{"internal/ship/make.go", "case p.Previous.State != plan.PreviousKnown && len(obs.Containers) > 0:", "case false:"}},
	},
	{
		Name: "newer-jobs-are-read", Promise: "P4",
		Why:     "a job that a later carboy wrote means something else to this one",
		Package: "./internal/ship", Tests: []string{"TestP4Newer"}, Says: "a job of",
		edits: []edit{{"internal/ship/script.sh", `[ "$kind" = "$schema" ] ||`, `[ -n "$kind" ] ||`}},
	},
	{
		Name: "sent-by-the-clock", Promise: "P4",
		Why:     "what arrives late is known by the host's word alone",
		Package: "./internal/ship", Tests: []string{"TestSentStays"}, Says: "it may still arrive",
		edits: []edit{{"internal/ship/status.go", `cmp.Or(obs.Current, "-") != current`, `cmp.Or(obs.Current, "-") != ""`}},
	},
}
