package gitgate

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// errRequest is wrapped by every refusal of a malformed request.
var errRequest = errors.New("not a request that git makes")

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errRequest}, args...)...)
}

// requestBody returns the body of a POST to a service, decompressed and bounded.
func requestBody(w http.ResponseWriter, r *http.Request, service string, max int64) (io.Reader, error) {
	if got, want := r.Header.Get("Content-Type"), "application/x-"+service+"-request"; got != want {
		return nil, badRequest("the content is not of type %s", want)
	}
	if r.URL.RawQuery != "" {
		return nil, badRequest("the URL has a query")
	}
	body := io.Reader(http.MaxBytesReader(w, r.Body, max))
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, badRequest("the body is not gzip")
		}
		body = z
	default:
		return nil, badRequest("the body has an encoding other than gzip")
	}
	return body, nil
}

// readFetch reads a whole request to git-upload-pack, checks each line, and returns a new
// request. empty reports a request for nothing, which git sends to try a connection.
func readFetch(body io.Reader, v version, max int64) (req []byte, empty bool, err error) {
	in, err := readAll(body, max)
	var large *http.MaxBytesError
	if errors.Is(err, errTooMuch) || errors.As(err, &large) {
		return nil, false, badRequest("it has more than %d bytes", max)
	}
	if err != nil {
		return nil, false, badRequest("the body can't be read")
	}
	if string(in) == "0000" {
		return nil, true, nil
	}
	l := newLineReader(strings.NewReader(string(in)))
	if v == 2 {
		req, err = fetchV2(l)
	} else {
		req, err = fetchV0(l)
	}
	return req, false, err
}

// fetchV2 parses one command of protocol version 2 (gitprotocol-v2).
func fetchV2(l *lineReader) ([]byte, error) {
	var out []byte
	var check func(string) error
	args := false
	for {
		k, line, err := l.next()
		if err != nil {
			return nil, badRequest("%v", noEOF(err))
		}
		text := chomp(line)
		switch {
		case k == flush:
			if check == nil {
				return nil, badRequest("no command")
			}
			if _, _, err := l.next(); !errors.Is(err, io.EOF) {
				return nil, badRequest("more than one command")
			}
			return appendFlush(out), nil
		case k == delim && !args && check != nil:
			args = true
			out = append(out, "0001"...)
			continue
		case k != data:
			return nil, badRequest("a delimiter in the wrong place")
		case check == nil:
			switch text {
			case "command=ls-refs":
				check = lsRefsArg
			case "command=fetch":
				check = fetchArg
			default:
				return nil, badRequest("the command is neither ls-refs nor fetch")
			}
		case !args:
			name, value, _ := strings.Cut(text, "=")
			if name != "agent" && name != "object-format" && name != "session-id" || !isToken(value) {
				return nil, badRequest("a capability that was not offered")
			}
			if name != "object-format" {
				continue // upstream need not know the bottle's agent
			}
		default:
			if err := check(text); err != nil {
				return nil, err
			}
		}
		out = appendLine(out, text, "\n")
	}
}

func isToken(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool { return r <= 0x20 || r >= 0x7f })
}

func lsRefsArg(s string) error {
	prefix, ok := strings.CutPrefix(s, "ref-prefix ")
	switch {
	case s == "peel", s == "symrefs", s == "unborn":
		return nil
	case ok && len(prefix) <= 1024 && printable(prefix) && !strings.Contains(prefix, " "):
		return nil
	}
	return badRequest("an argument that ls-refs does not have")
}

// fetchArg returns an error for an argument of fetch that is not allowed. packfile-uris,
// which would send a bottle elsewhere, and sideband-all are not.
func fetchArg(s string) error {
	switch s {
	case "done", "thin-pack", "no-progress", "include-tag", "ofs-delta", "deepen-relative", "wait-for-done":
		return nil
	}
	name, value, _ := strings.Cut(s, " ")
	switch {
	case (name == "want" || name == "have" || name == "shallow") && isID(value):
		return nil
	case name == "want-ref" && checkRef(value) == nil:
		return nil
	case isDeepen(name, value), name == "filter" && isFilter(value, 0):
		return nil
	}
	return badRequest("an argument that fetch does not have")
}

