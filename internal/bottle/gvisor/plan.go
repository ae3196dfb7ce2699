package gvisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/wire"
)

// plan is a bottle.Spec in the form sent to the shim: each descriptor is
// replaced by its position in the frame, counted from one.
type plan struct {
	ID       string
	RootDir  string
	Binds    []planMount
	Entries  []planEntry
	Mounts   []planMount // workspace first when there is one
	User     bottle.User
	Limits   bottle.Limits
	Hostname string
	Scratch  string
	Wire     int
	Channels []int
	// RootTree and ScratchTree stand for RootDir and Scratch when not zero.
	RootTree, ScratchTree int
	Net                   wire.Config
	Exported              string // the directory whose changes Export takes out; empty: all
	Trace                 int    // descriptor for facts; 0: none
	Debug                 string // directory for gVisor's own logs; empty: none
	Phases                bool   // record timestamps of the start
	Thaw                  *planThaw
	Upper                 int  // descriptor of the files to begin with; 0: none
	NoSetID               bool // see refuseSetID
	Builds                bool // see bottle.Spec
}

// planEntry is a bottle.Entry whose content follows the plan.
type planEntry struct {
	bottle.Entry
	Content []byte `json:"-"` // in place of the entry's
	Size    int    // of the content
}

// planThaw is a bottle.Thaw.
type planThaw struct {
	bottle.Frozen
	Image [3]int // state, metadata of pages, pages
	Stdio [3]int
}

// made returns the limits with which the bottle was first made.
func (p *plan) made() bottle.Limits {
	if p.Thaw != nil {
		return p.Thaw.Limits
	}
	return p.Limits
}

type planMount struct {
	Source, Target string
	Access         bottle.Access
	Dev, Ino       uint64
	Tree           int
}

func newPlan(s *bottle.Spec, own rootFiles) (*plan, []*os.File) {
	var files []*os.File
	donate := func(f *os.File) int {
		if f == nil {
			return 0
		}
		files = append(files, f)
		return len(files)
	}
	conv := func(m bottle.Mount) planMount {
		return planMount{Source: m.Source, Target: m.Target, Access: m.Access, Dev: m.Dev, Ino: m.Ino, Tree: donate(m.Tree)}
	}
	p := &plan{
		ID: s.ID, RootDir: s.Root.Dir, User: s.User, Limits: s.Limits,
		Hostname: s.Hostname, Scratch: s.Scratch, Net: s.Net, Debug: os.Getenv(bottle.DebugEnv), Builds: s.Builds,
	}
	for _, e := range s.Root.Entries {
		content := e.Content
		e.Content = nil
		p.Entries = append(p.Entries, planEntry{Entry: e, Content: content, Size: len(content)})
	}
	for _, m := range s.Root.Binds {
		p.Binds = append(p.Binds, conv(m))
	}
	if s.Workspace != nil {
		p.Exported = s.Workspace.Target
		p.Mounts = append(p.Mounts, conv(*s.Workspace))
	}
	for _, m := range s.Mounts {
		p.Mounts = append(p.Mounts, conv(m))
	}
	p.Wire, p.RootTree, p.ScratchTree = donate(s.Wire), donate(own.root), donate(own.scratch)
	p.Trace, p.NoSetID = donate(s.Trace), own.writable
	if s.Channels.Mem != nil {
		for _, f := range s.Channels.Files() {
			p.Channels = append(p.Channels, donate(f))
		}
	}
	if t := s.Thaw; t != nil {
		p.ID = t.ID
		p.Thaw = &planThaw{Frozen: t.Frozen}
		for i := range min(len(t.Image), len(p.Thaw.Image)) { // the shim misses one that is not there
			p.Thaw.Image[i] = donate(t.Image[i])
		}
		for i, f := range []*os.File{t.Stdin, t.Stdout, t.Stderr} {
			p.Thaw.Stdio[i] = donate(f)
		}
	}
	p.Upper = donate(s.Upper)
	p.Phases = phases.Wanted()
	return p, files
}

// encode returns the plan in JSON, a zero byte, and the contents of the entries
// in their order.
func (p *plan) encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	b = append(b, 0)
	for _, e := range p.Entries {
		b = append(b, e.Content...)
	}
	return b, nil
}

func decodePlan(body []byte) (*plan, error) {
	text, contents, _ := bytes.Cut(body, []byte{0})
	p := &plan{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, err
	}
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Size < 0 || e.Size > len(contents) {
			return nil, fmt.Errorf("the plan's entry %s has no content", e.Path)
		}
		e.Content, contents = contents[:e.Size], contents[e.Size:]
	}
	return p, nil
}

// The types below are the bodies of the other calls.
type startArgs struct {
	Args     []string
	Env      []string
	Dir      string
	Terminal bool
	Guest    bool
}

type startReply struct{ PID int32 }

type waitArgs struct{ PID int32 }

type signalArgs struct {
	PID    int32
	Signal int
	Group  bool
}

// pauseReply: Untold is the number of lost facts that nobody outside knows of.
type pauseReply struct{ Untold uint64 }

type exportArgs struct{ All bool }

type createReply struct {
	Processes []rawPosture
	Phases    []phases.Point
	Trace     bool // the sentry's own answer
}
