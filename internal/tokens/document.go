package tokens

// document finds the objects that say how much was used, in JSON that goes by. It keeps
// no more of it than such an object, and takes what is no JSON for what it looks like.
type document struct {
	depth int
	// at are the outermost levels.
	at       [maxLevels]level
	inString bool
	escaped  bool
	key      []byte // of the string under way, when it is a key and short; nil: it is none
	keep     [maxKey]byte
	// from is the depth of an object that is held; 0: none is.
	from int
	held []byte
	over bool // it is longer than what is held of it
}

const (
	maxLevels = 4  // a list of documents, the document, what it wraps, and its usage
	maxKey    = 16 // bytes of a key that is known
)

// level is an object or a list that is open.
type level struct {
	list bool
	name bool   // a key comes next
	key  string // the last one, if it is known
}

// Keys that are known: where the object stands, and what it may be wrapped in.
const (
	keyUsage    = "usage"
	keyMetadata = "usageMetadata"
	keyMessage  = "message"  // Anthropic's first event
	keyResponse = "response" // OpenAI's events of responses, Gemini's behind Code Assist
)

// next reads up to the end of an object that says what was used, which it returns until
// it is called again, or else all of p.
func (d *document) next(p []byte) (n int, whole []byte) {
	for i := 0; i < len(p); i++ {
		if d.inString && d.key == nil && !d.escaped && d.from == 0 {
			for i < len(p)-1 && p[i] != '"' && p[i] != '\\' {
				i++
			}
		}
		c := p[i]
		if d.from > 0 && !d.over {
			if len(d.held) == maxUsage {
				d.over, d.held = true, d.held[:0]
			} else {
				d.held = append(d.held, c)
			}
		}
		if d.inString {
			d.text(c)
			continue
		}
		switch c {
		case '"':
			d.inString = true
			if l := d.level(); l != nil && l.name {
				d.key = d.keep[:0]
			}
		case ':':
			if l := d.level(); l != nil {
				l.name = false
			}
		case ',':
			if l := d.level(); l != nil && !l.list {
				l.name, l.key = true, ""
			}
		case '{', '[':
			if d.from == 0 && c == '{' && d.says() {
				d.from, d.over, d.held = d.depth+1, false, append(d.held[:0], c)
			}
			d.depth++
			if l := d.level(); l != nil {
				*l = level{list: c == '[', name: c == '{'}
			}
		case '}', ']':
			d.depth = max(0, d.depth-1)
			if d.from > 0 && d.depth < d.from {
				d.from = 0
				if !d.over {
					return i + 1, d.held
				}
			}
		}
	}
	return len(p), nil
}

// text reads a byte within a string.
func (d *document) text(c byte) {
	switch {
	case d.escaped:
		d.escaped = false
	case c == '\\':
		d.escaped = true
		d.key = nil // none that is known needs it
		return
	case c == '"':
		d.inString = false
		if l := d.level(); l != nil && d.key != nil {
			l.key = known(d.key)
		}
		d.key = nil
		return
	}
	switch {
	case d.key == nil:
	case len(d.key) == maxKey:
		d.key = nil
	default:
		d.key = append(d.key, c)
	}
}

func known(key []byte) string {
	switch string(key) {
	case keyUsage:
		return keyUsage
	case keyMetadata:
		return keyMetadata
	case keyMessage:
		return keyMessage
	case keyResponse:
		return keyResponse
	}
	return ""
}

// level is the innermost one; nil: none is open, or it is too deep to matter.
func (d *document) level() *level {
	if d.depth == 0 || d.depth > maxLevels {
		return nil
	}
	return &d.at[d.depth-1]
}

// says reports whether an object that begins here is one that says what was used: in a
// document or in what it wraps, and in nothing that a model may have written.
func (d *document) says() bool {
	path := d.at[:min(d.depth, maxLevels)]
	if len(path) > 0 && path[0].list {
		path = path[1:]
	}
	if len(path) == 0 || len(path) > 2 || d.depth > maxLevels {
		return false
	}
	for _, l := range path {
		if l.list {
			return false
		}
	}
	if k := path[len(path)-1].key; k != keyUsage && k != keyMetadata {
		return false
	}
	return len(path) == 1 || path[0].key == keyMessage || path[0].key == keyResponse
}
