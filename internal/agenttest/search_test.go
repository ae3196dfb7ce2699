package agenttest

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mask hides the needles in the searcher's own memory, arguments and environment.
const mask = 0x5a

// needle is a masked text to search for, and its base64.
type needle [][]byte

func newNeedle(s string) needle {
	var n needle
	for _, text := range []string{s, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(s)), "=")} {
		b := []byte(text)
		for i := range b {
			b[i] ^= mask
		}
		n = append(n, b)
	}
	return n
}

func (n needle) String() string {
	var out []string
	for _, b := range n {
		out = append(out, hex.EncodeToString(b))
	}
	return strings.Join(out, ",")
}

func parseNeedle(s string) (n needle, err error) {
	for _, h := range strings.Split(s, ",") {
		b, err := hex.DecodeString(h)
		if err != nil {
			return nil, err
		}
		n = append(n, b)
	}
	return n, nil
}

// search looks for needles in all that it is given, and stores where it found them.
type search struct {
	needles []needle
	found   []map[string]bool // places, by needle
	bytes   int64
	files   int
	closed  []string // why some memory could not be read
	left    int64    // bytes of memory left out
	seen    map[[2]uint64]bool
	buf     []byte
}

func newSearch(ns ...needle) *search {
	s := &search{needles: ns, buf: make([]byte, 1<<20), seen: map[[2]uint64]bool{}}
	for range ns {
		s.found = append(s.found, map[string]bool{})
	}
	return s
}

const overlap = 256 // longer than a needle

// stream searches r. where is its name.
func (s *search) stream(where string, r io.Reader) {
	s.files++
	kept := 0
	for {
		n, err := r.Read(s.buf[kept:])
		s.bytes += int64(n)
		fresh := s.buf[kept : kept+n]
		for i := range fresh {
			fresh[i] ^= mask
		}
		all := s.buf[:kept+n]
		for i, nd := range s.needles {
			for _, b := range nd {
				if bytes.Contains(all, b) {
					s.found[i][where] = true
				}
			}
		}
		if len(all) > overlap {
			copy(s.buf, all[len(all)-overlap:])
			kept = overlap
		} else {
			kept = len(all)
		}
		if err != nil || n == 0 {
			return
		}
	}
}

func (s *search) file(path string) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	s.stream(path, f)
}

// tree searches the names and contents below dir, except below skip.
func (s *search) tree(dir string, skip ...string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		for _, x := range skip {
			if path == x && d.IsDir() {
				return filepath.SkipDir
			}
		}
		s.stream("the name "+path, strings.NewReader(d.Name()))
		s.files--
		if d.Type().IsRegular() {
			s.file(path)
		}
		return nil
	})
}

// process searches the arguments, variables and memory of a process in /proc. With own it
// reads only the private memory that was touched, which needs root. Shared memory is in
// files without names.
func (s *search) process(pid int, memory, own bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	s.file(dir + "/environ")
	s.file(dir + "/cmdline")
	if !memory {
		return
	}
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		s.closed = append(s.closed, err.Error())
		return
	}
	defer mem.Close()
	var pages *os.File
	if own {
		if pages, err = os.Open(dir + "/pagemap"); err != nil {
			return
		}
		defer pages.Close()
	}
	maps, _ := os.ReadFile(dir + "/maps")
	var resident map[string]int64
	if !own {
		resident = rss(dir + "/smaps")
	}
	for _, line := range strings.Split(string(maps), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 || f[1][0] != 'r' || strings.Contains(line, "[v") || own && f[1][3] == 's' {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 63)
		end, err2 := strconv.ParseUint(to, 16, 63)
		if err1 != nil || err2 != nil {
			continue
		}
		if size := int64(end - start); !own && size > sparse && size > 2*resident[f[0]] {
			s.left += resident[f[0]]
			continue
		}
		for _, part := range touched(pages, int64(start), int64(end)) {
			s.stream(dir+"/mem", io.NewSectionReader(mem, part[0], part[1]-part[0]))
		}
	}
}

