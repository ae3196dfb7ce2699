package carboy

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/rootfs"
	"github.com/carboy/carboy/internal/stamp"
	"github.com/carboy/carboy/internal/wire"
)

// vessel is a bottle with its gateway, sealed and verified, in which nothing has
// run. It holds nothing of a run: no record, no variables, no streams.
type vessel struct {
	plan   *plan
	spec   *bottle.Spec
	bottle bottle.Bottle
	gw     *gateway.Gateway
	// trace is where the bottle's facts arrive; who boards takes it.
	trace *os.File

	observer atomic.Pointer[gateway.Observer] // nil: nobody
	once     sync.Once
	gwOnce   sync.Once
	gwStop   context.CancelFunc
	gwDone   chan error
	cleanup  func()
}

// createIn bounds the making of a bottle, which takes a tenth of a second.
const createIn = 2 * time.Minute

// newVessel makes a bottle from p. What it needs on disk is made in dir.
func (c *Client) newVessel(ctx context.Context, p *plan, id, dir string, warm bottle.Warm) (*vessel, error) {
	table, err := policy.Compile(p.routes...)
	if err != nil {
		return nil, err
	}
	v := &vessel{plan: p}
	if v.spec, v.cleanup, err = p.spec(ctx, id, dir); err != nil {
		return nil, err
	}
	v.spec.Warm = warm
	var authority gateway.Authority
	if p.inspects() {
		var a *ca.Authority
		if p.identity != nil {
			a = p.identity.authority
		} else {
			a, err = ca.New(id, nil)
		}
		if err == nil {
			authority = a
			v.spec.Root, err = rootfs.Trust(v.spec.Root, a.PEM())
		}
	}
	if err == nil {
		err = v.openGateway(ctx, table, authority, c.opened)
	}
	if err == nil {
		v.trace, v.spec.Trace, err = tracePair()
	}
	if err == nil && p.begin != nil {
		err = p.begin(v.spec)
	}
	if err != nil {
		closeFiles(v.spec.Files()) // later they are Create's
		v.close()
		return nil, err
	}
	stamp.Mark("gateway open")
	ctx, cancel := context.WithTimeout(ctx, createIn)
	defer cancel()
	if v.bottle, err = c.backend.Create(ctx, v.spec); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *vessel) openGateway(ctx context.Context, table *policy.Table, authority gateway.Authority, o Options) error {
	pair, err := wire.New()
	if err != nil {
		return err
	}
	v.spec.Wire = pair.Bottle
	lanes, inside, err := wire.NewLanes()
	if err != nil {
		_ = pair.Host.Close()
		return err
	}
	v.spec.Lanes = inside
	conf := gateway.Config{Host: pair.Host, Lanes: lanes, Wire: v.plan.net, Table: table, Observer: v.observe, Resolver: o.Resolver, Dial: o.dial, Authority: authority, Roots: o.Roots, Credentials: v.plan.creds.of, Secrets: v.plan.known, Inside: v.plan.git.inside(), Limits: gateway.Limits{Egress: v.spec.Limits.Egress}, DigestAnswers: v.plan.digests}
	if p := v.plan.people; p != nil {
		conf.Ask, conf.AskKey = p, v.plan.askKey
		if conf.Inside == nil {
			conf.Inside = map[string]http.Handler{}
		}
		conf.Inside[gateway.SuperviseName] = p.tools
	}
	if v.gw, err = gateway.New(conf); err != nil {
		return err
	}
	gctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	v.gwStop, v.gwDone = cancel, make(chan error, 1)
	go func() { v.gwDone <- v.gw.Serve(gctx) }() // ends with closeGateway
	return nil
}

// observe is on the packet path.
func (v *vessel) observe(ev gateway.Event) {
	if f := v.observer.Load(); f != nil {
		(*f)(ev)
	}
}

func (v *vessel) closeGateway() {
	v.gwOnce.Do(func() {
		if v.gwStop != nil {
			v.gwStop()
			v.gw.Close()
			<-v.gwDone
		}
	})
}

// close destroys it. Idempotent.
func (v *vessel) close() {
	v.once.Do(func() {
		if v.bottle != nil {
			v.bottle.Close()
		}
		v.closeGateway()
		if v.trace != nil {
			v.trace.Close()
		}
		v.cleanup()
	})
}
