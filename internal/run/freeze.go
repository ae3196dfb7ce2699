package run

import (
	"context"
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
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/progress"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// keepIn bounds the time to write a kept bottle.
const keepIn = 30 * time.Minute

// keep writes the files that resume the paused bottle: if it was frozen, if its agent
// failed, if there is work to go on with, or if the user asked for it. A failure is an
// error only if the bottle was
// frozen or the user asked; else it is a note in the receipt.
func (s *Session) keep(run context.Context) error {
	g := s.o.Grant
	frozen := s.Rec.Exit.Reason == receipt.Frozen
	work := g != nil && g.KeepWork && (g.Talks || s.Rec.Changes.Any())
	if g == nil || g.Lock == nil || !frozen && s.Rec.Exit.Code == 0 && !g.Keep && !work {
		return nil
	}
	ctx, cancel := s.ending(run, keepIn)
	defer cancel()
	err := s.telling(ctx, "keeping the bottle", func(ctx context.Context) error { return s.keepBottle(ctx, frozen) })
	if err != nil && !frozen && !g.Keep {
		s.Rec.Notes = append(s.Rec.Notes, fault.Sentence("Not kept: "+safetext.String(err.Error(), 300)))
		return nil
	}
	return err
}

func (s *Session) keepBottle(ctx context.Context, frozen bool) error {
	g := s.o.Grant
	k := s.newKept()
	k.Frozen = frozen
	export := s.bottle.ExportAll
	if !s.paused {
		copies := s.copies()
		var err error
		if k.At, err = copies.Latest(); err != nil {
			return fmt.Errorf("keep bottle %s: it could not be paused, and %w", g.Slug, err)
		}
		export = copies.Write
	}
	dir, err := g.Lock.KeptDir(s.run.ID())
	if err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.Slug, err)
	}
	var use bottle.Usage
	if s.paused {
		if use, err = s.bottle.Usage(); err == nil {
			err = roomFor(dir, use.Disk)
		}
	}
	if err == nil {
		k.Files, err = writePart(dir, keptFiles, func(w io.Writer) error { return export(ctx, progress.Writer(ctx, w)) })
	}
	if err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.Slug, err)
	}
	if frozen {
		k.Terminal = s.std.terminal()
		if err = roomFor(dir, use.Disk+use.Memory); err == nil {
			err = s.keepProcesses(ctx, dir, k)
		}
		if err != nil {
			k.Live, k.Thaw, k.WhyNot = nil, nil, err.Error()
			s.events.send(plan.Event{Kind: "frozen", Text: "its processes can't be kept (" + safetext.String(err.Error(), 300) + "); its files are, and resume begins with them"})
		}
	}
	if err := errors.Join(g.Identity.Write(g.Lock), g.Lock.Keep(k)); err != nil {
		return fmt.Errorf("keep bottle %s: %w", g.Slug, err)
	}
	g.Kept = true
	ev := s.event(audit.Kept, audit.Noted)
	ev.Subject, ev.Digests = s.text(g.Slug), []audit.Digest{{Of: "kept", Sum: digestOf(k)}}
	_, err = s.c.Audit.Append(ctx, ev)
	return err
}

// keptFiles names the file with everything that a kept bottle wrote.
const keptFiles = "files.tar"

// newKept returns the record of the run's bottle as one that is kept now, without its files.
func (s *Session) newKept() *store.Kept {
	return &store.Kept{
		Run: s.run.ID(), At: time.Now().UTC(), Build: s.c.Build, Arch: runtime.GOARCH, Backend: s.c.Backend.Name(), BackendBuild: s.c.Backend.Build(),
		Manifests: hex.EncodeToString(s.o.Grant.Sum[:]),
	}
}

// roomFor returns an error if the kept files would fill the disk: the user's other
// programs need some of it.
func roomFor(dir string, need int64) error {
	if free := plan.FreeDisk(dir); free > 0 && need > free-free/10 {
		return fmt.Errorf("it takes %s, and %s of the disk are free", receipt.Bytes(need), receipt.Bytes(free))
	}
	return nil
}

