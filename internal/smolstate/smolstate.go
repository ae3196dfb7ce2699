// Package smolstate reads what smolvm has stored about a machine, and corrects which
// addresses the machine may reach. Start reading at [Confine].
//
// smolvm keeps a row for each machine in the table vms of a SQLite file: its name, and its
// description as JSON in a BLOB. Of the description one field is changed here,
// allowed_cidrs. Every other byte stays.
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
	"reflect"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/sqlite"
)

// Errors of Confine that mean that the machine must not be started.
var (
	ErrNoDatabase = errors.New("smolvm's state database is missing")
	ErrNoMachine  = errors.New("the machine is not in smolvm's state database")
	ErrNotStored  = errors.New("smolvm's state database does not keep the allowed addresses")
)

const (
	// maxData bounds a machine's description in bytes.
	maxData = 1 << 20
	// field is the name of the field that is corrected.
	field = "allowed_cidrs"
)

// Path returns the place of smolvm's state database on a system (a GOOS). getenv is
// os.Getenv or the like.
func Path(goos string, getenv func(string) string) (string, error) {
	const tail = "smolvm/server/smolvm.db"
	home := getenv("HOME")
	if goos == "darwin" {
		if !filepath.IsAbs(home) {
			return "", errors.New("HOME is not an absolute path, so smolvm's state can't be found: set it")
		}
		return filepath.Join(home, "Library/Application Support", tail), nil
	}
	// A relative XDG_DATA_HOME is invalid and ignored (XDG Base Directory Specification 0.8).
	if data := getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, tail), nil
	}
	if !filepath.IsAbs(home) {
		return "", errors.New("neither XDG_DATA_HOME nor HOME is an absolute path, so smolvm's state can't be found: set HOME")
	}
	return filepath.Join(home, ".local/share", tail), nil
}

// Machine is the description of a machine, as far as a start depends on it. What it does
// not name was not there.
type Machine struct {
	Allowed   []string          `json:"allowed_cidrs"`
	Hosts     []string          `json:"dns_filter_hosts"`
	DNS       string            `json:"dns"`
	Mounts    []json.RawMessage `json:"mounts"`
	Ports     []json.RawMessage `json:"ports"`
	Sockets   []json.RawMessage `json:"published_sockets"`
	Volumes   []json.RawMessage `json:"remote_volumes"`
	Init      []string          `json:"init"`
	SSHAgent  bool              `json:"ssh_agent"`
	Docker    bool              `json:"docker_socket"`
	Cuda      bool              `json:"cuda"`
	GPU       bool              `json:"gpu"`
	Secrets   map[string]any    `json:"secret_refs"`
	NetworkOf string            `json:"network_name"`
	// PID is the process of a machine that runs; 0: none.
	PID int `json:"pid"`
}

// Confine makes the database at path say that a machine may reach the address allowed and
// nothing else, and returns the machine's description, read anew after a change. If the
// row says so already, nothing is written. Call it after the machine was created and
// before it starts; on any error, don't start it.
func Confine(ctx context.Context, path, machine string, allowed netip.Addr) (m Machine, changed bool, err error) {
	if !allowed.Is4() || !allowed.IsLoopback() {
		return Machine{}, false, fmt.Errorf("smolvm state: %v is no address that a machine can be confined to", allowed)
	}
	want := netip.PrefixFrom(allowed, 32).String()
	if err := checkFile(path); err != nil {
		return Machine{}, false, err
	}
	m, err = readMachine(ctx, path, machine)
	if err != nil {
		return Machine{}, false, err
	}
	if slices.Equal(m.Allowed, []string{want}) {
		return m, false, nil
	}
	if err := correct(ctx, path, machine, want); err != nil {
		return Machine{}, false, fmt.Errorf("smolvm state %s: machine %q: %w", path, machine, err)
	}
	// What counts is what another process reads.
	m, err = readMachine(ctx, path, machine)
	if err != nil {
		return Machine{}, true, err
	}
	if !slices.Equal(m.Allowed, []string{want}) {
		return Machine{}, true, fmt.Errorf("smolvm state %s: machine %q: %s is %.200q, not %q: %w", path, machine, field, m.Allowed, want, ErrNotStored)
	}
	return m, true, nil
}

// Read returns a machine's description.
func Read(ctx context.Context, path, machine string) (Machine, error) {
	if err := checkFile(path); err != nil {
		return Machine{}, err
	}
	return readMachine(ctx, path, machine)
}

// Has reports whether the database at path has a machine of that name. Without a database
// there are none.
func Has(ctx context.Context, path, machine string) (bool, error) {
	err := checkFile(path)
	if err == nil {
		_, err = readRow(ctx, path, machine)
	}
	if errors.Is(err, ErrNoDatabase) || errors.Is(err, ErrNoMachine) {
		return false, nil
	}
	return err == nil, err
}

