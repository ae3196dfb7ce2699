package agenttest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// vendors lists the supported APIs.
var vendors = []vendor{
	{isCount, readCount, writeCount},
	{isMessages, readMessages, writeMessages},
	{isResponses, readResponses, writeResponses},
	{isChat, readChat, writeChat},
	{isGemini, readGemini, writeGemini},
}

func post(r *http.Request, suffix string) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, suffix)
}

type object = map[string]any

// What models say beside their calls.
const (
	thoughts   = "**Looking at the project**\n\nThe user wants a change in one file. I should read it first, then run the tests, and say what was done. It's best to keep the rest as it is."
	beforeCall = "I'll look at this first, then I can say more."
)

const (
	hexDigits        = "0123456789abcdef"
	alphanumeric     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	base64Letters    = alphanumeric + "+/"
	base64URLLetters = alphanumeric + "-_"
)

// opaque returns prefix and n letters that look random: a name, or what a vendor has
// encrypted and wants back. The same reply has the same ones.
func (r reply) opaque(prefix string, n int, letters string) string {
	said := r.text
	if r.call != nil {
		said = r.call.tool.name + r.call.text + compact(r.call.args)
	}
	rng := rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, prefix, r.id, r.model, said))))
	b := []byte(prefix)
	for range n {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return string(b)
}

// answerHeader sets the headers that a vendor's answers have.
func answerHeader(h http.Header, host string, n int) {
	id := reply{id: n}
	set := func(pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
	}
	uuid := func(prefix string) string {
		x := id.opaque(prefix, 32, hexDigits)[len(prefix):]
		return x[:8] + "-" + x[8:12] + "-4" + x[13:16] + "-a" + x[17:20] + "-" + x[20:]
	}
	if host != "generativelanguage.googleapis.com" {
		set("Cf-Ray", id.opaque("", 16, hexDigits)+"-FRA", "Cf-Cache-Status", "DYNAMIC", "X-Content-Type-Options", "nosniff", "Strict-Transport-Security", "max-age=31536000; includeSubDomains; preload")
	}
	switch host {
	case "api.anthropic.com":
		set("Request-Id", id.opaque("req_011C", 20, alphanumeric), "Anthropic-Organization-Id", uuid("org"), "Anthropic-Ratelimit-Requests-Limit", "4000",
			"Anthropic-Ratelimit-Requests-Remaining", "3999", "Anthropic-Ratelimit-Requests-Reset", "2026-11-26T12:00:00Z", "Via", "1.1 google", "X-Robots-Tag", "none")
	case "generativelanguage.googleapis.com":
		set("Vary", "Origin, X-Origin, Referer", "Server-Timing", "gfet4t7; dur=1024", "X-Xss-Protection", "0", "X-Frame-Options", "SAMEORIGIN", "Alt-Svc", `h3=":443"; ma=2592000,h3-29=":443"; ma=2592000`)
	default:
		set("X-Request-Id", uuid("req"), "Openai-Organization", id.opaque("user-", 24, alphanumeric), "Openai-Project", id.opaque("proj_", 24, alphanumeric), "Openai-Processing-Ms", "1024",
			"Openai-Version", "2020-10-01", "X-Ratelimit-Remaining-Tokens", "499999", "X-Ratelimit-Reset-Tokens", "6ms", "Alt-Svc", `h3=":443"; ma=86400`)
		h["Set-Cookie"] = []string{
			"__cf_bm=" + id.opaque("", 43, base64URLLetters) + "-1764158400-1.0.1.1-" + id.opaque("b", 128, base64URLLetters) + "; path=/; domain=.api.openai.com; HttpOnly; Secure; SameSite=None",
			"_cfuvid=" + id.opaque("u", 43, base64URLLetters) + "-1764158400000-0.0.1.1-604800000; path=/; domain=.api.openai.com; HttpOnly; Secure; SameSite=None",
		}
	}
}

// texts joins the texts in content, which is a string or a list of parts.
func texts(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) == nil {
		for _, p := range parts {
			s += p.Text
		}
		return s
	}
	return string(raw)
}

// Token counts of Anthropic and Gemini.

func isCount(r *http.Request) bool {
	return post(r, "/messages/count_tokens") || post(r, ":countTokens")
}
func readCount(*http.Request, []byte) (*modelQuery, error) { return &modelQuery{}, nil }
func writeCount(e *events, _ *modelQuery, _ reply) {
	e.whole(object{"input_tokens": 100, "totalTokens": 100})
}

