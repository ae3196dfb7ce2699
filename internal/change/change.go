package change

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Schema names the format of the index that Collect writes.
const Schema = "carboy.dev/changes/v1"

// Kind says what happened to a path. The zero value is no kind and is never
// landed.
type Kind string

// The kinds of changes.
const (
	Add    Kind = "add"
	Modify Kind = "modify" // content of a file or target of a link
	Delete Kind = "delete"
	Mode   Kind = "mode" // permission bits only
	Retype Kind = "type" // one type of file became another
)

// Type is a type of file.
type Type string

// The types of files.
const (
	File        Type = "file"
	Dir         Type = "dir"
	Symlink     Type = "symlink"
	Fifo        Type = "fifo"
	CharDevice  Type = "chardev"
	BlockDevice Type = "blockdev"
	Socket      Type = "socket"
)

func (t Type) landable() bool { return t == File || t == Dir || t == Symlink }

// Fingerprint describes a file of the host well enough to notice a change.
type Fingerprint struct {
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode"` // 07777
	Size   int64  `json:"size"`
	Mtime  int64  `json:"mtime"` // ns since 1970
	Ctime  int64  `json:"ctime"`
	Ino    uint64 `json:"ino"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	SHA256 string `json:"sha256,omitempty"` // of regular files, when read
	Target Bytes  `json:"target,omitempty"` // of symbolic links
}

// Change is what the bottle did to one path.
type Change struct {
	// Path is relative to the workspace, slash-separated, without "." or
	// "..", never empty; any byte but NUL may occur.
	Path Bytes `json:"path"`
	Kind Kind  `json:"kind"`
	// Type, Mode, Size, SHA256 and Target describe the bottle's file; of a
	// deletion Type is what was there.
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode,omitempty"` // 07777
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Target Bytes  `json:"target,omitempty"`
	// HardLink is another path of the workspace that was the same file in
	// the bottle. Landing makes separate files.
	HardLink Bytes `json:"hard_link,omitempty"`
	// Base is the host's file when the changes were collected, nil if absent.
	Base *Fingerprint `json:"base,omitempty"`
	// BaseMoved says how the host changed the path while the bottle ran;
	// such a change is a conflict and does not land.
	BaseMoved string `json:"base_moved,omitempty"`
	// Protected lists why the path lands only with IncludeProtected.
	Protected []Reason `json:"protected,omitempty"`
	// Unlandable says why the path never lands.
	Unlandable string `json:"unlandable,omitempty"`
	// Omitted says why the content was not kept.
	Omitted string `json:"omitted,omitempty"`
	// Offset of the content in the pack.
	Offset int64 `json:"offset,omitempty"`
}

// Bookkeeping reports whether the path is one that git keeps for itself and that
// says nothing to a person: objects, reflogs, the index. It is never so when
// the change is protected, in conflict or can't land. Refs and HEAD are no
// bookkeeping: they say what a landing moves.
func (c *Change) Bookkeeping() bool {
	if len(c.Protected) > 0 || c.BaseMoved != "" || c.Unlandable != "" || c.Omitted != "" {
		return false
	}
	rest, ok := strings.CutPrefix(string(c.Path), ".git/")
	if !ok {
		_, rest, ok = strings.Cut(string(c.Path), "/.git/")
	}
	if !ok {
		return false
	}
	first, _, _ := strings.Cut(rest, "/")
	switch first {
	case "objects", "logs", "index", "COMMIT_EDITMSG", "FETCH_HEAD", "ORIG_HEAD":
		return true
	}
	return false
}

// Set is everything a bottle did to a workspace.
type Set struct {
	Schema    string   `json:"schema"`
	Workspace Identity `json:"workspace"`
	// Changes is sorted so that a directory precedes what it holds.
	Changes []Change `json:"changes"`
	// Protection is the policy by which Protected was filled in.
	Protection Policy `json:"protection"`
	// Incomplete says what is missing; empty when nothing is. Landing an
	// incomplete set needs LandOptions.AllowIncomplete.
	Incomplete []string `json:"incomplete,omitempty"`
	// Notes are facts that a person should know, such as a clock jump.
	Notes []string `json:"notes,omitempty"`
	// Outside counts entries of the stream that are not in the workspace.
	Outside int64 `json:"outside"`
	// Dropped counts entries that are no changes (copied up, but equal).
	Dropped int64 `json:"dropped"`
	// Stored and Logical are the bytes on disk and in the files.
	Stored  int64 `json:"stored"`
	Logical int64 `json:"logical"`

	dir   string // the run directory
	index map[string]int
}

