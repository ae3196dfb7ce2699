package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// TestP1Waves: no wave is applied before those before it, and an approval is of the host
// whose plan it names.
func TestP1Waves(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	two := strings.Replace(strings.TrimPrefix(p.entry, "hosts:\n"), "  one:", "  two:", 1)
	p.op.Write(t, "hosts.yaml", p.entry+two)
	p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/srv/web", "one", "two"))
	p.repo.Commit(t)
	first := p.draw(nil)
	second := p.draw(func(d *plan.Plan) { d.Host.Name, d.Wave = "two", 2 })
	p.refused("the second wave alone", Refused, [][]byte{second.Bytes}, p.approve("alice", false, second))
	p.refused("both, by an approval of one", Mismatch, [][]byte{first.Bytes, second.Bytes}, p.approve("alice", false, first))
	p.refused("the second as the first", Mismatch, [][]byte{p.draw(func(d *plan.Plan) { d.Host.Name = "two" }).Bytes}, p.approve("alice", false, first))
	record := func(o Outcome, m Made) {
		t.Helper()
		if err := p.e.writeRecord("one", "web", &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: o, Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	record(RolledBack, first)
	p.refused("the second wave after a first that was not healthy", Refused, [][]byte{second.Bytes}, p.approve("alice", false, second))
	record(Applied, p.draw(func(d *plan.Plan) { d.Commit = strings.Repeat("0", 40) }))
	p.refused("the second wave after a first of another commit", Refused, [][]byte{second.Bytes}, p.approve("alice", false, second))
	record(Applied, p.draw(func(d *plan.Plan) { d.By = "somebody else" }))
	p.reaches("the second wave in its turn", second, p.approve("alice", false, second))
}

// TestP1LaterWaves: what was allowed and approved when an apply began is asked again
// before each later wave.
func TestP1LaterWaves(t *testing.T) {
	t.Parallel()
	w := newLair(t, "echo '@step watch'; echo '@result applied healthy'")
	second := shiptest.NewHost(t, "two", nil)
	w.op.Add(t, second)
	second.Program(t, "sh", "echo '@result applied healthy'")
	hosts := strings.ReplaceAll(readFile(t, w.op.Config+"/hosts.yaml"), second.Root, w.host.Root)
	signers := readFile(t, w.op.Config+"/allowed_signers")
	w.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", w.host.Root+"/web", "one", "two"))
	w.repo.Commit(t)
	p := &paper{world: w}
	for name, x := range map[string]struct {
		during func()
		want   Outcome
	}{
		"nothing":         {func() {}, Applied},
		"the host":        {func() { w.op.Write(t, "hosts.yaml", strings.ReplaceAll(hosts, "apply: true", "apply: false")) }, Refused},
		"the host's port": {func() { w.op.Write(t, "hosts.yaml", strings.Replace(hosts, fmt.Sprint(second.Port), "9", 1)) }, Stale},
		"who may sign":    {func() { w.op.Write(t, "allowed_signers", strings.ReplaceAll(signers, "alice", "carol")) }, Mismatch},
	} {
		w.op.Write(t, "hosts.yaml", hosts)
		w.op.Write(t, "allowed_signers", signers)
		by := func(d *plan.Plan) { d.By = name }
		first := p.draw(by)
		later := p.draw(func(d *plan.Plan) {
			by(d)
			_, h, err := w.e.host("two")
			if err != nil {
				t.Fatal(err)
			}
			d.Wave, d.Host = 2, plan.Host{Name: "two", Address: h.Address, Port: h.Port, User: h.User, Keys: h.Fingerprints()}
		})
		w.at("watch", x.during)
		r, err := w.e.Apply(w.ctx(), [][]byte{first.Bytes, later.Bytes}, []approval.Signed{w.approve("alice", false, first, later)})
		n := 1
		if x.want == Applied {
			n = 2
		}
		if outcomeOf(r, err) != x.want || len(r) != n || r[0].Outcome != Applied {
			t.Errorf("%s, changed during the first wave: %+v %v, want %s", name, r, err, x.want)
		}
	}
}

// TestP1PlanBack: a plan goes back only to a state that apply would accept, and there is
// no such plan if the service runs in another root.
func TestP1PlanBack(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	old := shiptest.Compose("web", "v1", "ok")
	made := func(hash, image string, change func(*plan.Plan)) (Made, error) {
		last := p.draw(func(d *plan.Plan) {
			d.Target.ImageID = image
			if change != nil {
				change(d)
			}
		})
		l := &hostState{hash: strings.Repeat("3", 64), version: "5", job: "100001-" + last.Digest, last: last.Plan, compose: []byte(old)}
		l.text = "carboy-observed 1\nimage " + someImage + "\n" + container(hash) + "\ncurrent " + l.job + "\n"
		var err error
		if l.obs, err = plan.Observe(l.text); err != nil {
			t.Fatal(err)
		}
		if err := p.e.writeRecord("one", "web", &record{Digest: last.Digest, Plan: last.Bytes, Approvals: []approval.Signed{}, Outcome: Applied, Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
		_, h, err := p.e.host("one")
		if err != nil {
			t.Fatal(err)
		}
		commit, _, err := p.e.head(p.ctx())
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.source(commit)
		if err != nil {
			t.Fatal(err)
		}
		m := Made{Plan: &plan.Plan{Schema: plan.Schema, Kind: plan.Apply, Module: "web", Wave: 1, Commit: commit, Clean: true, By: "tests"}}
		return m, p.e.finishPlan(p.ctx(), nil, h, s, l, &m)
	}
	const other = "sha256:6666666666666666666666666666666666666666666666666666666666666666"
	for _, x := range []struct {
		name, hash, image string
		change            func(*plan.Plan)
		state, back       string
	}{
		{"as it was applied", "2", someImage, nil, plan.PreviousKnown, someImage},
		{"drifted", "4", other, nil, plan.PreviousKnown, other},
		{"drifted from what was pulled", "4", "-", func(d *plan.Plan) { d.Target.Image = "app@" + someImage }, plan.PreviousUnknown, ""},
		{"of a commit that is gone", "2", someImage, func(d *plan.Plan) { d.Commit = strings.Repeat("0", 40) }, plan.PreviousUnknown, ""},
	} {
		m, err := made(x.hash, x.image, x.change)
		if err != nil || m.Previous.State != x.state || m.Previous.ImageID != x.back || m.Destructive() != (x.state == plan.PreviousUnknown) {
			t.Errorf("%s: %+v %v", x.name, m.Previous, err)
			continue
		}
		p.reaches(x.name, m, p.approve("alice", true, m))
	}
	if m, err := made("2", someImage, func(d *plan.Plan) { d.Target.Root = "/srv/old" }); outcomeOf(nil, err) != Refused || !strings.Contains(err.Error(), "/srv/old") {
		t.Errorf("in another root: %+v %v", m.Previous, err)
	}
}

// TestExecutable: a file that becomes executable, or ceases to be, is a change.
func TestExecutable(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.repo.Write(t, "modules/web/files/run", "x")
	before := p.repo.Commit(t)
	if err := os.Chmod(p.repo.Dir+"/modules/web/files/run", 0o755); err != nil {
		t.Fatal(err)
	}
	p.repo.Commit(t)
	for name, was := range map[string]string{"from a file": before, "from itself": ""} {
		see := func(hide bool) Made {
			return p.draw(func(d *plan.Plan) {
				d.Previous = plan.Previous{State: plan.PreviousKnown, Job: someJob, Commit: was, Compose: shiptest.Compose("web", "v1", "ok"), Image: "app:v1", ImageID: someImage, Ran: true}
				if was == "" {
					d.Previous.Commit = d.Commit
				}
				p.see(d, container("2"), "file "+plan.Digest([]byte("x"))+" run", "current "+someJob)
				if hide {
					d.Changes = []plan.Change{}
				}
			})
		}
		m := see(false)
		if changed := len(m.Changes) == 2 && m.Changes[0].What == "file.run" && m.Action() == plan.Recreate; changed != (was != "") {
			t.Errorf("%s: %+v", name, m.Changes)
		}
		p.reaches(name, m, p.approve("alice", false, m))
		if was != "" {
			p.refused(name+", hidden", Mismatch, [][]byte{see(true).Bytes})
		}
	}
	if s, err := p.e.load(p.ctx(), "web", before); err != nil || s.files()[0].Exec {
		t.Errorf("the file of before is a program: %+v %v", s, err)
	}
}

// TestP2Ailing: a result of nothing to do also says if what runs is unhealthy.
func TestP2Ailing(t *testing.T) {
	t.Parallel()
	w := newLair(t, "echo '@result nothing'")
	p := &paper{world: w}
	for health, ailing := range map[string]bool{"healthy": false, "none": false, "unhealthy": true} {
		m := p.draw(func(d *plan.Plan) {
			d.Previous = plan.Previous{State: plan.PreviousKnown, Commit: d.Commit, Compose: shiptest.Compose("web", "v1", "ok"), Image: "app:v1", ImageID: someImage, Ran: !ailing}
			p.see(d, strings.Replace(container("2"), "none", health, 1), "current -")
		})
		r, err := w.e.Apply(w.ctx(), [][]byte{m.Bytes}, nil)
		if outcomeOf(r, err) != Nothing || (r[0].Why != "") != ailing || (m.Ailing() != "") != ailing {
			t.Errorf("%s: %+v %v, %q", health, r, err, m.Ailing())
		}
	}
}

// TestP1Records: what stands in the place of a record is not taken for none.
func TestP1Records(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	a := p.approve("alice", false, m)
	other := p.draw(func(d *plan.Plan) { d.By = "somebody else" })
	file := p.e.recordFile("one", "web", m.Digest)
	if err := p.e.writeRecord("one", "web", &record{Digest: other.Digest, Plan: other.Bytes, Approvals: []approval.Signed{}, Outcome: Sent, Began: time.Now()}); err != nil {
		t.Fatal(err)
	}
	text := readFile(t, p.e.recordFile("one", "web", other.Digest))
	for name, bad := range map[string]string{"another's": text, "renamed": strings.Replace(text, other.Digest, m.Digest, 1), "half": text[:len(text)/2], "nothing": "", "of a later schema": strings.Replace(text, "/v1", "/v9", 1)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		before := p.knocks.Load()
		if _, err := p.e.Apply(p.ctx(), [][]byte{m.Bytes}, []approval.Signed{a}); err == nil || p.knocks.Load() != before {
			t.Errorf("a record that is %s: %v, and the host was connected to", name, err)
		}
	}
	os.Remove(file)
	if err := os.Symlink(p.e.recordFile("one", "web", other.Digest), file); err != nil {
		t.Fatal(err)
	}
	p.refused("a link for a record", "", [][]byte{m.Bytes}, a)
	os.Remove(file)
	p.reaches("without a record", m, a)
}

// TestP1Clocks: clocks that are wrong make nothing older or younger than it may be.
func TestP1Clocks(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	later := func(d time.Duration) Made {
		return p.draw(func(x *plan.Plan) { x.Created, x.Expires = x.Created.Add(d), x.Expires.Add(d) })
	}
	m := later(time.Hour)
	p.refused("a plan of the future", Mismatch, [][]byte{m.Bytes}, p.approve("alice", false, m))
	m = later(-59 * time.Minute)
	p.reaches("an old plan that is good still", m, p.approve("alice", false, m))
	m = later(-61 * time.Minute)
	p.refused("one that is not", Stale, [][]byte{m.Bytes}, p.approve("alice", false, m))
	d := *p.draw(nil).Plan
	d.Expires = d.Created.Add(plan.MaxLife + time.Second)
	if _, err := d.Encode(); err == nil {
		t.Error("a plan that is good for ever")
	}
}

// see has a plan see other lines on the host, and say what follows from them.
func (p *paper) see(d *plan.Plan, lines ...string) {
	p.t.Helper()
	text := "carboy-observed 1\nimage " + d.Target.ImageID + "\n" + strings.Join(lines, "\n") + "\n"
	obs, err := plan.Observe(text)
	if err != nil {
		p.t.Fatal(err)
	}
	s, err := p.source(d.Commit)
	if err != nil {
		p.t.Fatal(err)
	}
	old, err := p.source(d.Previous.Commit)
	if err != nil || d.Previous.State != plan.PreviousKnown {
		old = nil
	}
	d.Seen = plan.Seen{Text: text, SHA256: plan.Digest([]byte(text))}
	d.Changes = changes(d, obs, s.module, old.files())
}

// container is a line for one that runs, with the configuration that a digit stands for.
func container(hash string) string {
	return "container " + strings.Repeat("c", 64) + " " + someImage + " " + strings.Repeat(hash, 64) + " running none 0"
}

// someJob names the job in force on the host.
var someJob = "100001-" + strings.Repeat("5", 64)

// TestP3Reach: a service that runs cannot write where the next one's files and mounts go.
func TestP3Reach(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	for volumes, ok := range map[string]bool{"['./other:/x']": true, "['./conf:/x:ro', './data/sub:/y']": true, "['./conf:/x']": false, "['./conf/a:/x']": false, "['./data:/y']": false, "['.:/z']": false} {
		old := shiptest.Compose("web", "v2", "ok") + "    volumes: " + volumes + "\n"
		os.RemoveAll(p.repo.Dir + "/modules/web/files")
		p.repo.Write(t, "modules/web/compose.yaml", old)
		before := p.repo.Commit(t)
		p.repo.Write(t, "modules/web/files/conf/a", "x")
		p.repo.Write(t, "modules/web/compose.yaml", shiptest.Compose("web", "v1", "ok")+"    volumes: ['./data/sub:/data']\n")
		p.repo.Commit(t)
		m := p.draw(func(d *plan.Plan) {
			d.Previous = plan.Previous{State: plan.PreviousKnown, Job: someJob, Commit: before, Compose: old, Image: "app:v2", ImageID: someImage, Ran: true}
			d.Target.Binds = []string{"/srv/web/data/sub"}
			p.see(d, container("3"), "file - conf/a", "current "+someJob)
		})
		if a := p.approve("alice", false, m); ok {
			p.reaches("beside "+volumes, m, a)
		} else {
			p.refused("amid "+volumes, Refused, [][]byte{m.Bytes}, a)
		}
	}
	// Of what runs and is not known, nothing is known of where it writes.
	for name, ok := range map[string]bool{"files": false, "binds": false, "neither": true} {
		os.RemoveAll(p.repo.Dir + "/modules/web/files")
		text := shiptest.Compose("web", "v1", "ok")
		var binds, lines []string
		switch name {
		case "files":
			p.repo.Write(t, "modules/web/files/conf/a", "x")
			lines = []string{"file - conf/a"}
		case "binds":
			text += "    volumes: ['./data/sub:/data']\n"
			binds = []string{"/srv/web/data/sub"}
		}
		p.repo.Write(t, "modules/web/compose.yaml", text)
		p.repo.Commit(t)
		m := p.draw(func(d *plan.Plan) {
			d.Previous = plan.Previous{State: plan.PreviousUnknown}
			d.Target.Binds = append([]string{}, binds...)
			p.see(d, append(append([]string{container("3")}, lines...), "current -")...)
		})
		if a := p.approve("alice", true, m); ok {
			p.reaches("beside what is not known, "+name, m, a)
		} else {
			p.refused("beside what is not known, "+name, Refused, [][]byte{m.Bytes}, a)
		}
	}
}

// TestBackFile: what going back may run is the file of before but for its image, in the
// bytes that the host gets.
func TestBackFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		shiptest.Compose("web", "v1", "checked"),
		"# a file\nservices:\n  other: {image: app:v1}\n  \"web\":   # ours\n    command: [\"on\", 'yes', \"012\", \"1e3\", '~', \"a: b\", \"$$x\", \"- c\", \"\", \"tab\\there\", 'it''s']\n    image:\n      'app:v1'\n    volumes: ['./a:/b:ro', 'data:/c']\n    environment:\n      ON: \"null\"\n      LONG: >-\n        one\n        two\n\n        three\n      TEXT: |+\n        x\n\n\n    user: \"1000:1000\"\nvolumes: {data: {}}\n",
	} {
		p := &plan.Plan{Target: plan.Target{Service: "web", Root: "/srv/web"}, Previous: plan.Previous{Compose: text, ImageID: someImage}}
		b, err := backFile(p)
		if err != nil {
			t.Errorf("%s\n%v", text, err)
			continue
		}
		var was, is map[string]any
		if err := errors.Join(yaml.Unmarshal([]byte(text), &was), yaml.Unmarshal(b, &is)); err != nil {
			t.Fatal(err)
		}
		was["services"].(map[string]any)["web"].(map[string]any)["image"] = someImage
		if !reflect.DeepEqual(was, is) {
			t.Errorf("it reads\n%v, want\n%v", is, was)
		}
		c, err := module.ParseCompose("back.yaml", "web", "/srv/web", b)
		if err != nil || c.Image != someImage {
			t.Errorf("the very bytes: %+v %v", c, err)
		}
	}
	for name, text := range map[string]string{
		"what is refused":     "services: {web: {image: app:v1, privileged: true}}\n",
		"an alias":            "services: {web: {image: &i app:v1, environment: {X: *i}}}\n",
		"an image of no name": "services: {web: {image: [app:v1]}}\n",
	} {
		if b, err := backFile(&plan.Plan{Target: plan.Target{Service: "web", Root: "/srv/web"}, Previous: plan.Previous{Compose: text, ImageID: someImage}}); err == nil {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// lockWaited blocks until a process waits for the lock of f.
func lockWaited(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	inode := fmt.Sprintf(":%d ", fi.Sys().(*syscall.Stat_t).Ino)
	for end := time.Now().Add(testenv.Patience(time.Minute)); time.Now().Before(end); time.Sleep(time.Millisecond) {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			return err
		}
		for l := range strings.Lines(string(locks)) {
			if strings.Contains(l, "-> FLOCK") && strings.Contains(l, inode) {
				return nil
			}
		}
	}
	return errors.New("nobody waits for the lock")
}

// TestP2Lookers: who looks keeps nobody from looking, and an apply waits until they have
// looked; for who applies it does not wait long.
func TestP2Lookers(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	m, a := w.lairPlan()
	w.host.Program(t, "docker", fakeDocker(m))
	if err := os.MkdirAll(jobs, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Dir(filepath.Clean(jobs)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	hold := func(how int) {
		if err := syscall.Flock(int(f.Fd()), how); err != nil {
			t.Fatal(err)
		}
	}
	hold(syscall.LOCK_SH)
	if st, err := w.e.Status(w.ctx(), "web"); err != nil || st[0].Busy != "" || st[0].Error != "" {
		t.Errorf("somebody looks: %+v %v", st, err)
	}
	// Let go of when it is waited for.
	waits := w.host.Dir + "/waits"
	if err := syscall.Mkfifo(waits, 0o600); err != nil {
		t.Fatal(err)
	}
	w.before("flock", "echo >"+waits)
	let := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(waits)
		let <- errors.Join(err, lockWaited(f), syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
	}()
	if o, err := w.apply(m, a); o != Applied {
		t.Errorf("while somebody looks: %s %v", o, err)
	}
	if err := <-let; err != nil {
		t.Fatal(err)
	}
	os.Remove(w.host.Dir + "/bin/flock")
	hold(syscall.LOCK_EX)
	if st, err := w.e.Status(w.ctx(), "web"); err != nil || !strings.Contains(st[0].Error, "an apply is going on") {
		t.Errorf("somebody applies: %+v %v", st, err)
	}
	m = (&paper{world: w}).draw(func(d *plan.Plan) { d.By = "somebody else" })
	if o, err := w.apply(m, w.approve("alice", false, m)); o != Locked {
		t.Errorf("while somebody applies: %s %v", o, err)
	}
}

// TestP1Previous: what a plan goes back to is what was seen to run, by a commit, and
// nothing that who wrote the plan would rather have there.
func TestP1Previous(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.op.Write(t, "hosts.yaml", p.entry+"    undo_without_approval: true\n")
	other := shiptest.Compose("web", "v0", "ok") + "    command: [/other]\n"
	p.repo.Write(t, "modules/web/compose.yaml", other)
	elsewhere := p.repo.Commit(t)
	old := shiptest.Compose("web", "v0", "ok")
	p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/srv/old", "one"))
	p.repo.Write(t, "modules/web/compose.yaml", old)
	moved := p.repo.Commit(t)
	p.module("/srv/web")
	p.repo.Write(t, "modules/web/compose.yaml", old)
	before := p.repo.Commit(t)
	p.repo.Write(t, "modules/web/compose.yaml", shiptest.Compose("web", "v1", "ok"))
	p.repo.Commit(t)
	known := plan.Previous{State: plan.PreviousKnown, Job: someJob, Commit: before, Compose: old, Image: "app:v0", ImageID: someImage, Ran: true}
	seen := []string{container("3"), "current " + someJob}
	draft := func(change func(*plan.Plan), seen ...string) Made {
		return p.draw(func(d *plan.Plan) {
			d.Previous = known
			if change != nil {
				change(d)
			}
			p.see(d, seen...)
		})
	}
	refused := func(name string, want Outcome, m Made) {
		t.Helper()
		p.refused(name, want, [][]byte{m.Bytes}, p.approve("alice", true, m))
	}
	good := draft(nil, seen...)
	p.reaches("what runs", good, p.approve("alice", false, good))
	for name, change := range map[string]func(*plan.Previous){
		"a file with another command":    func(v *plan.Previous) { v.Compose = other },
		"a commit with another command":  func(v *plan.Previous) { v.Commit = elsewhere },
		"another root":                   func(v *plan.Previous) { v.Commit = moved },
		"a commit that is not there":     func(v *plan.Previous) { v.Commit = strings.Repeat("0", 40) },
		"another image":                  func(v *plan.Previous) { v.ImageID = "sha256:" + strings.Repeat("6", 64) },
		"another name of an image":       func(v *plan.Previous) { v.Image = "evil:v1" },
		"nothing, while a service runs":  func(v *plan.Previous) { *v = plan.Previous{State: plan.PreviousNone} },
		"something that need not be run": func(v *plan.Previous) { v.Ran = false },
		"a job that is not in force":     func(v *plan.Previous) { v.Job = "100002-" + strings.Repeat("5", 64) },
		"no job":                         func(v *plan.Previous) { v.Job = "" },
	} {
		refused(name, Mismatch, draft(func(d *plan.Plan) { change(&d.Previous) }, seen...))
	}
	refused("a service, while none is there", Mismatch, draft(nil, "current -"))
	refused("one of two", Mismatch, draft(nil, container("3"), container("3"), "current "+someJob))

	// What is on record here decides, of the commit and of the root.
	last := p.draw(func(d *plan.Plan) {
		d.Commit, d.Target.Image, d.Target.ConfigHash, d.Target.ImageID = before, "app:v0", strings.Repeat("4", 64), "sha256:"+strings.Repeat("6", 64)
		d.Previous = plan.Previous{State: plan.PreviousKnown, Commit: d.Commit, Compose: old, Image: "app:v0", ImageID: someImage}
	})
	record := func(m Made) (job string) {
		t.Helper()
		if err := p.e.writeRecord("one", "web", &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{}, Outcome: Applied, Began: time.Now()}); err != nil {
			t.Fatal(err)
		}
		return "100001-" + m.Digest
	}
	job := record(last)
	drifted := func(change func(*plan.Plan)) Made {
		return draft(func(d *plan.Plan) {
			d.Previous.Job, d.Previous.ImageID, d.Previous.Unrecorded = job, last.Target.ImageID, true
			if change != nil {
				change(d)
			}
		}, container("3"), "current "+job)
	}
	good = drifted(nil)
	p.reaches("what was applied, where it drifted", good, p.approve("alice", false, good))
	refused("what drifted, as if it were on record", Mismatch, drifted(func(d *plan.Plan) { d.Previous.Unrecorded = false }))
	refused("what it drifted to", Mismatch, drifted(func(d *plan.Plan) { d.Previous.ImageID = someImage }))
	refused("another commit than on record", Mismatch, drifted(func(d *plan.Plan) { d.Previous.Commit, d.Previous.Compose = elsewhere, other }))
	far := record(p.draw(func(d *plan.Plan) { d.Target.Root = "/srv/old" }))
	for name, v := range map[string]plan.Previous{"known": known, "unknown": {State: plan.PreviousUnknown}} {
		if v.Job != "" {
			v.Job = far
		}
		refused("another root than that of what runs, "+name, Refused, draft(func(d *plan.Plan) { d.Previous = v }, container("3"), "current "+far))
	}

	// Undoing needs no approval, and is held to the same.
	undo := func(change func(*plan.Previous)) Made {
		return draft(func(d *plan.Plan) {
			d.Kind, d.Undoes, d.Commit = plan.Rollback, job, before
			s, err := p.source(before)
			if err != nil {
				t.Fatal(err)
			}
			d.Source, d.Target.Image = s.desc, "app:v0"
			d.Previous.Job, d.Previous.ImageID, d.Previous.Unrecorded = job, last.Target.ImageID, true
			change(&d.Previous)
		}, container("3"), "current "+job)
	}
	p.reaches("undoing", undo(func(*plan.Previous) {}))
	for name, change := range map[string]func(*plan.Previous){
		"a file":   func(v *plan.Previous) { v.Compose = other },
		"nothing":  func(v *plan.Previous) { *v = plan.Previous{State: plan.PreviousNone} },
		"a commit": func(v *plan.Previous) { v.Commit, v.Compose = elsewhere, other },
	} {
		p.refused("undoing, and then "+name, Mismatch, [][]byte{undo(change).Bytes})
	}
}

// TestInitLinks: a repository's links lead nothing of ours elsewhere.
func TestInitLinks(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(p.repo.Dir, "modules", "shop")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.e.Example("shop"); outcomeOf(nil, err) != Refused {
		t.Errorf("through a link: %v", err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("written through a link: %v", left)
	}
}

func TestSupported(t *testing.T) {
	for v, ok := range map[string]bool{"5.5.1": true, "v2.40.3": true, "2.20.0-desktop.1": true, "2.20": true, "2.19.9": false, "v2.2.3": false, "1.29.2": false, "": false, "unknown": false, "2": false, "-3.1": false} {
		if supported(v) != ok {
			t.Errorf("%q: %v", v, !ok)
		}
	}
}

// lair is a host, without Docker, that answers as it likes.
func newLair(t *testing.T, answer string, more ...string) *world {
	t.Helper()
	w := &world{t: t, op: shiptest.NewOperator(t), repo: shiptest.NewRepo(t)}
	w.host = shiptest.NewHost(t, "one", nil)
	w.op.Add(t, w.host, more...)
	w.e = w.engine()
	w.commit("web", "v1", "ok")
	w.host.Program(t, "sh", answer)
	return w
}

// lairPlan is an approved plan for such a host.
func (w *world) lairPlan() (Made, approval.Signed) {
	w.t.Helper()
	p := &paper{world: w}
	m := p.draw(nil)
	return m, w.approve("alice", false, m)
}

// TestP4Lies: a host that answers nonsense, without end or with orders to a terminal is
// told as what it is: a plan is not made, and the outcome of an apply is not known.
func TestP4Lies(t *testing.T) {
	t.Parallel()
	const observed = "Y2FyYm95LW9ic2VydmVkIDEKaW1hZ2UgLQpjdXJyZW50IC0K" // no image, nothing runs
	hash := strings.Repeat("a", 64)
	w := newLair(t, "exit 0")
	w.e.Up, w.e.Other = time.Second, time.Second
	for name, answer := range map[string]string{
		"nothing":             "exit 0",
		"garbage":             "head -c 100000 /dev/urandom",
		"lines without end":   "exec yes '| line'",
		"words without end":   "exec yes '@step applying'",
		"one line for ever":   "tr '\\0' x </dev/zero",
		"its errors":          "yes password=hunter2 | head -c 1000000 >&2; exit 1",
		"a job that is none":  "echo '@compose 5.5.1'; echo '@hash " + hash + "'; echo '@observed " + observed + "'; echo '@unfinished -'; echo '@current ../../../etc/x'",
		"an old compose":      "echo '@compose 2.19.1'; echo '@hash " + hash + "'; echo '@observed " + observed + "'; echo '@unfinished -'",
		"a damaged account":   "echo '@compose 5.5.1'; echo '@hash " + hash + "'; echo '@observed %%%'; echo '@unfinished -'",
		"another's account":   "echo '@compose 5.5.1'; echo '@hash " + hash + "'; echo '@observed aGVsbG8K'; echo '@unfinished -'",
		"orders to terminals": "printf '@refused \\033[2Jpolicy \\033]0;x\\007password=hunter2 \\033[31m\\n'",
	} {
		w.host.Program(t, "sh", answer)
		w.mu.Lock()
		w.said = nil
		w.mu.Unlock()
		_, err := w.e.Plan(w.ctx(), PlanOptions{Module: "web"})
		if err == nil {
			t.Errorf("%s: a plan was made", name)
			continue
		}
		w.mu.Lock()
		said := err.Error()
		for _, p := range w.said {
			said += p.Step + p.Text
		}
		n := len(w.said)
		w.mu.Unlock()
		if strings.ContainsAny(said, "\x1b\x07") || strings.Contains(said, "hunter2") || n > maxProgressLines+1 {
			t.Errorf("%s: %d lines, %.300q", name, n, said)
		}
	}
	w.host.Program(t, "sh", "echo '@result applied healthy'; echo '@result rolled-back no'; kill -9 $$")
	m, a := w.lairPlan()
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	w.at("again", cancel)
	if r, err := w.e.Apply(ctx, [][]byte{m.Bytes}, []approval.Signed{a}); !errors.Is(err, ErrUnknown) || outcomeOf(r, err) != "" {
		t.Errorf("a host that says it is done and dies: %+v %v, want an unknown outcome", r, err)
	}
}

// TestP4Elsewhere: after a cut only the host's own record says how a plan ended. A refusal
// of the question, which is how it looks when somebody else settles the same job, and a
// host that has no job yet leave that unknown, on record here.
func TestP4Elsewhere(t *testing.T) {
	t.Parallel()
	// Each call is one answer; the last is repeated.
	const cut, waiting, done = "echo '@step applying'; kill -9 $$", "echo '@unfinished 100001-'$d; echo '@used 100001-'$d", "echo '@unfinished -'; echo '@used 100001-'$d; echo '@file result '$(printf 'applied 1 healthy' | base64)"
	for name, x := range map[string]struct {
		answers []string
		want    Outcome
	}{
		"somebody was quicker":       {[]string{cut, waiting, "echo '@refused settled'", done}, Applied},
		"somebody is at it":          {[]string{cut, waiting, "echo '@refused locked tests'", done}, Applied},
		"it was interrupted before":  {[]string{"echo '@refused unfinished 100001-'$d", waiting, "echo '@refused settled'", done}, Applied},
		"its Docker does not answer": {[]string{cut, waiting, "echo '@refused docker no'"}, ""},
		"its lock is held for long":  {[]string{cut, "echo '@refused locked tests'"}, ""},
		"it is still to come":        {[]string{cut, "echo '@unfinished -'; echo '@used -'"}, ""},
		"it comes late":              {[]string{cut, "echo '@unfinished -'; echo '@used -'", done}, Applied},
		"it was refused":             {[]string{"echo '@refused stale'"}, Stale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLair(t, "exit 0")
			dir := w.audited()
			m, a := w.lairPlan()
			sh := "d=" + m.Digest + "; n=$(($(cat $0.n 2>/dev/null || echo 0) + 1)); echo $n >$0.n; case $n in\n"
			for i, answer := range x.answers {
				if i == len(x.answers)-1 {
					sh += "*) " + answer + " ;;\n"
				} else {
					sh += fmt.Sprint(i+1) + ") " + answer + " ;;\n"
				}
			}
			w.host.Program(t, "sh", sh+"esac")
			got, err := w.apply(m, a)
			if got != x.want || errors.Is(err, ErrUnknown) != (x.want == "") {
				t.Errorf("%s %v, want %q", got, err, x.want)
			}
			r, rerr := w.e.readRecord("one", "web", m.Digest)
			text := readFile(t, dir+"/log")
			switch {
			case x.want == "" && (rerr != nil || r.Outcome != Sent || !strings.Contains(text, `"unknown"`)):
				t.Errorf("the record: %+v %v, want one that waits for the host, and one in the log:\n%s", r, rerr, text)
			case x.want == Applied && (rerr != nil || r.Outcome != Applied):
				t.Errorf("the record: %+v %v", r, rerr)
			case x.want == Stale && rerr == nil:
				t.Errorf("a record of what was refused: %+v", r)
			}
		})
	}
}

// TestP1NotSSH: what answers at the address and is no SSH server does not hold us.
func TestP1NotSSH(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	for name, answer := range map[string][]byte{"silence": nil, "lines": bytes.Repeat([]byte("hello\r\n"), 1<<16), "zeros": make([]byte, 1<<20)} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Write(answer)
				if answer != nil {
					c.Close()
					continue
				}
				defer c.Close()
			}
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		p.op.Write(t, "hosts.yaml", strings.Replace(p.entry, portOf(p.entry), port, 1))
		ctx, cancel := context.WithTimeout(p.ctx(), time.Second)
		if _, err := p.e.Plan(ctx, PlanOptions{Module: "web"}); err == nil {
			t.Errorf("%s: a plan was made", name)
		}
		cancel()
		l.Close()
		<-done
	}
}

func portOf(entry string) string {
	_, rest, _ := strings.Cut(entry, "port: ")
	port, _, _ := strings.Cut(rest, "\n")
	return port
}

// TestP1KeyMidway: a host whose key is another one when we come back learns nothing, and
// is not waited for.
func TestP1KeyMidway(t *testing.T) {
	t.Parallel()
	w := newLair(t, "echo '@step applying'; exec sleep 600")
	m, a := w.lairPlan()
	log := make(chan string, 1)
	w.at("applying", func() { log <- w.host.Impostor(t) })
	_, err := w.e.Apply(w.ctx(), [][]byte{m.Bytes}, []approval.Signed{a})
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, remote.ErrHostKey) {
		t.Errorf("another key midway: %v", err)
	}
	if text := readFile(t, <-log); strings.Contains(text, "Accepted") {
		t.Errorf("signed in to it: %s", text)
	}
	if r, err := w.e.readRecord("one", "web", m.Digest); err != nil || r.Outcome != Sent {
		t.Errorf("the record: %+v %v, want one that waits for the host", r, err)
	}
}

// TestP1HostRecords: what a host says was done there changes no record of ours, and is
// not what undoing without an approval goes by.
func TestP1HostRecords(t *testing.T) {
	t.Parallel()
	w := newLair(t, "exit 0", "undo_without_approval: true")
	m, a := w.lairPlan()
	mine := &record{Digest: m.Digest, Plan: m.Bytes, Approvals: []approval.Signed{a}, Outcome: RolledBack, Began: time.Now()}
	if err := w.e.writeRecord("one", "web", mine); err != nil {
		t.Fatal(err)
	}
	p := &paper{world: w}
	forged := p.draw(func(d *plan.Plan) {
		d.By = "the host"
		d.Previous = plan.Previous{State: plan.PreviousKnown, Commit: d.Commit, Compose: string(readFile(t, w.repo.Dir+"/modules/web/compose.yaml")), Image: "app:v1", ImageID: someImage}
	})
	elsewhere := p.draw(func(d *plan.Plan) { d.Host.Name = "two" })
	var jobs []*hostJob
	for i, x := range []Made{m, forged, elsewhere} {
		jobs = append(jobs, &hostJob{name: "10000" + string('1'+rune(i)) + "-" + x.Digest, digest: x.Digest, plan: x.Plan, planBytes: x.Bytes, outcome: Applied, ended: time.Now()})
	}
	_, h, err := w.e.host("one")
	if err != nil {
		t.Fatal(err)
	}
	w.e.adopt(h, "web", jobs, "-")
	if r, err := w.e.readRecord("one", "web", m.Digest); err != nil || r.Outcome != RolledBack {
		t.Errorf("a record of ours became %+v %v", r, err)
	}
	if _, err := w.e.readRecord("one", "web", elsewhere.Digest); err == nil {
		t.Error("a host speaks of another")
	}
	r, err := w.e.readRecord("one", "web", forged.Digest)
	if err != nil || !r.Learned {
		t.Fatalf("what only the host knows: %+v %v", r, err)
	}
	text := "carboy-observed 1\nimage " + someImage + "\ncurrent 100002-" + forged.Digest + "\n"
	undo := p.draw(func(d *plan.Plan) {
		d.Kind, d.Undoes = plan.Rollback, "100002-"+forged.Digest
		d.Seen = plan.Seen{Text: text, SHA256: plan.Digest([]byte(text))}
	})
	o := &order{Made: undo, host: h}
	if w.e.undoesLast(o) {
		t.Error("a host's own record lets an apply be undone without an approval")
	}
	r.Learned = false // as if it were ours
	if err := store.WriteJSON(w.e.recordFile("one", "web", forged.Digest), recordKind, r); err != nil {
		t.Fatal(err)
	}
	if !w.e.undoesLast(o) {
		t.Error("our own does not, so that the test above says nothing")
	}
}

// stepping is a world with a service that runs and a plan for the next.
func (w *world) stepping(id string) (Made, approval.Signed) {
	w.t.Helper()
	w.commit(id, "v1", "ok")
	w.repo.Write(w.t, "modules/"+id+"/files/etc/app.conf", "one\n")
	w.repo.Commit(w.t)
	if got := w.ship(id); got != Applied {
		w.t.Fatal(got)
	}
	w.commit(id, "v2", "ok")
	w.repo.Write(w.t, "modules/"+id+"/files/etc/app.conf", "two\n")
	w.repo.Commit(w.t)
	m := w.plan(id)
	return m, w.approve("alice", false, m)
}

// before puts a script before one program of the host: what it does, and then the program.
func (w *world) before(program, text string) {
	w.host.Program(w.t, program, text+"\nexec "+testenv.Look(program)+` "$@"`+"\n")
}

// TestP3Swap: a directory that becomes a link while files are put in place, and a root
// that becomes one after the plan, lead nothing out.
func TestP3Swap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	m, a := w.stepping("sw")
	root, outside := w.host.Root+"/sw", t.TempDir()
	if err := os.WriteFile(outside+"/app.conf", []byte("of somebody else\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	os.Rename(root, root+".real")
	os.Symlink(root+".real", root)
	if o, err := w.apply(m, a); o != Refused {
		t.Errorf("a root that became a link: %s %v", o, err)
	}
	os.Remove(root)
	os.Rename(root+".real", root)
	// As late as it can be: when a file is copied to its place.
	w.before("cp", `case "$*" in *.carboy.tmp*) [ -e `+w.host.Dir+`/swapped ] || { : >`+w.host.Dir+`/swapped; mv `+root+`/etc `+root+`/moved; ln -s `+outside+` `+root+`/etc; } ;; esac`)
	if o, err := w.apply(m, a); o != Failed && o != RollbackFailed {
		t.Errorf("a directory that became a link midway: %s %v", o, err)
	}
	if _, err := os.Stat(w.host.Dir + "/swapped"); err != nil {
		t.Fatal("nothing was swapped")
	}
	left, _ := os.ReadDir(outside)
	if b := readFile(t, outside+"/app.conf"); b != "of somebody else\n" || len(left) != 1 {
		t.Errorf("a file went out through the link: %q, %v", b, left)
	}
	w.want("sw", "v1 running")
}

// TestP4HostClock: a host whose clock jumps watches no shorter for it.
func TestP4HostClock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("cl", "v1", "ok")
	if got := w.ship("cl"); got != Applied {
		t.Fatal(got)
	}
	count := w.host.Dir + "/looks"
	w.host.Program(t, "date", "echo >>"+count+"\necho $((1700000000 + 3600 * $(wc -l <"+count+")))\n")
	// It dies as soon as it was looked at.
	docker, died := testenv.Look("docker"), w.host.Dir+"/died"
	w.host.Program(t, "docker", `case "$*" in *StartedAt*) if [ ! -e `+died+` ]; then
	: >`+died+`; `+docker+` "$@"; r=$?
	for id; do :; done
	`+docker+` kill "$id" >/dev/null; exit $r
fi ;; esac
exec `+docker+` "$@"`)
	w.commit("cl", "v2", "ok")
	if got := w.ship("cl"); got != RolledBack {
		t.Errorf("a service that dies soon, by a clock that leaps: %s", got)
	}
	w.want("cl", "v1 running")
}

// TestP1ComposeChanged: what another Compose makes of the file is not carried out, and
// an old Compose is not used.
func TestP1ComposeChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	m, a := w.stepping("cc")
	docker := testenv.Look("docker")
	w.host.Program(t, "docker", `case "$*" in *--hash*) echo "cc `+strings.Repeat("a", 64)+`"; exit ;; *version*) echo 9.9.9; exit ;; esac
exec `+docker+` "$@"`)
	n := len(w.jobs())
	if o, err := w.apply(m, a); o != Stale || !strings.Contains(err.Error(), "9.9.9 now") {
		t.Errorf("another Compose: %s %v", o, err)
	}
	w.want("cc", "v1 running")
	if len(w.jobs()) != n {
		t.Error("it became a job")
	}
	w.host.Program(t, "docker", `case "$*" in *version*) echo v2.19.1; exit ;; esac
exec `+docker+` "$@"`)
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "cc"}); outcomeOf(nil, err) != Failed || !strings.Contains(err.Error(), "2.19.1") {
		t.Errorf("an old Compose: %v", err)
	}
	os.Remove(w.host.Dir + "/bin/docker")
	if o, err := w.apply(m, a); o != Applied {
		t.Errorf("the same Compose: %s %v", o, err)
	}
}

