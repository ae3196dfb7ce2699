package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// Other processes of a test run this function. CARBOY_TEST_QUEUE is the directory, and the
// command line says what to do there.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CARBOY_TEST_QUEUE"); dir != "" {
		os.Exit(other(dir, os.Args[1:]))
	}
	os.Exit(m.Run())
}

func other(dir string, args []string) int {
	q, err := Open(dir, Options{Audit: &memory{}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch args[0] {
	case "answer": // ID VERDICT, when a line arrives
		e, err := q.Find(context.Background(), args[1])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println("ready")
		_, _ = os.Stdin.Read(make([]byte, 1))
		_, err = q.Answer(context.Background(), Reply{ID: e.Proposal.ID, Digest: e.Proposal.Digest, Verdict: Verdict(args[2]), Channel: ChannelCLI})
		var answered *AnsweredError
		switch {
		case err == nil:
			fmt.Println("won", args[2])
		case errors.As(err, &answered):
			fmt.Println("lost", answered.Answer.Verdict)
		default:
			fmt.Println("failed", err)
		}
	case "ask": // HOST…; then wait for the end
		a, err := q.Asker(AskerOptions{Bottle: "other"})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		for _, h := range args[1:] {
			t, err := a.Propose(context.Background(), EgressAllow{Routes: []RouteAdded{{Host: h}}}, Draft{})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			fmt.Println(t.Proposal().ID)
		}
		select {}
	}
	return 0
}

// process starts another process of the test.
func (w *world) process(args ...string) (*exec.Cmd, io.WriteCloser, io.Reader) {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "CARBOY_TEST_QUEUE="+w.dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, in, out
}

func line(t testing.TB, r io.Reader) string {
	t.Helper()
	var b []byte
	c := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, c); err != nil {
			t.Fatalf("another process said %q and no more: %v", b, err)
		}
		if c[0] == '\n' {
			return string(b)
		}
		b = append(b, c[0])
	}
}

func (w *world) file(name string) string { return filepath.Join(w.dir, waitingDir, name) }

func (w *world) put(name string, data []byte, mode os.FileMode) {
	w.t.Helper()
	tmp := filepath.Join(w.dir, "forged")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chmod(tmp, mode); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(tmp, w.file(name)); err != nil {
		w.t.Fatal(err)
	}
}

// answerBytes returns an answer to p in its form on disk.
func answerBytes(t testing.TB, p Proposal, v Verdict, change ...func(*answerFile)) []byte {
	t.Helper()
	f, err := Answer{ID: p.ID, Digest: p.Digest, Verdict: v, By: By{UID: os.Geteuid(), Channel: ChannelCLI}, At: time.Now().UTC()}.file(p.Kind)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(&f)
	}
	data, err := marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Files that say "approved" and are not valid answers, beside one that is.
