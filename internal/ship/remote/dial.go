// Package remote reaches hosts over SSH and runs one script there.
//
// What it promises:
//
//   - A host shows one of its pinned keys or is not spoken with; the same holds for
//     the host that it is reached through. There is no way to accept a key.
//   - What the login shell over there reads is one constant command and a number.
//     The script comes on its standard input, and each value in it through [Quote].
//   - Every step has a deadline on this side; the script has its own on the other.
//   - What comes back is bounded, and lines of programs are told apart from lines of
//     the script.
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
	// DialTimeout bounds reaching a host, until it and we know who the other is.
	DialTimeout = 20 * time.Second
	// aliveEvery and aliveWithin: a host that does not answer that long is gone.
	aliveEvery  = 15 * time.Second
	aliveWithin = 30 * time.Second
)

var (
	// ErrUnreachable matches errors of a host that could not be spoken with: nothing
	// was done there.
	ErrUnreachable = errors.New("host cannot be reached")
	// ErrCut matches errors of a connection that ended before the script: what the
	// script does, it goes on doing.
	ErrCut = errors.New("connection was cut")
	// ErrHostKey matches a host that shows another key than those that are pinned.
	ErrHostKey = errors.New("host shows another key")
)

// Error is what went wrong with a host.
type Error struct {
	Host string
	Op   string
	Kind error // one of the errors above, or nil
	Err  error
}

func (e *Error) Error() string { return "host " + e.Host + ": " + e.Op + ": " + e.Err.Error() }

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// Keys finds what to sign in with.
type Keys struct {
	// AgentSocket is that of an SSH agent, or "".
	AgentSocket string
}

// Conn is a connection to a host, for one goroutine.
type Conn struct {
	host   *hosts.Host
	client *ssh.Client
	under  []interface{ Close() error }
	raw    net.Conn
}

// Dial reaches a host, through its jump host if it has one.
func Dial(ctx context.Context, all *hosts.File, h *hosts.Host, keys Keys) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
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

// handshake has both sides prove who they are.
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
	// A channel through another host has no deadlines; closing it ends what waits.
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

// algorithms are those of the pinned keys: a host with several shows the right one.
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

// signers are the keys to sign in with; done lets go of the agent.
func (k Keys) signers(ctx context.Context, h *hosts.Host) (_ []ssh.Signer, done func(), err error) {
	if h.KeyFile != "" {
		s, err := ReadKey(h.KeyFile)
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
	// A forwarded agent whose other end is gone answers nothing, then or when it signs.
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

// maxKey bounds a key's file, in bytes.
const maxKey = 64 << 10

// ReadKey reads a private key without a passphrase, from a file that only its owner
// can read.
func ReadKey(name string) (ssh.Signer, error) {
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

// Signer is the key in a file: a private key, or a public one whose other half the
// agent holds. Close it with done.
func (k Keys) Signer(ctx context.Context, file string) (_ ssh.Signer, done func(), err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	if pub, _, _, _, err := ssh.ParseAuthorizedKey(b); err == nil && !bytes.Contains(b, []byte("PRIVATE KEY")) {
		return AgentSigner(ctx, k, pub)
	}
	s, err := ReadKey(file)
	return s, func() {}, err
}

// AgentSigner is the agent's key with this public key, for signing approvals.
// Close it with done.
func AgentSigner(ctx context.Context, k Keys, pub ssh.PublicKey) (_ ssh.Signer, done func(), err error) {
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

// Close ends the connection, and that of the host on the way.
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
