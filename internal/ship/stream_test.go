package ship

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
)

var someContainer = strings.Repeat("c", 64)

// fakeDocker is a Docker of which one container is told, once it is there: as a plan of
// [paper.draw] wants it. Each part of it can be put before by a test.
func fakeDocker(m Made) string {
	return `case "$*" in
ps*) [ ! -e $0.up ] || echo ` + someContainer + ` ;;
"image inspect"*) echo ` + someImage + ` ;;
*version*) echo 5.5.1 ;;
*--hash*) echo web ` + m.Target.ConfigHash + ` ;;
*" up "*) : >$0.up ;;
*config-hash*) echo container ` + someContainer + ` ` + someImage + ` ` + m.Target.ConfigHash + ` running healthy 0 ;;
*StartedAt*) echo running healthy 0 now ;;
esac`
}

// TestP4Streams: what compose writes is told while it runs, line by line, and no part of a
// secret before it is known as one. What it ran is on record, and in the audit log.
func TestP4Streams(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	dir := w.audited()
	m, a := w.lairPlan()
	heard := w.host.Dir + "/heard."
	// It goes on only when what it wrote was told.
	w.host.Program(t, "docker", `await() { until [ -e `+heard+`$1 ]; do sleep 0.02; done; }
case "$*" in *" up "*)
	echo 'layer one'; await one
	printf 'password=hunt'; sleep 0.2; printf 'er2hunter2\ncolour=bl' >&2; sleep 0.2
	printf 'ue\nlayer '; sleep 0.2; echo two; await two
	echo '-----BEGIN RSA PRIVATE KEY-----'; sleep 0.1; echo 'hunter2inkey'; echo '-----END RSA PRIVATE KEY-----'
	echo 'token:'; sleep 0.1; echo '  hunter2below'
	echo '@result applied by itself'; printf '@step of itself\nlayer three' ;; esac
`+fakeDocker(m))
	w.hook = func(p Progress) {
		if _, n, ok := strings.Cut(p.Text, "layer "); ok && p.Step == "" {
			os.WriteFile(heard+n, nil, 0o600)
		}
	}
	w.e.Up = time.Minute
	if o, err := w.apply(m, a); o != Applied {
		t.Fatalf("%s %v", o, err)
	}
	var said strings.Builder
	for _, p := range w.said {
		said.WriteString(p.Step + "|" + p.Text + "\n")
	}
	for _, want := range []string{"|layer one\n", "|colour=blue\n", "|password=" + secret.Redacted + "\n", "|layer two\n", "|layer three\n", "|@result applied by itself\n", "|@step of itself\n", "run|" + w.host.Home + "/.docker/cli-plugins/docker-compose compose --ansi"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q was not told:\n%s", want, said.String())
		}
	}
	if strings.Contains(said.String(), "hunt") || strings.Contains(said.String(), "er2") {
		t.Errorf("a secret was told:\n%s", said.String())
	}
	// The same arguments as what ran.
	const ran = " compose --ansi never --progress plain -p web --project-directory "
	h := w.history("web")
	if text := strings.Join(h[0].Steps, "\n"); !strings.Contains(text, " run "+w.host.Home+"/.docker/cli-plugins/docker-compose"+ran) || !strings.Contains(text, " -f - up -d --no-build --no-deps") {
		t.Errorf("the record says it ran:\n%s", text)
	}
	if text := readFile(t, dir+"/log"); !strings.Contains(text, `"ship.step"`) || !strings.Contains(text, "docker-compose"+ran) {
		t.Errorf("the log has no command:\n%s", text)
	}
}

// TestP4CommandRedacted: a command is redacted like its output, whoever says that it ran.
func TestP4CommandRedacted(t *testing.T) {
	t.Parallel()
	w := newLair(t, "echo '@step run docker compose --password hunter2 -e TOKEN=hunter2'; echo '| -----BEGIN RSA PRIVATE KEY-----'; echo '@step plain word'; echo '@result applied healthy'")
	dir := w.audited()
	m, a := w.lairPlan()
	if o, err := w.apply(m, a); o != Applied {
		t.Fatalf("%s %v", o, err)
	}
	text := readFile(t, dir+"/log")
	said := ""
	for _, p := range w.said {
		said += p.Step + " " + p.Text + "\n"
	}
	if strings.Contains(text+said, "hunter2") || !strings.Contains(text, "docker compose --password") || !strings.Contains(said, "plain word") {
		t.Errorf("the log:\n%s\ntold:\n%s", text, said)
	}
}

// TestStableFor: a service without a healthcheck is watched for all of stable_for, counted
// from the end of up, however long that took.
func TestStableFor(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	m, a := w.lairPlan()
	looks := w.host.Dir + "/looks"
	w.host.Program(t, "docker", `clock() { read -r now rest </proc/uptime; echo $1 $now >>`+looks+`; }
case "$*" in
*" up "*) sleep 1.5; clock up ;;
*StartedAt*) clock look; echo running none 0 now; exit ;;
*config-hash*) echo container `+someContainer+` `+someImage+` `+m.Target.ConfigHash+` running none 0; exit ;;
esac
`+fakeDocker(m))
	if o, err := w.apply(m, a); o != Applied {
		t.Fatalf("%s %v", o, err)
	}
	var up, last float64
	for l := range strings.Lines(readFile(t, looks)) {
		what, at, _ := strings.Cut(strings.TrimSpace(l), " ")
		f, err := strconv.ParseFloat(at, 64)
		if err != nil {
			t.Fatal(err)
		}
		if last = f; what == "up" {
			up = f
		}
	}
	if last-up < float64(m.Target.StableFor) {
		t.Errorf("watched for %.2f s after up, want %d:\n%s", last-up, m.Target.StableFor, readFile(t, looks))
	}
}

