package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
)

// wayHome lets a vandal work on a workspace, and then uses the result as a user does:
// it shows the changes, lands them and shows them again.
func wayHome(l *lab, chosen []attacker.Attack) error {
	h := &home{lab: l}
	for _, a := range chosen {
		h.note(a.ID, contained("nothing of it was found on the host"))
	}
	defer h.keep(chosen)
	if err := h.furnish(); err != nil {
		return err
	}
	before, err := Tree(l.ws)
	if err != nil {
		return err
	}
	if h.outside, err = Tree(l.outside); err != nil {
		return err
	}
	r := l.bottle(true, nil, shell("exec "+me+"vandal "+l.outside)...)
	switch {
	case r.rec == nil:
		return r.err
	case !r.exited() || !strings.Contains(r.out, "vandalised"):
		return fmt.Errorf("the vandal ended with %s: %.500s", r.ended(), r.msg)
	case r.rec.Changes == nil || len(r.rec.Changes.Incomplete) > 0:
		return fmt.Errorf("its changes are not whole: %+v", r.rec.Changes)
	}
	after, err := Tree(l.ws)
	if err != nil {
		return err
	}
	if d := difference(before, after); d != "" {
		h.escape("landing/before-landing", "the workspace changed before anything was landed: "+d)
	}
	h.looksOutside("landing/links-out", "before landing")
	if err := h.texts(r); err != nil {
		return err
	}
	if err := h.land(r); err != nil {
		return err
	}
	if err := h.swap(); err != nil {
		return err
	}
	if err := h.commits(); err != nil {
		return err
	}
	return h.askNames()
}

// home holds the state of one scene in which changes are landed.
type home struct {
	*lab
	outside string // the directory beside the workspace, as it was
	found   map[string]verdict
}

func (h *home) note(id string, v verdict) {
	if h.found == nil {
		h.found = map[string]verdict{}
	}
	h.found[id] = v
}

// escape notes that an attack got through. Only the first reason counts.
func (h *home) escape(id, why string) {
	if h.found[id].outcome == Contained {
		h.note(id, escaped("%s", why))
	}
}

// done marks attacks as made. Until then they count as untried.
func (h *home) done(ids ...string) {
	for _, id := range ids {
		if v, ok := h.found[id]; ok {
			h.verdicts[id] = v
		}
	}
}

// keep notes the escapes that were seen before the scene failed.
func (h *home) keep(chosen []attacker.Attack) {
	for _, a := range chosen {
		if v := h.found[a.ID]; v.outcome == Escaped {
			h.verdicts[a.ID] = v
		}
	}
}

