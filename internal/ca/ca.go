// Package ca is a bottle's own certificate authority. With its certificates the
// gateway answers TLS in place of the servers that the bottle may reach.
//
// The key exists only in this process's memory, except for the output of Marshal, for
// callers that keep a bottle. Each certificate names one host, and is valid now, even
// after the clock was set. The authority is worthless outside its bottle: nobody else
// trusts it.
//
// Start reading at [New] and [Authority.Leaf].
package ca

import (
	"bytes"
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// The authority is valid for long, because a bottle may be resumed late, and
	// clocks may be set. A leaf is valid as long as clients accept (at most 398 days
	// in browsers), and is renewed.
	before, after         = 2 * 365 * 24 * time.Hour, 10 * 365 * 24 * time.Hour
	leafBefore, leafAfter = 7 * 24 * time.Hour, 90 * 24 * time.Hour
	leafRenew             = 24 * time.Hour

	// maxLeaves bounds the cached certificates, of about 2 kB each.
	maxLeaves = 1024
)

// Authority signs certificates for hosts. It is safe for concurrent use.
type Authority struct {
	key  *ecdsa.PrivateKey
	leaf *ecdsa.PrivateKey // shared by all leaves: who can read one can read all
	cert *x509.Certificate
	now  func() time.Time

	mu     sync.Mutex
	leaves map[string]*list.Element
	used   *list.List // of *minted, most recently used first
}

type minted struct {
	name string
	cert *tls.Certificate
}

// New creates an authority for a bottle. It reads the time from now; nil means
// time.Now.
func New(bottle string, now func() time.Time) (*Authority, error) {
	a, err := empty(now)
	if err != nil {
		return nil, err
	}
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	id, err := keyID(&a.key.PublicKey)
	if err != nil {
		return nil, err
	}
	t := a.now()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"carboy"}, CommonName: "carboy gateway of " + bottle},
		NotBefore:    t.Add(-before), NotAfter: t.Add(after),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		SubjectKeyId: id,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	return a, nil
}

// empty returns an authority that has no key but that of its leaves.
func empty(now func() time.Time) (*Authority, error) {
	if now == nil {
		now = time.Now
	}
	a := &Authority{now: now, leaves: map[string]*list.Element{}, used: list.New()}
	var err error
	if a.leaf, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("make a certificate authority: %w", err)
	}
	return a, nil
}

// Marshal returns the authority with its secret key, in PEM.
func (a *Authority) Marshal() ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("keep a certificate authority: %w", err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

// Unmarshal parses the output of Marshal. It reads the time from now; nil means
// time.Now.
func Unmarshal(text []byte, now func() time.Time) (*Authority, error) {
	a, err := empty(now)
	if err != nil {
		return nil, err
	}
	fail := func(why any) (*Authority, error) {
		return nil, fmt.Errorf("read a certificate authority: %v", why)
	}
	cert, rest := pem.Decode(text)
	if cert == nil {
		return fail("no certificate")
	}
	key, _ := pem.Decode(rest)
	if key == nil {
		return fail("no key")
	}
	if a.cert, err = x509.ParseCertificate(cert.Bytes); err != nil {
		return fail("the certificate is not one")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	if err != nil {
		return fail("the key is not one") // the parser's error could repeat it
	}
	var ok bool
	if a.key, ok = parsed.(*ecdsa.PrivateKey); !ok || a.key.Curve != elliptic.P256() || !a.key.PublicKey.Equal(a.cert.PublicKey) || !a.cert.IsCA {
		return fail("key and certificate do not belong together")
	}
	return a, nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// keyID returns the key identifier by the first method of RFC 5280 section 4.2.1.2.
func keyID(k *ecdsa.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return nil, err
	}
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, err
	}
	sum := sha1.Sum(info.Key.Bytes)
	return sum[:], nil
}

// Certificate returns the authority's own certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// PEM returns the authority's certificate, after a line of explanation.
func (a *Authority) PEM() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s: trusted in this bottle alone\n", a.cert.Subject.CommonName)
	_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return b.Bytes()
}

// Leaf returns a certificate for one name or literal address, valid now and for at
// least a day. Its chain omits the authority's certificate, which the bottle has.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) {
	name = strings.ToLower(name)
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.leaves[name]; ok {
		m := e.Value.(*minted)
		if l := m.cert.Leaf; now.After(l.NotBefore.Add(leafRenew)) && now.Before(l.NotAfter.Add(-leafRenew)) {
			a.used.MoveToFront(e)
			return m.cert, nil
		}
		a.used.Remove(e)
		delete(a.leaves, name)
	}
	cert, err := a.mint(name, now)
	if err != nil {
		return nil, err
	}
	a.leaves[name] = a.used.PushFront(&minted{name, cert})
	if a.used.Len() > maxLeaves {
		last := a.used.Remove(a.used.Back()).(*minted)
		delete(a.leaves, last.name)
	}
	return cert, nil
}

func (a *Authority) mint(name string, now time.Time) (*tls.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-leafBefore), NotAfter: now.Add(leafAfter),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		AuthorityKeyId:        a.cert.SubjectKeyId,
	}
	// A name in the subject would be a second place to look. It may also have only 64
	// characters (RFC 5280), and host names are longer.
	tmpl.Subject = pkix.Name{Organization: []string{"carboy"}}
	if ip := net.ParseIP(name); ip != nil {
		tmpl.IPAddresses = []net.IP{ip}
	} else if name == "" || strings.ContainsAny(name, "*/: ") {
		return nil, fmt.Errorf("certificate for %.80q: not a host name", name)
	} else {
		tmpl.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &a.leaf.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %.80q: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %.80q: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leaf, Leaf: leaf}, nil
}
