package scan

import (
	"archive/zip"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/ascii85"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/carboy/carboy/internal/secret"
)

const (
	lowers = "abcdefghijklmnopqrstuvwxyz"
	uppers = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

// randomOf returns a random secret of n characters, so that no secret is committed.
func randomOf(rng *rand.Rand, alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(b)
}

func randomSecret(rng *rand.Rand) string {
	switch rng.IntN(4) {
	case 0:
		return "gh" + "p_" + randomOf(rng, lowers+uppers+digits, 36)
	case 1:
		return "sk-" + "ant-api03-" + randomOf(rng, lowers+uppers+digits+"-_", 93) + "AA"
	case 2:
		return randomOf(rng, lowers+uppers+digits+"+/", 40)
	}
	return randomOf(rng, lowers+uppers+digits+"-_.!$", 24+rng.IntN(40))
}

// A transform is one way of writing a secret.
type transform struct {
	name   string
	apply  func(rng *rand.Rand, s string) string
	coding string // the Content-Encoding in which it goes
	never  bool   // matching can't find it: what else holds against it is in the documentation
}

func mixed(f func(c byte) string) func(*rand.Rand, string) string {
	return func(rng *rand.Rand, s string) string {
		var out strings.Builder
		for i := range len(s) {
			if rng.IntN(2) == 0 {
				out.WriteString(f(s[i]))
			} else {
				out.WriteByte(s[i])
			}
		}
		return out.String()
	}
}

func all(sep, format string) func(*rand.Rand, string) string {
	return func(_ *rand.Rand, s string) string {
		var parts []string
		for _, c := range []byte(s) {
			parts = append(parts, fmt.Sprintf(format, c))
		}
		return strings.Join(parts, sep)
	}
}

func squeeze(open func(io.Writer) io.WriteCloser) func(*rand.Rand, string) string {
	return func(rng *rand.Rand, s string) string {
		var b bytes.Buffer
		w := open(&b)
		io.WriteString(w, "some text before it, "+s+", and some after it")
		w.Close()
		return b.String()
	}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

var (
	gzipped = squeeze(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })
	zlibbed = squeeze(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })
	flated  = squeeze(func(w io.Writer) io.WriteCloser { f, _ := flate.NewWriter(w, 6); return f })
	zstded  = squeeze(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z })
	brotled = squeeze(func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) })
	zipped  = func(_ *rand.Rand, s string) string {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, _ := z.Create("notes/readme.txt")
		io.WriteString(w, strings.Repeat("a line of text\n", 20)+s)
		z.Close()
		return b.String()
	}
)

var likes = func() map[byte][]rune {
	m := map[byte][]rune{}
	for r, c := range homoglyphs() {
		m[c] = append(m[c], r)
	}
	return m
}()

