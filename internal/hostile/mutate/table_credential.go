package main

// W4 and S3: credentials that are put on, and what stands in their place.

var credentialMutants = []mutant{
	{
		Name: "answers-beside-the-route-are-believed", Promise: "W4",
		Why:     "what a server was told on one route it hands in on another of the same host",
		Package: "./internal/gateway", Tests: []string{"TestBesideTheRoute"}, Says: "the value came in",
		edits: []edit{{"internal/gateway/flow.go", "			a.beside[want] = c\n", "			_ = c\n"}},
	},
	{
		Name: "credentials-follow-the-host", Promise: "W4",
		Why:     "paths are not compared: the credential is put on every request to the host",
		Package: "./internal/hostile", Tests: []string{"TestW4Credentials"}, Says: "escaped credentials/path-tricks",
		edits: []edit{{"internal/policy/request.go", "	if len(m.Paths) > 0 && !slices.ContainsFunc(m.Paths, func(p PathMatch) bool { return p.match(path) }) {", "	if false {"}, {"internal/policy/request.go", "			if pathErr != nil && len(m.Paths) > 0 {\n				continue\n			}\n", ""}},
	},
	{
		Name: "own-credentials-stay", Promise: "W4",
		Why:     "what the agent puts where credentials stand goes out beside the route's own: requests are made as somebody else",
		Package: "./internal/credential", Tests: []string{"TestSign", "TestOwnInEverySpelling"}, Says: "agents-own",
		edits: []edit{{"internal/credential/credential.go", "			delete(req.Header, h)\n", ""}},
	},
	{
		Name: "own-parameters-stay", Promise: "W4",
		Why:     "credentials of the agent's own stay in the query",
		Package: "./internal/credential", Tests: []string{"TestSign", "TestOwnInEverySpelling"}, Says: "agents-own",
		edits: []edit{{"internal/credential/credential.go", "return sameParam(o, plain) }", "return false }"}},
	},
	{
		Name: "own-spellings-stay", Promise: "W4",
		Why:     "X_Api_Key passes for another header than X-Api-Key, which lenient servers take it for",
		Package: "./internal/credential", Tests: []string{"TestOwnInEverySpelling"}, Says: "left are",
		edits: []edit{{"internal/policy/request.go", "	return '-'\n", "	return c\n"}},
	},
	{
		Name: "own-trailers-stay", Promise: "W4",
		Why:     "an Authorization in a trailer goes out",
		Package: "./internal/credential", Tests: []string{"TestOwnInEverySpelling"}, Says: "trailers left are",
		edits: []edit{{"internal/credential/credential.go", "		req.Body = &trailed{req.Body, without}\n", ""}},
	},
	{
		Name: "queries-have-one-reading", Promise: "W4",
		Why:     "a parameter behind a semicolon is not seen, and some servers see it",
		Package: "./internal/credential", Tests: []string{"TestAmbiguousQuery"}, Says: "signed as",
		edits: []edit{{"internal/credential/credential.go", "		if err != nil || strings.Contains(p, \";\") {", "		if err != nil {"}},
	},
	{
		Name: "ambiguous-paths-go-on", Promise: "W4",
		Why:     "a path that may be another route's meets the next one, which has no conditions",
		Package: "./internal/policy", Tests: []string{"TestAmbiguousPathsMeetNoLaterRoute"}, Says: "want ambiguous-path",
		edits: []edit{{"internal/policy/request.go", "			if pathErr != nil && byPath {", "			if false {"}},
	},
	{
		Name: "plain-http-is-signed", Promise: "W4",
		Why:     "a credential is put on plain HTTP, for everybody on the way",
		Package: "./internal/gateway", Tests: []string{"TestCredential"}, Says: "http://api.example.com/v1/x",
		edits: []edit{{"internal/gateway/sign.go", "	if req.URL.Scheme != \"https\" && !want.Insecure && !staysHere(req.URL.Hostname()) {", "	if false {"}},
	},
	{
		Name: "missing-credentials-are-nothing", Promise: "W4",
		Why:     "a request whose route wants a credential that is not there goes out with the agent's own",
		Package: "./internal/gateway", Tests: []string{"TestCredential"}, Says: "https://other.example.com/",
		edits: []edit{{"internal/gateway/sign.go", "	if c == nil {\n		return nil, refuse(ReasonCredential, \"the route's credential is not there\")\n	}\n", "	if c == nil {\n		return a.roundTrip(req)\n	}\n"}},
	},
	{
		Name: "answers-are-not-scrubbed", Promise: "W4",
		Why:     "what a server repeats of the credential enters",
		Package: "./internal/hostile", Tests: []string{"TestW4Credentials"}, Says: "it brought the text that was planted on the host",
		edits: []edit{{"internal/credential/scrub.go", "	if v.Len() < minScrubbed {\n		return\n	}\n", "	return\n"}},
	},
	{
		Name: "headers-are-not-scrubbed", Promise: "W4",
		Why:     "a server repeats the credential in a header",
		Package: "./internal/gateway", Tests: []string{"TestCredential"}, Says: "header: 200",
		edits: []edit{{"internal/gateway/sign.go", "	scrubber.Header(res.Header)\n", ""}},
	},
	{
		Name: "early-answers-are-not-scrubbed", Promise: "W4",
		Why:     "a server repeats the credential in an answer before the answer",
		Package: "./internal/gateway", Tests: []string{"TestCredential"}, Says: "early: 200",
		edits: []edit{{"internal/gateway/sign.go", "		scrubber.Header(http.Header(h))\n", ""}},
	},
	{
		Name: "trailers-are-not-scrubbed", Promise: "W4",
		Why:     "a server repeats the credential in a trailer",
		Package: "./internal/gateway", Tests: []string{"TestCredential"}, Says: "trailer: 200",
		edits: []edit{{"internal/gateway/sign.go", "		t.scrubber.Header(t.res.Trailer)\n", ""}},
	},
	{
		Name: "compressed-answers-pass", Promise: "W4",
		Why:     "an answer that is compressed, though it was asked not to be, enters unsearched",
		Package: "./internal/hostile", Tests: []string{"TestW4Credentials"}, Says: "escaped credentials/echo-compressed",
		edits: []edit{{"internal/gateway/sign.go", "		return refuse(ReasonReply, \"upstream answers encoded (%.60q), though it was asked not to, so its answer can't be searched for the credential\", strings.Join(codings, \", \"))", "		return nil"}},
	},
	{
		Name: "nothing-is-held-back", Promise: "W4",
		Why:     "the beginning of a credential passes before its end has come: in pieces it enters whole",
		Package: "./internal/credential", Tests: []string{"TestScrub"}, Says: "bytes: ",
		edits: []edit{{"internal/credential/scrub.go", "			r.ready -= r.s.tail(r.buf)\n", ""}},
	},
	{
		Name: "one-form-is-scrubbed", Promise: "W4",
		Why:     "a credential with signs in it enters as URLs, JSON and HTML write it",
		Package: "./internal/credential", Tests: []string{"TestScrubForms"}, Says: "the value is left in",
		edits: []edit{{"internal/credential/scrub.go", "range forms(v.UnsafeString())", "range forms(v.UnsafeString())[:0:0]"}},
	},
	{
		Name: "errors-quote-upstream", Promise: "S3",
		Why:     "what upstream says that is no HTTP stands in the error that the bottle is told, the credential with it",
		Package: "./internal/gateway", Tests: []string{"TestUpstreamNonsense"}, Says: "the bottle is told",
		edits: []edit{{"internal/gateway/sign.go", "		if told := scrubber.Text(err.Error()); told != err.Error() {", "		if told := \"\"; false {"}},
	},
	{
		Name: "the-value-is-the-placeholder", Promise: "S3",
		Why:     "the real credential stands inside, in the variable",
		Package: "./internal/hostile", Tests: []string{"TestS3Placeholders", "TestS3NothingKept", "TestS3Reload"}, Says: "escaped placeholders/environment",
		edits: []edit{{"internal/credential/credential.go", "	out.placeholder = newPlaceholder(value.Len())\n", "	out.placeholder = value.UnsafeString()\n"}},
	},
	{
		Name: "placeholders-are-all-alike", Promise: "S3",
		Why:     "every bottle has the same placeholder",
		Package: "./internal/credential", Tests: []string{"TestPlaceholder"}, Says: "credential_test.go",
		edits: []edit{{"internal/credential/credential.go", "	s := prefix + strings.ToLower(rand.Text())\n", "	s := prefix + strings.Repeat(\"x\", n+20)\n"}},
	},
	{
		Name: "commands-hold-secrets", Promise: "S3",
		Why:     "a command line that holds a credential is run with it",
		Package: "./internal/hostile", Tests: []string{"TestS3NothingKept"}, Says: "is not refused",
		edits: []edit{{"secrets.go", "		if name := watched.in(arg); name != \"\" {", "		if name := watched.in(arg); false {"}},
	},
	{
		Name: "reloads-teach-no-record", Promise: "S3",
		Why:     "a credential that comes with routes which are read again stands in the records",
		Package: "./internal/hostile", Tests: []string{"TestS3ReloadKept"}, Says: "holds it",
		edits: []edit{{"reload.go", "	if err := s.redactor.Add(marks(creds)); err != nil {", "	if err := s.redactor.Add(nil); err != nil {"}},
	},
	{
		Name: "what-is-inside-becomes-a-credential", Promise: "S3",
		Why:     "routes that are read again put on what the user has put into the bottle",
		Package: "./internal/hostile", Tests: []string{"TestS3ReloadOfWhatIsInside"}, Says: "the user is told",
		edits: []edit{{"reload.go", "		if err := t.holds(creds); err != nil {", "		if err := t.holds(creds); false {"}},
	},
	{
		Name: "changes-before-the-start-are-missed", Promise: "S3",
		Why:     "routes that change between their reading and the command's start are not read again",
		Package: "./internal/hostile", Tests: []string{"TestReloadBetween"}, Says: "the server got",
		edits: []edit{{"reload.go", "	at := s.read\n", "	at, _ := stampOf(s.o.Routes)\n"}},
	},
	{
		Name: "records-know-plain-values", Promise: "S3",
		Why:     "a credential stands in the records as base64 and hex write it",
		Package: "./internal/hostile", Tests: []string{"TestS3ReloadKept"}, Says: "holds its hex",
		edits: []edit{{"internal/secret/redact.go", "range forms(v.bytes())", "range [][]byte{v.bytes()}"}},
	},
}
