package rootfs

import (
	"bytes"
	"testing"

	"software.sslmate.com/src/go-pkcs12"

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
