package carboy

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/builder"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/doctor"
	"github.com/carboy/carboy/internal/egresslog"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/trace"
	"github.com/carboy/carboy/internal/tracing"
)

// ExportBottle writes a frozen or kept bottle to w and returns a digest of that.
func (c *Client) ExportBottle(ctx context.Context, slug string, w io.Writer) (digest string, err error) {
	return c.bottles.ExportBottle(ctx, slug, w)
}

// ImportBottle creates a bottle from what ExportBottle wrote, under its old name or the
// next free one.
func (c *Client) ImportBottle(ctx context.Context, r io.Reader, digest string) (slug string, err error) {
	return c.bottles.ImportBottle(ctx, r, digest)
}

// Choices returns what can be started in dir.
func (c *Client) Choices(dir string) (*Choices, error) { return c.bottles.Choices(dir) }

// ValidLabel reports whether s can be the label of a bottle.
func ValidLabel(s string) bool { return bottles.ValidLabel(s) }

// BuildImage builds and stores the image of a Preflight for which Builds is true.
func (c *Client) BuildImage(ctx context.Context, p *Preflight, say func(string)) (*Image, error) {
	return c.bottles.BuildImage(ctx, p, say)
}

// MakeImage builds the image of a Dockerfile in bottles, without an engine.
func (c *Client) MakeImage(ctx context.Context, o MakeOptions) (*Image, error) {
	return (&builder.Builder{Runs: c.runs}).Build(ctx, o)
}

// Freeze stops a running bottle and keeps its files and, if possible, its processes.
func (c *Client) Freeze(ctx context.Context, slug string) (*store.Kept, error) {
	return c.bottles.Freeze(ctx, slug)
}

// FreezeLoses says what Freeze would not keep of a bottle, in sentences. There are none if
// nothing is known of it.
func (c *Client) FreezeLoses(slug string) []string { return c.bottles.FreezeLoses(slug) }

// Kept returns what a bottle can be resumed from, or nil.
func (c *Client) Kept(slug string) (*store.Kept, error) { return c.bottles.Kept(slug) }

// Resume continues a frozen or kept bottle and blocks until it ends, as Start does. The
// backend that kept it holds it again, unless Options.Backend names one.
func (c *Client) Resume(ctx context.Context, o ResumeOptions) (*Started, error) {
	return c.bottles.Resume(ctx, o)
}

// Bottles returns all named bottles, sorted by name.
func (c *Client) Bottles(ctx context.Context) ([]NamedBottle, []*store.CorruptError, error) {
	return c.bottles.Bottles(ctx)
}

// Called returns the name of the bottle that a person means by a name, for a command on
// bottles in these states: the one of that name, or of the same label the only other one
// that fits. others would fit too.
func (c *Client) Called(ctx context.Context, name string, states ...BottleState) (slug string, others []string, err error) {
	return c.bottles.Called(ctx, name, states...)
}

// GC removes the runs of a plan and records each removal.
func (c *Client) GC(ctx context.Context, p store.Plan) ([]store.ID, error) {
	return c.bottles.GC(ctx, p)
}

// Agents returns the sorted names of the agents that can be started in dir.
func (c *Client) Agents(dir string) ([]string, error) { return c.bottles.Agents(dir) }

// Preflight works out what Start would do. It asks for missing values.
func (c *Client) Preflight(o StartOptions) (*Preflight, error) { return c.bottles.Preflight(o) }

// Start starts an agent in a new bottle and blocks until it ends.
func (c *Client) Start(ctx context.Context, o StartOptions) (*Started, error) {
	return c.bottles.Start(ctx, o)
}

// Destroy ends a bottle and removes its record, the records of its runs, and what was
// kept of it. It reports whether the bottle was there.
func (c *Client) Destroy(ctx context.Context, slug string, o DestroyOptions) (was bool, err error) {
	return c.bottles.Destroy(ctx, slug, o)
}

// Doctor finds out whether bottles work on this machine. It reads what it can read, then
// creates and destroys a real bottle.
func (c *Client) Doctor(ctx context.Context) Diagnosis { return c.doctor.Doctor(ctx) }

