// Package posture reads from /proc how a live process is confined. What a process may have
// differs between backends: each judges the account by its own rules.
//
// Start reading at [Read].
package posture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// Process is the kernel's account of a process. Ids, filters and capabilities are those of
// each thread, so the account holds the worst of all threads.
type Process struct {
	PID        int
	UIDs, GIDs [4]int // real, effective, saved, file system; -1 if threads differ
	Groups     []int
	Seccomp    int // 0 none, 1 strict, 2 filter
	NoNewPrivs int
	CapInh     uint64
	CapPrm     uint64
	CapEff     uint64
	CapBnd     uint64
	CapAmb     uint64
	Place
	Mounts []Mount
	FDs    []FD
}

// Place holds the namespaces of a process, by kind, and its root.
type Place struct {
	Namespaces map[string]string
	Root       ID
}

// ID identifies a file.
type ID struct{ Dev, Ino uint64 }

// Mount is a line of a process's mountinfo.
type Mount struct {
	Point   string
	Options string // of the mount, separated by commas
}

// FD is an open descriptor.
type FD struct {
	Link string // as readlink of /proc/PID/fd/N shows it
	ID
	Mode uint32 // with type bits; 0: the file could not be looked at
	Rdev uint64
}

// Here returns the place of this process, with those kinds of namespaces.
func Here(kinds []string) (Place, error) { return placeOf("/proc/self", kinds) }

// Read returns the account of a process, with those kinds of namespaces. The caller makes
// sure that the number does not become another process's meanwhile.
func Read(pid int, kinds []string) (Process, error) {
	p := Process{PID: pid}
	dir := "/proc/" + strconv.Itoa(pid)
	err := p.readThreads(dir + "/task")
	if err == nil {
		p.Place, err = placeOf(dir, kinds)
	}
	if err == nil {
		err = p.readMounts(dir + "/mountinfo")
	}
	if err == nil {
		err = p.readFDs(dir + "/fd")
	}
	return p, err
}

func placeOf(dir string, kinds []string) (Place, error) {
	x := Place{Namespaces: map[string]string{}}
	for _, k := range kinds {
		to, err := os.Readlink(dir + "/ns/" + k)
		if err != nil {
			return x, err
		}
		x.Namespaces[k] = to
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/root", &st); err != nil {
		return x, &os.PathError{Op: "stat", Path: dir + "/root", Err: err}
	}
	x.Root = ID{uint64(st.Dev), st.Ino}
	return x, nil
}

// Shares returns the first of those kinds of namespaces in which both are, or of which
// one is not known; empty: there is none.
func (x Place) Shares(o Place, kinds []string) string {
	for _, k := range kinds {
		if x.Namespaces[k] == "" || x.Namespaces[k] == o.Namespaces[k] {
			return k
		}
	}
	return ""
}

// readThreads combines the worst values of all threads.
func (p *Process) readThreads(dir string) error {
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	seen := 0
	for _, task := range tasks {
		path := filepath.Join(dir, task.Name(), "status")
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // ended meanwhile
		}
		if err != nil {
			return err
		}
		one, err := parseStatus(string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if seen++; seen == 1 {
			one.PID = p.PID
			*p = one
			continue
		}
		p.worsen(&one)
	}
	if seen == 0 {
		return fmt.Errorf("%s: no thread", dir)
	}
	return nil
}

func (p *Process) worsen(o *Process) {
	nobody := [4]int{-1, -1, -1, -1}
	if p.UIDs != o.UIDs {
		p.UIDs = nobody
	}
	if p.GIDs != o.GIDs {
		p.GIDs = nobody
	}
	p.Groups = append(p.Groups, o.Groups...)
	// Of the modes only 2, a filter, is ever wanted: the least is the worst.
	p.Seccomp, p.NoNewPrivs = min(p.Seccomp, o.Seccomp), min(p.NoNewPrivs, o.NoNewPrivs)
	p.CapInh, p.CapPrm, p.CapEff = p.CapInh|o.CapInh, p.CapPrm|o.CapPrm, p.CapEff|o.CapEff
	p.CapBnd, p.CapAmb = p.CapBnd|o.CapBnd, p.CapAmb|o.CapAmb
}

