package macos

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/carboy/carboy/internal/macos/session"
	"github.com/carboy/carboy/internal/testenv"
)

// TestMain makes this binary the Linux carboy in the machine, carboy on macOS for tests
// that need it as a process, and the tests.
func TestMain(m *testing.M) {
	if dir := os.Getenv("CARBOY_TEST_PLACES"); dir != "" && len(os.Args) == 2 && os.Args[1] == session.Command {
		if err := session.Serve(os.Stdin, os.Stdout, session.Places{State: dir + "/state", Memory: dir + "/memory"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
		os.Exit(0)
	}
	// make check puts temporary files into memory, below a directory that no workspace may lie in.
	if strings.HasPrefix(os.TempDir(), "/dev/") {
		os.Setenv("TMPDIR", "/tmp")
	}
	if os.Getenv("CARBOY_SESSION_VARIABLES") != "" {
		if err := session.Inherit(); err != nil {
			os.Exit(125)
		}
		os.Exit(linuxCarboy(os.Args[1:]))
	}
	if dir := os.Getenv("CARBOY_TEST_MAC"); dir != "" {
		os.Exit(mac(dir, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// linuxCarboy does what the tests need of carboy in the machine.
func linuxCarboy(args []string) int {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // as the real one
	wd, _ := os.Getwd()
	if len(args) > 0 && args[0] == "-v" {
		args = args[1:]
	}
	switch strings.Join(args[:min(2, len(args))], " ") {
	case "run --": // edits the workspace, as landing does
		os.WriteFile("landed.txt", []byte("from the machine"), 0o644)
		os.Remove("old.txt")
		b, err := os.ReadFile("here.txt")
		fmt.Printf("in %s: %s %v\n", wd, b, err)
		fmt.Fprintln(os.Stderr, "a message")
		n, _ := strconv.Atoi(args[2])
		return n
	case "run --much": // more than a pipe holds, and then it lands
		os.Stdout.Write(make([]byte, 1<<20))
		os.WriteFile("landed.txt", []byte("from the machine"), 0o644)
	case "run --conflict": // the Mac's file is the test's, which a machine can't see
		os.WriteFile("here.txt", []byte("its"), 0o644)
		os.WriteFile(strings.Replace(wd, "/mac/", "/real/", 1)+"/here.txt", []byte("mine"), 0o644)
	case "list": // shows what it has
		fmt.Printf("key %s\n", os.Getenv("API_KEY"))
		home := os.Getenv("HOME")
		b, err := os.ReadFile(home + "/.config/carboy/bottles/dev.md")
		fmt.Printf("bottle %s %v\n", b, err)
		_, err = os.Stat(home + "/.config/carboy/id_ed25519")
		fmt.Printf("private key there: %t\n", err == nil)
	case "exec -it":
		w, h, err := term.GetSize(0)
		fmt.Println("size", w, h, err)
		b := make([]byte, 1)
		os.Stdin.Read(b)
		fmt.Printf("read %q\n", b)
		return 5
	}
	return 0
}

// mac is carboy on macOS with everything of a test's directory.
func mac(dir string, args []string) int {
	programs = dir + "/opt"
	wd, _ := os.Getwd()
	return Main(Process{
		Args: args, Env: os.Environ(), Exe: dir + "/bin/carboy", Dir: wd, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Arch: "arm64", CPUs: 2, UID: os.Getuid(), GID: os.Getgid(),
	})
}

// The programs that stand in for Apple's and Lima's. They take the arguments that these
// take, keep a list as these do, and run what is to run in the machine in a mount namespace
// that has other files at the paths of home and workspace.
const standIn = `#!/bin/sh
D=%[1]q
printf '%%s\n' "$(basename "$0") $*" >>"$D/log"
env >>"$D/environments"
inside() {
	set -- env -i PATH="$PATH" CARBOY_TEST_PLACES="$D/places" "$@"
	for s in $(cat "$D/shares" 2>/dev/null); do set -- --bind "$s" "$s" "$@"; done
	exec bwrap --die-with-parent --dev-bind / / --bind "$D/mac" "$D/real" --bind "$D/machine" "$D/mac" "$@"
}
list() {
	state=$(cat "$D/state" 2>/dev/null) || { echo "$1"; return; }
	printf "$2\n" "$state"
}
`

const standInContainer = standIn + `
case "$1 $2" in
"system status") [ -e "$D/services" ] || exit 1;;
"system start") touch "$D/services";;
"list --all") [ -e "$D/services" ] || exit 1
	list '[]' '[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"1"},"platform":{"architecture":"arm64"},"mounts":['"$(cat "$D/mounts" 2>/dev/null)"']},"status":"%%s"}]';;
"run --help") cat "$D/help";;
"run --detach") echo running >"$D/state"
	while [ $# -gt 0 ]; do
		if [ "$1" = --volume ]; then
			s=${2%%%%:*}; echo "$s" >>"$D/shares"
			printf '%%s{"source":"%%s","destination":"%%s","options":[]}' "$([ -e "$D/mounts" ] && echo ,)" "$s" "$s" >>"$D/mounts"
		fi
		shift
	done; echo carboy;;
"exec --interactive") [ "$3 $4 $5" = "--user 0 carboy" ] || exit 64; shift 5; inside "$@";;
"start carboy") echo running >"$D/state";;
"stop carboy") echo stopped >"$D/state";;
"delete --force") rm -f "$D/state" "$D/shares" "$D/mounts";;
*) echo "unexpected: $*" >&2; exit 64;;
esac
`

const standInLimactl = standIn + `
case "$1" in
list) list '' '{"name":"default","status":"Stopped"}
{"name":"carboy","status":"%%s","arch":"aarch64","message":"dev.carboy.machine","config":{"mounts":[]}}';;
create) echo Stopped >"$D/state";;
start) echo Running >"$D/state";;
stop) echo Stopped >"$D/state";;
delete) rm -f "$D/state";;
shell) [ "$2 $3 $4 $5 $6" = "--tty=false --workdir=/ carboy sudo -n" ] || exit 64; shift 6; inside "$@";;
*) echo "unexpected: $*" >&2; exit 64;;
esac
`

// world is a Mac with one of the programs.
type world struct {
	dir, home, ws string
}

func newWorld(t *testing.T, program, script string) *world {
	t.Helper()
	bwrap := testenv.Need(t, "bwrap", "apt-get install bubblewrap")
	if out, err := exec.Command(bwrap, "--dev-bind", "/", "/", "true").CombinedOutput(); err != nil {
		testenv.Missing(t, "a system where bwrap makes user namespaces", strings.TrimSpace(string(out)))
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{dir, dir + "/mac/Users/me", dir + "/mac/Users/me/src/project"}
	for name, text := range map[string]string{
		"programs/" + program: fmt.Sprintf(script, dir), "programs/apt-get": "#!/bin/sh\n", "help": string(recorded(t, "container-run-help.txt")), "machine/empty": "", "real/empty": "",
		"mac/Users/me/src/project/here.txt": "my text", "mac/Users/me/src/project/old.txt": "old",
		"mac/Users/me/.config/carboy/bottles/dev.md": "a bottle", "mac/Users/me/.config/carboy/id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----\nMARKER\n",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The Linux carboy is this binary.
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(self)
	for name, b := range map[string][]byte{"carboy-linux-arm64": self, "carboy-linux-arm64.sha256": []byte(hex.EncodeToString(sum[:]))} {
		if err := os.WriteFile(dir+"/bin/"+name, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

const secretKey = "sk-THE-KEY-THAT-MUST-NOT-BE-WRITTEN"

// command returns one of carboy's. Arguments that begin it may be variables of carboy.
func (w *world) command(t *testing.T, dir string, args ...string) *exec.Cmd {
	n := 0
	for n < len(args) && strings.HasPrefix(args[n], "CARBOY_") {
		n++
	}
	vars, args := args[:n], args[n:]
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Dir = dir
	c.Env = append([]string{"CARBOY_TEST_MAC=" + w.dir, "HOME=" + w.home, "API_KEY=" + secretKey, "PATH=" + w.dir + "/programs:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}, vars...)
	return c
}

func (w *world) run(t *testing.T, dir string, args ...string) (out, msg string, code int) {
	t.Helper()
	var o, m bytes.Buffer
	c := w.command(t, dir, args...)
	c.Stdout, c.Stderr = &o, &m
	err := c.Run()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return o.String(), blind.ReplaceAllString(m.String(), ""), c.ProcessState.ExitCode()
}

// blind matches what a program that counts its coverage says without a place for it.
var blind = regexp.MustCompile(`(?m)^warning: GOCOVERDIR not set.*\n`)

func (w *world) log(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(w.dir + "/log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// holds lists files below dir that contain text.
func holds(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(p, "/bin/") || strings.Contains(p, "/opt/") {
			return err // the binaries hold this text as a constant
		}
		b, err := os.ReadFile(p)
		if bytes.Contains(b, []byte(text)) {
			names = append(names, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestContainer(t *testing.T) {
	w := newWorld(t, "container", standInContainer)
	// The first command makes the machine, which shares its directory.
	out, msg, code := w.run(t, w.ws, "run", "--", "7")
	if want := "in " + w.ws + ": my text <nil>\n"; out != want || code != 7 || !strings.Contains(msg, "a message\n") || !strings.Contains(msg, "it shares "+w.ws) {
		t.Fatalf("%d, %q, %q", code, out, msg)
	}
	if s := text(t, w.ws+"/landed.txt"); s != "from the machine" {
		t.Errorf("landed: %s", s)
	}
	first := w.log(t)
	for _, want := range []string{"container system start --enable-kernel-install\n", "--cap-add ALL --init", "--volume " + w.ws + ":" + w.ws + " docker.io/"} {
		if !strings.Contains(first, want) {
			t.Errorf("the log lacks %q:\n%s", want, first)
		}
	}
	if strings.Contains(first, "--masked-path") {
		t.Error("an option that this version does not have was given")
	}
	// The second only enters it.
	if _, msg, code := w.run(t, w.ws, "run", "--", "0"); code != 0 || msg != "a message\n" {
		t.Errorf("%d, %q", code, msg)
	}
	steps := strings.Split(strings.TrimSpace(strings.TrimPrefix(w.log(t), first)), "\n")
	if len(steps) != 3 || steps[0] != "container system status" || steps[1] != "container list --all --format json" || !strings.HasSuffix(steps[2], " machine-session") {
		t.Errorf("%q", steps)
	}
	// A stopped one is started.
	if _, _, code := w.run(t, w.ws, "machine", "stop"); code != 0 || text(t, w.dir+"/state") != "stopped\n" {
		t.Errorf("stop: %d", code)
	}
	if _, msg, code := w.run(t, w.ws, "run", "--", "0"); code != 0 || !strings.Contains(msg, "starting the machine") {
		t.Errorf("%d, %q", code, msg)
	}
	if out, _, code := w.run(t, w.ws, "machine"); code != 0 || out != "container: running\nshares "+w.ws+"\n" {
		t.Errorf("status: %d, %q", code, out)
	}
	if _, _, code := w.run(t, w.ws, "machine", "remove"); code != 0 || strings.Contains(text(t, w.dir+"/state"), "running") {
		t.Errorf("remove: %d", code)
	}
	if _, _, code := w.run(t, w.ws, "machine", "fly"); code != 2 {
		t.Errorf("an unknown verb: %d", code)
	}
}

// Without sharing, the workspace is brought in, and what changed there comes back.
func TestLima(t *testing.T) {
	w := newWorld(t, "limactl", standInLimactl)
	out, msg, code := w.run(t, w.ws, "run", "--", "9")
	if want := "in " + w.ws + ": my text <nil>\n"; out != want || code != 9 {
		t.Fatalf("%d, %q, %q", code, out, msg)
	}
	if s := text(t, w.ws+"/landed.txt"); s != "from the machine" {
		t.Errorf("landed: %s", s)
	}
	if _, err := os.Stat(w.ws + "/old.txt"); err == nil {
		t.Error("what was removed there is here")
	}
	if s := text(t, w.dir+"/machine/Users/me/src/project/here.txt"); s != "my text" {
		t.Errorf("in the machine: %s", s)
	}
	// An edit here reaches the next command.
	os.WriteFile(w.ws+"/here.txt", []byte("edited"), 0o644)
	if out, _, _ := w.run(t, w.ws, "run", "--", "0"); !strings.Contains(out, ": edited <nil>") {
		t.Errorf("%q", out)
	}
	// What a command left in the machine, because its connection broke, comes first.
	os.WriteFile(w.dir+"/machine/Users/me/src/project/late.txt", []byte("late"), 0o644)
	if _, _, code := w.run(t, w.ws, "run", "--", "0"); code != 0 || text(t, w.ws+"/late.txt") != "late" {
		t.Errorf("%d, %s", code, text(t, w.ws+"/late.txt"))
	}
	// What changed on both sides while the command ran stays, and the command fails.
	if _, msg, code := w.run(t, w.ws, "run", "--conflict", "--", "0"); code != 125 || text(t, w.ws+"/here.txt") != "mine" || !strings.Contains(msg, "here.txt changed here and in the machine; yours stays") {
		t.Errorf("%d, %s, %q", code, text(t, w.ws+"/here.txt"), msg)
	}
	if kept, _ := filepath.Glob(w.home + "/Library/Application Support/carboy/kept/*/here.txt"); len(kept) != 1 || text(t, kept[0]) != "its" {
		t.Errorf("kept: %q", kept)
	}
	if !strings.Contains(w.log(t), "limactl create --tty=false --name=carboy") {
		t.Error(w.log(t))
	}
}

// Nobody reads the output any more: the command goes on, and its changes come back.
func TestNobodyReads(t *testing.T) {
	w := newWorld(t, "limactl", standInLimactl)
	c := w.command(t, w.ws, "run", "--much", "--", "0")
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer out.Close()
	c.Stdout = out
	if err := c.Run(); err != nil || text(t, w.ws+"/landed.txt") != "from the machine" {
		t.Errorf("%v, landed %s", err, text(t, w.ws+"/landed.txt"))
	}
}

// Without what carboy needs in the machine, nothing runs, and the next command tries again.
func TestProvides(t *testing.T) {
	w := newWorld(t, "limactl", standInLimactl)
	programs := w.dir + "/programs/"
	for name, text := range map[string]string{"apt-get": "#!/bin/sh\ncat\necho no network >&2\nexit 100\n", "sh": "#!/bin/sh\n[ \"$1\" = -c ] && set -- -c \"$(printf %s \"$2\" | sed 's/command -v git/false/')\"\nexec /bin/sh \"$@\"\n"} {
		if err := os.WriteFile(programs+name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, msg, code := w.run(t, w.ws, "run", "--", "0"); code != 125 || !strings.Contains(msg, "no network") {
			t.Errorf("%d, %q", code, msg)
		}
	}
	if err := os.WriteFile(programs+"apt-get", []byte("#!/bin/sh\ncat >/dev/null\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, msg, code := w.run(t, w.ws, "run", "--", "0"); code != 0 {
		t.Errorf("%d, %q", code, msg)
	}
}

// Keys cross by standard input alone: they are in no argument, no environment of a program
// and no file.
func TestCredentials(t *testing.T) {
	for program, script := range map[string]string{"container": standInContainer, "limactl": standInLimactl} {
		w := newWorld(t, program, script)
		out, msg, code := w.run(t, w.ws, "-v", "list")
		if code != 0 || !strings.Contains(out, "key "+secretKey+"\n") || !strings.Contains(out, "bottle a bottle <nil>") || !strings.Contains(out, "private key there: false") {
			t.Fatalf("%s: %d, %q, %q", program, code, out, msg)
		}
		if !strings.Contains(msg, "id_ed25519 stays here") {
			t.Errorf("%s: %q", program, msg)
		}
		w.run(t, w.ws, "run", "--", "0")
		if names := holds(t, w.dir, secretKey); len(names) != 0 {
			t.Errorf("%s: the key is in %q", program, names)
		}
		if names := holds(t, w.dir, "MARKER"); len(names) != 1 || names[0] != w.home+"/.config/carboy/id_ed25519" {
			t.Errorf("%s: the private key is in %q", program, names)
		}
		if env := text(t, w.dir+"/environments"); !strings.Contains(env, "HOME="+w.home) {
			t.Errorf("%s: its environment was not looked at: %q", program, env)
		}
	}
}

// carboy's own failures have the codes that they have on Linux.
func TestFailures(t *testing.T) {
	w := newWorld(t, "container", standInContainer)
	os.WriteFile(w.dir+"/services", nil, 0o644)
	write := func(name, text string) {
		if err := os.WriteFile(w.dir+"/"+name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name, want string, code int, args ...string) {
		t.Helper()
		_, msg, have := w.run(t, w.ws, args...)
		if have != code || !strings.Contains(msg, want) {
			t.Errorf("%s: %d, %q", name, have, msg)
		}
	}
	sum := text(t, w.dir+"/bin/carboy-linux-arm64.sha256")
	write("bin/carboy-linux-arm64.sha256", strings.Repeat("0", 64))
	check("another digest", "has the digest "+sum, 125, "run", "--", "0")
	if all, err := os.ReadDir(w.dir + "/opt"); err == nil {
		t.Errorf("it was installed all the same: %v", all)
	}
	write("bin/carboy-linux-arm64.sha256", sum)
	check("it is mended", "a message", 3, "run", "--", "3")
	check("a list", "the digest of", 1, "CARBOY_LINUX="+w.dir+"/help", "list")
	write("state", "stopping")
	check("stopping", `says "stopping"`, 125, "run", "--", "0")
	check("usage", "takes no value", 2, "--dry-run=yes")
	check("a program that is not there", "limactl is not installed", 1, "CARBOY_MACHINE=lima", "list")
	check("an unknown program", "makes no machines", 2, "CARBOY_MACHINE=docker", "list")
	write("programs/container", "#!/bin/sh\necho '\x1b]0;owned\x07 out of disk' >&2\nexit 9\n")
	check("the program fails", "out of disk", 125, "run", "--", "0")
	os.Remove(w.dir + "/programs/container")
	check("nothing is installed", "brew install lima", 125, "run", "--", "0")
}

// Another's machine with this name is left alone.
func TestAnotherMachine(t *testing.T) {
	script := strings.Replace(standInContainer, `"labels":{"dev.carboy.machine":"1"},`, "", 1)
	w := newWorld(t, "container", script)
	os.WriteFile(w.dir+"/services", nil, 0o644)
	os.WriteFile(w.dir+"/state", []byte("stopped"), 0o644)
	for _, args := range [][]string{{"run", "--", "0"}, {"machine", "remove"}, {"machine", "stop"}} {
		if _, msg, code := w.run(t, w.ws, args...); code == 0 || !strings.Contains(msg, "did not make") {
			t.Errorf("%q: %d, %q", args, code, msg)
		}
	}
	if s := w.log(t); strings.Contains(s, "exec") || strings.Contains(s, "delete") || strings.Contains(s, "start") || text(t, w.dir+"/state") != "stopped" {
		t.Error(s)
	}
}

// The terminal is raw while the command has it, has its size, and is given back.
func TestTerminal(t *testing.T) {
	w := newWorld(t, "container", standInContainer)
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	pty.Setsize(ptmx, &pty.Winsize{Rows: 31, Cols: 91})
	before, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	c := w.command(t, w.ws, "exec", "-it")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- c.Wait() }()
	var seen strings.Builder
	b := make([]byte, 1024)
	for !strings.Contains(seen.String(), "read ") {
		n, err := ptmx.Read(b)
		seen.Write(b[:n])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(seen.String(), "size 91 31 <nil>") && strings.Count(seen.String(), "size") == 1 {
			seen.WriteString("(size)")
			// Without a new line, a terminal that is not raw would keep it.
			if _, err := io.WriteString(ptmx, "\x04"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-end; c.ProcessState.ExitCode() != 5 {
		t.Errorf("%v: %q", err, seen.String())
	}
	if after, err := term.GetState(int(tty.Fd())); err != nil || fmt.Sprint(*after) != fmt.Sprint(*before) {
		t.Errorf("the terminal is not as it was: %v", err)
	}
	tty.Close()
}

// The steps are shown, and nothing is run; names of variables are shown, values are not.
func TestDryRun(t *testing.T) {
	for program, script := range map[string]string{"container": standInContainer, "limactl": standInLimactl} {
		w := newWorld(t, program, script)
		os.WriteFile(w.dir+"/bin/carboy-linux-arm64.sha256", []byte(strings.Repeat("ab", 32)), 0o644)
		out, msg, code := w.run(t, w.ws, "--dry-run", "run", "--allow", "example.org", "--", "sh", "-c", "echo 'hi'")
		if code != 0 || msg != "" {
			t.Fatalf("%d, %q", code, msg)
		}
		if w.log(t) != "" {
			t.Errorf("it ran %q", w.log(t))
		}
		out = strings.NewReplacer(w.dir+"/opt", "/opt/carboy", w.dir+"/mac", "", w.dir+"/bin", "/usr/local/bin").Replace(out)
		if want := string(recorded(t, "dry-run-"+program+".txt")); out != want {
			t.Errorf("%s:\n%s", program, out)
		}
		if strings.Contains(out, secretKey) {
			t.Error("it shows the key")
		}
	}
}
