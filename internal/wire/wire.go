// Package wire is the bottle's one way out: a pair of connected sockets that
// carries IP packets between the network stack inside the bottle and the
// gateway outside it.
//
// What it promises: packet boundaries are kept, nothing but packet bytes
// crosses that pair (descriptors sent along are discarded by the kernel, because no
// ancillary buffer is ever offered), a peer that stops reading slows the
// sender down and cannot make it grow, and the death of either end is seen by
// the other.
//
// Beside it lie lanes: memory that both sides map, in which connections to the
// gateway go faster; see [NewLanes].
//
// Start reading at [New], which makes the pair, and [Config], which is what
// both ends must agree about. [Link] is the gateway's network card; the
// bottle's card is made by its own kernel from [Config].
package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// MTU is the maximum size of an IP packet in bytes, and what programs see
	// on their interface: the largest there is. The wire is memory, where a
	// packet costs about the same whatever its size.
	MTU = 65535

	// socketBuffer is what is asked for in each direction. The kernel counts
	// its own overhead against it; ordinary users get what
	// net.core.wmem_max allows.
	socketBuffer = 4 << 20
)

// Config is what the two ends of a wire agree about. The zero value is not
// usable; see [DefaultConfig].
type Config struct {
	// MTU in bytes. The bottle's link must have both checksum offloads.
	MTU uint32
	// Bottle4 and Bottle6 are the bottle's addresses with their prefix
	// lengths. Packets from any other source are dropped.
	Bottle4, Bottle6 netip.Prefix
	// Gateway4 and Gateway6 are the gateway's addresses: default route,
	// answers to echo requests, source of published connections.
	Gateway4, Gateway6 netip.Addr
	// DNS is the server to write into the bottle's resolv.conf. Any address
	// would do, because the gateway answers port 53 on all of them.
	DNS netip.Addr
}

// DefaultConfig returns the addresses that every bottle has. They are the
// same in each, since no two bottles share a wire: 198.18.0.0/15 is set aside
// for benchmarks of network devices (RFC 2544) and so collides with nothing a
// program would want to reach; the other prefix is a unique local one
// (RFC 4193). A network of two addresses has no broadcast address (RFC 3021):
// the kernel inside would wait for an answer from one, not be refused.
func DefaultConfig() Config {
	return Config{
		MTU:      MTU,
		Bottle4:  netip.MustParsePrefix("198.18.0.2/31"),
		Bottle6:  netip.MustParsePrefix("fd63:6172:626f:7900::2/64"),
		Gateway4: netip.MustParseAddr("198.18.0.3"),
		Gateway6: netip.MustParseAddr("fd63:6172:626f:7900::1"),
		DNS:      netip.MustParseAddr("198.18.0.3"),
	}
}

// Validate reports what is missing or contradictory.
func (c Config) Validate() error {
	switch {
	case c.MTU < 1280 || c.MTU > 65535:
		return fmt.Errorf("wire: mtu %d: not between 1280 (RFC 8200) and 65535", c.MTU)
	case !c.Bottle4.IsValid() || !c.Bottle4.Addr().Is4() || !c.Gateway4.Is4():
		return errors.New("wire: ipv4 addresses are missing")
	case !c.Bottle6.IsValid() || !c.Bottle6.Addr().Is6() || !c.Gateway6.Is6():
		return errors.New("wire: ipv6 addresses are missing")
	case !c.Bottle4.Contains(c.Gateway4) || c.Bottle4.Addr() == c.Gateway4:
		return fmt.Errorf("wire: gateway %v is not another address in %v", c.Gateway4, c.Bottle4)
	case !c.Bottle6.Contains(c.Gateway6) || c.Bottle6.Addr() == c.Gateway6:
		return fmt.Errorf("wire: gateway %v is not another address in %v", c.Gateway6, c.Bottle6)
	}
	return nil
}

// Pair is a wire before it is connected: its two ends. Whoever takes an end
// closes it.
type Pair struct {
	// Host is the gateway's end; hand it to [NewLink].
	Host *os.File
	// Bottle is the other end; donate it to the backend and close it here,
	// else the bottle's death goes unseen.
	Bottle *os.File
}

// New makes a wire. Both ends close on exec; the caller passes the bottle's
// end on by donating it.
func New() (*Pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("wire: socketpair: %w", err)
	}
	// Both block, so that the host's end stays out of Go's poller (see
	// reader.recv); the link says at each call that it does not want to wait.
	for _, fd := range fds {
		setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
		setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	}
	return &Pair{
		Host:   os.NewFile(uintptr(fds[0]), "wire-host"),
		Bottle: os.NewFile(uintptr(fds[1]), "wire-bottle"),
	}, nil
}

// setBuffer asks for a large buffer, first as root may, then within the
// system's limit. A small buffer costs speed, not safety, so failure is not
// an error.
func setBuffer(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) == nil {
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuffer)
}

// Close closes both ends that are still here.
func (p *Pair) Close() error {
	return errors.Join(closeFile(p.Host), closeFile(p.Bottle))
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
