package safetext

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestString(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "go build ./...", "go build ./..."},
		{"letters of many scripts stay", "grüße 你好 שלום नमस्ते é", "grüße 你好 שלום नमस्ते é"},
		{"emoji stays", "ok 👍", "ok 👍"},
		{"combining accent on a letter stays", "e\u0301", "e\u0301"},
		{"backslash stays", `C:\x1b`, `C:\x1b`},
		{"ansi colour", "\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`},
		{"osc title and clipboard", "\x1b]52;c;eA==\x07", `\x1b]52;c;eA==\x07`},
		{"c1 csi as a character", "\u009b31m", `\u009b31m`},
		{"c1 csi as a byte", "\x9b31m", `\x9b31m`},
		{"nul, backspace, del", "a\x00b\x08c\x7f", `a\x00b\x08c\x7f`},
		{"line breaks and tab", "a\nb\rc\td\r\n", `a\nb\rc\td\r\n`},
		{"next line, line and paragraph separator", "a\u0085b\u2028c\u2029d", `a\u0085b\u2028c\u2029d`},
		{"bidirectional override and isolates", "\u202egpj.exe\u2066\u2069\u200f\u061c", `\u202egpj.exe\u2066\u2069\u200f\u061c`},
		{"zero width", "a\u200bb\u200dc\ufeffd\u2060", `a\u200bb\u200dc\ufeffd\u2060`},
		{"soft hyphen, no-break space", "a\u00adb\u00a0c", `a\u00adb\u00a0c`},
		{"tags carry hidden text", "\U000e0041", `\U000e0041`},
		{"variation selectors", "a\ufe0f\U000e0100", `a\ufe0f\U000e0100`},
		{"fillers", "\u3164\u115f\u2800", `\u3164\u115f\u2800`},
		{"private and unassigned", "\ue000\u0378", `\ue000\u0378`},
		{"not utf-8", "a\xff\xc0\xafb", `a\xff\xc0\xafb`},
		{"encoded surrogate", "\xed\xa0\x80", `\xed\xa0\x80`},
		{"replacement character itself stays", "\ufffd", "\ufffd"},
		{"leading mark has no letter", "\u0336allowed", `\u0336allowed`},
		{"stacked marks", "e" + strings.Repeat("\u0301", 8), "e" + strings.Repeat("\u0301", 6) + `\u0301\u0301`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := String(tc.in, 1000); got != tc.want {
				t.Errorf("String(%q) = %q, want %q", tc.in, got, tc.want)
			}
			if got := Bytes([]byte(tc.in), 1000); got != tc.want {
				t.Errorf("Bytes(%q) = %q, want %q", tc.in, got, tc.want)
			}
			if Clean(tc.in) != (tc.in == tc.want) {
				t.Errorf("Clean(%q) = %v", tc.in, Clean(tc.in))
			}
		})
	}
}

func TestBound(t *testing.T) {
	for _, tc := range []struct {
		in   string
		max  int
		want string
	}{
		{"abcdef", 6, "abcdef"},
		{"abcdefg", 6, "abc…"},
		{"äöü", 6, "äöü"},
		{"äöüx", 6, "ä…"},
		{"abc\x1b", 7, `abc\x1b`},
		{"abc\x1b", 6, "abc…"},
		{"abcd", 3, "…"},
		{"abcd", 2, ""},
		{"ab", 2, "ab"},
		{"a", 0, ""},
		{"a", -1, ""},
	} {
		if got := String(tc.in, tc.max); got != tc.want {
			t.Errorf("String(%q, %d) = %q, want %q", tc.in, tc.max, got, tc.want)
		}
		if got := Bytes([]byte(tc.in), tc.max); got != tc.want {
			t.Errorf("Bytes(%q, %d) = %q, want %q", tc.in, tc.max, got, tc.want)
		}
	}
	if got := Bytes(bytes.Repeat([]byte{0x1b}, 1<<20), 20); got != strings.Repeat(`\x1b`, 4)+ellipsis {
		t.Errorf("a long input gave %q", got)
	}
}

func TestLines(t *testing.T) {
	in := "a\tb\r\nc\rd\n\x1b[2J\u2028"
	if got, want := Lines(in, 100), "a\tb\nc\\rd\n\\x1b[2J\\u2028"; got != want {
		t.Errorf("Lines = %q, want %q", got, want)
	}
}

func TestPath(t *testing.T) {
	for in, want := range map[string]string{
		"src/main.go":     "src/main.go",
		"with space/é":    "with space/é",
		"":                `""`,
		" lead":           `" lead"`,
		"trail ":          `"trail "`,
		"a\nb":            `"a\nb"`,
		`a\nb`:            `"a\\nb"`,
		`say "hi"`:        `"say \"hi\""`,
		"x\xff":           `"x\xff"`,
		"\u202etxt.exe":   `"\u202etxt.exe"`,
		"cut…":            `"cut\u2026"`,
		"\x1b]0;owned\a/": `"\x1b]0;owned\x07/"`,
	} {
		if got := Path([]byte(in)); got != want {
			t.Errorf("Path(%q) = %s, want %s", in, got, want)
		}
	}
	long := Path(bytes.Repeat([]byte{0xff}, 1<<20))
	if len(long) > maxPath || !strings.HasSuffix(long, `"`+ellipsis) {
		t.Errorf("long path: %d bytes, ends %q", len(long), long[len(long)-8:])
	}
	if whole := strings.Repeat("a", maxPath); Path([]byte(whole)) != whole {
		t.Error("a plain path of the longest length was cut")
	}
}

