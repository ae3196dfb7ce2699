package host

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/store"
)

// ConfigFile names the configuration file in the user's configuration directory. It is
// never read from a repository.
const ConfigFile = "config.yaml"

// maxConfig bounds the configuration file, in bytes.
const maxConfig = 1 << 20

// Config holds the user's settings for all runs. They can only add protection: the bounds
// of a trace, and of what is kept, take none away.
type Config struct {
	Protect struct {
		// CI protects the files that a continuous-integration server runs.
		CI bool `yaml:"ci"`
		// Paths lists more protected paths, relative to the workspace. A directory
		// protects everything below it.
		Paths []string `yaml:"paths"`
	} `yaml:"protect"`
	Trace struct {
		// MaxMiB bounds the trace of one run, in MiB; 0 means the default.
		MaxMiB int64 `yaml:"max_mib"`
	} `yaml:"trace"`
	// Keep bounds what is kept of bottles that ended. 0 means the default.
	Keep struct {
		Days int64 `yaml:"days"` // for how long
		GiB  int64 `yaml:"gib"`  // of all together
	} `yaml:"keep"`
	// Isolation is the weakest class that a bottle may have.
	Isolation class `yaml:"isolation"`

	file string // with its directory
}

// class is a class of isolation and the line that names it.
type class struct {
	least bottle.Isolation
	line  int
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *class) UnmarshalYAML(n *yaml.Node) (err error) {
	if c.least, err = bottle.ParseIsolation(n.Value); err != nil {
		return fmt.Errorf("line %d: isolation: %w", n.Line, err)
	}
	c.line = n.Line
	return nil
}

// Floor returns the weakest class of isolation that the user accepts.
func (c Config) Floor() bottle.Floor {
	if c.Isolation.least == "" {
		return bottle.Floor{}
	}
	return bottle.Floor{Least: c.Isolation.least, From: fmt.Sprintf("%s:%d", c.file, c.Isolation.line)}
}

// ConfigError reports what is wrong in a configuration file.
type ConfigError struct {
	File string
	Err  error // begins with the line, if one is to blame
}

func (e *ConfigError) Error() string { return e.File + ": " + e.Err.Error() }

func (e *ConfigError) Unwrap() error { return e.Err }

// LoadConfig reads ConfigFile in dir. A missing file counts as an empty one. An unknown
// field is an error: a misspelt protection would protect nothing.
func LoadConfig(dir string) (Config, error) {
	var c Config
	name := filepath.Join(dir, ConfigFile)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err != nil {
		return c, err
	}
	if len(b) > maxConfig {
		return c, &ConfigError{name, fmt.Errorf("more than %d bytes", maxConfig)}
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, &ConfigError{name, err}
	}
	for i, p := range c.Protect.Paths {
		if clean := filepath.Clean(p); p == "" || filepath.IsAbs(p) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
			return Config{}, &ConfigError{name, fmt.Errorf("protect.paths[%d]: %q is not a path inside a workspace", i, p)}
		}
	}
	c.file = name
	for _, f := range []struct {
		field    string
		has, max int64
	}{
		{"trace.max_mib", c.Trace.MaxMiB, maxTraceMiB}, {"keep.days", c.Keep.Days, maxKeepDays}, {"keep.gib", c.Keep.GiB, maxKeepGiB},
	} {
		if f.has < 0 || f.has > f.max {
			return Config{}, &ConfigError{name, fmt.Errorf("%s: %d is not between 1 and %d", f.field, f.has, f.max)}
		}
	}
	return c, nil
}

// Bounds of the configuration's numbers.
const (
	maxTraceMiB = 1 << 20 // a TiB
	maxKeepDays = 36500
	maxKeepGiB  = 1 << 20
)

// TraceMax returns the bound of one run's trace, in bytes; 0 means the default.
func (c Config) TraceMax() int64 { return c.Trace.MaxMiB << 20 }

// Defaults of Config.Keep.
const (
	keepDays = 14
	keepGiB  = 20
)

// KeepFor returns for how long a bottle that ended can be resumed.
func (c Config) KeepFor() time.Duration {
	return time.Duration(cmp.Or(c.Keep.Days, keepDays)) * 24 * time.Hour
}

// KeepMax returns how many bytes such bottles may take together. The newest may take more.
func (c Config) KeepMax() int64 { return cmp.Or(c.Keep.GiB, keepGiB) << 30 }

// Policy says which paths of a workspace land only when a person names them.
func (c Config) Policy() change.Policy {
	return change.Policy{CI: c.Protect.CI, Extra: c.Protect.Paths}
}

// OpenConfig loads the configuration of the user whom o describes.
func OpenConfig(o Options) (Config, error) {
	dir, err := store.ConfigDir(o.Config, o.Env)
	if err != nil {
		return Config{}, err
	}
	return LoadConfig(dir)
}
