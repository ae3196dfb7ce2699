package backends

import (
	"slices"
	"strings"
	"testing"
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
	if _, err := ByName("vmware"); err == nil || !strings.Contains(err.Error(), Names()[0]) {
		t.Errorf("an unknown name: %v", err)
	}
}
