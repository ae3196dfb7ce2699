package gateway

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

// firstName is the offset of the first name in the synthetic range. Addresses below it
// belong to the wire.
const firstName = 256

// names assigns each name a synthetic address for the bottle's life. The address is
// only a handle: the gateway looks its name up here and never trusts the client about
// it.
type names struct {
	base netip.Prefix
	max  int

	mu     sync.RWMutex
	byName map[string]netip.Addr
	list   []string // index is the offset from firstName
}

func newNames(base netip.Prefix, limit int) *names {
	room := 1<<(32-base.Bits()) - firstName - 1
	n := &names{base: base.Masked(), max: min(limit, room), byName: map[string]netip.Addr{}}
	for i, name := range insideNames {
		b := n.base.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+insideOffset+uint32(i))
		n.byName[name] = netip.AddrFrom4(b)
	}
	return n
}

// assign returns the address of a canonical name, and false when there is no
// room for another.
func (n *names) assign(name string) (netip.Addr, bool) {
	n.mu.RLock()
	a, ok := n.byName[name]
	n.mu.RUnlock()
	if ok {
		return a, true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, true
	}
	if len(n.list) >= n.max {
		return netip.Addr{}, false
	}
	b := n.base.Addr().As4()
	v := binary.BigEndian.Uint32(b[:]) + firstName + uint32(len(n.list))
	binary.BigEndian.PutUint32(b[:], v)
	a = netip.AddrFrom4(b)
	n.list = append(n.list, name)
	n.byName[name] = a
	return a, true
}

// contains reports whether an address is in the synthetic range.
func (n *names) contains(a netip.Addr) bool { return n.base.Contains(a) }

// lookup returns the name an address stands for, or "".
func (n *names) lookup(a netip.Addr) string {
	if !n.base.Contains(a) {
		return ""
	}
	b, base := a.As4(), n.base.Addr().As4()
	i := int64(binary.BigEndian.Uint32(b[:])) - int64(binary.BigEndian.Uint32(base[:])) - firstName
	n.mu.RLock()
	defer n.mu.RUnlock()
	if i := i + firstName - insideOffset; i >= 0 && i < int64(len(insideNames)) {
		return insideNames[i]
	}
	if i < 0 || i >= int64(len(n.list)) {
		return ""
	}
	return n.list[i]
}
