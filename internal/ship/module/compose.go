package module

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/document"
)

// Compose is a compose file that has passed the checks of ParseCompose.
type Compose struct {
	Data  []byte // the bytes that were checked, and that run
	Image string // reference of the service's image
	// Pinned is true if Image has a digest, so that it may be pulled.
	Pinned bool
	// Binds lists the host's directories and files that the service mounts. They are
	// absolute and below the module's root.
	Binds []string
	// Volumes lists the Docker volumes that the service mounts, by their names in the file.
	Volumes []string
	// Writable lists the binds of all services in the file that are not read-only.
	Writable []string
	// Healthcheck is true if the file has a healthcheck for the service. Its image may have
	// one too.
	Healthcheck bool
	image       *yaml.Node
}

// kind is the form of a key's value.
type kind uint8

const (
	plain kind = iota // any value without interpolation
	named             // a mapping of names to mappings
)

// The allowed keys. All others are errors, so a new key of Compose grants nothing before
// somebody has reviewed it. Not allowed are, among others: build, env_file, label_file,
// extends, include, secrets, configs, privileged, devices, cap_add, pid, ipc, uts,
// userns_mode, cgroup, cgroup_parent, volumes_from, external_links, links, network_mode
// (except none), security_opt (except no-new-privileges), runtime, gpus, credential_spec,
// post_start, pre_stop, develop, provider, models, use_api_socket, container_name, scale,
// pull_policy, profiles and logging.
var (
	topKeys = map[string]kind{"version": plain, "name": plain, "services": named, "networks": named, "volumes": named}

	serviceKeys = keys("image", "command", "entrypoint", "environment", "healthcheck", "restart", "labels", "user", "working_dir",
		"read_only", "tmpfs", "cap_drop", "stop_grace_period", "stop_signal", "init", "ulimits", "mem_limit", "mem_reservation",
		"memswap_limit", "cpus", "cpu_shares", "pids_limit", "shm_size", "networks", "network_mode", "depends_on", "expose", "ports",
		"volumes", "hostname", "security_opt", "stdin_open", "tty", "platform", "oom_score_adj", "attach")

	networkKeys = keys("internal", "enable_ipv6", "enable_ipv4", "labels", "attachable")
	volumeKeys  = keys("labels")
	joinKeys    = keys("aliases", "ipv4_address", "ipv6_address", "priority", "gw_priority") // of a service in a network
)

func keys(names ...string) map[string]kind {
	out := map[string]kind{}
	for _, n := range names {
		out[n] = plain
	}
	return out
}

// why maps commonly used keys that are not allowed to the reason.
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

// ParseCompose parses and checks a compose file for service. root is the project directory
// on the host, file the name in errors. The error is a [document.Error].
func ParseCompose(file, service, root string, data []byte) (*Compose, error) {
	// Parse strictly first: that checks bounds, and that all parsers read the file alike.
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
	services := find(top.Content[0], "services")
	volumes := find(top.Content[0], "volumes")
	var all []mount
	for i := 0; i+1 < len(services.Content); i += 2 {
		name := services.Content[i].Value
		for _, m := range j.service(name, services.Content[i+1], volumes, root) {
			m.of = name
			all = append(all, m)
		}
	}
	for _, m := range all {
		if m.volume != "" {
			if m.of == service {
				c.Volumes = append(c.Volumes, m.volume)
			}
			continue
		}
		if m.of == service {
			c.Binds = append(c.Binds, m.source)
		}
		if !m.readOnly {
			c.Writable = append(c.Writable, m.source)
		}
	}
	// A service can create a link in a directory that it can write to, and Docker would
	// follow it when it mounts a path below.
	for _, m := range all {
		if slices.ContainsFunc(c.Writable, func(w string) bool { return strings.HasPrefix(m.source, w+"/") }) {
			j.bad(m.at, "services."+m.of+".volumes", fmt.Sprintf("shows %.200q, which lies in what a service can write to", m.source), "mount that read_only, or this from elsewhere")
		}
	}
	if len(j.found) > 0 {
		return nil, j.found
	}
	c.Image = c.image.Value
	_, sum, at := strings.Cut(c.Image, "@sha256:")
	c.Pinned = at && len(sum) == 64
	c.Healthcheck = find(svc, "healthcheck") != nil
	slices.Sort(c.Binds)
	c.Binds = slices.Compact(c.Binds)
	slices.Sort(c.Volumes)
	c.Volumes = slices.Compact(c.Volumes)
	return c, nil
}

