package approval_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

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

// TestSignRefuses: a statement that says too little, or what is not known, is not signed.
func TestSignRefuses(t *testing.T) {
	_, key := shiptest.NewKey(t, t.TempDir()+"/key")
	for name, change := range map[string]func(*approval.Statement){
		"another schema": func(s *approval.Statement) { s.Schema = "x" },
		"no plans":       func(s *approval.Statement) { s.Plans = nil },
		"a plan twice":   func(s *approval.Statement) { s.Plans = append(s.Plans, s.Plans...) },
		"unsorted plans": func(s *approval.Statement) { s.Plans = []string{strings.Repeat("b", 64), s.Plans[0]} },
		"no digest":      func(s *approval.Statement) { s.Plans = []string{"x"} },
		"no commit":      func(s *approval.Statement) { s.Commit = "HEAD" },
		"no name":        func(s *approval.Statement) { s.Approver = "* " },
		"no time":        func(s *approval.Statement) { s.Time = time.Time{} },
		"no purpose":     func(s *approval.Statement) { s.Purpose = " " },
		"no nonce":       func(s *approval.Statement) { s.Nonce = "" },
		"more":           func(s *approval.Statement) { s.Allow = []string{"everything"} },
	} {
		s := statement()
		change(&s)
		if _, err := approval.Sign(s, key); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	s := approval.New([]string{strings.Repeat("b", 64), strings.Repeat("a", 64)}, strings.Repeat("b", 40), "web", "alice@example.org", "release 4", true, time.Now())
	if _, err := approval.Sign(s, key); err != nil || len(s.Allow) != 1 || s.Allow[0] != approval.Destructive || s.Nonce == statement().Nonce {
		t.Errorf("%+v %v", s, err)
	}
	for name, ok := range map[string]bool{"alice@example.org": true, "a": true, "": false, "a b": false, "*": false, strings.Repeat("a", 129): false} {
		if approval.ValidName(name) != ok {
			t.Errorf("%q as a name: want %v", name, ok)
		}
	}
}

// TestVerifyRefuses: what is too long, of tomorrow or for another purpose is refused before
// anything else is believed of it.
func TestVerifyRefuses(t *testing.T) {
	pub, key := shiptest.NewKey(t, t.TempDir()+"/key")
	all, err := approval.ParseSigners("f", []byte("alice@example.org "+pub))
	if err != nil {
		t.Fatal(err)
	}
	files, err := approval.ParseSigners("f", []byte("alice@example.org namespaces=\"file\" "+pub))
	if err != nil {
		t.Fatal(err)
	}
	if !all.Allow(approval.Namespace) || files.Allow(approval.Namespace) || !files.Allow("file") {
		t.Error("who may sign what is not as the file says")
	}
	now := time.Now()
	good, err := approval.Sign(statement(), key)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		by  *approval.Signers
		in  approval.Signed
		now time.Time
	}{
		"a long statement": {all, approval.Signed{Statement: make([]byte, approval.MaxSize+1), Signature: good.Signature}, now},
		"a long signature": {all, approval.Signed{Statement: good.Statement, Signature: make([]byte, approval.MaxSignature+1)}, now},
		"no statement":     {all, approval.Signed{Statement: []byte("[]"), Signature: good.Signature}, now},
		"no signature":     {all, approval.Signed{Statement: good.Statement, Signature: []byte("x")}, now},
		"of tomorrow":      {all, good, now.Add(-24 * time.Hour)},
		"for files":        {files, good, now},
	} {
		if _, err := x.by.Verify(context.Background(), x.in, x.now); !errors.Is(err, approval.ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := approval.Signed{Statement: good.Statement, Signature: make([]byte, approval.MaxSignature+1)}
	if _, err := all.Signed(long, approval.Namespace, "alice@example.org", now, now); !errors.Is(err, approval.ErrMismatch) {
		t.Errorf("a long signature of a text: %v", err)
	}
}

// TestSHA1: a signature with SHA-1, which can be forged, is refused although its key may sign.
func TestSHA1(t *testing.T) {
	priv, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	all, err := approval.ParseSigners("f", append([]byte("alice@example.org "), ssh.MarshalAuthorizedKey(key.PublicKey())...))
	if err != nil {
		t.Fatal(err)
	}
	good, err := approval.Sign(statement(), key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.Verify(context.Background(), good, time.Now()); err != nil {
		t.Errorf("an RSA key: %v", err)
	}
	sig, err := sshsig.Unarmor(good.Signature)
	if err != nil {
		t.Fatal(err)
	}
	sig.Signature.Format = ssh.KeyAlgoRSA
	good.Signature = sshsig.Armor(sig)
	if _, err := all.Verify(context.Background(), good, time.Now()); !errors.Is(err, approval.ErrMismatch) {
		t.Errorf("a signature with SHA-1: %v", err)
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
