package sessiontest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// closed lists the agents whose own texts may not be copied.
var closed = map[string]bool{"claude-code": true}

var word = regexp.MustCompile(`[A-Za-z]{2,}`)

const filler = "loremipsumdolorsitametconsecteturadipiscingelit"

// withoutWords replaces the words of the texts that the agent brings along, such as its
// instructions and the descriptions of its tools. All else stays, and every length.
func withoutWords(body []byte) []byte {
	var request struct{ System, Tools, Messages json.RawMessage }
	if json.Unmarshal(body, &request) != nil {
		return body
	}
	replace := func(raw json.RawMessage, its func(string) bool) {
		d := json.NewDecoder(bytes.NewReader(raw))
		for {
			v, err := d.Token()
			if err != nil {
				return
			}
			text, ok := v.(string)
			if !ok || !its(text) {
				continue
			}
			to := word.ReplaceAllStringFunc(text, func(w string) string {
				return strings.Repeat(filler, len(w)/len(filler)+1)[:len(w)]
			})
			body = bytes.ReplaceAll(body, literal(text), literal(to))
		}
	}
	long := func(s string) bool { return len(s) > 40 }
	replace(request.System, long)
	replace(request.Tools, long)
	replace(request.Messages, func(s string) bool { return strings.Contains(s, "<system-reminder>") })
	return body
}

// literal returns a text as JavaScript writes it in JSON.
func literal(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return bytes.TrimSpace(b.Bytes())
}
