package scan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// naiveKnown is the obvious search: every part of every needle that is long
// enough, anywhere in the text.
func naiveKnown(k *WatchedSecrets, text string) map[string]bool {
	found := map[string]bool{}
	for i := range k.needles {
		n := &k.needles[i]
		name := k.secrets[n.secret].name
		for at := range text {
			for off := range n.text {
				if found[name] {
					break
				}
				m := 0
				for at+m < len(text) && off+m < len(n.text) && text[at+m] == n.text[off+m] {
					m++
				}
				// Of a form that is as long as the secret or longer, so many bytes are sampled.
				if k.enough(n, off, m) && (m >= minPart || m == len(n.text)) {
					found[name] = true
				}
			}
		}
	}
	return found
}

// pieces makes a text of parts of needles, whole secrets, and other things.
func pieces(rng *rand.Rand, k *WatchedSecrets, size int) string {
	var b strings.Builder
	for b.Len() < size {
		n := k.needles[rng.IntN(len(k.needles))].text
		switch rng.IntN(5) {
		case 0:
			b.Write(n)
		case 1, 2:
			from := rng.IntN(len(n))
			b.Write(n[from : from+rng.IntN(min(len(n)-from, 40)+1)])
		case 3:
			b.WriteString(randomOf(rng, lowers+uppers+digits+"+/=%\\u&#;", rng.IntN(20)))
		case 4:
			b.WriteString([]string{" ", "\n", `"`, "key=", "\r\n", `\n`}[rng.IntN(6)])
		}
	}
	return b.String()
}

func TestKnownAgainstNaive(t *testing.T) {
	rng := rand.New(rand.NewPCG(61, 62))
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		k := mustKnown(t, randomOf(rng, lowers+digits, 8+rng.IntN(12)), randomSecret(rng), randomOf(rng, lowers, 16))
		r := mustRules(t, Config{Watched: k})
		text := pieces(rng, k, rng.IntN(120))
		if round%3 == 0 {
			text = strings.Repeat("x ", dense/2+rng.IntN(9)) + text // where only every ninth gram is looked at
		}
		tail := text[max(0, len(text)-400):]
		want := naiveKnown(k, tail)
		got, _, err := scanAll(t, r, Options{Action: Report}, text, []int{0, 1, 13}[rng.IntN(3)])
		if err != nil {
			t.Fatal(err)
		}
		for name := range want {
			if !slices.ContainsFunc(got, func(f Finding) bool { return f.Secret == name }) {
				t.Fatalf("%s not found in %q: %v", name, tail, got)
			}
		}
		for _, f := range got {
			// Not more than there is, unless a view or a line break helped.
			if !want[f.Secret] && !strings.Contains(f.Transform, ">") && !strings.ContainsAny(tail, "\r\n\\%&") {
				t.Fatalf("%v in %q", f, tail)
			}
		}
	}
}

// mixture is a text with all kinds of things that are found, and things that are
// nearly.
func mixture(rng *rand.Rand, secrets []string) string {
	fs, _ := allForms()
	var b strings.Builder
	for b.Len() < 600 {
		s := secrets[rng.IntN(len(secrets))]
		switch rng.IntN(8) {
		case 0:
			b.WriteString("{\"key\": \"" + s + "\"}")
		case 1:
			tr := transforms[rng.IntN(len(transforms))]
			if tr.coding == "" {
				b.WriteString(tr.apply(rng, s))
			}
		case 2:
			b.WriteString(sample(rng, fs.list[rng.IntN(len(fs.list))].re) + " ")
		case 3:
			b.WriteString(s[:rng.IntN(len(s))])
		case 4:
			b.WriteString([]string{"%", "\\u00", "&#1", "\x1f\x8b", "gh" + "p_", "-----BEGIN PRIVATE", "eJ", "H4sI", "\xe2\x80", "a b c d e f g h ", "01010101"}[rng.IntN(11)])
		default:
			b.WriteString([]string{" and ", "\n", "func main() {\n", `\n`, "= ", ", ", ";", "x"}[rng.IntN(8)])
		}
	}
	return b.String()
}

