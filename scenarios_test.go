package carboy

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	dockertar "github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/tracing"
)

func scenarios(t *testing.T, text string) *ScenarioSet {
	t.Helper()
	s, err := scenario.Parse("scenarios.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Scenarios see the workspace, each its own view of it, and leave it and the review of
// changes as they were.
func TestTraceScenarios(t *testing.T) {
	w := newWorld(t)
	w.write("input", "x")
	rep, err := w.c.TraceScenarios(t.Context(), tracing.TraceOptions{
		Workspace: w.ws, Each: Limits{Timeout: time.Minute}, Parallel: 2,
		Scenarios: scenarios(t, `
scenarios:
  - {name: writes, command: [sh, -c, "cat input; echo y > made; test -e made"]}
  - {name: looks, command: [sh, -c, "test ! -e made; exec cp /bin/cat renamed"], network: [example.org]}
  - {name: fails, command: [sh, -c, "exit 4"], expected_exit_code: 3}
  - {name: nothing, command: [no-such-program]}
  - {name: expected, command: [sh, -c, "exit 3"], expected_exit_code: 3}
`), NoNetwork: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rep.Scenarios {
		got = append(got, strings.TrimSpace(r.Name+" "+string(r.Outcome)+" "+string(r.Reason)))
	}
	if want := []string{"writes completed", "looks skipped offline", "fails failed exit_code", "nothing failed not_started", "expected completed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c := rep.Coverage
	if c.Level != scenario.Medium || c.Completed != 2 || c.Failed != 2 || c.Skipped != 1 || c.Facts == 0 || c.Dropped != 0 || len(c.Lowered) != 0 || rep.Isolation == "" || rep.OK() {
		t.Errorf("%+v", rep)
	}
	if entries, _ := os.ReadDir(w.ws); len(entries) != 1 {
		t.Errorf("the workspace has %v", entries)
	}
	l, err := w.c.List(t.Context(), store.Query{})
	if err != nil || len(l.Runs) != 4 {
		t.Fatalf("%d runs, %v", len(l.Runs), err)
	}
	for _, m := range l.Runs {
		if m.Changes != ChangesNone {
			t.Errorf("run %s has changes for review: %s", m.ID, m.Changes)
		}
	}
	read := slices.ContainsFunc(rep.Slices.Files, func(f scenario.File) bool {
		return string(f.Path) == w.ws+"/input" && slices.Equal(f.Scenarios, []string{"writes"})
	})
	lib := slices.ContainsFunc(rep.Slices.Libraries, func(l scenario.Library) bool { return strings.Contains(string(l.Path), "libc") })
	if !read || !lib {
		t.Errorf("files %+v, libraries %+v", rep.Slices.Files, rep.Slices.Libraries)
	}
}

// imageOfOne writes a docker archive with a static program as its command.
func imageOfOne(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "gcc", "apt-get install gcc libc6-dev")
	dir := t.TempDir()
	src := filepath.Join(dir, "p.c")
	os.WriteFile(src, []byte(`#include <stdio.h>
int main(int n, char **a) { FILE *f = fopen("/etc/data", "r"); return f && n == 2 ? 0 : 7; }`), 0o644)
	if out, err := exec.Command("gcc", "-static", "-o", dir+"/p", src).CombinedOutput(); err != nil {
		testenv.Missing(t, "a static C library ("+string(out)+")", "apt-get install libc6-dev")
	}
	program, err := os.ReadFile(dir + "/p")
	if err != nil {
		t.Fatal(err)
	}
	pack := func(files ...struct {
		name string
		mode int64
		b    []byte
	}) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, f := range files {
			w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.b)), Typeflag: tar.TypeReg})
			w.Write(f.b)
		}
		w.Close()
		return b.Bytes()
	}
	type file = struct {
		name string
		mode int64
		b    []byte
	}
	layer := pack(file{"bin/p", 0o755, program}, file{"etc/data", 0o644, []byte("x")}, file{"etc/passwd", 0o644, []byte("root:x:0:0::/:/bin/sh\n")})
	sum := sha256.Sum256(layer)
	config := []byte(`{"architecture":"` + runtime.GOARCH + `","os":"linux","config":{"Entrypoint":["/bin/p"],"Cmd":["check"]},"rootfs":{"type":"layers","diff_ids":["sha256:` + hex.EncodeToString(sum[:]) + `"]}}`)
	manifest := []byte(`[{"Config":"config.json","RepoTags":["p:1"],"Layers":["layer.tar"]}]`)
	name := filepath.Join(dir, "p.tar")
	if err := os.WriteFile(name, pack(file{"config.json", 0o644, config}, file{"layer.tar", 0o644, layer}, file{"manifest.json", 0o644, manifest}), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// The start of an image is traced without scenarios, which says little; the digest that
// was traced is compared with the one that was built.
func TestTraceImage(t *testing.T) {
	w := newWorld(t)
	tarball := imageOfOne(t)
	rep, err := w.c.TraceScenarios(t.Context(), tracing.TraceOptions{Image: "tar:" + tarball, Each: Limits{Timeout: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	if !rep.OK() || rep.Coverage.Level != scenario.Low || rep.Scenarios[0].Name != "start" || rep.Target.Traced == "" || rep.Target.Match != nil {
		t.Fatalf("%+v %+v %+v", rep.Target, rep.Coverage, rep.Scenarios)
	}
	if len(rep.Slices.Binaries) != 1 || rep.Slices.Binaries[0].Path != "/bin/p" || len(rep.Slices.Files) != 1 || rep.Slices.Files[0].Path != "/etc/data" {
		t.Errorf("%+v, %+v", rep.Slices.Binaries, rep.Slices.Files)
	}
	// The same as an OCI layout, and as a directory, which has no digest.
	layoutDir, dir := otherImages(t, tarball)
	for ref, traced := range map[string]string{"oci:" + layoutDir: rep.Target.Traced, tarball: rep.Target.Traced, dir: ""} {
		other, err := w.c.TraceScenarios(t.Context(), tracing.TraceOptions{Image: ref, Command: []string{"/bin/p", "check"}, Each: Limits{Timeout: time.Minute}})
		if err != nil {
			t.Fatalf("%s: %v", ref, err)
		}
		b, f := other.Slices.Binaries, other.Slices.Files
		if !other.OK() || len(b) != 1 || b[0].Path != "/bin/p" || b[0].Digest != rep.Slices.Binaries[0].Digest || len(f) != 1 || f[0].Path != "/etc/data" || other.Target.Traced != traced {
			t.Errorf("%s: %+v %+v %+v, want %+v", ref, other.Target, other.Scenarios, other.Slices, rep.Slices)
		}
	}
	for digest, same := range map[string]bool{rep.Target.Traced: true, "sha256:" + strings.Repeat("0", 64): false} {
		again, err := w.c.TraceScenarios(t.Context(), tracing.TraceOptions{Image: "tar:" + tarball, Digest: digest, Each: Limits{Timeout: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		if again.Target.Match == nil || *again.Target.Match != same || again.OK() != same {
			t.Errorf("traced %s, built %s: %+v", again.Target.Traced, digest, again.Target)
		}
	}
	x, err := w.c.InspectSandbox(t.Context(), rep.Target.Traced[:20])
	if err != nil || x.Kind != "image" || x.ImageDigest != rep.Target.Traced || !slices.Equal(x.Command, []string{"/bin/p", "check"}) {
		t.Errorf("%+v, %v", x, err)
	}
	x, err = w.c.InspectSandbox(t.Context(), rep.Scenarios[0].Run)
	if err != nil || x.Kind != "run" || x.ImageDigest != rep.Target.Traced || x.Posture == nil || x.Isolation != rep.Isolation {
		t.Errorf("%+v, %v", x, err)
	}
}

// What is judged does not say how: neither a file of the workspace's, by whatever name
// it is reached, nor the work tree of a repository.
func TestScenariosAreNotTheChanges(t *testing.T) {
	git := testenv.Need(t, "git", "apt-get install git")
	w := newWorld(t)
	w.write("scenarios.yaml", "scenarios: [{name: base, command: ['true']}]\n")
	run := func(args ...string) {
		t.Helper()
		c := exec.Command(git, append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		c.Dir, c.Env = w.ws, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	run("init", "-q", "-b", "main")
	run("add", ".")
	run("commit", "-qm", "base")
	w.write("scenarios.yaml", "scenarios: [{name: change, command: ['true']}]\n")
	set, err := w.c.ScenariosAt(t.Context(), w.ws, "main", "")
	if err != nil || set.Scenarios[0].Name != "base" {
		t.Errorf("%+v, %v, want those of the base", set, err)
	}
	link := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.Symlink(filepath.Join(w.ws, "scenarios.yaml"), link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(w.ws, "scenarios.yaml"), link} {
		var bad *fault.OptionError
		if set, err := tracing.LoadScenarios(name, w.ws); !errors.As(err, &bad) {
			t.Errorf("%s: %+v, %v, want a refusal", name, set, err)
		}
	}
	own := filepath.Join(t.TempDir(), "own.yaml")
	os.WriteFile(own, []byte("scenarios: [{name: own, command: ['true']}]\n"), 0o600)
	if set, err := tracing.LoadScenarios(own, w.ws); err != nil || set.Scenarios[0].Name != "own" {
		t.Errorf("%+v, %v", set, err)
	}
	if _, err := w.c.ScenariosAt(t.Context(), w.ws, "main", "absent.yaml"); !errors.Is(err, tracing.ErrNoScenarios) {
		t.Errorf("%v, want ErrNoScenarios", err)
	}
	for _, rev := range []string{"", "-x", "none", "^main", "main:scenarios.yaml"} {
		var bad *fault.OptionError
		if _, err := w.c.ScenariosAt(t.Context(), w.ws, rev, ""); !errors.As(err, &bad) {
			t.Errorf("%q: %v, want a refusal", rev, err)
		}
	}
	// A tag comes with anybody's fetch, and git prefers it to the branch.
	run("checkout", "-qb", "work")
	run("commit", "-qam", "change")
	run("tag", "main", "work")
	if set, err := w.c.ScenariosAt(t.Context(), w.ws, "main", ""); !errors.Is(err, gate.ErrAmbiguous) {
		t.Errorf("a tag called main: %+v, %v, want a refusal", set, err)
	}
	if set, err := w.c.ScenariosAt(t.Context(), w.ws, "refs/heads/main", ""); err != nil || set.Scenarios[0].Name != "base" {
		t.Errorf("%+v, %v, want those of the branch", set, err)
	}
}

func TestSweepSandboxes(t *testing.T) {
	w := newWorld(t)
	r, _ := w.ok("true")
	left := filepath.Join(string(r.Evidence), "scratch")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	g, err := w.c.SweepSandboxes(t.Context())
	if err != nil || !slices.Equal(g.Removed, []string{left}) {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err = w.c.SweepSandboxes(t.Context()); err != nil || len(g.Removed) != 0 {
		t.Errorf("the second time: %+v, %v", g, err)
	}
	if _, err := w.c.Receipt(t.Context(), r.ID); err != nil {
		t.Errorf("the record is gone: %v", err)
	}
}

// otherImages are the image of a tarball as an OCI layout, and its files as a directory.
func otherImages(t *testing.T, archive string) (layoutDir, dir string) {
	t.Helper()
	img, err := dockertar.ImageFromPath(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	layoutDir, dir = filepath.Join(t.TempDir(), "layout"), filepath.Join(t.TempDir(), "root")
	p, err := layout.Write(layoutDir, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	files := mutate.Extract(img)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		var b []byte
		name := filepath.Join(dir, "missing")
		if err == nil {
			name = filepath.Join(dir, h.Name)
			b, err = io.ReadAll(r)
		}
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, b, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return layoutDir, dir
}