var transforms = []transform{
	{name: "plain", apply: func(_ *rand.Rand, s string) string { return s }},
	{name: "base64", apply: func(_ *rand.Rand, s string) string { return b64(s) }},
	{name: "base64 unpadded", apply: func(_ *rand.Rand, s string) string { return strings.TrimRight(b64(s), "=") }},
	{name: "base64url", apply: func(_ *rand.Rand, s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }},
	{name: "base64 at 1", apply: func(_ *rand.Rand, s string) string { return b64("user:" + s + "\n")[1:] }},
	{name: "base64 at 2", apply: func(_ *rand.Rand, s string) string { return b64(`{"k":"` + s + `"}`) }},
	{name: "base64 in lines", apply: func(rng *rand.Rand, s string) string {
		t, out := b64(strings.Repeat("x", rng.IntN(76))+s+strings.Repeat("y", 90)), ""
		for len(t) > 76 {
			out, t = out+t[:76]+"\r\n", t[76:]
		}
		return out + t
	}},
	{name: "base64 twice", apply: func(rng *rand.Rand, s string) string {
		return b64(strings.Repeat("z", rng.IntN(3)) + b64(strings.Repeat("x", rng.IntN(3))+s))
	}},
	{name: "hex", apply: func(_ *rand.Rand, s string) string { return hex.EncodeToString([]byte(s)) }},
	{name: "HEX", apply: func(_ *rand.Rand, s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
	{name: "hex spaced", apply: all(" ", "%02x")},
	{name: "hex colons", apply: all(":", "%02X")},
	{name: "hex escapes", apply: all("", `\x%02x`)},
	{name: "hex of base64", apply: func(_ *rand.Rand, s string) string { return hex.EncodeToString([]byte(b64(s))) }},
	{name: "base64 of hex", apply: func(_ *rand.Rand, s string) string { return b64(hex.EncodeToString([]byte(s))) }},
	{name: "base32", apply: func(rng *rand.Rand, s string) string {
		return base32.StdEncoding.EncodeToString([]byte(strings.Repeat("x", rng.IntN(5)) + s))
	}},
	{name: "ascii85", apply: func(rng *rand.Rand, s string) string {
		var b bytes.Buffer
		w := ascii85.NewEncoder(&b)
		io.WriteString(w, strings.Repeat("x", rng.IntN(4))+s)
		w.Close()
		return b.String()
	}},
	{name: "base85", apply: func(rng *rand.Rand, s string) string {
		return string(base85At([]byte(strings.Repeat("x", 4+rng.IntN(4))+s+"123"), 0, base85[1+rng.IntN(2)]))
	}},
	{name: "percent", apply: all("", "%%%02X")},
	{name: "percent mixed", apply: mixed(func(c byte) string { return fmt.Sprintf("%%%02x", c) })},
	{name: "percent twice", apply: mixed(func(c byte) string { return fmt.Sprintf("%%25%02X", c) })},
	{name: "unicode escapes", apply: all("", `\u%04x`)},
	{name: "unicode escapes mixed", apply: mixed(func(c byte) string { return fmt.Sprintf(`\u%04X`, c) })},
	{name: "entities", apply: all("", "&#%d;")},
	{name: "entities hex", apply: all("", "&#x%x;")},
	{name: "entities mixed", apply: mixed(func(c byte) string { return fmt.Sprintf("&#%d;", c) })},
	{name: "octal escapes", apply: all("", `\%03o`)},
	{name: "decimal bytes", apply: all(", ", "%d")},
	{name: "binary digits", apply: all(" ", "%08b")},
	{name: "reversed", apply: func(_ *rand.Rand, s string) string {
		b := []byte(s)
		for i := range len(b) / 2 {
			b[i], b[len(b)-1-i] = b[len(b)-1-i], b[i]
		}
		return string(b)
	}},
	{name: "rot13", apply: func(_ *rand.Rand, s string) string { return string(rot13([]byte(s))) }},
	{name: "utf-16le", apply: func(_ *rand.Rand, s string) string { return string(utf16([]byte(s))) }},
	{name: "utf-16be", apply: all("", "\x00%c")},
	{name: "halves in fields", apply: func(_ *rand.Rand, s string) string {
		b, _ := json.Marshal(map[string]string{"a": s[:len(s)/2], "b": s[len(s)/2:]})
		return string(b)
	}},
	{name: "separated", apply: func(rng *rand.Rand, s string) string {
		return strings.Join(strings.Split(s, ""), []string{"-", " ", ".", ", ", "|", `","`, "\n"}[rng.IntN(7)])
	}},
	{name: "groups", apply: func(rng *rand.Rand, s string) string {
		return inGroups(s, 2+rng.IntN(6), func() string { return "-" })
	}},
	{name: "groups, changing separators", apply: func(rng *rand.Rand, s string) string {
		return inGroups(s, 2+rng.IntN(6), func() string { return []string{"-", " ", ", ", "\n", " / ", "::", `","`, "…"}[rng.IntN(8)] })
	}},
	{name: "JSON list", apply: func(_ *rand.Rand, s string) string {
		b, _ := json.MarshalIndent(strings.Split(s, ""), "", "  ")
		return string(b)
	}},
	{name: "one a line", apply: func(_ *rand.Rand, s string) string { return inGroups(s, 1, func() string { return "\r\n    " }) }},
	{name: "bytes with any separator", apply: func(rng *rand.Rand, s string) string {
		format := []string{"%d", "%02x", "%02X", "0x%02x", "0x%02X", "%03d", `\x%02x`, "%03o", "chr(%d)", "%08b"}[rng.IntN(10)]
		return all([]string{";", "|", ".", " + ", "\n", "\t", "  ", "_", "||", ",\n  "}[rng.IntN(10)], format)(rng, s)
	}},
	{name: "xxd", apply: func(rng *rand.Rand, s string) string { return dumped(rng, s, "%08x:", "%02x%02x", 0, true) }},
	{name: "hexdump -C", apply: func(rng *rand.Rand, s string) string { return hex.Dump([]byte(strings.Repeat("x", rng.IntN(16)) + s)) }},
	{name: "od", apply: func(rng *rand.Rand, s string) string { return dumped(rng, s, "%07o", "%06o", 8, false) }},
	{name: "od -x", apply: func(rng *rand.Rand, s string) string { return dumped(rng, s, "%07o", "%04x", 8, false) }},
	{name: "base58", apply: func(_ *rand.Rand, s string) string { return string(inBase([]byte(s), baseWhole[0])) }},
	{name: "base62", apply: func(rng *rand.Rand, s string) string { return string(inBase([]byte(s), baseWhole[1+rng.IntN(3)])) }},
	{name: "base32hex", apply: func(rng *rand.Rand, s string) string {
		return base32.HexEncoding.EncodeToString([]byte(strings.Repeat("x", rng.IntN(5)) + s))
	}},
	{name: "uuencode", apply: func(rng *rand.Rand, s string) string {
		b, zero := []byte(strings.Repeat("x", rng.IntN(45))+s+"\n"), []string{"`", " "}[rng.IntN(2)]
		out := "begin 644 file\n"
		for ; len(b) > 0; b = b[min(45, len(b)):] {
			line := append(bytes.Clone(b[:min(45, len(b))]), 0, 0)
			out += string(rune(' '+min(45, len(b)))) + string(uuAt(line, 0, zero)) + "\n"
		}
		return out + zero + "\nend\n"
	}},
	{name: "strings put together", apply: func(rng *rand.Rand, s string) string {
		return inGroups(s, 1+rng.IntN(9), func() string {
			return []string{`" + "`, `" +` + "\n\t" + `"`, "' '", `' || '`, `", "`, `" . "`, `""`, "` + `", `" \` + "\n" + `"`, `"  <>  "`}[rng.IntN(10)]
		})
	}},
	{name: "zero width", apply: mixed(func(c byte) string { return string(c) + "\u200b" })},
	{name: "full width", apply: func(_ *rand.Rand, s string) string {
		var out []rune
		for _, c := range s {
			out = append(out, c+0xfee0)
		}
		return string(out)
	}},
	{name: "homoglyphs", apply: func(rng *rand.Rand, s string) string {
		var out []rune
		for _, c := range []byte(s) {
			if l := likes[c]; l != nil && rng.IntN(3) > 0 {
				out = append(out, l[rng.IntN(len(l))])
			} else {
				out = append(out, rune(c))
			}
		}
		return string(out)
	}},
	{name: "gzip", apply: gzipped},
	{name: "zlib", apply: zlibbed},
	{name: "zstd", apply: zstded},
	{name: "zip", apply: zipped},
	{name: "deflate as coding", apply: flated, coding: "deflate"},
	{name: "brotli as coding", apply: brotled, coding: "br"},
	{name: "base64 of gzip", apply: func(rng *rand.Rand, s string) string { return b64(gzipped(rng, s)) }},
	{name: "base64 of zlib", apply: func(rng *rand.Rand, s string) string { return b64(zlibbed(rng, s)) }},
	{name: "base64 of zstd", apply: func(rng *rand.Rand, s string) string { return b64(zstded(rng, s)) }},
	{name: "git pack", apply: gitPack},
	{name: "gzip of gzip", apply: func(rng *rand.Rand, s string) string { return gzipped(rng, gzipped(rng, s)) }},
	{name: "percent in gzip", apply: func(rng *rand.Rand, s string) string {
		return gzipped(rng, mixed(func(c byte) string { return fmt.Sprintf("%%%02x", c) })(rng, s))
	}},
	{name: "xor", never: true, apply: func(_ *rand.Rand, s string) string {
		b := []byte(s)
		for i := range b {
			b[i] ^= 0x5a
		}
		return string(b)
	}},
	{name: "aes", never: true, apply: func(_ *rand.Rand, s string) string {
		block, _ := aes.NewCipher(bytes.Repeat([]byte{7}, 16))
		b := []byte(s)
		cipher.NewCTR(block, make([]byte, 16)).XORKeyStream(b, b)
		return string(b)
	}},
	{name: "order", never: true, apply: func(_ *rand.Rand, s string) string {
		var out string
		for i := range 3 {
			for j := i; j < len(s); j += 3 {
				out += string(s[j])
			}
		}
		return out
	}},
}

// inGroups puts a separator behind each n characters.
func inGroups(s string, n int, sep func() string) string {
	var b strings.Builder
	for i := range len(s) {
		if i > 0 && i%n == 0 {
			b.WriteString(sep())
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// dumped writes s as xxd and od do by default: an offset, pairs of bytes in either order,
// and the text beside them.
func dumped(rng *rand.Rand, s, offset, pair string, swap uint, beside bool) string {
	b := []byte(strings.Repeat("x", rng.IntN(16)) + s + "\n")
	b = append(b, 0)[:len(b)+len(b)%2]
	var out strings.Builder
	for at := 0; at < len(b); at += 16 {
		line := b[at:min(len(b), at+16)]
		fmt.Fprintf(&out, offset, at)
		for i := 0; i < len(line); i += 2 {
			if swap > 0 {
				fmt.Fprintf(&out, " "+pair, uint(line[i+1])<<8|uint(line[i]))
			} else {
				fmt.Fprintf(&out, " "+pair, line[i], line[i+1])
			}
		}
		if beside {
			fmt.Fprintf(&out, "  %s", strings.ReplaceAll(string(line), "\n", "."))
		}
		out.WriteString("\n")
	}
	return out.String()
}

// gitPack is a pack with one blob, which the secret is in.
func gitPack(rng *rand.Rand, s string) string {
	blob := strings.Repeat("a line\n", 9) + s
	head := []byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01")
	head = append(head, 0x80|3<<4|byte(len(blob)&15), byte(len(blob)>>4))
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	io.WriteString(w, blob)
	w.Close()
	return string(head) + b.String() + randomOf(rng, "\x00\x01\xfe", 20)
}

// carriers lists the messages a secret is sent in.
var carriers = []struct{ before, after string }{
	{"", ""},
	{"The key is ", " and that is it.\n"},
	{`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("func main() { return }\\n", 20), `"}]}`},
	{strings.Repeat("0123456789 some log line, as there are many\n", 400), strings.Repeat("\nmore of it", 50)},
}

func mustKnown(t testing.TB, values ...string) *WatchedSecrets {
	t.Helper()
	m := map[string]secret.Value{}
	for i, v := range values {
		m[fmt.Sprintf("s%d", i)] = secret.NewString(v)
	}
	k, err := NewWatchedSecrets(m)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func mustRules(t testing.TB, c Config) *Rules {
	t.Helper()
	r, err := NewRules(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// scanAll scans text in pieces of the given size (0: all at once).
func scanAll(t testing.TB, r *Rules, o Options, text string, size int) ([]Finding, string, error) {
	t.Helper()
	s := r.NewScanner(o)
	defer s.Close()
	var out []byte
	var err error
	if size == 0 {
		size = max(1, len(text))
	}
	for i := 0; i < len(text) && err == nil; i += size {
		out, err = s.Push(out, []byte(text[i:min(len(text), i+size)]))
		if err == nil && s.root.fed()-s.given != int64(s.held()) {
			t.Fatal("lost count")
		}
	}
	if err == nil {
		out, err = s.End(out)
	}
	return s.Findings(), string(out), err
}

func TestTransforms(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	found, total := 0, 0
	for _, tr := range transforms {
		hits, tries := 0, 0
		for round := range many(6) {
			secret := randomSecret(rng)
			r := mustRules(t, Config{Watched: mustKnown(t, secret, randomSecret(rng))})
			for _, c := range carriers {
				text := c.before + tr.apply(rng, secret) + c.after
				var got []Finding
				var err error
				if tr.coding != "" {
					got, err = scanCoded(t, r, Options{Action: Report, Coverage: NewCoverage()}, tr.apply(rng, secret), tr.coding, []int{0, 1, 7}[round%3])
				} else {
					got, _, err = scanAll(t, r, Options{Action: Report, Coverage: NewCoverage()}, text, []int{0, 1, 7}[round%3])
				}
				if err != nil {
					t.Fatalf("%s: %v", tr.name, err)
				}
				tries++
				if len(got) > 0 {
					hits++
					if got[0].Secret != "s0" {
						t.Errorf("%s: %v", tr.name, got)
					}
				} else if !tr.never && hits+3 > tries {
					t.Logf("%s: missed in carrier %.20q (round %d): %q", tr.name, c.before, round, text[max(0, len(text)-200):])
				}
			}
		}
		switch {
		case !tr.never && hits < tries:
			t.Errorf("%s: found %d of %d", tr.name, hits, tries)
		case tr.never && hits > 0:
			t.Errorf("%s: found %d of %d, which can't be", tr.name, hits, tries)
		}
		total++
		if hits == tries {
			found++
		}
	}
	t.Logf("%d of %d transforms, each always", found, total)
}

// TestForms: there are as many as the documentation says, and base85 is what
// others write.
func TestForms(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	s := []byte(randomOf(rng, lowers+uppers+digits, 40))
	forms, more := 0, 0
	for _, n := range needlesOf(0, s) {
		if n.onlyJoined {
			more++
		} else {
			forms++
		}
	}
	if forms != 81 || more != 31 {
		t.Errorf("%d forms of a secret and %d more of its letters and digits: docs/scanning.md says something else", forms, more)
	}
	var b bytes.Buffer
	w := ascii85.NewEncoder(&b)
	w.Write(s)
	w.Close()
	if got := string(base85At(s, 0, base85[0])); got != b.String() {
		t.Errorf("ascii85: %s, not %s", got, b.String())
	}
	// python3 -c "import base64; print(base64.b85encode(b'carboy holds it '))"
	if got := string(base85At([]byte("carboy holds it "), 0, base85[1])); got != "V_|Y)Z+ReSZ){|9AZc_U" {
		t.Errorf("base85: %s", got)
	}
}
