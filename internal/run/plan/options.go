package plan

import (
	"crypto/sha256"
	"io"
	"os"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// Event describes something to show to the user during a run.
type Event struct {
	Kind string // started, published, refused, found, secret, routes, limit, interrupt, progress, taking
	Text string // a plain sentence of carboy's own
	// Name, Port and Rule describe the refused target. Name comes from inside: escape
	// it before showing it.
	Name string
	Port uint16
	Rule string
	// Method and Path describe a refused request; they come from inside, too.
	Method, Path string
	// Bytes and Took say each second how far it is to take out what a bottle leaves.
	Bytes int64
	Took  time.Duration
}

// Options sets what to run and what it may do. Nothing else is allowed or shown.
type Options struct {
	// Command holds the program, looked up inside, and its arguments.
	Command []string
	// Workspace names the directory to work on; empty: the current one. With Mode
	// none it is recorded but not shown.
	Workspace string
	Mode      store.Mode
	// Allow and AllowPrivate list routes: HOST[:PORT].
	Allow, AllowPrivate []string
	// Routes names a route file, see package routes; empty: none. Its routes come
	// before the others.
	Routes string
	// Credentials lists NAME=VARIABLE@HOST[:SCHEME]: routes to HOST on which the
	// gateway adds the value of the host's variable to requests. Inside, the variable
	// has a placeholder.
	Credentials []string
	// Secrets lists secrets that are watched for on the way out and never come inside:
	// a variable of the host (NAME, env:NAME) or a file (a path, file:PATH).
	Secrets []string
	// Env lists NAME=VALUE, or NAME for the host's value.
	Env []string
	// Mounts lists SRC:DST[:ro].
	Mounts []string
	// RootFS names a directory to use as the root file system; empty or "host":
	// this machine's tools.
	RootFS string
	// Image names an image to use as the root file system, in the form that PullImage
	// takes. If ImageDigest is set, the image must have that digest. Without Command,
	// the image's own command is run.
	Image, ImageDigest string
	Opened             *OpenedImage // by Run
	// Limits bounds the bottle; a zero field means the machine's default.
	Limits bottle.Limits
	// Publish lists TCP ports inside, made reachable at the same port of the
	// host's 127.0.0.1.
	Publish []uint16

	// Stdin may be nil: the command reads end of file. Terminal gives the
	// command a terminal, which is Stdin's and must be one.
	//
	// Stdout and Stderr are written until Run returns, or, when the last
	// interrupt came while a Write hung, until that returns.
	Stdin          *os.File
	Stdout, Stderr io.Writer
	Terminal       bool
	// Interrupt receives signals; nil: none. The first goes to the command, the second
	// destroys the bottle. Before the command runs, the first ends the run. While the
	// changes are collected, the second ends that, and they are lost.
	Interrupt <-chan os.Signal
	// Answer is called when the receipt holds everything about the command, changes
	// and network included, and its output was passed on. The records are written
	// after that. It is not called if the command never ran. It may be nil.
	Answer func(*receipt.Receipt, error)
	// OnEvent gets events to show to people, one at a time. If it is slow, events are
	// dropped. It may be nil.
	OnEvent func(Event)

	// Supervise asks people about values that a route holds back, and about routes
	// that an agent proposes with its tools. Without it such values are blocked, and
	// there are no tools.
	Supervise bool
	// Policy names a file of the user's with rules that answer some proposals; empty:
	// none.
	Policy string
	// AskFor bounds the wait for an answer; 0: five minutes.
	AskFor time.Duration
	// Forge adds the tools of a forge to those of Supervise, which it needs. Nothing else
	// inside tells that there is one; nil: there is none.
	Forge tools.Forge
	// Alive is called at each event of the gateway, on the packet path, from many
	// goroutines at once. It may be nil.
	Alive func()
	// EndAtPids ends the run when it meets its limit of processes. Without it, no more
	// processes start, and the receipt says so.
	EndAtPids bool

	// Build makes the run a step of building an image; nil: it is none.
	Build *Build
	// Grant holds what a bottle's manifests grant; it may be nil.
	Grant *Grant
	// Backend names what holds the bottle; empty: what the Host has.
	Backend string
	// Throwaway drops the changes without collecting them.
	Throwaway bool
	// Repeats says that the caller runs the command again if carboy dies: the bottle's files
	// are not copied while it runs.
	Repeats bool
	// Told gets every event of the gateway, answers with their digests. It is called
	// on the packet path, from many goroutines at once. It may be nil.
	Told gateway.Observer
	// At sets the workspace's path inside, for a tree that carboy itself has made.
	// Empty: its path on the host.
	At string
	// Caches maps a path in the home inside to a directory of carboy's own. The
	// command's writes do not reach that directory. Take, if it is not nil, gets the
	// path of the home and a tar of all files that the command wrote. The run ignores
	// its error.
	Caches map[string]string
	Take   func(home string, upper io.Reader) error
}

// Grant holds the rights that manifests grant to one run.
type Grant struct {
	Slug, Agent string
	Routes      []policy.Route
	Files       []rootfs.File // of the home inside
	Log         int
	Sum         [sha256.Size]byte // of the manifests
	Git         *repos.Repos      // nil: no repositories
	GitFile     string            // the system's git configuration inside; empty: none
	Mount       *repos.Gate       // of git, while it runs
	Services    []Service         // beside it, in the order in which they start
	Floor       bottle.Floor      // the weakest class of isolation that they accept

	Lock     *store.BottleLock
	Identity *Identity
	Keep     bool // also when the agent ends well
	KeepWork bool // then too if there are changes to land, or a conversation
	Talks    bool // the program keeps conversations in the home inside
	Kept     bool // it was
	Resume   *Resumption
}

func (g *Grant) Record() (store.RunKind, string) {
	if g == nil {
		return store.KindRun, ""
	}
	return store.KindBottle, g.Slug
}
