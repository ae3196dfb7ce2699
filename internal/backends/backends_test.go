package backends

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/manifest"
)

func TestByName(t *testing.T) {
	for _, n := range append(Names(), "") {
		b, err := ByName(n)
		if err != nil || n != "" && b.Name() != n || n == "" && b != Default() {
			t.Errorf("%q: %v, %v", n, b, err)
		}
	}
	if len(slices.Compact(slices.Sorted(slices.Values(Names())))) != len(all) {
		t.Error("two backends have one name")
	}
	_, err := ByName("vmware")
	var option *fault.OptionError
	if !errors.As(err, &option) || !strings.Contains(option.Advice, Names()[0]) {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestKnownNames: each name that a manifest may have is a backend's, or the error says what
// one of that name needs.
func TestKnownNames(t *testing.T) {
	var known []string
	for _, n := range needs {
		known = append(known, n.name)
		_, err := ByName(n.name)
		if slices.Contains(Names(), n.name) {
			if err != nil {
				t.Errorf("%s: %v", n.name, err)
			}
			continue
		}
		var u *bottle.UnavailableError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), n.name) || !strings.Contains(err.Error(), n.what) || !strings.Contains(u.Advice, Names()[0]) {
			t.Errorf("%s, which is not here: %v", n.name, err)
		}
	}
	if !slices.Equal(known, manifest.Backends) {
		t.Errorf("a bottle's file may say %v, and known are %v", manifest.Backends, known)
	}
	for _, n := range Names() {
		if !slices.Contains(known, n) {
			t.Errorf("%s is here, and no bottle's file may say it", n)
		}
	}
	var classes []string
	for _, i := range bottle.Isolations() {
		classes = append(classes, string(i))
	}
	if !slices.Equal(classes, manifest.Isolations) {
		t.Errorf("a bottle's file may say %v, and classes are %v", manifest.Isolations, classes)
	}
}

// TestDeclared: each backend says what it can't give, with a reason, and what it says agrees
// with the interfaces that it has.
func TestDeclared(t *testing.T) {
	for _, b := range all {
		c := b.Capabilities()
		for _, l := range c.Missing() {
			if l.Why == "" {
				t.Errorf("%s: no reason for %s", b.Name(), l.What)
			}
		}
		if f, ok := b.(bottle.Freezes); c.LiveFreeze != (ok && len(f.ImageNames()) > 0) {
			t.Errorf("%s freezes processes: %v, and has an image: %v", b.Name(), c.LiveFreeze, ok)
		}
	}
}