func (h *home) furnish() error {
	for name, text := range map[string]string{
		"keep.txt": "keep\n", "edited.txt": "1\n", "plain/f": "f\n", ".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n\tbare = false\n", ".git/objects/pack/p": "p\n", "text/contents.txt": "before\n",
	} {
		if err := plant(filepath.Join(h.ws, name), text, 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(h.ws+"/.git/hooks", 0o755); err != nil {
		return err
	}
	return os.Symlink(h.lab.outside, h.ws+"/hostlink")
}

// looksOutside accuses an attack if the directory beside the workspace has changed.
func (h *home) looksOutside(id, when string) {
	now, err := Tree(h.lab.outside)
	if err != nil {
		h.escape(id, err.Error())
		return
	}
	if d := difference(h.outside, now); d != "" {
		h.escape(id, "a directory outside of the workspace changed "+when+": "+d)
	}
}

// texts checks all texts that a user is shown about the run.
func (h *home) texts(r *ran) error {
	var shown bytes.Buffer
	if _, err := h.client.Diff(h.ctx, r.rec.ID, &shown, change.DiffOptions{}); err != nil {
		return err
	}
	if err := receipt.Text(&shown, r.rec, receipt.Style{}); err != nil {
		return err
	}
	text := shown.String()
	for id, must := range map[string]string{"terminal-text/file-names": `\x1b]0;owned`, "terminal-text/file-contents": "+after", "terminal-text/link-targets": `\u202egnp`} {
		if !strings.Contains(text, must) {
			h.note(id, untried("what is shown does not hold %q: this looks in the wrong place", must))
		}
		if bad := unseen(text); bad != "" {
			h.escape(id, "a terminal would be sent "+bad)
		}
	}
	h.done("terminal-text/file-names", "terminal-text/file-contents", "terminal-text/link-targets")
	return nil
}

// unseen finds the first character that would act on a terminal or change how a line is
// read.
func unseen(text string) string {
	for i, r := range text {
		control := r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0
		turning := r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x200e || r == 0x200f
		if control || turning {
			return fmt.Sprintf("%+q in %+q", r, text[max(0, i-20):min(len(text), i+20)])
		}
	}
	return ""
}

// land lands the changes, first without and then with protected paths.
func (h *home) land(r *ran) error {
	// The user goes on working meanwhile.
	if err := plant(h.ws+"/a.txt", "the user's own\n", 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(h.ws + "/later"); err != nil {
		return err
	}
	if err := os.Symlink(h.lab.outside, h.ws+"/later"); err != nil {
		return err
	}
	_, err := h.client.Land(h.ctx, r.rec.ID, change.LandOptions{})
	var conflict *change.ConflictError
	if !errors.As(err, &conflict) {
		h.escape("landing/host-edits", fmt.Sprintf("landing over an edit of the user's: %v", err))
	}
	if b, _ := os.ReadFile(h.ws + "/a.txt"); string(b) != "the user's own\n" {
		h.escape("landing/host-edits", fmt.Sprintf("the user's file is now %.50q", b))
	}
	var odd []string
	paths := []string{"fine.txt", "hard", "sparse", "bomb.gz", "suid", "sgid", "pipe", "socket", "odd", "plain", "out", "out-file", "out-relative", "keep.txt"}
	for _, p := range attacker.Planted {
		top, _, _ := strings.Cut(p, "/")
		if !slices.Contains(paths, top) {
			paths = append(paths, top)
		}
	}
	// One by one, as a person who is careless lands them: none must stop
	// another, and none may get through.
	fine := false
	for _, p := range paths {
		rep, err := h.client.Land(h.ctx, r.rec.ID, change.LandOptions{Paths: []string{p}})
		fine = fine || p == "fine.txt" && err == nil && slices.Contains(rep.Landed, "fine.txt")
	}
	if !fine {
		return errors.New("a plain file did not land")
	}
	for _, p := range attacker.Planted {
		if b, err := os.ReadFile(filepath.Join(h.ws, p)); err == nil && string(b) == attacker.Owned {
			h.escape("landing/hooks-and-settings", p+" landed, and nobody included it")
		}
	}
	h.looksOutside("landing/links-out", "while landing")
	for _, p := range []string{"later", "later/f", "later/g", "plain", "hostlink/f"} {
		h.client.Land(h.ctx, r.rec.ID, change.LandOptions{Paths: []string{p}, IncludeProtected: true})
	}
	h.looksOutside("landing/links-out", "while landing with protected paths")
	filepath.WalkDir(h.ws, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		fi, err := d.Info()
		if err != nil {
			return nil
		}
		rel, _ := filepath.Rel(h.ws, path)
		switch {
		case fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && !d.IsDir():
			h.escape("landing/rights", fmt.Sprintf("%s landed with mode %v", rel, fi.Mode()))
		case fi.Mode()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0:
			h.escape("landing/special-files", fmt.Sprintf("%s landed with mode %v", rel, fi.Mode()))
		case filepath.Dir(rel) == "odd":
			odd = append(odd, filepath.Base(rel))
		}
		return nil
	})
	h.looksAtBombs(r)
	if fine, hard := inode(h.ws+"/fine.txt"), inode(h.ws+"/hard"); hard != 0 && fine == hard {
		h.escape("landing/special-files", "a hard link landed as one")
	}
	for _, n := range odd {
		if !slices.Contains(attacker.OddNames, n) {
			h.escape("landing/odd-names", fmt.Sprintf("%q landed, which was not there", n))
		}
	}
	if len(odd) == 0 {
		h.note("landing/odd-names", untried("no odd name landed"))
	}
	h.done("landing/before-landing", "landing/hooks-and-settings", "landing/links-out", "landing/rights", "landing/bombs", "landing/special-files", "landing/odd-names", "landing/host-edits")
	return nil
}

func (h *home) looksAtBombs(r *ran) {
	const id = "landing/bombs"
	fi, err := os.Stat(h.ws + "/sparse")
	switch {
	case err != nil || fi.Size() != attacker.SparseSize:
		h.note(id, untried("the sparse file did not land: %v", err))
		return
	case blocks(fi)*512 > mib:
		h.escape(id, fmt.Sprintf("a file that has no contents takes %d MiB of the host's disk", blocks(fi)*512/mib))
	}
	if fi, err = os.Stat(h.ws + "/bomb.gz"); err != nil || fi.Size() > 4*mib {
		h.escape(id, fmt.Sprintf("the archive: %v", err))
	}
	if n := onDisk(h.state); n > 40*mib {
		h.escape(id, fmt.Sprintf("the run takes %d MiB of the host's disk", n/mib))
	}
	if r.peak.memory > limits().Memory+memorySlack {
		h.escape(id, fmt.Sprintf("%d MiB of the host's memory", r.peak.memory/mib))
	}
}

// swap lands changes below a directory that is exchanged with a link out again and again,
// as another run with a bound workspace could do.
func (h *home) swap() error {
	const id = "landing/swapped-links"
	for dir, text := range map[string]string{"swap/d/f": "f\n", "swap/d/g": "g\n"} {
		if err := plant(filepath.Join(h.ws, dir), text, 0o644); err != nil {
			return err
		}
	}
	if err := os.Symlink(h.lab.outside, h.ws+"/swap/x"); err != nil {
		return err
	}
	r := h.bottle(false, nil, shell("for f in f g new1 new2 new3; do echo owned > swap/d/$f; done; mkdir swap/d/sub; echo owned > swap/d/sub/secret; rm -f swap/d/g; echo control")...)
	if r.rec == nil {
		return r.err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s", r.ended())
	}
	var stop atomic.Bool
	done := make(chan int)
	go func() { // ends with stop
		n := 0
		for ; !stop.Load(); n++ {
			unix.Renameat2(unix.AT_FDCWD, h.ws+"/swap/d", unix.AT_FDCWD, h.ws+"/swap/x", unix.RENAME_EXCHANGE)
		}
		done <- n
	}()
	landed := 0
	for range 12 {
		if rep, err := h.client.Land(h.ctx, r.rec.ID, change.LandOptions{Paths: []string{"swap"}}); err == nil && len(rep.Landed) > 0 {
			landed++
		}
		if h.ctx.Err() != nil {
			break
		}
		h.client.Undo(h.ctx, r.rec.ID, change.UndoOptions{})
	}
	stop.Store(true)
	if n := <-done; n < 50 {
		h.note(id, untried("only %d exchanges", n))
	} else if v := h.found[id]; v.outcome == Contained {
		h.note(id, contained("%d exchanges during 12 landings, of which %d landed something", n, landed))
	}
	h.looksOutside(id, "while landing")
	h.done(id)
	return nil
}

// askNames makes a bottle ask for a name that would act on a terminal.
func (h *home) askNames() error {
	const id = "terminal-text/host-names"
	if _, ok := h.found[id]; !ok {
		return nil
	}
	var events buffer
	name := "\x1b]0;owned\x07\u202e"
	r := h.bottle(false, withEvents(&events), attacker.Path, "ask-names", "first.test", "1", name)
	if r.rec == nil {
		return r.err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s: %.200s", r.ended(), r.msg)
	}
	var shown bytes.Buffer
	if err := receipt.Text(&shown, r.rec, receipt.Style{}); err != nil {
		return err
	}
	text := shown.String() + events.String()
	if !strings.Contains(text, "first.test") {
		h.note(id, untried("the refused names are not shown: this looks in the wrong place"))
	}
	if bad := unseen(text); bad != "" {
		h.escape(id, "a terminal would be sent "+bad)
	}
	h.done(id)
	return nil
}
