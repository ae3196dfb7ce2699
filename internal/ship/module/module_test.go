package module

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/document"
)

const good = `apiVersion: carboy.dev/v1
kind: Module
metadata: {id: web}
spec:
  host: prod1
  runtime:
    orchestrator: docker-compose
    compose_file: compose.yaml
    remote_root: /srv/web
`

func TestParse(t *testing.T) {
	m, err := Parse("modules/web/module.yaml", "web", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != "web" || m.Service != "web" || m.Project != "web" || m.Compose != "modules/web/compose.yaml" || m.Root != "/srv/web" || m.Sync != syncNone ||
		m.StableFor != 30*time.Second || m.Health != 2*time.Minute || len(m.Waves) != 1 || m.Waves[0][0] != "prod1" {
		t.Errorf("%+v", m)
	}
	flat := "id: web\nhost: prod1\nruntime: {orchestrator: docker-compose, compose_file: c.yaml, remote_root: /srv/web, compose_service: api, project: shop, sync: files, stable_for: 5s}\n"
	if m, err = Parse("f", "web", []byte(flat)); err != nil || m.Service != "api" || m.Project != "shop" || m.Sync != SyncFiles || m.StableFor != 5*time.Second {
		t.Errorf("the flat form: %+v %v", m, err)
	}
	waves := strings.Replace(good, "host: prod1", "waves: [[a], [b, c]]", 1)
	if m, err = Parse("f", "web", []byte(waves)); err != nil || len(m.Waves) != 2 || len(m.Waves[1]) != 2 {
		t.Errorf("waves: %+v %v", m, err)
	}
}

// TestP3Modules: what leads out, or has two meanings, is refused with its place.
func TestP3Modules(t *testing.T) {
	for _, x := range []struct{ old, new, says string }{
		{"compose_file: compose.yaml", "compose_file: /etc/shadow", "absolute"},
		{"compose_file: compose.yaml", "compose_file: ~/compose.yaml", "home"},
		{"compose_file: compose.yaml", "compose_file: ../db/compose.yaml", "upward"},
		{"compose_file: compose.yaml", "compose_file: a/../../x", "upward"},
		{"compose_file: compose.yaml", "compose_file: a//b", "shortest"},
		{"compose_file: compose.yaml", "compose_file: -f", "begins with -"},
		{"compose_file: compose.yaml", "compose_file: 'a;id'", "characters"},
		{"compose_file: compose.yaml", `compose_file: "a\nb"`, "characters"},
		{"compose_file: compose.yaml", "compose_file: $HOME", "characters"},
		{"remote_root: /srv/web", "remote_root: srv/web", "not absolute"},
		{"remote_root: /srv/web", "remote_root: /", "root directory"},
		{"remote_root: /srv/web", "remote_root: /srv/../etc", "upward"},
		{"remote_root: /srv/web", "remote_root: '/srv/$(id)'", "characters"},
		{"remote_root: /srv/web", "remote_root: '/srv/a b'", "characters"},
		{"docker-compose", "kubernetes", "not an orchestrator"},
		{"host: prod1", "host: -oProxyCommand=id", "not the name of a host"},
		{"host: prod1", "host: 'a b'", "not the name of a host"},
		{"host: prod1", "waves: [[a], [a]]", "twice"},
		{"host: prod1", "waves: []", "too few"},
		{"host: prod1", "hots: prod1", "host"},
		{"id: web", "id: db", "not the name of its directory"},
		{"kind: Module", "kind: Other", "not Module"},
		{"carboy.dev/v1", "carboy.dev/v2", "not a version"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    compose_service: 'a b'", "not the name of a service"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    project: -p", "not the name of a project"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    stable_for: 1ms", "whole seconds"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    health_timeout: 10h", "whole seconds"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    destructive: [everything]", "does not happen"},
		{"compose_file: compose.yaml", "compose_file: c.yaml\n    compose_file: d.yaml", "twice"},
		{"spec:", "host: prod2\nspec:", "stands here and at"},
	} {
		text := strings.Replace(good, x.old, x.new, 1)
		_, err := Parse("m.yaml", "web", []byte(text))
		var wrong document.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), x.says) || !strings.HasPrefix(err.Error(), "m.yaml:") {
			t.Errorf("%s: %v, want an error with its place that says %q", x.new, err, x.says)
		}
	}
}

