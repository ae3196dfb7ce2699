package macos

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/macos/mirror"
	"github.com/carboy/carboy/internal/macos/session"
	"github.com/carboy/carboy/internal/testenv"
)

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The programs' outputs are made after their documentation: of container 0.12, of
// container's main branch, and of Lima 2.0.
func TestRecorded(t *testing.T) {
	for _, c := range []struct {
		file  string
		maker maker
		want  machine
	}{
		{"container-list-how-to.json", apple{}, machine{state: running, says: "running", ours: true, arch: "arm64", shares: []string{"/Users/fido/src"}}},
		{"container-list-state.json", apple{}, machine{state: stopped, says: "stopped", ours: true, arch: "arm64", shares: []string{"/Users/fido/src"}}},
		{"limactl-list.jsonl", lima{}, machine{state: running, says: "Running", ours: true, arch: "arm64", shares: []string{"/Users/fido/src"}}},
	} {
		m, err := c.maker.parse(recorded(t, c.file))
		if err != nil || !reflect.DeepEqual(*m, c.want) {
			t.Errorf("%s: %+v, %v", c.file, m, err)
			continue
		}
		if err := m.check(c.maker.program()); err != nil {
			t.Errorf("%s: %v", c.file, err)
		}
		for dir, want := range map[string]bool{
			"/Users/fido/src": true, "/Users/fido/src/deep/er": true, "/Users/fido/src2": false, "/Users/fido": false,
			"/Users/fido/ro/x": false, "/content/assets": false, "/Users/fido/elsewhere": false,
		} {
			if m.shared(dir) != want {
				t.Errorf("%s: %s is shared: %t", c.file, dir, !want)
			}
		}
	}
}

