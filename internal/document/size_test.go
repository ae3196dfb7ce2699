package document

import "testing"

func TestParseSize(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "4096": 4096, "4096B": 4096, "1KiB": 1 << 10, "8GiB": 8 << 30, "8gib": 8 << 30, "8 GiB": 8 << 30, "8G": 8 << 30,
		"8g": 8 << 30, "1.5GiB": 3 << 29, "0.5k": 512, "1GB": 1e9, "2TiB": 2 << 40,
	} {
		if got, err := ParseSize(s); got != want || err != nil {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", "0", "0GiB", "-1", "+1", "1.5", "GiB", "1PiB", "1 2", "1e9", "0x10", "1GiB ", " 1", "٣", "NaN", "inf", "1..5k", "1.k",
		"99999999TiB", "9999999999999999999999",
	} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", s, got)
		}
	}
}
