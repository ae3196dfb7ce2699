package supervise

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sort"

	"github.com/carboy/carboy/internal/safetext"
)

// Kind names a kind of proposal, such as "egress-allow".
type Kind string

// Payload is the exact content of a proposal. Each kind has one type, a struct passed by
// value that JSON can hold, and registers it with register.
type Payload interface {
	Kind() Kind
	// Check returns an error if the payload is not valid, or a field exceeds its bounds. A
	// payload that fails Check never enters the queue.
	Check() error
	// Bare returns the payload without the fields that are only shown. The digest covers
	// the bare payload, and effects get nothing else.
	Bare() Payload
	// Title returns the payload's line in a list.
	Title() string
	// Warn returns a reason to think twice before approving, or "".
	Warn() string
	// Describe adds to the Detail all that a person needs to decide, the exact change
	// first.
	Describe(*Detail)
}

// Editable is a Payload that a person may change and then approve.
type Editable interface {
	Payload
	// EditText returns the editable part, as YAML.
	EditText() string
	// Edit returns a new payload from an edited text. file names the text in errors, which
	// are a document.Error.
	Edit(file string, text []byte) (Payload, error)
}

// Signed is a Payload that only a signature, made elsewhere, approves. The queue shows it
// and can reject it, and refuses an answer that approves it.
type Signed interface {
	Payload
	// HowToSign returns the shell command that signs. It may hold file names.
	HowToSign() string
}

// checkSigned returns an error if v approves a [Signed] payload.
func checkSigned(p Payload, v Verdict) error {
	if s, ok := p.(Signed); ok && v.Allows() {
		return fmt.Errorf("%s: %w: %s", p.Kind(), ErrSigned, safetext.String(s.HowToSign(), 1<<10))
	}
	return nil
}

// Effect applies an approved payload. Only an approving answer makes an Approval.
type Effect[P Payload] interface {
	Apply(context.Context, Approval[P]) error
}

// EffectFunc is a function that implements [Effect].
type EffectFunc[P Payload] func(context.Context, Approval[P]) error

// Apply calls f.
func (f EffectFunc[P]) Apply(ctx context.Context, a Approval[P]) error { return f(ctx, a) }

// kinds maps the name of each registered kind to its type.
var kinds = map[Kind]kindType{}

// kindType is the payload type of a kind.
type kindType struct {
	zero   Payload
	decode func([]byte) (Payload, error)
}

// register registers the kind of payloads P. Call it from init. It panics if the name is
// invalid or taken.
func register[P Payload]() {
	var zero P
	k := zero.Kind()
	if !validKind(k) {
		panic(fmt.Sprintf("supervise: %q is not a valid name of a kind", k))
	}
	if _, taken := kinds[k]; taken {
		panic(fmt.Sprintf("supervise: kind %s is registered twice", k))
	}
	kinds[k] = kindType{zero, func(data []byte) (Payload, error) {
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

// Kinds returns the names of all kinds, sorted.
func Kinds() []Kind {
	out := make([]Kind, 0, len(kinds))
	for k := range kinds {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool { return out[i] < out[j] })
	return out
}

// decode decodes a payload of kind k, and refuses unknown fields.
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

// encode returns the JSON of a payload. Digests depend on it.
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

// DigestOf returns the digest of p in a bottle. It does not cover the fields that are only
// shown.
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
