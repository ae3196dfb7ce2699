package carboy

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
)

// The test binary is also the program that attacks from inside: it is shown to
// the bottle and told what to do by its argument.
func init() {
	if len(os.Args) == 2 && strings.HasPrefix(os.Args[1], "-attack=") {
		attacks[strings.TrimPrefix(os.Args[1], "-attack=")]()
		os.Exit(0)
	}
}

// attacks fill memory that is not the workload's own pages: each would take
// gigabytes of the host within seconds.
var attacks = map[string]func(){
	"pages": func() {
		for keep := [][]byte{}; ; {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			keep = append(keep, b)
		}
	},
	"pipes": func() {
		buf := make([]byte, 1<<20)
		for {
			var p [2]int
			if unix.Pipe2(p[:], unix.O_NONBLOCK) != nil {
				respawn("pipes")
			}
			unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, len(buf))
			unix.Write(p[1], buf)
		}
	},
	"sockets": func() {
		buf := make([]byte, 64<<10)
		for {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				respawn("sockets")
			}
			unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20)
			for err == nil {
				_, err = unix.Write(p[0], buf)
			}
		}
	},
	"names": func() {
		long := strings.Repeat("y", 4000)
		for i := 0; ; i++ {
			os.Symlink(long, fmt.Sprintf("/tmp/%d", i))
		}
	},
	"attributes": func() {
		val := make([]byte, 60000)
		for i := 0; ; i++ {
			name := fmt.Sprintf("/tmp/%d", i)
			os.WriteFile(name, nil, 0o600)
			for j := range 8 {
				unix.Setxattr(name, fmt.Sprintf("user.%d", j), val, 0)
			}
		}
	},
	// One page at addresses 1 GiB apart: two pages of page table for each.
	"tables": func() {
		fd, err := unix.MemfdCreate("x", 0)
		if err != nil || unix.Ftruncate(fd, 4096) != nil {
			os.Exit(9)
		}
		const base, step = 1 << 32, 1 << 30
		for shift := uintptr(0); ; shift += 2 << 20 {
			for a := uintptr(base) + shift; a < 0x7000_0000_0000; a += step {
				p, _, e := unix.Syscall6(unix.SYS_MMAP, a, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), 0)
				if e != 0 {
					respawn("tables")
				}
				touch(p)
			}
		}
	},
}

// touch makes the host's kernel map a page, by letting the kernel write it.
func touch(addr uintptr) { unix.Syscall(unix.SYS_TIME, addr, 0, 0) }

// respawn goes on in another process, with limits of its own.
func respawn(what string) {
	syscall.ForkExec("/proc/self/exe", []string{"again", "-attack=" + what}, &syscall.ProcAttr{})
	time.Sleep(time.Hour)
}

// withAttack shows the test binary to the bottle.
func withAttack(t *testing.T, memory int64) func(*plan.Options) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(o *plan.Options) {
		o.Mounts = append(o.Mounts, exe+":/opt/attack:ro")
		o.Limits.Memory = memory
		o.Limits.Timeout = time.Minute
	}
}

func TestMemoryLimitIsTheHosts(t *testing.T) {
	const limit = 96 << 20
	for name := range attacks {
		if testing.Short() && (name == "sockets" || name == "tables") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r, out, err := w.sh("exec /opt/attack -attack="+name, withAttack(t, limit))
			if err != nil || r.Exit.Reason != receipt.Memory {
				t.Fatalf("%v, exit %+v\n%s", err, r.Exit, out)
			}
		})
	}
	// What costs the same and is given back may go on.
	w := newWorld(t)
	w.ok("for i in $(seq 20); do head -c 900000 /dev/zero | cat | cat > f; done; rm f", func(o *plan.Options) { o.Limits.Memory = limit })
}
