package platform

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/testenv"
)

// tree makes a root directory with these files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	wsl2 = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1) (gcc (GCC) 11.2.0, GNU ld (GNU Binutils) 2.37) #1 SMP Fri Mar 29 23:14:13 UTC 2024\n"
	wsl1 = "Linux version 4.4.0-19041-Microsoft (Microsoft@Microsoft.com) (gcc version 5.4.0 (GCC) ) #1237-Microsoft Sat Sep 11 14:32:00 PST 2021\n"
	deb  = "Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP PREEMPT_DYNAMIC Debian 6.1.119-1 (2024-11-22)\n"
	cros = "Linux version 6.6.30-06388-gabc (builder@localhost) #1 SMP PREEMPT_DYNAMIC\n"

	mounts = "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\nsystemd-1 /proc/sys/fs/binfmt_misc autofs rw 0 0\nbinfmt_misc /proc/sys/fs/binfmt_misc binfmt_misc rw 0 0\n"
	covers = "proc /proc proc rw 0 0\nlxcfs /proc/cpuinfo fuse.lxcfs rw 0 0\nlxcfs /proc/meminfo fuse.lxcfs rw 0 0\n"

	keepAdvice = " | keep workspaces in the Linux home: below /mnt/c they are slow, and permissions are lost"
)

func TestSurroundings(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		kind  Kind
		line  string // OK, detail | advice
	}{
		{"Debian", map[string]string{"proc/version": deb, "proc/self/mounts": mounts}, Plain, ""},
		{"nothing to read", nil, Plain, ""},
		{
			"WSL2 with interop", map[string]string{"proc/version": wsl2, "proc/sys/fs/binfmt_misc/WSLInterop": "enabled\ninterpreter /init\n"}, WSL2,
			"true WSL2 (5.15.153.1-microsoft-standard-WSL2) starts Windows programs; from a bottle none can be started" + keepAdvice,
		},
		{
			"WSL2 with systemd", map[string]string{"proc/version": wsl2, "proc/sys/fs/binfmt_misc/WSLInterop-late": "enabled\n"}, WSL2,
			"true WSL2 (5.15.153.1-microsoft-standard-WSL2) starts Windows programs; from a bottle none can be started" + keepAdvice,
		},
		{
			"WSL2 without interop", map[string]string{"proc/version": wsl2}, WSL2,
			"true WSL2 (5.15.153.1-microsoft-standard-WSL2): no Windows program can be started from a bottle" + keepAdvice,
		},
		{
			"WSL2 with a kernel of one's own", map[string]string{"proc/version": deb, "proc/sys/fs/binfmt_misc/WSLInterop": ""}, WSL2,
			"true WSL2 (6.1.0-28-amd64) starts Windows programs; from a bottle none can be started" + keepAdvice,
		},
		{
			"WSL1", map[string]string{"proc/version": wsl1, "proc/sys/fs/binfmt_misc/WSLInterop": ""}, WSL1,
			"false WSL1 (4.4.0-19041-Microsoft) has no Linux kernel, so no bottle can be made | in Windows: wsl --set-version DISTRIBUTION 2 (wsl --list shows its name)",
		},
		{"Microsoft's compiler elsewhere", map[string]string{"proc/version": "Linux version 6.1.0 (microsoft@build) #1\n"}, Plain, ""},
		{"ChromeOS with nesting", map[string]string{"proc/version": cros, "dev/.cros_milestone": "126", "proc/self/mounts": mounts}, ChromeOS, "true a container of ChromeOS 126 | "},
		{"ChromeOS", map[string]string{"proc/version": cros, "dev/.cros_milestone": "126\n", "proc/self/mounts": covers}, ChromeOS, "false a container of ChromeOS 126 that allows no nested containers: /proc/cpuinfo is covered | carboy doctor --fix"},
		{"ChromeOS, odd release", map[string]string{"dev/.cros_milestone": "\x1b[31m"}, ChromeOS, "true a container of ChromeOS | "},
	} {
		s := Read(tree(t, c.files))
		have := ""
		if l, ok := s.Line(); ok {
			have = map[bool]string{true: "true ", false: "false "}[l.OK] + l.Detail + " | " + l.Advice
		}
		if s.Kind != c.kind || have != c.line {
			t.Errorf("%s: %q, %q", c.name, s.Kind, have)
		}
	}
}

