package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// once1 is a write that must happen once, and how to count it at the fake.
var once1 = map[string]func(f *fake) int{
	"PostOnce": func(f *fake) (n int) {
		for _, m := range f.issues[0].comments {
			if strings.HasSuffix(m.body, "Hello.\n\n<!-- carboy:key-1 -->") && m.by == me {
				n++
			}
		}
		return n
	},
	"OpenPullRequest": func(f *fake) (n int) {
		for _, p := range f.pulls {
			if p.head == "carboy/7-new" && !p.fork {
				n++
			}
		}
		return n
	},
	"UpdateDescription": func(f *fake) (n int) {
		if f.pulls[0].body == "<!-- carboy:begin -->\nCloses #7\n<!-- carboy:end -->\n\nNew text." {
			return 1
		}
		return 0
	},
	"SetStatus": func(f *fake) int {
		return len(slices.CompactFunc(slices.Clone(f.statuses), func(a, b map[string]any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }))
	},
}

// TestWritesOnce breaks each write before or after the forge did it, once or until the
// call fails. Whatever the call returns, a second one leaves exactly one. A call that
// returns no error has done it.
func TestWritesOnce(t *testing.T) {
	isWrite := func(r *req) bool { return r.Method != "GET" }
	spoils := map[string]func(rw, *req) bool{
		"500": answer(500, `{"message":"oops"}`), "502": answer(502, "<html>"), "408": answer(408, ""), "torn": torn, "cut": cut, "hang": hang,
		"HTML": answer(201, "<html>"), "null": answer(201, "null"), "{}": answer(201, "{}"), "another": answer(201, `{"number":99,"iid":99,"base":{"ref":"x"}}`),
	}
	refusals := map[string]func(rw, *req) bool{"403": answer(403, `{"message":"no"}`), "422": answer(422, `{"message":"no"}`)}
	each(t, func(t *testing.T, f *fake, c *Client) {
		for call, count := range once1 {
			for name, do := range spoils {
				for _, when := range []string{"before", "after"} {
					for _, times := range []int{1, 1000} {
						what := fmt.Sprintf("%s, %s %s, %d times", call, name, when, times)
						if when == "before" && (name == "HTML" || name == "null" || name == "{}" || name == "another") && (call == "UpdateDescription" || call == "SetStatus") {
							continue // nothing of their answers is read: it says that it was done
						}
						f, c := newFake(t, f.provider)
						c.timeout = 60 * time.Millisecond
						if name != "hang" {
							c.timeout = 20 * time.Second
						}
						n := times
						spoil := func(w rw, r *req) bool {
							if !isWrite(r) {
								return false
							}
							n--
							return n >= 0 && do(w, r)
						}
						if when == "before" {
							f.spoil(spoil, nil)
						} else {
							f.spoil(nil, spoil)
						}
						err := calls[call].do(t.Context(), c, repo)
						f.spoil(nil, nil)
						got := count(f)
						if got > 1 || err == nil && got != 1 {
							t.Errorf("%s: it is there %d times: %v", what, got, err)
						}
						if err != nil && when == "after" && times == 1 {
							t.Errorf("%s: it was done, and is not found: %v", what, err)
						}
						c.timeout = 20 * time.Second
						if err := calls[call].do(t.Context(), c, repo); err != nil {
							t.Errorf("%s: again: %v", what, err)
						}
						if got := count(f); got != 1 {
							t.Errorf("%s: in the end it is there %d times", what, got)
						}
					}
				}
			}
			for name, do := range refusals {
				f, c := newFake(t, f.provider)
				f.spoil(func(w rw, r *req) bool { return isWrite(r) && do(w, r) }, nil)
				writes := 0
				err := calls[call].do(t.Context(), c, repo)
				for _, s := range f.seen("") {
					if s.method != "GET" {
						writes++
					}
				}
				if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "may have arrived") || writes != 1 {
					t.Errorf("%s, %s: %v after %d writes", call, name, err, writes)
				}
			}
		}
	})
}

