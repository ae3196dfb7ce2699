package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

// VerdictSchema names the format of a verdict.
const VerdictSchema = "carboy.dev/verdict/v1"

// Outcome is what became of a signal, or of a gate. The zero Outcome is no pass.
type Outcome string

// The outcomes.
const (
	Passed      Outcome = "passed"
	Failed      Outcome = "failed"      // another attempt may do better
	Final       Outcome = "final"       // failed for good
	Escalated   Outcome = "escalated"   // a person must decide
	Unavailable Outcome = "unavailable" // there are no facts, which is no pass
)

// Result is what became of one signal.
type Result struct {
	Name     string          `json:"name"`
	Kind     string          `json:"kind"`
	Line     int             `json:"line"` // in the catalog
	Outcome  Outcome         `json:"outcome"`
	Why      string          `json:"why,omitempty"`
	Facts    json.RawMessage `json:"facts,omitempty"`
	Findings []Finding       `json:"findings,omitempty"`
	Total    int             `json:"findings_total,omitempty"`
	Duration time.Duration   `json:"duration_ns"`
}

// Side is one of the two trees.
type Side struct {
	Name   string `json:"name"`
	Commit string `json:"commit,omitempty"`
	Run    string `json:"run,omitempty"`
	Files  int    `json:"files"`
	Digest string `json:"sha256"`
}

// Override is a person's word against the outcome. It changes nothing of what was
// found.
type Override struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Proposal is what was approved, and Digest names it.
	Proposal string `json:"proposal"`
	Digest   string `json:"proposal_sha256"`
}

// Attempts are those that a person granted to the work that this is of.
type Attempts struct {
	Work     string    `json:"work"`
	More     int       `json:"more"`
	By       string    `json:"by"`
	At       time.Time `json:"at"`
	Proposal string    `json:"proposal"`
	Digest   string    `json:"proposal_sha256"`
}

// Verdict is what a gate found.
type Verdict struct {
	Schema  string    `json:"schema"`
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Build   string    `json:"build"` // the carboy that judged
	Outcome Outcome   `json:"outcome"`
	Base    Side      `json:"base"`
	Change  Side      `json:"change"`
	// Catalog is where what judged came from, and its digest.
	Catalog       string `json:"catalog"`
	CatalogFrom   string `json:"catalog_from"`
	CatalogDigest string `json:"catalog_sha256"`
	Baseline      string `json:"baseline_sha256,omitempty"`
	// BaselineBy is who signed the baseline; empty: it is not signed.
	BaselineBy string `json:"baseline_signed_by,omitempty"`
	// Repository is the directory that was judged.
	Repository string `json:"repository,omitempty"`
	Isolation  string `json:"isolation"`
	// Proposed is the SHA-256 of what a person may accept as the next baseline.
	Proposed string `json:"proposed_baseline_sha256,omitempty"`
	// Inputs is the SHA-256 of what it was seen to depend on; empty: it is not given
	// again.
	Inputs string `json:"inputs_sha256,omitempty"`

	// Warm are the caches that phases of the change began with; nil: none.
	Warm *WarmUsed `json:"warm,omitempty"`
	// WarmWhy is why there were none, or why later gates have none of this one, where
	// the catalog asks for caches.
	WarmWhy string `json:"warm_why,omitempty"`

	Signals  []*Result     `json:"signals"`
	Phases   []*Phase      `json:"phases"`
	Duration time.Duration `json:"duration_ns"`
	// Cached: nothing was run for this answer; the verdict is that of before.
	Cached   bool      `json:"cached,omitempty"`
	Override *Override `json:"override,omitempty"`
	// Granted are attempts beyond those that the catalog gives.
	Granted []Attempts `json:"granted,omitempty"`
}

// Allowed reports whether the change may go on: it passed, or a person took it upon
// themselves.
func (v *Verdict) Allowed() bool { return v.Outcome == Passed || v.Override != nil }

func (g *Gate) verdict(ctx context.Context, results []*Result, began time.Time) (*Verdict, error) {
	v := &Verdict{
		Schema: VerdictSchema, ID: strings.ToLower(ulid.Make().String()), At: time.Now().UTC(),
		Catalog: g.Catalog.File, CatalogFrom: g.CatalogFrom, CatalogDigest: g.Catalog.Digest,
		Signals: results, Phases: g.phases, Duration: time.Since(began),
	}
	v.Warm = g.warm.used(v.ID)
	if g.warmWhy != nil {
		v.NotWarm(g.Redact, g.warmWhy)
	}
	if err := g.Sides(ctx, v); err != nil {
		return nil, err
	}
	if g.Baseline != nil {
		v.Baseline, v.BaselineBy = g.Baseline.digest, g.BaselineBy
	}
	for _, p := range g.phases {
		if v.Isolation == "" {
			v.Isolation = p.Isolation
		} else if v.Isolation != p.Isolation {
			v.Isolation = "mixed"
		}
	}
	v.Outcome = outcome(results)
	return v, nil
}

