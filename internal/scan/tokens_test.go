package scan

import (
	"math/rand/v2"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
)

// sample makes a text that re matches.
func sample(rng *rand.Rand, re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		var b strings.Builder
		for _, r := range re.Rune {
			s := string(r)
			if re.Flags&syntax.FoldCase != 0 && rng.IntN(2) == 0 {
				s = strings.ToLower(s)
			}
			b.WriteString(s)
		}
		return b.String()
	case syntax.OpCharClass:
		var set []rune
		for i := 0; i < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= min(re.Rune[i+1], 0x7e); r++ {
				if r >= ' ' || r == '\n' {
					set = append(set, r)
				}
			}
		}
		if set == nil {
			return "\t"
		}
		return string(set[rng.IntN(len(set))])
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return string(rune('a' + rng.IntN(26)))
	case syntax.OpCapture:
		return sample(rng, re.Sub[0])
	case syntax.OpConcat:
		var b strings.Builder
		for _, s := range re.Sub {
			b.WriteString(sample(rng, s))
		}
		return b.String()
	case syntax.OpAlternate:
		return sample(rng, re.Sub[rng.IntN(len(re.Sub))])
	case syntax.OpQuest, syntax.OpStar, syntax.OpPlus, syntax.OpRepeat:
		lo, hi := 0, 6
		switch re.Op {
		case syntax.OpQuest:
			hi = 1
		case syntax.OpPlus:
			lo = 1
		case syntax.OpRepeat:
			if lo, hi = re.Min, re.Max; hi < 0 || hi > lo+8 {
				hi = lo + 8
			}
		}
		var b strings.Builder
		for range lo + rng.IntN(hi-lo+1) {
			b.WriteString(sample(rng, re.Sub[0]))
		}
		return b.String()
	}
	return ""
}

// TestRulesAreKnown holds the table to its word: every rule is on the wire, or
// named with a reason why not.
func TestRulesAreKnown(t *testing.T) {
	fs, err := allForms()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, rules := range [][]tokenRule{gitleaksRules, ownRules} {
		mine := map[string]bool{}
		for _, r := range rules {
			if mine[r.id] {
				t.Errorf("rule %s twice", r.id)
			}
			ids[r.id], mine[r.id] = true, true
		}
	}
	for id := range notOnWire {
		if !ids[id] {
			t.Errorf("%s is excepted and no rule", id)
		}
	}
	if len(fs.list)+len(notOnWire) != len(ids) {
		t.Errorf("%d rules on the wire, %d not, of %d", len(fs.list), len(notOnWire), len(ids))
	}
	for _, f := range fs.list {
		m := f.machine()
		if m.least < 8 {
			t.Errorf("rule %s matches %d bytes", f.id, m.least)
		}
		f.full()
		f.allowed()
	}
	t.Logf("%d rules, %d literals, at most %d bytes before one", len(fs.list), len(fs.lits), fs.back)
}

// TestMachine compares with package regexp, at fixed beginnings.
func TestMachine(t *testing.T) {
	fs, _ := allForms()
	rng := rand.New(rand.NewPCG(31, 32))
	for _, f := range fs.list {
		m, full := f.machine(), f.full()
		for round := range many(20) {
			text := sample(rng, f.re)
			for range round % 4 { // near misses
				at := rng.IntN(len(text))
				text = text[:at] + string(rune(' '+rng.IntN(95))) + text[at+1:]
			}
			text += []string{"", " ", "x", "\n", `"`}[rng.IntN(5)]
			want := -1
			if g := full.FindStringIndex(text); g != nil {
				want = g[1]
			}
			for _, size := range []int{len(text), 1, 3} {
				var q sparse
				tr := m.begin(nil)
				before := context{begin: true}
				for i := 0; i < len(text) && len(tr.threads) > 0; i += size {
					end := min(len(text), i+size)
					m.step(&tr, &q, []byte(text[i:end]), before, end == len(text))
					before = context{word: isWord(text[end-1]), line: text[end-1] == '\n'}
				}
				if tr.matched != want || len(tr.threads) > 0 {
					t.Fatalf("rule %s in %q by %d: %d, not %d", f.id, text, size, tr.matched, want)
				}
				if want >= 0 && want < m.least {
					t.Fatalf("rule %s matches %d bytes, fewer than %d", f.id, want, m.least)
				}
			}
		}
	}
}

