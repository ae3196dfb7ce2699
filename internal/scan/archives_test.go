package scan

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/carboy/carboy/internal/testenv"
)

// hidden is watched for. It is in inBzip2, since Go's library has no encoder for that.
const (
	hidden  = "plainly-nothing-of-value-0001"
	around  = "a line of text\nand then " + hidden + " and more\n"
	inBzip2 = "QlpoOTFBWSZTWZzR3V4AAAjZgAAQQAJgACfn12AgAEiIzVMjaJ6nqbKCm1NNBoAC/tr8hsIn2QuaK09opRWXeCBl0HnB2N0KKMKyjl8GBUkPi7kinChITmjurwA="
)

func bzip2ed(t testing.TB) string {
	b, err := base64.StdEncoding.DecodeString(inBzip2)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func zlibOf(head, text string) string {
	var b bytes.Buffer
	b.WriteString(head)
	w, _ := flate.NewWriter(&b, 6)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	sum := uint32(1)
	s1, s2 := uint32(1), uint32(0)
	for _, c := range []byte(text) {
		s1 = (s1 + uint32(c)) % 65521
		s2 = (s2 + s1) % 65521
	}
	sum = s2<<16 | s1
	return b.String() + string(binary.BigEndian.AppendUint32(nil, sum))
}

func xzOf(t testing.TB, c xz.WriterConfig, text string) string {
	t.Helper()
	var b bytes.Buffer
	w, err := c.NewWriter(&b)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A member of a zip whose packed bytes are given.
type member struct {
	name   string
	method uint16
	raw    string
	size   int
}

// zipOf writes a zip; with sizes before the content, or behind it.
func zipOf(t testing.TB, streamed bool, ms ...member) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, m := range ms {
		h := &zip.FileHeader{Name: m.name, Method: m.method, CRC32: crc32.ChecksumIEEE([]byte(m.raw)), CompressedSize64: uint64(len(m.raw)), UncompressedSize64: uint64(max(m.size, 1))}
		if streamed {
			h.Flags |= 8
		}
		f, err := w.CreateRaw(h)
		if err == nil {
			_, err = io.WriteString(f, m.raw)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func deflated(text string) string {
	z := zlibOf("", text)
	return z[:len(z)-4]
}

func zstdOf(text string, o ...zstd.EOption) string {
	w, _ := zstd.NewWriter(nil, o...)
	return string(w.EncodeAll([]byte(text), nil))
}

// TestPackedIsRead: a watched secret is found in all that a usual program unpacks.
func TestPackedIsRead(t *testing.T) {
	r := mustRules(t, Config{Watched: mustKnown(t, hidden)})
	long := strings.Repeat(strings.Repeat("0123456789", 40)+"\n", 6000) // more than a chunk of LZMA2 makes
	sums := map[string]byte{"crc32": xz.CRC32, "crc64": xz.CRC64, "sha256": xz.SHA256}
	cases := map[string]string{
		"bzip2":                       bzip2ed(t),
		"two of bzip2":                strings.Repeat(bzip2ed(t), 2),
		"base64 of bzip2":             inBzip2,
		"xz, no checksum":             xzOf(t, xz.WriterConfig{NoCheckSum: true}, around),
		"xz, many blocks":             xzOf(t, xz.WriterConfig{BlockSize: 1000}, strings.Repeat("some words\n", 1000)+around),
		"xz, long":                    xzOf(t, xz.WriterConfig{}, long+around),
		"two of xz":                   xzOf(t, xz.WriterConfig{}, "first") + xzOf(t, xz.WriterConfig{}, around),
		"base64 of xz":                base64.StdEncoding.EncodeToString([]byte(xzOf(t, xz.WriterConfig{}, around))),
		"zip, stored":                 zipOf(t, false, member{"a.txt", 0, around, 9}),
		"zip, deflated":               zipOf(t, false, member{"a.txt", 8, deflated(around), 9}),
		"zip, deflated, sizes behind": zipOf(t, true, member{"a.txt", 8, deflated(around), 9}),
		"zip, bzip2":                  zipOf(t, false, member{"a.txt", 12, bzip2ed(t), 9}, member{"b.txt", 0, "b", 1}),
		"zip, bzip2, sizes behind":    zipOf(t, true, member{"a.txt", 12, bzip2ed(t), 9}, member{"b.txt", 0, "b", 1}),
		"zip, zstd":                   zipOf(t, false, member{"a.txt", 93, zstdOf(around), 9}, member{"b.txt", 0, "b", 1}),
		"zip, zstd, sizes behind":     zipOf(t, true, member{"a.txt", 93, zstdOf(around), 9}, member{"b.txt", 0, "b", 1}),
		"zip, xz":                     zipOf(t, false, member{"a.txt", 95, xzOf(t, xz.WriterConfig{}, around), 9}),
	}
	for name, sum := range sums {
		cases["xz, "+name] = xzOf(t, xz.WriterConfig{CheckSum: sum}, around)
	}
	heads := 0
	for cmf := range 1 << 8 {
		for flg := range 1 << 8 {
			if !isZlibHead(byte(cmf), byte(flg)) {
				continue
			}
			heads++
			cases[fmt.Sprintf("zlib %02x %02x", cmf, flg)] = zlibOf(string([]byte{byte(cmf), byte(flg)}), around)
		}
	}
	if heads < 32 {
		t.Errorf("%d heads of zlib", heads)
	}
	for name, packed := range cases {
		apart := strings.HasPrefix(name, "zlib") && !strings.Contains(strings.Join(zlibHeads, " "), packed[:2])
		for _, before := range []string{"", "\x00 and then "} {
			if apart && before != "" {
				continue
			}
			for _, size := range []int{0, 1, 777} {
				if (size > 0 || before != "") && len(packed) > 10_000 {
					continue
				}
				f, _, err := scanAll(t, r, Options{Action: Report}, before+packed, size)
				if err != nil || len(f) == 0 || f[0].Rule != "known-secret" {
					t.Errorf("%s behind %q by %d: %v %v", name, before, size, f, err)
				}
				for _, f := range f {
					if f.Rule == unreadable {
						t.Errorf("%s behind %q by %d: %v", name, before, size, f)
					}
				}
			}
		}
	}
}

func patched(s string, at int, with string) string { return s[:at] + with + s[at+len(with):] }

func sevenZip(sum bool) string {
	h := make([]byte, 20)
	h[0] = 7
	head := "7z\xbc\xaf\x27\x1c\x00\x04"
	crc := crc32.ChecksumIEEE(h)
	if !sum {
		crc++
	}
	return head + string(binary.LittleEndian.AppendUint32(nil, crc)) + string(h) + "what is packed"
}

func rar5(sum bool) string {
	h := []byte{5, 1, 0, 0, 0, 0}
	crc := crc32.ChecksumIEEE(h)
	if !sum {
		crc++
	}
	return "Rar!\x1a\x07\x01\x00" + string(binary.LittleEndian.AppendUint32(nil, crc)) + string(h) + "what is packed"
}

// TestUnreadable: what nobody can look into is told, and what only looks like it is not.
func TestUnreadable(t *testing.T) {
	r := mustRules(t, Config{Tokens: true})
	one := zipOf(t, false, member{"a.txt", 8, deflated(around), len(around)})
	two := zipOf(t, false, member{"a.txt", 8, deflated("text"), 4}, member{"b.txt", 0, "text", 4})
	record, second := strings.Index(two, "PK\x01\x02"), strings.Index(two[1:], "PK\x03\x04")+1
	methods := func(s string, m string) string { // in both headers
		return patched(patched(s, 8, m), strings.Index(s, "PK\x01\x02")+10, m)
	}
	xzed := xzOf(t, xz.WriterConfig{}, around)
	xzLong := xzOf(t, xz.WriterConfig{}, strings.Repeat("some words\n", 100)+randomOf(rand.New(rand.NewPCG(1, 2)), lowers, 1000))
	gz := coded("gzip", strings.Repeat("some words\n", 100)+randomOf(rand.New(rand.NewPCG(1, 2)), lowers, 1000))
	lz4 := "\x04\x22\x4d\x18\x64\x40\xa7\x10\x00\x00\x00what is packed and more"
	pad := strings.Repeat("\x00", 40)
	for name, c := range map[string]struct {
		data string
		told int
	}{
		"zip":                  {two, 0},
		"zip behind a program": {"MZ" + pad + two, 0},
		"zip, offsets from the file's begin": {func() string {
			s := "MZ" + pad + two
			for at := record + 42; at < len(s); at++ {
				if strings.HasPrefix(s[at:], "PK\x01\x02") {
					off := binary.LittleEndian.Uint32([]byte(s[at+42:])) + 42
					s = patched(s, at+42, string(binary.LittleEndian.AppendUint32(nil, off)))
				}
			}
			return s
		}(), 0},
		"zip in a zip":                    {zipOf(t, false, member{"in.zip", 0, two, len(two)}, member{"in2.zip", 8, deflated(two), len(two)}), 0},
		"zip, a directory":                {zipOf(t, false, member{"d/", 8, "", 1}, member{"d/a", 8, deflated("x"), 1}), 0},
		"zip, cut off":                    {one[:50], 0},
		"zip, LZMA":                       {methods(one, "\x0e\x00"), 2},
		"zip, method 97":                  {methods(one, "\x61\x00"), 2},
		"zip, deflate64":                  {methods(one, "\x09\x00"), 2},
		"zip, method 97 in local alone":   {patched(one, 8, "\x61\x00"), 2},
		"zip, stored in local alone":      {patched(one, 8, "\x00\x00"), 1},
		"zip, stored in the directory":    {patched(two, record+10, "\x00\x00"), 1},
		"zip, encrypted in local alone":   {patched(one, 6, "\x01"), 2},
		"zip, encrypted in the directory": {patched(two, record+8, "\x01"), 1},
		"zip, no local header":            {patched(two, second, "QK"), 1},
		"zip, another name":               {patched(two, 30, "z"), 1},
		"zip, another size":               {patched(two, 18, "\x01"), 1},
		"zip, another entry":              {patched(two, record+42, "\x05"), 1},
		"zip, an odd record":              {patched(two, record+10, "\xff\xff"), 1},
		"zip, a record too few":           {patched(two, len(two)-12, "\x03\x00"), 1},
		"zip, damaged":                    {patched(one, 36, "\xff\xff\xff\xff"), 2},
		"zip, odd":                        {"PK\x03\x04\xff\xff" + pad, 1},
		"zip, odd, further on":            {"xPK\x03\x04\xff\xff" + pad, 0},
		"zip's end alone":                 {"PK\x05\x06" + pad, 0},
		"zip's records alone":             {strings.Repeat("PK\x01\x02"+pad, 30) + "PK\x06\x06" + pad, 0},
		"gzip, damaged":                   {patched(gz, 200, "\xff\xff\xff\xff\xff\xff\xff\xff"), 1},
		"gzip, its checksum is wrong":     {patched(gz, len(gz)-8, "\x00\x00\x00\x00"), 0},
		"gzip, cut off":                   {gz[:300], 0},
		"gzip of nothing known":           {"\x1f\x8b\x08\xff" + pad, 1},
		"gzip's head in a program":        {"x\x1f\x8b\x08\xff" + pad, 0},
		"xz":                              {xzed, 0},
		"xz, cut off":                     {xzed[:40], 0},
		"xz, damaged":                     {patched(xzLong, 200, "\xff\xff\xff\xff\xff\xff"), 1},
		"xz, another filter":              {xzBlock("\x01\x04\x00\x21\x01\x10"), 1},
		"xz, a window too large":          {xzBlock("\x00\x21\x01\x28"), 1},
		"xz, a window of 64 MiB":          {xzBlock("\x00\x21\x01\x1c"), 0},
		"xz, a broken block":              {patched(xzed, 14, "\x77"), 1},
		"xz's head in a program":          {"x\xfd7zXZ\x00" + pad, 0},
		"bzip2, damaged":                  {patched(bzip2ed(t), 16, "\xff\xff\xff\xff"), 1},
		"bzip2, cut off":                  {bzip2ed(t)[:40], 0},
		"zstd, a window too large":        {"x\x28\xb5\x2f\xfd\x00\x98\x41\x00\x00" + pad, 1},
		"zstd's head in a program":        {"x\x28\xb5\x2f\xfd\x75\x98" + pad, 0},
		"7z":                              {sevenZip(true), 1},
		"7z, further on":                  {"x " + sevenZip(true), 1},
		"7z in a zip":                     {zipOf(t, false, member{"a.7z", 8, deflated(sevenZip(true)), 60}), 1},
		"7z in base64":                    {b64(sevenZip(true)), 1},
		"7z's head in a program":          {sevenZip(false), 0},
		"rar":                             {"Rar!\x1a\x07\x00\xcf\x90\x73\x00\x00\x0d\x00\x00\x00", 1},
		"rar 5":                           {rar5(true), 1},
		"rar 5's head in a program":       {rar5(false), 0},
		"rar's head in a program":         {"Rar!\x1a\x07\x00" + pad + "Rar!\x1a\x07\x01\x00" + pad, 0},
		"rar's head in the text of one":   {`magic = "Rar!\x1A\x07\x00", "rar"; magic5 = "Rar!\x1A\x07\x01\x00" and more`, 0},
		"lz4":                             {lz4, 1},
		"lz4, with a size":                {"\x04\x22\x4d\x18\x6c\x40" + pad[:8] + "\xa7\x10\x00\x00\x00" + pad, 1},
		"lz4, the old form":               {"\x02\x21\x4c\x18\x10\x00\x00\x00" + pad, 1},
		"lz4's head in a program":         {"\x04\x22\x4d\x18\x75\x11" + pad + "\x02\x21\x4c\x18" + pad, 0},
		"lzip":                            {"LZIP\x01\x14" + pad, 1},
		"lzip in words":                   {"LZIP\x01\" is its beginning", 0},
		"lzop":                            {"\x89LZO\x00\r\n\x1a\n\x10\x30\x20\x80" + pad, 1},
		"snappy":                          {"\xff\x06\x00\x00sNaPpY\x00\x10\x00\x00" + pad, 1},
		"snappy's head in a program":      {"\xff\x06\x00\x00sNaPpY\x07\x10\x00\xff" + pad, 0},
		"cab":                             {"MSCF\x00\x00\x00\x00" + pad[:16] + "\x03\x01" + pad, 1},
		"lzma":                            {"\x5d\x00\x00\x80\x00" + strings.Repeat("\xff", 8) + pad, 1},
		"lzma, further on":                {"x\x5d\x00\x00\x80\x00" + strings.Repeat("\xff", 8) + pad, 0},
		"a bracket and zeros":             {"\x5d\x00\x00" + pad, 0},
		"compress":                        {"\x1f\x9d\x90" + pad, 1},
		"what begins like compress":       {"\x1f\x9d\xff" + pad, 0},
	} {
		for _, size := range []int{0, 1} {
			f, out, err := scanAll(t, r, Options{}, c.data, size)
			told := 0
			for _, f := range f {
				if f.Rule != unreadable || !f.Warning {
					t.Errorf("%s: %v", name, f)
				}
				told++
			}
			if err != nil || told != c.told || out != c.data {
				t.Errorf("%s by %d: %v %v", name, size, f, err)
			}
		}
	}
}

// xzBlock returns a stream whose first block has the given header.
func xzBlock(head string) string {
	flags := "\x00\x00"
	s := "\xfd7zXZ\x00" + flags + string(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(flags))))
	h := "\x02" + head
	h += strings.Repeat("\x00", 8-len(h))
	return s + h + string(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(h)))) + "\x01\x00\x00x\x00"
}