// TestP2LockTaken: who removes what looks like a lock gets no second apply for it.
func TestP2LockTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	m, a := w.stepping("lo")
	second, third := w.engine(), make(chan Outcome, 1)
	free := w.host.Dir + "/free"
	w.before("docker", `case "$*" in *" up "*) [ -e `+free+`.waits ] || { : >`+free+`.waits; until [ -e `+free+` ]; do sleep 0.05; done; } ;; esac`)
	w.at("compose", func() {
		defer os.WriteFile(free, nil, 0o600)
		dirs, _ := filepath.Glob(w.host.Home + "/.local/state/carboy/ship/v1/*")
		for _, d := range dirs {
			all, _ := os.ReadDir(d)
			for _, x := range all {
				if !x.IsDir() {
					os.Remove(filepath.Join(d, x.Name()))
				}
			}
		}
		other := *m.Plan
		other.By = "somebody else"
		b, err := other.Encode()
		if err != nil {
			t.Error(err)
		}
		o := Made{&other, b, plan.Digest(b)}
		second.Progress = nil
		r, err := second.Apply(w.ctx(), [][]byte{b}, []approval.Signed{w.approve("alice", false, o)})
		third <- outcomeOf(r, err)
	})
	if o, err := w.apply(m, a); o != Applied {
		t.Errorf("the first: %s %v", o, err)
	}
	if o := <-third; o != Locked {
		t.Errorf("the second, the lock removed: %s", o)
	}
	w.want("lo", "v2 running")
}

