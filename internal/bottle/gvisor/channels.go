package gvisor

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/socket/netstack"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/syserr"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/carboy/carboy/internal/wire"
)

// TCP sockets whose peer is on the other side of the wire use a channel instead
// of packets. Everything else about a socket stays gVisor's. A channelEndpoint
// embeds gVisor's own endpoint, which keeps options, binds the local port, and
// serves all other cases: listening, loopback, other network namespaces, and
// connections when no channel is free.

// channels is the bottle's end, set before the workload's first instruction.
var channels atomic.Pointer[wire.BottleChannels]

//go:linkname socketFamilies gvisor.dev/gvisor/pkg/sentry/socket.families
var socketFamilies map[int][]socket.Provider

// PlugArgs holds the arguments of Side.Plug; the files are those of
// wire.ChannelFiles.
type PlugArgs struct{ urpc.FilePayload }

// Plug makes sockets use channels.
func (*Side) Plug(a *PlugArgs, _ *struct{}) error {
	f, err := wire.ChannelFilesOf(a.Files)
	if err != nil {
		return err
	}
	l, err := wire.NewBottleChannels(f)
	if err != nil {
		return err
	}
	if !channels.CompareAndSwap(nil, l) {
		return errors.New("there are channels already")
	}
	for family, proto := range map[int]tcpip.NetworkProtocolNumber{linux.AF_INET: ipv4.ProtocolNumber, linux.AF_INET6: ipv6.ProtocolNumber} {
		socketFamilies[family] = append([]socket.Provider{&channelProvider{family: family, proto: proto}}, socketFamilies[family]...)
	}
	go l.Listen() // ends with the process
	return nil
}

// plugChannels runs in the shim.
func plugChannels(at []int, files []*os.File) error {
	if len(at) == 0 {
		return nil
	}
	var payload []*os.File
	for _, n := range at {
		if n <= 0 || n > len(files) {
			return errors.New("a descriptor is missing")
		}
		payload = append(payload, files[n-1])
	}
	return callSide("Plug", &PlugArgs{urpc.FilePayload{Files: payload}}, nil)
}

// channelProvider makes TCP sockets and leaves all others to gVisor.
type channelProvider struct {
	family int
	proto  tcpip.NetworkProtocolNumber
}

// Socket implements socket.Provider.
func (p *channelProvider) Socket(t *kernel.Task, stype linux.SockType, protocol int) (*vfs.FileDescription, *syserr.Error) {
	if stype != linux.SOCK_STREAM || protocol != 0 && protocol != linux.IPPROTO_TCP {
		return nil, nil
	}
	// The wire is the card of the bottle's own network namespace; one that the
	// workload makes has none.
	if t.NetworkNamespace() != t.Kernel().RootNetworkNamespace() {
		return nil, nil
	}
	eps, ok := t.NetworkContext().(*netstack.Stack)
	if !ok {
		return nil, nil
	}
	wq := &waiter.Queue{}
	ep, e := eps.Stack.NewEndpoint(tcp.ProtocolNumber, p.proto, wq)
	if e != nil {
		return nil, syserr.TranslateNetstackError(e)
	}
	ep.SetOwner(t)
	return netstack.New(t, p.family, stype, int(tcp.ProtocolNumber), wq, &channelEndpoint{Endpoint: ep, proto: p.proto, stack: eps.Stack, wq: wq})
}

// Pair implements socket.Provider.
func (*channelProvider) Pair(*kernel.Task, linux.SockType, int) (*vfs.FileDescription, *vfs.FileDescription, *syserr.Error) {
	return nil, nil, nil
}

// channelEndpoint is a TCP endpoint that uses a channel once it is connected
// through the wire.
type channelEndpoint struct {
	tcpip.Endpoint
	proto tcpip.NetworkProtocolNumber
	stack *stack.Stack
	wq    *waiter.Queue

	channel       atomic.Pointer[wire.BottleChannel] // nil: everything is the Endpoint's
	local, remote tcpip.FullAddress                  // valid when channel is set

	// readMu and writeMu guard the channel's memory, mu guards changes of
	// state. Lock them in this order.
	readMu, writeMu, mu sync.Mutex

	state    atomic.Uint32 // one of the below
	reported bool          // under mu: a call of connect has reported the connection
	told     atomic.Bool   // the error was stored in the Endpoint
	shutRead atomic.Bool
	shutWr   atomic.Bool
}

