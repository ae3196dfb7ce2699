package scenario

import (
	"encoding/hex"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// maxEntries bounds each slice. Later entries are only counted, and lower the coverage.
const maxEntries = 20_000

// maxWords bounds the kept arguments of a shell, in bytes.
const maxWords = 2 << 10

// Shells maps the SHA-256 of programs that run commands as text, in hexadecimal digits, to
// their names. So a shell under another name is found by its content.
type Shells map[string]string

// shellNames lists the names of shells, for shells whose content is not known.
var shellNames = []string{"busybox", "toybox", "sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "rbash"}

// manyInOne lists programs that contain a shell and other programs, and choose by their
// arguments.
var manyInOne = []string{"busybox", "toybox"}

// applet returns the shell that the arguments of such a program select, or "".
func applet(args []string) string {
	for _, a := range args[:min(2, len(args))] {
		name := strings.TrimPrefix(path.Base(a), "-")
		if slices.Contains(manyInOne, name) {
			continue
		}
		if slices.Contains(shellNames, name) {
			return name
		}
		return ""
	}
	return ""
}

// ShellNames returns the names of programs that count as shells.
func ShellNames() []string { return slices.Clone(shellNames) }

// IsShell reports whether a program of that name counts as a shell.
func IsShell(name string) bool { return slices.Contains(shellNames, name) }

// Slices sorts the facts of traces by question. The workload chooses the names in it,
// but can't hide or invent events. It is for one goroutine; see NewSlices.
type Slices struct {
	shells Shells
	names  []string // of scenarios
	lost   int64

	binaries  bag[binaryKey]
	refused   bag[refusedKey]
	libraries bag[libraryKey]
	files     bag[string]
	certs     bag[certKey]
	shellRuns bag[shellKey]
	endpoints bag[endpointKey]
	rights    bag[rightKey]
}

type (
	binaryKey struct {
		path, script, digest, shell string
		nameless, mutable           bool
		uid, euid                   uint32
	}
	refusedKey struct{ path, errno string }
	libraryKey struct {
		path                       string
		nameless, mutable, claimed bool
	}
	certKey     struct{ path, errno string }
	shellKey    struct{ path, digest, shell, words string }
	endpointKey struct {
		what, family, address, errno, verdict, rule string
		claimed                                     bool
	}
	rightKey struct{ what, detail, errno string }
)

// bag counts equal observations and their scenarios.
type bag[K comparable] struct {
	of   map[K]*tally
	more int64 // things that did not fit
}

type tally struct {
	count     int64
	scenarios []int
}

func (b *bag[K]) add(k K, n int64, scenarios ...int) {
	t := b.of[k]
	if t == nil {
		if len(b.of) >= maxEntries {
			b.more += n
			return
		}
		if b.of == nil {
			b.of = map[K]*tally{}
		}
		t = &tally{}
		b.of[k] = t
	}
	t.count += n
	for _, s := range scenarios {
		if !slices.Contains(t.scenarios, s) {
			t.scenarios = append(t.scenarios, s)
		}
	}
}

func (b *bag[K]) merge(o *bag[K], scenario int) {
	for k, t := range o.of {
		b.add(k, t.count, scenario)
	}
	b.more += o.more
}

// newSlices returns empty slices.
func newSlices(shells Shells) *Slices { return &Slices{shells: shells} }

// merge adds the observations of one scenario.
func (s *Slices) merge(o *Slices, scenario int) {
	s.lost += o.lost
	s.binaries.merge(&o.binaries, scenario)
	s.refused.merge(&o.refused, scenario)
	s.libraries.merge(&o.libraries, scenario)
	s.files.merge(&o.files, scenario)
	s.certs.merge(&o.certs, scenario)
	s.shellRuns.merge(&o.shellRuns, scenario)
	s.endpoints.merge(&o.endpoints, scenario)
	s.rights.merge(&o.rights, scenario)
}

// cut returns the number of observations that did not fit.
func (s *Slices) cut() int64 {
	return s.lost + s.binaries.more + s.refused.more + s.libraries.more + s.files.more + s.certs.more + s.shellRuns.more + s.endpoints.more + s.rights.more
}

const accMode = unix.O_RDONLY | unix.O_WRONLY | unix.O_RDWR

// Add adds one fact of a trace to its slice.
func (s *Slices) Add(f *trace.Fact) {
	errno := trace.ErrnoName(f.Errno)
	claimed := f.Flags&trace.Claimed != 0
	switch f.Op {
	case trace.Exec:
		s.exec(f, errno)
	case trace.Load:
		if f.Errno == 0 {
			s.libraries.add(libraryKey{f.Path, f.Flags&trace.Deleted != 0, f.Flags&trace.Mutable != 0, claimed}, 1)
		}
	case trace.Open:
		if f.A&accMode == unix.O_WRONLY || f.A&(unix.O_PATH|unix.O_DIRECTORY|unix.O_TRUNC|unix.O_EXCL) != 0 {
			return
		}
		if f.Errno == 0 {
			s.files.add(f.Path, 1)
		}
		if isCert(f.Path) {
			s.certs.add(certKey{f.Path, errno}, 1)
		}
	case trace.Stat, trace.Access, trace.Readlink:
		// A certificate that is only looked for says what the program would trust.
		if f.Errno != 0 && isCert(f.Path) {
			s.certs.add(certKey{f.Path, errno}, 1)
		}
	case trace.Socket:
		// Of those that are made, what they reach is said. One that is refused, and one
		// that needs no address, reaches nothing else.
		if f.Errno != 0 || unaddressed(f.A, f.B) {
			s.endpoints.add(endpointKey{what: "socket", family: trace.FamilyName(f.A), address: strings.TrimSpace(trace.SocketTypeName(f.B)), errno: errno}, 1)
		}
	case trace.Connect, trace.Bind, trace.Listen, trace.Accept, trace.Send:
		address := f.Path
		if f.Op == trace.Accept && f.Path2 != "" {
			address = f.Path2
		}
		if address == "none" {
			return // the end of an earlier connect
		}
		s.endpoints.add(endpointKey{what: f.Op.String(), family: trace.FamilyName(f.A), address: address, errno: errno, claimed: claimed}, 1)
	case trace.Kill:
		// Signals to its own children are what every program sends.
		if f.Errno != 0 || f.B == 1 {
			s.rights.add(rightKey{f.Op.String(), detail(f), errno}, 1)
		}
	default:
		if f.Op.Kind() == trace.KindPriv || f.Op == trace.Ptrace {
			s.rights.add(rightKey{what(f), detail(f), errno}, 1)
		}
	}
}

// unaddressed reports whether such sockets send and receive packets without connect or
// send.
func unaddressed(family, kind uint64) bool {
	return family == unix.AF_PACKET || kind == unix.SOCK_RAW || family == unix.AF_VSOCK || family == unix.AF_NETLINK
}

// what returns the name of a right, or of the call that was refused.
func what(f *trace.Fact) string {
	if f.Op == trace.Refused {
		return f.Path
	}
	return f.Op.String()
}

const maxDetailBytes = 300

func detail(f *trace.Fact) string {
	d := f.Detail()
	switch {
	case f.Op == trace.Refused:
		return ""
	case f.Path != "" && f.Op != trace.Caps && f.Op != trace.Ptrace && f.Op != trace.Mount:
		d = strings.TrimSpace(f.Path + " " + d)
	}
	return d[:min(len(d), maxDetailBytes)]
}

func (s *Slices) exec(f *trace.Fact, errno string) {
	if f.Errno != 0 {
		s.refused.add(refusedKey{f.Path, errno}, 1)
		return
	}
	k := binaryKey{
		path: f.Path, digest: hex.EncodeToString([]byte(f.Digest)), nameless: f.Flags&trace.Deleted != 0, mutable: f.Flags&trace.Mutable != 0,
		uid: f.UID, euid: f.EUID,
	}
	// What was asked for is a path too where it is another file, such as a script.
	if f.Path2 != f.Path && strings.Contains(f.Path2, "/") {
		k.script = f.Path2
	}
	k.shell = s.shells[k.digest]
	if base := path.Base(f.Path); k.shell == "" && slices.Contains(shellNames, base) {
		k.shell = base
	}
	if slices.Contains(manyInOne, k.shell) {
		k.shell = applet(f.Args)
	}
	s.binaries.add(k, 1)
	if k.shell == "" {
		return
	}
	words := strings.Join(f.Args, "\x00")
	s.shellRuns.add(shellKey{k.path, k.digest, k.shell, words[:min(len(words), maxWords)]}, 1)
}

// Endpoint holds an observation of the gateway: what is "name" for a question, or "wire"
// for a connection or datagram, with its protocol as family.
type Endpoint struct {
	What, Family, Address string
	Verdict, Rule         string
	Count                 int64
}

// AddEndpoint adds an observation of the gateway.
func (s *Slices) AddEndpoint(e Endpoint) {
	s.endpoints.add(endpointKey{what: e.What, family: e.Family, address: e.Address, verdict: e.Verdict, rule: e.Rule}, max(1, e.Count))
}

// Missing returns the number of observations that are not in the slices.
func (s *Slices) Missing(n int64) { s.lost += max(0, n) }

// certDirs and certEnds match the paths of certificates and their keys.
var (
	certDirs = []string{"/etc/ssl/", "/etc/pki/", "/usr/lib/ssl/", "/usr/share/ca-certificates/", "/usr/local/share/ca-certificates/", "/etc/ca-certificates/", "/usr/share/pki/"}
	certEnds = []string{".pem", ".crt", ".cer", ".der", ".p7b", ".p12", ".pfx", ".jks", ".key", ".keystore"}
)

func isCert(p string) bool {
	lower := strings.ToLower(p)
	for _, e := range certEnds {
		if strings.HasSuffix(lower, e) {
			return true
		}
	}
	for _, d := range certDirs {
		if strings.HasPrefix(p, d) && !strings.HasSuffix(p, ".cnf") {
			return true
		}
	}
	return false
}

// In lists the scenarios in which something was seen, and counts how often.
type In struct {
	Count     int64    `json:"count"`
	Scenarios []string `json:"scenarios"`
}

// Binary describes a program that was executed.
type Binary struct {
	Path store.Raw `json:"path"`
	// Digest is the SHA-256 of the file that was loaded; empty: it was too large.
	Digest string `json:"sha256,omitempty"`
	// SameAs is another path under which a file with this content was executed, or the
	// name of the shell with this content: then the program was renamed or copied.
	SameAs store.Raw `json:"same_as,omitempty"`
	// Script is the path that was executed, if it is not the loaded file.
	Script   store.Raw `json:"script,omitempty"`
	Shell    string    `json:"shell,omitempty"`
	Nameless bool      `json:"nameless,omitempty"` // of memory, or deleted
	Mutable  bool      `json:"mutable,omitempty"`  // the workload could write to it
	UID      uint32    `json:"uid"`
	EUID     uint32    `json:"euid"`
	In
}

// Refusal describes a program that could not be executed.
type Refusal struct {
	Path  store.Raw `json:"path"`
	Errno string    `json:"errno"`
	In
}

// Library describes a file that was mapped for execution.
type Library struct {
	Path     store.Raw `json:"path"`
	Nameless bool      `json:"nameless,omitempty"`
	Mutable  bool      `json:"mutable,omitempty"`
	Claimed  bool      `json:"claimed,omitempty"`
	In
}

// File describes a file that was opened for reading.
type File struct {
	Path store.Raw `json:"path"`
	In
}

// Cert describes a certificate or key that was read or, if Errno is set, only looked for.
type Cert struct {
	Path  store.Raw `json:"path"`
	Errno string    `json:"errno,omitempty"`
	In
}

// ShellRun describes a shell that was started, with its arguments.
type ShellRun struct {
	Path   store.Raw   `json:"path"`
	Digest string      `json:"sha256,omitempty"`
	Shell  string      `json:"shell"`
	Args   []store.Raw `json:"args"`
	In
}

// Touched describes an endpoint that was named, reached, or tried without success.
type Touched struct {
	// What is connect, bind, listen, accept, send or socket for the kernel's facts, and
	// name or wire for the gateway's.
	What    string    `json:"what"`
	Family  string    `json:"family"`
	Address store.Raw `json:"address"`
	Errno   string    `json:"errno,omitempty"`
	Verdict string    `json:"verdict,omitempty"`
	Rule    string    `json:"rule,omitempty"`
	Claimed bool      `json:"claimed,omitempty"`
	In
}

// Privilege describes a right that was asked for.
type Privilege struct {
	What   string    `json:"what"`
	Detail store.Raw `json:"detail,omitempty"`
	Errno  string    `json:"errno,omitempty"`
	In
}

// Lists holds the slices as reports have them. Each is sorted.
type Lists struct {
	Binaries   []Binary    `json:"binaries_executed"`
	Refused    []Refusal   `json:"binaries_refused"`
	Libraries  []Library   `json:"shared_libs_loaded"`
	Certs      []Cert      `json:"cert_paths_read"`
	Files      []File      `json:"files_read_at_runtime"`
	Shells     []ShellRun  `json:"shell_invocations"`
	Endpoints  []Touched   `json:"network_endpoints_touched"`
	Privileges []Privilege `json:"privileges_attempted"`
}

func (s *Slices) in(t *tally) In {
	in := In{Count: t.count, Scenarios: []string{}}
	slices.Sort(t.scenarios)
	for _, i := range t.scenarios {
		if i < len(s.names) {
			in.Scenarios = append(in.Scenarios, s.names[i])
		}
	}
	return in
}

// list returns the entries of a bag as a sorted list. It sorts keys, not entries: the
// compiler makes a sort of 15 KB for each type that is sorted.
func list[K comparable, V any](s *Slices, b *bag[K], make func(K, In) V, order func(V) string) []V {
	entries := map[string][]V{}
	for k, t := range b.of {
		v := make(k, s.in(t))
		entries[order(v)] = append(entries[order(v)], v)
	}
	out := []V{}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, entries[key]...)
	}
	return out
}

