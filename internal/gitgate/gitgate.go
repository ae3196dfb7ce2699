// Package gitgate is the way by which code leaves a bottle: an http.Handler that speaks
// git's smart protocol for the repositories that a bottle declares. It scans pushes for
// secrets, and holds the keys of upstreams.
//
// The package guarantees:
//
//   - There is no mirror. Upstream itself answers each fetch, at that moment and with the
//     gate's key. So a fetch shows upstream's present state, or fails.
//   - A push lies in a directory of its own until git has checked and package scan has read
//     each of its objects. Then exactly these bytes go on, with all references or none. A
//     refused push is removed, and was never where anybody could fetch it.
//   - Requests and answers are parsed and written anew, in both directions. Anything that
//     is not git's protocol is an error.
//   - Upstream is bounded in time, silence and bytes. The gate does not talk to a host whose
//     key is not pinned.
//   - No answer ever holds a credential of an upstream.
//
// Start reading at Gate.ServeHTTP, then fetch.go and push.go.
package gitgate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// Host is the gate's name inside a bottle.
const Host = "git.carboy.internal"

// Repo is one upstream repository of a bottle.
type Repo struct {
	// Name has letters, digits and "-_.", at most 100, and does not begin with "-" or ".".
	// The gate serves the repository at /<Name>.git.
	Name string
	// URL is ssh://, scp-like (user@host:path), https://, file:// or an absolute path. It
	// must not hold a password. http:// is allowed for loopback addresses.
	URL string
	// Aliases are other names of the URL's host that a bottle may use; see Rewrites.
	Aliases []string
	// SSH holds the keys for an ssh upstream, which needs it.
	SSH *SSHAccess
	// Token is sent on https requests, as the password of TokenUser. An empty TokenUser
	// means "x-access-token", which GitHub documents and other forges accept.
	Token     secret.Value
	TokenUser string
}

// SSHAccess holds the gate's key and the keys of the host. The gate does not talk to a host
// that has none of HostKeys.
type SSHAccess struct {
	Signer   ssh.Signer
	HostKeys []ssh.PublicKey
}

// Bounds limits what a bottle and an upstream can cause. Zero means the default, which is
// given at each field.
type Bounds struct {
	Pack       int64         // bytes of one push; 1 GiB
	Unpacked   int64         // bytes of its unpacked objects; 16 GiB
	Objects    int           // of one push; 1,000,000
	Refs       int           // changed by one push; 1,000
	Advert     int64         // bytes of the list of references; 64 MiB
	Request    int64         // bytes of a request to fetch, unpacked; 8 MiB
	Fetch      int64         // bytes of an answer; 64 GiB
	Idle       time.Duration // without a byte from upstream; 2 min
	Connect    time.Duration // to reach upstream and authenticate; 20 s
	Time       time.Duration // of one exchange, without the wait for a person; 1 h
	Check      time.Duration // of one git process that unpacks or reads a push; 15 min
	Concurrent int           // requests; 128. At a time, two pushes are scanned and eight kept
}

// maxKept bounds the pushes that are on disk at a time.
const maxKept = 8

func (l *Bounds) fill() {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&l.Pack, 1<<30)
	def(&l.Unpacked, 16<<30)
	def(&l.Advert, 64<<20)
	def(&l.Request, 8<<20)
	def(&l.Fetch, 64<<30)
	def((*int64)(&l.Idle), int64(2*time.Minute))
	def((*int64)(&l.Connect), int64(20*time.Second))
	def((*int64)(&l.Time), int64(time.Hour))
	def((*int64)(&l.Check), int64(15*time.Minute))
	if l.Objects == 0 {
		l.Objects = 1_000_000
	}
	if l.Refs == 0 {
		l.Refs = 1000
	}
	if l.Concurrent == 0 {
		l.Concurrent = 128
	}
}

// Config configures a Gate. Only Dir, Repos and Git are required.
type Config struct {
	// Dir is an existing directory of the host, with mode 0700. It belongs to this bottle
	// alone and is not visible inside. New removes the files of an earlier Gate.
	Dir   string
	Repos []Repo
	// Git runs git on the host.
	Git *hostexec.Runner
	// Ask asks a person about a finding whose line says gitleaks:allow, or that has no place
	// for that. It returns who approved it, or an error that says why not, with a text for the bottle. It blocks
	// until then or until ctx ends, and the push waits. nil refuses all.
	Ask func(ctx context.Context, a Allow) (by string, err error)
	// Secrets returns known secrets, by their names on the host. A push is scanned for
	// their values.
	Secrets func() map[string]secret.Value
	// Coverage remembers which pieces of secrets have left the bottle. nil means one of the
	// gate's own.
	Coverage *scan.Coverage
	// Observe is called after each exchange, possibly from several goroutines at once.
	Observe func(Event)
	Limits  Bounds
	// Roots are the certificates that verify https upstreams. nil means the system's.
	Roots *x509.CertPool
}

// Allow is the question to a person: may this line, or all such keys in this file, leave?
type Allow struct {
	Repo, Ref    string // Ref is a pushed reference that leads to the commit
	Commit, File string // both visible
	Line         int    // from 1; the first
	Rule         string
	Text         string       // the line, made visible, with the finding masked; of a key its kind and lines
	Code         secret.Value // the lines as they are
}

// Gate serves the repositories of one bottle. Several goroutines may use it at once.
type Gate struct {
	cfg      Config
	repos    map[string]*repo
	coverage *scan.Coverage
	spare    *scan.Spare
	slots    chan struct{} // holds one for each exchange
	pushes   chan struct{} // holds one for each push that is being scanned
	kept     chan struct{} // holds one for each push on disk, including those that wait for a person

	aheadFrom int // the constant; tests lower it to read ahead from the first byte

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	busy   sync.WaitGroup
}

