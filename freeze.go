package carboy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// What a bottle was can be kept in two ways. Its files always can, as what it wrote
// over its root and its workspace, and an agent then begins anew with its old
// conversation. A bottle that is frozen keeps its processes too; they go on only
// under the same build and on the same kind of processor, and where that is not so,
// or fails, there are the files.

// identityKept is what a bottle has again when it is resumed, so that what is inside
// goes on to trust its gateway and to present its placeholders.
type identityKept struct {
	authority *ca.Authority
	seed      []byte // of placeholders
	fresh     bool   // it was not written yet
}

type identityFile struct {
	Schema    string `json:"schema"`
	Seed      []byte `json:"seed"`
	Authority string `json:"authority"` // certificate and key, PEM
}

const identityKind = "bottle-identity"

// identityOf reads a bottle's identity, and makes it when there is none yet. What is
// not kept needs none later, so it is written with what is kept.
func identityOf(l *store.BottleLock, slug string) (*identityKept, error) {
	fail := func(err error) (*identityKept, error) {
		return nil, fmt.Errorf("identity of bottle %s: %w", slug, err)
	}
	data, err := l.Identity()
	if err != nil {
		return fail(err)
	}
	var f identityFile
	if data != nil {
		if err := store.Decode("identity.json", identityKind, data, &f); err != nil {
			return fail(err)
		}
		if len(f.Seed) != sha256.Size {
			return fail(errors.New("identity.json: field \"seed\" has not 32 bytes"))
		}
		a, err := ca.Unmarshal([]byte(f.Authority), nil)
		if err != nil {
			return fail(fmt.Errorf("identity.json: field \"authority\": %w", err))
		}
		return &identityKept{authority: a, seed: f.Seed}, nil
	}
	i := &identityKept{seed: make([]byte, sha256.Size), fresh: true}
	_, _ = rand.Read(i.seed) // never fails
	if i.authority, err = ca.New(slug, nil); err != nil {
		return fail(err)
	}
	return i, nil
}

// write keeps it.
func (i *identityKept) write(l *store.BottleLock) error {
	if !i.fresh {
		return nil
	}
	text, err := i.authority.Marshal()
	if err != nil {
		return err
	}
	data, err := store.Encode(identityKind, &identityFile{store.Schema(identityKind), i.seed, string(text)})
	if err == nil {
		err = l.WriteIdentity(data)
	}
	i.fresh = err != nil
	return err
}

// seed is what placeholders come from, or nil.
func (g *granted) seed() []byte {
	if g == nil || g.identity == nil {
		return nil
	}
	return g.identity.seed
}

// resumption is what a run goes on from.
type resumption struct {
	kept *store.Kept
	dir  string
	live bool // the processes, not the files alone
}

// keepIn bounds the writing of what is kept.
const keepIn = 30 * time.Minute

// keep keeps what the bottle is resumed from: when it was frozen, and when its
// agent ended badly or its user wants it kept. The bottle is paused. That it could not
// be done is an error for who asked for it.
func (s *session) keep(run context.Context) error {
	g := s.o.granted
	frozen := s.rec.Exit.Reason == receipt.Frozen
	if g == nil || g.lock == nil || !frozen && s.rec.Exit.Code == 0 && !g.keep {
		return nil
	}
	err := s.keepBottle(run, frozen)
	if err != nil && !frozen && !g.keep {
		s.rec.Notes = append(s.rec.Notes, sentence("Not kept: "+visible.String(err.Error(), 300)))
		return nil
	}
	return err
}

