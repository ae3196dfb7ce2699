package carboy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layers are the packages in the direction that data travels. A package may
// import those of earlier lines only: peers meet in package carboy, through the
// small interface that each consumer declares.
var layers = [][]string{
	{"internal/secret", "internal/document", "internal/dockerfile", "internal/ca", "internal/safetext", "internal/exitcode", "internal/testenv", "internal/receipt/receipttest", "internal/agenttest/sessiontest", "internal/handover", "internal/phases", "internal/reclaim", "internal/scan/literal", "internal/egresslog", "internal/notify", "internal/tokens", "internal/gitobject", "internal/sqlite", "internal/attest", "internal/kvm", "internal/sparse", "internal/seccomp", "internal/guest/proto", "internal/guest/rtnet", "internal/guest/uppertar", "internal/macos/frames", "internal/macos/start", "internal/rootfile", "internal/checkpoint", "internal/progress"},
	{"internal/policy", "internal/dockerapi", "internal/smolstate", "internal/erofs", "internal/guest/agent", "internal/guest/program", "internal/browsertest", "internal/scan", "internal/engine", "internal/issues", "internal/macos/mirror"},
	{"internal/audit", "internal/store", "internal/credential", "internal/forge", "internal/forge/giteatest"},
	{"internal/routes", "internal/forge/forgetest", "internal/loopback", "internal/macos/session"},
	{"internal/manifest", "internal/supervise", "internal/prompt", "internal/transfer", "internal/hostexec", "internal/wire", "internal/trace", "internal/pool", "internal/corpus/attacker", "internal/ship/module", "internal/macos"},
	{"internal/bottle", "internal/bottle/userns", "internal/gateway", "internal/change", "internal/image", "internal/wire/wiretest", "internal/pager", "internal/supervise/tui", "internal/supervise/web", "internal/supervise/supervisetest", "internal/supervise/tools", "internal/ociruntime", "internal/gitgate", "internal/gitgate/gittest", "internal/forgekey", "internal/forgeservice", "internal/scenario", "internal/ship/hosts", "internal/ship/approval"},
	{"internal/bottle/posture"},
	{"internal/bottle/gvisor", "internal/bottle/guest", "internal/guest/agent/program", "internal/bottle/docker/dockertest", "internal/bottle/rootfs", "internal/receipt", "internal/gate", "internal/ship/remote", "internal/ship/plan", "internal/ship/reviews", "internal/orchestrate", "internal/orchestrate/config", "internal/platform"},
	{"internal/orchestrate/checks", "internal/bottle/docker", "internal/bottle/microvm", "internal/bottle/smolmachines", "internal/bottle/bottletest", "internal/ship", "internal/ship/shiptest", "internal/fault", "internal/host"},
	{"internal/backends", "internal/review", "internal/run/repos", "internal/provenance"},
	{"internal/ask", "internal/run/plan"},
	{"internal/run", "internal/agent", "internal/ship/operator"},
	{"internal/propose", "internal/bottles", "internal/builder", "internal/gate/judge", "internal/tracing"},
	{"internal/work", "internal/agentimages"},
	{"internal/orchestrate/bottlework"},
	{"internal/doctor", "internal/orchestrate/serve"},
	{""},
	{"internal/corpus"},
	{"cmd/carboy", "internal/bench", "internal/agenttest", "internal/hostile", "internal/hostile/mutate", "internal/ship/shiptest/server"},
	{"internal/tools/house", "internal/tools/diffcover", "internal/tools/planted", "internal/tools/report"},
}

// only lists imports that one place is responsible for, and why.
var only = []struct {
	prefix string
	in     []string
	why    string
}{
	{"os/exec", []string{"internal/hostexec", "internal/bottle/gvisor", "internal/bottle/userns", "internal/corpus/attacker", "internal/macos/start", "internal/macos/session"}, "whatever carboy starts on the host goes through the exec chokepoint"},
	{module + "/internal/bottle/gvisor", []string{"internal/backends"}, "a backend is imported in one place"},
	{module + "/internal/bottle/docker", []string{"internal/backends"}, "a backend is imported in one place"},
	{module + "/internal/bottle/smolmachines", []string{"internal/backends"}, "a backend is imported in one place"},
	{module + "/internal/bottle/microvm", []string{"internal/backends"}, "a backend is imported in one place"},
	{module + "/internal/corpus", []string{"cmd/carboy", "internal/corpus"}, "attackers are off the main path: only carboy escape-test reaches them"},
	{"gvisor.dev/gvisor/runsc", []string{"internal/bottle/gvisor"}, "the embedded kernel is one backend among others"},
	{"gvisor.dev/gvisor/pkg/sentry", []string{"internal/bottle/gvisor"}, "the embedded kernel is one backend among others"},
	{"gvisor.dev/gvisor/pkg/tcpip", []string{"internal/gateway", "internal/wire", "internal/bottle/gvisor"}, "packets are the gateway's, sockets the embedded kernel's"},
	{"github.com/miekg/dns", []string{"internal/gateway", "internal/corpus/attacker"}, "names are answered in one place"},
	{"github.com/spf13/cobra", []string{"cmd/carboy"}, "the library knows no command line"},
	{"charm.land", []string{"internal/pager", "internal/prompt", "internal/supervise/tui"}, "a person is asked, or shown pages, in few places"},
	{"github.com/charmbracelet", []string{"internal/prompt"}, "programs of the terminal start in one place"},
	{"github.com/modelcontextprotocol", []string{"internal/supervise/tools"}, "an agent's tools are in one place"},
	{"github.com/dbos-inc", []string{"internal/engine"}, "another engine can take its place"},
	{"modernc.org/sqlite", []string{"internal/sqlite"}, "a file of state is opened in one way"},
	{"golang.org/x/mod/sumdb", []string{"internal/audit"}, "one log"},
	{"golang.org/x/crypto/ssh", []string{"internal/ship", "internal/ship/remote", "internal/ship/hosts", "internal/ship/approval", "internal/ship/plan", "internal/gitgate", "internal/forgekey", "internal/run/repos", "internal/ship/operator", "internal/gate/judge"}, "hosts and upstreams of git are reached in few places"},
}

