package rootfs

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"slices"
	"testing"

	"software.sslmate.com/src/go-pkcs12"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/ca"
)

// TestJavaStore: the JDK opens its store without a password, and keeps one
// certificate for each alias.
func TestJavaStore(t *testing.T) {
	var bundle []byte
	for range 2 { // of one name
		a, err := ca.New("bottle", nil)
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(bundle, a.PEM()...)
	}
	store, err := javaTrust(bundle)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := pkcs12.DecodeTrustStore(store, "")
	if err != nil || len(certs) != 2 {
		t.Errorf("%d certificates, %v", len(certs), err)
	}
	if !bytes.Contains(store, []byte("\x00(\x001\x00)")) { // in UTF-16
		t.Error("both have one alias")
	}
}

// TestChromiumPolicy: Chromium is told to trust the bottle's authority, and nothing else.
func TestChromiumPolicy(t *testing.T) {
	a, err := ca.New("bottle", nil)
	if err != nil {
		t.Fatal(err)
	}
	root, err := hostFrom(t.TempDir(), Options{User: bottle.User{UID: 7, GID: 7, Name: "u", Home: "/home/u"}, Hostname: "h", Trusting: true})
	if err == nil {
		root, err = Trust(root, a.PEM())
	}
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(root.Entries, func(e bottle.Entry) bool { return e.Path == chromiumPolicy })
	block, _ := pem.Decode(a.PEM())
	if want := `{"CACertificates":["` + base64.StdEncoding.EncodeToString(block.Bytes) + `"]}`; i < 0 || string(root.Entries[i].Content) != want {
		t.Errorf("the policy is not %s", want)
	}
	if _, err := Trust(root, []byte("no certificate")); err == nil {
		t.Error("what is no certificate is trusted")
	}
}
