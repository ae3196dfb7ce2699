package run

import (
	"context"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/wire"
)

// sandbox holds a bottle with its gateway, sealed and verified, in which nothing has
// run. It holds nothing that belongs to a run: no record, no variables, no streams.
type sandbox struct {
	plan   *plan.Plan
	spec   *bottle.Spec
	bottle bottle.Bottle
	gw     *gateway.Gateway
	// trace receives the bottle's facts; board takes it over. Nil: nobody wants them.
	trace *os.File

	observer atomic.Pointer[gateway.Observer] // nil: nobody
	once     sync.Once
	gwOnce   sync.Once
	gwStop   context.CancelFunc
	gwDone   chan error
	cleanup  func()
}

// createIn bounds the time to make a bottle, which takes a tenth of a second.
const createIn = 2 * time.Minute

// newSandbox makes a bottle from p, with its files in dir. Its gateway sends questions to
// asked; nil: nobody is asked.
func (c *Runner) newSandbox(ctx context.Context, p *plan.Plan, id, dir string, warm bottle.Warm, asked *approver) (*sandbox, error) {
	table, err := policy.Compile(p.Routes...)
	if err != nil {
		return nil, err
	}
	v := &sandbox{plan: p}
	if v.spec, v.cleanup, err = p.Spec(ctx, id, dir); err != nil {
		return nil, err
	}
	v.spec.Warm = warm
	var authority gateway.Authority
	if p.Inspects() {
		var a *ca.Authority
		if p.Identity != nil {
			a = p.Identity.Authority
		} else {
			a, err = ca.New(id, nil)
		}
		if err == nil {
			authority = a
			v.spec.Root, err = rootfs.Trust(v.spec.Root, a.PEM())
		}
	}
	if err == nil {
		err = v.openGateway(ctx, table, authority, c.Opened, c.Backend.Capabilities(), asked)
	}
	if err == nil && !p.Untraced {
		v.trace, v.spec.Trace, err = tracePair()
	}
	if err == nil && p.Begin != nil {
		err = p.Begin(v.spec)
	}
	if err != nil {
		closeFiles(v.spec.Files()) // later they are Create's
		v.close()
		return nil, err
	}
	phases.Mark("gateway open")
	ctx, cancel := context.WithTimeout(ctx, createIn)
	defer cancel()
	if v.bottle, err = c.Backend.Create(ctx, v.spec); err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *sandbox) openGateway(ctx context.Context, table *policy.Table, authority gateway.Authority, o host.Options, can bottle.Capabilities, asked *approver) error {
	pair, err := wire.New()
	if err != nil {
		return err
	}
	v.spec.Wire = pair.Bottle
	var channels wire.ChannelFiles
	if can.Frames {
		v.spec.Net = v.spec.Net.Framed()
	}
	if can.Channels {
		if channels, v.spec.Channels, err = wire.NewChannels(); err != nil {
			_ = pair.Host.Close()
			return err
		}
	}
	conf := gateway.Config{Host: pair.Host, Channels: channels, Wire: v.spec.Net, Table: table, Observer: v.observe, Resolver: o.Resolver, Dial: o.Dial, Authority: authority, Roots: o.Roots, Credentials: v.plan.Credentials.Of, Secrets: v.plan.Watched, Inside: v.plan.GitGrant.Inside(), Services: v.plan.Services, Limits: gateway.Limits{Egress: v.spec.Limits.Egress}, DigestAnswers: v.plan.Digests, Declared: v.plan.Declared}
	if asked != nil {
		conf.Ask, conf.AskKey = asked, v.plan.AskKey
		if conf.Inside == nil {
			conf.Inside = map[string]http.Handler{}
		}
		conf.Inside[gateway.SuperviseName] = asked.tools
	}
	if v.gw, err = gateway.New(conf); err != nil {
		return err
	}
	v.spec.Proxy = v.gw.ServeProxy
	gctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	v.gwStop, v.gwDone = cancel, make(chan error, 1)
	go func() { v.gwDone <- v.gw.Serve(gctx) }() // ends with closeGateway
	return nil
}

// observe passes an event of the gateway on. It is called on the packet path.
func (v *sandbox) observe(ev gateway.Event) {
	if f := v.observer.Load(); f != nil {
		(*f)(ev)
	}
}

func (v *sandbox) closeGateway() {
	v.gwOnce.Do(func() {
		if v.gwStop != nil {
			v.gwStop()
			v.gw.Close()
			<-v.gwDone
		}
	})
}

// close destroys the sandbox. Idempotent.
func (v *sandbox) close() {
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
