package ship

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/reviews"
	"github.com/carboy/carboy/internal/store"
)

// recordKind is the document kind of a record.
const recordKind = "ship-record"

// Sent is the outcome of a record whose plan was sent to the host, with no result yet.
const Sent Outcome = "sent"

// record describes one plan that was applied or sent. The host keeps the same data under
// the plan's digest; if one copy is lost, it is restored from the other.
type record struct {
	Schema    string            `json:"schema"`
	Digest    string            `json:"digest"` // of the plan, and the record's name
	Plan      []byte            `json:"plan"`
	Compose   []byte            `json:"compose,omitempty"`
	Approvals []approval.Signed `json:"approvals"`
	// Reviews are approvals by reviews, as the forge told of them then.
	Reviews []reviews.Approval `json:"reviews,omitempty"`
	Outcome Outcome            `json:"outcome"`
	Why     string             `json:"why,omitempty"`
	Began   time.Time          `json:"began"`
	Ended   time.Time          `json:"ended,omitzero"`
	By      string             `json:"by"`
	Job     string             `json:"job,omitempty"` // on the host
	Steps   []string           `json:"steps,omitempty"`
	// Evidence says why it was not applied or not healthy. The host does not keep it.
	Evidence []string `json:"evidence,omitempty"`
	// Learned is true if the record was read from the host, which may lie.
	Learned bool `json:"learned,omitempty"`
}

// settled reports whether a host records this outcome. A plan with a recorded outcome
// cannot be applied again.
func (o Outcome) settled() bool {
	return slices.Contains([]Outcome{Applied, Failed, RolledBack, RollbackFailed}, o)
}

func (e *Engine) recordDir(host, id string) string {
	return filepath.Join(e.State, "records", host, id)
}

func (e *Engine) recordFile(host, id, digest string) string {
	return filepath.Join(e.recordDir(host, id), digest+".json")
}

func (e *Engine) readRecord(host, id, digest string) (*record, error) {
	r := &record{}
	if err := store.ReadJSON(e.recordFile(host, id, digest), recordKind, r); err != nil {
		return nil, err
	}
	if r.Digest != digest || plan.Digest(r.Plan) != digest {
		return nil, fmt.Errorf("%s: is not the record of its name", e.recordFile(host, id, digest))
	}
	return r, nil
}

func (e *Engine) writeRecord(host, id string, r *record) error {
	if err := os.MkdirAll(e.recordDir(host, id), 0o700); err != nil {
		return err
	}
	r.Schema = store.Schema(recordKind)
	return store.WriteJSON(e.recordFile(host, id, r.Digest), recordKind, r)
}

// records returns the records of a module on a host, oldest first. The error is about
// records that cannot be read, such as those of a later carboy; they are left out.
func (e *Engine) records(host, id string) ([]*record, error) {
	names, err := os.ReadDir(e.recordDir(host, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*record
	var odd []error
	for _, n := range names {
		digest, ok := strings.CutSuffix(n.Name(), ".json")
		if !ok || strings.HasPrefix(digest, ".") {
			continue
		}
		r, err := e.readRecord(host, id, digest)
		if err != nil {
			odd = append(odd, err)
			continue
		}
		out = append(out, r)
	}
	slices.SortFunc(out, older)
	return out, errors.Join(odd...)
}

func older(a, b *record) int {
	return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.Job, b.Job))
}

// lastApplied returns the last record with the outcome Applied, nil if there is none. The
// error is about records that cannot be read: one of them may be later.
func (e *Engine) lastApplied(host, id string) (*record, error) {
	all, err := e.records(host, id)
	for _, r := range slices.Backward(all) {
		if r.Outcome == Applied {
			return r, err
		}
	}
	return nil, err
}

// lastCommit returns the commit of a module that was last applied to any host, by the
// records here, "" if there is none.
func (e *Engine) lastCommit(id string) string {
	if !module.ValidID(id) {
		return ""
	}
	dirs, err := os.ReadDir(filepath.Join(e.State, "records"))
	if err != nil {
		return ""
	}
	var last *record
	for _, d := range dirs {
		if r, err := e.lastApplied(d.Name(), id); r != nil && err == nil && (last == nil || older(last, r) < 0) {
			last = r
		}
	}
	if last == nil {
		return ""
	}
	p, _, err := plan.Decode(last.Plan)
	if err != nil {
		return ""
	}
	return p.Commit
}

// Imported is the state that an earlier tool left in a repository.
type Imported struct {
	Commit string    `json:"last_apply_sha"`
	Pull   any       `json:"last_apply_pr,omitempty"`
	At     time.Time `json:"applied_at,omitzero"`
}

// maxImported bounds the file of an [Imported], in bytes.
const maxImported = 64 << 10

// readImported reads .platform/state/modules/<id>.status.json in the work tree; it returns
// nil if there is none. The caller must compare the commit in it with the service that
// runs on the host.
func (e *Engine) readImported(id string) (*Imported, error) {
	root, err := os.OpenRoot(e.Repo)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name := ".platform/state/modules/" + id + ".status.json"
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxImported+1))
	if err != nil {
		return nil, err
	}
	var in struct {
		Commit string          `json:"last_apply_sha"`
		Pull   json.RawMessage `json:"last_apply_pr"`
		At     string          `json:"applied_at"`
	}
	if len(b) > maxImported || json.Unmarshal(b, &in) != nil || !plan.ValidCommit(in.Commit) {
		return nil, fail(Refused, "", "correct it or remove it", "%s: is not a record with last_apply_sha", name)
	}
	out := &Imported{Commit: in.Commit}
	if s := strings.Trim(string(in.Pull), `"`); s != "" && s != "null" {
		out.Pull = shown(s)
	}
	if t, err := time.Parse(time.RFC3339, in.At); err == nil {
		out.At = t.UTC()
	}
	return out, nil
}

