package attacker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// attempt makes attacks of the catalogue by their ids, in the current directory, in the
// world that variables describe. Fixtures run it as a program of its own. It prints the
// evidence, and succeeds only if all attacks were made and refused.
func attempt(ids []string) error {
	ws, err := os.Getwd()
	if err != nil {
		return cannot("%v", err)
	}
	w := &World{Workspace: ws, Secret: os.Getenv("FIXTURE_SECRET_FILE"), Marker: reverse("CARBOY-CANARY")}
	all := map[string]*Attack{}
	for _, a := range All() {
		all[a.ID] = &a
	}
	var through error
	for _, id := range ids {
		a := all[id]
		if a == nil || a.Try == nil {
			return cannot("no attack is called %s", id)
		}
		r := a.attack(w)
		fmt.Printf("%s: %s %s\n%s\n", id, r.Outcome, r.Control+r.Detail, r.Evidence)
		switch r.Outcome {
		case Done:
			through = errors.New(id + " got through")
		case Cannot:
			return cannot("%s could not be made: %s", id, r.Control+r.Detail)
		}
	}
	return through
}

// touchNetwork tries endpoints of every family, and reaches none.
func touchNetwork([]string) error {
	type step struct {
		name string
		f    func() error
	}
	to := func(network, addr string) func() error {
		return func() error {
			c, err := net.DialTimeout(network, addr, netPatience)
			if err == nil {
				c.Close()
			}
			return err
		}
	}
	send := func(family int, to unix.Sockaddr) func() error {
		return func() error {
			fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, []byte("touch"), 0, to)
		}
	}
	made := func(family, kind, protocol int) func() error {
		return func() error { return makeFD(unix.Socket(family, kind, protocol)) }
	}
	for _, s := range []step{
		{"ipv4", to("tcp4", "192.0.2.1:443")},
		{"ipv6", to("tcp6", "[2001:db8::1]:443")},
		{"udp", send(unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 2}, Port: 5353})},
		{"udp6", send(unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 2}, Port: 5353})},
		{"dns", func() error {
			ctx, cancel := context.WithTimeout(context.Background(), netPatience)
			defer cancel()
			_, err := net.DefaultResolver.LookupHost(ctx, "touched.fixture.test")
			return err
		}},
		{"raw", made(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"packet", made(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"unix", to("unix", "/var/run/docker.sock")},
		{"abstract", to("unix", "@/tmp/.X11-unix/X0")},
		{"vsock", made(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	} {
		fmt.Println(s.name, s.f())
	}
	time.Sleep(50 * time.Millisecond) // what was sent is on its way
	return nil
}