// TestSplits: what is found does not depend on where a stream is cut; what is
// let go is the stream, masked, in order.
func TestSplits(t *testing.T) {
	rng := rand.New(rand.NewPCG(71, 72))
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		secrets := []string{randomSecret(rng), randomSecret(rng), randomOf(rng, lowers, 10)}
		r := mustRules(t, Config{Watched: mustKnown(t, secrets...), Tokens: true, Entropy: &Entropy{}})
		text := mixture(rng, secrets)
		check := func(cut []int) ([]Finding, string, error) {
			s := r.NewScanner(Options{Action: Report, Place: "body"})
			defer s.Close()
			var out []byte
			var err error
			from := 0
			for _, to := range append(cut, len(text)) {
				if out, err = s.Push(out, []byte(text[from:to])); err != nil {
					return nil, "", err
				}
				from = to
			}
			out, err = s.End(out)
			f := slices.Clone(s.Findings())
			slices.SortFunc(f, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
			return f, string(out), err
		}
		want, out, err := check(nil)
		if err != nil || out != text {
			t.Fatalf("in one piece: %v, %d of %d bytes", err, len(out), len(text))
		}
		same := func(cut []int) {
			t.Helper()
			got, out, err := check(cut)
			if err != nil || out != text {
				t.Fatalf("cut at %v: %v, %d of %d bytes", cut, err, len(out), len(text))
			}
			if !equalFindings(got, want) {
				t.Fatalf("cut at %v of %q:\n%v\nnot\n%v", cut, text, got, want)
			}
		}
		for at := 1; at < len(text); at++ {
			same([]int{at})
		}
		var each []int
		for at := 1; at < len(text); at++ {
			each = append(each, at)
		}
		same(each)
	}
}

// equalFindings compares rules, secrets and places. The same may have been seen
// by another view first, and the first two of characters with gaps between may
// have left before there was a third.
func equalFindings(a, b []Finding) bool {
	key := func(fs []Finding) (out []Finding) {
		for _, f := range fs {
			f.Transform, f.Sealed = "", false
			out = append(out, f)
		}
		slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })
		return out
	}
	return slices.Equal(key(a), key(b))
}

// TestBlockLetsNothingGo: when a stream is cut, no byte of what was found has left.
func TestBlockLetsNothingGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(81, 82))
	for _, tr := range transforms {
		if tr.never || tr.coding != "" || tr.name == "halves in fields" {
			continue
		}
		for round := range many(8) {
			secret := randomSecret(rng)
			r := mustRules(t, Config{Watched: mustKnown(t, secret), Tokens: round%2 == 0})
			before := strings.Repeat("some text before it, ", rng.IntN(40))
			text := before + tr.apply(rng, secret) + "\nand after it"
			for _, size := range []int{0, 1, 1 + rng.IntN(40)} {
				got, out, err := scanAll(t, r, Options{Coverage: NewCoverage()}, text, size)
				var found *FoundError
				if !errors.As(err, &found) {
					t.Fatalf("%s by %d: %v", tr.name, size, err)
				}
				if !strings.HasPrefix(text, out) {
					t.Fatalf("%s by %d: what left is not what came", tr.name, size)
				}
				leaked := len(out) - len(before)
				if int64(len(out)) > got[0].Offset && !got[0].Sealed {
					t.Errorf("%s by %d: found at %d, and %d bytes have left", tr.name, size, got[0].Offset, len(out))
				}
				// Of an encoding some bytes may be no part of any match, such as a header.
				if limit := map[string]int{"zip": 120, "gzip": 24, "zlib": 16, "zstd": 24, "git pack": 20, "gzip of gzip": 40, "percent in gzip": 30, "base64 in lines": 110, "base64 of gzip": 40, "base64 at 1": 8, "base64 at 2": 8, "base64 twice": 8, "base32": 8, "binary digits": 24, "ascii85": 8, "base85": 12, "hex spaced": 8, "hex colons": 8, "decimal bytes": 12, "separated": 30, "groups": 8, "groups, changing separators": 18,
					"JSON list": 60, "one a line": 100, "bytes with any separator": 60, "uuencode": 90, "strings put together": 60, "base32hex": 8,
					// A line of a dump has a part of the secret that is not yet the secret.
					"xxd": 180, "hexdump -C": 180, "od": 180, "od -x": 180}[tr.name]; leaked > limit+4 {
					t.Errorf("%s by %d: %d bytes of %d have left", tr.name, size, leaked, len(text)-len(before))
				}
			}
		}
	}
}

