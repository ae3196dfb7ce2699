package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/carboy/carboy"
)

// makers lists the calls that make a bottle or ask the backend about one. The command line
// calls a Client c.
var makers = []string{
	"c.Run", "c.Prepare", "c.Start", "c.Resume", "c.Work", "c.Gate", "c.GateInit", "c.TraceScenarios", "c.Doctor", "c.ServeIssues", "c.SandboxHealth", "c.InspectSandbox", "corpus.Run",
}

// commandTree holds the commands in the source of the command line. Functions whose names
// end in Cmd make them.
type commandTree struct {
	use   map[string]string // by function: the command's name
	calls map[string][]string
	made  map[string][]string
}

func readCommands(t *testing.T) *commandTree {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	c := &commandTree{map[string]string{}, map[string][]string{}, map[string][]string{}}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				c.read(fn)
			}
		}
	}
	return c
}

func (c *commandTree) read(fn *ast.FuncDecl) {
	of := fn.Name.Name
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			key, ok := n.Key.(*ast.Ident)
			text, lit := n.Value.(*ast.BasicLit)
			if ok && lit && key.Name == "Use" && c.use[of] == "" {
				use, _ := strconv.Unquote(text.Value)
				c.use[of], _, _ = strings.Cut(use, " ")
			}
		case *ast.SelectorExpr:
			c.calls[of] = append(c.calls[of], n.Sel.Name)
			switch x := n.X.(type) {
			case *ast.Ident:
				c.made[of] = append(c.made[of], x.Name+"."+n.Sel.Name)
			case *ast.SelectorExpr: // such as d.c.Run
				c.made[of] = append(c.made[of], x.Sel.Name+"."+n.Sel.Name)
			}
		case *ast.Ident:
			c.calls[of] = append(c.calls[of], n.Name)
		}
		return true
	})
}

// makes reports whether a function reaches one of makers without another command's.
func (c *commandTree) makes(of string, seen map[string]bool) bool {
	seen[of] = true
	if slices.ContainsFunc(c.made[of], func(s string) bool { return slices.Contains(makers, s) }) {
		return true
	}
	return slices.ContainsFunc(c.calls[of], func(to string) bool {
		return !seen[to] && c.calls[to] != nil && !strings.HasSuffix(to, "Cmd") && to != "root" && c.makes(to, seen)
	})
}

// paths returns the commands below a function that makes some, by their paths.
func (c *commandTree) paths(of, path string, out map[string]string) {
	for _, to := range c.calls[of] {
		if use := c.use[to]; use != "" && strings.HasSuffix(to, "Cmd") && to != of {
			sub := strings.TrimSpace(path + " " + use)
			if out[sub] == "" {
				out[sub] = to
				c.paths(to, sub, out)
			}
		}
	}
}

// TestBottleMakers: each command that makes a bottle has --backend, and each that has it
// makes one.
func TestBottleMakers(t *testing.T) {
	c := readCommands(t)
	all := map[string]string{}
	c.paths("root", "", all)
	var found []string
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if c.makes(all[path], map[string]bool{}) {
			found = append(found, path)
		}
	}
	if !c.makes("wordCmd", map[string]bool{}) {
		t.Error("an agent's name makes no bottle")
	}
	want := slices.Sorted(slices.Values(bottleMakers))
	if !slices.Equal(found, want) {
		t.Errorf("these make bottles:\n%q\nthese have --backend:\n%q", found, want)
	}
	if len(all) < 60 {
		t.Errorf("only %d commands were looked at", len(all))
	}
}

