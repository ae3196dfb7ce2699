package main

// W5 and W6: secrets on their way out, and bodies that are looked at.

var scanMutants = []mutant{
	{
		Name: "case-is-cover", Promise: "W5",
		Why:     "a secret passes where names lose their case on the way",
		Package: "./internal/gateway", Tests: []string{"TestCaseIsNoCover"}, Says: "upstream saw it",
		edits: []edit{{"internal/gateway/detect.go", "	if err == nil && !w.scan.NoSecrets {", "	if false {"}},
	},
	{
		Name: "nothing-is-looked-for", Promise: "W5",
		Why:     "requests leave as they are",
		Package: "./internal/hostile", Tests: []string{"TestW5Secrets", "TestW6Bodies"}, Says: "the server got",
		edits: []edit{{"internal/gateway/detect.go", "func (w *watch) request(req *http.Request) error {\n	if w.rules == nil {", "func (w *watch) request(req *http.Request) error {\n	if true {"}},
	},
	{
		Name: "heads-are-not-looked-at", Promise: "W5",
		Why:     "only bodies are scanned: paths, queries, headers and cookies carry secrets out",
		Package: "./internal/gateway", Tests: []string{"TestSecretsOut"}, Says: "upstream saw it",
		edits: []edit{{"internal/gateway/detect.go", "	if err := w.head(req); err != nil {\n		return err\n	}\n", ""}},
	},
	{
		Name: "trailers-are-not-looked-at", Promise: "W5",
		Why:     "a secret leaves behind the body, in a trailer",
		Package: "./internal/gateway", Tests: []string{"TestSecretsOut"}, Says: "upstream saw it",
		edits: []edit{{"internal/gateway/detect.go", "	if len(b.req.Trailer) == 0 {\n		return nil\n	}\n", "	return nil\n"}},
	},
	{
		Name: "names-of-trailers-are-not-looked-at", Promise: "W5",
		Why:     "a secret leaves as the name of a trailer that was not announced",
		Package: "./internal/gateway", Tests: []string{"TestNamesOfTrailers"}, Says: "and upstream saw",
		edits: []edit{{"internal/gateway/detect.go", "		text = append(append(text, name...), \": \"...)\n", ""}, {"internal/gateway/detect.go", "		parts = append(parts, part{len(text), len(text) + len(name), \"the name of a trailer\", nil, 0})\n", ""}},
	},
	{
		Name: "names-are-not-looked-at", Promise: "W5",
		Why:     "a secret leaves as a label of a name under a wildcard",
		Package: "./internal/hostile", Tests: []string{"TestW5Secrets"}, Says: "escaped secrets/labels",
		edits: []edit{{"internal/gateway/detect.go", "	if len(text) < scan.MinSecret {", "	if leaves || len(text) < scan.MinSecret {"}},
	},
	{
		Name: "pieces-are-forgotten", Promise: "W5",
		Why:     "each request is looked at alone: a secret leaves in pieces",
		Package: "./internal/gateway", Tests: []string{"TestSecretInPieces"}, Says: "pieces: 200, 200",
		edits: []edit{{"internal/gateway/detect.go", "	o := scan.Options{Place: place, Coverage: w.d.coverage, Spare: w.d.spare}\n", "	o := scan.Options{Place: place}\n"}},
	},
	{
		Name: "refused-pieces-pass-again", Promise: "W5",
		Why:     "a piece that was refused is known, and passes when it is sent again: a secret leaves piece by piece",
		Package: "./internal/scan", Tests: []string{"TestCoverage"}, Says: "pass after the secret was together",
		edits: []edit{{"internal/scan/coverage.go", "	for i := max(from, s.public); i < to; i++ {", "	before := m.count\n	defer func() { together = together && m.count > before }()\n	for i := max(from, s.public); i < to; i++ {"}},
	},
	{
		Name: "a-reload-forgets-pieces", Promise: "W5",
		Why:     "routes that are read again forget what has left already",
		Package: "./internal/gateway", Tests: []string{"TestPiecesOverReload"}, Says: "the second piece: 200",
		edits: []edit{{"internal/gateway/gateway.go", "newDetectors(secrets, now.detectors.coverage, now.detectors.spare)", "newDetectors(secrets, scan.NewCoverage(), now.detectors.spare)"}},
	},
	{
		Name: "findings-pass", Promise: "W5",
		Why:     "what is found is reported and leaves",
		Package: "./internal/gateway", Tests: []string{"TestSecretsOut"}, Says: "upstream saw it",
		edits: []edit{{"internal/gateway/detect.go", "		if !f.Warning && err == nil && act == scan.Block && o.Ask == nil {", "		if false {"}},
	},
	{
		Name: "masks-are-not-put", Promise: "W5",
		Why:     "what should be masked leaves as it is",
		Package: "./internal/gateway", Tests: []string{"TestRedact"}, Says: "upstream saw it",
		edits: []edit{{"internal/gateway/detect.go", "		s := string(masked[p.from:p.to])\n", "		s := string(text[p.from:p.to])\n"}},
	},
	{
		Name: "the-record-repeats-it", Promise: "W5",
		Why:     "a path with a secret stands in the record of the refusal",
		Package: "./internal/gateway", Tests: []string{"TestRefusedRequestsAreHidden"}, Says: "the record repeats it",
		edits: []edit{{"internal/gateway/exchange.go", "		x.e.Method, x.e.Path = withheld, withheld\n", ""}},
	},
	{
		Name: "parts-need-all", Promise: "W5",
		Why:     "only a whole secret is found",
		Package: "./internal/hostile", Tests: []string{"TestW5Secrets"}, Says: "escaped secrets/parts",
		edits: []edit{{"internal/scan/known.go", "s.part, s.plain = min(MinPart, s.length-s.public), ", "s.part, s.plain = s.length-s.public, "}},
	},
	{
		Name: "views-are-shut", Promise: "W5",
		Why:     "what is written by escapes, separators and look-alikes is not read",
		Package: "./internal/scan", Tests: []string{"TestTransforms"}, Says: "percent mixed",
		edits: []edit{{"internal/scan/scan.go", "	for _, t := range triggers() {", "	for _, t := range triggers()[:1] {"}},
	},
	{
		Name: "codings-are-not-undone", Promise: "W6",
		Why:     "a body is looked at as it was compressed, whatever it says of itself",
		Package: "./internal/gateway", Tests: []string{"TestUnreadableBodies"}, Says: "unknown coding: 200",
		edits: []edit{{"internal/gateway/detect.go", "	s, err := w.scanner(false, \"body\", codings(req.Header))\n", "	s, err := w.scanner(false, \"body\", nil)\n"}},
	},
	{
		Name: "unknown-codings-pass", Promise: "W6",
		Why:     "a coding that nobody knows passes unseen",
		Package: "./internal/hostile", Tests: []string{"TestW6Bodies"}, Says: "escaped bodies/unknown-coding",
		edits: []edit{{"internal/scan/coding.go", "			return &DecodeError{Coding: real[i], Place: l.s.opt.Place, Err: errUnknownCoding}\n", "			return nil\n"}},
	},
	{
		Name: "what-follows-passes", Promise: "W6",
		Why:     "what follows the end of a compressed body is not looked at",
		Package: "./internal/scan", Tests: []string{"TestCodingsRefused"}, Says: "trailing deflate by 0: <nil>",
		edits: []edit{{"internal/scan/coding.go", "	case d.over && d.unread > 0:\n		return fail(errTrailing)\n", ""}},
	},
	{
		Name: "cut-bodies-pass", Promise: "W6",
		Why:     "a compressed body that ends too early is taken for whole",
		Package: "./internal/gateway", Tests: []string{"TestUnreadableBodies"}, Says: "cut: 200",
		edits: []edit{{"internal/scan/coding.go", "	case end && !d.over:\n		return fail(io.ErrUnexpectedEOF)\n", ""}, {"internal/scan/coding.go", "	case d.err != nil:\n		return fail(d.err)\n", ""}},
	},
	{
		Name: "codings-have-no-depth", Promise: "W6",
		Why:     "a body is undone as often as it says",
		Package: "./internal/hostile", Tests: []string{"TestW6Bodies"}, Says: "escaped bodies/lists",
		edits: []edit{{"internal/scan/coding.go", "	if len(real) > MaxCodings {", "	if false {"}},
	},
	{
		Name: "bombs-go-off", Promise: "W6",
		Why:     "what decoders make is not bounded",
		Package: "./internal/scan", Tests: []string{"TestBombs"}, Says: "limits_test.go",
		edits: []edit{{"internal/scan/scanner.go", "	if s.output > freeOutput+s.opt.Output*s.root.fed() {", "	if false {"}},
	},
	{
		Name: "answers-are-taken-as-they-come", Promise: "W6",
		Why:     "text in a coding that nobody knows enters",
		Package: "./internal/gateway", Tests: []string{"TestInjections"}, Says: "unknown coding: ",
		edits: []edit{{"internal/gateway/detect.go", "	coded := codings(res.Header)\n", "	var coded []string\n"}},
	},
	{
		Name: "broken-detectors-pass", Promise: "W6",
		Why:     "where a detector breaks, the rest passes unseen",
		Package: "./internal/scan", Tests: []string{"TestPanicFailsClosed"}, Says: "limits_test.go",
		edits: []edit{{"internal/scan/scanner.go", "		*err = &PanicError{Place: s.opt.Place, Value: v}\n		s.stop(*err)\n", "		_ = v\n"}},
	},
	{
		Name: "each-stream-decodes-for-free", Promise: "W6",
		Why:     "a few hundred bytes cost as much work in every stream as megabytes do",
		Package: "./internal/scan", Tests: []string{"TestSpare"}, Says: "of 40 passed",
		edits: []edit{{"internal/scan/scanner.go", "	if s.opt.Spare == nil {\n		return nil\n	}\n", "	if s.opt.Spare != nil {\n		return nil\n	}\n"}},
	},
	{
		Name: "warnings-cut-streams", Promise: "W6",
		Why:     "a text with many phrases of one kind, each of which stops nothing, is cut",
		Package: "./internal/scan", Tests: []string{"TestManyWarnings"}, Says: "limits_test.go",
		edits: []edit{{"internal/scan/scanner.go", "	case !f.Warning:\n		return &LimitError{\"findings\"", "	default:\n		return &LimitError{\"findings\""}},
	},
	{
		Name: "case-is-a-cover-in-bodies", Promise: "W5",
		Why:     "a secret in small letters alone leaves in a body",
		Package: "./internal/scan", Tests: []string{"TestOneCase"}, Says: "known_test.go",
		edits: []edit{{"internal/scan/needles.go", "	if len(s) >= MinPart {\n		add(\"small letters\"", "	if len(s) < 0 {\n		add(\"small letters\""}},
	},
	{
		Name: "digits-are-pieces-of-another-form", Promise: "W5",
		Why:     "a secret that is to be masked is blocked for what small letters have in common with it",
		Package: "./internal/scan", Tests: []string{"TestUnchangedParts"}, Says: "known_test.go",
		edits: []edit{{"internal/scan/lane.go", "	if k.unchanged(m) {", "	if false {"}},
	},
	{
		Name: "windows-are-short", Promise: "W6",
		Why:     "words are made from too near before a key: a phrase that begins earlier is not followed",
		Package: "./internal/scan", Tests: []string{"TestWindows"}, Says: "without windows",
		edits: []edit{{"internal/scan/words.go", "if run = 0; n >= l.s.rules.phrases.longest {", "if run = 0; n >= 12 {"}},
	},
	{
		Name: "what-hides-letters-is-passed-over", Promise: "W6",
		Why:     "a phrase in full-width letters or with letters between enters unseen",
		Package: "./internal/scan", Tests: []string{"TestWindows"}, Says: "without windows",
		edits: []edit{{"internal/scan/words.go", "		case f.odd < at:\n", "		case f.odd < at && f.odd < 0:\n"}},
	},
}
