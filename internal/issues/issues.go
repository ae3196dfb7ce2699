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

// Put stores a record, in the place of the one with the same key.
func (t *Table) Put(ctx context.Context, r Record) error {
	if err := r.valid(); err != nil {
		return fmt.Errorf("%v: %w", r.Key, err)
	}
	bottles, err := json.Marshal(r.Bottles)
	if err != nil {
		return err
	}
	var checkin int64
	if !r.LastCheckin.IsZero() {
		checkin = r.LastCheckin.UnixNano()
	}
	_, err = t.db.ExecContext(ctx, `INSERT OR REPLACE INTO issues (`+columns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Owner, r.Repo, r.Number, r.Slug, r.Agent, string(bottles), r.Backend, r.GitUser, r.PullRequest, r.Status, checkin)
	return t.wrap(err)
}

// Get returns the record of an issue, and reports whether there is one.
func (t *Table) Get(ctx context.Context, k Key) (Record, bool, error) {
	list, err := t.list(ctx, "WHERE owner = ? AND repo = ? AND number = ?", k.Owner, k.Repo, k.Number)
	if err != nil || len(list) == 0 {
		return Record{}, false, err
	}
	return list[0], true, nil
}

// Delete removes the record of an issue, if there is one.
func (t *Table) Delete(ctx context.Context, k Key) error {
	_, err := t.db.ExecContext(ctx, "DELETE FROM issues WHERE owner = ? AND repo = ? AND number = ?", k.Owner, k.Repo, k.Number)
	return t.wrap(err)
}

// List returns all records by owner, repository and number.
func (t *Table) List(ctx context.Context) ([]Record, error) { return t.list(ctx, "") }

const columns = "owner, repo, number, slug, agent, bottles, backend, git_user, pull_request, status, last_checkin"

func (t *Table) list(ctx context.Context, where string, args ...any) (list []Record, err error) {
	rows, err := t.db.QueryContext(ctx, "SELECT "+columns+" FROM issues "+where+" ORDER BY owner, repo, number", args...)
	if err != nil {
		return nil, t.wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Record
		var bottles string
		var checkin int64
		if err := rows.Scan(&r.Owner, &r.Repo, &r.Number, &r.Slug, &r.Agent, &bottles, &r.Backend, &r.GitUser, &r.PullRequest, &r.Status, &checkin); err != nil {
			return nil, t.wrap(err)
		}
		if err := json.Unmarshal([]byte(bottles), &r.Bottles); err != nil {
			return nil, fmt.Errorf("%s: %v: bottles: %w", t.path, r.Key, err)
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
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", t.path, err)
}
