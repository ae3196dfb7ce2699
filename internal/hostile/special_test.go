package hostile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/store"
)

// TestS1SpecialFiles: a host's pipe or device in the workspace or in a mount gives no
// access to the host.
func TestS1SpecialFiles(t *testing.T) {
	for _, mode := range []store.Mode{store.Overlay, store.Copy, store.Bind} {
		t.Run(string(mode), func(t *testing.T) {
			h := newHost(t)
			mounted, err := os.MkdirTemp("", "given")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(mounted)
			if err := os.Chmod(mounted, 0o755); err != nil {
				t.Fatal(err)
			}
			var pipes []*os.File
			for _, dir := range []string{h.ws, mounted} {
				if err := unix.Mkfifo(dir+"/pipe", 0o666); err != nil {
					t.Fatal(err)
				}
				if err := unix.Chmod(dir+"/pipe", 0o666); err != nil {
					t.Fatal(err)
				}
				f, err := os.OpenFile(dir+"/pipe", os.O_RDWR|unix.O_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteString("from the host\n"); err != nil {
					t.Fatal(err)
				}
				pipes = append(pipes, f)
				if os.Geteuid() == 0 {
					for name, dev := range map[string]uint64{"disk": unix.Mkdev(254, 0), "mem": unix.Mkdev(1, 1), "kmsg": unix.Mkdev(1, 11), "full": unix.Mkdev(1, 7)} {
						kind := uint32(unix.S_IFCHR)
						if name == "disk" {
							kind = unix.S_IFBLK
						}
						if err := unix.Mknod(dir+"/"+name, kind|0o666, int(dev)); err != nil {
							t.Fatal(err)
						}
						if err := unix.Chmod(dir+"/"+name, 0o666); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			x := h.run(func(o *carboy.RunOptions) {
				o.Mode, o.Mounts = mode, append(o.Mounts, mounted+":/given:ro")
			}, "/bin/sh", "-c", `for d in . /given; do
				timeout 1 dd if=$d/pipe iflag=nonblock bs=64 count=1 2>/dev/null
				(timeout 1 sh -c "echo to-the-host > $d/pipe") 2>/dev/null
				for f in disk mem kmsg; do timeout 1 dd if=$d/$f bs=64 count=1 2>/dev/null | wc -c | grep -v '^0$'; done
			done
			mkfifo /tmp/own && (echo own > /tmp/own &) && cat /tmp/own`)
			x.exited(0)
			if x.out != "own\n" {
				t.Errorf("inside, the host's pipes and devices gave %q", x.out)
			}
			for _, f := range pipes {
				b := make([]byte, 100)
				f.SetReadDeadline(time.Now().Add(time.Second)) // it is there, or somebody has read it
				n, _ := f.Read(b)
				if got := string(b[:n]); got != "from the host\n" {
					t.Errorf("the host's pipe holds %q", got)
				}
			}
		})
	}
}

// TestS6ModesThatGiveRights: no file lands with a set-user-id bit, by which
// everybody who runs it would act as the one who landed it.
func TestS6ModesThatGiveRights(t *testing.T) {
	h := newHost(t)
	h.write("tool", "#!/bin/sh\n")
	x := h.sh(nil, "cp /bin/true suid && chmod 6755 suid; chmod 4755 tool; cp /bin/true plain && chmod 755 plain; mkdir sgid && chmod 2777 sgid")
	rep, err := h.client.Land(t.Context(), x.rec.ID, change.LandOptions{})
	t.Logf("%+v %v", rep, err)
	filepath.Walk(h.ws, func(path string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			t.Errorf("%s landed with mode %v", strings.TrimPrefix(path, h.ws), fi.Mode())
		}
		return nil
	})
	if fi, err := os.Stat(h.ws + "/plain"); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("the plain program beside it: %v", err)
	}
}