// TestPoolOfAnotherBackend: run --pool says that a bottle of another backend does not come
// from the pool. One of the pool's own backend does, and nothing is said.
func TestPoolOfAnotherBackend(t *testing.T) {
	for _, x := range []struct {
		backend       string
		quiet, pooled bool
		said          string
	}{
		{"", false, true, ""},
		{carboy.Backends()[0], false, true, ""},
		{"other", false, false, "not from the pool"},
		{"other", true, false, ""},
	} {
		var said bytes.Buffer
		a := newApp(nil, &said, &said, func(string) string { return "" })
		a.backend = x.backend
		f := &runFlags{quiet: x.quiet}
		f.pool.n = 1
		if a.poolable(f, &carboy.RunOptions{}) != x.pooled || (said.Len() > 0) != (x.said != "") || !strings.Contains(said.String(), x.said) {
			t.Errorf("%+v: said %q", x, said.String())
		}
	}
}

// TestDiagnosisNamesTheBackend: doctor calls a backend by its own name.
func TestDiagnosisNamesTheBackend(t *testing.T) {
	var out bytes.Buffer
	a := newApp(nil, &out, &out, func(string) string { return "" })
	a.printDiagnosis(carboy.Diagnosis{Build: "b1", Backend: "other", Kernel: "v9"})
	if first, _, _ := strings.Cut(out.String(), "\n"); first != "carboy b1, other v9" {
		t.Errorf("doctor begins with %q", first)
	}
}

// TestPrivateUmask: whatever the umask of carboy's caller is, a bottle starts, and its files
// and what lands have the modes that they have with a usual one.
func TestPrivateUmask(t *testing.T) {
	script := "umask; echo a >made; mkdir dir; stat -c '%a %n' / /etc /etc/passwd made dir"
	var said, landed [2]string
	for i, wrap := range []func(*exec.Cmd) *exec.Cmd{func(c *exec.Cmd) *exec.Cmd { return c }, private} {
		d := newDen(t, nil)
		out, err := wrap(d.command("run", "-q", "--", "sh", "-c", script)).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if out, err := wrap(d.command("land", "--yes")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		said[i] = string(out)
		for _, name := range []string{"made", "dir"} {
			fi, err := os.Stat(filepath.Join(d.home, "ws", name))
			if err != nil {
				t.Fatal(err)
			}
			landed[i] += fi.Mode().String() + " "
		}
	}
	if said[0] != said[1] || landed[0] != landed[1] || !strings.Contains(said[0], "644 /etc/passwd") {
		t.Errorf("with a usual umask %q and %s, with a private one %q and %s", said[0], landed[0], said[1], landed[1])
	}
}

// TestBackendNamed: --backend comes before CARBOY_BACKEND, and that before
// BOT_BOTTLE_BACKEND, on each command that has it. None of these names is a backend's.
func TestBackendNamed(t *testing.T) {
	for _, x := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{nil, map[string]string{"BOT_BOTTLE_BACKEND": "old"}, "old"},
		{nil, map[string]string{"BOT_BOTTLE_BACKEND": "old", "CARBOY_BACKEND": "new"}, "new"},
		{[]string{"--backend", "flag"}, map[string]string{"BOT_BOTTLE_BACKEND": "old", "CARBOY_BACKEND": "new"}, "flag"},
		{[]string{"--backend", "flag"}, nil, "flag"},
	} {
		for _, command := range [][]string{{"doctor"}, {"run"}, {"sandbox", "health"}, {"gate", "run"}, {"start", "a"}} {
			var out, said bytes.Buffer
			env := map[string]string{"HOME": t.TempDir(), "NO_COLOR": "1"}
			maps.Copy(env, x.env)
			args := slices.Concat(command, x.args)
			switch command[0] {
			case "run":
				args = append(args, "--", "true")
			case "start":
				args = append(args, "--headless", "--prompt", "x")
			}
			code := newApp(nil, &out, &said, func(n string) string { return env[n] }).run(t.Context(), args)
			if code == 0 || !strings.Contains(said.String(), `--backend "`+x.want+`" is not here`) || !strings.Contains(said.String(), "hint: name one of "+carboy.Backends()[0]) {
				t.Errorf("%q with %v: %d, %s", args, x.env, code, said.String())
			}
		}
	}
}
