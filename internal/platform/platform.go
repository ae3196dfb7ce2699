// Package platform tells what kind of Linux system this is, as far as it matters for
// bottles, and prints the commands that allow user namespaces where a setting forbids them.
// Start reading at [Read].
package platform

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/bottle/userns"
)

// Kind is a surrounding that Linux runs in.
type Kind string

// Kinds of surroundings.
const (
	Plain    Kind = ""
	WSL1     Kind = "WSL1" // Windows serves the system calls; there is no Linux kernel
	WSL2     Kind = "WSL2" // a virtual machine on Windows
	ChromeOS Kind = "ChromeOS"
)

// System describes a system.
type System struct {
	Kind    Kind
	Kernel  string // its release; empty: not known
	Name    string // the distribution's, such as Debian GNU/Linux 12 (bookworm)
	Release string // of ChromeOS
	// Interop says that WSL starts Windows programs.
	Interop bool
	// Covered is a path of proc that something is mounted on. Then programs in a user
	// namespace can't mount a proc of their own, which a bottle needs. Empty: none is.
	Covered string
	// AppArmor says that AppArmor reserves user namespaces for programs with a profile.
	AppArmor bool
	// Settings are kernel settings that forbid namespaces.
	Settings []Setting
}

// Setting is a kernel setting with a value that forbids namespaces.
type Setting struct {
	Name, Value string
	Want        string
	// File is the configuration file that sets it; empty: none does.
	File string
}

// forbidding are settings that can forbid namespaces: their value then, and one that does
// not. RHEL and rules for hardening set the first, Debian until 10 and hardened kernels the
// second; the rest go with the first.
var forbidding = []Setting{
	{Name: "user.max_user_namespaces", Value: "0", Want: "15000"},
	{Name: "kernel.unprivileged_userns_clone", Value: "0", Want: "1"},
	{Name: "user.max_mnt_namespaces", Value: "0", Want: "15000"},
	{Name: "user.max_pid_namespaces", Value: "0", Want: "15000"},
	{Name: "user.max_net_namespaces", Value: "0", Want: "15000"},
	{Name: "user.max_ipc_namespaces", Value: "0", Want: "15000"},
	{Name: "user.max_uts_namespaces", Value: "0", Want: "15000"},
}

// release finds the kernel's release in /proc/version.
var release = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^Linux version (\S{1,200})`) })

// Read describes the system with this root directory, which is / but in tests. What can't
// be read counts as absent.
func Read(root string) System {
	read := func(path string) string {
		f, err := os.Open(filepath.Join(root, path))
		if err != nil {
			return ""
		}
		defer f.Close()
		b, _ := io.ReadAll(io.LimitReader(f, 256<<10))
		return string(b)
	}
	there := func(path string) bool {
		_, err := os.Lstat(filepath.Join(root, path))
		return err == nil
	}
	s := System{Name: "Linux"}
	version := read("proc/version")
	if m := release().FindStringSubmatch(version); m != nil {
		s.Kernel = m[1]
	}
	for line := range strings.Lines(read("etc/os-release")) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok && len(v) < 200 {
			s.Name = strings.Trim(v, `"'`)
		}
	}
	// https://learn.microsoft.com/windows/wsl: the kernel's name says who built it; WSL2's
	// has WSL2 in it since 5.x. WSLInterop is there unless it was switched off.
	s.Interop = there("proc/sys/fs/binfmt_misc/WSLInterop") || there("proc/sys/fs/binfmt_misc/WSLInterop-late")
	switch {
	case there("dev/.cros_milestone"):
		s.Kind, s.Release = ChromeOS, strings.TrimSpace(read("dev/.cros_milestone"))
		if !regexp.MustCompile(`^[0-9]{1,6}$`).MatchString(s.Release) {
			s.Release = ""
		}
	case strings.Contains(s.Kernel, "-Microsoft"):
		s.Kind = WSL1
	case strings.Contains(strings.ToLower(s.Kernel), "microsoft") || s.Interop:
		s.Kind = WSL2
	}
	s.Covered = covered(read("proc/self/mounts"))
	s.AppArmor = strings.TrimSpace(read("proc/sys/kernel/apparmor_restrict_unprivileged_userns")) == "1"
	for _, f := range forbidding {
		if strings.TrimSpace(read("proc/sys/"+strings.ReplaceAll(f.Name, ".", "/"))) == f.Value {
			f.File = setBy(root, f.Name)
			s.Settings = append(s.Settings, f)
		}
	}
	return s
}

// covered returns the first path of proc that something else is mounted on.
func covered(mounts string) string {
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) > 1 && strings.HasPrefix(f[1], "/proc/") && f[1] != "/proc/sys/fs/binfmt_misc" { // the kernel keeps that one empty
			return f[1]
		}
	}
	return ""
}

// lastFile is read after all others.
const lastFile = "/etc/sysctl.conf"

// setBy returns the configuration file that has the last word on a setting (sysctl.d(5)):
// files count in the order of their names, and the first directory with a name hides the
// others'.
func setBy(root, setting string) string {
	files := map[string]string{}
	var names []string
	for _, dir := range []string{"/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"} {
		all, _ := os.ReadDir(filepath.Join(root, dir))
		for _, f := range all[:min(len(all), 1000)] {
			if strings.HasSuffix(f.Name(), ".conf") && files[f.Name()] == "" {
				files[f.Name()] = filepath.Join(dir, f.Name())
				names = append(names, f.Name())
			}
		}
	}
	slices.Sort(names)
	found := ""
	for _, n := range append(names, "") {
		path := files[n]
		if n == "" {
			path = lastFile
		}
		if sets(filepath.Join(root, path), setting) {
			found = path
		}
	}
	return found
}

