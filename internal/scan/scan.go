// Package scan finds secrets in outgoing bytes and injected instructions in
// incoming text, while they stream by. It does not parse HTTP.
//
// It promises:
//
//   - What is found does not depend on how the stream is cut into pieces.
//   - A Scanner returns bytes as soon as nothing in them can still become a
//     finding. It holds back only the tail that may still match.
//   - If a limit is reached, a content coding can't be decoded or a detector
//     panics, the stream ends with an error. Nothing passes unscanned.
//   - A Finding says what was found where, and never holds the value.
//
// It does not find a secret that was encrypted, combined with a key, or sent
// through the order or timing of messages.
//
// Start at Rules, then Scanner.Push. A scanner is a tree of streams (stream.go):
// the root holds the input, each other one the output of a view (views.go) or a
// decoder (decode.go). Each stream is searched for the watched secrets
// (watched.go) and for tokens by their form (tokens.go).
package scan

import (
	"errors"
	"fmt"

	"github.com/carboy/carboy/internal/scan/literal"
)

// Rules select what a Scanner looks for. They are immutable: to change them, make
// a new set.
type Rules struct {
	watched *WatchedSecrets // may be nil
	forms   *forms          // nil without token rules
	lits    *literal.Matcher
	kinds   []litKind
	back    int
	random  *Entropy

	phrases *phraseSet // instead of all that
}

// A Config selects the detectors of Rules.
type Config struct {
	Watched *WatchedSecrets // secrets by value
	Tokens  bool            // secrets by their form
	AnyCase bool            // with Tokens: only the forms of vendors, in any case of letters, for names
	Entropy *Entropy        // anything that looks random; usually off, since ids and hashes do
}

// Entropy finds runs of token characters that look random.
type Entropy struct {
	Length int     // at least so many characters; 0: 32
	Bits   float64 // per character, at least; 0: 4.5
}

// litKind tells what to do when a literal of the first stage is found.
type litKind struct {
	forms []formAt
	view  viewKind   // starts or prolongs a view
	magic decodeKind // begins something compressed
}

// NewRules compiles c. The token rules are compiled once per process.
func NewRules(c Config) (*Rules, error) {
	r := &Rules{watched: c.Watched, random: c.Entropy}
	var lits []literal.Literal
	if c.Tokens {
		fs, err := allForms()
		if c.AnyCase {
			fs, err = vendorForms()
		}
		if err != nil {
			return nil, err
		}
		r.forms, r.back = fs, fs.back
		lits = append(lits, fs.lits...)
		for _, of := range fs.of {
			r.kinds = append(r.kinds, litKind{forms: of})
		}
	}
	for _, t := range triggers() {
		lits = append(lits, literal.Literal{Text: t.text})
		r.kinds = append(r.kinds, litKind{view: t.view, magic: t.magic})
	}
	r.kinds = append(r.kinds, litKind{view: lookalike}) // what callingPairs finds
	var err error
	r.lits, err = matchers.get(matcherKind{c.Tokens, c.Tokens && c.AnyCase}, lits)
	return r, err
}

// A Finding describes what was found, where, and how it was encoded. It does not
// hold the value.
type Finding struct {
	Rule      string // of a token or phrase, or "known-secret", "pieces-of-secret", "high-entropy", "unreadable"
	Secret    string // the name of a known secret
	Transform string // "plain", "base64", "gzip > hex", …
	Place     string // as the scanner was told: "body", "header X", …
	Offset    int64  // in the stream; of what holds it, if that is compressed
	Length    int
	// Sealed reports that the finding can't be masked in place: it is inside
	// compressed data, or a part of it already left.
	Sealed bool
	// Cut reports that the match continues beyond the bytes its rule examines.
	Cut bool
	// Warning reports that the finding alone is no reason to block: a single
	// phrase, or data that can't be read, such as an encrypted file ("unreadable").
	Warning bool
}

func (f Finding) String() string {
	what := f.Rule
	if f.Secret != "" {
		what += " " + f.Secret
	}
	return fmt.Sprintf("%s (%s) in %s at %d, %d bytes", what, f.Transform, f.Place, f.Offset, f.Length)
}

// FoundError ends a stream at a finding that must not pass.
type FoundError struct{ Finding Finding }

func (e *FoundError) Error() string { return "scan: found " + e.Finding.String() }

// LimitError ends a stream that would exceed a limit of the scanner.
type LimitError struct {
	Limit string // "work", "depth", "output", "candidates", "decoders"
	Place string
	At    int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("scan: %s at %d: the limit of %s is reached", e.Place, e.At, e.Limit)
}

// DecodeError ends a stream whose content coding is unknown or invalid.
type DecodeError struct {
	Coding string
	Place  string
	Err    error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("scan: %s: content coding %s: %v", e.Place, e.Coding, e.Err)
}
func (e *DecodeError) Unwrap() error { return e.Err }

// PanicError ends a stream on which a detector panicked.
type PanicError struct {
	Place string
	Value any
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("scan: %s: a detector failed: %v", e.Place, e.Value)
}

// ErrClosed is returned by a scanner that was closed.
var ErrClosed = errors.New("scan: the scanner is closed")
