package attacker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// touchMemory takes memory until it is stopped, or as many MiB as args says.
func touchMemory(args []string) error {
	var keep [][]byte
	most := 0
	if len(args) > 0 {
		fmt.Sscan(args[0], &most)
	}
	for {
		if most > 0 && len(keep)*4 >= most {
			fmt.Println("took", most, "MiB")
			return nil
		}
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = byte(i)
		}
		keep = append(keep, b)
		if len(keep) > 4096 {
			return fmt.Errorf("took %d blocks of 4 MiB", len(keep))
		}
	}
}

// floodFiles opens files until it can't, then proves that closing helps.
func floodFiles([]string) error {
	var fds []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if err == unix.EMFILE {
			break
		}
		if err != nil {
			return err
		}
		if fds = append(fds, fd); len(fds) > 1<<20 {
			return fmt.Errorf("opened %d files", len(fds))
		}
	}
	fmt.Println("opened", len(fds))
	unix.Close(fds[0])
	_, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	return err
}

// floodInodes makes empty files in many directories until it can't.
func floodInodes(args []string) error {
	var n int
	fmt.Sscan(args[0], &n)
	for i := range n {
		if i%1000 == 0 {
			if err := os.Mkdir(fmt.Sprintf("d%d", i/1000), 0o755); err != nil {
				return fmt.Errorf("after %d: %w", i, err)
			}
		}
		fd, err := unix.Open(fmt.Sprintf("d%d/f%d", i/1000, i), unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		unix.Close(fd)
	}
	fmt.Println("made", n)
	return nil
}

// floodPipes fills pipes and sockets, whose contents the kernel holds.
func floodPipes([]string) error {
	block := make([]byte, 64<<10)
	var total int64
	for {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			break
		}
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 64<<20)
		unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_RCVBUF, 64<<20)
		for {
			n, err := unix.Write(fds[0], block)
			if err != nil {
				break
			}
			total += int64(n)
		}
		p := make([]int, 2)
		if unix.Pipe2(p, unix.O_NONBLOCK) != nil {
			break
		}
		unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
		for {
			n, err := unix.Write(p[1], block)
			if err != nil {
				break
			}
			total += int64(n)
		}
	}
	fmt.Println("holds", total>>20, "MiB")
	time.Sleep(2 * time.Second)
	return nil
}

// floodProcesses starts processes until it can't.
func floodProcesses([]string) error {
	n := 0
	for n < 100_000 {
		if _, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{}); err != nil {
			break
		}
		n++
	}
	fmt.Println("started", n)
	return nil
}

// sparseFile makes a file that is large in name only.
func sparseFile(args []string) error {
	f, err := os.Create("sparse")
	if err != nil {
		return err
	}
	var n int64
	fmt.Sscan(args[0], &n)
	if err := f.Truncate(n); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("end"), n-3); err != nil {
		return err
	}
	return f.Close()
}

// storm starts and ends processes as fast as the kernel can, and prints their number.
func storm(args []string) error {
	var n uint32
	fmt.Sscan(args[0], &n)
	if err := os.WriteFile("storm", forkerELF(n), 0o755); err != nil {
		return cannot("%v", err)
	}
	if out, err := exec.Command("./storm").CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, out)
	}
	fmt.Println("ended", n)
	return os.Remove("storm")
}

// longExec starts programs with the longest arguments and environment that a kernel
// accepts, and with longer ones.
func longExec([]string) error {
	ran := 0
	for _, size := range []int{64 << 10, 1 << 20, 8 << 20, 32 << 20} {
		long := strings.Repeat("A", 100<<10)
		var args, env []string
		for n := 0; n < size; n += len(long) {
			args, env = append(args, long), append(env, "V"+fmt.Sprint(n)+"="+long)
		}
		for _, c := range []*exec.Cmd{exec.Command("/bin/true", args...), {Path: "/bin/true", Args: []string{"true"}, Env: env}} {
			if c.Run() == nil {
				ran++
			}
		}
	}
	if ran == 0 {
		return errors.New("no long command line ran at all")
	}
	fmt.Println("ran", ran)
	return nil
}

// deepTree makes nested directories, far deeper than one path can name, and names of the
// greatest length.
func deepTree(args []string) error {
	var n int
	fmt.Sscan(args[0], &n)
	name := strings.Repeat("d", 200)
	dir, err := unix.Open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return cannot("%v", err)
	}
	for i := range n {
		if err := unix.Mkdirat(dir, name, 0o755); err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		next, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("after %d: %w", i, err)
		}
		unix.Close(dir)
		dir = next
	}
	fmt.Println("made", n)
	return nil
}