// TestOthersMarks checks that nobody else can make carboy believe that it has written.
func TestOthersMarks(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		mark1 := "Hello.\n\n<!-- carboy:key-1 -->"
		f.issues[0].comments = []fakeComment{{1, "eve", mark1, fakeTime}, {2, "", mark1, fakeTime}}
		m := must[*Comment](t)(c.PostOnce(ctx, repo, issue7, "key-1", "Hello."))
		if m.ID < 100 || m.Author.Login != me {
			t.Errorf("%+v", m)
		}
		// What an agent writes is posted by the same account.
		for _, body := range []string{"x\n\n<!-- carboy:key-2 -->", "<!-- <!-- carboy:carboy:key-2 -->", "<!-- carboy:begin -->\nfake\n<!-- carboy:end -->"} {
			must[*Comment](t)(c.PostOnce(ctx, repo, issue7, "agent-"+fmt.Sprint(len(body)), body))
		}
		before := len(f.issues[0].comments)
		must[*Comment](t)(c.PostOnce(ctx, repo, issue7, "key-2", "Important."))
		if len(f.issues[0].comments) != before+1 {
			t.Error("an agent's text kept a comment from being posted")
		}
		m = must[*Comment](t)(c.PostOnce(ctx, repo, issue7, "key-2", "Another text."))
		if len(f.issues[0].comments) != before+1 || !strings.HasPrefix(m.Body, "Important.") {
			t.Errorf("posted again: %+v", m)
		}
		// The same key on another thread is another comment.
		must[*Comment](t)(c.PostOnce(ctx, repo, pull8, "key-2", "There."))
		if n := len(f.pulls[0].comments); n != 1 {
			t.Errorf("%d comments on the pull request", n)
		}

		// A stranger's fork has a branch of the same name.
		want := NewPullRequest{"main", "carboy/7-new", "Mend it", ""}
		f.pulls = append(f.pulls, &fakeThread{number: 50, pull: true, state: "open", base: "main", head: want.Head, fork: true}, &fakeThread{number: 51, pull: true, state: "open", base: "dev", head: want.Head},
			&fakeThread{number: 52, pull: true, state: "closed", base: "main", head: want.Head})
		p := must[*PullRequest](t)(c.OpenPullRequest(ctx, repo, want))
		if p.Number != 53 || p.Fork {
			t.Errorf("%+v", p)
		}
		if p := must[*PullRequest](t)(c.OpenPullRequest(ctx, repo, want)); p.Number != 53 {
			t.Errorf("%+v", p)
		}
		if _, err := c.OpenPullRequest(ctx, repo, NewPullRequest{"main", "eve:carboy/7-new", "x", ""}); err == nil {
			t.Error("a branch of another's fork")
		}
	})
}

func TestUpdateDescription(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		body := func() string { return f.pulls[0].body }
		update := func(text, block string) {
			t.Helper()
			if err := c.UpdateDescription(ctx, repo, pull8, text, block); err != nil {
				t.Fatal(err)
			}
		}
		update("First.", "Closes #7")
		full := "<!-- carboy:begin -->\nCloses #7\n<!-- carboy:end -->\n\nFirst."
		same(t, "first", body(), full)
		writes := len(f.seen("PATCH")) + len(f.seen("PUT"))
		f.pulls[0].body = strings.ReplaceAll(full, "\n", "\r\n") + "\r\n" // as a browser sends it
		update("First.", "")
		if n := len(f.seen("PATCH")) + len(f.seen("PUT")); n != writes {
			t.Error("the same was written again")
		}
		// The agent can't remove the block, end it, or make another.
		for _, text := range []string{"", "<!-- carboy:end -->", "<!-- carboy:begin -->\nCloses #99\n<!-- carboy:end -->", "<!-- <!-- carboy:carboy:begin -->\nCloses #99\n<!-- carboy:end -->", "```\n<!--", "second"} {
			update(text, "")
			if b := blockOf(body()); b != "Closes #7" {
				t.Errorf("after %q the block is %q", text, b)
			}
			if !strings.HasPrefix(body(), blockBegin+"\nCloses #7\n"+blockEnd) {
				t.Errorf("after %q something is above the block, and may swallow it: %q", text, body())
			}
			if strings.Count(body(), blockBegin) != 1 || strings.Count(body(), blockEnd) != 1 {
				t.Errorf("after %q: %q", text, body())
			}
		}
		update("Third.", "Closes #7\nmore")
		same(t, "another block", blockOf(body()), "Closes #7\nmore")
		same(t, "the text alone", Text(body()), "Third.")
		same(t, "the text around", Text("Above.\r\n"+body()+"\nP.S."), "Above.\n\nThird.\nP.S.")
		same(t, "no block", Text("<!-- carboy:begin -->\nno end"), "<!-- carboy:begin -->\nno end")
		// A person writes below it, or removes it.
		f.pulls[0].body += "\nP.S."
		update("Fourth.", "")
		same(t, "with an addition", blockOf(body()), "Closes #7\nmore")
		f.pulls[0].body = "gone"
		update("Fifth.", "")
		same(t, "removed", body(), "Fifth.")
		f.pulls[0].body = "<!-- carboy:begin -->\nno end"
		update("Sixth.", "")
		same(t, "torn", body(), "Sixth.")
		// On an issue.
		if err := c.UpdateDescription(ctx, repo, issue7, "Text.", ""); err != nil || f.issues[0].body != "Text." {
			t.Errorf("%v %q", err, f.issues[0].body)
		}
	})
}

// A person edits the description between our reading and writing.
func TestEditedMeanwhile(t *testing.T) {
	f, c := newFake(t, "gitea")
	f.after = func(_ rw, r *req) bool {
		if r.Method == http.MethodGet && f.pulls[0].version == 0 {
			f.pulls[0].version, f.pulls[0].body = 1, Described("by a person", "Closes #7, #8")
		}
		return false
	}
	if err := c.UpdateDescription(t.Context(), repo, pull8, "Ours.", ""); err != nil {
		t.Fatal(err)
	}
	same(t, "body", f.pulls[0].body, Described("Ours.", "Closes #7, #8"))
	f.after = func(_ rw, r *req) bool {
		if r.Method == http.MethodGet {
			f.pulls[0].version++
			f.pulls[0].body += "."
		}
		return false
	}
	if err := c.UpdateDescription(t.Context(), repo, pull8, "Ours again.", ""); !is(err, 409) {
		t.Errorf("always edited: %v", err)
	}
}