func TestForgedAnswers(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	n := 0
	try := func(name string, allowed bool, forge func(p Proposal, name string)) {
		t.Helper()
		n++
		ticket := w.propose(a, allowHost(t, fmt.Sprintf("h%d.example.com", n)))
		p := ticket.Proposal()
		forge(p, string(p.ID)+answerEnd)
		if o := w.outcome(ticket); o.Allowed() != allowed {
			t.Errorf("%s: got through: %t, want %t (%+v)", name, o.Allowed(), allowed, o.Answer)
		}
	}
	good := func(p Proposal) []byte { return answerBytes(t, p, Approved) }
	try("an answer", true, func(p Proposal, name string) { w.put(name, good(p), 0o600) })
	for what, change := range map[string]func(*answerFile){
		"another proposal's":  func(f *answerFile) { f.ID = newID() },
		"another digest":      func(f *answerFile) { f.Digest[0]++ },
		"no digest":           func(f *answerFile) { f.Digest = Digest{} },
		"another kind":        func(f *answerFile) { f.Kind = kindApply },
		"another schema":      func(f *answerFile) { f.Schema = "carboy.dev/proposal-answer/v2" },
		"no channel":          func(f *answerFile) { f.By.Channel = "" },
		"another user":        func(f *answerFile) { f.By.UID++ },
		"nobody":              func(f *answerFile) { f.By.Channel = channelQueue },
		"a rule of no policy": func(f *answerFile) { f.By.Channel = ChannelPolicy },
		"a payload":           func(f *answerFile) { f.Payload = json.RawMessage(`{"routes":[{"host":"evil.example"}]}`) },
		"a word":              func(f *answerFile) { f.Verdict = "APPROVED" },
		"a long note":         func(f *answerFile) { f.Note = strings.Repeat("x", MaxNote+1) },
		"modified, no digest": func(f *answerFile) {
			f.Verdict, f.Payload = Modified, json.RawMessage(`{"routes":[{"host":"evil.example"}]}`)
		},
		"modified, private": func(f *answerFile) {
			evil := EgressAllow{Routes: []RouteAdded{{Host: "10.0.0.1"}}}
			f.Verdict = Modified
			f.Payload, _ = encode(evil)
			f.PayloadDigest, _ = DigestOf("dev", evil)
		},
		"modified for another bottle": func(f *answerFile) {
			evil := EgressAllow{Routes: []RouteAdded{{Host: "evil.example"}}}
			f.Verdict = Modified
			f.Payload, _ = encode(evil)
			f.PayloadDigest, _ = DigestOf("other", evil)
		},
	} {
		try(what, false, func(p Proposal, name string) { w.put(name, answerBytes(t, p, Approved, change), 0o600) })
	}
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		try(fmt.Sprintf("mode %o", mode), false, func(p Proposal, name string) { w.put(name, good(p), mode) })
	}
	try("twice", false, func(p Proposal, name string) { w.put(name, append(good(p), good(p)...), 0o600) })
	try("an unknown field", false, func(p Proposal, name string) {
		w.put(name, bytes.Replace(good(p), []byte("{"), []byte(`{"force":true,`), 1), 0o600)
	})
	try("nothing", false, func(_ Proposal, name string) { w.put(name, nil, 0o600) })
	try("too much", false, func(p Proposal, name string) {
		w.put(name, append(good(p), bytes.Repeat([]byte(" "), maxFile)...), 0o600)
	})
	try("a link", false, func(p Proposal, name string) {
		target := filepath.Join(t.TempDir(), "answer")
		if err := errors.Join(os.WriteFile(target, good(p), 0o600), os.Symlink(target, w.file(name))); err != nil {
			t.Fatal(err)
		}
	})
	try("a pipe", false, func(_ Proposal, name string) {
		if err := unix.Mkfifo(w.file(name), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	try("a directory", false, func(_ Proposal, name string) {
		if err := os.Mkdir(w.file(name), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(w.file(name)) })
	})
	try("a directory that others can write to", false, func(p Proposal, name string) {
		if err := os.Chmod(w.file(""), 0o777); err != nil {
			t.Fatal(err)
		}
		w.put(name, good(p), 0o600)
	})
	if err := os.Chmod(w.file(""), 0o700); err != nil {
		t.Fatal(err)
	}
	try("an answer, after all that", true, func(p Proposal, name string) { w.put(name, good(p), 0o600) })
}

// Root can make files that belong to others, and root's own queue accepts none.
func TestAnswersOfOthers(t *testing.T) {
	testenv.Root(t) // makes files of another user
	w := newWorld(t)
	a := w.asker("dev")
	for _, uid := range []int{12345, 0} {
		ticket := w.propose(a, allowHost(t, fmt.Sprintf("h%d.example.com", uid)))
		p := ticket.Proposal()
		tmp := filepath.Join(w.dir, "forged")
		if err := errors.Join(os.WriteFile(tmp, answerBytes(t, p, Approved), 0o600), os.Chown(tmp, uid, 0), os.Rename(tmp, w.file(string(p.ID)+answerEnd))); err != nil {
			t.Fatal(err)
		}
		if o := w.outcome(ticket); o.Allowed() != (uid == 0) {
			t.Errorf("an answer of user %d got through: %t", uid, o.Allowed())
		}
	}
	if err := os.Chown(w.dir, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(w.dir, Options{Audit: w.log}); err == nil {
		t.Error("another user's queue was opened")
	}
}

// A file that is cut off anywhere is neither an answer nor a proposal.
func TestTornFiles(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	p := w.propose(a, allowHost(t, "a.example.com")).Proposal()
	whole, err := os.ReadFile(w.file(string(p.ID) + proposalEnd))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseProposal(p.ID, whole); err != nil {
		t.Fatal(err)
	}
	for i := range len(whole) - 1 {
		if _, err := parseProposal(p.ID, whole[:i]); err == nil {
			t.Errorf("%d bytes of %d are a proposal", i, len(whole))
		}
	}
	answer := answerBytes(t, p, Approved)
	if _, err := parseAnswer(p, answer); err != nil {
		t.Fatal(err)
	}
	for i := range len(answer) - 1 {
		if _, err := parseAnswer(p, answer[:i]); err == nil {
			t.Errorf("%d bytes of %d are an answer", i, len(answer))
		}
	}
	// An incomplete file is reported, and does not hide the others.
	torn := newID()
	w.put(string(torn)+proposalEnd, whole[:len(whole)/2], 0o600)
	w.put("notes.txt", []byte("x"), 0o600)
	if err := os.Symlink("/etc/passwd", w.file(string(newID())+proposalEnd)); err != nil {
		t.Fatal(err)
	}
	l := w.list(Query{})
	if len(l.Entries) != 1 || l.Entries[0].Proposal.ID != p.ID || len(l.Problems) != 3 {
		t.Errorf("%d entries, problems %v", len(l.Entries), l.Problems)
	}
	if _, err := w.q.Find(context.Background(), string(torn)); err == nil {
		t.Error("a torn proposal was found")
	}
}

// An earlier approval is valid neither for another proposal nor for the same one again.
func TestReplay(t *testing.T) {
	w := newWorld(t)
	a, b := w.asker("dev"), w.asker("prod")
	ticket := w.propose(a, token(TokenAllow))
	first := ticket.Proposal()
	w.must(first, Approved)
	if !w.outcome(ticket).Allowed() {
		t.Fatal("the first was not allowed")
	}
	<-ticket.w.saved
	var answered *AnsweredError
	if _, err := w.answer(first, Approved); !errors.As(err, &answered) || answered.Answer.Verdict != Approved {
		t.Errorf("answered twice: %v", err)
	}
	for name, again := range map[string]struct {
		a *Asker
		p Payload
	}{
		"the same again":         {a, token(TokenAllow)},
		"the same of a bottle":   {b, token(TokenAllow)},
		"another value's":        {a, func() Payload { x := token(TokenAllow); x.Value = strings.Repeat("0", 64); return x }()},
		"the same to a host":     {a, func() Payload { x := token(TokenAllow); x.Host = "evil.example"; return x }()},
		"the other action":       {a, token(TokenRedact)},
		"something of all kinds": {a, push()},
	} {
		ticket := w.propose(again.a, again.p)
		p := ticket.Proposal()
		if p.ID == first.ID || (p.Digest == first.Digest) != (name == "the same again") {
			t.Errorf("%s: its id or digest is the first one's", name)
		}
		// The old answer, unchanged and under the new name.
		w.put(string(p.ID)+answerEnd, answerBytes(t, first, Approved), 0o600)
		if o := w.outcome(ticket); o.Allowed() {
			t.Errorf("%s: an old approval got through", name)
		}
		// An answer by a person who saw the first proposal.
		ticket = w.propose(again.a, again.p)
		p = ticket.Proposal()
		if _, err := w.q.Answer(context.Background(), Reply{ID: p.ID, Digest: first.Digest, Verdict: Approved, Channel: ChannelCLI}); p.Digest != first.Digest && !errors.Is(err, ErrDigest) {
			t.Errorf("%s: the first one's digest was taken: %v", name, err)
		}
		ticket.Close()
	}
}

// A proposal is changed between the time when a person looks and the time when they
// approve.
func TestSwappedProposal(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ticket := w.propose(a, allowHost(t, "good.example"))
	shown := ticket.Proposal()
	f, err := shown.file()
	if err != nil {
		t.Fatal(err)
	}
	evil := shown
	evil.Payload = allowHost(t, "evil.example")
	evil.Digest, _ = DigestOf("dev", evil.Payload)
	swapped, err := evil.file()
	if err != nil {
		t.Fatal(err)
	}
	swapped.Asker = f.Asker
	data, err := marshal(swapped)
	if err != nil {
		t.Fatal(err)
	}
	w.put(string(shown.ID)+proposalEnd, data, 0o600)
	if _, err := w.answer(shown, Approved); !errors.Is(err, ErrDigest) {
		t.Errorf("approved something else than was shown: %v", err)
	}
	// A person who saw the changed proposal approves that one. The asker did not ask for
	// it.
	w.must(evil, Approved)
	if o := w.outcome(ticket); o.Allowed() {
		t.Errorf("something else was approved than asked for, and allowed: %+v", o)
	}
	// A proposal whose digest does not match its payload is invalid.
	swapped.Digest = shown.Digest
	data, _ = marshal(swapped)
	if _, err := parseProposal(shown.ID, data); err == nil {
		t.Error("a payload under another's digest was taken")
	}
}

// Many processes answer at once. One succeeds, and all get the true result.
func TestRacingAnswers(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	const rounds, goroutines, processes = 2, 100, 4
	for round := range rounds {
		w.log.events = nil
		ticket := w.propose(a, allowHost(t, fmt.Sprintf("h%d.example.com", round)))
		p := ticket.Proposal()
		verdicts := []Verdict{Approved, Rejected}
		type result struct{ said, other string }
		results := make(chan result, goroutines+processes)
		var begin, all sync.WaitGroup
		begin.Add(1)
		for i := range processes {
			_, in, out := w.process("answer", string(p.ID), string(verdicts[i%2]))
			line(t, out)
			all.Go(func() {
				begin.Wait()
				in.Write([]byte("\n"))
				said := line(t, out)
				word, rest, _ := strings.Cut(said, " ")
				results <- result{word, rest}
			})
		}
		for i := range goroutines {
			q := w.open()
			all.Go(func() {
				begin.Wait()
				_, err := q.Answer(context.Background(), Reply{ID: p.ID, Digest: p.Digest, Verdict: verdicts[i%2], Channel: ChannelWeb})
				var answered *AnsweredError
				switch {
				case err == nil:
					results <- result{"won", string(verdicts[i%2])}
				case errors.As(err, &answered):
					results <- result{"lost", string(answered.Answer.Verdict)}
				default:
					results <- result{"failed", err.Error()}
				}
			})
		}
		begin.Done()
		o := w.outcome(ticket)
		all.Wait()
		close(results)
		won := 0
		for r := range results {
			if r.said == "won" {
				won++
			}
			if r.said == "failed" || r.other != string(o.Answer.Verdict) {
				t.Errorf("one was told %s %s, the outcome is %s", r.said, r.other, o.Answer.Verdict)
			}
		}
		if won != 1 {
			t.Errorf("%d answers won", won)
		}
		if n := w.log.approvals(); n > 1 || n == 1 && !o.Allowed() {
			t.Errorf("%d approvals in the log, and it is %s", n, o.Answer.Verdict)
		}
	}
}

// The answering process is killed at a random moment. Its answer is either complete and in
// force, or there is none and somebody else can answer.
func TestKilledAnswerer(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	const rounds = 8
	by := map[string]int{}
	for round := range rounds {
		ticket := w.propose(a, allowHost(t, fmt.Sprintf("h%d.example.com", round)))
		p := ticket.Proposal()
		cmd, in, out := w.process("answer", string(p.ID), string(Approved))
		line(t, out)
		in.Write([]byte("\n"))
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		_, err := w.answer(p, Rejected)
		o := w.outcome(ticket)
		var answered *AnsweredError
		switch {
		case err == nil && o.Answer.Verdict == Rejected:
			by["second"]++
		case errors.As(err, &answered) && answered.Answer.Verdict == Approved && o.Allowed():
			by["killed"]++
		default:
			t.Errorf("the second was told %v, the outcome is %s", err, o.Answer.Verdict)
		}
	}
	t.Logf("who answered: %v", by)
}

// The asking process is killed. Its proposals are withdrawn and can no longer be approved.
func TestKilledAsker(t *testing.T) {
	w := newWorld(t)
	cmd, _, out := w.process("ask", "a.example.com", "b.example.com", "c.example.com")
	var ids []ID
	for range 3 {
		ids = append(ids, ID(line(t, out)))
	}
	mine := w.propose(w.asker("dev"), allowHost(t, "a.example.com"))
	l := w.list(Query{})
	if len(l.Entries) != 4 {
		t.Fatalf("%d wait, %v", len(l.Entries), l.Problems)
	}
	theirs := l.Entries[1].Proposal
	for _, e := range l.Entries {
		if e.Proposal.ID == ids[1] {
			theirs = e.Proposal
		}
	}
	// A proposal is approved while its asker is being killed.
	w.must(theirs, Approved)
	cmd.Process.Kill()
	cmd.Wait()
	for _, e := range l.Entries {
		if e.Proposal.ID == ids[0] {
			if _, err := w.answer(e.Proposal, Approved); !errors.Is(err, ErrGone) {
				t.Errorf("approved for nobody: %v", err)
			}
		}
	}
	if l := w.list(Query{}); len(l.Entries) != 1 || l.Entries[0].Proposal.ID != mine.Proposal().ID {
		t.Errorf("waiting: %+v", l)
	}
	for _, id := range ids {
		e, err := w.q.Find(context.Background(), string(id))
		if err != nil {
			t.Fatal(err)
		}
		if id == ids[1] {
			// Nobody may claim that it was applied, or that it was not.
			if e.Answer.Verdict != Approved || e.Effect == "done" {
				t.Errorf("the approved one is %s, effect %q", e.Answer.Verdict, e.Effect)
			}
		} else if e.Answer.Verdict != Withdrawn {
			t.Errorf("%s is %s", id, e.Answer.Verdict)
		}
	}
	w.must(mine.Proposal(), Approved)
}

// A bottle proposes as much as it can: number, rate, size, and duplicates.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	a, neighbour := w.asker("dev"), w.asker("other")
	ctx := context.Background()
	same := map[ID]bool{}
	for range 20 {
		same[w.propose(a, allowHost(t, "same.example.com")).Proposal().ID] = true
	}
	if len(same) != 1 {
		t.Errorf("the same 20 times is %d proposals", len(same))
	}
	var tickets []*Ticket
	var refused error
	for i := range MaxWaiting * 2 {
		ticket, err := a.Propose(ctx, allowHost(t, fmt.Sprintf("h%d.example.com", i)), Draft{})
		if err != nil {
			refused = err
			continue
		}
		tickets = append(tickets, ticket)
	}
	if !errors.Is(refused, errFull) || len(w.list(Query{Bottle: "dev"}).Entries) != MaxWaiting {
		t.Errorf("%d wait; %v", len(w.list(Query{Bottle: "dev"}).Entries), refused)
	}
	w.propose(neighbour, allowHost(t, "h.example.com")).Close()
	for _, ticket := range tickets {
		ticket.Close()
	}
	// Proposing and withdrawing is bounded too. The test fills the hour without proposals,
	// which would take as long.
	a.mu.Lock()
	for len(a.made) < maxPerHour {
		a.made = append(a.made, time.Now())
	}
	a.mu.Unlock()
	if _, err := a.Propose(ctx, allowHost(t, "late.example.com"), Draft{}); !errors.Is(err, errFull) {
		t.Errorf("more than an hour's: %v", err)
	}
	a.mu.Lock()
	for i := range a.made {
		a.made[i] = a.made[i].Add(-time.Hour)
	}
	a.mu.Unlock()
	w.propose(a, allowHost(t, "later.example.com")).Close()

	long := strings.Repeat("a", 1<<20)
	p := w.propose(a, allowHost(t, "words.example.com"), func(d *Draft) { d.Why, d.Tool = strings.Repeat("\u202e\x1b[2J", 1<<18), long }).Proposal()
	if len(p.Why) > maxWhy || len(p.Tool) > maxTool {
		t.Errorf("%d bytes of words, %d of a tool's name", len(p.Why), len(p.Tool))
	}
	if e, err := w.q.Find(ctx, string(p.ID)); err != nil || e.Proposal.Why != p.Why {
		t.Errorf("it does not read back: %v", err)
	}
	for name, x := range map[string]Payload{
		"a long host":      EgressAllow{Routes: []RouteAdded{{Host: long}}},
		"many routes":      EgressAllow{Routes: make([]RouteAdded, maxRoutes+1)},
		"no routes":        EgressAllow{},
		"long findings":    GitleaksAllow{Repository: long, Findings: push().Findings},
		"many findings":    GitleaksAllow{Repository: "x", Findings: make([]GitFinding, maxFindings+1)},
		"a long baseline":  BaselineUpdate{Gate: "a", Repository: "b", File: "c", Before: long, After: "x"},
		"baselines in sum": BaselineUpdate{Gate: "a", Repository: "b", File: "c", Before: long[:MaxPayload-100], After: long[:MaxPayload-200]},
		"no UTF-8":         BaselineUpdate{Gate: "a", Repository: "b", File: "c\xff", Before: "x", After: "y"},
	} {
		if _, err := a.Propose(ctx, x, Draft{}); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, host := range []string{"10.0.0.1", "db.example.com:5432/tcp", "8.8.8.8", "169.254.169.254", "[::1]:80", "127.0.0.1:22", "EXAMPLE.com", "exаmple.com", "0x7f.1", "a.example.com.", "evil.example\nhost: x", "a.example.com # ok"} {
		if _, err := a.Propose(ctx, EgressAllow{Routes: []RouteAdded{{Host: host}}}, Draft{}); err == nil {
			t.Errorf("host %q was taken", host)
		}
	}
	w.propose(a, allowHost(t, "a.example.com:8443"))
}

// tunnels are routes to what nobody looks into.
var tunnels = []string{"db.example.com:5432/tcp", "example.com:443/tcp", "a.example.com:22/tcp"}

// TestH1Tunnels: no proposal asks for a tunnel that nobody looks into, alone or behind an
// honest route; the same host and port without it is asked for.
func TestH1Tunnels(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	for _, host := range tunnels {
		for _, routes := range [][]RouteAdded{{{Host: host}}, {{Host: "fine.example.com"}, {Host: host}}} {
			if _, err := a.Propose(t.Context(), EgressAllow{Routes: routes}, Draft{Why: "x", Tool: "test"}); err == nil || !strings.Contains(err.Error(), "tunnel") {
				t.Errorf("%+v: %v", routes, err)
			}
		}
		w.propose(a, allowHost(t, strings.TrimSuffix(host, "/tcp")))
	}
}

// TestH1TunnelAnswered: an answer in another form opens no tunnel either; a narrower one
// counts.
func TestH1TunnelAnswered(t *testing.T) {
	w := newWorld(t)
	ticket := w.propose(w.asker("dev"), allowHost(t, "db.example.com:5432"))
	p := ticket.Proposal()
	answer := func(x Payload) error {
		_, err := w.q.Answer(t.Context(), Reply{ID: p.ID, Digest: p.Digest, Verdict: Modified, Payload: x, Channel: ChannelTUI})
		return err
	}
	for _, host := range tunnels {
		if err := answer(EgressAllow{Routes: []RouteAdded{{Host: host}}}); err == nil || !strings.Contains(err.Error(), "tunnel") {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := answer(allowHost(t, "db.example.com:5433")); err != nil {
		t.Error(err)
	}
	if o := w.outcome(ticket); !o.Allowed() {
		t.Errorf("%+v", o)
	}
}

// Setting the wall clock or restarting the machine does not change a deadline.
func TestClocks(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	set := func(host string, change func(*proposalFile)) (*Ticket, Proposal) {
		ticket := w.propose(a, allowHost(t, host))
		f, err := ticket.Proposal().file()
		if err != nil {
			t.Fatal(err)
		}
		change(&f)
		data, err := marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		w.put(string(f.ID)+proposalEnd, data, 0o600)
		return ticket, ticket.Proposal()
	}
	for i, d := range []time.Duration{-100 * 365 * 24 * time.Hour, -time.Hour, time.Hour, 100 * 365 * 24 * time.Hour} {
		ticket, p := set(fmt.Sprintf("h%d.example.com", i), func(f *proposalFile) { f.Created, f.Expires = f.Created.Add(d), f.Expires.Add(d) })
		w.must(p, Approved)
		if !w.outcome(ticket).Allowed() {
			t.Errorf("a clock that is %s off refuses", d)
		}
	}
	_, p := set("late.example.com", func(f *proposalFile) { f.Deadline.NS = bootTime() - 1; f.Expires = f.Expires.Add(time.Hour) })
	if _, err := w.answer(p, Approved); !errors.Is(err, ErrExpired) {
		t.Errorf("approved when the time was up: %v", err)
	}
	_, p = set("boot.example.com", func(f *proposalFile) { f.Deadline.Boot = "another" })
	if _, err := w.answer(p, Approved); !errors.Is(err, ErrExpired) {
		t.Errorf("approved what was asked before the machine started: %v", err)
	}
}

// A queue or an audit log that cannot be written refuses.
func TestUnwritable(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ctx := context.Background()
	ticket := w.propose(a, allowHost(t, "a.example.com"))
	w.log.fail = errors.New("disk is full")
	if _, err := w.answer(ticket.Proposal(), Approved); err == nil {
		t.Error("approved without a record")
	}
	if _, err := a.Propose(ctx, allowHost(t, "b.example.com"), Draft{}); err == nil {
		t.Error("proposed without a record")
	}
	select {
	case <-ticket.Done():
		t.Error("somebody was answered")
	default:
	}
	w.log.fail = nil
	w.must(ticket.Proposal(), Approved)
	if !w.outcome(ticket).Allowed() {
		t.Error("not allowed when all is well")
	}
	<-ticket.w.saved
	if err := os.RemoveAll(w.file("")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Propose(ctx, allowHost(t, "c.example.com"), Draft{}); err == nil {
		t.Error("proposed into nothing")
	}

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Audit: w.log}); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a directory that others can enter: %v", err)
	}
	if err := os.Symlink(w.dir, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir+"/link", Options{Audit: w.log}); err == nil {
		t.Error("a link was followed")
	}
	if _, err := Open(dir+"/new", Options{}); err == nil {
		t.Error("opened without a log")
	}
}

// shown returns all text of a detail.
func shown(d Detail) string {
	var b strings.Builder
	fmt.Fprintln(&b, d.Title, d.Warning, d.Notices)
	for _, s := range d.Sections {
		fmt.Fprintln(&b, s.Title)
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "%s: %s\n", f.Name, f.Value)
		}
		for _, l := range s.Lines {
			fmt.Fprintf(&b, "%c%s\n", l.Mark, l.Text)
		}
	}
	return b.String()
}

