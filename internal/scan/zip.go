package scan

import (
	"encoding/binary"
	"hash/maphash"
	"io"

	"github.com/klauspost/compress/flate"
)

// A zip is read twice: each local header as it comes, with what follows it, and the
// directory at the end. What the directory names must have been read, and must be
// there as the directory says.
type zipState struct {
	entries map[int64]*zipEntry // by the position of the local header
	records map[int64]zipRecord // of the directory
	end64   *zipEnd
}

type zipEntry struct {
	zipHead
	streamed bool // the sizes follow the content
	read     bool
}

// zipHead holds the fields that a local header and the directory share.
type zipHead struct {
	method, flags uint16
	crc           uint32
	packed, size  uint32
	name          uint64 // hashed
}

type zipRecord struct {
	zipHead
	entry, next int64 // positions: of the entry as told, and of the next record
}

type zipEnd struct {
	at                    int64
	count, size, position int64
}

const (
	// maxZipEntries bounds the remembered entries of the zips in one stream. Entries
	// beyond it count as not read.
	maxZipEntries = 1 << 17
	zipEncrypted  = 1 | 1<<6 | 1<<13
	zipStreamed   = 1 << 3
)

var zipNames = maphash.MakeSeed()

// zips returns the state of the zips in l.
func (l *stream) zips() *zipState {
	if l.zip == nil {
		l.zip = &zipState{entries: map[int64]*zipEntry{}, records: map[int64]zipRecord{}}
	}
	return l.zip
}

func u16(b []byte) uint16 { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// headOf reads the part that is the same in a local header and in the directory.
func headOf(b []byte) zipHead {
	return zipHead{flags: u16(b), method: u16(b[2:]), crc: u32(b[8:]), packed: u32(b[12:]), size: u32(b[16:])}
}

// isZipHead reports whether b is what a local header or the directory may say: the
// version that is needed, flags, a method, and a name of n bytes. Other data may have a
// magic by chance, but not this behind it.
func isZipHead(b []byte, n int) bool {
	m := u16(b[4:])
	return b[0] <= 63 && b[1] <= 20 && b[3]&0xc0 == 0 && (m <= 20 || 93 <= m && m <= 99) && 0 < n && n <= 4096
}

// openZipEntry reads a local header and the content behind it.
func openZipEntry(d *decode, r *asking) (io.Reader, error) {
	var h [30]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	e := &zipEntry{zipHead: headOf(h[6:])}
	name := make([]byte, u16(h[26:]))
	likely := isZipHead(h[4:], len(name))
	if d.sure = likely || d.start == 0; !likely {
		if d.sure {
			return nil, errOpaque
		}
		return nil, errNotPacked
	}
	if _, err := io.ReadFull(r, name); err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, r, int64(u16(h[28:]))); err != nil {
		return nil, early(err)
	}
	e.name = maphash.Bytes(zipNames, name)
	e.streamed = e.flags&zipStreamed != 0
	if z := d.parent.zips(); len(z.entries) < maxZipEntries {
		z.entries[d.start] = e
	}
	if e.flags&zipEncrypted != 0 {
		return nil, errOpaque
	}
	if e.method == 0 || !e.streamed && e.packed == 0 {
		e.read = true // what is stored is read as it stands
		return nil, errNotPacked
	}
	d.entry = e
	return d.zipContent(e, r)
}

// zipContent returns a reader of an entry's content.
func (d *decode) zipContent(e *zipEntry, r *asking) (io.Reader, error) {
	if e.method == 8 {
		return flate.NewReader(r), nil
	}
	var in io.Reader = r
	if !e.streamed && e.packed != 1<<32-1 {
		in = &limited{r, int64(e.packed)}
	}
	switch e.method {
	case 12:
		return bzip2Reader(d, in)
	case 20, 93:
		return zstdReader(in)
	case 95:
		return newXZReader(d, in)
	}
	return nil, errOpaque
}

