package credential

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

func TestScrub(t *testing.T) {
	c := open(t, Basic, "", "user:"+real)
	s := c.Scrubber()
	encoded := c.signer.(basic).encoded.UnsafeString()
	text := "a " + real + real + " b user:" + real + " " + encoded + " c real-valu " + real[:5]
	for name, wrap := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "data with end": iotest.DataErrReader,
	} {
		n := 0
		out, err := io.ReadAll(s.Body(io.NopCloser(wrap(strings.NewReader(text))), func(k int) { n += k }))
		if err != nil || len(out) != len(text) || bytes.Contains(out, []byte(real)) || bytes.Contains(out, []byte(encoded)) || n != 4 {
			t.Errorf("%s: %d, %v: %s", name, n, err, out)
		}
		if !bytes.HasPrefix(out, []byte("a carboy-")) || !bytes.HasSuffix(out, []byte(" c real-valu "+real[:5])) {
			t.Errorf("%s: %s", name, out)
		}
	}
	h := http.Header{"X": {"x", "Bearer " + real}}
	if n := s.Header(h); n != 1 || strings.Contains(h.Get("X"), "4711") || len(h["X"][1]) != len("Bearer "+real) {
		t.Errorf("%d %v", n, h)
	}
}

// TestScrubAtOnce: what can't begin a value does not wait for what follows.
func TestScrubAtOnce(t *testing.T) {
	c := open(t, Bearer, "", real)
	pr, pw := io.Pipe()
	b := c.Scrubber().Body(pr, func(int) {})
	go pw.Write([]byte("data: hello\n\n"))
	p := make([]byte, 100)
	if n, err := b.Read(p); err != nil || string(p[:n]) != "data: hello\n\n" {
		t.Errorf("%q %v", p[:n], err)
	}
	go pw.Write([]byte("x" + real[:3]))
	if n, err := b.Read(p); err != nil || string(p[:n]) != "x" {
		t.Errorf("%q %v", p[:n], err)
	}
	go func() { pw.Write([]byte("LLY")); pw.Close() }()
	if rest, err := io.ReadAll(b); err != nil || string(rest) != "reaLLY" {
		t.Errorf("%q %v", rest, err)
	}
}

func FuzzScrub(f *testing.F) {
	f.Add([]byte("abcabcabd"), []byte("abcabd"), 2)
	f.Fuzz(func(t *testing.T, text, value []byte, step int) {
		if len(value) < minScrubbed || step < 1 || bytes.ContainsAny(value, "carboy-plehd") {
			return
		}
		s := &Scrubber{values: [][]byte{value}, marks: [][]byte{bytes.Repeat([]byte{'c'}, len(value))}}
		out, err := io.ReadAll(s.Body(io.NopCloser(&steps{text, step}), func(int) {}))
		want := bytes.ReplaceAll(text, value, bytes.Repeat([]byte{'c'}, len(value)))
		if err != nil || !bytes.Equal(out, want) {
			t.Fatalf("%q, %v; wanted %q", out, err, want)
		}
	})
}

type steps struct {
	b []byte
	n int
}

func (s *steps) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.n)], s.b)
	s.b = s.b[n:]
	return n, nil
}
