package judge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/store"
)

// AuditVerify checks the audit log offline, against itself and against the
// checkpoints that the runs keep.
func (c *Judge) AuditVerify(ctx context.Context, key string) (audit.Report, error) {
	l, err := c.Store.List(ctx, store.Query{})
	if err != nil {
		return audit.Report{}, err
	}
	o := audit.VerifyOptions{Key: key}
	for _, m := range l.Runs {
		cp, err := os.ReadFile(c.Store.RunDir(m.ID) + "/" + store.EvidenceDir + "/" + review.CheckpointFile)
		if err == nil {
			o.Anchors = append(o.Anchors, cp)
		}
	}
	r, err := audit.Verify(ctx, c.AuditDir(), o)
	if err != nil {
		return r, err
	}
	// The log has only the digests of verdicts, attempts and records of merged work.
	found, err := c.VerifyGates(ctx)
	if err == nil {
		var more []audit.Finding
		more, err = provenance.Open(c.StateDir(), c.Audit).Findings(ctx)
		found = append(found, more...)
	}
	if len(found) > 0 {
		r.Status = audit.Tampered
		r.Findings = append(r.Findings, found...)
	}
	return r, err
}

// document names a text whose digest the audit log records.
type document struct {
	id string // of a verdict, or WORK/STEP for an attempt
	of string // verdictOf or AttemptOf
}

// verifier compares the documents of gates with the audit log.
type verifier struct {
	c      *Judge
	sums   map[document]string // the newest digest on record
	seqs   map[document]int64  // the record with that digest
	inputs map[string]string   // the digest of a verdict's inputs, by the verdict's id
	seen   map[document]bool   // those that are on disk
	out    []audit.Finding
}

// VerifyGates compares every verdict and attempt with the audit log. It returns what
// differs, in the order of the records.
func (c *Judge) VerifyGates(ctx context.Context) ([]audit.Finding, error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	// Before the log is read: then every verdict listed here is in it.
	verdicts, err := c.verdictFiles()
	if err != nil {
		return nil, err
	}
	v := &verifier{c: c, sums: map[document]string{}, seqs: map[document]int64{}, inputs: map[string]string{}, seen: map[document]bool{}}
	if err := c.AuditRecords(v.record); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	steps, err := store.Glob(c.GateDir("work"), "*/"+AttemptPrefix+"*.json")
	if err != nil {
		return nil, err
	}
	if err := v.verdicts(ctx, verdicts); err != nil {
		return nil, err
	}
	if err := v.attempts(steps); err != nil {
		return nil, err
	}
	if err := v.missing(ctx); err != nil {
		return nil, err
	}
	if err := v.keptInputs(ctx); err != nil {
		return nil, err
	}
	slices.SortStableFunc(v.out, func(a, b audit.Finding) int {
		return cmp.Or(cmp.Compare(a.Record, b.Record), cmp.Compare(a.Text, b.Text))
	})
	return v.out, nil
}

// verdictFiles returns the files of all verdicts, the oldest first.
func (c *Judge) verdictFiles() (files []string, err error) {
	dirs, err := c.verdictDirs()
	if err != nil {
		return nil, err
	}
	for _, id := range dirs {
		there, err := c.hasVerdict(id)
		if err != nil {
			c.Log.Info("an interrupted write of a verdict could not be completed", "verdict", id, "why", err)
		}
		if there {
			files = append(files, c.GateDir("verdicts", id, VerdictFile))
		}
	}
	return files, nil
}

func (v *verifier) add(record int64, format string, a ...any) {
	v.out = append(v.out, audit.Finding{Record: record, Text: fmt.Sprintf(format, a...)})
}

// record takes one record of the audit log.
func (v *verifier) record(r *audit.Record) {
	if r.Kind == audit.GateRemoved {
		delete(v.sums, document{r.Subject, verdictOf})
		delete(v.seqs, document{r.Subject, verdictOf})
		return
	}
	for _, d := range r.Digests {
		doc := document{r.Subject, d.Of}
		if d.Of == AttemptOf && v.sums[doc] != "" {
			// Each step is taken once: somebody removed it, and it was taken again.
			v.add(r.Seq, "attempt %s was recorded before", r.Subject)
		}
		switch d.Of {
		case inputsOf:
			v.inputs[r.Subject] = d.SHA256
		case verdictOf, AttemptOf:
			v.sums[doc], v.seqs[doc] = d.SHA256, r.Seq
		}
	}
}