const (
	channelAsking = iota
	channelConnected
	channelFailed
	channelClosed
)

// remoteSide returns the wire's destination for addr, and the bottle's local
// address. If ok is false, gVisor serves or refuses the call.
func (e *channelEndpoint) remoteSide(addr tcpip.FullAddress) (to netip.AddrPort, local tcpip.FullAddress, ok bool) {
	proto := e.proto
	if proto == ipv6.ProtocolNumber && header.IsV4MappedAddress(addr.Addr) {
		if e.SocketOptions().GetV6Only() {
			return to, local, false
		}
		addr.Addr, proto = unmapped(addr.Addr), ipv4.ProtocolNumber
	}
	want := header.IPv4AddressSize
	if proto == ipv6.ProtocolNumber {
		want = header.IPv6AddressSize
	}
	if addr.Addr.Len() != want || addr.Addr.Unspecified() || addr.Port == 0 {
		return to, local, false
	}
	bound, err := e.Endpoint.GetLocalAddress()
	if err != nil {
		return to, local, false
	}
	from := bound.Addr
	if header.IsV4MappedAddress(from) {
		from = unmapped(from)
	}
	switch {
	case from.Unspecified():
		from = tcpip.Address{}
	case from.Len() != want:
		return to, local, false
	}
	nic := addr.NIC
	if dev := tcpip.NICID(e.SocketOptions().GetBindToDevice()); dev != 0 {
		nic = dev
	}
	r, err := e.stack.FindRoute(nic, from, addr.Addr, proto, false)
	if err != nil {
		return to, local, false
	}
	defer r.Release()
	if r.Loop() != stack.PacketOut || r.IsOutboundBroadcast() || e.stack.FindNICNameFromID(r.NICID()) != linkName {
		return to, local, false
	}
	a, _ := netip.AddrFromSlice(addr.Addr.AsSlice())
	return netip.AddrPortFrom(a, addr.Port), tcpip.FullAddress{NIC: r.NICID(), Addr: r.LocalAddress()}, true
}

// nobody reports whether an address belongs to no single host.
func nobody(a tcpip.Address) bool {
	if header.IsV4MappedAddress(a) {
		a = unmapped(a)
	}
	return a == header.IPv4Broadcast || header.IsV4MulticastAddress(a) || header.IsV6MulticastAddress(a)
}

func unmapped(a tcpip.Address) tcpip.Address {
	b := a.As16()
	return tcpip.AddrFrom4([4]byte(b[12:]))
}

// Connect implements tcpip.Endpoint.
func (e *channelEndpoint) Connect(addr tcpip.FullAddress) tcpip.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channel.Load(); c != nil {
		return e.connectAgain(c)
	}
	if s := tcp.EndpointState(e.Endpoint.State()); s != tcp.StateInitial && s != tcp.StateBound {
		return e.Endpoint.Connect(addr)
	}
	if nobody(addr.Addr) {
		// As on Linux. gVisor would send a request and wait for an answer.
		return &tcpip.ErrNetworkUnreachable{}
	}
	to, local, ok := e.remoteSide(addr)
	if !ok {
		return e.Endpoint.Connect(addr)
	}
	// Bind a local port, as a connection has.
	if tcp.EndpointState(e.Endpoint.State()) == tcp.StateInitial {
		if err := e.Endpoint.Bind(tcpip.FullAddress{Addr: bindAddress(e.proto, local.Addr)}); err != nil {
			return err
		}
	}
	c := channels.Load().Open(to, e.news)
	if c == nil {
		return e.Endpoint.Connect(addr)
	}
	if b, err := e.Endpoint.GetLocalAddress(); err == nil {
		local.Port = b.Port
	}
	a := to.Addr().AsSlice()
	e.local, e.remote = local, tcpip.FullAddress{NIC: local.NIC, Addr: tcpip.AddrFromSlice(a), Port: to.Port()}
	e.channel.Store(c)
	e.news()
	return &tcpip.ErrConnectStarted{}
}

