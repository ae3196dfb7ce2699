package issues

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/sqlite"
)

var ctx = context.Background()

const childEnv = "CARBOY_ISSUES_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		if err := child(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, path string) *Table {
	t.Helper()
	table, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

func put(t *testing.T, table *Table, rs ...Record) {
	t.Helper()
	for _, r := range rs {
		if err := table.Put(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
}

// F11: what is put is what comes back, the last of a key, also from a table that is opened again.
func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "dirs", "issues.db")
	table := open(t, path)
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	k := Key{"o", "r", 7}
	if _, ok, err := table.Get(ctx, k); ok || err != nil {
		t.Errorf("a missing issue: %v, %v", ok, err)
	}
	if list, err := table.List(ctx); len(list) > 0 || err != nil {
		t.Errorf("%v, %v", list, err)
	}
	full := Record{Key: k, Slug: "s", Agent: "a", Bottles: []string{"z", "a", "z"}, Backend: "gvisor", GitUser: `ro"bot';--`, PullRequest: 9, Status: Running, LastCheckin: time.Unix(1, 2)}
	put(t, table, Record{Key: k, Slug: "before", Bottles: []string{"x"}, Status: Frozen}, full)
	for _, table := range []*Table{table, open(t, path)} {
		if r, ok, err := table.Get(ctx, k); err != nil || !ok || !reflect.DeepEqual(r, full) {
			t.Errorf("%+v, %v, %v", r, ok, err)
		}
	}
	// Nothing of the earlier record stays.
	bare := Record{Key: k, Status: Destroyed}
	put(t, table, bare)
	if r, ok, err := table.Get(ctx, k); err != nil || !ok || !reflect.DeepEqual(r, bare) {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
	for range 2 {
		if err := table.Delete(ctx, k); err != nil {
			t.Error(err)
		}
		if _, ok, err := table.Get(ctx, k); ok || err != nil {
			t.Errorf("a deleted issue: %v, %v", ok, err)
		}
	}
}

// Numbers sort as numbers, and names by their bytes.
func TestList(t *testing.T) {
	table := open(t, filepath.Join(t.TempDir(), "issues.db"))
	want := []Key{{"A", "z", 1}, {"a", "b", 2}, {"a", "b", 10}, {"a", "c", 1}, {"a-", "b", 1}, {"ä", "b", 1}}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(want)) {
		put(t, table, Record{Key: want[i], Status: Running})
	}
	list, err := table.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []Key
	for _, r := range list {
		got = append(got, r.Key)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
}

func TestPutRefuses(t *testing.T) {
	table := open(t, filepath.Join(t.TempDir(), "issues.db"))
	good := Record{Key: Key{"o", "r", 1}, Status: Running}
	put(t, table, good)
	for what, change := range map[string]func(*Record){
		"owner":  func(r *Record) { r.Owner = "" },
		"repo":   func(r *Record) { r.Repo = "" },
		"number": func(r *Record) { r.Number = 0 },
		"status": func(r *Record) { r.Status = "lost" },
		"none":   func(r *Record) { r.Status = "" },
		"pull":   func(r *Record) { r.PullRequest = -1 },
	} {
		r := good
		r.Slug = "refused"
		change(&r)
		if err := table.Put(ctx, r); err == nil || !strings.Contains(err.Error(), r.Key.String()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if list, err := table.List(ctx); err != nil || len(list) != 1 || list[0].Slug != "" {
		t.Errorf("%+v, %v", list, err)
	}
}

// A version is reached whole or not at all; a file of a newer program is left alone.
func TestMigrations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	table := open(t, path)
	r := Record{Key: Key{"o", "r", 1}, Slug: "s", Status: Frozen}
	put(t, table, r)
	version := func() (v int) {
		t.Helper()
		if err := table.db.QueryRow("PRAGMA user_version").Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := version(); v != len(migrations) {
		t.Errorf("version %d", v)
	}
	next := append(migrations[:len(migrations):len(migrations)], "ALTER TABLE issues ADD COLUMN more TEXT NOT NULL DEFAULT 'x'", "UPDATE issues SET more = 'y'")
	if err := migrate(ctx, table.db, append(next[:len(next):len(next)], "UPDATE nothing SET x = 1")); err == nil {
		t.Error("a migration that fails did not")
	}
	if v := version(); v != len(migrations) {
		t.Errorf("version %d after a migration that failed", v)
	}
	if _, err := table.db.Exec("SELECT more FROM issues"); err == nil {
		t.Error("half a migration is there")
	}
	if err := migrate(ctx, table.db, next); err != nil {
		t.Fatal(err)
	}
	var more string
	if err := table.db.QueryRow("SELECT more FROM issues").Scan(&more); err != nil || more != "y" {
		t.Errorf("%q, %v", more, err)
	}
	if got, ok, err := table.Get(ctx, r.Key); err != nil || !ok || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	if newer, err := Open(ctx, path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), strconv.Itoa(len(next))) {
		newer.Close()
		t.Errorf("a newer file: %v", err)
	}
	if v := version(); v != len(next) {
		t.Errorf("version %d", v)
	}
}

// What is damaged is reported by file and issue.
func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	table := open(t, path)
	for _, set := range []string{"bottles = '['", "life = '['", "status = 'lost'"} {
		put(t, table, Record{Key: Key{"o", "r", 1}, Status: Running})
		if _, err := table.db.Exec("UPDATE issues SET " + set); err != nil {
			t.Fatal(err)
		}
		for _, read := range []func() error{
			func() error { _, _, err := table.Get(ctx, Key{"o", "r", 1}); return err },
			func() error { _, err := table.List(ctx); return err },
		} {
			if err := read(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "o/r#1") {
				t.Errorf("%s: %v", set, err)
			}
		}
	}
}

// Goroutines and handles don't lose each other's records.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	tables := []*Table{open(t, path), open(t, path)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range int64(10) {
				k := Key{"o", strconv.Itoa(i), n + 1}
				if err := tables[i%2].Put(ctx, Record{Key: k, Status: Running}); err != nil {
					t.Error(err)
				}
				if _, ok, err := tables[(i+1)%2].Get(ctx, k); !ok || err != nil {
					t.Errorf("%v: %v, %v", k, ok, err)
				}
			}
		})
	}
	wg.Wait()
	if list, err := tables[0].List(ctx); err != nil || len(list) != 80 {
		t.Errorf("%d, %v", len(list), err)
	}
}

