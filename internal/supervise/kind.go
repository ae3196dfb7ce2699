package supervise

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"github.com/carboy/carboy/internal/visible"
)

// Kind names a kind of proposal, as in "egress-allow".
type Kind string

// A Payload is what exactly is proposed. Each kind has one type, a struct by value
// that JSON can hold, and makes it known with register.
type Payload interface {
	Kind() Kind
	// Check reports what is wrong with it, and keeps every field within its bounds.
	// Payloads that fail it are never in the queue.
	Check() error
	// Bare is the payload without what is only shown beside it. The digest is about
	// this, and effects get nothing else.
	Bare() Payload
	// Title is the line by which a person knows it in a list.
	Title() string
	// Warn says why to think twice before one approves; "" when nothing does.
	Warn() string
	// Describe says all that a person needs to decide: the exact change first.
	Describe(*Detail)
}

// Editable is a Payload that may be approved in another form than proposed.
type Editable interface {
	Payload
	// EditText is what can be edited, as YAML.
	EditText() string
	// Edit makes the payload anew from a text. file names it in errors, which are a
	// document.Error.
	Edit(file string, text []byte) (Payload, error)
}

// Signed is a Payload that a signature approves, elsewhere. The queue shows what waits,
// and can reject it; an answer that approves it is none.
type Signed interface {
	Payload
	// HowToSign is the command that does, for a shell. It may hold names of files.
	HowToSign() string
}

// checkSigned refuses to approve what the queue does not decide.
func checkSigned(p Payload, v Verdict) error {
	if s, ok := p.(Signed); ok && v.Allows() {
		return fmt.Errorf("%s: %w: %s", p.Kind(), ErrSigned, visible.String(s.HowToSign(), 1<<10))
	}
	return nil
}

// Effect carries out what was approved. It takes an Approval, which only an answer
// that approves makes.
type Effect[P Payload] interface {
	Carry(context.Context, Approval[P]) error
}

// EffectFunc is a function as an Effect.
type EffectFunc[P Payload] func(context.Context, Approval[P]) error

// Carry calls f.
func (f EffectFunc[P]) Carry(ctx context.Context, a Approval[P]) error { return f(ctx, a) }

// kinds are those that are known, by name.
var kinds = map[Kind]known{}

// known is a registered kind.
type known struct {
	zero   Payload
	decode func([]byte) (Payload, error)
}

// register makes a kind known. It is for init functions, and panics when the name is
// taken or none.
func register[P Payload]() {
	var zero P
	k := zero.Kind()
	if !validKind(k) {
		panic(fmt.Sprintf("supervise: %q is no name for a kind", k))
	}
	if _, taken := kinds[k]; taken {
		panic(fmt.Sprintf("supervise: kind %s is registered twice", k))
	}
	kinds[k] = known{zero, func(data []byte) (Payload, error) {
		var p P
		if err := strict(data, &p); err != nil {
			return nil, err
		}
		return p, p.Check()
	}}
}

func validKind(k Kind) bool {
	if k == "" || len(k) > 40 || k[0] < 'a' || k[0] > 'z' {
		return false
	}
	return !slices.ContainsFunc([]byte(k), func(c byte) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' })
}

// Kinds are the names of all kinds, sorted.
func Kinds() []Kind {
	out := make([]Kind, 0, len(kinds))
	for k := range kinds {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// decode reads a payload of a kind, strictly.
func decode(k Kind, data []byte) (Payload, error) {
	f := kinds[k].decode
	if f == nil {
		return nil, fmt.Errorf("kind %.60q is not known to this carboy", k)
	}
	if len(data) > MaxPayload {
		return nil, fmt.Errorf("payload of %d bytes, at most %d", len(data), MaxPayload)
	}
	return f(data)
}

// encode is the one way to write a payload.
func encode(p Payload) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		return nil, err
	}
	if buf.Len() > MaxPayload {
		return nil, fmt.Errorf("payload of %d bytes, at most %d", buf.Len(), MaxPayload)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// DigestOf names what a payload would do to a bottle.
func DigestOf(bottle string, p Payload) (Digest, error) {
	data, err := encode(p.Bare())
	if err != nil {
		return Digest{}, err
	}
	h := sha256.New()
	// No part holds a NUL: names have none, and JSON escapes it.
	fmt.Fprintf(h, "carboy.dev/proposal/v1\x00%s\x00%s\x00", bottle, p.Kind())
	h.Write(data)
	return Digest(h.Sum(nil)), nil
}
