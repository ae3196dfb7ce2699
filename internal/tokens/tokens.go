// Package tokens reads, from answers of model APIs on their way to an agent, how many
// tokens the model took.
//
// What it reads is what upstream says, for people who want to know what a task cost.
// Nothing may be decided by it: whoever answers can say anything, and an answer of
// another form says nothing. It holds at most 16 KiB of an answer at a time, whatever
// comes, and neither changes nor delays it.
//
// It knows the forms of Anthropic, OpenAI (chat completions and responses) and Gemini,
// as one document, as several, and as server-sent events. Start reading at [Reader].
package tokens

import (
	"encoding/json"
	"mime"
	"strings"
)

// Usage is what one answer took.
type Usage struct {
	Input  int64 `json:"input"`  // all that the model read
	Cached int64 `json:"cached"` // of that, what came from a cache
	Output int64 `json:"output"` // with what it thought
}

// Most is the largest number that is believed of one answer, in tokens.
const Most = 1 << 30

// maxUsage bounds what is held of an answer, in bytes.
const maxUsage = 16 << 10

// Reader reads one answer. Its methods must not be called concurrently.
type Reader struct {
	events bool // else documents
	line   int  // of events: how much of "data:" the line has, or otherLine
	doc    document
	usage  Usage
	told   bool
}

// New is a reader for an answer of that media type; nil: none is read of such.
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

// Usage is what was read so far; ok is false while nothing was said.
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

// event reads at most to the end of a line, and says how far.
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

// said are the names by which vendors say it.
type said struct {
	Input    int64  `json:"input_tokens"`
	Output   int64  `json:"output_tokens"`
	Written  int64  `json:"cache_creation_input_tokens"` // beside Input
	Read     int64  `json:"cache_read_input_tokens"`     // beside Input
	InputOf  cached `json:"input_tokens_details"`        // within Input
	Prompt   int64  `json:"prompt_tokens"`
	PromptOf cached `json:"prompt_tokens_details"` // within Prompt
	Complete int64  `json:"completion_tokens"`

	GeminiPrompt   int64 `json:"promptTokenCount"`
	GeminiTools    int64 `json:"toolUsePromptTokenCount"` // beside it
	GeminiCached   int64 `json:"cachedContentTokenCount"` // within it
	GeminiOutput   int64 `json:"candidatesTokenCount"`
	GeminiThoughts int64 `json:"thoughtsTokenCount"` // beside it
}

type cached struct {
	Tokens int64 `json:"cached_tokens"`
}

// add takes what one object says. Those of a stream say how much it is so far, and may
// leave out what was said before.
func (r *Reader) add(object []byte) {
	var s said
	if json.Unmarshal(object, &s) != nil {
		return
	}
	all := []int64{
		s.Input, s.Output, s.Written, s.Read, s.InputOf.Tokens, s.Prompt, s.PromptOf.Tokens, s.Complete,
		s.GeminiPrompt, s.GeminiTools, s.GeminiCached, s.GeminiOutput, s.GeminiThoughts,
	}
	var sum int64
	for _, n := range all {
		if n < 0 || n > Most {
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
