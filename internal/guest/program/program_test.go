package program

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "build the programs")

const (
	pkg     = "github.com/carboy/carboy/internal/guest/agent/program"
	sources = "sources.sum"
)

// TestCurrent compares the embedded programs with their sources: by the digest of those,
// and, where this is the compiler that built them, by building them again.
func TestCurrent(t *testing.T) {
	sum := digest(t)
	if *update {
		for _, arch := range []string{"amd64", "arm64"} {
			if err := os.WriteFile("agent_"+arch+".gz", pack(t, build(t, arch)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(sources, []byte(sum), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	had, err := os.ReadFile(sources)
	if err != nil || string(had) != sum {
		t.Fatalf("the embedded programs are older than their sources: run go generate ./internal/guest/program (%v)", err)
	}
	if testing.Short() {
		t.Skip("-short: the programs are not built again")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		old := unpackFile(t, "agent_"+arch+".gz")
		info, err := buildinfo.Read(bytes.NewReader(old))
		if err != nil {
			t.Fatal(err)
		}
		if info.GoVersion != runtime.Version() {
			t.Logf("%s was built by %s: not built again by %s", arch, info.GoVersion, runtime.Version())
			continue
		}
		if !bytes.Equal(old, build(t, arch)) {
			t.Errorf("the embedded program for %s is not what its sources build: run go generate ./internal/guest/program", arch)
		}
	}
}

// TestStatic checks that the program needs nothing of the place in which it runs.
func TestStatic(t *testing.T) {
	b, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the program has a segment of type %v", p.Type)
		}
	}
	if len(b) > 5<<20 {
		t.Errorf("the program has %d bytes", len(b))
	}
	if d, err := Digest(); err != nil || len(d) != 64 {
		t.Errorf("%q %v", d, err)
	}
}

// build builds the program as go generate does: the same sources and compiler give the
// same bytes.
func build(t *testing.T, arch string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "agent")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the program for %s: %v\n%s", arch, err, text)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func pack(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func unpackFile(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// digest returns a list of the program's own sources with their digests, and the version
// of its one dependency.
func digest(t *testing.T) string {
	t.Helper()
	var lines []string
	for _, dir := range []string{"../agent", "../agent/program", "../proto", "../rtnet", "../uppertar"} {
		names, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if strings.HasSuffix(n, "_test.go") {
				continue
			}
			b, err := os.ReadFile(n)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%x  %s", sha256.Sum256(b), strings.TrimPrefix(n, "../")))
		}
	}
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(mod)) {
		if strings.Contains(l, "golang.org/x/sys ") {
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n") + "\n"
}