// AppArmorProfile returns the profile that lets this binary create user namespaces.
func AppArmorProfile() (string, error) { return doctor.AppArmorProfile() }

// InstallAppArmorProfile writes the profile and loads it.
func InstallAppArmorProfile(ctx context.Context) error { return doctor.InstallAppArmorProfile(ctx) }

// SandboxHealth creates a sandbox, checks it and destroys it.
func (c *Client) SandboxHealth(ctx context.Context) SandboxHealth { return c.doctor.SandboxHealth(ctx) }

// InspectSandbox describes the sandbox of a run, given a part of its id, or of a pulled
// image, given its reference, its digest or a part of that.
func (c *Client) InspectSandbox(ctx context.Context, name string) (*Sandbox, error) {
	return c.doctor.InspectSandbox(ctx, name)
}

// SweepSandboxes removes what dead sandboxes and dead gates left on the host: trees, runs
// of phases, and evidence without a verdict. Of the results for bases that gates keep, it
// removes those beyond the limits of number and age, and those that were changed.
func (c *Client) SweepSandboxes(ctx context.Context) (*Swept, error) {
	return c.doctor.SweepSandboxes(ctx)
}

// ServeIssues works on the issues of the repositories in the operator's orchestrate.yaml until
// ctx ends. It then freezes the bottles, which may take minutes. One process serves a state.
func (c *Client) ServeIssues(ctx context.Context, o ServeOptions) error {
	return serve.Issues(ctx, serve.Stages{Host: c.host, Keeper: c.bottles, Judge: c.judge, Worker: c.worker}, o)
}

// StateDir returns the directory of the user's state.
func (c *Client) StateDir() string { return c.host.StateDir() }

// AuditDir returns the directory of the audit log.
func (c *Client) AuditDir() string { return c.host.AuditDir() }

// Proposals returns the user's queue of proposals, which a person must decide.
func (c *Client) Proposals() (*supervise.Queue, error) { return c.host.Proposals() }

// PruneProposals removes the proposals that were answered longer ago than age from the
// archive, and returns their number.
func (c *Client) PruneProposals(ctx context.Context, age time.Duration) (int, error) {
	return c.host.PruneProposals(ctx, age)
}

// Version returns the version of this build: a tag if it was installed as a module, else
// the commit.
func Version() string { return host.Version() }

// AcceptBaseline adds what a verdict's phases did to the baseline of a work tree and
// signs the baseline, if a person approves that. It returns the baseline's path.
func (c *Client) AcceptBaseline(ctx context.Context, dir, ref string, o AcceptOptions) (string, error) {
	return c.judge.AcceptBaseline(ctx, dir, ref, o)
}

// SignBaseline signs the baseline of a work tree, if a person approves what is new in it.
// It returns the baseline's path.
func (c *Client) SignBaseline(ctx context.Context, dir string, o AcceptOptions) (string, error) {
	return c.judge.SignBaseline(ctx, dir, o)
}

// AcceptLostTests adds tests that a verdict misses to the baseline of a work tree, so
// that they may be gone, if a person approves that. No tests means all of them.
func (c *Client) AcceptLostTests(ctx context.Context, dir, ref string, tests []string, o AcceptOptions) (string, error) {
	return c.judge.AcceptLostTests(ctx, dir, ref, tests, o)
}

// Gate judges a change: every signal of the catalog, each phase in a fresh bottle.
func (c *Client) Gate(ctx context.Context, o GateOptions) (*Judged, error) {
	return c.judge.Gate(ctx, o)
}

// Verdict reads a verdict, given its id or a unique prefix of that, and returns its
// directory too. "" means the newest one.
func (c *Client) Verdict(ctx context.Context, ref string) (*gate.Verdict, string, error) {
	return c.judge.Verdict(ctx, ref)
}

// Verdicts returns the newest n verdicts on record, newest first.
func (c *Client) Verdicts(ctx context.Context, n int) ([]*gate.Verdict, error) {
	return c.judge.Verdicts(ctx, n)
}

