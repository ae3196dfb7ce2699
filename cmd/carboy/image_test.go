package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/carboy/carboy/internal/receipt"
)

// toolImage is a layout with one image: this program as /opt/tools/carboy, which its
// PATH leads to, and nothing else.
func toolImage(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "opt/tools/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "opt/tools/carboy", Typeflag: tar.TypeReg, Mode: 0o6755, Size: int64(len(program))},
		{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666},
		{Name: "etc/passwd", Typeflag: tar.TypeSymlink, Linkname: "/../../../../etc/passwd"},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(program); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Env: []string{"PATH=/opt/tools", "HOME=/nowhere"}, Entrypoint: []string{"carboy"}, Cmd: []string{"version"}}})
	if err == nil {
		img, err = mutate.AppendLayers(img, l)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "box")
	p, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// An image is a bottle's root: its programs, by its PATH, and nothing of the host's.
func TestImage(t *testing.T) {
	box := toolImage(t)
	d := newDen(t, nil)
	carboy := d.carboy

	out, msg, code := carboy("run", "--image", box)
	if code != 0 || !strings.HasPrefix(out, "carboy ") || !strings.Contains(msg, "layer 1 of 1, ") {
		t.Errorf("the image's own command: exit code %d\n%s%s", code, out, msg)
	}
	listed, _, code := carboy("image", "list", "--json")
	var all []struct{ Digest string }
	if err := json.Unmarshal([]byte(listed), &all); err != nil || code != 0 || len(all) != 1 {
		t.Fatalf("image list: exit code %d, %v\n%s", code, err, listed)
	}
	out, msg, code = carboy("run", "--json", "--image", "oci:"+box, "--", "carboy", "--help")
	var rec receipt.Receipt
	if err := json.Unmarshal([]byte(out), &rec); err != nil || code != 0 || rec.Image == nil || rec.Image.Digest != all[0].Digest || strings.Contains(msg, "layer") {
		t.Errorf("another command: exit code %d, %v\n%s%s", code, err, out, msg)
	}
	if out, _, _ := carboy("receipt"); !strings.Contains(strings.Join(strings.Fields(out), ""), all[0].Digest) {
		t.Errorf("the receipt does not say which image:\n%s", out)
	}
	// The host's tools are not there, and its own are not lost by that.
	if out, msg, code := carboy("run", "--image", box, "--", "sh", "-c", "true"); code != 127 {
		t.Errorf("the host's shell: exit code %d\n%s%s", code, out, msg)
	}
	if _, msg, code := carboy("run", "--", "sh", "-c", "test ! -e /opt/tools"); code != 0 {
		t.Errorf("without the image: exit code %d\n%s", code, msg)
	}
	if _, msg, code := carboy("run", "--image", box, "--rootfs", box, "--", "carboy"); code != 125 || !strings.Contains(msg, "--rootfs") {
		t.Errorf("both: exit code %d\n%s", code, msg)
	}
	if out, msg, code := carboy("image", "pull", "--digest", "sha256:"+strings.Repeat("0", 64), box); code == 0 || !strings.Contains(msg, "was pinned") {
		t.Errorf("another digest: exit code %d\n%s%s", code, out, msg)
	}
	if out, msg, code := carboy("image", "rm", all[0].Digest); code != 0 {
		t.Errorf("image rm: exit code %d\n%s%s", code, out, msg)
	}
	if out, _, _ := carboy("image", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("after image rm:\n%s", out)
	}
	if out, msg, code := carboy("run", "--image", filepath.Join(d.home, "nothing")); code != 125 || !strings.Contains(msg, "no such file") {
		t.Errorf("no image: exit code %d\n%s%s", code, out, msg)
	}
}

// TestImageBuild builds an image in bottles and runs it by its name and its digest.
func TestImageBuild(t *testing.T) {
	d := newDen(t, map[string]string{
		"bottles/box/Dockerfile": "ARG WHO\nFROM scratch\nARG WHO\nWORKDIR /etc\nCOPY note note\nCOPY carboy /bin/carboy\nRUN [\"/bin/carboy\", \"version\"]\nENV MADE=for-$WHO PATH=/bin\nCMD [\"carboy\", \"version\"]\n",
		"bottles/box/note":       "made in a bottle\n",
		"bottles/bad/Dockerfile": "FROM scratch\nRUN --mount=type=cache,target=/x true\n",
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := d.home + "/.config/carboy/bottles/"
	if err := os.WriteFile(dir+"box/carboy", program, 0o755); err != nil {
		t.Fatal(err)
	}
	out, msg, code := d.carboy("image", "build", "-t", "box", "--build-arg", "WHO=you", dir+"box")
	digest := strings.TrimSpace(out)
	if code != 0 || !strings.HasPrefix(digest, "sha256:") || !strings.Contains(msg, "step 6/8: RUN") {
		t.Fatalf("exit code %d\n%s%s", code, out, msg)
	}
	out, msg, code = d.carboy("image", "build", "--json", "-t", "box", "--build-arg", "WHO=you", dir+"box")
	if code != 0 || !strings.Contains(out, digest) || !strings.Contains(out, `"MADE=for-you"`) || !strings.Contains(msg, "(cached)") {
		t.Errorf("again: exit code %d\n%s%s", code, out, msg)
	}
	if out, _, _ := d.carboy("image", "list"); !strings.Contains(out, "built:box") {
		t.Errorf("the list:\n%s", out)
	}
	for _, ref := range []string{"built:box", digest} {
		if out, msg, code := d.carboy("run", "--image", ref); code != 0 || !strings.HasPrefix(out, "carboy ") {
			t.Errorf("%s: exit code %d\n%s%s", ref, code, out, msg)
		}
	}
	for want, args := range map[string][]string{
		"Dockerfile:2: RUN: --mount is not known here; the Docker Engine and BuildKit can": {dir + "bad"},
		"no such file":         {dir + "none"},
		"name the directory":   {},
		"is not one of letter": {"-t", "No Name", dir + "box"},
		"has no value":         {"--build-arg", "NOT_SET_HERE", dir + "box"},
		"has that name":        {"--build-arg", "OTHER=1", dir + "box"},
		"no such stage":        {"--target", "none", dir + "box"},
	} {
		if _, msg, code := d.carboy(append([]string{"image", "build"}, args...)...); code == 0 || !strings.Contains(msg, want) {
			t.Errorf("%q: exit code %d\n%s", args, code, msg)
		}
	}
}
