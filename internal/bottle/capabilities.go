package bottle

// Facts names where the facts of a run come from, which says how far they can be trusted.
// Its order is that of the constants.
type Facts string

const (
	// FactsNone: no facts come.
	FactsNone Facts = "none"
	// FactsGuest: a program beside the command tells what the guest's kernel reports to it.
	// It misses some operations, and root inside could stop it.
	FactsGuest Facts = "guest"
	// FactsKernel: the kernel that serves the command's system calls tells of each.
	FactsKernel Facts = "kernel"
)

// Capability names something that the contract asks of a backend and that some can't give.
type Capability string

// The capabilities, in the order of Capabilities.Missing.
const (
	CapFacts      Capability = "facts"
	CapChannels   Capability = "channels"
	CapLiveFreeze Capability = "live-freeze"
	CapReadWrite  Capability = "read-write-mounts"
	CapLiveMounts Capability = "live-mounts"
	CapDiskLimit  Capability = "disk-limit"
	CapPackets    Capability = "packets"
)

// Capabilities says what the bottles of a backend can do. The zero value can do nothing of it.
type Capabilities struct {
	// Facts is the best kind of facts that a bottle sends to Spec.Trace. Empty means
	// FactsNone.
	Facts Facts
	// Channels: connections travel on Spec.Channels beside the packets of Spec.Wire.
	Channels bool
	// Frames: Spec.Wire carries Ethernet frames, so Spec.Net must have MAC addresses.
	Frames bool
	// LiveFreeze: each Bottle is a Freezer. Otherwise freeze keeps the files only.
	LiveFreeze bool
	// ReadWrite: mounts may have AccessReadWrite. Otherwise Create refuses them.
	ReadWrite bool
	// LiveMounts: what the host writes into a mounted directory later is seen inside.
	// Otherwise the bottle has a copy from its start.
	LiveMounts bool
	// DiskLimit: a write beyond Limits.Disk fails inside. Otherwise carboy looks at
	// Usage and ends the run.
	DiskLimit bool
	// Builds: images can be built in bottles, by Spec.Builds.
	Builds bool
	// ProxyOnly: nothing travels on Spec.Wire. Programs must ask a proxy, Spec.Proxy, for
	// their connections: there are no packets, no names but the proxy's, and no published
	// ports.
	ProxyOnly bool
	// Why holds the reason for each that is missing, as half a sentence: "Docker commits
	// files, not processes".
	Why map[Capability]string
}

// Lack is a capability that a backend has not, or has in a weaker form, and why.
type Lack struct {
	What Capability `json:"what"`
	Why  string     `json:"why"`
}

// Missing returns what the backend can't give, in the order of the constants. Facts of the
// kind FactsGuest count as missing: they are weaker than the contract's.
func (c Capabilities) Missing() []Lack {
	var out []Lack
	for _, x := range []struct {
		what  Capability
		given bool
	}{
		{CapFacts, c.Facts == FactsKernel}, {CapChannels, c.Channels}, {CapLiveFreeze, c.LiveFreeze},
		{CapReadWrite, c.ReadWrite}, {CapLiveMounts, c.LiveMounts}, {CapDiskLimit, c.DiskLimit}, {CapPackets, !c.ProxyOnly},
	} {
		if !x.given {
			out = append(out, Lack{x.what, c.Why[x.what]})
		}
	}
	return out
}

// Lacks returns why the capability is missing, and whether it is.
func (c Capabilities) Lacks(what Capability) (why string, missing bool) {
	for _, l := range c.Missing() {
		if l.What == what {
			return l.Why, true
		}
	}
	return "", false
}
