package hostexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestCaptureIsExact(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		all := make([]byte, rnd.IntN(200))
		for i := range all {
			all[i] = byte(rnd.Uint32())
		}
		k := Keep{Head: rnd.IntN(40), Tail: rnd.IntN(40)}
		c := capture{keep: k}
		for rest := all; len(rest) > 0; {
			n := min(1+rnd.IntN(60), len(rest))
			if m, err := c.Write(rest[:n]); m != n || err != nil {
				t.Fatalf("write %d, %v", m, err)
			}
			rest = rest[n:]
		}
		checkCapture(t, all, k, c.result())
	}
}

func checkCapture(t *testing.T, all []byte, k Keep, got Capture) {
	t.Helper()
	head := all[:min(k.Head, len(all))]
	rest := all[len(head):]
	tail := rest[len(rest)-min(k.Tail, len(rest)):]
	if !bytes.Equal(got.Head, head) || !bytes.Equal(got.Tail, tail) || got.Total != int64(len(all)) ||
		got.Omitted != int64(len(all)-len(head)-len(tail)) {
		t.Fatalf("keep %+v of %d bytes: head %d tail %d omitted %d total %d", k, len(all), len(got.Head), len(got.Tail), got.Omitted, got.Total)
	}
	whole, err := got.Complete()
	if got.truncated() != (err != nil) || err == nil && !bytes.Equal(whole, all) || err != nil && !errors.Is(err, ErrTruncated) {
		t.Fatalf("complete: %v", err)
	}
	if marker := fmt.Sprintf("[… %d bytes omitted …]", got.Omitted); got.truncated() != bytes.Contains(got.Text(), []byte(marker)) {
		t.Fatal("marker")
	}
}