func (s *session) keepBottle(run context.Context, frozen bool) error {
	g := s.o.granted
	if !s.paused {
		return fmt.Errorf("keep bottle %s: it could not be paused", g.slug)
	}
	ctx, cancel := s.ending(run, keepIn)
	defer cancel()
	dir, err := g.lock.KeptDir(s.run.ID())
	if err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.slug, err)
	}
	k := &store.Kept{Run: s.run.ID(), At: time.Now().UTC(), Build: s.c.build, Arch: runtime.GOARCH, Frozen: frozen, Manifests: hex.EncodeToString(g.sum[:])}
	use, err := s.bottle.Usage()
	if err == nil {
		err = roomFor(dir, use.Disk)
	}
	if err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.slug, err)
	}
	k.Files, err = writePart(dir, "files.tar", func(w io.Writer) error { return s.bottle.ExportAll(ctx, w) })
	if err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.slug, err)
	}
	if frozen {
		if err = roomFor(dir, use.Disk+use.Memory); err == nil {
			err = s.keepProcesses(ctx, dir, k)
		}
		if err != nil {
			k.Live, k.Thaw, k.WhyNot = nil, nil, err.Error()
			s.events.send(Event{Kind: "frozen", Text: "its processes can't be kept (" + visible.String(err.Error(), 300) + "); its files are, and resume begins with them"})
		}
	}
	if err := errors.Join(g.identity.write(g.lock), g.lock.Keep(k)); err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.slug, err)
	}
	g.kept = true
	ev := s.event(audit.Kept, audit.Noted)
	ev.Subject, ev.Digests = s.text(g.slug), []audit.Digest{{Of: "kept", Sum: digestOf(k)}}
	_, err = s.c.audit.Append(ctx, ev)
	return err
}

// roomFor refuses what would fill the disk: the user's other programs need some of it.
func roomFor(dir string, need int64) error {
	if free := freeDisk(dir); free > 0 && need > free-free/10 {
		return fmt.Errorf("it takes %s, and %s of the disk are free", receipt.Bytes(need), receipt.Bytes(free))
	}
	return nil
}

// digestOf is one digest of all that is kept.
func digestOf(k *store.Kept) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range k.Parts() {
		fmt.Fprintf(h, "%q %d %s\n", p.Name, p.Size, p.SHA256)
	}
	fmt.Fprintf(h, "%s %s %s %s\n", k.Build, k.Arch, k.Manifests, k.Thaw)
	return [sha256.Size]byte(h.Sum(nil))
}

var imageNames = [...]string{"processes.state", "processes.meta", "processes.pages"}

func (s *session) keepProcesses(ctx context.Context, dir string, k *store.Kept) error {
	f, ok := s.bottle.(bottle.Freezer)
	if !ok {
		return errors.New("this backend can't")
	}
	var files []*os.File
	defer func() { closeFiles(files) }()
	for _, name := range imageNames {
		out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		files = append(files, out)
	}
	frozen, err := f.Freeze(ctx, bottle.ImageFiles{State: files[0], PagesMeta: files[1], Pages: files[2]})
	if err == nil {
		k.Thaw, err = json.Marshal(frozen)
	}
	for i, out := range files {
		if err != nil {
			break
		}
		if err = out.Sync(); err != nil {
			break
		}
		var p store.KeptPart
		if p, err = sumPart(out, imageNames[i]); err == nil {
			k.Live = append(k.Live, p)
		}
	}
	if err != nil {
		for _, name := range imageNames {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
	return err
}

// writePart writes one file of what is kept, to disk.
func writePart(dir, name string, write func(io.Writer) error) (p store.KeptPart, err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &counted{h: sha256.New()}
	if err := write(io.MultiWriter(f, w)); err != nil {
		return p, err
	}
	return store.KeptPart{Name: name, Size: w.n, SHA256: hex.EncodeToString(w.h.Sum(nil))}, f.Sync()
}

// counted is a digest and a size.
type counted struct {
	h hash.Hash
	n int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.h.Write(b)
}

// sumPart is the entry of an open file, from its beginning.
func sumPart(f *os.File, name string) (p store.KeptPart, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return p, err
	}
	w := &counted{h: sha256.New()}
	if _, err := io.Copy(w, f); err != nil {
		return p, err
	}
	return store.KeptPart{Name: name, Size: w.n, SHA256: hex.EncodeToString(w.h.Sum(nil))}, nil
}

// openPart opens a file of what is kept, and refuses one that is not as it was
// written. Who may write to it while it is open is this user.
func openPart(dir string, p store.KeptPart) (*os.File, error) {
	path := filepath.Join(dir, p.Name)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &TamperedError{File: path, Err: errors.Unwrap(err)}
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("is no file")
	}
	if err == nil && fi.Size() != p.Size {
		err = fmt.Errorf("has %d bytes, and had %d", fi.Size(), p.Size)
	}
	if err == nil {
		var now store.KeptPart
		if now, err = sumPart(f, p.Name); err == nil && now != p {
			err = errors.New("has changed since it was written")
		}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, &TamperedError{File: path, Err: err}
	}
	return f, nil
}