// repo is a declared repository and its upstream.
type repo struct {
	name string
	up   upstream
	base baseObjects
	// offer is the last advertisement for a push. Its references may be outdated.
	offer atomic.Pointer[offer]
}

// New returns a Gate, after checking the configuration and removing what a killed Gate left
// in Dir. It does not connect to upstreams.
func New(cfg Config) (*Gate, error) {
	cfg.Limits.fill()
	if cfg.Git == nil {
		return nil, errors.New("gitgate: no runner for git")
	}
	if err := clean(cfg.Dir); err != nil {
		return nil, fmt.Errorf("gitgate: %w", err)
	}
	g := &Gate{
		cfg: cfg, repos: map[string]*repo{}, coverage: cfg.Coverage, spare: scan.NewSpare(time.Now),
		slots: make(chan struct{}, cfg.Limits.Concurrent), pushes: make(chan struct{}, 2), kept: make(chan struct{}, maxKept),
		aheadFrom: aheadFrom,
	}
	if g.coverage == nil {
		g.coverage = scan.NewCoverage()
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for _, r := range cfg.Repos {
		if err := checkName(r.Name); err != nil {
			return nil, fmt.Errorf("gitgate: repository %q: %w", safetext.String(r.Name, 120), err)
		}
		if g.repos[r.Name] != nil {
			return nil, fmt.Errorf("gitgate: repository %q is declared twice", r.Name)
		}
		up, err := newUpstream(r, &g.cfg)
		if err != nil {
			return nil, fmt.Errorf("gitgate: repository %q: %w", r.Name, err)
		}
		g.repos[r.Name] = &repo{name: r.Name, up: up, base: baseObjects{dir: filepath.Join(cfg.Dir, "base-"+r.Name)}}
	}
	return g, nil
}

// clean removes the files of an earlier gate from dir.
func clean(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return fmt.Errorf("directory %q is not a clean absolute path", dir)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s is not a directory that is closed to others: chmod 700 it", dir)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if strings.HasPrefix(e.Name(), "push-") || strings.HasPrefix(e.Name(), "base-") {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkName(s string) error {
	if s == "" || len(s) > 100 || s[0] == '.' || s[0] == '-' || strings.HasSuffix(s, ".git") {
		return errors.New("a name has 1 to 100 characters, does not begin with a dot or a hyphen and does not end in .git")
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '-' && c != '_' && c != '.' {
			return errors.New("a name has letters, digits, hyphens, underscores and dots only")
		}
	}
	return nil
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Close ends the running exchanges, closes the upstreams, and refuses later requests.
func (g *Gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.busy.Wait()
	var errs []error
	for _, r := range g.repos {
		errs = append(errs, r.up.Close())
	}
	return errors.Join(append(errs, clean(g.cfg.Dir))...)
}

// enter admits an exchange, unless the gate is closed or full.
func (g *Gate) enter() (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errors.New("the git gate is closed")
	}
	select {
	case g.slots <- struct{}{}:
	default:
		return nil, fmt.Errorf("the git gate serves %d requests already: try again when some are done", cap(g.slots))
	}
	g.busy.Add(1)
	return func() { <-g.slots; g.busy.Done() }, nil
}

// ServeHTTP serves /<name>.git/info/refs, /git-upload-pack and /git-receive-pack. The
// caller must check where a request comes from, and for which host it is.
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	name, what, ok := splitPath(r.URL.Path)
	rp := g.repos[name]
	if !ok || rp == nil || r.URL.RawPath != "" {
		g.notFound(w, name)
		return
	}
	if isLFS(what) {
		refuseLFS(w)
		return
	}
	leave, err := g.enter()
	if err != nil {
		plain(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer leave()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	r = r.WithContext(ctx)
	method := http.MethodPost
	if what == "info/refs" {
		method = http.MethodGet
	}
	switch {
	case r.Method != method && services[what]:
		w.Header().Set("Allow", method)
		plain(w, http.StatusMethodNotAllowed, "git does not ask like this")
	case what == "info/refs":
		g.advertise(w, r, rp)
	case what == uploadPack:
		g.fetch(w, r, rp)
	case what == receivePack:
		g.push(w, r, rp)
	default:
		plain(w, http.StatusForbidden, "the git gate speaks git's smart protocol only: nothing is here but git fetch and git push")
	}
}

const (
	uploadPack  = "git-upload-pack"
	receivePack = "git-receive-pack"
)

var services = map[string]bool{"info/refs": true, uploadPack: true, receivePack: true}

// splitPath splits /<name>.git/<service>. A clone of "….git/" sends two slashes.
func splitPath(p string) (name, what string, ok bool) {
	p, ok = strings.CutPrefix(p, "/")
	name, what, found := strings.Cut(p, ".git/")
	return name, strings.TrimPrefix(what, "/"), ok && found && !strings.Contains(name, "/")
}

func (g *Gate) notFound(w http.ResponseWriter, name string) {
	var have []string
	for n := range g.repos {
		have = append(have, n)
	}
	text := "this bottle declares no such repository"
	if checkName(name) == nil {
		text = fmt.Sprintf("this bottle declares no repository %q", name)
	}
	if len(have) > 0 {
		text += ": it has " + joined(have)
	}
	plain(w, http.StatusNotFound, text+". Declare it in the bottle's git-gate.repos")
}

// plain answers with a text that git shows as "remote: …".
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}
