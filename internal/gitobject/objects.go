package gitobject

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zlib"
)

// Bounds of what is read. A file may unpack to a thousand times its size.
const (
	maxObjects  = 4_000_000
	maxUnpacked = 256 << 30 // bytes of all objects
	maxBody     = 512 << 20 // bytes of an object that is held: a difference, its base, its result
	maxLive     = 1 << 30   // bytes held at once while differences are resolved
	maxKept     = 128 << 20 // bytes of commits, trees and tags that stay in memory
	keptObject  = 1 << 20   // bytes of the largest such object
)

// errBound means that a file holds more than is read.
var errBound = errors.New("it unpacks to more than is read")

// Objects holds the places of objects in files. It is for one goroutine.
type Objects struct {
	digits int
	at     map[ID]*object
	h      hash.Hash
	buf    []byte
	count  int
	left   int64 // bytes that may be unpacked
	kept   int64
	z      io.ReadCloser
}

type object struct {
	id    ID
	kind  Kind // of the content; of a difference, when it is resolved
	src   io.ReaderAt
	loose bool
	off   int64 // of the compressed bytes
	clen  int64 // their number
	size  int64 // of the content, or of the difference
	base  *object
	body  []byte // of small commits, trees and tags
}

// New returns an empty set for names of so many digits.
func New(digits int) *Objects {
	return &Objects{digits: digits, at: map[ID]*object{}, h: NewHash(digits), buf: make([]byte, 64<<10), left: maxUnpacked}
}

// IDs calls f with the name of every object.
func (o *Objects) IDs(f func(ID)) {
	for id := range o.at {
		f(id)
	}
}

// Has reports whether the set has an object.
func (o *Objects) Has(id ID) bool { return o.at[id] != nil }

// add enters an object whose name is known. The first of several with one name stays, so
// that a difference's base always entered before it.
func (o *Objects) add(x *object) {
	if o.at[x.id] == nil {
		o.at[x.id] = x
	} else {
		x.body = nil
	}
}

// take charges one more object of n bytes.
func (o *Objects) take(n int64) error {
	if o.count++; o.count > maxObjects || n < 0 || n > o.left {
		return errBound
	}
	o.left -= n
	return nil
}

// name reads the content of an object of n bytes and fills in its name.
func (o *Objects) name(x *object, r io.Reader, n int64) error {
	Begin(o.h, x.kind.String(), n)
	var to io.Writer = o.h
	var body *bytes.Buffer
	if x.kind != Blob && n <= keptObject && o.kept+n <= maxKept {
		body = bytes.NewBuffer(make([]byte, 0, n))
		to = io.MultiWriter(o.h, body)
	}
	got, err := io.CopyBuffer(to, struct{ io.Reader }{io.LimitReader(r, n)}, o.buf)
	if err != nil || got != n {
		return ErrPack
	}
	o.h.Sum(x.id[:0])
	if body != nil {
		x.body = body.Bytes()
		o.kept += n
	}
	return nil
}

// AddLoose adds the loose object in a file of size bytes.
func (o *Objects) AddLoose(r io.ReaderAt, size int64) error {
	x := &object{src: r, loose: true, clen: size}
	b, err := o.openLoose(x)
	if err != nil {
		return err
	}
	if err := o.take(x.size); err != nil {
		return err
	}
	if err := o.name(x, b, x.size); err != nil {
		return err
	}
	if _, err := b.ReadByte(); err != io.EOF {
		return ErrPack
	}
	o.add(x)
	return nil
}

// openLoose opens a loose object's content. It fills in kind and size.
func (o *Objects) openLoose(x *object) (*bufio.Reader, error) {
	z, err := o.inflate(bufio.NewReader(io.NewSectionReader(x.src, 0, x.clen)))
	if err != nil {
		return nil, err
	}
	b := bufio.NewReader(z)
	head, err := b.ReadSlice(0)
	if err != nil || len(head) > 32 {
		return nil, ErrPack
	}
	kind, n, _ := strings.Cut(string(head[:len(head)-1]), " ")
	for k := Commit; k <= Tag; k++ {
		if k.String() == kind {
			x.kind = k
		}
	}
	x.size, err = strconv.ParseInt(n, 10, 64)
	if x.kind == 0 || err != nil || x.size < 0 {
		return nil, ErrPack
	}
	return b, nil
}