// Anthropic's Messages.

func isMessages(r *http.Request) bool { return post(r, "/v1/messages") }

func readMessages(_ *http.Request, body []byte) (*modelQuery, error) {
	var q struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Name        string `json:"name"`
			InputSchema schema `json:"input_schema"`
		} `json:"tools"`
		OutputConfig json.RawMessage `json:"output_config"`
		Thinking     struct {
			Type    string `json:"type"`
			Display string `json:"display"`
		} `json:"thinking"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := &modelQuery{model: q.Model, stream: q.Stream, wantsJSON: strings.Contains(string(q.OutputConfig), "json_schema")}
	a.thinks, a.hidden = q.Thinking.Type == "enabled" || q.Thinking.Type == "adaptive", q.Thinking.Display == "omitted"
	for _, t := range q.Tools {
		a.tools = append(a.tools, tool{name: t.Name, schema: t.InputSchema})
	}
	for _, m := range q.Messages {
		var blocks []struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		}
		if json.Unmarshal(m.Content, &blocks) != nil {
			continue // a string
		}
		for _, b := range blocks {
			if b.Type == "tool_result" {
				a.results = append(a.results, texts(b.Content))
			}
		}
	}
	return a, nil
}

func writeMessages(e *events, a *modelQuery, r reply) {
	usage := object{
		"input_tokens": 100, "output_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
		"cache_creation": object{"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}, "service_tier": "standard",
	}
	blocks, stop := messageBlocks(a, r)
	message := object{
		"id": r.opaque("msg_01", 22, alphanumeric), "type": "message", "role": "assistant", "model": r.model,
		"content": blocks, "stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
	if !a.stream {
		e.whole(message)
		return
	}
	message["content"], message["stop_reason"] = []any{}, nil
	e.send("message_start", object{"type": "message_start", "message": message})
	e.send("ping", object{"type": "ping"})
	for i, b := range blocks {
		writeBlock(e, i, b)
	}
	e.send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": usage})
	e.send("message_stop", object{"type": "message_stop"})
}

// messageBlocks returns the blocks of an answer, and why it stops.
func messageBlocks(a *modelQuery, r reply) (blocks []object, stop string) {
	if a.thinks {
		thought := thoughts
		if a.hidden {
			thought = ""
		}
		blocks = append(blocks, object{"type": "thinking", "thinking": thought, "signature": r.opaque("Eq", 600, base64Letters)})
	}
	if r.call == nil {
		return append(blocks, object{"type": "text", "text": r.text}), "end_turn"
	}
	return append(blocks, object{"type": "text", "text": beforeCall},
		object{"type": "tool_use", "id": r.opaque("toolu_01", 22, alphanumeric), "name": r.call.tool.name, "input": r.call.args}), "tool_use"
}

// writeBlock streams one block: its beginning without content, and the content in deltas.
func writeBlock(e *events, i int, block object) {
	empty := maps.Clone(block)
	var deltas []object
	in := func(field, kind, as, text string, nothing any) {
		empty[field] = nothing
		for _, p := range pieces(text) {
			deltas = append(deltas, object{"type": kind, as: p})
		}
	}
	switch block["type"] {
	case "thinking":
		if block["thinking"] != "" {
			in("thinking", "thinking_delta", "thinking", block["thinking"].(string), "")
		}
		empty["signature"] = ""
		deltas = append(deltas, object{"type": "signature_delta", "signature": block["signature"]})
	case "tool_use":
		in("input", "input_json_delta", "partial_json", compact(block["input"]), object{})
	default:
		in("text", "text_delta", "text", block["text"].(string), "")
	}
	e.send("content_block_start", object{"type": "content_block_start", "index": i, "content_block": empty})
	for _, d := range deltas {
		e.send("content_block_delta", object{"type": "content_block_delta", "index": i, "delta": d})
	}
	e.send("content_block_stop", object{"type": "content_block_stop", "index": i})
}

// OpenAI's Responses.

func isResponses(r *http.Request) bool { return r.Method == http.MethodPost && isResponsesPath(r) }

// isResponsesPath reports whether r is for Responses. Clients that have signed in use the
// second path.
func isResponsesPath(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/v1/responses") || r.URL.Path == "/backend-api/codex/responses"
}

func readResponses(_ *http.Request, body []byte) (*modelQuery, error) {
	var q struct {
		Model   string          `json:"model"`
		Stream  bool            `json:"stream"`
		Input   json.RawMessage `json:"input"`
		Tools   []responsesTool `json:"tools"`
		Text    json.RawMessage `json:"text"`
		Include []string        `json:"include"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := &modelQuery{model: q.Model, stream: q.Stream, wantsJSON: strings.Contains(string(q.Text), "json_schema")}
	a.thinks = slices.Contains(q.Include, "reasoning.encrypted_content")
	a.offer(q.Tools)
	var items []struct {
		Type   string          `json:"type"`
		Output json.RawMessage `json:"output"`
		Tools  []responsesTool `json:"tools"`
	}
	if json.Unmarshal(q.Input, &items) == nil {
		for _, i := range items {
			switch i.Type {
			case "function_call_output", "custom_tool_call_output", "local_shell_call_output":
				a.results = append(a.results, texts(i.Output))
			case "additional_tools": // of newer models, in place of the request's tools
				a.offer(i.Tools)
			}
		}
	}
	return a, nil
}

