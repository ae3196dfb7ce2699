package trace

import (
	"hash/maphash"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of a Summary. A workload that chooses paths and rates can reach them.
const (
	maxAreas     = 200
	maxWritten   = 1000 // for each of inside and outside
	maxProcesses = 1000
	maxLive      = 1 << 16
	maxEnded     = 1 << 16
	maxAttempts  = 200
	maxSockets   = 100
	maxArgBytes  = 4 << 10
	maxDetail    = 200
)

// marks are the categories of a path, each with its own bound: a workload that
// looks for a million names cannot hide what it wrote.
const (
	markRead = iota
	markMissed
	markWritten
	markDenied
)

// maxDistinct bounds the distinct paths counted for each mark.
var maxDistinct = [...]int{markRead: 1 << 18, markMissed: 1 << 18, markWritten: 1 << 17, markDenied: 1 << 16}

// View describes the bottle to a Summary.
type View struct {
	// Workspace is its path inside; empty: none.
	Workspace string
	// Mounted means that the workspace is a mount of its own. Otherwise a file
	// on another file system than the bottle's root is not in it, whatever its
	// path says.
	Mounted bool
	// Areas are directories to count separately, such as mounts and the home.
	Areas []string
}

// Summary accounts for a run's facts as they arrive. Each fact takes constant
// time, and memory is bounded (at most about 20 MiB, usually a few hundred
// KiB). Lists keep the first entries; totals count all.
//
// Use NewSummary: the zero Summary is not ready. It is not safe for concurrent
// use.
type Summary struct {
	view View
	seed maphash.Seed

	Facts uint64 // that arrived
	Last  uint64 // the highest number

	procs   []Process
	live    map[uint32]live     // at most maxLive; beyond that, only the forks are counted
	ended   map[uint32]struct{} // numbers of processes that have ended and are not in use again
	Procs   uint64
	Execs   uint64
	Failed  uint64
	seen    [len(maxDistinct)]map[uint64]struct{} // by hash of the path
	More    bool                                  // there were more than maxDistinct
	read    areas
	denied  areas
	Counts  FileCounts
	written [2]writtenList // outside, inside

	Attempts []Attempt
	attempts map[Attempt]int
	Sockets  []Sockets
	sockets  map[Sockets]int
}

// FileCounts holds numbers of distinct files.
type FileCounts struct{ ReadOutside, ReadInside, Written, Missed, Denied uint64 }

// Process describes one process, from its fork or first exec to its exit.
type Process struct {
	Parent    int // index in the list plus one; 0: unknown, or carboy
	PID       uint32
	Path      string // the last program; empty: it only forked
	Args      []string
	Digest    string
	UID, EUID uint32
	Execs     uint64
	Start     int64 // nanoseconds since 1970
	End       int64 // 0: it did not end before the trace did
	Code      int
	Signal    int
}

// live is a process that has not ended.
type live struct {
	at     int  // index in procs plus one; 0: not listed
	forked bool // its fork is known
}

// Attempt is a way in which rights were requested, and how often.
type Attempt struct {
	What, Detail string
	Errno        uint32
	Count        uint64
}

// Sockets counts the sockets of one sort.
type Sockets struct {
	Family, Type uint64
	Errno        uint32
	Count        uint64
}

// Area is a directory with the number of its distinct files.
type Area struct {
	Path  string
	Files uint64
}

// Written is a changed file.
type Written struct {
	Path   string
	How    []string // in the order in which each was first seen
	Inside bool
}

type writtenList struct {
	list []Written
	at   map[uint64]int // by hash of the path
}

type areas struct {
	list []Area
	at   map[string]int
}

// NewSummary returns an empty Summary.
func NewSummary(v View) *Summary {
	s := &Summary{
		view: v, seed: maphash.MakeSeed(), live: map[uint32]live{}, ended: map[uint32]struct{}{},
		attempts: map[Attempt]int{}, sockets: map[Sockets]int{},
	}
	for i := range s.seen {
		s.seen[i] = map[uint64]struct{}{}
	}
	for i := range s.written {
		s.written[i].at = map[uint64]int{}
	}
	return s
}

// Add counts f.
func (s *Summary) Add(f *Fact) {
	s.Facts++
	s.Last = max(s.Last, f.Seq)
	switch f.Op.Kind() {
	case kindExec:
		s.process(f)
	case KindFile:
		s.file(f)
	case kindNet:
		if f.Op == Socket {
			s.socket(f)
		}
	case kindProc:
		if f.Op == Ptrace {
			s.attempt(f)
		}
	case KindPriv:
		s.attempt(f)
		if f.Op == Mknod || f.Op == Chown {
			s.file(f)
		}
	}
}

// lost returns the number of facts that did not arrive, judged by their
// numbers.
func (s *Summary) lost() uint64 {
	if s.Last < s.Facts {
		return 0
	}
	return s.Last - s.Facts
}

// Processes lists the first processes, parents before their children.
func (s *Summary) Processes() []Process { return s.procs }

func (s *Summary) process(f *Fact) {
	if f.Op == Exec && f.Errno != 0 {
		s.Failed++
		return
	}
	switch f.Op {
	case Fork:
		if l, ok := s.live[f.PID]; ok && !l.forked {
			// Its exec came first.
			l.forked = true
			s.live[f.PID] = l
			return
		}
		s.begin(f, true)
	case Exec:
		s.Execs++
		l, ok := s.live[f.PID]
		if !ok && len(s.live) < maxLive {
			l = s.begin(f, false)
		}
		if l.at == 0 {
			return
		}
		p := &s.procs[l.at-1]
		p.Path, p.Args, p.Digest = f.Path, cutArgs(f.Args), f.Digest
		p.UID, p.EUID = f.UID, f.EUID
		p.Execs++
	case Exit:
		if _, over := s.ended[f.PID]; over {
			return // it was reported before
		}
		l, ok := s.live[f.PID]
		if !ok && len(s.live) < maxLive {
			l = s.begin(f, false)
		}
		delete(s.live, f.PID)
		if len(s.ended) < maxEnded {
			s.ended[f.PID] = struct{}{}
		}
		if l.at > 0 {
			p := &s.procs[l.at-1]
			p.End, p.Code, p.Signal = f.Time, int(f.A&0xff), int(f.B&0x7f)
		}
	}
}

// begin starts a process with f's PID. An earlier process with that PID has
// ended.
func (s *Summary) begin(f *Fact, forked bool) live {
	s.Procs++
	delete(s.ended, f.PID)
	l := live{forked: forked}
	if len(s.procs) < maxProcesses {
		p := Process{Parent: s.live[f.PPID].at, PID: f.PID, UID: f.UID, EUID: f.EUID, Start: f.Time}
		if p.Parent > 0 && forked {
			p.UID, p.EUID = s.procs[p.Parent-1].UID, s.procs[p.Parent-1].EUID
		}
		s.procs = append(s.procs, p)
		l.at = len(s.procs)
	}
	if _, ok := s.live[f.PID]; ok || len(s.live) < maxLive {
		s.live[f.PID] = l
	}
	return l
}

// cutArgs keeps what fits, and marks where it cut.
func cutArgs(args []string) []string {
	left := maxArgBytes - len("…")
	for i, a := range args {
		if len(a) > left {
			return append(append([]string(nil), args[:i]...), strings.Clone(a[:left])+"…")
		}
		left -= len(a)
	}
	return args
}

// accMode masks the access mode in open(2)'s flags.
const accMode = unix.O_ACCMODE

func (s *Summary) file(f *Fact) {
	switch {
	case f.Errno == 0:
		if s.reads(f) {
			s.noteRead(f)
		}
		s.writes(f)
	case unix.Errno(f.Errno) == unix.ENOENT, unix.Errno(f.Errno) == unix.ENOTDIR:
		if s.first(s.hash(f.Path), markMissed) {
			s.Counts.Missed++
		}
	case f.Denied():
		if f.Path != "" && s.first(s.hash(f.Path), markDenied) {
			s.Counts.Denied++
			s.denied.add(s.area(f.Path))
		}
	}
}

// reads reports whether f opened, for reading, something that is neither a
// directory nor new.
func (s *Summary) reads(f *Fact) bool {
	return f.Op == Open && f.A&accMode != unix.O_WRONLY && f.A&(unix.O_PATH|unix.O_DIRECTORY|unix.O_TRUNC|unix.O_EXCL) == 0
}

func (s *Summary) noteRead(f *Fact) {
	if !s.first(s.hash(f.Path), markRead) {
		return
	}
	if s.inside(f) {
		s.Counts.ReadInside++
		return
	}
	s.Counts.ReadOutside++
	s.read.add(s.area(f.Path))
}

// how names an operation's effect on a file.
var how = map[Op]string{
	Write: "write", Truncate: "truncate", Unlink: "remove", Rmdir: "remove", Rename: "rename", Link: "link",
	Symlink: "make", Mkdir: "make", Mknod: "make", Chmod: "mode", Chown: "owner", Utimes: "times", Xattr: "xattr",
}

func (s *Summary) writes(f *Fact) {
	word := how[f.Op]
	if f.Op == Open {
		switch {
		case f.A&unix.O_PATH != 0:
		case f.A&unix.O_TRUNC != 0 && f.A&accMode != unix.O_RDONLY:
			word = "truncate"
		case f.A&unix.O_CREAT != 0:
			// A file that existed may only have been opened.
			word = "create"
		}
		if f.A&(unix.O_CREAT|unix.O_EXCL) == unix.O_CREAT|unix.O_EXCL {
			word = "make"
		}
	}
	// Opening /dev/null for writing changes no file. Special comes from the
	// kernel that opened it, while the workload chooses names.
	if word == "" || f.Flags&Special != 0 {
		return
	}
	if f.Op != Link {
		s.noteWritten(f, f.Path, word)
	}
	if f.Op == Rename || f.Op == Link {
		s.noteWritten(f, f.Path2, word)
	}
}

func (s *Summary) noteWritten(f *Fact, path, word string) {
	if path == "" {
		return
	}
	key := s.hash(path)
	fresh := s.first(key, markWritten)
	if fresh {
		s.Counts.Written++
	}
	inside := s.insidePath(path, f.Flags)
	l := &s.written[0]
	if inside {
		l = &s.written[1]
	}
	i, ok := l.at[key]
	if !ok {
		if !fresh || len(l.list) >= maxWritten {
			return // only listed files are counted
		}
		i = len(l.list)
		l.at[key] = i
		l.list = append(l.list, Written{Path: path, Inside: inside})
	}
	w := &l.list[i]
	if !slices.Contains(w.How, word) {
		w.How = append(w.How, word) // bounded by the number of words
	}
}

// Written lists at most n changed files. Files outside the workspace come
// first, because nothing else reports them, but leave room for the others.
func (s *Summary) Written(n int) []Written {
	out, in := s.written[0].list, s.written[1].list
	out = out[:min(len(out), max(n/2, n-len(in)))]
	return append(append([]Written(nil), out...), in[:min(len(in), n-len(out))]...)
}

// Read and Denied list areas.
func (s *Summary) Read() []Area   { return s.read.list }
func (s *Summary) Denied() []Area { return s.denied.list }

// first reports whether a path, by its hash, gets a mark for the first time.
func (s *Summary) first(key uint64, mark int) bool {
	seen := s.seen[mark]
	if _, known := seen[key]; known {
		return false
	}
	if len(seen) >= maxDistinct[mark] {
		s.More = true
		return false
	}
	seen[key] = struct{}{}
	return true
}

// hash maps a path to 64 bits under a key that the workload does not know.
func (s *Summary) hash(path string) uint64 { return maphash.String(s.seed, path) }

func (s *Summary) inside(f *Fact) bool { return s.insidePath(f.Path, f.Flags) }

func (s *Summary) insidePath(path string, fl Flags) bool {
	return s.view.Workspace != "" && (s.view.Mounted || fl&Foreign == 0) && under(path, s.view.Workspace)
}

func under(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/' || dir == "/")
}

// deep are directories whose first level says too little.
var deep = map[string]bool{"usr": true, "var": true, "home": true, "opt": true, "mnt": true, "srv": true, "nix": true, "run": true}

// area returns the directory that represents path in the account: one of the
// view's, else the first level, or the second where that says more.
func (s *Summary) area(path string) string {
	best := ""
	for _, a := range s.view.Areas {
		if len(a) > len(best) && under(path, a) {
			best = a
		}
	}
	if best != "" {
		// A home is divided one level further: .ssh, .cache.
		return prefix(path, len(best), 1)
	}
	if !strings.HasPrefix(path, "/") {
		return "/"
	}
	top, _, _ := strings.Cut(path[1:], "/")
	n := 1
	if deep[top] {
		n = 2
	}
	if strings.HasPrefix(path, "/usr/local/") {
		n = 3
	}
	return prefix(path, 0, n)
}

// prefix returns path up to n more elements after from, without the last
// element.
func prefix(path string, from, n int) string {
	end := from
	for range n {
		i := strings.IndexByte(path[min(end+1, len(path)):], '/')
		if i < 0 {
			break
		}
		end += 1 + i
	}
	if end == 0 {
		return "/"
	}
	return path[:end]
}

func (a *areas) add(path string) {
	if a.at == nil {
		a.at = map[string]int{}
	}
	i, ok := a.at[path]
	if !ok && len(a.list) >= maxAreas-1 {
		path = "/" // represents all that are not counted separately
		i, ok = a.at[path]
	}
	if !ok {
		i = len(a.list)
		path = strings.Clone(path)
		a.at[path] = i
		a.list = append(a.list, Area{Path: path})
	}
	a.list[i].Files++
}

// various represents everything that is not counted separately.
const various = "various"

func (s *Summary) attempt(f *Fact) {
	if f.Op == Mknod && f.Detail() == "" {
		return // a pipe or a socket grants nothing
	}
	a := Attempt{What: f.Op.String(), Detail: clip(f.Detail()), Errno: f.Errno}
	if f.Op == Refused {
		a.What, a.Detail = clip(f.Path), ""
	}
	i, ok := s.attempts[a]
	// The last of the room is for groups with few members.
	if !ok && len(s.Attempts) >= maxAttempts/2 {
		a.Detail = various
		i, ok = s.attempts[a]
	}
	if !ok && len(s.Attempts) >= maxAttempts-1 {
		a = Attempt{What: "others", Detail: various}
		i, ok = s.attempts[a]
	}
	if !ok {
		i = len(s.Attempts)
		s.attempts[a] = i
		s.Attempts = append(s.Attempts, a)
	}
	s.Attempts[i].Count++
}

func (s *Summary) socket(f *Fact) {
	k := Sockets{Family: f.A, Type: f.B & 0xf, Errno: f.Errno}
	i, ok := s.sockets[k]
	if !ok && len(s.Sockets) >= maxSockets-1 {
		k = Sockets{Family: ^uint64(0)}
		i, ok = s.sockets[k]
	}
	if !ok {
		i = len(s.Sockets)
		s.sockets[k] = i
		s.Sockets = append(s.Sockets, k)
	}
	s.Sockets[i].Count++
}

// clip bounds a stored text.
func clip(s string) string { return strings.Clone(s[:min(len(s), maxDetail)]) }