func sets(path, setting string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 256<<10))
	for line := range strings.Lines(string(b)) {
		name, _, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "-"), "=")
		if ok && strings.ReplaceAll(strings.TrimSpace(name), "/", ".") == setting {
			return true
		}
	}
	return false
}

// Line holds what doctor says about a surrounding.
type Line struct {
	Check          string
	OK             bool
	Detail, Advice string
}

// Line returns what to say about the surrounding; false: there is nothing.
func (s System) Line() (Line, bool) {
	switch s.Kind {
	case WSL1:
		return Line{"wsl", false, "WSL1 (" + s.Kernel + ") has no Linux kernel, so no bottle can be made", `in Windows: wsl --set-version DISTRIBUTION 2 (wsl --list shows its name)`}, true
	case WSL2:
		l := Line{"wsl", true, "WSL2 (" + s.Kernel + "): no Windows program can be started from a bottle", "keep workspaces in the Linux home: below /mnt/c they are slow, and permissions are lost"}
		if s.Interop {
			l.Detail = "WSL2 (" + s.Kernel + ") starts Windows programs; from a bottle none can be started"
		}
		return l, true
	case ChromeOS:
		l := Line{"chromeos", true, "a container of ChromeOS", ""}
		if s.Release != "" {
			l.Detail += " " + s.Release
		}
		if s.Covered != "" {
			l.OK, l.Advice = false, "carboy doctor --fix"
			l.Detail += " that allows no nested containers: " + s.Covered + " is covered"
		}
		return l, true
	}
	return Line{}, false
}

// Fix allows bottles on a system that forbids them.
type Fix struct {
	Why      []string // lines of at most 80 characters
	Where    string   // where to type them; empty: in a shell here
	Commands []string
}

// Fixes returns what allows bottles by the program exe. Nothing is run.
func (s System) Fixes(exe string) []Fix {
	var all []Fix
	if s.Kind == WSL1 {
		all = append(all, Fix{[]string{"WSL1 has no Linux kernel; WSL2 has one."}, "PowerShell on Windows", []string{"wsl --list --verbose", "wsl --set-version DISTRIBUTION 2"}})
	}
	if s.Kind == ChromeOS && s.Covered != "" {
		all = append(all, Fix{
			[]string{"ChromeOS starts this container without leave to nest others.", "penguin is the name of the usual one."}, "crosh, a tab that Ctrl+Alt+T opens",
			[]string{"vsh termina", "lxc config set penguin security.nesting true", "lxc restart penguin"},
		})
	}
	if s.AppArmor {
		all = append(all, Fix{
			[]string{s.Name + " reserves user namespaces for programs", "that an AppArmor profile names (Ubuntu does since 23.10)."}, "",
			[]string{"sudo tee " + ProfilePath + " >/dev/null <<'EOF'\n" + userns.AppArmorProfile(exe) + "EOF", "sudo apparmor_parser --replace " + ProfilePath},
		})
	}
	if len(s.Settings) > 0 {
		all = append(all, s.sysctl())
	}
	return all
}

// ProfilePath names the file of carboy's AppArmor profile.
const ProfilePath = "/etc/apparmor.d/carboy"

// sysctlPath comes after the names that distributions and rules for hardening use.
const sysctlPath = "/etc/sysctl.d/zz-carboy.conf"

func (s System) sysctl() Fix {
	f := Fix{Why: []string{"Kernel settings of " + s.Name + " forbid namespaces."}}
	var lines, edits []string
	for _, x := range s.Settings {
		if x.File == "" {
			f.Why = append(f.Why, fmt.Sprintf("%s is %s, which no file sets.", x.Name, x.Value))
		} else {
			f.Why = append(f.Why, fmt.Sprintf("%s sets %s = %s.", x.File, x.Name, x.Value))
		}
		lines = append(lines, x.Name+" = "+x.Want)
		if x.File == lastFile {
			edits = append(edits, fmt.Sprintf(`sudo sed -i 's/^[[:space:]]*-\?%s/# &/' %s`, strings.ReplaceAll(x.Name, ".", `[.\/]`), lastFile))
		}
	}
	if slices.ContainsFunc(s.Settings, func(x Setting) bool { return x.File != "" }) {
		f.Why = append(f.Why, "If a rule of your organisation asks for it, ask there first.")
	}
	f.Commands = append(edits, "sudo tee "+sysctlPath+" >/dev/null <<'EOF'\n"+strings.Join(lines, "\n")+"\nEOF", "sudo sysctl -p "+sysctlPath)
	return f
}

// String returns the fix as text for a shell, with its reasons as comments.
func (f Fix) String() string {
	var b strings.Builder
	for _, w := range f.Why {
		b.WriteString("# " + w + "\n")
	}
	if f.Where != "" {
		b.WriteString("# Type this in " + f.Where + ":\n")
	}
	for _, c := range f.Commands {
		b.WriteString(c + "\n")
	}
	return b.String()
}