// responsesTool is a tool as a request for Responses offers it.
type responsesTool struct {
	Type       string `json:"type"`
	Name       string `json:"name"`
	Parameters schema `json:"parameters"`
	Tools      []struct {
		Name       string `json:"name"`
		Parameters schema `json:"parameters"`
	} `json:"tools"` // the tools of a namespace
}

// offer adds tools to those that the query offers.
func (a *modelQuery) offer(tools []responsesTool) {
	for _, t := range tools {
		switch t.Type {
		case "function":
			a.tools = append(a.tools, tool{name: t.Name, schema: t.Parameters})
		case "custom":
			a.tools = append(a.tools, tool{name: t.Name, freeform: true})
		case "local_shell":
			a.tools = append(a.tools, tool{name: t.Type, local: true})
		case "namespace":
			for _, n := range t.Tools {
				a.tools = append(a.tools, tool{name: n.Name, space: t.Name, schema: n.Parameters})
			}
		}
	}
}

// responseID returns the name of an answer, which the next request over a WebSocket gives.
func responseID(r reply) string { return r.opaque("resp_", 50, hexDigits) }

// responseItem returns what the model says or calls.
func responseItem(r reply) object {
	id, callID := r.opaque("fc_", 50, hexDigits), r.opaque("call_", 24, alphanumeric)
	c := r.call
	switch {
	case c == nil:
		part := object{"type": "output_text", "text": r.text, "annotations": []any{}, "logprobs": []any{}}
		return object{"type": "message", "id": r.opaque("msg_", 50, hexDigits), "status": "completed", "role": "assistant", "content": []any{part}}
	case c.tool.local:
		return object{"type": "local_shell_call", "id": id, "call_id": callID, "status": "completed", "action": object{"type": "exec", "command": c.args["command"], "env": object{}}}
	case c.tool.freeform:
		return object{"type": "custom_tool_call", "id": id, "call_id": callID, "status": "completed", "name": c.tool.name, "input": c.text}
	}
	item := object{"type": "function_call", "id": id, "call_id": callID, "status": "completed", "name": c.tool.name, "arguments": c.JSON()}
	if c.tool.space != "" {
		item["namespace"] = c.tool.space
	}
	return item
}

func writeResponses(e *events, a *modelQuery, r reply) {
	usage := object{
		"input_tokens": 100, "output_tokens": 10, "total_tokens": 110,
		"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0},
	}
	var items []object
	if a.thinks {
		items = append(items, object{
			"type": "reasoning", "id": r.opaque("rs_", 50, hexDigits), "encrypted_content": r.opaque("gAAAAABp", 900, base64URLLetters),
			"summary": []any{object{"type": "summary_text", "text": thoughts}},
		})
	}
	items = append(items, responseItem(r))
	response := object{
		"id": responseID(r), "object": "response", "created_at": 1_700_000_000, "status": "completed",
		"model": r.model, "output": items, "usage": usage, "error": nil, "incomplete_details": nil, "service_tier": "default",
		"parallel_tool_calls": false, "tools": []any{}, "tool_choice": "auto", "metadata": object{},
	}
	if !a.stream {
		e.whole(response)
		return
	}
	s := &responseStream{e: e, r: r}
	begun := maps.Clone(response)
	begun["status"], begun["output"], begun["usage"] = "in_progress", []any{}, nil
	s.send("response.created", object{"response": begun})
	s.send("response.in_progress", object{"response": begun})
	for i, item := range items {
		s.item(i, item)
	}
	s.send("response.completed", object{"response": response})
}

