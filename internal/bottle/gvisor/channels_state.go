package gvisor

import (
	"context"

	"gvisor.dev/gvisor/pkg/state"

	"github.com/carboy/carboy/internal/wire"
)

// A socket is stored in an image as the endpoint that gVisor would have used.
// For a connection through a channel only its existence is stored: in the
// thawed bottle it has been reset by its peer.

func init() { state.Register((*channelEndpoint)(nil)) }

// StateTypeName implements state.Type.
func (*channelEndpoint) StateTypeName() string { return "carboy.laneEndpoint" }

// StateFields implements state.Type.
func (*channelEndpoint) StateFields() []string {
	return []string{"Endpoint", "proto", "stack", "wq", "state", "local", "remote", "shutRead", "shutWr", "laned", "reported"}
}

// StateSave implements state.SaverLoader.
func (e *channelEndpoint) StateSave(s state.Sink) {
	now, shutRead, shutWr, channeled := e.state.Load(), e.shutRead.Load(), e.shutWr.Load(), e.channel.Load() != nil
	s.Save(0, &e.Endpoint)
	s.Save(1, &e.proto)
	s.Save(2, &e.stack)
	s.Save(3, &e.wq)
	s.Save(4, &now)
	s.Save(5, &e.local)
	s.Save(6, &e.remote)
	s.Save(7, &shutRead)
	s.Save(8, &shutWr)
	s.Save(9, &channeled)
	s.Save(10, &e.reported)
}

// StateLoad implements state.SaverLoader.
func (e *channelEndpoint) StateLoad(_ context.Context, s state.Source) {
	var now uint32
	var shutRead, shutWr, channeled bool
	s.Load(0, &e.Endpoint)
	s.Load(1, &e.proto)
	s.Load(2, &e.stack)
	s.Load(3, &e.wq)
	s.Load(4, &now)
	s.Load(5, &e.local)
	s.Load(6, &e.remote)
	s.Load(7, &shutRead)
	s.Load(8, &shutWr)
	s.Load(9, &channeled)
	s.Load(10, &e.reported)
	s.AfterLoad(func() {
		e.shutRead.Store(shutRead)
		e.shutWr.Store(shutWr)
		if channeled {
			if now == channelAsking {
				now = channelConnected // poll then finds the connection broken
			}
			e.state.Store(now)
			e.channel.Store(wire.LostChannel())
		}
	})
}
