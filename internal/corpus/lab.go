package corpus

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt"
)

const (
	mib = 1 << 20
	// patience bounds one bottle's run; only a run that hangs reaches it.
	patience = 5 * time.Minute
)

// lab imitates a user's machine: with a state of its own, a workspace, planted things
// that an attacker would want, and observers that watch them.
type lab struct {
	ctx      context.Context
	client   *carboy.Client
	backend  string // of the client
	names    *nameServer
	issuer   *ca.Authority // of the certificates that the lab's servers show
	progress func(done int)

	dir       string // all of it
	state     string
	ws        string
	outside   string // a directory beside the workspace
	secret    string // a file there
	readOnly  string // given to bottles read-only
	program   string // the attacker's program, for all to read
	marker    string // how the token begins; the attacker knows it
	token     string // the rest of it; the attacker doesn't
	verdicts  map[string]verdict
	bottles   int
	closers   []func()
	variables map[string]string
}

// givenAt is the path of the read-only directory inside.
const givenAt = "/given"

func newLab(ctx context.Context, backend string) (*lab, error) {
	l := &lab{ctx: ctx, backend: backend, verdicts: map[string]verdict{}, names: &nameServer{names: map[string][]netip.Addr{}}}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *lab) build() error {
	var err error
	if l.dir, err = os.MkdirTemp("", "carboy-et-"); err != nil {
		return err
	}
	// A bottle of root's runs as nobody in particular: the walls must keep it
	// out, not the modes.
	if err := os.Chmod(l.dir, 0o755); err != nil {
		return err
	}
	l.state, l.ws, l.outside, l.readOnly = l.dir+"/s", l.dir+"/work", l.dir+"/outside", l.dir+"/given"
	for dir, mode := range map[string]fs.FileMode{l.state: 0o700, l.ws: 0o755, l.outside: 0o777, l.readOnly: 0o777, l.dir + "/r": 0o700, l.dir + "/c": 0o700} {
		if err := os.Mkdir(dir, mode); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
	}
	l.marker, l.token = "CARBOY-CANARY-"+random(4), random(16)
	l.secret = l.outside + "/secret"
	for path, text := range map[string]string{
		l.secret: l.marker + l.token, l.outside + "/f": "safe", l.readOnly + "/given": "given\n", l.ws + "/a.txt": "hello\n", l.ws + "/findme.txt": "findme\n",
	} {
		if err := plant(path, text, 0o644); err != nil {
			return err
		}
	}
	if err := l.copyProgram(); err != nil {
		return err
	}
	l.variables = map[string]string{"XDG_STATE_HOME": l.state, "XDG_RUNTIME_DIR": l.dir + "/r", "XDG_CONFIG_HOME": l.dir + "/c", "HOME": l.dir, "PATH": os.Getenv("PATH"), "USER": os.Getenv("USER")}
	if l.issuer, err = ca.New("escape test", time.Now); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(l.issuer.Certificate())
	l.client, err = carboy.Open(l.ctx, carboy.Options{Backend: l.backend, Roots: roots, Env: func(n string) string { return l.variables[n] }, Config: l.dir + "/c", Resolver: l.names})
	return err
}

func plant(path, text string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// copyProgram copies this program to where a bottle of root's may read it.
func (l *lab) copyProgram() error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	l.program = l.dir + "/attacker"
	out, err := os.OpenFile(l.program, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(0o755), out.Close())
}

// close stops the servers and removes everything.
func (l *lab) close() error {
	var err error
	if l.client != nil {
		err = l.client.Close()
	}
	for _, f := range slices.Backward(l.closers) {
		f()
	}
	if l.dir != "" {
		filepath.WalkDir(l.dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				os.Chmod(path, 0o700) // what landed may be locked
			}
			return nil
		})
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	return err
}

// ran holds one bottle's run and its use of the host.
type ran struct {
	rec      *receipt.Receipt
	err      error
	out, msg string
	peak     use
}

// ended describes how the run ended, for people.
func (r *ran) ended() string {
	if r.rec == nil {
		return fmt.Sprintf("no receipt: %v", r.err)
	}
	s := fmt.Sprintf("%s, code %d", r.rec.Exit.Reason, r.rec.Exit.Code)
	if r.err != nil {
		s += ": " + r.err.Error()
	}
	return s
}

func (r *ran) exited() bool {
	return r.err == nil && r.rec != nil && r.rec.Exit.Reason == receipt.Exited && r.rec.Exit.Code == 0
}

func (r *ran) hit(limit string) bool {
	return r.rec != nil && slices.ContainsFunc(r.rec.Limits.Hit, func(h receipt.Hit) bool { return h.Limit == limit })
}

func limits() bottle.Limits {
	return bottle.Limits{Timeout: patience, Memory: 512 * mib, Pids: 200, Disk: 256 * mib, Output: 16 * mib, OpenFiles: 1024, FileSize: 64 * mib, CPUs: 2}
}

