package tokens

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

const (
	stream = "text/event-stream; charset=utf-8"
	plain  = "application/json"
)

var answers = []struct {
	name, mediaType, text string
	want                  Usage
}{
	{"anthropic", plain, `{"type":"message","content":[{"type":"tool_use","input":{"usage":{"input_tokens":9}}}],"usage":{"input_tokens":3,"cache_creation_input_tokens":20,"cache_read_input_tokens":100,"output_tokens":7,"server_tool_use":null}}`, Usage{123, 100, 7}},
	{"anthropic, streamed", stream, "event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\r\n\r\n" +
		": usage\nevent: content_block_delta\ndata: {\"delta\":{\"text\":\"\\\"usage\\\":{\\\"input_tokens\\\":900}\"}}\n\ndata:{\"type\":\"message_delta\",\"usage\":{\"output_tokens\":15}}\n\n", Usage{7, 4, 15}},
	{"chat", plain, `{"choices":[{"message":{"content":"}{\\"}}],"usage":{"prompt_tokens":50,"prompt_tokens_details":{"cached_tokens":32},"completion_tokens":8,"total_tokens":58}}`, Usage{50, 32, 8}},
	{"chat, streamed", stream, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":8}}\n\ndata: [DONE]\n\n", Usage{50, 0, 8}},
	{"responses", stream, "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"usage\":{\"input_tokens\":1000}}],\"usage\":{\"input_tokens\":70,\"input_tokens_details\":{\"cached_tokens\":64},\"output_tokens\":9,\"output_tokens_details\":{\"reasoning_tokens\":5}},\"user\":null}}\n\n", Usage{70, 64, 9}},
	{"gemini", plain, `[{"usageMetadata":{"promptTokenCount":40,"totalTokenCount":40}},` + "\n" + `{"usageMetadata":{"promptTokenCount":40,"cachedContentTokenCount":30,"candidatesTokenCount":6,"thoughtsTokenCount":11}}]`, Usage{40, 30, 17}},
	{"gemini, streamed", stream, "data: {\"response\":{\"usageMetadata\":{\"promptTokenCount\":4,\"candidatesTokenCount\":2}}}\n\n", Usage{4, 0, 2}},
	{"several documents", "application/x-ndjson", "{\"usage\":{\"prompt_tokens\":1}}\n{\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n", Usage{5, 0, 2}},
	{"among long things", plain, `{"a":"` + strings.Repeat(`\"{`, 50_000) + `","b":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `,"usage":{"input_tokens":2,"output_tokens":1}}`, Usage{2, 0, 1}},
}

// TestAnswers: the usage in each vendor's answers is read, however they are split.
func TestAnswers(t *testing.T) {
	for _, x := range answers {
		for _, size := range []int{1, 7, 4096, len(x.text)} {
			r := New(x.mediaType)
			for b := range cut(x.text, size) {
				r.Write(b)
			}
			if u, ok := r.Usage(); !ok || u != x.want {
				t.Errorf("%s, by %d bytes: %+v %v", x.name, size, u, ok)
			}
		}
	}
}

func cut(s string, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(s) > 0 {
			n := min(n, len(s))
			if !yield([]byte(s[:n])) {
				return
			}
			s = s[n:]
		}
	}
}

// TestNothingSaid: answers without usage, or with impossible numbers, count for
// nothing.
func TestNothingSaid(t *testing.T) {
	for _, x := range []string{
		"", "null", `{"usage":null}`, `{"usage":{}}`, `{"usage":[{"input_tokens":1}]}`, `{"usage":{"input_tokens":-1,"output_tokens":5}}`,
		`{"usage":{"input_tokens":1e300}}`, `{"usage":{"input_tokens":9223372036854775807}}`, `{"usage":{"input_tokens":1073741825}}`, `{"usage":{"input_tokens":"7"}}`,
		`{"usage":{"input_tokens":5`, `{"x":{"usage":{"input_tokens":5}}}`, `{"message":{"message":{"usage":{"input_tokens":5}}}}`, `{"message":[{"usage":{"input_tokens":5}}]}`,
		`[[{"usage":{"input_tokens":5}}]]`, `{"a":"usage","b":{"input_tokens":5}}`, `{"usage":1,"b":{"input_tokens":5}}`, `{"\u0075sage":{"input_tokens":5}}`,
		`"usage":{"input_tokens":5}`, `}}}]]]{"x":[{"usage":{"input_tokens":5}}]}`,
		`{"usage":{"x":"` + strings.Repeat("x", maxUsage) + `","input_tokens":5}}`,
	} {
		r := New(plain)
		r.Write([]byte(x))
		if u, ok := r.Usage(); ok || u != (Usage{}) {
			t.Errorf("%.80s: %+v", x, u)
		}
	}
	for _, x := range []string{"data: {\"usage\":\ndata: {\"input_tokens\":5}}\n", "event: {\"usage\":{\"input_tokens\":5}}\n", " data: {\"usage\":{\"input_tokens\":5}}\n", "{\"usage\":{\"input_tokens\":5}}\n"} {
		r := New(stream)
		r.Write([]byte(x))
		if u, ok := r.Usage(); ok {
			t.Errorf("%q: %+v", x, u)
		}
	}
	for _, m := range []string{"", "text/html", "application/vnd.amazon.eventstream", "image/json", "a/b/c"} {
		if New(m) != nil {
			t.Errorf("%q is read", m)
		}
	}
	var none *Reader
	none.Write([]byte("x"))
	if _, ok := none.Usage(); ok {
		t.Error("nobody read something")
	}
}

// TestHeld: whatever is read, little of it is kept.
func TestHeld(t *testing.T) {
	for _, x := range []string{`{"usage":{"a":"`, `{"`, "data: {\"usage\":{\"a\":\"", "data", `[`, `{"a":`} {
		for _, m := range []string{plain, stream} {
			r := New(m)
			r.Write([]byte(x))
			rest := []byte(strings.Repeat(x, 100))
			if n := testing.AllocsPerRun(50, func() { r.Write(rest) }); n > 1 {
				t.Errorf("%s %q: %v allocations", m, x, n)
			}
			if cap(r.doc.held) > 2*maxUsage {
				t.Errorf("%s %q: %d bytes are held", m, x, cap(r.doc.held))
			}
		}
	}
}

// FuzzReader: splitting an answer changes nothing, and no usage is invented.
func FuzzReader(f *testing.F) {
	for _, x := range answers {
		if len(x.text) < 4096 {
			f.Add([]byte(x.text), x.mediaType == stream, 3)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, events bool, size int) {
		m := plain
		if events {
			m = stream
		}
		whole, pieces := New(m), New(m)
		whole.Write(text)
		for b := range cut(string(text), max(1, size)) {
			pieces.Write(b)
		}
		u, ok := whole.Usage()
		if p, pok := pieces.Usage(); p != u || pok != ok {
			t.Fatalf("%+v %v, in pieces %+v %v", u, ok, p, pok)
		}
		if u.Input < 0 || u.Cached < 0 || u.Output < 0 || u.Input > 6*most {
			t.Fatalf("%+v", u)
		}
		if !events && ok && json.Valid(text) && !bytes.Contains(text, []byte(`"usage`)) {
			t.Fatalf("%+v was read of %s", u, text)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	text := []byte("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"" + strings.Repeat("words ", 10) + "\"}}\n\n")
	r := New(stream)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		r.Write(text)
	}
}
