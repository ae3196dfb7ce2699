package web

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// ownListener accepts connections of one user's processes only. It closes the others before
// it reads a byte. The kernel's table of connections, which nobody can write to, tells
// which user has the other end.
//
// A port that is forwarded over SSH works: the end of it on the server is a process of the
// user.
type ownListener struct {
	net.Listener
	uid    int
	refuse func(peer string, err error)
}

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && uid == l.uid {
			return c, nil
		}
		if err == nil {
			err = fmt.Errorf("it is user %d's, and this page is user %d's", uid, l.uid)
		}
		l.refuse(c.RemoteAddr().String(), err)
		c.Close()
	}
}

// peerUID returns the user of the other end of a loopback connection.
func peerUID(c net.Conn) (int, error) {
	here, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	there, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return uidOf(f, there, here)
}

// uidOf returns the user of the socket from local to remote, from a table in the format of
// /proc/net/tcp. A socket that no process holds any more has no user.
func uidOf(table io.Reader, local, remote netip.AddrPort) (int, error) {
	want := kernelAddr(local) + " " + kernelAddr(remote)
	if want == " " {
		return 0, errors.New("it is not an IPv4 address")
	}
	for lines := bufio.NewScanner(table); lines.Scan(); {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[1]+" "+f[2] != want {
			continue
		}
		if f[9] == "0" {
			return 0, errors.New("no process holds it")
		}
		return strconv.Atoi(f[7])
	}
	return 0, errors.New("the kernel does not list it")
}

// kernelAddr returns an address as the kernel prints it: four bytes as one number in the
// machine's byte order.
func kernelAddr(a netip.AddrPort) string {
	ip := a.Addr().Unmap()
	if !ip.Is4() {
		return ""
	}
	b := ip.As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}
