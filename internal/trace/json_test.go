package trace

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The published schema names the fields that are printed, and no others.
func TestSchemaNamesEveryField(t *testing.T) {
	b, err := os.ReadFile("../../docs/schemas/trace.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Defs map[string]struct {
			Required   []string
			Properties map[string]struct{ Description string }
		} `json:"$defs"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	for _, x := range flagNames {
		if !strings.Contains(s.Defs["fact"].Properties["flags"].Description, x.name) {
			t.Errorf("the schema does not name the flag %s", x.name)
		}
	}
	for def, typ := range map[string]reflect.Type{
		"head": reflect.TypeFor[HeadLine](), "fact": reflect.TypeFor[FactLine](), "damage": reflect.TypeFor[DamageLine](), "end": reflect.TypeFor[EndLine](),
	} {
		d := s.Defs[def]
		for i := range typ.NumField() {
			name, opts, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if _, ok := d.Properties[name]; !ok {
				t.Errorf("%s: field %s is not in the schema", def, name)
			}
			if always := opts == ""; always != slices.Contains(d.Required, name) {
				t.Errorf("%s: field %s is always there: %v, the schema says otherwise", def, name, always)
			}
			delete(d.Properties, name)
		}
		for name := range d.Properties {
			t.Errorf("%s: the schema has a field %s that nothing prints", def, name)
		}
	}
}

func TestLines(t *testing.T) {
	f := full()
	f.Flags |= Claimed
	b, err := json.Marshal(f.Line())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"fact","seq":7,"time":"2023-11-14T22:13:20.123456789Z","op":"exec","kind":"exec","pid":12,"ppid":3,"errno":"ENOENT","uid":1000,"euid":0,` +
		`"path":"/bin/sh","path2":{"base64":"L3dvcmsveP8K"},"args":["sh","","-c"],"digest":"` + strings.Repeat("01", 32) + `","a":1,"b":18446744073709551615,"c":9,` +
		`"detail":"","flags":["claimed","miss"],"observed":false}`
	want = strings.Replace(want, `"detail":"",`, "", 1)
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	b, err = json.Marshal((&Tail{Ended: true, Last: 9, Unkept: Counts{kindFile: 3}}).Line(2, 0))
	if want := `{"type":"end","ended":true,"last":9,"shown":2,"dropped":0,"unkept":{"file":3},"torn_bytes":0,"damaged":0}`; err != nil || string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	if f.When() != time.Unix(1_700_000_000, 123_456_789) {
		t.Error(f.When())
	}
}

func TestDetails(t *testing.T) {
	for want, f := range map[string]Fact{
		"read":                             {Op: Open},
		"write, create, new":               {Op: Open, A: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL},
		"code 3":                           {Op: Exit, A: 3},
		"SIGKILL":                          {Op: Exit, B: 9},
		"SIGTERM to 7":                     {Op: Kill, A: 15, B: 7},
		"SIGTERM to group 7":               {Op: Kill, A: 15, B: ^uint64(7) + 1},
		"inet stream":                      {Op: Socket, A: unix.AF_INET, B: unix.SOCK_STREAM},
		"99 9":                             {Op: Socket, A: 99, B: 9},
		"rw":                               {Op: Access, A: 6},
		"exists":                           {Op: Access},
		"gid 5":                            {Op: Chown, A: 1<<32 - 1, B: 5},
		"uid 1, gid 5":                     {Op: Chown, A: 1, B: 5},
		"set user.x":                       {Op: Xattr, A: 1, Path2: "user.x"},
		"ATTACH":                           {Op: Ptrace, A: unix.PTRACE_ATTACH, B: 3},
		"process_vm_readv":                 {Op: Ptrace, Path: "process_vm_readv", B: 3},
		"0755":                             {Op: Mkdir, A: 0o755},
		"character device 1:3":             {Op: Mknod, A: unix.S_IFCHR | 0o600, B: unix.Mkdev(1, 3)},
		"uid 0, euid 0, gid 1, egid 2":     {Op: SetID, A: 1, B: 2},
		"unshare user 0x200":               {Op: Caps, Path: "unshare", A: unix.CLONE_NEWUSER | unix.CLONE_FS},
		"prctl CAP_AMBIENT":                {Op: Caps, Path: "prctl", A: unix.PR_CAP_AMBIENT},
		"capset":                           {Op: Caps, Path: "capset", B: 5},
		"signal 0 to 1":                    {Op: Kill, B: 1},
		"proc on /x":                       {Op: Mount, Path: "/x", Args: []string{"proc"}},
		"errno 4000, signal 99, others 0 ": {Op: Refused},
	} {
		if f.Op == Refused {
			want2 := ErrnoName(4000) + ", " + SignalName(99) + ", " + FamilyName(^uint64(0)) + " 0 "
			if want2 != want {
				t.Errorf("%q, want %q", want2, want)
			}
			continue
		}
		if got := f.Detail(); got != want {
			t.Errorf("%s: %q, want %q", f.Op, got, want)
		}
	}
}

