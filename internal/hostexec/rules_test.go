package hostexec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// With a shell or a transfer tool in the set every other check would guard a
// door beside an open one.
func TestDenyListIsNeverAdmitted(t *testing.T) {
	deny := []string{
		"bash", "sh", "python", "curl", "wget", "ssh", "bwrap", "bubblewrap", "eval", "exec", "kill", "chmod", "chown", "dd", "nc",
	}
	for _, name := range deny {
		if !isNever(name) {
			t.Errorf("%s is not on the deny list", name)
		}
		_, err := resolve(name, trustedDirs)
		wantReason(t, err, reasonProgram)
	}
	for p, s := range hostPrograms {
		if isNever(s.name) || p == 0 {
			t.Errorf("%s is in the closed set", s.name)
		}
		if s.prepare == nil {
			t.Errorf("%s has no argument policy", s.name)
		}
	}
	// Were one added to the table all the same, it would still not run.
	r := newTestRunner(t, Options{})
	r.programs = map[Program]*spec{helper: {name: "sh", prepare: func(*call) error { return nil }}}
	_, err := r.Run(t.Context(), shell(t, "exit 0"))
	wantReason(t, err, reasonProgram)
	delete(r.programs, helper)
}

// moduleRoot is the directory with go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == "/" {
			break
		}
	}
	t.Fatalf("no go.mod above the test (%v)", err)
	return ""
}

// The decision record lists exactly the closed set, and for git exactly the
// admitted subcommands; to add one is a decision that is written down.
func TestDecisionRecordListsTheSet(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs", "decisions", "0002-hostexec.md"))
	if err != nil {
		t.Fatal(err)
	}
	var programs, commands []string
	for _, s := range hostPrograms {
		programs = append(programs, s.name)
	}
	for name := range gitCommands {
		commands = append(commands, name)
	}
	slices.Sort(programs)
	slices.Sort(commands)
	if got := listed(t, string(b), "programs"); !slices.Equal(got, programs) {
		t.Errorf("record lists programs %q, the code has %q", got, programs)
	}
	if got := listed(t, string(b), "git-subcommands"); !slices.Equal(got, commands) {
		t.Errorf("record lists subcommands %q, the code has %q", got, commands)
	}
}

var listedItem = regexp.MustCompile("(?m)^(?:- |\\| )`([^`]+)`")

// listed gives the items between the markers of a list in the record, sorted.
func listed(t *testing.T, text, name string) []string {
	t.Helper()
	_, rest, ok1 := strings.Cut(text, "<!-- "+name+" -->")
	block, _, ok2 := strings.Cut(rest, "<!-- /"+name+" -->")
	if !ok1 || !ok2 {
		t.Fatalf("record has no block %q", name)
	}
	var items []string
	for _, m := range listedItem.FindAllStringSubmatch(block, -1) {
		items = append(items, m[1])
	}
	slices.Sort(items)
	return items
}

// spawners lists functions that start a process or replace this one; "" is the import
// itself.
var spawners = map[string][]string{
	"os/exec":                  {""},
	"golang.org/x/sys/execabs": {""},
	"net/http/cgi":             {""},
	"plugin":                   {""},
	"os":                       {"StartProcess"},
	"syscall":                  {"ForkExec", "StartProcess", "Exec", "SYS_EXECVE", "SYS_EXECVEAT", "SYS_FORK", "SYS_VFORK", "SYS_CLONE"},
	"golang.org/x/sys/unix":    {"Exec", "SYS_EXECVE", "SYS_EXECVEAT", "SYS_FORK", "SYS_VFORK", "SYS_CLONE", "SYS_CLONE3"},
	"github.com/creack/pty":    {"Start", "StartWithSize", "StartWithAttrs"},
}

