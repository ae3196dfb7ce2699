package agenttest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

// box is a build's context with a root file system of programs of this machine.
type box struct {
	t    *testing.T
	dir  string
	made map[string]bool
}

func newBox(t *testing.T) *box {
	b := &box{t, t.TempDir(), map[string]bool{}}
	b.write("root/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nserver:x:70:70::/data:/bin/sh\n", 0o644)
	b.write("root/etc/group", "root:x:0:\nserver:x:70:\n", 0o644)
	for _, name := range []string{"sh", "cat", "chown", "mkdir"} {
		b.program(testenv.Need(t, name, "apt-get install coreutils dash"), "/bin/"+name)
	}
	return b
}

func (b *box) write(name, text string, mode os.FileMode) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		b.t.Fatal(err)
	}
}

// program adds a program or a library, with all that it loads.
func (b *box) program(path, as string) {
	b.t.Helper()
	if b.made[as] {
		return
	}
	b.made[as] = true
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.write("root"+as, string(text), 0o755)
	f, err := elf.NewFile(bytes.NewReader(text))
	if err != nil {
		return // a script
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			name, _ := io.ReadAll(p.Open())
			loader := strings.TrimRight(string(name), "\x00")
			b.program(loader, loader)
		}
	}
	libs, _ := f.ImportedLibraries()
	for _, lib := range libs {
		found, _ := filepath.Glob("/usr/lib/*-linux-gnu*/" + lib)
		if len(found) == 0 {
			found, _ = filepath.Glob("/lib*/" + lib)
		}
		if len(found) == 0 {
			b.t.Fatalf("%s needs %s", path, lib)
		}
		b.program(found[0], found[0])
	}
}

// tree adds a directory's files, which load nothing more.
func (b *box) tree(dir string) {
	b.t.Helper()
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(b.dir+"/root"+dir), 0o755)
	}
	if err == nil {
		err = os.CopyFS(b.dir+"/root"+dir, os.DirFS(real))
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// build builds the image of a Dockerfile under a name.
func (b *box) build(c *carboy.Client, name, text string) {
	b.t.Helper()
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	defer root.Close()
	var said strings.Builder
	img, err := c.MakeImage(b.t.Context(), carboy.MakeOptions{Context: root, File: "Dockerfile", Ignore: "Dockerfile", Text: []byte(text), Name: name, Say: func(p carboy.MakeProgress) { fmt.Fprintln(&said, p) }})
	if err != nil {
		b.t.Fatalf("%v\n%s", err, said.String())
	}
	b.t.Logf("%s has %s", name, receipt.Bytes(img.Bytes))
}

// A server of which the password is a variable, as in the image that everybody has.
const startPostgres = `#!/bin/sh
set -e
if ! [ -s /data/PG_VERSION ]; then
	echo "$POSTGRES_PASSWORD" >/data.pw
	initdb --no-sync -D /data -U postgres --auth-local=trust --auth-host=scram-sha-256 --pwfile=/data.pw
	echo "host all all all scram-sha-256" >>/data/pg_hba.conf
fi
exec "$@"
`

const databases = `---
agent_provider: {template: command, settings: {command: [sh, -c, '{prompt}']}}
env: {PGPASSWORD: of-the-database, PGHOST: db, PGUSER: postgres}
services:
  db:
    image: built:postgres
    environment: {POSTGRES_PASSWORD: of-the-database}
    ports: [5432]
    healthcheck: {test: [CMD, pg_isready, -h, 127.0.0.1, -U, postgres], interval: 200ms, start_period: 5m}
  cache:
    image: built:redis
    ports: [6379]
    healthcheck: {test: redis-cli ping, interval: 200ms}
---
`

// TestServices: PostgreSQL and Redis, as Debian packages them, beside an agent.
func TestServices(t *testing.T) {
	if !testenv.Exhaustive() {
		t.Log("real databases are NOT tried: CARBOY_TEST_EXHAUSTIVE=1")
		return
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		testenv.Missing(t, "PostgreSQL", "apt-get install postgresql")
	}
	redis, cli := testenv.Need(t, "redis-server", "apt-get install redis-server"), testenv.Need(t, "redis-cli", "apt-get install redis-tools")
	bin := filepath.Dir(found[len(found)-1])
	version := filepath.Base(filepath.Dir(bin))

	h := newHost(t)
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	pg := newBox(t)
	for _, name := range []string{"initdb", "postgres", "psql", "pg_isready"} {
		pg.program(bin+"/"+name, bin+"/"+name)
	}
	pg.tree(filepath.Dir(bin) + "/lib")
	pg.tree("/usr/share/postgresql/" + version)
	pg.tree("/usr/share/zoneinfo")
	pg.write("root/start", startPostgres, 0o755)
	pg.build(h.client, "postgres", "FROM scratch\nCOPY root/ /\nENV PATH="+bin+":/bin LANG=C TZ=UTC\nRUN mkdir /data && chown server:server /data && : >/data.pw && chown server /data.pw\nUSER server\n"+
		`ENTRYPOINT ["/start"]`+"\n"+`CMD ["postgres", "-D", "/data", "-c", "listen_addresses=*", "-c", "unix_socket_directories=/tmp"]`+"\n")
	kv := newBox(t)
	kv.program(redis, "/bin/redis-server")
	kv.program(cli, "/bin/redis-cli")
	kv.build(h.client, "redis", "FROM scratch\nCOPY root/ /\n"+`CMD ["redis-server", "--protected-mode", "no", "--save", ""]`+"\n")

	for _, dir := range []string{"bottles", "agents"} {
		if err := os.MkdirAll(h.base+"/config/carboy/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, h.base+"/config/carboy/bottles/b.md", databases)
	write(t, h.base+"/config/carboy/agents/a.md", "---\nbottle: b\n---\n")
	var out, msg testenv.Buffer
	began := time.Now()
	s, err := h.client.Start(t.Context(), carboy.StartOptions{Agent: "a", Dir: h.ws, Headless: true, Stdout: &out, Stderr: &msg,
		OnEvent: func(e carboy.Event) { t.Logf("%.1f s: %s", time.Since(began).Seconds(), e.Text) },
		Prompt: "PATH=" + bin + `:$PATH; set -e
psql -v ON_ERROR_STOP=1 -Atqc "create table t(n bigint); insert into t select generate_series(1, 100000); select sum(n) from t"
echo "stream $(psql -Atqc "select repeat('x', 1000) from generate_series(1, 20000)" | wc -c)"
! PGPASSWORD=guessed psql -Atqc "select 1"
redis-cli -h cache set key "a value"
redis-cli -h cache get key
head -c 3000000 /dev/zero | tr '\0' z >big; redis-cli -h cache -x set large <big; echo "large $(redis-cli -h cache strlen large)"
env | grep -c POSTGRES_PASSWORD || true
`})
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), msg.String())
	}
	want := "5000050000\nstream 20020000\nOK\na value\nOK\nlarge 3000000\n0\n"
	if out.String() != want || !strings.Contains(msg.String(), "password authentication failed") {
		t.Errorf("%q, want %q\n%s", out.String(), want, msg.String())
	}
	for i, name := range []string{"cache", "db"} {
		if x := s.Receipt.Services[i]; x.Name != name || x.Health != receipt.Healthy || x.Exit != nil || x.Connections < 3 || x.BytesUp+x.BytesDown < 3_000_000 {
			t.Errorf("%+v", x)
		}
	}
}