// sparse is the least size of a mostly untouched mapping that is left out inside the
// bottle: reading would fill it. It is read from outside.
const sparse = 64 << 20

// rss returns the bytes of each mapping that are in memory.
func rss(smaps string) map[string]int64 {
	b, _ := os.ReadFile(smaps)
	out := map[string]int64{}
	at := ""
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && strings.Contains(f[0], "-"):
			at = f[0]
		case len(f) == 3 && f[0] == "Rss:":
			n, _ := strconv.ParseInt(f[1], 10, 63)
			out[at] = n << 10
		}
	}
	return out
}

// touched returns the parts of a range that are in memory, or all of it without pages.
func touched(pages *os.File, start, end int64) (out [][2]int64) {
	if pages == nil {
		return [][2]int64{{start, end}}
	}
	const page, entries = 4096, 1 << 14
	buf := make([]byte, 8*entries)
	for at := start; at < end; at += page * entries {
		n, _ := pages.ReadAt(buf[:min(int64(len(buf)), (end-at)/page*8)], at/page*8)
		for i := 0; i+8 <= n; i += 8 {
			if buf[i+7]&0xc0 == 0 { // neither present nor swapped
				continue
			}
			a := at + int64(i/8)*page
			if k := len(out); k > 0 && out[k-1][1] == a {
				out[k-1][1] += page
			} else {
				out = append(out, [2]int64{a, a + page})
			}
		}
	}
	return out
}

// descriptors searches the files without names that a process has open. The memory of a
// bottle is such a file, and so are the files that it wrote.
func (s *search) descriptors(pid int) {
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(to, "/memfd:") && !strings.HasSuffix(to, " (deleted)") {
			continue
		}
		f, err := os.Open(fd)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		id := [2]uint64{}
		if unix.Fstat(int(f.Fd()), &st) == nil {
			id = [2]uint64{st.Dev, st.Ino}
		}
		for at := int64(0); !s.seen[id]; {
			data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
			if err != nil {
				break
			}
			hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
			if err != nil {
				break
			}
			s.stream(fd+" "+to, io.NewSectionReader(f, data, hole-data))
			at = hole
		}
		s.seen[id] = true
		f.Close()
	}
}

// meeting is the socket of the searcher inside.
const meeting = "/tmp/look.sock"

// inside runs a command in the bottle, and searches the bottle on request while the command
// runs. Only the parent of all other processes may read their memory. skip is not searched.
func inside(key, placeholder, skip string, command []string) int {
	k, err := parseNeedle(key)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	p, err := parseNeedle(placeholder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	l, err := net.Listen("unix", meeting)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c := exec.Command(command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	go func() { // until the process ends
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, look(k, p, skip))
			conn.Close()
		}
	}()
	_ = c.Wait()
	return c.ProcessState.ExitCode()
}

// ask requests a search from a command inside.
func ask() int {
	c, err := net.Dial("unix", meeting)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer c.Close()
	if _, err := io.Copy(os.Stdout, c); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// look searches every process, and every file except this machine's programs and those
// below skip.
func look(key, placeholder needle, skip string) string {
	s := newSearch(key, placeholder)
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		pid, _ := strconv.Atoi(filepath.Base(p))
		s.process(pid, pid != os.Getpid(), false)
	}
	memory := s.bytes
	s.tree("/", "/proc", "/sys", "/usr", "/bin", "/sbin", "/lib", "/lib64", skip)
	kinds := map[string]bool{}
	for where := range s.found[1] {
		kinds[filepath.Base(where)] = true
	}
	out := fmt.Sprintf("looked at %d processes, %d MB of their memory (%d MB left to outside), and %d files; ", len(procs), memory>>20, s.left>>20, s.files)
	if len(s.found[0]) > 0 {
		return out + fmt.Sprintf("THE KEY IS IN %v\n", s.found[0])
	}
	if !kinds["environ"] || !kinds["mem"] {
		return out + fmt.Sprintf("the placeholder is not found, which is there: %v, %q\n", s.found[1], s.closed)
	}
	return out + "the key is nowhere\n"
}
