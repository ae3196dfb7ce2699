package carboy

import (
	"context"
	"path/filepath"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/supervise"
)

// queueDir is in the state directory.
const queueDir = "supervise"

// Proposals is the queue where people answer what no rule decides, of this user's
// bottles. Each call opens it anew. Close it before the Client, whose audit log gets
// the answers.
func (c *Client) Proposals() (*supervise.Queue, error) { return c.proposals(nil) }

// proposals is the queue for a process that knows secrets, which it writes nowhere.
func (c *Client) proposals(r *secret.Redactor) (*supervise.Queue, error) {
	return supervise.Open(filepath.Join(c.store.Dir(), queueDir), supervise.Options{Audit: c.audit, Redactor: r})
}

// PruneProposals removes what was answered longer ago than age from the queue's
// archive, and reports how many that were.
func (c *Client) PruneProposals(ctx context.Context, age time.Duration) (int, error) {
	q, err := c.Proposals()
	if err != nil {
		return 0, err
	}
	defer q.Close()
	return q.Prune(ctx, time.Now().Add(-age))
}
