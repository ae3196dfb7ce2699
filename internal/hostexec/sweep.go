package hostexec

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// pidNamespace returns the namespace in which our process numbers count. A
// carboy of the same user in a container counts differently, and must not look
// dead.
func pidNamespace() (string, error) { return os.Readlink("/proc/self/ns/pid") }

// markName names a variable in the environment of every command. Its value names the carboy
// process (number and start) and the run. It is used only after the supervisor
// itself was killed, since a hostile process can remove it.
const markName = "CARBOY_HOSTEXEC"

func newMark() (string, error) {
	self, ok := readProcess(os.Getpid())
	ns, err := pidNamespace()
	if !ok || err != nil {
		return "", fmt.Errorf("hostexec: read own start time and namespace from /proc")
	}
	return fmt.Sprintf("%s=%s/%d/%d/%s", markName, ns, os.Getpid(), self.start, rand.Text()), nil
}

// Sweep kills the commands of carboy processes that no longer live, and returns
// the number of processes it killed. It is needed when carboy and the
// supervisor were both killed. It touches only processes that this user may
// signal.
func Sweep() int {
	ns, err := pidNamespace()
	if err != nil {
		return 0
	}
	return sweep(func(mark string) bool {
		f := strings.Split(mark, "/")
		if len(f) != 4 || f[0] != ns {
			return false
		}
		pid, err1 := strconv.Atoi(f[1])
		start, err2 := strconv.ParseUint(f[2], 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		owner, alive := readProcess(pid)
		return !alive || owner.start != start
	})
}

// sweep kills every process whose mark chosen accepts, until a pass finds none.
// Passes are bounded: a process that cannot be killed must not block the
// caller.
func sweep(chosen func(mark string) bool) int {
	killed := map[int]bool{}
	for range 100 {
		found := false
		for _, pid := range pids() {
			mark, ok := readMark(pid)
			if !ok || !chosen(mark) {
				continue
			}
			// Check the mark again: if the number is another process's by now,
			// so is the start.
			p, alive := readProcess(pid)
			if again, ok := readMark(pid); alive && ok && again == mark && killExactly(pid, p.start) {
				found, killed[pid] = true, true
			}
		}
		if !found {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return len(killed)
}

func readMark(pid int) (string, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return "", false
	}
	for kv := range bytes.SplitSeq(b, []byte{0}) {
		if v, ok := bytes.CutPrefix(kv, []byte(markName+"=")); ok {
			return string(v), true
		}
	}
	return "", false
}
