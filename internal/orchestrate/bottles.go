package orchestrate

import (
	"context"
	"time"

	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/issues"
)

// Bottles works on issues in bottles. Its methods may be called concurrently, for one issue
// one at a time. Each may be called again with the same arguments after this process died in
// the middle of it: it finds what it did before, and does it once.
type Bottles interface {
	// Turn makes the agent carry out a prompt until the gate passes, as carboy work does,
	// and pushes the change to the turn's branch. It blocks until the outcome is known. The
	// bottle stays, frozen or kept, for the next turn. An error is a failure of carboy or of
	// the machine; what the agent and the gate did is in the result.
	//
	// The end of ctx ends the call soon. The same turn may be asked for again then, by the
	// next process.
	Turn(ctx context.Context, t Turn) (*TurnResult, error)

	// Conflicts reports whether the issue's branch no longer merges into its base without a
	// person or an agent.
	Conflicts(ctx context.Context, t Turn) (bool, error)

	// Freeze stops a running bottle and keeps it. It does nothing if it does not run.
	Freeze(ctx context.Context, slug string) error

	// Destroy ends a bottle, revokes its deploy keys, and removes its workspace. It does
	// nothing if there is none.
	Destroy(ctx context.Context, k issues.Key, slug string) error

	// Seal writes and signs the provenance of a merged pull request, and returns its digest.
	Seal(ctx context.Context, m Merge) (digest string, err error)
}

// A Turn is one assignment of an issue's agent: the issue itself, or what people answered.
type Turn struct {
	// ID names the turn. It is unique, fit for a file's name, and the same when the turn is
	// begun again after a crash.
	ID    string
	Issue issues.Key

	Agent   string
	Bottles []string // replace the agent's own; empty: the agent's own
	Backend string   // empty: the default
	// Slug names the bottle of the turn before, to be resumed. It is empty for the first
	// turn. If the bottle is gone, the turn starts a new one from the branch.
	Slug   string
	Prompt string // without words about the forge: see forgeservice.Service.Prompt
	// Anew goes above the prompt if the bottle of Slug is gone and a new one is started.
	Anew string

	Base   string // the branch that the change is for
	Branch string // the branch that is pushed: carboy/<issue>-<words>
	Pull   int    // the pull request, 0 while there is none

	// Forge carries out the agent's calls at the forge; the caller closes it. Its Checkin is
	// called at each sign of life.
	Forge *forgeservice.Service
	// OnBottle is told the slug as soon as the bottle has a name, before its agent starts.
	OnBottle func(slug string)
	// OnCheckin is told of each sign of life of the agent: a request, a tool's call, output.
	// While a gate judges, it is told each minute: the agent has nothing to say then.
	OnCheckin func()
}

// A TurnResult says what came of a turn.
type TurnResult struct {
	Slug    string
	Started bool // a new bottle was made, as the one before was gone or there was none
	// Outcome is passed, failed, final or escalated, as a gate's; empty: the agent never ended its work.
	Outcome string
	Why     string // of an outcome that is not passed, safe to show
	Exit    int    // of the agent
	Verdict string // its name; empty: nothing was judged
	Digest  string // SHA-256 of the verdict, in hexadecimal digits
	Commit  string // that was pushed; empty: none
	// Moved reports that somebody else pushed to the branch, so that nothing was pushed.
	Moved bool
	Files []File   // that the pushed change touches, against the base
	Runs  []string // ids, the oldest first
	Work  string   // id of the work, for carboy work show
	// Tokens used, as the models' answers claim.
	Tokens       int64
	Began, Ended time.Time
}

// A File is a changed file of a pull request.
type File struct {
	Path           string
	Added, Removed int // lines; -1 of a binary file
}

// A Merge is a pull request that people merged.
type Merge struct {
	Issue         issues.Key
	Pull          int
	URL           string
	Base, Branch  string
	Head, Commit  string // what was proposed, and what the base has now
	Agent         string
	Bottles       []string
	Slug          string
	Turns         []TurnResult
	Operations    []forgeservice.Operation
	Reviews       []Review
	WatchdogFired bool
	Merged        time.Time
}

// A Review is a person's review of a pull request, as the forge told it.
type Review struct {
	By, State, Commit string
	At                time.Time
}