const webOnly = `services:
  web:
    image: app:v1
`

func TestCompose(t *testing.T) {
	text := webOnly + `    command: ["serve", "--price", "$$5"]
    environment: {A: b, N: "1"}
    ports: ["8080:80"]
    volumes: ["./data:/data", "./conf:/conf:ro", "./conf/a:/a:ro", "cache:/cache", {type: tmpfs, target: /tmp}]
    healthcheck: {test: ["CMD", "/check"], interval: 1s}
    restart: unless-stopped
    security_opt: [no-new-privileges]
    networks: [front]
  db:
    image: db@sha256:` + strings.Repeat("a", 64) + `
networks: {front: {internal: true}}
volumes: {cache: {}}
x-note: anything
`
	c, err := ParseCompose("compose.yaml", "web", "/srv/web", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if c.Image != "app:v1" || c.Pinned || !c.Healthcheck || len(c.Binds) != 3 || !slices.Equal(c.Volumes, []string{"cache"}) || len(c.Writable) != 1 || c.Writable[0] != "/srv/web/data" || string(c.Data) != text {
		t.Errorf("%+v", c)
	}
	b, err := c.WithImage("sha256:" + strings.Repeat("b", 64))
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseCompose("back.yaml", "web", "/srv/web", b)
	if err != nil || again.Image != "sha256:"+strings.Repeat("b", 64) || len(again.Binds) != 3 {
		t.Errorf("with another image: %+v %v", again, err)
	}
	if c, err = ParseCompose("compose.yaml", "db", "/srv/web", []byte(text)); err != nil || !c.Pinned {
		t.Errorf("%+v %v", c, err)
	}
}

// TestP3Compose: what reads, runs or grants on the machine that parses the file, or on
// the host, is refused with its line.
func TestP3Compose(t *testing.T) {
	for _, add := range []string{
		"    build: .", "    env_file: /etc/shadow", "    env_file: [.env]", "    label_file: x", "    extends: {file: /etc/passwd, service: x}",
		"    privileged: true", "    cap_add: [SYS_ADMIN]", "    devices: ['/dev/sda:/dev/sda']", "    pid: host", "    ipc: host", "    uts: host", "    userns_mode: host",
		"    cgroup: host", "    cgroup_parent: /", "    network_mode: host", "    network_mode: 'service:db'", "    network_mode: 'container:x'", "    volumes_from: [x]",
		"    security_opt: ['seccomp:unconfined']", "    security_opt: ['apparmor=unconfined']", "    security_opt: ['label:disable']", "    secrets: [x]", "    configs: [x]",
		"    volumes: ['/:/host']", "    volumes: ['/var/run/docker.sock:/s']", "    volumes: ['../other:/x']", "    volumes: ['~/.ssh:/x']", "    volumes: ['/srv/webx:/x']",
		"    volumes: ['./a:/x:rshared']", "    volumes: ['./a:/x:ro,slave']", "    volumes: ['./a:/x:ro,exec']", "    volumes: ['./a:/x:ro:rw']", "    volumes: ['./a::ro']", "    volumes: [':/x']", "    volumes: ['']", "    volumes: ['c:/etc:/x']", "    volumes: ['./a:c:/x']", `    volumes: ["\\\\.\\pipe:/x"]`, "    volumes: ['./a$$:/x']", `    volumes: ["./a\u0085:/x"]`, "    volumes: ['undeclared:/x']",
		"    volumes: ['./a/../../b:/x']", "    volumes: [{type: bind, source: /etc, target: /x}]", "    volumes: [{type: bind, source: ./a, target: /x, bind: {propagation: shared}}]",
		"    volumes: ['./a:/a', './a/b:/b']", "    volumes: ['./a/b:/b:ro']\n  db: {image: x, volumes: ['./a:/a']}",
		"    volumes: [{type: npipe, source: x, target: /x}]", "    volumes: [{type: image, source: x, target: /x}]",
		"    environment: [SECRET]", "    environment: {SECRET: }", "    environment: {A: '${SECRET}'}", "    environment: {A: $HOME}", "    command: 'echo $$$X'", "    hostname: '${X:-a}'", "    labels: {'$X': y}",
		"    container_name: other", "    scale: 2", "    deploy: {replicas: 2}", "    pull_policy: always", "    profiles: [x]", "    runtime: runc", "    gpus: all", "    post_start: [{command: x}]",
		"    develop: {watch: []}", "    credential_spec: {file: x}", "    logging: {driver: syslog}", "    oom_score_adj: -900", "    use_api_socket: true", "    provider: {type: x}", "    external_links: [x]",
		"    annotations: {a: b}", "    labels: {com.docker.compose.project: other}", "    labels: ['com.docker.compose.oneoff=True']", "volumes: {x: {labels: {com.docker.compose.project: other}}}", "labels: {a: b}",
		"    extra_hosts: ['a:1.2.3.4']", "    sysctls: {a: b}", "    image: other:v2",
		"include: [/etc/passwd]", "secrets: {x: {file: /etc/shadow}}", "configs: {x: {file: /etc/shadow}}", "models: {x: {model: y}}",
		"    networks: {x: {driver_opts: {a: b}}}\nnetworks: {x: }", "    networks: {x: {mac_address: '02:00:00:00:00:01'}}\nnetworks: {x: }", "    networks: x\nnetworks: {x: }",
		"networks: {x: {external: true}}", "networks: {x: {driver: host}}", "networks: {x: {name: other}}", "networks: {x: {driver_opts: {a: b}}}",
		"volumes: {x: {external: true}}", "volumes: {x: {driver_opts: {type: none, device: /etc, o: bind}}}", "volumes: {x: {name: other}}",
		"  other: {image: x, privileged: true}", "  'a;b': {image: x}", "x: 1", "    <<: {privileged: true}", "    image: &a x", "---\nservices: {}",
	} {
		_, err := ParseCompose("compose.yaml", "web", "/srv/web", []byte(webOnly+add+"\n"))
		var wrong document.Error
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v, want a refusal", add, err)
			continue
		}
		if wrong[0].Line == 0 {
			t.Errorf("%s: %v, without its line", add, err)
		}
	}
	for _, add := range []string{"    networks: [x]\nnetworks: {x: }", "    networks: {x: {aliases: [y], priority: 1}}\nnetworks: {x: }"} {
		if _, err := ParseCompose("compose.yaml", "web", "/srv/web", []byte(webOnly+add+"\n")); err != nil {
			t.Errorf("%s: %v", add, err)
		}
	}
	for short, want := range map[string]string{"/data": "volume||/data|", "./a:/b": "bind|./a|/b|", ".:/b:rw": "bind|.|/b|rw", "/srv/web/a:/b:ro,z": "bind|/srv/web/a|/b|ro,z", "~/a:/b": "bind|~/a|/b|", "cache:/b:nocopy": "volume|cache|/b|nocopy", "1:/b": "volume|1|/b|"} {
		if typ, source, target, options, ok := shortMount(short); !ok || typ+"|"+source+"|"+target+"|"+options != want {
			t.Errorf("%s: %s|%s|%s|%s %v, want %s", short, typ, source, target, options, ok, want)
		}
	}
	for _, options := range []string{"ro", "rw", "z", "ro,Z", "rw,cached", "delegated", "consistent", "nocopy"} {
		if c, err := ParseCompose("compose.yaml", "web", "/srv/web", []byte(webOnly+"    volumes: ['./a:/b:"+options+"']\n")); err != nil || (len(c.Writable) == 0) != strings.Contains(options, "ro") {
			t.Errorf("%s: %+v %v", options, c, err)
		}
	}
	for name, text := range map[string]string{"no service": "services: {db: {image: x}}", "no image": "services: {web: {command: x}}", "nothing": "", "a list": "[]", "text": "x", "null": "services: {web: }", "no tests": "services: {web: {image: 5}}"} {
		if _, err := ParseCompose("compose.yaml", "web", "/srv/web", []byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func FuzzCompose(f *testing.F) {
	f.Add([]byte(webOnly))
	f.Add([]byte(webOnly + "    volumes: ['./a:/b', {type: bind, source: x, target: /y}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCompose("compose.yaml", "web", "/srv/web", data)
		if err != nil {
			return
		}
		for _, b := range c.Binds {
			if Absolute(b) != "" || b != "/srv/web" && !strings.HasPrefix(b, "/srv/web/") {
				t.Fatalf("shows %q", b)
			}
		}
		if _, err := c.WithImage("x"); err != nil {
			t.Fatal(err)
		}
	})
}
