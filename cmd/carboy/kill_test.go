package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// killPatience bounds every wait; it is reached only when something hangs.
var killPatience = testenv.Patience(2 * time.Minute)

// machine is a user's machine on which carboy is killed.
type machine struct {
	t      *testing.T
	home   string
	random *rand.Rand

	ws            string            // landed in
	run           store.ID          // what is landed and undone
	before, after map[string]string // the workspace, not landed and landed

	mounts string
	lost   map[store.ID]bool
}

// victim is a command line that is killed; weight is how often, out of all.
type victim struct {
	weight int
	// apart: in a state of its own, where there is nothing but its like, so
	// that a gc has much to remove and removes nothing that is needed here.
	apart bool
	args  []string
}

// victims are all commands. What isn't named here is killed without arguments,
// except what touches nothing.
func (m *machine) victims() map[string]victim {
	run := func(mode, dir string) []string {
		return []string{"run", "--quiet", "--workspace", mode, "--dir", dir, "--", "/bin/sh", "-c", "echo x > inside; rm -f f1; (sleep 600 &); sleep 0.05"}
	}
	id := string(m.run)
	out := map[string]victim{
		"run overlay": {12, false, run("overlay", m.ws)}, "run copy": {12, false, run("copy", m.ws)},
		"run bind": {10, true, run("bind", m.home+"/bound")}, "run none": {10, true, run("none", m.ws)},
		"land": {30, false, []string{"land", "--yes", id}}, "undo": {30, false, []string{"undo", "--yes", id}},
		"diff": {4, false, []string{"diff", id}}, "receipt": {4, false, []string{"receipt", id}}, "logs": {3, false, []string{"logs", id}},
		"list": {5, false, []string{"list"}}, "doctor": {4, false, []string{"doctor"}}, "audit verify": {5, false, []string{"audit", "verify"}},
		"gc": {10, true, []string{"gc", "--all", "--unlanded", "--yes"}},
	}
	for _, c := range newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv).root().Commands() {
		// A demo has a state of its own in the temporary directory: nobody
		// looks for what a killed one left there.
		known := slices.Contains([]string{"completion", "man", "version", "help", "demo"}, c.Name())
		for name := range out {
			first, _, _ := strings.Cut(name, " ")
			known = known || first == c.Name()
		}
		if !known {
			out[c.Name()] = victim{2, true, []string{c.Name()}}
		}
	}
	return out
}

// TestS5KillEveryCommand kills carboy with all its might at random moments of
// every command, until 200 were hit before their end; often the next command is
// killed too, while it puts in order what the last one left.
func TestS5KillEveryCommand(t *testing.T) {
	m := newMachine(t)
	victims := m.victims()
	usual := m.unharmed(victims)
	var names []string
	for name, v := range victims {
		for range v.weight {
			names = append(names, name)
		}
	}
	slices.Sort(names) // a seed stands for one order
	want, rounds := 20, 1000
	if testing.Short() {
		rounds = 100
	} else if testenv.Exhaustive() {
		want = 200
	}
	// Each command in turn, then whatever comes.
	order := slices.Compact(slices.Clone(names))
	hits, total, landings, i := map[string]int{}, 0, 0, 0
	missed := func() (names []string) {
		for _, name := range order {
			if hits[name] == 0 && !testing.Short() {
				names = append(names, name)
			}
		}
		return names
	}
	uncut := func() bool { return landings == 0 && !testing.Short() }
	for ; (total < want || len(m.lost) == 0 || len(missed()) > 0 || uncut()) && i < rounds; i++ {
		name := names[m.random.IntN(len(names))]
		switch left := missed(); {
		case i < len(order):
			name = order[i]
		case total < want:
		case len(left) > 0:
			name = left[0] // some are soon over
		case uncut():
			name = "land"
		default:
			name = "run overlay"
		}
		v := victims[name]
		at := time.Duration(m.random.Int64N(int64(usual[name])))
		if name == "land" || name == "undo" {
			at = usual[name]/4 + 3*at/4 // it begins with looking
		}
		if m.kill(v, at) {
			hits[name]++
			total++
		}
		m.eachOldOrNew()
		if m.random.IntN(3) == 0 || total >= want && uncut() {
			landings += m.inspect()
		}
		if i%40 == 39 {
			m.works()
		}
	}
	m.works()
	t.Logf("%d of %d were killed before their end: %v; %d runs were lost, %d landings and undos were found cut short", total, i, hits, len(m.lost), landings)
	if total < want || len(m.lost) == 0 {
		t.Error("too few were killed in time: this test proves nothing")
	}
	if testing.Short() {
		return
	}
	for name := range victims {
		if hits[name] == 0 {
			t.Errorf("%s was never killed before its end", name)
		}
	}
	if landings == 0 {
		t.Error("no landing was cut short: this test proves nothing of landings")
	}
}

