// Package scan looks for secrets in bytes that leave, and for injected
// instructions in text that enters, while both stream by. It knows no HTTP.
//
// What it promises:
//
//   - What is found does not depend on how the stream is cut into pieces.
//   - A Scanner gives bytes back only when nothing in them can still become a
//     finding, and not later: what it holds is the tail that may still match.
//   - Where a limit is reached, something can't be decoded or a detector breaks,
//     the stream ends with an error: never silently unscanned.
//   - A Finding says what was found where, and never holds the value.
//
// What it does not: a secret that was encrypted, combined with a key, or sent
// by the order or the time of messages is not found by looking at bytes.
//
// Start at Rules, then Scanner.Push. A scanner is a tree of lanes (lane.go): the
// first sees the stream itself, each other one the output of a view (views.go)
// or a decoder (decode.go). In each lane the known secrets (known.go) and the
// forms of tokens (tokens.go) are looked for.
package scan

import (
	"errors"
	"fmt"

	"github.com/carboy/carboy/internal/scan/literal"
)

// Rules are what is looked for, immutable: a new set is swapped in whole.
type Rules struct {
	known  *Known // may be nil
	forms  *forms // nil without token rules
	lits   *literal.Matcher
	kinds  []litKind
	back   int
	random *Entropy

	phrases *phraseSet // instead of all that
}

// A Config says what Rules look for.
type Config struct {
	Known   *Known   // secrets by value
	Tokens  bool     // secrets by their form
	Entropy *Entropy // anything that looks random; usually off, since ids and hashes do
}

// Entropy finds runs of token characters that look random.
type Entropy struct {
	Length int     // at least so many characters; 0: 32
	Bits   float64 // per character, at least; 0: 4.5
}

// What a literal of the first stage means.
type litKind struct {
	forms []formAt
	view  viewKind   // starts or prolongs a view
	magic decodeKind // begins something compressed
}

// NewRules compiles c. The rules for tokens are compiled once in a process.
func NewRules(c Config) (*Rules, error) {
	r := &Rules{known: c.Known, random: c.Entropy}
	var lits []literal.Literal
	if c.Tokens {
		fs, err := allForms()
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
	r.lits, err = matchers.get(c.Tokens, lits)
	return r, err
}

// A Finding says what was found, where, and how it was written. It does not
// hold what was found.
type Finding struct {
	Rule      string // of a token or phrase, or "known-secret", "pieces-of-secret", "high-entropy", "unreadable"
	Secret    string // the name of a known secret
	Transform string // "plain", "base64", "gzip > hex", …
	Place     string // as the scanner was told: "body", "header X", …
	Offset    int64  // in the stream; of what holds it, if that is compressed
	Length    int
	// Sealed says that it can't be masked in place: it is inside of something
	// compressed, or a part of it left before the rest came.
	Sealed bool
	// Cut says that it goes on behind what is looked at of such a thing.
	Cut bool
	// Warning says that it is no reason to block by itself: one phrase alone, or
	// something that can't be looked at, such as an encrypted file ("unreadable").
	Warning bool
}

func (f Finding) String() string {
	what := f.Rule
	if f.Secret != "" {
		what += " " + f.Secret
	}
	return fmt.Sprintf("%s (%s) in %s at %d, %d bytes", what, f.Transform, f.Place, f.Offset, f.Length)
}

// FoundError ends a stream in which something was found that must not pass.
type FoundError struct{ Finding Finding }

func (e *FoundError) Error() string { return "scan: found " + e.Finding.String() }

// LimitError ends a stream that can't be scanned in bounds.
type LimitError struct {
	Limit string // "work", "depth", "output", "candidates", "decoders"
	Place string
	At    int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("scan: %s at %d: the limit of %s is reached", e.Place, e.At, e.Limit)
}

// DecodeError ends a stream whose content coding is unknown or broken.
type DecodeError struct {
	Coding string
	Place  string
	Err    error
}

func (e *DecodeError) Error() string {
	return fmt.Sprintf("scan: %s: content coding %s: %v", e.Place, e.Coding, e.Err)
}
func (e *DecodeError) Unwrap() error { return e.Err }

// PanicError ends a stream on which a detector failed.
type PanicError struct {
	Place string
	Value any
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("scan: %s: a detector failed: %v", e.Place, e.Value)
}

// ErrClosed is returned by a scanner that was closed.
var ErrClosed = errors.New("scan: the scanner is closed")