// TestRedact: the same length, nothing of the secret left, nothing else touched.
func TestRedact(t *testing.T) {
	rng := rand.New(rand.NewPCG(91, 92))
	for _, tr := range transforms {
		if tr.never || tr.coding != "" || tr.name == "halves in fields" {
			continue
		}
		for range many(6) {
			secret := randomOf(rng, lowers+uppers+digits, 40)
			r := mustRules(t, Config{Watched: mustKnown(t, secret)})
			before, after := strings.Repeat("text before ", rng.IntN(30))+"(", ")"+strings.Repeat(" text after", rng.IntN(30))
			hidden := tr.apply(rng, secret)
			text := before + hidden + after
			for _, size := range []int{0, 1, 1 + rng.IntN(30)} {
				got, out, err := scanAll(t, r, Options{Action: Redact}, text, size)
				var found *FoundError
				if errors.As(err, &found) {
					if !found.Finding.Sealed {
						t.Fatalf("%s: %v", tr.name, err)
					}
					continue // compressed: blocked instead
				}
				if err != nil || len(out) != len(text) || len(got) == 0 {
					t.Fatalf("%s by %d: %v, %d bytes, %v", tr.name, size, err, len(out), got)
				}
				if out[:len(before)] != before || out[len(out)-len(after):] != after {
					t.Errorf("%s by %d: touched more than the secret: %q", tr.name, size, out)
				}
				again, _, err := scanAll(t, r, Options{Action: Report}, out, 0)
				if err != nil || len(again) > 0 {
					t.Errorf("%s by %d: still there: %v %v in %q", tr.name, size, again, err, out)
				}
			}
		}
	}
}

// many is n, or less where tests shall be short: the race detector makes each of
// them ten times as long.
func many(n int) int {
	if testing.Short() {
		return 2
	}
	return n
}

func TestRedactNeighbours(t *testing.T) {
	rng := rand.New(rand.NewPCG(101, 102))
	a, b := randomOf(rng, lowers, 24), randomOf(rng, lowers, 24)
	r := mustRules(t, Config{Watched: mustKnown(t, a, b, a[12:]+b[:12])})
	for text, want := range map[string]string{
		a + b:             strings.Repeat("*", 48),
		a + ",\n" + a:     strings.Repeat("*", 24) + ",\n" + strings.Repeat("*", 24),
		a + "," + b:       strings.Repeat("*", 49), // half of each is the third
		"x" + a + a + "y": "x" + strings.Repeat("*", 48) + "y",
		a[:15] + "!":      a[:15] + "!",
		a[:16] + "!":      strings.Repeat("*", 16) + "!",
		"?" + a[8:] + "!": "?" + strings.Repeat("*", 16) + "!",
	} {
		for _, size := range []int{0, 1, 2, 7} {
			_, out, err := scanAll(t, r, Options{Action: Redact}, text, size)
			if err != nil || out != want {
				t.Errorf("by %d: %q becomes %q, not %q (%v)", size, text, out, want, err)
			}
		}
	}
}

