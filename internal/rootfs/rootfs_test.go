package rootfs

import (
	"os"
	"path/filepath"
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
