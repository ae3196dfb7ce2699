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
	"github.com/carboy/carboy/internal/store"
)

// recordKind names the document of a record.
const recordKind = "ship-record"

// Sent is the outcome of a record whose plan was sent to the host, and of which
// nothing was heard since. The host decides what it becomes.
const Sent Outcome = "sent"

// Record is what is known of one plan that was carried out, or begun. The host has
// the same by the name of the plan; whichever copy was lost is made from the other.
type Record struct {
	Schema    string            `json:"schema"`
	Digest    string            `json:"digest"` // of the plan, and the record's name
	Plan      []byte            `json:"plan"`
	Compose   []byte            `json:"compose,omitempty"`
	Approvals []approval.Signed `json:"approvals"`
	Outcome   Outcome           `json:"outcome"`
	Why       string            `json:"why,omitempty"`
	Began     time.Time         `json:"began"`
	Ended     time.Time         `json:"ended,omitzero"`
	By        string            `json:"by"`
	Job       string            `json:"job,omitempty"` // on the host
	Steps     []string          `json:"steps,omitempty"`
	// Learned says that it came from the host: it is that host's word.
	Learned bool `json:"learned,omitempty"`
}

// settled are the outcomes that a host records; each uses the plan up.
func (o Outcome) settled() bool {
	return slices.Contains([]Outcome{Applied, Failed, RolledBack, RollbackFailed}, o)
}

func (e *Engine) recordDir(host, id string) string {
	return filepath.Join(e.State, "records", host, id)
}

func (e *Engine) recordFile(host, id, digest string) string {
	return filepath.Join(e.recordDir(host, id), digest+".json")
}

func (e *Engine) readRecord(host, id, digest string) (*Record, error) {
	r := &Record{}
	if err := store.ReadJSON(e.recordFile(host, id, digest), recordKind, r); err != nil {
		return nil, err
	}
	if r.Digest != digest || plan.Digest(r.Plan) != digest {
		return nil, fmt.Errorf("%s: is not the record of its name", e.recordFile(host, id, digest))
	}
	return r, nil
}

func (e *Engine) writeRecord(host, id string, r *Record) error {
	if err := os.MkdirAll(e.recordDir(host, id), 0o700); err != nil {
		return err
	}
	r.Schema = store.Schema(recordKind)
	return store.WriteJSON(e.recordFile(host, id, r.Digest), recordKind, r)
}

// records are those of a module on a host, oldest first. What cannot be read, as when a
// later carboy wrote it, is left out and left alone; the error is about that.
func (e *Engine) records(host, id string) ([]*Record, error) {
	names, err := os.ReadDir(e.recordDir(host, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*Record
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

func older(a, b *Record) int {
	return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.Job, b.Job))
}

// lastApplied is the last that was applied, nil for none. The error is of records that
// cannot be read: one of them may be it.
func (e *Engine) lastApplied(host, id string) (*Record, error) {
	all, err := e.records(host, id)
	for _, r := range slices.Backward(all) {
		if r.Outcome == Applied {
			return r, err
		}
	}
	return nil, err
}

// lastCommit is the commit of a module that was applied last to any host, by the
// records here; "" when there is none.
func (e *Engine) lastCommit(id string) string {
	if !module.ValidID(id) {
		return ""
	}
	dirs, err := os.ReadDir(filepath.Join(e.State, "records"))
	if err != nil {
		return ""
	}
	var last *Record
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

// Imported is what an earlier tool left in a repository.
type Imported struct {
	Commit string    `json:"last_apply_sha"`
	Pull   any       `json:"last_apply_pr,omitempty"`
	At     time.Time `json:"applied_at,omitzero"`
}

// maxImported bounds such a file, in bytes.
const maxImported = 64 << 10

// readImported reads .platform/state/modules/<id>.status.json of the work tree; nil
// when there is none. It says which commit may have been applied, which is believed
// only when the host's own service agrees.
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

// imported is the module at the commit that an earlier tool says it applied; nil when
// there is none that can be used.
func (e *Engine) imported(ctx context.Context, id string) (*source, *Imported, error) {
	in, err := e.readImported(id)
	if in == nil || err != nil {
		return nil, nil, err
	}
	s, err := e.load(ctx, id, in.Commit)
	if err != nil {
		return nil, nil, nil // what cannot be read cannot be gone back to
	}
	return s, in, nil
}

// importKind names the document of an import.
const importKind = "ship-import"

// TookOver is the outcome of a history's line for what an earlier tool applied.
const TookOver Outcome = "imported"

// importRecord is that a host was found to run what an earlier tool says it applied.
type importRecord struct {
	Schema   string    `json:"schema"`
	Commit   string    `json:"commit"`
	Pull     string    `json:"pull,omitempty"`
	Applied  time.Time `json:"applied,omitzero"` // by the other tool's word
	Recorded time.Time `json:"recorded"`
	By       string    `json:"by"`
}

func (e *Engine) importDir(host, id string) string {
	return filepath.Join(e.State, "imports", host, id)
}

// recordImport records, once, that a host runs what an earlier tool says it applied.
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
	if err := e.note(ctx, audit.ShipImport, audit.Noted, p, "", "imported", "it runs what an earlier tool says it applied"); err != nil {
		return err
	}
	if err := os.MkdirAll(e.importDir(host, id), 0o700); err != nil {
		return err
	}
	return store.WriteJSON(name, importKind, r)
}

// imports are lines of a history for what was taken over.
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

// hostJob is a job as a host keeps it.
type hostJob struct {
	name, digest string
	plan         *plan.Plan
	planBytes    []byte
	approvals    []approval.Signed
	outcome      Outcome // "" for one that is not over
	why          string
	ended        time.Time
	steps        []string
}

// jobs reads an account of mode history. A job whose plan is not the one of its name
// is left out: the host's word alone counts for nothing.
func (a *account) jobs() (out []*hostJob) {
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

// result reads the one line with which a job ends: OUTCOME SECONDS WHY.
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

// validModule is for names that become directories.
func validModule(id string) error {
	if !module.ValidID(id) {
		return fail(Refused, "", "letters, digits, _ and - only", "%.80q is not the name of a module", id)
	}
	return nil
}
