package scan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/carboy/carboy/internal/scan/literal"
	"github.com/carboy/carboy/internal/secret"
)

const (
	// MinSecret is the least length of a watched secret, in bytes. A shorter one
	// stands in ordinary text by chance.
	MinSecret = 8
	// minPart bytes of a secret, before encoding, count as the secret.
	minPart = 16

	gramLen = 8
	stride  = minPart - gramLen + 1 // any MinPart bytes hold a whole gram at a multiple of it
	// The same for minJoined letters and digits, if every secret has as many.
	joinedStride, minJoined = minJoined - gramLen + 1, 24
	minPiece                = 6           // bytes of a secret that are more than chance: a gram of base64
	perGram                 = 32          // needles that are tried for one gram
	reach                   = 2 * minPart // how far left of a gram its match may begin

	// Eight binary digits are one byte, which many secrets have, so as many as these are
	// looked up. They are four bytes, as a gram of hex is.
	bitsLen = 32
)

// WatchedSecrets is an immutable set of secrets, in all encodings that are watched for.
//
// A table holds every window of eight bytes of every encoding. Of a stream only
// every ninth window is looked up, because any 16 bytes of an encoding contain one
// of these; a hit is compared byte by byte in both directions. So the cost does not
// grow with the number of secrets, and parts of secrets are found as well.
type WatchedSecrets struct {
	secrets []watchedSecret
	needles []needle

	filter []uint64 // two bits for each hash of a gram
	fshift uint
	slots  []uint64 // by hash of a gram: index of a posting, plus one, above it half of the hash
	sshift uint
	posts  []posting
	bits   map[uint32][]posting // by bitsLen binary digits: where they end in a needle

	short    *literal.Matcher // needles too short to be sampled
	shortIDs []int
	alphabet byteSet      // of all needles
	pairs    [1024]uint64 // two bytes that follow one another in a needle
	breaks   bool         // a needle contains a line break

	joinedStep int // of letters and digits: stride or joinedStride
	longest    int // needle
}

type watchedSecret struct {
	name   string
	length int
	public int // bytes at its beginning that anybody may write
	part   int // bytes of the rest that count as the secret
	plain  int // the needle that is the secret as it is
}

type posting struct {
	needle uint32
	off    uint16
	next   uint32
}

const (
	maxSecret   = 8 << 10
	minDistinct = 4 // bytes
	// The encodings of a secret are some 250 times its size. Of a long one, such as
	// a private key, only those that programs write are made.
	longSecret = 256
)

// NewWatchedSecrets prepares secrets for the search. Findings show their names, the keys of
// values.
func NewWatchedSecrets(values map[string]secret.Value) (*WatchedSecrets, error) {
	k := &WatchedSecrets{}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	windows := 0
	for _, name := range names {
		var err error
		values[name].UnsafeReveal(func(b []byte) {
			b = body(bytes.TrimSpace(b)) // a file ends in a line break, which is not part of the secret
			if err = fit(b); err != nil {
				err = fmt.Errorf("secret %q %w", name, err)
				return
			}
			s := watchedSecret{name: name, length: len(b), public: publicPrefix(b)}
			s.part, s.plain = min(minPart, s.length-s.public), len(k.needles)
			for _, n := range needlesOf(len(k.secrets), b) {
				k.needles = append(k.needles, n)
				windows += len(n.text)
			}
			k.secrets = append(k.secrets, s)
		})
		if err != nil {
			return nil, err
		}
	}
	k.joinedStep = joinedStride
	for i := range k.needles {
		if n := &k.needles[i]; n.joined && len(n.text) >= minPart && len(n.text) < minJoined {
			k.joinedStep = stride
		}
	}
	k.index(windows)
	return k, k.addShort()
}

// Fit returns an error if a value can't be watched for, such as one that could not
// be told from ordinary text. Its text follows the secret's name.
func Fit(v secret.Value) (err error) {
	v.UnsafeReveal(func(b []byte) { err = fit(body(bytes.TrimSpace(b))) })
	return err
}

func fit(b []byte) error {
	switch {
	case len(b) < MinSecret:
		return fmt.Errorf("is too short to be watched for: it needs %d bytes", MinSecret)
	case len(b) > maxSecret:
		return fmt.Errorf("is too long to be watched for: at most %d bytes", maxSecret)
	case distinct(b) < minDistinct:
		return fmt.Errorf("has fewer than %d different bytes, as ordinary text has", minDistinct)
	}
	return nil
}

