package gvisor

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// Libraries are facts by the file that was mapped, whatever it is called and however
// it was opened; files that are only read, or mapped to be read, are none.
func TestFactsOfLibraries(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t, seed(t, map[string]string{"plain.so": "no library"}))
	ws := m.spec.Workspace.Target
	out, st := m.run("python3", "-c", `
import ctypes, glob, mmap, os, shutil
lib = [l.split()[-1] for l in open("/proc/self/maps") if "libm.so" in l or "libm-" in l or "libc.so" in l][0]
shutil.copy(lib, "notes.txt")
ctypes.CDLL(os.path.abspath("notes.txt"))
fd = os.memfd_create("x"); os.write(fd, open(lib, "rb").read())
ctypes.CDLL("/proc/self/fd/%d" % fd)
mmap.mmap(os.open("plain.so", os.O_RDONLY), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
print("loaded", os.path.realpath(lib))
`)
	if st.ExitCode() != 0 || !strings.HasPrefix(out, "loaded ") {
		t.Fatal(out)
	}
	lib := strings.Fields(out)[1]
	fs := r.all(t, m.b)
	var system, renamed, nameless bool
	for _, f := range fs {
		if f.Op != trace.Load {
			continue
		}
		if !f.Observed() {
			t.Errorf("a library of a process alone is claimed: %+v", f)
		}
		system = system || filepath.Base(f.Path) == filepath.Base(lib) && f.Flags&trace.Mutable == 0
		renamed = renamed || f.Path == ws+"/notes.txt" && f.Flags&trace.Mutable != 0
		nameless = nameless || f.Flags&trace.Deleted != 0 && f.Flags&trace.Mutable != 0
		if strings.HasSuffix(f.Path, "plain.so") {
			t.Errorf("what was mapped to be read is a library: %+v", f)
		}
	}
	if !system || !renamed || !nameless {
		t.Errorf("no fact of a library: the system's %v, under another name %v, of memory %v", system, renamed, nameless)
	}
}

// Messages that name where they go are facts, the first to each address of a process;
// those of a connected socket are none.
func TestFactsOfMessages(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	m, r := makeTraced(t)
	out, st := m.run("python3", "-c", `
import os, socket
def to(send, *a):  # without a card nothing is reached; that it was tried is the fact
    try: send(*a)
    except OSError as e: pass
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(50): to(s.sendto, b"x", ("127.0.0.1", 9))
to(s.sendmsg, [b"x"], [], 0, ("127.0.0.2", 9))
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); to(c.connect, ("127.0.0.3", 9)); to(c.send, b"x")
u = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
to(u.sendto, b"x", "/tmp/nobody")
if os.fork() == 0:
    to(s.sendto, b"x", ("127.0.0.1", 9)); os._exit(0)
os.wait()
print("sent")
`)
	if st.ExitCode() != 0 || !strings.Contains(out, "sent") {
		t.Fatal(out)
	}
	n := map[string]int{}
	for _, f := range r.all(t, m.b) {
		if f.Op != trace.Send {
			continue
		}
		if f.Observed() {
			t.Errorf("an address that was copied apart is observed: %+v", f)
		}
		n[f.Path+" "+trace.ErrnoName(f.Errno)]++
	}
	if len(n) != 3 {
		t.Errorf("facts of other messages: %v", n)
	}
	for path, want := range map[string]int{"127.0.0.1:9 ENETUNREACH": 2, "127.0.0.2:9 ENETUNREACH": 1, "unix:/tmp/nobody ENOENT": 1} {
		if n[path] != want {
			t.Errorf("%d facts of messages to %q, want %d; all: %v", n[path], path, want, n)
		}
	}
}