// child writes records until it is killed, and says what is done once the call has returned. Each has
// one number in all its fields.
func child(path string) error {
	table, err := Open(ctx, path)
	if err != nil {
		return err
	}
	for n := int64(1); ; n++ {
		k := Key{"o", "r", n%5 + 1}
		s := strconv.FormatInt(n, 10)
		r := Record{Key: k, Slug: s, Agent: s, Bottles: []string{s, s}, Backend: s, GitUser: strings.Repeat(s, 100), PullRequest: n, Status: Frozen, LastCheckin: time.Unix(n, 0)}
		if n%7 == 0 {
			if err := table.Delete(ctx, k); err != nil {
				return err
			}
			r = Record{Key: k}
		} else if err := table.Put(ctx, r); err != nil {
			return err
		}
		b, err := json.Marshal(r)
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", b)
	}
}

// A table whose writer is killed at any moment has all that was said to be done, and at most
// one thing more, whole.
func TestKilled(t *testing.T) {
	signal.Ignore(unix.SIGPIPE)
	const seed = 20261126
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	if n, err := strconv.Atoi(os.Getenv("CARBOY_TEST_KILLS")); err == nil {
		rounds = n
	}
	t.Logf("%d rounds, seed %d", rounds, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "issues.db")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	said := map[Key]Record{}
	for round := range rounds {
		c := exec.Command(self)
		c.Env = append(os.Environ(), childEnv+"="+path)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		kill := 1 + random.IntN(40)
		lines := 0
		for in := bufio.NewScanner(out); in.Scan(); {
			var r Record
			if err := json.Unmarshal(in.Bytes(), &r); err != nil {
				t.Fatalf("%q: %v", in.Text(), err)
			}
			said[r.Key] = r
			if lines++; lines == kill {
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.Wait(); err == nil || lines < kill {
			t.Fatalf("round %d: %v after %d lines", round, err, lines)
		}
		table, err := Open(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		differ := 0
		for n := range int64(5) {
			k := Key{"o", "r", n + 1}
			r, ok, err := table.Get(ctx, k)
			if err != nil {
				t.Fatal(err)
			}
			if last := said[k]; ok != (last.Status != "") || ok && (r.Slug != last.Slug || !r.LastCheckin.Equal(last.LastCheckin)) {
				differ++
			}
			if ok && (r.Slug != strconv.FormatInt(r.PullRequest, 10) || r.GitUser != strings.Repeat(r.Slug, 100) || len(r.Bottles) != 2 || r.Bottles[1] != r.Slug || r.LastCheckin.Unix() != r.PullRequest) {
				t.Errorf("round %d: half a record: %+v", round, r)
			}
			said[k] = r
			if !ok {
				said[k] = Record{Key: k}
			}
		}
		if differ > 1 {
			t.Errorf("round %d: %d records are not what was said last", round, differ)
		}
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk is an error with the path, and what was there stays.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	table := open(t, path)
	put(t, table, Record{Key: Key{"o", "r", 1}, Slug: "kept", Status: Running})
	// SQLite's own limit: a limit of the kernel's would be of the whole test.
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	full := &Table{path, db}
	defer full.Close()
	if _, err := db.Exec("PRAGMA max_page_count = 1"); err != nil {
		t.Fatal(err)
	}
	err = nil
	for n := int64(1); n < 1000 && err == nil; n++ {
		err = full.Put(ctx, Record{Key: Key{"o", "r", n}, Slug: strings.Repeat("x", 10_000), Status: Running})
	}
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "full") {
		t.Errorf("%v", err)
	}
	if r, ok, err := full.Get(ctx, Key{"o", "r", 1}); err != nil || !ok {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
}

// A change of a record is whole or none, and doesn't lose one of others.
func TestUpdate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	tables := []*Table{open(t, path), open(t, path)}
	k := Key{"o", "r", 1}
	if err := tables[0].Update(ctx, k, func(*Record) error { return nil }); !errors.Is(err, ErrMissing) || strings.Count(err.Error(), path) != 1 {
		t.Errorf("%v", err)
	}
	at := time.Unix(5, 6).UTC()
	full := Record{Key: k, Status: Frozen, Life: Life{RepoID: 4, Pulls: []int64{2, 3}, Read: map[string]time.Time{"issue #1": at}, Since: at, Failure: &Failure{"x", at, 2}, Warnings: []string{"w"}}}
	put(t, tables[0], full)
	if r, _, err := tables[1].Get(ctx, k); err != nil || !reflect.DeepEqual(r, full) {
		t.Errorf("%+v, %v", r, err)
	}
	bad := errors.New("no")
	for _, change := range []func(*Record) error{
		func(r *Record) error { r.Slug = "refused"; return bad },
		func(r *Record) error { r.Slug, r.Status = "refused", "odd"; return nil },
	} {
		if err := tables[0].Update(ctx, k, change); err == nil {
			t.Error("no error")
		}
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				if err := tables[i%2].Update(ctx, k, func(r *Record) error { r.Key = Key{"x", "y", 9}; r.Life.Turn++; return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if r, _, err := tables[0].Get(ctx, k); err != nil || r.Life.Turn != 80 || r.Slug != "" {
		t.Errorf("%+v, %v", r, err)
	}
}

// Entries belong to an issue, and stay in the order in which they came.
func TestEntries(t *testing.T) {
	table := open(t, filepath.Join(t.TempDir(), "issues.db"))
	k, other := Key{"o", "r", 1}, Key{"o", "r", 2}
	put(t, table, Record{Key: k, Status: Running})
	for _, id := range []string{"b", "a", "c"} {
		if added, err := table.Add(ctx, k, "turn", id, id+"1"); !added || err != nil {
			t.Errorf("%v, %v", added, err)
		}
	}
	if added, err := table.Add(ctx, k, "turn", "a", "second"); added || err != nil {
		t.Errorf("%v, %v", added, err)
	}
	for _, err := range []error{
		table.Set(ctx, k, "turn", "b", "b2"), table.Set(ctx, other, "turn", "b", "other"), table.Set(ctx, k, "word", "b", 7),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	got := func(list []Entry, err error) (s string) {
		if err != nil {
			t.Error(err)
		}
		for _, e := range list {
			s += e.Kind + " " + e.ID + " " + string(e.Value) + "; "
		}
		return s
	}
	if s := got(table.Entries(ctx, k, "turn")); s != `turn b "b2"; turn a "a1"; turn c "c1"; ` {
		t.Error(s)
	}
	if _, err := table.Add(ctx, k, "turn", "x", func() {}); err == nil {
		t.Error("a function is no JSON")
	}
	if err := table.Delete(ctx, k); err != nil {
		t.Error(err)
	}
	if s := got(table.Entries(ctx, k, "turn")) + got(table.Entries(ctx, k, "word")) + got(table.Entries(ctx, other, "turn")); s != `turn b "other"; ` {
		t.Error(s)
	}
	for _, err := range []error{table.SetNote(ctx, "n", "2", true), table.SetNote(ctx, "n", "1", 1), table.SetNote(ctx, "n", "1", 2), table.SetNote(ctx, "n", "3", 3), table.SetNote(ctx, "n", "3", nil), table.SetNote(ctx, "n", "4", nil)} {
		if err != nil {
			t.Error(err)
		}
	}
	if err := table.SetNote(ctx, "n", "5", func() {}); err == nil {
		t.Error("a function is no JSON")
	}
	if s := got(table.Notes(ctx, "n")); s != "n 1 2; n 2 true; " {
		t.Error(s)
	}
	if _, err := table.db.Exec("UPDATE notes SET value = '{'"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Notes(ctx, "n"); err == nil || !strings.Contains(err.Error(), "n 1") {
		t.Errorf("%v", err)
	}
}

// A table is read beside the one that writes, and after it.
func TestOpenReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	if _, err := OpenReadOnly(ctx, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	table, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	r := Record{Key: Key{"o", "r", 1}, Status: Running}
	put(t, table, r)
	for _, when := range []string{"beside it", "after it"} {
		reader, err := OpenReadOnly(ctx, path)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if list, err := reader.List(ctx); err != nil || len(list) != 1 {
			t.Errorf("%s: %+v, %v", when, list, err)
		}
		if err := reader.Put(ctx, r); err == nil {
			t.Errorf("%s: it was written", when)
		}
		if when == "beside it" {
			if _, err := table.db.Exec("PRAGMA user_version = 1"); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenReadOnly(ctx, path); err == nil || !strings.Contains(err.Error(), "its version is 1") {
				t.Errorf("%v", err)
			}
			if _, err := table.db.Exec(fmt.Sprint("PRAGMA user_version = ", len(migrations))); err != nil {
				t.Fatal(err)
			}
			if err := table.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
	path = filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(path, []byte("no database, but long enough to be taken for one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(ctx, path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
}

// A file of the first version keeps its records.
func TestFirstVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate(ctx, db, migrations[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO issues VALUES ('o', 'r', 1, 's', 'a', '["b"]', '', 'u', 2, 'frozen', 0)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	want := Record{Key: Key{"o", "r", 1}, Slug: "s", Agent: "a", Bottles: []string{"b"}, GitUser: "u", PullRequest: 2, Status: Frozen}
	if r, ok, err := open(t, path).Get(ctx, want.Key); err != nil || !ok || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v, %v", r, ok, err)
	}
}

// TestOpenBeforeItIsFilled: a file that is made and not filled yet is no table.
func TestOpenBeforeItIsFilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "issues.db")
	db, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := OpenReadOnly(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
}
