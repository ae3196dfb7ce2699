package carboy

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
)

// attackQueue tries to answer a command's own proposal from inside. STATE is where the
// queue lies on the host.
const attackQueue = `
url=http://supervise.carboy.internal

call egress-allow '{"host":"wanted.example.com","reason":"mine"}'

# Words for an answer, to whatever listens.
for tool in egress-approve supervise/answer apply; do
	call "$tool" '{"id":"01","verdict":"approved"}' | grep -q '"result"' && echo "GOT a tool $tool"
done
urls=
for path in / /approve /mcp/approve /mcp/../waiting /answer; do
	urls="$urls http://supervise.carboy.internal$path http://git.carboy.internal$path http://egress.carboy.internal$path"
done
for m in GET POST; do
	curl -s -X $m -o /dev/null -w "%{http_code} $m %{url_effective}\n" --path-as-is -d '{"verdict":"approved"}' $(echo $urls | sed 's/ / -o \/dev\/null /g') | sed -n 's/^2/GOT 2/p'
done
curl -s -X DELETE -o /dev/null -w '%{http_code} a session\n' -H 'Mcp-Session-Id: 1' $url/mcp | sed -n 's/^2/GOT 2/p'

# Files and sockets of the host's.
ls STATE/supervise 2>/dev/null && echo GOT the queue
mkdir -p STATE/supervise/waiting 2>/dev/null && echo '{"verdict":"approved"}' > STATE/supervise/waiting/01.answer
ls /run /tmp | grep -i -e carboy -e sock && echo GOT a socket

# Hosts that are others.
for host in '*' '[::1]' '169.254.169.254' 'localhost' 'host.carboy.internal:22' 'supervise.carboy.internal' 'evil.example.com\u0000.example.com' 'evil\u202emoc.example.com' 'evil.example.com\nroutes:' 'db.example.com:5432/tcp'; do
	call egress-allow "{\"host\":\"$host\",\"reason\":\"x\"}" | grep -q '"isError":true' || echo "ASKED for $host"
done
for more in '"private":true' '"upstream":"127.0.0.1:22"' '"bottle":"other"' '"routes_yaml":"routes: [{host: b.example.com}]"'; do
	call egress-allow "{\"host\":\"a.example.com\",\"reason\":\"x\",$more}" | grep -q '"isError":true' || echo "ASKED with $more"
done

for route in '{host: b.example.com, private: true}' '{host: b.example.com, token_env: A}' '{host: b.example.com, upstream: 127.0.0.1:22}' '{host: b.example.com, inspect: false}' '{host: b.example.com:1/tcp}' '{host: supervise.carboy.internal}'; do
	call egress-allow "{\"routes_yaml\":\"routes: [$route]\",\"reason\":\"x\"}" | grep -q '"isError":true' || echo "ASKED for $route"
done

# Too much.
head -c 70000 /dev/zero | tr '\0' '[' | curl -s -o /dev/null -w '%{http_code} too large\n' -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' --data-binary @- $url/mcp
curl -sS http://wanted.example.com/ -o /dev/null && echo REACHED
curl -sS http://egress.carboy.internal/allowlist | grep -i host: | sed "s/^/LISTED /"
echo END
`

// TestNothingInsideAnswers: what runs in a bottle can ask and no more. It finds no
// way to answer, no queue, nobody else's proposals, and can't ask for what a user alone
// may grant.
func TestNothingInsideAnswers(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	base := t.TempDir()
	w := &world{t: t, ws: filepath.Join(base, "ws")}
	vars := map[string]string{"XDG_STATE_HOME": filepath.Join(base, "state"), "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
	for _, d := range []string{w.ws, base, filepath.Dir(base)} {
		_ = os.Mkdir(d, 0o755)
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	w.c = openClient(t, vars)
	w.outside(http.NotFoundHandler())

	// Another bottle waits meanwhile, and must hear of nothing.
	q, err := w.c.Proposals()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	other, err := q.Asker(supervise.AskerOptions{Bottle: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ticket, err := other.Propose(t.Context(), supervise.EgressAllow{Routes: []supervise.RouteAdded{{Host: "private-to-other.example.com"}}}, supervise.Draft{})
	if err != nil {
		t.Fatal(err)
	}
	defer ticket.Close()

	// What it may ask for reaches people, who say no.
	answers := w.answering(func(p supervise.Proposal) supervise.Reply {
		if p.Bottle == "other" {
			return supervise.Reply{}
		}
		return supervise.Reply{Verdict: supervise.Rejected}
	})
	var out strings.Builder
	rec, err := w.c.Run(t.Context(), plan.Options{
		Command: []string{"sh", "-c", callTool + strings.ReplaceAll(attackQueue, "STATE", w.c.StateDir())}, Workspace: w.ws, Mode: store.None,
		Supervise: true, AskFor: 20 * time.Second, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	said := out.String()
	for _, bad := range []string{"GOT", "ASKED", "REACHED", "private-to-other", "LISTED", "Approved"} {
		if strings.Contains(said, bad) {
			t.Errorf("%s in\n%s", bad, said)
		}
	}
	for _, want := range []string{"Rejected.", "413 ", "END"} {
		if !strings.Contains(said, want) {
			t.Fatalf("no %q in\n%s", want, said) // then nothing was proposed either
		}
	}
	for _, p := range rec.Proposals.List {
		if p.Verdict == "approved" || p.Verdict == "modified" {
			t.Errorf("%+v", p)
		}
	}
	if k := answers.kinds(); k != "egress-allow" {
		t.Errorf("asked: %q", k)
	}
	select {
	case <-ticket.Done():
		t.Error("another bottle's proposal was answered")
	default:
	}
	if l, err := q.List(t.Context(), supervise.Query{}); err != nil || len(l.Problems) > 0 {
		t.Errorf("%v %v", err, l.Problems)
	}
}