// TestP4Pruned: a host forgets old jobs, and none that is not over, in force, or whose plan
// could still be good.
func TestP4Pruned(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	now := time.Now().Unix()
	put := func(n int, result string) string {
		dir := jobs + strconv.Itoa(100000+n) + "-" + strings.Repeat("0", 60) + strconv.Itoa(1000+n)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if result != "" {
			if err := os.WriteFile(dir+"/result", []byte(result), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	old := strconv.FormatInt(now-40*24*3600, 10)
	stay := map[string]string{
		"in force":                     put(1, "applied "+old+" healthy\n"),
		"of a plan that could be good": put(2, "failed "+strconv.FormatInt(now-30*24*3600, 10)+" x\n"),
		"of a time that is none":       put(3, "failed 08x x\n"),
		"of the future":                put(4, "failed "+strconv.FormatInt(now+1e6, 10)+" x\n"),
	}
	for i := range 55 {
		put(10+i, "failed "+old+" x\n")
	}
	stay["newest"] = put(90, "failed "+old+" x\n")
	current := filepath.Base(stay["in force"])
	m := (&paper{world: w}).draw(func(d *plan.Plan) {
		d.Seen.Text = strings.Replace(d.Seen.Text, "current -", "current "+current, 1)
		d.Seen.SHA256 = plan.Digest([]byte(d.Seen.Text))
	})
	a := w.approve("alice", false, m)
	w.host.Program(t, "docker", `case "$*" in *" up "*) exit 1 ;; esac
`+fakeDocker(m))
	if o, err := w.apply(m, a); o != Failed {
		t.Fatalf("%s %v", o, err)
	}
	if left := len(w.jobs()); left != keptJobs+4 {
		t.Errorf("%d jobs are left, want %d", left, keptJobs+4)
	}
	for name, dir := range stay {
		if _, err := os.Stat(dir + "/result"); err != nil {
			t.Errorf("a job %s is gone", name)
		}
	}
	// Half a job that was to go is none that was interrupted.
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(jobs))+"/gone/f", 0o700); err != nil {
		t.Fatal(err)
	}
	if st, err := w.e.Status(w.ctx(), "web"); err != nil || st[0].Settled != nil {
		t.Errorf("%+v %v", st, err)
	}
	if o, _ := w.apply(m, a); o != Mismatch {
		t.Errorf("the same plan again: %s", o)
	}
}

// TestP4Newer: a host whose jobs another carboy wrote is left alone.
func TestP4Newer(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	m, a := w.lairPlan()
	w.host.Program(t, "docker", fakeDocker(m))
	dir := jobs + "100001-" + strings.Repeat("0", 64)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for schema, newer := range map[string]bool{"carboy.dev/ship-job/v2\n": true, "": true, "carboy.dev/ship-job/v1\n": false} {
		for name, text := range map[string]string{"schema": schema, "result": "failed 1700000000 x\n"} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !newer {
			break
		}
		o, err := w.apply(m, a)
		if o != Failed || !strings.Contains(err.Error(), "another carboy") {
			t.Errorf("a job of %q: %s %v", schema, o, err)
		}
		if st, err := w.e.Status(w.ctx(), "web"); err != nil || !strings.Contains(st[0].Error, "another carboy") {
			t.Errorf("a job of %q: %+v %v", schema, st, err)
		}
	}
	os.WriteFile(dir+"/schema", []byte("carboy.dev/ship-job/v1\n"), 0o600)
	if o, err := w.apply(m, a); o != Applied {
		t.Errorf("a job of ours: %s %v", o, err)
	}
	if got := readFile(t, w.jobs()[1]+"/schema"); got != "carboy.dev/ship-job/v1\n" {
		t.Errorf("a new job is of %q", got)
	}
}

// TestNewerRecords: a record here that a later carboy wrote is told, and nothing is said of
// what was applied last without it.
func TestNewerRecords(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	m, _ := w.lairPlan()
	if err := w.e.writeRecord("one", "web", &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: Applied, Began: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if r, err := w.e.lastApplied("one", "web"); r == nil || err != nil {
		t.Fatal(r, err)
	}
	file := w.e.recordFile("one", "web", m.Digest)
	text := readFile(t, file)
	if err := os.WriteFile(filepath.Dir(file)+"/"+strings.Repeat("0", 64)+".json", []byte(strings.Replace(text, "/v1", "/v2", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.e.lastApplied("one", "web"); err == nil || !strings.Contains(err.Error(), "/v2") {
		t.Errorf("what was applied last: %v", err)
	}
	_, problems, err := w.e.History(w.ctx(), "web")
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), "/v2") {
		t.Errorf("history: %v %v", problems, err)
	}
}

// TestSentStays: what was sent, and may still arrive, stays on record until the host has
// gone on, whatever any clock says.
func TestSentStays(t *testing.T) {
	t.Parallel()
	w, _ := newHut(t)
	m, _ := w.lairPlan()
	w.host.Program(t, "docker", fakeDocker(m))
	sent := &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: Sent, Began: time.Now().Add(-100 * time.Hour)}
	if err := w.e.writeRecord("one", "web", sent); err != nil {
		t.Fatal(err)
	}
	w.status("web")
	if _, err := w.e.readRecord("one", "web", m.Digest); err != nil {
		t.Errorf("it may still arrive: %v", err)
	}
	next := (&paper{world: w}).draw(func(d *plan.Plan) { d.By = "somebody else" })
	if o, err := w.apply(next, w.approve("alice", false, next)); o != Applied {
		t.Fatal(o, err)
	}
	w.status("web")
	if r, err := w.e.readRecord("one", "web", m.Digest); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it cannot come any more: %+v %v", r, err)
	}
}
