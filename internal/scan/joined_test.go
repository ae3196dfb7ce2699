package scan

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestJoin: each engine takes the letters and digits, and nothing else.
func TestJoin(t *testing.T) {
	rng := rand.New(rand.NewPCG(281, 282))
	for range 2000 {
		b := make([]byte, rng.IntN(400))
		for i := range b {
			if b[i] = byte(rng.Uint32()); rng.IntN(2) == 0 {
				b[i] = (lowers + uppers + digits)[rng.IntN(62)]
			}
		}
		room := func() []byte { return append(make([]byte, 0, len(b)+2+joinedRoom), "ab"...) }
		want := "ab"
		for _, c := range b {
			if strings.IndexByte(lowers+uppers+digits, c) >= 0 {
				want += string(rune(c))
			}
		}
		if got := joinInGo(room(), b); string(got) != want {
			t.Fatalf("in Go: %q becomes %q", b, got)
		}
		if got := join(room(), b); string(got) != want {
			t.Fatalf("%q becomes %q", b, got)
		}
	}
}

// TestPiecesOfLetters: letters and digits of a secret are found wherever they stand in
// a stream and whatever is between, and masked with that; those of something else, or
// too few of them, are not.
func TestPiecesOfLetters(t *testing.T) {
	rng := rand.New(rand.NewPCG(283, 284))
	value, other := randomOf(rng, lowers+uppers+digits, 40), randomOf(rng, lowers+uppers+digits, 40)
	r := mustRules(t, Config{Watched: mustKnown(t, value)})
	groups := func(s string) string {
		return inGroups(s, 1+rng.IntN(7), func() string { return randomOf(rng, " -,.;:/|'\"+()[]{}\n\t", 1+rng.IntN(5)) })
	}
	for range many(30) {
		before := strings.Repeat("words of a text, ", rng.IntN(3000)) + "("
		for s, want := range map[string]bool{value: true, value[3:35]: true, other: false, value[:14] + other[:14]: false, strings.ToLower(value[:12]) + value[12:24]: false} {
			text := before + groups(s) + ")\n\n"
			for _, size := range []int{0, 1 + rng.IntN(50)} {
				found, out, err := scanAll(t, r, Options{Action: Report}, text, size)
				if err != nil || out != text || (len(found) > 0) != want {
					t.Fatalf("by %d, want %v: %v %v in %q", size, want, found, err, text[len(before):])
				}
				if want && (int(found[0].Offset) != len(before) || int(found[0].Length) != len(text)-len(before)-3) {
					t.Errorf("by %d: %v in %q behind %d bytes", size, found, text[len(before):], len(before))
				}
			}
		}
	}
	// A gap is no way out, however long it is.
	text := value[:12] + strings.Repeat("\n", 200<<10) + value[12:24]
	for _, size := range []int{0, 999} {
		if found, _, err := scanAll(t, r, Options{Action: Report}, text, size); err != nil || len(found) != 1 {
			t.Errorf("by %d: %v %v", size, found, err)
		}
	}
}

// TestFewBytesAreNoPiece: sixteen binary digits are two bytes, which any text has. They
// are no piece of a secret, though all of it has left already; eight bytes are one.
func TestFewBytesAreNoPiece(t *testing.T) {
	rng := rand.New(rand.NewPCG(285, 286))
	value := randomOf(rng, lowers+uppers+digits, 40)
	r := mustRules(t, Config{Watched: mustKnown(t, value)})
	binary := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			fmt.Fprintf(&b, "%08b ", c)
		}
		return b.String()
	}
	o := Options{Action: Report, Coverage: NewCoverage()}
	if found, _, err := scanAll(t, r, o, value, 0); err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	o.Coverage.add(r.watched, 0, 0, len(value))
	for range many(50) {
		if found, _, err := scanAll(t, r, o, binary(randomOf(rng, lowers+uppers+digits, 36)), 0); err != nil || len(found) > 0 {
			t.Fatal(found, err)
		}
	}
	if found, _, err := scanAll(t, r, o, binary(value[10:20]), 0); err != nil || len(found) == 0 {
		t.Error("a piece is not found", found, err)
	}
}

// TestManySecrets: one of hundreds of secrets is found as any one is, in every form whose few
// letters others have too.
func TestManySecrets(t *testing.T) {
	rng := rand.New(rand.NewPCG(287, 288))
	for _, letters := range []string{lowers + uppers + digits, "0123456789abcdef"} {
		var values []string
		for range 150 {
			values = append(values, randomOf(rng, letters, 40))
		}
		r := mustRules(t, Config{Watched: mustKnown(t, values...)})
		for _, value := range values[100:] {
			for _, format := range []string{"%08b ", "%03o ", "%d, ", "%02x ", "%c "} {
				var text strings.Builder
				for _, c := range []byte(value) {
					fmt.Fprintf(&text, format, c)
				}
				if found, _, err := scanAll(t, r, Options{Action: Report}, text.String(), 0); err != nil || len(found) == 0 {
					t.Errorf("%.20q… is not found: %v", text.String(), err)
				}
			}
		}
	}
}
