package rootfs

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// Anybody can download what a package ships. So a file of /etc that is byte for byte as its
// package shipped it holds no secret of this machine, and a bottle gets a copy of the very
// bytes that were compared. What somebody changed, or a program wrote, may hold one: it is
// left out, unless etcFiles or etcDirs name it. Decision 0042 has the reasons.

// keptNames are names that stay out at any depth, as shipped too: a rule about content alone
// would show the first file of such a name that comes in a company's own package. (sudo
// would say of its files that they are not root's.) An asterisk may begin and end one.
var keptNames = []string{
	".*", "*~", "*shadow*", "sudo*", "*secret*", "*passw*", "*credential*", "*token", "*tokens", "*token.*", "*tokens.*", "*.key", "*_key", "*.pem", "*.p12", "*.pfx", "*.jks",
	"*.keytab", "*netrc*", "npmrc", "pip.conf", "auth.conf*", "authorized_keys*", "private",
}

// keptPlaces are places below /etc that stay out: keys and passwords are kept there, or
// services of a whole system alone read them, and no bottle runs those.
var keptPlaces = []string{
	"NetworkManager", "cloud", "containers", "docker", "ipsec.d", "krb5kdc", "kubernetes", "letsencrypt", "openvpn", "pki", "ppp", "ssl", "wireguard", "wpa_supplicant",
	"apparmor", "apparmor.d", "cron.d", "cron.daily", "cron.hourly", "cron.monthly", "cron.weekly", "cron.yearly", "dbus-1/system.d", "default", "dhcp", "grub.d", "init.d",
	"initramfs-tools", "kernel", "logcheck", "logrotate.d", "modprobe.d", "modules-load.d", "network", "pam.d", "polkit-1", "rc0.d", "rc1.d", "rc2.d", "rc3.d", "rc4.d",
	"rc5.d", "rc6.d", "rcS.d", "runit", "security", "selinux", "sv", "sysctl.d", "systemd", "tmpfiles.d", "udev", "ufw", "update-motd.d", "X11/Xreset.d", "X11/Xsession.d",
}

const (
	maxDatabase = 64 << 20
	maxEtcNames = 20_000
	// A start copies what is shown: what is larger is data, such as sshd's moduli.
	maxShipped    = 256 << 10
	maxAllShipped = 4 << 20
)

// settings collects what packages shipped to /etc.
type settings struct {
	*builder
	// shipped says for a path in which texts its sum must stand, in hexadecimal.
	shipped map[string][][]byte
	above   map[string]bool // the directories in which shipped files lie
	bound   map[string]bool
	links   []bottle.Entry
	names   int
	size    int
}

// packaged adds the files of /etc that are as their packages shipped them, and links to what
// a bottle sees. It comes after all that has a place in /etc already.
func (b *builder) packaged() {
	s := &settings{builder: b, shipped: map[string][][]byte{}, above: map[string]bool{}, bound: map[string]bool{}}
	s.conffiles()
	s.ucf()
	for p := range s.shipped {
		for d := path.Dir(p); len(d) > 1 && !s.above[d]; d = path.Dir(d) {
			s.above[d] = true
		}
	}
	for _, m := range b.root.Binds {
		s.bound[m.Target] = true
	}
	if s.above["/etc"] {
		s.dir("/etc")
	}
	// A link may lead to another one, which is not there yet.
	for again := true; again; {
		again = false
		for _, l := range s.links {
			if !b.have[l.Path] && s.visible(l) {
				b.add(l)
				again = true
			}
		}
	}
}

// conffiles reads the sums of the files that dpkg treats as configuration, as the packages
// have them.
func (s *settings) conffiles() {
	rest, found := s.database(bottle.SettingsBy[0]), true
	for {
		if _, rest, found = bytes.Cut(rest, []byte("\nConffiles:\n")); !found {
			return
		}
		for bytes.HasPrefix(rest, []byte(" /")) {
			var line []byte
			line, rest, _ = bytes.Cut(rest, []byte("\n"))
			f := bytes.Fields(line) // path, sum, and perhaps "obsolete"
			// Of two packages the one counts that has not given the file up.
			if name := string(f[0]); len(f) == 2 || len(f) == 3 && s.shipped[name] == nil {
				s.shipped[name] = f[1:2]
			}
		}
	}
}

