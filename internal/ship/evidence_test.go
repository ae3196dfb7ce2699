package ship

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// TestP4EvidenceRedacted: nothing of a secret is kept of what a service wrote, also where
// only half of it was sent, and what is kept is bounded.
func TestP4EvidenceRedacted(t *testing.T) {
	t.Parallel()
	// As Docker 20.10 tells of a healthcheck.
	health := `{"Status":"unhealthy","FailingStreak":2,"Log":[{"Start":"2026-11-28T18:00:00Z","End":"2026-11-28T18:00:01Z","ExitCode":1,"Output":"connecting with password=hunter2\nrefused\n"},{"Start":"2026-11-28T18:00:01Z","End":"2026-11-28T18:00:02Z","ExitCode":7,"Output":` +
		jsonString(strings.Repeat("x", checkBytes)+"\ntoken: hunt") + `}]}`
	collect := func(health string, log []string) []string {
		var e evidence
		e.add("@log", "before any section")
		e.add("@evidence", "new")
		e.add("@health", health)
		e.add("@health", "{}")
		for _, l := range log {
			e.add("@log", l)
		}
		return e.lines()
	}
	got := collect(health, []string{"starting", "DB_PASSWORD=hunter2", "  at main.go:7", "password: |", "  hunter2", "end\x1b[2J"})
	all := strings.Join(got, "\n")
	for _, want := range []string{"healthcheck: exit 1", "healthcheck: connecting with password=" + secret.Redacted, "healthcheck: refused", "healthcheck: exit 7", "log: starting", "log:   at main.go:7"} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, all)
		}
	}
	if strings.Contains(all, "hunt") || strings.Contains(all, "\x1b") || strings.Contains(all, "before any") {
		t.Errorf("a secret, or an order to a terminal, is kept:\n%s", all)
	}
	// A log that was cut in its first line, and in a private key.
	long := append([]string{"hunter2"}, slices.Repeat([]string{strings.Repeat("y", 10<<10)}, 26)...)
	if got := collect("", long); len(got) == 0 || strings.Contains(got[0], "hunter2") {
		t.Errorf("of a line that was cut: %.100q", got)
	}
	got = collect("", []string{"b3BlbnNzaC1rZXkt", "aHVudGVyMg==", "-----END OPENSSH PRIVATE KEY-----", "after"})
	if want := []string{"log: " + secret.Redacted, "log: " + secret.Redacted, "log: " + secret.Redacted, "log: after"}; !slices.Equal(got, want) {
		t.Errorf("of a key whose beginning was not sent: %q", got)
	}
	var many []string
	for i := range 2 * sentLines {
		many = append(many, fmt.Sprint("line ", i))
	}
	if got := collect("", many); len(got) != keptLines || got[len(got)-1] != fmt.Sprint("log: line ", sentLines-1) {
		t.Errorf("%d lines, the last %q", len(got), got[len(got)-1])
	}
	size := 0
	for _, l := range collect("", slices.Repeat([]string{strings.Repeat("z", 1900)}, 100)) {
		size += len(l)
	}
	if size == 0 || size > keptBytes {
		t.Errorf("%d bytes are kept", size)
	}
	for _, bad := range []string{"", "{", "[]", "null", `{"Log":null}`} {
		if got := collect(bad, nil); len(got) != 0 {
			t.Errorf("health %q: %q", bad, got)
		}
	}
}

