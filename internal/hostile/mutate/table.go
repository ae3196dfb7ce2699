package main

// mutant is one defence of carboy, turned off.
type mutant struct {
	Name    string
	Promise string // of docs/promises.md
	Why     string // what is off, and what then happens
	// Test must fail: PACKAGE.TestName, as docs/promises.md names it with the
	// promise. It is the quickest that notices.
	Test    string
	Changes []change
}

// mutants turn off at least one defence of each promise.
var mutants = []mutant{
	{"images-lead-out", "S1", "a layer's links are followed out of the image", "internal/image.TestHostileLayers", []change{
		{"internal/image", swap, "unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "uint64(0)"}}},
	{"images-give-rights", "S1", "set-user-id bits of an image's files stay", "internal/image.TestModes", []change{
		{"internal/image", swap, "uint32(h.Mode) & 0o777", "uint32(h.Mode) & 0o7777"}}},
	{"builds-keep-devices", "S1", "an image built in a bottle holds the devices that a step names", "internal/builder.TestLayer", []change{
		{"internal/builder", off, "h.Devmajor != 0 || h.Devminor != 0", ""}}},
	{"links-lead-to-the-host", "S1", "a link in a root file system is resolved on the host", "internal/bottle/rootfs.TestLinksStayInside", []change{
		{"internal/bottle/rootfs", swap, "unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS", "uint64(0)"}}},
	{"edited-settings-are-shown", "S1", "a file of /etc is shown though it is not as its package shipped it", "internal/bottle/rootfs.TestSettingsAsShipped", []change{
		{"internal/bottle/rootfs", off, "!slices.ContainsFunc(s.shipped[name]", ""}}},
	{"posture-is-not-judged", "S1", "a bottle whose processes are not confined as planned runs all the same", "internal/bottle/gvisor.TestPostureRefuses", []change{
		{"internal/bottle/gvisor", drop, "judge(&raw", ""}}},
	{"swapped-mounts-are-shown", "S1", "a directory that was put in a mount's place after it was checked is shown", "internal/bottle/gvisor.TestContract/SwappedMount", []change{
		{"internal/bottle/gvisor", off, "s.id.Ino != 0 && s.id !=", ""}}},

	{"host-addresses-are-told", "S2", "errors tell the bottle addresses of the host's own network", "internal/gateway.TestHostAddressesStayOutside", []change{
		{"internal/gateway", swap, "de.forBottle()", "v.Detail"}}},

	{"placeholders-are-all-alike", "S3", "every bottle has the same placeholder", "internal/credential.TestPlaceholder", []change{
		{"internal/credential", swap, "prefix + strings.ToLower(rand.Text())", `prefix + strings.Repeat("x", n+20)`}}},
	{"errors-quote-upstream", "S3", "an answer that is no HTTP stands in the bottle's error message, the credential with it", "internal/gateway.TestUpstreamNonsense", []change{
		{"internal/gateway", off, "told != err.Error()", ""}}},

	{"processes-are-not-counted", "S4", "the sandbox gets a hundred times the limit on processes", "internal/bottle/gvisor.TestContract/LimitPids", []change{
		{"internal/bottle/gvisor", swap, "fmt.Sprint(n+1)", "fmt.Sprint(100*n)"}}},

	{"landings-are-not-taken-back", "S5", "after a crash nobody rolls back a landing that was cut short", "internal/change.TestKill", []change{
		{"internal/change", drop, "err := x.rollback()", ""}}},

	{"half-a-copy-counts", "S5", "a copy of a running bottle's files that failed takes the place of the one before", "internal/checkpoint.TestFailedCopy", []change{
		{"internal/checkpoint", off, "err != nil || !fresh", ""}}},

	{"protected-paths-land", "S6", "git hooks, git configuration and agents' settings land unasked", "internal/hostile.TestS6ProtectedPaths", []change{
		{"internal/change", off, "len(reasons) > 0 && !opts.IncludeProtected", ""}}},
	{"others-may-write", "S6", "a landing lets the group or others write to what they could not", "internal/change.TestWritable", []change{
		{"internal/change", off, "c.opened()", ""}}},
	{"hidden-commits-land", "S6", "protected paths land in commits that hide them from the work tree", "internal/change.TestS6HiddenCommit", []change{
		{"internal/change", off, "len(r.Protected) > 0 && !opts.IncludeProtected", ""}}},
	{"any-reference-lands", "S6", "every name of a reference can land, replacements and stashes too, and nobody is asked", "internal/change.TestS6OtherRefs", []change{
		{"internal/change", on, "strings.HasPrefix(name, p) && refName(name)", ""}, {"internal/change", off, "!named && !r.byItself()", ""}, {"internal/change", swap, "len(opts.Paths) == 0 && c.CheckedOut && !c.Fresh", "true"}}},
	{"commits-make-repositories", "S6", "a commit makes a directory that git obeys as a repository", "internal/change.TestS6HiddenStructure", []change{
		{"internal/change", off, "within(bare, string(f.Path))", ""}}},
	{"harmful-trees-land", "S6", "trees that name what is above them land when a person includes protected paths", "internal/change.TestS6HarmfulTrees", []change{
		{"internal/hostexec", swap, `strings.Join(oldFaults, "=warn,")`, `strings.Join(append([]string{"hasDotdot", "hasDotgit", "hasDot", "emptyName", "fullPathname", "duplicateEntries"}, oldFaults...), "=warn,")`}}},
	{"a-moved-head-hides", "S6", "what only commits have is not shown if the bottle's HEAD is elsewhere", "internal/change.TestS6ShownIsWhatLands", []change{
		{"internal/change", swap, "c.CheckedOut || err == nil && headOf(head) == c.Name", "err == nil && headOf(head) == c.Name"}}},
	{"undo-of-another-branch", "S6", "an undo changes the files of a branch that did not land", "internal/change.TestS6UndoWentOn", []change{
		{"internal/change", off, "!under", ""}}},
	{"a-rebase-loses-branches", "S6", "a landing moves the branches that a rebase under way is to move", "internal/change.TestLandAmid", []change{
		{"internal/change", swap, `"rebase-merge/update-refs"`, `"rebase-merge/head-name"`}}},
	{"git-files-are-copied", "S6", "files below a git directory land like any others", "internal/change.TestS6OtherRefs", []change{
		{"internal/change", off, `folded == ".git"`, ""}}},
	{"patterns-hide-changes", "S6", "a .gitignore that a bottle writes keeps changes of the project's own files out of sight", "internal/change.TestIgnoredHidesNothing", []change{
		{"internal/change", off, "!g.ignoredOnHost(ctx, rel, v.root, v.byName)", ""}}},
	{"copies-take-any-name", "S6", "carboy cp writes to names that it was not asked for", "internal/transfer.TestHostileStreams", []change{
		{"internal/transfer", off, "first != o.base", ""}}},
	{"streams-name-anything", "S6", "the workspace's changes may name paths outside of it", "internal/change.TestHostileStream", []change{
		{"internal/change", drop, "err := checkRel(rel)", ""}}},

	{"directories-by-name", "S7", "a root is known by its paths and not by what stands there", "internal/bottle/rootfs.TestDirectoriesByIdentity", []change{
		{"internal/bottle/rootfs", swap, "st.Ino", "uint64(0)"}}},

	{"a-repositorys-dockerfile-is-built", "S8", "a Dockerfile of the repository is built outside of any bottle", "internal/image.TestWhoseDockerfile", []change{
		{"internal/image", off, "place.path == r.Repo", ""}}},
	{"others-may-write-bottles", "S8", "a bottle's file that others can write to is read", "internal/manifest.TestOthersCanWrite", []change{
		{"internal/manifest", off, "st.Mode&0o022 != 0", ""}}},

	{"metadata-is-private-space", "W1", "the cloud's metadata service is dialled by a name whose route allows private addresses", "internal/gateway.TestResolvedAddresses", []change{
		{"internal/policy", off, "metadata[addr]", ""}}},

	{"fragments-pass", "W2", "fragments reach the stack, and two readers may disagree about what they carry", "internal/gateway.TestPacketsByHand", []change{
		{"internal/gateway", off, "h.More() || h.FragmentOffset() != 0", ""}}},
	{"datagrams-are-dropped", "W2", "UDP is dropped without an answer, and tools hang instead of falling back", "internal/gateway.TestUDPIsRefusedAtOnce", []change{
		{"internal/gateway", drop, "g.link.Inject(buildUnreachable(", ""}}},

	{"host-is-not-compared", "W3", "the Host header may name another host than the connection's", "internal/gateway.TestAuthority", []change{
		{"internal/gateway", off, "!sameAuthority(c, r.Host)", ""}}},
	{"server-name-is-not-compared", "W3", "TLS for another server name passes on an allowed name's address", "internal/gateway.TestServerName", []change{
		{"internal/gateway", off, "name != f.name", ""}}},
	{"positions-are-believed", "W3", "what the bottle writes as its position in a ring is used as it is", "internal/wire.TestChannelRules", []change{
		{"internal/wire", off, "n > channelRing", ""}}},

	{"plain-http-is-signed", "W4", "a credential is put on plain HTTP, for everybody on the way", "internal/gateway.TestCredential", []change{
		{"internal/gateway", off, "!isLocalHost(req.URL.Hostname())", ""}}},
	{"headers-are-not-scrubbed", "W4", "a server repeats the credential in a header", "internal/gateway.TestCredential", []change{
		{"internal/gateway", drop, "err := scrubber.Header(res.Header, w.look())", ""}}},
	{"names-say-nothing", "W4", "an agent's own key goes out in a header or parameter that is on no list", "internal/credential.TestOwnByName", []change{
		{"internal/credential", on, "!heads[head] || of(flags)", ""}}},
	{"fields-say-nothing", "W4", "an agent's own key goes out in a field of a body", "internal/credential.TestFields", []change{
		{"internal/credential", off, "f.placeholder[f.at] != c", ""}}},
	{"nested-fields-say-nothing", "W4", "an agent's own key goes out deep in a JSON body", "internal/credential.TestFields", []change{
		{"internal/credential", off, "f.opaque(f.word)", ""}}},
	{"nobody-is-asked-about-fields", "W4", "an agent's own key goes out though a person said no", "internal/credential.TestFieldsAsked", []change{
		{"internal/credential", off, "f.ask == nil || !f.ask(name)", ""}}},
	{"searches-go-on-without-rules", "W4", "a server's answer is not searched for the credential where the search can't be prepared", "internal/credential.TestUnprepared", []change{
		{"internal/credential", off, "f.s.bad != nil", ""}}},
	{"answers-are-not-searched", "W4", "a server repeats the credential in base64, hex or compressed", "internal/credential.TestReflected", []change{
		{"internal/credential", on, "len(s.hidden) == 0", ""}}},
	{"own-credentials-stay", "W4", "what the agent puts where credentials stand goes out beside the route's own", "internal/credential.TestSign", []change{
		{"internal/credential", drop, "delete(req.Header, h)", ""}}},

	{"heads-are-not-searched", "W5", "a secret leaves in a request's path or headers", "internal/gateway.TestSecretsOut", []change{
		{"internal/gateway", drop, "err := w.head(req)", ""}}},
	{"any-bearer-was-given", "W5", "an opaque Bearer token leaves as if a server had given it to the bottle", "internal/gateway.TestIssuedTokens", []change{
		{"internal/gateway", swap, "i.sums[sha256.Sum256(token)]", "true"}}},
	{"views-are-shut", "W5", "a secret leaves in base64 and the other ways of writing it", "internal/scan.TestTransforms", []change{
		{"internal/scan", swap, "triggers()", "triggers()[:1]"}}},
	{"only-random-tokens-count", "W5", "a vendor's token is taken for an example if its letters are few", "internal/scan.TestW5VendorForms", []change{
		{"internal/scan", swap, "!examples[string(secret)]", "entropy(secret) > 3"}}},

	{"what-follows-passes", "W6", "bytes behind the end of a compressed body pass unread", "internal/scan.TestCodingsRefused", []change{
		{"internal/scan", off, "d.over && d.unread > 0", ""}}},
	{"bombs-go-off", "W6", "a body may decode to any size", "internal/scan.TestBombs", []change{
		{"internal/scan", off, "s.output > freeOutput", ""}}},

	{"each-route-has-the-bottles-cap", "W7", "what all routes send together is not counted", "internal/gateway.TestEgressBytes", []change{
		{"internal/gateway", off, "as.all != nil", ""}}},

	{"services-have-any-port", "W8", "a bottle reaches every port of a service", "internal/gateway.TestW8Services", []change{
		{"internal/gateway", off, "!slices.Contains(g.services[name].Ports, port)", ""}}},

	{"pushes-go-on-unread", "G1", "a push is sent on without its objects being searched", "internal/gitgate.TestSmuggle", []change{
		{"internal/gitgate", drop, "err = p.judge(r.Context())", ""}}},
	{"submodules-go-unread", "G1", "the id of a submodule's commit may be a secret", "internal/gitgate.TestSmuggle", []change{
		{"internal/gitgate", off, "mode == gitobject.ModeSubmodule", ""}}},
	{"zips-are-believed", "G1", "a zip's directory may name what nobody read", "internal/scan.TestUnreadable", []change{
		{"internal/scan", off, "n > 0 && (!ok ||", ""}}},
	{"every-key-is-old", "G1", "a key is taken for one that upstream has in the same file, and nobody is asked", "internal/gitgate.TestG1Keys", []change{
		{"internal/gitgate", swap, `id == "" || !bytes.Contains(texts[id], framed(f.code))`, "false"}}},
	{"harm-beside-old-faults", "G1", "an object that harms who clones it goes out with one that has a fault of old histories", "internal/gitgate.TestG1OldFaults", []change{
		{"internal/gitgate", off, `m[1] == "error"`, ""}}},

	{"any-host-will-do", "G2", "an upstream that shows another host key is believed", "internal/gitgate.TestHostileSSH", []change{
		{"internal/gitgate", on, "bytes.Equal(k.Marshal(), key.Marshal())", ""}}},
	{"the-token-follows", "G2", "the upstream's token goes along to wherever it redirects", "internal/gitgate.TestRedirects", []change{
		{"internal/gitgate", off, "next.URL.Scheme != first.Scheme", ""}}},

	{"some-or-none", "G3", "one reference of a push lands and another does not", "internal/gitgate.TestAtomic", []change{
		{"internal/gitgate", off, `len(p.updates) > 1 || p.has("atomic")`, ""}}},
	{"killed-while-tidying", "G3", "git is killed while it removes a push that it refused", "internal/gitgate.TestRefusedByUpstreamLeavesNothing", []change{
		{"internal/gitgate", drop, "c.rest = tidying", ""}}},
	{"killed-and-left", "G3", "objects of a push that was cut short stay", "internal/gitgate.TestKilledGate", []change{
		{"internal/gitgate", off, `strings.HasPrefix(e.Name(), "push-")`, ""}}},

	{"anchors-are-not-compared", "A1", "a history that was written anew as a whole, by who has the key, passes", "internal/audit.TestRewrittenHistory", []change{
		{"internal/audit", off, "a.Root != v.tree.root()", ""}}},
	{"evidence-is-not-compared", "A1", "a verdict's evidence was exchanged, and nobody notices", "internal/gate.TestKeptIsChecked", []change{
		{"internal/gate", off, "got != want[name]", ""}}},

	{"audit-text-is-not-redacted", "A2", "the audit log keeps text with the secrets in it", "internal/audit.TestTextHoldsNoSecrets", []change{
		{"internal/audit", swap, "r.String(s)", "s"}}},
	{"a-secret-in-the-queue", "A2", "a proposal with a secret in it is written down", "internal/supervise.TestSecrets", []change{
		{"internal/supervise", off, "Redactor.In(string(data))", ""}}},

	{"files-that-others-write-are-answers", "H1", "a file that another user can write to answers", "internal/supervise.TestForgedAnswers", []change{
		{"internal/supervise", off, "st.Mode&0o022 != 0", ""}}},
	{"a-bottle-fills-the-queue", "H1", "any number of proposals wait", "internal/supervise.TestFlood", []change{
		{"internal/supervise", off, "len(a.byID) >= MaxWaiting", ""}}},
	{"tunnels-are-asked-for", "H1", "a bottle proposes a tunnel that nobody looks into", "internal/supervise.TestH1Tunnels", []change{
		{"internal/supervise", off, "r.Protocol() == policy.ProtocolTCP", ""}}},
	{"forms-need-no-token", "H1", "a form that the page did not make is taken", "internal/supervise/web.TestForged", []change{
		{"internal/supervise/web", off, "!in.formTokenIs(", ""}}},

	{"old-approvals-count-again", "H2", "the answer to one proposal counts for another", "internal/supervise.TestReplay", []change{
		{"internal/supervise", off, "a.ID != p.ID", ""}}},
	{"another-text-is-approved", "H2", "what is approved in another form is not what was looked at", "internal/supervise/web.TestChangedMeanwhile", []change{
		{"internal/supervise/web", off, "as != v.as", ""}}},

	{"losses-are-not-counted", "T1", "facts that were lost are not counted", "internal/bottle/gvisor.TestFactsLostAreCounted", []change{
		{"internal/bottle/gvisor", drop, "w.dropped += w.n", ""}}},
	{"libraries-are-not-told", "T1", "code that is mapped into a process is no fact", "internal/bottle/gvisor.TestFactsOfLibraries", []change{
		{"internal/bottle/gvisor", off, "linux.PROT_EXEC != 0", ""}}},

	{"opinions-are-facts", "T2", "a fact may hold somebody's confidence", "internal/gate.TestNoOpinions", []change{
		{"internal/gate", off, "opinion(n)", ""}}},
	{"the-changes-tests-alone-count", "T2", "the base's tests do not run on a change that edits tests", "internal/gate.TestT2BaseTestsAsk", []change{
		{"internal/gate", on, "len(e.paths) == 0", ""}}},
	{"any-edit-was-accepted", "T2", "a changed test that was accepted may be changed again", "internal/gate.TestT2ChangedTestsAccepted", []change{
		{"internal/gate", on, "g.Files == files", ""}}},
	{"text-behind-a-verdict", "T2", "a verdict may have something behind it", "internal/gate.TestOneDocument", []change{
		{"internal/gate", off, "len(bytes.TrimSpace(b[end:])) > 0", ""}}},

	{"objects-are-not-checked", "T3", "an object of the repository is not what its name says", "internal/gate.TestT3RepositoriesThatLie", []change{
		{"internal/gate", off, "!got.authentic()", ""}}},
	{"no-policy-no-judges", "T3", "a change may touch its judges when no signal asks about policy", "internal/gate.TestT3JudgesWithoutPolicy", []change{
		{"internal/gate", drop, "r := g.controlFilesTouched(", ""}}},

	{"the-network-is-no-input", "T4", "a phase's answers from the network may change", "internal/gate.TestT4EveryInputCounts", []change{
		{"internal/gate", off, "now.Answers[k] != was.Answers[k]", ""}}},
	{"a-cache-on-disk-is-believed", "T4", "a cache that was edited on disk is used", "internal/gate.TestT4WarmTampered", []change{
		{"internal/gate", off, "got != x.want", ""}}},

	{"signers-name-themselves", "P1", "an approval counts for a principal that its key does not belong to", "internal/ship/approval.TestSigners", []change{
		{"internal/ship/approval", off, "!slices.Contains(who.principals, name)", ""}}},
	{"plans-have-many-spellings", "P1", "a plan may be spelt in another way than it was approved", "internal/ship/plan.TestP1Spelling", []change{
		{"internal/ship/plan", off, "!bytes.Equal(again, b)", ""}}},

	{"ailing-is-not-said", "P2", "there is nothing to do, and nobody says that what runs is unhealthy", "internal/ship.TestP2Ailing", []change{
		{"internal/ship", swap, "o.Ailing()", `""`}}},
	{"by-hand-is-current", "P2", "what somebody deployed by hand is called as it was applied", "internal/ship.TestState", []change{
		{"internal/ship", swap, "last != nil && asApplied(last, now) || last == nil && v.takenOver", "true"}}},

	{"values-are-not-quoted", "P3", "a manifest's value reaches a shell as it is", "internal/ship/remote.TestP3Quote", []change{
		{"internal/safetext", swap, "strings.ReplaceAll(s, \"'\", `'\\''`)", "s"}}},
	{"modules-lead-out", "P3", "a module's file lies outside of its directory", "internal/ship/module.TestP3Modules", []change{
		{"internal/ship/module", off, `strings.HasPrefix(p, "../")`, ""}}},

	{"output-tells-secrets", "P4", "a secret in a host's output is shown", "internal/ship.TestRedaction", []change{
		{"internal/ship", swap, "forms()", "forms()[:0]"}}},

	{"edited-reviews-count", "P5", "a line that somebody added to a review, or took from it, after it was submitted counts", "internal/ship/reviews.TestP5Judge", []change{
		{"internal/ship/reviews", off, "found.Body != v.Body", ""}}},
	{"the-forge-is-asked-once", "P5", "a review that was dismissed while carboy connected to the host approves", "internal/ship.TestP5AskedAgain", []change{
		{"internal/ship", drop, "err := e.reviewedStill(ctx, o)", ""}}},
	{"reviews-alone-destroy", "P5", "reviews approve what destroys, without a signature", "internal/ship.TestP5Destructive", []change{
		{"internal/ship", off, "o.Destructive() && len(people) == 0", ""}}},

	{"agents-write-anywhere", "F1", "an agent writes to any issue of the repository", "internal/forgeservice.TestF1WritesInScopeOnly", []change{
		{"internal/forgeservice", swap, "issue || pull", "true"}}},

	{"comments-come-again", "F2", "a comment is posted each time that it is asked for", "internal/forgeservice.TestF2PostedOnce", []change{
		{"internal/forge", off, "strings.HasSuffix(strings.TrimSpace(m.Body), tail)", ""}}},

	{"strangers-prompt", "F3", "whoever comments gives the agent orders", "internal/orchestrate.TestF3Comments", []change{
		{"internal/orchestrate", swap, "err == nil && a >= forge.WriteAccess", "true"}}},
}
