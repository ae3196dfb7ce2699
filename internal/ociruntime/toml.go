package ociruntime

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

const (
	containerdFile = "etc/containerd/config.toml"
	podmanFile     = "etc/containers/containers.conf.d/carboy.conf"
	// Lines between these are ours. They stand at the end of containerd's file.
	blockBegin = "# carboy runtime install wrote from here\n"
	blockEnd   = "# to here; carboy runtime uninstall removes it\n"
)

// plugins maps the version of containerd's file to the plugin that has the runtimes.
var plugins = map[int64]string{2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}

// block returns what is added to containerd's file.
func block(plugin, link string) string {
	at := fmt.Sprintf("[plugins.%q.containerd.runtimes.%s", plugin, Name)
	return blockBegin + at + "]\n  runtime_type = \"io.containerd.runc.v2\"\n" + at + ".options]\n  BinaryName = \"" + link + "\"\n" + blockEnd
}

func parseTOML(path string, data []byte) (map[string]any, error) {
	m := map[string]any{}
	if err := toml.Unmarshal(data, &m); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			line, _ := at.Position()
			return nil, fmt.Errorf("%s:%d: %w: mend it first", path, line, err)
		}
		return nil, fmt.Errorf("%s: %w: mend it first", path, err)
	}
	return m, nil
}

// unused says why a file is left alone though its engine is there.
type unused struct{ why string }

func (e *unused) Error() string { return e.why }

// below returns the table at a path, or nil.
func below(m map[string]any, path ...string) map[string]any {
	for _, p := range path {
		m, _ = m[p].(map[string]any)
	}
	return m
}

// containerdText returns what containerd's file becomes.
func containerdText(link string) func(*file) ([]byte, error) {
	return func(f *file) ([]byte, error) {
		rest, mine, err := cutBlock(f)
		if err != nil {
			return nil, err
		}
		before, err := parseTOML(f.path, rest)
		if err != nil {
			return nil, err
		}
		version, _ := before["version"].(int64)
		plugin, ok := plugins[version]
		if off, _ := before["disabled_plugins"].([]any); slices.Contains(off, any("cri")) || slices.Contains(off, any("io.containerd.grpc.v1.cri")) {
			return nil, &unused{"its CRI plugin is off (disabled_plugins), and nothing else takes a runtime from the file"}
		}
		if !ok {
			return nil, &unused{fmt.Sprintf("its version is %d, and 2 and 3 are known: containerd config migrate writes a newer file", version)}
		}
		runtimes := []string{"plugins", plugin, "containerd", "runtimes"}
		if below(before, append(runtimes, Name)...) != nil {
			return nil, fmt.Errorf("%s: has a runtime %s already, which carboy did not write: take it out first", f.path, Name)
		}
		b := block(plugin, link)
		if string(mine) == b {
			return f.data, nil
		}
		if n := len(rest); n > 0 && rest[n-1] != '\n' {
			rest = append(rest, '\n')
		}
		out := append(bytes.Clone(rest), b...)
		// The new text must say what the old one said, and the runtime besides.
		after, err := parseTOML(f.path, out)
		if err != nil {
			return nil, err
		}
		if got := below(after, append(runtimes, Name, "options")...); got["BinaryName"] != link {
			return nil, fmt.Errorf("%s: a runtime can't be added at its end: write it where the others are:\n%s", f.path, b)
		}
		delete(below(after, runtimes...), Name)
		prune(after, runtimes)
		prune(before, runtimes)
		if !reflect.DeepEqual(before, after) {
			return nil, fmt.Errorf("%s: would say something else with a runtime at its end: write it where the others are:\n%s", f.path, b)
		}
		return out, nil
	}
}

// prune removes the tables of a path that are empty.
func prune(m map[string]any, path []string) {
	for n := len(path); n > 0; n-- {
		if last := below(m, path[:n]...); last != nil && len(last) == 0 {
			delete(below(m, path[:n-1]...), path[n-1])
		}
	}
}

// cutBlock returns the file without our lines, and these.
func cutBlock(f *file) (rest, mine []byte, err error) {
	begin := bytes.Index(f.data, []byte(blockBegin))
	if begin < 0 {
		return f.data, nil, nil
	}
	n := bytes.Index(f.data[begin:], []byte(blockEnd))
	if n < 0 {
		return nil, nil, fmt.Errorf("%s: carboy's lines have no end (%q): take them out first", f.path, blockEnd)
	}
	end := begin + n + len(blockEnd)
	return bytes.Join([][]byte{f.data[:begin], f.data[end:]}, nil), f.data[begin:end], nil
}

func restartContainerd(f *file) Step {
	return Step{File: f.path, What: "containerd reads it only when it starts: systemctl restart containerd; containers go on"}
}

func containerdInstall(o *Options) ([]Step, error) {
	f, err := read(o.path(containerdFile))
	if err != nil {
		return nil, err
	}
	data, err := containerdText(o.link())(f)
	var u *unused
	if errors.As(err, &u) {
		return []Step{{File: f.path, What: "is left as it is: " + u.why}}, nil
	}
	if err != nil {
		return nil, err
	}
	if bytes.Equal(data, f.data) {
		return []Step{{File: f.path, What: "the runtime " + Name + " is registered"}}, nil
	}
	return []Step{f.replace("register the runtime "+Name, data), restartContainerd(f)}, nil
}

func containerdUninstall(o *Options) ([]Step, error) {
	f, err := read(o.path(containerdFile))
	if err != nil || !f.there {
		return nil, err
	}
	rest, mine, err := cutBlock(f)
	if err != nil || mine == nil {
		return nil, err
	}
	if _, err := parseTOML(f.path, rest); err != nil {
		return nil, err
	}
	s, err := f.restore(containerdText(o.link()), rest, len(bytes.TrimSpace(rest)) == 0)
	return []Step{s, restartContainerd(f)}, err
}

func podmanText(link string) []byte {
	return []byte("# carboy runtime install wrote this; carboy runtime uninstall removes it.\n[engine.runtimes]\n" + Name + " = [\"" + link + "\"]\n")
}

func podmanInstall(o *Options) ([]Step, error) {
	f, err := read(o.path(podmanFile))
	if err != nil {
		return nil, err
	}
	data := podmanText(o.link())
	if bytes.Equal(data, f.data) {
		return []Step{{File: f.path, What: "the runtime " + Name + " is registered"}}, nil
	}
	if f.there {
		m, err := parseTOML(f.path, f.data)
		if err != nil {
			return nil, err
		}
		if list, _ := below(m, "engine", "runtimes")[Name].([]any); len(list) != 1 || !ours(fmt.Sprint(list[0])) {
			return nil, fmt.Errorf("%s: carboy did not write this file: move it away first", f.path)
		}
	}
	return []Step{f.replace("register the runtime "+Name, data)}, nil
}

func podmanUninstall(o *Options) ([]Step, error) {
	f, err := read(o.path(podmanFile))
	if err != nil || !f.there {
		return nil, err
	}
	if !bytes.Equal(f.data, podmanText(o.link())) {
		return nil, fmt.Errorf("%s: somebody changed this file: remove it by hand", f.path)
	}
	s, err := f.restore(func(*file) ([]byte, error) { return nil, errors.New("it is a file of its own") }, nil, true)
	return []Step{s}, err
}
