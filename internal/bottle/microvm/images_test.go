package microvm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

const secret = "open sesame"

// holders returns the images of a spec that hold the secret.
func holders(t *testing.T, spec *bottle.Spec) (out []string) {
	t.Helper()
	c := &cache{t.TempDir()}
	own, err := os.Create(filepath.Join(t.TempDir(), "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	im, err := makeImages(t.Context(), spec, c, own)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(im.cached, own.Name()) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(secret)) {
			out = append(out, filepath.Base(path))
		}
	}
	return out
}

func mkdirAll(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHiddenIsInNoImage: whoever breaks the machine's kernel reads all of its disks, so the
// contents of a hidden directory are in none, whether its tree is kept or not.
func TestHiddenIsInNoImage(t *testing.T) {
	for _, size := range []int{0, smallTree + 1} {
		usr := mkdirAll(t, filepath.Join(t.TempDir(), "usr"))
		put(t, usr+"/large", make([]byte, size))
		put(t, usr+"/local/etc/npmrc", []byte(secret))
		spec := &bottle.Spec{Root: bottle.Root{Binds: []bottle.Mount{
			{Source: usr, Target: "/usr", Access: bottle.AccessReadOnly}, {Target: "/usr/local/etc", Access: bottle.AccessReadOnly},
		}}}
		if in := holders(t, spec); len(in) > 0 {
			t.Errorf("with %d bytes beside it, what is hidden is in %q", size, in)
		}
		spec.Root.Binds = spec.Root.Binds[:1]
		if in := holders(t, spec); len(in) != 1 {
			t.Errorf("with %d bytes beside it, what is not hidden is in %q", size, in)
		}
	}
}

// TestRootSharesWhatTheBottleMayRead: root's bottle has no file that the host's id may not
// read which the bottle has.
func TestRootSharesWhatTheBottleMayRead(t *testing.T) {
	testenv.Root(t) // an ordinary user reads no more than the bottle
	const id = 1_907_000_001
	for name, c := range map[string]struct {
		topOwner, owner int
		mode            os.FileMode
		has             bool
	}{
		"root's secret in root's tree":       {0, 0, 0o600, true}, // it is the bottle's user's
		"root's secret in another's tree":    {id, 0, 0o600, false},
		"another's secret":                   {id, 4321, 0o600, false},
		"another's secret in root's":         {0, 4321, 0o600, false},
		"another's file":                     {id, 4321, 0o644, true},
		"the user's own":                     {id, id, 0o400, true},
		"the user's own, which it can't use": {id, id, 0o044, false},
	} {
		dir := mkdirAll(t, filepath.Join(t.TempDir(), "work"))
		put(t, dir+"/f", []byte(secret))
		for _, err := range []error{os.Chown(dir, c.topOwner, c.topOwner), os.Chmod(dir+"/f", c.mode), os.Chown(dir+"/f", c.owner, c.owner)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, access := range []bottle.Access{bottle.AccessOverlay, bottle.AccessReadOnly} {
			spec := &bottle.Spec{HostUID: id, HostGID: id, User: bottle.User{UID: 1000, GID: 1000}, Mounts: []bottle.Mount{{Source: dir, Target: "/work", Access: access}}}
			if in := holders(t, spec); (len(in) == 1) != c.has {
				t.Errorf("%s, access %d: in %q", name, access, in)
			}
		}
		bind := &bottle.Spec{HostUID: id, HostGID: id, Root: bottle.Root{Binds: []bottle.Mount{{Source: dir, Target: "/usr", Access: bottle.AccessReadOnly}}}}
		if in := holders(t, bind); (len(in) == 1) != (c.has && c.mode != 0o600) {
			t.Errorf("%s, of the system: in %q", name, in)
		}
	}
}

// TestView: whose the files inside are.
func TestView(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	us, group := uint32(os.Geteuid()), uint32(os.Getegid())
	plain := viewOf(&bottle.Spec{User: bottle.User{UID: 1000, GID: 1001}})
	o, err := plain.own(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][4]uint32{{us, group, 1000, 1001}, {us + 1, group, 65534, 1001}, {us, group + 1, 1000, 65534}} {
		if u, g := o.Owner(c[0], c[1]); u != c[2] || g != c[3] {
			t.Errorf("%d:%d becomes %d:%d, not %d:%d", c[0], c[1], u, g, c[2], c[3])
		}
	}
	if o.Readable != nil {
		t.Error("an ordinary user's bottle is asked what it may read")
	}
	v := view{hostUID: 7, hostGID: 8, root: true}
	for _, c := range []struct {
		mode, uid, gid uint32
		may            bool
	}{
		{0o400, 7, 1, true}, {0o077, 7, 8, false}, {0o040, 1, 8, true}, {0o407, 1, 8, false}, {0o004, 1, 1, true}, {0o440, 0, 0, false},
		{unix.S_IFDIR | 0o500, 7, 1, true}, {unix.S_IFDIR | 0o400, 7, 1, false}, {unix.S_IFDIR | 0o755, 1, 1, true}, {unix.S_IFDIR | 0o754, 1, 1, false},
	} {
		if got := v.mayRead(c.mode, c.uid, c.gid); got != c.may {
			t.Errorf("%o of %d:%d: %v", c.mode, c.uid, c.gid, got)
		}
	}
	f.Close()
	if _, err := plain.own(f); err == nil {
		t.Error("a closed file has an owner")
	}
}

// TestUntilCancelled: an image that is kept is finished after a deadline, and not after a
// cancellation.
func TestUntilCancelled(t *testing.T) {
	late, stop := context.WithTimeout(t.Context(), 0)
	defer stop()
	<-late.Done()
	ctx, done := untilCancelled(late)
	if ctx.Err() != nil {
		t.Error("a deadline ends the work")
	}
	done()
	gone, cancel := context.WithCancel(t.Context())
	ctx, done = untilCancelled(gone)
	defer done()
	cancel()
	<-ctx.Done()
	// A start that is too late says what to do.
	dir := t.TempDir()
	own, err := os.Create(dir + "/own")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	_, err = makeImages(late, &bottle.Spec{}, &cache{dir}, own)
	var u *bottle.UnavailableError
	if !errors.As(err, &u) || !strings.Contains(u.Advice, "again") {
		t.Errorf("too late: %v", err)
	}
	_, err = makeImages(gone, &bottle.Spec{}, &cache{dir}, own)
	if !errors.Is(err, context.Canceled) || errors.As(err, &u) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestOpenCache: what becomes part of machines lies where nobody else can change it.
func TestOpenCache(t *testing.T) {
	base := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", base)
	c, err := openCache()
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(c.dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	refused := func(what string) {
		t.Helper()
		_, err := openCache()
		var u *bottle.UnavailableError
		if !errors.As(err, &u) || u.Advice == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		dir  string
		mode os.FileMode
	}{{c.dir, 0o777}, {c.dir, 0o777 | os.ModeSticky}, {filepath.Dir(c.dir), 0o777}} {
		if err := os.Chmod(c.dir, c.mode); err != nil {
			t.Fatal(err)
		}
		refused(c.mode.String())
		if err := os.Chmod(c.dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(base, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if _, err := openCache(); err != nil {
		t.Errorf("below a directory like /tmp: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(base, 4321, 0); err != nil {
			t.Fatal(err)
		}
		refused("another user's directory")
	}
}

// TestCacheWait: whoever waits for another process's image can go.
func TestCacheWait(t *testing.T) {
	c := &cache{t.TempDir()}
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.file(ctx, "a", func(*os.File) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	unlock()
	if _, err := c.file(t.Context(), "a", func(*os.File) error { return nil }); err != nil {
		t.Error(err)
	}
}

// TestMonitorLimits: QEMU can make no file that is larger than the machine's disk.
func TestMonitorLimits(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(64 * mib); err != nil {
		t.Fatal(err)
	}
	m := &machine{memory: 512, cpus: 3, disks: []disk{{"own", f, false}}}
	l, err := m.limits()
	if err != nil || l.FileSize != 0 || l.Threads != 83 || l.Files == 0 || l.Memory < 3<<30 || l.Memory > 5<<30 {
		t.Errorf("%+v, %v", l, err)
	}
	m.disks = append(m.disks, disk{"scratch", f, true})
	if l, err := m.limits(); err != nil || l.FileSize != 64*mib {
		t.Errorf("with a disk: %+v, %v", l, err)
	}
}
