package credential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"slices"
	"strings"
)

// OwnError says that a body holds a credential of the agent's own. Bodies are not
// changed: a value that is masked could be stored, such as a password.
type OwnError struct {
	Name string // empty: the body can't be looked at
	why  string
}

func (e *OwnError) Error() string {
	if e.Name == "" {
		return "the body's fields can't be looked at: " + e.why
	}
	return fmt.Sprintf("the body's field %.60q names a credential, and the route puts on its own; leave it out, or let whoever runs this allow it by `own_credentials: [%.60s]` on the route", e.Name, e.Name)
}

var errNotUTF8 = &OwnError{why: "it is said to be JSON and is not in UTF-8"}

// Fields reads a body as it passes, and looks for fields whose names name credentials, in
// forms, JSON and the parts of a multipart body. At the top of JSON, in params, and in what
// is itself named like a credential, as in {"auth": {"token": …}}, any text is one. What
// lies deeper may be data: there it is one word of opaqueLength and more. In a list of what
// was said to a model nothing is. A value that begins the placeholder passes. Fields holds nothing
// back.
type Fields struct {
	own         Own
	placeholder string
	ask         func(name string) bool
	deep        bool // its top is as deep as what lies below the top of others
	inside      int  // multipart bodies that hold it

	form        bool // not JSON
	whole       bool // one value of a form
	maybe       bool // it is JSON only if it begins so
	begun, over bool
	parts       *parts // nil: it is not multipart
	bad         error  // it can't be looked at

	levels []level // of JSON, as far as they are looked into
	deeper int     // levels beyond them
	state  fieldState
	odd    bool // what was read of a string ends in an odd number of backslashes
	name   []byte
	names  map[string]string  // those that were read
	judged map[[2]string]bool // and, behind those of what holds them, whether they name one
	named  string             // the name of a credential whose value comes next
	at     int                // bytes of the placeholder that its value repeated
	word   []byte             // a value that lies deep, as it is written
}

// level is an object or list of JSON that is looked into.
type level struct {
	object bool
	key    bool   // a name comes next
	in     string // the name of what holds it
	last   string // the last name; in a list, the list's
	deep   bool
}

// said are the lists at the top of a request that hold what was said to a model and by it,
// its tools and their inputs.
var said = set("messages contents input tools")

type fieldState uint8

const (
	between fieldState = iota // values of JSON
	inName
	inValue // of a credential
	inWord  // that lies deep
	skipped // a string, or a value of a form, that does not matter
)

const (
	maxFieldName = 200
	maxNames     = 100
	maxLevels    = 64
	// opaqueLength is less than keys and most passwords have.
	opaqueLength = 8
	maxWord      = 4096
)

// Fields returns what looks at a body of these types, of which there is one in an honest
// request; nil: nothing does. Names of own may stand there. ask decides about another
// one, and may be nil.
func (c *Credential) Fields(types []string, own Own, ask func(name string) bool) *Fields {
	if c.scheme == AWS {
		return nil // the client signs the body, and AWS takes credentials from no other place
	}
	f := &Fields{own: own, placeholder: c.placeholder, ask: ask}
	if len(types) > 1 {
		f.bad = &OwnError{why: "it is said to be of several types"}
		return f
	}
	f.kind(strings.Join(types, ""))
	return f
}

// kind sets how a body of this type is read.
func (f *Fields) kind(contentType string) {
	t, params, err := mime.ParseMediaType(contentType)
	switch low := strings.ToLower(contentType); {
	case err != nil && t == "" && (strings.Contains(low, "multipart") || strings.Contains(low, "urlencoded")), strings.HasPrefix(t, "multipart/") && params["boundary"] == "":
		f.bad = &OwnError{why: "its type is ambiguous"}
	case strings.HasPrefix(t, "multipart/"):
		f.parts = newParts(f, params["boundary"])
	case t == "application/x-www-form-urlencoded":
		f.form, f.maybe = true, true // some clients say so of JSON
		f.state = inName
	case t == "text/plain", t == "":
		f.maybe = true
	case strings.Contains(t, "ndjson"), strings.Contains(t, "jsonl"), strings.Contains(t, "json-seq"), !strings.Contains(t, "json"):
		f.maybe, f.deep = true, true // some servers read JSON whatever it is said to be
	}
}

