package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const twoServices = `env: {PGPASSWORD: only-for-tests, CI: "1"}
services:
  db:
    image: postgres:16
    command: postgres -c listen_addresses=*
    environment: {POSTGRES_PASSWORD: only-for-tests, POSTGRES_DB: app}
    ports: [5432, "8008"]
    healthcheck: {test: [CMD-SHELL, "pg_isready -U app"], interval: 2s, retries: 5}
    depends_on: [cache]
    limits: {memory: 512MiB, pids: 100}
  cache:
    image: built:redis
    entrypoint: [redis-server, --save, ""]
    environment: {REQUIRE_PASS: ?The cache's password}
    ports: [6379]
`

// A bottle's services are read whole, in the order in which they start.
func TestServices(t *testing.T) {
	w := newWorld(t, map[string]string{
		"config/bottles/dev.md":   md(twoServices),
		"config/bottles/later.md": md("extends: dev\nservices: {cache: {image: other}}"),
		"config/bottles/none.md":  md("extends: dev\nservices: {}"),
		"config/agents/a.md":      agentDev,
	})
	e := w.mustResolve("a")
	if got := e.Services.Order(); !slices.Equal(got, []string{"cache", "db"}) {
		t.Errorf("order: %v", got)
	}
	db := e.Services.By["db"]
	want := Health{Test: []string{"/bin/sh", "-c", "pg_isready -U app"}, Interval: 2 * time.Second, Timeout: 30 * time.Second, StartPeriod: time.Minute, Retries: 5}
	if fmt.Sprint(db.Health.V) != fmt.Sprint(want) || !slices.Equal(db.Command.V, []string{"postgres", "-c", "listen_addresses=*"}) || !slices.Equal(db.Ports.V, []uint16{5432, 8008}) || db.Limits.Memory.V != 512<<20 {
		t.Errorf("%+v", db)
	}
	if x := find(t, e, "services.db.environment.POSTGRES_PASSWORD"); strings.Contains(fmt.Sprint(x.Value), "tests") || x.From.Line != 7 {
		t.Errorf("%+v", x)
	}
	for key, want := range map[string]string{"services.db.ports": "5432 8008", "services.cache.image": "built:redis", "services.db.environment.POSTGRES_DB": "app"} {
		if x := find(t, e, key); fmt.Sprint(x.Value) != want {
			t.Errorf("%+v", x)
		}
	}
	if x := find(t, e, "services.cache.environment.REQUIRE_PASS"); x.Note != "asked for at the start" {
		t.Errorf("%+v", x)
	}
	if s := w.mustResolve("a", "later").Services.By["cache"]; s.Image.V != "other" || s.Ports.IsSet() {
		t.Errorf("a later bottle's service is not its own: %+v", s)
	}
	if s := w.mustResolve("a", "none").Services.By; len(s) != 0 {
		t.Errorf("%+v", s)
	}
}

