package rootfs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"software.sslmate.com/src/go-pkcs12"

	"github.com/carboy/carboy/internal/bottle"
)

// What a bottle trusts: whom this machine trusts, for routes that pass TLS
// unseen, and the bottle's own authority. Programs do not agree where that is
// written, so it is written everywhere: the files and directories of
// distributions, Java's own store, and variables for those that bring their own.

const (
	// TrustFile has all that a bottle trusts.
	TrustFile = "/etc/ssl/certs/ca-certificates.crt"
	// AuthorityFile has the bottle's own authority alone, for programs that add
	// to what they trust already.
	AuthorityFile = "/etc/ssl/carboy.pem"

	javaStore = "/etc/ssl/certs/java/cacerts"

	maxBundle = 4 << 20
)

// hostBundles are where distributions write whom they trust.
var hostBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // SUSE
	"/etc/ssl/cert.pem",
}

// otherBundles are the same under their other names.
var otherBundles = []string{
	"/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/tls/cert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
}

// trustDirs are those of etcDirs that are built instead of shown.
var trustDirs = map[string]bool{"ssl/certs": true, "pki/tls/certs": true, "pki/ca-trust/extracted": true}

// TrustEnv are the variables that lead programs to it that would not look.
func TrustEnv() map[string]string {
	env := map[string]string{}
	for _, all := range []string{
		"SSL_CERT_FILE",                                    // OpenSSL, Go, Python, Ruby, rustls
		"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", // their own, certifi's, else
		"GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE",
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
		"npm_config_cafile", "YARN_HTTPS_CA_FILE_PATH",
	} {
		env[all] = TrustFile
	}
	env["NODE_EXTRA_CA_CERTS"] = AuthorityFile // node and bun
	env["DENO_CERT"] = AuthorityFile
	return env
}

// trust prepares the stores: what this machine trusts, which Trust adds to.
func (b *builder) trust() {
	b.replace(bottle.Entry{Path: TrustFile, Mode: 0o644, Content: b.hostBundle()})
	b.replace(bottle.Entry{Path: AuthorityFile, Mode: 0o644})
	for _, p := range otherBundles {
		b.replace(bottle.Entry{Path: p, Mode: os.ModeSymlink, Link: TrustFile})
	}
	if f, err := b.open(javaStore); err == nil {
		f.Close()
		b.replace(bottle.Entry{Path: javaStore, Mode: 0o644})
	}
}

// Trust returns root, made with Options.Trusting, with the certificate, in PEM, of
// whom the bottle is to trust beside whom this machine trusts.
func Trust(root bottle.Root, authority []byte) (bottle.Root, error) {
	root.Entries = slices.Clone(root.Entries)
	var all []byte
	for i := range root.Entries {
		switch e := &root.Entries[i]; e.Path {
		case TrustFile:
			all = append(bytes.TrimRight(e.Content, "\n"), '\n')
			all = append(bytes.TrimLeft(all, "\n"), authority...)
			e.Content = all
		case AuthorityFile:
			e.Content = authority
		}
	}
	if all == nil {
		return bottle.Root{}, errors.New("root file system: made for a bottle that trusts nobody")
	}
	for i := range root.Entries {
		if e := &root.Entries[i]; e.Path == javaStore {
			var err error
			if e.Content, err = javaTrust(all); err != nil {
				return bottle.Root{}, fmt.Errorf("root file system: Java's trust store: %w", err)
			}
		}
	}
	return root, nil
}

// hostBundle is the first that this machine has.
func (b *builder) hostBundle() []byte {
	for _, p := range hostBundles {
		f, err := b.open(p)
		if err != nil {
			continue
		}
		content, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
		f.Close()
		if err == nil && len(content) > 0 && len(content) <= maxBundle {
			return content
		}
	}
	return nil
}

// open opens a regular file of the root, whose links lead to where they lead inside:
// an image whose bundle is a link to a key of the host's would bring that in.
func (b *builder) open(path string) (*os.File, error) {
	root, err := unix.Open(b.base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, "."+path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	return f, nil
}

// replace adds e, also where there was something.
func (b *builder) replace(e bottle.Entry) {
	for i := range b.root.Entries {
		if b.root.Entries[i].Path == e.Path {
			b.root.Entries[i] = e
			return
		}
	}
	b.add(e)
}

// javaTrust is a store as the JDK reads it, since 8u301. It has no password: the JDK
// opens its own without one, and in a store that is encrypted finds nobody then.
func javaTrust(bundle []byte) ([]byte, error) {
	var certs []pkcs12.TrustStoreEntry
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			continue // one that Java would not take either
		}
		// Of two by one name it would keep the last.
		certs = append(certs, pkcs12.TrustStoreEntry{Cert: cert, FriendlyName: fmt.Sprintf("%s (%d)", cert.Subject, len(certs))})
	}
	return pkcs12.Passwordless.EncodeTrustStoreEntries(certs, "")
}