const (
	upperDir = "upper"
	landDir  = "land"
	setFile  = "changes.json"
	packFile = "pack"
)

// OpenSet reads the set that Collect wrote below runDir.
func OpenSet(runDir string) (*Set, error) {
	name := filepath.Join(runDir, upperDir, setFile)
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("open changes: %w", err)
	}
	s := &Set{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("open changes %s: %w: %w", show(name), ErrCorrupt, err)
	}
	if s.Schema != Schema {
		return nil, fmt.Errorf("open changes %s: schema %s, want %s: %w", show(name), show(s.Schema), Schema, ErrCorrupt)
	}
	for i := range s.Changes {
		if err := checkRel(string(s.Changes[i].Path)); err != nil {
			return nil, fmt.Errorf("open changes %s: %w: %w", show(name), ErrCorrupt, err)
		}
	}
	s.dir = runDir
	s.reindex()
	return s, nil
}

func (s *Set) reindex() {
	s.index = make(map[string]int, len(s.Changes))
	for i := range s.Changes {
		s.index[string(s.Changes[i].Path)] = i
	}
}

// Lookup finds the change of one path.
func (s *Set) Lookup(path string) (*Change, bool) {
	i, ok := s.index[path]
	if !ok {
		return nil, false
	}
	return &s.Changes[i], true
}

// Protected lists the changes that land only with IncludeProtected.
func (s *Set) Protected() []*Change {
	var out []*Change
	for i := range s.Changes {
		if len(s.Changes[i].Protected) > 0 {
			out = append(out, &s.Changes[i])
		}
	}
	return out
}

// Content opens the bottle's content of a regular file. The reader yields
// exactly c.Size bytes; whether they have c.SHA256 is for the caller to see.
func (s *Set) Content(c *Change) (io.ReadCloser, error) {
	if c.Type != File || c.Omitted != "" || c.Kind == Delete {
		return nil, fmt.Errorf("open content of %s: not kept", show(string(c.Path)))
	}
	f, err := os.Open(filepath.Join(s.dir, upperDir, packFile))
	if err != nil {
		return nil, wrapPath("open content of", string(c.Path), err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, c.Offset, c.Size), f}, nil
}

// Bytes is a string of any bytes. In JSON it is a string when it is UTF-8,
// else an object with a visible form and the exact bytes in base64.
type Bytes string

type bytesJSON struct {
	Visible string `json:"visible"`
	Base64  string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(b)) {
		return json.Marshal(string(b))
	}
	return json.Marshal(bytesJSON{show(string(b)), base64.StdEncoding.EncodeToString([]byte(b))})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var v bytesJSON
		if err := json.Unmarshal(data, &v); err != nil {
			return err
		}
		raw, err := base64.StdEncoding.DecodeString(v.Base64)
		*b = Bytes(raw)
		return err
	}
	var s string
	err := json.Unmarshal(data, &s)
	*b = Bytes(s)
	return err
}

// Bounds of every path in a set, whatever the options say.
const (
	maxPath      = 4095 // PATH_MAX without the NUL
	maxComponent = 255
	maxDepth     = 255
)

// checkRel accepts what may name a file below the workspace and nothing else.
func checkRel(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("%w: empty path", ErrMalformed)
	case len(p) > maxPath:
		return fmt.Errorf("%w: path of %d bytes", ErrMalformed, len(p))
	case strings.IndexByte(p, 0) >= 0:
		return fmt.Errorf("%w: NUL in a path", ErrMalformed)
	}
	depth := 0
	for c := range strings.SplitSeq(p, "/") {
		depth++
		switch {
		case c == "" || c == "." || c == "..":
			return fmt.Errorf("%w: component %q in a path", ErrMalformed, c)
		case len(c) > maxComponent:
			return fmt.Errorf("%w: component of %d bytes", ErrMalformed, len(c))
		case depth > maxDepth:
			return fmt.Errorf("%w: path deeper than %d", ErrMalformed, maxDepth)
		}
	}
	return nil
}

// pathCompare orders paths so that a directory is followed by what it holds,
// before any sibling ("a", "a/b", "a-b").
func pathCompare(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return int(sepFirst(a[i])) - int(sepFirst(b[i]))
		}
	}
	return len(a) - len(b)
}

func sepFirst(c byte) byte {
	if c == '/' {
		return 0
	}
	return c
}
