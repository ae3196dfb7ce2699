package change

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// newInode in a test's call stands for the inode of the new file.
const newInode = ^uint64(0)

// layout builds files in a new directory. Each maps a name to what it holds:
// names with equal contents are hard links, "dir:…" is a directory.
func layout(t *testing.T, files map[string]string) (fd int, dir string, inode func(content string) uint64) {
	t.Helper()
	dir = fastTemp(t)
	first := map[string]string{}
	for name, content := range files {
		p := filepath.Join(dir, name)
		switch {
		case first[content] != "":
			must(t, os.Link(first[content], p))
		case len(content) > 4 && content[:4] == "dir:":
			must(t, os.Mkdir(p, 0o755))
			must(t, os.WriteFile(p+"/in", []byte(content), 0o644))
		default:
			must(t, os.WriteFile(p, []byte(content), 0o644))
			first[content] = p
		}
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd, dir, func(content string) uint64 {
		for name, c := range files {
			if c == content {
				return inodeAt(fd, name)
			}
		}
		return 0
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	ents, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range ents {
		p := filepath.Join(dir, e.Name())
		if e.IsDir() {
			p += "/in"
		}
		b, err := os.ReadFile(p)
		must(t, err)
		out[e.Name()] = string(b)
	}
	return out
}

// TestSettle starts from every state in which an exchange by hard links can be
// interrupted, forwards and backwards.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		files, want map[string]string
		err         error
	}{
		"not begun":        {map[string]string{"f": "old", "t": "new"}, map[string]string{"f": "old", "t": "new"}, nil},
		"linked":           {map[string]string{"f": "old", "t": "new", "t-a": "old"}, map[string]string{"f": "old", "t": "new"}, nil},
		"renamed":          {map[string]string{"f": "new", "t-a": "old"}, map[string]string{"f": "old"}, nil},
		"directory moved":  {map[string]string{"t": "new", "t-a": "dir:old"}, map[string]string{"f": "dir:old", "t": "new"}, nil},
		"directory, whole": {map[string]string{"f": "new", "t-a": "dir:old"}, map[string]string{"f": "new", "t": "dir:old"}, nil},
		"back, linked":     {map[string]string{"f": "new", "t-a": "new", "t": "old"}, map[string]string{"f": "new", "t": "old"}, nil},
		"back, moved":      {map[string]string{"t-a": "new", "t": "dir:old"}, map[string]string{"f": "dir:old"}, nil},
		"another's file":   {map[string]string{"f": "mine", "t-a": "old"}, map[string]string{"f": "mine", "t-a": "old"}, unix.EEXIST},
	} {
		t.Run(name, func(t *testing.T) {
			fd, dir, inode := layout(t, c.files)
			m := mover{plain: true}
			if err := m.settle(fd, "t", "f", inode("new")); err != c.err {
				t.Errorf("got error %v, want %v", err, c.err)
			}
			if got := contents(t, dir); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestRollbackStates rolls each kind of op back from every state in which it
// can be interrupted. A file of the host's is never removed.
func TestRollbackStates(t *testing.T) {
	put := func(x *txn, fd int, ours uint64) error { return x.backPut(fd, "f", "t", ours) }
	swap := func(x *txn, fd int, ours uint64) error { return x.backSwap(fd, "f", "t", ours) }
	remove := func(x *txn, fd int, _ uint64) error { return x.backRemove(fd, "f", "t") }
	for name, c := range map[string]struct {
		back        func(x *txn, fd int, ours uint64) error
		ours        uint64
		files, want map[string]string
		err         error
	}{
		"put, half made":           {put, 0, map[string]string{"t": "ne"}, nil, nil},
		"put, made":                {put, newInode, map[string]string{"t": "new"}, nil, nil},
		"put, linked":              {put, newInode, map[string]string{"t": "new", "f": "new"}, nil, nil},
		"put, in place":            {put, newInode, map[string]string{"f": "new"}, nil, nil},
		"put, replaced":            {put, newInode, map[string]string{"f": "mine", "t": "new"}, map[string]string{"f": "mine"}, nil},
		"put, nothing":             {put, newInode, map[string]string{}, nil, nil},
		"swap, half made":          {swap, 0, map[string]string{"f": "old", "t": "ne"}, map[string]string{"f": "old"}, nil},
		"swap, made":               {swap, newInode, map[string]string{"f": "old", "t": "new"}, map[string]string{"f": "old"}, nil},
		"swap, in place":           {swap, newInode, map[string]string{"f": "new", "t": "old"}, map[string]string{"f": "old"}, nil},
		"swap, deleted":            {swap, newInode, map[string]string{"t": "old"}, map[string]string{"f": "old"}, nil},
		"swap, replaced":           {swap, newInode, map[string]string{"f": "mine", "t": "old"}, map[string]string{"f": "mine", "t": "old"}, errStranded},
		"swap, replaced and aside": {swap, newInode, map[string]string{"f": "mine", "t-a": "old"}, map[string]string{"f": "mine", "t-a": "old"}, errStranded},
		"remove, not begun":        {remove, 0, map[string]string{"f": "old"}, map[string]string{"f": "old"}, nil},
		"remove, linked":           {remove, 0, map[string]string{"f": "old", "t": "old"}, map[string]string{"f": "old"}, nil},
		"remove, aside":            {remove, 0, map[string]string{"t": "old"}, map[string]string{"f": "old"}, nil},
		"remove, replaced":         {remove, 0, map[string]string{"t": "old", "f": "mine"}, map[string]string{"t": "old", "f": "mine"}, errStranded},
	} {
		for _, plain := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", plain"}[plain], func(t *testing.T) {
				fd, dir, inode := layout(t, c.files)
				ours := c.ours
				if ours == newInode {
					if ours = inode("new"); ours == 0 {
						ours = newInode // no such file
					}
				}
				err := c.back(&txn{mv: mover{plain: plain}}, fd, ours)
				if !errors.Is(err, c.err) {
					t.Errorf("got error %v, want %v", err, c.err)
				}
				if got := contents(t, dir); !maps.Equal(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		}
	}
}

// TestExchange swaps files and directories, with renames that know flags and
// with hard links.
func TestExchange(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, c := range []map[string]string{
			{"f": "old", "t": "new"},
			{"f": "dir:old", "t": "new"},
			{"f": "old", "t": "dir:new"},
			{"f": "dir:old", "t": "dir:new"},
		} {
			fd, dir, _ := layout(t, c)
			m := mover{plain: plain}
			must(t, m.exchange(fd, "t", "f"))
			if got, want := contents(t, dir), (map[string]string{"f": c["t"], "t": c["f"]}); !maps.Equal(got, want) {
				t.Errorf("plain=%v: got %v, want %v", plain, got, want)
			}
			if err := m.place(fd, "t", "f"); err != unix.EEXIST {
				t.Errorf("plain=%v: placed over a file: %v", plain, err)
			}
			if err := m.exchange(fd, "missing", "f"); err == nil {
				t.Errorf("plain=%v: exchanged with a missing file", plain)
			}
		}
	}
}