// ucf adds the files that ucf manages. Its own sums prove nothing: packages let it install
// what they made of answers, such as a database's password. So such a file must be one that
// the package has below /usr, too, or the package of the same name that ends in -common.
func (s *settings) ucf() {
	lists := map[string][]byte{}
	sums := func(name string) []byte {
		list, ok := lists[name]
		if !ok {
			list = s.database("/var/lib/dpkg/info/" + name + ".md5sums")
			lists[name] = list
		}
		return list
	}
	for line := range strings.Lines(string(s.database(bottle.SettingsBy[1]))) {
		f := strings.Fields(line)
		if len(f) != 2 || s.shipped[f[1]] != nil || path.Base(f[0]) != f[0] {
			continue
		}
		s.shipped[f[1]] = [][]byte{sums(f[0])}
		if i := strings.LastIndexByte(f[0], '-'); i > 0 {
			s.shipped[f[1]] = append(s.shipped[f[1]], sums(f[0][:i]+"-common"))
		}
	}
}

func (s *settings) database(path string) []byte {
	content, _ := s.public(path, maxDatabase, 0)
	return content
}

// dir collects of a directory what is public. Below /etc itself it enters those alone in
// which a package ships something.
func (s *settings) dir(dir string) {
	at := filepath.Join(s.base, dir)
	if fi, err := os.Lstat(at); err != nil || !fi.IsDir() || fi.Mode().Perm()&0o005 != 0o005 {
		return
	}
	list, err := os.ReadDir(at)
	if err != nil {
		return
	}
	for _, e := range list {
		name := dir + "/" + e.Name()
		if s.names++; s.names > maxEtcNames {
			return
		}
		switch {
		case keptOut(name) || s.bound[name]:
		case e.IsDir():
			if s.above[name] || dir != "/etc" {
				s.dir(name)
			}
		case s.have[name]:
		case e.Type()&fs.ModeSymlink != 0:
			if to, err := os.Readlink(filepath.Join(s.base, name)); err == nil {
				s.links = append(s.links, bottle.Entry{Path: name, Mode: fs.ModeSymlink, Link: to})
			}
		case s.shipped[name] != nil:
			s.file(name)
		}
	}
}

func (s *settings) file(name string) {
	content, perm := s.public(name, min(maxShipped, maxAllShipped-s.size), unix.O_NOFOLLOW)
	if content == nil {
		return
	}
	sum := md5.Sum(content)
	as := []byte(hex.EncodeToString(sum[:]))
	if !slices.ContainsFunc(s.shipped[name], func(text []byte) bool { return bytes.Contains(text, as) }) {
		return
	}
	s.size += len(content)
	s.add(bottle.Entry{Path: name, Mode: 0o644 | perm&0o111, Content: content})
}

// visible reports whether a link leads to something that the bottle sees: a text that only
// looks like a link's target stays out.
func (s *settings) visible(l bottle.Entry) bool {
	to := l.Link
	if !path.IsAbs(to) {
		to = path.Join(path.Dir(l.Path), to)
	}
	to = path.Clean(to)
	if s.have[to] {
		return true
	}
	if within(to, secretDirs) || !within(to, toolDirs) && !within(to, slices.Collect(maps.Keys(s.bound))) {
		return false
	}
	_, err := os.Lstat(filepath.Join(s.base, to))
	return err == nil
}

// keptOut reports whether a path below /etc stays out, whatever it holds.
func keptOut(name string) bool {
	base := strings.ToLower(path.Base(name))
	return slices.Contains(keptPlaces, strings.TrimPrefix(name, "/etc/")) || slices.ContainsFunc(keptNames, func(kept string) bool {
		part, anyStart := strings.CutPrefix(kept, "*")
		part, anyEnd := strings.CutSuffix(part, "*")
		switch {
		case anyStart && anyEnd:
			return strings.Contains(base, part)
		case anyStart:
			return strings.HasSuffix(base, part)
		case anyEnd:
			return strings.HasPrefix(base, part)
		}
		return base == part
	})
}
