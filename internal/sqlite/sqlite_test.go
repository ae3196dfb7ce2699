package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The names of files are data: what has a meaning in the address of a database has none in them.
func TestOpen(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"plain.db", "a?mode=memory", "a#b", "a%20b", "with space", "ümläut"} {
		path := filepath.Join(t.TempDir(), "new", "dirs", name)
		db, err := Open(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct{ pragma, want string }{{"journal_mode", "wal"}, {"synchronous", "2"}, {"foreign_keys", "1"}} {
			var got string
			if err := db.QueryRow("PRAGMA " + p.pragma).Scan(&got); err != nil || got != p.want {
				t.Errorf("%s: %s is %q, %v", name, p.pragma, got, err)
			}
		}
		if _, err := db.Exec("CREATE TABLE x (y)"); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(files) != 3 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, f := range files {
			if fi, err := f.Info(); err != nil || fi.Mode() != 0o600 || !strings.HasPrefix(f.Name(), name) {
				t.Errorf("%s: %v, %v", f.Name(), fi.Mode(), err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Others' rights on a file that a backup brought back are taken off it; its contents stay.
func TestOpenTakesRightsOff(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "x.db")
	for range 2 {
		db, err := Open(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("CREATE TABLE IF NOT EXISTS x (y); INSERT INTO x VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	db, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var n int
	if err := db.QueryRow("SELECT count(*) FROM x").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d rows, %v", n, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

// What cannot be a database is refused by its path, and stays as it was.
func TestOpenRefuses(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	const words = "these words are not a database, and they must not be lost: 0123456789 0123456789 0123456789 0123456789"
	if err := os.WriteFile(text, []byte(words), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(text, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, link, text, filepath.Join(text, "below", "a.db"), "/proc/nothing/a.db"} {
		db, err := Open(ctx, path)
		if err == nil {
			db.Close()
			t.Errorf("%s was opened", path)
			continue
		}
		if !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), filepath.Dir(path)) && !strings.Contains(err.Error(), text) {
			t.Errorf("%s is not named: %v", path, err)
		}
	}
	if b, err := os.ReadFile(text); err != nil || string(b) != words {
		t.Errorf("%q, %v", b, err)
	}
}

func TestUpdate(t *testing.T) {
	ctx := context.Background()
	db, err := Open(ctx, filepath.Join(t.TempDir(), "x.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	insert := func(tx *sql.Tx) error {
		_, err := tx.Exec("CREATE TABLE IF NOT EXISTS x (y); INSERT INTO x VALUES (1)")
		return err
	}
	if err := Update(ctx, db, insert); err != nil {
		t.Fatal(err)
	}
	if err := Update(ctx, db, func(tx *sql.Tx) error {
		if err := insert(tx); err != nil {
			return err
		}
		return context.Canceled
	}); err != context.Canceled && !strings.Contains(err.Error(), "canceled") {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM x").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// A reader reads beside a writer, and writes nothing.
func TestOpenReadOnly(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "x.db")
	if _, err := OpenReadOnly(ctx, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	db, err := Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (7)"); err != nil {
		t.Fatal(err)
	}
	reader, err := OpenReadOnly(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var n int
	if err := reader.QueryRow("SELECT n FROM t").Scan(&n); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := reader.Exec("INSERT INTO t VALUES (8)"); err == nil {
		t.Error("it was written to")
	}
	if err := db.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := OpenReadOnly(ctx, t.TempDir()); err == nil {
		t.Error("a directory is no file")
	}
}
