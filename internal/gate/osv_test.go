package gate

import (
	"encoding/json"
	"strings"
	"testing"
)

// Versions sort as in Python's "packaging" library.
func TestPEP440(t *testing.T) {
	order := [][]string{
		{"0.dev0", "0.0dev"},
		{"0", "0.0", "v0"},
		{"1.0.dev1", "1dev1", "1.0-dev_1", "V1.DEV1"},
		{"1.0a0.dev0"},
		{"1.0a0", "1a", "1.0alpha", "1.0-ALPHA.0"},
		{"1.0a0.post0"},
		{"1.0a2"},
		{"1.0a10"},
		{"1.0b1", "1beta1"},
		{"1.0rc1.dev1"},
		{"1.0rc1", "1.0c1", "1.0-c.1", "1.0pre1", "1.0preview_01", "1.0RC1"},
		{"1.0", "1", "1.0.0.0", "v1.0", "0!1", "01.00", "1.0+local.1"},
		{"1.0.post0.dev1"},
		{"1.0.post0", "1.0-0", "1.0post", "1.0rev", "1.0-r0"},
		{"1.0.post1", "1.0-1"},
		{"1.0.1"},
		{"1.2"},
		{"1.10"},
		{"1.99999999999999999999999"},
		{"2"},
		{"1!0.1", "01!0.1.0"},
	}
	for i, as := range order {
		for j, bs := range order {
			for _, a := range as {
				for _, b := range bs {
					if b == "1.0+local.1" {
						continue
					}
					want := 0
					if i != j {
						want = 1 - 2*btoi(i < j)
					}
					if got, ok := comparePEP440(a, b); got != want || !ok {
						t.Errorf("%s and %s: %d %t, want %d", a, b, got, ok, want)
					}
				}
			}
		}
	}
	for _, s := range []string{"", "v", "1.", ".1", "1..0", "1.0x", "1.0-", "1 .0", " 1", "1!", "vv1", "1!v1", "1.0+", "1.0+a..b", "1.0.a.b", "1.0dev1post1", "one", "1.*", "2004d", "1.0rc1rc1", "1.0po\u017ft1"} {
		if _, ok := comparePEP440(s, "1"); ok {
			t.Errorf("%q is a version", s)
		}
	}
	if _, ok := comparePEP440("1", "1+local"); ok {
		t.Error("a bound that is local is compared")
	}
}

// A version that can't be compared is affected. Events count in the order of their
// versions.
func TestAffects(t *testing.T) {
	type events []map[string]string
	since := func(vs ...string) (out events) {
		for i, v := range vs {
			out = append(out, map[string]string{[]string{"introduced", "fixed"}[i%2]: v})
		}
		return out
	}
	for _, x := range []struct {
		ecosystem, version string
		listed             []string
		kind               string
		events             events
		want               bool
	}{
		{"npm", "1.1.0", nil, "SEMVER", since("1.0.0", "1.2.0"), true},
		{"npm", "1.2.0", nil, "SEMVER", since("1.0.0", "1.2.0"), false},
		{"npm", "2.1.0", nil, "SEMVER", since("2.0.0", "2.2.0", "0", "1.2.0"), true},
		{"npm", "1.3.0", nil, "SEMVER", since("2.0.0", "2.2.0", "0", "1.2.0"), false},
		{"npm", "one", nil, "SEMVER", since("2.0.0", "2.2.0"), true},
		{"npm", "one", []string{"1.0.0"}, "GIT", nil, true},
		{"npm", "1.0.0+b", []string{"1.0.0"}, "GIT", nil, true},
		{"npm", "1.0.0", []string{"1.0.0+b"}, "GIT", nil, true},
		{"npm", "1.0.1", []string{"1.0.0"}, "GIT", since("0"), false},
		{"Go", "v1.0.0+incompatible", nil, "SEMVER", since("0", "1.0.1+incompatible"), true},
		{"PyPI", "1" + strings.Repeat(".1", maxVersion), []string{"2"}, "GIT", nil, true}, // too long to be compared
		{"PyPI", "3.3.0.0", []string{"3.3"}, "GIT", nil, true},
		{"PyPI", "3.3+LOCAL", []string{"3.3+local"}, "GIT", nil, true},
		{"PyPI", "3.3rc1", []string{"3.3c1"}, "GIT", nil, true},
		{"PyPI", "3.3", []string{"3.4", "2004d"}, "ECOSYSTEM", since("3.4", "3.5"), false},
		{"PyPI", "3.10", nil, "ECOSYSTEM", since("3.9", "3.11"), true},
		{"PyPI", "3.10.post1", nil, "ECOSYSTEM", since("3.9", "3.10"), false},
		{"PyPI", "3.10rc1", nil, "ECOSYSTEM", since("3.9", "3.10"), true},
		{"PyPI", "9", []string{"3.3"}, "ECOSYSTEM", since("0"), true},
		{"PyPI", "2004d", []string{"3.3"}, "GIT", nil, true},
		{"PyPI", "3.3", nil, "ECOSYSTEM", since("3.4", "2004d"), true},
		{"PyPI", "3.5", nil, "ECOSYSTEM", since("3.4", "3.5+fixed"), true},
	} {
		type object = map[string]any
		b, err := json.Marshal(object{"affected": []any{object{
			"package":  object{"ecosystem": x.ecosystem, "name": "a"},
			"versions": x.listed,
			"ranges":   []any{object{"type": x.kind, "events": x.events}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		var a advisory
		if err := json.Unmarshal(b, &a); err != nil {
			t.Fatal(err)
		}
		if got := a.affects(Package{Ecosystem: x.ecosystem, Name: "a", Version: x.version}); got != x.want {
			t.Errorf("%+v: %t", x, got)
		}
	}
}