// bindAddress converts a local address to an endpoint's address family.
func bindAddress(proto tcpip.NetworkProtocolNumber, a tcpip.Address) tcpip.Address {
	if proto != ipv6.ProtocolNumber || a.Len() != header.IPv4AddressSize {
		return a
	}
	b := [16]byte{10: 0xff, 11: 0xff}
	copy(b[12:], a.AsSlice())
	return tcpip.AddrFrom16(b)
}

func (e *channelEndpoint) connectAgain(c *wire.BottleChannel) tcpip.Error {
	switch e.poll(c) {
	case channelAsking:
		return &tcpip.ErrAlreadyConnecting{}
	case channelConnected:
		if !e.reported {
			e.reported = true
			return nil
		}
		return &tcpip.ErrAlreadyConnected{}
	default:
		if err := e.Endpoint.LastError(); err != nil {
			return err
		}
		return &tcpip.ErrConnectionAborted{}
	}
}

// poll updates the state.
func (e *channelEndpoint) poll(c *wire.BottleChannel) uint32 {
	s := e.state.Load()
	if s == channelAsking {
		if answered, open := c.Answer(); open {
			e.state.CompareAndSwap(channelAsking, channelConnected)
		} else if answered {
			if e.state.CompareAndSwap(channelAsking, channelFailed) {
				e.leave(&tcpip.ErrConnectionRefused{})
			}
		}
		s = e.state.Load()
	}
	if s == channelConnected && c.Reset() {
		// Report at once; bytes that came before can still be read.
		e.leave(&tcpip.ErrConnectionReset{})
		if c.Unread() == 0 && e.state.CompareAndSwap(channelConnected, channelFailed) {
			s = channelFailed
		}
	}
	return s
}

// leave stores an error where getsockopt looks for it.
func (e *channelEndpoint) leave(err tcpip.Error) {
	if t, ok := e.Endpoint.(*tcp.Endpoint); ok && e.told.CompareAndSwap(false, true) {
		t.UpdateLastError(err)
	}
}

const channelEvents = waiter.ReadableEvents | waiter.WritableEvents | waiter.EventHUp | waiter.EventErr | waiter.EventRdHUp

// news handles every change at the other side.
func (e *channelEndpoint) news() {
	if ev := e.Readiness(channelEvents); ev != 0 {
		e.wq.Notify(ev)
	}
}

// Readiness implements tcpip.Endpoint.
func (e *channelEndpoint) Readiness(mask waiter.EventMask) waiter.EventMask {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.Readiness(mask)
	}
	var ev waiter.EventMask
	switch e.poll(c) {
	case channelAsking:
		return 0
	case channelFailed, channelClosed:
		return mask
	}
	if c.Reset() {
		return mask
	}
	ended := c.Ended() || e.shutRead.Load()
	if mask&waiter.ReadableEvents != 0 && (c.ArmRead() > 0 || ended) {
		ev |= waiter.ReadableEvents
	}
	if mask&waiter.WritableEvents != 0 && (e.shutWr.Load() || c.PeerClosed() || c.ArmWrite()) {
		ev |= waiter.WritableEvents
	}
	if ended {
		ev |= waiter.EventRdHUp
		if e.shutWr.Load() {
			ev |= waiter.EventHUp
		}
	}
	return ev & mask
}