// exceptions may spawn by themselves, each for its reason.
var exceptions = map[string]string{
	"internal/bench":                    "a developer's program, never linked into carboy",
	"internal/hostexec":                 "the chokepoint",
	"internal/hostile/mutate":           "a developer's program, never linked into carboy: it runs go",
	"internal/tools/house":              "a developer's program, never linked into carboy: it asks go for packages",
	"internal/tools/diffcover":          "a developer's program, never linked into carboy: it runs git",
	"internal/tools/planted":            "a developer's program, never linked into carboy: it makes a Debian system and starts its programs",
	"internal/testenv":                  "for tests: a test's process executes itself again in a namespace of its own",
	"internal/browsertest":              "Chromium, for tests of pages",
	"internal/ship/shiptest":            "hosts for tests: sshd and Docker Engines",
	"internal/forge/giteatest":          "a Gitea server for tests",
	"internal/gitgate/gittest":          "upstreams for tests: sshd and git http-backend",
	"internal/bottle/bottletest":        "a suite for tests: its guest starts programs inside the bottle, not on the host",
	"internal/corpus/attacker":          "the attacker of the hostile corpus: it runs inside a bottle only, and its Main does nothing elsewhere",
	"internal/bottle/userns":            "a process that sleeps in a user namespace while mounts are made, of a program that carboy embeds",
	"internal/bottle/docker/dockertest": "a Docker Engine for tests",
	"internal/builder":                  "its command inside the bottle of a build becomes the command of a step; on the host it starts none",
	"internal/guest/agent":              "the program inside a container or virtual machine: it starts commands there, not on the host",
	"internal/bottle/gvisor":            "the embedded kernel re-executes this binary as its own parts, with an environment of its own making",
	"internal/macos/start":              "carboy on macOS, where hostexec is not: a closed set of two programs that make the machine",
	"internal/macos/session":            "carboy in that machine re-executes this binary for a command line from outside, which outlives no connection",
}

// TestOnlyHostexecSpawns is the rule of the whole repository: a program that is
// started anywhere else has no closed set, no trusted path, no empty
// environment and nobody who ends its descendants.
func TestOnlyHostexecSpawns(t *testing.T) {
	root := moduleRoot(t)
	seen := 0
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != root && (name == "testdata" || name == "vendor" || name[0] == '.' || name[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil || exceptions[filepath.ToSlash(rel)] != "" {
			return err
		}
		src, err := os.ReadFile(file)
		if err != nil {
			if os.IsNotExist(err) {
				return nil // removed meanwhile
			}
			return err
		}
		seen++
		for _, what := range spawns(t, file, src) {
			t.Errorf("%s: %s: only internal/hostexec starts programs (closed set, trusted path, empty environment, no descendant left); call it instead", file, what)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files", seen)
}

// spawns lists what a file uses of the spawners.
func spawns(t *testing.T, name string, src []byte) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Errorf("parse: %v", err)
		return nil
	}
	var found []string
	names := map[string]string{} // local name of an import → its path
	for _, imp := range f.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		what, listed := spawners[p]
		local := path.Base(p)
		if imp.Name != nil {
			local = imp.Name.Name
		}
		switch {
		case !listed:
		case slices.Contains(what, ""):
			found = append(found, "imports "+p)
		case local == "." && len(what) > 0:
			found = append(found, "dot-imports "+p)
		default:
			names[local] = p
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && slices.Contains(spawners[names[id.Name]], sel.Sel.Name) {
			found = append(found, "uses "+names[id.Name]+"."+sel.Sel.Name)
		}
		return true
	})
	for _, group := range f.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:linkname") && regexp.MustCompile(`(?i)forkexec|startprocess|runtime_beforefork`).MatchString(c.Text) {
				found = append(found, "links to "+c.Text)
			}
		}
	}
	return found
}

// The rule's own test: what it must see, and the nearest that it must not.
func TestSpawnRuleSees(t *testing.T) {
	for src, want := range map[string]int{
		`package p; import "os/exec"; var _ = exec.Command`:                          1,
		`package p; import x "os/exec"; var _ = x.Command`:                           1,
		`package p; import _ "os/exec"`:                                              1,
		`package p; import . "syscall"; var _ = ForkExec`:                            1,
		`package p; import s "syscall"; var _ = s.ForkExec`:                          1,
		`package p; import "os"; func f() { os.StartProcess("", nil, nil) }`:         1,
		`package p; import "golang.org/x/sys/unix"; var _ = unix.Exec`:               1,
		`package p; import "net/http/cgi"; var _ cgi.Handler`:                        1,
		"package p; import _ \"unsafe\"\n//go:linkname f syscall.forkExec\nfunc f()": 1,
		`package p; import "syscall"; var _ = syscall.Kill`:                          0,
		`package p; import "os"; var _ = os.Getpid`:                                  0,
		`package p; import exec "example.org/other"; var _ = exec.Command`:           0,
	} {
		if got := spawns(t, "x.go", []byte(src)); len(got) != want {
			t.Errorf("%s: %q", src, got)
		}
	}
}
