package gvisor

import (
	"bytes"
	"fmt"
	"io"
	"sort"
	"strconv"
)

// tarWriter writes what archive/tar's Reader understands but its Writer cannot
// produce: sparse files (GNU 1.0 in PAX) and entries whose attributes the
// Writer refuses. One bad name must not spoil the whole export.
//
// Formats: POSIX.1-2001 pax, GNU tar manual "Sparse Formats" D.2.
type tarWriter struct {
	w   io.Writer
	err error // the first one; later writes do nothing
	n   int64
}

const (
	tarBlock = 512
	// Readers refuse a longer extended header or sparse map (archive/tar:
	// maxSpecialFileSize). Both kinds stay well below.
	maxPax     = 512 << 10
	maxExtents = 20000 // two numbers of at most 20 digits each: 840 kB
)

// Types of entries, as in archive/tar.
const (
	tarRegular  = '0'
	tarLink     = '1'
	tarSymlink  = '2'
	tarChar     = '3'
	tarBlockDev = '4'
	tarDir      = '5'
	tarFifo     = '6'
	tarPax      = 'x'
	tarSame     = 'U' // of checkpoints: a regular file without its content
)

type tarEntry struct {
	typ          byte
	name, link   string
	mode         uint32
	uid, gid     uint32
	mtime        int64 // seconds
	size         int64 // bytes of this entry in the stream
	major, minor uint32
	pax          map[string]string
}

type extent struct{ off, len int64 }

func (t *tarWriter) Write(b []byte) (int, error) {
	if t.err != nil {
		return 0, t.err
	}
	n, err := t.w.Write(b)
	t.n += int64(n)
	t.err = err
	return n, err
}

func (t *tarWriter) pad() {
	var zero [tarBlock]byte
	if r := t.n % tarBlock; r != 0 {
		t.Write(zero[r:])
	}
}

// header writes the entry's header; the caller writes size bytes and calls pad.
func (t *tarWriter) header(e *tarEntry) {
	pax := map[string]string{}
	for k, v := range e.pax {
		pax[k] = v
	}
	if len(e.name) > 100 {
		pax["path"] = e.name
	}
	if len(e.link) > 100 {
		pax["linkpath"] = e.link
	}
	num := func(key string, v int64, digits int) string {
		if v < 0 || v >= 1<<(3*digits) {
			pax[key] = strconv.FormatInt(v, 10)
			v = 0
		}
		return fmt.Sprintf("%0*o", digits, v)
	}
	var b [tarBlock]byte
	copy(b[:100], e.name)
	copy(b[100:], fmt.Sprintf("%07o", e.mode&0o7777))
	copy(b[108:], num("uid", int64(e.uid), 7))
	copy(b[116:], num("gid", int64(e.gid), 7))
	copy(b[124:], num("size", e.size, 11))
	copy(b[136:], num("mtime", e.mtime, 11))
	b[156] = e.typ
	copy(b[157:257], e.link)
	copy(b[257:], "ustar\x0000")
	copy(b[329:], fmt.Sprintf("%07o", e.major&0o7777777))
	copy(b[337:], fmt.Sprintf("%07o", e.minor&0o7777777))
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	if len(pax) > 0 {
		t.extended(pax)
	}
	t.Write(b[:])
}

// extended writes the pax header that belongs to the next entry.
func (t *tarWriter) extended(pax map[string]string) {
	keys := make([]string, 0, len(pax))
	for k := range pax {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var body bytes.Buffer
	for _, k := range keys {
		body.WriteString(paxRecord(k, pax[k]))
	}
	t.header(&tarEntry{typ: tarPax, name: "PaxHeaders/0", mode: 0o644, size: int64(body.Len())})
	t.Write(body.Bytes())
	t.pad()
}

// paxRecord returns "LENGTH KEY=VALUE\n", where LENGTH counts itself.
func paxRecord(k, v string) string {
	size := len(k) + len(v) + 3
	for s := size + len(strconv.Itoa(size)); ; s++ {
		if len(strconv.Itoa(s))+size == s {
			return strconv.Itoa(s) + " " + k + "=" + v + "\n"
		}
	}
}

// sparse makes e, whose size is the file's, the entry of a file of which only data is
// stored. It returns the map that precedes the data.
func sparse(e *tarEntry, data []extent) []byte {
	var m bytes.Buffer
	fmt.Fprintf(&m, "%d\n", len(data))
	var stored int64
	for _, x := range data {
		fmt.Fprintf(&m, "%d\n%d\n", x.off, x.len)
		stored += x.len
	}
	if r := m.Len() % tarBlock; r != 0 {
		m.Write(make([]byte, tarBlock-r))
	}
	pax := map[string]string{
		"GNU.sparse.major":    "1",
		"GNU.sparse.minor":    "0",
		"GNU.sparse.name":     e.name,
		"GNU.sparse.realsize": strconv.FormatInt(e.size, 10),
	}
	for k, v := range e.pax {
		pax[k] = v
	}
	e.pax, e.size = pax, int64(m.Len())+stored
	return m.Bytes()
}

// close ends the archive.
func (t *tarWriter) close() error {
	t.Write(make([]byte, 2*tarBlock))
	return t.err
}