// What can't be started, or says two things, is refused with its place.
func TestServicesRefused(t *testing.T) {
	for _, x := range []struct{ bad, want, good string }{
		{"services: {db: {}}", "services.db: needs image", "services: {db: {image: x}}"},
		{"services: {DB: {image: x}}", "is no name of a service", "services: {db: {image: x}}"},
		{"services: {localhost: {image: x}}", "is no name of a service", "services: {db: {image: x}}"},
		{"services: {db: {image: x, restart: always}}", "a service that ends stays ended", "services: {db: {image: x}}"},
		{"services: {db: {image: x, build: .}}", "carboy image build", "services: {db: {image: built:x}}"},
		{"services: {db: {image: x, volumes: [a]}}", "a service keeps nothing", "services: {db: {image: x}}"},
		{"services: {db: {image: x, port: [1]}}", "services.db.port: unknown key; did you mean ports?", "services: {db: {image: x, ports: [1]}}"},
		{"services: {db: {image: ./x}}", "a whole path", "services: {db: {image: 'oci:/x'}}"},
		{"services: {db: {image: x, ports: ['5432:5432']}}", "write the port inside: 5432", "services: {db: {image: x, ports: ['5432']}}"},
		{"services: {db: {image: x, ports: [0]}}", "is no TCP port", "services: {db: {image: x, ports: [1]}}"},
		{"services: {db: {image: x, ports: [70000]}}", "is no TCP port", "services: {db: {image: x, ports: [65535]}}"},
		{"services: {db: {image: x, ports: [5432/udp]}}", "is no TCP port", "services: {db: {image: x, ports: [5432]}}"},
		{"services: {db: {image: x, ports: [1, 1]}}", "given twice", "services: {db: {image: x, ports: [1, 2]}}"},
		{"services: {db: {image: x, command: 'a; b'}}", "mean something to a shell", "services: {db: {image: x, command: [sh, -c, 'a; b']}}"},
		{"services: {db: {image: x, command: []}}", "is empty", "services: {db: {image: x, command: a}}"},
		{"services: {db: {image: x, healthcheck: {interval: 1s}}}", "needs test", "services: {db: {image: x, healthcheck: {test: a}}}"},
		{"services: {db: {image: x, healthcheck: {test: [a]}}}", "none of compose's forms", "services: {db: {image: x, healthcheck: {test: [CMD, a]}}}"},
		{"services: {db: {image: x, healthcheck: {test: a, interval: 1}}}", "wanted text", "services: {db: {image: x, healthcheck: {test: a, interval: 1s}}}"},
		{"services: {db: {image: x, depends_on: [cache]}}", `there is no service "cache"`, "services: {db: {image: x, depends_on: [cache]}, cache: {image: x}}"},
		{"services: {a: {image: x, depends_on: [b]}, b: {image: x, depends_on: [a]}}", "a -> b -> a", "services: {a: {image: x, depends_on: [b]}, b: {image: x}}"},
		{"services: {db: {image: x, depends_on: [db]}}", "db -> db", "services: {db: {image: x}}"},
		{"services: {db: {image: x}}\negress: {routes: [{host: db}]}", "is the host of a route, too", "services: {db: {image: x}}\negress: {routes: [{host: db2}]}"},
		{"services: {db: {image: x, limits: {timeout: 1h}}}", "limits.timeout: unknown key", "services: {db: {image: x, limits: {memory: 64MiB}}}"},
		{"services: {db: {image: x, limits: {memory: 1MiB}}}", "below the minimum", "services: {db: {image: x, limits: {memory: 64MiB}}}"},
		{"services: {db: {image: x, environment: {A: 'ghp_" + strings.Repeat("aB3x", 9) + "'}}}", "looks like a secret", "services: {db: {image: x, environment: {PASSWORD: local}}}"},
		{"services: {db: {image: x, environment: {A: 1}}}", "wanted text", "services: {db: {image: x, environment: {A: '1'}}}"},
		// The agent's password is a secret, unless it opens only a service.
		{"env: {PASSWORD: local}", "its name says that it is a secret", "env: {PASSWORD: local}\nservices: {db: {image: x, environment: {PASSWORD: local}}}"},
	} {
		w := newWorld(t, map[string]string{"config/bottles/dev.md": md(x.bad), "config/agents/a.md": agentDev})
		w.refuse(x.want, "a")
		w.write("config/bottles/dev.md", md(x.good))
		w.mustResolve("a")
	}
	var many strings.Builder
	for i := range maxServices + 1 {
		fmt.Fprintf(&many, "\n  s%d: {image: x}", i)
	}
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md("services:" + many.String()), "config/agents/a.md": agentDev})
	w.refuse("more than 16 services", "a")
}

// The schema of a service and its reader know the same keys and values.
func TestServiceSchema(t *testing.T) {
	s := schemaOf(t, "bottle")
	one := s.Properties(s.Root())["services"].(map[string]any)["additionalProperties"].(map[string]any)
	props := s.Properties(one)
	for _, x := range []struct {
		node map[string]any
		keys []string
	}{{one, serviceKeys}, {props["healthcheck"].(map[string]any), healthKeys}, {props["limits"].(map[string]any), serviceLimitKeys}} {
		got, want := slices.Sorted(maps.Keys(s.Properties(x.node))), slices.Sorted(slices.Values(x.keys))
		if !slices.Equal(got, want) {
			t.Errorf("the schema has %v, the reader %v", got, want)
		}
	}
	if bad := s.Check(asJSON(t, []byte(twoServices))); len(bad) > 0 {
		t.Error(bad)
	}
	for _, front := range []string{"services: {db: {}}", "services: {DB: {image: x}}", "services: {db: {image: x, ports: [0]}}", "services: {db: {image: x, ports: ['1:1']}}", "services: {db: {image: x, healthcheck: {}}}"} {
		if len(s.Check(asJSON(t, []byte(front)))) == 0 {
			t.Errorf("the schema takes %s", front)
		}
	}
}
