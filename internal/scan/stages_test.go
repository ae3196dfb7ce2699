package scan

import (
	"crypto/aes"
	"crypto/cipher"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/scan/literal"
)

// BenchmarkStages says where a scanner's time goes: nanoseconds for a kilobyte of each
// stage, and of all of it. A busy machine only adds to what a piece takes, so of many
// tries the shortest counts; the sum over the pieces of a text is shown.
func BenchmarkStages(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var secrets []string
	for range 20 {
		secrets = append(secrets, randomOf(rng, lowers+uppers+digits, 40))
	}
	r, in := mustRules(b, Config{Watched: mustKnown(b, secrets...), Tokens: true}), mustInjections(b)
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	for _, t := range benchTexts(b) {
		b.Run(t.name, func(b *testing.B) {
			const pieces, tries = 16, 25
			text := t.text[1<<20:]
			out := make([]byte, 0, 2*chunk)
			var hits []literal.Hit
			letters := make([]byte, 0, chunk+joinedRoom)
			scanner, entering := r.NewScanner(Options{Action: Report}), in.NewScanner(Options{Action: Report})
			defer scanner.Close()
			defer entering.Close()
			_, _ = scanner.Push(nil, t.text[:64<<10])
			stages := []struct {
				name string
				do   func(p []byte)
			}{
				{"copy", func(p []byte) { copy(out[:chunk], p) }},
				{"seal", func(p []byte) { gcm.Seal(out[:0], make([]byte, 12), p, nil) }},
				{"grams", func(p []byte) {
					for at := 0; at+gramLen < len(p); at += stride {
						at += r.watched.skip(p[at:], stride)
					}
				}},
				{"literals", func(p []byte) { hits = r.lits.Find(hits[:0], p, 0) }},
				{"join", func(p []byte) { letters = join(letters[:0], p) }},
				{"joined", func(p []byte) {
					for at := 0; at+gramLen < len(letters); at += joinedStride {
						at += r.watched.skip(letters[at:], joinedStride)
					}
				}},
				{"all", func(p []byte) { out, _ = scanner.Push(out[:0], p) }},
				{"odd", func(p []byte) {
					for at := 0; at < len(p); at++ {
						at = findOdd(p, at)
					}
				}},
				{"keys", func(p []byte) { hits = in.phrases.keyLits.Find(hits[:0], p, 0) }},
				{"entering", func(p []byte) { out, _ = entering.Push(out[:0], p) }},
			}
			for b.Loop() {
				for _, s := range stages {
					var sum time.Duration
					for i := range pieces {
						p := text[i*chunk : (i+1)*chunk]
						best := time.Hour
						for range tries {
							begin := time.Now()
							s.do(p)
							best = min(best, time.Since(begin))
						}
						sum += best
					}
					b.ReportMetric(float64(sum.Nanoseconds())/pieces/(chunk>>10), s.name)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
