package scan

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// everyWord are the same rules with one window over all of a text.
func everyWord(t testing.TB) *Rules {
	t.Helper()
	r := *mustInjections(t)
	p := *r.phrases
	p.everyWord = true
	r.phrases = &p
	return &r
}

// sameWords pushes text in pieces to a scanner with windows and to one without, and
// compares all that they say, piece by piece.
func sameWords(t *testing.T, slow *Rules, text string, size func() int) (findings int) {
	t.Helper()
	fast := mustInjections(t)
	a, b := fast.NewScanner(Options{Action: Report}), slow.NewScanner(Options{Action: Report})
	defer a.Close()
	defer b.Close()
	var outA, outB []byte
	compare := func(end bool, errA, errB error) {
		t.Helper()
		if errB != nil {
			return // it may have had more to do than it is allowed
		}
		if errA != nil {
			t.Fatalf("%v", errA)
		}
		if a.held() > b.held() {
			t.Fatalf("%d bytes are held, and %d without windows: %q", a.held(), b.held(), text)
		}
		fa, fb := slices.Clone(a.Findings()), slices.Clone(b.Findings())
		order := func(x, y Finding) int { return strings.Compare(x.String(), y.String()) }
		// Which of two that belong together came second is not told the same: it is
		// the one that could be followed to its end first.
		blocked := func(fs []Finding) (any bool) {
			for i := range fs {
				any = any || !fs[i].Warning
				fs[i].Warning = false
			}
			return any
		}
		if x, y := blocked(fa), blocked(fb); x != y {
			t.Fatalf("blocked: %v, without windows %v: %q", x, y, text)
		}
		slices.SortFunc(fa, order)
		slices.SortFunc(fb, order)
		if !slices.Equal(fa, fb) {
			type plain Finding // with all fields, not as a sentence
			for _, f := range fa {
				t.Logf("%+v", plain(f))
			}
			for _, f := range fb {
				t.Logf("without windows %+v", plain(f))
			}
			t.Fatalf("not the same in %q", text)
		}
		for _, f := range fa {
			if f.Sealed {
				t.Fatalf("a part of %v had left in %q", f, text)
			}
		}
		if end && (string(outA) != text || string(outB) != text) {
			t.Fatalf("%d and %d bytes of %d", len(outA), len(outB), len(text))
		}
	}
	for rest := text; rest != ""; {
		n := min(len(rest), max(1, size()))
		var errA, errB error
		outA, errA = a.Push(outA, []byte(rest[:n]))
		outB, errB = b.Push(outB, []byte(rest[:n]))
		if compare(false, errA, errB); errB != nil {
			return len(b.Findings())
		}
		rest = rest[n:]
	}
	var errA, errB error
	outA, errA = a.End(outA)
	outB, errB = b.End(outB)
	compare(true, errA, errB)
	return len(b.Findings())
}

// tangle returns a text with phrases, texts that nearly are phrases, and encodings that
// hide them.
func tangle(t testing.TB, rng *rand.Rand, size int) string {
	p, err := phraseForms()
	if err != nil {
		t.Fatal(err)
	}
	word := func() string {
		k := p.keys[rng.IntN(len(p.keys))]
		words := k[rng.IntN(len(k))].words
		return words[rng.IntN(len(words))]
	}
	seps := []string{" ", " ", " ", " ", "\n", "\n    ", `\n`, `\t`, `\\n`, ", ", ". ", "-", "_", " — ", "\u200b", "’", "'", ":", ": ", "(", ")", ";", "=", "{", "}", `\"`, `"`, "|", "é", "\u3000", `\u0020`, `\u{20}`, `\x20`, `\040`, "\xe2\x80", "  \t  ", strings.Repeat(" ", 90), strings.Repeat("-", 700), "漢字", "\U0001f642"}
	disguise := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			switch rng.IntN(12) {
			case 0:
				b.WriteString("'")
				b.WriteByte(c)
			case 1:
				b.WriteString("\u200b")
				b.WriteByte(c)
			case 2:
				b.WriteString([]string{`\u00`, `\x`}[rng.IntN(2)])
				b.WriteString(string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
			case 3:
				b.WriteString(`\u{` + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]) + "}")
			case 4:
				if c >= 'a' && c <= 'z' {
					b.WriteRune('ａ' + rune(c-'a'))
					continue
				}
				b.WriteByte(c)
			case 5:
				b.WriteString(strings.ToUpper(string(rune(c))))
			default:
				b.WriteByte(c)
			}
		}
		return b.String()
	}
	var b strings.Builder
	for b.Len() < size {
		var s string
		switch rng.IntN(10) {
		case 0, 1, 2:
			s = sample(rng, p.forms.list[rng.IntN(len(p.forms.list))].re)
		case 3:
			s = attacks[rng.IntN(len(attacks))]
		case 4:
			s = harmless[rng.IntN(len(harmless))]
		case 5:
			s = word()
		case 6:
			s = randomOf(rng, lowers+digits, rng.IntN(80))
		case 7:
			s = strings.Repeat(randomOf(rng, lowers, 1+rng.IntN(8))+" ", rng.IntN(120))
		case 8:
			s = p.forms.list[rng.IntN(len(p.forms.list))].anchors[0].text
		case 9:
			s = randomOf(rng, "\\ux0123{}'nrt\":; abc", rng.IntN(14))
		}
		switch rng.IntN(8) {
		case 0:
			s = disguise(s)
		case 1:
			j, _ := json.Marshal(s)
			s = string(j)
		case 2:
			for strings.Contains(s, " ") && rng.IntN(9) > 0 {
				s = strings.Replace(s, " ", seps[rng.IntN(len(seps))]+"\x00", 1)
			}
			s = strings.ReplaceAll(s, "\x00", "")
		case 3:
			if s != "" {
				s = s[:rng.IntN(len(s))]
			}
		}
		b.WriteString(s + seps[rng.IntN(len(seps))])
	}
	return b.String()
}