// Read implements tcpip.Endpoint.
func (e *channelEndpoint) Read(dst io.Writer, opts tcpip.ReadOptions) (tcpip.ReadResult, tcpip.Error) {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.Read(dst, opts)
	}
	e.readMu.Lock()
	defer e.readMu.Unlock()
	switch e.poll(c) {
	case channelAsking:
		return tcpip.ReadResult{}, &tcpip.ErrWouldBlock{}
	case channelFailed:
		if err := e.Endpoint.LastError(); err != nil {
			return tcpip.ReadResult{}, err
		}
		return tcpip.ReadResult{}, &tcpip.ErrClosedForReceive{}
	case channelClosed:
		return tcpip.ReadResult{}, &tcpip.ErrClosedForReceive{}
	}
	ended := c.Ended() || e.shutRead.Load() // before looking for bytes
	n, err := c.ReadTo(dst, opts.Peek)
	switch {
	case n > 0:
		return tcpip.ReadResult{Count: n, Total: n}, nil
	case err != nil:
		return tcpip.ReadResult{}, &tcpip.ErrBadBuffer{}
	case ended && e.poll(c) == channelFailed:
		if err := e.Endpoint.LastError(); err != nil {
			return tcpip.ReadResult{}, err
		}
		fallthrough
	case ended:
		return tcpip.ReadResult{}, &tcpip.ErrClosedForReceive{}
	}
	return tcpip.ReadResult{}, &tcpip.ErrWouldBlock{}
}

// Write implements tcpip.Endpoint.
func (e *channelEndpoint) Write(p tcpip.Payloader, opts tcpip.WriteOptions) (int64, tcpip.Error) {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.Write(p, opts)
	}
	e.writeMu.Lock()
	defer e.writeMu.Unlock()
	switch e.poll(c) {
	case channelAsking:
		return 0, &tcpip.ErrWouldBlock{}
	case channelFailed:
		if err := e.Endpoint.LastError(); err != nil {
			return 0, err
		}
		return 0, &tcpip.ErrClosedForSend{}
	case channelClosed:
		return 0, &tcpip.ErrClosedForSend{}
	}
	if c.Reset() {
		if err := e.Endpoint.LastError(); err != nil {
			return 0, err
		}
	}
	if e.shutWr.Load() || c.PeerClosed() {
		return 0, &tcpip.ErrClosedForSend{}
	}
	size := p.Len()
	n, err := c.WriteFrom(p, size)
	switch {
	case n > 0 || size == 0:
		return int64(n), nil
	case err != nil && err != io.EOF:
		return 0, &tcpip.ErrBadBuffer{}
	}
	return 0, &tcpip.ErrWouldBlock{}
}

// Shutdown implements tcpip.Endpoint.
func (e *channelEndpoint) Shutdown(flags tcpip.ShutdownFlags) tcpip.Error {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.Shutdown(flags)
	}
	switch e.poll(c) {
	case channelAsking:
		if e.state.CompareAndSwap(channelAsking, channelFailed) {
			e.leave(&tcpip.ErrConnectionReset{})
		}
		e.wq.Notify(channelEvents)
		return nil
	case channelFailed, channelClosed:
		return &tcpip.ErrNotConnected{}
	}
	if c.Ended() && e.shutWr.Load() {
		return &tcpip.ErrNotConnected{}
	}
	if flags&tcpip.ShutdownRead != 0 {
		e.shutRead.Store(true)
	}
	if flags&tcpip.ShutdownWrite != 0 {
		e.writeMu.Lock() // a write under way comes before the end
		if !e.shutWr.Swap(true) && e.state.Load() != channelClosed {
			c.CloseWrite()
		}
		e.writeMu.Unlock()
	}
	e.news()
	return nil
}

// Close implements tcpip.Endpoint.
func (e *channelEndpoint) Close() {
	if c := e.channel.Load(); c != nil {
		l := e.SocketOptions().GetLinger()
		e.end(c, l.Enabled && l.Timeout == 0)
	}
	e.Endpoint.Close()
}

// Abort implements tcpip.Endpoint.
func (e *channelEndpoint) Abort() {
	if c := e.channel.Load(); c != nil {
		e.end(c, true)
	}
	e.Endpoint.Abort()
}

