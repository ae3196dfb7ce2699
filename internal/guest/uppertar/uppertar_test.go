package uppertar

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func opened(t testing.TB, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func below(fd int) func(string) (int, string) {
	return func(name string) (int, string) { return fd, name }
}

// hostileStream is an archive of one entry.
func hostileStream(t testing.TB, hs ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range hs {
		h.Uid, h.Gid = os.Getuid(), os.Getgid()
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestReadStaysBelow unpacks streams that lead elsewhere. Beside each is what a good one
// does.
func TestReadStaysBelow(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/kept", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := &tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: outside}
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
	for name, c := range map[string]struct {
		entries []*tar.Header
		refused bool
	}{
		"a good one":          {[]*tar.Header{{Typeflag: tar.TypeDir, Name: "./d/", Mode: 0o755}, file("./d/f")}, false},
		"dots":                {[]*tar.Header{file("../../../../" + outside + "/kept")}, false}, // lands below
		"through a link":      {[]*tar.Header{link, file("l/kept")}, true},
		"over a link":         {[]*tar.Header{link, file("l")}, false}, // replaces it
		"a link as a dir":     {[]*tar.Header{link, {Typeflag: tar.TypeDir, Name: "l/", Mode: 0o777}}, true},
		"a hard link outside": {[]*tar.Header{link, {Typeflag: tar.TypeLink, Name: "h", Linkname: "l/kept"}}, true},
		"a device":            {[]*tar.Header{{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3}}, true},
		"a block device":      {[]*tar.Header{{Typeflag: tar.TypeBlock, Name: "b", Devmajor: 8}}, true},
		"the root as a file":  {[]*tar.Header{{Typeflag: tar.TypeSymlink, Name: ".", Linkname: "/"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := Read(bytes.NewReader(hostileStream(t, c.entries...)), below(opened(t, dir)))
			if (err != nil) != c.refused {
				t.Errorf("%v", err)
			}
			if b, err := os.ReadFile(outside + "/kept"); err != nil || string(b) != "kept" {
				t.Errorf("a file outside is %q, %v", b, err)
			}
			if ents, _ := os.ReadDir(outside); len(ents) != 1 {
				t.Error("a file was made outside")
			}
		})
	}
}

// TestLayer packs what an overlay leaves, and reads it with the standard library.
func TestLayer(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("n", 200)
	for _, err := range []error{
		os.MkdirAll(dir+"/d/e", 0o700), os.WriteFile(dir+"/d/"+long, []byte("long"), 0o640),
		os.Link(dir+"/d/"+long, dir+"/z"), os.Symlink("/etc/shadow", dir+"/l"), unix.Mkfifo(dir+"/p", 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: dir + "/s"}); err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0
	if root {
		if err := errors.Join(unix.Mknod(dir+"/gone", unix.S_IFCHR, 0), unix.Setxattr(dir+"/d/e", attrOpaque, []byte("y"), 0)); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	w := NewWriter(&out)
	if err := errors.Join(w.Layer(opened(t, dir), "work/space"), w.Close()); err != nil {
		t.Fatal(err)
	}
	got := map[string]*tar.Header{}
	for tr := tar.NewReader(&out); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		got[strings.TrimPrefix(h.Name, "./work/space")] = h
	}
	want := map[string]byte{"/": tar.TypeDir, "/d/": tar.TypeDir, "/d/e/": tar.TypeDir, "/d/" + long: tar.TypeReg, "/z": tar.TypeLink, "/l": tar.TypeSymlink, "/p": tar.TypeFifo, "/s": tar.TypeChar}
	if root {
		want["/gone"] = tar.TypeChar
	}
	for name, typ := range want {
		if h := got[name]; h == nil || h.Typeflag != typ {
			t.Errorf("%.30s: %+v", name, h)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d entries, not %d", len(got), len(want))
	}
	if h := got["/s"]; h != nil && h.PAXRecords[recType] != "socket" {
		t.Error("a socket is not marked")
	}
	if h := got["/d/e/"]; root && h != nil && h.PAXRecords[recOpaque] != "y" {
		t.Error("an opaque directory is not marked")
	}
}

// TestBelow packs a part of a layer, and what became of it.
func TestBelow(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/home/me/work/d", 0o755), os.WriteFile(dir+"/home/me/work/d/f", []byte("f"), 0o644),
		os.WriteFile(dir+"/home/me/beside", nil, 0o644), os.Symlink("/etc", dir+"/home/me/link"), os.WriteFile(dir+"/home/file", nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]string{
		"home/me/work":   "./home/ ./home/me/ ./home/me/work/ ./home/me/work/d/ ./home/me/work/d/f",
		"home/me/link":   "./home/ ./home/me/ ./home/me/link",
		"home/me/link/x": "./home/ ./home/me/ ./home/me/link",
		"home/file/x/y":  "./home/ ./home/file",
		"home/me/absent": "./home/ ./home/me/",
		"absent/at/all":  "",
	} {
		var out bytes.Buffer
		w := NewWriter(&out)
		if err := errors.Join(w.Below(opened(t, dir), at), w.Close()); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		var got []string
		for tr := tar.NewReader(&out); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			got = append(got, h.Name)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %s", at, s)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(hostileStream(f, &tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Size: 3}))
	f.Add(hostileStream(f, &tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: ".."}, &tar.Header{Typeflag: tar.TypeReg, Name: "a/b", Size: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		outer := t.TempDir()
		dir := filepath.Join(outer, "in")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = Read(bytes.NewReader(b), below(opened(t, dir))) // may fail, and stays below
		if ents, err := os.ReadDir(outer); err != nil || len(ents) != 1 {
			t.Fatalf("%v %v", ents, err)
		}
	})
}
