package agenttest

import (
	"encoding/json"
	"fmt"
	"net/http"
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
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := &modelQuery{model: q.Model, stream: q.Stream, wantsJSON: strings.Contains(string(q.OutputConfig), "json_schema")}
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
	usage := object{"input_tokens": 100, "output_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	block, stop := object{"type": "text", "text": r.text}, "end_turn"
	if r.call != nil {
		block, stop = object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d", r.id), "name": r.call.tool.name, "input": r.call.args}, "tool_use"
	}
	message := object{
		"id": fmt.Sprintf("msg_%d", r.id), "type": "message", "role": "assistant", "model": r.model,
		"content": []any{block}, "stop_reason": stop, "stop_sequence": nil, "usage": usage,
	}
	if !a.stream {
		e.whole(message)
		return
	}
	message["content"], message["stop_reason"] = []any{}, nil
	e.send("message_start", object{"type": "message_start", "message": message})
	delta := func(d object) {
		e.send("content_block_delta", object{"type": "content_block_delta", "index": 0, "delta": d})
	}
	if r.call != nil {
		block["input"] = object{}
		e.send("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": block})
		for _, p := range pieces(r.call.JSON()) {
			delta(object{"type": "input_json_delta", "partial_json": p})
		}
	} else {
		block["text"] = ""
		e.send("content_block_start", object{"type": "content_block_start", "index": 0, "content_block": block})
		for _, p := range pieces(r.text) {
			delta(object{"type": "text_delta", "text": p})
		}
	}
	e.send("content_block_stop", object{"type": "content_block_stop", "index": 0})
	e.send("message_delta", object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": usage})
	e.send("message_stop", object{"type": "message_stop"})
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
		Model  string          `json:"model"`
		Stream bool            `json:"stream"`
		Input  json.RawMessage `json:"input"`
		Tools  []struct {
			Type       string `json:"type"`
			Name       string `json:"name"`
			Parameters schema `json:"parameters"`
			Tools      []struct {
				Name       string `json:"name"`
				Parameters schema `json:"parameters"`
			} `json:"tools"` // the tools of a namespace
		} `json:"tools"`
		Text json.RawMessage `json:"text"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	a := &modelQuery{model: q.Model, stream: q.Stream, wantsJSON: strings.Contains(string(q.Text), "json_schema")}
	for _, t := range q.Tools {
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
	var items []struct {
		Type   string          `json:"type"`
		Output json.RawMessage `json:"output"`
	}
	if json.Unmarshal(q.Input, &items) == nil {
		for _, i := range items {
			switch i.Type {
			case "function_call_output", "custom_tool_call_output", "local_shell_call_output":
				a.results = append(a.results, texts(i.Output))
			}
		}
	}
	return a, nil
}

func writeResponses(e *events, a *modelQuery, r reply) {
	usage := object{
		"input_tokens": 100, "output_tokens": 10, "total_tokens": 110,
		"input_tokens_details": object{"cached_tokens": 0}, "output_tokens_details": object{"reasoning_tokens": 0},
	}
	id, callID := fmt.Sprintf("item_%d", r.id), fmt.Sprintf("call_%d", r.id)
	part := object{"type": "output_text", "text": r.text, "annotations": []any{}}
	item := object{"type": "message", "id": id, "status": "completed", "role": "assistant", "content": []any{part}}
	if c := r.call; c != nil {
		switch {
		case c.tool.local:
			item = object{"type": "local_shell_call", "id": id, "call_id": callID, "status": "completed", "action": object{"type": "exec", "command": c.args["command"], "env": object{}}}
		case c.tool.freeform:
			item = object{"type": "custom_tool_call", "id": id, "call_id": callID, "status": "completed", "name": c.tool.name, "input": c.text}
		default:
			item = object{"type": "function_call", "id": id, "call_id": callID, "status": "completed", "name": c.tool.name, "arguments": c.JSON()}
			if c.tool.space != "" {
				item["namespace"] = c.tool.space
			}
		}
	}
	response := object{
		"id": fmt.Sprintf("resp_%d", r.id), "object": "response", "created_at": 1_700_000_000, "status": "completed",
		"model": r.model, "output": []any{item}, "usage": usage, "error": nil, "incomplete_details": nil,
		"parallel_tool_calls": false, "tools": []any{}, "tool_choice": "auto", "metadata": object{},
	}
	if !a.stream {
		e.whole(response)
		return
	}
	number := 0
	send := func(kind string, o object) {
		o["type"], o["sequence_number"] = kind, number
		number++
		e.send(kind, o)
	}
	begun := object{}
	for k, v := range response {
		begun[k] = v
	}
	begun["status"], begun["output"], begun["usage"] = "in_progress", []any{}, nil
	send("response.created", object{"response": begun})
	early := object{}
	for k, v := range item {
		early[k] = v
	}
	early["status"] = "in_progress"
	switch c := r.call; {
	case c == nil:
		early["content"] = []any{}
	case c.tool.freeform:
		early["input"] = ""
	case !c.tool.local:
		early["arguments"] = ""
	}
	send("response.output_item.added", object{"output_index": 0, "item": early})
	at := func(o object) object {
		o["item_id"], o["output_index"] = id, 0
		return o
	}
	switch c := r.call; {
	case c == nil:
		send("response.content_part.added", at(object{"content_index": 0, "part": object{"type": "output_text", "text": "", "annotations": []any{}}}))
		for _, p := range pieces(r.text) {
			send("response.output_text.delta", at(object{"content_index": 0, "delta": p, "logprobs": []any{}}))
		}
		send("response.output_text.done", at(object{"content_index": 0, "text": r.text, "logprobs": []any{}}))
		send("response.content_part.done", at(object{"content_index": 0, "part": part}))
	case c.tool.freeform:
		for _, p := range pieces(c.text) {
			send("response.custom_tool_call_input.delta", at(object{"delta": p}))
		}
		send("response.custom_tool_call_input.done", at(object{"input": c.text}))
	case !c.tool.local:
		for _, p := range pieces(c.JSON()) {
			send("response.function_call_arguments.delta", at(object{"delta": p}))
		}
		send("response.function_call_arguments.done", at(object{"name": c.tool.name, "arguments": c.JSON()}))
	}
	send("response.output_item.done", object{"output_index": 0, "item": item})
	send("response.completed", object{"response": response})
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
	id := fmt.Sprintf("chatcmpl-%d", r.id)
	head := func(kind string) object {
		return object{"id": id, "object": kind, "created": 1_700_000_000, "model": r.model}
	}
	stop := "stop"
	if r.call != nil {
		stop = "tool_calls"
	}
	tool := func(args string) object {
		return object{"index": 0, "id": fmt.Sprintf("call_%d", r.id), "type": "function", "function": object{"name": r.call.tool.name, "arguments": args}}
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
		} `json:"generationConfig"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	model, _, _ := strings.Cut(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:], ":")
	a := &modelQuery{model: model, stream: strings.HasSuffix(r.URL.Path, ":streamGenerateContent"), wantsJSON: strings.Contains(q.GenerationConfig.ResponseMimeType, "json")}
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
			"candidates": []any{c}, "modelVersion": r.model, "responseId": fmt.Sprintf("r%d", r.id),
			"usageMetadata": object{"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
		}
	}
	if c := r.call; c != nil {
		part := object{"functionCall": object{"id": fmt.Sprintf("call_%d", r.id), "name": c.tool.name, "args": c.args}, "thoughtSignature": "c2NyaXB0"}
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
