package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/config"
)

// byRepository sends each issue to the bottles of its repository, and keeps to what the
// configuration says of agents.
type byRepository struct {
	conf *config.Config
	of   map[string]orchestrate.Bottles // by repository
}

func (b *byRepository) find(k issues.Key) (config.Repository, orchestrate.Bottles, error) {
	r, ok := b.conf.Find(k.Owner + "/" + k.Repo)
	if !ok {
		return r, nil, fmt.Errorf("%v: its repository is not in %s any more", k, b.conf.File)
	}
	return r, b.of[r.Path()], nil
}

// Turn refuses an agent that labels may not name in this repository.
func (b *byRepository) Turn(ctx context.Context, t orchestrate.Turn) (*orchestrate.TurnResult, error) {
	r, to, err := b.find(t.Issue)
	if err != nil {
		return nil, err
	}
	if len(r.Agents) > 0 && !slices.Contains(r.Agents, t.Agent) {
		now := time.Now().UTC()
		return &orchestrate.TurnResult{Slug: t.Slug, Outcome: "final", Why: fmt.Sprintf("labels may not name the agent %.60q in this repository", t.Agent), Began: now, Ended: now}, nil
	}
	if len(t.Bottles) == 0 {
		t.Bottles = r.Bottles
	}
	return to.Turn(ctx, t)
}

func (b *byRepository) Conflicts(ctx context.Context, t orchestrate.Turn) (bool, error) {
	r, to, err := b.find(t.Issue)
	if err != nil {
		return false, err
	}
	if len(t.Bottles) == 0 {
		t.Bottles = r.Bottles
	}
	return to.Conflicts(ctx, t)
}

// any returns one of them, for what needs no repository: all bottles are this user's, and an
// issue whose repository was taken out of the file must end, too.
func (b *byRepository) any() orchestrate.Bottles {
	return b.of[b.conf.Repositories[0].Path()]
}

func (b *byRepository) Freeze(ctx context.Context, slug string) error {
	return b.any().Freeze(ctx, slug)
}

func (b *byRepository) Destroy(ctx context.Context, k issues.Key, slug string) error {
	_, to, err := b.find(k)
	if err != nil {
		to = b.any()
	}
	return to.Destroy(ctx, k, slug)
}

func (b *byRepository) Seal(ctx context.Context, m orchestrate.Merge) (string, error) {
	r, to, err := b.find(m.Issue)
	if err != nil {
		return "", err
	}
	if len(m.Bottles) == 0 {
		m.Bottles = r.Bottles
	}
	return to.Seal(ctx, m)
}
