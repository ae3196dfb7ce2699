package supervise

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/secret"
)

// kindEgressTokenAllow asks to let a value pass that a detector held back.
const kindEgressTokenAllow Kind = "egress-token-allow"

// EgressTokenAllow lets one value pass to one host, as long as the bottle lives. It does
// not hold the value itself.
type EgressTokenAllow struct {
	// Value is the [Fingerprint] of the value, and Length its length in bytes.
	Value  string `json:"value"`
	Length int    `json:"length"`
	// Shown is a masked form of the value, for people.
	Shown string `json:"shown,omitempty"`
	// Rule is the detector's rule that found the value, and Place where in the request it
	// was.
	Rule  string `json:"rule"`
	Place string `json:"place,omitempty"`
	// Host is the destination, HOST or HOST:PORT. Route is the route that allows the host.
	Host  string `json:"host"`
	Route string `json:"route,omitempty"`
	// Action is TokenAllow, or TokenRedact, which sends the request without the value.
	Action TokenAction `json:"action"`
	// Method and Path are those of the waiting request. They are only shown.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
}

// ownCredential is the rule of a field of a body whose name says that it is a credential
// of the program's own. Value and Length are then of the name.
const ownCredential = "own-credential"

// TokenAction says what to do with a value.
type TokenAction string

// The actions.
const (
	TokenAllow  TokenAction = "allow"
	TokenRedact TokenAction = "redact"
)

// EgressTokenAllowEffect stores the decision for the bottle.
type EgressTokenAllowEffect = Effect[EgressTokenAllow]

func init() { register[EgressTokenAllow]() }

// Fingerprint returns a name for a value in one bottle: HMAC-SHA256 under a key that only
// the bottle's carboy has. From a plain digest one could find a short value by trying.
func Fingerprint(key [32]byte, v secret.Value) string {
	m := hmac.New(sha256.New, key[:])
	v.UnsafeReveal(func(b []byte) { m.Write(b) })
	return hex.EncodeToString(m.Sum(nil))
}

// Kind implements Payload.
func (EgressTokenAllow) Kind() Kind { return kindEgressTokenAllow }

// Check implements Payload.
func (p EgressTokenAllow) Check() error {
	if b, err := hex.DecodeString(p.Value); err != nil || len(b) != sha256.Size {
		return errors.New("field \"value\": is no fingerprint of 64 hexadecimal digits")
	}
	if p.Length < 1 || p.Rule == "" || p.Host == "" {
		return errors.New("one of the fields \"length\", \"rule\" and \"host\" is missing")
	}
	if p.Action != TokenAllow && p.Action != TokenRedact {
		return fmt.Errorf("field \"action\" is %.40q, want %s or %s", p.Action, TokenAllow, TokenRedact)
	}
	return bounds(field{"shown", p.Shown, 256}, field{"rule", p.Rule, 128}, field{"place", p.Place, 256}, field{"host", p.Host, 300},
		field{"route", p.Route, 1024}, field{"method", p.Method, 64}, field{"path", p.Path, 4096})
}

// Bare implements Payload.
func (p EgressTokenAllow) Bare() Payload {
	p.Shown, p.Place, p.Method, p.Path = "", "", "", ""
	return p
}

// Title implements Payload.
func (p EgressTokenAllow) Title() string {
	if p.Rule == ownCredential && p.Action == TokenAllow {
		return "send the program's own credential, beside the route's, to " + p.Host
	}
	return fmt.Sprintf("%s a value (%s) to %s", map[TokenAction]string{TokenAllow: "send", TokenRedact: "mask"}[p.Action], p.Rule, p.Host)
}

// Warn implements Payload.
func (p EgressTokenAllow) Warn() string {
	if p.Action == TokenRedact {
		return ""
	}
	return "the value leaves for " + p.Host + " and cannot be taken back"
}

// Describe implements Payload.
func (p EgressTokenAllow) Describe(d *Detail) {
	d.section("value that is held")
	d.field("goes to", p.Host)
	d.field("request", join(p.Method, p.Path))
	d.field("found in", p.Place)
	d.field("found by", p.Rule)
	d.field("looks like", p.Shown)
	may := "this field, with any value, may go to this host for the bottle's life"
	if p.Rule != ownCredential {
		may = "this value may go to this host for the bottle's life"
		d.field("length", fmt.Sprintf("%d bytes", p.Length))
	}
	d.field("fingerprint", p.Value)
	d.field("route", p.Route)
	d.field("if approved", map[TokenAction]string{
		TokenAllow:  may,
		TokenRedact: "the request goes on with the value masked",
	}[p.Action])
}

// EditText implements Editable.
func (p EgressTokenAllow) EditText() string {
	return "action: " + string(p.Action) + " # allow or redact\n"
}

// Edit implements Editable.
func (p EgressTokenAllow) Edit(file string, text []byte) (Payload, error) {
	doc, v, err := document.Parse(file, text)
	if err != nil {
		return nil, err
	}
	p.Action = TokenAction(v.Mapping("action").Need("action").OneOf(string(TokenAllow), string(TokenRedact)))
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return p, p.Check()
}

// Subjects implements Ruled.
func (p EgressTokenAllow) Subjects() []Subject {
	return []Subject{{Host: p.Host, Rule: p.Rule}}
}

// Needs implements Ruled.
func (EgressTokenAllow) Needs() []string { return []string{"host", "rule"} }
