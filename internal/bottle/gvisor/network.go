package gvisor

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"github.com/carboy/carboy/internal/wire"
)

// plugWire makes the packet socket the sandbox's only network card besides its
// own loopback. The sandbox's network namespace on the host stays empty.
func plugWire(c *container.Container, w *os.File, cfg wire.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	path := c.Sandbox.GetControlSocketPath()
	if path == "" {
		return errors.New("the sandbox has no control socket")
	}
	cl, err := client.ConnectTo(path)
	if err != nil {
		return err
	}
	defer cl.Close()
	args := boot.CreateLinksAndRoutesArgs{
		FilePayload:   urpc.FilePayload{Files: []*os.File{w}},
		LoopbackLinks: []boot.LoopbackLink{boot.DefaultLoopbackLink},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: linkName, MTU: int(cfg.MTU), NumChannels: 1,
			Addresses:         []boot.IPWithPrefix{addr(cfg.Bottle4), addr(cfg.Bottle6)},
			Routes:            []boot.Route{onLink(cfg.Bottle4), onLink(cfg.Bottle6)},
			TXChecksumOffload: true, RXChecksumOffload: true,
			// Packets are processed by the goroutine that makes or receives
			// them: a queue or another processor would add a wakeup to each.
			QDisc: config.QDiscNone, ProcessorsPerChannel: 1,
		}},
		Defaultv4Gateway: defaultRoute(cfg.Gateway4),
		Defaultv6Gateway: defaultRoute(cfg.Gateway6),
	}
	return cl.Call(boot.ContMgrSetNetworkArgs, &args, nil)
}

const linkName = "eth0"

func addr(p netip.Prefix) boot.IPWithPrefix {
	return boot.IPWithPrefix{Address: net.IP(p.Addr().AsSlice()), PrefixLen: p.Bits()}
}

func ipNet(p netip.Prefix) net.IPNet {
	p = p.Masked()
	return net.IPNet{IP: net.IP(p.Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func onLink(p netip.Prefix) boot.Route { return boot.Route{Destination: ipNet(p)} }

func defaultRoute(gw netip.Addr) boot.DefaultRoute {
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if gw.Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return boot.DefaultRoute{Name: linkName, Route: boot.Route{Destination: ipNet(all), Gateway: net.IP(gw.AsSlice())}}
}