// verdicts checks the verdicts in files, each with its evidence.
func (v *verifier) verdicts(ctx context.Context, files []string) error {
	for _, f := range files {
		d := document{filepath.Base(filepath.Dir(f)), verdictOf}
		v.seen[d] = true
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if HexSum(b) != v.sums[d] {
			// Another process may have written a new text since the log was read.
			sum, err := v.c.recorded(d.id, verdictOf)
			if err != nil {
				return err
			}
			if now, err := v.c.verdictText(d.id, sum); err == nil {
				b, v.sums[d] = now, sum
			}
		}
		if !v.compare(d, b) {
			continue
		}
		if err := v.evidence(ctx, d, b); err != nil {
			return err
		}
	}
	return nil
}

// attempts checks the steps of works in files, which are sorted.
func (v *verifier) attempts(files []string) error {
	for i, f := range files {
		d := document{filepath.Base(filepath.Dir(f)) + "/" + AttemptNumber(f), AttemptOf}
		v.seen[d] = true
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		newest := i+1 == len(files) || filepath.Dir(files[i+1]) != filepath.Dir(f)
		if _, ok := v.sums[d]; !ok && newest {
			// carboy died before it recorded the step: the step does not count, and the
			// next one removes it.
			continue
		}
		v.compare(d, b)
	}
	return nil
}

// compare reports whether b is the text of d that is on record.
func (v *verifier) compare(d document, b []byte) bool {
	switch want, ok := v.sums[d]; {
	case !ok:
		v.add(-1, "%s %s is not on record", d.of, d.id)
	case want != HexSum(b):
		v.add(v.seqs[d], "%s %s is not what was recorded", d.of, d.id)
	default:
		return true
	}
	return false
}

// evidence checks the files beside a verdict whose text is on record.
func (v *verifier) evidence(ctx context.Context, d document, text []byte) error {
	found, err := checkKept(ctx, v.c.GateDir("verdicts", d.id), text)
	for _, what := range found {
		v.add(v.seqs[d], "verdict %s: %s", d.id, what)
	}
	return err
}

// missing reports the documents on record that are not on disk.
func (v *verifier) missing(ctx context.Context) error {
	for d, sum := range v.sums {
		if v.seen[d] || sum == "" {
			continue
		}
		if b, err := v.c.verdictText(d.id, sum); d.of != verdictOf || err != nil {
			v.add(v.seqs[d], "%s %s was recorded, and is gone", d.of, d.id)
		} else if err := v.evidence(ctx, d, b); err != nil { // written since the files were listed
			return err
		}
	}
	return nil
}

// keptInputs checks the inputs by which verdicts are given again. They may be removed at
// any time, but never change.
func (v *verifier) keptInputs(ctx context.Context) error {
	files, err := store.Glob(v.c.GateDir("cache"), "*/*.json")
	if err != nil {
		return err
	}
	for _, f := range files {
		sum, err := fileSum(ctx, f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if errors.Is(err, gate.ErrNoFile) {
			sum = "no file"
		} else if err != nil {
			return err
		}
		id := strings.TrimSuffix(filepath.Base(f), ".json")
		switch seq, ok := v.seqs[document{id, verdictOf}]; v.inputs[id] {
		case sum:
		case "":
			if ok { // else carboy died before it recorded the verdict
				v.add(seq, "inputs of verdict %s are not on record", id)
			}
		default:
			v.add(seq, "inputs of verdict %s are not what was recorded", id)
		}
	}
	return nil
}

// checkKept compares the files beside a verdict with the digests in its text.
func checkKept(ctx context.Context, dir string, text []byte) ([]string, error) {
	v, err := gate.ParseVerdict(text)
	if err != nil {
		return []string{"can't be read: " + err.Error()}, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return v.Check(ctx, root)
}