// OverrideVerdict allows a change in spite of its verdict, if a person approves that. The
// verdict, its attestation and the audit log record the override.
func (c *Client) OverrideVerdict(ctx context.Context, ref, reason string, o AskOptions) (*gate.Verdict, error) {
	return c.judge.OverrideVerdict(ctx, ref, reason, o)
}

// BundleVerdict writes a verdict, its evidence and its attestations into dir, which must
// not exist, and returns the key that verifies them.
func (c *Client) BundleVerdict(ctx context.Context, ref, dir string) (key string, err error) {
	return c.judge.BundleVerdict(ctx, ref, dir)
}

// VerifyBundle checks what BundleVerdict wrote, against a public key and names that the
// caller trusts. It uses nothing else of this machine. The directory may hold no other
// files, and none of more than gate.MaxBundleFile bytes.
func VerifyBundle(ctx context.Context, dir string, o BundleOptions) (*BundleReport, error) {
	return judge.VerifyBundle(ctx, dir, o)
}

// GateInit writes a catalog for the project in a directory, and the first baseline: what
// its phases do on the directory as it is.
func (c *Client) GateInit(ctx context.Context, o GateOptions) (*GateBegun, error) {
	return c.judge.GateInit(ctx, o)
}

// Baseline reads the baseline of the work tree in dir. It returns nil if there is none.
func (c *Client) Baseline(ctx context.Context, dir string) (*gate.Baseline, error) {
	return c.judge.Baseline(ctx, dir)
}

// ProposedBaseline returns what a verdict's phases did, as a baseline that may be nil,
// and the verdict.
func (c *Client) ProposedBaseline(ctx context.Context, ref string) (*gate.Baseline, *gate.Verdict, error) {
	return c.judge.ProposedBaseline(ctx, ref)
}

// BaselineDrift returns, by signal, what a verdict's phases did that the baseline of dir
// does not allow. AcceptBaseline would add to that baseline.
func (c *Client) BaselineDrift(ctx context.Context, dir, ref string) (map[string][]gate.Drift, error) {
	return c.judge.BaselineDrift(ctx, dir, ref)
}

// RemoveVerdict removes a verdict and its evidence, given its id or a unique prefix of
// that, and records the removal.
func (c *Client) RemoveVerdict(ctx context.Context, ref string) (id string, err error) {
	return c.judge.RemoveVerdict(ctx, ref)
}

// AttestVerdict writes a verdict's attestations to w, one DSSE envelope on each line,
// signed with this user's key. It returns the key that verifies them.
func (c *Client) AttestVerdict(ctx context.Context, ref string, w io.Writer) (key string, err error) {
	return c.judge.AttestVerdict(ctx, ref, w)
}

// CheckVerdict compares the files of a verdict (evidence, inputs, the proposed baseline)
// with the digests in it.
func (c *Client) CheckVerdict(ctx context.Context, v *gate.Verdict, dir string) error {
	return c.judge.CheckVerdict(ctx, v, dir)
}

// VerdictEvidence reads one piece of a verdict's evidence. phase is SIGNAL-base,
// SIGNAL-change or SIGNAL-old-tests; name is stdout, stderr, observed.json, receipt.json or trace.
func (c *Client) VerdictEvidence(ctx context.Context, ref, phase, name string) ([]byte, error) {
	return c.judge.VerdictEvidence(ctx, ref, phase, name)
}

// AuditVerify checks the audit log offline: its own consistency, the checkpoints that runs
// keep, and the verdicts, attempts and provenance whose digests it has.
func (c *Client) AuditVerify(ctx context.Context, key string) (audit.Report, error) {
	return c.judge.AuditVerify(ctx, key)
}

// VerifyProvenance checks the record of a merged pull request offline.
func (c *Client) VerifyProvenance(ctx context.Context, o ProvenanceOptions) (*ProvenanceReport, error) {
	return provenance.Open(c.host.StateDir(), c.host.Audit).Verify(ctx, o)
}

// Provenances returns the records of merged pull requests: the broken, then the newest first.
func (c *Client) Provenances(ctx context.Context) ([]ProvenanceEntry, error) {
	return provenance.Open(c.host.StateDir(), c.host.Audit).List(ctx)
}

// SecretName reports whether a variable's name says that it holds a secret.
func SecretName(name string) bool { return plan.SecretName(name) }

