package hostile

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// peer is a TCP server that does with each connection what its first line says.
type peer struct {
	port string
	last chan string // how the last watched connection ended; room for one
}

func newPeer(t *testing.T) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p := &peer{port: port, last: make(chan string, 1)}
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(c.(*net.TCPConn)) // ends with its client
		}
	}()
	return p
}

func (p *peer) serve(c *net.TCPConn) {
	defer c.Close()
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	verb, arg, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, _ := strconv.Atoi(arg)
	switch verb {
	case "echo":
		_, _ = io.Copy(c, r)
	case "half": // tells what it got once nothing more comes
		h := sha256.New()
		got, _ := io.Copy(h, r)
		fmt.Fprintf(c, "%d %x\n", got, h.Sum(nil))
	case "send": // and ends in order
		_, _ = c.Write(pattern(n))
	case "first": // ends its side first, and then reads
		p.forget()
		_, _ = c.Write(pattern(n))
		_ = c.CloseWrite()
		p.watch(r)
	case "cut": // n bytes, a byte from the client, a reset
		_, _ = c.Write(pattern(n))
		_, _ = r.ReadByte()
		_ = c.SetLinger(0)
	case "slow": // reads nothing for a while
		p.forget()
		time.Sleep(200 * time.Millisecond)
		p.watch(r)
	case "watch":
		p.forget()
		fmt.Fprint(c, "ok")
		p.watch(r)
	case "last":
		select {
		case s := <-p.last:
			p.keep(s) // for who asks again
			fmt.Fprintln(c, s)
		case <-time.After(30 * time.Second):
			fmt.Fprintln(c, "nothing")
		}
	}
}

// keep fills last, if it is empty.
func (p *peer) keep(s string) {
	select {
	case p.last <- s:
	default:
	}
}

// forget empties last.
func (p *peer) forget() {
	select {
	case <-p.last:
	default:
	}
}