// Text that hides the real change is shown visibly, with a notice.
func TestHiddenChange(t *testing.T) {
	tricks := map[string]string{
		"escape":       "safe\x1b[1A\x1b[2Kgone",
		"title":        "\x1b]0;approved\x07",
		"c1":           "safe\u009b2Jgone",
		"bidi":         "safe \u202e live\u202c end",
		"isolate":      "a\u2066b\u2069c",
		"zero width":   "exam\u200bple",
		"tags":         "safe\U000e0041\U000e0042",
		"return":       "evil.example\rgood.example",
		"backspace":    "evil\b\b\b\bgood",
		"filler":       "a\u3164b",
		"line":         "a\u2028b",
		"marks":        "a" + strings.Repeat("\u0301", 40),
		"broken UTF-8": "a\ufffdb\x7f",
	}
	for name, trick := range tricks {
		for where, p := range map[string]Payload{
			"a file's name": func() Payload {
				x := push()
				x.Findings = append([]GitFinding(nil), x.Findings...)
				x.Findings[0].File = trick
				return x
			}(),
			"code": func() Payload {
				x := push()
				x.Findings = []GitFinding{x.Findings[0]}
				x.Findings[0].Code = []CodeLine{{3, trick}}
				return x
			}(),
			"a path":        func() Payload { x := token(TokenAllow); x.Path = "/" + trick; return x }(),
			"a diff":        BaselineUpdate{Gate: "g", Repository: "r", File: "f", Before: "a\n", After: "a\n" + trick + "\n"},
			"a failure":     GateOverride{Gate: "g", Repository: "r", Commit: "c", Verdict: "v", Failures: []string{trick}},
			"a step":        Apply{Action: "apply", Module: "m", Commit: "c", Plans: []ApplyPlan{{Digest: "p", Host: "h", Changes: []ApplyChange{{What: trick, Action: "create"}}}}},
			"a root":        Apply{Action: "apply", Module: "m", Commit: "c", Plans: []ApplyPlan{{Digest: "p", Host: "h", Root: trick}}},
			"a way back":    Apply{Action: "apply", Module: "m", Commit: "c", Plans: []ApplyPlan{{Digest: "p", Host: "h", Back: trick}}},
			"a plan's file": Apply{Action: "apply", Module: "m", Commit: "c", Files: []string{trick}, Plans: []ApplyPlan{{Digest: "p", Host: "h", Changes: []ApplyChange{{What: "x", Action: "create"}}}}},
			"a test":        TestsGone{Gate: "g", Repository: "r", Signal: "s", Verdict: "v", File: "f", To: "t", Signer: "s", Tests: []string{trick}},
			"an edit":       TestsGone{Gate: "g", Repository: "r", Signal: "s", Verdict: "v", File: "f", To: "t", Signer: "s", Files: "d", Tests: []string{"x"}, Shown: []string{trick}},
			"a fourth try":  GateAttempts{Gate: "g", Repository: "r", Work: "w", Step: "s", Made: 3, More: 1, Failures: []string{trick}},
			"a request":     func() Payload { x := allowHost(t, "a.example.com"); x.Past = []PastRequest{{trick, 1}}; return x }(),
		} {
			d := Proposal{Payload: p}.Detail(false)
			text := shown(d)
			for _, bad := range []string{"\x1b", "\u009b", "\u202e", "\u2066", "\u200b", "\U000e0041", "\r", "\b", "\u3164", "\u2028", "\x7f"} {
				if strings.Contains(text, bad) {
					t.Errorf("%s in %s reaches a terminal: %q", name, where, text)
				}
			}
			if len(d.Notices) == 0 {
				t.Errorf("%s in %s is not pointed out:\n%s", name, where, text)
			}
		}
		d := Proposal{Payload: token(TokenRedact), Why: trick}.Detail(false)
		if len(d.Notices) == 0 {
			t.Errorf("%s in the agent's words is not pointed out", name)
		}
	}
	if d := (Proposal{Payload: token(TokenRedact), Why: "it is \"needed\": größer, 日本語,\n\tsee above"}).Detail(false); len(d.Notices) != 0 {
		t.Errorf("honest words are pointed out: %v", d.Notices)
	}

	// Lines of content that look like those of a diff, and texts that differ in white space
	// only.
	diff := func(before, after string) Detail {
		return Proposal{Payload: BaselineUpdate{Gate: "g", Repository: "r", File: "f", Before: before, After: after}}.Detail(false)
	}
	if s := shown(diff("-- allow: no\nx\n", "x\n++ allow: yes\n")); !strings.Contains(s, "--- allow: no") || !strings.Contains(s, "+++ allow: yes") {
		t.Errorf("lines that look like a diff's head are gone:\n%s", s)
	}
	if s := shown(diff("a\tb\n", "a    b\n")); !strings.Contains(s, `a\tb`) {
		t.Errorf("a tab is not told from spaces:\n%s", s)
	}
	if s := shown(diff("a\n", "a  \n")); !strings.Contains(s, `a\x20\x20`) {
		t.Errorf("spaces at an end are not shown:\n%s", s)
	}
	if s := shown(diff("a\r\n", "a\n")); !strings.Contains(s, `a\r`) {
		t.Errorf("a line's end is not shown:\n%s", s)
	}
	// A change inside a long text is shown whole.
	filler := strings.Repeat("nothing to see here\n", 2000)
	if s := shown(diff(filler+filler, filler+"evil: true\n"+filler)); !strings.Contains(s, "+evil: true") || len(s) > 4000 {
		t.Errorf("a small change in a long text: %d bytes", len(s))
	}
	long := strings.Repeat("y", 60<<10)
	if s := shown(diff("x\n", long+"EVIL"+long+"\n")); !strings.Contains(s, "EVIL") {
		t.Error("the middle of a long line of the change is left out")
	}
	if s := shown(Proposal{Payload: func() Payload {
		x := push()
		x.Findings = []GitFinding{x.Findings[0]}
		x.Findings[0].File = long[:1500] + "EVIL" + long[:1500]
		return x
	}()}.Detail(false)); !strings.Contains(s, "EVIL") {
		t.Error("the middle of a long field is left out")
	}
	// Words may be cut in the middle. The missing bytes are counted, and can be shown.
	p := Proposal{Payload: token(TokenRedact), Why: "begin " + long[:maxWhy] + "\u202eEVIL" + long[:maxWhy] + " end"}
	cut := p.Detail(false)
	var words Section
	for _, s := range cut.Sections {
		if s.Cut > 0 {
			words = s
		}
	}
	s := shown(cut)
	if !words.Theirs || words.Cut < maxWhy || !strings.Contains(s, "begin ") || !strings.Contains(s, " end") || !strings.Contains(s, fmt.Sprintf("[%d bytes are left out here]", words.Cut)) {
		t.Errorf("long words: cut %d\n%.300s", words.Cut, s)
	}
	if len(cut.Notices) == 0 {
		t.Error("what is hidden in the part that is left out is not pointed out")
	}
	if s := shown(p.Detail(true)); !strings.Contains(s, "EVIL") {
		t.Error("all of it does not show all of it")
	}
}

