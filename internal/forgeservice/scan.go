package forgeservice

import (
	"context"
	"errors"
	"fmt"

	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// Scan returns a check of texts that refuses what a request may not carry: the secrets, as
// they are or in an encoding, in one text or in pieces over several, and texts that look like
// a token. secrets is called for each text.
func Scan(secrets func() map[string]secret.Value) func(ctx context.Context, text string) error {
	coverage := scan.NewCoverage()
	return func(_ context.Context, text string) error {
		values := map[string]secret.Value{}
		for name, v := range secrets() {
			if scan.Fit(v) == nil {
				values[name] = v
			}
		}
		known, err := scan.NewWatchedSecrets(values)
		if err != nil {
			return errors.New("the text can't be scanned")
		}
		rules, err := scan.NewRules(scan.Config{Watched: known, Tokens: true})
		if err != nil {
			return errors.New("the text can't be scanned")
		}
		found, err := rules.Check(scan.Options{Place: "text", Action: scan.Report, Coverage: coverage}, []byte(text))
		for _, f := range found {
			if !f.Warning {
				return fmt.Errorf("the text holds a secret: %s", f)
			}
		}
		if err != nil {
			return errors.New("the text can't be scanned")
		}
		return nil
	}
}
