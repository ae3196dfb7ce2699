package review

import (
	"cmp"
	"slices"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
)

// Summarize returns the section of a receipt about a set of changes.
func Summarize(set *change.Set) *receipt.Changes {
	c := &receipt.Changes{Incomplete: set.Incomplete}
	for i := range set.Changes {
		ch := &set.Changes[i]
		if ch.Bookkeeping() {
			c.Git++
			if ch.Reference() {
				c.References++
			}
			continue
		}
		if ch.Ignored {
			c.Ignored++
			continue
		}
		c.Total++
		switch ch.Kind {
		case change.Add:
			c.Added++
		case change.Modify:
			c.Modified++
		case change.Delete:
			c.Deleted++
		case change.Mode:
			c.Mode++
		case change.Retype:
			c.Retyped++
		}
		if len(ch.Protected) > 0 {
			c.Protected++
		}
		if ch.BaseMoved != "" {
			c.BaseMoved++
		}
		if ch.Unlandable != "" {
			c.Unlandable++
		}
		c.List = append(c.List, oneChange(ch))
	}
	// What a person must look at comes first.
	rank := func(c receipt.Change) int {
		if len(c.Protected) > 0 || c.BaseMoved != "" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(c.List, func(a, b receipt.Change) int { return cmp.Compare(rank(a), rank(b)) })
	c.List = fault.Cut(c.List, receipt.MaxChanges)
	return c
}

func oneChange(ch *change.Change) receipt.Change {
	out := receipt.Change{
		Path: store.Raw(ch.Path), Kind: string(ch.Kind), Type: string(ch.Type), Size: ch.Size,
		BaseMoved: ch.BaseMoved, Unlandable: ch.Unlandable,
	}
	for _, r := range ch.Protected {
		out.Protected = append(out.Protected, r.Why)
	}
	return out
}
