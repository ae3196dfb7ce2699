package run

import (
	"strings"
	"testing"
)

func TestScreen(t *testing.T) {
	for _, x := range []struct{ out, enter, leave string }{
		{"plain \x1b[1;31mtext\x1b[0m", "", ""},
		{"\x1b[?1049h\x1b[?25l", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l\x1b[0m"},
		{"\x1b[?1049h\x1b[?1049l", "", ""},
		{"\x1b[?1000;1006;2004h", "\x1b[?1000h\x1b[?1006h\x1b[?2004h", "\x1b[?2004l\x1b[?1006l\x1b[?1000l\x1b[0m"},
		{"\x1b[?2026h\x1b[?7l\x1b[?99999999999999999999h", "", ""}, // none of those that are followed
		{"\x1b[>1u\x1b[>5u", "\x1b[>1u\x1b[>5u", "\x1b[<2u\x1b[0m"},
		{"\x1b[>1u\x1b[<u\x1b[<9u", "", ""},
		{"\x1b[?1049h\x1bc", "", ""},
		{"\x1b[?10\x1b[?25l", "\x1b[?25l", "\x1b[?25h\x1b[0m"}, // cut by another one
		{"\x1b[?" + strings.Repeat("1", 100) + "h\x1b[?25\x07l", "", ""},
		{"\x1b[?25l\x1b[?25h", "", ""},
	} {
		var whole, single screen
		_, _ = whole.Write([]byte(x.out))
		for i := range len(x.out) {
			_, _ = single.Write([]byte(x.out[i : i+1]))
		}
		for _, s := range []*screen{&whole, &single} {
			if e, l := s.enter(), s.leave(); e != x.enter || l != x.leave {
				t.Errorf("%q: enters by %q, leaves by %q", x.out, e, l)
			}
		}
		// What it says of itself leads to the same state.
		var again screen
		_, _ = again.Write([]byte(whole.enter()))
		if again.leave() != whole.leave() {
			t.Errorf("%q: %q is another state", x.out, whole.enter())
		}
	}
}
