package microvm

import (
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/bottletest"
	"github.com/carboy/carboy/internal/testenv"
)

func TestMain(m *testing.M) {
	bottletest.Main()
	os.Exit(m.Run())
}

// needMachine skips the test unless a machine can run here. Without KVM the processor is
// emulated, which the test's log says, and which takes long.
func needMachine(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: virtual machines, often emulated ones; -short leaves them out")
	}
	if (Backend{}).Check(t.Context()) == nil {
		return
	}
	if err := os.Setenv(EmulateEnv, "1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Unsetenv(EmulateEnv) })
	if err := (Backend{}).Check(t.Context()); err != nil {
		testenv.Missing(t, err.Error(), "apt-get install --no-install-recommends qemu-system-x86 linux-image-cloud-amd64, or unpack the latter's package and set "+KernelEnv)
	}
	t.Log("the processor is emulated here: this tests the contract, not the boundary")
}

// small is the backend with a few of this machine's programs in place of all in /usr,
// which would be copied into an image first.
type small struct {
	Backend
	usr string
}

func (s small) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	for i, m := range spec.Root.Binds {
		if m.Target == "/usr" {
			spec.Root.Binds[i] = bottle.Mount{Source: s.usr, Target: "/usr", Access: bottle.AccessReadOnly}
		}
	}
	kept := spec.Root.Binds[:0]
	for _, m := range spec.Root.Binds {
		// Directories to hide that are not there.
		if m.Source != "" || !strings.HasPrefix(m.Target, "/usr/") {
			kept = append(kept, m)
		}
	}
	spec.Root.Binds = kept
	return s.Backend.Create(ctx, spec)
}

// programs lists those that the contract suite starts.
var programs = []string{
	"sh", "bash", "cat", "head", "tail", "tr", "yes", "id", "uname", "touch", "stat", "grep", "rm", "mv", "cp", "ln", "mkdir", "rmdir", "mkfifo", "chmod", "chown",
	"sleep", "seq", "od", "stty", "env", "pwd", "true", "false", "setsid", "truncate", "ls", "wc", "sort", "dd", "readlink", "sha256sum", "mount", "find", "sed", "ps", "tty", "test", "df",
}

// usrOf makes a small /usr of this machine's programs and the libraries that they need.
var usrOf = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "microvm-usr")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	u := &usr{dir: dir, done: map[string]bool{}}
	for _, p := range programs {
		if path := testenv.Look(p); path != "" {
			u.add(path, "bin/"+p)
		}
	}
	return dir, u.err
})

type usr struct {
	dir  string
	done map[string]bool
	err  error
}

// add copies a program or library, and what it needs.
func (u *usr) add(path, rel string) {
	if u.err != nil || u.done[rel] {
		return
	}
	u.done[rel] = true
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.MkdirAll(filepath.Join(u.dir, filepath.Dir(rel)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(u.dir, rel), content, 0o755)
	}
	if u.err = err; err != nil {
		return
	}
	f, err := elf.Open(path)
	if err != nil {
		return // a script
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			p.ReadAt(b, 0)
			loader := strings.TrimRight(string(b), "\x00")
			u.add(loader, strings.TrimPrefix(strings.TrimPrefix(loader, "/usr"), "/"))
		}
	}
	needs, _ := f.ImportedLibraries()
	for _, lib := range needs {
		for _, d := range []string{"lib/x86_64-linux-gnu", "lib64", "lib"} {
			if _, err := os.Stat("/usr/" + d + "/" + lib); err == nil {
				u.add("/usr/"+d+"/"+lib, d+"/"+lib)
				break
			}
		}
	}
}

// smallBackend returns a backend for tests of what a machine does.
func smallBackend(t testing.TB) bottle.Backend {
	t.Helper()
	needMachine(t)
	usr, err := usrOf()
	if err != nil {
		t.Fatal(err)
	}
	return small{usr: usr}
}

func TestContract(t *testing.T) {
	b := smallBackend(t)
	bottletest.Run(t, func() bottle.Backend { return b })
}