// A flood through the whole way, with the memory of this process bounded. Set
// HOSTEXEC_FLOOD_MIB=10240 for the full size.
func TestOutputFloodInBoundedMemory(t *testing.T) {
	mib := 512
	if s := os.Getenv("HOSTEXEC_FLOOD_MIB"); s != "" {
		var err error
		if mib, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	r := newTestRunner(t, Options{})
	c := shell(t, fmt.Sprintf(`printf start; head -c %d /dev/zero; printf end; head -c %d /dev/zero >&2; printf last >&2`, mib<<20, mib<<20))
	c.Timeout = MaxTimeout
	c.Stdout = Keep{Head: 5, Tail: 1 << 20}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	res, err := r.Run(t.Context(), c)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if grew := after.TotalAlloc - before.TotalAlloc; grew > 32<<20 {
		t.Errorf("%d MiB allocated in all for %d MiB of output", grew>>20, 2*mib)
	}
	if want := int64(mib)<<20 + 8; res.Stdout.Total != want || res.Stderr.Total != want-4 {
		t.Errorf("totals %d and %d", res.Stdout.Total, res.Stderr.Total)
	}
	if string(res.Stdout.Head) != "start" || !bytes.HasSuffix(res.Stdout.Tail, []byte("\x00end")) || len(res.Stdout.Tail) != 1<<20 {
		t.Error("head or tail is not exact")
	}
	if !bytes.HasSuffix(res.Stderr.Tail, []byte("\x00last")) || len(res.Stderr.Head) != defaultHead {
		t.Error("head or tail of stderr is not exact")
	}
}

func TestEnvironment(t *testing.T) {
	s := &spec{name: "x", env: map[string]func(string) bool{"TZ": isZoneName}}
	drop := []string{
		"aws_secret=v", "AWS_SECRET_ACCESS_KEY=v", "Aws_Region=v", "Github_Token=v", "GITHUB_TOKEN=v", "github_token=v", "MY_TOKEN=v",
		"API_KEY=v", "api_key=v", "Some_Key=v", "LD_PRELOAD=v", "ld_preload=v", "LD_LIBRARY_PATH=v", "LD_AUDIT=v", "DOCKER_HOST=v", "docker_host=v",
		"SSH_AUTH_SOCK=v", "Ssh_Auth_Sock=v", "PATH=/w", "Path=/w", "HOME=/w", "GIT_DIR=/w", "GIT_CONFIG_COUNT=1", "GIT_SSH_COMMAND=v", "GIT_EXTERNAL_DIFF=v",
		"GVISOR_SIDECAR_BINARIES_DIR=/w", "BASH_ENV=v", "ENV=v", "IFS=v", "BASH_FUNC_git%%=() { v; }", "PYTHONPATH=v", "GODEBUG=v", "HTTPS_PROXY=v",
		"https_proxy=v", "TMPDIR=/w", "XDG_CONFIG_HOME=/w", "PAGER=v", "GLIBC_TUNABLES=v", "LANG=C", "CARBOY_HOSTEXEC=v", "tz=UTC",
	}
	env, dropped := chooseEnv(s, append(slices.Clone(drop), "TZ=Europe/Berlin", "TZ=UTC", "novalue", "=v", "A\x00B=v"), []string{"FIXED=1"})
	want := []string{"PATH=" + strings.Join(trustedDirs, ":"), "HOME=/nonexistent", "LC_ALL=C", "FIXED=1", "TZ=Europe/Berlin"}
	if !slices.Equal(env, want) {
		t.Errorf("environment %q", env)
	}
	for _, kv := range drop {
		if name, _, _ := strings.Cut(kv, "="); !slices.Contains(dropped, name) {
			t.Errorf("%s is not named as dropped", name)
		}
	}
	if !slices.Contains(dropped, "(malformed)") || slices.Contains(dropped, "novalue") {
		t.Errorf("malformed entries: %q", dropped)
	}
	for _, bad := range []string{"", "/etc/shadow", ":/etc/shadow", "../../etc/shadow", "a\nb", strings.Repeat("a", 65)} {
		if env, _ := chooseEnv(s, []string{"TZ=" + bad}, nil); len(env) != 3 {
			t.Errorf("TZ=%q passed", bad)
		}
	}
}

// The lists of the real programs hold nothing that is a secret or steers.
func TestEnvironmentListsHoldNoForbiddenName(t *testing.T) {
	for _, s := range hostPrograms {
		for name := range s.env {
			if forbiddenName(name) {
				t.Errorf("%s admits %s", s.name, name)
			}
		}
	}
	for _, name := range []string{"TZ", "LANG", "COLUMNS"} {
		if forbiddenName(name) {
			t.Errorf("%s is forbidden: the check refuses everything", name)
		}
	}
}

func program(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("\x7fELF…"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

// tempTree is a directory whose whole way is trusted, whatever the umask.
func tempTree(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostexec-tree-") // 0700
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestResolveTrust(t *testing.T) {
	for name, tc := range map[string]struct {
		build func(t *testing.T, bin, other string)
		want  Reason // 0: found
	}{
		"plain": {func(t *testing.T, bin, _ string) { program(t, bin+"/git") }, 0},
		"link to a trusted place": {func(t *testing.T, bin, other string) {
			program(t, other+"/git")
			symlink(t, other+"/git", bin+"/git")
		}, 0},
		"relative link": {func(t *testing.T, bin, other string) {
			program(t, other+"/git-2")
			symlink(t, "../other/./git-2", bin+"/git")
		}, 0},
		"missing":       {func(*testing.T, string, string) {}, reasonInstalled},
		"dangling link": {func(t *testing.T, bin, _ string) { symlink(t, "/nonexistent/git", bin+"/git") }, reasonUntrusted},
		"link loop":     {func(t *testing.T, bin, _ string) { symlink(t, "git", bin+"/git") }, reasonUntrusted},
		"directory":     {func(t *testing.T, bin, _ string) { mkdir(t, bin+"/git") }, reasonUntrusted},
		"world-writable file": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			chmod(t, bin+"/git", 0o757)
		}, reasonUntrusted},
		"world-writable directory": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			chmod(t, bin, 0o777)
		}, reasonUntrusted},
		"sticky directory of the program": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			chmod(t, bin, 0o777|os.ModeSticky)
		}, reasonUntrusted},
		"link through a writable directory": {func(t *testing.T, bin, other string) {
			program(t, mkdir(t, other+"/in")+"/git")
			symlink(t, other+"/in/git", bin+"/git")
			chmod(t, other, 0o777)
		}, reasonUntrusted},
		"not executable": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			chmod(t, bin+"/git", 0o644)
		}, reasonUntrusted},
		"set-uid": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			chmod(t, bin+"/git", 0o755|os.ModeSetuid)
		}, reasonUntrusted},
		"script": {func(t *testing.T, bin, _ string) {
			program(t, bin+"/git")
			if err := os.WriteFile(bin+"/git", []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, reasonUntrusted},
		"a shell by another name": {func(t *testing.T, bin, other string) {
			program(t, other+"/bash")
			symlink(t, other+"/bash", bin+"/git")
		}, reasonUntrusted},
		"owned by someone else": {func(t *testing.T, bin, other string) {
			program(t, bin+"/git")
			if os.Geteuid() != 0 {
				// An ordinary user cannot give a file away; TestOwner covers it.
				chmod(t, bin, 0o777)
				return
			}
			if err := os.Chown(bin+"/git", 12345, 0); err != nil {
				t.Fatal(err)
			}
		}, reasonUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			tree := tempTree(t)
			bin, other := mkdir(t, tree+"/bin"), mkdir(t, tree+"/other")
			tc.build(t, bin, other)
			loc, err := resolve("git", []string{tree + "/absent", bin})
			if tc.want != 0 {
				wantReason(t, err, tc.want)
			} else if err != nil || !filepath.IsAbs(loc.path) {
				t.Fatalf("%v", err)
			}
		})
	}
}