// Look reads p, the next bytes of the body. An error is an [OwnError]; p must not leave
// then.
func (f *Fields) Look(p []byte) error {
	if f.bad != nil {
		return f.bad
	}
	if f.parts != nil {
		return f.parts.look(p)
	}
	for len(p) > 0 && !f.over {
		if !f.begun {
			n, err := f.begin(p[0])
			if err != nil {
				return err
			}
			p = p[n:]
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
		case f.state == inWord:
			n, err = f.readWord(p)
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

// begin judges the first byte of the body and returns 1 if it is not a part of it.
func (f *Fields) begin(c byte) (int, error) {
	switch {
	case strings.IndexByte(" \t\r\n\ufeff", c) >= 0:
		return 1, nil
	case c == '{', c == '[':
		f.form, f.state = false, between
	case c == 0 || c >= 0xfe:
		if !f.maybe {
			return 0, errNotUTF8
		}
		f.over = !f.form
	default:
		f.over = f.maybe && !f.form
	}
	f.begun = true
	return 0, nil
}

// found asks about a field, and returns an error if it may not leave.
func (f *Fields) found(name string) error {
	if f.ask == nil || !f.ask(name) {
		return &OwnError{Name: name}
	}
	f.own = append(slices.Clone(f.own), name)
	f.state, f.odd = skipped, false
	return nil
}

// judge reports whether a value of this name, in an object of the name in, may not leave.
func (f *Fields) judge(in, name string) bool {
	if !hasStem(name) && (len(name) > maxFiller || !hasStem(in)) {
		return false
	}
	at := [2]string{in, name}
	is, ok := f.judged[at]
	if !ok {
		if f.judged == nil || len(f.judged) >= maxNames {
			f.judged = map[[2]string]bool{}
		}
		is = namesCredential(in, name, inField)
		f.judged[at] = is
	}
	return is && !f.own.allows(name)
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
			case top.last == "" || !f.judge(top.in, top.last):
				f.state = skipped
			case !top.deep && top.object:
				f.state, f.named, f.at = inValue, top.last, 0
			default:
				f.state, f.named, f.word = inWord, top.last, f.word[:0]
			}
			return i + 1, nil
		case 0:
			return i, errNotUTF8
		}
	}
	return len(p), nil
}

// open begins an object or list inside top.
func (f *Fields) open(object bool, top *level) {
	if f.deeper > 0 || len(f.levels) >= maxLevels || !object && len(f.levels) == 1 && said[top.last] {
		f.deeper++
		return
	}
	l := level{object: object, key: object, in: top.in, last: top.last, deep: top.deep}
	if object {
		l.in = top.last
	}
	if len(f.levels) == 0 {
		l.deep = f.deep
	} else if !l.deep {
		l.deep = (top.object || len(f.levels) > 1) && !holdsCredentials(top.last)
	}
	f.levels = append(f.levels, l)
}

// holdsCredentials reports whether all of an object of this name is as near as the top.
func holdsCredentials(name string) bool {
	return name == "params" || name == "authentication" || namesCredential("", name, inField)
}

// readWord reads a value that lies deep up to its end, and judges it.
func (f *Fields) readWord(p []byte) (int, error) {
	for i, c := range p {
		ends := c == '"' && !f.odd
		if f.odd = c == '\\' && !f.odd; !ends {
			f.word = append(f.word, c)
		}
		if !ends && len(f.word) < maxWord {
			continue
		}
		odd, err := f.odd, error(nil)
		if f.opaque(f.word) {
			err = f.found(f.named)
		}
		if f.state, f.odd = skipped, odd; ends {
			f.state = between
		}
		return i + 1, err
	}
	return len(p), nil
}

// opaque reports whether a text of JSON is a word, perhaps behind that of a scheme, and not
// of the placeholder.
func (f *Fields) opaque(written []byte) bool {
	text := string(written)
	_ = json.Unmarshal([]byte(`"`+text+`"`), &text)
	if scheme, rest, ok := strings.Cut(text, " "); ok && (heads[strings.ToLower(scheme)] || strings.EqualFold(scheme, "basic")) {
		text = rest
	}
	return len(text) >= opaqueLength && !strings.ContainsAny(text, " \t\r\n") && !strings.HasPrefix(f.placeholder, text)
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
			top.key = false
			top.last = f.plain()
		}
		f.state = between
		return end + 1
	}
}

// plain returns the name that was read. Large bodies have few, many times each.
func (f *Fields) plain() string {
	if s, ok := f.names[string(f.name)]; ok {
		return s
	}
	s := string(f.name)
	if strings.Contains(s, `\`) {
		_ = json.Unmarshal([]byte(`"`+s+`"`), &s)
	}
	if f.names == nil || len(f.names) >= maxNames {
		f.names = map[string]string{}
	}
	f.names[string(f.name)] = s
	return s
}

// value reads the value of a credential's name up to its end. It may be empty, and begin
// as the placeholder does.
func (f *Fields) value(p []byte, end byte) (int, error) {
	for i, c := range p {
		switch {
		case c == end && !f.whole:
			f.state = between
			return i + 1, nil
		case f.at >= len(f.placeholder) || f.placeholder[f.at] != c:
			return i, f.found(f.named)
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
		f.over = f.whole && f.state == skipped
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
	switch {
	case p[i] == '&':
	case f.judgePair(name):
		f.state, f.named, f.at = inValue, name, 0
	default:
		f.state = skipped
	}
	return i + 1, nil
}

// judgePair is judge for the name of a form's field, in which objects stand as a[b].
func (f *Fields) judgePair(name string) bool {
	begin, _, _ := strings.Cut(name, "[")
	return !f.own.allows(begin) && f.judge("", name) || !f.own.allows(name) && f.judge("", begin)
}
