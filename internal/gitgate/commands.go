package gitgate

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/safetext"
)

// pushRequest is a request to git-receive-pack, up to the beginning of its pack.
type pushRequest struct {
	updates []RefUpdate
	caps    []string
	shallow []string
	options []string
	format  string
	size    int // bytes read so far
}

const (
	maxOptions     = 100
	maxOption      = 4 << 10 // bytes
	maxShallow     = 10_000
	maxCommandSize = 16 << 20
)

func (p *pushRequest) has(c string) bool { return slices.Contains(p.caps, c) }

// deletesOnly reports whether the push only deletes references. No pack follows then.
func (p *pushRequest) deletesOnly() bool {
	return !slices.ContainsFunc(p.updates, func(u RefUpdate) bool { return !isZero(u.New) })
}

// readCommands reads the part of a push before the pack (gitprotocol-pack, "Reference
// Update Request"). It returns nil for an empty request, which git sends to try a
// connection.
func readCommands(l *lineReader, limit int) (*pushRequest, error) {
	p := &pushRequest{format: "sha1"}
	line := func() (string, bool, error) { // returns false at a flush
		k, b, err := l.next()
		p.size += len(b) + 4
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			return "", false, badRequest("it ends too early")
		case err != nil:
			return "", false, err
		case k == flush:
			return "", false, nil
		case k != data:
			return "", false, badRequest("a delimiter in the wrong place")
		case p.size > maxCommandSize:
			return "", false, badRequest("more than %d bytes of commands", maxCommandSize)
		}
		return chomp(b), true, nil
	}
	for {
		s, ok, err := line()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if id, is := strings.CutPrefix(s, "shallow "); is && len(p.updates) == 0 {
			if !isID(id) || len(p.shallow) == maxShallow {
				return nil, badRequest("a malformed shallow line, or too many of them")
			}
			p.shallow = append(p.shallow, id)
			continue
		}
		if err := p.addCommand(s, limit); err != nil {
			return nil, err
		}
	}
	switch {
	case len(p.updates) == 0 && len(p.shallow) == 0:
		return nil, nil
	case len(p.updates) == 0:
		return nil, badRequest("no reference to change")
	case !p.has("report-status") || !p.has("side-band-64k"):
		return nil, badRequest("it asks for no report in a side band, as every git since 2006 does")
	}
	for p.has("push-options") {
		s, ok, err := line()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if len(p.options) == maxOptions || len(s) > maxOption || !printable(s) || !utf8.ValidString(s) {
			return nil, fmt.Errorf("the push has more than %d options, or one that is not a line of at most %d bytes of text", maxOptions, maxOption)
		}
		p.options = append(p.options, s)
	}
	return p, nil
}

var takes = []string{"report-status", "side-band-64k", "quiet", "atomic", "push-options", "ofs-delta", "delete-refs"}

func (p *pushRequest) addCommand(s string, limit int) error {
	if len(p.updates) == 0 {
		cmd, caps, ok := strings.Cut(s, "\x00")
		if !ok {
			return badRequest("the first command names no capabilities")
		}
		for _, c := range strings.Fields(caps) {
			name, value, _ := strings.Cut(c, "=")
			switch {
			case name == "object-format" && (value == "sha1" || value == "sha256"):
				p.format = value
			case name == "agent", name == "session-id":
			case slices.Contains(takes, c):
				p.caps = append(p.caps, c)
			default:
				return badRequest("a capability that was not offered")
			}
		}
		s = cmd
	}
	if strings.HasPrefix(s, "push-cert") {
		return errors.New("signed pushes are not supported: push without --signed")
	}
	f := strings.SplitN(s, " ", 3)
	if len(f) != 3 || !isID(f[0]) || !isID(f[1]) || len(f[0]) != idLen(p.format) || len(f[1]) != idLen(p.format) {
		return badRequest("a malformed command")
	}
	name := f[2]
	shown := safetext.String(name, 200)
	switch err := checkRef(name); {
	case err != nil:
		return fmt.Errorf("reference %q: %w", shown, err)
	case !utf8.ValidString(name):
		return fmt.Errorf("reference %q is not UTF-8", shown)
	case strings.HasPrefix(name, "refs/replace/"):
		return fmt.Errorf("reference %q would show others another history than there is", shown)
	case slices.ContainsFunc(p.updates, func(u RefUpdate) bool { return u.Name == name }):
		return fmt.Errorf("reference %q is changed twice", shown)
	case len(p.updates) == limit:
		return fmt.Errorf("more than %d references are changed by one push: push them in parts", limit)
	}
	p.updates = append(p.updates, RefUpdate{Name: name, Old: f[0], New: f[1]})
	return nil
}

// forward returns the request for upstream, with the capabilities that the gate needs.
func (p *pushRequest) forward(up *offer) ([]byte, error) {
	caps := []string{"report-status"}
	for _, c := range []string{"side-band-64k", "ofs-delta"} {
		if up.has(c) {
			caps = append(caps, c)
		}
	}
	if up.has("object-format=" + p.format) {
		caps = append(caps, "object-format="+p.format)
	}
	if p.has("quiet") && up.has("quiet") {
		caps = append(caps, "quiet")
	}
	if p.format != up.format {
		return nil, fmt.Errorf("upstream's objects are of the format %s, those pushed are %s", up.format, p.format)
	}
	if len(p.updates) > 1 || p.has("atomic") {
		if !up.has("atomic") {
			return nil, errors.New("upstream can't change several references at once, all or none: push them one by one")
		}
		caps = append(caps, "atomic")
	}
	if slices.ContainsFunc(p.updates, func(u RefUpdate) bool { return isZero(u.New) }) && !up.has("delete-refs") {
		return nil, errors.New("upstream does not allow deleting references")
	}
	if len(p.options) > 0 {
		if !up.has("push-options") {
			return nil, errors.New("upstream does not support push options")
		}
		caps = append(caps, "push-options")
	}
	var b []byte
	for _, id := range p.shallow {
		b = appendLine(b, "shallow ", id)
	}
	for i, u := range p.updates {
		s := u.Old + " " + u.New + " " + u.Name
		if i == 0 {
			s += "\x00 " + strings.Join(append(caps, "agent=git/carboy"), " ")
		}
		b = appendLine(b, s)
	}
	b = appendFlush(b)
	if len(p.options) > 0 {
		for _, o := range p.options {
			b = appendLine(b, o)
		}
		b = appendFlush(b)
	}
	return b, nil
}

// drain reads the rest of a request, up to max bytes. Otherwise git fails to write it and
// never reads the answer.
func drain(r *http.Request, max int64) {
	_, _ = io.CopyN(io.Discard, r.Body, max)
}
