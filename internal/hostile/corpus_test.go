package hostile

import (
	"testing"

	"github.com/carboy/carboy/internal/corpus"
)

// TestS4Floods: floods of the corpus that no test in bounds_test.go makes at
// greater length. carboy escape-test has all of them.
func TestS4Floods(t *testing.T) {
	hold(t, corpus.Options{Attacks: []string{"floods/process-storm", "floods/long-exec", "floods/inodes"}})
}

// TestS6WayHome: what a vandal leaves in a workspace, taken home carelessly,
// and what a person is shown of it.
func TestS6WayHome(t *testing.T) { contained(t, "landing", "terminal-text") }

// TestG1GitGate: tokens, harmful trees and forged packs, pushed by hand through the git
// gate of a bottle.
func TestG1GitGate(t *testing.T) { contained(t, "git-gate") }

// TestA1Records: a log that is flooded and tampered with, and a secret that
// the command tries to have recorded.
func TestA1Records(t *testing.T) { contained(t, "records") }

// TestT1Trace: a trickster's programs are in the trace under their true names,
// what it prints is not, and nothing is lost unsaid.
func TestT1Trace(t *testing.T) { contained(t, "trace") }
