package bottle

import (
	"errors"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/exitcode"
)

func TestIsolationOrder(t *testing.T) {
	all := Isolations()
	for i, have := range all {
		for j, least := range all {
			if have.AtLeast(least) != (i >= j) {
				t.Errorf("%s at least %s: %v", have, least, have.AtLeast(least))
			}
		}
		if got, err := ParseIsolation(string(have)); err != nil || got != have {
			t.Errorf("parse %s: %q, %v", have, got, err)
		}
		if !have.AtLeast("") || have.AtLeast("perfect") || Isolation("").AtLeast(have) || Isolation("perfect").AtLeast(have) {
			t.Errorf("%s beside classes that are not there", have)
		}
	}
	if Isolation("perfect").AtLeast("perfect") {
		t.Error("an unknown class is at least itself")
	}
	// An emulator promises no boundary: it never stands in for the processor's.
	if IsolationEmulatedVM.AtLeast(IsolationHardwareVM) || IsolationEmulatedVM.AtLeast(IsolationUserKernel) {
		t.Error("an emulated machine counts as more than it is")
	}
	for _, bad := range []string{"", "Container", "vm", strings.Repeat("x", 1000)} {
		if _, err := ParseIsolation(bad); err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), "container, emulated-vm, user-kernel, hardware-vm") {
			t.Errorf("parse %.20q: %v", bad, err)
		}
	}
}

func TestFloor(t *testing.T) {
	weak, strong := Floor{IsolationContainer, "a.yaml:1"}, Floor{IsolationUserKernel, "b.yaml:2"}
	for _, x := range []struct{ f, o, want Floor }{{weak, strong, strong}, {strong, weak, strong}, {weak, weak, weak}, {Floor{}, weak, weak}, {strong, Floor{}, strong}} {
		if got := x.f.Stronger(x.o); got != x.want {
			t.Errorf("%+v and %+v: %+v", x.f, x.o, got)
		}
	}
	if err := strong.Check("gvisor", IsolationHardwareVM); err != nil {
		t.Error(err)
	}
	for have, said := range map[Isolation]string{IsolationContainer: "here is container", "": "here is none that is known"} {
		var weak *TooWeakError
		err := strong.Check("docker", have)
		if !errors.As(err, &weak) || !strings.HasPrefix(err.Error(), "b.yaml:2: isolation: user-kernel is") || !strings.HasSuffix(err.Error(), said) || !strings.Contains(weak.Advice(), "--backend") || weak.ExitClass() != exitcode.WrongOption {
			t.Errorf("%q: %v", have, err)
		}
	}
}

func TestMissing(t *testing.T) {
	all := Capabilities{Facts: FactsKernel, Channels: true, LiveFreeze: true, ReadWrite: true, LiveMounts: true, DiskLimit: true}
	if m := all.Missing(); len(m) != 0 {
		t.Errorf("nothing is missing: %v", m)
	}
	for what, change := range map[Capability]func(*Capabilities){
		CapFacts:      func(c *Capabilities) { c.Facts = FactsGuest },
		CapChannels:   func(c *Capabilities) { c.Channels = false },
		CapLiveFreeze: func(c *Capabilities) { c.LiveFreeze = false },
		CapReadWrite:  func(c *Capabilities) { c.ReadWrite = false },
		CapLiveMounts: func(c *Capabilities) { c.LiveMounts = false },
		CapDiskLimit:  func(c *Capabilities) { c.DiskLimit = false },
	} {
		c := all
		c.Why = map[Capability]string{what: "because"}
		change(&c)
		if m := c.Missing(); len(m) != 1 || m[0] != (Lack{what, "because"}) {
			t.Errorf("%s: %v", what, m)
		}
		if why, missing := c.Lacks(what); !missing || why != "because" {
			t.Errorf("%s: %q, %v", what, why, missing)
		}
		if _, missing := all.Lacks(what); missing {
			t.Errorf("%s is missing", what)
		}
	}
	if m := (Capabilities{}).Missing(); len(m) != 6 || m[0].What != CapFacts {
		t.Errorf("the zero value: %v", m)
	}
}

func TestFactsKind(t *testing.T) {
	for _, x := range []struct {
		p    Posture
		want Facts
	}{
		{Posture{}, FactsNone},
		{Posture{Facts: FactsKernel}, FactsNone},
		{Posture{Trace: true}, FactsGuest},
		{Posture{Trace: true, Facts: "better"}, FactsGuest},
		{Posture{Trace: true, Facts: FactsGuest}, FactsGuest},
		{Posture{Trace: true, Facts: FactsKernel}, FactsKernel},
	} {
		if got := x.p.FactsKind(); got != x.want {
			t.Errorf("%+v: %s, want %s", x.p, got, x.want)
		}
	}
}