func (o *Objects) inflate(r *bufio.Reader) (io.Reader, error) {
	var err error
	if o.z == nil {
		o.z, err = zlib.NewReader(r)
	} else {
		err = o.z.(zlib.Resetter).Reset(r, nil)
	}
	return o.z, err
}

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// AddPack adds the objects of a pack of size bytes. After an error the objects up to there
// are in the set.
func (o *Objects) AddPack(ctx context.Context, r io.ReaderAt, size int64) error {
	d := &deltas{o: o, at: map[int64]*object{}, kids: map[*object][]*object{}, named: map[ID][]*object{}}
	err := o.scan(ctx, r, size, d)
	return errors.Join(err, d.resolve(ctx))
}

// scan reads a pack from the first object to the last, and names those that are whole.
func (o *Objects) scan(ctx context.Context, r io.ReaderAt, size int64, d *deltas) error {
	in := &counter{r: io.NewSectionReader(r, 0, size)}
	b := bufio.NewReaderSize(in, 256<<10)
	p := NewPackReader(b, o.digits)
	count, err := p.Begin()
	if err != nil {
		return err
	}
	at := func() int64 { return in.n - int64(b.Buffered()) }
	for range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := at()
		e, err := p.Next()
		if err == nil {
			err = o.take(e.Size)
		}
		if err != nil {
			return err
		}
		x := &object{kind: e.Kind, src: r, off: at(), size: e.Size}
		if err := p.Open(); err != nil {
			return ErrPack
		}
		if e.Kind.Whole() {
			err = o.name(x, p, e.Size)
		} else if n, cerr := io.CopyBuffer(io.Discard, struct{ io.Reader }{io.LimitReader(p, e.Size)}, o.buf); cerr != nil || n != e.Size {
			err = ErrPack
		}
		if err == nil {
			err = p.End()
		}
		if err != nil {
			return err
		}
		x.clen = at() - x.off
		d.at[start] = x
		switch {
		case e.Kind.Whole():
			o.add(x)
		case e.Kind == nameDelta:
			d.named[e.base] = append(d.named[e.base], x)
		default:
			if base := d.at[start-e.back]; base != nil && e.back > 0 {
				d.kids[base] = append(d.kids[base], x)
			}
		}
	}
	return nil
}

// deltas resolves the differences of one pack.
type deltas struct {
	o     *Objects
	at    map[int64]*object
	kids  map[*object][]*object // by base
	named map[ID][]*object      // by the base's name
	live  int64
}

// of returns the differences from x, once.
func (d *deltas) of(x *object) []*object {
	kids := append(d.kids[x], d.named[x.id]...)
	delete(d.kids, x)
	delete(d.named, x.id)
	return kids
}

// resolve names the differences, each chain from its whole object on. What has no whole
// object stays without a name.
func (d *deltas) resolve(ctx context.Context) error {
	if len(d.kids) == 0 && len(d.named) == 0 {
		return nil
	}
	for _, root := range d.at {
		if !root.kind.Whole() || root.base != nil {
			continue
		}
		if kids := d.of(root); len(kids) > 0 {
			if err := d.chain(ctx, root, kids); err != nil {
				return err
			}
		}
	}
	return nil
}

// link is a resolved object whose differences are still to be resolved.
type link struct {
	x    *object
	body []byte
	kids []*object
}

