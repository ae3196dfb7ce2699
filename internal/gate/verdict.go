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
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// verdictSchema names the format of a verdict.
const verdictSchema = "carboy.dev/verdict/v1"

// Outcome is the result of a signal, or of a gate. The zero Outcome does not pass.
type Outcome string

// The outcomes.
const (
	Passed      Outcome = "passed"
	Failed      Outcome = "failed"      // another attempt may succeed
	Final       Outcome = "final"       // failed for good
	Escalated   Outcome = "escalated"   // a person must decide
	Unavailable Outcome = "unavailable" // there are no facts, so it does not pass
)

// Result is the result of one signal.
type Result struct {
	Name     string          `json:"name"`
	Kind     string          `json:"kind"`
	Line     int             `json:"line"` // line in the catalog
	Outcome  Outcome         `json:"outcome"`
	Why      string          `json:"why,omitempty"`
	Facts    json.RawMessage `json:"facts,omitempty"`
	Findings []Finding       `json:"findings,omitempty"`
	Total    int             `json:"findings_total,omitempty"`
	Duration time.Duration   `json:"duration_ns"`
}

// Side identifies one of the two trees.
type Side struct {
	Name   string `json:"name"`
	Commit string `json:"commit,omitempty"`
	Run    string `json:"run,omitempty"`
	Files  int    `json:"files"`
	Digest string `json:"sha256"`
}

// Override records that a person lets a change go on against the outcome. The outcome
// stays as it is.
type Override struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	// Proposal is the id of the proposal that was approved, and Digest its SHA-256.
	Proposal string `json:"proposal"`
	Digest   string `json:"proposal_sha256"`
}

// Attempts records that a person granted further attempts.
type Attempts struct {
	Work     string    `json:"work"`
	More     int       `json:"more"`
	By       string    `json:"by"`
	At       time.Time `json:"at"`
	Proposal string    `json:"proposal"`
	Digest   string    `json:"proposal_sha256"`
}

// Verdict is the result of a gate.
type Verdict struct {
	Schema  string    `json:"schema"`
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Build   string    `json:"build"` // of carboy
	Outcome Outcome   `json:"outcome"`
	Base    Side      `json:"base"`
	Change  Side      `json:"change"`
	// Catalog names the source of the catalog.
	Catalog       string `json:"catalog"`
	CatalogFrom   string `json:"catalog_from"`
	CatalogDigest string `json:"catalog_sha256"`
	Baseline      string `json:"baseline_sha256,omitempty"`
	// BaselineBy is the signer of the baseline; empty: it is not signed.
	BaselineBy string `json:"baseline_signed_by,omitempty"`
	// Repository is the directory that was judged.
	Repository string `json:"repository,omitempty"`
	Isolation  string `json:"isolation"`
	// Proposed is the SHA-256 of the baseline that a person may accept next.
	Proposed string `json:"proposed_baseline_sha256,omitempty"`
	// Inputs is the SHA-256 of its Inputs; empty: the verdict is not reused.
	Inputs string `json:"inputs_sha256,omitempty"`

	// Warm names the caches that phases of the change started with; nil: none.
	Warm *WarmUsed `json:"warm,omitempty"`
	// WarmWhy says why there were no caches, or why this gate stores none, if the catalog
	// asks for caches.
	WarmWhy string `json:"warm_why,omitempty"`

	Signals  []*Result     `json:"signals"`
	Phases   []*Phase      `json:"phases"`
	Duration time.Duration `json:"duration_ns"`
	// Cached: this is an earlier verdict, and nothing was run.
	Cached   bool      `json:"cached,omitempty"`
	Override *Override `json:"override,omitempty"`
	// Granted lists attempts beyond those of the catalog.
	Granted []Attempts `json:"granted,omitempty"`
}

// Allowed reports whether the change may go on: it passed, or a person overrode the
// outcome.
func (v *Verdict) Allowed() bool { return v.Outcome == Passed || v.Override != nil }

func (g *Gate) verdict(ctx context.Context, results []*Result, began time.Time) (*Verdict, error) {
	v := &Verdict{
		Schema: verdictSchema, ID: strings.ToLower(ulid.Make().String()), At: time.Now().UTC(),
		Catalog: g.Catalog.File, CatalogFrom: g.CatalogFrom, CatalogDigest: g.Catalog.Digest,
		Signals: results, Phases: g.phases, Duration: time.Since(began),
	}
	v.Warm = g.warm.usage(v.ID)
	if g.warmWhy != nil {
		v.SetWarmWhy(g.Redact, g.warmWhy)
	}
	if err := g.SetSides(ctx, v); err != nil {
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

// SetWarmWhy records why there are no caches.
func (v *Verdict) SetWarmWhy(red *secret.Redactor, why error) {
	if red == nil {
		red = new(secret.Redactor)
	}
	v.WarmWhy = safetext.String(red.String(why.Error()), 1000)
}

// SetSides sets the two sides of a verdict.
func (g *Gate) SetSides(ctx context.Context, v *Verdict) error {
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

// outcome returns the worst outcome of all signals, so one that did not pass decides.
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

// Encode returns the verdict as a document.
func (v *Verdict) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write verdict: %w", err)
	}
	return append(b, '\n'), nil
}

// decode reads b as one JSON document. An unknown field, trailing text or another schema
// is an error.
func decode(b []byte, x any, schema *string, want string) error {
	if err := decodeAny(b, x); err != nil {
		return err
	}
	if *schema != want {
		return fmt.Errorf("schema is %q, not %q", truncate(*schema, 100), want)
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
		return fmt.Errorf("there is more text after its end, at byte %d", end)
	}
	return nil
}

// ParseVerdict reads the output of Encode. An unknown field, kind or fact is an error,
// and so is an outcome that does not follow from the signals.
func ParseVerdict(b []byte) (*Verdict, error) {
	var v Verdict
	if err := decode(b, &v, &v.Schema, verdictSchema); err != nil {
		return nil, fmt.Errorf("read verdict: %w", err)
	}
	if i := slices.IndexFunc(v.Phases, func(p *Phase) bool { return p == nil || p.Ended == nil }); i >= 0 {
		return nil, fmt.Errorf("read verdict: phases[%d] is null", i)
	}
	for i, r := range v.Signals {
		if r == nil {
			return nil, fmt.Errorf("read verdict: signals[%d] is null", i)
		}
		k := kinds[r.Kind]
		if k == nil {
			return nil, fmt.Errorf("read verdict: signal %q: no kind %q%s", truncate(r.Name, 60), truncate(r.Kind, 60), near(r.Kind))
		}
		if r.Facts == nil {
			if r.Outcome == Passed {
				return nil, fmt.Errorf("read verdict: signal %q passed without facts", truncate(r.Name, 60))
			}
			continue
		}
		f, err := k.decode(r.Facts)
		if err != nil {
			return nil, fmt.Errorf("read verdict: signal %q: %w", truncate(r.Name, 60), err)
		}
		if r.Outcome == Passed && !f.Positive() {
			return nil, fmt.Errorf("read verdict: signal %q passed, and its facts do not", truncate(r.Name, 60))
		}
	}
	if v.Outcome != outcome(v.Signals) {
		return nil, fmt.Errorf("read verdict: it says %q, and its signals do not", truncate(string(v.Outcome), 60))
	}
	return &v, nil
}

func near(kind string) string {
	if n := document.Nearest(kind, kindNames()); n != "" {
		return ", did you mean " + n + "?"
	}
	return ""
}

// Digest returns the SHA-256 of the encoded verdict, in hexadecimal digits.
func (v *Verdict) Digest() (string, error) {
	b, err := v.Encode()
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}
