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

// records are those of a module on a host, oldest first. What cannot be read is left
// out and left alone.
func (e *Engine) records(host, id string) []*Record {
	names, err := os.ReadDir(e.recordDir(host, id))
	if err != nil {
		return nil
	}
	var out []*Record
	for _, n := range names {
		digest, ok := strings.CutSuffix(n.Name(), ".json")
		if !ok || strings.HasPrefix(digest, ".") {
			continue
		}
		if r, err := e.readRecord(host, id, digest); err == nil {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, older)
	return out
}

func older(a, b *Record) int {
	return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.Job, b.Job))
}

func (e *Engine) lastApplied(host, id string) *Record {
	all := e.records(host, id)
	for _, r := range slices.Backward(all) {
		if r.Outcome == Applied {
			return r
		}
	}
	return nil
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
		if r := e.lastApplied(d.Name(), id); r != nil && (last == nil || older(last, r) < 0) {
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
func (e *Engine) imported(ctx context.Context, id string) (*source, error) {
	in, err := e.readImported(id)
	if in == nil || err != nil {
		return nil, err
	}
	s, err := e.load(ctx, id, in.Commit)
	if err != nil {
		return nil, nil // what cannot be read cannot be gone back to
	}
	return s, nil
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
