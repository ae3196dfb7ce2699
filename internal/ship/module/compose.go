package module

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/sirupsen/logrus"
	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/document"
)

// Compose is a compose file that may be given to docker compose.
type Compose struct {
	Data  []byte // the very bytes that were judged, and that run
	Image string // what the service's image is called
	// Pinned says that Image names its content by digest, so that it may be pulled.
	Pinned bool
	// Binds are the directories and files of the host that the service sees, absolute,
	// all of them below the module's root.
	Binds []string
	// Writable are those of all services of the file that something can write to.
	Writable []string
	// Healthcheck says that the file has one for the service; its image may have one too.
	Healthcheck bool
	image       *yaml.Node
}

// kind is what a key may hold.
type kind uint8

const (
	plain kind = iota // anything without interpolation
	named             // a mapping of names to things with keys of their own
)

// The keys that may be there. What is not listed is refused: a new key of Compose
// grants nothing here before somebody has read what it does. Among those that are
// left out are build, env_file, label_file, extends, include, secrets, configs,
// privileged, devices, cap_add, pid, ipc, uts, userns_mode, cgroup, cgroup_parent,
// volumes_from, external_links, links, network_mode (but none), security_opt (but
// no-new-privileges), runtime, gpus, credential_spec, post_start, pre_stop, develop,
// provider, models, use_api_socket, container_name, scale, pull_policy, profiles and
// logging.
var (
	topKeys = map[string]kind{"version": plain, "name": plain, "services": named, "networks": named, "volumes": named}

	serviceKeys = keys("image", "command", "entrypoint", "environment", "healthcheck", "restart", "labels", "user", "working_dir",
		"read_only", "tmpfs", "cap_drop", "stop_grace_period", "stop_signal", "init", "ulimits", "mem_limit", "mem_reservation",
		"memswap_limit", "cpus", "cpu_shares", "pids_limit", "shm_size", "networks", "network_mode", "depends_on", "expose", "ports",
		"volumes", "hostname", "security_opt", "stdin_open", "tty", "platform", "oom_score_adj", "attach")

	networkKeys = keys("internal", "enable_ipv6", "enable_ipv4", "labels", "attachable")
	volumeKeys  = keys("labels")
)

func keys(names ...string) map[string]kind {
	out := map[string]kind{}
	for _, n := range names {
		out[n] = plain
	}
	return out
}

// why is what people read about keys that somebody may well have meant.
var why = map[string]string{
	"build":          "builds on the host; ship an image",
	"env_file":       "reads files of the machine that parses it; write environment",
	"label_file":     "reads files of the machine that parses it; write labels",
	"extends":        "reads other files; write the service out",
	"include":        "reads other files; write them into this one",
	"secrets":        "reads files of the host; mount a directory below remote_root",
	"configs":        "reads files of the host; use sync: files and a volume below remote_root",
	"privileged":     "gives the container the host",
	"devices":        "gives the container devices of the host",
	"cap_add":        "gives the container rights over the host",
	"pid":            "shows the container other processes",
	"volumes_from":   "reaches into another container",
	"container_name": "can take the name of a container of somebody else",
	"scale":          "is more than one container",
	"deploy":         "is read by an orchestrator, and can ask for more than one container; use mem_limit, cpus and restart",
	"driver":         "gives the host's drivers options",
	"driver_opts":    "gives the host's drivers options, such as a path to mount",
	"external":       "reaches what other projects have made",
	"profiles":       "makes it unsure which services run",
	"pull_policy":    "is decided by carboy: what was approved is what runs",
}

