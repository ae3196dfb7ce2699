// Package issues keeps what carboy knows of each issue that it works on. It is the truth
// for operators and for the forge: a workflow whose engine lost it begins again from here.
// Start reading at [Open].
package issues

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/sqlite"
)

// A Key names an issue. Owners and repositories are spelled as the forge spells them.
type Key struct {
	Owner, Repo string
	Number      int64
}

func (k Key) String() string { return fmt.Sprintf("%s/%s#%d", k.Owner, k.Repo, k.Number) }

// A Status is what became of the bottle of an issue.
type Status string

// What became of it.
const (
	Running   Status = "running"
	Frozen    Status = "frozen"
	Destroyed Status = "destroyed"
)

// A Record is what is known of an issue.
type Record struct {
	Key
	Slug        string // of its bottle
	Agent       string
	Bottles     []string // that the agent's manifest is made of, in their order
	Backend     string
	GitUser     string
	PullRequest int64 // 0 while there is none
	Status      Status
	LastCheckin time.Time // of the agent; zero if it has not
	Life        Life
}

// A Life is how far an issue is. Its texts are safe to show.
type Life struct {
	RepoID  int64  `json:"repo_id,omitempty"` // the forge's own, which a rename keeps; 0: unknown
	Title   string `json:"title,omitempty"`
	URL     string `json:"url,omitempty"`
	Base    string `json:"base,omitempty"` // branches
	Branch  string `json:"branch,omitempty"`
	PullURL string `json:"pull_url,omitempty"`
	// Pulls are all pull requests of the issue, the ended ones too.
	Pulls []int64 `json:"pulls,omitempty"`
	Head  string  `json:"head,omitempty"` // the commit that carboy pushed last
	// Opening is since when a pull request may have been opened that is not in this record.
	Opening time.Time `json:"opening,omitzero"`
	// Turn counts the turns that began, and Settled those of which all is done that follows.
	Turn    int `json:"turn,omitempty"`
	Settled int `json:"settled,omitempty"`
	// Alone counts the newest turns that no person asked for.
	Alone   int    `json:"alone,omitempty"`
	Outcome string `json:"outcome,omitempty"` // of the newest turn
	Verdict string `json:"verdict,omitempty"`
	// Ending is merged or closed once the pull request is.
	Ending    string    `json:"ending,omitempty"`
	Digest    string    `json:"digest,omitempty"` // of the sealed provenance
	Waits     string    `json:"waits,omitempty"`  // what for, in words
	Watchdog  bool      `json:"watchdog,omitempty"`
	Strangers int       `json:"strangers,omitempty"` // comments of people who may not prompt
	Warnings  []string  `json:"warnings,omitempty"`
	Since     time.Time `json:"since,omitzero"` // when the issue was begun
	// Read is the newest change of the comments of each thread that was read.
	Read    map[string]time.Time `json:"read,omitempty"`
	Failure *Failure             `json:"failure,omitempty"` // of looking at the issue
	Stuck   *Failure             `json:"stuck,omitempty"`   // of what is done for it
}

// A Failure is a call that failed in each of several tries.
type Failure struct {
	Error string    `json:"error"`
	Since time.Time `json:"since"`
	Tries int       `json:"tries"`
}

func (r Record) valid() error {
	switch {
	case r.Owner == "" || r.Repo == "" || r.Number < 1:
		return errors.New("an issue has an owner, a repository and a number from 1")
	case r.Status != Running && r.Status != Frozen && r.Status != Destroyed:
		return fmt.Errorf("%q is no status of an issue", r.Status)
	case r.PullRequest < 0:
		return fmt.Errorf("%d is no pull request", r.PullRequest)
	}
	return nil
}

// A Table is the records in a file. It may be used by several goroutines and processes.
type Table struct {
	path string
	db   *sql.DB
}

// migrations bring the file from the version that is their index to the next. A released
// one never changes.
var migrations = []string{
	`CREATE TABLE issues (
		owner TEXT NOT NULL,
		repo TEXT NOT NULL,
		number INTEGER NOT NULL,
		slug TEXT NOT NULL,
		agent TEXT NOT NULL,
		bottles TEXT NOT NULL, -- an array of JSON
		backend TEXT NOT NULL,
		git_user TEXT NOT NULL,
		pull_request INTEGER NOT NULL, -- 0: none
		status TEXT NOT NULL,
		last_checkin INTEGER NOT NULL, -- nanoseconds since 1970; 0: never
		PRIMARY KEY (owner, repo, number)
	) STRICT, WITHOUT ROWID`,
	`ALTER TABLE issues ADD COLUMN life TEXT NOT NULL DEFAULT '{}'; -- an object of JSON
	CREATE TABLE entries (
		seq INTEGER PRIMARY KEY AUTOINCREMENT,
		owner TEXT NOT NULL,
		repo TEXT NOT NULL,
		number INTEGER NOT NULL,
		kind TEXT NOT NULL,
		id TEXT NOT NULL,
		value TEXT NOT NULL, -- JSON
		UNIQUE (owner, repo, number, kind, id)
	) STRICT;
	CREATE TABLE notes (
		kind TEXT NOT NULL,
		id TEXT NOT NULL,
		value TEXT NOT NULL, -- JSON
		PRIMARY KEY (kind, id)
	) STRICT, WITHOUT ROWID`,
}

// Open opens the table in the file at path, which it makes with its directories if it is
// missing, and brings it to the version of this program.
func Open(ctx context.Context, path string) (*Table, error) {
	db, err := sqlite.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, db, migrations); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return &Table{path, db}, nil
}

