package erofs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// treeOf returns a builder of an image of one tree.
func treeOf(t *testing.T, dir string, o TreeOptions) *Builder {
	t.Helper()
	var b Builder
	_, err := b.Tree("/", open(t, dir), o)
	must(t, err)
	return &b
}

// TestHoles: a file's holes take no room in the image, and no time.
func TestHoles(t *testing.T) {
	const size = 1 << 40
	dir := t.TempDir()
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(size), second(f.WriteAt([]byte("first"), 0)), second(f.WriteAt([]byte("last"), size-4)))
	path := create(t, treeOf(t, dir, TreeOptions{}))
	image, err := os.Open(path)
	must(t, err)
	defer image.Close()
	var st unix.Stat_t
	must(t, unix.Fstat(int(image.Fd()), &st))
	if st.Blocks*512 > 1<<20 || st.Size < size {
		t.Errorf("the image has %d bytes and takes %d", st.Size, st.Blocks*512)
	}
	for off, want := range map[int64]string{st.Size - size: "first", st.Size - 4: "last"} {
		got := make([]byte, len(want))
		if _, err := image.ReadAt(got, off); err != nil || string(got) != want {
			t.Errorf("at %d: %q, %v", off, got, err)
		}
	}
}

// TestTooLarge: files beyond what an image can hold are refused, and don't become parts of
// each other.
func TestTooLarge(t *testing.T) {
	dir := t.TempDir()
	for i := range 17 {
		f, err := os.Create(fmt.Sprintf("%s/%02d", dir, i))
		must(t, err, f.Truncate(1<<40), f.Close())
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	if err := treeOf(t, dir, TreeOptions{}).Write(t.Context(), f); err == nil || !strings.Contains(err.Error(), `"15"`) {
		t.Errorf("17 TiB: %v", err)
	}
}

// TestDeep: a path that no call takes is refused by name, before its parts fill memory.
func TestDeep(t *testing.T) {
	name := strings.Repeat("d", 250)
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 20 {
		must(t, unix.Mkdirat(fd, name, 0o755))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
	var b Builder
	if _, err := b.Tree("/", open(t, dir), TreeOptions{}); err == nil || !strings.Contains(err.Error(), "rename") || len(err.Error()) > 500 {
		t.Errorf("a path of 5 kB: %v", err)
	}
	if _, err := b.Tree("/", open(t, dir+strings.Repeat("/"+name, 8)), TreeOptions{}); err != nil {
		t.Errorf("a part of it: %v", err)
	}
}

// TestLeftOut: what may not be read inside, and what is hidden, is in no byte of the image.
func TestLeftOut(t *testing.T) {
	dir := t.TempDir()
	secret := "sesame" + strings.Repeat("!", 3000)
	must(t,
		os.MkdirAll(dir+"/hidden/below", 0o755), os.WriteFile(dir+"/hidden/f", []byte(secret), 0o644), os.WriteFile(dir+"/hidden/below/f", []byte(secret), 0o644),
		os.MkdirAll(dir+"/shut/below", 0o755), os.WriteFile(dir+"/shut/below/f", []byte(secret), 0o644), os.Chmod(dir+"/shut", 0o700),
		os.WriteFile(dir+"/small", []byte("sesame"), 0o600), os.WriteFile(dir+"/large", []byte(secret), 0o640),
		os.WriteFile(dir+"/shown", []byte("shown"), 0o644), os.MkdirAll(dir+"/not/hidden", 0o755), os.WriteFile(dir+"/not/hidden/f", []byte("shown"), 0o644),
	)
	o := TreeOptions{Empty: []string{"hidden"}, Readable: func(mode, _, _ uint32) bool { return mode&0o004 != 0 }}
	content := bytesOf(t, treeOf(t, dir, o))
	if strings.Contains(string(content), "sesame") {
		t.Error("the image holds what was left out")
	}
	got := image{t, content}.read()
	for path, mode := range map[string]uint32{
		"/hidden": unix.S_IFDIR | 0o755, "/shut": unix.S_IFDIR, "/small": unix.S_IFREG, "/large": unix.S_IFREG,
		"/shown": unix.S_IFREG | 0o644, "/not/hidden/f": unix.S_IFREG | 0o644,
	} {
		f, ok := got[path]
		if !ok || f.mode != mode || mode&0o777 == 0 && f.data != "" {
			t.Errorf("%s: %.200v", path, f)
		}
	}
	if len(got) != 9 { // with the root, /not and /not/hidden
		t.Errorf("the image holds %d files", len(got))
	}
	if got["/shown"].data != "shown" || got["/not/hidden/f"].data != "shown" {
		t.Error("what is shown differs")
	}
	var all, part Builder
	a, err := all.Tree("/", open(t, dir), TreeOptions{})
	must(t, err)
	b, err := part.Tree("/", open(t, dir), o)
	must(t, err)
	if a == b {
		t.Error("the digest does not tell what is left out")
	}
}

// TestCancelled: a caller who has gone is not worked for.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	must(t, err)
	defer f.Close()
	if err := treeOf(t, sample(t), TreeOptions{}).Write(ctx, f); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
