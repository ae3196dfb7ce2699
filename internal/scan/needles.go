package scan

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/secret"
)

// binaryDigits names the form that is looked up by more than a gram.
const binaryDigits = "binary digits"

// A needle is one encoding of a watched secret.
type needle struct {
	secret    int // index in Known
	transform string
	text      []byte

	joined     bool // it has letters and digits only: see joined.go
	onlyJoined bool // it is looked for there only
}

// needlesOf returns the encodings of one secret. An encoding of several bytes at
// once, such as base64, is made for each offset that the secret may have in a group,
// without the characters that depend on its neighbours: so the encoding of a part
// is a part of one of these. Escapes (percent, \u, entities …) are left to a view,
// which decodes them in any mixture; eight bytes of them are only one or two of the
// secret.
func needlesOf(number int, s []byte) (out []needle) {
	add := func(transform string, text []byte) {
		if len(text) >= gramLen && !slices.ContainsFunc(out, func(n needle) bool { return string(n.text) == string(text) }) {
			out = append(out, needle{secret: number, transform: transform, text: text, joined: len(join(make([]byte, 0, len(text)+joinedRoom), text)) == len(text)})
		}
	}
	defer func() { out = withJoined(out, number, s) }()
	each := func(transform, sep, format string) {
		var parts []string
		for _, c := range s {
			parts = append(parts, fmt.Sprintf(format, c))
		}
		add(transform, []byte(strings.Join(parts, sep)))
	}
	add("plain", s)
	reversed := slices.Clone(s)
	slices.Reverse(reversed)
	add("reversed", reversed)
	add("rot13", rot13(s))
	// A short secret without its case may be an ordinary word.
	if len(s) >= minPart {
		add("small letters", inCase(s, 'A', 'Z'))
		add("capitals", inCase(s, 'a', 'z'))
	}
	for i := range 3 {
		once := secret.Base64At(s, i, base64.StdEncoding)
		add("base64", once)
		add("base64url", secret.Base64At(s, i, base64.URLEncoding))
		if len(s) > longSecret {
			continue
		}
		for j := range 3 {
			add("base64 twice", secret.Base64At(once, j, base64.StdEncoding))
		}
		add("base64 of reversed", secret.Base64At(reversed, i, base64.StdEncoding))
		low := hex.EncodeToString(s)
		add("base64 of hex", secret.Base64At([]byte(low), i, base64.StdEncoding))
		add("base64 of hex", secret.Base64At([]byte(strings.ToUpper(low)), i, base64.StdEncoding))
		add("base64 of utf-16", secret.Base64At(utf16(s), i, base64.StdEncoding))
		ofBase64 := hex.EncodeToString(once)
		add("hex of base64", []byte(ofBase64))
		add("hex of base64", []byte(strings.ToUpper(ofBase64)))
	}
	each("hex", "", "%02x")
	each("hex", "", "%02X")
	if len(s) > longSecret {
		return out
	}
	for i := range 5 {
		for _, e := range []struct {
			name string
			*base32.Encoding
		}{{"base32", base32.StdEncoding}, {"base32hex", base32.HexEncoding}} {
			t := base32At(s, i, e.Encoding)
			add(e.name, t)
			add(e.name, []byte(strings.ToLower(string(t))))
		}
	}
	for i := range 3 {
		for _, zero := range []string{"`", " "} {
			add("uuencode", uuAt(s, i, zero))
		}
	}
	for _, alphabet := range baseWhole {
		name := fmt.Sprintf("base%d", len(alphabet))
		add(name, inBase(s, alphabet))
		add(name, inBase(append(slices.Clone(s), '\n'), alphabet))
	}
	for i := range 4 {
		for _, alphabet := range base85 {
			add("base85", base85At(s, i, alphabet))
		}
	}
	add("utf-16", utf16(s))
	return out
}

// inCase returns s with the letters from first to last in the other case.
func inCase(s []byte, first, last byte) []byte {
	out := slices.Clone(s)
	for i, c := range out {
		if first <= c && c <= last {
			out[i] = c ^ 0x20
		}
	}
	return out
}

func rot13(s []byte) []byte {
	out := slices.Clone(s)
	for i, c := range out {
		if low := c | 0x20; 'a' <= low && low <= 'z' {
			out[i] = c&^0x1f | (c&0x1f-1+13)%26 + 1
		}
	}
	return out
}

