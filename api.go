package carboy

import (
	"github.com/carboy/carboy/internal/agent"
	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/doctor"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/run/repos"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/operator"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/trace"
	"github.com/carboy/carboy/internal/tracing"
	"github.com/carboy/carboy/internal/work"
)

// Types that this package's functions take and return. Their documentation is with the
// types.
type (
	// RunID names a run, RunMeta is its record, and Query selects runs for List.
	RunID        = store.ID
	RunMeta      = store.Meta
	Query        = store.Query
	Listing      = store.Listing
	Mode         = store.Mode
	State        = store.State
	ChangesState = store.Changes
	RunKind      = store.RunKind
	Workspace    = store.Workspace
	Bottle       = store.Bottle
	Kept         = store.Kept
	GCPolicy     = store.Policy
	GCPlan       = store.Plan
	CorruptError = store.CorruptError

	// Receipt describes a run that is over, and Exit its end.
	Receipt = receipt.Receipt
	Exit    = receipt.Exit
	// PushVerdict is the result of a push, and Raw a string that need not be UTF-8.
	PushVerdict = receipt.PushVerdict
	Tokens      = receipt.Tokens
	Raw         = store.Raw
	ExitReason  = receipt.Reason

	// Limits bound a bottle, Usage says what it uses, and Posture how it is confined.
	Limits  = bottle.Limits
	Usage   = bottle.Usage
	Posture = bottle.Posture

	// DeployKeyError means that a deploy key may still be at its forge.
	DeployKeyError = forgekey.LeftError

	// ChangeSet holds the changes of a run, and RefChange is one of a reference of git.
	ChangeSet   = change.Set
	RefChange   = change.RefChange
	Change      = change.Change
	ChangeKind  = change.Kind
	DiffOptions = change.DiffOptions
	DiffStat    = change.DiffStat
	LandOptions = change.LandOptions
	LandReport  = change.LandReport
	UndoOptions = change.UndoOptions
	UndoReport  = change.UndoReport

	// RouteDescription is a route in readable form, and Listed an agent or a bottle of
	// the manifests.
	RouteDescription = routes.Description
	Listed           = manifest.Listed

	// ScenarioSet lists the scenarios of a program, and TraceReport says what they touched.
	ScenarioSet   = scenario.Set
	ScenarioEvent = scenario.Event
	TraceReport   = scenario.Report

	// Verdict is a gate's judgement of a change.
	Verdict     = gate.Verdict
	GateOutcome = gate.Outcome
	GateResult  = gate.Result

	// GateEvent reports a gate's progress, GateBaseline says what phases may do, and
	// GateDrift what else they did.
	GateEvent    = gate.Event
	GateBaseline = gate.Baseline
	GateDrift    = gate.Drift
	// GateAttempts records more attempts that a person granted.
	GateAttempts = gate.Attempts

	// Shipper deploys modules to hosts. The others are its parameters and results.
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
	ShipTiming         = ship.Timing

	TraceReader = trace.Reader
	Fact        = trace.Fact
	TraceFilter = trace.Filter
	TraceGlob   = trace.Glob
	TraceKind   = trace.FactKind
	EgressLog   = egresslog.Reader
	AuditReport = audit.Report
	AuditStatus = audit.Status

	// ProvenanceReport says how the record of a merged pull request verified.
	ProvenanceReport  = provenance.Report
	ProvenanceOptions = provenance.VerifyOptions
	ProvenanceEntry   = provenance.Entry
	ProvenanceFacts   = provenance.Facts

	// ProposalQueue holds the proposals that a person must decide. The others are its
	// parameters and results.
	ProposalQueue    = supervise.Queue
	ProposalEntry    = supervise.Entry
	ProposalQuery    = supervise.Query
	ProposalListing  = supervise.Listing
	Proposal         = supervise.Proposal
	ProposalID       = supervise.ID
	ProposalReply    = supervise.Reply
	ProposalAnswer   = supervise.Answer
	ProposalVerdict  = supervise.Verdict
	ProposalPolicy   = supervise.Policy
	ProposalRecord   = supervise.Record
	ProposalKind     = supervise.Kind
	ProposalPayload  = supervise.Payload
	ProposalDigest   = supervise.Digest
	ProposalChannel  = supervise.Channel
	AskOptions       = ask.Options
	NotApprovedError = ask.NotApprovedError

	// Named bottles.
	Choices        = bottles.Choices
	ResumeOptions  = bottles.ResumeOptions
	Resumption     = bottles.Resumption
	BottleState    = bottles.BottleState
	NamedBottle    = bottles.NamedBottle
	StartOptions   = bottles.StartOptions
	MCPServer      = agent.MCPServer
	Preflight      = bottles.Preflight
	Started        = bottles.Started
	AgentError     = bottles.AgentError
	DestroyOptions = bottles.DestroyOptions

	// This machine.
	Finding       = doctor.Finding
	Diagnosis     = doctor.Diagnosis
	SandboxHealth = doctor.SandboxHealth
	Sandbox       = doctor.Sandbox
	Swept         = doctor.Swept
	Resolver      = host.Resolver

	// Gates.
	AcceptOptions = judge.AcceptOptions
	GateOptions   = judge.GateOptions
	Judged        = judge.Judged
	BundleOptions = judge.BundleOptions
	BundleReport  = judge.BundleReport
	GateBegun     = judge.GateBegun

	// Runs.
	Event         = plan.Event
	RunOptions    = plan.Options
	Repository    = repos.Repository
	AttachOptions = run.AttachOptions
	Status        = run.Status
	CopyLimits    = run.CopyLimits
	Copied        = run.Copied
	ExecOptions   = run.ExecOptions
	Prepared      = run.Prepared
	TraceOptions  = tracing.TraceOptions
	ShipOptions   = operator.Options

	// Images.
	Image         = plan.Image
	PullOptions   = plan.PullOptions
	MakeOptions   = builder.Options
	MakeProgress  = builder.Progress
	ImageLimits   = image.Bounds
	ImageProgress = image.Progress

	// Work.
	ServeOptions = serve.IssuesOptions
	WorkOptions  = work.WorkOptions
	AttemptState = work.AttemptState
	Attempt      = work.Attempt
	AttemptUsage = work.AttemptUsage
	Task         = work.Task
	Worked       = work.Worked
	PushTo       = work.PushTo
	Pushed       = work.Pushed
	WorkState    = work.WorkState
	WorkAccount  = work.WorkAccount

	// Errors, with what a program can tell its user.
	OptionError      = fault.OptionError
	ConfigError      = host.ConfigError
	BusyError        = store.BusyError
	AmbiguousError   = store.AmbiguousError
	ConflictError    = change.ConflictError
	WorkspaceError   = change.WorkspaceError
	UnavailableError = bottle.UnavailableError
	KeysLeftError    = repos.KeysLeftError
	TamperedError    = run.TamperedError
	RecordError      = run.RecordError
	StoppedError     = work.StoppedError
	AnsweredError    = supervise.AnsweredError
)