func distinct(b []byte) int {
	var s byteSet
	for _, c := range b {
		s.add(c)
	}
	return s.count()
}

// body returns the lines between the first and the last of a private key, and
// anything else as it is.
func body(b []byte) []byte {
	if !bytes.HasPrefix(b, []byte("-----BEGIN")) {
		return b
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	if i := bytes.Index(b, []byte("-----END")); i >= 0 {
		b = b[:i]
	}
	return bytes.TrimSpace(b)
}

// publicPrefix returns the length of the beginning of a secret that all of its kind
// share: a token's prefix, the header of a JWT, the first lines of a private key.
func publicPrefix(b []byte) int {
	n := 0
	if bytes.HasPrefix(b, []byte("ey")) {
		n = bytes.IndexByte(b, '.') + 1
	}
	for _, k := range []struct {
		begin string
		n     int
	}{{"MII", 52}, {"MIG", 40}, {"b3BlbnNzaC1rZXk", 110}} { // of private keys: kind and algorithm
		if bytes.HasPrefix(b, []byte(k.begin)) {
			n = k.n
		}
	}
	for i := 0; i < min(len(b), 24); i++ { // such as sk-ant-api03-
		if c := b[i]; (c == '-' || c == '_') && i >= 2 {
			n = max(n, i+1)
		}
	}
	if len(b)-n < minPart {
		return 0
	}
	return n
}

func (k *WatchedSecrets) index(windows int) {
	fbits, sbits := 12, 10
	for 1<<fbits < 32*windows && fbits < 24 {
		fbits++
	}
	for 1<<sbits < 2*windows {
		sbits++
	}
	k.filter, k.fshift = make([]uint64, 1<<fbits/64), uint(64-fbits)
	k.slots, k.sshift = make([]uint64, 1<<sbits), uint(64-sbits)
	k.bits = map[uint32][]posting{}
	for i, n := range k.needles {
		k.longest = max(k.longest, len(n.text))
		for j, c := range n.text {
			if n.onlyJoined {
				break
			}
			k.alphabet.add(c)
			k.breaks = k.breaks || c == '\n' || c == '\r'
			if j > 0 {
				pair := uint(n.text[j-1]) | uint(c)<<8
				k.pairs[pair/64] |= 1 << (pair % 64)
			}
		}
		for off := 0; off+gramLen <= len(n.text); off++ {
			g := binary.LittleEndian.Uint64(n.text[off:])
			if g == bits.RotateLeft64(g, 8) {
				continue // one byte again and again
			}
			if n.transform == binaryDigits {
				k.putBits(g, n.text[:off+gramLen], posting{needle: uint32(i), off: uint16(off)})
			} else {
				k.put(g, uint32(i), uint16(off))
			}
		}
	}
}

const gramMul = 0x9E3779B97F4A7C15

// putBits makes the binary digits that text ends with known, of which g are the last.
func (k *WatchedSecrets) putBits(g uint64, text []byte, p posting) {
	k.mark(g)
	if v, ok := lastBits(text); ok && len(k.bits[v]) < perGram {
		k.bits[v] = append(k.bits[v], p)
	}
}

// lastBits returns the bitsLen binary digits that b ends with, if it does.
func lastBits(b []byte) (v uint32, ok bool) {
	if len(b) < bitsLen {
		return 0, false
	}
	for _, c := range b[len(b)-bitsLen:] {
		if c&^1 != '0' {
			return 0, false
		}
		v = v<<1 | uint32(c&1)
	}
	return v, true
}

// mark makes maybe report g.
func (k *WatchedSecrets) mark(g uint64) {
	h := g * gramMul
	k.filter[h>>k.fshift>>6] |= k.twoBits(h)
}

func (k *WatchedSecrets) put(g uint64, n uint32, off uint16) {
	k.mark(g)
	slot := &k.slots[k.slot(g)]
	count := 0
	for p := uint32(*slot); p != 0; p = k.posts[p-1].next {
		if count++; count >= perGram {
			return
		}
	}
	k.posts = append(k.posts, posting{n, off, uint32(*slot)})
	*slot = g*gramMul<<32 | uint64(len(k.posts))
}

// slot returns the index of the slot of g: empty, or with the needles that have g.
func (k *WatchedSecrets) slot(g uint64) uint64 {
	mask := uint64(len(k.slots) - 1)
	h := g * gramMul
	for at := h >> k.sshift; ; at = (at + 1) & mask {
		p := k.slots[at]
		if p == 0 {
			return at
		}
		if p>>32 != h&(1<<32-1) {
			continue
		}
		n := &k.posts[uint32(p)-1]
		if binary.LittleEndian.Uint64(k.needles[n.needle].text[n.off:]) == g {
			return at
		}
	}
}

func (k *WatchedSecrets) maybe(g uint64) bool {
	h := g * gramMul
	return k.missing(h) == 0
}

// missing returns the bits of hash h that are not set in its word of the filter; a
// gram in the table has none. With one bit of 32, one gram of 32 would be looked up
// in vain, with two bits one of some 700.
func (k *WatchedSecrets) missing(h uint64) uint64 {
	return k.twoBits(h) &^ k.filter[h>>k.fshift>>6]
}

func (k *WatchedSecrets) twoBits(h uint64) uint64 { return 1<<(h>>k.fshift&63) | 1<<(h>>26&63) }

// skip returns the offset of the first gram in b that is in the filter, in steps of
// one byte or of stride.
func (k *WatchedSecrets) skip(b []byte, step int) int {
	at := 0
	if n := (len(b) - gramLen + step) / (4 * step); n > 0 {
		at = skipGrams(k.filter, k.fshift, b, n, step) * 4 * step
	}
	for at+gramLen <= len(b) && !k.maybe(binary.LittleEndian.Uint64(b[at:])) {
		at += step
	}
	return at
}

// skipGramsInGo looks up n groups of four grams of b, step bytes apart. It returns
// how many groups from the first on have no gram in the filter.
func skipGramsInGo(f []uint64, shift uint, b []byte, n, step int) int {
	for i := range n {
		c := b[i*4*step:][:3*step+gramLen]
		h0 := binary.LittleEndian.Uint64(c) * gramMul
		h1 := binary.LittleEndian.Uint64(c[step:]) * gramMul
		h2 := binary.LittleEndian.Uint64(c[2*step:]) * gramMul
		h3 := binary.LittleEndian.Uint64(c[3*step:]) * gramMul
		a0, a1, a2, a3 := h0>>shift, h1>>shift, h2>>shift, h3>>shift
		w0, w1, w2, w3 := f[a0>>6], f[a1>>6], f[a2>>6], f[a3>>6]
		if (w0>>(a0&63)&(w0>>(h0>>26&63))|w1>>(a1&63)&(w1>>(h1>>26&63))|w2>>(a2&63)&(w2>>(h2>>26&63))|w3>>(a3&63)&(w3>>(h3>>26&63)))&1 != 0 {
			return i
		}
	}
	return n
}

func (k *WatchedSecrets) addShort() (err error) {
	var lits []literal.Literal
	for i, n := range k.needles {
		if len(n.text) < minPart {
			lits = append(lits, literal.Literal{Text: string(n.text)})
			k.shortIDs = append(k.shortIDs, i)
		}
	}
	if lits != nil {
		k.short, err = literal.New(lits, nil)
	}
	return err
}

// span returns the range of the secret's bytes that n.text[off:off+length] encodes.
func (k *WatchedSecrets) span(n *needle, off, length int) (from, to int) {
	s := &k.secrets[n.secret]
	from, to = (off*s.length+len(n.text)-1)/len(n.text), (off+length)*s.length/len(n.text)
	if n.transform == "reversed" || n.transform == "base64 of reversed" {
		from, to = s.length-to, s.length-from
	}
	return from, to
}

// unchanged reports whether the matched part of a needle is the same in the plain
// secret, as digits are in lower case. The plain needle matches it too.
func (k *WatchedSecrets) unchanged(m *partial) bool {
	n := &k.needles[m.needle]
	plain := k.secrets[n.secret].plain
	if m.needle == plain || len(k.needles[plain].text) != len(n.text) {
		return false
	}
	return bytes.Equal(n.text[m.off:m.off+m.length], k.needles[plain].text[m.off:m.off+m.length])
}

// enough reports whether n.text[off:off+length] counts as the secret.
func (k *WatchedSecrets) enough(n *needle, off, length int) bool {
	s := &k.secrets[n.secret]
	from, to := k.span(n, off, length)
	return to-max(from, s.public) >= s.part
}

// partial is a match of a needle that further bytes may extend.
type partial struct {
	needle     int
	off        int   // in the needle, of the match's first byte
	length     int   // bytes of the needle that match
	start, end int64 // in the stream
}

// seek looks up the gram at b[at:], which is at position pos, and appends the
// matches around it, as far as b goes.
// joined says that b is letters and digits of a stream, without what was between.
func (k *WatchedSecrets) seek(dst []partial, b []byte, at int, pos int64, live []partial, joined bool) []partial {
	g := binary.LittleEndian.Uint64(b[at:])
	for p := uint32(k.slots[k.slot(g)]); p != 0; p = k.posts[p-1].next {
		dst = k.follow(dst, k.posts[p-1], b, at, pos, live, joined)
	}
	if joined && len(k.bits) > 0 {
		if v, ok := lastBits(b[:at+gramLen]); ok {
			for _, p := range k.bits[v] {
				dst = k.follow(dst, p, b, at, pos, live, joined)
			}
		}
	}
	return dst
}

// follow appends the match around b[at:], where the needle of p has the gram, unless it is
// known.
func (k *WatchedSecrets) follow(dst []partial, p posting, b []byte, at int, pos int64, live []partial, joined bool) []partial {
	off, n := int(p.off), &k.needles[p.needle]
	if joined && !n.joined || !joined && n.onlyJoined {
		return dst
	}
	inside := func(l partial) bool {
		return l.needle == int(p.needle) && l.start <= pos && pos < l.end && l.off+int(pos-l.start) == off
	}
	if slices.ContainsFunc(live, inside) || slices.ContainsFunc(dst, inside) {
		return dst
	}
	m := partial{needle: int(p.needle), off: off, start: pos, end: pos}
	// To the left up to where grams were looked up.
	for i := at - 1; i >= max(0, at-reach) && m.off > 0; i-- {
		if b[i] == n.text[m.off-1] {
			m.off, m.start = m.off-1, pos-int64(at-i)
			m.length++
			continue
		}
		if w := breakBefore(b[:i+1]); w > 0 && n.text[m.off-1] != '\n' {
			i -= w - 1
			continue
		}
		break
	}
	k.extend(&m, b[at:])
	return append(dst, m)
}

// extend follows m over b, which begins at m.end, and reports whether it may
// still go on.
func (k *WatchedSecrets) extend(m *partial, b []byte) bool {
	n := &k.needles[m.needle]
	for i := 0; i < len(b); {
		if m.off+m.length == len(n.text) {
			return false
		}
		if b[i] == n.text[m.off+m.length] {
			i++
			m.length++
			m.end++
			continue
		}
		w, more := breakAt(b[i:])
		if w == 0 {
			return more
		}
		if n.text[m.off+m.length] == '\n' { // the needle's own, encoded differently
			i += w
			m.length++
			m.end += int64(w)
			continue
		}
		// A line break in between does not end the match, and belongs to it only if
		// more of the needle follows.
		if i+w == len(b) {
			return true
		}
		if b[i+w] != n.text[m.off+m.length] {
			return false
		}
		m.end += int64(w)
		i += w
	}
	return m.off+m.length < len(n.text)
}

// breakAt returns the length of the line break that b begins with, plain or
// escaped; more reports that b ends in the middle of a possible one.
func breakAt(b []byte) (n int, more bool) {
	for _, s := range []string{"\r\n", "\n", `\r\n`, `\n`, "=\r\n", "=\n"} {
		if len(b) >= len(s) {
			if string(b[:len(s)]) == s {
				return len(s), false
			}
		} else if string(b) == s[:len(b)] {
			more = true
		}
	}
	return 0, more
}

func breakBefore(b []byte) int {
	for _, s := range []string{"\r\n", "\n", `\r\n`, `\n`} {
		if bytes.HasSuffix(b, []byte(s)) {
			return len(s)
		}
	}
	return 0
}

// tail returns how many bytes at the end of b may begin a match that no gram has
// shown yet: every two of them follow one another in some needle too.
func (k *WatchedSecrets) tail(b []byte, unseen int) int {
	n := 0
	for n < min(unseen, len(b)) {
		c := b[len(b)-1-n]
		if !k.alphabet.has(c) {
			break
		}
		if n > 0 {
			pair := uint(c) | uint(b[len(b)-n])<<8
			if k.pairs[pair/64]>>(pair%64)&1 == 0 {
				break
			}
		}
		n++
	}
	return n
}