// The commands, by their text.
func TestFixes(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing forbids", map[string]string{
			"proc/version": deb, "etc/os-release": "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", "proc/sys/user/max_user_namespaces": "62000\n",
			"proc/sys/kernel/unprivileged_userns_clone": "1\n", "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0\n", "proc/self/mounts": mounts,
		}, ""},
		{"Ubuntu 24.04", map[string]string{
			"etc/os-release": "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\n", "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "proc/sys/user/max_user_namespaces": "62000\n",
		}, `# Ubuntu 24.04.1 LTS reserves user namespaces for programs
# that an AppArmor profile names (Ubuntu does since 23.10).
sudo tee /etc/apparmor.d/carboy >/dev/null <<'EOF'
abi <abi/4.0>,
include <tunables/global>

# carboy confines itself; this profile only lets it make user namespaces.
profile carboy "/usr/local/bin/carboy" flags=(unconfined) {
  userns,

  include if exists <local/carboy>
}
EOF
sudo apparmor_parser --replace /etc/apparmor.d/carboy
`},
		{"RHEL 9, hardened", map[string]string{
			"etc/os-release": "PRETTY_NAME=\"Red Hat Enterprise Linux 9.4 (Plow)\"\n", "proc/sys/user/max_user_namespaces": "0\n",
			"usr/lib/sysctl.d/50-default.conf": "kernel.sysrq = 16\n", "etc/sysctl.d/99-user_max_user_namespaces.conf": "# V-257816\n user.max_user_namespaces=0\n", "etc/sysctl.conf": "# empty\n",
		}, `# Kernel settings of Red Hat Enterprise Linux 9.4 (Plow) forbid namespaces.
# /etc/sysctl.d/99-user_max_user_namespaces.conf sets user.max_user_namespaces = 0.
# If a rule of your organisation asks for it, ask there first.
sudo tee /etc/sysctl.d/zz-carboy.conf >/dev/null <<'EOF'
user.max_user_namespaces = 15000
EOF
sudo sysctl -p /etc/sysctl.d/zz-carboy.conf
`},
		{"Debian 10", map[string]string{
			"etc/os-release": "PRETTY_NAME=\"Debian GNU/Linux 10 (buster)\"\n", "proc/sys/kernel/unprivileged_userns_clone": "0\n", "proc/sys/user/max_user_namespaces": "62000\n",
		}, `# Kernel settings of Debian GNU/Linux 10 (buster) forbid namespaces.
# kernel.unprivileged_userns_clone is 0, which no file sets.
sudo tee /etc/sysctl.d/zz-carboy.conf >/dev/null <<'EOF'
kernel.unprivileged_userns_clone = 1
EOF
sudo sysctl -p /etc/sysctl.d/zz-carboy.conf
`},
		{"both, in the file that is read last", map[string]string{
			"etc/os-release": "ID=debian\n", "proc/sys/kernel/unprivileged_userns_clone": "0\n", "proc/sys/user/max_user_namespaces": "0\n", "proc/sys/user/max_net_namespaces": "0",
			"etc/sysctl.d/10-a.conf": "user.max_user_namespaces = 0\n", "etc/sysctl.conf": "-user/max_user_namespaces = 0\nkernel.unprivileged_userns_clone=0\n",
		}, `# Kernel settings of Linux forbid namespaces.
# /etc/sysctl.conf sets user.max_user_namespaces = 0.
# /etc/sysctl.conf sets kernel.unprivileged_userns_clone = 0.
# user.max_net_namespaces is 0, which no file sets.
# If a rule of your organisation asks for it, ask there first.
sudo sed -i 's/^[[:space:]]*-\?user[.\/]max_user_namespaces/# &/' /etc/sysctl.conf
sudo sed -i 's/^[[:space:]]*-\?kernel[.\/]unprivileged_userns_clone/# &/' /etc/sysctl.conf
sudo tee /etc/sysctl.d/zz-carboy.conf >/dev/null <<'EOF'
user.max_user_namespaces = 15000
kernel.unprivileged_userns_clone = 1
user.max_net_namespaces = 15000
EOF
sudo sysctl -p /etc/sysctl.d/zz-carboy.conf
`},
		{"ChromeOS", map[string]string{"dev/.cros_milestone": "126", "proc/self/mounts": covers}, `# ChromeOS starts this container without leave to nest others.
# penguin is the name of the usual one.
# Type this in crosh, a tab that Ctrl+Alt+T opens:
vsh termina
lxc config set penguin security.nesting true
lxc restart penguin
`},
		{"WSL1", map[string]string{"proc/version": wsl1}, `# WSL1 has no Linux kernel; WSL2 has one.
# Type this in PowerShell on Windows:
wsl --list --verbose
wsl --set-version DISTRIBUTION 2
`},
		{"WSL2", map[string]string{"proc/version": wsl2}, ""},
	} {
		have := ""
		for _, f := range Read(tree(t, c.files)).Fixes("/usr/local/bin/carboy") {
			have += f.String()
		}
		if have != c.want {
			t.Errorf("%s:\n%s", c.name, have)
		}
	}
}