// PullImage fetches and unpacks an image, unless it is there already. ref is oci:DIR,
// tar:FILE, a path to either, or a reference to a registry.
func (c *Client) PullImage(ctx context.Context, ref string, o PullOptions) (*Image, error) {
	return plan.PullImage(ctx, c.host, ref, o)
}

// Images returns the pulled images, newest first.
func (c *Client) Images() ([]Image, error) { return plan.Images(c.host) }

// RemoveImage removes an image, given its digest, and the layers that no other image has.
func (c *Client) RemoveImage(ctx context.Context, digest string) error {
	return plan.RemoveImage(ctx, c.host, digest)
}

// DefaultLimits returns the limits of a run on this machine that sets none.
func DefaultLimits(state string) bottle.Limits { return plan.DefaultLimits(state) }

// CheckTokenFile returns an error if no route can use the named file for a refresh token.
func CheckTokenFile(name, home string) error { return plan.CheckTokenFile(name, home) }

// NameOrHidden returns the name of a variable in a form that messages may show.
func NameOrHidden(s string) string { return plan.NameOrHidden(s) }

// Find returns the run that a person named: by an id, by a unique prefix of one, or by ""
// for the newest run of the workspace. An empty workspace means the current directory.
func (c *Client) Find(ctx context.Context, ref, workspace string) (store.Meta, error) {
	return c.review.Find(ctx, ref, workspace)
}

// List returns the runs that are on record, newest first.
func (c *Client) List(ctx context.Context, q store.Query) (store.Listing, error) {
	return c.review.List(ctx, q)
}

// Receipt returns the receipt of a run that is over.
func (c *Client) Receipt(ctx context.Context, id store.ID) (*receipt.Receipt, error) {
	return c.review.Receipt(ctx, id)
}

// Changes opens the changes of a run to its workspace.
func (c *Client) Changes(id store.ID) (*change.Set, error) { return c.review.Changes(id) }

// Refs returns the references of git that a run changed.
func (c *Client) Refs(ctx context.Context, id store.ID) ([]change.RefChange, error) {
	return c.review.Refs(ctx, id)
}

// Diff writes a run's changes to w.
func (c *Client) Diff(ctx context.Context, id store.ID, w io.Writer, o change.DiffOptions) (change.DiffStat, error) {
	return c.review.Diff(ctx, id, w, o)
}

// Land applies changes of a run to its workspace.
func (c *Client) Land(ctx context.Context, id store.ID, o change.LandOptions) (*change.LandReport, error) {
	return c.review.Land(ctx, id, o)
}

// Undo reverts landings of a run.
func (c *Client) Undo(ctx context.Context, id store.ID, o change.UndoOptions) (*change.UndoReport, error) {
	return c.review.Undo(ctx, id, o)
}

// Log opens one of a run's logs: stdout, stderr or terminal.
func (c *Client) Log(id store.ID, name string) (*os.File, error) { return c.review.OpenLog(id, name) }

// PlanGC works out which runs a policy removes. GC removes them.
func (c *Client) PlanGC(ctx context.Context, p store.Policy) (store.Plan, error) {
	return c.review.PlanGC(ctx, p)
}

// Trace opens the trace of a run. The run may be live.
func (c *Client) Trace(id store.ID) (*trace.Reader, error) { return c.review.Trace(id) }

// ParseGlob reads a pattern of paths or programs for a TraceFilter.
func ParseGlob(s string) (TraceGlob, error) { return trace.ParseGlob(s) }

// Attach copies what the command of a live run wrote last, and what it writes. If the
// command has a terminal and Stdin is one, Attach also passes keys on.
func (c *Client) Attach(ctx context.Context, m store.Meta, o AttachOptions) error {
	return c.runs.Attach(ctx, m, o)
}

// Status asks a live run about itself.
func (c *Client) Status(ctx context.Context, m store.Meta) (Status, error) {
	return c.runs.Status(ctx, m)
}

// Stop asks the carboy of a live run to destroy its bottle.
func (c *Client) Stop(ctx context.Context, m store.Meta) error { return c.runs.Stop(ctx, m) }

