package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// correct reports whether a packet's transport checksum is right, computed the slow way.
func correct(p []byte, start int, proto byte, addrs []byte) bool {
	var sum uint32
	body := p[start:]
	all := append(append([]byte(nil), addrs...), 0, proto)
	all = binary.BigEndian.AppendUint16(all, uint16(len(body)))
	all = append(all, body...)
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	for i := 0; i < len(all); i += 2 {
		sum += uint32(all[i])<<8 | uint32(all[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

func checked4(proto byte, body []byte) []byte {
	return append([]byte{0x45, 0, 0, byte(20 + len(body)), 0, 0, 0x40, 0, 64, proto, 0, 0, 198, 18, 0, 3, 198, 18, 0, 2}, body...)
}

func checked6(proto byte, body []byte) []byte {
	p := append(append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), proto, 64}, make([]byte, 32)...), body...)
	p[8], p[39] = 0xfd, 2
	return p
}

func TestSetChecksum(t *testing.T) {
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for size := 20; size < 100; size++ {
			body := make([]byte, size)
			for i := range body {
				body[i] = byte(i*37 + size)
			}
			p := checked4(proto, body)
			if SetChecksum(p); !correct(p, 20, proto, p[12:20]) {
				t.Errorf("IPv4, protocol %d, %d bytes", proto, size)
			}
			p = checked6(proto, body)
			if SetChecksum(p); !correct(p, 40, proto, p[8:40]) {
				t.Errorf("IPv6, protocol %d, %d bytes", proto, size)
			}
		}
	}
	// A sum of zero would mean that there is none.
	body := make([]byte, 8)
	p := checked4(unix.IPPROTO_UDP, body)
	SetChecksum(p)
	copy(p[20:], p[26:28])
	if SetChecksum(p); p[26] != 0xff || p[27] != 0xff {
		t.Errorf("a sum of zero is %x", p[26:28])
	}
}

// TestNoChecksum: anything else, and anything short, stays as it is.
func TestNoChecksum(t *testing.T) {
	tcp := make([]byte, 26)
	fragment, first, short, long := checked4(unix.IPPROTO_TCP, tcp), checked4(unix.IPPROTO_TCP, tcp), checked4(unix.IPPROTO_TCP, tcp[:10]), checked4(unix.IPPROTO_TCP, tcp)
	fragment[7], first[6], long[3] = 1, 0x20, 200
	cut := checked6(unix.IPPROTO_TCP, tcp)
	for _, p := range [][]byte{nil, {0x45}, {0x60}, {0x4f, 19: 0}, fragment, first, short, long, cut[:50], checked4(unix.IPPROTO_ICMP, tcp), checked6(unix.IPPROTO_UDP, tcp[:7])} {
		was := bytes.Clone(p)
		if SetChecksum(p); !bytes.Equal(p, was) {
			t.Errorf("%x became %x", was, p)
		}
	}
}

func FuzzSetChecksum(f *testing.F) {
	f.Add(checked4(unix.IPPROTO_TCP, make([]byte, 26)))
	f.Add(checked6(unix.IPPROTO_UDP, make([]byte, 8)))
	f.Fuzz(func(t *testing.T, p []byte) { SetChecksum(p) })
}
