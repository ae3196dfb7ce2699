package rootfs

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// machine is a host's file system in which packages are installed.
type machine struct {
	t    *testing.T
	base string
}

func (m machine) put(name, content string, perm fs.FileMode) {
	m.t.Helper()
	path := filepath.Join(m.base, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), perm), os.Chmod(path, perm)); err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) link(name, to string) {
	m.t.Helper()
	path := filepath.Join(m.base, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		m.t.Fatal(err)
	}
}

// install has dpkg know one package with these configuration files.
func (m machine) install(conffiles ...string) {
	m.put("var/lib/dpkg/status", "Package: other\nStatus: install ok installed\nDescription: another\n /etc/looks/like a-file\n\nPackage: tool\nStatus: install ok installed\nConffiles:\n"+
		strings.Join(conffiles, "")+"Description: a tool\n of many words\n", 0o644)
}

func conffile(name, content string) string {
	return fmt.Sprintf(" %s %x\n", name, md5.Sum([]byte(content)))
}

// etc returns what a bottle finds below /etc: contents and links, by path.
func (m machine) etc(o Options) map[string]bottle.Entry {
	m.t.Helper()
	o.User, o.Hostname = bottle.User{UID: 7, GID: 7, Name: "u", Home: "/home/u"}, "h"
	root, err := hostFrom(m.base, o)
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[string]bottle.Entry{}
	for _, e := range root.Entries {
		if strings.HasPrefix(e.Path, "/etc/") && !e.Mode.IsDir() {
			out[e.Path] = e
		}
	}
	return out
}

// TestSettingsAsShipped: a configuration file is shown as its package shipped it; a
// credential that somebody wrote into one, or beside it, is not.
func TestSettingsAsShipped(t *testing.T) {
	m := machine{t, t.TempDir()}
	const shipped, secret = "the package's own\n", "the package's own\npassword = hunter2\n"
	m.install(
		conffile("/etc/tool/a.conf", shipped), conffile("/etc/tool/edited.conf", shipped), conffile("/etc/tool/run", shipped), conffile("/etc/tool/closed.conf", shipped),
		conffile("/etc/tool/was.conf", shipped)[:len(conffile("/etc/tool/was.conf", shipped))-1]+" obsolete\n", " /etc/tool/fresh.conf newconffile\n", conffile("/etc/tool/deep/b.conf", shipped),
		conffile("/etc/tool/link.conf", secret), conffile("/etc/profile", shipped), conffile("/etc/maven/settings.xml", shipped), conffile("/etc/hidden/x.conf", shipped),
	)
	for _, name := range []string{"tool/a.conf", "tool/was.conf", "tool/deep/b.conf", "profile", "maven/settings.xml", "hidden/x.conf"} {
		m.put("etc/"+name, shipped, 0o644)
	}
	m.put("etc/tool/run", shipped, 0o755)
	m.put("etc/tool/closed.conf", shipped, 0o640)
	for _, name := range []string{"tool/edited.conf", "tool/fresh.conf", "tool/beside.conf", "tool/deep/beside", "looks/like", "npmrc", "environment", "own/secret"} {
		m.put("etc/"+name, secret, 0o644)
	}
	m.put("home/keys", secret, 0o644)
	m.link("etc/tool/link.conf", "/home/keys")
	if err := os.Chmod(m.base+"/etc/hidden", 0o750); err != nil {
		t.Fatal(err)
	}
	etc := m.etc(Options{})
	for name, e := range etc {
		if bytes.Contains(e.Content, []byte("hunter2")) || strings.Contains(e.Link, "home") {
			t.Errorf("%s is shown", name)
		}
	}
	for _, name := range []string{"tool/closed.conf", "hidden/x.conf", "tool/fresh.conf"} {
		if _, ok := etc["/etc/"+name]; ok {
			t.Errorf("/etc/%s is shown", name)
		}
	}
	for _, name := range []string{"tool/a.conf", "tool/was.conf", "tool/deep/b.conf", "tool/run", "maven/settings.xml"} {
		if string(etc["/etc/"+name].Content) != shipped {
			t.Errorf("/etc/%s is missing", name)
		}
	}
	if etc["/etc/tool/run"].Mode != 0o755 || etc["/etc/tool/a.conf"].Mode != 0o644 {
		t.Errorf("modes %v, %v", etc["/etc/tool/run"].Mode, etc["/etc/tool/a.conf"].Mode)
	}
	if string(etc["/etc/profile"].Content) == shipped {
		t.Error("the bottle's own profile was replaced")
	}

	// What was edited is shown once it is as shipped again.
	m.put("etc/tool/edited.conf", shipped, 0o644)
	if string(m.etc(Options{})["/etc/tool/edited.conf"].Content) != shipped {
		t.Error("a file that was put back is missing")
	}
}

