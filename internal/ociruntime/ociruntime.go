// Package ociruntime makes carboy's kernel a runtime of the container engines of this
// machine: it registers the program with Docker, containerd and Podman, and undoes that.
// The runtime itself is the embedded kernel's, in package gvisor.
//
// It changes files of others. So it parses each first and refuses what it can't parse, keeps
// a backup, replaces files whole, and does nothing where nothing is to do. Start reading at
// Install.
package ociruntime

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

const (
	// Name is the runtime's name in the engines: docker run --runtime carboy.
	Name = "carboy"
	// Program is the name of the link by which engines start the runtime. Started under this
	// name, carboy is the runtime.
	Program = "carboy-runtime"
	// backupSuffix marks the copy of a file as it was before Install.
	backupSuffix = ".before-carboy"
	// maxConfig bounds a file of an engine, in bytes.
	maxConfig = 4 << 20
)

// Options say what to register, and where.
type Options struct {
	// Under is the directory below which the files lie, such as /; absolute and clean.
	Under string
	// Exe is the path of carboy's program.
	Exe string
	// DryRun changes nothing.
	DryRun bool
}

// Step is a change to one file, or a remark. Steps are in the order in which they are done.
type Step struct {
	Engine string // docker, containerd, podman; empty: all
	File   string
	What   string // a sentence without a full stop
	// Done is false for what was done already, and for remarks.
	Done bool

	apply func() error // nil: nothing is to do
}

// path returns the place of a file of the host.
func (o *Options) path(name string) string { return filepath.Join(o.Under, name) }

// link returns the path by which engines start the runtime.
func (o *Options) link() string { return o.path("usr/local/bin/" + Program) }

// engine is a container engine.
type engine struct {
	name string
	// signs are paths, one of which is there if the engine is.
	signs []string
	// install and uninstall return the steps, and change nothing.
	install, uninstall func(o *Options) ([]Step, error)
}

var engines = []engine{
	{"docker", []string{"etc/docker", "usr/bin/dockerd", "usr/sbin/dockerd", "usr/local/bin/dockerd"}, dockerInstall, dockerUninstall},
	{"containerd", []string{"etc/containerd/config.toml"}, containerdInstall, containerdUninstall},
	{"podman", []string{"usr/bin/podman", "usr/local/bin/podman", "etc/containers/containers.conf.d"}, podmanInstall, podmanUninstall},
}

// here returns the engines that are there.
func (o *Options) here() (out []engine) {
	for _, e := range engines {
		for _, s := range e.signs {
			if _, err := os.Stat(o.path(s)); err == nil {
				out = append(out, e)
				break
			}
		}
	}
	return out
}

// ErrNoEngine means that no engine was found.
var ErrNoEngine = errors.New("there is no Docker, containerd or Podman here")

// Install registers the runtime with each engine that is there. All files are read and
// checked before the first is changed. The steps that were done are returned, with an error,
// too.
func Install(o Options) ([]Step, error) {
	if err := trusted(o.Exe); err != nil {
		return nil, err
	}
	list := o.here()
	if len(list) == 0 {
		return nil, ErrNoEngine
	}
	steps, err := linkInstall(&o)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		more, err := e.install(&o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; nothing was changed", e.name, err)
		}
		steps = append(steps, of(e.name, more)...)
	}
	return perform(&o, steps)
}

// Uninstall undoes Install, as far as it was done.
func Uninstall(o Options) ([]Step, error) {
	var steps []Step
	for _, e := range engines {
		more, err := e.uninstall(&o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; nothing was changed", e.name, err)
		}
		steps = append(steps, of(e.name, more)...)
	}
	last, err := linkUninstall(&o)
	if err != nil {
		return nil, err
	}
	return perform(&o, append(steps, last...))
}

func of(name string, steps []Step) []Step {
	for i := range steps {
		steps[i].Engine = name
	}
	return steps
}

func perform(o *Options, steps []Step) ([]Step, error) {
	for i := range steps {
		if steps[i].apply == nil {
			continue
		}
		if !o.DryRun {
			if err := steps[i].apply(); err != nil {
				return steps[:i], fmt.Errorf("%s: %w", steps[i].File, err)
			}
		}
		steps[i].Done = true
	}
	return steps, nil
}

