// Package gitobject reads git's objects, loose ones and packs, from files that an adversary
// may have written.
//
// It trusts no name. An object's name is computed from its content, the index of a pack and
// the file name of a loose object are never read, and so a forged one has no effect.
package gitobject

import (
	"bytes"
	"crypto/sha1" // for git's object names
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"strings"
)

// Digits of an object's name in hex: repositories use one of two hashes.
const (
	SHA1   = 2 * sha1.Size
	SHA256 = 2 * sha256.Size
)

// Kind is the type of an object, by its number in a pack.
type Kind byte

// The kinds. A pack can hold an object as the difference from another one.
const (
	Commit      Kind = 1
	Tree        Kind = 2
	Blob        Kind = 3
	Tag         Kind = 4
	offsetDelta Kind = 6
	nameDelta   Kind = 7
)

var kindNames = [8]string{Commit: "commit", Tree: "tree", Blob: "blob", Tag: "tag"}

// String returns git's word for the kind, "" if it has none.
func (k Kind) String() string { return kindNames[k&7] }

// Whole reports whether the kind is not that of a difference.
func (k Kind) Whole() bool { return k >= Commit && k <= Tag }

// ID is an object's name in bytes. Zeros follow the shorter form.
type ID [sha256.Size]byte

// ParseID returns the ID of a name in hex of either length.
func ParseID(s string) (ID, bool) {
	var id ID
	if len(s) != SHA1 && len(s) != SHA256 {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil && strings.ToLower(s) == s
}

// Hex returns the name in hex.
func (id ID) Hex(digits int) string { return hex.EncodeToString(id[:digits/2]) }

// NewHash returns the hash that makes names of so many digits.
func NewHash(digits int) hash.Hash {
	if digits == SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// Begin starts the hash of an object with its header.
func Begin(h hash.Hash, kind string, size int64) {
	h.Reset()
	h.Write(strconv.AppendInt([]byte(kind+" "), size, 10))
	h.Write([]byte{0})
}

// Name returns the name of an object in hex.
func Name(kind string, body []byte, digits int) string {
	h := NewHash(digits)
	Begin(h, kind, int64(len(body)))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// CommitHead holds the header fields of a commit that lead to other objects.
type CommitHead struct {
	Tree    string
	Parents []string
}

// ParseCommit reads a commit's header as git does: the tree, then the parents.
func ParseCommit(body []byte) CommitHead {
	var c CommitHead
	line, rest, _ := bytes.Cut(body, []byte("\n"))
	if tree, ok := bytes.CutPrefix(line, []byte("tree ")); ok {
		c.Tree = string(tree)
	}
	for {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		p, ok := bytes.CutPrefix(line, []byte("parent "))
		if !ok {
			return c
		}
		c.Parents, rest = append(c.Parents, string(p)), after
	}
}

// TagTarget returns the object that a tag names, "" if the tag is malformed.
func TagTarget(body []byte) string {
	line, _, _ := bytes.Cut(body, []byte("\n"))
	target, _ := bytes.CutPrefix(line, []byte("object "))
	return string(target)
}

// ErrTree means that a tree is malformed.
var ErrTree = errors.New("a tree is malformed")

// The modes of a tree's entries that are no files.
const (
	ModeTree      = "40000"
	ModeLink      = "120000"
	ModeSubmodule = "160000"
)

// EachEntry calls f for each entry of a tree: a mode, a space, a name, a zero byte and an
// id. The slices are parts of body.
func EachEntry(body []byte, digits int, f func(mode string, name, id []byte) error) error {
	n := digits / 2
	for len(body) > 0 {
		space := bytes.IndexByte(body, ' ')
		zero := bytes.IndexByte(body, 0)
		if space < 0 || zero < space || len(body) < zero+1+n {
			return ErrTree
		}
		mode := strings.TrimLeft(string(body[:space]), "0") // old histories have 040000
		if err := f(mode, body[space+1:zero], body[zero+1:zero+1+n]); err != nil {
			return err
		}
		body = body[zero+1+n:]
	}
	return nil
}