// TestS5KillLandingAmidSwaps kills landings and undos while another process of
// the host swaps the directories that they work in for links that lead out.
func TestS5KillLandingAmidSwaps(t *testing.T) {
	m := newMachine(t)
	victims := m.victims()
	land, undo := victims["land"], victims["undo"]
	usual := m.unharmed(map[string]victim{"land": land, "undo": undo})
	outside := m.home + "/outside"
	for _, d := range []string{"", "/d0", "/d1", "/d2"} {
		if err := os.MkdirAll(outside+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want, rounds := 3, 200
	if testenv.Exhaustive() {
		want = 20
	}
	untouched := m.tree(outside)
	hits, swaps, i := 0, 0, 0
	for ; hits < want && i < rounds; i++ {
		stop, done := make(chan struct{}), make(chan int)
		go func() { // ends with stop
			n := 0
			for ; ; n++ {
				at := fmt.Sprintf("%s/d%d", m.ws, n%3)
				if os.Rename(at, at+".aside") == nil {
					os.Symlink(outside+"/"+filepath.Base(at), at)
					time.Sleep(time.Duration(n%5) * 200 * time.Microsecond)
					os.Remove(at)
					os.Rename(at+".aside", at)
				}
				time.Sleep(time.Duration(n%7) * 300 * time.Microsecond)
				select {
				case <-stop:
					done <- n
					return
				default:
				}
			}
		}()
		v, name := land, "land"
		if i%2 == 1 {
			v, name = undo, "undo"
		}
		if m.kill(v, time.Duration(m.random.Int64N(int64(usual[name]+usual[name]/4)))) {
			hits++
		}
		close(stop)
		swaps += <-done
		if d := differ(untouched, m.tree(outside)); d != "" {
			t.Fatalf("a landing went through a link out of the workspace:\n%s", d)
		}
		m.eachOldOrNew()
		m.inspect()
	}
	m.works()
	t.Logf("%d of %d were killed before their end, amid %d swaps", hits, i, swaps)
	if hits < want || swaps < i {
		t.Error("too little happened: this test proves nothing")
	}
}

func newMachine(t *testing.T) *machine {
	testenv.Need(t, "bash", "apt-get install bash")
	home, err := os.MkdirTemp("", "ck-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CARBOY_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("CARBOY_TEST_SEED=%d does the same again, as far as the machine does", seed)
	m := &machine{t: t, home: home, ws: home + "/ws", random: rand.New(rand.NewPCG(seed, 1)), lost: map[store.ID]bool{}}
	m.must(os.Chmod(home, 0o755))
	for _, d := range []string{"ws/d0", "ws/d1", "ws/d2", "bound", "apart/run", "run", "tmp"} {
		m.must(os.MkdirAll(filepath.Join(home, d), 0o755))
	}
	m.must(os.Chmod(home+"/tmp", 0o777|fs.ModeSticky))
	for i := range 45 {
		m.must(os.WriteFile(fmt.Sprintf("%s/d%d/f%d", m.ws, i%3, i), bytes.Repeat([]byte("old\n"), i+1), 0o644))
	}
	m.must(errors.Join(own(m.ws), own(home+"/bound")))
	m.mounts = testenv.Mounts(m.t)

	m.before = m.tree(m.ws)
	script := `for d in d0 d1 d2; do for f in $d/*; do n=${f#$d/f}; case $((n % 9)) in
		0|1|2) rm $f;; 3|4) printf 'new\n' > $f; chmod 755 $f;; 5) rm $f; mkdir $f; echo new > $f/in;; *) echo new >> $f;; esac; done
		for n in 1 2 3 4 5 6 7 8 9; do echo new > $d/n$n; done; mkdir -p $d/t/u; echo new > $d/t/u/v; ln -s f1 $d/l; done`
	rec, err := m.client(false, func(c *carboy.Client) (*receipt.Receipt, error) {
		return c.Run(t.Context(), carboy.RunOptions{Command: []string{"/bin/bash", "-c", script}, Workspace: m.ws})
	})
	if err != nil || rec.Exit.Code != 0 || rec.Changes == nil || rec.Changes.Added < 30 {
		t.Fatalf("the run to be landed: %v %+v", err, rec)
	}
	m.run = rec.ID
	m.carboy(victim{args: []string{"land", "--yes", string(m.run)}})
	m.after = m.tree(m.ws)
	m.carboy(victim{args: []string{"undo", "--yes", string(m.run)}})
	if d := differ(m.before, m.tree(m.ws)); d != "" || differ(m.before, m.after) == "" {
		t.Fatalf("landing and undoing it, when nobody kills:\n%s", d)
	}
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) vars(apart bool) map[string]string {
	v := map[string]string{"HOME": m.home, "XDG_STATE_HOME": m.home, "XDG_RUNTIME_DIR": m.home + "/run", "XDG_CONFIG_HOME": m.home + "/none", "TMPDIR": m.home + "/tmp", "PATH": os.Getenv("PATH"), "NO_COLOR": "1"}
	if apart {
		v["XDG_STATE_HOME"], v["XDG_RUNTIME_DIR"] = m.home+"/apart", m.home+"/apart/run"
	}
	return v
}

// client does something as the next command would, in this process.
func (m *machine) client(apart bool, f func(*carboy.Client) (*receipt.Receipt, error)) (*receipt.Receipt, error) {
	m.t.Helper()
	vars := m.vars(apart)
	c, err := carboy.Open(m.t.Context(), carboy.Options{Env: func(n string) string { return vars[n] }})
	if err != nil {
		m.t.Fatalf("open: %v", err)
	}
	defer c.Close()
	return f(c)
}

func (m *machine) command(v victim) (*exec.Cmd, *bytes.Buffer) {
	exe, err := os.Executable()
	m.must(err)
	c := exec.Command(exe)
	c.Args = append([]string{"carboy"}, v.args...)
	c.Dir = m.ws
	for n, val := range m.vars(v.apart) {
		c.Env = append(c.Env, n+"="+val)
	}
	var said bytes.Buffer
	c.Stdout, c.Stderr = &said, &said
	c.WaitDelay = 10 * time.Second
	return c, &said
}

// carboy runs a command that nobody kills.
func (m *machine) carboy(v victim) {
	m.t.Helper()
	c, said := m.command(v)
	if err := c.Run(); err != nil {
		m.t.Fatalf("carboy %q: %v: %s", v.args, err, said)
	}
}

// unharmed measures how long each takes. A command that nobody knows here may
// never end: it is killed early, its beginning is as good a moment as any.
func (m *machine) unharmed(victims map[string]victim) map[string]time.Duration {
	const longest = 2 * time.Second
	usual := map[string]time.Duration{}
	var names []string
	for name := range victims {
		names = append(names, name)
	}
	slices.Sort(names) // land comes before undo
	for _, name := range names {
		start := time.Now()
		c, said := m.command(victims[name])
		m.must(c.Start())
		// One that nobody knows here may refuse to run without arguments, too.
		known := victims[name].weight > 2
		slow := time.AfterFunc(longest, func() {
			if !known {
				c.Process.Kill()
			}
		})
		err := c.Wait()
		slow.Stop()
		if usual[name] = time.Since(start); err != nil && known {
			m.t.Fatalf("carboy %q, when nobody kills it: %v: %s", victims[name].args, err, said)
		}
	}
	return usual
}

// kill starts a command and kills it after a while; false: it had ended.
func (m *machine) kill(v victim, after time.Duration) bool {
	m.t.Helper()
	c, said := m.command(v)
	m.must(c.Start())
	time.Sleep(after)
	// Stopped, it starts nothing more: what is below it now is all.
	c.Process.Signal(syscall.SIGSTOP)
	below := testenv.Living(m.t, c.Process.Pid)
	c.Process.Signal(syscall.SIGKILL)
	err := c.Wait()
	testenv.AllGone(m.t, fmt.Sprintf("carboy %q, killed after %v", v.args, after), below, killPatience)
	for _, bad := range []string{"panic", "corrupt", "tamper", "damaged"} {
		if strings.Contains(said.String(), bad) {
			m.t.Errorf("carboy %q: %s", v.args, said)
		}
	}
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() < 0
}

// eachOldOrNew checks what holds at every moment, before anything was put in order:
// each file of the workspace is wholly its old or its new self.
func (m *machine) eachOldOrNew() {
	m.t.Helper()
	now := m.tree(m.ws)
	for path, is := range now {
		if strings.Contains(path, "/.carboy-") {
			continue // on its way in or out
		}
		if is != m.before[path] && is != m.after[path] {
			m.t.Errorf("%s is %q, neither %q nor %q", path, is, m.before[path], m.after[path])
		}
	}
	for path := range m.before {
		if _, stays := m.after[path]; stays && now[path] == "" {
			m.t.Errorf("%s is missing", path)
		}
	}
	if now := testenv.Mounts(m.t); now != m.mounts {
		m.t.Errorf("mounts changed:\n%s\nbefore:\n%s", now, m.mounts)
	}
	if m.t.Failed() {
		m.t.FailNow()
	}
}

// inspect is a command after the crash: it finds everything, puts it in order
// and says what was lost. It returns how many landings it found cut short.
func (m *machine) inspect() (cut int) {
	t := m.t
	t.Helper()
	for path := range m.tree(m.ws) {
		if strings.Contains(path, "/.carboy-") {
			cut = 1
		}
	}
	for _, apart := range []bool{false, true} {
		m.client(apart, func(c *carboy.Client) (*receipt.Receipt, error) {
			l, err := c.List(t.Context(), store.Query{})
			if err != nil || len(l.Corrupt) > 0 {
				t.Fatalf("records after a crash: %v, corrupt %v", err, l.Corrupt)
			}
			for _, run := range l.Runs {
				m.inspectRun(c, run)
			}
			if rep, err := c.AuditVerify(t.Context(), ""); err != nil || !rep.OK() {
				t.Errorf("the audit log: %v %+v", err, rep)
			}
			return nil, nil
		})
	}
	// Now it is all the one or all the other, and nothing lies beside it.
	now := m.tree(m.ws)
	if old, new := differ(m.before, now), differ(m.after, now); old != "" && new != "" {
		t.Fatalf("the workspace is neither as before:\n%s\nnor as landed:\n%s", old, new)
	}
	for _, dir := range []string{"/run", "/apart/run"} {
		if ents, err := os.ReadDir(m.home + dir + "/carboy"); err == nil && len(ents) > 0 {
			t.Errorf("sockets that nobody serves: %v", ents)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return cut
}

func (m *machine) inspectRun(c *carboy.Client, run store.Meta) {
	t := m.t
	t.Helper()
	if run.State == store.Lost {
		m.lost[run.ID] = true
	}
	if !run.State.Over() {
		t.Errorf("run %s is %s, and nobody runs it", run.ID, run.State)
	}
	rec, err := c.Receipt(t.Context(), run.ID)
	if err != nil {
		t.Errorf("receipt of %s run %s: %v", run.State, run.ID, err)
	} else if (run.State == store.Lost) != (rec.Exit.Reason == receipt.Lost) {
		t.Errorf("the receipt of lost run %s says %+v", run.ID, rec.Exit)
	}
	for _, dir := range []string{"scratch", "base"} {
		if _, err := os.Stat(filepath.Join(c.StateDir(), "runs", string(run.ID), dir)); err == nil {
			t.Errorf("run %s left %s behind", run.ID, dir)
		}
	}
	if run.State == store.Finished && (run.Mode == store.Overlay || run.Mode == store.Copy) {
		if _, err := c.Changes(run.ID); err != nil {
			t.Errorf("changes of finished run %s: %v", run.ID, err)
		}
	}
	// A run that is called landed may be removed with its changes: it must be.
	if run.ID == m.run && run.Changes == store.Landed {
		if d := differ(m.after, m.tree(m.ws)); d != "" {
			t.Errorf("run %s is called landed, and is not:\n%s", run.ID, d)
		}
	}
}

// works: after all that, everything goes on as ever.
func (m *machine) works() {
	t := m.t
	t.Helper()
	m.inspect()
	if differ(m.after, m.tree(m.ws)) == "" {
		m.carboy(victim{args: []string{"undo", "--yes", string(m.run)}})
	}
	for _, x := range []struct {
		command string
		want    map[string]string
	}{{"land", m.after}, {"undo", m.before}} {
		m.carboy(victim{args: []string{x.command, "--yes", string(m.run)}})
		if d := differ(x.want, m.tree(m.ws)); d != "" {
			t.Fatalf("%s after the crashes:\n%s", x.command, d)
		}
	}
	for _, apart := range []bool{false, true} {
		m.client(apart, func(c *carboy.Client) (*receipt.Receipt, error) {
			var out bytes.Buffer
			rec, err := c.Run(t.Context(), carboy.RunOptions{Command: []string{"/bin/cat", "d1/f1"}, Workspace: m.ws, Stdout: &out})
			if err != nil || rec.Exit.Code != 0 || out.String() != "old\nold\n" {
				t.Fatalf("the next run: %v %+v %q", err, rec, out.String())
			}
			return rec, err
		})
	}
	m.carboy(victim{apart: true, args: []string{"gc", "--all", "--unlanded", "--yes"}})
	m.client(true, func(c *carboy.Client) (*receipt.Receipt, error) {
		if l, err := c.List(t.Context(), store.Query{}); err != nil || len(l.Runs) > 0 {
			t.Errorf("after gc --all there are %d runs, %v", len(l.Runs), err)
		}
		return nil, nil
	})
	for _, p := range testenv.Living(t, 1) {
		if p.Parent == 1 && p.Argv0() == "carboy-shim" && p.UID() == os.Getuid() {
			t.Errorf("a shim without a carboy: %+v", p)
		}
	}
}

// tree describes a directory: type, mode and content of each path.
func (m *machine) tree(root string) map[string]string {
	m.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		is := fi.Mode().String()
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			is += " " + string(b)
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			is += " " + to
		}
		out[path] = is
		return nil
	})
	m.must(err)
	return out
}

func differ(want, got map[string]string) string {
	var b strings.Builder
	for path, is := range want {
		if got[path] != is {
			fmt.Fprintf(&b, "%s is %.60q, want %.60q\n", path, got[path], is)
		}
	}
	for path, is := range got {
		if _, ok := want[path]; !ok {
			fmt.Fprintf(&b, "%s is %.60q, want nothing\n", path, is)
		}
	}
	return b.String()
}
