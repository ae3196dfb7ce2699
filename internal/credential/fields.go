package credential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"strings"
)

// OwnError says that a body holds a credential of the agent's own. Bodies are not
// changed: a value that is masked could be stored, such as a password.
type OwnError struct {
	Name string // empty: the body can't be looked at
}

func (e *OwnError) Error() string {
	if e.Name == "" {
		return "the body is said to be JSON and is not in UTF-8, so its fields can't be looked at"
	}
	return fmt.Sprintf("the body's field %.60q names a credential, and the route puts on its own; leave it out, or let whoever runs this allow it by `own_credentials: [%.60s]` on the route", e.Name, e.Name)
}

// Fields reads a body as it passes, and looks for fields whose names name credentials: in
// a form, and in JSON at the top, in params, and in what is itself named like one, as in
// {"auth": {"token": …}}. What lies deeper is data. A value that begins the placeholder
// passes. It keeps no value and holds nothing back.
type Fields struct {
	own         Own
	placeholder string
	form        bool // not JSON
	maybe       bool // it is JSON only if it begins so
	begun, over bool

	levels []level // of JSON, as far as they are looked into
	deeper int     // levels beyond them
	state  fieldState
	odd    bool // what was read of a string ends in an odd number of backslashes
	name   []byte
	named  string // the name of a credential whose value comes next; empty: another's
	at     int    // bytes of the placeholder that its value repeated
}

// level is an object or list of JSON that is looked into.
type level struct {
	object bool
	key    bool   // a name comes next
	last   string // the last name
}

type fieldState uint8

const (
	between fieldState = iota // values of JSON
	inName
	inValue // of a credential
	skipped // a string, or a value of a form, that does not matter
)

const maxFieldName = 200

// Fields returns what looks at a body of this type; nil: nothing does. Names of own may
// stand there.
func (c *Credential) Fields(contentType string, own Own) *Fields {
	if c.scheme == AWS {
		return nil // the client signs the body, and AWS takes credentials from no other place
	}
	f := &Fields{own: own, placeholder: c.placeholder}
	t, _, err := mime.ParseMediaType(contentType)
	switch {
	case t == "application/x-www-form-urlencoded":
		f.form, f.maybe = true, true // some clients say so of JSON
		f.state = inName
	case t == "text/plain", t == "" && (contentType == "" || err != nil):
		f.maybe = true
	case strings.Contains(t, "ndjson"), strings.Contains(t, "jsonl"), strings.Contains(t, "json-seq"), !strings.Contains(t, "json"):
		return nil
	}
	return f
}

