package phases

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOffCollectsNothing(t *testing.T) {
	var l Log
	l.Mark("a")
	l.add([]Point{{"b", 1}})
	if n := len(l.Points()); n > 0 {
		t.Errorf("%d points", n)
	}
}

func TestPointsAreWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	t.Setenv(Variable, file)
	Begin()
	Mark("one")
	Add([]Point{{"of another", 5}})
	if err := End(); err == nil {
		t.Error("a file was made")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := End(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(file)
	var names []string
	for l := range strings.Lines(string(b)) {
		name, _, _ := strings.Cut(l, " ")
		names = append(names, name)
	}
	if got := strings.Join(names, ","); !strings.HasPrefix(got, "main,one,of") || names[len(names)-1] != "end" {
		t.Errorf("got %q", b)
	}
}