// ofUser is a file's description with another owner.
type ofUser struct {
	os.FileInfo
	uid uint32
}

func (f ofUser) Sys() any { return &syscall.Stat_t{Uid: f.uid} }

func TestOwner(t *testing.T) {
	for uid, ok := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, 54321: false, 65534: false} {
		if err := ownedByTrusted("x", ofUser{uid: uid}); (err == nil) != ok {
			t.Errorf("owner %d: %v", uid, err)
		}
	}
}

func symlink(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// For every program: any path is refused before the file system is asked, and
// so before any spawn. The directories given do hold such a file.
func TestPathsAreRefused(t *testing.T) {
	tree := tempTree(t)
	for _, s := range hostPrograms {
		program(t, mkdir(t, tree+"/bin")+"/"+s.name)
		t.Chdir(tree + "/bin")
		for _, name := range []string{
			"/usr/bin/" + s.name, "./" + s.name, "../bin/" + s.name, s.name + "/", "/" + s.name, "bin/" + s.name, s.name + "\x00", "", ".", "..",
			tree + "/bin/" + s.name,
		} {
			_, err := resolve(name, []string{tree, tree + "/bin", ""})
			wantReason(t, err, reasonProgram)
		}
		if _, err := resolve(s.name, []string{tree + "/bin"}); err != nil {
			t.Fatalf("nearest neighbour: %v", err)
		}
	}
}

// TestPlantedProgramIsNotRun puts a git into the workspace, and the workspace into PATH.
func TestPlantedProgramIsNotRun(t *testing.T) {
	ws := mkdir(t, tempTree(t)+"/ws")
	if err := copyProgram(filepath.Join(helperDir, helperName), ws+"/git"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", ws+":.:"+os.Getenv("PATH"))
	t.Chdir(ws)
	var recs []Execution
	r := newTestRunner(t, Options{Untrusted: []string{ws}, Observe: func(rec Execution) { recs = append(recs, rec) }})
	r.dirs = trustedDirs
	res, err := r.Run(t.Context(), Command{Program: Git, Args: []string{"version"}, Dir: ws, Timeout: MaxTimeout})
	if err != nil || !bytes.HasPrefix(res.Stdout.Head, []byte("git version ")) || strings.HasPrefix(recs[0].Path, ws) {
		t.Fatalf("%q, %v, %q", res.Stdout.Head, err, recs[0].Path)
	}
}

// A trusted directory that leads into the workspace, by link or by being it,
// whether the workspace was named to New or is only the working directory.
func TestProgramReachedThroughWorkspace(t *testing.T) {
	for name, link := range map[string]func(t *testing.T, bin, ws string){
		"file link":           func(t *testing.T, bin, ws string) { symlink(t, ws+"/"+helperName, bin+"/"+helperName) },
		"link to subdir":      func(t *testing.T, bin, ws string) { symlink(t, ws+"/sub/"+helperName, bin+"/"+helperName) },
		"directory link":      func(t *testing.T, bin, ws string) { os.Remove(bin); symlink(t, ws, bin) },
		"out of it again":     func(t *testing.T, bin, ws string) { symlink(t, ws+"/out/"+helperName, bin+"/"+helperName) },
		"nothing to do (run)": nil,
	} {
		t.Run(name, func(t *testing.T) {
			tree := tempTree(t)
			bin, ws := mkdir(t, tree+"/bin"), mkdir(t, tree+"/ws")
			mkdir(t, ws+"/sub")
			symlink(t, helperDir, ws+"/out")
			target := bin
			if link != nil {
				target = ws
				link(t, bin, ws)
			}
			if err := copyProgram(filepath.Join(helperDir, helperName), target+"/"+helperName); err != nil {
				t.Fatal(err)
			}
			if err := copyProgram(filepath.Join(helperDir, helperName), ws+"/sub/"+helperName); err != nil {
				t.Fatal(err)
			}
			elsewhere := shell(t, "exit 0")
			inside := elsewhere
			inside.Dir = ws
			named := newTestRunner(t, Options{Untrusted: []string{ws}})
			unnamed := newTestRunner(t, Options{})
			named.dirs, unnamed.dirs = []string{bin}, []string{bin}
			_, err1 := named.Run(t.Context(), elsewhere)
			_, err2 := unnamed.Run(t.Context(), inside)
			if link == nil {
				if err1 != nil || err2 != nil {
					t.Fatalf("nearest neighbour: %v, %v", err1, err2)
				}
				return
			}
			wantReason(t, err1, reasonUntrusted)
			wantReason(t, err2, reasonUntrusted)
		})
	}
}

func TestNewRefuses(t *testing.T) {
	for _, dirs := range [][]string{{"/"}, {"."}, {""}, {"/nonexistent/x"}, {"/usr/.."}} {
		if _, err := New(Options{Untrusted: dirs}); err == nil {
			t.Errorf("untrusted %q was taken", dirs)
		}
	}
	if _, err := New(Options{Scratch: "rel"}); err == nil {
		t.Error("relative scratch was taken")
	}
}

func TestAppArmorArguments(t *testing.T) {
	for _, ok := range [][]string{{"--version"}, {"--replace", appArmorProfile}, {"--remove", appArmorProfile}} {
		if err := prepareAppArmor(&call{args: ok}); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range [][]string{
		nil, {"--replace", "/project/profile"}, {"--replace"}, {"--replace", appArmorProfile, "/project/profile"}, {"-I", "/work"},
		{"--replace", "/etc/apparmor.d/../../project/p"}, {appArmorProfile}, {"--config-file=/project/x", "--version"},
	} {
		wantReason(t, prepareAppArmor(&call{args: bad}), reasonArgument)
	}
}

func TestBuildctlArguments(t *testing.T) {
	good := []string{"--addr", "unix:///run/buildkit/buildkitd.sock", "build", "--progress", "plain", "--frontend", "dockerfile.v0",
		"--opt", "filename=Dockerfile", "--local", "context=/a/b", "--local", "dockerfile=/a/b", "--output", "type=docker,dest=/a/image.tar"}
	if err := prepareBuildctl(&call{args: good}); err != nil {
		t.Error(err)
	}
	wantReason(t, prepareBuildctl(&call{args: append(slices.Clone(good), "--allow=security.insecure")}), reasonArgument)
	wantReason(t, prepareBuildctl(&call{args: good[:len(good)-2]}), reasonArgument)
	for i, bad := range map[int]string{
		0: "--debug", 1: "tcp://10.0.0.1:1234", 2: "du", 4: "tty", 6: "gateway.v0", 8: "target=x", 10: "context=b", 12: "dockerfile=/",
		13: "--secret", 14: "type=docker,dest=/a/image.tar,push=true",
	} {
		args := slices.Clone(good)
		args[i] = bad
		wantReason(t, prepareBuildctl(&call{args: args}), reasonArgument)
	}
}

func TestErrorsDoNotShowValues(t *testing.T) {
	err := prepareGit(&call{program: "git", args: []string{"--config-env=http.extraheader=hunter2"}})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	e := &FailedError{Program: "git", Outcome: Exited, Code: 1, Stderr: line([]byte("fatal:\n\x1b]0;x\a\u202e"))}
	if s := e.Error(); strings.ContainsAny(s, "\n\x1b\a\u202e") {
		t.Errorf("%q", s)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a) S 2 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 77 1 1")
	f.Add("1 (a) S 9) R 2 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 77 1 1")
	f.Add(")")
	f.Fuzz(func(t *testing.T, s string) { parseStat(s) })
}

func TestParseStat(t *testing.T) {
	p, ok := parseStat("5 (x) R 1 (y) S 2 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 77 1 1")
	if !ok || p.parent != 2 || p.start != 77 {
		t.Errorf("%+v %v", p, ok)
	}
	if _, ok := parseStat("5 (x) Z 2 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 77 1 1"); ok {
		t.Error("a zombie counts as living")
	}
	if p, ok := readProcess(os.Getpid()); !ok || p.parent != os.Getppid() {
		t.Errorf("own parent %+v", p)
	}
}

func BenchmarkRunTrue(b *testing.B) {
	r, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	for b.Loop() {
		if _, err := r.Run(b.Context(), Command{Program: Git, Args: []string{"version"}, Dir: dir, Timeout: MaxTimeout}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNativeTrue(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("git", "version").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// Errors say what ended and why, in one line, and match what callers ask for.
func TestErrorTexts(t *testing.T) {
	cause := errors.New("the cause")
	r := &refusal{Program: "git", Reason: reasonArgument, Detail: "no", Err: cause}
	if !errors.Is(r, cause) || !strings.HasSuffix(r.Error(), ": no: the cause") {
		t.Errorf("%v", r)
	}
	for e, want := range map[*FailedError]string{
		{Program: "git", Outcome: signaled, Signal: "SIGKILL"}: "hostexec: git killed by SIGKILL",
		{Program: "git", Outcome: deadline}:                    "hostexec: git ended: " + deadline.String(),
	} {
		if e.Error() != want || errors.Is(e, context.DeadlineExceeded) != (e.Outcome == deadline) || errors.Is(e, os.ErrNotExist) {
			t.Errorf("%v, want %s", e, want)
		}
	}
}