// lists returns the observations as sorted lists.
func (s *Slices) lists() *Lists {
	same := map[string][]string{}
	for k := range s.binaries.of {
		if k.digest != "" && !slices.Contains(same[k.digest], k.path) {
			same[k.digest] = append(same[k.digest], k.path)
		}
	}
	return &Lists{
		Binaries: list(s, &s.binaries, func(k binaryKey, in In) Binary {
			b := Binary{
				Path: store.Raw(k.path), Digest: k.digest, Script: store.Raw(k.script), Shell: k.shell,
				Nameless: k.nameless, Mutable: k.mutable, UID: k.uid, EUID: k.euid, In: in,
			}
			if others := same[k.digest]; len(others) > 1 {
				slices.Sort(others)
				for _, o := range others {
					if o != k.path {
						b.SameAs = store.Raw(o)
						break
					}
				}
			} else if k.shell != "" && !slices.Contains(shellNames, path.Base(k.path)) {
				b.SameAs = store.Raw(k.shell)
			}
			return b
		}, func(b Binary) string { return string(b.Path) + "\x00" + b.Digest + "\x00" + string(b.Script) }),
		Refused: list(s, &s.refused, func(k refusedKey, in In) Refusal { return Refusal{store.Raw(k.path), k.errno, in} },
			func(r Refusal) string { return string(r.Path) + "\x00" + r.Errno }),
		Libraries: list(s, &s.libraries, func(k libraryKey, in In) Library {
			return Library{store.Raw(k.path), k.nameless, k.mutable, k.claimed, in}
		}, func(l Library) string { return string(l.Path) }),
		Certs: list(s, &s.certs, func(k certKey, in In) Cert { return Cert{store.Raw(k.path), k.errno, in} },
			func(c Cert) string { return string(c.Path) + "\x00" + c.Errno }),
		Files: list(s, &s.files, func(k string, in In) File { return File{store.Raw(k), in} }, func(f File) string { return string(f.Path) }),
		Shells: list(s, &s.shellRuns, func(k shellKey, in In) ShellRun {
			return ShellRun{store.Raw(k.path), k.digest, k.shell, store.Raws(strings.Split(k.words, "\x00")), in}
		}, func(r ShellRun) string { return string(r.Path) + "\x00" + joined(r.Args) }),
		Endpoints: list(s, &s.endpoints, func(k endpointKey, in In) Touched {
			return Touched{k.what, k.family, store.Raw(k.address), k.errno, k.verdict, k.rule, k.claimed, in}
		}, func(e Touched) string {
			return e.What + "\x00" + e.Family + "\x00" + string(e.Address) + "\x00" + e.Errno + e.Verdict + e.Rule
		}),
		Privileges: list(s, &s.rights, func(k rightKey, in In) Privilege { return Privilege{k.what, store.Raw(k.detail), k.errno, in} },
			func(p Privilege) string { return p.What + "\x00" + string(p.Detail) + "\x00" + p.Errno }),
	}
}

func joined(l []store.Raw) string {
	var b strings.Builder
	for _, x := range l {
		b.WriteString(string(x) + "\x00")
	}
	return b.String()
}