// Look reads p, the next bytes of the body. An error is an [OwnError]; p must not leave
// then.
func (f *Fields) Look(p []byte) error {
	for len(p) > 0 && !f.over {
		if !f.begun {
			switch c := p[0]; {
			case strings.IndexByte(" \t\r\n\ufeff", c) >= 0:
				p = p[1:]
				continue
			case c == '{', c == '[':
				f.form, f.state = false, between
			case c == 0 || c >= 0xfe:
				if !f.maybe {
					return &OwnError{}
				}
				f.over = !f.form
			default:
				f.over = f.maybe && !f.form
			}
			f.begun = true
			continue
		}
		n, err := 0, error(nil)
		switch {
		case f.form:
			n, err = f.pair(p)
		case f.state == between:
			n, err = f.structure(p)
		case f.state == inValue:
			n, err = f.value(p, '"')
		default:
			n = f.text(p)
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// judge reports whether a value of this name may not leave.
func (f *Fields) judge(name string) bool {
	return namesCredential(name, inField) && !f.own.allows(name)
}

// structure reads JSON up to a string that matters, or to the end of p.
func (f *Fields) structure(p []byte) (int, error) {
	for i, c := range p {
		top := &level{}
		if f.deeper == 0 && len(f.levels) > 0 {
			top = &f.levels[len(f.levels)-1]
		}
		switch c {
		case '{', '[':
			f.open(c == '{', top)
		case '}', ']':
			switch {
			case f.deeper > 0:
				f.deeper--
			case len(f.levels) > 0:
				f.levels = f.levels[:len(f.levels)-1]
			}
			f.over = f.deeper == 0 && len(f.levels) == 0
			if f.over {
				return i + 1, nil
			}
		case ',':
			top.key = top.object
		case '"':
			f.odd = false
			switch {
			case top.key:
				f.state, f.name = inName, f.name[:0]
			case top.object && f.judge(top.last):
				f.state, f.named, f.at = inValue, top.last, 0
			default:
				f.state = skipped
			}
			return i + 1, nil
		case 0:
			return i, &OwnError{}
		}
	}
	return len(p), nil
}

// open begins an object or list inside top.
func (f *Fields) open(object bool, top *level) {
	into := len(f.levels) == 0 || f.deeper == 0 && len(f.levels) < 16 && (!top.object && len(f.levels) == 1 || holdsCredentials(top.last))
	if !into {
		f.deeper++
		return
	}
	f.levels = append(f.levels, level{object: object, key: object, last: top.last})
}

// holdsCredentials reports whether an object of this name is looked into.
func holdsCredentials(name string) bool {
	return name == "params" || name == "authentication" || namesCredential(name, inField)
}

// text reads a string up to its end, or to the end of p.
func (f *Fields) text(p []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(p[at:], '"')
		end := at + i
		if i < 0 {
			end = len(p)
		}
		slashes := 0
		for end-1-slashes >= at && p[end-1-slashes] == '\\' {
			slashes++
		}
		odd := slashes%2 == 1
		if slashes == end-at {
			odd = odd != f.odd
		}
		if f.state == inName && len(f.name) <= maxFieldName {
			f.name = append(f.name, p[at:min(end, at+maxFieldName+1)]...)
		}
		if i < 0 {
			f.odd = odd
			return len(p)
		}
		if f.odd = false; odd {
			if f.state == inName {
				f.name = append(f.name, '"')
			}
			at = end + 1
			continue
		}
		if f.state == inName {
			top := &f.levels[len(f.levels)-1]
			top.key, top.last = false, ""
			_ = json.Unmarshal([]byte(`"`+string(f.name)+`"`), &top.last)
		}
		f.state = between
		return end + 1
	}
}

// value reads the value of a credential's name up to its end. It may be empty, and begin
// as the placeholder does.
func (f *Fields) value(p []byte, end byte) (int, error) {
	for i, c := range p {
		switch {
		case c == end:
			f.state = between
			return i + 1, nil
		case f.at >= len(f.placeholder) || f.placeholder[f.at] != c:
			return i, &OwnError{f.named}
		}
		f.at++
	}
	return len(p), nil
}

// pair reads a part of a form.
func (f *Fields) pair(p []byte) (int, error) {
	switch f.state {
	case inValue:
		n, err := f.value(p, '&')
		if f.state == between {
			f.state = inName
		}
		return n, err
	case skipped:
		i := bytes.IndexByte(p, '&')
		if i < 0 {
			return len(p), nil
		}
		f.state = inName
		return i + 1, nil
	}
	i := bytes.IndexAny(p, "=&")
	if i < 0 {
		i = len(p)
	}
	if len(f.name) <= maxFieldName {
		f.name = append(f.name, p[:min(i, maxFieldName+1)]...)
	}
	if i == len(p) {
		return i, nil
	}
	name, err := url.QueryUnescape(string(f.name))
	if err != nil {
		name = string(f.name)
	}
	f.name = f.name[:0]
	begin, _, _ := strings.Cut(name, "[")
	switch {
	case p[i] == '&':
	case !f.own.allows(begin) && f.judge(name), !f.own.allows(name) && f.judge(begin):
		f.state, f.named, f.at = inValue, name, 0
	default:
		f.state = skipped
	}
	return i + 1, nil
}
