// Package remote connects to hosts over SSH and runs scripts there.
//
// Guarantees:
//
//   - A host, and the jump host to it, must have one of its pinned keys. There is no way
//     to accept another key.
//   - The host's login shell parses one constant command and a number. The script comes on
//     standard input, and each value in it goes through [Quote].
//   - Every step has a deadline here; the script has its own deadlines on the host.
//   - Output is bounded, and lines of programs are distinct from lines of the script.
//
// Start reading at [Dial], then [Conn.Run].
package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/carboy/carboy/internal/ship/hosts"
)

// Bounds of a connection.
const (
	// dialTimeout bounds connecting to a host, including authentication.
	dialTimeout = 20 * time.Second
	// Every aliveEvery a host must answer a keep-alive request within aliveWithin.
	aliveEvery  = 15 * time.Second
	aliveWithin = 30 * time.Second
)

var (
	// ErrUnreachable matches errors before the script was started: nothing was done on the
	// host.
	ErrUnreachable = errors.New("host cannot be reached")
	// ErrCut matches errors after the script was started. The script may still be running.
	ErrCut = errors.New("connection was cut")
	// ErrHostKey matches the error for a host without a pinned key.
	ErrHostKey = errors.New("host shows another key")
)

// Error is an error of a connection to a host.
type Error struct {
	Host string
	Op   string
	Kind error // one of the errors above, or nil
	Err  error
}

func (e *Error) Error() string { return "host " + e.Host + ": " + e.Op + ": " + e.Err.Error() }

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// Keys finds private keys.
type Keys struct {
	// AgentSocket is the socket of the SSH agent, "" if there is none.
	AgentSocket string
}

// Conn is a connection to a host. It must be used by one goroutine at a time.
type Conn struct {
	host   *hosts.Host
	client *ssh.Client
	under  []interface{ Close() error }
	raw    net.Conn
}

// Dial connects to a host, through its jump host if it has one.
func Dial(ctx context.Context, all *hosts.File, h *hosts.Host, keys Keys) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c := &Conn{host: h}
	var err error
	target := net.JoinHostPort(h.Address, strconv.Itoa(h.Port))
	if h.Jump == "" {
		c.raw, err = (&net.Dialer{}).DialContext(ctx, "tcp", target)
	} else {
		j, ok := all.Find(h.Jump)
		if !ok {
			return nil, &Error{h.Name, "jump", nil, fmt.Errorf("%s has no host %s", all.Path, h.Jump)}
		}
		var via *Conn
		if via, err = Dial(ctx, all, j, keys); err != nil {
			return nil, err
		}
		c.under = append(c.under, via)
		c.raw, err = via.client.DialContext(ctx, "tcp", target)
	}
	if err != nil {
		c.Close()
		return nil, &Error{h.Name, "connect to " + target, ErrUnreachable, err}
	}
	if err := c.handshake(ctx, target, keys); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// handshake checks the host's key and authenticates the user.
func (c *Conn) handshake(ctx context.Context, target string, keys Keys) error {
	h := c.host
	wrong := false
	conf := &ssh.ClientConfig{
		User:          h.User,
		ClientVersion: "SSH-2.0-carboy",
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			for _, k := range h.Keys {
				if bytes.Equal(k.Marshal(), key.Marshal()) {
					return nil
				}
			}
			wrong = true
			return fmt.Errorf("it shows %s, and hosts.yaml has %s", ssh.FingerprintSHA256(key), strings.Join(h.Fingerprints(), ", "))
		},
		HostKeyAlgorithms: algorithms(h.Keys),
	}
	signers, done, err := keys.signers(ctx, h)
	if err != nil {
		return &Error{h.Name, "sign in", nil, err}
	}
	defer done()
	conf.Auth = []ssh.AuthMethod{ssh.PublicKeys(signers...)}
	// A channel through another host does not support deadlines, so close it.
	stop := context.AfterFunc(ctx, func() { c.raw.Close() })
	conn, chans, reqs, err := ssh.NewClientConn(c.raw, target, conf)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	switch {
	case wrong:
		return &Error{h.Name, "host key", ErrHostKey, err}
	case err != nil && ctx.Err() != nil:
		return &Error{h.Name, "sign in", ErrUnreachable, fmt.Errorf("not done in time: %w", ctx.Err())}
	case err != nil:
		return &Error{h.Name, "sign in", ErrUnreachable, err}
	}
	c.client = ssh.NewClient(conn, chans, reqs)
	return nil
}

