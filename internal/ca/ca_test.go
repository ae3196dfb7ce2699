package ca

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

func pool(a *Authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(a.PEM())
	return p
}

func TestLeaf(t *testing.T) {
	a, err := New("01abc", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.com", "EXAMPLE.com", "xn--bcher-kva.example", "my_bucket.example.com", strings.Repeat("abcdefgh.", 27) + "example", "10.0.0.5", "2606:4700::1111"} {
		c, err := a.Leaf(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool(a), DNSName: host(name)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := len(c.Leaf.DNSNames) + len(c.Leaf.IPAddresses); n != 1 {
			t.Errorf("%s: %d names", name, n)
		}
		if c.Leaf.VerifyHostname("other.example.com") == nil || c.Leaf.IsCA {
			t.Errorf("%s: good for more", name)
		}
	}
	for _, name := range []string{"", "*.example.com", "a b", "a/b", "a:443"} {
		if c, err := a.Leaf(name); err == nil {
			t.Errorf("%q has %v", name, c.Leaf.DNSNames)
		}
	}
	b, err := New("01abc", nil)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := a.Leaf("example.com")
	if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool(b), DNSName: "example.com"}); err == nil {
		t.Error("another bottle's authority takes it for its own")
	}
	if _, err := a.cert.Verify(x509.VerifyOptions{}); err == nil {
		t.Error("this machine trusts it")
	}
}

// host returns a name in the form of VerifyOptions.
func host(name string) string {
	if ip := net.ParseIP(name); ip != nil {
		return "[" + name + "]"
	}
	return name
}

// TestClock: a certificate is kept while it is valid, and replaced when the clock was
// set, forwards or backwards.
func TestClock(t *testing.T) {
	now := time.Now()
	a, err := New("x", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	first, _ := a.Leaf("example.com")
	for _, x := range []struct {
		by   time.Duration
		same bool
	}{
		{0, true}, {24 * time.Hour, true}, {-5 * 24 * time.Hour, true}, {88 * 24 * time.Hour, true},
		{89*24*time.Hour + time.Hour, false}, {-6*24*time.Hour - time.Hour, false}, {400 * 24 * time.Hour, false}, {-600 * 24 * time.Hour, false}, {9 * 365 * 24 * time.Hour, false},
	} {
		was := now
		now = was.Add(x.by)
		c, err := a.Leaf("example.com")
		if err != nil {
			t.Fatal(err)
		}
		if (c == first) != x.same {
			t.Errorf("after %v: the same %v", x.by, c == first)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool(a), DNSName: "example.com", CurrentTime: now}); err != nil {
			t.Errorf("after %v: %v", x.by, err)
		}
		now = was
		first, _ = a.Leaf("example.com")
	}
}

func TestBounded(t *testing.T) {
	a, err := New("x", nil)
	if err != nil {
		t.Fatal(err)
	}
	hot, _ := a.Leaf("hot.example.com")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range maxLeaves {
				if _, err := a.Leaf(fmt.Sprintf("n%d-%d.example.com", g, i)); err != nil {
					t.Error(err)
				}
				if c, _ := a.Leaf("hot.example.com"); c != hot {
					t.Error("what is in use was forgotten")
					return
				}
			}
		})
	}
	wg.Wait()
	if a.used.Len() != maxLeaves || len(a.leaves) != maxLeaves {
		t.Errorf("%d, %d kept", a.used.Len(), len(a.leaves))
	}
}

// TestOpenSSL: another implementation accepts the chain, and refuses another name.
func TestOpenSSL(t *testing.T) {
	testenv.Need(t, "openssl", "openssl")
	a, err := New("01abc", nil)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(root, a.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return a.Leaf("example.com") }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	for name, ok := range map[string]bool{"example.com": true, "www.example.com": false} {
		cmd := exec.Command("openssl", "s_client", "-connect", l.Addr().String(), "-CAfile", root, "-servername", "example.com", "-verify_hostname", name, "-verify_return_error", "-x509_strict", "-brief")
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func BenchmarkMint(b *testing.B) {
	a, err := New("x", nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := a.mint(fmt.Sprintf("n%d.example.com", i), time.Now()); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMarshal: an authority that was stored and read back signs for the same bottle.
func TestMarshal(t *testing.T) {
	a, err := New("test", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Unmarshal(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !b.Certificate().Equal(a.Certificate()) {
		t.Error("the certificate has changed")
	}
	leaf, err := b.Leaf("api.example.com")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("the authority's PEM has no certificate")
	}
	cert, err := x509.ParseCertificate(leaf.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "api.example.com"}); err != nil {
		t.Error(err)
	}

	other, err := New("other", nil)
	if err != nil {
		t.Fatal(err)
	}
	otherText, err := other.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	certBlock, keyBlock := pem.Decode(text)
	_, otherKey := pem.Decode(otherText)
	broken := func(typ string) []byte { return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: []byte("broken")}) }
	for name, x := range map[string]struct {
		text []byte
		want string
	}{
		"empty":              {nil, "no certificate"},
		"no key":             {pem.EncodeToMemory(certBlock), "no key"},
		"broken certificate": {append(broken("CERTIFICATE"), keyBlock...), "the certificate is not one"},
		"broken key":         {append(pem.EncodeToMemory(certBlock), broken("PRIVATE KEY")...), "the key is not one"},
		"another key":        {append(pem.EncodeToMemory(certBlock), otherKey...), "do not belong together"},
	} {
		if _, err := Unmarshal(x.text, nil); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", name, err, x.want)
		}
	}
}