func (p *peer) watch(r io.Reader) {
	n, err := io.Copy(io.Discard, r)
	s := fmt.Sprintf("end after %d", n)
	if errors.Is(err, syscall.ECONNRESET) {
		s = "reset"
	}
	p.forget()
	p.keep(s)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// socketScript uses sockets in all the ways that programs do, and prints what it
// saw; nothing of it depends on time or on where it runs.
const socketScript = `import errno, fcntl, hashlib, os, select, socket, struct, sys, termios, threading, time
host, port, closed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
addr = (socket.gethostbyname(host), port)
def say(*a): print(*a, flush=True)
def name(e): return errno.errorcode.get(e.errno, str(e))
def new(line="echo", **k):
    s = socket.create_connection(addr, **k); s.settimeout(60); s.sendall(line.encode() + b"\n"); return s
def all(s):
    h, n = hashlib.sha256(), 0
    while True:
        try: b = s.recv(65536)
        except OSError as e: return n, name(e)
        if not b: return n, h.hexdigest()
        h.update(b); n += len(b)
def exact(s, n):
    b = b""
    while len(b) < n:
        m = s.recv(n - len(b))
        if not m: break
        b += m
    return b
def last(): return new("last").makefile().readline().strip()

s = new(); s.sendall(b"hello"); say("echo", exact(s, 5))
say("names", s.getpeername() == addr, s.getsockname()[1] > 0, s.getsockname()[0] != "0.0.0.0")
for what, f in (("connect", lambda: s.connect(addr)), ("bind", lambda: s.bind(("", 0))), ("listen", lambda: s.listen())):
    try: f(); say(what, "again")
    except OSError as e: say(what, name(e))
s.setblocking(False)
try: s.recv(1)
except OSError as e: say("empty", name(e))
s.settimeout(0.05)
try: s.recv(1)
except OSError as e: say("timeout", type(e).__name__)
s.settimeout(60); s.sendall(b"abcdef"); time.sleep(.05)
say("peek", s.recv(3, socket.MSG_PEEK), s.recv(1)); exact(s, 2)
while struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0" * 4))[0] < 3: time.sleep(.01)
say("fionread", struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0" * 4))[0], exact(s, 3))
s.setblocking(True); s.sendall(b"x" * 100000); say("waitall", len(s.recv(100000, socket.MSG_WAITALL)))
for o in ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE)):
    s.setsockopt(*o, 1); say("option", s.getsockopt(*o) != 0)
say("error", s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "state", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0])
d = os.dup(s.fileno()); s.close(); d = socket.socket(fileno=d); d.setblocking(True); d.sendall(b"dup"); say("dup", exact(d, 3))
pid = os.fork()
if pid == 0: d.sendall(b"child"); os._exit(0)
os.waitpid(pid, 0); say("fork", exact(d, 5)); d.close()

s = new("half"); s.sendall(b"0123456789" * 200000); s.shutdown(socket.SHUT_WR); say("half", s.makefile().readline().strip())
try: s.send(b"x"); say("send after shutdown")
except OSError as e: say("send after shutdown", name(e))
say("send", *all(new("send 5000000")))
s = new("send 300000"); time.sleep(.2); got = []
while True:
    b = s.recv(1000)
    if not b: break
    got.append(b)
say("slowly", sum(map(len, got)), hashlib.sha256(b"".join(got)).hexdigest())
s = new("first 10"); say("first", exact(s, 10), s.recv(1)); s.sendall(b"y" * 1000); s.close(); say(last())
s = new("cut 10"); say("cut", exact(s, 10)); s.sendall(b"!"); say(*all(s)); say("then", s.recv(1))
s = new("cut 10"); exact(s, 10); s.sendall(b"!")
p = select.poll(); p.register(s, select.POLLIN | select.POLLRDHUP)
for i in range(500): # the host shows it in two steps
    hup = p.poll(60000)[0][1] & select.POLLHUP
    if hup: break
    time.sleep(.01)
say("cut poll", bool(hup))
say("cut error", errno.errorcode.get(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
try: s.send(b"x"); say("send after cut")
except OSError as e: say("send after cut", name(e))

def hungup(s):
    p = select.poll(); p.register(s, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
    for i in range(500):
        m = p.poll(60000)[0][1]
        if m & select.POLLHUP: return m & ~0x2000 # the end may be seen before the reset
        time.sleep(.01)
def cut(): # with bytes that nobody has read
    s = new("cut 10"); s.recv(1, socket.MSG_PEEK); s.sendall(b"!"); return s, hungup(s)
s, m = cut(); say("cut over unread bytes", hex(m))
try: s.send(b"x"); say("sent")
except OSError as e: say("send", name(e))
try: s.send(b"x"); say("sent")
except OSError as e: say("send again", name(e))
say("there still", exact(s, 10), s.recv(1))
s, m = cut(); say("error", errno.errorcode.get(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), exact(s, 10), s.recv(1))
s, m = cut(); say("drain first", exact(s, 10)); say(*all(s))
s = new("first 10"); exact(s, 10); say(s.recv(1)); s.shutdown(socket.SHUT_WR)
for i in range(500): # the host knows of the other side's answer a moment later
    try: s.shutdown(socket.SHUT_WR); time.sleep(.01)
    except OSError as e: say("shutdown again", name(e)); break
s.close(); say(last())
for a in ("255.255.255.255", "224.0.0.1"):
    try: socket.socket().connect((a, 80)); say("connected to", a)
    except OSError as e: say(a, name(e))

def watch(): s = new("watch"); exact(s, 2); return s
s = watch(); s.sendall(b"z" * 70000); s.close(); say("close", last())
s = watch(); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); s.close(); say("linger", last())
s = watch(); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5)); s.sendall(b"z"); s.close(); say("linger", last())
s = watch(); s.shutdown(socket.SHUT_RDWR); say("shutdown", last(), s.recv(1)); s.close()
s = new("watch"); select.select([s], [], [], 60); s.close(); say("unread", last())
s = watch(); p = os.fork()
if p == 0: os.kill(os.getpid(), 9)
os.waitpid(p, 0); s.sendall(b"q"); s.close(); say("survives", last())

s = socket.socket()
try: s.connect((addr[0], closed))
except OSError as e: say("refused", name(e))
s = socket.socket(); s.setblocking(False)
e = s.connect_ex((addr[0], closed))
if e == errno.EINPROGRESS:
    p = select.poll(); p.register(s, select.POLLOUT); p.poll(60000); e = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
say("refused later", errno.errorcode[e], s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
s = socket.socket(); s.setblocking(False); say("connect", s.connect_ex(addr) in (0, errno.EINPROGRESS))
p = select.poll(); p.register(s, select.POLLOUT); say("poll", p.poll(60000)[0][1] == select.POLLOUT, s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
s.close()
s = socket.socket(); s.bind(("", 0)); mine = s.getsockname()[1]; s.connect(addr); say("bound", s.getsockname()[1] == mine); s.close()
s = socket.socket(socket.AF_INET6); s.connect(("::ffff:" + addr[0], port)); say("mapped", s.getpeername()[0] == "::ffff:" + addr[0], s.getsockname()[0].startswith("::ffff:"))
s.sendall(b"echo\nhi"); say(exact(s, 2)); s.close()
s = socket.socket(socket.AF_INET6); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
try: s.connect(("::ffff:" + addr[0], port)); say("v6only connected")
except OSError as e: say("v6only refused")
for f in (lambda s: s.recv(1), lambda s: s.getpeername(), lambda s: s.shutdown(socket.SHUT_RD)):
    try: f(socket.socket())
    except OSError as e: say("unconnected", name(e))

s = new(); t = threading.Timer(.1, lambda: s.shutdown(socket.SHUT_RDWR)); t.start(); say("woken", s.recv(1)); t.join(); s.close()
s = new(); s.shutdown(socket.SHUT_RD); say("shut for reading", s.recv(1)); s.close()
s = new(); s.setblocking(False); ep = select.epoll(); ep.register(s, select.EPOLLIN | select.EPOLLET); n = 0
for i in range(500):
    s.send(b"p"); ep.poll(60); n += len(s.recv(10))
say("edges", n); s.close()
s = new(); s.setblocking(False); ep = select.epoll(); ep.register(s, select.EPOLLIN | select.EPOLLET); n = 0
s.send(b"ab"); ep.poll(60)
while struct.unpack("i", fcntl.ioctl(s, termios.FIONREAD, b"\0" * 4))[0] < 2: time.sleep(.01)
s.recv(1); s.send(b"c"); say("edge over unread bytes", bool(ep.poll(60))); s.close()
s = new("slow"); s.setblocking(False); n = 0
try:
    while True: n += s.send(b"w" * 65536)
except BlockingIOError: pass
select.select([], [s], [], 60); say("writable", s.send(b"w") == 1); n += 1; s.close(); e = last(); say("all", e == "end after %d" % n or (e, n))
f = open("big", "wb"); f.write(bytes(range(256)) * 4096); f.close(); f = open("big", "rb")
s = new("half"); s.setblocking(True); o = 0
while o < 1 << 20: o += os.sendfile(s.fileno(), f.fileno(), o, (1 << 20) - o)
s.shutdown(socket.SHUT_WR); say("sendfile", s.makefile().readline().strip())
many = [new() for i in range(300)]
for i, s in enumerate(many): s.sendall(b"%d" % i)
say("many", sum(int(exact(s, len(str(i)))) == i for i, s in enumerate(many)))
for s in many: s.close()
many = []
def both(i):
    s = new(); n = 0
    def send():
        for _ in range(50): s.sendall(bytes([i]) * 40000)
        s.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send); t.start(); b = b""
    while True:
        m = s.recv(1 << 16)
        if not m: break
        b += m
    t.join(); many.append(b == bytes([i]) * 2000000)
ts = [threading.Thread(target=both, args=(i,)) for i in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]; say("both ways", many.count(True))
l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(); c = socket.create_connection(l.getsockname()); a, _ = l.accept(); c.sendall(b"own"); say("loopback", exact(a, 3))
`

// TestW3ConnectionsAsOutside: what programs see of a connection in a bottle is
// what they see of one outside, word by word: above all that one that was cut
// off does not look as if it had come to its end.
func TestW3ConnectionsAsOutside(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	p := newPeer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, closed, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	file := filepath.Join(t.TempDir(), "sockets.py")
	if err := os.WriteFile(file, []byte(socketScript), 0o644); err != nil {
		t.Fatal(err)
	}
	native := exec.Command("python3", file, "127.0.0.1", p.port, closed)
	native.Dir = t.TempDir()
	out, err := native.CombinedOutput()
	if err != nil {
		t.Fatalf("outside: %v\n%s", err, out)
	}
	h := newHost(t)
	h.write("sockets.py", socketScript)
	x := h.run(private("host.carboy.internal:"+p.port+"/tcp"), "/usr/bin/python3", "sockets.py", "host.carboy.internal", p.port, closed)
	if x.out == string(out) {
		return
	}
	want, got := strings.Split(string(out), "\n"), strings.Split(x.out, "\n")
	for i := range max(len(want), len(got)) {
		var w, g string
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			t.Errorf("line %d: inside %q, outside %q", i+1, g, w)
		}
	}
	t.Logf("%s", x.msg)
}
