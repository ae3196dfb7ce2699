package hosts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY/PZ"

const one = `hosts:
  prod1:
    address: prod1.example.org
    user: deploy
    host_keys: ["` + key + `"]
    allowed_roots: [/srv]
    sacred_paths: [/srv/db]
`

// TestP1Hosts: what an entry leaves out grants nothing, and what it says is exact.
func TestP1Hosts(t *testing.T) {
	f, err := Parse("hosts.yaml", []byte(one))
	if err != nil {
		t.Fatal(err)
	}
	h, ok := f.Find("prod1")
	if !ok || h.Apply || h.FreeUndo || h.Approvals != 1 || h.Port != 22 || len(h.Keys) != 1 {
		t.Fatalf("%+v", h)
	}
	if _, ok := f.Find("prod2"); ok {
		t.Error("a host that is not there")
	}
	for dir, ok := range map[string]bool{"/srv/web": true, "/srv/dbx": true, "/srv": false, "/srv/db": false, "/srv/db/x": false, "/srvx": false, "/etc": false, "/": false, "srv": false, "/srv/../etc": false} {
		if got := h.Admits(dir) == ""; got != ok {
			t.Errorf("%s: admitted %v, want %v", dir, got, ok)
		}
	}
	for _, x := range []struct{ old, new, says string }{
		{"user: deploy", "user: root", "is root"},
		{"user: deploy", "user: '-oProxyCommand=x'", "not a user's name"},
		{"user: deploy", "user: 'a;b'", "not a user's name"},
		{"user: deploy", "user: \"a\\e[5A\"", "not a user's name"},
		{"address: prod1.example.org", "address: 'a b'", "neither a name"},
		{"address: prod1.example.org", "address: deploy@prod1", "neither a name"},
		{`["` + key + `"]`, "[]", "empty"},
		{`["` + key + `"]`, "[nonsense]", "not a public key"},
		{"    allowed_roots: [/srv]\n", "", "allowed_roots"},
		{"allowed_roots: [/srv]", "allowed_roots: []", "empty"},
		{"allowed_roots: [/srv]", "allowed_roots: [/]", "root directory"},
		{"allowed_roots: [/srv]", "allowed_roots: [srv]", "not absolute"},
		{"sacred_paths", "sacred_path", "sacred_path"},
		{"user: deploy", "user: deploy\n    jump: prod1", "jumps through"},
		{"user: deploy", "user: deploy\n    jump: nowhere", "jumps through"},
		{"user: deploy", "user: deploy\n    docker_host: tcp://1.2.3.4:2375", "not the address of a socket"},
		{"user: deploy", "user: deploy\n    apply: yes", "apply"},
		{"user: deploy", "user: deploy\n    approvals: 0", "approvals"},
		{"user: deploy", "user: deploy\n    key: id", "not an absolute path"},
	} {
		if _, err := Parse("hosts.yaml", []byte(strings.Replace(one, x.old, x.new, 1))); err == nil || !strings.Contains(err.Error(), x.says) || !strings.HasPrefix(err.Error(), "hosts.yaml:") {
			t.Errorf("%s: %v, want an error with its line that says %q", x.new, err, x.says)
		}
	}
	if _, err = Parse("hosts.yaml", []byte(strings.Replace(one, "user: deploy", "user: root\n    allow_root: true", 1))); err != nil {
		t.Errorf("root, in so many words: %v", err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, errNone) {
		t.Errorf("no file: %v", err)
	}
	name := filepath.Join(dir, FileName)
	if err := os.WriteFile(name, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err != nil {
		t.Error(err)
	}
	for _, mode := range []os.FileMode{0o620, 0o602} {
		os.Chmod(name, mode)
		if _, err := Load(dir); err == nil {
			t.Errorf("mode %v is taken", mode)
		}
	}
}

func TestNamesAndKeys(t *testing.T) {
	text := one + strings.ReplaceAll(strings.TrimPrefix(one, "hosts:\n"), "prod1", "app1") + "  'a b': {}\n"
	if _, err := Parse("hosts.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "a name that is none") {
		t.Errorf("a host's name with a space: %v", err)
	}
	f, err := Parse("hosts.yaml", []byte(strings.TrimSuffix(text, "  'a b': {}\n")))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(f.names(), " "); got != "app1 prod1" {
		t.Errorf("hosts %s", got)
	}
	h, _ := f.Find("app1")
	if got := h.Fingerprints(); len(got) != 1 || !strings.HasPrefix(got[0], "SHA256:") {
		t.Errorf("fingerprints %v", got)
	}
	if _, err := Parse("hosts.yaml", []byte("hosts: [")); err == nil {
		t.Error("took what is no YAML")
	}
}

// TestReadTrusted: a file that others control, or that is none, grants nothing.
func TestReadTrusted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := write("good", "text")
	if b, err := ReadTrusted(good, 4); err != nil || string(b) != "text" {
		t.Errorf("%q %v", b, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]string{"too large": write("large", "text!"), "a fifo": fifo, "a directory": dir, "missing": filepath.Join(dir, "missing"), "without end": "/proc/self/mounts"}
	if os.Getuid() == 0 {
		cases["of another user"] = write("other", "x")
		if err := os.Chown(cases["of another user"], 12345, 0); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range cases {
		if b, err := ReadTrusted(file, 4); err == nil {
			t.Errorf("%s: read %q", name, b)
		}
	}
	if err := os.Symlink(cases["too large"], filepath.Join(dir, FileName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || errors.Is(err, errNone) {
		t.Errorf("read what is no hosts.yaml: %v", err)
	}
}
