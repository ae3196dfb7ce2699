package scan

import (
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/secret"
)

// TestOneCase: a secret whose letters were all brought into one case is found, and a
// part of it; a short one, which may be a word then, is not.
func TestOneCase(t *testing.T) {
	const long, short = "qR7tVmZ2kLpX9wBnH4cY8dFg", "Password1"
	k, err := NewWatchedSecrets(map[string]secret.Value{"LONG": secret.NewString(long), "SHORT": secret.NewString(short)})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := NewRules(Config{Watched: k})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"a " + strings.ToLower(long) + " b": "small letters", "a " + strings.ToUpper(long) + " b": "capitals", "x=" + strings.ToLower(long[3:20]): "small letters",
		"a " + strings.ToLower(short) + " b": "", "a " + strings.ToUpper(short) + " b": "", "x=" + strings.ToLower(long[3:15]): "",
	} {
		found, err := rules.Check(Options{Place: "body", Action: Report}, []byte(text))
		got := ""
		if len(found) > 0 {
			got = found[0].Transform
		}
		if err != nil || got != want {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
}

// TestUnchangedParts: what is the same in another form is told once, as what it is,
// and not as a piece of something else beside it, which could not be masked.
func TestUnchangedParts(t *testing.T) {
	const value = "hV7-watched-Zk3qP9x-value-Lw0"
	k, err := NewWatchedSecrets(map[string]secret.Value{"KEY": secret.NewString(value)})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := NewRules(Config{Watched: k})
	if err != nil {
		t.Fatal(err)
	}
	found, err := rules.Check(Options{Place: "body", Action: Report, Coverage: NewCoverage()}, []byte("key="+value+"\n"))
	if err != nil || len(found) != 1 || found[0].Transform != "plain" || found[0].Rule != "known-secret" {
		t.Errorf("%+v %v", found, err)
	}
	// Its neighbour: pieces that are in small letters where the secret is not.
	found, err = rules.Check(Options{Place: "body", Action: Report, Coverage: NewCoverage()}, []byte("a=hv7-watched-z&b=k3qp9x-value-l\n"))
	if err != nil || len(found) == 0 || found[0].Rule != "pieces-of-secret" {
		t.Errorf("pieces: %+v %v", found, err)
	}
}
