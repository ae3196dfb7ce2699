package approval_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

func statement() approval.Statement {
	return approval.New([]string{strings.Repeat("a", 64)}, strings.Repeat("b", 40), "web", "alice@example.org", "release 4", false, time.Now())
}

// TestSSHKeygenAgrees: what we sign ssh-keygen verifies, and what it signs we do.
func TestSSHKeygenAgrees(t *testing.T) {
	keygen := testenv.Need(t, "ssh-keygen", "apt-get install openssh-client")
	dir := t.TempDir()
	pub, key := shiptest.NewKey(t, dir+"/key")
	signers := "alice@example.org namespaces=\"" + approval.Namespace + "\" " + pub + "\n"
	if err := os.WriteFile(dir+"/allowed_signers", []byte(signers), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := approval.Sign(statement(), key)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text, sig []byte) error {
		os.WriteFile(dir+"/s.sig", sig, 0o600)
		cmd := exec.Command(keygen, "-Y", "verify", "-f", dir+"/allowed_signers", "-I", "alice@example.org", "-n", approval.Namespace, "-s", dir+"/s.sig")
		cmd.Stdin = strings.NewReader(string(text))
		return cmd.Run()
	}
	if err := verify(s.Statement, s.Signature); err != nil {
		t.Errorf("ssh-keygen refuses what was signed: %v", err)
	}
	if err := verify(append(s.Statement, ' '), s.Signature); err == nil {
		t.Error("ssh-keygen takes what was not signed")
	}
	os.WriteFile(dir+"/text", s.Statement, 0o600)
	if out, err := exec.Command(keygen, "-Y", "sign", "-f", dir+"/key", "-n", approval.Namespace, dir+"/text").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sig, err := os.ReadFile(dir + "/text.sig")
	if err != nil {
		t.Fatal(err)
	}
	all, err := approval.ParseSigners("allowed_signers", []byte(signers))
	if err != nil {
		t.Fatal(err)
	}
	a, err := all.Verify(context.Background(), approval.Signed{Statement: s.Statement, Signature: sig}, time.Now())
	if err != nil || a.Approver != "alice@example.org" {
		t.Errorf("what ssh-keygen signed: %+v %v", a, err)
	}
	os.Remove(dir + "/text.sig")
	if out, err := exec.Command(keygen, "-Y", "sign", "-f", dir+"/key", "-n", "file", dir+"/text").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sig, _ = os.ReadFile(dir + "/text.sig")
	if _, err := all.Verify(context.Background(), approval.Signed{Statement: s.Statement, Signature: sig}, time.Now()); !errors.Is(err, approval.ErrMismatch) {
		t.Errorf("a signature for files: %v", err)
	}
}

// TestSigners: lines that might allow more than they seem to are refused.
func TestSigners(t *testing.T) {
	pub, key := shiptest.NewKey(t, t.TempDir()+"/key")
	s, err := approval.Sign(statement(), key)
	if err != nil {
		t.Fatal(err)
	}
	for line, ok := range map[string]bool{
		"alice@example.org " + pub:                 true,
		"bob@example.org,alice@example.org " + pub: true,
		"alice@example.org valid-before=\"20990101\",namespaces=\"file,carboy-ship@carboy.dev\" " + pub: true,
		"alice@example.org valid-before=\"20200101\" " + pub:                                            false,
		"alice@example.org valid-after=\"20990101Z\" " + pub:                                            false,
		"bob@example.org " + pub:     false,
		"# alice@example.org " + pub: false,
	} {
		all, err := approval.ParseSigners("f", []byte(line))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		if _, err := all.Verify(context.Background(), s, time.Now()); (err == nil) != ok {
			t.Errorf("%s: %v", line, err)
		}
	}
	for _, line := range []string{"* " + pub, "*@example.org " + pub, "!alice " + pub, "alice cert-authority " + pub, "alice", "alice ssh-ed25519 AAAA", "alice valid-before=\"soon\" " + pub, "alice verify-required " + pub} {
		if _, err := approval.ParseSigners("f", []byte("# one\n"+line)); err == nil || !strings.HasPrefix(err.Error(), "f:2: ") {
			t.Errorf("%s: %v, want an error with its line", line, err)
		}
	}
}

// TestOneReading: a statement that reads one way to people and counts another way, or that
// was signed for something else, approves nothing.
func TestOneReading(t *testing.T) {
	pub, key := shiptest.NewKey(t, t.TempDir()+"/key")
	all, err := approval.ParseSigners("f", []byte("alice@example.org "+pub))
	if err != nil {
		t.Fatal(err)
	}
	good, err := approval.Sign(statement(), key)
	if err != nil {
		t.Fatal(err)
	}
	text := string(good.Statement)
	a, b := strings.Repeat("a", 64), strings.Repeat("c", 64)
	for name, x := range map[string]struct{ text, namespace string }{
		"as it is":                {text, approval.Namespace},
		"a key twice":             {strings.Replace(text, `"commit"`, `"plans": ["`+b+`"],`+"\n  "+`"commit"`, 1), approval.Namespace},
		"a key in capitals":       {strings.Replace(text, `"commit"`, `"PLANS": ["`+b+`"],`+"\n  "+`"commit"`, 1), approval.Namespace},
		"a key spelled otherwise": {strings.Replace(text, `"plans"`, `"\u0070lans"`, 1), approval.Namespace},
		"more after it":           {text + text, approval.Namespace},
		"on one line":             {strings.ReplaceAll(text, "\n", " "), approval.Namespace},
		"two lines of purpose":    {strings.Replace(text, "release 4", "release 4\\n  plans", 1), approval.Namespace},
		"not UTF-8":               {strings.Replace(text, "release 4", "release \xff", 1), approval.Namespace},
		"not a plan":              {strings.Replace(text, a, "a", 1), approval.Namespace},
		"for files":               {text, "file"},
		"for commits":             {text, "git"},
		"for a name like ours":    {text, approval.Namespace + " "},
	} {
		sig, err := sshsig.Sign(strings.NewReader(x.text), key, sshsig.HashSHA512, x.namespace)
		if err != nil {
			t.Fatal(err)
		}
		_, err = all.Verify(context.Background(), approval.Signed{Statement: []byte(x.text), Signature: sshsig.Armor(sig)}, time.Now())
		if want := name == "as it is"; (err == nil) != want || err != nil && !errors.Is(err, approval.ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte("{}"), []byte("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"))
	all, err := approval.ParseSigners("f", nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, sig []byte) {
		if _, err := all.Verify(context.Background(), approval.Signed{Statement: text, Signature: sig}, time.Now()); !errors.Is(err, approval.ErrMismatch) {
			t.Fatalf("nobody may approve, and: %v", err)
		}
	})
}
