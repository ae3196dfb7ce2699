package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
)

// memberName is argv[0] of a process that is not root, and may use the Engine.
const memberName = "docker-member"

// memberID is its user.
const memberID = 12_345

// member makes a bottle with a workspace, and says what became of it.
func member() {
	if err := memberBottle(); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func memberBottle() error {
	pair, err := wire.New()
	if err != nil {
		return err
	}
	go echo(pair.Host) // ends with the process
	spec := emptySpec()
	spec.User.UID, spec.User.GID = uint32(os.Getuid()), uint32(os.Getgid())
	if spec.Root, err = rootfs.Host(rootfs.Options{User: spec.User, Hostname: spec.Hostname}); err != nil {
		return err
	}
	ws := os.Args[1]
	spec.Workspace = &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay}
	spec.Mounts = []bottle.Mount{
		{Source: ws + "/shared", Target: "/shared", Access: bottle.AccessReadWrite},
		{Source: "/etc", Target: "/hosts-etc", Access: bottle.AccessReadOnly},
	}
	spec.Wire, spec.Net = pair.Bottle, wire.DefaultConfig()
	x, err := Backend{}.Create(context.Background(), spec)
	if err != nil {
		return err
	}
	fmt.Println("class", x.Posture().Isolation)
	out, err := output(x, "cd "+ws+"; echo changed >f; cat f; echo through >/shared/f; id -u; cat /hosts-etc/shadow 2>&1 | grep -c denied; python3 -c '"+echoes+"' 2>&1")
	if err != nil {
		return errors.Join(err, x.Close())
	}
	fmt.Print(out)
	var changes bytes.Buffer
	err = errors.Join(x.Pause(context.Background()), x.Export(context.Background(), &changes), x.Close())
	fmt.Println("export", bytes.Contains(changes.Bytes(), []byte("changed\n")))
	return err
}

// output runs a script in a bottle.
func output(x bottle.Bottle, script string) (string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return "", err
	}
	defer null.Close()
	_, err = x.Start(context.Background(), &bottle.Command{Args: []string{"/bin/bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdin: null, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(r)
	return string(b), err
}

// TestMember: a user who may use the Engine and is not root has the same bottles. What the user
// may not read stays so inside, though the helper is root.
func TestMember(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	for class, start := range map[bottle.Isolation]func(*testing.T) string{
		bottle.IsolationContainer:  func(t *testing.T) string { return withEngine(t).Socket },
		bottle.IsolationUserKernel: func(t *testing.T) string { return withKernel(t).Socket },
	} {
		t.Run(string(class), func(t *testing.T) {
			socket := start(t)
			ws, err := os.MkdirTemp("", "member")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(ws)
			if err := errors.Join(os.Mkdir(ws+"/shared", 0o755), os.Chown(ws+"/shared", memberID, memberID), os.WriteFile(ws+"/f", []byte("before\n"), 0o644),
				os.Chown(ws+"/f", memberID, memberID), os.Chown(ws, memberID, memberID), os.Chmod(socket, 0o666), os.Chmod(strings.TrimSuffix(socket, "/s"), 0o711)); err != nil {
				t.Fatal(err)
			}
			cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{memberName, ws}, Env: os.Environ(), SysProcAttr: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: memberID, Gid: memberID}}}
			out, err := cmd.CombinedOutput()
			want := fmt.Sprintf("class %s\nchanged\n%d\n1\nechoed\nexport true\n", class, memberID)
			if err != nil || string(out) != want {
				t.Errorf("%v: %q, not %q", err, out, want)
			}
			if b, err := os.ReadFile(ws + "/f"); err != nil || string(b) != "before\n" {
				t.Errorf("the workspace has %q, %v", b, err)
			}
			var st syscall.Stat_t
			if b, err := os.ReadFile(ws + "/shared/f"); err != nil || string(b) != "through\n" || syscall.Stat(ws+"/shared/f", &st) != nil || st.Uid != memberID {
				t.Errorf("what was written through is %q of %d, %v", b, st.Uid, err)
			}
			if n := containers(t) + volumes(t); n != 0 {
				t.Errorf("%d containers and volumes are left", n)
			}
		})
	}
}