// TestHoldsLittle: a complete event leaves at once, however its bytes were split.
func TestHoldsLittle(t *testing.T) {
	rng := rand.New(rand.NewPCG(111, 112))
	var secrets []string
	for range 20 {
		secrets = append(secrets, randomSecret(rng))
	}
	r := mustRules(t, Config{Watched: mustKnown(t, secrets...), Tokens: true})
	s := r.NewScanner(Options{})
	defer s.Close()
	texts := []string{"some words", `line one\nline two`, `a \u003ctag\u003e`, `it\u2019s`, "naïve café — “quoted”", "emoji 🙂 and 漢字", "x = a[1];", `{\"path\":\"C:\\dir\"}`, "100%", "eyes", "s.a"}
	for i := range 400 {
		event := "event: message\ndata: {\"type\":\"content_block_delta\",\"index\":" + strings.Repeat("1", 1+i%7) + ",\"text\":\"" + texts[i%len(texts)] + randomOf(rng, lowers+" ", rng.IntN(50)) + "\"}\n\n"
		var left []byte
		for rest := event; rest != ""; {
			n := min(len(rest), 1+rng.IntN(40))
			out, err := s.Push(left, []byte(rest[:n]))
			if err != nil {
				t.Fatal(err)
			}
			left, rest = out, rest[n:]
			if s.held() > 128 {
				t.Fatalf("%d bytes are held in the middle of an event: %q", s.held(), event)
			}
		}
		if string(left) != event || s.held() > 0 {
			t.Fatalf("%d bytes of an event are held: %q", s.held(), event)
		}
	}
	// Its nearest neighbours, which must wait: what ends like the beginning of a
	// secret, of a token, of an escape, of a character, of characters with gaps.
	for _, end := range []string{secrets[0][:12], "gh" + "p_abc", `\u00`, "\xe2\x80", "a-b-c-d-e-f"} {
		held := r.NewScanner(Options{})
		if _, err := held.Push(nil, []byte("data: "+end)); err != nil {
			t.Fatal(err)
		}
		if held.held() == 0 {
			t.Errorf("nothing of %q is held", end)
		}
		held.Close()
	}
	// In the middle of a word a few bytes may still become something.
	for range 300 {
		if _, err := s.Push(nil, []byte(randomOf(rng, lowers+digits, 1+rng.IntN(30)))); err != nil {
			t.Fatal(err)
		}
		if s.held() > 64 {
			t.Fatalf("%d bytes of a word are held", s.held())
		}
	}
}

func TestReader(t *testing.T) {
	rng := rand.New(rand.NewPCG(121, 122))
	secret := randomSecret(rng)
	r := mustRules(t, Config{Watched: mustKnown(t, secret)})
	clean := strings.Repeat("nothing to see here, ", 5000)
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"as it is": func(r io.Reader) io.Reader { return r }, "one byte": iotest.OneByteReader, "data with the error": iotest.DataErrReader, "half": iotest.HalfReader} {
		s := r.NewScanner(Options{})
		got, err := io.ReadAll(NewReader(wrap(strings.NewReader(clean)), s))
		if err != nil || string(got) != clean {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		s.Close()
		s = r.NewScanner(Options{})
		got, err = io.ReadAll(NewReader(wrap(strings.NewReader(clean+secret+clean)), s))
		var found *FoundError
		if !errors.As(err, &found) || !strings.HasPrefix(clean, string(got)) {
			t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(clean), err)
		}
		s.Close()
	}
	s := r.NewScanner(Options{})
	defer s.Close()
	broken := errors.New("broken")
	if got, err := io.ReadAll(NewReader(io.MultiReader(strings.NewReader(clean), iotest.ErrReader(broken)), s)); err != broken || len(got) > len(clean) {
		t.Error(err)
	}
}