// oracle does what gitleaks does: each expression over the whole text.
func oracle(r tokenRule, re *regexp.Regexp, allowed *regexp.Regexp, text string) (out []span) {
	for _, m := range re.FindAllStringIndex(text, -1) {
		match := strings.Trim(text[m[0]:m[1]], "\n")
		m[0] += strings.Index(text[m[0]:m[1]], match)
		secret, at := match, m[0]
		if g := re.FindStringSubmatchIndex(match); len(g) > 2 {
			for i := 2; i < len(g); i += 2 {
				if r.group > 0 && i != 2*r.group {
					continue
				}
				if g[i] >= 0 && g[i+1] > g[i] {
					secret, at = match[g[i]:g[i+1]], m[0]+g[i]
					break
				}
			}
		}
		low := strings.ToLower(secret)
		if r.entropy > 0 && entropy([]byte(secret)) <= r.entropy || examples[secret] || allowed.MatchString(secret) ||
			slices.ContainsFunc(gitleaksStopwords, func(w string) bool { return strings.Contains(low, w) }) {
			continue
		}
		out = append(out, span{int64(at), int64(at + len(secret))})
	}
	return out
}

// TestGitleaks compares the rules on the wire with what gitleaks makes of the
// same texts: all that it finds must be found.
func TestGitleaks(t *testing.T) {
	rules := mustRules(t, Config{Tokens: true})
	fs, _ := allForms()
	rng := rand.New(rand.NewPCG(41, 42))
	want, got := 0, 0
	theirs := map[string]tokenRule{}
	for _, r := range gitleaksRules {
		theirs[r.id] = r
	}
	for _, f := range fs.list {
		rule, ok := theirs[f.id]
		if !ok {
			rule = f.tokenRule
		}
		re := regexp.MustCompile(rule.regex)
		// A key that is made must have a line of one.
		src, _ := syntax.Parse(strings.Replace(rule.regex, `[\s\S-]{64,}?KEY`, `\n[A-Za-z0-9+/]{64}\nKEY`, 1), syntax.Perl)
		mine := 0
		for round := range many(12) {
			text := []string{"", "token: ", "x = \"", "see\n", "{\"a\": '"}[rng.IntN(5)] + sample(rng, src)
			text += []string{"", " and so on", "\"\n", "'}", "\n\n"}[rng.IntN(5)]
			findings, _, err := scanAll(t, rules, Options{Action: Report}, text, []int{0, 1, 5}[round%3])
			if err != nil {
				t.Fatalf("%s in %q: %v", f.id, text, err)
			}
			for _, w := range oracle(rule, re, f.allowed(), text) {
				if f.id == "vault-service-token" && text[w.from] == 's' || f.id == bearerToken && isKnownForm([]byte(text[w.from:w.to])) {
					continue // another rule of ours
				}
				if f.id == "sourcegraph-access-token" && w.to-w.from == 40 {
					continue // every commit of git looks like that; forWire leaves it out
				}
				want++
				mine++
				if slices.ContainsFunc(findings, func(g Finding) bool {
					return g.Rule == f.id && g.Offset <= w.from && w.to <= g.Offset+int64(g.Length)
				}) {
					got++
				} else {
					t.Errorf("%s: gitleaks finds %q in %q; here: %v", f.id, text[w.from:w.to], text, findings)
				}
			}
		}
		if mine == 0 && !testing.Short() {
			t.Errorf("%s: no sample of it is found by gitleaks itself", f.id)
		}
	}
	t.Logf("recall %d of %d over %d rules", got, want, len(fs.list))
}

// TestAssignment: the quick look lets everything through that the rule matches.
func TestAssignment(t *testing.T) {
	fs, _ := allForms()
	rng := rand.New(rand.NewPCG(45, 46))
	n := 0
	for _, f := range fs.list {
		if !f.assigns {
			continue
		}
		n++
		for range many(50) {
			text := sample(rng, f.re)
			ok := !f.full().MatchString(text)
			for _, a := range f.anchors {
				if len(text) >= len(a.text) && strings.EqualFold(text[:len(a.text)], a.text) {
					ok = ok || assignment([]byte(text[len(a.text):]))
				}
			}
			if !ok {
				t.Fatalf("%s: %q", f.id, text)
			}
		}
	}
	if n < 80 || assignment([]byte(" is a service that we use = for nothing")) || assignment([]byte("s) {")) {
		t.Errorf("%d rules", n)
	}
}