// TestSettingsNeverShown: places of keys and passwords stay out even if a package ships
// what is there, each beside the nearest name that is shown.
func TestSettingsNeverShown(t *testing.T) {
	for out, in := range map[string]string{
		"/etc/shadow": "/etc/shade", "/etc/sudoers": "/etc/doers", "/etc/sudoers.d/x": "/etc/doers.d/x", "/etc/ssh/ssh_host_rsa_key": "/etc/ssh/ssh_config",
		"/etc/ssl/private/x": "/etc/tls/x", "/etc/tool/private/x": "/etc/tool/public/x", "/etc/docker/daemon.json": "/etc/docker.conf", "/etc/kubernetes/admin.conf": "/etc/kube/config",
		"/etc/NetworkManager/system-connections/x": "/etc/networks", "/etc/wpa_supplicant/x.conf": "/etc/wpa.conf", "/etc/ppp/chap": "/etc/ppp.conf",
		"/etc/tool/server.key": "/etc/tool/server.keys", "/etc/tool/credentials.json": "/etc/tool/cred.json", "/etc/netrc": "/etc/netconfig.d/x",
		"/etc/npmrc": "/etc/npm/conf", "/etc/pip.conf": "/etc/pip.d/conf", "/etc/apt/auth.conf": "/etc/apt/apt.conf.d/01x", "/etc/apt/auth.conf.d/x.conf": "/etc/apt/listchanges.conf",
		"/etc/tool/.hidden": "/etc/tool/shown", "/etc/.git/config": "/etc/git/config", "/etc/tool/db-passwords": "/etc/tool/db", "/etc/cron.daily/x": "/etc/cronjobs/x", "/etc/rc3.d/x": "/etc/rcd/x",
		"/etc/tool/api_token": "/etc/tool/20-tokenizer.ini", "/etc/tool/api-tokens.json": "/etc/tool/api.json", "/etc/tool/id.pem": "/etc/tool/id.crt", "/etc/systemd/system/x.service": "/etc/system/x",
	} {
		m := machine{t, t.TempDir()}
		m.install(conffile(out, "x"), conffile(in, "x"))
		m.put(out, "x", 0o644)
		m.put(in, "x", 0o644)
		etc := m.etc(Options{})
		if _, ok := etc[out]; ok {
			t.Errorf("%s is shown", out)
		}
		if _, ok := etc[in]; !ok {
			t.Errorf("%s is missing", in)
		}
	}
}

// TestSettingsOfUCF: ucf also installs what packages made of answers. Only what the package
// has below /usr as well is shown.
func TestSettingsOfUCF(t *testing.T) {
	m := machine{t, t.TempDir()}
	m.put("var/lib/dpkg/status", "Package: php\nStatus: install ok installed\n", 0o644)
	m.put("var/lib/ucf/registry", "php\t/etc/php/cli/php.ini\nphp\t/etc/php/db.php\nphp8.2-cli\t/etc/php/opcache.ini\n../../../../etc/own\t/etc/php/own\nphp\n", 0o644)
	m.put("var/lib/ucf/hashfile", fmt.Sprintf("%x  /etc/php/db.php\n", md5.Sum([]byte("hunter2"))), 0o644)
	m.put("var/lib/dpkg/info/php.md5sums", fmt.Sprintf("%x  usr/lib/php/php.ini-production\n", md5.Sum([]byte("ini"))), 0o644)
	m.put("var/lib/dpkg/info/php8.2-common.md5sums", fmt.Sprintf("%x  usr/lib/php/opcache.ini\n", md5.Sum([]byte("opcache"))), 0o644)
	m.put("etc/php/opcache.ini", "opcache", 0o644)
	m.put("etc/own.md5sums", fmt.Sprintf("%x  own\n", md5.Sum([]byte("hunter2"))), 0o644)
	m.put("etc/php/cli/php.ini", "ini", 0o644)
	m.put("etc/php/db.php", "hunter2", 0o644)
	m.put("etc/php/own", "hunter2", 0o644)
	etc := m.etc(Options{})
	if string(etc["/etc/php/cli/php.ini"].Content) != "ini" || string(etc["/etc/php/opcache.ini"].Content) != "opcache" {
		t.Error("php.ini or opcache.ini is missing")
	}
	for _, name := range []string{"/etc/php/db.php", "/etc/php/own"} {
		if _, ok := etc[name]; ok {
			t.Errorf("%s is shown", name)
		}
	}
}

