package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/store"
)

// Schemas of the files.
const (
	proposalSchema = "carboy.dev/proposal/v1"
	answerSchema   = "carboy.dev/proposal-answer/v1"
	decidedSchema  = "carboy.dev/proposal-decided/v1"
)

// proposalFile is the form of a Proposal on disk.
type proposalFile struct {
	Schema   string          `json:"schema"`
	ID       ID              `json:"id"`
	Asker    ID              `json:"asker"`
	Bottle   string          `json:"bottle"`
	Run      store.ID        `json:"run,omitempty"`
	Who      string          `json:"who,omitempty"`
	Kind     Kind            `json:"kind"`
	Digest   Digest          `json:"digest"`
	Payload  json.RawMessage `json:"payload"`
	Why      string          `json:"why,omitempty"`
	Tool     string          `json:"tool,omitempty"`
	Created  time.Time       `json:"created"`
	Expires  time.Time       `json:"expires"`
	Deadline deadline        `json:"deadline"`
}

// answerFile is the form of an Answer on disk.
type answerFile struct {
	Schema string `json:"schema"`
	Answer
	Kind    Kind            `json:"kind"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// decidedFile is the form of an archived Entry on disk.
type decidedFile struct {
	Schema   string       `json:"schema"`
	Proposal proposalFile `json:"proposal"`
	Answer   answerFile   `json:"answer"`
	Effect   string       `json:"effect,omitempty"`
}

// strict decodes one JSON value without unknown fields.
func strict(data []byte, v any) error {
	if !utf8.Valid(data) {
		return errors.New("is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("holds more than one JSON value")
	}
	return nil
}

func (p Proposal) file() (proposalFile, error) {
	payload, err := encode(p.Payload)
	return proposalFile{
		Schema: proposalSchema, ID: p.ID, Asker: p.asker, Bottle: p.Bottle, Run: p.Run, Who: p.Who, Kind: p.Kind, Digest: p.Digest,
		Payload: payload, Why: p.Why, Tool: p.Tool, Created: p.Created, Expires: p.Expires, Deadline: p.deadline,
	}, err
}

// parseProposal decodes the proposal id.
func parseProposal(id ID, data []byte) (Proposal, error) {
	var f proposalFile
	if err := strict(data, &f); err != nil {
		return Proposal{}, err
	}
	return f.proposal(id)
}

func (f proposalFile) proposal(id ID) (Proposal, error) {
	switch {
	case f.Schema != proposalSchema:
		return Proposal{}, fmt.Errorf("field \"schema\" is %.60q, this carboy reads %q", f.Schema, proposalSchema)
	case f.ID != id:
		return Proposal{}, fmt.Errorf("field \"id\" is %.60q", f.ID)
	case !validID(string(f.Asker)):
		return Proposal{}, fmt.Errorf("field \"asker\" is %.60q", f.Asker)
	case !validBottle(f.Bottle):
		return Proposal{}, fmt.Errorf("field \"bottle\" is %.60q", f.Bottle)
	case f.Run != "" && !validID(string(f.Run)):
		return Proposal{}, fmt.Errorf("field \"run\" is %.60q", f.Run)
	}
	if err := bounds(field{"why", f.Why, maxWhy}, field{"tool", f.Tool, maxTool}, field{"who", f.Who, maxWho}); err != nil {
		return Proposal{}, err
	}
	payload, err := decode(f.Kind, f.Payload)
	if err != nil {
		return Proposal{}, err
	}
	digest, err := DigestOf(f.Bottle, payload)
	if err != nil {
		return Proposal{}, err
	}
	if digest != f.Digest {
		return Proposal{}, fmt.Errorf("field \"digest\" is not that of the payload")
	}
	return Proposal{
		ID: f.ID, Bottle: f.Bottle, Run: f.Run, Who: f.Who, Kind: f.Kind, Payload: payload, Digest: digest, Why: f.Why, Tool: f.Tool,
		Created: f.Created, Expires: f.Expires, asker: f.Asker, deadline: f.Deadline,
	}, nil
}

const maxTool = 64

func validBottle(s string) bool {
	return s != "" && len(s) <= 64 && s[0] != '-' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func (a Answer) file(k Kind) (f answerFile, err error) {
	f = answerFile{Schema: answerSchema, Answer: a, Kind: k}
	if a.Payload != nil {
		f.Payload, err = encode(a.Payload)
	}
	return f, err
}

// parseAnswer decodes the answer to p. An answer to another proposal or another payload is
// an error.
func parseAnswer(p Proposal, data []byte) (Answer, error) {
	var f answerFile
	if err := strict(data, &f); err != nil {
		return Answer{}, err
	}
	return f.answer(p)
}

func (f answerFile) answer(p Proposal) (Answer, error) {
	a := f.Answer
	switch {
	case f.Schema != answerSchema:
		return Answer{}, fmt.Errorf("field \"schema\" is %.60q, this carboy reads %q", f.Schema, answerSchema)
	case a.ID != p.ID:
		return Answer{}, fmt.Errorf("field \"id\" is %.60q: the answer to another proposal", a.ID)
	case a.Digest != p.Digest:
		return Answer{}, ErrDigest
	case f.Kind != p.Kind:
		return Answer{}, fmt.Errorf("field \"kind\" is %.60q", f.Kind)
	case !slices.Contains([]Verdict{Approved, Modified, Rejected, Expired, Withdrawn}, a.Verdict):
		return Answer{}, fmt.Errorf("field \"verdict\" is %.60q", a.Verdict)
	case !slices.Contains([]Channel{ChannelTUI, ChannelWeb, ChannelCLI, ChannelPolicy, channelQueue}, a.By.Channel):
		return Answer{}, fmt.Errorf("field \"by.channel\" is %.60q", a.By.Channel)
	case a.Verdict.Allows() && a.By.Channel == channelQueue:
		return Answer{}, errors.New("nobody approved")
	case (a.By.Channel == ChannelPolicy) != (a.By.Policy != nil):
		return Answer{}, errors.New("field \"by.policy\" and the channel do not agree")
	case (a.Verdict == Modified) != (len(f.Payload) > 0):
		return Answer{}, errors.New("field \"payload\" and the verdict do not agree")
	}
	if err := checkSigned(p.Payload, a.Verdict); err != nil {
		return Answer{}, err
	}
	if err := bounds(field{"note", a.Note, MaxNote}, field{"by.user", a.By.User, 256}); err != nil {
		return Answer{}, err
	}
	if a.Verdict != Modified {
		return a, nil
	}
	if _, ok := p.Payload.(Editable); !ok {
		return Answer{}, ErrNotModifiable
	}
	payload, err := decode(f.Kind, f.Payload)
	if err != nil {
		return Answer{}, fmt.Errorf("field \"payload\": %w", err)
	}
	digest, err := DigestOf(p.Bottle, payload)
	if err != nil {
		return Answer{}, err
	}
	if digest != a.PayloadDigest {
		return Answer{}, errors.New("field \"payload_digest\" is not that of the payload")
	}
	a.Payload = payload
	return a, nil
}

// parseDecided decodes the archived proposal id.
func parseDecided(id ID, data []byte) (Entry, error) {
	var f decidedFile
	if err := strict(data, &f); err != nil {
		return Entry{}, err
	}
	if f.Schema != decidedSchema {
		return Entry{}, fmt.Errorf("field \"schema\" is %.60q, this carboy reads %q", f.Schema, decidedSchema)
	}
	p, err := f.Proposal.proposal(id)
	if err != nil {
		return Entry{}, fmt.Errorf("proposal: %w", err)
	}
	a, err := f.Answer.answer(p)
	if err != nil {
		return Entry{}, fmt.Errorf("answer: %w", err)
	}
	return Entry{Proposal: p, Answer: &a, Effect: f.Effect}, bounds(field{"effect", f.Effect, maxEffect})
}

// maxEffect bounds the error text of an effect, in bytes.
const maxEffect = 1024

func (e Entry) file() ([]byte, error) {
	p, err := e.Proposal.file()
	if err != nil {
		return nil, err
	}
	a, err := e.Answer.file(e.Proposal.Kind)
	if err != nil {
		return nil, err
	}
	return marshal(decidedFile{decidedSchema, p, a, e.Effect})
}
