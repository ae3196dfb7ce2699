package rootfs

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
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

// A bottle trusts the certificate authorities of this machine, for routes that
// pass TLS through, and its own authority. Programs disagree about where that
// is stored, so it is stored everywhere: the files and directories of
// distributions, Java's own store, and variables for programs with a bundle of
// their own.

const (
	// trustFile holds all certificates that a bottle trusts.
	trustFile = "/etc/ssl/certs/ca-certificates.crt"
	// authorityFile holds the bottle's own authority alone, for programs that
	// add it to those they trust already.
	authorityFile = "/etc/ssl/carboy.pem"

	// In a bottle that builds an image, they lie where nothing becomes a part of it. The
	// image's own are left alone: a step may change them, and keep what stood there.
	builtTrustFile     = "/.carboy/trust.pem"
	builtAuthorityFile = "/.carboy/authority.pem"

	javaStore = "/etc/ssl/certs/java/cacerts"

	// chromiumPolicy tells Chromium of the bottle's authority: it has a list of its own.
	chromiumPolicy = "/etc/chromium/policies/managed/carboy.json"

	maxBundle = 4 << 20
)

// hostBundles are the bundles of trusted certificates of distributions.
var hostBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // SUSE
	"/etc/ssl/cert.pem",
}

// otherBundles are other names of the same bundles.
var otherBundles = []string{
	"/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/tls/cert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
}

// trustDirs are the etcDirs that are built instead of bound.
var trustDirs = map[string]bool{"ssl/certs": true, "pki/tls/certs": true, "pki/ca-trust/extracted": true}

// TrustEnv returns the variables for programs that would not find TrustFile
// themselves.
func TrustEnv() map[string]string {
	env := map[string]string{}
	for _, all := range []string{
		"SSL_CERT_FILE",                                    // OpenSSL, Go, Python, Ruby, rustls
		"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", // their own bundle, or certifi's
		"GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "NIX_SSL_CERT_FILE",
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "HTTPLIB2_CA_CERTS", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
		"npm_config_cafile", "YARN_HTTPS_CA_FILE_PATH",
	} {
		env[all] = trustFile
	}
	env["NODE_EXTRA_CA_CERTS"] = authorityFile // node and bun
	env["DENO_CERT"] = authorityFile
	return env
}

// BuiltTrustEnv is TrustEnv for a root that Built made.
func BuiltTrustEnv() map[string]string {
	env := TrustEnv()
	for name, file := range env {
		if file == authorityFile {
			env[name] = builtAuthorityFile
		} else {
			env[name] = builtTrustFile
		}
	}
	return env
}

// trust writes the stores with what this machine trusts, to which Trust adds.
func (b *builder) trust() {
	b.replace(bottle.Entry{Path: trustFile, Mode: 0o644, Content: b.hostBundle()})
	b.replace(bottle.Entry{Path: authorityFile, Mode: 0o644})
	b.replace(bottle.Entry{Path: chromiumPolicy, Mode: 0o644})
	for _, p := range otherBundles {
		b.replace(bottle.Entry{Path: p, Mode: os.ModeSymlink, Link: trustFile})
	}
	if f, err := b.open(javaStore); err == nil {
		f.Close()
		b.replace(bottle.Entry{Path: javaStore, Mode: 0o644})
	}
}

// Trust returns root, which Host, Dir or Built made with Options.Trusting, with one more
// trusted certificate, in PEM.
func Trust(root bottle.Root, authority []byte) (bottle.Root, error) {
	root.Entries = slices.Clone(root.Entries)
	var all []byte
	for i := range root.Entries {
		switch e := &root.Entries[i]; e.Path {
		case trustFile, builtTrustFile:
			all = append(bytes.TrimRight(e.Content, "\n"), '\n')
			all = append(bytes.TrimLeft(all, "\n"), authority...)
			e.Content = all
		case authorityFile, builtAuthorityFile:
			e.Content = authority
		case chromiumPolicy:
			var err error
			if e.Content, err = chromiumTrust(authority); err != nil {
				return bottle.Root{}, fmt.Errorf("root file system: Chromium's policy: %w", err)
			}
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

// hostBundle returns the first bundle that this machine has.
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

// open opens a regular file of the root and resolves links as inside: an image
// whose bundle links to a key of the host's would otherwise bring that key in.
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

// replace adds e and removes an earlier entry of the same path.
func (b *builder) replace(e bottle.Entry) {
	for i := range b.root.Entries {
		if b.root.Entries[i].Path == e.Path {
			b.root.Entries[i] = e
			return
		}
	}
	b.add(e)
}

// chromiumTrust returns a policy by which Chromium, from 128 on, trusts an authority.
func chromiumTrust(authority []byte) ([]byte, error) {
	block, _ := pem.Decode(authority)
	if block == nil {
		return nil, errors.New("the bottle's authority is no PEM")
	}
	return json.Marshal(map[string][][]byte{"CACertificates": {block.Bytes}})
}

// javaTrust returns a trust store as the JDK reads it since 8u301. It has no
// password: the JDK opens its own without one, and in an encrypted store would
// then find no certificates.
func javaTrust(bundle []byte) ([]byte, error) {
	var certs []pkcs12.TrustStoreEntry
	for rest := bundle; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			continue // Java would reject it too
		}
		// Of two entries with one name the JDK keeps the last.
		certs = append(certs, pkcs12.TrustStoreEntry{Cert: cert, FriendlyName: fmt.Sprintf("%s (%d)", cert.Subject, len(certs))})
	}
	return pkcs12.Passwordless.EncodeTrustStoreEntries(certs, "")
}
