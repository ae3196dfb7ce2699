package main

// S5, S6, A1, A2: what is kept on disk.

var fileMutants = []mutant{
	{
		Name: "landings-are-not-taken-back", Promise: "S5",
		Why:     "after a crash nobody finishes or takes back a landing that was cut short",
		Package: "./internal/change", Tests: []string{"TestKill"}, Says: "neither old",
		edits: []edit{{"internal/change/recover.go", "	if err := x.rollback(); err != nil {", "	if err := error(nil); err != nil {"}},
	},
	{
		Name: "recovery-knows-no-files", Promise: "S5",
		Why:     "after a crash the journal isn't asked which files the landing made: those that it had put in place stay, those that it set aside are lost",
		Package: "./internal/change", Tests: []string{"TestKill"}, Says: "neither old",
		edits: []edit{{"internal/change/rollback.go", "	if i < len(x.j.stamps) && len(x.j.stamps[i]) > 0 {", "	if false {"}},
	},
	{
		Name: "records-are-written-in-place", Promise: "S5",
		Why:     "a record is written over the old one instead of beside it: a crash leaves half of it",
		Package: "./internal/store", Tests: []string{"TestEverySyscallFails"}, Says: "crash false",
		edits: []edit{{"internal/store/file.go", "	fd, err := s.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)", "	tmp = name\n	fd, err := s.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, mode)"}},
	},
	{
		Name: "records-are-not-synced", Promise: "S5",
		Why:     "a record gets its name before its content is on disk: after a power cut it may be empty",
		Package: "./internal/store", Tests: []string{"TestSyncComesBeforeTheName"}, Says: "want write sync rename sync dir",
		edits: []edit{{"internal/store/file.go", "		err = s.Fsync(fd)\n", ""}},
	},
	{
		Name: "lost-runs-go-on", Promise: "S5",
		Why:     "a run whose carboy died is never marked as lost, nor cleaned",
		Package: "./internal/store", Tests: []string{"TestRecover"}, Says: "lost: []",
		edits: []edit{{"internal/store/recover.go", "			if !m.State.Over() {\n", "			if false {\n"}},
	},
	{
		Name: "torn-log-is-not-cut", Promise: "S5",
		Why:     "what a crash left of a record stays in the audit log, and the next one is written after it",
		Package: "./internal/audit", Tests: []string{"TestTornTailIsCutAndRecorded"}, Says: "cut at",
		edits: []edit{{"internal/audit/log.go", "	if cut > 0 {\n		if err := l.disk.Truncate(l.log, l.size); err != nil {\n			return err\n		}\n	}\n", "	l.size += cut\n"}},
	},
	{
		Name: "protected-paths-land", Promise: "S6",
		Why:     "git hooks, git configuration and agents' settings land unasked",
		Package: "./internal/hostile", Tests: []string{"TestS6ProtectedPaths", "TestS6WayHome"}, Says: "landed unasked",
		edits: []edit{{"internal/change/select.go", "		case len(reasons) > 0 && !opts.IncludeProtected:", "		case false:"}},
	},
	{
		Name: "names-are-not-folded", Promise: "S6",
		Why:     "only one spelling of a protected name is protected, not those that other systems take for it",
		Package: "./internal/hostile", Tests: []string{"TestS6ProtectedPaths"}, Says: "AGENTS.md landed unasked",
		edits: []edit{{"internal/change/protect.go", "		folded[i] = fold(c)", "		folded[i] = c"}},
	},
	{
		Name: "landing-follows-links", Promise: "S6",
		Why:     "paths are resolved through symbolic links, also out of the workspace",
		Package: "./internal/hostile", Tests: []string{"TestS6LinksOut"}, Says: "wrote through a link",
		edits: []edit{{"internal/change/fsys.go", "const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |\n	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "const beneath = 0"}},
	},
	{
		Name: "landing-trusts-an-earlier-look", Promise: "S6",
		Why:     "a directory that is swapped for a link after the look is followed",
		Package: "./internal/change", Tests: []string{"TestSymlinkRace"}, Says: "outside changed",
		edits: []edit{{"internal/change/fsys.go", "const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |\n	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "const beneath = 0"}},
	},
	{
		Name: "set-user-id-lands", Promise: "S6",
		Why:     "a file with a set-user-id bit lands unasked",
		Package: "./internal/hostile", Tests: []string{"TestS6ModesThatGiveRights"}, Says: "landed with mode",
		edits: []edit{{"internal/change/protectgit.go", "		if c.Type == File && c.Mode&0o6000 != 0 {", "		if false {"}},
	},
	{
		Name: "host-edits-are-overwritten", Promise: "S6",
		Why:     "what the host changed since the run began is not looked at: neither when planning nor at the rename",
		Package: "./internal/hostile", Tests: []string{"TestS6HostEdits"}, Says: "landing over an edit of the host",
		edits: []edit{
			{"internal/change/plan.go", "	if why, err := p.differs(c, rel, now); err != nil || why != \"\" {", "	if why, err := \"\", error(nil); err != nil || why != \"\" {"},
			{"internal/change/plan.go", "	same, err := p.sameAs(c.Base, rel, now)\n	if err != nil || same {\n		return \"\", err\n	}\n	return \"changed on the host since\", nil", "	return \"\", nil"},
		},
	},
	{
		Name: "last-moment-is-not-looked-at", Promise: "S6",
		Why:     "who writes between the look and the rename is overwritten",
		Package: "./internal/change", Tests: []string{"TestLastMoment"}, Says: "got <nil>",
		edits: []edit{{"internal/change/apply.go", "	if !same {\n		return errors.New(\"changed on the host this moment\")\n	}", "	_ = same"}},
	},
	{
		Name: "landing-asks-git", Promise: "S6",
		Why:     "landing calls the host's git in the workspace, which runs what the repository configures",
		Package: "./internal/hostile", Tests: []string{"TestS6LandingRunsNothing"}, Says: "was run on the host",
		edits: []edit{{"review.go", "	s, m, release, err := c.forLanding(ctx, id)\n	if err != nil {\n		return nil, err\n	}\n	defer release()\n	// What was", "	s, m, release, err := c.forLanding(ctx, id)\n	if err != nil {\n		return nil, err\n	}\n	defer release()\n	if p, err := os.StartProcess(\"/usr/bin/git\", []string{\"git\", \"-C\", string(m.Workspace.Path), \"status\"}, &os.ProcAttr{Env: os.Environ()}); err == nil {\n		p.Wait()\n	}\n	// What was"}},
	},
	{
		Name: "copies-lead-out-by-links", Promise: "S6",
		Why:     "a link that carboy cp makes goes up after a step down, which another link of the copy may have made a step up",
		Package: "./internal/carry", Tests: []string{"TestHostileStreams"}, Says: "new/a/b/p",
		edits: []edit{{"internal/carry/carry.go", "down || depth < 1", "depth < 1 && !down"}},
	},
	{
		Name: "copies-take-any-name", Promise: "S6",
		Why:     "carboy cp takes from a bottle's tar what nobody asked for",
		Package: "./internal/carry", Tests: []string{"TestHostileStreams"}, Says: "was not asked for",
		edits: []edit{{"internal/carry/carry.go", "	if first != o.base {\n", "	if first == \"\" {\n"}},
	},
	{
		Name: "copies-write-over-what-is-there", Promise: "S6",
		Why:     "carboy cp puts what comes out in the place of what has the name, while nobody looks",
		Package: "./internal/carry", Tests: []string{"TestWhatIsThere"}, Says: "file:",
		edits: []edit{
			{"internal/carry/carry.go", "	if _, err := parent.Lstat(name); err == nil {\n", "	if _, err := parent.Lstat(name); err == nil && name == \"\" {\n"},
			{"internal/carry/carry.go", "unix.RENAME_NOREPLACE", "0"},
		},
	},
	{
		Name: "stream-may-name-anything", Promise: "S6",
		Why:     "paths in what the bottle gives out are not checked",
		Package: "./internal/change", Tests: []string{"TestHostileStream"}, Says: "got add file",
		edits: []edit{
			{"internal/change/upper.go", "		if err := checkRel(rel); err != nil {", "		if err := error(nil); err != nil {"},
			{"internal/change/change.go", "		if err := checkRel(string(s.Changes[i].Path)); err != nil {", "		if err := error(nil); i < 0 {"},
			{"internal/change/fsys.go", "const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |\n	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV", "const beneath = 0"},
		},
	},
	{
		Name: "refusals-are-not-recorded", Promise: "A1",
		Why:     "refused connections are in the receipt alone",
		Package: "./internal/hostile", Tests: []string{"TestA1EveryDecision"}, Says: "no record of",
		edits: []edit{{"netlog.go", "			s.denied(audit.Connect, ", "			_ = func(...any) {}\n			noRecord(audit.Connect, "}, {"run.go", "// slowExport is when", "func noRecord(...any) {}\n\n// slowExport is when"}},
	},
	{
		Name: "landings-are-not-recorded", Promise: "A1",
		Why:     "what people land and undo is not in the log",
		Package: "./internal/hostile", Tests: []string{"TestA1EveryDecision"}, Says: "no record of",
		edits: []edit{{"review.go", "	none, err := secret.NewRedactor(nil)\n", "	if kind == audit.Land {\n		return nil\n	}\n	none, err := secret.NewRedactor(nil)\n"}},
	},
	{
		Name: "log-is-not-compared", Promise: "A1",
		Why:     "neither the signed root nor the stored hashes are compared with the records: any edit passes",
		Package: "./internal/hostile", Tests: []string{"TestA1TamperedLog"}, Says: "an edited word of log goes unnoticed",
		edits: []edit{
			{"internal/audit/verify.go", "		if v.next.Root != v.tree.root() || v.next.Bytes != v.bytes {", "		if v.next.Bytes != v.bytes {"},
			{"internal/audit/verify.go", "	if got != want {\n", "	if false {\n"},
			{"internal/audit/verify.go", "		if a := v.anchors[0]; a.Size == v.tree.n && a.Root != v.tree.root() {", "		if a := v.anchors[0]; false {"},
		},
	},
	{
		Name: "signatures-are-not-verified", Promise: "A1",
		Why:     "a checkpoint that anybody made passes",
		Package: "./internal/audit", Tests: []string{"TestEveryFlipIsDetected"}, Says: "flipped unseen",
		edits: []edit{{"internal/audit/checkpoint.go", "	n, err := note.Open(signed, note.VerifierList(v))\n	if err != nil {", "	n, err := note.Open(signed, note.VerifierList(v))\n	if unverified := (*note.UnverifiedNoteError)(nil); errors.As(err, &unverified) {\n		n, err = unverified.Note, nil\n		n.Sigs, n.UnverifiedSigs = n.UnverifiedSigs, nil\n	}\n	if err != nil {"}},
	},
	{
		Name: "anchors-are-not-compared", Promise: "A1",
		Why:     "a history that was written anew as a whole, by who has the key, passes",
		Package: "./internal/audit", Tests: []string{"TestRewrittenHistory"}, Says: "a rewritten history passed",
		edits: []edit{{"internal/audit/verify.go", "a.Size == v.tree.n && a.Root != v.tree.root() {", "a.Size == v.tree.n && false {"}},
	},
	{
		Name: "the-end-may-be-missing", Promise: "A1",
		Why:     "a log that ends before its last checkpoint passes",
		Package: "./internal/audit", Tests: []string{"TestTamperingIsDetected"}, Says: `"intact"`,
		edits: []edit{
			{"internal/audit/verify.go", "	if v.next != nil {\n", "	if false {\n"},
			{"internal/audit/verify.go", "	for _, a := range v.anchors {\n", "	for _, a := range v.anchors[:0] {\n"},
		},
	},
	{
		Name: "values-are-not-redacted", Promise: "A2",
		Why:     "the redactor changes nothing: what the user passed in under a secret's name stands in the records",
		Package: "./internal/hostile", Tests: []string{"TestA2NoSecretInRecords"}, Says: "holds the secret",
		edits: []edit{{"internal/secret/redact.go", "		n, mark := w.at(b[i:], cut)\n", "		n, mark := 0, []byte(nil)\n"}},
	},
	{
		Name: "audit-text-is-not-redacted", Promise: "A2",
		Why:     "the audit log alone keeps text as it came",
		Package: "./internal/audit", Tests: []string{"TestTextHoldsNoSecrets"}, Says: "ghp_",
		edits: []edit{{"internal/audit/audit.go", "	return Text{visible.String(r.String(s), MaxText)}", "	return Text{visible.String(s, MaxText)}"}},
	},
	{
		Name: "command-line-is-not-redacted", Promise: "A2",
		Why:     "a secret that stands in the command line too is in the run's record and receipt",
		Package: "./internal/hostile", Tests: []string{"TestA2NoSecretInRecords"}, Says: "holds the secret",
		edits: []edit{{"run.go", "		out[i] = s.redactor.String(a)", "		out[i] = a"}},
	},
}
