package docker

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pump carries IP packets between the bottle's card and the wire. The gateway takes
// nothing for granted of what comes, so the pump looks at no packet of the bottle's; those
// of the gateway get the checksums that its own card leaves out.
type pump struct {
	tun, wire *os.File
	running   sync.WaitGroup
}

// maxPacket is the largest IP packet, bytes.
const maxPacket = 65535

// startPump takes tun and a duplicate of wire.
func startPump(tun, wire *os.File) (*pump, error) {
	n, err := unix.FcntlInt(wire.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		// Now, so that the new File is waited for by Go's poller.
		err = unix.SetNonblock(n, true)
	}
	if err != nil {
		tun.Close()
		return nil, err
	}
	p := &pump{tun: tun, wire: os.NewFile(uintptr(n), "wire")}
	p.running.Add(2)
	go p.carry(p.tun, p.wire, nil)
	go p.carry(p.wire, p.tun, setChecksum)
	return p, nil
}

// carry copies packets until one side ends; then it ends the other.
func (p *pump) carry(from, to *os.File, change func([]byte)) {
	defer p.running.Done()
	defer p.end()
	buf := make([]byte, maxPacket)
	for {
		n, err := from.Read(buf)
		if err != nil || n == 0 {
			return
		}
		if change != nil {
			change(buf[:n])
		}
		// A card that is down and a packet that it refuses lose that packet, as on any
		// network. A wire that has ended ends the reader too.
		_, _ = to.Write(buf[:n])
	}
}

func (p *pump) end() {
	p.tun.Close()
	p.wire.Close()
}

func (p *pump) close() {
	p.end()
	p.running.Wait()
}

// setChecksum writes the TCP or UDP checksum of a packet that is not a fragment.
func setChecksum(p []byte) {
	var proto byte
	var start int
	var sum uint32
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		start = int(p[0]&15) * 4
		if binary.BigEndian.Uint16(p[6:])&0x3fff != 0 { // a fragment
			return
		}
		proto, sum = p[9], add(0, p[12:20])
	case len(p) >= 40 && p[0]>>4 == 6:
		start, proto, sum = 40, p[6], add(0, p[8:40])
	default:
		return
	}
	if start > len(p) {
		return
	}
	body := p[start:]
	var at int
	switch {
	case proto == unix.IPPROTO_TCP && len(body) >= 20:
		at = 16
	case proto == unix.IPPROTO_UDP && len(body) >= 8:
		at = 6
	default:
		return
	}
	body[at], body[at+1] = 0, 0
	sum = add(sum+uint32(proto)+uint32(len(body)), body)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	c := ^uint16(sum)
	if c == 0 && proto == unix.IPPROTO_UDP {
		c = 0xffff // 0 means that there is none
	}
	binary.BigEndian.PutUint16(body[at:], c)
}

// add adds b to an Internet checksum (RFC 1071).
func add(sum uint32, b []byte) uint32 {
	wide := uint64(sum)
	for len(b) >= 8 {
		v := binary.BigEndian.Uint64(b)
		wide += v>>32 + v&0xffffffff
		b = b[8:]
	}
	for len(b) >= 2 {
		wide += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		wide += uint64(b[0]) << 8
	}
	for wide > 0xffff {
		wide = wide>>16 + wide&0xffff
	}
	return uint32(wide)
}