// A line of the list is one short line.
func TestTitles(t *testing.T) {
	for kind, p := range each(t) {
		if s := (Proposal{Payload: p}).Title().String(); s == "" || strings.ContainsAny(s, "\n\x1b") || len(s) > maxTitle {
			t.Errorf("%s: %q", kind, s)
		}
	}
	x := push()
	x.Repository = "infra\n\x1b[2Japproved by root"
	if s := (Proposal{Payload: x}).Title().String(); strings.ContainsAny(s, "\n\x1b") {
		t.Errorf("%q", s)
	}
}

// A kind that is taken, or has an invalid name, cannot be registered.
func TestRegistry(t *testing.T) {
	panics := func(f func()) (did bool) {
		defer func() { did = recover() != nil }()
		f()
		return
	}
	if !panics(register[EgressAllow]) {
		t.Error("a kind was registered twice")
	}
	if !panics(register[nameless]) {
		t.Error("a kind without a name was registered")
	}
	if _, err := decode("nothing", []byte("{}")); err == nil {
		t.Error("a kind that nobody knows was read")
	}
	w := newWorld(t)
	if _, err := w.asker("dev").Propose(context.Background(), nameless{}, Draft{}); err == nil {
		t.Error("a kind that is not registered was proposed")
	}
	// Only an answer makes an approval.
	p := Proposal{Payload: allowHost(t, "a.example.com"), Kind: kindEgressAllow}
	for _, v := range []Verdict{"", Rejected, Expired, Withdrawn, "yes"} {
		if _, ok := ApprovalOf[EgressAllow](Outcome{p, Answer{Verdict: v}}); ok {
			t.Errorf("%q is an approval", v)
		}
	}
	if _, ok := ApprovalOf[EgressAllow](Outcome{}); ok {
		t.Error("nothing is an approval")
	}
	if _, ok := ApprovalOf[EgressAllow](Outcome{p, Answer{Verdict: Modified}}); ok {
		t.Error("modified into nothing is an approval")
	}
}

type nameless struct{ EgressAllow }

func (nameless) Kind() Kind { return "No Name" }

// A known secret is not written to the queue.
func TestSecrets(t *testing.T) {
	w := newWorld(t)
	const value = "hunter2-hunter2-hunter2"
	r, err := secret.NewRedactor(map[string]secret.Value{"key": secret.NewString(value)})
	if err != nil {
		t.Fatal(err)
	}
	w.q.o.Redactor = r
	a := w.asker("dev")
	x := token(TokenAllow)
	x.Path = "/" + value
	if _, err := a.Propose(context.Background(), x, Draft{}); err == nil {
		t.Error("a payload with a known secret was taken")
	}
	long := w.propose(a, token(TokenRedact), func(d *Draft) { d.Why = "it is " + value + strings.Repeat(".", maxWhy-10) + value }).Proposal()
	data, err := os.ReadFile(w.file(string(long.ID) + proposalEnd))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte(value[:12])) || !strings.Contains(long.Why, "[redacted:key]") {
		t.Errorf("the words hold the secret: %.100s", long.Why)
	}
	for _, e := range w.log.events {
		if strings.Contains(e.Subject.String()+e.Text.String(), value) {
			t.Errorf("a record holds it: %+v", e)
		}
	}
}