const module = "github.com/carboy/carboy"

// exempt holds programs for developers, which are not shipped.
var exempt = []string{"internal/agenttest", "internal/bench", "internal/hostile", "internal/hostile/mutate", "internal/bottle/bottletest", "internal/bottle/docker/dockertest", "internal/browsertest", "internal/forge/forgetest", "internal/forge/giteatest", "internal/gitgate/gittest", "internal/ship/shiptest", "internal/tools/house", "internal/tools/diffcover", "internal/tools/planted"}

func TestLayers(t *testing.T) {
	level := map[string]int{}
	for i, l := range layers {
		for _, p := range l {
			level[p] = i
		}
	}
	for pkg, imports := range importsOf(t) {
		own, known := level[pkg]
		if !known {
			t.Errorf("package %q has no layer: give it one in layers_test.go", pkg)
			continue
		}
		for _, imp := range imports {
			dep, ours := strings.CutPrefix(imp, module)
			if ours {
				dep = strings.TrimPrefix(dep, "/")
				if l, ok := level[dep]; !ok || l >= own {
					t.Errorf("%q imports %q, which is not below it", pkg, dep)
				}
			}
			for _, o := range only {
				if (imp == o.prefix || strings.HasPrefix(imp, o.prefix+"/")) && !slices.Contains(o.in, pkg) && !slices.Contains(exempt, pkg) {
					t.Errorf("%q imports %s: %s", pkg, imp, o.why)
				}
			}
		}
	}
}

// Within the command line, only the command that makes the attacks imports them: the
// attackers' program is in every carboy, and nothing else may lead to it.
func TestAttackersAreOffTheMainPath(t *testing.T) {
	files, err := filepath.Glob("cmd/carboy/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var with []string
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && slices.ContainsFunc(f.Imports, func(s *ast.ImportSpec) bool { return strings.HasPrefix(s.Path.Value, `"`+module+"/internal/corpus") }) {
			with = append(with, name)
		}
	}
	if !slices.Equal(with, []string{"cmd/carboy/escape.go"}) {
		t.Errorf("the attackers are imported by %q, not by cmd/carboy/escape.go alone", with)
	}
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	pathLike = regexp.MustCompile(`^(internal|cmd|docs|testdata|\.ci)/[\w./-]+$`)
	nameLike = regexp.MustCompile(`^[A-Za-z]\w+$`)
)

// The pages for newcomers name files that exist and functions that are in them, and
// every package.
func TestPagesForNewcomers(t *testing.T) {
	pages := map[string]string{}
	for _, name := range []string{"docs/architecture.md", "CONTRIBUTING.md"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = string(b)
		for _, m := range quoted.FindAllStringSubmatch(pages[name], -1) {
			if pathLike.MatchString(m[1]) && !strings.Contains(m[1], "NAME") {
				if _, err := os.Stat(m[1]); err != nil && m[1] != "docs/results/" { // .ci/full makes it
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
	rows := 0
	for row := range strings.Lines(pages["docs/architecture.md"]) {
		cells := strings.Split(row, "|")
		if len(cells) != 5 || !strings.Contains(cells[2], ".go`") || strings.Contains(cells[2], "NAME") {
			continue
		}
		var text []byte
		for _, m := range quoted.FindAllStringSubmatch(row, -1) {
			if b, err := os.ReadFile(m[1]); err == nil {
				text = append(text, b...)
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			if !nameLike.MatchString(m[1]) {
				continue
			}
			rows++
			if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[1] + `[\[(]`).Match(text) {
				t.Errorf("docs/architecture.md:%s: none of these files has a function %s", cells[1], m[1])
			}
		}
	}
	if rows < 12 {
		t.Errorf("the table of places has %d functions", rows)
	}
	for pkg := range importsOf(t) {
		for _, p := range []string{"internal/hostile", "internal/agenttest", "internal/bench", "internal/tools"} {
			if strings.HasPrefix(pkg+"/", p+"/") {
				pkg = p
			}
		}
		if pkg != "" && !strings.HasSuffix(strings.TrimSuffix(pkg, "/server"), "test") && !strings.Contains(pages["docs/architecture.md"], "`"+pkg+"`") {
			t.Errorf("docs/architecture.md does not have %s", pkg)
		}
	}
}

func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		if pkg == "." {
			pkg = ""
		}
		for _, s := range f.Imports {
			imp, err := strconv.Unquote(s.Path.Value)
			if err != nil {
				return err
			}
			out[pkg] = append(out[pkg], imp)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