// checkFile refuses a file that is not this user's own, or that another user can change:
// also in its directory, where SQLite finds the file's journal.
func checkFile(path string) error {
	for _, p := range []string{path, filepath.Dir(path) + "/."} {
		fi, err := os.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: no file %s", ErrNoDatabase, path)
		}
		if err != nil {
			return fmt.Errorf("smolvm state: %w", err)
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		switch {
		case p == path && !fi.Mode().IsRegular():
			return fmt.Errorf("smolvm state %s: not a regular file", p)
		case !ok || int(st.Uid) != os.Geteuid():
			return fmt.Errorf("smolvm state %s: belongs to another user", p)
		case fi.Mode().Perm()&0o022 != 0:
			return fmt.Errorf("smolvm state %s: other users can write to it: chmod go-w it", p)
		}
	}
	return nil
}

func readMachine(ctx context.Context, path, machine string) (Machine, error) {
	data, err := readRow(ctx, path, machine)
	if err != nil {
		return Machine{}, err
	}
	m, err := parse(data)
	if err != nil {
		return Machine{}, fmt.Errorf("smolvm state %s: machine %q: %w", path, machine, err)
	}
	return m, nil
}

// readRow returns a machine's description.
func readRow(ctx context.Context, path, machine string) ([]byte, error) {
	db, err := sqlite.OpenReadOnly(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("smolvm state: %w", err)
	}
	defer db.Close()
	data, err := queryRow(ctx, db, machine)
	if err != nil {
		return nil, fmt.Errorf("smolvm state %s: machine %q: %w", path, machine, err)
	}
	return data, nil
}

// queryRow reads a row by a handle or in a transaction.
func queryRow(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, machine string) (data []byte, err error) {
	var size int64
	var kind string
	err = q.QueryRowContext(ctx, `SELECT typeof(data), length(CAST(data AS BLOB)) FROM vms WHERE name = ?`, machine).Scan(&kind, &size)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, ErrNoMachine
	case err != nil:
		return nil, err
	case kind != "blob" && kind != "text":
		return nil, fmt.Errorf("its description is a value of type %s", kind)
	case size > maxData:
		return nil, fmt.Errorf("its description has %d bytes, more than %d", size, maxData)
	}
	err = q.QueryRowContext(ctx, `SELECT CAST(data AS BLOB) FROM vms WHERE name = ?`, machine).Scan(&data)
	return data, err
}

// correct writes the field, in one transaction with the reading of the rest.
func correct(ctx context.Context, path, machine, want string) error {
	db, err := sqlite.OpenForeign(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	return sqlite.Update(ctx, db, func(tx *sql.Tx) error {
		data, err := queryRow(ctx, tx, machine)
		if err != nil {
			return err
		}
		if data, err = replace(data, field, want); err != nil {
			return err
		}
		// A []byte is stored as a BLOB, which is what smolvm reads.
		res, err := tx.ExecContext(ctx, `UPDATE vms SET data = ? WHERE name = ?`, data, machine)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(fmt.Errorf("%d rows were changed", n), err)
		}
		return nil
	})
}

// parse reads a description. It refuses what two readers can read differently: smolvm
// ignores a name that differs from a field's in case, and encoding/json does not.
func parse(data []byte) (Machine, error) {
	list, err := members(data)
	if err != nil {
		return Machine{}, err
	}
	for f := range reflect.TypeFor[Machine]().Fields() {
		tag := f.Tag.Get("json")
		for _, m := range list {
			if m.name != tag && strings.EqualFold(m.name, tag) {
				return Machine{}, fmt.Errorf("its description: it has %.100q in place of %q", m.name, tag)
			}
		}
	}
	var m Machine
	if err := json.Unmarshal(data, &m); err != nil {
		return Machine{}, fmt.Errorf("its description: %w", err)
	}
	return m, nil
}

// member is a member of a JSON object, by the offsets of its value.
type member struct {
	name       string
	start, end int
}

// members returns the members of the JSON object that data is. It refuses names that
// occur twice, also in different cases, which some readers take for the same.
func members(data []byte) ([]member, error) {
	fail := func(err error) ([]member, error) { return nil, fmt.Errorf("its description: %w", err) }
	if !utf8.Valid(data) {
		return fail(errors.New("not UTF-8"))
	}
	if !json.Valid(data) {
		return fail(errors.New("not valid JSON"))
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fail(errors.New("not a JSON object"))
	}
	var out []member
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fail(err)
		}
		name, _ := t.(string)
		if slices.ContainsFunc(out, func(m member) bool { return strings.EqualFold(m.name, name) }) {
			return fail(fmt.Errorf("it has %.100q twice", name))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fail(err)
		}
		end := int(d.InputOffset())
		out = append(out, member{name, end - len(value), end})
	}
	return out, nil
}

// replace returns the JSON object with the member name set to a list of one string. It
// keeps every other byte.
func replace(data []byte, name, value string) ([]byte, error) {
	list, err := members(data)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal([]string{value})
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if m.name == name {
			return slices.Concat(data[:m.start], text, data[m.end:]), nil
		}
	}
	added := `"` + name + `":` + string(text)
	if len(list) > 0 {
		added = "," + added
	}
	at := bytes.LastIndexByte(data, '}')
	return slices.Concat(data[:at], []byte(added), data[at:]), nil
}
