package supervise

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"
)

// The queue's directory holds these files:
//
//	waiting/<id>.proposal   a proposal that waits; a process that decides it holds flock
//	waiting/<id>.answer     its answer, until the asker has read it
//	waiting/<id>.asker      locked by an asking process as long as it lives
//	archive/<id>.json       proposal, answer, and the result of the approval
//
// A file is made under a temporary name and then renamed. It never replaces another file,
// except in the archive. Each directory is flat and watched as a whole, so no change after
// the first look is missed.
const (
	waitingDir = "waiting"
	archiveDir = "archive"

	proposalEnd = ".proposal"
	answerEnd   = ".answer"
	askerEnd    = ".asker"
	archiveEnd  = ".json"
	tmpPrefix   = ".tmp-"

	// maxFile bounds a file, in bytes: two payloads and the texts beside them, where JSON
	// may write one byte as six.
	maxFile = 2*MaxPayload + 8*(maxWhy+MaxNote) + 16<<10
	// maxNames bounds the number of names that are read of one directory.
	maxNames = 100_000
)

// directory is a directory that only this user can write to.
type directory struct {
	path string
	f    *os.File
}

func openDirectory(path string) (*directory, error) {
	if err := unix.Mkdir(path, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &fs.PathError{Op: "make", Path: path, Err: err}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := &directory{path, os.NewFile(uintptr(fd), path)}
	if err := d.own(); err != nil {
		d.f.Close()
		return nil, err
	}
	return d, nil
}

func (d *directory) fd() int { return int(d.f.Fd()) }

// own returns an error if another user could put an answer into the directory.
func (d *directory) own() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd(), &st); err != nil {
		return &fs.PathError{Op: "look at", Path: d.path, Err: err}
	}
	switch uid := uint32(os.Geteuid()); {
	case st.Uid != uid:
		return fmt.Errorf("%s: belongs to user %d, not to user %d", d.path, st.Uid, uid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s: is open to group or others (mode %#o): chmod 700 it, after checking what it holds", d.path, st.Mode&0o777)
	}
	return nil
}

// names returns the ids of the files whose names end in end, sorted. strange lists the
// other names.
func (d *directory) names(end string) (ids []ID, strange []string, err error) {
	fd, err := unix.Openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	all, err := f.Readdirnames(maxNames)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	for _, n := range all {
		if s, ok := strings.CutSuffix(n, end); ok && validID(s) {
			ids = append(ids, ID(s))
		} else if !d.ours(n) {
			strange = append(strange, n)
		}
	}
	slices.Sort(ids)
	slices.Sort(strange)
	return ids, strange, nil
}

func (d *directory) ours(name string) bool {
	if strings.HasPrefix(name, tmpPrefix) {
		return true
	}
	ends := []string{proposalEnd, answerEnd, askerEnd}
	if filepath.Base(d.path) == archiveDir {
		ends = []string{archiveEnd}
	}
	return slices.ContainsFunc(ends, func(end string) bool {
		s, ok := strings.CutSuffix(name, end)
		return ok && validID(s)
	})
}

// open opens a file that only this user can have written.
func (d *directory) open(name string) (*os.File, error) {
	if err := d.own(); err != nil {
		return nil, err
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd(), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(d.path, name), Err: err}
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.path, name))
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("is not a regular file")
		fallthrough
	case st.Uid != uint32(os.Geteuid()):
		if err == nil {
			err = fmt.Errorf("belongs to user %d, not to user %d", st.Uid, os.Geteuid())
		}
		fallthrough
	case st.Mode&0o022 != 0:
		if err == nil {
			err = fmt.Errorf("can be written by group or others (mode %#o)", st.Mode&0o777)
		}
		f.Close()
		return nil, &fs.PathError{Op: "read", Path: f.Name(), Err: err}
	}
	return f, nil
}

func readFile(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", f.Name(), maxFile)
	}
	return data, err
}

func (d *directory) read(name string) ([]byte, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readFile(f)
}

// write makes a file that is complete and on disk, or none. It returns fs.ErrExist if the
// name is taken, unless over is set.
func (d *directory) write(name string, data []byte, over bool) (err error) {
	defer func() {
		if err != nil {
			err = &fs.PathError{Op: "write", Path: filepath.Join(d.path, name), Err: err}
		}
	}()
	if err := d.own(); err != nil {
		return err
	}
	f, tmp, err := d.temporary()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			unix.Unlinkat(d.fd(), tmp, 0)
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.rename(tmp, name, over)
	}
	if err == nil {
		err = unix.Fsync(d.fd())
	}
	return err
}

func (d *directory) temporary() (*os.File, string, error) {
	tmp := tmpPrefix + rand.Text()
	fd, err := unix.Openat(d.fd(), tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, "", err
	}
	return os.NewFile(uintptr(fd), tmp), tmp, nil
}

func (d *directory) rename(from, to string, over bool) error {
	if over {
		return unix.Renameat(d.fd(), from, d.fd(), to)
	}
	err := unix.Renameat2(d.fd(), from, d.fd(), to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// A file system without RENAME_NOREPLACE has links.
	if err := unix.Linkat(d.fd(), from, d.fd(), to, 0); err != nil {
		return err
	}
	return unix.Unlinkat(d.fd(), from, 0)
}

func (d *directory) remove(name string) error {
	if err := unix.Unlinkat(d.fd(), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: filepath.Join(d.path, name), Err: err}
	}
	return nil
}

// lockFile opens name and locks it. It returns fs.ErrNotExist if, by then, the name is gone
// or names another file.
func (d *directory) lockFile(ctx context.Context, name string) (*os.File, error) {
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 16*time.Millisecond) {
		err = retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), ctx.Err())
		case <-time.After(wait):
		}
	}
	var held, named unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &held)
	if err == nil {
		err = unix.Fstatat(d.fd(), name, &named, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil && (held.Ino != named.Ino || held.Dev != named.Dev) {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return f, nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// newID returns an id that sorts after every earlier one of this process.
func newID() ID { return ID(strings.ToLower(ulid.Make().String())) }

func validID(s string) bool {
	if len(s) != ulid.EncodedSize || s != strings.ToLower(s) {
		return false
	}
	_, err := ulid.ParseStrict(strings.ToUpper(s))
	return err == nil
}

// alive reports whether the asking process id can still get an answer. Its lock proves it:
// the kernel drops the lock when the process ends, however it ends.
func (d *directory) alive(id ID) bool {
	f, err := d.open(string(id) + askerEnd)
	if err != nil {
		return false
	}
	defer f.Close()
	err = retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) })
	return errors.Is(err, unix.EWOULDBLOCK)
}

// deadline is a time on CLOCK_BOOTTIME, which nobody can set and which goes on while the
// machine sleeps.
type deadline struct {
	Boot string `json:"boot"`
	NS   int64  `json:"ns"` // since that boot
}

func bootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 1<<63 - 1 // so that every deadline has passed
	}
	return ts.Nano()
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func deadlineIn(d time.Duration) deadline { return deadline{bootID(), bootTime() + int64(d)} }

// left returns the time until the deadline. It returns 0 if the machine was started anew
// since.
func (l deadline) left() time.Duration {
	if l.Boot != bootID() {
		return 0
	}
	return time.Duration(l.NS - bootTime())
}

// marshal returns the content of a file for v.
func marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%d bytes, at most %d", len(data), maxFile)
	}
	return append(data, '\n'), err
}