func FuzzKnown(f *testing.F) {
	f.Add(uint64(1), []byte("x"), uint16(3))
	f.Fuzz(func(t *testing.T, seed uint64, extra []byte, size uint16) {
		rng := rand.New(rand.NewPCG(seed, 1))
		k := mustKnown(t, randomOf(rng, lowers+digits, 8+rng.IntN(30)))
		text := pieces(rng, k, 60)
		text = text[:rng.IntN(len(text)+1)] + string(extra[:min(len(extra), 100)]) + text
		want := naiveKnown(k, text)
		got, out, err := scanAll(t, mustRules(t, Config{Watched: k}), Options{Action: Report}, text, int(size))
		if err != nil || out != text {
			t.Fatal(err, len(out), len(text))
		}
		if len(want) > 0 && len(got) == 0 {
			t.Fatalf("not found in %q", text)
		}
	})
}

// FuzzScan gives a scanner anything: it must not break, lose bytes, or depend on
// how the stream is cut.
func FuzzScan(f *testing.F) {
	rng := rand.New(rand.NewPCG(131, 132))
	secrets := []string{randomSecret(rng), randomSecret(rng), randomOf(rng, lowers+digits, 12)}
	k := mustKnown(f, secrets...)
	for range 20 {
		f.Add([]byte(mixture(rng, secrets)), uint16(7))
	}
	r := mustRules(f, Config{Watched: k, Tokens: true, Entropy: &Entropy{}})
	f.Fuzz(func(t *testing.T, text []byte, size uint16) {
		if len(text) > 64<<10 {
			return
		}
		want, out, err := scanAll(t, r, Options{Action: Report}, string(text), 0)
		got, out2, err2 := scanAll(t, r, Options{Action: Report}, string(text), 1+int(size)%512)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%v, but in pieces %v", err, err2)
		}
		if err != nil {
			var limit *LimitError
			if !errors.As(err, &limit) {
				t.Fatal(err)
			}
			return
		}
		if out != string(text) || !bytes.Equal([]byte(out2), text) {
			t.Fatalf("%d and %d bytes of %d", len(out), len(out2), len(text))
		}
		// Of what does not decode to its end, a piece more or less was looked at when
		// that shows; so a secret may be told once more, and none may be missing.
		if !maps.Equal(secretsOf(got), secretsOf(want)) {
			t.Fatalf("%v, but in pieces %v", want, got)
		}
	})
}

// secretsOf returns the names of the secrets found.
func secretsOf(fs []Finding) map[[2]string]bool {
	m := map[[2]string]bool{}
	for _, f := range fs {
		m[[2]string{f.Rule, f.Secret}] = true
	}
	return m
}

// TestSkipGrams: the assembly passes over the same as Go, and never over a gram
// of a secret.
func TestSkipGrams(t *testing.T) {
	rng := rand.New(rand.NewPCG(141, 142))
	for round := range 300 {
		k := mustKnown(t, randomOf(rng, lowers+digits, 16+rng.IntN(30)))
		b := []byte(randomOf(rng, lowers+digits, 70+rng.IntN(600)))
		put := -1
		if round%2 == 0 {
			text := k.needles[rng.IntN(len(k.needles))].text
			put = rng.IntN(len(b)/stride) * stride
			if put+gramLen > len(b) {
				put = 0
			}
			copy(b[put:put+gramLen], text[rng.IntN(len(text)-gramLen+1):])
		}
		for _, step := range []int{stride, 1, joinedStride} {
			n := (len(b) - gramLen + step) / (4 * step)
			got, want := skipGrams(k.filter, k.fshift, b, n, step), skipGramsInGo(k.filter, k.fshift, b, n, step)
			if got != want || put >= 0 && step != joinedStride && k.maybe(binary.LittleEndian.Uint64(b[put:])) && k.skip(b, step) > put {
				t.Fatalf("by %d: %d of %d fours are passed over, in Go %d; %d bytes, of which a gram stands at %d", step, got, n, want, k.skip(b, step), put)
			}
		}
	}
}
