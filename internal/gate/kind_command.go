package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "command", Summary: "a command's facts, in JSON, are as a schema in the catalog says", Runs: true, Keys: []string{"facts"}}, func(_ *Signal, m document.Mapping) Judge[declaredFacts] {
		wants := parseDeclaredFacts(m.Need("facts"))
		return func(ctx context.Context, c *Case) (declaredFacts, []Finding, error) {
			return evaluateDeclared(ctx, c, wants)
		}
	})
}

// declaredFact is a fact that the catalog declares.
type declaredFact struct {
	name, typ string
	min, max  *float64
	is        string
}

func parseDeclaredFacts(v document.Value) []declaredFact {
	names, values := v.Entries()
	if v.Present() && len(names) == 0 {
		v.Bad("declares no fact", "facts: {coverage: {type: number, min: 80}}")
	}
	var out []declaredFact
	for i, n := range names {
		v := values[i]
		if opinion(n) {
			v.Bad("is an opinion, not a fact", "a gate takes what was measured; what a program thinks of itself is not a fact")
			continue
		}
		m := v.Mapping("type", "min", "max", "is")
		w := declaredFact{name: n, typ: m.Need("type").OneOf("number", "boolean", "text")}
		number := func(key string) *float64 {
			v := m.Get(key)
			if !v.Present() {
				return nil
			}
			if w.typ != "number" {
				v.Bad("is for numbers", "")
			}
			f := float64(v.Int(0, -1<<53, 1<<53))
			return &f
		}
		w.min, w.max = number("min"), number("max")
		if is := m.Get("is"); is.Present() {
			switch w.typ {
			case "text":
				w.is = is.Text()
			case "boolean":
				w.is = strconv.FormatBool(is.Bool(true))
			default:
				is.Bad("is for text and booleans", "give min and max")
			}
		}
		if w.min == nil && w.max == nil && w.is == "" {
			v.Bad("asks for nothing, so it could not fail", "give min, max or is")
		}
		out = append(out, w)
	}
	return out
}

// value is the value of a declared fact; exactly one field is set.
type value struct {
	Number  *float64 `json:"number,omitempty"`
	Boolean *bool    `json:"boolean,omitempty"`
	Text    *string  `json:"text,omitempty"`
}

type declaredFacts struct {
	Run     commandFacts     `json:"run"`
	Values  map[string]value `json:"values"`
	Wanted  int              `json:"wanted"`
	Outside []string         `json:"outside_bounds,omitempty"`
}

func (f declaredFacts) Positive() bool {
	return f.Run.Positive() && f.Wanted > 0 && len(f.Values) == f.Wanted && len(f.Outside) == 0
}

// evaluateDeclared runs the command and reads its standard output: one JSON object with
// exactly the declared facts.
func evaluateDeclared(ctx context.Context, c *Case, wants []declaredFact) (declaredFacts, []Finding, error) {
	f := declaredFacts{Wanted: len(wants)}
	p, err := c.run(ctx, c.Change)
	if err != nil {
		return f, nil, err
	}
	f.Run = factsOf(p)
	if p.Code != 0 {
		return f, exitFinding(p), nil
	}
	b, err := p.Stdout.whole()
	if err != nil {
		return f, nil, err
	}
	raw, err := object(b)
	if err != nil {
		return f, nil, fmt.Errorf("%s must print one JSON object with its facts: %w", c.Name, err)
	}
	f.Values = map[string]value{}
	var found []Finding
	for _, w := range wants {
		r, ok := raw[w.name]
		delete(raw, w.name)
		if !ok {
			return f, nil, fmt.Errorf("fact %s is missing", w.name)
		}
		v, shown, err := w.read(r)
		if err != nil {
			return f, nil, err
		}
		f.Values[w.name] = v
		if why := w.outside(v); why != "" {
			f.Outside = append(f.Outside, w.name)
			found = append(found, Finding{ID: w.name, Text: fmt.Sprintf("%s is %s, %s", w.name, shown, why)})
		}
	}
	for name := range raw {
		return f, nil, fmt.Errorf("fact %q is not declared in the catalog", truncate(maskSecrets(name), 100))
	}
	return f, found, nil
}

// object reads one JSON object and nothing after it. A name that occurs twice is an
// error.
func object(b []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("there is none")
	}
	out := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		if _, ok := out[name]; ok {
			return nil, fmt.Errorf("%q is there twice", truncate(maskSecrets(name), 100))
		}
		var r json.RawMessage
		if err := d.Decode(&r); err != nil {
			return nil, err
		}
		out[name] = r
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows it")
	}
	return out, nil
}

func (w declaredFact) read(r json.RawMessage) (v value, shown string, err error) {
	var to any
	switch w.typ {
	case "number":
		to = &v.Number
	case "boolean":
		to = &v.Boolean
	default:
		to = &v.Text
	}
	if err = json.Unmarshal(r, to); err == nil && v == (value{}) {
		err = errors.New("it is null")
	}
	if err != nil {
		return v, "", fmt.Errorf("fact %s is no %s: %w", w.name, w.typ, err)
	}
	return v, truncate(maskSecrets(string(r)), 200), nil
}

func (w declaredFact) outside(v value) string {
	switch {
	case v.Number != nil && w.min != nil && *v.Number < *w.min:
		return fmt.Sprintf("and must be at least %v", *w.min)
	case v.Number != nil && w.max != nil && *v.Number > *w.max:
		return fmt.Sprintf("and may be at most %v", *w.max)
	case w.is != "" && v.Text != nil && *v.Text != w.is, w.is != "" && v.Boolean != nil && strconv.FormatBool(*v.Boolean) != w.is:
		return "and must be " + w.is
	}
	return ""
}
