// Package wire connects a bottle to its gateway: a pair of connected sockets that
// carries IP packets, or Ethernet frames, between the network stack inside the bottle
// and the gateway outside. It is the bottle's only way out.
//
// It keeps packet boundaries. Nothing but packet bytes crosses the pair: the kernel
// discards descriptors sent along, because no ancillary buffer is ever offered. A peer
// that stops reading slows the sender down and cannot make it use more memory. Each
// end notices the death of the other.
//
// Beside the pair there are channels: connections in memory that both sides map, which
// are faster; see [NewChannels].
//
// Start reading at [New], which makes the pair, and [Config], which both ends must
// share. [Link] is the gateway's network card; the bottle's kernel makes its own card
// from [Config].
package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// MTU is the maximum size of an IP packet in bytes, as programs see it on their
	// interface: the largest possible. The wire is memory, where a packet costs about
	// the same whatever its size.
	MTU = 65535

	// socketBuffer is the buffer to ask for in each direction. The kernel counts its
	// own overhead against it; ordinary users get what net.core.wmem_max allows.
	socketBuffer = 4 << 20
)

// Config is shared by both ends of a wire. The zero value is not usable; see
// [DefaultConfig].
type Config struct {
	// MTU in bytes. The bottle's link must have both checksum offloads, unless it
	// carries Ethernet frames.
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
	// BottleMAC and GatewayMAC are the addresses of the two cards if the wire carries
	// Ethernet frames; zero: it carries IP packets. See [Config.Framed].
	BottleMAC, GatewayMAC MAC
}

// DefaultConfig returns the addresses that every bottle has. All bottles can have the
// same, since no two share a wire. 198.18.0.0/15 is set aside for benchmarks of
// network devices (RFC 2544), so no program needs to reach it; the other prefix is a
// unique local one (RFC 4193). A network of two addresses has no broadcast address
// (RFC 3021). With one, the kernel inside would wait for an answer from it instead of
// being refused.
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

// Validate returns an error if a field is missing or contradicts another.
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
	return c.validateMACs()
}

// Pair holds the two ends of a wire. The receiver of an end closes it.
type Pair struct {
	// Host is the gateway's end; hand it to [NewLink].
	Host *os.File
	// Bottle is the other end. Donate it to the backend and close it here; otherwise
	// the bottle's death goes unnoticed.
	Bottle *os.File
}

// New creates a wire. Both ends close on exec; donating passes the bottle's end on.
func New() (*Pair, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("wire: socketpair: %w", err)
	}
	// Both block, so that the host's end stays out of Go's poller (see reader.recv).
	// The link asks for non-blocking calls one by one.
	for _, fd := range fds {
		setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
		setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	}
	return &Pair{
		Host:   os.NewFile(uintptr(fds[0]), "wire-host"),
		Bottle: os.NewFile(uintptr(fds[1]), "wire-bottle"),
	}, nil
}

// setBuffer asks for a large buffer, as root beyond the system's limit, else within
// it. A small buffer only costs speed, so it ignores errors.
func setBuffer(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) == nil {
		return
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuffer)
}

// Close closes the ends that are still open.
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
