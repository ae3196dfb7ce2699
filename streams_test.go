package carboy

import "testing"

func TestEscape(t *testing.T) {
	for _, x := range []struct {
		in, out string
		leave   bool
	}{
		{"ls ~\r", "ls ~\r", false},
		{"~.", "", true},
		{"a\r~.", "a\r", true},
		{"a~.", "a~.", false},
		{"~~.", "~.", false},
		{"~/x\r", "~/x\r", false},
		{"\r~a", "\r~a", false},
		{"\x03\x03~.", "\x03\x03~.", false},
		{"\n~.rest", "\nrest", true},
	} {
		whole := escape{line: true}
		got, leave := whole.filter([]byte(x.in))
		if string(got) != x.out || leave != x.leave {
			t.Errorf("%q: %q, %v; want %q, %v", x.in, got, leave, x.out, x.leave)
		}
		// Key by key the same.
		single, all, left := escape{line: true}, "", false
		for i := range len(x.in) {
			k, l := single.filter([]byte(x.in[i : i+1]))
			all, left = all+string(k), left || l
		}
		if all != x.out || left != x.leave {
			t.Errorf("%q key by key: %q, %v", x.in, all, left)
		}
	}
}