// TamperedError is of a file that is not what carboy wrote.
type TamperedError struct {
	File string
	Err  error
}

func (e *TamperedError) Error() string { return e.File + ": " + e.Err.Error() }
func (e *TamperedError) Unwrap() error { return e.Err }

// makeVessel makes the run's bottle: a new one, one with files of before, or one
// whose processes go on.
func (s *session) makeVessel(ctx context.Context) (*vessel, error) {
	id := "b" + string(s.run.ID())
	var r *resumption
	if s.o.granted != nil {
		r = s.o.granted.resume
	}
	if r == nil {
		return s.c.newVessel(ctx, s.plan, id, s.run.Dir(), s.warm)
	}
	if r.live {
		v, err := s.thaw(ctx, r, id)
		var bad *TamperedError
		if err == nil || errors.As(err, &bad) || ctx.Err() != nil {
			return v, err
		}
		s.events.send(Event{Kind: "resumed", Text: "its processes can't go on (" + visible.String(err.Error(), 300) + "); it begins with its files"})
		s.rec.Notes = append(s.rec.Notes, "The processes of run "+string(r.kept.Run)+" could not go on: "+visible.String(err.Error(), 300))
	}
	if err := s.noteResumed(ctx, r, "files"); err != nil {
		return nil, err
	}
	s.rec.Notes = append(s.rec.Notes, "It began with the files of run "+string(r.kept.Run))
	s.plan.begin = func(spec *bottle.Spec) (err error) {
		spec.Upper, err = openPart(r.dir, r.kept.Files)
		return err
	}
	return s.c.newVessel(ctx, s.plan, id, s.run.Dir(), s.warm)
}

// thaw makes a bottle whose processes go on.
func (s *session) thaw(ctx context.Context, r *resumption, id string) (*vessel, error) {
	var frozen bottle.Frozen
	if err := json.Unmarshal(r.kept.Thaw, &frozen); err != nil {
		return nil, &TamperedError{File: "kept.json", Err: err}
	}
	if len(r.kept.Live) != len(imageNames) {
		return nil, &TamperedError{File: "kept.json", Err: errors.New("a file of the image is missing")}
	}
	if err := s.openOwnStreams(); err != nil {
		return nil, err
	}
	if err := s.noteResumed(ctx, r, "processes"); err != nil {
		return nil, err
	}
	s.plan.begin = func(spec *bottle.Spec) error {
		t := &bottle.Thaw{Frozen: frozen}
		spec.Thaw = t
		for i, to := range []**os.File{&t.Image.State, &t.Image.PagesMeta, &t.Image.Pages} {
			f, err := openPart(r.dir, r.kept.Live[i])
			if err != nil {
				return err
			}
			*to = f
		}
		for _, x := range []struct {
			to   **os.File
			from *os.File
		}{{&t.Stdin, s.std.in}, {&t.Stdout, s.std.out}, {&t.Stderr, s.std.err}} {
			fd, err := unix.FcntlInt(x.from.Fd(), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return err
			}
			*x.to = os.NewFile(uintptr(fd), x.from.Name())
		}
		return nil
	}
	v, err := s.c.newVessel(ctx, s.plan, id, s.run.Dir(), s.warm)
	if s.thawed = err == nil; s.thawed {
		s.rec.Notes = append(s.rec.Notes, "The processes of run "+string(r.kept.Run)+" went on; that run's receipt says what they are")
	}
	return v, err
}

func (s *session) noteResumed(ctx context.Context, r *resumption, what string) error {
	ev := s.event(audit.Resumed, audit.Allowed)
	ev.Subject = s.text(s.o.granted.slug)
	ev.Text, ev.Digests = s.text(what+" of run "+string(r.kept.Run)), []audit.Digest{{Of: "kept", Sum: digestOf(r.kept)}}
	_, err := s.c.audit.Append(ctx, ev)
	return err
}
