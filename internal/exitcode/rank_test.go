package exitcode

import (
	"slices"
	"strconv"
	"testing"
)

// TestShipCodesHaveRanks: each code of the manual's rows about deployments has a rank, and
// each has its own. Without one, a new code would count as more urgent than all others.
func TestShipCodesHaveRanks(t *testing.T) {
	seen := map[int]bool{}
	for _, r := range table {
		code, err := strconv.Atoi(r.Code)
		if !slices.Contains([]string{shipping, "apply", statusCommand}, r.Command) || err != nil || code == Usage {
			continue
		}
		seen[code] = true
		if shipRank(code) < 0 {
			t.Errorf("code %d (%s) has no rank in shipOutcomes", code, r.Meaning)
		}
	}
	for i, x := range shipOutcomes {
		if !seen[x.code] || shipRank(x.code) != i {
			t.Errorf("%q: code %d is not in the manual, or is another outcome's too", x.name, x.code)
		}
	}
	for _, code := range []int{Usage, ShipPlanned, signalBase + 2} {
		if shipRank(code) >= 0 {
			t.Errorf("code %d is no deployment's and has a rank", code)
		}
	}
}
