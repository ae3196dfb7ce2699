package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/wire"
)

// Ports that select the behaviour of the host's end.
const (
	portEcho    = 80 // sends back what comes, then ends
	portRefused = 81
	portReset   = 82 // waits for a byte, sends three and resets
	portSilent  = 83 // never answers
)

// withChannels gives the bottle a wire and channels. The host's end serves the
// ports above; nobody reads packets.
func withChannels(t testing.TB) func(*bottle.Spec) {
	t.Helper()
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Host.Close() })
	host, inside, err := wire.NewChannels()
	if err != nil {
		t.Fatal(err)
	}
	l, err := wire.NewHostChannels(host, func(c *wire.Channel) {
		switch c.To().Port() {
		case portRefused:
			go c.Refuse()
		case portReset:
			go func() {
				c.Accept()
				c.Read(make([]byte, 1))
				c.Write([]byte("end"))
				c.Abort()
			}()
		case portEcho:
			go func() {
				c.Accept()
				io.Copy(c, c)
				c.CloseWrite()
				c.Close()
			}()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	go l.Listen()
	t.Cleanup(l.Close)
	return func(s *bottle.Spec) {
		s.Wire, s.Channels, s.Net = pair.Bottle, inside, wire.DefaultConfig()
	}
}

// TestChannels compares sockets that use a channel with Linux's. State 9 is LAST_ACK:
// both ends have ended.
func TestChannels(t *testing.T) {
	m := makeBottle(t, withGuest(t), withChannels(t))
	out, st := m.run(factsGuest, "channels")
	want := `echo over IPv4: 4194304 bytes, equal, then EOF
echo over IPv6: 4194304 bytes, equal, then EOF
echo over mapped IPv4: 4194304 bytes, equal, then EOF
refused: connection refused
reset: 3 bytes, then connection reset by peer
connect to nobody: network is unreachable
silent: operation now in progress
silent again: operation already in progress
silent, read: resource temporarily unavailable
silent, write: resource temporarily unavailable
silent, peer: transport endpoint is not connected
silent, shut down: connection reset by peer
state 1
peer 192.0.2.1:80
connected already: transport endpoint is already connected
bind: invalid argument
listen: invalid argument
unread 5, peeked "hello", read "hello"
unsent 0
after shutdown: broken pipe
read after shutdown: 0
state after shutdown 9
loopback: ok
`
	if st.ExitCode() != 0 || out != want {
		t.Errorf("%d:\n%s\nwant:\n%s", st.ExitCode(), out, want)
	}
}

// attackChannels uses sockets in every way that their channel answers itself.
func attackChannels([]string) error {
	for _, where := range [][2]string{{"IPv4", "tcp4 192.0.2.1:80"}, {"IPv6", "tcp6 [2001:db8::1]:80"}, {"mapped IPv4", "tcp [::ffff:192.0.2.1]:80"}} {
		network, addr, _ := strings.Cut(where[1], " ")
		n, err := echo(network, addr)
		fmt.Printf("echo over %s: %d bytes, %s\n", where[0], n, err)
	}
	_, err := net.Dial("tcp", "192.0.2.1:81")
	fmt.Println("refused:", errno(err))
	c, err := net.Dial("tcp", "192.0.2.1:82")
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	b, err := io.ReadAll(c)
	fmt.Printf("reset: %d bytes, then %v\n", len(b), errno(err))
	c.Close()
	if err := silent(); err != nil {
		return err
	}
	if err := details(); err != nil {
		return err
	}
	return loopback()
}

func errno(err error) error {
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}

func echo(network, addr string) (n int, err error) {
	c, err := net.Dial(network, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		c.Write(sent)
		c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		return len(got), err
	}
	if !bytes.Equal(got, sent) {
		return len(got), errors.New("different")
	}
	return len(got), errors.New("equal, then EOF")
}

func silent() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	fmt.Println("connect to nobody:", unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{224, 0, 0, 1}, Port: 80}))
	to := &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}, Port: portSilent}
	fmt.Println("silent:", unix.Connect(fd, to))
	fmt.Println("silent again:", unix.Connect(fd, to))
	_, err = unix.Read(fd, make([]byte, 1))
	fmt.Println("silent, read:", err)
	_, err = unix.Write(fd, make([]byte, 1))
	fmt.Println("silent, write:", err)
	_, err = unix.Getpeername(fd)
	fmt.Println("silent, peer:", err)
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		return err
	}
	e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	fmt.Println("silent, shut down:", unix.Errno(e))
	return nil
}

func details() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}, Port: portEcho}
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	state := func() uint8 {
		info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
		if err != nil {
			return 255
		}
		return info.State
	}
	fmt.Println("state", state())
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return err
	}
	p := peer.(*unix.SockaddrInet4)
	fmt.Printf("peer %v:%d\n", net.IP(p.Addr[:]), p.Port)
	fmt.Println("connected already:", unix.Connect(fd, to))
	fmt.Println("bind:", unix.Bind(fd, &unix.SockaddrInet4{}))
	fmt.Println("listen:", unix.Listen(fd, 1))
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return err
	}
	b := make([]byte, 16)
	peeked, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK)
	if err != nil {
		return err
	}
	unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return err
	}
	fmt.Printf("unread %d, peeked %q, ", unread, b[:peeked])
	n, err := unix.Read(fd, b)
	if err != nil {
		return err
	}
	fmt.Printf("read %q\n", b[:n])
	unsent, err := unix.IoctlGetInt(fd, unix.TIOCOUTQ)
	if err != nil {
		return err
	}
	fmt.Println("unsent", unsent)
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("x"))
	fmt.Println("after shutdown:", err)
	n, err = unix.Read(fd, b)
	if err != nil {
		return err
	}
	fmt.Println("read after shutdown:", n)
	fmt.Println("state after shutdown", state())
	return nil
}

// loopback uses no channel: both ends are inside.
func loopback() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("ok")); err != nil {
		return err
	}
	c.(*net.TCPConn).CloseWrite()
	b, err := io.ReadAll(c)
	fmt.Printf("loopback: %s\n", b)
	return err
}