// Modes of a run's workspace.
const (
	WorkspaceOverlay = store.Overlay // changes are kept for review
	WorkspaceCopy    = store.Copy    // the same, on a copy that is made first
	WorkspaceBind    = store.Bind    // changes go to the host's directory at once
	WorkspaceNone    = store.None    // no workspace
)

// States of a run, and of its changes.
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

// Ends of a run, of which a Receipt has one.
const (
	ExitExited, ExitSignalled, ExitTimeout, ExitFailed = receipt.Exited, receipt.Signalled, receipt.Timeout, receipt.Failed
	ExitMemory, ExitOutput, ExitPids                   = receipt.Memory, receipt.Output, receipt.Pids
	ExitKilled, ExitFrozen, ExitLost, ExitRunning      = receipt.Killed, receipt.Frozen, receipt.Lost, receipt.Running
)

// States and outcomes of bottles, gates, work, deployments, proposals and the audit log.
const (
	AppArmorPath, MaxAttempts = doctor.AppArmorPath, work.MaxAttempts

	BottleRunning, BottleFrozen, BottleKept, BottleOver = bottles.BottleRunning, bottles.BottleFrozen, bottles.BottleKept, bottles.BottleOver

	GatePassed, GateFailed, GateFinal, GateEscalated, GateUnavailable = gate.Passed, gate.Failed, gate.Final, gate.Escalated, gate.Unavailable

	AttemptPending, AttemptRunning, AttemptJudging, AttemptRecorded = work.AttemptPending, work.AttemptRunning, work.AttemptJudging, work.AttemptRecorded
	AttemptPushing, AttemptPushed, AttemptGranted                   = work.AttemptPushing, work.AttemptPushed, work.AttemptGranted
	WorkRunning, WorkStopped, WorkOver                              = work.WorkRunning, work.WorkStopped, work.WorkOver

	ShipNothing, ShipApplied, ShipFailed, ShipRolledBack, ShipRollbackFailed = ship.Nothing, ship.Applied, ship.Failed, ship.RolledBack, ship.RollbackFailed
	ShipLocked, ShipRefused, ShipMismatch, ShipDestructive, ShipStale        = ship.Locked, ship.Refused, ship.Mismatch, ship.Destructive, ship.Stale

	ProposalApproved, ProposalModified, ProposalRejected = supervise.Approved, supervise.Modified, supervise.Rejected

	AuditIntact, AuditTampered = audit.Intact, audit.Tampered
)

