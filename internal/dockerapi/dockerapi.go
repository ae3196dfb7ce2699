// Package dockerapi speaks HTTP with a container engine of this machine over its Unix
// socket. No client program is started: it would read the user's configuration, with its
// credentials, proxy passwords and plugins.
//
// Start reading at [New].
package dockerapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/safetext"
)

const (
	// maxAnswer bounds an answer that is read as a whole, bytes.
	maxAnswer = 8 << 20
	// maxMessage bounds what is read of an answer that is no success, bytes, and maxShown
	// what is shown of it, characters.
	maxMessage, maxShown = 64 << 10, 500
)

// pingIn bounds the wait for an engine's first answer, which an engine gives at once.
var pingIn = 30 * time.Second

// Client calls one engine. Its methods are safe for concurrent use, and it keeps no
// connection open between calls.
type Client struct {
	http *http.Client
}

// New returns a client of the engine that listens on the socket.
func New(socket string) *Client {
	return &Client{&http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, socket) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ErrStranger is the error for a server of another user.
var ErrStranger = errors.New("who is neither you nor root")

// Dial connects to a local socket whose server runs as the user or as root, else the error
// is ErrStranger: another user would decide what is done in the caller's name.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := trusted(c.(*net.UnixConn)); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func trusted(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(cerr, err); err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d, %w", cred.Uid, ErrStranger)
	}
	return nil
}

// Error is an engine's answer that is no success. Its message is safe to show.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("the engine says: %s (%d)", e.Message, e.Status) }

// Gone reports whether err is the engine's answer that the thing is not there, or is being
// removed.
func Gone(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusConflict && strings.Contains(e.Message, "already in progress"))
}

// Ping returns the newest version of the API that the engine speaks. It gives an engine
// that does not answer half a minute.
func (c *Client) Ping(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pingIn)
	defer cancel()
	resp, err := c.Do(ctx, http.MethodGet, "/_ping", "", nil)
	if err != nil {
		return "", err
	}
	return resp.Header.Get("Api-Version"), resp.Body.Close()
}

// Do makes a request, with a body of that content type unless it is nil. The caller closes
// the answer's body. An answer that is no success is an *Error.
func (c *Client) Do(ctx context.Context, method, path, kind string, body io.Reader) (*http.Response, error) {
	header := http.Header{}
	if kind != "" {
		header.Set("Content-Type", kind)
	}
	return c.send(ctx, method, path, header, body)
}

// Upgrade makes a POST request after which the connection carries both sides' bytes, and
// returns the connection.
func (c *Client) Upgrade(ctx context.Context, path string) (io.ReadWriteCloser, error) {
	resp, err := c.send(ctx, http.MethodPost, path, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}}, nil)
	if err != nil {
		return nil, err
	}
	if conn, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		return conn, nil
	}
	resp.Body.Close()
	return nil, fmt.Errorf("the engine does not give the connection away (%d)", resp.StatusCode)
}

func (c *Client) send(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = header
	resp, err := c.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the made-up address
		}
		return nil, err
	}
	switch {
	case resp.StatusCode/100 == 2, resp.StatusCode == http.StatusNotModified, resp.StatusCode == http.StatusSwitchingProtocols:
		return resp, nil
	}
	defer resp.Body.Close()
	var m struct{ Message string }
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	if json.Unmarshal(b, &m) != nil || m.Message == "" {
		m.Message = strings.TrimSpace(string(b))
	}
	return nil, &Error{resp.StatusCode, safetext.String(m.Message, maxShown)}
}

// Call makes a request with the JSON of in and reads the answer's JSON into out. Either may
// be nil.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	kind := ""
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, kind = bytes.NewReader(b), "application/json"
	}
	resp, err := c.Do(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
		return err
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		return fmt.Errorf("the engine's answer to %s: %w", path, err)
	}
	return nil
}
