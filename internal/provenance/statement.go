package provenance

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/carboy/carboy/internal/attest"
)

const (
	// BuildType names the form of these records. Another form has another name.
	BuildType = "https://carboy.dev/merged-pull-request/v1"
	builderID = "https://carboy.dev/carboy"
)

// Bounds of what is read, in bytes.
const (
	maxPayload = 16 << 20
	maxFile    = 24 << 20
)

// document is the statement. Its fields stand in the order in which they are written.
type document struct {
	Type          string              `json:"_type"`
	Subject       []attest.Descriptor `json:"subject"`
	PredicateType string              `json:"predicateType"`
	Predicate     struct {
		Definition definition `json:"buildDefinition"`
		Run        details    `json:"runDetails"`
	} `json:"predicate"`
}

type definition struct {
	BuildType    string              `json:"buildType"`
	External     external            `json:"externalParameters"`
	Internal     internal            `json:"internalParameters"`
	Dependencies []attest.Descriptor `json:"resolvedDependencies"`
}

type external struct {
	Repository string   `json:"repository"`
	Issue      int64    `json:"issue"`
	Pull       int64    `json:"pullRequest"`
	Base       string   `json:"base"`
	Branch     string   `json:"branch"`
	Agent      string   `json:"agent"`
	Bottles    []string `json:"bottles"`
}

type internal struct {
	Slug    string `json:"slug"`
	Backend string `json:"backend"`
}

type details struct {
	Builder struct {
		ID      string            `json:"id"`
		Version map[string]string `json:"version"`
	} `json:"builder"`
	Metadata struct {
		Invocation string    `json:"invocationId"`
		Started    time.Time `json:"startedOn"`
		Finished   time.Time `json:"finishedOn"`
	} `json:"metadata"`
	Byproducts []attest.Descriptor `json:"byproducts"`
	// SLSA has extensions begin with their maker's name and an underscore.
	Record  *Facts  `json:"carboy_record"`
	Sources Sources `json:"carboy_sources"`
}

// payload returns the statement for facts in their normal form.
func payload(f *Facts, build string, s Sources) ([]byte, error) {
	repository := "git+" + f.Forge + "/" + f.Owner + "/" + f.Repo
	var d document
	d.Type, d.PredicateType = attest.StatementType, attest.ProvenanceV1
	d.Subject = []attest.Descriptor{{Name: "merge commit", URI: repository + "@" + f.Commit, Digest: map[string]string{"gitCommit": f.Commit}}}
	if f.Tree != "" {
		d.Subject = append(d.Subject, attest.Descriptor{Name: "tree of the merge commit", Digest: map[string]string{"gitTree": f.Tree}})
	}
	def := &d.Predicate.Definition
	def.BuildType = BuildType
	def.External = external{Repository: repository, Issue: f.Issue, Pull: f.Pull, Base: f.Base, Branch: f.Branch, Agent: f.Agent, Bottles: f.Bottles}
	def.Internal = internal{Slug: f.Slug, Backend: f.Backend}
	def.Dependencies = []attest.Descriptor{}
	if f.Head != "" {
		def.Dependencies = append(def.Dependencies, attest.Descriptor{Name: "branch at the merge", URI: repository + "@" + f.Head, Digest: map[string]string{"gitCommit": f.Head}})
	}
	run := &d.Predicate.Run
	run.Builder.ID, run.Builder.Version = builderID, map[string]string{"carboy": build}
	run.Metadata.Invocation = fmt.Sprintf("%s/%s#%d", f.Owner, f.Repo, cmp.Or(f.Issue, f.Pull))
	run.Metadata.Started, run.Metadata.Finished = f.span()
	run.Byproducts = []attest.Descriptor{}
	for _, t := range f.Turns {
		if t.Verdict != "" {
			run.Byproducts = append(run.Byproducts, attest.Descriptor{Name: "verdict " + t.Verdict, Digest: map[string]string{"sha256": t.VerdictSHA256}})
		}
		for _, r := range t.Runs {
			if r.ReceiptSHA256 != "" {
				run.Byproducts = append(run.Byproducts, attest.Descriptor{Name: "receipt of run " + r.ID, Digest: map[string]string{"sha256": r.ReceiptSHA256}})
			}
		}
	}
	run.Record, run.Sources = f, s
	b, err := encode(d)
	if err == nil && len(b) > maxPayload {
		err = fmt.Errorf("the record has %d bytes, which is more than %d", len(b), maxPayload)
	}
	return b, err
}

// span returns when the first turn began and the last one ended.
func (f *Facts) span() (from, to time.Time) {
	from, to = f.Merged, f.Merged
	for i, t := range f.Turns {
		if i == 0 {
			from, to = t.Began, t.Ended
		}
		if t.Began.Before(from) {
			from = t.Began
		}
		if t.Ended.After(to) {
			to = t.Ended
		}
	}
	return from, to
}

// encode returns v as JSON in one line, with a line break.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// errForm says that a text is JSON, and not as carboy writes it.
var errForm = errors.New("it is not in the form that carboy writes: a field is doubled, or contradicts another one, or the order or the spaces differ")

// decode reads b into v. It refuses unknown fields, and what is left over.
func decode(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("it can't be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	return nil
}

// parsed is a statement that was read.
type parsed struct {
	facts   *Facts
	sources Sources
	build   string
}

// parse reads a statement. It accepts only what payload returns for its facts: then no field
// can be there twice, and none contradicts another one.
func parse(b []byte) (*parsed, error) {
	if len(b) > maxPayload {
		return nil, fmt.Errorf("it has more than %d bytes", maxPayload)
	}
	// First the types: what is of another type has other fields.
	var head struct {
		Type      string `json:"_type"`
		Predicate string `json:"predicateType"`
		In        struct {
			Definition struct {
				BuildType string `json:"buildType"`
			} `json:"buildDefinition"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("it can't be read: %w", err)
	}
	for _, x := range []struct{ field, got, want string }{
		{"_type", head.Type, attest.StatementType},
		{"predicateType", head.Predicate, attest.ProvenanceV1},
		{"predicate.buildDefinition.buildType", head.In.Definition.BuildType, BuildType},
	} {
		if x.got != x.want {
			return nil, fmt.Errorf("field %s is %q, and this carboy reads %q", x.field, x.got[:min(len(x.got), 100)], x.want)
		}
	}
	var d document
	if err := decode(b, &d); err != nil {
		return nil, err
	}
	run := d.Predicate.Run
	if run.Record == nil {
		return nil, errors.New("field predicate.runDetails.carboy_record: it is missing")
	}
	f, err := run.Record.normal()
	if err != nil {
		return nil, err
	}
	if err := run.Sources.check(); err != nil {
		return nil, err
	}
	p := &parsed{f, run.Sources, run.Builder.Version["carboy"]}
	again, err := payload(f, p.build, p.sources)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, errForm
	}
	return p, nil
}

func (s *Sources) check() error {
	for _, list := range [][]string{s.Observed, s.Told, s.Claimed, s.Not} {
		if len(list) > maxSentences {
			return fmt.Errorf("field carboy_sources: a list has more than %d sentences", maxSentences)
		}
		for _, x := range list {
			if len(x) > maxSentence {
				return fmt.Errorf("field carboy_sources: a sentence has more than %d bytes", maxSentence)
			}
		}
	}
	if len(s.Not) == 0 {
		return errors.New("field carboy_sources.not_observed: it is empty, and carboy never saw all")
	}
	return nil
}