// WithImage returns the file with another image for its service. A rollback uses it,
// because a tag may name another image by then. Comments and layout may change.
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

// judge checks a compose file and collects the problems.
type judge struct {
	file  string
	found document.Error
}

// maxFound bounds the number of reported problems.
const maxFound = 20

// bad adds a problem.
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

// mapping checks that a mapping has allowed keys only, and checks their values.
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
			// Compose ignores extensions.
		case !ok:
			j.bad(k, name, "is not allowed", why[k.Value])
		case k.Value == "labels":
			j.labels(v, name)
		case what == named:
			j.named(v, name, map[string]map[string]kind{"services": serviceKeys, "networks": networkKeys, "volumes": volumeKeys}[k.Value])
		}
	}
}

// named checks a mapping of names to mappings with the allowed keys.
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

// interpolation reports values and keys that compose would fill in from environment
// variables.
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

// mount is a directory or file of the host, or a Docker volume, that a service mounts.
type mount struct {
	of, source string
	volume     string
	readOnly   bool
	at         *yaml.Node
}

// service checks the values of a service's keys and returns its mounts.
func (j *judge) service(name string, n, declared *yaml.Node, root string) (out []mount) {
	field := "services." + name
	refuse := func(at *yaml.Node, key, what, advice string) { j.bad(first(at, n), field+"."+key, what, advice) }
	if v := find(n, "image"); v != nil && (v.Tag != "!!str" || v.Value == "") {
		refuse(v, "image", "is not a name", "")
	}
	if v := find(n, "network_mode"); v != nil && v.Value != "none" {
		refuse(v, "network_mode", fmt.Sprintf("is %.80q", v.Value), "none, or a network of this file")
	}
	if v := find(n, "oom_score_adj"); v != nil && (v.Tag != "!!int" || strings.HasPrefix(v.Value, "-")) {
		refuse(v, "oom_score_adj", "is not zero or more", "the host's own processes go last")
	}
	for _, v := range items(find(n, "security_opt")) {
		if v.Value != "no-new-privileges" && v.Value != "no-new-privileges:true" {
			refuse(v, "security_opt", fmt.Sprintf("has %.80q", v.Value), "no-new-privileges is allowed")
		}
	}
	if v := find(n, "networks"); v != nil && v.Kind != yaml.SequenceNode {
		j.named(v, field+".networks", joinKeys)
	}
	j.environment(find(n, "environment"), refuse)
	for _, v := range items(find(n, "ports")) {
		if m := find(v, "mode"); m != nil && m.Value != "ingress" {
			refuse(m, "ports", "has a mode", "")
		}
	}
	for _, v := range items(find(n, "volumes")) {
		if m, ok := j.volume(v, declared, refuse, root); ok || m.volume != "" {
			out = append(out, m)
		}
	}
	return out
}

// items returns the items of a sequence. It returns any other node as the only item; the
// checks of items reject that.
func items(n *yaml.Node) []*yaml.Node {
	switch {
	case n == nil:
		return nil
	case n.Kind == yaml.SequenceNode:
		return n.Content
	}
	return []*yaml.Node{n}
}

// labels reports labels in Docker's namespace: Compose and carboy use them to tell whose a
// container is.
func (j *judge) labels(n *yaml.Node, field string) {
	for i, v := range n.Content {
		if (n.Kind == yaml.SequenceNode || i%2 == 0) && strings.HasPrefix(strings.TrimSpace(v.Value), "com.docker.") {
			j.bad(v, field, fmt.Sprintf("has %.80q, which is Docker's", v.Value), "")
		}
	}
}

// environment reports variables without values: compose would take those from its own
// environment.
func (j *judge) environment(n *yaml.Node, refuse func(at *yaml.Node, key, what, advice string)) {
	const what, advice = "takes a variable from whoever runs it", "write its value"
	if n == nil {
		return
	}
	if n.Kind == yaml.MappingNode {
		for i := 1; i < len(n.Content); i += 2 {
			if v := n.Content[i]; v.Kind != yaml.ScalarNode || v.Tag == "!!null" {
				refuse(v, "environment", what, advice)
			}
		}
		return
	}
	for _, v := range items(n) {
		if v.Kind != yaml.ScalarNode || !strings.Contains(v.Value, "=") {
			refuse(v, "environment", what, advice)
		}
	}
}

var volumeFields = map[string][]string{"": {"type", "source", "target", "read_only", "bind", "volume", "tmpfs"}, "bind": {"create_host_path"}, "volume": {"nocopy", "subpath"}, "tmpfs": {"size", "mode"}}

