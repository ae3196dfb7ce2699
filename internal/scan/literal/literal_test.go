package literal

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// engines are all ways to find, each of which must keep the promise.
func engines(t testing.TB, lits []Literal, pairs *Pairs) map[string]*Matcher {
	t.Helper()
	fast, err := New(lits, pairs)
	if err != nil {
		t.Fatal(err)
	}
	slow, _ := New(lits, pairs)
	slow.tables = nil
	out := map[string]*Matcher{"automaton": slow}
	if fast.exact != nil {
		out["vector of whole bytes"] = fast
	} else {
		t.Log("this processor can't look whole bytes up: that is not tested")
	}
	if fast.tables != nil {
		halves, _ := New(lits, pairs)
		halves.exact = nil
		out["vector"] = halves
	} else {
		t.Log("this processor has no vector engine: only the automaton is tested")
	}
	return out
}

// naive is the obvious loop.
func naive(lits []Literal, pairs *Pairs, b []byte, from int) (out []Hit) {
	for at := range b {
		for id, l := range lits {
			end := at + len(l.Text)
			if end > len(b) || end <= from {
				continue
			}
			got, want := string(b[at:end]), l.Text
			if l.Fold {
				got, want = lower(got), lower(want)
			}
			if got == want && !(l.Whole && end < len(b) && isAlnum(b[end])) {
				out = append(out, Hit{at, id})
			}
		}
		if at+2 <= len(b) && at+2 > from && pairs != nil && pairs.has(b[at], b[at+1]) {
			out = append(out, Hit{at, len(lits)})
		}
	}
	return out
}

func check(t *testing.T, lits []Literal, text []byte, from int) {
	t.Helper()
	var pairs *Pairs
	if len(lits)%2 == 0 {
		pairs = new(Pairs)
		for _, r := range "\u00adж─ａ𝐚" {
			pairs.AddRune(r)
		}
		pairs.add(0xff, 'a')
	}
	want := naive(lits, pairs, text, from)
	for name, m := range engines(t, lits, pairs) {
		if got := m.Find(nil, text, from); !slices.Equal(got, want) {
			t.Fatalf("%s: in %.80q (%d bytes) from %d:\n got %v\nwant %v", name, text, len(text), from, got, want)
		}
		// Bytes that come one after the other give the same, but for what follows
		// a word, which is not known then.
		open := slices.Clone(lits)
		for i := range open {
			open[i].Whole = false
		}
		want := naive(open, pairs, text, from)
		var got []Hit
		for n := from; n < min(len(text), from+300); n++ {
			got = m.Find(got, text[:n+1], n)
		}
		if len(text) <= from+300 {
			sortHits(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%s: byte by byte in %.80q:\n got %v\nwant %v", name, text, got, want)
			}
		}
	}
}

func TestFind(t *testing.T) {
	lits := []Literal{{"ab", false, false}, {"abc", true, false}, {"bcde", false, false}, {"s.", false, false}, {"secret_key_", true, false}, {"\x1f\x8b\x08", false, false},
		{"aaaa", false, false}, {"aaaaaa", true, false}, {"KEY-", false, false}, {"key-", true, false}, {"dup_", false, false}, {"dup_", false, false}, {"sec", true, true}, {"key", true, true}, {"ab", false, true}, {"abcd", false, true}, {"\x00\x00", false, false}, {"@[`{", true, false}, {"\xff\xff", false, false}}
	for _, text := range []string{"", "a", "ab", "abc", "xABCDEabcde", "aaaaaaaaaaaa", "s.s.s.", "SECRET_key_Secret_Key_", "\x1f\x8b\x08\x1f\x8b\x08",
		"KEY-key-Key-", "жж soft\u00adhyphen ａ𝐚 ─\xc2", "\xff\xffa\xff\xff\xffaa", "dup_dup_", "\x00\x00\x00", "@[`{", "@{@[", "`[`{", strings.Repeat("x", 31) + "abc", strings.Repeat("x", 63) + "KEY-",
		strings.Repeat("y", 29) + "secret_key_" + strings.Repeat("z", 40)} {
		for from := range len(text) + 1 {
			check(t, lits, []byte(text), from)
		}
	}
}

// TestLarge crosses every border there is: blocks, full lists of blocks, the
// four parts of the automaton.
func TestLarge(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		lits, text := random(rng, 1+rng.IntN(200), 18<<10+rng.IntN(8<<10))
		check(t, lits, text, []int{0, rng.IntN(len(text))}[round%2])
	}
	check(t, []Literal{{"ab", false, false}, {"abab", true, false}}, bytes.Repeat([]byte("ab"), 20000), 0)
}

