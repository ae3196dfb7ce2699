package corpus

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt/receipttest"
)

var update = flag.Bool("update", false, "rewrite the table of docs/escape-test.md")

func TestMain(m *testing.M) {
	carboy.Main()
	attacker.Main()
	if os.Getenv("CORPUS_OUTSIDE") != "" {
		fmt.Println("nobody took over")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var promise = regexp.MustCompile(`^[A-Z][0-9]$`)

// Every attack says what it is, belongs somewhere, and can be judged.
func TestCatalogue(t *testing.T) {
	page, err := os.ReadFile("../../docs/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	inScene := map[string]int{}
	for _, s := range scenes {
		for _, f := range s.families {
			inScene[f]++
		}
	}
	seen, count := map[string]bool{}, map[string]int{}
	for _, a := range Catalogue() {
		if seen[a.ID] {
			t.Errorf("%s is there twice", a.ID)
		}
		seen[a.ID] = true
		count[a.Family]++
		if !strings.HasSuffix(a.How, ".") || a.Defence == "" || a.Source == "" || a.Judge == "" {
			t.Errorf("%s does not say what it is: %+v", a.ID, a)
		}
		if !promise.MatchString(a.Promise) || !strings.Contains(string(page), "**"+a.Promise+"** ") {
			t.Errorf("%s attacks promise %q, which is not on the page", a.ID, a.Promise)
		}
		if inScene[a.Family] != 1 {
			t.Errorf("family %s is in %d scenes", a.Family, inScene[a.Family])
		}
		if (a.Try == nil) != (a.Control == nil) {
			t.Errorf("%s has an attack without a control, or the other way round", a.ID)
		}
		if _, ok := floodOf(a.ID); a.Family == "floods" && !ok {
			t.Errorf("%s has no flood", a.ID)
		}
	}
	for _, f := range Families {
		if count[f.Name] < 3 {
			t.Errorf("family %s has %d attacks", f.Name, count[f.Name])
		}
		delete(count, f.Name)
	}
	if len(seen) < 80 || len(count) > 0 {
		t.Errorf("%d attacks; families without a place: %v", len(seen), count)
	}
}

// familyTable returns the table in docs/escape-test.md.
func familyTable() string {
	var order []string // of promises, as the families have them
	families := map[string][]string{}
	for _, f := range Families {
		n := 0
		var promises []string
		for _, a := range Catalogue() {
			if a.Family == f.Name {
				n++
				if !slices.Contains(promises, a.Promise) {
					promises = append(promises, a.Promise)
				}
			}
		}
		of := strings.Join(promises, ", ")
		if families[of] == nil {
			order = append(order, of)
		}
		families[of] = append(families[of], fmt.Sprintf("`%s` %d", f.Name, n))
	}
	var b strings.Builder
	b.WriteString("| Promises | Families and their attacks |\n| --- | --- |\n")
	for _, of := range order {
		fmt.Fprintf(&b, "| %s | %s |\n", of, strings.Join(families[of], ", "))
	}
	return b.String()
}

func TestPageShowsTheFamilies(t *testing.T) {
	const name = "../../docs/escape-test.md"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(b), "<!-- families -->\n")
	table, tail, ok2 := strings.Cut(rest, "<!-- /families -->")
	if !ok1 || !ok2 {
		t.Fatalf("%s has no table of families", name)
	}
	if want := familyTable(); table != want {
		if *update {
			if err := os.WriteFile(name, []byte(head+"<!-- families -->\n"+want+"<!-- /families -->"+tail), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s is not current: go test ./internal/corpus -run Page -update", name)
	}
}

// A report of real bottles is what the schema says, and nothing is left.
func TestReport(t *testing.T) {
	tmp := t.TempDir()
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	rep, err := Run(t.Context(), Options{Families: []string{"devices", "tls"}})
	if err != nil {
		t.Fatal(err)
	}
	if rep.Verdict != Contained || rep.Attacks != len(rep.Results) || rep.Contained != rep.Attacks || len(rep.Families) != 2 || rep.Bottles != 2 {
		t.Errorf("%+v", rep)
	}
	b, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := receipttest.Load("../../docs/schemas/escape-test.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, p := range schema.Check(doc) {
		t.Error(p)
	}
	// Every field that is written is published, and nothing else is.
	sameKeys(t, "report", doc, schema.Properties(schema.Root()))
	for _, list := range []string{"families", "results"} {
		node := schema.Properties(schema.Root())[list].(map[string]any)
		sameKeys(t, list, doc[list].([]any)[0].(map[string]any), schema.Properties(node))
	}
	left, err := os.ReadDir(tmp)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

func sameKeys(t *testing.T, what string, written, published map[string]any) {
	t.Helper()
	a, b := slices.Sorted(maps.Keys(written)), slices.Sorted(maps.Keys(published))
	if !slices.Equal(a, b) {
		t.Errorf("%s: written are %v, published %v", what, a, b)
	}
}

func TestUnknownNames(t *testing.T) {
	for _, o := range []Options{{Families: []string{"nonsense"}}, {Attacks: []string{"tls/nonsense"}}} {
		if rep, err := Run(t.Context(), o); err == nil || rep != nil {
			t.Errorf("%+v: %v, %v", o, rep, err)
		}
	}
}

func choose(families ...string) (out []attacker.Attack) {
	for _, a := range Catalogue() {
		if slices.Contains(families, a.Family) {
			out = append(out, a)
		}
	}
	return out
}

// A corpus that can't see an escape proves nothing. Here the seal is opened on
// purpose: the bottle is shown what must be hidden.
func TestAnOpenSealIsSeen(t *testing.T) {
	l, err := newLab(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	for link, to := range map[string]string{"link-to-secret": l.secret, "link-to-dir": l.outside, "root-link": "/", "link-to-allowed": "a.txt", "relative-link": "../outside/secret"} {
		if err := os.Symlink(to, l.ws+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	w := &attacker.World{Workspace: l.ws, Secret: l.secret, Marker: reversed(l.marker), ReadOnly: givenAt}
	if _, err := l.attack(choose("host-files"), w, func(o *carboy.RunOptions) {
		o.Mounts = append(o.Mounts, l.outside+":"+l.outside+":ro")
		o.Env = []string{"A_VARIABLE=" + l.marker + l.token}
	}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{
		"host-files/by-path", "host-files/proc-self-root", "host-files/proc-magic-links", "host-files/dot-dot", "host-files/planted-links", "host-files/own-links", "host-files/racing-links", "host-files/loader",
		"host-files/renamed-shell", "host-files/memfd-exec", "host-files/deleted-program", "host-files/long-path", "host-files/foreign-system-calls", "host-files/environment", "host-files/search",
	} {
		if v := l.verdicts[id]; v.outcome != Escaped {
			t.Errorf("%s did not get what lay open: %+v", id, v)
		}
	}
	// And what is still closed is still contained.
	for _, id := range []string{"host-files/well-known-secrets", "host-files/read-only-mount"} {
		if v := l.verdicts[id]; v.outcome != Contained {
			t.Errorf("%s: %+v", id, v)
		}
	}
}

// The same for the wire: with routes to everything that is attacked, the
// attacks arrive, and both they and the observers say so.
func TestAnOpenWireIsSeen(t *testing.T) {
	l, err := newLab(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	plain, err := serveWeb(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.close()
	for _, n := range []string{"open.test", "inner.test"} {
		l.names.set(n, "127.0.0.1")
	}
	open, inner := "open.test:"+plain.port, "inner.test:"+plain.port
	w := &attacker.World{Workspace: l.ws, HostAddrs: []string{"127.0.0.1"}, Port: plain.port, Exfil: "exfil.test", Open: open, Private: inner}
	chosen := slices.DeleteFunc(choose("host-ports", "private-names"), func(a attacker.Attack) bool {
		return a.ID != "host-ports/names" && a.ID != "private-names/private"
	})
	if _, err := l.attack(chosen, w, func(o *carboy.RunOptions) {
		o.AllowPrivate = []string{open, inner, "host.carboy.internal:" + plain.port}
	}); err != nil {
		t.Fatal(err)
	}
	if v := l.verdicts["private-names/private"]; v.outcome != Escaped {
		t.Errorf("a name that leads inside: %+v", v)
	}
	if s := plain.strangers(open); len(s) == 0 {
		t.Errorf("the server saw no stranger: %v", plain.hosts)
	}
}

// TestJudge: one rule turns an attack's report into a verdict.
func TestJudge(t *testing.T) {
	l := &lab{token: "the-token"}
	for name, c := range map[string]struct {
		judge attacker.Judge
		res   attacker.Result
		want  Outcome
	}{
		"refused":                  {attacker.ByWord, attacker.Result{Outcome: attacker.Refused}, Contained},
		"succeeded":                {attacker.ByWord, attacker.Result{Outcome: attacker.Done}, Escaped},
		"succeeded, seen by host":  {attacker.ByHost, attacker.Result{Outcome: attacker.Done}, Escaped},
		"brought something else":   {attacker.ByToken, attacker.Result{Outcome: attacker.Done, Evidence: []byte("own")}, Contained},
		"brought the token":        {attacker.ByToken, attacker.Result{Outcome: attacker.Refused, Evidence: []byte("x the-token x")}, Escaped},
		"token, whoever judges":    {attacker.ByWord, attacker.Result{Outcome: attacker.Cannot, Evidence: []byte("the-token")}, Escaped},
		"could not be made":        {attacker.ByWord, attacker.Result{Outcome: attacker.Cannot}, Untried},
		"control failed":           {attacker.ByWord, attacker.Result{Outcome: attacker.Refused, Control: "no such file"}, Untried},
		"an outcome nobody knows":  {attacker.ByWord, attacker.Result{Outcome: "fine"}, Untried},
		"an answer without a word": {attacker.ByWord, attacker.Result{}, Untried},
	} {
		if v := l.judge(attacker.Attack{Judge: c.judge}, c.res); v.outcome != c.want {
			t.Errorf("%s: %+v, want %s", name, v, c.want)
		}
	}
}

// What an observer saw outweighs what was said, and a blind observer proves nothing.
func TestObservers(t *testing.T) {
	l := &lab{verdicts: map[string]verdict{"a/1": contained(""), "a/2": contained(""), "b/1": untried("no"), "b/2": escaped("yes")}}
	l.doubt("blind", "a/1", "b/2")
	l.accuse("seen", "a/2")
	for id, want := range map[string]Outcome{"a/1": Untried, "a/2": Escaped, "b/1": Untried, "b/2": Escaped} {
		if got := l.verdicts[id].outcome; got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	l.verdicts = map[string]verdict{"a/1": contained(""), "a/2": escaped("it says so")}
	l.accuse("seen", "a/1", "a/2")
	if l.verdicts["a/1"].outcome != Contained || l.verdicts["a/2"].detail != "seen" {
		t.Errorf("blame went astray: %+v", l.verdicts)
	}
	var r Report
	r.fill(Catalogue()[:2], map[string]verdict{Catalogue()[0].ID: contained("")})
	if r.Verdict != Untried || r.Untried != 1 {
		t.Errorf("an attack that nobody made: %+v", r.Counts)
	}
}

// On a host the attacker's name means nothing.
func TestTheAttackerIsNobodyOutside(t *testing.T) {
	for _, arg := range []string{"attack", "kill-init", "nothing"} {
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.Args, c.Env = []string{attacker.Path, arg}, append(os.Environ(), "CORPUS_OUTSIDE=1")
		c.Stdin = strings.NewReader(`{"Attacks":["host-processes/signal"]}`)
		if out, err := c.CombinedOutput(); err != nil || string(out) != "nobody took over\n" {
			t.Errorf("%s: %v %s", arg, err, out)
		}
	}
}

// TestLibraryHasNoAttacker checks that a program which imports package carboy does
// not contain the attacks.
func TestLibraryHasNoAttacker(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/carboy/carboy").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "carboy/internal/bottle\n") || strings.Contains(string(out), "carboy/internal/corpus") {
		t.Errorf("package carboy imports:\n%s", out)
	}
}
