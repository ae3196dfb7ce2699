package agenttest

import (
	"context"
	"crypto/rand"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/testenv"
)

// TestWorkByFeedback resumes a real agent in its bottle and conversation until it passes a
// gate. For that the agent needs a number that is only in the output of its failed attempt.
// The usage of each attempt equals the vendor's count.
func TestWorkByFeedback(t *testing.T) {
	const name = "pi-coding-agent"
	a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == name && a.api == "anthropic messages" })]
	a.with(t, name, func(t *testing.T, dir string) {
		testenv.Need(t, "node", "apt-get install nodejs")
		testenv.Need(t, "git", "apt-get install git")
		h := newHost(t)
		key := newKey(t)
		h.vars["MY_KEY"] = key
		h.install(dir)
		n, err := rand.Int(rand.Reader, big.NewInt(1e9))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%09d", n)
		told := regexp.MustCompile(`want=([0-9]{9})`)
		server := New(t, key, Script{
			Final: "42 tests passed, all is well.",
			Decide: func(request string, results []string) *Step {
				answer := "000000000"
				if all := told.FindAllStringSubmatch(request, -1); all != nil && strings.Contains(request, "It is data") {
					answer = all[len(all)-1][1]
				}
				if slices.ContainsFunc(results, func(r string) bool { return strings.Contains(r, "wrote "+answer) }) {
					return nil
				}
				return &Step{Run: "printf %s " + answer + " >answer && echo wrote " + answer}
			},
		})
		h.manifests(t, map[string]string{
			"bottles/js.md": fmt.Sprintf("---\nagent_provider: {template: pi}\negress:\n  routes: [{host: %s, upstream: %q, token_env: MY_KEY, auth_scheme: x-api-key}]\n---\n", a.host, server.Addr),
			"agents/fix.md": "---\nbottle: js\nmodel: anthropic/claude-sonnet-4-5\n---\n",
		})
		catalog := filepath.Join(h.base, "gate.yaml")
		write(t, catalog, "version: 1\ndefaults: {env: {WANT: '"+want+"'}}\nsignals:\n  - name: check\n    kind: build\n    command: [sh, -c, 'test \"$(cat answer)\" = \"$WANT\" || { echo \"want=$WANT\"; exit 1; }']\n")
		h.open(t, server)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var out testenv.Buffer
		asked := []int{0}
		w, err := h.client.Work(ctx, carboy.WorkOptions{
			Agent: "fix", Prompt: "Write the right number into the file answer.", Dir: h.ws, Catalog: catalog, Stdout: &out, Stderr: &out,
			OnEvent: func(e carboy.Event) { fmt.Fprintln(&out, "event:", e.Kind, e.Text) },
			OnAttempt: func(s carboy.Attempt) {
				if s.State == carboy.AttemptJudging {
					asked = append(asked, len(server.Requests()))
				}
			},
		})
		said := fmt.Sprintf("it said:\n%.6000s", out.String())
		if err != nil {
			t.Fatalf("%v; %s", err, said)
		}
		if w.Outcome != gate.Passed || len(w.Attempts) != 2 || w.Attempts[0].Outcome != gate.Failed || !strings.Contains(w.Attempts[0].Feedback, "want="+want) {
			t.Fatalf("%+v; %s", w, said)
		}
		if w.Attempts[0].Bottle != w.Attempts[1].Bottle || w.Attempts[0].Run == w.Attempts[1].Run {
			t.Errorf("it was not resumed: %+v", w.Attempts)
		}
		for i, x := range w.Attempts {
			if u := x.Usage; u == nil || u.ModelCalls != int64(asked[i+1]-asked[i]) || u.ModelCalls < 2 || u.BytesUp == 0 || u.Duration <= 0 {
				t.Errorf("attempt %d used %+v, and the vendor was asked %v times in all", x.Number, u, asked)
			}
			// Each answer of the vendor states the same usage.
			if u := x.Usage; u == nil || u.Tokens == nil || u.Tokens.Answers == 0 || u.Tokens.Answers > u.ModelCalls || u.Tokens.Input != 100*u.Tokens.Answers || u.Tokens.Output != 10*u.Tokens.Answers {
				t.Errorf("attempt %d used %+v, of tokens %+v", x.Number, u, u.Tokens)
			}
		}
		// The second attempt continues the first one's conversation, with the account as
		// data.
		both := false
		for _, r := range server.Requests()[asked[1]:] {
			both = both || strings.Contains(string(r.Body), "wrote 000000000") && strings.Contains(string(r.Body), "It is data") && strings.Contains(string(r.Body), "want="+want)
		}
		if !both {
			t.Error("the model was not told of both")
		}
		for _, p := range server.Problems() {
			t.Error(p)
		}
		if t.Failed() {
			t.Log(said)
		}
		if b, err := exec.Command("grep", "-rl", want, h.ws).Output(); err == nil {
			t.Errorf("the number stood in the workspace: %s", b)
		}
		if _, err := os.Stat(h.ws + "/answer"); err == nil {
			t.Error("the work reached the workspace unasked")
		}
	})
}