// imported returns the module at the commit that an earlier tool applied, nil if there is
// none or it cannot be used.
func (e *Engine) imported(ctx context.Context, id string) (*source, *Imported, error) {
	in, err := e.readImported(id)
	if in == nil || err != nil {
		return nil, nil, err
	}
	s, err := e.load(ctx, id, in.Commit)
	if errors.Is(err, errShallow) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, nil // a rollback to an unreadable commit is impossible
	}
	return s, in, nil
}

// importKind is the document kind of an import.
const importKind = "ship-import"

// TookOver is the outcome of a history entry for a commit that an earlier tool applied.
const TookOver Outcome = "imported"

// importRecord says that a host was found to run the commit that an earlier tool applied.
type importRecord struct {
	Schema   string    `json:"schema"`
	Commit   string    `json:"commit"`
	Pull     string    `json:"pull,omitempty"`
	Applied  time.Time `json:"applied,omitzero"` // according to the other tool
	Recorded time.Time `json:"recorded"`
	By       string    `json:"by"`
}

func (e *Engine) importDir(host, id string) string {
	return filepath.Join(e.State, "imports", host, id)
}

// recordImport records, once, that a host runs the commit that an earlier tool applied.
func (e *Engine) recordImport(ctx context.Context, host, id string, in *Imported) error {
	name := filepath.Join(e.importDir(host, id), in.Commit+".json")
	if err := store.ReadJSON(name, importKind, &importRecord{}); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p := &plan.Plan{Module: id, Commit: in.Commit, Host: plan.Host{Name: host}}
	r := &importRecord{Schema: store.Schema(importKind), Commit: in.Commit, Applied: in.At, Recorded: time.Now().UTC(), By: e.By}
	if in.Pull != nil {
		r.Pull = fmt.Sprint(in.Pull)
	}
	if err := e.auditEvent(ctx, audit.ShipImport, audit.Noted, p, "", "imported", "it runs what an earlier tool says it applied"); err != nil {
		return err
	}
	if err := os.MkdirAll(e.importDir(host, id), 0o700); err != nil {
		return err
	}
	return store.WriteJSON(name, importKind, r)
}

// imports returns the history entries for imports of a module on a host.
func (e *Engine) imports(host, id string) (out []Entry, err error) {
	names, err := os.ReadDir(e.importDir(host, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var odd []error
	for _, n := range names {
		commit, ok := strings.CutSuffix(n.Name(), ".json")
		if !ok || !plan.ValidCommit(commit) {
			continue
		}
		var r importRecord
		if err := store.ReadJSON(filepath.Join(e.importDir(host, id), n.Name()), importKind, &r); err != nil {
			odd = append(odd, err)
			continue
		}
		x := Entry{Host: host, Module: id, Kind: "import", Commit: commit, Outcome: TookOver, Why: "an earlier tool applied it", Began: r.Applied, Ended: r.Recorded, By: r.By, Approvals: []Approved{}, Changes: []plan.Change{}}
		if r.Pull != "" {
			x.Why += ", for pull request " + shown(r.Pull)
		}
		if x.Began.IsZero() {
			x.Began = r.Recorded
		}
		out = append(out, x)
	}
	return out, errors.Join(append(odd, err)...)
}

// hostJob is a job that a host keeps.
type hostJob struct {
	name, digest string
	plan         *plan.Plan
	planBytes    []byte
	approvals    []approval.Signed
	reviews      []reviews.Approval
	outcome      Outcome // "" for an unfinished job
	why          string
	ended        time.Time
	steps        []string
}

// jobs reads the jobs from the output of mode history. It leaves out a job whose plan does
// not have the digest in its name, because hosts are not trusted.
func (a *scriptOutput) jobs() (out []*hostJob) {
	var j *hostJob
	for _, f := range a.files {
		if f[0] == "@job" {
			_, digest, _ := strings.Cut(f[1], "-")
			j = &hostJob{name: f[1], digest: digest}
			out = append(out, j)
			continue
		}
		name, text, _ := strings.Cut(f[1], " ")
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || j == nil {
			continue
		}
		switch name {
		case "plan.json":
			if p, digest, err := plan.Decode(b); err == nil && digest == j.digest {
				j.plan, j.planBytes = p, b
			}
		case "approvals.json":
			json.Unmarshal(b, &j.approvals)
		case "reviews.json":
			json.Unmarshal(b, &j.reviews)
		case "result":
			j.outcome, j.ended, j.why = result(string(b))
		case "steps":
			for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
				j.steps = append(j.steps, shown(newRedactor().Line(l)))
			}
		}
	}
	return slices.DeleteFunc(out, func(j *hostJob) bool { return j.plan == nil })
}

// result parses the line that a job ends with: OUTCOME SECONDS WHY.
func result(s string) (o Outcome, at time.Time, why string) {
	f := strings.SplitN(strings.TrimSpace(s), " ", 3)
	if len(f) < 2 || !Outcome(f[0]).settled() {
		return "", time.Time{}, ""
	}
	var sec int64
	fmt.Sscan(f[1], &sec)
	if len(f) == 3 {
		why = shown(newRedactor().Line(f[2]))
	}
	return Outcome(f[0]), time.Unix(sec, 0).UTC(), why
}

// validModule returns an error unless id is a module's name, and so safe as a directory.
func validModule(id string) error {
	if !module.ValidID(id) {
		return fail(Refused, "", "letters, digits, _ and - only", "%.80q is not the name of a module", id)
	}
	return nil
}
