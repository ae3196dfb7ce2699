package gvisor

import (
	"context"

	"gvisor.dev/gvisor/pkg/state"

	"github.com/carboy/carboy/internal/wire"
)

// A socket goes into an image as the endpoint that gVisor would have used. Of one
// that was connected through a lane remains that it was: in the thawed bottle its
// peer has broken it off.

func init() { state.Register((*laneEndpoint)(nil)) }

// StateTypeName implements state.Type.
func (*laneEndpoint) StateTypeName() string { return "carboy.laneEndpoint" }

// StateFields implements state.Type.
func (*laneEndpoint) StateFields() []string {
	return []string{"Endpoint", "proto", "stack", "wq", "state", "local", "remote", "shutRead", "shutWr", "laned", "reported"}
}

// StateSave implements state.SaverLoader.
func (e *laneEndpoint) StateSave(s state.Sink) {
	now, shutRead, shutWr, laned := e.state.Load(), e.shutRead.Load(), e.shutWr.Load(), e.lane.Load() != nil
	s.Save(0, &e.Endpoint)
	s.Save(1, &e.proto)
	s.Save(2, &e.stack)
	s.Save(3, &e.wq)
	s.Save(4, &now)
	s.Save(5, &e.local)
	s.Save(6, &e.remote)
	s.Save(7, &shutRead)
	s.Save(8, &shutWr)
	s.Save(9, &laned)
	s.Save(10, &e.reported)
}

// StateLoad implements state.SaverLoader.
func (e *laneEndpoint) StateLoad(_ context.Context, s state.Source) {
	var now uint32
	var shutRead, shutWr, laned bool
	s.Load(0, &e.Endpoint)
	s.Load(1, &e.proto)
	s.Load(2, &e.stack)
	s.Load(3, &e.wq)
	s.Load(4, &now)
	s.Load(5, &e.local)
	s.Load(6, &e.remote)
	s.Load(7, &shutRead)
	s.Load(8, &shutWr)
	s.Load(9, &laned)
	s.Load(10, &e.reported)
	s.AfterLoad(func() {
		e.shutRead.Store(shutRead)
		e.shutWr.Store(shutWr)
		if laned {
			if now == laneAsking {
				now = laneConnected // for poll to find that it is not any more
			}
			e.state.Store(now)
			e.lane.Store(wire.LostLane())
		}
	})
}