// TestNestedZlib: zlib within itself is refused where nothing is decoded any more, like
// other formats.
func TestNestedZlib(t *testing.T) {
	r := mustRules(t, Config{Tokens: true})
	for n, refused := range map[int]bool{3: false, 4: false, 5: true, 8: true} {
		text := around
		for range n {
			text = zlibOf("\x78\x9c", text)
		}
		if _, _, err := scanAll(t, r, Options{}, text, 0); (err != nil) != refused {
			t.Errorf("%d times: %v", n, err)
		}
	}
}

// TestGoesOn: behind a limit of decoders what stands there as it is is still found.
func TestGoesOn(t *testing.T) {
	r := mustRules(t, Config{Watched: mustKnown(t, hidden)})
	deep := "deep"
	for range 8 {
		deep = coded("gzip", deep)
	}
	hold := "\x78\x01" + strings.Repeat("\x00\x00\x00\xff\xff", 3<<20/5) // blocks of nothing
	for name, begin := range map[string]string{"depth": deep, "bytes held": hold} {
		text := begin + strings.Repeat("word\n", 20_000) + hidden + "\n"
		if f, _, err := scanAll(t, r, Options{Action: Report}, text, 4096); err == nil {
			t.Errorf("%s: no limit: %v", name, f)
		}
		f, out, err := scanAll(t, r, Options{Action: Report, GoOn: true}, text, 4096)
		var rules []string
		for _, f := range f {
			rules = append(rules, f.Rule)
		}
		if got := strings.Join(rules, " "); err != nil || got != "unreadable known-secret" || out != text {
			t.Errorf("%s: %s, %d of %d bytes, %v", name, got, len(out), len(text), err)
		}
	}
}