// trusted refuses a program that another user than root and the caller could replace: an
// engine starts it as root.
func trusted(exe string) error {
	for p := exe; ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
		switch {
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			return fmt.Errorf("%s belongs to another user (%d), who could replace what engines start as root: put carboy into a directory of root's, such as /usr/local/bin", p, st.Uid)
		case st.Mode&0o022 != 0 && !sticky:
			return fmt.Errorf("%s can be written by other users, who could replace what engines start as root: put carboy into a directory of root's, such as /usr/local/bin", p)
		}
		if p == "/" {
			return nil
		}
	}
}

func linkInstall(o *Options) ([]Step, error) {
	at := o.link()
	s := Step{File: at, What: "link to " + o.Exe}
	to, err := os.Readlink(at)
	switch {
	case err == nil && to == o.Exe:
		s.What += " (it is there)"
		return []Step{s}, nil
	case err == nil && filepath.Base(to) != "carboy" && filepath.Base(to) != filepath.Base(o.Exe):
		return nil, fmt.Errorf("%s leads to %s, which is not carboy; move it away", at, to)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w; move it away", err)
	}
	s.apply = func() error {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		tmp := at + ".new"
		if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(o.Exe, tmp); err != nil {
			return err
		}
		return os.Rename(tmp, at)
	}
	return []Step{s}, nil
}

func linkUninstall(o *Options) ([]Step, error) {
	at := o.link()
	switch to, err := os.Readlink(at); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case filepath.Base(to) != "carboy" && filepath.Base(to) != filepath.Base(o.Exe):
		return []Step{{File: at, What: "stays: it leads to " + to}}, nil
	}
	return []Step{{File: at, What: "remove the link", apply: func() error { return os.Remove(at) }}}, nil
}

// file is a file of an engine's, as it was read.
type file struct {
	path  string
	there bool
	data  []byte
	mode  os.FileMode
}

// read reads a file that may be missing. It refuses what it could not replace faithfully.
func read(path string) (*file, error) {
	f := &file{path: path, mode: 0o644}
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		to, _ := os.Readlink(path)
		return nil, fmt.Errorf("%s is a link to %s, which something else manages: register the runtime %s there, with the path of %s", path, to, Name, Program)
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file", path)
	}
	h, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if f.data, err = io.ReadAll(io.LimitReader(h, maxConfig+1)); err != nil {
		return nil, err
	}
	if len(f.data) > maxConfig {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxConfig)
	}
	f.there, f.mode = true, fi.Mode().Perm()
	return f, nil
}

// replace returns a step that writes other data, with a backup of what is there.
func (f *file) replace(what string, data []byte) Step {
	return Step{File: f.path, What: what, apply: func() error {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return err
		}
		if f.there {
			if err := store.WriteFile(f.path+backupSuffix, f.data, f.mode); err != nil {
				return err
			}
		}
		return store.WriteFile(f.path, data, f.mode)
	}}
}

// restore returns a step that puts back what was there before Install. install returns what
// Install makes of a file, and without is the file as it is now, without carboy; empty says
// that nothing is in that. If nobody else has changed the file since, the backup's bytes
// come back, else without.
func (f *file) restore(install func(*file) ([]byte, error), without []byte, empty bool) (Step, error) {
	backup, err := read(f.path + backupSuffix)
	if err != nil {
		return Step{}, err
	}
	if backup.there {
		was, err := install(&file{path: f.path, there: true, data: backup.data})
		if err == nil && bytes.Equal(was, f.data) {
			return Step{File: f.path, What: "put the backup back", apply: func() error { return os.Rename(backup.path, f.path) }}, nil
		}
	}
	drop := func() error {
		if backup.there {
			return os.Remove(backup.path)
		}
		return nil
	}
	if empty && !backup.there {
		return Step{File: f.path, What: "remove the file, which has nothing else in it", apply: func() error { return os.Remove(f.path) }}, nil
	}
	return Step{File: f.path, What: "take the runtime " + Name + " out, and leave the rest", apply: func() error {
		return errors.Join(store.WriteFile(f.path, without, f.mode), drop())
	}}, nil
}

// ours reports whether a path in an engine's file is that of our link.
func ours(path string) bool { return strings.HasSuffix(path, "/"+Program) }
