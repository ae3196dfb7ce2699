package gate

import (
	"cmp"
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

// Files of a repository that decide how its changes are judged.
const (
	CatalogPath  = ".carboy/gate.yaml"
	BaselinePath = ".carboy/gate-baseline.json"
)

// Defaults and bounds of a catalog. Sizes are in bytes.
const (
	maxSignals     = 100
	defaultTimeout = 10 * time.Minute
	defaultMemory  = 2 << 30
	defaultPids    = 512
	defaultDisk    = 4 << 30
	maxTimeout     = 24 * time.Hour
	maxMemory      = 1 << 40
)

// PhaseLimits bounds one phase. Memory and Disk are in bytes.
type PhaseLimits struct {
	Timeout time.Duration `json:"timeout_ns"`
	Memory  int64         `json:"memory"`
	Disk    int64         `json:"disk"`
	Pids    int64         `json:"pids"`
}

// Signal is a signal of a catalog.
type Signal struct {
	Name string
	Kind *SignalKind
	Line int // line in the catalog

	// Only kinds that run a command have the following fields.
	Command []string
	Env     []string // NAME=VALUE
	Limits  PhaseLimits
	After   []string // signals whose kept files it starts with
	Keep    []string // paths of the tree that later signals start with
	Network []string // what it may reach; usually nothing
	// Warm lists cache directories, relative to the home inside, that start with what the
	// base's phase left in them.
	Warm []string

	format   string // of its test report; empty: it has none
	freezes  bool   // the change may not touch control files
	evaluate evaluator
}

// Catalog lists the signals of a gate. Only ParseCatalog makes one.
type Catalog struct {
	File   string // its source, for people
	Digest string // SHA-256 of its text, in hexadecimal digits

	Image, ImageDigest string // the image of every phase; empty: this machine's tools
	// Memory, in bytes, and Pids bound all phases that run at once, together.
	Memory, Pids int64
	Attempts     int
	Signals      []*Signal
}

var (
	signalName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`) })
	envName    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`) })
)

// commandKeys are the keys of signals that run a command.
var commandKeys = []string{"command", "env", "timeout", "memory", "disk", "pids", "after", "keep", "network", "warm"}

// ParseCatalog reads a catalog. Its error is a document.Error, which lists every mistake
// by file, line and field.
func ParseCatalog(file string, data []byte) (*Catalog, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	c := &Catalog{File: file, Digest: hex.EncodeToString(sum[:])}
	m := top.Mapping("version", "image", "image_digest", "ceiling", "defaults", "attempts", "signals")
	if v := m.Need("version"); v.Present() && v.Int(0, 0, 1000) != 1 {
		v.Bad("is not a version that this carboy supports", "write version: 1")
	}
	c.Image, c.ImageDigest = m.Get("image").Text(), m.Get("image_digest").Text()
	if c.Image != "" && c.ImageDigest == "" {
		m.Get("image").Bad("has no digest", "pin it: image_digest: sha256:…, which carboy image pull prints")
	}
	ceiling := m.Get("ceiling").Mapping("memory", "pids")
	c.Memory, c.Pids = cmp.Or(ceiling.Get("memory").Size(), 4<<30), ceiling.Get("pids").Int(1024, 1, 1<<20)
	c.Attempts = int(m.Get("attempts").Int(3, 1, 3))
	d := m.Get("defaults").Mapping("timeout", "memory", "disk", "pids", "env")
	def := parseLimits(d, PhaseLimits{defaultTimeout, defaultMemory, defaultDisk, defaultPids})
	env := parseEnviron(d.Get("env"))
	list := m.Need("signals").List()
	if len(list) == 0 {
		m.Get("signals").Bad("asks for nothing", "a gate needs at least one signal; carboy gate init writes a catalog")
	}
	if len(list) > maxSignals {
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

func parseLimits(m document.Mapping, def PhaseLimits) PhaseLimits {
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

func parseEnviron(v document.Value) []string {
	keys, values := v.Entries()
	var out []string
	for i, k := range keys {
		if !envName().MatchString(k) {
			values[i].Bad("is not a variable name", "")
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

func (c *Catalog) signal(v document.Value, def PhaseLimits, env []string) *Signal {
	// The kind decides which keys are known, so it is read first.
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
		values[i].Bad("is not a kind of signal", tip)
		return nil
	}
	known := append([]string{"name", "kind"}, k.Keys...)
	if k.Runs {
		known = append(known, commandKeys...)
	}
	m := v.Mapping(known...)
	s := &Signal{Name: m.Need("name").Text(), Kind: k, Line: v.Line()}
	switch {
	case !m.Get("name").Present():
	case !signalName().MatchString(s.Name):
		m.Get("name").Bad("is not a valid name of a signal", "small letters, digits and dashes, at most 40")
	case opinion(s.Name):
		m.Get("name").Bad("names an opinion", "a gate takes facts that were observed; name what is measured")
	case c.Signal(s.Name) != nil:
		m.Get("name").Bad("is there twice", "")
	}
	if k.Runs {
		c.readCommand(s, m, def, env)
	}
	s.evaluate = k.parse(s, m)
	return s
}

func (c *Catalog) readCommand(s *Signal, m document.Mapping, def PhaseLimits, env []string) {
	for _, a := range m.Need("command").List() {
		s.Command = append(s.Command, a.Text())
	}
	if m.Get("command").Present() && (len(s.Command) == 0 || s.Command[0] == "") {
		m.Get("command").Bad("is empty", "write the program and its arguments as a list: [make, test]")
	}
	s.Limits = parseLimits(m, def)
	if s.Limits.Memory > c.Memory || s.Limits.Pids > c.Pids {
		m.Get("name").Bad("may use more than all phases together", "raise ceiling.memory and ceiling.pids, or lower the signal's own")
	}
	s.Env = append(slices.Clone(env), parseEnviron(m.Get("env"))...)
	s.Keep = parsePaths(m.Get("keep"))
	s.Network = m.Get("network").Strings()
	s.Warm = parsePaths(m.Get("warm"))
	slices.Sort(s.Warm)
	for i, p := range s.Warm {
		if i > 0 && below(p, s.Warm[i-1]) {
			m.Get("warm").Bad("has "+p+", which lies in "+s.Warm[i-1], "name the upper one alone")
		}
	}
	if len(s.Warm) > 0 && len(s.Network)+len(s.Keep) > 0 {
		m.Get("warm").Bad("cannot be combined with network or keep", "what is fetched is asked for again each time, and what is kept is of one side: give the work that has a cache a signal of its own")
	}
	s.After = m.Get("after").Strings()
	for _, a := range s.After {
		if x := c.Signal(a); x == nil || len(x.Keep) == 0 {
			m.Get("after").Bad("names "+a+", which keeps nothing or comes later", "signals run in the catalog's order; give that one keep: [PATH]")
		}
	}
}

// parsePaths reads a list of paths relative to the tree or the home.
func parsePaths(v document.Value) []string {
	out := v.Strings()
	for _, p := range out {
		if badPath(p) != "" || path.Clean(p) == "." {
			v.Bad("has "+p+", which is not a path of a tree", "")
		}
	}
	return out
}

// Signal returns the signal of a name, or nil.
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
