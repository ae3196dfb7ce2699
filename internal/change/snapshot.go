package change

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A snapshot records the names that existed when the run began: the path of
// every directory and, for each child, name, type and inode number, as
// getdents lists them (no stat, so 100,000 files take a tenth of a second).
// It is streamed to a file; memory holds only the directories still to visit.
//
// Format: magic, then records of
//
//	uvarint len(path), path, uvarint n, n × (uvarint len(name), name, type, uvarint ino)
//
// and finally the magic again; without it the snapshot is incomplete.
const snapshotMagic = "carboy-names-1\n"

// maxSnapshot bounds the number of names in a snapshot.
const maxSnapshot = 5_000_000

var errSnapshotFull = errors.New("more names than a snapshot holds")

func writeSnapshot(ctx context.Context, root int, w io.Writer) error {
	bw := bufio.NewWriterSize(w, 256<<10)
	if _, err := bw.WriteString(snapshotMagic); err != nil {
		return err
	}
	s := &snapshotter{t: tree{root}, w: bw, buf: make([]byte, 64<<10)}
	todo := []string{"."}
	for len(todo) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		subs, err := s.dir(dir)
		if errors.Is(err, errSnapshotFull) {
			return err
		}
		if err != nil {
			// Gone, unreadable or another mount: the directory gets no
			// record, so changes in it are detected by ctime alone.
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EIO) {
				return err
			}
			continue
		}
		todo = append(todo, subs...)
	}
	if _, err := bw.WriteString(snapshotMagic); err != nil {
		return err
	}
	return bw.Flush()
}

type snapshotter struct {
	t     tree
	w     *bufio.Writer
	buf   []byte
	count int
	rec   []byte
}

func (s *snapshotter) dir(dir string) ([]string, error) {
	var subs []string
	n := 0
	s.rec = s.rec[:0]
	err := s.t.list(dir, s.buf, func(e dirent) error {
		if s.count++; s.count > maxSnapshot {
			return errSnapshotFull
		}
		n++
		rel := join(dir, e.name)
		if e.typ == "" {
			if st, err := s.t.lstat(rel); err == nil {
				e.typ = typeOfMode(st.Mode)
			}
		}
		if e.typ == Dir && strings.Count(rel, "/") < maxDepth {
			subs = append(subs, rel)
		}
		s.rec = binary.AppendUvarint(s.rec, uint64(len(e.name)))
		s.rec = append(s.rec, e.name...)
		s.rec = append(s.rec, typeCode(e.typ))
		s.rec = binary.AppendUvarint(s.rec, e.ino)
		return nil
	})
	if err != nil {
		return nil, err
	}
	head := binary.AppendUvarint(nil, uint64(len(dir)))
	head = append(head, dir...)
	head = binary.AppendUvarint(head, uint64(n))
	if _, err := s.w.Write(head); err != nil {
		return nil, err
	}
	_, err = s.w.Write(s.rec)
	return subs, err
}

func join(dir, name string) string {
	if dir == "." || dir == "" {
		return name
	}
	return dir + "/" + name
}

const typeCodes = "?fdlpcbs"

var codeTypes = []Type{"", File, Dir, Symlink, Fifo, charDevice, blockDevice, Socket}

func typeCode(t Type) byte {
	for i, c := range codeTypes {
		if c == t {
			return typeCodes[i]
		}
	}
	return '?'
}

// names holds the part of a snapshot that one comparison needs.
type names struct {
	complete bool // the walk ended; unreadable directories are missing
	dirs     map[string]map[string]dirent
}

// was reports whether dir/name existed when the run began; known is false if
// the snapshot cannot tell.
func (n *names) was(dir, name string) (e dirent, existed, known bool) {
	if n == nil {
		return dirent{}, false, false
	}
	m, ok := n.dirs[dir]
	if !ok {
		// A whole snapshot without the directory: it was not there.
		return dirent{}, false, n.complete
	}
	e, existed = m[name]
	return e, existed, true
}

// readSnapshot loads the directories that want selects ("." is the root).
// On an error it returns the directories before the damage.
func readSnapshot(file string, want func(dir string) bool) (*names, error) {
	f, err := os.Open(file)
	if err != nil {
		return &names{}, fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 256<<10)
	out := &names{dirs: map[string]map[string]dirent{}}
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil || string(magic) != snapshotMagic {
		return out, fmt.Errorf("read snapshot: %w", ErrCorrupt)
	}
	for {
		if b, err := r.Peek(len(snapshotMagic)); err == nil && string(b) == snapshotMagic {
			out.complete = true
			return out, nil
		}
		dir, ents, err := readSnapshotDir(r, want)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("read snapshot: %w: %w", ErrCorrupt, err)
		}
		if ents != nil {
			out.dirs[dir] = ents
		}
	}
}

func readSnapshotDir(r *bufio.Reader, want func(string) bool) (string, map[string]dirent, error) {
	dir, err := readSnapshotString(r)
	if err != nil {
		return "", nil, err
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", nil, err
	}
	if n > maxSnapshot {
		return "", nil, errors.New("too many names")
	}
	var ents map[string]dirent
	if want(dir) {
		ents = map[string]dirent{}
	}
	for range n {
		name, err := readSnapshotString(r)
		if err != nil {
			return "", nil, err
		}
		code, err := r.ReadByte()
		if err != nil {
			return "", nil, err
		}
		ino, err := binary.ReadUvarint(r)
		if err != nil {
			return "", nil, err
		}
		if ents != nil {
			var t Type
			if i := strings.IndexByte(typeCodes, code); i > 0 {
				t = codeTypes[i]
			}
			ents[name] = dirent{name, ino, t}
		}
	}
	return dir, ents, nil
}

func readSnapshotString(r *bufio.Reader) (string, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", err
	}
	if n > maxPath+1 {
		return "", errors.New("string too long")
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return string(b), err
}
