package scan

import (
	"bytes"
	"errors"
	"testing"

	"github.com/andybalholm/brotli"
)

// TestDecodersMemory: what all decoders hold is bounded, however few bytes make them
// take it, and is given back.
func TestDecodersMemory(t *testing.T) {
	rules, err := NewRules(Config{})
	if err != nil {
		t.Fatal(err)
	}
	// A frame of zstd with a window of 8 MiB, and a block of one byte repeated.
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3, 0x42, 0x1f, 0, 'a'}
	var packed bytes.Buffer
	w := brotli.NewWriterOptions(&packed, brotli.WriterOptions{Quality: 5, LGWin: 24})
	_, _ = w.Write(bytes.Repeat([]byte("a line of text\n"), 600_000))
	_ = w.Flush()
	for name, x := range map[string]struct {
		codings []string
		body    []byte
		least   int64 // that each takes
	}{
		"zstd":               {[]string{"zstd"}, frame, 8 << 20},
		"brotli":             {[]string{"br"}, packed.Bytes(), 8 << 20},
		"zstd by its magic":  {nil, append([]byte("text\n"), frame...), 8 << 20},
		"zstd inside of one": {[]string{"zstd", "zstd"}, append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3, byte(len(frame) << 3), 0, 0}, frame...), 16 << 20},
	} {
		before := remembered.Load()
		var open []*Scanner
		var limit *LimitError
		for range 2 * maxRemembered / int(x.least) {
			s := rules.NewScanner(Options{Place: "body", Codings: x.codings})
			open = append(open, s)
			if _, err := s.Push(nil, x.body); errors.As(err, &limit) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if held := remembered.Load() - before; limit == nil || len(open) < 10 || held < maxRemembered/2 || held > maxRemembered {
			t.Errorf("%s: %d scanners, %d bytes, %v", name, len(open), held, limit)
		}
		for _, s := range open {
			s.Close()
		}
		if held := remembered.Load(); held != before {
			t.Errorf("%s: %d bytes were not given back", name, held-before)
		}
		s := rules.NewScanner(Options{Place: "body", Codings: x.codings})
		if _, err := s.Push(nil, x.body); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
		s.Close()
	}
}