// openZipRecord reads one entry of the directory.
func openZipRecord(d *decode, r *asking) (io.Reader, error) {
	var h [46]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	names, extras := int(u16(h[28:])), int(u16(h[30:]))
	rec := zipRecord{zipHead: headOf(h[8:]), entry: -1, next: d.start + 46 + int64(names+extras) + int64(u16(h[32:]))}
	if isZipHead(h[6:], names) { // otherwise nothing is as the record says
		rest := make([]byte, names+extras)
		if _, err := io.ReadFull(r, rest); err != nil {
			return nil, err
		}
		rec.name = maphash.Bytes(zipNames, rest[:names])
		if rec.entry = int64(u32(h[42:])); rec.entry == 1<<32-1 {
			rec.entry = zip64Position(rest[names:], rec.zipHead)
		}
	}
	if z := d.parent.zips(); len(z.records) < maxZipEntries {
		z.records[d.start] = rec
	}
	return nil, errNotPacked
}

// zip64Position finds the long position of an entry. Before it stand the long sizes.
func zip64Position(extra []byte, h zipHead) int64 {
	for len(extra) >= 4 {
		n := int(u16(extra[2:]))
		if n > len(extra)-4 {
			break
		}
		if field := extra[4 : 4+n]; u16(extra) == 1 {
			for _, size := range []uint32{h.size, h.packed} {
				if size == 1<<32-1 && len(field) >= 8 {
					field = field[8:]
				}
			}
			if len(field) >= 8 {
				return int64(binary.LittleEndian.Uint64(field))
			}
		}
		extra = extra[4+n:]
	}
	return -1
}

// openZip64End reads the end of a large zip's directory, which stands before the usual
// one.
func openZip64End(d *decode, r *asking) (io.Reader, error) {
	var h [56]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	long := func(at int) int64 { return int64(binary.LittleEndian.Uint64(h[at:])) }
	d.parent.zips().end64 = &zipEnd{d.start, long(32), long(40), long(48)}
	return nil, errNotPacked
}

// openZipEnd reads the end of a zip and compares its directory with what was read.
func openZipEnd(d *decode, r *asking) (io.Reader, error) {
	var h [22]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	z := d.parent.zips()
	ends := []zipEnd{{d.start, int64(u16(h[10:])), int64(u32(h[12:])), int64(u32(h[16:]))}}
	if z.end64 != nil {
		ends = append(ends, *z.end64)
	}
	for _, e := range ends {
		// Something may stand before the zip, so that all of it is further on than told.
		begins := []int64{e.at - e.size}
		if e.position != begins[0] {
			begins = append(begins, e.position)
		}
		for _, at := range begins {
			n, ok := z.compare(at, at-e.position)
			if err := d.stream.s.spend(n); err != nil {
				return nil, err
			}
			if n > 0 && (!ok || e.count != 1<<16-1 && (int64(n)-e.count)&0xffff != 0) {
				return nil, errOpaque
			}
		}
	}
	return nil, errNotPacked
}

// compare counts the records of the directory that begins at a position, and reports
// whether all that they name was read, and is there as they say. shift is how much
// further on than told the zip stands.
func (z *zipState) compare(at, shift int64) (n int, ok bool) {
	ok = true
	for r, is := z.records[at]; is && ok; r, is = z.records[r.next] {
		e := z.entries[r.entry+shift]
		if e == nil {
			e = z.entries[r.entry]
		}
		ok = e != nil && e.read && e.name == r.name && e.method == r.method && (e.flags^r.flags)&zipEncrypted == 0 &&
			(e.streamed || e.crc == r.crc && sameSize(e.packed, r.packed) && sameSize(e.size, r.size))
		n++
	}
	return n, ok
}

// sameSize reports whether two sizes agree. One of them may be long and stand elsewhere.
func sameSize(a, b uint32) bool { return a == b || max(a, b) == 1<<32-1 }