// What a program says is not believed further than its form: nonsense is an error that is
// safe to show, and never a machine of ours.
func TestHostileOutputs(t *testing.T) {
	huge := strings.Repeat(`{"type":{"virtiofs":{}},"source":"/a","destination":"/a","options":[]},`, 2000)
	for name, c := range map[string]struct {
		maker maker
		out   string
	}{
		"apple, no JSON":          {apple{}, "Error: interrupted: \"XPC connection error\"\x1b[2J"},
		"apple, nothing":          {apple{}, ""},
		"apple, an object":        {apple{}, `{"configuration":{"id":"carboy"}}`},
		"apple, state a number":   {apple{}, `[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"1"}},"status":7}]`},
		"apple, no state":         {apple{}, `[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"1"}}}]`},
		"apple, state of nothing": {apple{}, `[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"1"}},"status":{"networks":[]}}]`},
		"apple, labels a text":    {apple{}, `[{"configuration":{"id":"carboy","labels":"dev.carboy.machine"},"status":"running"}]`},
		"apple, mounts a text":    {apple{}, `[{"configuration":{"id":"carboy","mounts":"/"},"status":"running"}]`},
		"apple, twice":            {apple{}, `[{"configuration":{"id":"carboy"},"status":"running"},{"configuration":{"id":"carboy"},"status":"running"}]`},
		"apple, many mounts":      {apple{}, `[{"configuration":{"id":"carboy","mounts":[` + strings.TrimSuffix(huge, ",") + `]},"status":"running"}]`},
		"apple, unlabelled":       {apple{}, `[{"configuration":{"id":"carboy"},"status":"running"}]`},
		"apple, other label":      {apple{}, `[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"","x":"dev.carboy.machine"}},"status":"running"}]`},
		"apple, control":          {apple{}, `[{"configuration":{"id":"carboy","labels":{"dev.carboy.machine":"1"}},"status":"\u001b]0;owned\u0007"}]`},
		"apple, cut":              {apple{}, `[{"configuration":{"id":"carboy"`},
		"apple, deep":             {apple{}, strings.Repeat("[", 100000)},
		"lima, no JSON":           {lima{}, "time=\"2026\" level=fatal msg=\"\x1b[31m\""},
		"lima, status a number":   {lima{}, `{"name":"carboy","status":1,"message":"dev.carboy.machine"}`},
		"lima, mounts an object":  {lima{}, `{"name":"carboy","status":"Running","config":{"mounts":{}}}`},
		"lima, twice":             {lima{}, `{"name":"carboy","status":"Running"}{"name":"carboy","status":"Running"}`},
		"lima, unmarked":          {lima{}, `{"name":"carboy","status":"Running"}`},
		"lima, broken":            {lima{}, `{"name":"carboy","status":"Broken","message":"dev.carboy.machine"}`},
		"lima, control":           {lima{}, `{"name":"carboy","status":"\u001b[2J","message":"dev.carboy.machine"}`},
		"lima, cut":               {lima{}, `{"name":"carboy","status":"Runn`},
	} {
		m, err := c.maker.parse([]byte(c.out))
		if err == nil {
			err = m.check(c.maker.program())
		}
		if err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
			continue
		}
		if s := err.Error(); len(s) > 600 || strings.ContainsAny(s, "\x1b\x07\n") {
			t.Errorf("%s: the message is %q", name, s)
		}
	}
	// Another's machine matters only by its name.
	for name, c := range map[string]struct {
		maker maker
		out   string
	}{
		"apple, none":          {apple{}, "[]"},
		"apple, others":        {apple{}, `[{"configuration":{"id":"carboy2","labels":7},"status":1},7,null,{"configuration":{"id":"Carboy"}},{"configuration":{"id":["carboy"]}}]`},
		"apple, id at the top": {apple{}, `[{"id":"carboy","configuration":{"id":"x"},"status":"running"}]`},
		"lima, none":           {lima{}, ""},
		"lima, others":         {lima{}, `{"name":"carboy\u0000","status":1} 7 null {"name":["carboy"]}`},
	} {
		if m, err := c.maker.parse([]byte(c.out)); err != nil || m.state != absent {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// Shares that are not at their own path, relative, or odd are none.
func TestShares(t *testing.T) {
	have := sameplace([]share{
		{"/a", "/a", true}, {"/b", "", true}, {"/c", "/d", true}, {"/e", "/e", false}, {"rel", "rel", true}, {"~", "~", true},
		{"/f/../etc", "/f/../etc", true}, {"/g/", "/g/", true}, {"", "", true},
	})
	if !slices.Equal(have, []string{"/a", "/b"}) {
		t.Errorf("%q", have)
	}
}

// The line that is shown means what is run.
func TestQuote(t *testing.T) {
	bash := testenv.Need(t, "bash", "apt-get install bash")
	for _, s := range []string{
		"", "plain", "a b", "it's", `"$HOME" $(id) \x`, "*", "~", "#x", "a=b", "-it", "\x1b[31mred\a", "new\nline", "tab\tq'\\", "\x7f", "ü", "a;b|c&d<e>f", "!!",
	} {
		out, err := exec.Command(bash, "-c", "printf '%s.' "+word(s)).Output()
		if err != nil || string(out) != s+"." {
			t.Errorf("%q became %s, which is %q, %v", s, word(s), out, err)
		}
	}
}

func TestMake(t *testing.T) {
	d := design{cpus: 8, gib: 4, shares: []string{"/Users/fido/src", "/Users/fido/my work"}}
	lines := func(all []Command) string {
		var out []string
		for _, c := range all {
			out = append(out, c.String())
		}
		return strings.Join(out, "\n")
	}
	for _, c := range []struct {
		name  string
		maker maker
		help  string
		want  string
	}{
		{"apple, all options", apple{}, "", `container run --detach --name carboy --label dev.carboy.machine=1 --cap-add ALL --masked-path NONE --read-only-path NONE --init --cpus 8 --memory 4G --volume /Users/fido/src:/Users/fido/src --volume '/Users/fido/my work:/Users/fido/my work' docker.io/library/buildpack-deps:trixie-scm sleep infinity`},
		{"apple, version 1.0", apple{}, string(recorded(t, "container-run-help.txt")), `container run --detach --name carboy --label dev.carboy.machine=1 --cap-add ALL --init --cpus 8 --memory 4G --volume /Users/fido/src:/Users/fido/src --volume '/Users/fido/my work:/Users/fido/my work' docker.io/library/buildpack-deps:trixie-scm sleep infinity`},
		{"lima", lima{}, "", `limactl create --tty=false --name=carboy --cpus=8 --memory=4 --containerd=none '--set=.message="dev.carboy.machine"' --mount-only=/Users/fido/src:w '--mount-only=/Users/fido/my work:w' template:debian-13
limactl start --tty=false carboy`},
	} {
		d.help = c.help
		if have := lines(c.maker.make(d)); have != c.want {
			t.Errorf("%s:\n%s\n%s", c.name, have, c.want)
		}
	}
	if have := lines(lima{}.make(design{cpus: 1, gib: 1, image: "template:ubuntu-lts"})[:1]); have != `limactl create --tty=false --name=carboy --cpus=1 --memory=1 --containerd=none '--set=.message="dev.carboy.machine"' --mount-none template:ubuntu-lts` {
		t.Error(have)
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args    []string
		env     string
		dry     bool
		chosen  string
		rest    []string
		words   []string
		wrong   bool
		workdir bool
	}{
		{args: nil, rest: []string{}},
		{args: []string{"run", "--", "make", "--dry-run"}, rest: []string{"run", "--", "make", "--dry-run"}, words: []string{"run"}, workdir: true},
		{args: []string{"--dry-run", "run", "--", "make"}, dry: true, rest: []string{"run", "--", "make"}, words: []string{"run"}, workdir: true},
		{args: []string{"start", "--dry-run", "reviewer"}, rest: []string{"start", "--dry-run", "reviewer"}, words: []string{"start"}, workdir: true},
		{args: []string{"-v", "--config", "c", "--dry-run", "image", "pull", "alpine", "--json"}, dry: true, rest: []string{"-v", "--config", "c", "image", "pull", "alpine", "--json"}, words: []string{"image", "pull", "alpine"}, workdir: true},
		{args: []string{"--", "--dry-run"}, rest: []string{"--", "--dry-run"}},
		{args: []string{"run", "--", "\xff"}, wrong: true},
		{args: []string{"--config", "--dry-run", "list"}, rest: []string{"--config", "--dry-run", "list"}, words: []string{"list"}},
		{args: []string{"--dry-run=yes", "list"}, wrong: true},
		{args: []string{"run", "--backend", "macos-container", "-it", "--", "sh", "--backend", "macos-container"}, chosen: "container", rest: []string{"run", "-it", "--", "sh", "--backend", "macos-container"}, words: []string{"run"}, workdir: true},
		{args: []string{"--backend=macos-container", "list"}, chosen: "container", rest: []string{"list"}, words: []string{"list"}},
		{args: []string{"run", "--backend", "docker", "--", "x"}, env: "macos-container", rest: []string{"run", "--backend", "docker", "--", "x"}, words: []string{"run"}, workdir: true},
		{args: []string{"list"}, env: "macos-container", chosen: "container", rest: []string{"list"}, words: []string{"list"}},
		{args: []string{"list"}, env: "CARBOY_BACKEND=macos-container", chosen: "container", rest: []string{"list"}, words: []string{"list"}},
		{args: []string{"list"}, env: "CARBOY_BACKEND=gvisor", rest: []string{"list"}, words: []string{"list"}},
		{args: []string{"run", "--help"}, rest: []string{"run", "--help"}, words: []string{"run"}},
		{args: []string{"doctor"}, rest: []string{"doctor"}, words: []string{"doctor"}},
	} {
		i := &invocation{Process: Process{Args: c.args, Dir: t.TempDir(), Env: []string{"HOME=/Users/fido"}}}
		if c.env != "" {
			name, v, ok := strings.Cut(c.env, "=")
			if !ok {
				name, v = "BOT_BOTTLE_BACKEND", name
			}
			i.Env = append(i.Env, name+"="+v)
		}
		err := i.parse()
		if (err != nil) != c.wrong {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if c.wrong {
			continue
		}
		if i.dryRun != c.dry || i.chosen != c.chosen || !slices.Equal(i.args, c.rest) || !slices.Equal(i.words, c.words) || i.takesWorkspace() != c.workdir {
			t.Errorf("%q: dry %t, %q, %q, %q, workspace %t", c.args, i.dryRun, i.chosen, i.args, i.words, i.takesWorkspace())
		}
		if v := i.env("BOT_BOTTLE_BACKEND") + i.env("CARBOY_BACKEND"); strings.Contains(v, backendName) {
			t.Errorf("%q: the machine would get the name", c.args)
		}
	}
}

// A home, and what homes are in, is no workspace to copy or share.
func TestNoHome(t *testing.T) {
	home := t.TempDir()
	for dir, want := range map[string]bool{"/": false, filepath.Dir(home): false, home: false, filepath.Join(home, "src"): true} {
		i := &invocation{words: []string{"run"}, args: []string{"run"}, home: home, dir: dir}
		if i.takesWorkspace() != want {
			t.Errorf("%s: %t", dir, !want)
		}
	}
}

// The machine's own directories are neither copied nor shared: a copy would replace them.
func TestLinuxOwn(t *testing.T) {
	for dir, own := range map[string]bool{
		"/": true, "/usr": true, "/usr/local": true, "/usr/share/doc": true, "/opt": true, "/opt/carboy": true, "/var": true, "/usr2": false,
		"/opt/homebrew": false, "/Users/me": false, "/Volumes/x/usr": false, "/private/var": false,
	} {
		if linuxOwn(dir) != own {
			t.Errorf("%s: %t", dir, !own)
		}
	}
	i := &invocation{Process: Process{Args: []string{"run", "--dir", "/usr/share", "--", "make"}, Dir: t.TempDir(), Env: []string{"HOME=/Users/fido"}}}
	if err := i.parse(); err == nil || !strings.Contains(err.Error(), "/usr/share can't be a workspace") {
		t.Error(err)
	}
	i.Args[0] = "list"
	if err := i.parse(); err != nil {
		t.Error(err)
	}
}

// The last of a flag counts, as on Linux.
func TestLastFlag(t *testing.T) {
	if v := value([]string{"run", "--dir", "a", "--dir=b", "--", "--dir", "c"}, "--dir"); v != "b" {
		t.Error(v)
	}
}

// Settings that can't be brought in end the command: without them, more could be allowed.
func TestSettings(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, ".config/carboy")
	ws := filepath.Join(home, ".config")
	trees := func(dir string) ([]session.Tree, error) {
		i := &invocation{Process: Process{Stderr: os.Stderr}, out: io.Discard, words: []string{"run"}, args: []string{"run"}, home: home, dir: dir, cwd: dir, machine: &machine{}}
		return i.trees()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{ws, dir} {
		if _, err := trees(d); err == nil || !strings.Contains(err.Error(), "one is in the other") {
			t.Errorf("%s: %v", d, err)
		}
	}
	all, err := trees(filepath.Join(home, "src"))
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	shared := &invocation{words: []string{"run"}, home: home, dir: filepath.Join(home, "src"), machine: &machine{shares: []string{filepath.Join(home, "src/one")}}}
	if _, err := shared.trees(); err == nil || !strings.Contains(err.Error(), "src/one, which is in it") {
		t.Errorf("around a share: %v", err)
	}
	real := filepath.Join(t.TempDir(), "real.yaml")
	if err := errors.Join(os.WriteFile(real, []byte("isolation: hardware-vm"), 0o600), os.Symlink(real, filepath.Join(dir, "config.yaml")), os.Symlink("me@host.1", filepath.Join(dir, ".#config.yaml"))); err != nil {
		t.Fatal(err)
	}
	if _, err := all[0].Keep(mirror.Entry{Path: "config.yaml", Kind: mirror.Link}); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("a link: %v", err)
	}
	for _, e := range []mirror.Entry{{Path: ".#config.yaml", Kind: mirror.Link}, {Path: "gone", Kind: mirror.File}} {
		if kept, err := all[0].Keep(e); kept || err != nil {
			t.Errorf("%s: %t, %v", e.Path, kept, err)
		}
	}
}

func TestDesign(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"ws", "src/one", "a:b"} {
		os.MkdirAll(filepath.Join(root, d), 0o755)
	}
	os.Symlink("src", filepath.Join(root, "link"))
	for _, c := range []struct {
		name, env string
		maker     maker
		dir       string
		want      []string
		wrong     bool
	}{
		{"the workspace", "", apple{}, "ws", []string{"ws"}, false},
		{"named ones too", "CARBOY_MACHINE_SHARE=" + root + "/src:" + root + "/src/one", apple{}, "ws", []string{"src", "ws"}, false},
		{"within a named one", "CARBOY_MACHINE_SHARE=" + root + "/link", lima{}, "src/one", []string{"src"}, false},
		{"one that can't be", "", apple{}, "a:b", nil, false},
		{"relative", "CARBOY_MACHINE_SHARE=src", apple{}, "ws", nil, true},
		{"missing", "CARBOY_MACHINE_SHARE=" + root + "/none", apple{}, "ws", nil, true},
		{"all", "CARBOY_MACHINE_SHARE=/", apple{}, "ws", nil, true},
		{"memory", "CARBOY_MACHINE_MEMORY=lots", apple{}, "ws", nil, true},
		{"memory, more words", "CARBOY_MACHINE_MEMORY=4 --privileged", apple{}, "ws", nil, true},
		{"processors", "CARBOY_MACHINE_CPUS=0", apple{}, "ws", nil, true},
		{"an option as image", "CARBOY_MACHINE_IMAGE=--rm", apple{}, "ws", nil, true},
	} {
		real, err := filepath.EvalSymlinks(root)
		if err != nil {
			t.Fatal(err)
		}
		i := &invocation{Process: Process{Env: []string{c.env}, CPUs: 2}, words: []string{"run"}, home: "/Users/fido", dir: filepath.Join(real, c.dir), maker: c.maker}
		d, err := i.design()
		if (err != nil) != c.wrong {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if c.wrong {
			continue
		}
		var want []string
		for _, w := range c.want {
			want = append(want, filepath.Join(real, w))
		}
		if !slices.Equal(d.shares, want) {
			t.Errorf("%s: %q", c.name, d.shares)
		}
	}
}

func TestBinary(t *testing.T) {
	dir := t.TempDir()
	exe := filepath.Join(dir, "carboy")
	if _, err := findBinary("", exe, "arm64"); err == nil || !strings.Contains(err.Error(), "carboy-linux-arm64 is missing") {
		t.Errorf("missing: %v", err)
	}
	file := filepath.Join(dir, "carboy-linux-arm64")
	os.WriteFile(file, []byte("program"), 0o755)
	if _, err := findBinary("", exe, "arm64"); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("without a digest: %v", err)
	}
	const (
		sum   = "1310ca2c8932dbd118668bd97442558a3e1f546b5e15c69699dfbd6024f548d8" // of the program
		wrong = "2310ca2c8932dbd118668bd97442558a3e1f546b5e15c69699dfbd6024f548d8"
	)
	for text, found := range map[string]bool{
		"": false, "xyz": false, strings.Repeat("A", 64): false, sum[:63]: false, strings.Repeat("a", 5000): false, sum + "  carboy-linux-arm64\n": true, sum: true, wrong: true,
	} {
		os.WriteFile(file+".sha256", []byte(text), 0o644)
		b, err := findBinary("", exe, "arm64")
		if (err == nil) != found {
			t.Errorf("%.80q: %v", text, err)
		}
		if err == nil && (b.verify() == nil) != (b.digest == sum) {
			t.Errorf("%q is verified: %v", text, b.verify())
		}
	}
	os.WriteFile(file+".sha256", []byte(sum), 0o644)
	digestARM64 = "aaaa"
	defer func() { digestARM64 = "" }()
	if b, err := findBinary("", exe, "arm64"); err != nil || b.digest != "aaaa" {
		t.Errorf("the release's digest: %+v, %v", b, err)
	}
	if b, err := findBinary(file, "/elsewhere/carboy", "arm64"); err != nil || b.digest != sum {
		t.Errorf("one that the user names is not the release's: %+v, %v", b, err)
	}
}

// What means this machine stays here.
func TestVariables(t *testing.T) {
	i := &invocation{Process: Process{Env: []string{
		"HOME=/Users/fido", "PATH=/opt/homebrew/bin", "ANTHROPIC_API_KEY=sk", "TERM=xterm", "LANG=C.UTF-8", "SSH_AUTH_SOCK=/x", "DYLD_INSERT_LIBRARIES=/x",
		"XDG_CONFIG_HOME=/Users/fido/c", "XDG_STATE_HOME=/Users/fido/s", "CARBOY_LINUX=/x", "CARBOY_SESSION_VARIABLES=9", "LIMA_HOME=/x", "GOPATH=/x", "GOOGLE_API_KEY=g", "LATIN=\xe9", "EMPTY=", "=odd", "none", "TWO=a", "TWO=b",
	}}}
	want := map[string]string{"ANTHROPIC_API_KEY": "sk", "GOOGLE_API_KEY": "g", "TERM": "xterm", "LANG": "C.UTF-8", "XDG_CONFIG_HOME": "/Users/fido/c", "EMPTY": "", "TWO": "b"}
	if have := i.variables(); !reflect.DeepEqual(have, want) {
		t.Errorf("%v", have)
	}
}