func isDeepen(name, value string) bool {
	switch name {
	case "deepen", "deepen-since":
		_, err := strconv.ParseUint(value, 10, 63)
		return err == nil
	case "deepen-not":
		return value == "HEAD" || checkRef(value) == nil || isToken(value) && checkRef("refs/heads/"+value) == nil
	}
	return false
}

// isFilter reports whether s is a filter of partial clones (git-rev-list, --filter).
func isFilter(s string, depth int) bool {
	name, value, _ := strings.Cut(s, ":")
	switch name {
	case "blob":
		if value == "none" {
			return true
		}
		n, ok := strings.CutPrefix(value, "limit=")
		n = strings.TrimRight(n, "kmgKMG")
		_, err := strconv.ParseUint(n, 10, 63)
		return ok && err == nil
	case "tree":
		_, err := strconv.ParseUint(value, 10, 31)
		return err == nil
	case "object":
		return slices.Contains([]string{"type=blob", "type=tree", "type=commit", "type=tag"}, value)
	case "sparse":
		id, ok := strings.CutPrefix(value, "oid=")
		return ok && isID(id)
	case "combine":
		if depth > 0 || len(value) > 1024 {
			return false
		}
		for _, part := range strings.Split(value, "+") {
			if !isFilter(strings.ReplaceAll(part, "%3a", ":"), depth+1) {
				return false
			}
		}
		return true
	}
	return false
}

// fetchV0 parses a request of protocol version 0 (gitprotocol-pack): wants and depth, a
// flush, haves, possibly with flushes between them, and done.
func fetchV0(l *lineReader) ([]byte, error) {
	var out []byte
	wants, haves, done := 0, false, false
	for {
		k, line, err := l.next()
		if errors.Is(err, io.EOF) && wants > 0 && haves {
			return out, nil
		}
		if err != nil {
			return nil, badRequest("%v", noEOF(err))
		}
		if done {
			return nil, badRequest("something after done")
		}
		if k == flush {
			if wants == 0 {
				return nil, badRequest("nothing is wanted")
			}
			haves = true
			out = appendFlush(out)
			continue
		}
		if k != data {
			return nil, errRequest
		}
		text := chomp(line)
		name, value, _ := strings.Cut(text, " ")
		switch {
		case haves && text == "done":
			done = true
		case haves && name == "have" && isID(value):
		case !haves && name == "want" && wants == 0:
			id, caps, _ := strings.Cut(value, " ")
			kept, err := wantCaps(caps)
			if err != nil || !isID(id) {
				return nil, badRequest("the first want asks for what was not offered")
			}
			text = "want " + id + " " + kept
			wants++
		case !haves && name == "want" && isID(value):
			wants++
		case !haves && wants > 0 && (name == "shallow" && isID(value) || isDeepen(name, value) || name == "filter" && isFilter(value, 0)):
		default:
			return nil, badRequest("a line that git-upload-pack does not accept")
		}
		out = appendLine(out, text, "\n")
	}
}

// wantCaps checks the capabilities in a fetch of protocol version 0. It requires a side
// band: without one, messages could not be told from the pack.
func wantCaps(s string) (string, error) {
	var kept []string
	band := false
	for _, c := range strings.Fields(s) {
		name, _, _ := strings.Cut(c, "=")
		if !slices.Contains(offersFetch, name) || !isToken(c) {
			return "", errRequest
		}
		band = band || c == "side-band-64k" || c == "side-band"
		if name != "agent" {
			kept = append(kept, c)
		}
	}
	if !band {
		return "", errRequest
	}
	return strings.Join(kept, " "), nil
}
