package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/attest"
)

const (
	keyFile    = "key"
	pubFile    = "key.pub"
	keyPrefix  = "carboy.dev/audit/"
	maxKeyFile = 4 << 10
)

// loadKey reads the signing key of the log in dir, or generates one for an empty log. It fails for a log with records but
// without a key: a new key would start another history under the same name.
func loadKey(d disk, dir string, empty bool) (note.Signer, string, error) {
	name := filepath.Join(dir, keyFile)
	skey, err := readSmall(name, true)
	if errors.Is(err, os.ErrNotExist) && empty {
		skey, _, err = note.GenerateKey(rand.Reader, keyPrefix+strings.ToLower(rand.Text()[:13]))
		if err == nil {
			err = putFile(d, dir, keyFile, skey+"\n", 0o600)
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("signing key: %w", err)
	}
	signer, vkey, err := parseKey(skey)
	if err != nil {
		return nil, "", fmt.Errorf("signing key %s: %w", name, err)
	}
	if have, err := readSmall(filepath.Join(dir, pubFile), false); err == nil && have != vkey {
		return nil, "", &tamperError{dir, -1, pubFile + " is not the public half of the signing key"}
	} else if err != nil {
		if err := putFile(d, dir, pubFile, vkey+"\n", 0o644); err != nil {
			return nil, "", fmt.Errorf("public key: %w", err)
		}
	}
	return signer, vkey, nil
}

func parseKey(skey string) (note.Signer, string, error) {
	signer, err := note.NewSigner(skey)
	// PRIVATE+KEY+name+hash+seed; the seed's own encoding may hold more plus signs.
	parts := strings.SplitN(skey, "+", 5)
	seed, _ := base64.StdEncoding.DecodeString(parts[len(parts)-1])
	if err != nil || len(seed) != 1+ed25519.SeedSize {
		return nil, "", errors.New("malformed") // the cause could quote the key
	}
	pub := ed25519.NewKeyFromSeed(seed[1:]).Public().(ed25519.PublicKey)
	vkey, err := note.NewEd25519VerifierKey(signer.Name(), pub)
	return signer, vkey, err
}

// parsePublic parses a public key. Only one encoding is valid; note's parser would also accept capitals in the hash.
func parsePublic(vkey string) (note.Verifier, error) {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	if !strings.HasPrefix(vkey, fmt.Sprintf("%s+%08x+", v.Name(), v.KeyHash())) {
		return nil, errors.New("public key: not in canonical form")
	}
	return v, nil
}

// PublicKey returns the Ed25519 key in a verification key, as key.pub has it.
func PublicKey(vkey string) (ed25519.PublicKey, error) {
	v, err := parsePublic(vkey)
	if err != nil {
		return nil, err
	}
	_, text, _ := strings.Cut(strings.TrimPrefix(vkey, v.Name()+"+"), "+")
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != 1+ed25519.PublicKeySize {
		return nil, errors.New("public key: not of Ed25519")
	}
	return b[1:], nil
}

// Attester signs attestations with a log's key. It implements dsse.Signer.
type Attester struct {
	signer note.Signer
	id     string
}

// Attester returns a signer of attestations.
func (l *Log) Attester() (*Attester, error) {
	pub, err := PublicKey(l.key)
	if err != nil {
		return nil, err
	}
	return &Attester{l.signer, attest.KeyID(pub)}, nil
}

// Sign implements dsse.Signer. It signs DSSE's encoding of an attestation and nothing else: a checkpoint begins otherwise,
// so that none can be had from here.
func (a *Attester) Sign(_ context.Context, data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte("DSSEv1 ")) {
		return nil, errors.New("sign with the key of the audit log: not an attestation")
	}
	return a.signer.Sign(data)
}

// KeyID implements dsse.Signer.
func (a *Attester) KeyID() (string, error) { return a.id, nil }

// readSmall reads a file of one line. If private is set, it fails if the file is not the user's or others can read it.
func readSmall(name string, private bool) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", fmt.Errorf("%s: not a regular file", name)
	case private && (st.Mode&0o077 != 0 || st.Uid != uint32(os.Geteuid())):
		return "", fmt.Errorf("%s: mode %#o, owner %d: must be readable by its owner %d alone", name, st.Mode&0o777, st.Uid, os.Geteuid())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return "", err
	}
	line, ok := bytes.CutSuffix(b, []byte("\n"))
	if !ok || bytes.IndexByte(line, '\n') >= 0 || len(b) > maxKeyFile {
		return "", fmt.Errorf("%s: not one line", name)
	}
	return string(line), nil
}

// putFile creates a file atomically. The caller holds the log's lock.
func putFile(d disk, dir, name, content string, mode os.FileMode) (err error) {
	tmp := filepath.Join(dir, "."+name+".tmp")
	os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(tmp)
		}
	}()
	_, err = d.WriteAt(f, []byte(content), 0)
	if err == nil {
		err = d.Sync(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncDir(d, dir)
}

func syncDir(d disk, dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return d.Sync(f)
}
