package carboy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// AttestVerdict writes what a verdict attests, a DSSE envelope on each line, signed with
// this user's key, and gives the key that verifies.
func (c *Client) AttestVerdict(ctx context.Context, ref string, w io.Writer) (key string, err error) {
	v, _, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	s, err := gate.OpenSigner(c.gateDir("key"))
	if err != nil {
		return "", err
	}
	list, err := v.Attest(ctx, s)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		b, err := json.Marshal(e)
		if err != nil {
			return "", err
		}
		if _, err := w.Write(append(b, '\n')); err != nil {
			return "", err
		}
	}
	return s.PublicKey(), nil
}

// verifyGates compares every verdict and attempt with the audit log.
func (c *Client) verifyGates(ctx context.Context) (out []audit.Finding, err error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	// What has its name now is in the log that is read after.
	dirs, err := c.verdictDirs()
	if err != nil {
		return nil, err
	}
	var verdicts []string
	for _, id := range dirs {
		there, err := c.verdictThere(id)
		if err != nil {
			c.log.Info("a verdict is left as somebody left it who died", "verdict", id, "why", err)
		}
		if there {
			verdicts = append(verdicts, c.gateDir("verdicts", id, verdictFile))
		}
	}
	type doc struct{ id, of string }
	last := map[doc]string{}
	seq := map[doc]int64{}
	inputs := map[string]string{}
	err = c.auditRecords(func(r *audit.Record) {
		if r.Kind == audit.GateRemoved {
			delete(last, doc{r.Subject, verdictOf})
			delete(seq, doc{r.Subject, verdictOf})
			return
		}
		for _, d := range r.Digests {
			if d.Of == attemptOf && last[doc{r.Subject, d.Of}] != "" {
				// A step is taken once: somebody had taken it back.
				out = append(out, audit.Finding{Record: r.Seq, Text: fmt.Sprintf("attempt %s was recorded before", r.Subject)})
			}
			switch d.Of {
			case inputsOf:
				inputs[r.Subject] = d.SHA256
			case verdictOf, attemptOf:
				last[doc{r.Subject, d.Of}], seq[doc{r.Subject, d.Of}] = d.SHA256, r.Seq
			}
		}
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	steps, err := store.Glob(c.gateDir("work"), "*/"+attemptPrefix+"*.json")
	if err != nil {
		return nil, err
	}
	beside := func(d doc, text []byte) error {
		found, err := checkKept(ctx, c.gateDir("verdicts", d.id), text)
		for _, what := range found {
			out = append(out, audit.Finding{Record: seq[d], Text: fmt.Sprintf("verdict %s: %s", d.id, what)})
		}
		return err
	}
	seen := map[doc]bool{}
	for _, x := range []struct {
		of    string
		files []string
	}{{verdictOf, verdicts}, {attemptOf, steps}} {
		files := x.files
		for i, f := range files {
			d := doc{filepath.Base(filepath.Dir(f)), x.of}
			if x.of == attemptOf {
				d.id += "/" + attemptNumber(f)
			}
			seen[d] = true
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			if x.of == verdictOf && hexSum(b) != last[d] {
				// Somebody may have written another one since the log was read.
				sum, err := c.recorded(d.id, verdictOf)
				if err != nil {
					return nil, err
				}
				if now, err := c.verdictText(d.id, sum); err == nil {
					b, last[d] = now, sum
				}
			}
			switch want, ok := last[d]; {
			case !ok && x.of == attemptOf && (i+1 == len(files) || filepath.Dir(files[i+1]) != filepath.Dir(f)):
				// carboy died between a step's two halves: it counts for nothing, and
				// going on removes it.
			case !ok:
				out = append(out, audit.Finding{Record: -1, Text: fmt.Sprintf("%s %s is not on record", x.of, d.id)})
			case want != hexSum(b):
				out = append(out, audit.Finding{Record: seq[d], Text: fmt.Sprintf("%s %s is not what was recorded", x.of, d.id)})
			case x.of == verdictOf:
				if err := beside(d, b); err != nil {
					return nil, err
				}
			}
		}
	}
	for d, sum := range last {
		if seen[d] || sum == "" {
			continue
		}
		if b, err := c.verdictText(d.id, sum); d.of != verdictOf || err != nil {
			out = append(out, audit.Finding{Record: seq[d], Text: fmt.Sprintf("%s %s was recorded, and is gone", d.of, d.id)})
		} else if err := beside(d, b); err != nil { // it has its name since
			return nil, err
		}
	}
	// What a verdict is given again by goes after a while, and is not changed before.
	files, err := store.Glob(c.gateDir("cache"), "*/*.json")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		sum, err := fileSum(ctx, f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if errors.Is(err, gate.ErrNoFile) {
			sum = "no file"
		} else if err != nil {
			return nil, err
		}
		switch id := strings.TrimSuffix(filepath.Base(f), ".json"); inputs[id] {
		case sum:
		case "":
			if r, ok := seq[doc{id, verdictOf}]; ok { // else carboy died before it gave the verdict
				out = append(out, audit.Finding{Record: r, Text: fmt.Sprintf("inputs of verdict %s are not on record", id)})
			}
		default:
			out = append(out, audit.Finding{Record: seq[doc{id, verdictOf}], Text: fmt.Sprintf("inputs of verdict %s are not what was recorded", id)})
		}
	}
	slices.SortStableFunc(out, func(a, b audit.Finding) int {
		return cmp.Or(cmp.Compare(a.Record, b.Record), cmp.Compare(a.Text, b.Text))
	})
	return out, nil
}

// checkKept compares what lies beside a verdict with what its text says.
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

// CheckVerdict compares all that lies beside a verdict with what the verdict says, which
// is on record: evidence, inputs, the baseline that it proposes. ErrLedger names what is
// another. A verdict that was removed meanwhile is ErrNoVerdict.
func (c *Client) CheckVerdict(ctx context.Context, v *gate.Verdict, dir string) error {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return err
	}
	defer release()
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("verdict %s: %w", v.ID, ErrNoVerdict)
	}
	if err != nil {
		return err
	}
	defer root.Close()
	found, err := v.Check(ctx, root)
	if err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("verdict %s: %w: %s", v.ID, ErrLedger, strings.Join(found, "; "))
}

// VerdictEvidence opens one piece of a verdict's evidence: SIGNAL-base or SIGNAL-change,
// and stdout, stderr, observed.json, receipt.json or trace. The bytes may be the
// change's own words: show them through package visible.
func (c *Client) VerdictEvidence(ctx context.Context, ref, phase, name string) ([]byte, error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	v, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Join(dir, "evidence"))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(phase + "/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, maxEvidence+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxEvidence {
		return nil, fmt.Errorf("%s of %s has more than %d bytes: read it in %s", name, phase, maxEvidence, dir)
	}
	for _, p := range v.Phases {
		if p.Signal+"-"+p.On == phase && p.Evidence[name] == hexSum(b.Bytes()) {
			return b.Bytes(), nil
		}
	}
	return nil, fmt.Errorf("verdict %s: %s of %s: %w: its text was changed", v.ID, name, phase, ErrLedger)
}

// maxEvidence bounds a piece of evidence that is read whole, in bytes.
const maxEvidence = 64 << 20
