package gateway

import (
	"errors"
	"fmt"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
)

// CheckText returns an error unless text may leave the bottle by another way than the
// network, such as a comment that carboy posts for the agent. It looks for what is looked
// for in the body of a request whose route says nothing of scanning. A secret is also found
// if its other pieces left in requests or in earlier texts.
//
// place says in a word or two what the text is. Findings are recorded like those of
// requests, under [SuperviseName]. The error is fit to be shown to the agent. CheckText may
// be called concurrently.
func (g *Gateway) CheckText(text, place string) error {
	d := g.rules.Load().detectors
	rules, err := d.outbound(policy.Scan{})
	if err != nil {
		return fmt.Errorf("%s: what is looked for can't be prepared: %w", reasonScan, err)
	}
	o := scan.Options{Place: place, Action: scan.Block, Coverage: d.coverage, Spare: d.spare}
	o.OnFinding = func(f scan.Finding) {
		did := FoundBlocked
		if f.Warning {
			did = FoundReported
		}
		g.ledger.found(Found{
			Time: time.Now(), Name: SuperviseName, Port: insidePort, Rule: insideRule(SuperviseName),
			What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: f.Place, Action: did,
		})
	}
	_, err = rules.Check(o, []byte(text))
	var found *scan.FoundError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &found):
		return fmt.Errorf("%s: %s; leave it out", reasonSecret, describe(found.Finding))
	}
	return fmt.Errorf("%s: the text can't be looked at: %w", reasonScan, err)
}
