package gvisor

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
)

// FuzzTarWriter: whatever a bottle can put into names, targets and attributes,
// archive/tar reads the same back and the next entry is found.
func FuzzTarWriter(f *testing.F) {
	f.Add("./a", "to", "user.x", "v", uint32(0), int64(5), []byte("data"))
	f.Add("./"+strings.Repeat("n/", 300), strings.Repeat("l", 4000), "user.y", "\x00\n9 path=x\n", uint32(1<<31), int64(1)<<40, []byte{})
	f.Add("./\xff\n \x01", "\xfe", "k", "v", uint32(2097152), int64(-1), bytes.Repeat([]byte{1}, 1000))
	f.Fuzz(func(t *testing.T, name, link, key, val string, id uint32, mtime int64, data []byte) {
		if name == "" || strings.ContainsRune(name, 0) || strings.ContainsRune(link, 0) || strings.HasSuffix(name, "/") ||
			key == "" || strings.ContainsAny(key, "=\x00") || val == "" || mtime < 0 || len(name)+len(link)+len(key)+len(val) > maxPax {
			return // not a header that an exporter could be asked for
		}
		if mtime >= 1<<33 {
			mtime %= 1 << 33 // ustar's field; the exporter has no others
		}
		var b bytes.Buffer
		w := &tarWriter{w: &b}
		e := &tarEntry{typ: tarRegular, name: name, mode: 0o640, uid: id, gid: id, mtime: mtime, size: int64(len(data)), pax: map[string]string{recXattr + key: val}}
		w.header(e)
		w.Write(data)
		w.pad()
		real := int64(1<<40) + int64(len(data))
		ext := []extent{{3 * 4096, int64(len(data))}}
		hole := &tarEntry{typ: tarRegular, name: name, size: real}
		holes := sparse(hole, ext)
		w.header(hole)
		w.Write(holes)
		w.Write(data)
		w.pad()
		w.header(&tarEntry{typ: tarSymlink, name: name, link: link})
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(&b)
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) || h.Name != name || h.Uid != int(id) || h.PAXRecords[recXattr+key] != val || h.ModTime.Unix() != mtime {
			t.Fatalf("plain file came back as %+v, %q, %v", h, got, err)
		}
		if h, err = r.Next(); err != nil || h.Name != name || h.Size != real {
			t.Fatalf("sparse file came back as %+v, %v", h, err)
		}
		if h, err = r.Next(); err != nil || h.Typeflag != tar.TypeSymlink || h.Name != name || (link != "" && h.Linkname != link) {
			t.Fatalf("link came back as %+v, %v", h, err)
		}
		if _, err = r.Next(); err != io.EOF {
			t.Fatal(err)
		}
	})
}

func TestPaxRecordLength(t *testing.T) {
	for n := 0; n < 1100; n++ {
		r := paxRecord("k", strings.Repeat("v", n))
		var size int
		if _, err := fmt.Sscanf(r, "%d k=", &size); err != nil || size != len(r) {
			t.Fatalf("record of %d bytes says %q", len(r), r[:10])
		}
	}
}

// The sparse map at its largest is one that archive/tar accepts.
func TestLargestSparseMap(t *testing.T) {
	var b bytes.Buffer
	w := &tarWriter{w: &b}
	const base = int64(1) << 62
	var ext []extent
	for i := range int64(maxExtents) {
		ext = append(ext, extent{base + 2*i, 1})
	}
	e := &tarEntry{typ: tarRegular, name: "x", size: base + 4*maxExtents}
	holes := sparse(e, ext)
	w.header(e)
	w.Write(holes)
	w.Write(make([]byte, maxExtents))
	w.pad()
	w.close()
	r := tar.NewReader(&b)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}
}