// CopyOut copies a file or directory of a live bottle to dest, which must be new or a
// directory.
func (c *Client) CopyOut(ctx context.Context, m store.Meta, inside, dest string, l CopyLimits) (Copied, error) {
	return c.runs.CopyOut(ctx, m, inside, dest, l)
}

// CopyIn copies a file or directory into a live bottle: into the directory inside, if
// that is one or ends in a slash, else to that name.
func (c *Client) CopyIn(ctx context.Context, m store.Meta, src, inside string, l CopyLimits) (Copied, error) {
	return c.runs.CopyIn(ctx, m, src, inside, l)
}

// Exec runs a command in the bottle of a live run and blocks until it ends.
func (c *Client) Exec(ctx context.Context, m store.Meta, o ExecOptions) (receipt.Exit, error) {
	return c.runs.Exec(ctx, m, o)
}

// EgressLog opens the log of a run's network requests. The run may be live.
func (c *Client) EgressLog(id store.ID) (*egresslog.Reader, error) {
	return c.runs.EgressLog(id)
}

// CanPrepare returns an error that says why bottles for o cannot be prepared, or nil.
func CanPrepare(o *RunOptions) error { return run.CanPrepare(o) }

// Prepare creates a bottle for a later run with the same options.
func (c *Client) Prepare(ctx context.Context, o RunOptions) (*Prepared, error) {
	return c.runs.Prepare(ctx, o)
}

// PoolKey returns a key that is equal for runs that can use the same prepared bottle: of
// the same user, binary, place on this machine and options. It is cheap to compute.
func PoolKey(o *RunOptions, env func(string) string, config string) (string, error) {
	return run.PoolKey(o, env, config)
}

// Run runs one command in a new bottle.
func (c *Client) Run(ctx context.Context, o RunOptions) (*receipt.Receipt, error) {
	return c.runs.Run(ctx, o)
}

// Over reports whether a run is over.
func (c *Client) Over(ctx context.Context, id store.ID) (bool, error) { return c.runs.Over(ctx, id) }

// TraceScenarios runs scenarios, each in a new bottle, and reports their results and what
// they touched.
func (c *Client) TraceScenarios(ctx context.Context, o TraceOptions) (*scenario.Report, error) {
	return c.tracer.TraceScenarios(ctx, o)
}

// LoadScenarios reads the user's own file of scenarios.
func LoadScenarios(file, workspace string) (*scenario.Set, error) {
	return tracing.LoadScenarios(file, workspace)
}

// ScenariosAt reads the file of scenarios of a commit that the caller trusts. path is
// relative to the top of the repository of dir; "" means scenario.FileName.
func (c *Client) ScenariosAt(ctx context.Context, dir, rev, path string) (set *scenario.Set, err error) {
	return c.tracer.ScenariosAt(ctx, dir, rev, path)
}

// Ship returns an engine that deploys modules. Start at its Plan method.
func (c *Client) Ship(o ShipOptions) (*ship.Engine, error) { return c.operator.Ship(o) }

// AwaitApprovals blocks until as many people have signed plans as their hosts require,
// and returns their approvals.
func (c *Client) AwaitApprovals(ctx context.Context, s *ship.Engine, plans [][]byte, files []string, signed func() ([]approval.Signed, error), o AskOptions) ([]approval.Signed, error) {
	return c.operator.AwaitApprovals(ctx, s, plans, files, signed, o)
}

// Work makes an agent carry out a prompt until the gate passes: at most three times, then
// a person decides.
func (c *Client) Work(ctx context.Context, o WorkOptions) (*Worked, error) {
	return c.worker.Work(ctx, o)
}

// WorkAccount reads the records of work, given its id or a prefix of that.
func (c *Client) WorkAccount(ctx context.Context, ref string) (*WorkAccount, error) {
	return c.worker.WorkAccount(ctx, ref)
}

// WorkAccounts returns the newest n works, newest first. broken has the ids of those that
// cannot be read.
func (c *Client) WorkAccounts(ctx context.Context, n int) (list []*WorkAccount, broken []string, err error) {
	return c.worker.WorkAccounts(ctx, n)
}
