package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
)

// Where a repository keeps what judges its changes.
const (
	CatalogPath  = ".carboy/gate.yaml"
	BaselinePath = ".carboy/gate-baseline.json"
)

// Bounds of a catalog.
const (
	MaxSignals     = 100
	DefaultTimeout = 10 * time.Minute
	DefaultMemory  = 2 << 30
	DefaultPids    = 512
	DefaultDisk    = 4 << 30
	maxTimeout     = 24 * time.Hour
	maxMemory      = 1 << 40
)

// Limits bound one phase.
type Limits struct {
	Timeout time.Duration `json:"timeout_ns"`
	Memory  int64         `json:"memory"`
	Disk    int64         `json:"disk"`
	Pids    int64         `json:"pids"`
}

// Signal is one that a catalog asks for.
type Signal struct {
	Name string
	Kind *Kind
	Line int // in the catalog

	// Of kinds that run something.
	Command []string
	Env     []string // NAME=VALUE
	Limits  Limits
	After   []string // signals whose kept files are there when it runs
	Keep    []string // paths of the tree that later signals get, as it left them
	Network []string // what it may reach; nothing, as a rule
	// Warm are directories of the home inside with caches, which are kept of the base.
	Warm []string

	format  string // of its tests; empty: it has none
	freezes bool   // what signals run
	judge   judge
}

// Catalog is what a gate asks for. Only ParseCatalog makes one.
type Catalog struct {
	File   string // where it came from, for people
	Digest string // SHA-256 of its text, in hexadecimal digits

	Image, ImageDigest string // of every phase; empty: this machine's tools
	// Memory and Pids bound all phases together that run side by side.
	Memory, Pids int64
	Attempts     int
	Signals      []*Signal
}

var (
	signalName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`) })
	envName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`) })
)

// common are the keys of signals that run something.
var common = []string{"command", "env", "timeout", "memory", "disk", "pids", "after", "keep", "network", "warm"}

