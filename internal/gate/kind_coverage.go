package gate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "coverage", Summary: "tests execute enough of the statements, by Go's cover profile", Runs: true, Keys: []string{"profile", "min"}},
		func(_ *Signal, m document.Mapping) Judge[coverageFacts] {
			profile, least := m.Need("profile").Text(), m.Need("min").Int(1, 1, 100)
			if profile != "" && badPath(profile) != "" {
				m.Get("profile").Bad("is no path of the tree", "name the file that go test -coverprofile writes")
			}
			return func(ctx context.Context, c *Case) (coverageFacts, []Finding, error) {
				f := coverageFacts{Least: least}
				p, err := c.run(ctx, c.Change)
				if err != nil {
					return f, nil, err
				}
				if f.Run = factsOf(p); p.Code != 0 {
					return f, exitFinding(p), nil
				}
				b, err := wrote(p, profile)
				if err != nil {
					return f, nil, err
				}
				if f.Covered, f.Statements, err = covered(string(b)); err != nil || f.Positive() {
					return f, nil, err
				}
				return f, []Finding{{ID: "coverage", Text: fmt.Sprintf("%d of %d statements are executed, and %d %% must be", f.Covered, f.Statements, least)}}, nil
			}
		})
}

type coverageFacts struct {
	Run        commandFacts `json:"run"`
	Covered    int64        `json:"statements_covered"`
	Statements int64        `json:"statements"`
	Least      int64        `json:"least_percent"`
}

func (f coverageFacts) Positive() bool {
	return f.Run.Positive() && f.Least > 0 && f.Statements > 0 && f.Covered*100 >= f.Least*f.Statements
}

// covered counts the statements of a cover profile that were executed, and all. A block
// that several tests report counts once.
func covered(profile string) (hit, all int64, err error) {
	lines := strings.Split(strings.TrimSpace(profile), "\n")
	if !strings.HasPrefix(lines[0], "mode: ") {
		return 0, 0, errors.New("it is not a cover profile of Go")
	}
	size, reached := map[string]int64{}, map[string]bool{}
	for i, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) != 3 {
			return 0, 0, fmt.Errorf("line %d of the cover profile is not a block", i+2)
		}
		n, err1 := strconv.ParseUint(f[1], 10, 31)
		times, err2 := strconv.ParseUint(f[2], 10, 63)
		if err1 != nil || err2 != nil {
			return 0, 0, fmt.Errorf("line %d of the cover profile is not a block", i+2)
		}
		size[f[0]], reached[f[0]] = int64(n), reached[f[0]] || times > 0
	}
	for block, n := range size {
		if all += n; reached[block] {
			hit += n
		}
	}
	return hit, all, nil
}
