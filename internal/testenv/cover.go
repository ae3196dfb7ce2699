package testenv

import (
	"bytes"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/coverage"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// coverEvery is the time between two reports of a process. Most processes are
// killed, so what they did after their last report is lost.
const coverEvery = 5 * time.Millisecond

// collecting is true while this process collects the counters of others.
var collecting atomic.Bool

// AwaitReports gives the processes of a test, which are about to be killed, time
// for their last report. It returns at once unless their coverage is collected.
func AwaitReports() {
	if collecting.Load() {
		time.Sleep(10 * coverEvery)
	}
}

// coverDir returns the directory in which a test binary under -cover listens
// for processes that it started from itself. They have neither its environment
// nor its descriptors, but they are the same file.
func coverDir() (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("/dev/shm/cover-%x-%x", st.Dev, st.Ino), nil
}

// CollectCoverage adds the counters of processes that this test binary starts
// from itself, and that call [ReportCoverage], to its own coverage. It does
// nothing without -covermode=atomic: in other modes counters cannot be read
// while they change. Call it in TestMain before m.Run, and stop after it.
func CollectCoverage() (stop func(), err error) {
	flag.Parse()
	to := flag.Lookup("test.gocoverdir").Value.String()
	if testing.CoverMode() != "atomic" || to == "" {
		return func() {}, nil
	}
	dir, err := coverDir()
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil { // left by a test binary that was killed
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	l, err := net.Listen("unixpacket", dir+"/socket")
	if err != nil {
		return nil, err
	}
	for _, path := range []string{dir + "/socket", dir} { // the processes run as any user
		if err := os.Chmod(path, 0o777); err != nil {
			return nil, err
		}
	}
	collecting.Store(true)
	go func() { // ends when the listener is closed
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go keepCounters(c, dir, to, n)
		}
	}()
	return func() { l.Close(); os.RemoveAll(dir) }, nil
}

// keepCounters writes the latest report of one process to a file in which the
// testing package looks when all tests are over.
func keepCounters(c net.Conn, dir, to string, n int) {
	defer c.Close()
	const head = 24 // magic, version and hash of a counter file
	for b := make([]byte, 1<<20); ; {
		size, err := c.Read(b)
		if err != nil || size < head {
			return
		}
		tmp := filepath.Join(to, fmt.Sprint("new-", n))
		err = os.WriteFile(tmp, b[:size], 0o600)
		if err == nil {
			err = os.Rename(tmp, filepath.Join(to, fmt.Sprintf("covcounters.%x.%d.%d", b[8:head], os.Getpid(), n)))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "coverage of a child:", err)
		}
	}
}

// CoverageWanted reports whether a test binary that started this process
// collects its counters.
func CoverageWanted() bool {
	dir, err := coverDir()
	if err == nil {
		_, err = os.Stat(dir + "/socket")
	}
	return err == nil
}

// ReportCoverage sends this process's counters to the test binary that started
// it, again and again until the process ends; send sends the last ones. It does
// nothing where nobody collects them. Call it first in TestMain.
func ReportCoverage(m *testing.M) (send func()) {
	dir, err := coverDir()
	if err != nil {
		return func() {}
	}
	c, err := net.Dial("unixpacket", dir+"/socket")
	if err != nil {
		return func() {}
	}
	if err := hashCoverage(m, dir); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		return func() {}
	}
	var mu sync.Mutex
	var last []byte
	send = func() {
		mu.Lock()
		defer mu.Unlock()
		var b bytes.Buffer
		if coverage.WriteCounters(&b) != nil || bytes.Equal(b.Bytes(), last) {
			return
		}
		last = b.Bytes()
		c.Write(last)
	}
	go func() { // ends with the process
		for range time.Tick(coverEvery) {
			send()
		}
	}()
	return send
}

// hashCoverage runs no tests: only at the end of a run does a test binary
// compute the hash without which counters cannot be written.
func hashCoverage(m *testing.M, dir string) error {
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	args, stdout, stderr := os.Args, os.Stdout, os.Stderr
	defer func() { os.Args, os.Stdout, os.Stderr = args, stdout, stderr }()
	os.Args, os.Stdout, os.Stderr = args[:1], null, null
	flag.Set("test.gocoverdir", dir)
	flag.Set("test.run", "^$")
	if code := m.Run(); code != 0 {
		return fmt.Errorf("a run of no tests ends with %d", code)
	}
	return os.RemoveAll(dir)
}