// TestW5VendorForms: what a vendor's token looks like is one, whatever its letters, its
// length and what stands around it; only what the vendor prints as an example is none.
// Beside each stands an honest text that is nearly the same.
func TestW5VendorForms(t *testing.T) {
	rules := mustRules(t, Config{Tokens: true})
	rng := rand.New(rand.NewPCG(53, 54))
	bodies := func(n int) []string {
		return []string{
			strings.Repeat("a", n), strings.Repeat("A", n), strings.Repeat("ab", n)[:n], strings.Repeat("0", n),
			strings.Repeat("abcdefghijklmnopqrstuvwxyz0123456789", 6)[:n], strings.Repeat("A1b2C3d4E5f6", 17)[:n],
			randomOf(rng, lowers+uppers+digits, n), randomOf(rng, lowers, n), "false" + randomOf(rng, lowers+uppers+digits, n-5),
			strings.Repeat("x", n-6) + randomOf(rng, lowers+uppers+digits, 5) + "7",
		}
	}
	around := []struct{ before, after string }{{"", ""}, {"token: ", "\n"}, {`{"key":"`, `"}`}, {"-H 'x-key: ", "'"}, {"CLAUDE_CODE_OAUTH_TOKEN=", "\n"}, {"/v1/", "/x"}, {"a?k=", "&b=1"}}
	for _, f := range []struct {
		prefix  string
		lengths []int
	}{
		{"sk-" + "ant-oat01-", []int{20, 40, 86, 95, 150}}, {"sk-" + "ant-ort01-", []int{20, 95}}, {"sk-" + "ant-api03-", []int{24, 60, 95, 120}}, {"sk-" + "ant-", []int{20, 40, 100}},
		{"sk-", []int{32, 48, 51}}, {"sk-" + "proj-", []int{20, 48, 156}}, {"pypi-" + "AgEIcHlwaS5vcmc", []int{17, 50, 200}}, {"pypi-", []int{40, 160}}, {"hv" + "s.", []int{24, 90}}, {"hv" + "b.", []int{140}},
		{"gh" + "p_", []int{36}}, {"github_" + "pat_", []int{40, 82}}, {"gl" + "pat-", []int{20}}, {"sk_" + "live_", []int{24}}, {"AI" + "za", []int{35}}, {"np" + "m_", []int{36}}, {"hf_", []int{34}},
		{"xo" + "xb-1234567890-1234567890", []int{24}}, {"gsk_", []int{52}}, {"Bearer ", []int{32, 60, 200}}, {"bearer ", []int{60}}, {"Authorization: Bearer ", []int{60}},
	} {
		for _, n := range f.lengths {
			for i, body := range bodies(n) {
				if f.prefix == "hf_" && i != 0 && i != 1 && i != 7 {
					continue // letters only
				}
				a := around[rng.IntN(len(around))]
				text := a.before + f.prefix + body + a.after
				if found, _, err := scanAll(t, rules, Options{Action: Report}, text, i%3); err != nil || len(found) == 0 {
					t.Errorf("not found: %q: %v", text, err)
				}
			}
		}
	}
	// One value is told of once, so that a person is asked once.
	for _, text := range []string{"Bearer sk-" + "ant-oat01-" + bodies(95)[6], "Bearer gh" + "p_" + bodies(36)[6], "sk-" + "ant-api03-" + bodies(93)[6] + "AA", "Bearer " + bodies(60)[6], "AK" + "IA" + randomOf(rng, uppers+"234567", 16), "-----BEGIN PRIVATE" + " KEY-----\n" + bodies(64)[6] + "\n-----END PRIVATE" + " KEY-----"} {
		if found, _, err := scanAll(t, rules, Options{Action: Report}, text+"\n", 0); err != nil || len(found) != 1 {
			t.Errorf("%q: %v %v", text, found, err)
		}
	}
	for _, id := range []string{"AAAAAAAAAAAAAAAA", "1234567890ABCDEF", "IOSFODNN8EXAMPLE", randomOf(rng, uppers+digits, 16)} {
		if found, _, err := scanAll(t, rules, Options{Action: Report}, "id "+"AK"+"IA"+id+"\n", 0); err != nil || len(found) == 0 {
			t.Errorf("not found: AKIA and %q: %v", id, err)
		}
	}
	honest := []string{
		"sk-ant-api03-your-key-goes-here", "sk-ant-your-key-goes-in-here", "ANTHROPIC_API_KEY=sk-ant-...", "sk-proj-your-project-key-here", "sk-container-fluid-layout-left", "task-0123456789abcdef0123456789abcdef",
		"disk-ant-0123456789abcdef0123", "pypi-publish-action-for-trusted-publishers", "hvs.computeValue(x)", "gh" + "p_short", "github_pat_example", "Bearer ${TOKEN}", "Bearer $ANTHROPIC_API_KEY_OF_THE_WHOLE_TEAM",
		"Authorization: Bearer <your-access-token-goes-here-please>", "`Bearer ${process.env.ANTHROPIC_API_KEY_OF_THE_TEAM}`", "'Bearer ' + process.env.ANTHROPIC_API_KEY_OF_THE_TEAM", "Bearer your_access_token_from_the_dashboard",
		"Bearer config.authentication.accessToken.value", "bearer authentication is described in RFC 6750", "the bearer of-this-letter-may-pass-through-the-gate", "Bearer YOUR_ACCESS_TOKEN_FROM_THE_DASHBOARD", "Bearer thisIsTheNameOfOneVariableInCamelCase", "AK" + "IASHORT",
		"Bearer carboy-placeholder-" + randomOf(rng, lowers+digits, 40), "xoxb-your-token-goes-here-please", "sk_test_key", "sk-learn==1.5.0",
	}
	x := strings.Repeat("x", 40)
	honest = append(honest, "sk-"+"ant-"+x[:20], "sk-"+"ant-api03-"+x, "sk-"+"proj-"+x, "sk-"+x, "gh"+"p_"+x[:36], "github_"+"pat_"+x, "gl"+"pat-"+x[:20], "AK"+"IA"+strings.Repeat("X", 16),
		"AI"+"za"+strings.Repeat("X", 35), "xo"+"xb-"+x[:12]+"-"+x[:12]+"-"+x[:24], "sk_"+"live_"+x[:24], "Bearer "+x, "Bearer sk-"+"ant-api03-"+x, "gsk_"+x+x[:12])
	for e := range examples {
		honest = append(honest, e)
	}
	for _, text := range honest {
		for _, a := range around {
			if a.before == "/v1/" {
				continue // what follows in a path is a part of it
			}
			if found, _, err := scanAll(t, rules, Options{Action: Report}, a.before+text+a.after, 0); err != nil || len(found) > 0 {
				t.Errorf("%q: %v %v", a.before+text+a.after, found, err)
			}
		}
	}
}

