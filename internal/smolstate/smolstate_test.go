package smolstate

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/sqlite"
)

var alias = netip.MustParseAddr("127.0.0.17")

// row is a description like smolvm's, with what a careless rewrite would change: the
// order of names, large numbers, escapes, spaces and unknown fields. %s is the field.
const row = `{"name":"m","created_at":18446744073709551615, "zeta":1.0e2,"state":"stopped",%s"mounts":[["/a","/b",true]],` +
	`"labels":{"x":"<ü>\u0041"},"future":{"allowed_cidrs":["0.0.0.0/0"]},"dns":"127.0.0.17","ssh_agent":false}`

func describe(cidrs string) string { return fmt.Sprintf(row, cidrs) }

const confined = `"allowed_cidrs":["127.0.0.17/32"],`

// database makes a state database with one machine. data is a []byte or a string, as
// SQLite is to store it.
func database(t *testing.T, journal string, data any) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "smolvm.db")
	db := open(t, path)
	run(t, db, `PRAGMA journal_mode=`+journal)
	run(t, db, `CREATE TABLE vms (name TEXT PRIMARY KEY NOT NULL, data BLOB NOT NULL); CREATE TABLE config (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)`)
	run(t, db, `INSERT INTO vms VALUES ('m', ?), ('other', ?)`, data, []byte(describe(`"allowed_cidrs":null,`)))
	db.Close()
	return path
}