// The file that has the last word is named.
func TestSetBy(t *testing.T) {
	const name = "user.max_user_namespaces"
	for want, files := range map[string]map[string]string{
		"":                               {"etc/sysctl.d/a.conf": "#" + name + "=0\n;" + name + "=0\nuser.max_user_namespaces_x=0\nmax_user_namespaces=0\n", "etc/sysctl.d/b.txt": name + "=0\n"},
		"/usr/lib/sysctl.d/99-z.conf":    {"etc/sysctl.d/10-a.conf": name + "=0\n", "usr/lib/sysctl.d/99-z.conf": name + "=0"},
		"/etc/sysctl.d/50-a.conf":        {"etc/sysctl.d/50-a.conf": name + "=0\n", "usr/lib/sysctl.d/50-a.conf": name + "=1"},
		"/run/sysctl.d/60.conf":          {"etc/sysctl.d/50-a.conf": name + "=0\n", "run/sysctl.d/60.conf": " " + name + "\t= 0 "},
		"/usr/local/lib/sysctl.d/x.conf": {"etc/sysctl.d/50-a.conf": name + "=0\n", "usr/local/lib/sysctl.d/x.conf": "-" + strings.ReplaceAll(name, ".", "/") + "=0"},
		lastFile:                         {"etc/sysctl.d/zz.conf": name + "=0\n", "etc/sysctl.conf": name + "=0"},
	} {
		if have := setBy(tree(t, files), name); have != want {
			t.Errorf("%q, not %q", have, want)
		}
	}
}

// What is printed does what it says, where /etc is one that was made up.
func TestFixCommands(t *testing.T) {
	bash := testenv.Need(t, "bash", "apt-get install bash")
	root := tree(t, map[string]string{
		"proc/sys/user/max_user_namespaces": "0\n", "proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n", "etc/sysctl.conf": "  -user/max_user_namespaces = 0\nkernel.sysrq=1\n",
		"etc/apparmor.d/x": "", "etc/sysctl.d/x": "",
		"bin/sudo":            "#!/bin/sh\nexec \"$@\"\n",
		"bin/sysctl":          "#!/bin/sh\ncat \"$2\" >\"$ROOT/applied\"\n",
		"bin/apparmor_parser": "#!/bin/sh\ncat \"$2\" >\"$ROOT/loaded\"\n",
	})
	for _, n := range []string{"sudo", "sysctl", "apparmor_parser"} {
		if err := os.Chmod(filepath.Join(root, "bin", n), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := ""
	for _, f := range Read(root).Fixes("/opt/my tools/carboy") {
		script += f.String()
	}
	cmd := exec.Command(bash, "-euc", strings.ReplaceAll(script, "/etc/", root+"/etc/"))
	cmd.Env = []string{"PATH=" + root + "/bin:/usr/bin:/bin", "ROOT=" + root}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, script)
	}
	for name, want := range map[string]string{
		"applied": "user.max_user_namespaces = 15000\n", "etc/sysctl.conf": "#   -user/max_user_namespaces = 0\nkernel.sysrq=1\n",
	} {
		if b, err := os.ReadFile(filepath.Join(root, name)); string(b) != want {
			t.Errorf("%s is %q, %v", name, b, err)
		}
	}
	if b, err := os.ReadFile(root + "/loaded"); !strings.Contains(string(b), `profile carboy "/opt/my tools/carboy" flags=(unconfined) {`) {
		t.Errorf("the profile is %q, %v", b, err)
	}
	if have := setBy(root, "user.max_user_namespaces"); have != sysctlPath {
		t.Errorf("afterwards %q has the last word", have)
	}
}

// This system can be described.
func TestThisSystem(t *testing.T) {
	s := Read("/")
	if s.Kernel == "" || s.Name == "" {
		t.Errorf("%+v", s)
	}
	t.Logf("%+v", s)
}