// random makes literals and a text that is full of them and of their parts.
func random(rng *rand.Rand, n, size int) ([]Literal, []byte) {
	alphabet := "abAB_-9.\xff"
	str := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
		return string(b)
	}
	var lits []Literal
	for range n {
		lits = append(lits, Literal{str(minLen + rng.IntN(12)), rng.IntN(2) == 0, rng.IntN(4) == 0})
	}
	var text []byte
	for len(text) < size {
		switch rng.IntN(4) {
		case 0:
			text = append(text, lits[rng.IntN(n)].Text...)
		case 1:
			l := lits[rng.IntN(n)].Text
			text = append(text, l[:rng.IntN(len(l))]...)
		default:
			text = append(text, str(rng.IntN(40))...)
		}
	}
	return lits, text
}

func TestTail(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		lits, text := random(rng, 1+rng.IntN(20), rng.IntN(60))
		m, err := New(lits, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for n := 1; n <= len(text); n++ {
			for _, l := range lits {
				if n < len(l.Text) && lower(l.Text[:n]) == lower(string(text[len(text)-n:])) {
					want = n
				}
			}
		}
		if got := m.Tail(text); got != want {
			t.Fatalf("%q with %v: %d, not %d", text, lits, got, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, s := range []string{"", "x", strings.Repeat("x", maxLen+1)} {
		if _, err := New([]Literal{{s, false, false}}, nil); err == nil {
			t.Errorf("%d bytes taken", len(s))
		}
	}
	if m, err := New(nil, nil); err != nil || m.Find(nil, []byte("anything at all, longer than a vector is"), 0) != nil {
		t.Error("no literals at all:", err)
	}
	if _, err := New([]Literal{{"xy", false, false}, {strings.Repeat("x", maxLen), true, false}}, nil); err != nil {
		t.Error(err)
	}
}

func FuzzFind(f *testing.F) {
	f.Add("ab\ncde\nghp_", []byte("xxabcdeGHP_ab"), uint8(1), uint16(3))
	f.Add("aa\naaa\naaaa\naaaaa", bytes.Repeat([]byte("aA"), 60), uint8(5), uint16(40))
	f.Fuzz(func(t *testing.T, words string, text []byte, fold uint8, from uint16) {
		var lits []Literal
		for i, w := range strings.Split(words, "\n") {
			if len(w) >= minLen && len(w) <= maxLen && len(lits) < 64 {
				lits = append(lits, Literal{w, fold>>(i%8)&1 == 1, i%3 == 0})
			}
		}
		if len(lits) == 0 || len(text) > 4096 {
			return
		}
		check(t, lits, text, min(int(from), len(text)))
		if from%8 == 0 { // and over every border
			check(t, lits, bytes.Repeat(text, 1+(20<<10)/(len(text)+1)), int(from))
		}
	})
}

// benchText returns words as programs have them, and literals that are in none of them.
func benchText(literals int) ([]byte, []Literal) {
	rng := rand.New(rand.NewPCG(5, 6))
	text := make([]byte, 64<<10)
	words := strings.Fields("func return if err nil the a of package string int for range := == { } ( ) key value token Config test append len")
	for n := 0; n < len(text); {
		n += copy(text[n:], words[rng.IntN(len(words))]+" ")
	}
	var lits []Literal
	for range literals {
		s := make([]byte, 5+rng.IntN(6))
		for i := range s {
			s[i] = "abcdefghijklmnopqrstuvwxyz_-0123456789"[rng.IntN(38)]
		}
		lits = append(lits, Literal{string(s), rng.IntN(2) == 0, rng.IntN(4) == 0})
	}
	return text, lits
}

func BenchmarkFind(b *testing.B) {
	for _, n := range []int{15, 230} {
		text, lits := benchText(n)
		for name, m := range engines(b, lits, nil) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					m.Find(nil, text, 0)
				}
			})
		}
	}
}

// BenchmarkVBMI reports how many times as long the search takes without VBMI, in pairs. A
// busy machine only adds to what a search takes, so of each the shortest counts.
func BenchmarkVBMI(b *testing.B) {
	if !hasBytePermutes {
		b.Skip("SKIPPED: this processor has no VBMI")
	}
	for _, n := range []int{15, 230, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			text, lits := benchText(n)
			e := engines(b, lits, nil)
			least := map[string]time.Duration{}
			for b.Loop() {
				for _, name := range []string{"vector", "vector of whole bytes"} {
					begun := time.Now()
					e[name].Find(nil, text, 0)
					if took := time.Since(begun); least[name] == 0 || took < least[name] {
						least[name] = took
					}
				}
			}
			b.ReportMetric(float64(least["vector"])/float64(least["vector of whole bytes"]), "x-without")
		})
	}
}