// ParseCompose judges a compose file for service, whose project directory on the
// host is root. file is its path in the repository. The error is a [document.Error].
func ParseCompose(file, service, project, root string, data []byte) (*Compose, error) {
	// Strictly first: one meaning for all readers, and bounds.
	if _, _, err := document.Parse(file, data); err != nil {
		return nil, err
	}
	var top yaml.Node
	if err := yaml.Unmarshal(data, &top); err != nil || len(top.Content) != 1 || top.Content[0].Kind != yaml.MappingNode {
		return nil, document.Error{{File: file, What: "is not a mapping", Advice: "begin with services:"}}
	}
	j := &judge{file: file}
	j.mapping(top.Content[0], "", topKeys)
	j.interpolation(top.Content[0], "")
	svc := find(find(top.Content[0], "services"), service)
	if svc == nil {
		j.bad(top.Content[0], "services", "has no service "+service, "spec.runtime.compose_service names one of the file")
	}
	c := &Compose{Data: slices.Clone(data), image: find(svc, "image")}
	if svc != nil && c.image == nil {
		j.bad(svc, "services."+service, "has no image", "")
	}
	if len(j.found) > 0 {
		return nil, j.found
	}
	p, err := load(file, project, root, data)
	if err != nil {
		return nil, document.Error{{File: file, Line: top.Content[0].Line, Column: top.Content[0].Column, What: strings.ReplaceAll(err.Error(), "\n", " "), Advice: "docker compose would refuse it as well"}}
	}
	for _, s := range p.Services {
		j.service(s, find(find(top.Content[0], "services"), s.Name), root)
	}
	s, ok := p.Services[service]
	if !ok {
		j.bad(svc, "services."+service, "is not a service that docker compose would start", "")
	}
	if len(j.found) > 0 {
		return nil, j.found
	}
	c.Image = s.Image
	_, sum, at := strings.Cut(c.Image, "@sha256:")
	c.Pinned = at && len(sum) == 64
	c.Healthcheck = s.HealthCheck != nil && !s.HealthCheck.Disable
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind {
			c.Binds = append(c.Binds, v.Source)
		}
	}
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeBind && !v.ReadOnly {
				c.Writable = append(c.Writable, v.Source)
			}
		}
	}
	// What a service can write to, it can put a link into; Docker would follow it.
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if slices.ContainsFunc(c.Writable, func(w string) bool { return v.Type == types.VolumeTypeBind && strings.HasPrefix(v.Source, w+"/") }) {
				n := find(find(top.Content[0], "services"), s.Name)
				j.bad(first(find(n, "volumes"), n), "services."+s.Name+".volumes", fmt.Sprintf("shows %.200q, which lies in what a service can write to", v.Source), "mount that read_only, or this from elsewhere")
			}
		}
	}
	if len(j.found) > 0 {
		return nil, j.found
	}
	slices.Sort(c.Binds)
	c.Binds = slices.Compact(c.Binds)
	return c, nil
}

// WithImage is the file with another image for its service, for going back to what
// a name no longer means. Comments and layout may differ.
func (c *Compose) WithImage(id string) ([]byte, error) {
	var top yaml.Node
	if err := yaml.Unmarshal(c.Data, &top); err != nil {
		return nil, err
	}
	done := false
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if n.Line == c.image.Line && n.Column == c.image.Column && n.Kind == yaml.ScalarNode {
			n.Value, n.Tag, n.Style, done = id, "!!str", yaml.DoubleQuotedStyle, true
		}
		for _, x := range n.Content {
			visit(x)
		}
	}
	visit(&top)
	if !done {
		return nil, errors.New("compose: the image's place was lost")
	}
	return yaml.Marshal(&top)
}

var quiet sync.Once

// load has compose-go parse the file, without reading any other file or variable.
func load(file, project, root string, data []byte) (*types.Project, error) {
	// It logs what the file says: as text from the repository, to the terminal.
	quiet.Do(func() { logrus.SetOutput(io.Discard) })
	details := types.ConfigDetails{WorkingDir: root, ConfigFiles: []types.ConfigFile{{Filename: path.Base(file), Content: data}}, Environment: types.Mapping{}}
	return loader.LoadWithContext(context.Background(), details, func(o *loader.Options) {
		o.SetProjectName(project, true)
		o.SkipInclude, o.SkipExtends, o.SkipResolveEnvironment, o.SkipResolveLabels = true, true, true, true
		o.ResolvePaths = true
		o.ResourceLoaders = nil
	})
}

// judge collects what is wrong.
type judge struct {
	file  string
	found document.Error
}

// maxFound bounds it.
const maxFound = 20

func (j *judge) bad(n *yaml.Node, field, what, advice string) {
	if len(j.found) >= maxFound {
		return
	}
	p := document.Problem{File: j.file, Field: field, What: what, Advice: advice}
	if n != nil {
		p.Line, p.Column = n.Line, n.Column
	}
	j.found = append(j.found, p)
}

