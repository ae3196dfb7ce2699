package scan

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// TestSpare: what decodes to a thousand times its size does so only as often as the
// bottle has spare for it, and again when time has passed; what is compressed as text
// is, and small things, always do.
func TestSpare(t *testing.T) {
	rules, err := NewRules(Config{Tokens: true})
	if err != nil {
		t.Fatal(err)
	}
	var bomb, page, small bytes.Buffer
	z, _ := zstd.NewWriter(&bomb)
	z.Write(make([]byte, 15<<20))
	z.Close()
	g := gzip.NewWriter(&page)
	for i := range 50_000 {
		fmt.Fprintf(g, "%07d GET /index/%x HTTP/1.1 200 OK\n", i, i*i)
	}
	g.Close()
	g = gzip.NewWriter(&small)
	g.Write(make([]byte, 60<<10))
	g.Close()
	at := time.Unix(1e9, 0)
	spare := NewSpare(func() time.Time { return at })
	try := func(coding string, b []byte) (int64, error) {
		s := rules.NewScanner(Options{Place: "body", Spare: spare, Codings: []string{coding}})
		defer s.Close()
		_, err := s.Push(nil, b)
		if err == nil {
			_, err = s.End(nil)
		}
		return s.output, err
	}
	made := int64(0)
	bombs := func() (passed int) {
		for range 40 {
			n, err := try("zstd", bomb.Bytes())
			made += n
			var limit *LimitError
			switch {
			case err == nil:
				passed++
			case !errors.As(err, &limit) || !strings.Contains(limit.Limit, "together"):
				t.Fatal(err)
			}
		}
		return passed
	}
	if n := bombs(); n < 10 || n > 18 || made > maxSpare+40*(freshOutput+bufferLen+200*int64(bomb.Len())) {
		t.Errorf("%d of 40 passed, and made %d MiB of %d bytes", n, made>>20, 40*bomb.Len())
	}
	for coding, b := range map[string][]byte{"gzip": page.Bytes(), " gzip ": small.Bytes()} {
		if _, err := try(strings.TrimSpace(coding), b); err != nil {
			t.Errorf("%d bytes of ordinary text: %v", len(b), err)
		}
	}
	at = at.Add(4 * time.Second)
	if n := bombs(); n < 1 || n > 3 {
		t.Errorf("%d passed with what four seconds add", n)
	}
}
