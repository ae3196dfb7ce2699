package agent

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// dialPatience bounds the wait for all connections together.
const dialPatience = 2 * time.Second

// dial tries to connect to each address at once, and writes a line for each: "open" where
// a connection was made. The package net would double the program's size.
func dial(addrs []string, w io.Writer) error {
	polls := make([]unix.PollFd, len(addrs))
	open := make([]bool, len(addrs))
	for i, a := range addrs {
		ap, err := netip.ParseAddrPort(a)
		if err != nil {
			return err
		}
		if polls[i].Fd, err = connect(ap); err != nil {
			polls[i].Fd = -1 // poll ignores it
			continue
		}
		polls[i].Events = unix.POLLOUT
		defer unix.Close(int(polls[i].Fd))
	}
	end := time.Now().Add(dialPatience)
	for left := dialPatience; left > 0; left = time.Until(end) {
		n, err := unix.Poll(polls, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return err
		}
		waits := false
		for i := range polls {
			if n > 0 && polls[i].Fd >= 0 && polls[i].Revents != 0 {
				code, err := unix.GetsockoptInt(int(polls[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
				open[i] = err == nil && code == 0
				polls[i].Fd = ^polls[i].Fd // known; poll ignores it
			}
			waits = waits || polls[i].Fd >= 0
		}
		if !waits {
			break
		}
	}
	for i, a := range addrs {
		state := "closed"
		if open[i] {
			state = "open"
		}
		if _, err := fmt.Fprintln(w, a, state); err != nil {
			return err
		}
	}
	return nil
}

// connect begins a connection.
func connect(ap netip.AddrPort) (int32, error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()})
	if ap.Addr().Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, addr); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return int32(fd), nil
}