// digestOf returns one digest over all kept files.
func digestOf(k *store.Kept) [sha256.Size]byte {
	h := sha256.New()
	for _, p := range k.Parts() {
		fmt.Fprintf(h, "%q %d %s\n", p.Name, p.Size, p.SHA256)
	}
	fmt.Fprintf(h, "%s %s %s %s\n", k.Build, k.Arch, k.Manifests, k.Thaw)
	if k.BackendBuild != "" { // not in older records
		fmt.Fprintf(h, "%s %s\n", k.Backend, k.BackendBuild)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (s *Session) keepProcesses(ctx context.Context, dir string, k *store.Kept) error {
	f, ok := s.bottle.(bottle.Freezer)
	backend, can := s.c.Backend.(bottle.Freezes)
	if !ok || !can {
		why, _ := s.c.Backend.Capabilities().Lacks(bottle.CapLiveFreeze)
		return fmt.Errorf("the backend %s keeps files only: %s", s.c.Backend.Name(), why)
	}
	imageNames := backend.ImageNames()
	var files []*os.File
	defer func() { closeFiles(files) }()
	for _, name := range imageNames {
		out, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		files = append(files, out)
	}
	frozen, err := f.Freeze(ctx, files)
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

// writePart writes one kept file and syncs it to disk.
func writePart(dir, name string, write func(io.Writer) error) (p store.KeptPart, err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := &Counted{H: sha256.New()}
	if err := write(io.MultiWriter(f, w)); err != nil {
		return p, err
	}
	return store.KeptPart{Name: name, Size: w.n, SHA256: hex.EncodeToString(w.H.Sum(nil))}, f.Sync()
}

// Counted holds a digest and a size.
type Counted struct {
	H hash.Hash
	n int64
}

func (c *Counted) Write(b []byte) (int, error) {
	c.n += int64(len(b))
	return c.H.Write(b)
}

// sumPart returns the size and digest of an open file, read from its beginning.
func sumPart(f *os.File, name string) (p store.KeptPart, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return p, err
	}
	w := &Counted{H: sha256.New()}
	if _, err := io.Copy(w, f); err != nil {
		return p, err
	}
	return store.KeptPart{Name: name, Size: w.n, SHA256: hex.EncodeToString(w.H.Sum(nil))}, nil
}

// OpenPart opens a kept file. It refuses one that differs from the file that was
// written. While it is open, only this user can write to it.
func OpenPart(dir string, p store.KeptPart) (*os.File, error) {
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

// TamperedError reports a file that differs from the one that carboy wrote.
type TamperedError struct {
	File string
	Err  error
}

func (e *TamperedError) Error() string { return e.File + ": " + e.Err.Error() }

func (e *TamperedError) Unwrap() error { return e.Err }

// makeSandbox makes the run's bottle: a new one, one with the files of an earlier run, or
// one that also resumes its processes.
func (s *Session) makeSandbox(ctx context.Context) (*sandbox, error) {
	id := "b" + string(s.run.ID())
	var r *plan.Resumption
	if s.o.Grant != nil {
		r = s.o.Grant.Resume
	}
	if r == nil {
		return s.c.newSandbox(ctx, s.Plan, id, s.run.Dir(), s.warm, s.approver)
	}
	if r.Live {
		v, err := s.thaw(ctx, r, id)
		var bad *TamperedError
		if err == nil || errors.As(err, &bad) || ctx.Err() != nil {
			return v, err
		}
		s.events.send(plan.Event{Kind: "resumed", Text: "its processes can't go on (" + safetext.String(err.Error(), 300) + "); it begins with its files"})
		s.Rec.Notes = append(s.Rec.Notes, "The processes of run "+string(r.Kept.Run)+" could not go on: "+safetext.String(err.Error(), 300))
	}
	if err := s.noteResumed(ctx, r, "files"); err != nil {
		return nil, err
	}
	s.Rec.Notes = append(s.Rec.Notes, "It began with the files of run "+string(r.Kept.Run))
	s.Plan.Begin = func(spec *bottle.Spec) (err error) {
		spec.Upper, err = OpenPart(r.Dir, r.Kept.Files)
		return err
	}
	return s.c.newSandbox(ctx, s.Plan, id, s.run.Dir(), s.warm, s.approver)
}

// thaw restores a frozen bottle with its processes.
func (s *Session) thaw(ctx context.Context, r *plan.Resumption, id string) (*sandbox, error) {
	var frozen bottle.Frozen
	if err := json.Unmarshal(r.Kept.Thaw, &frozen); err != nil {
		return nil, &TamperedError{File: "kept.json", Err: err}
	}
	if backend, ok := s.c.Backend.(bottle.Freezes); !ok || len(r.Kept.Live) != len(backend.ImageNames()) {
		return nil, &TamperedError{File: "kept.json", Err: errors.New("a file of the image is missing")}
	}
	if err := s.openOwnStreams(); err != nil {
		return nil, err
	}
	s.std.goOn(r.Kept.Terminal)
	if err := s.noteResumed(ctx, r, "processes"); err != nil {
		return nil, err
	}
	s.Plan.Begin = func(spec *bottle.Spec) error {
		t := &bottle.Thaw{Frozen: frozen}
		spec.Thaw = t
		for _, part := range r.Kept.Live {
			f, err := OpenPart(r.Dir, part)
			if err != nil {
				return err
			}
			t.Image = append(t.Image, f)
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
	v, err := s.c.newSandbox(ctx, s.Plan, id, s.run.Dir(), s.warm, s.approver)
	if s.thawed = err == nil; s.thawed {
		s.Rec.Notes = append(s.Rec.Notes, "The processes of run "+string(r.Kept.Run)+" went on; that run's receipt says what they are")
	}
	return v, err
}

func (s *Session) noteResumed(ctx context.Context, r *plan.Resumption, what string) error {
	ev := s.event(audit.Resumed, audit.Allowed)
	ev.Subject = s.text(s.o.Grant.Slug)
	ev.Text, ev.Digests = s.text(what+" of run "+string(r.Kept.Run)), []audit.Digest{{Of: "kept", Sum: digestOf(r.Kept)}}
	_, err := s.c.Audit.Append(ctx, ev)
	return err
}