// responseStream numbers the events of one answer.
type responseStream struct {
	e      *events
	r      reply
	number int
}

func (s *responseStream) send(kind string, o object) {
	o["type"], o["sequence_number"] = kind, s.number
	s.number++
	s.e.send(kind, o)
}

// item streams one item of the output.
func (s *responseStream) item(i int, item object) {
	early := maps.Clone(item)
	early["status"] = "in_progress"
	for name, nothing := range map[string]any{"content": []any{}, "input": "", "arguments": "", "summary": []any{}} {
		if _, ok := early[name]; ok {
			early[name] = nothing
		}
	}
	s.send("response.output_item.added", object{"output_index": i, "item": early})
	at := func(o object) object {
		o["item_id"], o["output_index"] = item["id"], i
		return o
	}
	deltas := func(kind, text string, more object) {
		for n, p := range pieces(text) {
			o := at(object{"delta": p, "obfuscation": s.r.opaque(fmt.Sprint("o", n), 14, alphanumeric)[2:]})
			maps.Copy(o, more)
			s.send(kind, o)
		}
	}
	switch item["type"] {
	case "message":
		part := item["content"].([]any)[0].(object)
		s.send("response.content_part.added", at(object{"content_index": 0, "part": object{"type": "output_text", "text": "", "annotations": []any{}}}))
		deltas("response.output_text.delta", s.r.text, object{"content_index": 0, "logprobs": []any{}})
		s.send("response.output_text.done", at(object{"content_index": 0, "text": s.r.text, "logprobs": []any{}}))
		s.send("response.content_part.done", at(object{"content_index": 0, "part": part}))
	case "reasoning":
		part := func(text string) object {
			return at(object{"summary_index": 0, "part": object{"type": "summary_text", "text": text}})
		}
		s.send("response.reasoning_summary_part.added", part(""))
		deltas("response.reasoning_summary_text.delta", thoughts, object{"summary_index": 0})
		s.send("response.reasoning_summary_text.done", at(object{"summary_index": 0, "text": thoughts}))
		s.send("response.reasoning_summary_part.done", part(thoughts))
	case "custom_tool_call":
		deltas("response.custom_tool_call_input.delta", s.r.call.text, nil)
		s.send("response.custom_tool_call_input.done", at(object{"input": s.r.call.text}))
	case "function_call":
		deltas("response.function_call_arguments.delta", s.r.call.JSON(), nil)
		s.send("response.function_call_arguments.done", at(object{"name": s.r.call.tool.name, "arguments": s.r.call.JSON()}))
	}
	s.send("response.output_item.done", object{"output_index": i, "item": item})
}

// OpenAI's Chat Completions, which many others speak as well.

func isChat(r *http.Request) bool { return post(r, "/chat/completions") }