func TestASCII(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "": "", "a…": "a...", "é 日": `\u00e9 \u65e5`, "👍": `\U0001f44d`, "x\xff": `x\xff`, `\u00e9`: `\u00e9`,
	} {
		if got := ASCII(in); got != want {
			t.Errorf("ASCII(%q) = %q, want %q", in, got, want)
		}
		var b bytes.Buffer
		w := NewASCIIWriter(&b)
		for i := range len(in) {
			w.Write([]byte{in[i]})
		}
		w.Close()
		if b.String() != want {
			t.Errorf("written byte by byte, %q becomes %q, want %q", in, b.String(), want)
		}
	}
	// Names stay apart.
	if a, b := ASCII(Path([]byte("é"))), ASCII(Path([]byte(`\u00e9`))); a == b {
		t.Errorf("two names are both %s", a)
	}
}

func TestWrapAndFit(t *testing.T) {
	for _, c := range []struct {
		in   string
		room int
		want []string
	}{
		{"", 8, []string{""}},
		{"one two three", 8, []string{"one two", "three"}},
		{"onetwothreefour", 8, []string{"onetwoth", "reefour"}},
		{"日本語日本語", 8, []string{"日本語日", "本語"}},
		{strings.Repeat("a\u0301", 9), 8, []string{strings.Repeat("a\u0301", 8), "a\u0301"}},
	} {
		if got := Wrap(c.in, c.room); strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("Wrap(%q, %d) = %q, want %q", c.in, c.room, got, c.want)
		}
	}
	for _, c := range []struct {
		in   string
		room int
		want string
	}{
		{"12345678", 8, "12345678"}, {"123456789", 8, "1234567…"}, {"日本語日本", 8, "日本語…"},
		{"abc", 1, "…"}, {"abc", 0, ""}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		if got := Fit(c.in, c.room, "…"); got != c.want {
			t.Errorf("Fit(%q, %d) = %q, want %q", c.in, c.room, got, c.want)
		}
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, Options{Prefix: "| ", MaxLine: 8})
	for _, s := range []string{"one\r", "\ntwo\x1b[", "m 0123456789\nth", "re\xe2\x80", "\xaee\r"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "| one\n| two\\x1b[…\n| thre…"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWriterMax(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, Options{Max: 5})
	for range 1000 {
		w.Write([]byte("ab\n"))
	}
	w.Close()
	if got, want := out.String(), "ab\nab…\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWriterReportsError(t *testing.T) {
	w := NewWriter(failing{}, Options{})
	for range 2 {
		if _, err := w.Write([]byte("x")); !errors.Is(err, errFull) {
			t.Fatalf("error lost: %v", err)
		}
	}
}

var errFull = errors.New("full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// safe is the property, written apart from the code: nothing that a terminal or a reader could be fooled by.
func safe(t *testing.T, s string, multi bool) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Fatalf("not utf-8: %q", s)
	}
	for _, r := range s {
		if multi && (r == '\n' || r == '\t') {
			continue
		}
		if r != ' ' && unicode.In(r, unicode.C, unicode.Z, unicode.Variation_Selector) || r == 0x3164 {
			t.Fatalf("%U in %q", r, s)
		}
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "a", "\x1b[31m", "\u202e", "\r\n", "\xff\xfe", "e\u0301\u0301", "\U000e0041", "a\r\r\nb", "…"} {
		f.Add([]byte(s), 10, 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, max, split int) {
		s := string(b)
		for _, fn := range []func(string, int) string{String, Lines} {
			out := fn(s, max)
			safe(t, out, true)
			if len(out) > max && out != "" {
				t.Fatalf("%d bytes, bound %d", len(out), max)
			}
			if again := fn(out, max); again != out {
				t.Fatalf("not idempotent: %q then %q", out, again)
			}
		}
		safe(t, String(s, max), false)
		shown := String(s, len(s)*10+10)
		for _, room := range []int{8, 9, 20, 80} {
			lines := Wrap(shown, room)
			for _, line := range append(lines, Fit(shown, room, ellipsis)) {
				if Width(line) > room || !Clean(line) {
					t.Fatalf("%d columns, want %d, of %q", Width(line), room, line)
				}
			}
			if strings.ReplaceAll(strings.Join(lines, ""), " ", "") != strings.ReplaceAll(shown, " ", "") {
				t.Fatalf("wrapping %q lost something: %q", shown, lines)
			}
		}
		for _, c := range []byte(ASCII(shown)) {
			if c < ' ' || c >= 0x7f {
				t.Fatalf("%q is not plain ASCII", ASCII(shown))
			}
		}
		if Bytes(b, max) != String(s, max) {
			t.Fatalf("Bytes %q, String %q", Bytes(b, max), String(s, max))
		}
		safe(t, Path(b), false)

		var whole bytes.Buffer
		w := NewWriter(&whole, Options{})
		at := 0
		if len(b) > 0 && split > 0 {
			at = split % len(b)
		}
		w.Write(b[:at])
		for i := at; i < len(b); i++ {
			w.Write(b[i : i+1])
		}
		w.Close()
		if want := Lines(s, 1<<20); len(b) < 10000 && whole.String() != want {
			t.Fatalf("in parts %q, whole %q", whole.String(), want)
		}
	})
}

// FuzzPath holds Path to telling any two short names apart.
func FuzzPath(f *testing.F) {
	f.Add([]byte("a\nb"), []byte(`a\nb`))
	f.Add([]byte("a"), []byte(`"a"`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a)+len(b) < 500 && !bytes.Equal(a, b) && Path(a) == Path(b) {
			t.Fatalf("%q and %q both show as %s", a, b, Path(a))
		}
	})
}
