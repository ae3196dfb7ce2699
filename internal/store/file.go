package store

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// MaxDocument bounds a JSON document of the store, in bytes. The longest command line that Linux passes on fits.
const MaxDocument = 16 << 20

// SchemaError says that a document has another kind or version than expected.
type SchemaError struct {
	File  string
	Field string // "schema"
	Got   string
	Want  string
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s: field %q is %s, this carboy reads %s", e.File, e.Field, strconv.Quote(e.Got), strconv.Quote(e.Want))
}

// Schema returns the value of a document's "schema" field: "carboy.dev/<kind>/v1".
func Schema(kind string) string { return "carboy.dev/" + kind + "/v1" }

// Encode returns v as an indented JSON document that ends in a line break. v must marshal to an object whose "schema" is
// Schema(kind); otherwise Encode returns an error, because Decode would reject the document.
func Encode(kind string, v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	if buf.Len() > MaxDocument {
		return nil, fmt.Errorf("encode %s: %d bytes are more than %d", kind, buf.Len(), MaxDocument)
	}
	if err := checkSchema(kind, buf.Bytes(), kind); err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	return buf.Bytes(), nil
}

// Decode decodes a document of kind into v; file is its name in errors. It ignores unknown fields, because later versions
// only add fields. The error is a *SchemaError for another kind or major version.
func Decode(file, kind string, data []byte, v any) error {
	if err := checkSchema(file, data, kind); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func checkSchema(file string, data []byte, kind string) error {
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if want := Schema(kind); head.Schema != want {
		return &SchemaError{File: file, Field: "schema", Got: head.Schema, Want: want}
	}
	return nil
}

// WriteFile replaces the file at path atomically, and returns after file and directory are synced. If path is a symbolic
// link, WriteFile replaces the link. With concurrent writers the last one wins. A crash can leave a file
// ".<name>.<random>.tmp" beside it.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	dir, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	defer unix.Close(dir)
	name := filepath.Base(path)
	if err := replaceFile(kernel{}, dir, name, "."+name+"."+rand.Text()[:10]+".tmp", data, uint32(mode.Perm())); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// WriteJSON is WriteFile with Encode, mode 0600.
func WriteJSON(path, kind string, v any) error {
	data, err := Encode(kind, v)
	if err != nil {
		return err
	}
	return WriteFile(path, data, 0o600)
}

// ReadJSON reads a document that WriteJSON wrote. It fails if path is a symbolic link or has more than MaxDocument bytes.
func ReadJSON(path, kind string, v any) error {
	data, err := ReadDocument(path)
	if err != nil {
		return err
	}
	return Decode(path, kind, data, v)
}

// ReadDocument is ReadJSON without decoding. It returns the bytes for Decode.
func ReadDocument(path string) ([]byte, error) {
	data, err := readAt(kernel{}, unix.AT_FDCWD, path)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return data, nil
}

// replaceFile writes data to tmp, syncs it and renames it to name. On failure name is unchanged and tmp is removed; if
// that fails too, the next call replaces tmp.
func replaceFile(s sys, dir int, name, tmp string, data []byte, mode uint32) (err error) {
	if err := s.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := s.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.Unlinkat(dir, tmp, 0)
		}
	}()
	err = writeAll(s, fd, data)
	if err == nil {
		err = s.Fsync(fd)
	}
	// Network file systems report a full disk at close.
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := s.Renameat(dir, tmp, dir, name); err != nil {
		return err
	}
	return s.Fsync(dir)
}

func writeAll(s sys, fd int, data []byte) error {
	for len(data) > 0 {
		n, err := s.Write(fd, data)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		data = data[n:]
	}
	return nil
}

func readAt(s sys, dir int, name string) ([]byte, error) {
	fd, err := s.Openat(dir, name, readFlags, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxDocument+1))
	if err == nil && len(data) > MaxDocument {
		err = fmt.Errorf("more than %d bytes", MaxDocument)
	}
	return data, err
}

// Raw is a string of arbitrary bytes, such as a path or an argument. In JSON it is a string if it is valid UTF-8, else
// {"base64": "…"}: encoding/json alone would replace bytes, and the path would name another file.
type Raw string

// MarshalJSON implements json.Marshaler.
func (r Raw) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(r)) {
		return json.Marshal(string(r))
	}
	return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString([]byte(r))})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Raw) UnmarshalJSON(b []byte) error {
	if strings.HasPrefix(string(b), `"`) {
		return json.Unmarshal(b, (*string)(r))
	}
	var o struct {
		Base64 *[]byte `json:"base64"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	if o.Base64 == nil {
		return errors.New(`want a string or {"base64": …}`)
	}
	*r = Raw(*o.Base64)
	return nil
}

// Raws converts strings, for a command line.
func Raws(ss []string) []Raw {
	out := make([]Raw, len(ss))
	for i, s := range ss {
		out[i] = Raw(s)
	}
	return out
}
