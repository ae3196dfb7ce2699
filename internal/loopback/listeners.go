package loopback

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Listener is a socket of the host that takes what is sent to it.
type Listener struct {
	Network string // tcp or udp
	Addr    netip.AddrPort
}

// Everywhere reports whether the socket takes what is sent to any address of the host.
func (l Listener) Everywhere() bool { return l.Addr.Addr().IsUnspecified() }

// States in /proc/net/tcp and /proc/net/udp.
const (
	stateListen = "0A"
	stateClose  = "07" // of an UDP socket that is bound and not connected
	// stateAny selects connections that a process has open, half-closed ones too.
	stateAny = ""
)

// Listeners returns what listens in this process's network namespace, without doubles and
// in order.
func Listeners() ([]Listener, error) {
	var out []Listener
	for _, t := range []struct{ file, network, state string }{
		{"/proc/net/tcp", "tcp", stateListen}, {"/proc/net/tcp6", "tcp", stateListen},
		{"/proc/net/udp", "udp", stateClose}, {"/proc/net/udp6", "udp", stateClose},
	} {
		f, err := os.Open(t.file)
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(t.file, "6") {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		found, err := sockets(f, t.state)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.file, err)
		}
		for _, s := range found {
			out = append(out, Listener{t.network, s.local})
		}
	}
	slices.SortFunc(out, func(a, b Listener) int {
		return slices.Compare([]string{a.Network, fmt.Sprintf("%05d", a.Addr.Port()), a.Addr.String()}, []string{b.Network, fmt.Sprintf("%05d", b.Addr.Port()), b.Addr.String()})
	})
	return slices.Compact(out), nil
}

// OwnerOf returns the user whose socket is connected from local to remote, both on this
// machine: false if no process has such a socket. Once its process has closed it, the
// kernel does not tell whose it was.
func OwnerOf(local, remote netip.AddrPort) (uid int, found bool, err error) {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, false, err
		}
		list, err := sockets(f, stateAny)
		_ = f.Close()
		if err != nil {
			return 0, false, fmt.Errorf("%s: %w", file, err)
		}
		for _, s := range list {
			if unmapped(s.local) == unmapped(local) && unmapped(s.remote) == unmapped(remote) {
				return s.uid, true, nil
			}
		}
	}
	return 0, false, nil
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// socket is a line of /proc/net/tcp.
type socket struct {
	local, remote netip.AddrPort
	uid           int
}

// sockets reads the sockets in one state from a table as proc_net_tcp(5) has it.
func sockets(r io.Reader, state string) ([]socket, error) {
	var out []socket
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[0] == "sl" || state != stateAny && f[3] != state {
			continue
		}
		if orphan := f[9] == "0"; state == stateAny && (orphan || f[3] == stateListen) {
			continue
		}
		local, err1 := parseSocketAddr(f[1])
		remote, err2 := parseSocketAddr(f[2])
		uid, err3 := strconv.Atoi(f[7])
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("line %.100q: %w", lines.Text(), err)
		}
		out = append(out, socket{local, remote, uid})
	}
	return out, lines.Err()
}

// parseSocketAddr reads an address of the table: 32-bit words in the machine's order,
// which is little-endian on every machine that carboy runs on.
func parseSocketAddr(s string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, fmt.Errorf("address %.50q", s)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(n)), nil
}
