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

// Schema identifies the format of the index that Collect writes.
const Schema = "carboy.dev/changes/v1"

// Kind is how a path changed. The zero value is invalid and never lands.
type Kind string

// The kinds of changes.
const (
	Add    Kind = "add"
	Modify Kind = "modify" // content of a file or target of a link
	Delete Kind = "delete"
	Mode   Kind = "mode" // permission bits only
	Retype Kind = "type" // the type of the file
)

// Type is a type of file.
type Type string

// The types of files.
const (
	File        Type = "file"
	Dir         Type = "dir"
	Symlink     Type = "symlink"
	Fifo        Type = "fifo"
	charDevice  Type = "chardev"
	blockDevice Type = "blockdev"
	Socket      Type = "socket"
)

func (t Type) landable() bool { return t == File || t == Dir || t == Symlink }

// Fingerprint holds the metadata of a host's file by which a later change of
// it is noticed.
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

// Change describes how the bottle changed one path.
type Change struct {
	// Path is relative to the workspace, slash-separated, without "." or
	// "..", never empty; any byte but NUL may occur.
	Path Bytes `json:"path"`
	Kind Kind  `json:"kind"`
	// Type, Mode, Size, SHA256 and Target describe the bottle's file; for a
	// deletion, Type is the type of the deleted file.
	Type   Type   `json:"type"`
	Mode   uint32 `json:"mode,omitempty"` // 07777
	Size   int64  `json:"size,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Target Bytes  `json:"target,omitempty"`
	// HardLink is another path of the workspace that named the same file in
	// the bottle. Landing makes separate files.
	HardLink Bytes `json:"hard_link,omitempty"`
	// Base is the host's file when the changes were collected, nil if absent.
	Base *Fingerprint `json:"base,omitempty"`
	// BaseMoved says how the host changed the path while the bottle ran, ""
	// if it did not. Such a change is a conflict and does not land.
	BaseMoved string `json:"base_moved,omitempty"`
	// Protected lists why the path lands only with IncludeProtected.
	Protected []Reason `json:"protected,omitempty"`
	// Ignored reports that .gitignore names the path, or that it is in a directory that
	// programs fill. It is shown and lands only if somebody asks for it.
	Ignored bool `json:"ignored,omitempty"`
	// Unlandable says why the path never lands, "" if it can.
	Unlandable string `json:"unlandable,omitempty"`
	// Omitted says why the content was not stored, "" if it was.
	Omitted string `json:"omitted,omitempty"`
	// Offset locates the content in the pack, in bytes.
	Offset int64 `json:"offset,omitempty"`
}

// Bookkeeping reports whether the path is one of git's internal files that a
// reviewer learns nothing from. They are never copied; Set.Refs shows what they
// mean. It returns false for what could make git run something.
func (c *Change) Bookkeeping() bool {
	_, rest, ok := cutGit(string(c.Path))
	return ok && len(c.Protected) == 0 && (c.Type == Dir || c.Type == File || c.Kind == Delete && rest != "")
}

// Reference reports whether the path is one of those in which git keeps what references
// are: commits may come with it.
func (c *Change) Reference() bool {
	_, rest, ok := cutGit(string(c.Path))
	return ok && c.Type == File && (rest == "packed-refs" || strings.HasPrefix(rest, "refs/") || strings.HasPrefix(rest, "reftable/"))
}

// Set holds all changes that a bottle made to a workspace.
type Set struct {
	Schema    string   `json:"schema"`
	Workspace Identity `json:"workspace"`
	// Changes is sorted so that a directory precedes what it holds.
	Changes []Change `json:"changes"`
	// Protection is the policy that filled in Change.Protected.
	Protection Policy `json:"protection"`
	// Incomplete says what is missing; empty when nothing is. Landing an
	// incomplete set needs LandOptions.AllowIncomplete.
	Incomplete []string `json:"incomplete,omitempty"`
	// Notes are facts that a person should know, such as a clock jump.
	Notes []string `json:"notes,omitempty"`
	// Outside counts the stream's entries outside the workspace.
	Outside int64 `json:"outside"`
	// Dropped counts entries that are not changes (copied up, but equal).
	Dropped int64 `json:"dropped"`
	// Stored is the number of bytes on disk, Logical the sum of file sizes.
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

// Lookup returns the change of one path.
func (s *Set) Lookup(path string) (*Change, bool) {
	i, ok := s.index[path]
	if !ok {
		return nil, false
	}
	return &s.Changes[i], true
}

// protected returns the changes that land only with IncludeProtected.
func (s *Set) protected() []*Change {
	var out []*Change
	for i := range s.Changes {
		if len(s.Changes[i].Protected) > 0 {
			out = append(out, &s.Changes[i])
		}
	}
	return out
}

// Content opens the bottle's content of a regular file. The reader yields
// exactly c.Size bytes. It does not compare them with c.SHA256.
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

// Bytes is a string of arbitrary bytes. In JSON it is a string if it is valid
// UTF-8, else an object with a printable form and the exact bytes in base64.
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

// Bounds of every path in a set; no option changes them.
const (
	maxPath      = 4095 // PATH_MAX without the NUL
	maxComponent = 255
	maxDepth     = 255
)

// checkRel returns ErrMalformed unless p can be the path of a file below the
// workspace.
func checkRel(p string) error {
	switch {
	case p == "":
		return fmt.Errorf("%w: empty path", errMalformed)
	case len(p) > maxPath:
		return fmt.Errorf("%w: path of %d bytes", errMalformed, len(p))
	case strings.IndexByte(p, 0) >= 0:
		return fmt.Errorf("%w: NUL in a path", errMalformed)
	}
	depth := 0
	for c := range strings.SplitSeq(p, "/") {
		depth++
		switch {
		case c == "" || c == "." || c == "..":
			return fmt.Errorf("%w: component %q in a path", errMalformed, c)
		case len(c) > maxComponent:
			return fmt.Errorf("%w: component of %d bytes", errMalformed, len(c))
		case depth > maxDepth:
			return fmt.Errorf("%w: path deeper than %d", errMalformed, maxDepth)
		}
	}
	return nil
}

// pathCompare orders paths so that a directory is followed by its contents,
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
