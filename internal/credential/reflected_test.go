package credential

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// randomText returns n characters, of which a credential is made when it is needed.
func randomText(rng *rand.Rand, n int) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(b)
}

func each(sep, format string) func(string) string {
	return func(s string) string {
		var parts []string
		for i := range len(s) {
			parts = append(parts, fmt.Sprintf(format, s[i]))
		}
		return strings.Join(parts, sep)
	}
}

func base64Behind(before string, e *base64.Encoding) func(string) string {
	return func(s string) string { return e.EncodeToString([]byte(before + s + "\n")) }
}

func squeezed(open func(io.Writer) io.WriteCloser) func(string) string {
	return func(s string) string {
		var b bytes.Buffer
		w := open(&b)
		io.WriteString(w, `{"the answer":"`+s+`"}`)
		w.Close()
		return b.String()
	}
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

// reflections are ways in which a server may write a credential that it repeats.
var reflections = []struct {
	name  string
	write func(string) string
	ends  bool // it may not be masked, and the answer ends
}{
	{"plain", func(s string) string { return s }, false},
	{"base64 at 0", base64Behind("", base64.StdEncoding), false},
	{"base64 at 1", base64Behind("u", base64.StdEncoding), false},
	{"base64 at 2", base64Behind("me", base64.RawStdEncoding), false},
	{"base64 of URLs", base64Behind("u", base64.RawURLEncoding), false},
	{"base64 of JSON", base64Behind(`{"token":"`, base64.StdEncoding), false},
	{"base64 twice", func(s string) string {
		return base64Behind("", base64.StdEncoding)(base64Behind("x", base64.StdEncoding)(s))
	}, false},
	{"hex", func(s string) string { return hex.EncodeToString([]byte(s)) }, false},
	{"HEX", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }, false},
	{"capitals", strings.ToUpper, false},
	{"small letters", strings.ToLower, false},
	{"unicode escapes", each("", `\u%04x`), false},
	{"some escapes", func(s string) string { return s[:9] + each("", `\u%04X`)(s[9:20]) + s[20:] }, false},
	{"percent", each("", "%%%02X"), false},
	{"percent twice", each("", "%%25%02x"), false},
	{"entities", each("", "&#%d;"), false},
	{"entities in hex", each("", "&#x%x;"), false},
	{"UTF-16", each("", "%c\x00"), false},
	{"UTF-16, big end first", each("", "\x00%c"), false},
	{"reversed", func(s string) string {
		var b []byte
		for i := range len(s) {
			b = append(b, s[len(s)-1-i])
		}
		return string(b)
	}, false},
	{"dashes", each("-", "%c"), true},
	{"without its first", func(s string) string { return s[1:] }, false},
	{"without its last", func(s string) string { return s[:len(s)-1] }, false},
	{"without one amid it", func(s string) string { return s[:len(s)/2] + s[len(s)/2+1:] }, true},
	{"with another amid it", func(s string) string { return s[:len(s)/2] + "~" + s[len(s)/2+1:] }, true},
	{"gzip", squeezed(gzipped), true},
	{"zlib", squeezed(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }), true},
	{"zstd", squeezed(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }), true},
	{"gzip in base64", func(s string) string {
		return base64.StdEncoding.EncodeToString([]byte(squeezed(gzipped)(s)))
	}, true},
}

var sources = map[string]func(io.Reader) io.Reader{
	"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
}

// TestReflected: a credential does not come in, however the server writes it. What can be
// masked keeps its length. Another value of the same form, which an answer may well hold,
// comes in as it is.
func TestReflected(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, c := range []struct {
		scheme policy.Scheme
		before string
	}{{Bearer, ""}, {Bearer, "ghp" + "_"}, {Basic, "somebody@example.com:"}, {AWS, "AKID:"}} {
		own, other := randomText(rng, 40), randomText(rng, 40)
		s := open(t, c.scheme, "", c.before+own).Scrubber()
		for _, x := range reflections {
			for _, around := range [][2]string{{"", ""}, {`{"a":1,"b":"`, `"}` + "\n"}, {strings.Repeat("a line of an answer, as there are many\n", 450), "\nand more"}} {
				for how, wrap := range sources {
					if how == "bytes" && len(around[0]) > 100 {
						continue
					}
					what := fmt.Sprintf("%s%s, %s, %s, behind %d bytes", c.scheme, c.before, x.name, how, len(around[0]))
					form := x.write(own)
					in := around[0] + form + around[1]
					out, err := io.ReadAll(s.Body(io.NopCloser(wrap(strings.NewReader(in))), Look{}, true))
					var found *scan.FoundError
					switch {
					case err != nil && !(x.ends && errors.As(err, &found)), err == nil && len(out) != len(in):
						t.Errorf("%s: %d of %d bytes, %v", what, len(out), len(in), err)
					case leaks(out, form):
						t.Errorf("%s: it came in: %q", what, out[max(0, len(out)-300):])
					}
					in = around[0] + x.write(other) + around[1]
					if out, err := io.ReadAll(s.Body(io.NopCloser(wrap(strings.NewReader(in))), Look{}, true)); err != nil || string(out) != in {
						t.Errorf("%s: another value is changed: %v", what, err)
					}
				}
			}
		}
	}
}