// TestWindows: with windows is found what is found without, and nothing is held or
// let go that would not be, wherever a stream is cut.
func TestWindows(t *testing.T) {
	slow := everyWord(t)
	rng := rand.New(rand.NewPCG(7, 8))
	findings := 0
	for i := range 30 * many(12) {
		text := tangle(t, rng, 1+rng.IntN(3000))
		most := []int{1, 7, 40, 300, 5000}[i%5]
		findings += sameWords(t, slow, text, func() int { return rng.IntN(most) + 1 })
	}
	if findings < 100 {
		t.Errorf("only %d findings", findings)
	}
	for _, page := range pages {
		for _, text := range slices.Concat(attacks, unseenAttacks, harmless) {
			sameWords(t, slow, page.put(text), func() int { return 1 + rng.IntN(200) })
		}
	}
}

// TestWindowsForget: what was decoded and looked at is not kept.
func TestWindowsForget(t *testing.T) {
	text := strings.Repeat("Some ordinary text of a page about tokens, as there is a lot of it. ", 60000)
	s := mustInjections(t).NewScanner(Options{Codings: []string{"gzip"}})
	defer s.Close()
	z := []byte(gzipped(rand.New(rand.NewPCG(1, 1)), text))
	for len(z) > 0 {
		n := min(len(z), 100)
		if _, err := s.Push(nil, z[:n]); err != nil {
			t.Fatal(err)
		}
		z = z[n:]
	}
	decoded := s.root.decodes[0].stream
	if decoded.fed() < int64(len(text))/2 {
		t.Fatalf("only %d bytes were decoded", decoded.fed())
	}
	if n := len(decoded.buf); n > 4*bufferLen {
		t.Errorf("%d bytes of %d are kept", n, decoded.fed())
	}
}

// TestWindowsInPrograms is the same for ordinary text.
func TestWindowsInPrograms(t *testing.T) {
	slow := everyWord(t)
	limit := 12 << 20
	if testing.Short() {
		limit = 1 << 20
	}
	findings := 0
	standardLibrary(t, limit, func(_ string, text []byte) {
		findings += sameWords(t, slow, string(text), func() int { return 16 << 10 })
	})
	t.Logf("%d findings", findings)
}

// TestKeys: each phrase has a key in it, all of whose words are whole.
func TestKeys(t *testing.T) {
	p, err := phraseForms()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 10))
	for _, f := range p.forms.list {
		for range 300 {
			text := sample(rng, f.re)
			if len(text) > p.longest {
				t.Fatalf("%s: %d bytes, not at most %d: %q", f.id, len(text), p.longest, text)
			}
			if !slices.ContainsFunc(p.keys, func(ks []key) bool {
				return slices.ContainsFunc(ks, func(k key) bool {
					return strings.Contains(" "+text+" ", " "+strings.Join(k.words, " ")+" ")
				})
			}) {
				t.Fatalf("%s: no key in %q", f.id, text)
			}
		}
		for _, w := range strings.Fields(sample(rng, f.re)) {
			if len(w) >= manyLetters-12 {
				t.Errorf("%s: a word of %d letters", f.id, len(w))
			}
		}
		for _, a := range f.anchors {
			if a.hi > 0 {
				t.Errorf("%s: %q stands behind the beginning, which nothing would hold back", f.id, a.text)
			}
		}
	}
	t.Logf("%d words of keys, phrases of up to %d letters", len(p.keys), p.longest)
}

func FuzzWindows(f *testing.F) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 10 {
		f.Add(tangle(f, rng, 300), uint64(3))
	}
	slow := everyWord(f)
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		if rng.IntN(2) == 0 {
			other := tangle(t, rng, 200)
			at := rng.IntN(len(text) + 1)
			text = text[:at] + other + text[at:]
		}
		most := []int{1, 9, 100, 4000}[rng.IntN(4)]
		sameWords(t, slow, text, func() int { return 1 + rng.IntN(most) })
	})
}

// TestOdd: the assembly finds the same odd bytes as the Go code, and both find all of
// them.
func TestOdd(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for range 3000 {
		b := []byte(randomOf(rng, lowers+digits+lowers+digits+" .(/:;<@[`{", 2+oddLen*rng.IntN(6)+rng.IntN(oddLen)))
		for range rng.IntN(3) {
			b[rng.IntN(len(b))] = "'\\'\\'ux0123U4X\x80\xff"[rng.IntN(15)]
		}
		n := (len(b) - 2) / oddLen
		if n > 0 {
			block, mask := oddBlocks(b, n)
			block2, mask2 := oddInGo(b, n)
			if block != block2 || mask != mask2 {
				t.Fatalf("%d %x, in Go %d %x: %q", block, mask, block2, mask2, b)
			}
		}
		from := rng.IntN(len(b))
		got := findOdd(b, from)
		for i := from; i < got; i++ {
			if i > 0 && i+1 < len(b) && isOdd(b[i-1], b[i], b[i+1]) {
				t.Fatalf("from %d on, %d is odd and %d found: %q", from, i, got, b)
			}
		}
	}
}

// BenchmarkWindows compares windows with words of everything.
func BenchmarkWindows(b *testing.B) {
	for name, r := range map[string]*Rules{"windows": mustInjections(b), "every word": everyWord(b)} {
		for _, t := range slices.DeleteFunc(benchTexts(b), func(t benchText) bool { return t.name == "base64" || t.name == "random" }) {
			b.Run(name+"/"+t.name, func(b *testing.B) { benchScan(b, r, t.text) })
		}
	}
}
