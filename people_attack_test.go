package carboy

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// attackQueue is what a command tries that wants to answer itself. STATE is where the
// queue lies on the host.
const attackQueue = `
url=http://supervise.carboy.internal
post() { curl -sS -o /dev/null -w "%{http_code} $1\n" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' "$@"; }

call egress-allow '{"host":"wanted.example.com","reason":"mine"}' > /tmp/wanted &
for i in 1 2 3 4 5 6 7 8 9 10; do test -e /tmp/asked && break; sleep 0.1; done

# Words for an answer, to whatever listens.
for tool in egress-approve approve answer supervise/answer egress-token-allow gate-override apply; do
	call "$tool" '{"id":"01","verdict":"approved","host":"wanted.example.com"}' | grep -q '"result"' && echo "GOT a tool $tool"
done
for path in / /approve /api/approve /mcp/approve /mcp/../waiting /waiting /answer /sse /events /.well-known/oauth-protected-resource; do
	for host in supervise.carboy.internal git.carboy.internal egress.carboy.internal; do
		for m in GET POST PUT DELETE; do
			case $(curl -sS -X $m -o /tmp/body -w '%{http_code}' --path-as-is "http://$host$path" -d '{"verdict":"approved"}' 2>/dev/null) in 2*) echo "GOT $m $host$path";; esac
		done
	done
done
for m in PUT DELETE PATCH GET; do
	case $(curl -sS -X $m -o /dev/null -w '%{http_code}' -H 'Mcp-Session-Id: 1' $url/mcp) in 2*) echo "GOT $m of a session";; esac
done

# Files and sockets of the host's.
ls STATE/supervise 2>/dev/null && echo GOT the queue
mkdir -p STATE/supervise/waiting 2>/dev/null && echo '{"verdict":"approved"}' > STATE/supervise/waiting/01.answer
find / -xdev -name '*.sock' 2>/dev/null | grep -i carboy && echo GOT a socket

# Hosts that are others.
for host in 'https://evil.example.com' 'evil.example.com/x' 'user@evil.example.com' '*' '*.com:0' '127.0.0.1' '[::1]' '169.254.169.254' '10.1.2.3:80' 'localhost' 'host.carboy.internal:22' 'supervise.carboy.internal' 'evil.example.com\u0000.example.com' 'evil\u202emoc.example.com' 'ev\u0456l.example.com' '\u001b[2Jevil.example.com' 'evil.example.com\nroutes:' '2130706433' '0x7f.1' 'a..b' ''; do
	call egress-allow "{\"host\":\"$host\",\"reason\":\"x\"}" | grep -q '"isError":true' || echo "ASKED for $host"
done
for more in '"private":true' '"upstream":"127.0.0.1:22"' '"token_env":"HOME"' '"inspect":false' '"bottle":"another"'; do
	call egress-allow "{\"host\":\"a.example.com\",\"reason\":\"x\",$more}" | grep -q '"isError":true' || echo "ASKED with $more"
done

# Too much.
head -c 70000 /dev/zero | tr '\0' '[' | post $url/mcp --data-binary @-
printf '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"egress-allow","arguments":{"host":"big.example.com","reason":"%s"}}}' "$(head -c 3000 /dev/zero | tr '\0' x)" | curl -sS -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' --data-binary @- $url/mcp | grep -q '"isError":true' || echo ASKED with a long reason
for i in $(seq 60); do call egress-allow "{\"host\":\"h$i.example.com\",\"reason\":\"x\"}" > /tmp/flood.$i & done
wait
cat /tmp/flood.* | grep -c -e 'too many' -e 'Too many' | sed 's/^/floods refused: /'
cat /tmp/wanted
curl -sS http://wanted.example.com/ -o /dev/null && echo REACHED
curl -sS http://egress.carboy.internal/allowlist | grep -i host:
echo END
`

// TestNothingInsideAnswers: what runs in a bottle can ask and no more. It finds no
// way to answer, no queue, nobody else's proposals; it can't ask for what a user alone
// may grant; and it can't keep people from others by asking too much.
func TestNothingInsideAnswers(t *testing.T) {
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

	// The one that is meant is approved when all is over, and is the neighbour.
	most := 0
	answers := w.answering(func(p supervise.Proposal) supervise.Reply {
		l, err := q.List(context.Background(), supervise.Query{})
		if err != nil {
			t.Error(err)
		}
		mine := 0
		for _, e := range l.Entries {
			if e.Proposal.Bottle != "other" {
				mine++
			}
		}
		most = max(most, mine)
		if p.Bottle == "other" {
			return supervise.Reply{}
		}
		return supervise.Reply{Verdict: supervise.Rejected}
	})
	var out strings.Builder
	rec, err := w.c.Run(t.Context(), RunOptions{
		Command: []string{"sh", "-c", callTool + strings.ReplaceAll(attackQueue, "STATE", w.c.StateDir())}, Workspace: w.ws, Mode: store.None,
		Supervise: true, AskFor: 20 * time.Second, Stdout: &out, Stderr: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	said := out.String()
	for _, bad := range []string{"GOT", "ASKED", "REACHED", "private-to-other", "host:", "Approved"} {
		if strings.Contains(said, bad) {
			t.Errorf("%s in\n%s", bad, said)
		}
	}
	for _, want := range []string{"Rejected.", "413 ", "END"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in\n%s", want, said)
		}
	}
	if most > supervise.MaxWaiting {
		t.Errorf("%d waited at once", most)
	}
	for _, p := range rec.Proposals.List {
		if p.Verdict == "approved" || p.Verdict == "modified" {
			t.Errorf("%+v", p)
		}
	}
	if answers.kinds() == "" {
		t.Error("nothing was asked")
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