// shortMount takes the short form of a mount apart: TARGET, SOURCE:TARGET or
// SOURCE:TARGET:OPTIONS. It reads what compose reads, and nothing of what compose may read
// otherwise: variables, drives of Windows, control characters, empty parts.
func shortMount(s string) (typ, source, target, options string, ok bool) {
	part := strings.Split(s, ":")
	for i, p := range part {
		first, n := utf8.DecodeRuneInString(p)
		drive := i < len(part)-1 && n == len(p) && unicode.IsLetter(first)
		if p == "" || drive || strings.ContainsFunc(p, func(r rune) bool { return r == '$' || r == '\\' || unicode.IsControl(r) }) {
			return "", "", "", "", false
		}
	}
	switch len(part) {
	case 1:
		target = s
	case 2:
		source, target = part[0], part[1]
	case 3:
		source, target, options = part[0], part[1], part[2]
	default:
		return "", "", "", "", false
	}
	if typ = "volume"; source != "" && strings.ContainsRune("./~", rune(source[0])) {
		typ = "bind"
	}
	return typ, source, target, options, true
}

// volume checks one mount. ok reports whether it mounts a file or directory of the host.
func (j *judge) volume(n, declared *yaml.Node, refuse func(at *yaml.Node, key, what, advice string), root string) (m mount, ok bool) {
	var typ, source, target string
	switch n.Kind {
	case yaml.ScalarNode:
		var options string
		if typ, source, target, options, ok = shortMount(n.Value); !ok {
			refuse(n, "volumes", "cannot be read", "SOURCE:TARGET or SOURCE:TARGET:ro")
			return m, false
		}
		for o := range strings.SplitSeq(options, ",") {
			switch o {
			case "ro", "rw":
				m.readOnly = o == "ro"
			case "", "nocopy", "z", "Z", "cached", "consistent", "delegated":
			case "private", "rprivate", "shared", "rshared", "slave", "rslave":
				refuse(n, "volumes", "sets a propagation", "what is mounted inside would be mounted on the host")
			default:
				refuse(n, "volumes", fmt.Sprintf("has the option %.80q, which is not allowed", o), "")
			}
		}
	case yaml.MappingNode:
		for key, allowed := range volumeFields {
			part := n
			if key != "" {
				part = find(n, key)
			}
			if part == nil || part.Kind != yaml.MappingNode {
				if part != nil {
					refuse(part, "volumes", key+" is not a mapping", "")
				}
				continue
			}
			for i := 0; i < len(part.Content); i += 2 {
				if !slices.Contains(allowed, part.Content[i].Value) {
					refuse(part.Content[i], "volumes", fmt.Sprintf("has %.80q, which is not allowed", part.Content[i].Value), "")
				}
			}
		}
		text := func(key string) string {
			if v := find(n, key); v != nil {
				return v.Value
			}
			return ""
		}
		typ, source, target = text("type"), text("source"), text("target")
		ro := find(n, "read_only")
		m.readOnly = ro != nil && ro.Tag == "!!bool" && strings.EqualFold(ro.Value, "true")
	default:
		refuse(n, "volumes", "is not a mount", "")
		return m, false
	}
	if strings.Contains(target, "docker.sock") {
		refuse(n, "volumes", "is the engine's socket", "who has it has the host")
	}
	switch typ {
	case "tmpfs":
	case "volume":
		if source != "" && (!ValidService(source) || !has(declared, source)) {
			refuse(n, "volumes", fmt.Sprintf("names a volume %.80q that the file does not declare", source), "declare it below volumes:, or write ./ before a path")
		}
		m.volume = source
	case "bind":
		m.at = n
		if m.source = source; !strings.HasPrefix(source, "/") {
			m.source = path.Join(root, source)
		}
		if rest, inside := strings.CutPrefix(m.source, root+"/"); strings.HasPrefix(source, "~") || m.source != root && (!inside || Relative(rest) != "") {
			refuse(n, "volumes", fmt.Sprintf("shows %.200q of the host", source), "name something below ./, which is remote_root")
			return m, false
		}
		return m, true
	default:
		refuse(n, "volumes", fmt.Sprintf("has type %.80q", typ), "volume, bind and tmpfs are allowed")
	}
	return m, false
}

// has reports whether a mapping has a key.
func has(n *yaml.Node, key string) bool {
	if n == nil || n.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return true
		}
	}
	return false
}

// find returns the value of a key, or nil.
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