func jsonString(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// TestEvidenceOfCommand: without a container, the output of the command that failed is
// kept, and not what was written before or while going back.
func TestEvidenceOfCommand(t *testing.T) {
	t.Parallel()
	var e evidence
	e.step("run")
	e.output("an earlier command")
	e.step("run")
	for i := range keptLines + 5 {
		e.output(fmt.Sprint("pulling ", i))
	}
	e.output("manifest unknown")
	e.step("back")
	e.step("run")
	e.output("going back")
	got := e.lines()
	if len(got) != keptLines || got[0] != "docker compose: pulling 6" || got[len(got)-1] != "docker compose: manifest unknown" {
		t.Errorf("%d lines, from %q to %q", len(got), got[0], got[len(got)-1])
	}
	e.add("@evidence", "new")
	e.add("@log", "why")
	e.add("@evidence", "previous")
	e.add("@log", "why too")
	e.add("@evidence", "new")
	if got := e.lines(); !slices.Equal(got, []string{"log: why", "previous version, log: why too"}) {
		t.Errorf("%q", got)
	}
}

// TestEvidence: why a service was not healthy, or was not pulled, is in the result and in
// the record, and not on the host.
func TestEvidence(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	m, a := w.lairPlan()
	ill := `case "$*" in
*StartedAt*) echo running unhealthy 0 now; exit ;;
*'json $v'*) printf '{"Log":[{"ExitCode":1,"Output":"no such table, password=hunter2\\n"}]}\n'; exit ;;
logs*) echo 'panic: no such table'; printf 'DB_TOKEN=hunter2' >&2; exit ;;
*" rm "*) rm -f $0.up; exit ;;
esac
`
	w.host.Program(t, "docker", ill+fakeDocker(m))
	r, err := w.e.Apply(w.ctx(), [][]byte{m.Bytes}, []approval.Signed{a})
	if outcomeOf(r, err) != RolledBack || r[0].Why != "its healthcheck fails" {
		t.Fatalf("%+v %v", r, err)
	}
	want := []string{"healthcheck: exit 1", "healthcheck: no such table, password=" + secret.Redacted, "log: panic: no such table", "log: DB_TOKEN=" + secret.Redacted}
	if got := slices.Sorted(slices.Values(r[0].Evidence)); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("the result says %q, want %q", got, want)
	}
	if h := w.history("web"); !slices.Equal(h[0].Evidence, r[0].Evidence) {
		t.Errorf("the record says %q", h[0].Evidence)
	}
	found := 0
	filepath.WalkDir(w.host.Home+"/.local", func(name string, d os.DirEntry, err error) error {
		if b := mayRead(name); strings.Contains(string(b), "no such table") || strings.Contains(string(b), "hunter2") {
			t.Errorf("%s on the host holds what the service wrote", name)
		}
		found++
		return nil
	})
	if found < 5 {
		t.Errorf("only %d files are there", found)
	}
	// What could not be pulled.
	w.host.Program(t, "docker", `case "$*" in *" up "*) echo 'Image app Pulling'; echo 'Error response from daemon: manifest unknown, token=hunter2' >&2; exit 1 ;; esac
`+fakeDocker(m))
	m = (&paper{world: w}).draw(func(d *plan.Plan) { d.By = "somebody else" })
	r, err = w.e.Apply(w.ctx(), [][]byte{m.Bytes}, []approval.Signed{w.approve("alice", false, m)})
	if outcomeOf(r, err) != Failed || !slices.Equal(r[0].Evidence, []string{"docker compose: Image app Pulling", "docker compose: Error response from daemon: manifest unknown, token=" + secret.Redacted}) {
		t.Errorf("what could not be pulled: %+v %v", r, err)
	}
}

// TestDockerAway: a Docker that does not answer while a service is watched is waited for,
// and is never taken for a container that is gone.
func TestDockerAway(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		text   string // before the fake Docker
		health int
		want   Outcome
		why    string
	}{
		"for a while": {`case "$*" in *StartedAt*) echo >>$0.looks
	case $(wc -l <$0.looks) in 1) ;; [2-5]) touch $0.down ;; *) rm -f $0.down; echo running healthy 0 later; exit ;; esac ;; esac
[ ! -e $0.down ] || { echo Cannot connect to the Docker daemon >&2; exit 1; }`, 10, Applied, "healthy"},
		"for good": {`case "$*" in *StartedAt*) touch $0.down ;; esac
[ ! -e $0.down ] || { echo Cannot connect to the Docker daemon >&2; exit 1; }`, 2, RollbackFailed, "docker does not answer"},
		"and the service too": {`case "$*" in *StartedAt*) rm -f $0.up; exit 1 ;; esac`, 2, RolledBack, "the container is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newHut(t)
			w.repo.Write(t, "modules/web/module.yaml", strings.Replace(shiptest.Module("web", w.host.Root+"/web", "one"), "health_timeout: 60s", fmt.Sprintf("health_timeout: %ds", x.health), 1))
			w.repo.Commit(t)
			p := &paper{world: w}
			m := p.draw(func(d *plan.Plan) { d.Target.Health = x.health })
			w.e.Up, w.e.Other = 3*time.Second, 3*time.Second
			w.host.Program(t, "docker", x.text+"\n"+fakeDocker(m))
			r, err := w.e.Apply(w.ctx(), [][]byte{m.Bytes}, []approval.Signed{w.approve("alice", false, m)})
			if outcomeOf(r, err) != x.want || r[0].Why != x.why {
				t.Errorf("%+v %v, want %s: %s", r, err, x.want, x.why)
			}
			said := false
			for _, p := range w.said {
				said = said || p.Step == "health" && strings.Contains(p.Text, "docker does not answer")
			}
			if said != (name != "and the service too") {
				t.Errorf("that Docker does not answer was told: %v", said)
			}
		})
	}
}