// parseStatus reads /proc/PID/status. Each line that is looked for must be there.
func parseStatus(text string) (p Process, err error) {
	sets := map[string]*uint64{"CapInh": &p.CapInh, "CapPrm": &p.CapPrm, "CapEff": &p.CapEff, "CapBnd": &p.CapBnd, "CapAmb": &p.CapAmb}
	numbers := map[string]*int{"Seccomp": &p.Seccomp, "NoNewPrivs": &p.NoNewPrivs}
	ids := map[string]*[4]int{"Uid": &p.UIDs, "Gid": &p.GIDs}
	want := len(sets) + len(numbers) + len(ids) + 1
	for line := range strings.Lines(text) {
		key, v, _ := strings.Cut(line, ":")
		v = strings.TrimSpace(v)
		switch {
		case sets[key] != nil:
			*sets[key], err = strconv.ParseUint(v, 16, 64)
		case numbers[key] != nil:
			*numbers[key], err = strconv.Atoi(v)
		case ids[key] != nil:
			x := ids[key]
			_, err = fmt.Sscan(v, &x[0], &x[1], &x[2], &x[3])
		case key == "Groups":
			for _, f := range strings.Fields(v) {
				n, e := strconv.Atoi(f)
				p.Groups, err = append(p.Groups, n), errors.Join(err, e)
			}
		default:
			continue
		}
		if err != nil {
			return p, fmt.Errorf("%s: %w", key, err)
		}
		want--
	}
	if want != 0 {
		return p, fmt.Errorf("%d lines too few", want)
	}
	return p, nil
}

func (p *Process) readMounts(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return fmt.Errorf("%s: %.100q is no mount", path, line)
		}
		p.Mounts = append(p.Mounts, Mount{UnescapeMount(f[4]), f[5]})
	}
	return nil
}

// UnescapeMount undoes the octal escapes of mountinfo (proc_pid_mountinfo(5)).
func UnescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (p *Process) readFDs(dir string) error {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range ents {
		path := filepath.Join(dir, e.Name())
		to, err := os.Readlink(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // closed meanwhile
		}
		if err != nil {
			return err
		}
		f := FD{Link: to}
		var st unix.Stat_t
		// Some file systems answer their own user alone.
		if err := unix.Stat(path, &st); err == nil {
			f.ID, f.Mode, f.Rdev = ID{uint64(st.Dev), st.Ino}, st.Mode, uint64(st.Rdev)
		} else if err == unix.ENOENT {
			continue
		}
		p.FDs = append(p.FDs, f)
	}
	return nil
}

// Kind names what the descriptor is: socket, pipe, memfd, null, terminal, device,
// directory, file, or the kernel's name of what has no file; unknown: it could not be
// looked at.
func (f FD) Kind() string {
	kind, inner, _ := strings.Cut(f.Link, ":")
	switch {
	case kind == "socket" || kind == "pipe":
		return kind
	case kind == "anon_inode":
		return strings.Trim(inner, "[]")
	case kind == "/memfd":
		return "memfd"
	}
	switch f.Mode & unix.S_IFMT {
	case 0:
		return "unknown"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFIFO:
		return "pipe"
	case unix.S_IFBLK:
		return "device"
	case unix.S_IFCHR:
		switch {
		case f.Rdev == unix.Mkdev(1, 3):
			return "null"
		case strings.HasPrefix(f.Link, "/dev/pts/"):
			return "terminal"
		}
		return "device"
	}
	return "file"
}

// Record returns the process for the receipt. here is carboy's own place.
func (p *Process) Record(role string, here Place) bottle.ProcPosture {
	out := bottle.ProcPosture{
		Role: role, PID: p.PID, UID: p.UIDs[1], Seccomp: p.Seccomp, NoNewPrivs: p.NoNewPrivs == 1,
		CapEff: p.CapEff, CapBnd: p.CapBnd, Mounts: len(p.Mounts), Chrooted: p.Root != here.Root, FDs: map[string]int{},
	}
	for k, ns := range p.Namespaces {
		if ns != here.Namespaces[k] {
			out.Namespaces = append(out.Namespaces, k)
		}
	}
	slices.Sort(out.Namespaces)
	for _, f := range p.FDs {
		out.FDs[f.Kind()]++
	}
	return out
}
