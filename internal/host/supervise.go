package host

import (
	"context"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/supervise"
)

// QueueDir names the directory of the approval queue in the state directory.
const QueueDir = "supervise"

// Proposals opens the queue where people answer the proposals of this user's bottles.
// Each call opens it anew. Close it before the Host, whose audit log gets the answers.
func (h *Host) Proposals() (*supervise.Queue, error) { return h.OpenQueue(nil) }

// OpenQueue opens the queue as Proposals does, and removes the secrets that r knows from
// everything that is written there.
func (h *Host) OpenQueue(r *secret.Redactor) (*supervise.Queue, error) {
	return supervise.Open(filepath.Join(h.Store.Dir(), QueueDir), supervise.Options{Audit: h.Audit, Redactor: r})
}

// PruneProposals removes the proposals that were answered longer than age ago from the
// queue's archive, and returns their number.
func (h *Host) PruneProposals(ctx context.Context, age time.Duration) (int, error) {
	q, err := h.Proposals()
	if err != nil {
		return 0, err
	}
	defer q.Close()
	return q.Prune(ctx, time.Now().Add(-age))
}
