// Package sessiontest has the recorded sessions of real agents with a stand-in for their
// vendors. Tests replay them: nothing in them is a secret, so nothing may be found.
//
// Start reading at [All]. internal/agenttest records them.
package sessiontest

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
)

// Key stands in the recordings for the key of the vendor.
const Key = "carboy-placeholder-of-a-recorded-session-0000"

// Session is one agent's session.
type Session struct {
	Name      string // of the agent
	Exchanges []*Exchange
}

// Exchange is a request and its answer.
type Exchange struct {
	Method string      `json:"method"`
	Host   string      `json:"host"`
	Path   string      `json:"path"` // with the query
	Header http.Header `json:"header"`
	Body   Text        `json:"body,omitempty"`

	Status       int         `json:"status"`
	AnswerHeader http.Header `json:"answer_header"`
	Answer       Text        `json:"answer,omitempty"`
	// Messages holds the messages of a WebSocket, in order.
	Messages []Message `json:"messages,omitempty"`
}

// Message is a text message of a WebSocket.
type Message struct {
	FromServer bool `json:"from_server"`
	Text       Text `json:"text"`
}

// Text is a body. JSON has it as a string if it is UTF-8.
type Text []byte

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal([][]byte{t})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = Text(s)
		return nil
	}
	var raw [][]byte
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*t = bytes.Join(raw, nil)
	return nil
}

//go:embed testdata
var files embed.FS

const suffix = ".jsonl.zst"

// All returns the recorded sessions.
func All(t testing.TB) (out []Session) {
	t.Helper()
	entries, err := files.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok {
			continue
		}
		b, err := files.ReadFile("testdata/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		s := Session{Name: name}
		if s.Exchanges, err = decode(b); err != nil {
			t.Fatalf("%s: %v", e.Name(), err)
		}
		out = append(out, s)
	}
	return out
}

func decode(b []byte) (out []*Exchange, err error) {
	z, err := zstd.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	d := json.NewDecoder(z)
	for {
		x := new(Exchange)
		if err := d.Decode(x); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
}

// Write writes a session as NAME.jsonl.zst in dir, and returns its size in bytes.
func Write(dir string, s Session) (int, error) {
	var b bytes.Buffer
	// What an agent sends again is far away from where it was first.
	z, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return 0, err
	}
	e := json.NewEncoder(z)
	for _, x := range s.Exchanges {
		if closed[s.Name] {
			copied := *x
			copied.Body = withoutWords(x.Body)
			x = &copied
		}
		if err := e.Encode(x); err != nil {
			return 0, err
		}
	}
	if err := z.Close(); err != nil {
		return 0, err
	}
	return b.Len(), os.WriteFile(path.Join(dir, s.Name+suffix), b.Bytes(), 0o644)
}
