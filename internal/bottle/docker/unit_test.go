package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// TestEngineOfThisMachine checks which Engine is used, and that none of another machine is.
func TestEngineOfThisMachine(t *testing.T) {
	home := t.TempDir()
	contexts := func(current, host string) {
		t.Helper()
		sum := sha256.Sum256([]byte(current))
		dir := filepath.Join(home, ".docker/contexts/meta", hex.EncodeToString(sum[:]))
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "meta.json"), []byte(`{"Name":"`+current+`","Endpoints":{"docker":{"Host":"`+host+`"}}}`), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	contexts("far", "tcp://10.0.0.1:2376")
	contexts("ssh", "ssh://root@example.com")
	contexts("near", "unix:///run/near.sock")
	for name, c := range map[string]struct {
		env     map[string]string
		config  string
		want    string
		refused bool
	}{
		"nothing":             {want: defaultSocket},
		"a socket":            {env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock"}, want: "/run/x.sock"},
		"TCP":                 {env: map[string]string{"DOCKER_HOST": "tcp://127.0.0.1:2375"}, refused: true},
		"SSH":                 {env: map[string]string{"DOCKER_HOST": "ssh://x"}, refused: true},
		"a relative socket":   {env: map[string]string{"DOCKER_HOST": "unix://x.sock"}, refused: true},
		"a remote context":    {env: map[string]string{"DOCKER_CONTEXT": "far"}, refused: true},
		"the default context": {env: map[string]string{"DOCKER_CONTEXT": "default"}, want: defaultSocket},
		"a near context":      {env: map[string]string{"DOCKER_CONTEXT": "near"}, want: "/run/near.sock"},
		"no such context":     {env: map[string]string{"DOCKER_CONTEXT": "none"}, refused: true},
		"a context in use":    {config: `{"currentContext":"ssh"}`, refused: true},
		"over a context":      {env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock"}, config: `{"currentContext":"ssh"}`, want: "/run/x.sock"},
		"settings in pieces":  {config: `{`, refused: true},
		"other settings":      {config: `{"auths":{}}`, want: defaultSocket},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(home, ".docker/config.json")
			os.Remove(path)
			if c.config != "" {
				if err := os.WriteFile(path, []byte(c.config), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := socketOf(func(k string) string {
				if k == "HOME" {
					return home
				}
				return c.env[k]
			})
			if got != c.want || (err != nil) != c.refused {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestCheckSaysWhatIsMissing asks for an Engine that is not there.
func TestCheckSaysWhatIsMissing(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/none")
	err := Backend{}.Check(t.Context())
	var u *bottle.UnavailableError
	if !errors.As(err, &u) || u.Advice == "" {
		t.Fatalf("%v", err)
	}
	want := "there is no Docker Engine"
	if os.Geteuid() != 0 {
		want = "only root"
	}
	if !strings.Contains(u.Reason, want) {
		t.Errorf("%q", u.Reason)
	}
}

func TestOwner(t *testing.T) {
	if !ownerLives(owner()) {
		t.Error("this process does not live")
	}
	for _, label := range []string{"", "x", "1 2 3", "0 0 " + bootID(), "1 1 " + bootID(), "999999999 5 " + bootID()} {
		if ownerLives(label) {
			t.Errorf("the owner %q lives", label)
		}
	}
}

func TestWhere(t *testing.T) {
	open := func() *os.File {
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	layers := []layer{{dir: open(), at: "/"}, {dir: open(), at: "/work/space"}, {dir: open(), at: "/work/space/inner"}}
	for name, want := range map[string]struct {
		layer int
		rest  string
	}{
		"etc/x": {0, "etc/x"}, "work": {0, "work"}, "work/space": {1, ""}, "work/space/a": {1, "a"}, "work/spaces/a": {0, "work/spaces/a"}, "work/space/inner/b": {2, "b"},
	} {
		fd, rest := where(layers, name)
		if fd != int(layers[want.layer].dir.Fd()) || rest != want.rest {
			t.Errorf("%s is %q in descriptor %d", name, rest, fd)
		}
	}
}

// TestBlocks checks that no depth of directories hides what is in them.
func TestBlocks(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(top+"/f", make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := blocks(fd, 0); n < 1<<20 || n > 2<<20 {
		t.Errorf("1 MiB is %d", n)
	}
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range maxDepth + 10 {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o755)
		}
		if err == nil {
			next, oerr := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			unix.Close(at)
			at, err = next, oerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
	if fd, err = unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		t.Fatal(err)
	}
	if n := blocks(fd, 0); n != tooMuch {
		t.Errorf("what is nested too deeply is %d bytes", n)
	}
}
