package transfer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/safetext"
)

// entry is one of a stream.
type entry struct {
	name, link, text string
	kind             byte
	mode             int64
	size             int64 // that it says, where it differs
}

func stream(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Mode: e.mode, Size: int64(len(e.text)), Format: tar.FormatGNU}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		if e.size > 0 {
			h.Size = e.size
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, e.text)
	}
	w.Flush()
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

// listed describes the files below dir, with modes and link targets.
func listed(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		s := fmt.Sprintf("%s %v", strings.TrimPrefix(p, dir+"/"), fi.Mode())
		if l, err := os.Readlink(p); err == nil {
			s += " > " + l
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHostileStreams: nothing is written but below the one new name, and what is
// refused leaves nothing at all; each has a neighbour that passes.
func TestHostileStreams(t *testing.T) {
	defer unix.Umask(unix.Umask(0o022))
	dir := entry{name: "./d/", kind: tar.TypeDir, mode: 0o755}
	deep := "./d" + strings.Repeat("/x", maxDepth)
	for name, x := range map[string]struct {
		entries []entry
		want    string   // of the error
		made    []string // below the target's directory
		left    string   // of what is said
	}{
		"a file":               {[]entry{{name: "./d", text: "x"}}, "", []string{"new -rw-r--r--"}, ""},
		"a tree":               {[]entry{dir, {name: "./d/f", text: "x"}, {name: "d/g", text: "y", mode: 0o755}, {name: "./d/e/", kind: tar.TypeDir, mode: 0o700}}, "", []string{"new drwxr-xr-x", "new/e drwx------", "new/f -rw-r--r--", "new/g -rwxr-xr-x"}, ""},
		"a name of ours":       {[]entry{dir, {name: "./d/it", text: "x"}, {name: "./d/..x", text: "x"}}, "", []string{"new drwxr-xr-x", "new/..x -rw-r--r--", "new/it -rw-r--r--"}, ""},
		"up":                   {[]entry{dir, {name: "./d/../../evil"}}, "is no name that was asked for", nil, ""},
		"up at once":           {[]entry{{name: "../evil"}}, "is no name that was asked for", nil, ""},
		"up and back":          {[]entry{dir, {name: "./d/x/../y"}}, "is no name that was asked for", nil, ""},
		"absolute":             {[]entry{{name: "/etc/evil"}}, "is no name that was asked for", nil, ""},
		"twice the slash":      {[]entry{dir, {name: "./d//evil"}}, "is no name that was asked for", nil, ""},
		"another name":         {[]entry{dir, {name: "./e"}}, "was not asked for", nil, ""},
		"one that begins so":   {[]entry{{name: "./dd"}}, "was not asked for", nil, ""},
		"no name":              {[]entry{{name: "./", kind: tar.TypeDir}}, "is no name that was asked for", nil, ""},
		"a file twice":         {[]entry{dir, {name: "./d/f"}, {name: "./d/f"}}, "comes twice", nil, ""},
		"a file, then below":   {[]entry{dir, {name: "./d/f"}, {name: "./d/f/g"}}, "can't be written", nil, ""},
		"a link, then below":   {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "e"}, {name: "./d/l/f"}}, "comes without its directory", nil, ""},
		"a link, then a file":  {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "e"}, {name: "./d/l"}}, "comes twice", nil, ""},
		"a link twice":         {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "e"}, {name: "./d/l", kind: tar.TypeSymlink, link: "f"}}, "comes twice", nil, ""},
		"the root as a link":   {[]entry{{name: "./d", kind: tar.TypeSymlink, link: "/etc"}, {name: "./d/passwd"}}, "comes without its directory", nil, ""},
		"only a link":          {[]entry{{name: "./d", kind: tar.TypeSymlink, link: "x"}}, "nothing that can be taken out came (d: it is a link", nil, ""},
		"nothing":              {nil, "nothing that can be taken out came", nil, ""},
		"no directory":         {[]entry{{name: "./d/f"}}, "comes without its directory", nil, ""},
		"links within":         {[]entry{dir, {name: "./d/e/", kind: tar.TypeDir}, {name: "./d/e/l", kind: tar.TypeSymlink, link: "../f"}, {name: "./d/m", kind: tar.TypeSymlink, link: "./e/l"}, {name: "./d/f"}}, "", []string{"new drwxr-xr-x", "new/e drwxr--r--", "new/e/l Lrwxrwxrwx > ../f", "new/f -rw-r--r--", "new/m Lrwxrwxrwx > ./e/l"}, ""},
		"a link out":           {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "../evil"}}, "", []string{"new drwxr-xr-x"}, "d/l: it is a link that leads out"},
		"an absolute link":     {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "/etc/passwd"}}, "", []string{"new drwxr-xr-x"}, "d/l: it is a link that leads out"},
		"a link up and down":   {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "../d/f"}}, "", []string{"new drwxr-xr-x"}, "leads out"},
		"up through a link":    {[]entry{dir, {name: "./d/a/", kind: tar.TypeDir, mode: 0o755}, {name: "./d/a/b/", kind: tar.TypeDir, mode: 0o755}, {name: "./d/a/b/l", kind: tar.TypeSymlink, link: "../.."}, {name: "./d/a/b/p", kind: tar.TypeSymlink, link: "l/.."}}, "", []string{"new drwxr-xr-x", "new/a drwxr-xr-x", "new/a/b drwxr-xr-x", "new/a/b/l Lrwxrwxrwx > ../.."}, "d/a/b/p: it is a link that leads out"},
		"a link that retitles": {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "\x1b]0;x\a"}}, "", []string{"new drwxr-xr-x"}, "leads out"},
		"a second name":        {[]entry{dir, {name: "./d/f", text: "x"}, {name: "./d/g", kind: tar.TypeLink, link: "./d/f"}}, "", []string{"new drwxr-xr-x", "new/f -rw-r--r--", "new/g -rw-r--r--"}, ""},
		"of what is not there": {[]entry{dir, {name: "./d/g", kind: tar.TypeLink, link: "./d/f"}}, "", []string{"new drwxr-xr-x"}, "link to what did not come"},
		"of a directory":       {[]entry{dir, {name: "./d/g", kind: tar.TypeLink, link: "./d"}}, "", []string{"new drwxr-xr-x"}, "link to what did not come"},
		"of a link":            {[]entry{dir, {name: "./d/l", kind: tar.TypeSymlink, link: "f"}, {name: "./d/g", kind: tar.TypeLink, link: "./d/l"}}, "", []string{"new drwxr-xr-x", "new/l Lrwxrwxrwx > f"}, "link to what did not come"},
		"of the host's":        {[]entry{dir, {name: "./d/g", kind: tar.TypeLink, link: "/etc/passwd"}}, "link to what was not asked for", nil, ""},
		"of the host's, up":    {[]entry{dir, {name: "./d/g", kind: tar.TypeLink, link: "d/../../etc/passwd"}}, "link to what was not asked for", nil, ""},
		"set-user-id":          {[]entry{dir, {name: "./d/f", mode: 0o6777}, {name: "./d/e/", kind: tar.TypeDir, mode: 0o7777}}, "", []string{"new drwxr-xr-x", "new/e drwxr-xr-x", "new/f -rwxr-xr-x"}, ""},
		"no rights at all":     {[]entry{{name: "./d/", kind: tar.TypeDir, mode: 1}, {name: "./d/f", mode: 0o4000, text: "x"}}, "", []string{"new drwx-----x", "new/f -rw-------"}, ""},
		"a device":             {[]entry{dir, {name: "./d/sda", kind: tar.TypeBlock}, {name: "./d/null", kind: tar.TypeChar}, {name: "./d/p", kind: tar.TypeFifo}}, "", []string{"new drwxr-xr-x"}, "d/sda: it is neither a file"},
		"a device alone":       {[]entry{{name: "./d", kind: tar.TypeChar}}, "nothing that can be taken out came", nil, ""},
		"names that draw":      {[]entry{dir, {name: "./d/\x1b[2J"}, {name: "./d/a\nb"}, {name: "./d/\u202eb"}, {name: "./d/\x80"}, {name: "./d/é ok"}, {name: "./d/\x1b/", kind: tar.TypeDir}, {name: "./d/\x1b/f"}}, "", []string{"new drwxr-xr-x", "new/é ok -rw-r--r--"}, `"d/\x1b[2J": its name does not show`},
		"deep":                 {[]entry{{name: deep}}, "too long or too deep", nil, ""},
		"a long name":          {[]entry{{name: "./d/" + strings.Repeat("x", maxPath)}}, "too long or too deep", nil, ""},
		"a name of 300":        {[]entry{dir, {name: "./d/" + strings.Repeat("x", 300)}}, "can't be written", nil, ""},
		"too many":             {append([]entry{dir}, slices.Repeat([]entry{{name: "./d/p", kind: tar.TypeFifo}}, 50)...), "more than 50 files", nil, ""},
		"as many as may":       {append([]entry{dir}, slices.Repeat([]entry{{name: "./d/p", kind: tar.TypeFifo}}, 49)...), "", []string{"new drwxr-xr-x"}, "d/p"},
		"too much":             {[]entry{dir, {name: "./d/f", text: strings.Repeat("x", 600)}, {name: "./d/g", text: strings.Repeat("x", 401)}}, "more than 1000 bytes", nil, ""},
		"as much as may":       {[]entry{dir, {name: "./d/f", text: strings.Repeat("x", 600)}, {name: "./d/g", text: strings.Repeat("x", 400)}}, "", []string{"new drwxr-xr-x", "new/f -rw-r--r--", "new/g -rw-r--r--"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			r, err := Out(t.Context(), bytes.NewReader(stream(t, x.entries...)), "d", to, "new", Bounds{Bytes: 1000, Entries: 50}, nil)
			if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want %q", err, x.want)
			}
			if err != nil && !safetext.Clean(err.Error()) {
				t.Errorf("it draws: %q", err)
			}
			if got := listed(t, to); !slices.Equal(got, x.made) {
				t.Errorf("made %q, want %q", got, x.made)
			}
			left := strings.Join(r.Left, "; ")
			if x.want == "" && (x.left == "") != (left == "") || !strings.Contains(left, x.left) || !safetext.Clean(left) {
				t.Errorf("left out: %q, want %q", left, x.left)
			}
			if len(r.Left) > maxLeft || r.Entries > 51 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestWhatIsThere: whatever has the name already, a link above all, stays as it was.
func TestWhatIsThere(t *testing.T) {
	for _, what := range []string{"file", "directory", "link", "dangling link"} {
		to := t.TempDir()
		other := t.TempDir()
		var err error
		switch what {
		case "file":
			err = os.WriteFile(to+"/new", []byte("mine"), 0o600)
		case "directory":
			err = os.Mkdir(to+"/new", 0o755)
		case "link":
			err = os.Symlink(other, to+"/new")
		case "dangling link":
			err = os.Symlink(other+"/none", to+"/new")
		}
		if err != nil {
			t.Fatal(err)
		}
		before := listed(t, to)
		_, err = Out(t.Context(), bytes.NewReader(stream(t, entry{name: "./d", text: "theirs"})), "d", to, "new", Bounds{}, nil)
		if !errors.Is(err, fs.ErrExist) || !slices.Equal(listed(t, to), before) || len(listed(t, other)) > 0 {
			t.Errorf("%s: %v, %q", what, err, listed(t, to))
		}
	}
}

// TestBrokenStreams: nothing is kept of a stream that breaks off, lies about its length
// or is no archive, or that nobody waits for any more.
func TestBrokenStreams(t *testing.T) {
	whole := stream(t, entry{name: "./d/", kind: tar.TypeDir, mode: 0o755}, entry{name: "./d/f", text: strings.Repeat("x", 5000)})
	for name, r := range map[string]io.Reader{
		"cut in a head":  bytes.NewReader(whole[:700]),
		"cut in a file":  bytes.NewReader(whole[:3000]),
		"no archive":     strings.NewReader(strings.Repeat("no archive ", 1000)),
		"a failing pipe": io.MultiReader(bytes.NewReader(whole[:1500]), iotest.ErrReader(errors.New("broken"))),
		"a huge file":    bytes.NewReader(stream(t, entry{name: "./d", size: 1 << 40})),
	} {
		to := t.TempDir()
		if _, err := Out(t.Context(), r, "d", to, "new", Bounds{}, nil); err == nil || len(listed(t, to)) > 0 {
			t.Errorf("%s: %v, %q", name, err, listed(t, to))
		}
	}
	to := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Out(ctx, bytes.NewReader(whole), "d", to, "new", Bounds{}, nil); !errors.Is(err, context.Canceled) || len(listed(t, to)) > 0 {
		t.Errorf("%v, %q", err, listed(t, to))
	}
	bad := errors.New("something is missing")
	if _, err := Out(t.Context(), bytes.NewReader(whole), "d", to, "new", Bounds{}, func() error { return bad }); !errors.Is(err, bad) || len(listed(t, to)) > 0 {
		t.Errorf("%v, %q", err, listed(t, to))
	}
	if _, err := Out(t.Context(), bytes.NewReader(whole), "d", to, "new", Bounds{}, nil); err != nil || len(listed(t, to)) != 2 {
		t.Errorf("%v, %q", err, listed(t, to))
	}
}

// TestInAndOut: what goes in is what comes out, and links of the host are not followed.
func TestInAndOut(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	src := from + "/src"
	if err := errors.Join(os.MkdirAll(src+"/a/b", 0o755), os.WriteFile(src+"/a/f", []byte("text"), 0o750), os.Symlink("a/f", src+"/l"),
		os.Symlink("/etc/passwd", src+"/out"), unix.Mkfifo(src+"/pipe", 0o600)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r, err := In(t.Context(), &b, src, "name", Bounds{})
	if err != nil || len(r.Left) != 1 || !strings.Contains(r.Left[0], "pipe: it is neither") || r.Bytes != 4 {
		t.Fatalf("%+v %v", r, err)
	}
	again := bytes.NewReader(b.Bytes())
	r, err = Out(t.Context(), &b, "name", to, "copy", Bounds{}, nil)
	if err != nil || len(r.Left) != 1 || !strings.Contains(r.Left[0], "name/out: it is a link") {
		t.Fatalf("%+v %v", r, err)
	}
	if got, err := os.ReadFile(to + "/copy/l"); err != nil || string(got) != "text" {
		t.Errorf("%q %v", got, err)
	}
	if fi, err := os.Stat(to + "/copy/a/f"); err != nil || fi.Mode() != 0o750 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	for h, in := (*tar.Header)(nil), tar.NewReader(again); ; {
		if h, err = in.Next(); err != nil {
			break
		}
		if h.Name == "./name/out" && (h.Typeflag != tar.TypeSymlink || h.Size != 0) || h.Uid != 0 || h.Uname != "" {
			t.Errorf("%+v", h)
		}
	}
	if _, err := In(t.Context(), io.Discard, src, "name", Bounds{Bytes: 3}); err == nil || !strings.Contains(err.Error(), "more than 3 bytes") {
		t.Error(err)
	}
	if _, err := In(t.Context(), io.Discard, src, "name", Bounds{Entries: 3}); err == nil || !strings.Contains(err.Error(), "more than 3 files") {
		t.Error(err)
	}
	if _, err := In(t.Context(), io.Discard, from+"/none", "name", Bounds{}); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// FuzzOut: whatever comes, nothing is written beside the new name.
func FuzzOut(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755})
	w.WriteHeader(&tar.Header{Name: "./d/l", Typeflag: tar.TypeSymlink, Linkname: "../x"})
	w.WriteHeader(&tar.Header{Name: "./d/f", Typeflag: tar.TypeReg, Size: 3})
	io.WriteString(w, "abc")
	w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		outer := t.TempDir()
		to := outer + "/to"
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Out(t.Context(), bytes.NewReader(data), "d", to, "new", Bounds{Bytes: 1 << 16, Entries: 100}, nil)
		around, _ := os.ReadDir(outer)
		made, _ := os.ReadDir(to)
		if len(around) != 1 || len(made) > 1 || err != nil && len(made) > 0 || len(made) == 1 && made[0].Name() != "new" {
			t.Fatalf("%v: %v %v", err, around, made)
		}
		filepath.WalkDir(to, func(p string, _ fs.DirEntry, err error) error {
			if real, rerr := filepath.EvalSymlinks(p); rerr == nil && p != to && !strings.HasPrefix(real, to+"/new") {
				t.Fatalf("%s leads to %s", p, real)
			}
			return err
		})
	})
}
