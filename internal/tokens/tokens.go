// Package tokens reads the token usage from the answers of model APIs, while they pass
// to an agent.
//
// It tells people what a task cost. Don't decide anything by it: upstream can report
// any number, and an answer of an unknown form reports none. It keeps at most 16 KiB
// of an answer at a time, and neither changes nor delays it.
//
// It knows the forms of Anthropic, OpenAI (chat completions and responses) and Gemini,
// as one document, as several, and as server-sent events. Start reading at [Reader].
package tokens

import (
	"encoding/json"
	"mime"
	"strings"
)

// Usage is the token usage of an answer.
type Usage struct {
	Input  int64 `json:"input"`  // all that the model read
	Cached int64 `json:"cached"` // the part of Input that came from a cache
	Output int64 `json:"output"` // including its reasoning
}

// most is the largest number of tokens that is believed for one answer.
const most = 1 << 30

// maxUsage bounds the size of a usage object, in bytes.
const maxUsage = 16 << 10

// Reader reads one answer. Its methods must not be called concurrently.
type Reader struct {
	events bool // server-sent events, else documents
	line   int  // for events: how many bytes of "data:" have matched, or otherLine
	doc    document
	usage  Usage
	told   bool
}

// New returns a reader for an answer of a media type, or nil if such answers report no
// usage.
func New(contentType string) *Reader {
	t, _, _ := mime.ParseMediaType(contentType)
	switch {
	case t == "text/event-stream":
		return &Reader{events: true}
	case strings.HasPrefix(t, "application/") && strings.HasSuffix(t, "json"):
		return &Reader{}
	}
	return nil
}

// Usage returns the usage so far; ok is false if none was reported.
func (r *Reader) Usage() (u Usage, ok bool) {
	if r == nil {
		return Usage{}, false
	}
	return r.usage, r.told
}

const (
	dataField = "data:"
	otherLine = -1
)

// Write reads the next bytes of the answer. A nil Reader reads nothing.
func (r *Reader) Write(p []byte) {
	switch {
	case r == nil:
	case !r.events:
		r.documents(p)
	default:
		for len(p) > 0 {
			p = p[r.event(p):]
		}
	}
}

func (r *Reader) documents(p []byte) {
	for len(p) > 0 {
		n, whole := r.doc.next(p)
		p = p[n:]
		if whole != nil {
			r.add(whole)
		}
	}
}

// event reads at most up to the end of a line, and returns the number of bytes.
func (r *Reader) event(p []byte) int {
	for i, c := range p {
		switch {
		case c == '\n':
			r.line, r.doc = 0, document{held: r.doc.held[:0]}
			return i + 1
		case r.line == otherLine:
		case r.line == len(dataField):
			end := i
			for end < len(p) && p[end] != '\n' {
				end++
			}
			r.documents(p[i:end])
			return end
		case c == dataField[r.line]:
			r.line++
		default:
			r.line = otherLine
		}
	}
	return len(p)
}

// report holds the fields of all vendors' usage objects.
type report struct {
	Input    int64  `json:"input_tokens"`
	Output   int64  `json:"output_tokens"`
	Written  int64  `json:"cache_creation_input_tokens"` // in addition to Input
	Read     int64  `json:"cache_read_input_tokens"`     // in addition to Input
	InputOf  cached `json:"input_tokens_details"`        // part of Input
	Prompt   int64  `json:"prompt_tokens"`
	PromptOf cached `json:"prompt_tokens_details"` // part of Prompt
	Complete int64  `json:"completion_tokens"`

	GeminiPrompt   int64 `json:"promptTokenCount"`
	GeminiTools    int64 `json:"toolUsePromptTokenCount"` // in addition to GeminiPrompt
	GeminiCached   int64 `json:"cachedContentTokenCount"` // part of GeminiPrompt
	GeminiOutput   int64 `json:"candidatesTokenCount"`
	GeminiThoughts int64 `json:"thoughtsTokenCount"` // in addition to GeminiOutput
}

type cached struct {
	Tokens int64 `json:"cached_tokens"`
}

// add adds a usage object. Those of a stream are cumulative, and may leave out earlier
// fields.
func (r *Reader) add(object []byte) {
	var s report
	if json.Unmarshal(object, &s) != nil {
		return
	}
	all := []int64{
		s.Input, s.Output, s.Written, s.Read, s.InputOf.Tokens, s.Prompt, s.PromptOf.Tokens, s.Complete,
		s.GeminiPrompt, s.GeminiTools, s.GeminiCached, s.GeminiOutput, s.GeminiThoughts,
	}
	var sum int64
	for _, n := range all {
		if n < 0 || n > most {
			return
		}
		sum += n
	}
	if sum == 0 {
		return
	}
	u := Usage{
		Input:  s.Input + s.Written + s.Read + s.Prompt + s.GeminiPrompt + s.GeminiTools,
		Cached: s.Read + s.InputOf.Tokens + s.PromptOf.Tokens + s.GeminiCached,
		Output: s.Output + s.Complete + s.GeminiOutput + s.GeminiThoughts,
	}
	r.told = true
	r.usage = Usage{max(r.usage.Input, u.Input), max(r.usage.Cached, u.Cached), max(r.usage.Output, u.Output)}
}