func open(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func run(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// stored returns a row as it is in the file.
func stored(t *testing.T, path, machine string) (data, kind string) {
	t.Helper()
	if err := open(t, path).QueryRow(`SELECT CAST(data AS BLOB), typeof(data) FROM vms WHERE name = ?`, machine).Scan(&data, &kind); err != nil {
		t.Fatal(err)
	}
	return data, kind
}

func TestPath(t *testing.T) {
	for _, c := range []struct{ goos, home, data, want string }{
		{"linux", "/home/u", "", "/home/u/.local/share/smolvm/server/smolvm.db"},
		{"linux", "/home/u", "/data", "/data/smolvm/server/smolvm.db"},
		{"linux", "/home/u", "data", "/home/u/.local/share/smolvm/server/smolvm.db"},
		{"linux", "", "/data", "/data/smolvm/server/smolvm.db"},
		{"linux", "", "", ""},
		{"linux", "home", "", ""},
		{"darwin", "/Users/u", "/data", "/Users/u/Library/Application Support/smolvm/server/smolvm.db"},
		{"darwin", "", "", ""},
	} {
		got, err := Path(c.goos, func(k string) string { return map[string]string{"HOME": c.home, "XDG_DATA_HOME": c.data}[k] })
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

// A row that says what is wanted is not written: neither it nor the file changes.
func TestEqualIsUntouched(t *testing.T) {
	for _, journal := range []string{"DELETE", "WAL"} {
		for _, data := range []any{[]byte(describe(confined)), describe(confined)} {
			path := database(t, journal, data)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			wal, _ := os.ReadFile(path + "-wal")
			m, changed, err := Confine(t.Context(), path, "m", alias)
			if err != nil || changed || m.DNS != "127.0.0.17" || len(m.Mounts) != 1 || m.SSHAgent {
				t.Fatalf("%s: %+v, %t, %v", journal, m, changed, err)
			}
			after, _ := os.ReadFile(path)
			walAfter, _ := os.ReadFile(path + "-wal")
			if !bytes.Equal(before, after) || !bytes.Equal(wal, walAfter) {
				t.Errorf("%s: the file changed", journal)
			}
		}
	}
}

// Any other value is corrected. Nothing else of the row changes, nor another row.
func TestCorrects(t *testing.T) {
	other := describe(`"allowed_cidrs":null,`)
	for _, journal := range []string{"DELETE", "WAL"} {
		for _, field := range []string{
			`"allowed_cidrs":null,`, `"allowed_cidrs":[],`, `"allowed_cidrs": [ "127.0.0.0/8" ] ,`, `"allowed_cidrs":["127.0.0.17/32","1.1.1.1/32"],`,
			`"allowed_cidrs":["1.1.1.1/32","127.0.0.17/32"],`, `"allowed_cidrs":["127.0.0.17"],`, `"allowed_cidrs":["127.0.0.18/32"],`, `"allowed_cidrs":["0.0.0.0/0"],`,
		} {
			for _, text := range []bool{false, true} {
				data := any([]byte(describe(field)))
				if text {
					data = describe(field)
				}
				path := database(t, journal, data)
				m, changed, err := Confine(t.Context(), path, "m", alias)
				if err != nil || !changed || len(m.Allowed) != 1 || m.Allowed[0] != "127.0.0.17/32" {
					t.Fatalf("%s: %+v, %t, %v", field, m, changed, err)
				}
				got, kind := stored(t, path, "m")
				want := strings.Replace(describe(field), strings.Trim(strings.TrimPrefix(strings.TrimSuffix(field, ","), `"allowed_cidrs":`), " "), `["127.0.0.17/32"]`, 1)
				if got != want || kind != "blob" {
					t.Errorf("%s is %s\n%s, want\n%s", field, kind, got, want)
				}
				if got, _ := stored(t, path, "other"); got != other {
					t.Errorf("another machine changed: %s", got)
				}
				if _, changed, err := Confine(t.Context(), path, "m", alias); changed || err != nil {
					t.Errorf("again: %t, %v", changed, err)
				}
			}
		}
	}
}

// A description without the field gets it.
func TestInserts(t *testing.T) {
	for data, want := range map[string]string{
		`{}`:                      `{"allowed_cidrs":["127.0.0.17/32"]}`,
		` { } `:                   ` { "allowed_cidrs":["127.0.0.17/32"]} `,
		`{"a":{"b":"}"} }` + "\n": `{"a":{"b":"}"} ,"allowed_cidrs":["127.0.0.17/32"]}` + "\n",
	} {
		path := database(t, "WAL", []byte(data))
		if _, changed, err := Confine(t.Context(), path, "m", alias); err != nil || !changed {
			t.Fatalf("%q: %t, %v", data, changed, err)
		}
		if got, kind := stored(t, path, "m"); got != want || kind != "blob" || !json.Valid([]byte(got)) {
			t.Errorf("%q is %s %q, want %q", data, kind, got, want)
		}
	}
}

// Descriptions that can't be read in one way are refused, and stay.
func TestDamaged(t *testing.T) {
	for name, data := range map[string]any{
		"empty":         []byte{},
		"no json":       []byte("\x00\x01"),
		"cut":           []byte(`{"a":1`),
		"two values":    []byte(`{} {}`),
		"a list":        []byte(`["127.0.0.17/32"]`),
		"null":          []byte(`null`),
		"not utf-8":     []byte("{\"a\":\"\xff\"}"),
		"twice":         []byte(`{"allowed_cidrs":["127.0.0.17/32"],"allowed_cidrs":null}`),
		"twice in case": []byte(`{"allowed_cidrs":null,"Allowed_CIDRs":["127.0.0.17/32"]}`),
		"other case":    []byte(`{"ALLOWED_CIDRS":["127.0.0.17/32"]}`),
		"long s":        []byte(`{"allowed_cidrſ":["127.0.0.17/32"]}`),
		"a number":      42,
		"another type":  []byte(`{"allowed_cidrs":"127.0.0.17/32"}`),
		"too long":      []byte(`{"a":"` + strings.Repeat("x", maxData) + `"}`),
	} {
		path := database(t, "WAL", data)
		before, _ := stored(t, path, "m")
		if m, changed, err := Confine(t.Context(), path, "m", alias); err == nil || changed || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %t, %v", name, m, changed, err)
		}
		if after, _ := stored(t, path, "m"); after != before {
			t.Errorf("%s: it changed to %.100q", name, after)
		}
	}
}

func TestMissing(t *testing.T) {
	path := database(t, "WAL", []byte(describe(confined)))
	for _, c := range []struct {
		path, machine string
		want          error
	}{
		{path, "absent", ErrNoMachine},
		{path, "M", ErrNoMachine},
		{path, "m' OR '1'='1", ErrNoMachine},
		{filepath.Join(filepath.Dir(path), "absent.db"), "m", ErrNoDatabase},
		{filepath.Join(filepath.Dir(path), "absent/smolvm.db"), "m", ErrNoDatabase},
	} {
		if _, changed, err := Confine(t.Context(), c.path, c.machine, alias); !errors.Is(err, c.want) || changed {
			t.Errorf("%q in %s: %t, %v", c.machine, c.path, changed, err)
		}
		if has, err := Has(t.Context(), c.path, c.machine); has || err != nil {
			t.Errorf("%q in %s: has %t, %v", c.machine, c.path, has, err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(path), "absent.db")); !errors.Is(err, fs.ErrNotExist) {
			t.Error("a database was made")
		}
	}
	if has, err := Has(t.Context(), path, "m"); !has || err != nil {
		t.Errorf("has %t, %v", has, err)
	}
	for name, content := range map[string]string{"empty": "", "no database": "some text that is long enough to be a header of a database file", "no table": "-"} {
		file := filepath.Join(t.TempDir(), "smolvm.db")
		if content == "-" {
			run(t, open(t, file), `CREATE TABLE other (x)`)
		} else if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Confine(t.Context(), file, "m", alias); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, a := range []string{"10.0.0.1", "0.0.0.0", "::1", "8.8.8.8"} {
		if _, _, err := Confine(t.Context(), path, "m", netip.MustParseAddr(a)); err == nil {
			t.Errorf("confined to %s", a)
		}
	}
	if _, _, err := Confine(t.Context(), path, "m", netip.Addr{}); err == nil {
		t.Error("confined to no address")
	}
}

// Files that others control are refused.
func TestForeignFiles(t *testing.T) {
	path := database(t, "WAL", []byte(describe(`"allowed_cidrs":null,`)))
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "dir.db")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe.db")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{link, dir, pipe, "/proc/self/status/x"} {
		if _, _, err := Confine(t.Context(), p, "m", alias); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Confine(t.Context(), path, "m", alias); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("others may write: %v", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chmod(filepath.Dir(path), 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Confine(t.Context(), path, "m", alias); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("others may put a journal beside it: %v", err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Confine(t.Context(), path, "m", alias); err == nil || !strings.Contains(err.Error(), "another user") {
			t.Errorf("another user's: %v", err)
		}
	}
	if got, _ := stored(t, path, "m"); got != describe(`"allowed_cidrs":null,`) {
		t.Errorf("it changed to %s", got)
	}
}

// A file that can't be written is an error, not a machine with another row.
func TestReadOnly(t *testing.T) {
	path := database(t, "DELETE", []byte(describe(`"allowed_cidrs":null,`)))
	if err := errors.Join(os.Chmod(path, 0o444), os.Chmod(filepath.Dir(path), 0o555)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Dir(path), 0o700)
	if os.Geteuid() == 0 { // root may write all the same: as another user for the file system, it may not
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for d := filepath.Dir(filepath.Dir(path)); strings.HasPrefix(d, os.TempDir()) && d != os.TempDir(); d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Setfsuid(65534); err != nil {
			t.Fatal(err)
		}
		defer unix.Setfsuid(0)
	}
	if m, changed, err := Confine(t.Context(), path, "m", alias); err == nil || changed {
		t.Errorf("%+v, %t, %v", m, changed, err)
	}
}

// A database that does not keep what is written refuses the start.
func TestNotKept(t *testing.T) {
	for name, trigger := range map[string]string{
		"reverted": `CREATE TRIGGER t AFTER UPDATE ON vms BEGIN UPDATE vms SET data = OLD.data WHERE name = OLD.name; END`,
		"ignored":  `CREATE TRIGGER t BEFORE UPDATE ON vms BEGIN SELECT RAISE(IGNORE); END`,
		"refused":  `CREATE TRIGGER t BEFORE UPDATE ON vms BEGIN SELECT RAISE(ABORT, 'no'); END`,
		"removed":  `CREATE TRIGGER t AFTER UPDATE ON vms BEGIN DELETE FROM vms WHERE name = OLD.name; END`,
	} {
		path := database(t, "WAL", []byte(describe(`"allowed_cidrs":null,`)))
		run(t, open(t, path), trigger)
		m, _, err := Confine(t.Context(), path, "m", alias)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if name == "reverted" && !errors.Is(err, ErrNotStored) || name == "removed" && !errors.Is(err, ErrNoMachine) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Beside other writers nothing is lost: neither their changes nor this one.
func TestConcurrentWriters(t *testing.T) {
	for _, journal := range []string{"DELETE", "WAL"} {
		path := database(t, journal, []byte(`{"count":0,"allowed_cidrs":null}`))
		const writers, rounds = 4, 10
		var wg sync.WaitGroup
		for range writers {
			db := open(t, path)
			wg.Go(func() {
				for range rounds {
					err := sqlite.Update(context.Background(), db, func(tx *sql.Tx) error {
						_, err := tx.Exec(`UPDATE vms SET data = CAST(json_set(CAST(data AS TEXT), '$.count', json_extract(CAST(data AS TEXT), '$.count') + 1) AS BLOB) WHERE name = 'm'`)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		for range rounds {
			wg.Go(func() {
				if _, _, err := Confine(t.Context(), path, "m", alias); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got, _ := stored(t, path, "m"); got != fmt.Sprintf(`{"count":%d,"allowed_cidrs":["127.0.0.17/32"]}`, writers*rounds) {
			t.Errorf("%s: %s", journal, got)
		}
	}
}

func FuzzReplace(f *testing.F) {
	for _, s := range []string{`{}`, describe(confined), describe(``), `{"a":{"allowed_cidrs":[]}}`, `{"allowed_cidrs":null}`, `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, err := replace(data, field, "127.0.0.17/32")
		if err != nil {
			return
		}
		var before, after map[string]json.RawMessage
		if err := errors.Join(json.Unmarshal(data, &before), json.Unmarshal(out, &after)); err != nil {
			t.Fatalf("%q becomes %q: %v", data, out, err)
		}
		if string(after[field]) != `["127.0.0.17/32"]` {
			t.Errorf("%q becomes %q", data, out)
		}
		delete(before, field)
		delete(after, field)
		if len(before) != len(after) {
			t.Errorf("%q becomes %q", data, out)
		}
		for k, v := range before {
			if !bytes.Equal(after[k], v) {
				t.Errorf("%q: %q becomes %q", k, v, after[k])
			}
		}
	})
}
