package bottle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/wire"
)

func TestLimitsValidate(t *testing.T) {
	good := Limits{Memory: 1, Pids: 1, Disk: 1, CPUs: 1, Output: 1, FileSize: 1, OpenFiles: 1}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for word, change := range map[string]func(*Limits){
		"memory":     func(l *Limits) { l.Memory = 0 },
		"pids":       func(l *Limits) { l.Pids = -1 },
		"disk":       func(l *Limits) { l.Disk = 0 },
		"cpus":       func(l *Limits) { l.CPUs = 0 },
		"output":     func(l *Limits) { l.Output = 0 },
		"file size":  func(l *Limits) { l.FileSize = 0 },
		"open files": func(l *Limits) { l.OpenFiles = 0 },
		"timeout":    func(l *Limits) { l.Timeout = -1 },
		"egress":     func(l *Limits) { l.Egress = -1 },
	} {
		l := good
		change(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// A descriptor that Files leaves out is leaked by every failed Create.
func TestSpecFiles(t *testing.T) {
	if got := (&Spec{}).Files(); len(got) != 0 {
		t.Errorf("an empty spec has %d files", len(got))
	}
	var all []*os.File
	file := func() *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		all = append(all, f)
		return f
	}
	s := &Spec{
		Wire: file(), Trace: file(), Upper: file(),
		Channels:  wire.ChannelFiles{Mem: file(), ToHost: file(), ToBottle: file()},
		Workspace: &Mount{Tree: file()},
		Mounts:    []Mount{{Tree: file()}, {}},
		Root:      Root{Binds: []Mount{{Tree: file()}}},
		Thaw: &Thaw{
			Image: []*os.File{file(), file(), file()},
			Stdin: file(), Stdout: file(), Stderr: file(),
		},
	}
	got := s.Files()
	for _, f := range all {
		if !slices.Contains(got, f) {
			t.Errorf("%s is not among the files", f.Name())
		}
	}
	if len(got) != len(all) {
		t.Errorf("%d files, not %d", len(got), len(all))
	}
}

// Files only reads: the caller's mounts may share their memory with other lists.
func TestSpecFilesWritesNothing(t *testing.T) {
	mounts := make([]Mount, 1, 2)
	s := &Spec{Mounts: mounts, Root: Root{Binds: []Mount{{Target: "/usr"}}}}
	s.Files()
	if got := mounts[:2][1].Target; got != "" {
		t.Errorf("%q was written behind the mounts", got)
	}
}

func TestSpecWritable(t *testing.T) {
	s := &Spec{
		Workspace: &Mount{Target: "/w", Access: AccessReadWrite},
		Mounts:    []Mount{{Target: "/ro", Access: AccessReadOnly}, {Target: "/rw", Access: AccessReadWrite}, {Target: "/o", Access: AccessOverlay}, {Target: "/none"}},
	}
	if got := s.Writable(); !slices.Equal(got, []string{"/w", "/rw"}) {
		t.Errorf("%q", got)
	}
	s.Workspace.Access = AccessOverlay
	if got := s.Writable(); !slices.Equal(got, []string{"/rw"}) {
		t.Errorf("with an overlay: %q", got)
	}
}

func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		st   Status
		want int
	}{{Status{Exited: true, Code: 3}, 3}, {Status{Exited: true}, 0}, {Status{Exited: true, Signal: syscall.SIGKILL}, 137}} {
		if got := c.st.ExitCode(); got != c.want {
			t.Errorf("%+v: %d, not %d", c.st, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("no such device")
	err := error(&UnavailableError{Backend: "b", Reason: "needs a device", Err: cause})
	if err.Error() != "b: needs a device: no such device" || !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	for err, want := range map[error]string{
		&UnavailableError{Backend: "b", Reason: "r"}:      "b: r",
		&FactsLostError{Untold: 7}:                        "the last 7 facts of the bottle were lost",
		&PostureError{Role: "sandbox", Reason: "is open"}: "posture of the sandbox process: is open",
	} {
		if err.Error() != want {
			t.Errorf("%q, not %q", err, want)
		}
	}
}