// Errors that tell failures apart. Their texts say what happened.
var (
	ErrNoRun, ErrNoRuns, ErrRunLive, ErrUnlanded, ErrNoBottle, ErrBottleBusy = store.ErrNotFound, store.ErrNoRuns, store.ErrLive, store.ErrUnlanded, store.ErrNoBottle, store.ErrBottleBusy
	ErrNotKept, ErrNoChanges, ErrNoTrace, ErrNoScenarios                     = bottles.ErrNotKept, review.ErrNoChanges, review.ErrNoTrace, tracing.ErrNoScenarios
	ErrNotLive, ErrCopy, ErrExecRefused, ErrInterrupted, ErrUnfit            = run.ErrNotLive, run.ErrCopy, run.ErrExecRefused, run.ErrInterrupted, run.ErrUnfit
	ErrCommandNotFound, ErrNotExecutable, ErrBottleGone                      = bottle.ErrNotFound, bottle.ErrNotExecutable, bottle.ErrGone

	ErrLandingBusy, ErrProtected, ErrNoSuchChange, ErrIncomplete   = change.ErrBusy, change.ErrProtected, change.ErrNoSuchChange, change.ErrIncomplete
	ErrNothingToUndo, ErrWorkspaceReplaced, ErrChangeRecordCorrupt = change.ErrNothingToUndo, change.ErrWorkspaceReplaced, change.ErrCorrupt

	ErrBaseline, ErrGateLocked, ErrNoCatalog, ErrNothingBefore = judge.ErrBaseline, judge.ErrGateLocked, judge.ErrNoCatalog, judge.ErrNothingBefore
	ErrNoVerdict, ErrLedger, ErrNoWork, ErrWorkLocked          = judge.ErrNoVerdict, judge.ErrLedger, work.ErrNoWork, work.ErrWorkLocked

	ErrNoProvenance, ErrNoRepository, ErrShipUnknown, ErrShipDeadline     = provenance.ErrNone, fault.ErrNoRepository, ship.ErrUnknown, ship.ErrDeadline
	ErrNoProposal, ErrProposalChanged, ErrProposalExpired, ErrNobodyWaits = supervise.ErrNotFound, supervise.ErrDigest, supervise.ErrExpired, supervise.ErrGone
)

// Colors are the colours that a bottle can have.
var Colors = bottles.Colors
