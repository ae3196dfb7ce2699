package carboy

import (
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/netlog"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/trace"
)

// What this package's functions take and return, for programs that name it. The
// documentation is with the types.
type (
	// RunID names a run, RunMeta is what is known of it at once, and Query says which
	// runs List returns.
	RunID        = store.ID
	RunMeta      = store.Meta
	Query        = store.Query
	Listing      = store.Listing
	Mode         = store.Mode
	State        = store.State
	Bottle       = store.Bottle
	Kept         = store.Kept
	GCPolicy     = store.Policy
	GCPlan       = store.Plan
	CorruptError = store.CorruptError

	// Receipt is what a run did, and Exit how it ended.
	Receipt = receipt.Receipt
	Exit    = receipt.Exit
	// PushVerdict is how a push ended, and Raw a text of bytes that are kept as they are.
	PushVerdict = receipt.PushVerdict
	Tokens      = receipt.Tokens
	Raw         = store.Raw

	// Limits bound a bottle; Usage is what it uses, Posture how it is confined.
	Limits  = bottle.Limits
	Usage   = bottle.Usage
	Posture = bottle.Posture

	// DeployKeyError is about a deploy key that may be at its forge still.
	DeployKeyError = forgekey.LeftError

	// ChangeSet is what a run changed.
	ChangeSet   = change.Set
	Change      = change.Change
	DiffOptions = change.DiffOptions
	DiffStat    = change.DiffStat
	LandOptions = change.LandOptions
	LandReport  = change.LandReport
	UndoOptions = change.UndoOptions
	UndoReport  = change.UndoReport

	// RouteDescription is a route as people read it, Listed an agent or a bottle
	// that can be chosen.
	RouteDescription = routes.Description
	Listed           = manifest.Listed

	// ScenarioSet is what is tried of a program, TraceReport what it touched.
	ScenarioSet   = scenario.Set
	ScenarioEvent = scenario.Event
	TraceReport   = scenario.Report

	// Verdict is what a gate found of a change.
	Verdict     = gate.Verdict
	GateOutcome = gate.Outcome
	GateResult  = gate.Result

	// GateEvent is its progress, GateBaseline what phases are allowed to do, and
	// GateDrift what they did beside that.
	GateEvent    = gate.Event
	GateBaseline = gate.Baseline
	GateDrift    = gate.Drift
	// GateAttempts are those that a person granted.
	GateAttempts = gate.Attempts

	// Shipper brings modules to hosts; the others are what it takes and gives.
	Shipper            = ship.Engine
	ShipPlanOptions    = ship.PlanOptions
	ShipPlan           = ship.Made
	ShipApproveOptions = ship.ApproveOptions
	ShipApproval       = approval.Signed
	ShipResult         = ship.Result
	ShipOutcome        = ship.Outcome
	ShipError          = ship.Error
	ShipStatus         = ship.Status
	ShipEntry          = ship.Entry
	ShipProgress       = ship.Progress

	TraceReader = trace.Reader
	Fact        = trace.Fact
	EgressLog   = netlog.Reader
	AuditReport = audit.Report

	// ProposalQueue is where people answer what no rule decides.
	ProposalQueue = supervise.Queue

	// ProposalEntry is something that they are asked.
	ProposalEntry = supervise.Entry
)

// How a run sees its workspace.
const (
	WorkspaceOverlay = store.Overlay // its changes are kept, for review
	WorkspaceCopy    = store.Copy    // the same, of a copy that was made before
	WorkspaceBind    = store.Bind    // it is the host's directory itself
	WorkspaceNone    = store.None    // there is none
)

// What became of a run, and of its changes.
const (
	RunCreated  = store.Created
	RunRunning  = store.Running
	RunFinished = store.Finished
	RunFailed   = store.Failed
	RunLost     = store.Lost

	ChangesNone      = store.NoChanges
	ChangesPending   = store.Pending
	ChangesPartly    = store.Partly
	ChangesLanded    = store.Landed
	ChangesDiscarded = store.Discarded
)
