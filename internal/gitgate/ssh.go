package gitgate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Bounds of the connections to one host.
const (
	// maxSessions bounds the sessions on a connection. OpenSSH allows ten.
	maxSessions = 8
	// maxConnections bounds the connections to one upstream.
	maxConnections = 16
	// keepConnection is how long an idle connection is kept.
	keepConnection = 5 * time.Minute
	// answerPatience times Limits.Idle is the time that upstream has for the beginning of
	// an answer.
	answerPatience = 5
)

// sshUpstream runs git's two commands on a host, over connections that it reuses.
type sshUpstream struct {
	addr   string
	path   string
	config *ssh.ClientConfig
	limits Bounds

	dialing chan struct{} // held to dial: sshd drops connections that come together
	mu      sync.Mutex
	closed  bool
	conns   []*sshConn
}

// sshConn is a connection and the number of sessions on it.
type sshConn struct {
	client *ssh.Client
	used   int
	full   bool // the host refused a further session
	broken bool
	idle   *time.Timer
}

func newSSH(a address, access *SSHAccess, l Bounds) (*sshUpstream, error) {
	switch {
	case access == nil || access.Signer == nil:
		return nil, errors.New("ssh needs a key: give it an identity")
	case len(access.HostKeys) == 0:
		return nil, errors.New("no host key is pinned, so the host can't be told from another: give it a host_key")
	}
	port := a.port
	if port == "" {
		port = "22"
	}
	var algorithms []string
	for _, k := range access.HostKeys {
		switch k.Type() {
		case ssh.KeyAlgoRSA:
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
		default:
			algorithms = append(algorithms, k.Type())
		}
	}
	pinned := slices.Clone(access.HostKeys)
	return &sshUpstream{
		addr: net.JoinHostPort(a.host, port), path: a.path, limits: l, dialing: make(chan struct{}, 1),
		config: &ssh.ClientConfig{
			User: a.user, Auth: []ssh.AuthMethod{ssh.PublicKeys(access.Signer)},
			HostKeyAlgorithms: algorithms, ClientVersion: "SSH-2.0-carboy", Timeout: l.Connect,
			HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
				for _, k := range pinned {
					if bytes.Equal(k.Marshal(), key.Marshal()) {
						return nil
					}
				}
				return fmt.Errorf("%w: it shows %s", errHostKey, ssh.FingerprintSHA256(key))
			},
			BannerCallback: func(string) error { return nil },
		},
	}, nil
}

// parseHostKeys parses host keys, one on each line, in the form of known_hosts or of a
// public key file: "[host] type base64 [comment]".
func parseHostKeys(text string) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '@' {
			return nil, fmt.Errorf("line %d: certificates and revoked keys are not supported: give the host's own key", i+1)
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			_, _, key, _, _, err = ssh.ParseKnownHosts([]byte(line))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: not a host key: it is of the form that ssh-keyscan prints", i+1)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("no host key")
	}
	return keys, nil
}

func (u *sshUpstream) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, c := range u.conns {
		_ = c.client.Close()
	}
	u.conns = nil
	return nil
}

func (u *sshUpstream) advertise(ctx context.Context, service string, v version) (io.ReadCloser, error) {
	s, err := u.open(ctx, service, v)
	if err != nil {
		return nil, err
	}
	// The service waits for a request. Closing its input ends it.
	_ = s.in.Close()
	return &advertOnly{session: s}, nil
}

// advertOnly reads a session up to the end of the advertisement. What follows the end of
// its input is an error message.
type advertOnly struct {
	*session
	lines *lineReader
	rest  []byte
	over  bool
}