// NotWarm has the verdict say why there are no caches.
func (v *Verdict) NotWarm(red *secret.Redactor, why error) {
	if red == nil {
		red = new(secret.Redactor)
	}
	v.WarmWhy = visible.String(red.String(why.Error()), 1000)
}

// Sides says which two trees a verdict is about.
func (g *Gate) Sides(ctx context.Context, v *Verdict) error {
	for _, s := range []struct {
		to *Side
		t  *Tree
	}{{&v.Base, g.Base}, {&v.Change, g.Change}} {
		d, err := s.t.Digest(ctx)
		if err != nil {
			return err
		}
		*s.to = Side{s.t.Name, s.t.Commit, s.t.Run, len(s.t.Files), d}
	}
	return nil
}

// outcome is strict: all signals passed, or it is no pass. What is worst decides.
func outcome(results []*Result) Outcome {
	if len(results) == 0 {
		return Unavailable
	}
	worst := Passed
	rank := map[Outcome]int{Passed: 0, Failed: 1, Unavailable: 2, Escalated: 3, Final: 4}
	for _, r := range results {
		if r == nil {
			return Unavailable
		}
		n, ok := rank[r.Outcome]
		if !ok {
			return Unavailable
		}
		if n > rank[worst] {
			worst = r.Outcome
		}
	}
	return worst
}

// Encode is the verdict as a document.
func (v *Verdict) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write verdict: %w", err)
	}
	return append(b, '\n'), nil
}

// decode reads b as one JSON document and nothing beside it: a field that x has not is an
// error, and so are text behind it and another schema.
func decode(b []byte, x any, schema *string, want string) error {
	if err := decodeAny(b, x); err != nil {
		return err
	}
	if *schema != want {
		return fmt.Errorf("schema is %q, not %q", cut(*schema, 100), want)
	}
	return nil
}

func decodeAny(b []byte, x any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(x); err != nil {
		return err
	}
	if end := d.InputOffset(); len(bytes.TrimSpace(b[end:])) > 0 {
		return fmt.Errorf("something stands behind its end, at byte %d", end)
	}
	return nil
}

// ParseVerdict reads what Encode gave, and nothing else: an unknown field, kind or
// fact is an error, and so is an outcome that does not follow from the signals'.
func ParseVerdict(b []byte) (*Verdict, error) {
	var v Verdict
	if err := decode(b, &v, &v.Schema, VerdictSchema); err != nil {
		return nil, fmt.Errorf("read verdict: %w", err)
	}
	if i := slices.IndexFunc(v.Phases, func(p *Phase) bool { return p == nil || p.Ended == nil }); i >= 0 {
		return nil, fmt.Errorf("read verdict: phases[%d] is none", i)
	}
	for i, r := range v.Signals {
		if r == nil {
			return nil, fmt.Errorf("read verdict: signals[%d] is none", i)
		}
		k := kinds[r.Kind]
		if k == nil {
			return nil, fmt.Errorf("read verdict: signal %q: no kind %q%s", cut(r.Name, 60), cut(r.Kind, 60), near(r.Kind))
		}
		if r.Facts == nil {
			if r.Outcome == Passed {
				return nil, fmt.Errorf("read verdict: signal %q passed without facts", cut(r.Name, 60))
			}
			continue
		}
		f, err := k.decode(r.Facts)
		if err != nil {
			return nil, fmt.Errorf("read verdict: signal %q: %w", cut(r.Name, 60), err)
		}
		if r.Outcome == Passed && !f.Positive() {
			return nil, fmt.Errorf("read verdict: signal %q passed, and its facts do not", cut(r.Name, 60))
		}
	}
	if v.Outcome != outcome(v.Signals) {
		return nil, fmt.Errorf("read verdict: it says %q, and its signals do not", cut(string(v.Outcome), 60))
	}
	return &v, nil
}

func near(kind string) string {
	if n := document.Nearest(kind, kindNames()); n != "" {
		return ", did you mean " + n + "?"
	}
	return ""
}

// Digest is the SHA-256 of the verdict as it is encoded, in hexadecimal digits.
func (v *Verdict) Digest() (string, error) {
	b, err := v.Encode()
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}