func readChat(_ *http.Request, body []byte) (*modelQuery, error) {
	var q struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Tools []struct {
			Function struct {
				Name       string `json:"name"`
				Parameters schema `json:"parameters"`
			} `json:"function"`
		} `json:"tools"`
		ResponseFormat json.RawMessage `json:"response_format"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := &modelQuery{model: q.Model, stream: q.Stream, wantsJSON: strings.Contains(string(q.ResponseFormat), "json")}
	for _, t := range q.Tools {
		a.tools = append(a.tools, tool{name: t.Function.Name, schema: t.Function.Parameters})
	}
	for _, m := range q.Messages {
		if m.Role == "tool" {
			a.results = append(a.results, texts(m.Content))
		}
	}
	return a, nil
}

func writeChat(e *events, a *modelQuery, r reply) {
	usage := object{"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
	id := r.opaque("chatcmpl-", 29, alphanumeric)
	head := func(kind string) object {
		return object{"id": id, "object": kind, "created": 1_700_000_000, "model": r.model, "system_fingerprint": r.opaque("fp_", 10, hexDigits)}
	}
	stop := "stop"
	if r.call != nil {
		stop = "tool_calls"
	}
	tool := func(args string) object {
		return object{"index": 0, "id": r.opaque("call_", 24, alphanumeric), "type": "function", "function": object{"name": r.call.tool.name, "arguments": args}}
	}
	if !a.stream {
		message := object{"role": "assistant", "content": r.text}
		if r.call != nil {
			message = object{"role": "assistant", "content": nil, "tool_calls": []any{tool(r.call.JSON())}}
		}
		o := head("chat.completion")
		o["choices"], o["usage"] = []any{object{"index": 0, "message": message, "finish_reason": stop}}, usage
		e.whole(o)
		return
	}
	chunk := func(delta object, finish any) {
		o := head("chat.completion.chunk")
		o["choices"] = []any{object{"index": 0, "delta": delta, "finish_reason": finish}}
		e.send("", o)
	}
	if r.call != nil {
		chunk(object{"role": "assistant", "content": beforeCall}, nil)
		chunk(object{"role": "assistant", "content": nil, "tool_calls": []any{tool("")}}, nil)
		for _, p := range pieces(r.call.JSON()) {
			chunk(object{"tool_calls": []any{object{"index": 0, "function": object{"arguments": p}}}}, nil)
		}
	} else {
		chunk(object{"role": "assistant", "content": ""}, nil)
		for _, p := range pieces(r.text) {
			chunk(object{"content": p}, nil)
		}
	}
	chunk(object{}, stop)
	o := head("chat.completion.chunk")
	o["choices"], o["usage"] = []any{}, usage
	e.send("", o)
	e.send("", "[DONE]")
}

// Gemini's GenerateContent.

func isGemini(r *http.Request) bool {
	return post(r, ":generateContent") || post(r, ":streamGenerateContent")
}

func readGemini(r *http.Request, body []byte) (*modelQuery, error) {
	var q struct {
		Contents []struct {
			Parts []struct {
				FunctionResponse *struct {
					Response json.RawMessage `json:"response"`
				} `json:"functionResponse"`
			} `json:"parts"`
		} `json:"contents"`
		Tools []struct {
			FunctionDeclarations []struct {
				Name                 string  `json:"name"`
				Parameters           *schema `json:"parameters"`
				ParametersJSONSchema *schema `json:"parametersJsonSchema"`
			} `json:"functionDeclarations"`
		} `json:"tools"`
		GenerationConfig struct {
			ResponseMimeType string `json:"responseMimeType"`
			ThinkingConfig   struct {
				IncludeThoughts bool `json:"includeThoughts"`
			} `json:"thinkingConfig"`
		} `json:"generationConfig"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	model, _, _ := strings.Cut(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], ":")
	a := &modelQuery{model: model, stream: strings.HasSuffix(r.URL.Path, ":streamGenerateContent"), wantsJSON: strings.Contains(q.GenerationConfig.ResponseMimeType, "json")}
	a.thinks = q.GenerationConfig.ThinkingConfig.IncludeThoughts
	for _, t := range q.Tools {
		for _, d := range t.FunctionDeclarations {
			x := tool{name: d.Name}
			if d.ParametersJSONSchema != nil {
				x.schema = *d.ParametersJSONSchema
			} else if d.Parameters != nil {
				x.schema = *d.Parameters
			}
			a.tools = append(a.tools, x)
		}
	}
	for _, c := range q.Contents {
		for _, p := range c.Parts {
			if p.FunctionResponse != nil {
				var out struct {
					Output, Error string
				}
				text := string(p.FunctionResponse.Response)
				if json.Unmarshal(p.FunctionResponse.Response, &out) == nil && out.Output+out.Error != "" {
					text = out.Output + out.Error
				}
				a.results = append(a.results, text)
			}
		}
	}
	return a, nil
}

func writeGemini(e *events, a *modelQuery, r reply) {
	answer := func(part object, finish string) object {
		c := object{"index": 0, "content": object{"role": "model", "parts": []any{part}}}
		if finish != "" {
			c["finishReason"] = finish
		}
		return object{
			"candidates": []any{c}, "modelVersion": r.model, "responseId": r.opaque("", 22, base64URLLetters),
			"usageMetadata": object{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
		}
	}
	if a.stream && a.thinks {
		e.send("", answer(object{"text": thoughts, "thought": true}, ""))
	}
	if c := r.call; c != nil {
		part := object{"functionCall": object{"id": r.opaque("call_", 24, alphanumeric), "name": c.tool.name, "args": c.args}, "thoughtSignature": r.opaque("Co", 1198, base64Letters)}
		if a.stream {
			e.send("", answer(part, "STOP"))
		} else {
			e.whole(answer(part, "STOP"))
		}
		return
	}
	if !a.stream {
		e.whole(answer(object{"text": r.text}, "STOP"))
		return
	}
	all := pieces(r.text)
	for i, p := range all {
		finish := ""
		if i == len(all)-1 {
			finish = "STOP"
		}
		e.send("", answer(object{"text": p}, finish))
	}
}