func utf16(s []byte) []byte {
	out := make([]byte, 0, 2*len(s))
	for _, c := range s {
		out = append(out, c, 0)
	}
	return out
}

func base32At(s []byte, n int, e *base32.Encoding) []byte {
	t := e.EncodeToString(append(make([]byte, n), s...))
	return []byte(t[(n*8+4)/5 : (n+len(s))*8/5])
}

// base85 lists three alphabets: of Adobe and btoa, of RFC 1924 (git and Python),
// and of ZeroMQ.
var base85 = []string{
	"!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu",
	"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
	"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
}

// base85At encodes the groups of four bytes that lie wholly in s, the first of
// which begins at s[n].
func base85At(s []byte, n int, alphabet string) (out []byte) {
	for ; n+4 <= len(s); n += 4 {
		group := make([]byte, 5)
		v := binary.BigEndian.Uint32(s[n:])
		for i := 4; i >= 0; i-- {
			group[i] = alphabet[v%85]
			v /= 85
		}
		out = append(out, group...)
	}
	return out
}

// uuAt encodes the groups of three bytes that lie wholly in s, the first of which
// begins at s[n], as uuencode does; zero is its character for no bit.
func uuAt(s []byte, n int, zero string) (out []byte) {
	for ; n+3 <= len(s); n += 3 {
		for _, v := range []byte{s[n] >> 2, s[n]<<4&63 | s[n+1]>>4, s[n+1]<<2&63 | s[n+2]>>6, s[n+2] & 63} {
			if v == 0 {
				out = append(out, zero...)
			} else {
				out = append(out, ' '+v)
			}
		}
	}
	return out
}

// baseWhole lists the alphabets in which a secret is written as one number. A part of
// such a text, and a text that holds more than the secret, has nothing in common with it.
var baseWhole = []string{
	"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
	"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
	"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
}

func inBase(s []byte, alphabet string) (out []byte) {
	n, base, digit := new(big.Int).SetBytes(s), big.NewInt(int64(len(alphabet))), new(big.Int)
	for n.Sign() > 0 {
		n.DivMod(n, base, digit)
		out = append(out, alphabet[digit.Int64()])
	}
	slices.Reverse(out)
	return out
}

// withJoined adds to the forms of a secret their letters and digits alone, and those of
// lists of its bytes. It marks the forms that have nothing else.
func withJoined(forms []needle, number int, s []byte) []needle {
	add := func(transform string, text []byte) {
		if len(text) < minPart || distinct(text) < minDistinct && transform == "plain" {
			return
		}
		if !slices.ContainsFunc(forms, func(n needle) bool { return string(n.text) == string(text) }) {
			forms = append(forms, needle{secret: number, transform: transform, text: text, joined: true, onlyJoined: true})
		}
	}
	for _, n := range forms {
		if !n.joined {
			add(n.transform, join(make([]byte, 0, len(n.text)+joinedRoom), n.text))
		}
	}
	if len(s) > longSecret {
		return forms
	}
	for _, list := range []struct{ name, format string }{
		{"decimal bytes", "%d"}, {"decimal bytes", "%03d"}, {"decimal bytes", "chr%d"}, {"decimal bytes", "CHR%d"}, {"decimal bytes", "char%d"}, {"decimal bytes", "CHAR%d"},
		{"hex", "0x%02x"}, {"hex", "0x%02X"}, {"hex", "x%02x"}, {"hex", "u00%02x"}, {"octal", "%03o"}, {binaryDigits, "%08b"},
	} {
		var text []byte
		for _, c := range s {
			text = fmt.Appendf(text, list.format, c)
		}
		add(list.name, text)
	}
	// od and hexdump show pairs of bytes as numbers, the second byte first.
	for i := range 2 {
		var octal, hexed []byte
		for at := i; at+2 <= len(s); at += 2 {
			n := uint(s[at+1])<<8 | uint(s[at])
			octal, hexed = fmt.Appendf(octal, "%06o", n), fmt.Appendf(hexed, "%04x", n)
		}
		add("octal pairs", octal)
		add("hex pairs", hexed)
	}
	return forms
}
