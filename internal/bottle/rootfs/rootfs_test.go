package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
)

// TestSettingsOfTheMachineStayOut: places of a host where credentials are found
// in practice, beside tools that must be there.
func TestSettingsOfTheMachineStayOut(t *testing.T) {
	base := t.TempDir()
	put := func(name, content string) {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{"etc/profile", "etc/bash.bashrc", "etc/npmrc", "etc/environment", "etc/maven/settings.xml", "usr/local/etc/npmrc"} {
		put(secret, "hunter2")
	}
	put("usr/bin/tool", "tool")
	put("etc/os-release", "NAME=x")
	root, err := hostFrom(base, Options{User: bottle.User{UID: 7, GID: 7, Name: "u", Home: "/home/u"}, Hostname: "h"})
	if err != nil {
		t.Fatal(err)
	}
	release := false
	for _, e := range root.Entries {
		if strings.Contains(string(e.Content), "hunter2") {
			t.Errorf("%s is shown", e.Path)
		}
		release = release || e.Path == "/etc/os-release" && string(e.Content) == "NAME=x"
	}
	last := map[string]string{}
	for _, m := range root.Binds {
		last[m.Target] = m.Source
	}
	if src, ok := last["/usr/local/etc"]; !ok || src != "" {
		t.Error("/usr/local/etc is not hidden")
	}
	if _, ok := last["/etc/maven"]; ok {
		t.Error("/etc/maven is shown")
	}
	if last["/usr"] != filepath.Join(base, "usr") || !release {
		t.Error("tools are missing")
	}
}

// A root names the directories that it shows, not their paths: what was made for
// one is not taken for another that lies at its path.
func TestDirectoriesByIdentity(t *testing.T) {
	base := t.TempDir()
	usr := filepath.Join(base, "usr")
	if err := os.MkdirAll(usr+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	look := func() bottle.Root {
		root, err := hostFrom(base, Options{User: bottle.User{UID: 7, GID: 7, Name: "u", Home: "/home/u"}, Hostname: "h"})
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	was := look()
	if err := os.WriteFile(usr+"/bin/tool", []byte("upgraded"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(was, look()) {
		t.Error("a tool that was upgraded makes another root")
	}
	if err := errors.Join(os.Rename(usr, usr+".old"), os.MkdirAll(usr+"/bin", 0o755)); err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(was, look()) {
		t.Error("another directory was put in the place of /usr, and nothing shows it")
	}
}

// TestLinksStayInside: what carboy reads of an image is the image's, wherever its
// links would lead on the host.
func TestLinksStayInside(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(outside, []byte("a key of the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		outside: "", strings.Repeat("../", 30) + outside: "", "/proc/self/environ": "",
		"/bundle": "the image's own", "../../../bundle": "the image's own", "../../../../../../bundle": "the image's own",
	} {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(dir+"/etc/ssl/certs", 0o755), os.WriteFile(dir+"/bundle", []byte("the image's own"), 0o644), os.Symlink(target, dir+trustFile)); err != nil {
			t.Fatal(err)
		}
		root, err := Dir(dir, Options{User: bottle.User{UID: 1000, GID: 1000, Name: "u", Home: "/home/u"}, Hostname: "h", Trusting: true})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range root.Entries {
			if e.Path == trustFile {
				got = string(e.Content)
			}
			if strings.Contains(string(e.Content), "a key") {
				t.Errorf("%s: %s holds the host's key", target, e.Path)
			}
		}
		if got != want {
			t.Errorf("%s: the bundle is %q, want %q", target, got, want)
		}
	}
}
