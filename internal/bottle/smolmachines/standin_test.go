package smolmachines

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/rtnet"
	"github.com/carboy/carboy/internal/smolstate"
)

// This file is the program that stands in for smolvm: the test binary under smolvm's name.
// It has the same commands, keeps its state in the same file, and a machine of it is a
// process in namespaces of its own, with a root of its own and a network that leads to the
// allowed address alone. It says nothing about the boundary of the real one.

// standInName is the name of smolvm's own program.
const standInName = "smolvm-bin"

// behaviour says how the stand-in is to be wrong. It reads smolvm.json in the home
// directory.
type behaviour struct {
	// Cidrs replaces allowed_cidrs when a machine is created, as JSON.
	Cidrs json.RawMessage
	// Extra are fields that create adds or replaces.
	Extra map[string]any
	// Fail names commands that fail.
	Fail []string
	// NoRow leaves the machine out of the database, NoDatabase makes none.
	NoRow, NoDatabase bool
	// Leaky machines reach all of the host's loopback, Cut ones nothing of it.
	Leaky, Cut bool
	// Slow counts the calls of exec that fail before it works.
	Slow int
	// StartChanges are fields that start changes in the row.
	StartChanges map[string]any
	// NoPID leaves the process out of the row.
	NoPID bool
	// BootDies ends the machine as soon as it runs.
	BootDies bool
}

// standIn runs the program if the process is it, and does not return then.
func standIn() {
	if filepath.Base(os.Args[0]) != standInName {
		return
	}
	if err := standInMain(os.Args[1:]); err != nil {
		var code exitError
		if errors.As(err, &code) {
			syscall.Exit(int(code))
		}
		fmt.Fprintln(os.Stderr, "Error:", err)
		syscall.Exit(1)
	}
	syscall.Exit(0)
}

// exitError is the exit code of a command in a machine.
type exitError int

func (e exitError) Error() string { return fmt.Sprint("exit ", int(e)) }

