// Package sqlite opens the files that durable state is in. A commit that has
// returned survives kill -9 and a power cut, and nobody but the owner can read the
// file. Start reading at [Open].
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// connections is the most that one handle has open. SQLite has one writer at a time;
// the others read meanwhile.
const connections = 8

// Open opens the file at path, which it makes with its directories if it is missing.
// Every transaction of the handle takes the lock for writing when it begins. An error
// of Open names the path.
func Open(ctx context.Context, path string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := private(path); err != nil {
		return nil, err
	}
	// Pragmas in the name are set on each connection, the wait for locks first. The
	// driver's own default of synchronous, NORMAL, loses the last commits in a power cut.
	name := url.URL{Scheme: "file", Path: path, RawQuery: "_txlock=immediate&_pragma=busy_timeout(10000)" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(ON)"}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	// A write finds out now what a read would not: a full disk, a file that is not ours
	// to write, another kind of file.
	if err := Update(ctx, db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS carboy_opened (at INTEGER NOT NULL);
			DELETE FROM carboy_opened; INSERT INTO carboy_opened VALUES (unixepoch())`)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return db, nil
}

// OpenReadOnly opens the file at path for reading, beside those that write to it. The error
// wraps [fs.ErrNotExist] if there is none.
func OpenReadOnly(ctx context.Context, path string) (*sql.DB, error) {
	return openExisting(ctx, path, "mode=ro&_pragma=busy_timeout(10000)&_pragma=query_only(ON)")
}

// openExisting opens a file with one connection.
func openExisting(ctx context.Context, path, query string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err != nil {
		return nil, err
	}
	name := url.URL{Scheme: "file", Path: path, RawQuery: query}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	db.SetMaxOpenConns(1)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return db, nil
}

// OpenForeign opens the file at path, of another program, for reading and writing. It
// makes nothing and changes neither the file's journal nor its rights. Every transaction
// of the handle takes the lock for writing when it begins. The error wraps
// [fs.ErrNotExist] if there is no file.
func OpenForeign(ctx context.Context, path string) (*sql.DB, error) {
	return openExisting(ctx, path, "mode=rw&_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)")
}

// private makes the file if it is missing, and takes the rights of others off it. It
// opens no file that exists: closing it would drop the locks that this process has on it.
func private(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file", path)
	case fi.Mode().Perm() != 0o600:
		return os.Chmod(path, 0o600)
	}
	return nil
}

// Update calls do with a transaction, and commits what it did unless it returns an error.
func Update(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Busy reports whether err says that another process had the lock for writing too long. It
// is worth another try.
func Busy(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && (e.Code()&0xff == codes.SQLITE_BUSY || e.Code()&0xff == codes.SQLITE_LOCKED)
}
