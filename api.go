package carboy

import (
	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/doctor"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
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

	// Limits bound a bottle, Usage says what it uses, and Posture how it is confined.
	Limits  = bottle.Limits
	Usage   = bottle.Usage
	Posture = bottle.Posture

	// DeployKeyError means that a deploy key may still be at its forge.
	DeployKeyError = forgekey.LeftError

	// ChangeSet holds the changes of a run.
	ChangeSet   = change.Set
	Change      = change.Change
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

	TraceReader = trace.Reader
	Fact        = trace.Fact
	EgressLog   = egresslog.Reader
	AuditReport = audit.Report

	// ProposalQueue holds the proposals that a person must decide.
	ProposalQueue = supervise.Queue

	// ProposalEntry is one proposal.
	ProposalEntry = supervise.Entry
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

// From package ask.
type (
	AskOptions       = ask.Options
	NotApprovedError = ask.NotApprovedError
)

// From package bottles.
type (
	Choices        = bottles.Choices
	ResumeOptions  = bottles.ResumeOptions
	Resumption     = bottles.Resumption
	BottleState    = bottles.BottleState
	NamedBottle    = bottles.NamedBottle
	StartOptions   = bottles.StartOptions
	Preflight      = bottles.Preflight
	Started        = bottles.Started
	AgentError     = bottles.AgentError
	DestroyOptions = bottles.DestroyOptions
)

// From package doctor.
type (
	Finding       = doctor.Finding
	Diagnosis     = doctor.Diagnosis
	SandboxHealth = doctor.SandboxHealth
	Sandbox       = doctor.Sandbox
	Swept         = doctor.Swept
)

// From package fault.
type (
	OptionError = fault.OptionError
)

// From package host.
type (
	Resolver    = host.Resolver
	ConfigError = host.ConfigError
)

// From package judge.
type (
	AcceptOptions = judge.AcceptOptions
	GateOptions   = judge.GateOptions
	Judged        = judge.Judged
	BundleOptions = judge.BundleOptions
	BundleReport  = judge.BundleReport
	GateBegun     = judge.GateBegun
)

// From package plan.
type (
	Event       = plan.Event
	Image       = plan.Image
	PullOptions = plan.PullOptions
	RunOptions  = plan.Options
)

// From package repos.
type (
	Repository    = repos.Repository
	KeysLeftError = repos.KeysLeftError
)

// From package run.
type (
	AttachOptions = run.AttachOptions
	Status        = run.Status
	CopyLimits    = run.CopyLimits
	Copied        = run.Copied
	ExecOptions   = run.ExecOptions
	TamperedError = run.TamperedError
	Prepared      = run.Prepared
	RecordError   = run.RecordError
)

// From package tracing.
type (
	TraceOptions = tracing.TraceOptions
)

// From package operator.
type (
	ShipOptions = operator.Options
)

// From package work.
type (
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
	StoppedError = work.StoppedError
)

// From package bottles.
const (
	BottleRunning = bottles.BottleRunning
	BottleFrozen  = bottles.BottleFrozen
	BottleKept    = bottles.BottleKept
	BottleOver    = bottles.BottleOver
)

// From package doctor.
const (
	AppArmorPath = doctor.AppArmorPath
)

// From package work.
const (
	MaxAttempts     = work.MaxAttempts
	AttemptPending  = work.AttemptPending
	AttemptRunning  = work.AttemptRunning
	AttemptJudging  = work.AttemptJudging
	AttemptRecorded = work.AttemptRecorded
	AttemptPushing  = work.AttemptPushing
	AttemptPushed   = work.AttemptPushed
	AttemptGranted  = work.AttemptGranted
	WorkRunning     = work.WorkRunning
	WorkStopped     = work.WorkStopped
	WorkOver        = work.WorkOver
)

// From package bottles.
var (
	ErrNotKept = bottles.ErrNotKept
	Colors     = bottles.Colors
)

// From package judge.
var (
	ErrBaseline      = judge.ErrBaseline
	ErrGateLocked    = judge.ErrGateLocked
	ErrNoCatalog     = judge.ErrNoCatalog
	ErrNothingBefore = judge.ErrNothingBefore
	ErrNoVerdict     = judge.ErrNoVerdict
	ErrLedger        = judge.ErrLedger
)

// From package review.
var (
	ErrNoChanges = review.ErrNoChanges
	ErrNoTrace   = review.ErrNoTrace
)

// From package run.
var (
	ErrNotLive     = run.ErrNotLive
	ErrCopy        = run.ErrCopy
	ErrExecRefused = run.ErrExecRefused
	ErrInterrupted = run.ErrInterrupted
	ErrUnfit       = run.ErrUnfit
)

// From package tracing.
var (
	ErrNoScenarios = tracing.ErrNoScenarios
)

// From package operator.
var (
	ErrNoRepository = operator.ErrNoRepository
)

// From package work.
var (
	ErrNoWork     = work.ErrNoWork
	ErrWorkLocked = work.ErrWorkLocked
)
