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
)

// Event is something worth a line while a run goes on.
type Event struct {
	Kind string // started, published, refused, found, secret, routes, limit, interrupt, progress
	Text string // a plain sentence of carboy's own
	// Name, Port and Rule are of what was refused. Name comes from inside: make
	// it visible before it is shown.
	Name string
	Port uint16
	Rule string
	// Method and Path are of a request that was refused; from inside, too.
	Method, Path string
}

// Options say what to run and what it may do. What is not granted here is
// not there.
type Options struct {
	// Command is the program, looked up inside, and its arguments.
	Command []string
	// Workspace is the directory to work on; empty: the current one. With Mode
	// none it is not shown and only remembered.
	Workspace string
	Mode      store.Mode
	// Allow and AllowPrivate are routes: HOST[:PORT].
	Allow, AllowPrivate []string
	// Routes is a route file, see package routes; empty: none. Its routes come
	// before the others.
	Routes string
	// Credentials are NAME=VARIABLE@HOST[:SCHEME]: routes to HOST on which the
	// value of the host's variable is put on. Inside, the variable has a
	// placeholder.
	Credentials []string
	// Secrets are watched for on the way out and never come inside: a
	// variable of the host (NAME, env:NAME) or a file (a path, file:PATH).
	Secrets []string
	// Env are NAME=VALUE, or NAME for the host's value.
	Env []string
	// Mounts are SRC:DST[:ro].
	Mounts []string
	// RootFS is a directory to use as the root file system; empty or "host":
	// this machine's tools.
	RootFS string
	// Image is an image to use as the root file system, in the form that PullImage
	// takes; ImageDigest, if set, is the digest that it must have. Without Command,
	// the image's own is run.
	Image, ImageDigest string
	Opened             *OpenedImage // by Run
	// Limits: a zero field is the machine's default.
	Limits bottle.Limits
	// Publish are TCP ports inside, made reachable at the same port of the
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
	// Interrupt: the first signal goes to the command, the second destroys the
	// bottle. Before the command runs, the first one gives up; when the changes
	// are being taken home, the second one does, and they are lost. Nil: none.
	Interrupt <-chan os.Signal
	// Answer is called when everything that the receipt says of the command is
	// known, changes and network included, and the last of its output was passed
	// on. What still follows is for the records: they are not complete yet. It
	// is not called when the command never ran. Nil: nobody.
	Answer func(*receipt.Receipt, error)
	// OnEvent is told what happens, for people, one event at a time. When it is
	// slow, events are dropped, not the run. Nil: nobody.
	OnEvent func(Event)

	// Supervise has people asked: about a value that is held back where a route says
	// so, and about routes, which what runs inside proposes with its tools. Without it
	// such a value is blocked, and there are no tools.
	Supervise bool
	// Policy is a file of the user's own that answers some of it by rule; empty: none.
	Policy string
	// AskFor bounds the wait for an answer; 0: five minutes.
	AskFor time.Duration
	// EndAtPids ends the run when it meets its limit of processes. Otherwise that
	// refuses to start more, and the receipt says so.
	EndAtPids bool

	// Granted is the grant of a bottle's manifests. Nil: nothing.
	Granted *Grant
	// Throwaway drops the changes without collecting them.
	Throwaway bool
	// Told gets every event of the gateway, answers with their digests. It is on the
	// packet path, and called from many goroutines at once. Nil: nobody.
	Told gateway.Observer
	// At is the workspace's path inside, for a tree that carboy itself has
	// laid out. Empty: at its own path.
	At string
	// Caches are directories of carboy's own, by their path in the home inside:
	// what the command writes there does not reach them. Take, if there is one,
	// gets all that the bottle's files are beside what it was made with, and where its
	// home is; its error is its caller's to remember.
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

	Lock     *store.BottleLock
	Identity *Identity
	Keep     bool // also when the agent ends well
	Kept     bool // it was
	Resume   *Resumption
}

func (g *Grant) Record() (store.Kind, string) {
	if g == nil {
		return store.KindRun, ""
	}
	return store.KindBottle, g.Slug
}
