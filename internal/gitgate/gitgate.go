// Package gitgate is the way by which code leaves a bottle: an http.Handler that
// speaks git's smart protocol for the repositories that a bottle declares, reads what
// is pushed, and holds the keys.
//
// What it promises:
//
//   - There is no mirror. A fetch is answered by upstream itself, in the same moment,
//     with the gate's key; so it shows upstream's state or fails.
//   - What is pushed lies in a directory of its own until every object of it was
//     checked by git and read by package scan; then exactly those bytes go on,
//     all references or none. What is refused is removed, and was never anywhere from
//     where it could be fetched.
//   - Requests and answers are parsed and written anew, in both directions; what is not
//     of git's protocol ends with an error.
//   - Upstream is bounded in time, silence and bytes. A host whose key is not pinned is
//     not spoken to.
//   - No credential of an upstream is ever part of an answer.
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
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

// Host is the gate's name inside a bottle.
const Host = "git.carboy.internal"

// A Repo is one upstream repository of a bottle.
type Repo struct {
	// Name is letters, digits and "-_.", at most 100, not beginning with "-" or ".":
	// the gate serves it at /<Name>.git.
	Name string
	// URL is ssh://, scp-like (user@host:path), https://, file:// or an absolute path.
	// It holds no password. http:// is admitted for loopback addresses.
	URL string
	// Aliases are further names of the URL's host that a bottle may use for it; see
	// Rewrites.
	Aliases []string
	// SSH is how the gate proves itself, and how it knows the host; needed by ssh.
	SSH *SSHAccess
	// Token is put on requests by https, as the password of TokenUser. An empty
	// TokenUser is "x-access-token", which GitHub documents and the others take.
	Token     secret.Value
	TokenUser string
}

// SSHAccess is how the gate logs in. A host that shows none of HostKeys is not
// spoken to, and without any nobody is.
type SSHAccess struct {
	Signer   ssh.Signer
	HostKeys []ssh.PublicKey
}

// Limits bound what a bottle and an upstream can cause. Zero is the default.
type Limits struct {
	Pack       int64         // bytes of one push; 1 GiB
	Unpacked   int64         // bytes of its objects, written out; 16 GiB
	Objects    int           // of one push; 1,000,000
	Refs       int           // changed by one push; 1,000
	Advert     int64         // bytes of the list of references; 64 MiB
	Request    int64         // bytes of a request to fetch, unpacked; 8 MiB
	Fetch      int64         // bytes of an answer; 64 GiB
	Idle       time.Duration // without a byte from upstream; 2 min
	Connect    time.Duration // to reach upstream, proof of keys included; 20 s
	Time       time.Duration // of one exchange, waiting for people apart; 1 h
	Check      time.Duration // of git at one push: to unpack it, to read it out; 15 min
	Concurrent int           // requests; 128. Of pushes, two are looked at and eight kept at a time
}

// maxKept pushes lie on the disk at once.
const maxKept = 8

func (l *Limits) fill() {
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

// Config is what a Gate needs. Everything but Dir, Repos and Git may be left out.
type Config struct {
	// Dir is an existing directory of the host, of mode 0700, that is this bottle's
	// alone and that nothing inside sees. What an earlier Gate left in it is removed.
	Dir   string
	Repos []Repo
	// Git runs git on the host.
	Git *hostexec.Runner
	// Ask has a person decide on a finding whose line says gitleaks:allow. It returns
	// who approved that, and otherwise why not, in words for the bottle. It
	// waits until then or the end of ctx; the push waits with it. nil: refused.
	Ask func(ctx context.Context, a Allow) (by string, err error)
	// Secrets are looked for in what is pushed, by value and by their names here.
	Secrets func() map[string]secret.Value
	// Coverage is the bottle's memory of what pieces of secrets have left it; nil: the
	// gate has one of its own.
	Coverage *scan.Coverage
	// Observe is told of each exchange when it is over, perhaps by several goroutines
	// at once.
	Observe func(Event)
	Limits  Limits
	// Roots are the certificates that https upstreams are verified by; nil: the
	// system's.
	Roots *x509.CertPool
}

// Allow is what a person is asked: may this line go, which says that it may?
type Allow struct {
	Repo, Ref    string // Ref is one of those pushed that the commit is for
	Commit, File string // both visible
	Line         int    // from 1
	Rule         string
	Text         string       // the line, visible, with what was found masked
	Code         secret.Value // the line as it is
}

// A Gate serves the repositories of one bottle. It may be used concurrently.
type Gate struct {
	cfg      Config
	repos    map[string]*repo
	coverage *scan.Coverage
	spare    *scan.Spare
	slots    chan struct{} // one for each exchange
	pushes   chan struct{} // one for each push that is looked at
	kept     chan struct{} // one for each push on the disk, those that wait for a person included

	aheadFrom int // as the constant; tests read ahead from the first byte

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	busy   sync.WaitGroup
}

// repo is a declared repository and the way to it.
type repo struct {
	name string
	up   upstream
	base baseObjects
	// offer is the last that upstream made for a push; its references are old.
	offer atomic.Pointer[offer]
}

// New checks the configuration, and removes what a Gate that was killed left in Dir.
// It speaks to no upstream.
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
			return nil, fmt.Errorf("gitgate: repository %q: %w", visible.String(r.Name, 120), err)
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

// clean leaves nothing of an earlier gate in dir.
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
			return errors.New("a name is letters, digits, hyphens, underscores and dots")
		}
	}
	return nil
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Close refuses what comes, ends what is under way and lets go of upstreams.
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

// enter counts an exchange, unless the gate is closed or full.
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

// ServeHTTP answers at /<name>.git/info/refs, /git-upload-pack and /git-receive-pack.
// Whose request it is, and for which host, is the caller's to know.
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
	case r.Method != method && known[what]:
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

var known = map[string]bool{"info/refs": true, uploadPack: true, receivePack: true}

// splitPath takes /<name>.git/<what> apart. Clones of "….git/" have two slashes.
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

// plain answers in a form that git shows as "remote: …".
func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}
