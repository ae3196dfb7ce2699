package carboy

import (
	"context"

	"github.com/carboy/carboy/internal/receipt"
)

type ledger struct{}

func openLedger(dir string) (*ledger, error) { return &ledger{}, nil }

func (l *ledger) Close() error { return nil }

func (s *session) noteStart(ctx context.Context) error { return nil }

func (s *session) denied(what, subject, rule, reason string) {}

func (s *session) noteEnd(ctx context.Context) (*receipt.Audit, error) { return nil, nil }
