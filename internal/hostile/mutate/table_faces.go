package main

// H1 and H2: the terminal and the page where people decide.

var faceMutants = []mutant{
	{
		Name: "page-is-used-from-other-sites", Promise: "H1",
		Why:     "a form of any site that the browser shows answers a proposal",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "another site: ",
		edits: []edit{{"internal/supervise/web/guard.go", "	default:\n		return http.StatusForbidden, \"another site asked for this page; open it from your own address bar\"", "	default:"}},
	},
	{
		Name: "page-takes-any-origin", Promise: "H1",
		Why:     "where a form was does not matter",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "another origin: ",
		edits: []edit{{"internal/supervise/web/guard.go", "o != \"\" && o != origin {", "o == origin+origin {"}},
	},
	{
		Name: "page-has-any-name", Promise: "H1",
		Why:     "a name of an attacker's that turns to this address shows the page as the attacker's own",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "another host: ",
		edits: []edit{{"internal/supervise/web/web.go", "	if r.Host != s.host {", "	if r.Host == \"\" {"}},
	},
	{
		Name: "page-needs-no-cookie-of-its-own", Promise: "H1",
		Why:     "whoever knows a session's path is in it",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "another session's cookie: ",
		edits: []edit{{"internal/supervise/web/guard.go", "		if i < 8 && subtle.ConstantTimeCompare(sum[:], s.cookie[:]) == 1 {", "		if i < 8 && len(sum) > 0 {"}},
	},
	{
		Name: "forms-need-no-token", Promise: "H1",
		Why:     "a form that the page did not make is taken",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "no token: ",
		edits: []edit{{"internal/supervise/web/web.go", "	if !in.formTokenIs(f.Get(\"token\"), id, f.Get(\"digest\")+as) {", "	if in == nil {"}},
	},
	{
		Name: "an-address-works-twice", Promise: "H1",
		Why:     "whoever reads the address later, on a screen or in a history, is let in",
		Package: "./internal/supervise/web", Tests: []string{"TestAddressWorksOnce"}, Says: "50 got in",
		edits: []edit{{"internal/supervise/web/guard.go", "	d.token, d.until = [32]byte{}, time.Time{}\n", ""}},
	},
	{
		Name: "other-users-are-let-in", Promise: "H1",
		Why:     "any user of this machine talks to the page, and needs only the address",
		Package: "./internal/supervise/web", Tests: []string{"TestOtherUser"}, Says: "another user got", root: true,
		edits: []edit{{"internal/supervise/web/peer.go", "		if err == nil && uid == l.uid {", "		if err == nil {"}},
	},
	{
		Name: "slow-clients-keep-their-place", Promise: "H1",
		Why:     "a few connections that send nothing take all places for good",
		Package: "./internal/supervise/web", Tests: []string{"TestSlow"}, Says: "is kept",
		edits: []edit{{"internal/supervise/web/web.go", "ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second,", ""}},
	},
	{
		Name: "a-form-is-for-any-digest", Promise: "H2",
		Why:     "the form that was made for one digest answers another",
		Package: "./internal/supervise/web", Tests: []string{"TestForged"}, Says: "another digest: ",
		edits: []edit{{"internal/supervise/web/guard.go", "	m.Write([]byte(id + \"\\x00\" + digest))", "	m.Write([]byte(id + digest[:0]))"}},
	},
	{
		Name: "another-text-is-approved", Promise: "H2",
		Why:     "what is approved in another form is not what was looked at",
		Package: "./internal/supervise/web", Tests: []string{"TestChangedMeanwhile"}, Says: "another text: 303",
		edits: []edit{{"internal/supervise/web/web.go", "		if as != v.as {", "		if as == \"\" {"}},
	},
	{
		Name: "warnings-are-passed-over-on-the-page", Promise: "H2",
		Why:     "one press approves what is warned of",
		Package: "./internal/supervise/web", Tests: []string{"TestWarningIsNeeded"}, Says: "in spite of its warning",
		edits: []edit{{"internal/supervise/web/web.go", "		if e.Proposal.Payload.Warn() != \"\" && f.Get(\"sure\") != \"yes\" {", "		if e.Proposal.ID == \"\" {"}},
	},
	{
		Name: "keys-meet-what-was-not-seen", Promise: "H1",
		Why:     "a key that was typed for one proposal answers the next",
		Package: "./internal/supervise/tui", Tests: []string{"TestKeysMeetWhatIsShown"}, Says: "look, then press it again",
		edits: []edit{{"internal/supervise/tui/model.go", "return m.now().Sub(m.since) >= settle }", "return true }"}},
	},
	{
		Name: "the-pointer-moves-by-itself", Promise: "H1",
		Why:     "when a proposal is answered elsewhere the pointer is on another",
		Package: "./internal/supervise/tui", Tests: []string{"TestNothingMoves"}, Says: "it moved when it was answered",
		edits: []edit{{"internal/supervise/tui/model.go", "		case r.id() != m.at:", "		case r != nil:"}},
	},
	{
		Name: "a-note-becomes-commands", Promise: "H1",
		Why:     "when a proposal goes while its note is typed, the rest of the note is keys",
		Package: "./internal/supervise/tui", Tests: []string{"TestGoneWhileAsked"}, Says: "tui_test.go",
		edits: []edit{{"internal/supervise/tui/model.go", "	if a.of.gone != \"\" {\n		if key == \"esc\" {\n			m.ask = nil\n		}\n", "	if a.of.gone != \"\" {\n		m.ask = nil\n"}},
	},
	{
		Name: "names-of-bottles-draw", Promise: "H1",
		Why:     "the name of a bottle is drawn as it is, with what it does to the terminal",
		Package: "./internal/supervise/tui", Tests: []string{"TestHostile"}, Says: "wide",
		edits: []edit{{"internal/supervise/tui/sheet.go", "visible.String(p.Bottle, 200)", "p.Bottle"}},
	},
	{
		Name: "whatever-waits-is-answered", Promise: "H2",
		Why:     "the terminal answers what has the id by then, and not what it showed",
		Package: "./internal/supervise/tui", Tests: []string{"TestAnotherUnderTheSameID"}, Says: "what was not shown was answered",
		edits: []edit{{"internal/supervise/tui/model.go", "		answer, err := m.queue.Answer(m.ctx, d)", "		e, _ := m.queue.Find(m.ctx, string(d.ID))\n		d.Digest = e.Proposal.Digest\n		answer, err := m.queue.Answer(m.ctx, d)"}},
	},
	{
		Name: "warnings-are-passed-over-in-the-terminal", Promise: "H2",
		Why:     "two keys approve what is warned of",
		Package: "./internal/supervise/tui", Tests: []string{"TestDangerous"}, Says: "answered [\"approved any.example\"]",
		edits: []edit{{"internal/supervise/tui/model.go", "	case a.warning != \"\" && !a.warned:", "	case a.warned && !a.warned:"}},
	},
}