func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, yes, no string
	}{
		{"*.pem", "/a/b/x.pem", "/a/x.pem/y"},
		{"id_*", "/home/u/.ssh/id_rsa", "/home/id_rsa/x"},
		{"/etc", "/etc", "/etcetera"},
		{"/etc", "/etc/passwd", "/x/etc/passwd"},
		{"/etc/", "/etc/passwd", "/etcx"},
		{"/etc/*", "/etc/ssl/certs", "/etc"},
		{"/etc/*.conf", "/etc/a.conf", "/etc/b/a.conf"},
		{"/home/*/.ssh", "/home/u/.ssh/id", "/home/u/v/.ssh/id"},
		{"/home/**/.ssh", "/home/u/v/.ssh/id", "/root/.ssh/id"},
		{"**/node_modules", "/w/node_modules/x/y", "/w/modules/x"},
		{"/tmp/?", "/tmp/a/b", "/tmp/ab"},
		{"/tmp/[a-c]", "/tmp/b", "/tmp/d"},
		{`/tmp/\*`, "/tmp/*", "/tmp/x"},
		{"/a(b)+", "/a(b)+", "/abb"},
		{"new\nline*", "/x/new\nlines", "/x/new"},
	} {
		g, err := ParseGlob(c.glob)
		if err != nil {
			t.Errorf("%q: %v", c.glob, err)
			continue
		}
		if !g.match(c.yes) || g.match(c.no) {
			t.Errorf("%q: matches %q: %v, %q: %v", c.glob, c.yes, g.match(c.yes), c.no, g.match(c.no))
		}
	}
	for _, bad := range []string{"", "[", "[a", "a[]", `a\`, "[z-a]"} {
		if _, err := ParseGlob(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func FuzzGlob(f *testing.F) {
	f.Add("/a/**/[!b]?\\*", "/a/b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if g, err := ParseGlob(pattern); err == nil {
			g.match(path)
		}
	})
}

func TestFilter(t *testing.T) {
	g, err := ParseGlob("/etc")
	if err != nil {
		t.Fatal(err)
	}
	shadow := Fact{Op: Open, PID: 3, Path: "/etc/shadow", Errno: uint32(unix.EACCES)}
	for _, c := range []struct {
		x    Filter
		want bool
	}{
		{Filter{}, true},
		{Filter{Kinds: []FactKind{kindExec, KindFile}}, true}, {Filter{Kinds: []FactKind{kindNet}}, false},
		{Filter{PIDs: []uint32{2, 3}}, true}, {Filter{PIDs: []uint32{2}}, false},
		{Filter{Denied: true}, true}, {Filter{Paths: []Glob{g}}, true},
		{Filter{Denied: true, PIDs: []uint32{2}}, false},
	} {
		if c.x.Match(&shadow) != c.want {
			t.Errorf("%+v: %v", c.x, !c.want)
		}
	}
	moved := Fact{Op: Rename, Path: "/tmp/x", Path2: "/etc/x"}
	if !(&Filter{Paths: []Glob{g}}).Match(&moved) || (&Filter{Denied: true}).Match(&moved) {
		t.Error("a new name does not count, or all is denied")
	}
}
