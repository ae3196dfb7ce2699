package audit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint describes the log at some moment.
type Checkpoint struct {
	Origin string    `json:"origin"` // name of the log and of its key
	Size   int64     `json:"size"`   // records
	Root   tlog.Hash `json:"root"`
	Bytes  int64     `json:"bytes"` // of the file log
}

// maxCheckpoint bounds one entry of the file checkpoints.
const maxCheckpoint = 1 << 10

var (
	entryEnd  = []byte("\n\n")
	sigPrefix = []byte("— ")
)

func (c *Checkpoint) sign(s note.Signer) ([]byte, error) {
	text := fmt.Sprintf("%s\n%d\n%s\nbytes %d\n", c.Origin, c.Size, c.Root, c.Bytes)
	return note.Sign(&note.Note{Text: text}, s)
}

// ParseCheckpoint parses a signed checkpoint and verifies it with key (in the form of package note: name+hash+base64).
// Only one encoding is valid: unused bits must be as this package writes them, and there must be exactly one signature.
func ParseCheckpoint(signed []byte, key string) (Checkpoint, error) {
	v, err := parsePublic(key)
	if err != nil {
		return Checkpoint{}, err
	}
	return openCheckpoint(signed, v)
}

func openCheckpoint(signed []byte, v note.Verifier) (Checkpoint, error) {
	var c Checkpoint
	if len(signed) > maxCheckpoint {
		return c, fmt.Errorf("checkpoint: more than %d bytes", maxCheckpoint)
	}
	n, err := note.Open(signed, note.VerifierList(v))
	if err != nil {
		return c, fmt.Errorf("checkpoint: %w", err)
	}
	sig, _ := base64.StdEncoding.DecodeString(n.Sigs[0].Base64) // Open has decoded it before
	canonical := n.Text + "\n" + string(sigPrefix) + n.Sigs[0].Name + " " + base64.StdEncoding.EncodeToString(sig) + "\n"
	if canonical != string(signed) {
		return c, errors.New("checkpoint: not in canonical form")
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) != 5 || lines[0] != v.Name() || !strings.HasPrefix(lines[3], "bytes ") {
		return c, errors.New("checkpoint: malformed")
	}
	c.Origin = lines[0]
	if c.Size, err = number(lines[1]); err != nil {
		return c, err
	}
	if c.Root, err = tlog.ParseHash(lines[2]); err != nil {
		return c, fmt.Errorf("checkpoint: %w", err)
	}
	c.Bytes, err = number(lines[3][len("bytes "):])
	return c, err
}

func number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("checkpoint: %q is not a number", s)
	}
	return n, nil
}

// nextEntry cuts the first complete entry off b, which starts with one. It returns nil if there is none.
func nextEntry(b []byte) (signed, rest []byte) {
	text := bytes.Index(b, entryEnd)
	if text < 0 {
		return nil, b
	}
	sig := bytes.Index(b[text+2:], entryEnd)
	if sig < 0 {
		return nil, b
	}
	end := text + 2 + sig
	return b[:end+1], b[end+2:]
}

// lastEntry returns the last complete entry in b, the end of the file checkpoints, and the number of bytes after it.
func lastEntry(b []byte) (signed []byte, torn int) {
	for end := len(b); ; {
		sigEnd := bytes.LastIndex(b[:end], entryEnd)
		if sigEnd < 0 {
			return nil, len(b)
		}
		textEnd := bytes.LastIndex(b[:sigEnd], entryEnd)
		if textEnd < 0 {
			return nil, len(b)
		}
		if !bytes.HasPrefix(b[textEnd+2:], sigPrefix) { // what is torn holds a text already, without its signature
			end = sigEnd
			continue
		}
		start := 0
		if i := bytes.LastIndex(b[:textEnd], entryEnd); i >= 0 {
			start = i + 2
		}
		return b[start : sigEnd+1], len(b) - (sigEnd + 2)
	}
}