// TestLinksInSettings: a link is shown if it leads to what the bottle sees.
func TestLinksInSettings(t *testing.T) {
	m := machine{t, t.TempDir()}
	m.install(conffile("/etc/tool/a.conf", "a"))
	m.put("etc/tool/a.conf", "a", 0o644)
	m.put("etc/tool/edited", "hunter2", 0o644)
	m.put("etc/other/file", "x", 0o644)
	m.put("etc/fonts/fonts.conf", "x", 0o644)
	m.put("usr/share/tool/b.conf", "b", 0o644)
	m.put("usr/local/etc/npmrc", "hunter2", 0o644)
	m.put("home/keys", "hunter2", 0o644)
	links := map[string]string{
		"usr": "/usr/share/tool/b.conf", "up": "../../usr/share/tool/b.conf", "beside": "a.conf", "again": "beside", "dir/deeper": "../a.conf", "bound": "/etc/fonts/fonts.conf",
		"x-home": "/home/keys", "x-up": "../../home/keys", "x-edited": "edited", "x-edited-again": "x-edited", "x-none": "/usr/share/token-hunter2", "x-elsewhere": "/etc/other/file",
		"x-local": "/usr/local/etc/npmrc", "x-loop": "x-loop", "x-out": "/usr/../home/keys", "x-proc": "/proc/self/environ", "x-var": "/var/lib/dpkg/status",
	}
	for name, to := range links {
		m.link("etc/tool/"+name, to)
	}
	m.link("etc/other/link", "/usr/share/tool/b.conf") // no package ships anything there
	etc := m.etc(Options{})
	for name, to := range links {
		e, ok := etc["/etc/tool/"+name]
		if want := !strings.HasPrefix(name, "x-"); ok != want || ok && e.Link != to {
			t.Errorf("%s to %s: shown is %v, %q", name, to, ok, e.Link)
		}
	}
	if _, ok := etc["/etc/other/link"]; ok {
		t.Error("a directory without shipped files is shown")
	}
}

// TestSettingsAreBounded: what packages ship is bounded, and so is what is looked at.
func TestSettingsAreBounded(t *testing.T) {
	m := machine{t, t.TempDir()}
	large := strings.Repeat("x", maxShipped)
	lines := []string{conffile("/etc/tool/huge", large+"x"), conffile("/etc/tool/z", "z")}
	m.put("etc/tool/huge", large+"x", 0o644)
	m.put("etc/tool/z", "z", 0o644)
	for i := range maxAllShipped/maxShipped + 2 {
		name := fmt.Sprint("/etc/tool/large-", i)
		lines = append(lines, conffile(name, large))
		m.put(name, large, 0o644)
	}
	m.install(lines...)
	etc := m.etc(Options{})
	size := 0
	for name, e := range etc {
		if strings.HasPrefix(name, "/etc/tool/large") {
			size += len(e.Content)
		}
	}
	if size == 0 || size > maxAllShipped || etc["/etc/tool/huge"].Content != nil {
		t.Errorf("%d bytes are shown, %d of one file", size, len(etc["/etc/tool/huge"].Content))
	}
}

// TestSettingsOfThisMachine: of the machine that runs this test, files are shown whose sums
// dpkg itself has, and what the lists name.
func TestSettingsOfThisMachine(t *testing.T) {
	query := testenv.Need(t, "dpkg-query", "Debian or Ubuntu")
	out, err := exec.Command(query, "-W", "-f", "${Conffiles}\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 2 {
			known[f[0]+" "+f[1]] = true
		}
	}
	lists, err := filepath.Glob("/var/lib/dpkg/info/*.md5sums")
	if err != nil {
		t.Fatal(err)
	}
	var below []byte // sums of files below /usr: what ucf installs is one of them
	for _, l := range lists {
		text, err := os.ReadFile(l)
		if err != nil {
			t.Fatal(err)
		}
		below = append(below, text...)
	}
	b := &builder{base: "/", have: map[string]bool{"/": true}}
	b.packaged()
	files, links := 0, 0
	for _, e := range b.root.Entries {
		sum := fmt.Sprintf("%x", md5.Sum(e.Content))
		switch {
		case e.Mode.IsDir():
		case e.Mode&fs.ModeSymlink != 0:
			links++
		case known[e.Path+" "+sum] || bytes.Contains(below, []byte(sum)):
			files++
		default:
			t.Errorf("%s is not as shipped", e.Path)
		}
	}
	if files == 0 {
		t.Error("no file of a package is shown")
	}
	t.Logf("%d files, %d links", files, links)
}

// BenchmarkSettings measures what the settings of packages cost a start.
func BenchmarkSettings(b *testing.B) {
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if _, err := hostFrom("/", Options{User: bottle.User{UID: 7, GID: 7, Name: "u", Home: "/home/u"}, Hostname: "h"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("of packages", func(b *testing.B) {
		for b.Loop() {
			own := &builder{base: "/", have: map[string]bool{"/": true}}
			for _, d := range etcDirs {
				own.bind("/etc/" + d)
			}
			own.packaged()
		}
	})
}