func (d *deltas) chain(ctx context.Context, root *object, kids []*object) error {
	body, err := d.o.body(root)
	if err != nil {
		return err
	}
	stack := []link{{root, body, kids}}
	d.live = int64(len(body))
	for len(stack) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		top := &stack[len(stack)-1]
		if len(top.kids) == 0 {
			d.live -= int64(len(top.body))
			stack = stack[:len(stack)-1]
			continue
		}
		x := top.kids[0]
		top.kids = top.kids[1:]
		delta, err := d.o.raw(x)
		if err != nil {
			return err
		}
		body, err := patch(top.body, delta)
		if err == nil {
			err = d.o.take(int64(len(body)))
		}
		if err != nil {
			return err
		}
		x.kind, x.base = top.x.kind, top.x
		if err := d.o.name(x, bytes.NewReader(body), int64(len(body))); err != nil {
			return err
		}
		d.o.add(x)
		if kids := d.of(x); len(kids) > 0 {
			if d.live += int64(len(body)); d.live > maxLive {
				return errBound
			}
			stack = append(stack, link{x, body, kids})
		}
	}
	return nil
}

// raw returns the uncompressed bytes of an object of a pack: the content, or the
// difference.
func (o *Objects) raw(x *object) ([]byte, error) {
	if x.size > maxBody {
		return nil, errBound
	}
	var r io.Reader
	var err error
	if x.loose {
		r, err = o.openLoose(x)
	} else {
		r, err = o.inflate(bufio.NewReader(io.NewSectionReader(x.src, x.off, x.clen)))
	}
	if err != nil {
		return nil, err
	}
	b := make([]byte, x.size)
	_, err = io.ReadFull(r, b)
	return b, err
}

// body returns the content of an object. What it unpacks on the way is charged: a chain of
// differences may be long, and each object of it asked for.
func (o *Objects) body(x *object) ([]byte, error) {
	charge := func(b []byte) error {
		if o.left -= int64(len(b)); o.left < 0 {
			return errBound
		}
		return nil
	}
	var chain []*object
	for ; x.base != nil && x.body == nil; x = x.base {
		chain = append(chain, x)
	}
	b, err := x.body, error(nil)
	if b == nil {
		if b, err = o.raw(x); err == nil {
			err = charge(b)
		}
		if err != nil {
			return nil, err
		}
	}
	for i := len(chain) - 1; i >= 0; i-- {
		delta, err := o.raw(chain[i])
		if err != nil {
			return nil, err
		}
		if b, err = patch(b, delta); err == nil {
			err = charge(b)
		}
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

// Read returns the kind and content of an object of the set.
func (o *Objects) Read(id ID) (Kind, []byte, error) {
	x := o.at[id]
	if x == nil {
		return 0, nil, fmt.Errorf("object %s is not here", id.Hex(o.digits))
	}
	b, err := o.body(x)
	return x.kind, b, err
}

// Closure returns the objects of the set that tip leads to, up to objects that known
// reports, and the names that it leads to and that are neither in the set nor known.
// Objects in seen are skipped, and the others added to it.
func (o *Objects) Closure(ctx context.Context, tip ID, known func(ID) bool, seen map[ID]bool) (need, edge []ID, err error) {
	todo := []ID{tip}
	push := func(s string) error {
		id, ok := ParseID(s)
		if !ok || len(s) != o.digits {
			return fmt.Errorf("%w: it names %q", ErrPack, s[:min(len(s), 80)])
		}
		todo = append(todo, id)
		return nil
	}
	for len(todo) > 0 {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[id] || known(id) {
			continue
		}
		seen[id] = true
		x := o.at[id]
		if x == nil {
			edge = append(edge, id)
			continue
		}
		need = append(need, id)
		if x.kind == Blob {
			continue
		}
		body, err := o.body(x)
		if err != nil {
			return nil, nil, err
		}
		switch x.kind {
		case Commit:
			c := ParseCommit(body)
			err = push(c.Tree)
			for _, p := range c.Parents {
				err = errors.Join(err, push(p))
			}
		case Tag:
			err = push(TagTarget(body))
		case Tree:
			err = EachEntry(body, o.digits, func(mode string, _, raw []byte) error {
				if mode != ModeSubmodule {
					var id ID
					copy(id[:], raw)
					todo = append(todo, id)
				}
				return nil
			})
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return need, edge, nil
}