func (j *judge) mapping(n *yaml.Node, field string, allowed map[string]kind) {
	if n.Kind != yaml.MappingNode {
		if n.Tag != "!!null" {
			j.bad(n, field, "is not a mapping", "")
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		name := strings.TrimPrefix(field+"."+k.Value, ".")
		what, ok := allowed[k.Value]
		switch {
		case strings.HasPrefix(k.Value, "x-"):
			// Extensions mean nothing to compose.
		case !ok:
			j.bad(k, name, "is not allowed", why[k.Value])
		case what == named:
			j.named(v, name, map[string]map[string]kind{"services": serviceKeys, "networks": networkKeys, "volumes": volumeKeys}[k.Value])
		}
	}
}

func (j *judge) named(n *yaml.Node, field string, allowed map[string]kind) {
	if n.Kind != yaml.MappingNode {
		if n.Tag != "!!null" {
			j.bad(n, field, "is not a mapping", "")
		}
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if !ValidService(k.Value) {
			j.bad(k, field, "has a name that is none", "letters, digits, ._- only")
			continue
		}
		j.mapping(v, field+"."+k.Value, allowed)
	}
}

// interpolation refuses what would be filled in from the host's variables, in keys
// as well.
func (j *judge) interpolation(n *yaml.Node, field string) {
	if n.Kind == yaml.ScalarNode && strings.Contains(strings.ReplaceAll(n.Value, "$$", ""), "$") {
		j.bad(n, field, "is filled in from variables of whoever runs it", "write the value, and $$ for a dollar")
	}
	for i, x := range n.Content {
		at := field
		if n.Kind == yaml.MappingNode {
			at = strings.TrimPrefix(field+"."+n.Content[i&^1].Value, ".")
		}
		j.interpolation(x, at)
	}
}

// service judges what compose-go made of a service: what has several spellings has
// one here.
func (j *judge) service(s types.ServiceConfig, n *yaml.Node, root string) {
	field := "services." + s.Name
	at := func(key string) (*yaml.Node, string) { return first(find(n, key), n), field + "." + key }
	refuse := func(key, what, advice string) {
		place, f := at(key)
		j.bad(place, f, what, advice)
	}
	if s.NetworkMode != "" && s.NetworkMode != "none" {
		refuse("network_mode", fmt.Sprintf("is %.80q", s.NetworkMode), "none, or a network of this file")
	}
	for _, o := range s.SecurityOpt {
		if o != "no-new-privileges" && o != "no-new-privileges:true" {
			refuse("security_opt", fmt.Sprintf("has %.80q", o), "no-new-privileges is allowed")
		}
	}
	if s.OomScoreAdj < 0 {
		refuse("oom_score_adj", "is below zero", "the host's own processes go last")
	}
	for name, v := range s.Environment {
		if v == nil {
			refuse("environment", fmt.Sprintf("takes %.80q from whoever runs it", name), "write its value")
		}
	}
	for _, p := range s.Ports {
		if p.Mode == "host" {
			refuse("ports", "has mode: host", "")
		}
	}
	for _, v := range s.Volumes {
		j.volume(v, refuse, root)
	}
}

func (j *judge) volume(v types.ServiceVolumeConfig, refuse func(key, what, advice string), root string) {
	switch v.Type {
	case types.VolumeTypeVolume, types.VolumeTypeTmpfs:
	case types.VolumeTypeBind:
		rest, inside := strings.CutPrefix(v.Source, root+"/")
		if v.Source == root {
			rest, inside = "x", true
		}
		if !inside {
			refuse("volumes", fmt.Sprintf("shows %.200q of the host", v.Source), "name something below ./, which is remote_root")
		} else if bad := Relative(rest); bad != "" {
			refuse("volumes", fmt.Sprintf("shows a path that %s: %.200q", bad, v.Source), "")
		}
		if v.Bind != nil && v.Bind.Propagation != "" {
			refuse("volumes", "sets a propagation", "what is mounted inside would be mounted on the host")
		}
	default:
		refuse("volumes", fmt.Sprintf("has type %.80q", v.Type), "volume, bind and tmpfs are allowed")
	}
	if strings.Contains(v.Target, "docker.sock") {
		refuse("volumes", "is the engine's socket", "who has it has the host")
	}
}

// find is the value of a key, or nil.
func find(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func first(ns ...*yaml.Node) *yaml.Node {
	for _, n := range ns {
		if n != nil {
			return n
		}
	}
	return nil
}
