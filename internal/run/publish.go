package run

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
)

// maxPublished bounds connections to one published port at once.
const maxPublished = 256

// publish makes ports of servers inside reachable on the host's loopback, and
// only there. Connections come from the gateway's address.
func (s *Session) publish(ctx context.Context) error {
	for _, port := range s.o.Publish {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			return fmt.Errorf("publish port %d: %w", port, err)
		}
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.acceptPublished(ctx, l, port)
		}()
		end := func() { cancel(); l.Close(); wg.Wait() }
		s.cleanup, s.closers = append(s.cleanup, end), append(s.closers, end)
		s.Rec.Published = append(s.Rec.Published, receipt.Published{Port: port, Host: l.Addr().String()})
		s.events.send(plan.Event{Kind: "published", Text: fmt.Sprintf("port %d is published at %s", port, l.Addr()), Port: port})
	}
	return nil
}

// unpublish closes the published ports.
func (s *Session) unpublish() {
	for _, end := range s.closers {
		end()
	}
	s.closers = nil
}

// acceptPublished accepts connections until l is closed, and waits for their end.
func (s *Session) acceptPublished(ctx context.Context, l net.Listener, port uint16) {
	var wg sync.WaitGroup
	defer wg.Wait()
	room := make(chan struct{}, maxPublished)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		select {
		case room <- struct{}{}:
		default:
			c.Close()
			continue
		}
		wg.Add(1)
		go func() {
			defer func() { <-room; wg.Done() }()
			s.splice(ctx, c, port)
		}()
	}
}

// splice joins c to the server inside until both directions ended or ctx did.
func (s *Session) splice(ctx context.Context, c net.Conn, port uint16) {
	defer c.Close()
	in, err := s.sandbox.gw.DialBottle(ctx, port)
	if err != nil {
		return
	}
	defer in.Close()
	stop := context.AfterFunc(ctx, func() { c.Close(); in.Close() })
	defer stop()
	var wg sync.WaitGroup
	for _, d := range [2][2]net.Conn{{c, in}, {in, c}} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			io.Copy(d[1], d[0])
			if w, ok := d[1].(interface{ CloseWrite() error }); ok {
				w.CloseWrite()
			} else {
				d[1].Close()
			}
		}()
	}
	wg.Wait()
}