// ParseCatalog reads a catalog. The error is a document.Error: file, line and field of
// everything that is wrong.
func ParseCatalog(file string, data []byte) (*Catalog, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	c := &Catalog{File: file, Digest: hex.EncodeToString(sum[:])}
	m := top.Mapping("version", "image", "image_digest", "ceiling", "defaults", "attempts", "signals")
	if v := m.Need("version"); v.Present() && v.Int(0, 0, 1000) != 1 {
		v.Bad("is not a version that this carboy knows", "write version: 1")
	}
	c.Image, c.ImageDigest = m.Get("image").Text(), m.Get("image_digest").Text()
	if c.Image != "" && c.ImageDigest == "" {
		m.Get("image").Bad("has no digest", "pin it: image_digest: sha256:…, which carboy image pull prints")
	}
	ceiling := m.Get("ceiling").Mapping("memory", "pids")
	c.Memory, c.Pids = or(ceiling.Get("memory").Size(), 4<<30), ceiling.Get("pids").Int(1024, 1, 1<<20)
	c.Attempts = int(m.Get("attempts").Int(3, 1, 3))
	d := m.Get("defaults").Mapping("timeout", "memory", "disk", "pids", "env")
	def := limits(d, Limits{DefaultTimeout, DefaultMemory, DefaultDisk, DefaultPids})
	env := environ(d.Get("env"))
	list := m.Need("signals").List()
	if len(list) == 0 {
		m.Get("signals").Bad("asks for nothing", "a gate needs at least one signal; carboy gate init writes a catalog")
	}
	if len(list) > MaxSignals {
		m.Get("signals").Bad("has more signals than a gate takes", "")
		list = nil
	}
	for _, v := range list {
		if s := c.signal(v, def, env); s != nil {
			c.Signals = append(c.Signals, s)
		}
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func or(n, def int64) int64 {
	if n == 0 {
		return def
	}
	return n
}

func limits(m document.Mapping, def Limits) Limits {
	l := def
	if v := m.Get("timeout"); v.Present() {
		if l.Timeout = v.Duration(); l.Timeout > maxTimeout {
			v.Bad("is longer than a day", "")
		}
	}
	for key, to := range map[string]*int64{"memory": &l.Memory, "disk": &l.Disk} {
		if v := m.Get(key); v.Present() {
			if *to = v.Size(); *to > maxMemory {
				v.Bad("is more than a gate takes", "")
			}
		}
	}
	l.Pids = m.Get("pids").Int(l.Pids, 1, 1<<16)
	return l
}

func environ(v document.Value) []string {
	keys, values := v.Entries()
	var out []string
	for i, k := range keys {
		if !envName().MatchString(k) {
			values[i].Bad("is no variable's name", "")
			continue
		}
		text := values[i].Text()
		if strings.ContainsRune(text, 0) {
			values[i].Bad("has a NUL", "")
		}
		out = append(out, k+"="+text)
	}
	return out
}

func (c *Catalog) signal(v document.Value, def Limits, env []string) *Signal {
	// The kind says which keys there are, so it is read first, and alone.
	keys, values := v.Entries()
	i := slices.Index(keys, "kind")
	if i < 0 {
		v.Bad("has no kind", "kind is one of "+strings.Join(kindNames(), ", "))
		return nil
	}
	name := values[i].Text()
	k := kinds[name]
	if k == nil {
		tip := "there are " + strings.Join(kindNames(), ", ")
		if near := document.Nearest(name, kindNames()); near != "" {
			tip = "did you mean " + near + "?"
		}
		values[i].Bad("is no kind of signal", tip)
		return nil
	}
	known := append([]string{"name", "kind"}, k.Keys...)
	if k.Runs {
		known = append(known, common...)
	}
	m := v.Mapping(known...)
	s := &Signal{Name: m.Need("name").Text(), Kind: k, Line: v.Line()}
	switch {
	case !m.Get("name").Present():
	case !signalName().MatchString(s.Name):
		m.Get("name").Bad("is no signal's name", "small letters, digits and dashes, at most 40")
	case opinion(s.Name):
		m.Get("name").Bad("names an opinion", "a gate takes facts that were observed; name what is measured")
	case c.Signal(s.Name) != nil:
		m.Get("name").Bad("is there twice", "")
	}
	if k.Runs {
		c.running(s, m, def, env)
	}
	s.judge = k.parse(s, m)
	return s
}

func (c *Catalog) running(s *Signal, m document.Mapping, def Limits, env []string) {
	for _, a := range m.Need("command").List() {
		s.Command = append(s.Command, a.Text())
	}
	if m.Get("command").Present() && (len(s.Command) == 0 || s.Command[0] == "") {
		m.Get("command").Bad("is empty", "write the program and its arguments as a list: [make, test]")
	}
	s.Limits = limits(m, def)
	if s.Limits.Memory > c.Memory || s.Limits.Pids > c.Pids {
		m.Get("name").Bad("may use more than all phases together", "raise ceiling.memory and ceiling.pids, or lower the signal's own")
	}
	s.Env = append(slices.Clone(env), environ(m.Get("env"))...)
	s.Keep = relative(m.Get("keep"))
	s.Network = m.Get("network").Strings()
	s.Warm = relative(m.Get("warm"))
	slices.Sort(s.Warm)
	for i, p := range s.Warm {
		if i > 0 && below(p, s.Warm[i-1]) {
			m.Get("warm").Bad("has "+p+", which lies in "+s.Warm[i-1], "name the upper one alone")
		}
	}
	if len(s.Warm) > 0 && len(s.Network)+len(s.Keep) > 0 {
		m.Get("warm").Bad("stands beside network or keep", "what is fetched is asked for again each time, and what is kept is of one side: give the work that has a cache a signal of its own")
	}
	s.After = m.Get("after").Strings()
	for _, a := range s.After {
		if x := c.Signal(a); x == nil || len(x.Keep) == 0 {
			m.Get("after").Bad("names "+a+", which keeps nothing or comes later", "signals run in the catalog's order; give that one keep: [PATH]")
		}
	}
}

// relative reads paths of a tree.
func relative(v document.Value) []string {
	out := v.Strings()
	for _, p := range out {
		if badPath(p) != "" || path.Clean(p) == "." {
			v.Bad("has "+p+", which is no path of a tree", "")
		}
	}
	return out
}

// Signal finds one by its name, or nil.
func (c *Catalog) Signal(name string) *Signal {
	for _, s := range c.Signals {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func kindNames() []string {
	var out []string
	for _, k := range Kinds() {
		out = append(out, k.Name)
	}
	return out
}