func standInMain(args []string) error {
	home := os.Getenv("HOME")
	s := &stand{home: home}
	if b, err := os.ReadFile(filepath.Join(home, "smolvm.json")); err == nil {
		if err := json.Unmarshal(b, &s.how); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(filepath.Join(home, "calls"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(log, strings.Join(args, " "))
		log.Close()
	}
	if len(args) < 2 {
		return errors.New("usage: smolvm machine COMMAND")
	}
	if slices.Contains(s.how.Fail, args[1]) {
		return fmt.Errorf("%s fails here", args[1])
	}
	switch args[0] + " " + args[1] {
	case "machine create":
		return s.create(args[2:])
	case "machine start":
		return s.start(args[3])
	case "machine exec":
		return s.exec(args[2:])
	case "machine stop":
		return s.stop(args[3])
	case "machine delete":
		return s.delete(args[3])
	case "standin boot":
		return s.boot(args[2])
	case "standin pass":
		return s.pass(args[2])
	}
	return fmt.Errorf("unrecognized subcommand %q", args[1])
}

type stand struct {
	home string
	how  behaviour
}

func (s *stand) path() string {
	p, err := smolstate.Path("linux", os.Getenv)
	if err != nil {
		panic(err)
	}
	return p
}

// dir returns the directory of a machine's sockets. Its path is short, as sockets need it.
func (s *stand) dir(machine string) string {
	return filepath.Join(s.home, "m", machine[len(machine)-8:])
}

func (s *stand) open() (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(s.path()), 0o755); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+s.path()+"?_pragma=busy_timeout(15000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`CREATE TABLE IF NOT EXISTS vms (name TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL);
		CREATE TABLE IF NOT EXISTS config (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)`)
	return db, err
}

// update changes fields of a row.
func (s *stand) update(machine string, fields map[string]any) error {
	db, err := s.open()
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var b []byte
	if err := tx.QueryRow(`SELECT data FROM vms WHERE name = ?`, machine).Scan(&b); err != nil {
		return fmt.Errorf("machine %q not found: %w", machine, err)
	}
	var row map[string]any
	if err := json.Unmarshal(b, &row); err != nil {
		return err
	}
	for k, v := range fields {
		row[k] = v
	}
	if b, err = json.Marshal(row); err != nil {
		return err
	}
	if _, err := tx.Exec(`UPDATE vms SET data = ? WHERE name = ?`, b, machine); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *stand) row(machine string) (row struct {
	Allowed []string                   `json:"allowed_cidrs"`
	Mounts  [][3]any                   `json:"mounts"`
	PID     int                        `json:"pid"`
	Passer  int                        `json:"x_passer"`
	More    map[string]json.RawMessage `json:"-"`
}, err error) {
	db, err := s.open()
	if err != nil {
		return row, err
	}
	defer db.Close()
	var b []byte
	if err := db.QueryRow(`SELECT data FROM vms WHERE name = ?`, machine).Scan(&b); err != nil {
		return row, fmt.Errorf("machine %q not found: %w", machine, err)
	}
	return row, json.Unmarshal(b, &row)
}

func (s *stand) create(args []string) error {
	row := map[string]any{
		"created_at": 1764264000, "state": "created", "pid": nil, "ports": []any{}, "published_sockets": []any{}, "network": true, "gpu": nil,
		"restart": map[string]any{"policy": "never"}, "init": []any{}, "remote_volumes": []any{}, "env": []any{}, "ssh_agent": false, "docker_socket": false, "cuda": false,
	}
	mounts := []any{}
	for i := 0; i+1 < len(args); i += 2 {
		v := args[i+1]
		switch args[i] {
		case "--name":
			row["name"] = v
		case "--cpus", "--mem":
			n, err := strconv.Atoi(v)
			if err != nil {
				return err
			}
			row[strings.TrimLeft(args[i], "-")] = n
		case "--allow-cidr":
			row["allowed_cidrs"] = []string{v}
		case "--dns":
			row["dns"] = v
		case "-v":
			f := strings.Split(v, ":")
			if fi, err := os.Stat(f[0]); err != nil || !fi.IsDir() {
				return fmt.Errorf("volume %s: not a directory (%v)", f[0], err)
			}
			mounts = append(mounts, []any{f[0], f[1], f[2] == "ro"})
		default:
			return fmt.Errorf("unexpected argument %q", args[i])
		}
	}
	row["mounts"] = mounts
	if len(s.how.Cidrs) > 0 {
		row["allowed_cidrs"] = s.how.Cidrs
	}
	for k, v := range s.how.Extra {
		row[k] = v
	}
	if s.how.NoDatabase {
		return nil
	}
	db, err := s.open()
	if err != nil || s.how.NoRow {
		return err
	}
	defer db.Close()
	b, err := json.Marshal(row)
	if err != nil {
		return err
	}
	_, err = db.Exec(`INSERT INTO vms VALUES (?, ?)`, row["name"], b)
	return err
}

// start boots a machine, which goes on.
func (s *stand) start(machine string) error {
	row, err := s.row(machine)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir(machine), 0o700); err != nil {
		return err
	}
	spawn := func(what string, attr *syscall.SysProcAttr) (*exec.Cmd, error) {
		c := exec.Command("/proc/self/exe", "standin", what, machine)
		c.Args[0] = standInName
		c.Env, c.SysProcAttr = os.Environ(), attr
		c.Stderr = os.Stderr
		return c, c.Start()
	}
	pass, err := spawn("pass", &syscall.SysProcAttr{Setsid: true})
	if err != nil {
		return err
	}
	attr := &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET}
	if s.how.Leaky || slices.Contains(row.Allowed, "127.0.0.0/8") {
		attr.Cloneflags &^= unix.CLONE_NEWNET
	}
	boot, err := spawn("boot", attr)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- boot.Wait() }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-ended:
			return fmt.Errorf("the machine ended: %v", err)
		default:
		}
		if _, err := os.Stat(filepath.Join(s.dir(machine), "exec")); err == nil {
			break
		}
		if time.Now().After(end) {
			return errors.New("the machine does not boot")
		}
	}
	fields := map[string]any{"state": "running", "pid": boot.Process.Pid, "x_passer": pass.Process.Pid}
	if s.how.NoPID {
		fields["pid"] = nil
	}
	for k, v := range s.how.StartChanges {
		fields[k] = v
	}
	if s.how.BootDies {
		return errors.Join(s.update(machine, fields), boot.Process.Kill(), pass.Process.Kill())
	}
	return s.update(machine, fields)
}

func (s *stand) stop(machine string) error {
	row, err := s.row(machine)
	if err != nil {
		return err
	}
	for _, pid := range []int{row.PID, row.Passer} {
		if pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return s.update(machine, map[string]any{"state": "stopped", "pid": nil})
}

func (s *stand) delete(machine string) error {
	_ = s.stop(machine)
	db, err := s.open()
	if err != nil {
		return err
	}
	defer db.Close()
	res, err := db.Exec(`DELETE FROM vms WHERE name = ?`, machine)
	if err != nil {
		return err
	}
	if n, _ := res.RowsAffected(); n != 1 {
		return fmt.Errorf("machine %q not found", machine)
	}
	return os.RemoveAll(s.dir(machine))
}

// pass connects a machine with the address that it may reach. It runs beside the machine.
func (s *stand) pass(machine string) error {
	row, err := s.row(machine)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(s.dir(machine), "net"))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			addr, _, _ := strings.Cut(row.Allowed[0], "/")
			up, err := net.Dial("tcp", net.JoinHostPort(addr, strconv.Itoa(proxyPort)))
			if err != nil {
				return
			}
			both(c, up)
		}()
	}
}

// both copies between two connections until both have ended.
func both(a, b net.Conn) {
	defer a.Close()
	defer b.Close()
	done := make(chan struct{})
	one := func(to, from net.Conn) {
		io.Copy(to, from)
		if h, ok := to.(interface{ CloseWrite() error }); ok {
			h.CloseWrite()
		}
	}
	go func() { defer close(done); one(a, b) }()
	one(b, a)
	<-done
}

// boot is the first process of a machine.
func (s *stand) boot(machine string) error {
	row, err := s.row(machine)
	if err != nil {
		return err
	}
	dir, err := unix.Open(s.dir(machine), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	l, err := net.Listen("unix", filepath.Join(s.dir(machine), "booting"))
	if err != nil {
		return err
	}
	if err := s.makeRoot(row.Mounts); err != nil {
		return err
	}
	if !s.how.Leaky && !s.how.Cut && len(row.Allowed) == 1 {
		if err := rtnet.Up("lo", 0); err != nil {
			return err
		}
		addr, _, _ := strings.Cut(row.Allowed[0], "/")
		inside, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(proxyPort)))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := inside.Accept()
				if err != nil {
					return
				}
				go func() {
					up, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d/net", dir))
					if err != nil {
						c.Close()
						return
					}
					both(c, up)
				}()
			}
		}()
	}
	// Ready: the socket gets its name.
	if err := unix.Renameat(dir, "booting", dir, "exec"); err != nil {
		return err
	}
	for {
		c, err := l.(*net.UnixListener).AcceptUnix()
		if err != nil {
			return err
		}
		go serveExec(c)
	}
}

// makeRoot gives the process a root of its own, with the volumes.
func (s *stand) makeRoot(mounts [][3]any) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "smolvm-root-")
	if err != nil {
		return err
	}
	if err := unix.Mount("root", root, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	for _, m := range mounts {
		at := root + m[1].(string)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m[0].(string), at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("volume %v: %w", m[0], err)
		}
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	for _, m := range []struct{ source, at, kind, data string }{
		{"proc", "/proc", "proc", ""}, {"sysfs", "/sys", "sysfs", ""}, {"cgroup", "/sys/fs/cgroup", "tmpfs", "mode=0755"},
		{"dev", "/dev", "tmpfs", "mode=0755"}, {"devpts", "/dev/pts", "devpts", "newinstance,ptmxmode=0666,mode=0620"},
	} {
		if err := os.MkdirAll(root+m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, root+m.at, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "urandom": 9} {
		if err := unix.Mknod(root+"/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			return err
		}
	}
	if err := os.Symlink("pts/ptmx", root+"/dev/ptmx"); err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	return os.Chdir("/")
}

// serveExec starts one command in the machine, with the descriptors that come along.
func serveExec(c *net.UnixConn) {
	defer c.Close()
	data, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := c.ReadMsgUnix(data, oob)
	if err != nil {
		return
	}
	var args []string
	if json.Unmarshal(data[:n], &args) != nil {
		return
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 3 {
		return
	}
	var files [3]*os.File
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		files[i] = os.NewFile(uintptr(fd), "stream")
		defer files[i].Close()
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	code := 126
	if err := cmd.Start(); err == nil {
		for _, f := range files {
			f.Close()
		}
		go func() { // the caller is gone
			c.Read(make([]byte, 1))
			cmd.Process.Kill()
		}()
		_ = cmd.Wait()
		code = cmd.ProcessState.ExitCode()
	}
	json.NewEncoder(c).Encode(code)
}

// exec has the machine start a command.
func (s *stand) exec(args []string) error {
	machine, interactive := args[1], args[2] == "-i"
	i := slices.Index(args, "--")
	counter := filepath.Join(s.dir(machine), "tries")
	if b, _ := os.ReadFile(counter); len(b) < s.how.Slow {
		os.WriteFile(counter, append(b, 'x'), 0o600)
		return errors.New("agent not ready")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(s.dir(machine), "exec"))
	if err != nil {
		return fmt.Errorf("machine %q is not running: %w", machine, err)
	}
	defer conn.Close()
	in := 0
	if !interactive {
		if in, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	b, err := json.Marshal(args[i+1:])
	if err != nil {
		return err
	}
	if _, _, err := conn.(*net.UnixConn).WriteMsgUnix(b, unix.UnixRights(in, 1, 2), nil); err != nil {
		return err
	}
	// Whoever reads our output must see its end with the command's.
	for fd := range 2 {
		unix.Close(fd)
	}
	var code int
	if err := json.NewDecoder(conn).Decode(&code); err != nil {
		return err
	}
	if code != 0 {
		return exitError(code)
	}
	return nil
}