// TestP2Stopped: a lock is not taken from an owner that only stands still.
func TestP2Stopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, engine(t, 0))
	w.commit("sl", "v1", "checked")
	m := w.plan("sl")
	other := *m.Plan
	other.By = "somebody else"
	b, err := other.Encode()
	if err != nil {
		t.Fatal(err)
	}
	o := Made{&other, b, plan.Digest(b)}
	w.at("applying", func() {
		w.host.Signal(t, syscall.SIGSTOP)
		defer w.host.Signal(t, syscall.SIGCONT)
		second := w.engine()
		second.Progress = nil
		if r, err := second.Apply(w.ctx(), [][]byte{b}, []approval.Signed{w.approve("alice", false, o)}); outcomeOf(r, err) != Locked {
			t.Errorf("the second, the first stopped: %+v %v", r, err)
		}
		if st, err := second.Status(w.ctx(), "sl"); err != nil || st[0].Busy == "" || st[0].Settled != nil {
			t.Errorf("status, the first stopped: %+v %v", st, err)
		}
	})
	if o, err := w.apply(m, w.approve("alice", false, m)); o != Applied {
		t.Errorf("the first: %s %v", o, err)
	}
	w.want("sl", "v1 running")
}

// newHut is a host with a real shell and no Docker.
func newHut(t *testing.T) (w *world, jobs string) {
	w = newLair(t, `exec /bin/sh "$@"`, "docker_host: unix:///nonexistent/docker.sock")
	w.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", w.host.Root+"/web", "one"))
	w.repo.Commit(t)
	return w, w.host.Home + "/.local/state/carboy/ship/v1/web.web/jobs/"
}

