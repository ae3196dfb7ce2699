package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func env(m map[string]string) Env { return func(k string) string { return m[k] } }

func TestStateDir(t *testing.T) {
	home := t.TempDir()
	xdg := t.TempDir()
	for _, tc := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOME": home}, home + "/.local/state/carboy"},
		{map[string]string{"HOME": home, "XDG_STATE_HOME": xdg}, xdg + "/carboy"},
		{map[string]string{"HOME": home, "XDG_STATE_HOME": "relative"}, home + "/.local/state/carboy"},
		{map[string]string{"XDG_STATE_HOME": xdg + "/not/there"}, xdg + "/not/there/carboy"},
	} {
		got, err := StateDir(env(tc.env))
		if err != nil || got != tc.want {
			t.Errorf("%v: %s, %v", tc.env, got, err)
		}
		if st, err := os.Stat(got); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v: %v %v", tc.env, st, err)
		}
	}
	for _, m := range []map[string]string{{}, {"HOME": "relative"}} {
		if d, err := StateDir(env(m)); err == nil {
			t.Errorf("%v: %s", m, d)
		}
	}
}

// elsewhere is a directory of somebody else, whoever runs the tests: of root's, or of an ordinary user's when root does.
func elsewhere(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return "/etc"
	}
	d := filepath.Join(t.TempDir(), "theirs")
	if err := os.Mkdir(d, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPrivateDirRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(t *testing.T, dir string) error
		ok   bool
		says string
	}{
		"missing":           {func(t *testing.T, d string) error { return nil }, true, ""},
		"mode 0700":         {func(t *testing.T, d string) error { return os.Mkdir(d, 0o700) }, true, ""},
		"mode 0500":         {func(t *testing.T, d string) error { return os.Mkdir(d, 0o500) }, true, ""},
		"group can read":    {func(t *testing.T, d string) error { os.Mkdir(d, 0o700); return os.Chmod(d, 0o750) }, false, "chmod 700"},
		"all can write":     {func(t *testing.T, d string) error { os.Mkdir(d, 0o700); return os.Chmod(d, 0o703) }, false, "chmod 700"},
		"file":              {func(t *testing.T, d string) error { return os.WriteFile(d, nil, 0o600) }, false, "not a directory"},
		"dangling link":     {func(t *testing.T, d string) error { return os.Symlink("/no/such/dir", d) }, false, "not a directory"},
		"link to a file":    {func(t *testing.T, d string) error { return os.Symlink("/etc/passwd", d) }, false, "not a directory"},
		"link to our own":   {func(t *testing.T, d string) error { return os.Symlink(t.TempDir(), d) }, false, "chmod 700"},
		"link to another's": {func(t *testing.T, d string) error { return os.Symlink(elsewhere(t), d) }, false, "leads to a directory of user"},
		"everyone's parent": {func(t *testing.T, d string) error { return os.Chmod(filepath.Dir(d), 0o777) }, false, "chmod o-w"},
		"sticky parent":     {func(t *testing.T, d string) error { return os.Chmod(filepath.Dir(d), os.ModeSticky|0o777) }, true, ""},
		"link to our 0700": {func(t *testing.T, d string) error {
			to := filepath.Join(t.TempDir(), "x")
			os.Mkdir(to, 0o700)
			return os.Symlink(to, d)
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			base := filepath.Join(t.TempDir(), "base")
			os.Mkdir(base, 0o700)
			dir := filepath.Join(base, "carboy")
			if err := tc.make(t, dir); err != nil {
				t.Fatal(err)
			}
			_, err := StateDir(env(map[string]string{"XDG_STATE_HOME": base}))
			var de *DirError
			if tc.ok != (err == nil) || err != nil && (!errors.As(err, &de) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), dir)) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRuntimeDir(t *testing.T) {
	short, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	run, tmp := filepath.Join(short, "run"), filepath.Join(short, "tmp")
	os.Mkdir(run, 0o700)
	os.Mkdir(tmp, 0o700)
	mine := filepath.Join(tmp, "carboy-"+itoa(os.Geteuid()))
	both := map[string]string{"XDG_RUNTIME_DIR": run, "TMPDIR": tmp}
	if d, err := RuntimeDir(env(both)); err != nil || d != run+"/carboy" {
		t.Errorf("%s, %v", d, err)
	}
	for name, xdg := range map[string]string{
		"missing": run + "/not", "of another": elsewhere(t), "too long": run + strings.Repeat("/.", 60), "relative": "run", "unset": "",
	} {
		if d, err := RuntimeDir(env(map[string]string{"XDG_RUNTIME_DIR": xdg, "TMPDIR": tmp})); err != nil || d != mine {
			t.Errorf("%s: %s, %v", name, d, err)
		}
	}
	if len(filepath.Join(run, "carboy", strings.Repeat("0", 26)+".sock")) > 107 {
		t.Error("a socket would not fit")
	}
	// Somebody was here first.
	os.Remove(mine)
	os.Symlink(t.TempDir(), mine)
	if d, err := RuntimeDir(env(map[string]string{"TMPDIR": tmp})); err == nil {
		t.Errorf("a planted link was followed: %s", d)
	}
	os.Remove(mine)
	os.Mkdir(mine, 0o700)
	os.Chmod(mine, 0o777)
	if d, err := RuntimeDir(env(map[string]string{"TMPDIR": tmp})); err == nil {
		t.Errorf("an open directory was taken: %s", d)
	}
}

func itoa(n int) string {
	if n >= 10 {
		return itoa(n/10) + string(rune('0'+n%10))
	}
	return string(rune('0' + n))
}

func TestConfigDir(t *testing.T) {
	home := t.TempDir()
	if d, err := ConfigDir("", env(map[string]string{"HOME": home})); err != nil || d != home+"/.config/carboy" {
		t.Errorf("%s, %v", d, err)
	}
	if d, err := ConfigDir("", env(map[string]string{"HOME": home, "XDG_CONFIG_HOME": home})); err != nil || d != home+"/carboy" {
		t.Errorf("%s, %v", d, err)
	}
	if d, err := ConfigDir(home+"/not", env(nil)); err == nil {
		t.Errorf("a missing directory that was asked for: %s", d)
	}
	own := filepath.Join(home, "own")
	os.Mkdir(own, 0o755)
	if d, err := ConfigDir(own, env(nil)); err != nil || d != own {
		t.Errorf("%s, %v", d, err)
	}
	os.Chmod(own, 0o775)
	if _, err := ConfigDir(own, env(nil)); err == nil {
		t.Error("a directory that the group can write to")
	}
	if d, err := ConfigDir(elsewhere(t), env(nil)); os.Geteuid() == 0 && err == nil {
		t.Errorf("another user's: %s", d)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	os.WriteFile(target, []byte("old"), 0o600)
	os.Symlink(target, link)
	if err := WriteFile(link, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(target); string(b) != "old" {
		t.Error("a link was followed")
	}
	if st, _ := os.Lstat(link); !st.Mode().IsRegular() || st.Mode().Perm()&^0o640 != 0 {
		t.Errorf("%v", st.Mode())
	}
	if err := WriteFile(filepath.Join(dir, "no", "such"), nil, 0o600); err == nil {
		t.Error("wrote into a missing directory")
	}
	os.Mkdir(filepath.Join(dir, "d"), 0o700)
	if err := WriteFile(filepath.Join(dir, "d"), []byte("x"), 0o600); err == nil {
		t.Error("replaced a directory")
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 3 {
		t.Errorf("left %v", entries)
	}
}

func TestReadJSON(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.json")
	type doc struct {
		Schema string `json:"schema"`
		N      int    `json:"n"`
	}
	if err := WriteJSON(file, "x", doc{"carboy.dev/y/v1", 1}); err == nil {
		t.Error("wrote a document of another kind")
	}
	if err := WriteJSON(file, "x", doc{Schema("x"), 1}); err != nil {
		t.Fatal(err)
	}
	var d doc
	if err := ReadJSON(file, "x", &d); err != nil || d.N != 1 {
		t.Error(d, err)
	}
	for content, says := range map[string]string{
		`{"schema":"carboy.dev/x/v2"}`: `"carboy.dev/x/v2", this carboy reads "carboy.dev/x/v1"`, `{}`: `field "schema" is ""`, ``: file,
		`{"schema":"carboy.dev/x/v1"} {}`: file, `{"schema":"carboy.dev/x/v1","n":"s"}`: file, `{"schema":1}`: file, `[]`: file,
	} {
		os.WriteFile(file, []byte(content), 0o600)
		if err := ReadJSON(file, "x", &d); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", content, err)
		}
	}
	os.WriteFile(file, []byte(`{"schema":"carboy.dev/x/v1","n":2,"later":{}}`), 0o600)
	if err := ReadJSON(file, "x", &d); err != nil || d.N != 2 {
		t.Error(d, err)
	}
	link := filepath.Join(dir, "link")
	os.Symlink(file, link)
	if err := ReadJSON(link, "x", &d); err == nil {
		t.Error("followed a link")
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ReadJSON(fifo, "x", &d); err == nil {
		t.Error("read a pipe")
	}
	big := filepath.Join(dir, "big")
	os.WriteFile(big, nil, 0o600)
	os.Truncate(big, MaxDocument+1)
	if err := ReadJSON(big, "x", &d); err == nil {
		t.Error("read too much")
	}
}

func FuzzRaw(f *testing.F) {
	f.Add([]byte("a\xffb"))
	f.Add([]byte("\u2028<>&"))
	f.Fuzz(func(t *testing.T, b []byte) {
		j, err := Raw(b).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var r Raw
		if err := r.UnmarshalJSON(j); err != nil || string(r) != string(b) {
			t.Fatalf("%q became %q by %s: %v", b, r, j, err)
		}
		r.UnmarshalJSON(b)
	})
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add([]byte(`{"schema":"carboy.dev/run/v1","id":"01arz3ndektsv4rrffq69g5fav","kind":"run","mode":"none","state":"lost"}`))
	f.Add([]byte(`{"schema":"carboy.dev/run/v1","command":[{"base64":"/w=="}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Meta
		if Decode("x", metaKind, b, &m) == nil && m.check("01arz3ndektsv4rrffq69g5fav") == nil {
			if _, err := Encode(metaKind, &m); err != nil {
				t.Fatalf("read and not written: %v", err)
			}
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("01arz3ndektsv4rrffq69g5fav")
	f.Add("../../../../../../etc/pass")
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseID(s); err == nil && (len(id) != 26 || strings.ContainsAny(s, "/.\x00ABCDEFGHIJKLMNOPQRSTUVWXYZ")) {
			t.Fatalf("%q", s)
		}
	})
}

// TestGlob: a directory's own name is no pattern.
func TestGlob(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[a]*?")
	if err := errors.Join(os.MkdirAll(dir+"/sub", 0o700), os.WriteFile(dir+"/sub/x.json", nil, 0o600), os.WriteFile(dir+"/y.json", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{"*.json": dir + "/y.json", "*/*.json": dir + "/sub/x.json", "*.no": "", "none/*": ""} {
		if got, err := Glob(dir, pattern); err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q %v", pattern, got, err)
		}
	}
	if got, err := Glob(dir+"none", "*"); err != nil || len(got) > 0 {
		t.Errorf("a directory that is not there: %q %v", got, err)
	}
}
