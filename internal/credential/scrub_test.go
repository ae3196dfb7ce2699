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
		out, err := io.ReadAll(s.Body(io.NopCloser(wrap(strings.NewReader(text))), Look{}, true))
		if err != nil || len(out) != len(text) || bytes.Contains(out, []byte(real)) || bytes.Contains(out, []byte(encoded)) || bytes.Count(out, []byte("carboy-")) != 4 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if !bytes.HasPrefix(out, []byte("a carboy-")) || !bytes.HasSuffix(out, []byte(" c real-valu "+real[:5])) {
			t.Errorf("%s: %s", name, out)
		}
	}
	h := http.Header{"X": {"x", "Bearer " + real}}
	if err := s.Header(h, Look{}); err != nil || strings.Contains(h.Get("X"), "4711") || len(h["X"][1]) != len("Bearer "+real) {
		t.Error(h)
	}
}

// TestScrubAtOnce: bytes that can't begin a value are returned at once.
func TestScrubAtOnce(t *testing.T) {
	c := open(t, Bearer, "", real)
	pr, pw := io.Pipe()
	b := c.Scrubber().Body(pr, Look{}, true)
	go pw.Write([]byte("data: hello\n\n"))
	p := make([]byte, 100)
	if n, err := b.Read(p); err != nil || string(p[:n]) != "data: hello\n\n" {
		t.Errorf("%q %v", p[:n], err)
	}
	go pw.Write([]byte("x^\n" + real[:3])) // x^ begins zlib, too
	if n, err := b.Read(p); err != nil || string(p[:n]) != "x^\n" {
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
		out, err := io.ReadAll(s.Body(io.NopCloser(&steps{text, step}), Look{}, false))
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

// TestScrubForms: values are found as URLs, JSON and HTML escape them.
func TestScrubForms(t *testing.T) {
	const odd = "part one/+<=&\"-KERNEL"
	s := open(t, Bearer, "", odd).Scrubber()
	for name, form := range map[string]string{
		"query": "part+one%2F%2B%3C%3D%26%22-KERNEL", "small digits": "part+one%2f%2b%3c%3d%26%22-KERNEL", "path": "part%20one%2F+%3C=&%22-KERNEL",
		"json": `part one/+\u003c=\u0026\"-KERNEL`, "json as it is": `part one/+<=&\"-KERNEL`, "json of php": `part one\/+<=&\"-KERNEL`, "html": "part one/&#43;&lt;=&amp;&#34;-KERNEL", "html quot": "part one/+&lt;=&amp;&quot;-KERNEL",
	} {
		b := []byte("a " + form + " b")
		if name == "html" { // html.EscapeString leaves + as it is
			b = []byte(strings.Replace(string(b), "&#43;", "+", 1))
		}
		if n := s.replace(b); n != 1 || bytes.Contains(b, []byte("KERNEL")) {
			t.Errorf("%s: the value is left in %s", name, b)
		}
	}
	if got := s.Text("malformed: part one/+<=&\\\"-KERNEL"); strings.Contains(got, "KERNEL") || !strings.HasPrefix(got, "malformed: carboy-") {
		t.Errorf("a text keeps the value: %s", got)
	}
	if b := []byte("part two/+<=&-KERNEL"); s.replace(b) != 0 || len(open(t, Bearer, "", real).Scrubber().values) != 1 {
		t.Errorf("more is looked for than must be: %s", b)
	}
}
