package main

// H1, H2, T3: what gates and shipping ask people, and who signs.

var peopleMutants = []mutant{
	{
		Name: "the-queue-approves-what-is-signed", Promise: "H2",
		Why:     "an apply goes on by an answer at the queue, without any signature",
		Package: "./internal/supervise", Tests: []string{"TestEveryKind"}, Says: "approved here: ",
		edits: []edit{{"internal/supervise/kind.go", "if s, ok := p.(Signed); ok && v.Allows() {", "if s, ok := p.(Signed); ok && v == \"\" {"}},
	},
	{
		Name: "an-approval-of-any-verdict", Promise: "H2",
		Why:     "an approval to set one verdict aside is carried out on what stands under that name by now",
		Package: ".", Tests: []string{"TestH1OverrideForged"}, Says: "another verdict's digest was carried out",
		edits: []edit{{"gateask.go", "	case digest != p.Verdict:", "	case digest == \"\":"}},
	},
	{
		Name: "nobody-overrides", Promise: "H1",
		Why:     "an override that nobody answered in time is carried out",
		Package: ".", Tests: []string{"TestH1OverrideForged"}, Says: "nobody answered: ",
		edits: []edit{{"internal/supervise/supervise.go", "return v == Approved || v == Modified", "return v == Approved || v == Modified || v == Expired"}, {"internal/supervise/approval.go", "if !o.Allowed() || checkSigned(", "if checkSigned("}},
	},
	{
		Name: "a-word-that-is-not-on-record", Promise: "H1",
		Why:     "an override counts that somebody wrote into the verdict's file",
		Package: ".", Tests: []string{"TestH1OverrideForged"}, Says: "an override that is not on record counts",
		edits: []edit{{"gaterecord.go", "		case err == nil && hexSum(b) == sum:", "		case err == nil && (hexSum(b) == sum || strings.Contains(string(b), \"override\")):"}},
	},
	{
		Name: "unsigned-baselines-count", Promise: "T3",
		Why:     "a baseline counts without a signature, where the operator says who signs",
		Package: ".", Tests: []string{"TestT3SignedBaseline"}, Says: "no signature: it counts",
		edits: []edit{{"baseline.go", "		return \"\", \"it is not signed, which \"", "		return \"\", \"\"\n		return \"\", \"it is not signed, which \""}},
	},
	{
		Name: "an-edited-baseline-counts", Promise: "T3",
		Why:     "whoever signed anything has signed every baseline",
		Package: ".", Tests: []string{"TestT3SignedBaseline"}, Says: "edited after signing: it counts",
		edits: []edit{{"internal/ship/approval/approval.go", "	if err := sshsig.Verify(bytes.NewReader(in.Statement), sig, sig.PublicKey, sig.HashAlgorithm, namespace); err != nil {", "	if err := sshsig.Verify(bytes.NewReader(in.Statement), sig, sig.PublicKey, sig.HashAlgorithm, namespace); err != nil && name == \"\" {"}},
	},
	{
		Name: "anybody-signs-baselines", Promise: "T3",
		Why:     "a key counts that stands in no list of the operator's",
		Package: ".", Tests: []string{"TestT3SignedBaseline"}, Says: "the baseline was written",
		edits: []edit{{"internal/ship/approval/approval.go", "	return Mismatch(\"%s does not allow the key %s for %s\", SignersFile, ssh.FingerprintSHA256(key), name)", "	return nil"}},
	},
	{
		Name: "keys-for-plans-sign-baselines", Promise: "T3",
		Why:     "who may approve plans may change what gates compare with",
		Package: ".", Tests: []string{"TestT3SignedBaseline"}, Says: "a key for plans: ",
		edits: []edit{{"internal/ship/approval/approval.go", "		case who.namespaces != nil && !slices.Contains(who.namespaces, namespace):", "		case who.namespaces != nil && len(who.namespaces) == 0:"}},
	},
	{
		Name: "the-work-tree-is-what-stands", Promise: "T3",
		Why:     "what an agent wrote into the baseline of the work tree is taken over with what a person accepts",
		Package: ".", Tests: []string{"TestT3SmuggledBaseline"}, Says: "what the agent put there was taken over",
		edits: []edit{{"baseline.go", "		if last == here.Digest() {", "		if last != \"\" {"}},
	},
	{
		Name: "attempts-without-a-grant", Promise: "H1",
		Why:     "an agent gets more attempts than anybody gave it",
		Package: ".", Tests: []string{"TestWorkAsksForMore"}, Says: "Outcome:passed",
		edits: []edit{{"attempts.go", "	return w.task.Attempts\n}", "	return max(w.task.Attempts, w.o.MaxAttempts)\n}"}},
	},
}
