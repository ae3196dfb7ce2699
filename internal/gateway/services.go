package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/policy"
)

// Servers in bottles beside this one have names here. Their connections lead to those
// bottles and nowhere else, so nothing in them is looked at, and no route mentions them.

// Service is a server in another bottle, which this bottle reaches by a name.
type Service struct {
	Ports []uint16
	// Dial connects to one of Ports. The connection must have CloseWrite.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
}

// reasonServicePort refuses a port that the service does not list.
const reasonServicePort Reason = "service-port"

func checkServices(services map[string]Service) error {
	for name, s := range services {
		if !policy.ServiceName(name) || s.Dial == nil {
			return fmt.Errorf("gateway: no service can be called %q", name)
		}
	}
	return nil
}

// addServices gives the services their addresses before any name that the bottle asks for:
// else it could use up the range first.
func (g *Gateway) addServices(services map[string]Service) error {
	g.services = services
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if _, ok := g.names.assign(name); !ok {
			return errors.New("gateway: too many services")
		}
	}
	return nil
}

// serviceName returns the service that name stands for, in any spelling of a query; "":
// none.
func (g *Gateway) serviceName(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if _, ok := g.services[name]; ok {
		return name
	}
	return ""
}

// serviceRule returns the rule that records cite for a service.
func serviceRule(name string) string { return "service " + name }

// judgeService decides about a connection to a service.
func (g *Gateway) judgeService(name string, port uint16) (policy.Verdict, Reason) {
	v := policy.Verdict{Rule: serviceRule(name), Protocol: policy.ProtocolTCP}
	if !slices.Contains(g.services[name].Ports, port) {
		return v, reasonServicePort
	}
	v.Allowed, v.Reason = true, policy.ReasonRoute
	return v, ReasonOK
}

// passService joins a flow to the server in the other bottle.
func (g *Gateway) passService(f *flow, s Service) {
	f.setProtocol("tcp")
	ctx, cancel := context.WithTimeout(f.ctx, g.limits.Dial)
	up, err := s.Dial(ctx, f.addr.Port())
	cancel()
	if err != nil {
		f.note(reasonDialFailed, err.Error())
		g.refuseBytes(f, reasonDialFailed, nil)
		return
	}
	f.setUpstream(netip.AddrPort{})
	// Pools keep connections that are silent for longer than a stranger's may be.
	f.waiting.Add(1)
	defer f.finish()
	relay(f, up, f.conn, up)
}
