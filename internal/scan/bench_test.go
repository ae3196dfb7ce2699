package scan

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/scan/literal"
)

type benchText struct {
	name string
	text []byte
}

// benchTexts returns texts as messages contain them: programs, JSON with programs in it,
// sentences (the comments of programs), the same with apostrophes and dashes of books,
// base64, bytes without any order.
func benchTexts(b testing.TB) []benchText {
	const size = 4 << 20
	var code, js, prose []byte
	standardLibrary(b, 6*size, func(_ string, text []byte) {
		if len(code) < size {
			code = append(code, text...)
		}
		for line := range bytes.Lines(text) {
			if comment, ok := bytes.CutPrefix(bytes.TrimLeft(line, "\t"), []byte("// ")); ok {
				prose = append(prose, comment...)
			}
		}
	})
	book := bytes.ReplaceAll(bytes.ReplaceAll(prose, []byte("'"), []byte("’")), []byte(" -"), []byte(" —"))
	code = code[:size]
	for _, c := range code[:size] {
		switch c {
		case '\n':
			js = append(js, `\n`...)
		case '\t':
			js = append(js, `\t`...)
		case '"', '\\':
			js = append(js, '\\', c)
		default:
			js = append(js, c)
		}
	}
	random := make([]byte, size)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(random)
	return []benchText{{"code", code}, {"json", js[:size]}, {"prose", prose[:min(size, len(prose))]}, {"book", book[:min(size, len(book))]}, {"base64", []byte(base64.StdEncoding.EncodeToString(random))[:size]}, {"random", random}}
}

// BenchmarkScan reports, besides MB/s by the clock, MB per second of processor time,
// as a share of the speed of copying and of encrypting with AES-128-GCM too. These
// are measured in between, every 256 KiB, so that a busy machine slows all alike.
func BenchmarkScan(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var secrets []string
	for range 200 {
		secrets = append(secrets, randomOf(rng, lowers+uppers+digits, 40))
	}
	texts := benchTexts(b)
	for _, n := range []int{0, 1, 20, 200} {
		k := mustKnown(b, secrets[:n]...)
		for _, tokens := range []bool{false, true} {
			if n == 0 && !tokens {
				continue
			}
			r := mustRules(b, Config{Watched: k, Tokens: tokens})
			for _, t := range texts {
				b.Run(fmt.Sprintf("%d secrets, tokens %v/%s", n, tokens, t.name), func(b *testing.B) { benchScan(b, r, t.text) })
			}
		}
	}
}

func benchScan(b *testing.B, r *Rules, text []byte) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	out := make([]byte, 0, 2*chunk)
	var scanning, copying, sealing time.Duration
	const part = 256 << 10
	for b.Loop() {
		s := r.NewScanner(Options{})
		for from := 0; from < len(text); from += part {
			text := text[from:min(len(text), from+part)]
			each := func(do func(p []byte)) time.Duration {
				begin := cpuTime(b)
				for at := 0; at < len(text); at += chunk {
					do(text[at:min(len(text), at+chunk)])
				}
				return cpuTime(b) - begin
			}
			scanning += each(func(p []byte) {
				if out, err = s.Push(out[:0], p); err != nil {
					b.Fatal(err)
				}
			})
			copying += each(func(p []byte) { copy(out[:chunk], p) })
			sealing += each(func(p []byte) { gcm.Seal(out[:0], make([]byte, 12), p, nil) })
		}
		if _, err := s.End(out[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(text))*float64(b.N)/scanning.Seconds()/1e6, "MB/cpu-s")
	b.ReportMetric(100*copying.Seconds()/scanning.Seconds(), "%copy")
	b.ReportMetric(100*sealing.Seconds()/scanning.Seconds(), "%AES-GCM")
}

// cpuTime returns the processor time that the process has used.
func cpuTime(b testing.TB) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkSmall scans a request of a kilobyte.
func BenchmarkSmall(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var secrets []string
	for range 20 {
		secrets = append(secrets, randomOf(rng, lowers+uppers+digits, 40))
	}
	r := mustRules(b, Config{Watched: mustKnown(b, secrets...), Tokens: true})
	text := benchTexts(b)[1].text[:1024]
	b.SetBytes(1024)
	b.ReportAllocs()
	out := make([]byte, 0, 4096)
	for b.Loop() {
		s := r.NewScanner(Options{})
		o, err := s.Push(out[:0], text)
		if err == nil {
			_, err = s.End(o)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCoding(b *testing.B) {
	r := mustRules(b, Config{Tokens: true})
	for _, t := range benchTexts(b)[:2] {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(t.text)
		w.Close()
		b.Run("gzip/"+t.name, func(b *testing.B) {
			b.SetBytes(int64(len(t.text)))
			for b.Loop() {
				s := r.NewScanner(Options{Codings: []string{"gzip"}})
				if _, err := io.Copy(io.Discard, NewReader(bytes.NewReader(z.Bytes()), s)); err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}

// BenchmarkCompile measures the preparation of secrets, and the size of their tables.
func BenchmarkCompile(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 20, 200} {
		var secrets []string
		for range n {
			secrets = append(secrets, randomOf(rng, lowers+uppers+digits, 40))
		}
		b.Run(fmt.Sprintf("%d secrets", n), func(b *testing.B) {
			var k *WatchedSecrets
			for b.Loop() {
				k = mustKnown(b, secrets...)
			}
			size := 8*(len(k.filter)+len(k.slots)) + len(k.posts)*int(unsafe.Sizeof(posting{}))
			for _, n := range k.needles {
				size += len(n.text) + int(unsafe.Sizeof(n))
			}
			b.ReportMetric(float64(size)/1e6, "MB")
		})
	}
}

// BenchmarkRules measures the first rules of a process, without caches.
func BenchmarkRules(b *testing.B) {
	for b.Loop() {
		matchers = matcherCache{}
		fs, err := makeForms(false)
		if err != nil || len(fs.list) == 0 {
			b.Fatal(err)
		}
		lits := fs.lits
		for _, t := range triggers() {
			lits = append(lits, literal.Literal{Text: t.text})
		}
		if _, err := matchers.get(matcherKind{tokens: true}, lits); err != nil {
			b.Fatal(err)
		}
	}
}
