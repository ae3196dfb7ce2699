package issues

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
)

// An Entry is something that belongs to an issue, such as a turn, or a comment that was heard.
type Entry struct {
	Kind, ID string
	Value    json.RawMessage
}

// Add keeps an entry of an issue, unless there is one of the same kind and id. It reports
// whether it did.
func (t *Table) Add(ctx context.Context, k Key, kind, id string, value any) (added bool, err error) {
	res, err := t.enter(ctx, k, kind, id, value, "ON CONFLICT DO NOTHING")
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, t.wrap(err)
}

// Set keeps an entry of an issue, in the place of the one of the same kind and id.
func (t *Table) Set(ctx context.Context, k Key, kind, id string, value any) error {
	_, err := t.enter(ctx, k, kind, id, value, "ON CONFLICT DO UPDATE SET value = excluded.value")
	return err
}

func (t *Table) enter(ctx context.Context, k Key, kind, id string, value any, conflict string) (sql.Result, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	res, err := t.db.ExecContext(ctx, `INSERT INTO entries (owner, repo, number, kind, id, value) VALUES (?, ?, ?, ?, ?, ?) `+conflict,
		k.Owner, k.Repo, k.Number, kind, id, string(b))
	return res, t.wrap(err)
}

// Entries returns the entries of a kind of an issue, in the order in which they were added.
func (t *Table) Entries(ctx context.Context, k Key, kind string) (list []Entry, err error) {
	rows, err := t.db.QueryContext(ctx, "SELECT kind, id, value FROM entries "+ofKey+" AND kind = ? ORDER BY seq", k.Owner, k.Repo, k.Number, kind)
	return entries(rows, t.wrap(err), t)
}

// entries reads rows of kind, id and value.
func entries(rows *sql.Rows, err error, t *Table) (list []Entry, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var e Entry
		var value string
		if err := rows.Scan(&e.Kind, &e.ID, &value); err != nil {
			return nil, t.wrap(err)
		}
		e.Value = json.RawMessage(value)
		if !json.Valid(e.Value) {
			return nil, fmt.Errorf("%s: %s %s: it is no JSON", t.path, e.Kind, e.ID)
		}
		list = append(list, e)
	}
	return list, t.wrap(rows.Err())
}

// SetNote keeps something that belongs to no single issue, in the place of the note of the
// same kind and id. A nil value removes it.
func (t *Table) SetNote(ctx context.Context, kind, id string, value any) error {
	if value == nil {
		_, err := t.db.ExecContext(ctx, "DELETE FROM notes WHERE kind = ? AND id = ?", kind, id)
		return t.wrap(err)
	}
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = t.db.ExecContext(ctx, "INSERT OR REPLACE INTO notes (kind, id, value) VALUES (?, ?, ?)", kind, id, string(b))
	return t.wrap(err)
}

// Notes returns the notes of a kind, by their ids.
func (t *Table) Notes(ctx context.Context, kind string) ([]Entry, error) {
	rows, err := t.db.QueryContext(ctx, "SELECT kind, id, value FROM notes WHERE kind = ? ORDER BY id", kind)
	return entries(rows, t.wrap(err), t)
}