// bottle runs a command in a bottle. With watch, it measures the bottle's use of the host
// meanwhile.
func (l *lab) bottle(watch bool, tune func(*carboy.RunOptions), command ...string) *ran {
	l.bottles++
	var out, msg buffer
	o := carboy.RunOptions{
		Command: command, Workspace: l.ws, Limits: limits(), Stdout: &out, Stderr: &msg,
		Mounts: []string{l.program + ":" + attacker.Path + ":ro"},
	}
	if tune != nil {
		tune(&o)
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	r := &ran{}
	if watch {
		stop := measure(&r.peak)
		defer stop()
	}
	r.rec, r.err = l.client.Run(ctx, o)
	r.out, r.msg = out.String(), msg.String()
	return r
}

// measure measures the use of the host until stop is called.
func measure(peak *use) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		for {
			u := below()
			peak.processes, peak.memory = max(peak.processes, u.processes), max(peak.memory, u.memory)
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() { close(end); <-done }
}

// attack runs the attacker's program in one bottle and judges by what it prints.
// Observers on the host come later.
func (l *lab) attack(chosen []attacker.Attack, w *attacker.World, tune func(*carboy.RunOptions)) (*ran, error) {
	return l.attackBy(chosen, w, func(in *os.File) *ran {
		return l.bottle(false, func(o *carboy.RunOptions) {
			o.Stdin = in
			o.Mounts = append(o.Mounts, l.readOnly+":"+givenAt+":ro")
			if tune != nil {
				tune(o)
			}
		}, attacker.Path, "attack")
	})
}

// attackBy does so in the bottle that run runs, with what to do as its input.
func (l *lab) attackBy(chosen []attacker.Attack, w *attacker.World, run func(in *os.File) *ran) (*ran, error) {
	for _, a := range chosen {
		w.Attacks = append(w.Attacks, a.ID)
	}
	in, err := pipeOf(w)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	r := run(in)
	if r.rec == nil {
		return nil, r.err
	}
	dec := json.NewDecoder(strings.NewReader(r.out))
	results := map[string]attacker.Result{}
	for {
		var res attacker.Result
		if dec.Decode(&res) != nil {
			break
		}
		results[res.ID] = res
	}
	for _, a := range chosen {
		res, ok := results[a.ID]
		if !ok {
			l.verdicts[a.ID] = untried("the attacker's program did not get there: %s %.300s", r.ended(), r.msg)
			continue
		}
		l.verdicts[a.ID] = l.judge(a, res)
	}
	return r, nil
}

func (l *lab) judge(a attacker.Attack, res attacker.Result) verdict {
	v := verdict{ways: res.Tries, took: res.Took}
	switch {
	case bytes.Contains(res.Evidence, []byte(l.token)):
		v.outcome, v.detail = Escaped, "it brought the text that was planted on the host"
	case res.Control != "":
		v.outcome, v.detail = Untried, "what must work did not: "+res.Control
	case res.Outcome == attacker.Done && a.Judge == attacker.ByToken:
		v.outcome, v.detail = Contained, "it brought something, which is not the host's"
	case res.Outcome == attacker.Done:
		v.outcome, v.detail = Escaped, fmt.Sprintf("it succeeded: %s %.200q", res.Detail, res.Evidence)
	case res.Outcome == attacker.Refused:
		v.outcome, v.detail = Contained, res.Detail
	default:
		v.outcome, v.detail = Untried, res.Detail
	}
	return v
}

// accuse notes that an observer saw one of the attacks succeed: it counts against those
// that report success, or against all if none does.
func (l *lab) accuse(what string, ids ...string) {
	var done []string
	for _, id := range ids {
		if l.verdicts[id].outcome == Escaped {
			done = append(done, id)
		}
	}
	if len(done) == 0 {
		done = ids
	}
	for _, id := range done {
		if v, ok := l.verdicts[id]; ok {
			v.outcome, v.detail = Escaped, what
			l.verdicts[id] = v
		}
	}
}

// doubt notes that an observer of the attacks was blind, so that none counts as contained.
func (l *lab) doubt(why string, ids ...string) {
	for _, id := range ids {
		if v, ok := l.verdicts[id]; ok && v.outcome == Contained {
			v.outcome, v.detail = Untried, why
			l.verdicts[id] = v
		}
	}
}

// judgedOf returns the ids of the judged attacks of families.
func (l *lab) judgedOf(families ...string) (out []string) {
	for id := range l.verdicts {
		f, _, _ := strings.Cut(id, "/")
		if slices.Contains(families, f) {
			out = append(out, id)
		}
	}
	return out
}

// pipeOf returns a pipe that holds v as JSON, for standard input.
func pipeOf(v any) (*os.File, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > 60<<10 {
		return nil, errors.New("more to tell the attacker than a pipe holds")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b)
	return r, errors.Join(err, w.Close())
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *buffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *buffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func blocks(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Blocks
	}
	return 0
}

func inode(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

func userKind() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "ordinary"
}