func (a *advertOnly) Read(p []byte) (int, error) {
	if a.lines == nil {
		a.lines = newLineReader(a.session)
	}
	for len(a.rest) == 0 {
		if a.over {
			return 0, io.EOF
		}
		k, line, err := a.lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return 0, a.session.why(io.ErrUnexpectedEOF)
		case err != nil:
			return 0, err
		case k == flush:
			a.rest, a.over = appendFlush(nil), true
		case k == data:
			a.rest = appendLine(nil, string(line))
		default:
			return 0, errFraming
		}
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// call opens a new session and skips its advertisement. The request itself holds all that
// it needs, such as the old value of a reference.
func (u *sshUpstream) call(ctx context.Context, service string, v version, body io.Reader, _ int64) (io.ReadCloser, error) {
	s, err := u.open(ctx, service, v)
	if err != nil {
		return nil, err
	}
	timer := time.AfterFunc(answerPatience*u.limits.Idle, func() { _ = s.Close() })
	defer timer.Stop()
	left := u.limits.Advert
	lines := newLineReader(s.out)
	for first := true; ; first = false {
		k, line, err := lines.next()
		if err != nil {
			_ = s.Close()
			return nil, s.why(noEOF(err))
		}
		if k == flush {
			break
		}
		if left -= int64(len(line) + 4); left < 0 {
			_ = s.Close()
			return nil, errTooMuch
		}
		if first && (string(chomp(line)) == "version 2") != (v == 2) {
			_ = s.Close()
			return nil, errors.New("it speaks another version of the protocol than before")
		}
	}
	go func() { // ends with body or with the session
		_, err := io.Copy(s.in, body)
		if err == nil {
			err = s.in.Close()
		}
		s.fed <- err
	}()
	s.out = lines.r
	return s, nil
}

// session is a command that runs on the host.
type session struct {
	s      *ssh.Session
	in     io.WriteCloser
	out    io.Reader
	stderr bytes.Buffer
	errs   sync.WaitGroup
	fed    chan error
	once   sync.Once
	leave  func()
	stop   func() bool
}

func (s *session) Read(p []byte) (int, error) {
	n, err := s.out.Read(p)
	if errors.Is(err, io.EOF) {
		err = s.why(err)
	}
	return n, err
}

// why returns the host's standard error as the error if there was no other output, such as
// "repository not found".
func (s *session) why(err error) error {
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	s.errs.Wait()
	if text := strings.TrimSpace(s.stderr.String()); text != "" {
		return fmt.Errorf("it says %q", text)
	}
	return fmt.Errorf("it ends too early: %w", err)
}

func (s *session) Close() error {
	s.stop()
	s.end()
	return nil
}

func (s *session) end() {
	s.once.Do(func() {
		_ = s.s.Close()
		s.leave()
	})
}

// open starts a service on a connection with room, or on a new one.
func (u *sshUpstream) open(ctx context.Context, service string, v version) (*session, error) {
	for range maxConnections + 1 {
		c, err := u.connection(ctx)
		if err != nil {
			return nil, err
		}
		s, err := u.session(ctx, c, service, v)
		if err == nil {
			return s, nil
		}
		var full *ssh.OpenChannelError
		u.mu.Lock()
		if errors.As(err, &full) {
			c.full = true
		} else {
			c.broken = true // the host may have closed it while it was idle
		}
		u.mu.Unlock()
		u.release(c)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("it allows no further session")
}

// connection returns a connection with room for a session, and counts the session.
func (u *sshUpstream) connection(ctx context.Context) (*sshConn, error) {
	if c, err := u.withRoom(); c != nil || err != nil {
		return c, err
	}
	select {
	case u.dialing <- struct{}{}:
		defer func() { <-u.dialing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Another goroutine may have dialled meanwhile.
	if c, err := u.withRoom(); c != nil || err != nil {
		return c, err
	}
	client, err := u.dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &sshConn{client: client, used: 1}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		_ = client.Close()
		return nil, net.ErrClosed
	}
	u.conns = append(u.conns, c)
	return c, nil
}

func (u *sshUpstream) withRoom() (*sshConn, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, net.ErrClosed
	}
	for _, c := range u.conns {
		if !c.broken && !c.full && c.used < maxSessions {
			c.used++
			if c.idle != nil {
				c.idle.Stop()
			}
			return c, nil
		}
	}
	if len(u.conns) >= maxConnections {
		return nil, fmt.Errorf("there are %d connections to it already", len(u.conns))
	}
	return nil, nil
}

// release ends a session. It closes a connection that cannot be reused after the last
// session.
func (u *sshUpstream) release(c *sshConn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	c.used--
	if c.used > 0 {
		return
	}
	c.full = false
	drop := func() {
		_ = c.client.Close()
		u.conns = slices.DeleteFunc(u.conns, func(o *sshConn) bool { return o == c })
	}
	if c.broken {
		drop()
		return
	}
	c.idle = time.AfterFunc(keepConnection, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if c.used == 0 {
			drop()
		}
	})
}

func (u *sshUpstream) dial(ctx context.Context) (*ssh.Client, error) {
	d := net.Dialer{Timeout: u.limits.Connect}
	conn, err := d.DialContext(ctx, "tcp", u.addr)
	if err != nil {
		return nil, err
	}
	// The deadline is for the handshake and authentication.
	_ = conn.SetDeadline(time.Now().Add(u.limits.Connect))
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	c, chans, reqs, err := ssh.NewClientConn(conn, u.addr, u.config)
	if err != nil {
		_ = conn.Close()
		var ne net.Error
		switch {
		case errors.Is(err, errHostKey):
			return nil, err
		case strings.Contains(err.Error(), "no common algorithm for host key"):
			return nil, fmt.Errorf("%w: it has no key of the pinned types", errHostKey)
		case strings.Contains(err.Error(), "unable to authenticate"):
			return nil, errors.New("it does not accept the key of this repository")
		case errors.As(err, &ne) && ne.Timeout():
			return nil, errSilent
		}
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return ssh.NewClient(c, chans, reqs), nil
}

func (u *sshUpstream) session(ctx context.Context, c *sshConn, service string, v version) (*session, error) {
	// A host that no longer answers must not block the caller.
	timer := time.AfterFunc(u.limits.Connect, func() { _ = c.client.Close() })
	defer timer.Stop()
	x, err := c.client.NewSession()
	if err != nil {
		return nil, err
	}
	s := &session{s: x, fed: make(chan error, 1), leave: func() { u.release(c) }}
	if s.in, err = x.StdinPipe(); err == nil {
		s.out, err = x.StdoutPipe()
	}
	var stderr io.Reader
	if err == nil {
		stderr, err = x.StderrPipe()
	}
	if err == nil && v == 2 {
		// Do not wait for the answer. A host that refuses the variable answers in version
		// 0.
		_, err = x.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{"GIT_PROTOCOL", "version=2"}))
	}
	if err == nil {
		err = x.Start(service + " " + quote(u.path))
	}
	if err != nil {
		_ = x.Close()
		return nil, err
	}
	s.stop = context.AfterFunc(ctx, s.end)
	s.errs.Go(func() { // ends with the session
		_, _ = io.Copy(&s.stderr, io.LimitReader(stderr, 4<<10))
		_, _ = io.Copy(io.Discard, stderr)
	})
	return s, nil
}

// quote quotes a path for the host's shell, like git does.
func quote(p string) string {
	return "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(p) + "'"
}