// TestTokensInJSON: what stands in a JSON string, as an agent's requests have
// files in them, is found as in the file.
func TestTokensInJSON(t *testing.T) {
	rules := mustRules(t, Config{Tokens: true})
	rng := rand.New(rand.NewPCG(51, 52))
	pat := "gh" + "p_" + randomOf(rng, lowers+uppers+digits, 36)
	key := randomOf(rng, lowers+digits, 32)
	for _, text := range []string{
		`{"content":"line\n` + pat + `\nline"}`,
		`{"content":"export TOKEN=\"` + pat + `\""}`,
		`{"content":"A` + "K" + `IA` + randomOf(rng, uppers+"234567", 16) + `\n"}`,
		`{"content":"\nA` + "K" + `IA` + randomOf(rng, uppers+"234567", 16) + `\n"}`,
		`{"content":"adafruit_key = \"` + key + `\"\n"}`,
		`adafruit_key%20%3D%20%22` + key + `%22`,
		`a=1&token=` + strings.Replace(pat, "_", "%5F", 1) + `&b=2`,
		string(utf16([]byte("token: " + pat + "\n"))), "\x00" + string(utf16([]byte("AK"+"IA"+randomOf(rng, uppers+"234567", 16)+"\n"))),
	} {
		if f, _, err := scanAll(t, rules, Options{Action: Report}, text, 0); err != nil || len(f) == 0 {
			t.Errorf("%s: %v %v", text, f, err)
		}
	}
	for _, text := range []string{`{"content":"line\ngh` + `p_short\n"}`, `adafruit_key = os.Getenv(\"ADAFRUIT_KEY\")`, `twitter: "@somebody", "id": 12345678`} {
		if f, _, err := scanAll(t, rules, Options{Action: Report}, text, 0); err != nil || len(f) > 0 {
			t.Errorf("%s: %v %v", text, f, err)
		}
	}
}