func TestStatus(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		long := strings.Repeat("ä", 200)
		s := Status{"failure", "carboy/gate", long, ""}
		for range 2 {
			if err := c.SetStatus(t.Context(), repo, headSHA, s); err != nil {
				t.Fatal(err)
			}
		}
		got := f.statuses[len(f.statuses)-1]
		if d := []rune(text(got, "description")); len(d) != 140 || d[139] != '…' {
			t.Errorf("%q", d)
		}
		if f.provider == "gitlab" && (got["state"] != "failed" || got["name"] != "carboy/gate" || len(f.statuses) != 1) {
			t.Errorf("%v", f.statuses)
		}
		if err := c.SetStatus(t.Context(), repo, headSHA, Status{"success", "carboy/gate", "", ""}); err != nil {
			t.Fatal(err)
		}
		if got := f.statuses[len(f.statuses)-1]; got["state"] != "success" {
			t.Errorf("%v", got)
		}
		for _, bad := range []string{"", "HEAD", headSHA[:39], headSHA + "/..", strings.ToUpper("a" + headSHA[1:])} {
			if err := c.SetStatus(t.Context(), repo, bad, s); err == nil {
				t.Errorf("%q is taken for a commit", bad)
			}
		}
	})
}

// TestCommandsAreInert: GitLab carries out lines such as /merge, with the token's rights.
func TestCommandsAreInert(t *testing.T) {
	f, c := newFake(t, "gitlab")
	ctx := t.Context()
	attack := "/close\n /merge\nok\r/approve\r\n\u200b/assign @eve\n\n\t/label ~x\n/MERGE"
	must[*Comment](t)(c.PostOnce(ctx, repo, issue7, "a", attack))
	must[*PullRequest](t)(c.OpenPullRequest(ctx, repo, NewPullRequest{"main", "carboy/7-new", "x", attack}))
	if err := c.UpdateDescription(ctx, repo, issue7, attack, "/merge"); err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, s := range slices.Concat(f.seen("POST"), f.seen("PUT")) {
		var in map[string]string
		if err := json.Unmarshal(s.body, &in); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, in["body"]+in["description"])
	}
	if len(texts) != 3 {
		t.Fatalf("%q", texts)
	}
	for _, s := range texts {
		// GitLab removes carriage returns first, and wants the slash at the beginning of a line.
		for _, line := range strings.Split(strings.ReplaceAll(s, "\r", ""), "\n") {
			if strings.HasPrefix(strings.TrimLeft(line, " \t\u200b"), "/") {
				t.Errorf("a command: %q", line)
			}
		}
	}
	// Its control: what is no command stays.
	plain := "See a/b and https://x/merge.\n- /merge is a command\n// a comment\n"
	same(t, "plain text", inert(plain), plain)
	same(t, "one", inert("x\n/merge"), "x\n\\/merge")
}

// Whose token it is, is asked once, and a forge that does not say so gets no comment.
func TestWhoseToken(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		count := func() (n int) {
			for _, s := range f.seen("GET") {
				if s.path == "/user" {
					n++
				}
			}
			return n
		}
		for i := range 3 {
			must[*Comment](t)(c.PostOnce(t.Context(), repo, issue7, fmt.Sprint("k", i), "x"))
		}
		if count() != 1 {
			t.Errorf("asked %d times", count())
		}
		c.login = ""
		f.spoil(func(w rw, r *req) bool {
			return strings.HasSuffix(r.URL.Path, "/user") && answer(403, `{"message":"no"}`)(w, r)
		}, nil)
		before := len(f.seen("POST"))
		if _, err := c.PostOnce(t.Context(), repo, issue7, "k9", "x"); err == nil || !strings.Contains(err.Error(), "whose token") || len(f.seen("POST")) != before {
			t.Errorf("%v", err)
		}
	})
}

// A caller who leaves gets an answer at once, and a second call finds what was done.
func TestCallerLeaves(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx, cancel := context.WithCancel(t.Context())
		f.spoil(nil, func(w rw, r *req) bool {
			if r.Method != http.MethodPost {
				return false
			}
			cancel()
			return hang(w, r)
		})
		if _, err := c.PostOnce(ctx, repo, issue7, "key-1", "Hello."); err == nil {
			t.Error("no error")
		}
		f.spoil(nil, nil)
		must[*Comment](t)(c.PostOnce(t.Context(), repo, issue7, "key-1", "Hello."))
		if n := once1["PostOnce"](f); n != 1 {
			t.Errorf("posted %d times", n)
		}
	})
}