// OpenReadOnly opens the table at path for reading, beside the process that writes to it. The
// error wraps [fs.ErrNotExist] if there is none. What writes fails.
func OpenReadOnly(ctx context.Context, path string) (*Table, error) {
	db, err := sqlite.OpenReadOnly(ctx, path)
	if err != nil {
		return nil, err
	}
	var version int
	err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version)
	switch {
	case err == nil && version == 0: // the process that makes the file has not filled it yet
		err = fs.ErrNotExist
	case err == nil && version != len(migrations):
		err = fmt.Errorf("its version is %d, and this program reads %d: start the carboy that uses it with this version first", version, len(migrations))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), db.Close())
	}
	return &Table{path, db}, nil
}

// migrate runs what is missing and records it, all or nothing.
func migrate(ctx context.Context, db *sql.DB, migrations []string) error {
	return sqlite.Update(ctx, db, func(tx *sql.Tx) error {
		var version int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
			return err
		}
		if version < 0 || version > len(migrations) {
			return fmt.Errorf("its version is %d, and this program knows those to %d: use a newer carboy", version, len(migrations))
		}
		for _, m := range migrations[version:] {
			if _, err := tx.ExecContext(ctx, m); err != nil {
				return fmt.Errorf("from version %d: %w", version, err)
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
		return err
	})
}

// Close closes the table.
func (t *Table) Close() error { return t.db.Close() }

// querier is a database or a transaction.
type querier interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

// Put stores a record, in the place of the one with the same key.
func (t *Table) Put(ctx context.Context, r Record) error { return t.wrap(store(ctx, t.db, r)) }

func store(ctx context.Context, q querier, r Record) error {
	if err := r.valid(); err != nil {
		return fmt.Errorf("%v: %w", r.Key, err)
	}
	bottles, err := json.Marshal(r.Bottles)
	if err != nil {
		return err
	}
	life, err := json.Marshal(r.Life)
	if err != nil {
		return err
	}
	var checkin int64
	if !r.LastCheckin.IsZero() {
		checkin = r.LastCheckin.UnixNano()
	}
	_, err = q.ExecContext(ctx, `INSERT OR REPLACE INTO issues (`+columns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Owner, r.Repo, r.Number, r.Slug, r.Agent, string(bottles), r.Backend, r.GitUser, r.PullRequest, r.Status, checkin, string(life))
	return err
}

// ErrMissing says that there is no record of an issue.
var ErrMissing = errors.New("there is no record of this issue")

// Update changes the record of an issue, whole or not at all: if change returns an error,
// nothing changes. The error wraps [ErrMissing] if there is none.
func (t *Table) Update(ctx context.Context, k Key, change func(*Record) error) error {
	return t.wrap(sqlite.Update(ctx, t.db, func(tx *sql.Tx) error {
		list, err := t.list(ctx, tx, ofKey, k.Owner, k.Repo, k.Number)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return fmt.Errorf("%v: %w", k, ErrMissing)
		}
		r := list[0]
		if err := change(&r); err != nil {
			return err
		}
		r.Key = k
		return store(ctx, tx, r)
	}))
}

const ofKey = "WHERE owner = ? AND repo = ? AND number = ?"

// Get returns the record of an issue, and reports whether there is one.
func (t *Table) Get(ctx context.Context, k Key) (Record, bool, error) {
	list, err := t.list(ctx, t.db, ofKey, k.Owner, k.Repo, k.Number)
	if err != nil || len(list) == 0 {
		return Record{}, false, err
	}
	return list[0], true, nil
}

// Delete removes the record of an issue with its entries, if there is one.
func (t *Table) Delete(ctx context.Context, k Key) error {
	return t.wrap(sqlite.Update(ctx, t.db, func(tx *sql.Tx) error {
		for _, from := range []string{"issues", "entries"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+from+" "+ofKey, k.Owner, k.Repo, k.Number); err != nil {
				return err
			}
		}
		return nil
	}))
}

// List returns all records by owner, repository and number.
func (t *Table) List(ctx context.Context) ([]Record, error) { return t.list(ctx, t.db, "") }

const columns = "owner, repo, number, slug, agent, bottles, backend, git_user, pull_request, status, last_checkin, life"

func (t *Table) list(ctx context.Context, q querier, where string, args ...any) (list []Record, err error) {
	rows, err := q.QueryContext(ctx, "SELECT "+columns+" FROM issues "+where+" ORDER BY owner, repo, number", args...)
	if err != nil {
		return nil, t.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Record
		var bottles, life string
		var checkin int64
		if err := rows.Scan(&r.Owner, &r.Repo, &r.Number, &r.Slug, &r.Agent, &bottles, &r.Backend, &r.GitUser, &r.PullRequest, &r.Status, &checkin, &life); err != nil {
			return nil, t.wrap(err)
		}
		if err := json.Unmarshal([]byte(bottles), &r.Bottles); err != nil {
			return nil, fmt.Errorf("%s: %v: bottles: %w", t.path, r.Key, err)
		}
		if err := json.Unmarshal([]byte(life), &r.Life); err != nil {
			return nil, fmt.Errorf("%s: %v: life: %w", t.path, r.Key, err)
		}
		if checkin != 0 {
			r.LastCheckin = time.Unix(0, checkin)
		}
		if err := r.valid(); err != nil {
			return nil, fmt.Errorf("%s: %v: %w", t.path, r.Key, err)
		}
		list = append(list, r)
	}
	return list, t.wrap(rows.Err())
}

func (t *Table) wrap(err error) error {
	if err == nil || strings.HasPrefix(err.Error(), t.path+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", t.path, err)
}
