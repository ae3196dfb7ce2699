package tokens

// document finds the usage objects in a stream of JSON. It keeps no more of the stream
// than such an object. It does not validate: other input is read as if it were JSON.
type document struct {
	depth int
	// at holds the outermost open levels.
	at       [maxLevels]level
	inString bool
	escaped  bool
	key      []byte // the current string, if it is a short key; else nil
	keep     [maxKey]byte
	// from is the depth of the usage object that is being kept; 0: none.
	from int
	held []byte
	over bool // it is longer than maxUsage
}

const (
	maxLevels = 4  // a list of documents, the document, its wrapper, and the usage
	maxKey    = 16 // longest known key, in bytes
)

// level is an open object or list.
type level struct {
	list bool
	name bool   // a key comes next
	key  string // the last key, if it is a known one
}

// Known keys: those of usage objects, and those that may wrap them.
const (
	keyUsage    = "usage"
	keyMetadata = "usageMetadata"
	keyMessage  = "message"  // Anthropic's first event
	keyResponse = "response" // OpenAI's events of responses, and Gemini's behind Code Assist
)

// next reads up to the end of a usage object, which it returns, or else all of p. The
// object is valid until the next call.
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
			if d.from == 0 && c == '{' && d.isUsage() {
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

// text reads a byte of a string.
func (d *document) text(c byte) {
	switch {
	case d.escaped:
		d.escaped = false
	case c == '\\':
		d.escaped = true
		d.key = nil // no known key has an escape
		return
	case c == '"':
		d.inString = false
		if l := d.level(); l != nil && d.key != nil {
			l.key = watchedKey(d.key)
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

func watchedKey(key []byte) string {
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

// level returns the innermost level; nil: none is open, or it is too deep to matter.
func (d *document) level() *level {
	if d.depth == 0 || d.depth > maxLevels {
		return nil
	}
	return &d.at[d.depth-1]
}

// isUsage reports whether an object that begins here is a usage object: in a document
// or in a known wrapper, and never in text that a model may have written.
func (d *document) isUsage() bool {
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