// leaks reports whether half of form is left in out.
func leaks(out []byte, form string) bool {
	for n := len(form) / 2; n+len(form)/2 <= len(form) && n >= 0; n-- {
		if bytes.Contains(out, []byte(form[n:n+len(form)/2])) {
			return true
		}
	}
	return false
}

// TestReflectedElsewhere: nor does it come in in headers, their names, texts and messages,
// and a search ends them where it can't be masked.
func TestReflectedElsewhere(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	own, other, second := randomText(rng, 40), strings.ToLower(randomText(rng, 40)), randomText(rng, 40)
	var found []scan.Finding
	look := Look{Found: func(f scan.Finding) { found = append(found, f) }}
	hexed := func(s string) string { return hex.EncodeToString([]byte(s)) }
	packed := squeezed(gzipped)
	for _, s := range []*Scrubber{open(t, Bearer, "", own).Scrubber(), NewScrubber(open(t, Bearer, "", own), open(t, Bearer, "", second))} {
		h := http.Header{"X-A": {"x", hexed(own)}, "X-" + strings.ToUpper(hexed(own)): {"1"}, "X-B": {hexed(other)}}
		if err := s.Header(h, look); err != nil || len(h) != 2 || len(h["X-A"][1]) != 80 || leaks([]byte(h["X-A"][1]), hexed(own)) || h.Get("X-B") != hexed(other) {
			t.Errorf("%v, %v", h, err)
		}
		if err := s.Header(http.Header{"X-A": {packed(own)}}, look); err == nil {
			t.Error("a compressed header comes in")
		}
		if got := s.Text("an error: " + hexed(own)); strings.Contains(got, hexed(own)) {
			t.Error(got)
		}
		if got := s.Text("an error: " + hexed(other)); got != "an error: "+hexed(other) {
			t.Error(got)
		}
		m := s.Messages(look)
		defer m.Close()
		var out []byte
		var err error
		for _, p := range []string{"x^", hexed(own)[:30], hexed(own)[30:]} {
			if out, err = m.Push(out, []byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		if out, err = m.End(out); err != nil || len(out) != 82 || leaks(out, hexed(own)) {
			t.Errorf("%q, %v", out, err)
		}
		p := []byte(hexed(own))
		if err := m.Control(p); err != nil || leaks(p, hexed(own)) {
			t.Errorf("%q, %v", p, err)
		}
		m.Coded([]string{"gzip"})
		if out, err = m.Push(nil, []byte(packed(other))); err == nil {
			out, err = m.End(out)
		}
		if err != nil || string(out) != packed(other) {
			t.Errorf("a coded message: %q, %v", out, err)
		}
		if out, err = m.Push(nil, []byte(packed(own))); err == nil {
			_, err = m.End(out)
		}
		var f *scan.FoundError
		if !errors.As(err, &f) {
			t.Errorf("a coded message: %v", err)
		}
	}
	if len(found) == 0 || found[0].Secret != "n" {
		t.Errorf("told of %v", found)
	}
	// Pieces that are not a part of anything masked end the answer, and are told of.
	found = nil
	s := open(t, Bearer, "", own[:22]).Scrubber()
	body := s.Body(io.NopCloser(strings.NewReader("é "+own[:11]+"~"+own[12:22]+" ü")), look, true)
	out, err := io.ReadAll(body)
	if body.Close(); err == nil || len(found) != 1 || strings.Contains(string(out), own[12:22]) {
		t.Errorf("%q, %v, %v", out, err, found)
	}
	// A short value is replaced and not searched for; nor is the beginning of a long one,
	// in which others of its kind are alike.
	long := randomText(rng, 200)
	for value, want := range map[string]string{"abcdef": hexed("abcdef"), long: long[1:64]} {
		body := open(t, Bearer, "", value).Scrubber().Body(io.NopCloser(iotest.OneByteReader(strings.NewReader(want+" é\n"+want[:5]))), Look{}, true)
		out, err := io.ReadAll(body)
		if body.Close(); err != nil || string(out) != want+" é\n"+want[:5] {
			t.Errorf("%q, %v", out, err)
		}
	}
}

// TestUnprepared: if the search can't be made, nothing enters. A value that is fit for it
// makes one.
func TestUnprepared(t *testing.T) {
	for value, enters := range map[string]bool{strings.Repeat("a", 40): false, "Kx7Qm2Zp9Rt4Vb6Nc1Ld8Hs3Wf5Gj0YeUaToXi": true} {
		s := &Scrubber{values: [][]byte{[]byte(value)}, marks: [][]byte{bytes.Repeat([]byte("-"), len(value))}, hidden: map[string]secret.Value{"n": secret.NewString(value)}}
		s.prepare()
		judge := func(where string, err error) {
			if (err == nil) != enters || err != nil && !errors.Is(err, ErrUnprepared) {
				t.Errorf("%s: %v", where, err)
			}
		}
		out, err := io.ReadAll(s.Body(io.NopCloser(strings.NewReader("an answer")), Look{}, true))
		judge("body", err)
		if !enters && len(out) > 0 {
			t.Errorf("%q enters", out)
		}
		judge("header", s.Header(http.Header{"X-A": {"x"}}, Look{}))
		m := s.Messages(Look{})
		defer m.Close()
		judge("control", m.Control([]byte("ping")))
		if _, err = m.Push(nil, []byte("message")); err == nil {
			_, err = m.End(nil)
		}
		judge("message", err)
		if got := s.Text("an error"); (got == "an error") != enters {
			t.Error(got)
		}
	}
}
