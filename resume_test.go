package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

const theToken = "sk-ant-api03-0123456789abcdef"

// talker is an agent that answers lines: of its memory, its connections, its files.
const talker = `#!/bin/bash
n=41
echo kept >~/memory; echo ws >made.txt; echo "$MINE" >~/.key
exec 5<>/dev/tcp/api.anthropic.com/80; printf 'GET /old HTTP/1.1\r\n' >&5
exec 6<input.txt; read -r first <&6
echo ready
while read -r line; do
	case $line in
	count) n=$((n+1)); echo "count $n";;
	old) read -r -t 20 x <&5; echo "old connection: $?";;
	new) curl -sS http://api.anthropic.com/v1/messages 2>&1;;
	tls) curl -sS https://api.anthropic.com/v1/messages -H "X-Api-Key: $ANTHROPIC_API_KEY" 2>&1;;
	time) echo "time $(date +%s)";;
	key) echo "key $MINE $(cat ~/.key)";;
	ca) echo "authority $(sha256sum <"${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}")";;
	input) read -r second <&6; echo "input $first $second";;
	end) exit 4;;
	esac
done
`

func talkers(t *testing.T) (*world, *vendor) {
	v := newVendor(t)
	w := agents(t, map[string]string{"MINE": theToken}, map[string]string{
		"bin/claude":     talker,
		"ws/input.txt":   "one\ntwo\nthree\n",
		"ws/another.txt": "x",
		".config/carboy/bottles/c.md": "---\nagent_provider: {auth_token: MINE}\negress:\n  routes:\n    - host: api.anthropic.com\n      upstream: " + v.url +
			"\n      matches: [{paths: [{value: /v1/messages}]}]\n---\n",
		".bot-bottle/agents/a.md": "---\nbottle: c\n---\nBe brief.\n",
	})
	return w, v
}

// talk is one with whom a test talks.
type talk struct {
	t    testing.TB
	in   *os.File
	out  *syncOutput
	done chan struct{}
	s    *bottles.Started
	err  error
}

type syncOutput struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *syncOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *syncOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// begin runs start with streams.
func begin(t testing.TB, start func(in *os.File, out *syncOutput) (*bottles.Started, error)) *talk {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{t: t, in: w, out: &syncOutput{}, done: make(chan struct{})}
	go func() {
		defer close(k.done)
		k.s, k.err = start(r, k.out)
		r.Close()
	}()
	t.Cleanup(func() { w.Close(); <-k.done })
	return k
}

func (k *talk) expect(text string) {
	k.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(k.out.String(), text); time.Sleep(5 * time.Millisecond) {
		select {
		case <-k.done:
			k.t.Fatalf("it ended without %q: %v %s", text, k.err, k.out.String())
		default:
		}
		if time.Now().After(deadline) {
			k.t.Fatalf("no %q in %s", text, k.out.String())
		}
	}
}

func (k *talk) ask(line, want string) {
	k.t.Helper()
	fmt.Fprintln(k.in, line)
	k.expect(want)
}

// authority is a digest of whom the bottle trusts.
func (k *talk) authority() string {
	k.t.Helper()
	k.ask("ca", "authority ")
	k.expect("  -")
	_, after, _ := strings.Cut(k.out.String(), "authority ")
	sum, _, _ := strings.Cut(after, " ")
	return sum
}

func (w *world) startTalker() *talk {
	k := begin(w.t, func(in *os.File, out *syncOutput) (*bottles.Started, error) {
		return w.c.Start(context.Background(), bottles.StartOptions{Agent: "a", Dir: w.ws, Cwd: true, Headless: true, Prompt: "talk", Stdin: in, Stdout: out, Stderr: out})
	})
	k.expect("ready")
	return k
}

func (w *world) resumeTalker(tune func(*bottles.ResumeOptions)) *talk {
	return begin(w.t, func(in *os.File, out *syncOutput) (*bottles.Started, error) {
		o := bottles.ResumeOptions{Slug: "a", Stdin: in, Stdout: out, Stderr: out, OnEvent: func(e plan.Event) { fmt.Fprintln(out, "event:", e.Text) }}
		if tune != nil {
			tune(&o)
		}
		return w.c.Resume(context.Background(), o)
	})
}