// algorithms returns the algorithms of the pinned keys, so that a host with several keys
// uses a pinned one.
func algorithms(keys []ssh.PublicKey) (out []string) {
	for _, k := range keys {
		if t := k.Type(); t == ssh.KeyAlgoRSA {
			out = append(out, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		} else {
			out = append(out, t)
		}
	}
	return out
}

// signers returns the keys to authenticate with. The caller must call done after use, which
// closes the connection to the agent.
func (k Keys) signers(ctx context.Context, h *hosts.Host) (_ []ssh.Signer, done func(), err error) {
	if h.KeyFile != "" {
		s, err := readKey(h.KeyFile)
		if err != nil {
			return nil, nil, err
		}
		return []ssh.Signer{s}, func() {}, nil
	}
	return k.agent(ctx)
}

func (k Keys) agent(ctx context.Context) ([]ssh.Signer, func(), error) {
	if k.AgentSocket == "" {
		return nil, nil, errors.New("there is no SSH agent (SSH_AUTH_SOCK), and hosts.yaml names no key")
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", k.AgentSocket)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh agent: %w", err)
	}
	// A forwarded agent whose other end is gone never answers, now or when it signs.
	stop := context.AfterFunc(ctx, func() { c.Close() })
	done := func() {
		stop()
		c.Close()
	}
	signers, err := agent.NewClient(c).Signers()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("it does not answer: %w", ctx.Err())
	case err == nil && len(signers) == 0:
		err = errors.New("it holds no key; ssh-add adds one")
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("ssh agent: %w", err)
	}
	return signers, done, nil
}

// maxKey bounds the file of a key, in bytes.
const maxKey = 64 << 10

// readKey reads a private key. It must have no passphrase, and nobody but its owner may be
// able to read its file.
func readKey(name string) (ssh.Signer, error) {
	b, err := hosts.ReadTrusted(name, maxKey)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	if fi, err := os.Stat(name); err != nil || fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: others can read this key; chmod 600 %s", name, name)
	}
	s, err := ssh.ParsePrivateKey(b)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("%s: has a passphrase; add it to the agent: ssh-add %s", name, name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not a private key", name)
	}
	return s, nil
}

// Signer returns the key in a file: a private key, or a public one whose private key the
// agent holds. The caller must call done after use.
func (k Keys) Signer(ctx context.Context, file string) (_ ssh.Signer, done func(), err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	if pub, _, _, _, err := ssh.ParseAuthorizedKey(b); err == nil && !bytes.Contains(b, []byte("PRIVATE KEY")) {
		return agentSigner(ctx, k, pub)
	}
	s, err := readKey(file)
	return s, func() {}, err
}

// agentSigner returns the agent's key with this public key, for signing approvals. The
// caller must call done after use.
func agentSigner(ctx context.Context, k Keys, pub ssh.PublicKey) (_ ssh.Signer, done func(), err error) {
	signers, done, err := k.agent(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range signers {
		if bytes.Equal(s.PublicKey().Marshal(), pub.Marshal()) {
			return s, done, nil
		}
	}
	done()
	return nil, nil, fmt.Errorf("ssh agent: does not hold the key %s; ssh-add adds it", ssh.FingerprintSHA256(pub))
}

// Close closes the connection, and that to the jump host.
func (c *Conn) Close() error {
	var err error
	if c.client != nil {
		err = c.client.Close()
	} else if c.raw != nil {
		err = c.raw.Close()
	}
	for _, u := range c.under {
		u.Close()
	}
	return err
}