// TestHonestFiles: images, archives, fonts, programs and noise give no finding.
func TestHonestFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(301, 302))
	r := mustRules(t, Config{Tokens: true})
	noise := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return string(b)
	}
	img := image.NewNRGBA(image.Rect(0, 0, 300, 300)) // several pieces
	for i := range 300 * 300 {
		img.Set(i%300, i/300, color.NRGBA{uint8(rng.Uint32()), uint8(i), uint8(i / 300), 255})
	}
	var pic bytes.Buffer
	if err := png.Encode(&pic, img); err != nil {
		t.Fatal(err)
	}
	program, err := filepath.EvalSymlinks(testenv.Need(t, "go", "https://go.dev/dl"))
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"png":     pic.String(),
		"program": string(code[:min(len(code), 8<<20)]),
		"noise":   noise(4 << 20),
		"font":    "wOF2" + noise(200_000),
		"jar":     zipOf(t, true, member{"EMPTY", 8, deflated(""), 1}, member{"A.class", 8, deflated("\xca\xfe\xba\xbe" + noise(50_000)), 50_004}),
		"pdf":     "%PDF-1.7\n1 0 obj\n<< /Filter /FlateDecode >>\nstream\r\n" + zlibOf("\x48\x89", strings.Repeat("BT (text) Tj ET\n", 500)) + "\nendstream\n",
		"tar.xz":  xzOf(t, xz.WriterConfig{}, "tar"+noise(300_000)),
		"lines":   strings.Repeat("8O HK hC (S XG x^ ]\t\n", 20_000),
	}
	for name, data := range files {
		f, out, err := scanAll(t, r, Options{Action: Report}, data, 0)
		for _, f := range f {
			if f.Rule == unreadable {
				t.Errorf("%s: %v", name, f)
			}
		}
		if err != nil || out != data {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzMayInflate: what a decoder reads to its end is not left out.
func FuzzMayInflate(f *testing.F) {
	rng := rand.New(rand.NewPCG(303, 304))
	for _, level := range []int{-2, 0, 1, 6, 9} {
		for _, text := range []string{"", "a", "aaaaaaaaaaaaaaaaa", around, randomOf(rng, lowers, 3000), strings.Repeat("some words ", 300)} {
			var b bytes.Buffer
			w, _ := flate.NewWriter(&b, level)
			_, _ = io.WriteString(w, text)
			_ = w.Close()
			f.Add(b.Bytes())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := io.Copy(io.Discard, io.LimitReader(flate.NewReader(bytes.NewReader(b)), 1<<20)); err != nil {
			return
		}
		for n := range min(len(b), zlibLook) + 1 {
			if !mayInflate(b[:n]) {
				t.Fatalf("%x: the first %d bytes are left out", b, n)
			}
		}
	})
}
