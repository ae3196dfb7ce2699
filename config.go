package carboy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/store"
)

// configFile is read from the user's configuration directory, never from a
// repository.
const configFile = "config.yaml"

// maxConfig bounds it, in bytes.
const maxConfig = 1 << 20

// config is what the user has decided for all runs. It can only add protection;
// how much of a trace is kept takes none away.
type config struct {
	Protect struct {
		// CI protects what a continuous-integration server runs.
		CI bool `yaml:"ci"`
		// Paths are further paths of workspaces, relative; a directory covers
		// what it holds.
		Paths []string `yaml:"paths"`
	} `yaml:"protect"`
	Trace struct {
		// MaxMiB bounds the trace of one run, in MiB.
		MaxMiB int64 `yaml:"max_mib"`
	} `yaml:"trace"`
}

// ConfigError names what is wrong in a configuration file, and where.
type ConfigError struct {
	File string
	Err  error // begins with the line, when one is to blame
}

func (e *ConfigError) Error() string { return e.File + ": " + e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// loadConfig reads the file in dir; one that is missing is an empty one. A field
// that is not known is an error: a misspelt protection would protect nothing.
func loadConfig(dir string) (config, error) {
	var c config
	name := filepath.Join(dir, configFile)
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
		return config{}, &ConfigError{name, err}
	}
	for i, p := range c.Protect.Paths {
		if clean := filepath.Clean(p); p == "" || filepath.IsAbs(p) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
			return config{}, &ConfigError{name, fmt.Errorf("protect.paths[%d]: %q is not a path inside a workspace", i, p)}
		}
	}
	if m := c.Trace.MaxMiB; m != 0 && (m < 1 || m > maxTraceMiB) {
		return config{}, &ConfigError{name, fmt.Errorf("trace.max_mib: %d is not between 1 and %d", m, maxTraceMiB)}
	}
	return c, nil
}

// maxTraceMiB is a TiB.
const maxTraceMiB = 1 << 20

// traceMax bounds the trace of one run, in bytes.
func (c config) traceMax() int64 { return c.Trace.MaxMiB * mib } // 0: the default

// policy is what of a workspace needs to be included by name.
func (c config) policy() change.Policy {
	return change.Policy{CI: c.Protect.CI, Extra: c.Protect.Paths}
}

func openConfig(o Options) (config, error) {
	dir, err := store.ConfigDir(o.Config, o.Env)
	if err != nil {
		return config{}, err
	}
	return loadConfig(dir)
}
