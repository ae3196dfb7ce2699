// Package config reads orchestrate.yaml, in which an operator names the forge, the
// repositories and the credentials with which carboy orchestrate works on issues.
//
// How git reaches a repository, and its deploy keys, are not here: the agents' bottles declare
// that. The file names secrets, by a variable or a file, and holds none. Each error has the file,
// the line and the field. A key that the file leaves out grants nothing. Where the file is
// silent, the variables FORGE_* of bot-bottle count; see [Parse].
//
// Start reading at [Load]. Credentials are in credentials.go, the example for beginners in
// example.go.
package config

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/ship/hosts"
)

// FileName is the name of the file in the configuration directory.
const FileName = "orchestrate.yaml"

// Defaults of what the file may leave out.
const (
	DefaultOrganisation = "bot-bottle"
	DefaultListen       = "127.0.0.1:8480"
	DefaultBase         = "main"
	DefaultPoll         = 2 * time.Minute
	DefaultWatchdog     = 30 * time.Minute
	DefaultSlots        = 2
)

// ErrNone means that there is no orchestrate.yaml.
var ErrNone = errors.New("there is no " + FileName)

// Config is a checked orchestrate.yaml.
type Config struct {
	File string
	// From names the variables that stand in for fields on which the file is silent.
	From map[string]string

	Provider string // gitea, github or gitlab
	API      string // the address of its API
	Login    string // of the robot's account
	CAFile   string // verifies the forge's certificate; empty: as this machine does

	Organisation string   // whose members may assign work
	Labels       []string // prefixes: what follows one names the agent
	Bots         []string // accounts of programs whose comments count
	Repositories []Repository

	Tokens map[Role]Source
	App    *App // in place of the tokens, for GitHub

	Webhooks *Webhooks // nil: the forge is only polled
	Poll     time.Duration
	Watchdog time.Duration
	Slots    int // turns that are under way at a time
	// BundleKey is a file with a private key that signs provenance a second time, in the
	// format of Sigstore; empty: none.
	BundleKey string
	Attempts  int // at the gate, in one turn; 0: as the catalog says
	People    People

	env func(string) string
}

// Repository is a repository whose issues carboy works on.
type Repository struct {
	Owner, Name string   // on GitLab, Owner may have several parts
	Base        string   // the branch that changes are for
	Gate        string   // the path of the gate's catalog in it; empty: its usual place
	Git         string   // the address for git
	HostKey     string   // of an SSH server, as in known_hosts; empty: git is not spoken over SSH
	Agents      []string // that labels may name; empty: each that the operator has
	Bottles     []string // in place of the agent's own; empty: the agent's own
}

// Path returns the repository's path at the forge.
func (r Repository) Path() string { return r.Owner + "/" + r.Name }

// Webhooks says where the forge's deliveries arrive.
type Webhooks struct {
	Listen string // host:port, of this machine or a private network
	URL    string // where the forge sends them; empty: not said
	Secret Source
}

// People says how people are asked while an agent works.
type People struct {
	// Wait bounds the wait for an answer; 0: five minutes.
	Wait time.Duration
	// Policy is a file with rules that answer some questions; empty: none.
	Policy string
	// MaxAttempts bounds the attempts in one turn with those that people grant when the others
	// are spent; 0: nobody is asked.
	MaxAttempts int
}

// Load reads orchestrate.yaml in dir. The error matches [ErrNone] if there is none, and is
// a [document.Error] if it is not valid. env looks up variables and $HOME.
func Load(dir string, env func(string) string) (*Config, error) {
	name := filepath.Join(dir, FileName)
	data, err := hosts.ReadTrusted(name, document.MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	return Parse(name, data, env)
}

// Roots returns the authorities that verify the forge's certificate; nil: the machine's.
func (c *Config) Roots() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%s: forge.ca_file: %w", c.File, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: forge.ca_file: %s has no certificate in PEM", c.File, c.CAFile)
	}
	return pool, nil
}

// Find returns the repository of a path, in any case of letters, as forges compare them.
func (c *Config) Find(path string) (Repository, bool) {
	for _, r := range c.Repositories {
		if strings.EqualFold(r.Path(), path) {
			return r, true
		}
	}
	return Repository{}, false
}
