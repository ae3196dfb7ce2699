package ociruntime

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	dockerFile = "etc/docker/daemon.json"
	dockerPID  = "run/docker.pid"
)

// member is one name with its value in a JSON object.
type member struct {
	name  string
	value json.RawMessage
}

// members returns the members of a JSON object in their order. Nothing may follow it, and no
// name may be there twice: then readers disagree about which of them counts.
func members(b []byte) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	var out []member
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: fmt.Sprint(t)}
		if seen[m.name] {
			return nil, fmt.Errorf("it says %q twice", m.name)
		}
		seen[m.name] = true
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows its object")
	}
	return out, nil
}

// object returns the JSON text of members.
func object(list []member) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// with returns the list with another value for a name, or without it if value is nil.
func with(list []member, name string, value json.RawMessage) []member {
	var out []member
	found := false
	for _, m := range list {
		if m.name == name {
			if found = true; value == nil {
				continue
			}
			m.value = value
		}
		out = append(out, m)
	}
	if !found && value != nil {
		out = append(out, member{name, value})
	}
	return out
}

func valueOf(list []member, name string) json.RawMessage {
	for _, m := range list {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// daemon holds the settings of a daemon.json.
type daemon struct {
	all, runtimes []member
	// path leads to the program of the runtime named Name. It is empty if there is none.
	path      string
	byDefault string // the default runtime
}

func parseDaemon(f *file) (*daemon, error) {
	d := &daemon{}
	if len(bytes.TrimSpace(f.data)) == 0 {
		return d, nil
	}
	fail := func(field string, err error) (*daemon, error) {
		line := ""
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line = ":" + strconv.Itoa(1+bytes.Count(f.data[:min(int(syntax.Offset), len(f.data))], []byte("\n")))
		}
		return nil, fmt.Errorf("%s%s: %s%w: mend it first", f.path, line, field, err)
	}
	var err error
	if d.all, err = members(f.data); err != nil {
		return fail("", err)
	}
	if v := valueOf(d.all, "default-runtime"); v != nil {
		if err := json.Unmarshal(v, &d.byDefault); err != nil {
			return fail("default-runtime: ", err)
		}
	}
	r := valueOf(d.all, "runtimes")
	if r == nil {
		return d, nil
	}
	if d.runtimes, err = members(r); err != nil {
		return fail("runtimes: ", err)
	}
	if v := valueOf(d.runtimes, Name); v != nil {
		var one struct {
			Path string `json:"path"`
		}
		if err := json.Unmarshal(v, &one); err != nil {
			return fail("runtimes."+Name+": ", err)
		}
		if d.path = one.Path; !ours(one.Path) {
			return nil, fmt.Errorf("%s: runtimes.%s is another program, %q: take it out first", f.path, Name, one.Path)
		}
	}
	return d, nil
}

// text returns the file with the given runtimes.
func (d *daemon) text(runtimes []member) ([]byte, error) {
	var value json.RawMessage
	if len(runtimes) > 0 {
		b, err := object(runtimes)
		if err != nil {
			return nil, err
		}
		value = b
	}
	all := with(d.all, "runtimes", value)
	b, err := object(all)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// dockerText returns what a daemon.json becomes.
func dockerText(link string) func(*file) ([]byte, error) {
	return func(f *file) ([]byte, error) {
		d, err := parseDaemon(f)
		if err != nil {
			return nil, err
		}
		if d.path == link {
			return f.data, nil
		}
		entry, err := json.Marshal(map[string]string{"path": link})
		if err != nil {
			return nil, err
		}
		return d.text(with(d.runtimes, Name, entry))
	}
}

func dockerInstall(o *Options) ([]Step, error) {
	f, err := read(o.path(dockerFile))
	if err != nil {
		return nil, err
	}
	data, err := dockerText(o.link())(f)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(data, f.data) {
		return []Step{{File: f.path, What: "the runtime " + Name + " is registered"}}, nil
	}
	return []Step{f.replace("register the runtime "+Name, data), o.reload()}, nil
}

func dockerUninstall(o *Options) ([]Step, error) {
	f, err := read(o.path(dockerFile))
	if err != nil || !f.there {
		return nil, err
	}
	d, err := parseDaemon(f)
	if err != nil || d.path == "" {
		return nil, err
	}
	if d.byDefault == Name {
		return nil, fmt.Errorf("%s: default-runtime is %s, and dockerd does not start without it: change that first", f.path, Name)
	}
	without, err := d.text(with(d.runtimes, Name, nil))
	if err != nil {
		return nil, err
	}
	rest, err := members(without)
	if err != nil {
		return nil, err
	}
	s, err := f.restore(dockerText(o.link()), without, len(rest) == 0)
	return []Step{s, o.reload(), {File: f.path, What: "Docker may list the runtime until it starts next, and can run nothing with it; containers under it can't be stopped any more until you install again"}}, err
}

// reload returns a step that has dockerd read its file again. It does not restart it.
func (o *Options) reload() Step {
	s := Step{File: o.path(dockerPID), What: "dockerd does not run: it reads the file when it starts"}
	b, err := os.ReadFile(s.File)
	if err != nil {
		return s
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return s
	}
	if comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err != nil || strings.TrimSpace(string(comm)) != "dockerd" {
		return s
	}
	s.What = "have dockerd (process " + strconv.Itoa(pid) + ") read it again; containers go on"
	s.apply = func() error { return hangUp(pid) }
	return s
}

// hangUp sends SIGHUP to a process that is still called dockerd.
func hangUp(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// The descriptor names one process, whoever has the number later.
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil || strings.TrimSpace(string(comm)) != "dockerd" {
		return fmt.Errorf("process %d is not dockerd any more", pid)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGHUP, nil, 0); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	return nil
}