// TestP4Planted: a job that somebody puts there as interrupted is not carried out unless
// its plan is whole, of this host and service, and for a directory that is allowed; and
// nothing is said of how it ended before Docker answers.
func TestP4Planted(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	p := &paper{world: w}
	for _, x := range []struct {
		name   string
		change func(*plan.Plan)
		damage string
		docker string // what it does there; "": there is none
		want   string
	}{
		{"of another host", func(d *plan.Plan) { d.Host.Name = "two" }, "", "", "damaged"},
		{"of another service", func(d *plan.Plan) { d.Target.Project = "db" }, "", "", "damaged"},
		{"for another directory", func(d *plan.Plan) { d.Target.Root = "/etc" }, "", "", "allowed_roots"},
		{"with another plan", nil, " ", "", "damaged"},
		{"while Docker does not answer", nil, "", "", "docker does not answer"},
		{"while Docker lists and does not tell", nil, "", `case "$1" in ps) echo 1a2b3c ;; *) exit 1 ;; esac`, "docker does not answer"},
		{"while a container goes", nil, "", `case "$1" in ps) [ -e "$0.listed" ] || { : >"$0.listed"; echo 1a2b3c; } ;; *) exit 1 ;; esac`, ""},
		{"as it should be", nil, "", `:`, ""},
		{"behind many that are large", nil, "", `:`, ""},
	} {
		if strings.HasPrefix(x.name, "behind") {
			large := w.host.Dir + "/large"
			if err := os.WriteFile(large, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			for i := range 50 {
				old := fmt.Sprintf("%s%d-%064d", jobs, 100100+i, i)
				if err := errors.Join(os.Mkdir(old, 0o700), os.Link(large, old+"/plan.json"), os.WriteFile(old+"/result", []byte("failed 1 x\n"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if x.docker != "" {
			w.host.Program(t, "docker", x.docker)
		}
		m := p.draw(x.change)
		dir := jobs + "100200-" + m.Digest
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"plan.json": string(m.Bytes) + x.damage, "approvals.json": "[]", "compose.yaml": shiptest.Compose("web", "v1", "ok"), "observed": "", "output": "password=hunter2", "result.tmp": "pending"} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		st, err := w.e.Status(w.ctx(), "web")
		if err != nil {
			t.Fatal(err)
		}
		_, touched := os.Stat(dir + "/steps")
		switch {
		case x.want == "" && (st[0].Settled == nil || st[0].Settled.Outcome != Failed || touched != nil):
			t.Errorf("%s: %+v, want it settled: nothing was changed", x.name, st[0])
		case x.want == "":
			if _, err := os.Stat(dir + "/output"); err == nil {
				t.Errorf("%s: what a program wrote, with its secrets, stays on the host", x.name)
			}
		case x.want != "" && (!strings.Contains(st[0].Error, x.want) || st[0].Settled != nil || touched == nil):
			t.Errorf("%s: %+v, want %q", x.name, st[0], x.want)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// TestP4Hangs: nothing that hangs on a host, while it holds the lock, holds it or us for
// longer than a command may take: who sends, a disk, a command of Docker. What a command
// leaves behind is not waited for.
func TestP4Hangs(t *testing.T) {
	t.Parallel()
	const hang = "exec sleep 600"
	for name, x := range map[string]struct {
		program, text string
		want          Outcome
		why           string
	}{
		"nothing":               {"", "", Applied, "healthy"},
		"what is sent":          {"head", `[ ! -d $HOME/.local/state/carboy/ship/v1/web.web/new/prev ] || ` + hang, Failed, "could not take what was sent"},
		"copying to its place":  {"cp", `case "$*" in *.carboy.tmp*) ` + hang + ` ;; esac`, Failed, "the files could not be written"},
		"writing to disk":       {"sync", `case "$*" in *.carboy.tmp*) ` + hang + ` ;; esac`, Failed, "the files could not be written"},
		"docker compose up":     {"docker", `case "$*" in *" up "*) ` + hang + ` ;; esac`, Failed, "docker compose up was ended at its deadline"},
		"what up leaves behind": {"docker", `case "$*" in *" up "*) setsid sleep 600 9<&- & echo $! >$0.left ;; esac`, Applied, "healthy"},
		"a disk that is slow":   {"sync", `sleep 0.1`, Applied, "healthy"},
		"a disk that is broken": {"sync", `case "$*" in *plan.json*) exit 1 ;; esac`, Failed, "cannot record the job"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, jobs := newHut(t)
			w.repo.Write(t, "modules/web/files/a.conf", "ours\n")
			w.repo.Commit(t)
			p := &paper{world: w}
			m := p.draw(func(d *plan.Plan) {
				text := "carboy-observed 1\nimage " + someImage + "\nfile - a.conf\ncurrent -\n"
				d.Seen = plan.Seen{Text: text, SHA256: plan.Digest([]byte(text))}
				obs, err := plan.Observe(text)
				if err != nil {
					t.Fatal(err)
				}
				s, err := p.e.load(p.ctx(), "web", d.Commit)
				if err != nil {
					t.Fatal(err)
				}
				d.Changes = changes(d, obs, s.module, nil)
			})
			w.host.Program(t, "docker", fakeDocker(m))
			if x.program == "docker" {
				w.host.Program(t, "docker", x.text+"\n"+strings.TrimPrefix(readFile(t, w.host.Dir+"/bin/docker"), "#!/bin/sh\n"))
			} else if x.program != "" {
				w.before(x.program, x.text)
			}
			t.Cleanup(func() {
				if pid, err := strconv.Atoi(strings.TrimSpace(string(mayRead(w.host.Dir + "/bin/docker.left")))); err == nil {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			})
			w.e.Up, w.e.Other = 3*time.Second, 3*time.Second
			ctx, cancel := context.WithTimeout(w.ctx(), testenv.Patience(40*time.Second))
			defer cancel()
			r, err := w.e.Apply(ctx, [][]byte{m.Bytes}, []approval.Signed{w.approve("alice", false, m)})
			if got := outcomeOf(r, err); got != x.want || len(r) != 1 || !strings.Contains(r[0].Why, x.why) {
				t.Errorf("%s %v %+v, want %s: %s", got, err, r, x.want, x.why)
			}
			if errors.Is(err, ErrDeadline) != strings.HasSuffix(x.why, "deadline") {
				t.Errorf("%v: matches ErrDeadline or not, and should not or should", err)
			}
			if left, _ := filepath.Glob(jobs + "*/result"); x.want == Applied && len(left) != 1 {
				t.Errorf("%d jobs with a result", len(left))
			}
			if x.program != "docker" {
				os.Remove(w.host.Dir + "/bin/" + x.program)
			}
			if st, err := w.e.Status(ctx, "web"); err != nil || st[0].Busy != "" {
				t.Errorf("afterwards %+v %v, want a free lock", st, err)
			}
		})
	}
}

// mayRead is a file, or nothing.
func mayRead(name string) []byte {
	b, _ := os.ReadFile(name)
	return b
}

// TestP1Count: a host that cannot count a job any more, and so would forget it, does none.
func TestP1Count(t *testing.T) {
	t.Parallel()
	w, jobs := newHut(t)
	m, a := w.lairPlan()
	full := jobs + "199999-" + strings.Repeat("0", 64)
	if err := os.MkdirAll(full, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full+"/result", []byte("applied 1 healthy\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o, err := w.apply(m, a); o != Failed || !strings.Contains(err.Error(), "too many jobs") {
		t.Errorf("after the last number: %s %v", o, err)
	}
	os.RemoveAll(full)
	if o, err := w.apply(m, a); o != Failed || !strings.Contains(err.Error(), "docker does not answer") {
		t.Errorf("with numbers left: %s %v", o, err)
	}
}

// TestPull: the host pulls an image by its digest; when the registry fails, hangs or
// lies, what runs stays.
func TestPull(t *testing.T) {
	t.Parallel()
	dk := engine(t, 0)
	w := newWorld(t, dk)
	reg := shiptest.NewRegistry(t)
	image := dk.Publish(t, reg, "pulled")
	w.commit("pu", "v1", "ok")
	if got := w.ship("pu"); got != Applied {
		t.Fatal(got)
	}
	w.commit("pu", "v2", "ok")
	file := w.repo.Dir + "/modules/pu/compose.yaml"
	w.repo.Write(t, "modules/pu/compose.yaml", strings.Replace(readFile(t, file), "app:v2", reg.Address+"/app:pulled", 1))
	w.repo.Commit(t)
	if _, err := w.e.Plan(w.ctx(), PlanOptions{Module: "pu"}); outcomeOf(nil, err) != Refused {
		t.Errorf("an image that is not there, by a tag: %v", err)
	}
	w.repo.Write(t, "modules/pu/compose.yaml", strings.Replace(readFile(t, file), reg.Address+"/app:pulled", image, 1))
	w.repo.Commit(t)
	for _, mood := range []string{"fails", "lies", "hangs"} {
		reg.Mood(mood)
		p := w.plan("pu")
		if mood == "hangs" {
			w.e.Up = 2 * time.Second
		}
		if o, err := w.apply(p, w.approve("alice", false, p)); o != Failed {
			t.Errorf("a registry that %s: %s %v", mood, o, err)
		}
		w.want("pu", "v1 running")
		w.e.Up = 0
	}
	reg.Mood("")
	if got := w.ship("pu"); got != Applied {
		t.Errorf("a registry that answers: %s", got)
	}
	w.want("pu", "pulled running")
}