// freeze freezes the talker of a test.
func (w *world) freeze(k *talk) *store.Kept {
	w.t.Helper()
	kept, err := w.c.Freeze(context.Background(), "a")
	if err != nil {
		w.t.Fatalf("%v: %s", err, k.out.String())
	}
	<-k.done
	if k.err != nil || !k.s.Frozen || !k.s.Kept {
		w.t.Fatalf("the start that was frozen: %v %+v", k.err, k.s)
	}
	return kept
}

// A frozen agent goes on in the middle: what it held in memory, its files, its
// placeholder, its trust in the gateway. Its connections are broken off, its clock is
// right. Its secrets are not in the image.
func TestFreezeResume(t *testing.T) {
	w, v := talkers(t)
	k := w.startTalker()
	k.ask("tls", "answer of /v1/messages")
	k.ask("key", "key carboy-placeholder-")
	authority := k.authority()
	kept := w.freeze(k)
	if len(kept.Live) != 3 || kept.WhyNot != "" {
		t.Fatalf("the processes are not kept: %+v", kept)
	}
	if b, _, err := w.c.Bottles(context.Background()); err != nil || len(b) != 1 || b[0].State != bottles.BottleFrozen || !b[0].Live {
		t.Errorf("%+v %v", b, err)
	}
	_, placeholder, _ := strings.Cut(k.out.String(), "key ")
	placeholder, _, _ = strings.Cut(placeholder, " ")
	dir := filepath.Join(w.c.StateDir(), "bottles")
	if in := filesWith(t, dir, theToken[12:]); len(in) > 0 {
		t.Errorf("the token is in %v", in)
	}
	if in := filesWith(t, dir, placeholder); len(in) < 2 {
		t.Errorf("what is inside is not found where it must be, in image and files: %v", in)
	}
	if s := filesWith(t, dir, "PRIVATE KEY"); len(s) != 1 || filepath.Base(s[0]) != "identity.json" {
		t.Errorf("keys are in %v", s)
	}
	for _, next := range []string{"two", "three"} {
		asked := len(v.asked)
		k = w.resumeTalker(nil)
		k.ask("count", "count 4")
		k.ask("old", "old connection: 1")
		k.ask("new", "answer of /v1/messages")
		k.ask("tls", "answer of /v1/messages to carboy-placeholder")
		k.ask("key", "key "+placeholder+" "+placeholder)
		k.ask("input", "input one "+next)
		if k.authority() != authority {
			t.Error("it has another authority than its processes trust")
		}
		k.ask("time", "time ")
		_, rest, _ := strings.Cut(k.out.String(), "time ")
		var at int64
		fmt.Sscan(rest, &at)
		if d := time.Since(time.Unix(at, 0)); d < -5*time.Second || d > time.Minute {
			t.Errorf("its clock is %v off", d)
		}
		if len(v.asked) != asked+2 || v.asked[asked+1].Get("X-Api-Key") != theToken {
			t.Errorf("asked: %v", v.asked[asked:])
		}
		w.freeze(k)
		if strings.Contains(k.out.String(), "event:") && strings.Contains(k.out.String(), "begins with its files") {
			t.Error(k.out.String())
		}
	}
	// Its manifests decide, as they are now.
	path := filepath.Join(filepath.Dir(w.ws), ".config/carboy/bottles/c.md")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(text, []byte("/v1/messages"), []byte("/v1/other"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var changed *bottles.Resumption
	k = w.resumeTalker(func(o *bottles.ResumeOptions) {
		o.Confirm = func(p *bottles.Preflight) error { changed = p.Resumption; return nil }
	})
	k.ask("new", "carboy: refused")
	k.ask("count", "count 44")
	fmt.Fprintln(k.in, "end")
	<-k.done
	var ended *bottles.AgentError
	if !errors.As(k.err, &ended) || ended.Code() != 4 || !changed.Live || !changed.Changed {
		t.Errorf("%v %+v", k.err, changed)
	}
	m, err := w.c.Find(context.Background(), "a", w.ws)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := w.c.Changes(m.ID); err != nil || len(set.Changes) != 1 {
		t.Errorf("the last run's changes are not all of them: %v %+v", err, set)
	}
}

func filesWith(t *testing.T, dir, text string) (in []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			in = append(in, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// What is kept and is not what was written is refused, and stays. One whose processes
// can't go on begins with its files. One at a time.
func TestResumeRefuses(t *testing.T) {
	w, _ := talkers(t)
	k := w.startTalker()
	kept := w.freeze(k)
	dir := filepath.Join(w.c.StateDir(), "bottles", "a", "kept", string(kept.Run))
	for i, p := range kept.Parts() {
		path := filepath.Join(dir, p.Name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for name, spoil := range map[string]func() error{
			"a bit":   func() error { b := slices.Clone(good); b[len(b)/2] ^= 1; return os.WriteFile(path, b, 0o600) },
			"shorter": func() error { return os.WriteFile(path, good[:len(good)-1], 0o600) },
			"longer":  func() error { return os.WriteFile(path, append(slices.Clone(good), 0), 0o600) },
			"gone":    func() error { return os.Remove(path) },
			"a link": func() error {
				return errors.Join(os.Remove(path), os.WriteFile(path+".2", good, 0o600), os.Symlink(path+".2", path))
			},
			"a fifo": func() error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		} {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			k := w.resumeTalker(func(o *bottles.ResumeOptions) { o.FilesOnly = i == 0 })
			k.in.Close() // should it go on, it ends
			<-k.done
			var bad *run.TamperedError
			if !errors.As(k.err, &bad) {
				t.Errorf("%s of %s: %v", name, p.Name, k.err)
			}
			if strings.Contains(k.out.String(), "ready") || strings.Contains(k.out.String(), "count") {
				t.Errorf("%s of %s: something ran", name, p.Name)
			}
			os.Remove(path)
			os.Remove(path + ".2")
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Another build begins with the files.
	build := w.c.host.Build
	w.c.host.Build = "another"
	var r *bottles.Resumption
	k = w.resumeTalker(func(o *bottles.ResumeOptions) {
		o.Confirm = func(p *bottles.Preflight) error { r = p.Resumption; return nil }
	})
	k.expect("ready")
	if r.Live || !strings.Contains(r.Why, "another") {
		t.Errorf("%+v", r)
	}
	// Meanwhile nobody else has it.
	if _, err := w.c.Resume(context.Background(), bottles.ResumeOptions{Slug: "a"}); !errors.Is(err, store.ErrBottleBusy) {
		t.Errorf("resumed twice: %v", err)
	}
	k.ask("count", "count 42")
	w.c.host.Build = build
	w.freeze(k)
	// A file of the workspace that was open is no more.
	if err := os.Remove(filepath.Join(w.ws, "input.txt")); err != nil {
		t.Fatal(err)
	}
	k = w.resumeTalker(nil)
	k.expect("it begins with its files")
	k.expect("ready")
	w.freeze(k)
	for _, x := range []struct {
		slug string
		want error
	}{{"b", store.ErrNoBottle}, {"../a", store.ErrNoBottle}, {"", store.ErrNoBottle}} {
		if _, err := w.c.Resume(context.Background(), bottles.ResumeOptions{Slug: x.slug}); !errors.Is(err, x.want) {
			t.Errorf("%q: %v", x.slug, err)
		}
	}
	if was, err := w.c.Destroy(context.Background(), "a", bottles.DestroyOptions{Unlanded: true}); !was || err != nil {
		t.Errorf("%v %v", was, err)
	}
	if left := filesWith(t, filepath.Join(w.c.StateDir(), "bottles"), ""); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What an agent that ended badly left is there for its next prompt; the changes of
// the first run are in those of the second.
func TestResumeKept(t *testing.T) {
	w := agents(t, nil, map[string]string{
		".config/carboy/bottles/c.md": "---\nagent_provider:\n  template: command\n  settings:\n    command: [/bin/sh, -c, 'echo \"$0\" >>~/told; echo \"$0\" >>told; rm -f gone; cat ~/told; exit 3', '{prompt}']\n---\n",
		".bot-bottle/agents/a.md":     "---\nbottle: c\n---\n",
		"ws/gone":                     "x",
	})
	run := func(f func(out *bytes.Buffer) (*bottles.Started, error)) string {
		var out bytes.Buffer
		s, err := f(&out)
		var ended *bottles.AgentError
		if !errors.As(err, &ended) || !s.Kept || s.Frozen {
			t.Fatalf("%v %+v %s", err, s, out.String())
		}
		return out.String()
	}
	if got := run(func(out *bytes.Buffer) (*bottles.Started, error) {
		return w.c.Start(context.Background(), bottles.StartOptions{Agent: "a", Dir: w.ws, Cwd: true, Headless: true, Prompt: "one", Stdout: out, Stderr: out})
	}); got != "one\n" {
		t.Errorf("%q", got)
	}
	if b, _, err := w.c.Bottles(context.Background()); err != nil || len(b) != 1 || b[0].State != bottles.BottleKept {
		t.Errorf("%+v %v", b, err)
	}
	if got := run(func(out *bytes.Buffer) (*bottles.Started, error) {
		return w.c.Resume(context.Background(), bottles.ResumeOptions{Slug: "a", Headless: true, Prompt: "two", Stdout: out, Stderr: out})
	}); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	l, err := w.c.List(context.Background(), store.Query{})
	if err != nil || len(l.Runs) != 2 || l.Runs[0].Changes != store.Pending || l.Runs[1].Changes != store.Discarded {
		t.Fatalf("%v %+v", err, l.Runs)
	}
	set, err := w.c.Changes(l.Runs[0].ID)
	if err != nil || len(set.Changes) != 2 {
		t.Errorf("%v %+v", err, set)
	}
}

// A destroy that comes at any moment of a start leaves nothing.
func TestDestroyRacesStart(t *testing.T) {
	w := agents(t, nil, map[string]string{
		".config/carboy/bottles/c.md": "---\nagent_provider:\n  template: command\n  settings: {command: [/bin/sh, -c, 'sleep 600', '{prompt}']}\n---\n",
		".bot-bottle/agents/a.md":     "---\nbottle: c\n---\n",
	})
	for i := range 12 {
		done := make(chan error, 1)
		go func() {
			_, err := w.c.Start(context.Background(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "x"})
			done <- err
		}()
		wait := time.Duration(i*i) * 4 * time.Millisecond
		time.Sleep(wait)
		for {
			if was, err := w.c.Destroy(context.Background(), "a", bottles.DestroyOptions{Unlanded: true}); err != nil {
				t.Fatalf("after %v: %v", wait, err)
			} else if was {
				break
			}
			select {
			case err := <-done:
				t.Fatalf("after %v it ended by itself: %v", wait, err)
			case <-time.After(time.Millisecond):
			}
		}
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("after %v: the start went well", wait)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after %v the start goes on", wait)
		}
		if b, _, err := w.c.Bottles(context.Background()); err != nil || len(b) != 0 {
			t.Fatalf("after %v: %+v %v", wait, b, err)
		}
		l, err := w.c.List(context.Background(), store.Query{})
		if err != nil || slices.ContainsFunc(l.Runs, func(m store.Meta) bool { return !m.State.Over() }) {
			t.Fatalf("after %v: %+v %v", wait, l.Runs, err)
		}
	}
}

// A bottle that was frozen goes on elsewhere, from one file; only that file, as its
// digest says, and nothing of another is left.
func TestCarriedBottle(t *testing.T) {
	w, v := talkers(t)
	k := w.startTalker()
	k.ask("count", "count 42")
	w.freeze(k)
	var file bytes.Buffer
	digest, err := w.c.ExportBottle(context.Background(), "a", &file)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(file.Bytes(), []byte(theToken[12:])) {
		t.Error("the token is in the file")
	}
	base := filepath.Dir(w.ws)
	there := &world{t: t, ws: w.ws, c: openClient(t, map[string]string{
		"XDG_STATE_HOME": filepath.Join(base, "elsewhere"), "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base,
		"PATH": filepath.Join(base, "bin") + ":" + os.Getenv("PATH"), "MINE": theToken,
	})}
	flipped := func(at int) []byte {
		b := bytes.Clone(file.Bytes())
		b[at] ^= 1
		return b
	}
	bad := map[string][]byte{"nothing": nil, "cut": file.Bytes()[:file.Len()/2], "cut at its end": file.Bytes()[:file.Len()-600], "longer": append(bytes.Clone(file.Bytes()), 0), "no tar": []byte("x")}
	for _, at := range []int{0, 512, 1024, 2000, 3000, file.Len() / 3, file.Len() / 2, file.Len() - 2000} {
		bad[fmt.Sprintf("a bit at %d", at)] = flipped(at)
	}
	for name, b := range bad {
		if slug, err := there.c.ImportBottle(context.Background(), bytes.NewReader(b), digest); err == nil {
			t.Errorf("%s: became bottle %s", name, slug)
		}
		if l, _, err := there.c.Bottles(context.Background()); err != nil || len(l) > 0 {
			t.Fatalf("%s: left %+v %v", name, l, err)
		}
	}
	slug, err := there.c.ImportBottle(context.Background(), bytes.NewReader(file.Bytes()), digest)
	if err != nil || slug != "a" {
		t.Fatalf("%q %v", slug, err)
	}
	asked := len(v.asked)
	k = there.resumeTalker(nil)
	k.ask("count", "count 43")
	k.ask("tls", "answer of /v1/messages to carboy-placeholder")
	if len(v.asked) != asked+1 || v.asked[asked].Get("X-Api-Key") != theToken {
		t.Errorf("asked: %v", v.asked[asked:])
	}
	there.freeze(k)
	if slug, err = there.c.ImportBottle(context.Background(), bytes.NewReader(file.Bytes()), digest); err != nil || slug != "a-2" {
		t.Errorf("beside it: %q %v", slug, err)
	}
}

// A bottle is resumed by the backend that kept it, unless one is named; a record of before
// there was a choice is the first backend's. Where it is another's, this is said.
func TestResumeBackend(t *testing.T) {
	w, _ := talkers(t)
	ctx := context.Background()
	ws, err := store.ResolveWorkspace(w.ws)
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.c.host.Store.CreateBottle(ctx, store.Bottle{Label: "a", Agent: "a", Bottles: []string{"c"}, Mode: store.Overlay, Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop here")
	for _, x := range []struct {
		kept, named, why string
		live             bool
	}{
		{"", "", "", true},
		{"", Backends()[0], "", true},
		{Backends()[0], "", "", true},
		{"vmware", Backends()[0], "the backend vmware, and this is " + Backends()[0], false},
		{"vmware", "", "", false}, // refused: it is not here
	} {
		lock, err := w.c.host.Store.LockBottle(b.Slug)
		if err != nil {
			t.Fatal(err)
		}
		k := &store.Kept{Run: "01m7zfh1w3f9xx5apx1tbxs2n7", Build: w.c.host.Build, Arch: runtime.GOARCH, Backend: x.kept, Live: []store.KeptPart{{Name: "y"}}, Files: store.KeptPart{Name: "x"}, Thaw: []byte("{}")}
		_, err = lock.KeptDir(k.Run)
		if err = errors.Join(err, lock.Keep(k)); err != nil {
			t.Fatal(err)
		}
		lock.Unlock()
		opened := w.c.opened
		opened.Backend = x.named
		c, err := Open(ctx, opened)
		if err != nil {
			t.Fatal(err)
		}
		var r *bottles.Resumption
		_, err = c.Resume(ctx, bottles.ResumeOptions{Slug: b.Slug, Confirm: func(p *bottles.Preflight) error { r = p.Resumption; return stop }})
		var bad *OptionError
		switch refused := x.named == "" && x.kept == "vmware"; {
		case refused && (!errors.As(err, &bad) || bad.Value != "vmware" || r != nil):
			t.Errorf("%+v: %v", x, err)
		case !refused && (!errors.Is(err, stop) || r.Live != x.live || !strings.Contains(r.Why, x.why)):
			t.Errorf("%+v: %v, %+v", x, err, r)
		}
		c.Close()
	}
}
