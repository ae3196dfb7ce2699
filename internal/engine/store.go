package engine

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dbos-inc/dbos-transact-golang/dbos"

	"github.com/carboy/carboy/internal/sqlite"
)

// This file has all that knows the tables of the library, and ours beside them. Another
// store replaces it and package sqlite.

// A run has the id that Start was given. In the store, runs that began again have a
// number from 2 behind it, and children their key: the signs between are in no id.
const (
	againSign = "~"
	childSign = "~/"

	maxName = 200
)

// live are the states of a run that has not ended.
var live = []dbos.WorkflowStatusType{dbos.WorkflowStatusPending, dbos.WorkflowStatusEnqueued, dbos.WorkflowStatusDelayed}

func isLive(status string) bool { return slices.Contains(live, dbos.WorkflowStatusType(status)) }

// checkName says why s can't be an id, the key of a child or the name of a workflow.
func checkName(s string) error {
	switch {
	case s == "" || len(s) > maxName:
		return fmt.Errorf("it has %d bytes, not 1 to %d", len(s), maxName)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("it has bytes that are not printable text")
	case strings.Contains(s, againSign) || strings.Contains(s, "::"):
		return errors.New(`it has "~" or "::", which have a meaning in the store`)
	}
	return nil
}

// split returns the id of a run and how often it began again, from its id in the store.
func split(stored string) (id string, number int) {
	i := strings.LastIndex(stored, againSign)
	if i > 0 {
		if n, err := strconv.Atoi(stored[i+1:]); err == nil && n > 1 && stored[i+1:] == strconv.Itoa(n) {
			return stored[:i], n
		}
	}
	return stored, 1
}

func stored(id string, number int) string {
	if number == 1 {
		return id
	}
	return id + againSign + strconv.Itoa(number)
}

// row is the newest run of an id. Its number is 0 if there is none.
type row struct {
	number           int
	workflow, status string
}

// newest returns the newest run of id.
func newest(ctx context.Context, q interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}, id string) (r row, err error) {
	// Digits are before the colon, and children's slash before the digits.
	rows, err := q.QueryContext(ctx, `SELECT workflow_uuid, name, status FROM workflow_status
		WHERE workflow_uuid = ?1 OR workflow_uuid >= ?1 || '~0' AND workflow_uuid < ?1 || '~:'`, id)
	if err != nil {
		return row{}, err
	}
	defer rows.Close()
	for rows.Next() {
		var is, name, status string
		if err := rows.Scan(&is, &name, &status); err != nil {
			return row{}, err
		}
		if of, n := split(is); of == id && n > r.number {
			r = row{n, name, status}
		}
	}
	return r, rows.Err()
}

// prepare readies the store for the workflows with these names. It refuses live runs that
// would not be continued, and cancels those of retired schemas.
func (e *Engine) prepare(ctx context.Context, names []string, retire []int) error {
	known, err := json.Marshal(names)
	if err != nil {
		return err
	}
	return sqlite.Update(ctx, e.db, func(tx *sql.Tx) error {
		for _, schema := range retire {
			if _, err := tx.ExecContext(ctx, `UPDATE workflow_status SET status = ?, completed_at = ?, updated_at = ?, queue_name = NULL, owner_xid = NULL
				WHERE application_version = ? AND status IN ('PENDING', 'ENQUEUED', 'DELAYED')`,
				dbos.WorkflowStatusCancelled, time.Now().UnixMilli(), time.Now().UnixMilli(), version(schema)); err != nil {
				return err
			}
		}
		rows, err := tx.QueryContext(ctx, `SELECT name, COALESCE(application_version, ''), count(*) FROM workflow_status
			WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED') GROUP BY 1, 2`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name, of string
			var n int
			if err := rows.Scan(&name, &of, &n); err != nil {
				return err
			}
			if of != version(e.schema) {
				return fmt.Errorf("%d live runs of %q are of %s, and this program continues %s: go back to the one that began them, or retire theirs", n, name, of, version(e.schema))
			}
			if !slices.Contains(names, name) {
				return fmt.Errorf("%d live runs are of the workflow %q, which this program does not have", n, name)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS carboy_engine (one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL, workflows TEXT NOT NULL, beat INTEGER NOT NULL);
			INSERT INTO carboy_engine VALUES (1, ?1, ?2, unixepoch()) ON CONFLICT DO UPDATE SET schema = ?1, workflows = ?2, beat = unixepoch()`, e.schema, string(known))
		return err
	})
}

// recall reads what the last engine of the store said about itself, and returns the names of
// its workflows.
func (e *Engine) recall(ctx context.Context) (names []string, err error) {
	var known string
	if err := e.db.QueryRowContext(ctx, `SELECT schema, workflows FROM carboy_engine`).Scan(&e.schema, &known); err != nil {
		return nil, err
	}
	return names, json.Unmarshal([]byte(known), &names)
}

// beat writes to the store, to see that it can be written to.
func (e *Engine) beat(ctx context.Context) error {
	_, err := e.db.ExecContext(ctx, `UPDATE carboy_engine SET beat = unixepoch()`)
	return err
}

// cancelledOf returns which of these runs are cancelled in the store.
func (e *Engine) cancelledOf(ctx context.Context, ids []string) ([]string, error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	return e.idsOf(ctx, `SELECT workflow_uuid FROM workflow_status
		WHERE workflow_uuid IN (SELECT value FROM json_each(?)) AND status = 'CANCELLED'`, string(list))
}

// running returns the runs that the store says are under way.
func (e *Engine) running(ctx context.Context) ([]string, error) {
	return e.idsOf(ctx, `SELECT workflow_uuid FROM workflow_status WHERE status = 'PENDING'`)
}

func (e *Engine) idsOf(ctx context.Context, query string, args ...any) (ids []string, err error) {
	rows, err := e.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}
