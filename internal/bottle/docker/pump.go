package docker

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/wire"
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

// startPump takes tun and a duplicate of the wire's end w.
func startPump(tun, w *os.File) (*pump, error) {
	n, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD_CLOEXEC, 3)
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
	go p.carry(p.wire, p.tun, wire.SetChecksum)
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