func (e *channelEndpoint) end(c *wire.BottleChannel, reset bool) {
	e.readMu.Lock()
	defer e.readMu.Unlock()
	e.writeMu.Lock()
	defer e.writeMu.Unlock()
	if e.state.Swap(channelClosed) == channelClosed {
		return
	}
	// With unread bytes, or before there is a connection, it is a reset.
	answered, _ := c.Answer()
	c.Close(reset || !answered || c.Unread() > 0)
}

// Disconnect implements tcpip.Endpoint.
func (e *channelEndpoint) Disconnect() tcpip.Error {
	if e.channel.Load() != nil {
		return &tcpip.ErrNotSupported{}
	}
	return e.Endpoint.Disconnect()
}

// Listen implements tcpip.Endpoint.
func (e *channelEndpoint) Listen(backlog int) tcpip.Error {
	if e.channel.Load() != nil {
		return &tcpip.ErrInvalidEndpointState{}
	}
	return e.Endpoint.Listen(backlog)
}

// Bind implements tcpip.Endpoint.
func (e *channelEndpoint) Bind(addr tcpip.FullAddress) tcpip.Error {
	if e.channel.Load() != nil {
		return &tcpip.ErrAlreadyBound{}
	}
	return e.Endpoint.Bind(addr)
}

// GetLocalAddress implements tcpip.Endpoint.
func (e *channelEndpoint) GetLocalAddress() (tcpip.FullAddress, tcpip.Error) {
	if e.channel.Load() != nil {
		return e.local, nil
	}
	return e.Endpoint.GetLocalAddress()
}

// GetRemoteAddress implements tcpip.Endpoint.
func (e *channelEndpoint) GetRemoteAddress() (tcpip.FullAddress, tcpip.Error) {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.GetRemoteAddress()
	}
	if e.poll(c) != channelConnected {
		return tcpip.FullAddress{}, &tcpip.ErrNotConnected{}
	}
	return e.remote, nil
}

// GetSockOpt implements tcpip.Endpoint.
func (e *channelEndpoint) GetSockOpt(opt tcpip.GettableSocketOption) tcpip.Error {
	err := e.Endpoint.GetSockOpt(opt)
	if info, ok := opt.(*tcpip.TCPInfoOption); ok && err == nil && e.channel.Load() != nil {
		info.State = tcpip.EndpointState(e.State())
	}
	return err
}

// GetSockOptInt implements tcpip.Endpoint.
func (e *channelEndpoint) GetSockOptInt(opt tcpip.SockOptInt) (int, tcpip.Error) {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.GetSockOptInt(opt)
	}
	switch opt {
	case tcpip.ReceiveQueueSizeOption:
		return int(c.Unread()), nil
	case tcpip.SendQueueSizeOption:
		return int(c.Unsent()), nil
	}
	return e.Endpoint.GetSockOptInt(opt)
}

// State implements tcpip.Endpoint.
func (e *channelEndpoint) State() uint32 {
	c := e.channel.Load()
	if c == nil {
		return e.Endpoint.State()
	}
	switch e.poll(c) {
	case channelAsking:
		return uint32(tcp.StateSynSent)
	case channelFailed:
		return uint32(tcp.StateError)
	case channelClosed:
		return uint32(tcp.StateClose)
	}
	switch ended, shut := c.Ended(), e.shutWr.Load(); {
	case ended && shut:
		return uint32(tcp.StateLastAck)
	case ended:
		return uint32(tcp.StateCloseWait)
	case shut:
		return uint32(tcp.StateFinWait2)
	}
	return uint32(tcp.StateEstablished)
}

// ModerateRecvBuf implements tcpip.Endpoint.
func (e *channelEndpoint) ModerateRecvBuf(n int) {
	if e.channel.Load() == nil {
		e.Endpoint.ModerateRecvBuf(n)
	}
}

// LastError implements tcpip.Endpoint.
func (e *channelEndpoint) LastError() tcpip.Error {
	if c := e.channel.Load(); c != nil {
		e.poll(c)
	}
	return e.Endpoint.LastError()
}
